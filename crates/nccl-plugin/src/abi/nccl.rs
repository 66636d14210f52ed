//! The NCCL library that loaded the plugin.

use super::Logger;
use std::ffi::c_void;
use std::sync::OnceLock;

static VERSION: OnceLock<Option<u32>> = OnceLock::new();

/// NCCL's release (22809 is 2.28.9); `None` before the first init, or if NCCL does not tell it.
pub fn version() -> Option<u32> {
    VERSION.get().copied().flatten()
}

/// Asks the library in which NCCL's logger lies.
pub fn ask_version(logger: Logger) {
    if let Some(logger) = logger {
        VERSION.get_or_init(|| plugin_base::library::nccl_version(logger as *const c_void));
    }
}
