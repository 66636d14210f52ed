//! NCCL's log. Lines logged before NCCL provides its logger are kept, up to [`KEPT_MAX`].

use std::ffi::{CString, c_char, c_int, c_ulong};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// `ncclDebugLogger_t`.
pub type Logger = Option<unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...)>;

const WARN: c_int = 2;
const INFO: c_int = 3;
/// Subsystems TUNING and INIT.
const SUBSYSTEMS: c_ulong = 0x41;
const KEPT_MAX: usize = 16;

static STATE: Mutex<(Logger, Vec<(c_int, String)>)> = Mutex::new((None, Vec::new()));

/// Sets NCCL's logger and logs the kept lines.
pub fn set(logger: Logger) {
    if logger.is_none() {
        return;
    }
    let mut state = STATE.lock().unwrap_or_else(|e| e.into_inner());
    state.0 = logger;
    let kept = std::mem::take(&mut state.1);
    drop(state);
    for (level, text) in kept {
        say(level, &text);
    }
}

fn say(level: c_int, text: &str) {
    let mut state = STATE.lock().unwrap_or_else(|e| e.into_inner());
    let Some(logger) = state.0 else {
        if state.1.len() < KEPT_MAX {
            state.1.push((level, text.into()));
        }
        return;
    };
    drop(state);
    let Ok(line) = CString::new(format!("linkwise: {text}")) else { return };
    // SAFETY: NCCL's logger is a C variadic function that takes a format and its arguments; all pointers are 0-terminated and outlive the call.
    unsafe { logger(level, SUBSYSTEMS, c"linkwise".as_ptr(), 0, c"%s".as_ptr(), line.as_ptr()) };
}

/// Logs at level WARN.
pub fn warn(text: &str) {
    say(WARN, text);
}

/// Logs at level INFO.
pub fn info(text: &str) {
    say(INFO, text);
}

/// Logs a warning once per flag.
pub fn once(said: &AtomicBool, text: &str) {
    if !said.swap(true, Ordering::Relaxed) {
        warn(text);
    }
}
