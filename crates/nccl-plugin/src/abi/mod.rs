//! The C border: the functions that NCCL calls, and the only modules with `unsafe`. Layouts follow NCCL's published plugin interfaces.
//!
//! Every entry point returns success, catches every panic, and writes its outputs only if it has a result.

pub mod log;
pub mod nccl;
pub mod profiler;
pub mod step;
pub mod tuner;

use crate::overhead::{self, Entry};
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `ncclResult_t`.
pub type Status = c_int;
/// The only status returned but for one case: any other fails the user's collective.
pub const SUCCESS: Status = 0;
/// `ncclRemoteError`: another thread has aborted the communicator while a call waited. The call must not go on: NCCL is freeing what it uses.
pub const ABORTED: Status = 6;

/// The first member of every table.
#[repr(C)]
#[derive(Debug)]
pub struct Name(*const c_char);
// SAFETY: the pointer refers to a literal.
unsafe impl Sync for Name {}
const NAME: Name = Name(c"linkwise".as_ptr());

/// Runs an entry point and catches its panics.
#[inline]
fn guarded(kind: Entry, f: impl FnOnce()) -> Status {
    let _ = catch_unwind(AssertUnwindSafe(|| overhead::entry(kind, f)));
    SUCCESS
}

/// Panics if a test requests it.
fn panic_if_tested() {
    assert!(!crate::process::settings().test.panic, "LINKWISE_TEST_PANIC: every entry panics");
}

/// `sigset_t`: 1024 bits in glibc and musl.
#[repr(C)]
struct Signals([u64; 16]);

unsafe extern "C" {
    fn pthread_sigmask(how: c_int, set: *const Signals, old: *mut Signals) -> c_int;
}
const SIG_SETMASK: c_int = 2;

/// Runs `f` with all signals blocked, so that threads which it starts receive none: a thread inherits the mask of its creator.
pub fn without_signals<T>(f: impl FnOnce() -> T) -> T {
    let (all, mut before) = (Signals([u64::MAX; 16]), Signals([0; 16]));
    // SAFETY: two signal sets; only the calling thread's mask changes, and it is restored.
    let changed = unsafe { pthread_sigmask(SIG_SETMASK, &all, &mut before) } == 0;
    let result = f();
    if changed {
        // SAFETY: as above.
        unsafe { pthread_sigmask(SIG_SETMASK, &before, std::ptr::null_mut()) };
    }
    result
}
