//! Ctrl-C during long work: one line reports what is kept and how to resume.

use crate::say;
use rustix::process::{Pid, Signal, getpgid, kill_process, kill_process_group};
use signal_hook::iterator::Signals;
use std::io::IsTerminal;

/// Installs a handler: from now on these signals end the program with the line of `kept` on standard error and exit
/// code 128 + signal: 130 for Ctrl-C. Child processes get SIGTERM, together with the process groups that they lead.
///
/// # Errors
/// The operating system refuses the handler.
pub fn on_interrupt(signals: &[i32], kept: impl Fn() -> String + Send + 'static) -> std::io::Result<()> {
    let mut signals = Signals::new(signals)?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // Overwrites the line of a running progress bar, or the terminal's `^C`.
            let start = if std::io::stderr().is_terminal() { "\r\x1b[2K" } else { "" };
            say(&format!("{start}{}", kept()));
            end_children(); // last, so that the work does not report them as failed
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

/// Sends SIGTERM to every child. Linux lists children by thread. If the list is missing, children end when their pipes
/// close.
fn end_children() {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = threads.filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok());
    let children: Vec<Pid> = lists
        .flat_map(|l| l.split_whitespace().filter_map(|n| n.parse().ok().and_then(Pid::from_raw)).collect::<Vec<_>>())
        .collect();
    for child in children {
        let _ = match getpgid(Some(child)) {
            Ok(group) if group == child => kill_process_group(child, Signal::TERM),
            _ => kill_process(child, Signal::TERM),
        };
    }
}
