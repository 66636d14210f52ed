//! NCCL's log. Lines logged before NCCL provides its logger are kept, up to [`KEPT_MAX`].

use std::ffi::{CString, c_char, c_int, c_ulong};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// `ncclDebugLogger_t`.
pub type Logger = Option<unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...)>;

/// Limit on kept lines.
pub const KEPT_MAX: usize = 16;
const WARN: c_int = 2;
const INFO: c_int = 3;
/// NCCL's subsystems of a line.
pub const INIT: c_ulong = 0x1;
/// Networks.
pub const NET: c_ulong = 0x10;
/// Tuners.
pub const TUNING: c_ulong = 0x40;

/// The log of a plugin. A log that nothing reads may block for ever: no lock is held while a line is written.
#[derive(Debug)]
pub struct Log {
    prefix: &'static str,
    subsystems: c_ulong,
    /// The logger, and lines with their levels that wait for it.
    state: Mutex<(Logger, Vec<(c_int, String)>)>,
}

impl Log {
    /// A log whose lines begin with `prefix`.
    pub const fn new(prefix: &'static str, subsystems: c_ulong) -> Self {
        Log { prefix, subsystems, state: Mutex::new((None, Vec::new())) }
    }

    /// Sets NCCL's logger and logs the kept lines.
    pub fn set(&self, logger: Logger) {
        if logger.is_none() {
            return;
        }
        let kept = {
            let mut state = self.state();
            state.0 = logger;
            std::mem::take(&mut state.1)
        };
        kept.iter().for_each(|(level, text)| self.say(*level, text));
    }

    fn state(&self) -> MutexGuard<'_, (Logger, Vec<(c_int, String)>)> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn say(&self, level: c_int, text: &str) {
        let logger = {
            let mut state = self.state();
            let Some(logger) = state.0 else {
                if state.1.len() < KEPT_MAX {
                    state.1.push((level, text.into()));
                }
                return;
            };
            logger
        };
        let Ok(line) = CString::new(format!("{}: {text}", self.prefix)) else { return };
        // SAFETY: NCCL's logger is a C variadic function that takes a format and its arguments; all pointers are 0-terminated and outlive the call.
        unsafe { logger(level, self.subsystems, c"linkwise".as_ptr(), 0, c"%s".as_ptr(), line.as_ptr()) };
    }

    /// Logs at level WARN.
    pub fn warn(&self, text: &str) {
        self.say(WARN, text);
    }

    /// Logs at level INFO.
    pub fn info(&self, text: &str) {
        self.say(INFO, text);
    }

    /// Logs a warning once per flag.
    pub fn once(&self, said: &AtomicBool, text: &str) {
        if !said.swap(true, Ordering::Relaxed) {
            self.warn(text);
        }
    }
}
