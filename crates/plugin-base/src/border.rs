//! The border to C: results, names of tables, and panics.

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `ncclResult_t`.
pub type Status = c_int;
/// `ncclSuccess`.
pub const SUCCESS: Status = 0;
/// `ncclSystemError`.
pub const SYSTEM: Status = 2;
/// `ncclInternalError`.
pub const INTERNAL: Status = 3;
/// `ncclInvalidArgument`.
pub const ARGUMENT: Status = 4;
/// `ncclRemoteError`.
pub const REMOTE: Status = 6;

/// The first member of every table: the plugin's name.
#[repr(transparent)]
#[derive(Debug)]
pub struct Name(*const c_char);
// SAFETY: the pointer refers to a literal.
unsafe impl Sync for Name {}

impl Name {
    /// A name that NCCL reads as long as the library is loaded.
    pub const fn new(name: &'static CStr) -> Self {
        Name(name.as_ptr())
    }
}

/// Runs an entry point. `if_panicked` is the result of one that panics.
#[inline]
pub fn guarded<T>(if_panicked: T, f: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or(if_panicked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_the_result_that_stands_for_it() {
        assert_eq!(guarded(INTERNAL, || SUCCESS), SUCCESS);
        assert_eq!(guarded(INTERNAL, || panic!("on purpose")), INTERNAL);
    }
}
