//! Signals that end or tell a job something go on to the command.

use crate::JobError;
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals};
use std::thread::JoinHandle;

/// What is passed on, unless this process was started with it ignored.
const PASSED: [i32; 6] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];

/// From now on they do not end this process, and none gets lost; those that it ignores (`nohup`, and the interrupts of a shell's background
/// jobs) stay so, for the command inherits that.
pub fn caught() -> Result<Signals, JobError> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    Signals::new(passed(&status)).map_err(JobError::Signals)
}

/// Those of [`PASSED`] that a process with this `/proc/PID/status` does not ignore.
fn passed(status: &str) -> impl Iterator<Item = i32> {
    let line = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let ignored = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    PASSED.into_iter().filter(move |signal| ignored & (1 << (signal - 1)) == 0)
}

/// Passes them on until it ends.
pub struct SignalForwarder {
    handle: Handle,
    thread: JoinHandle<()>,
}

impl SignalForwarder {
    /// To the process of this number.
    pub fn to(child: u32, mut signals: Signals) -> Self {
        let pid = i32::try_from(child).ok().and_then(Pid::from_raw);
        let handle = signals.handle();
        let thread = std::thread::spawn(move || {
            for signal in signals.forever() {
                // From the keyboard the whole group has it already.
                let has_it = (signal == SIGINT || signal == SIGQUIT) && in_foreground();
                if let (Some(pid), Some(signal), false) = (pid, Signal::from_named_raw(signal), has_it) {
                    let _ = rustix::process::kill_process(pid, signal);
                }
            }
        });
        SignalForwarder { handle, thread }
    }

    /// The command has ended.
    pub fn end(self) {
        self.handle.close();
        let _ = self.thread.join();
    }
}

/// This process's group is the one that the terminal sends its interrupts to, whatever its standard input is.
fn in_foreground() -> bool {
    let group = std::fs::File::open("/dev/tty").ok().and_then(|tty| rustix::termios::tcgetpgrp(tty).ok());
    group == Some(rustix::process::getpgrp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_stays_ignored() {
        let passed = |text: &str| passed(text).collect::<Vec<_>>();
        assert_eq!(passed("SigBlk:\t0000000000000001\nSigIgn:\t0000000000001000\n"), PASSED);
        assert_eq!(passed("SigIgn:\t0000000000000001\n"), [SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2]);
        assert_eq!(passed("SigIgn:\t0000000000000006\n"), [SIGTERM, SIGHUP, SIGUSR1, SIGUSR2]);
        assert_eq!(passed(""), PASSED);
    }
}
