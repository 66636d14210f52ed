//! NCCL's log.

use std::ffi::{CString, c_char, c_int, c_ulong};
use std::sync::Mutex;

/// `ncclDebugLogger_t`.
pub type Logger = Option<unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...)>;

const WARN: c_int = 2;
const INFO: c_int = 3;
/// Subsystems NET and INIT.
const SUBSYSTEMS: c_ulong = 0x11;

static LOGGER: Mutex<Logger> = Mutex::new(None);

/// Sets NCCL's logger.
pub fn set(logger: Logger) {
    if logger.is_some() {
        *LOGGER.lock().unwrap_or_else(|e| e.into_inner()) = logger;
    }
}

fn say(level: c_int, text: &str) {
    let Some(logger) = *LOGGER.lock().unwrap_or_else(|e| e.into_inner()) else { return };
    let Ok(line) = CString::new(format!("NET/linkwise: {text}")) else { return };
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
