//! Forwards signals to the command of a job.

use crate::JobError;
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals};
use std::thread::JoinHandle;

/// Forwarded signals. A signal that this process ignores since its start is not forwarded.
const PASSED: [i32; 6] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];

/// Catches the signals: from now on they do not end this process, and none is lost. Ignored signals (`nohup`,
/// interrupts of a shell's background jobs) stay ignored, and the command inherits that.
pub fn caught() -> Result<Signals, JobError> {
    Signals::new(heeded(&PASSED)).map_err(JobError::Signals)
}

/// The signals among `signals` that this process does not ignore.
pub fn heeded(signals: &[i32]) -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    heeded_by(&status, signals)
}

/// The signals among `signals` that a process with this `/proc/PID/status` does not ignore.
fn heeded_by(status: &str, signals: &[i32]) -> Vec<i32> {
    let line = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let ignored = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    signals.iter().copied().filter(|signal| ignored & (1 << (signal - 1)) == 0).collect()
}

/// Forwards caught signals to a command until [`end`](SignalForwarder::end).
pub struct SignalForwarder {
    handle: Handle,
    thread: JoinHandle<()>,
}

impl SignalForwarder {
    /// Forwards to the process `child`.
    pub fn to(child: u32, mut signals: Signals) -> Self {
        let pid = i32::try_from(child).ok().and_then(Pid::from_raw);
        let handle = signals.handle();
        let thread = std::thread::spawn(move || {
            for signal in signals.forever() {
                // The terminal already sends its interrupts to the whole group.
                let has_it = (signal == SIGINT || signal == SIGQUIT) && in_foreground();
                if let (Some(pid), Some(signal), false) = (pid, Signal::from_named_raw(signal), has_it) {
                    let _ = rustix::process::kill_process(pid, signal);
                }
            }
        });
        SignalForwarder { handle, thread }
    }

    /// Stops forwarding. Call it after the command has ended.
    pub fn end(self) {
        self.handle.close();
        let _ = self.thread.join();
    }
}

/// True if the terminal sends its interrupts to this process's group, also if standard input is redirected.
pub fn in_foreground() -> bool {
    let group = std::fs::File::open("/dev/tty").ok().and_then(|tty| rustix::termios::tcgetpgrp(tty).ok());
    group == Some(rustix::process::getpgrp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_stay_ignored() {
        let passed = |text: &str| heeded_by(text, &PASSED);
        assert_eq!(passed("SigBlk:\t0000000000000001\nSigIgn:\t0000000000001000\n"), PASSED);
        assert_eq!(passed("SigIgn:\t0000000000000001\n"), [SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2]);
        assert_eq!(passed("SigIgn:\t0000000000000006\n"), [SIGTERM, SIGHUP, SIGUSR1, SIGUSR2]);
        assert_eq!(passed(""), PASSED);
    }
}
