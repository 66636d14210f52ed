//! The C border: what NCCL calls, and the only modules with `unsafe`. Layouts are NCCL's published plugin interfaces.
//!
//! Every entry returns success whatever happens, lets no panic pass, and touches its outputs only where there is something to say.

pub mod log;
pub mod profiler;
pub mod step;
pub mod tuner;

use crate::cost::{self, Entry};
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `ncclResult_t`.
pub type Status = c_int;
/// The only status that is ever returned: anything else fails the user's collective.
pub const SUCCESS: Status = 0;

/// The plugin's name, as its first member.
#[repr(C)]
#[derive(Debug)]
pub struct Name(*const c_char);
// SAFETY: it points at a literal.
unsafe impl Sync for Name {}
const NAME: Name = Name(c"linkwise".as_ptr());

/// Runs an entry; a panic inside ends here.
#[inline]
fn guarded(kind: Entry, f: impl FnOnce()) -> Status {
    let _ = catch_unwind(AssertUnwindSafe(|| cost::entry(kind, f)));
    SUCCESS
}

/// Panics where a test wants to know what happens then.
fn panic_if_tested() {
    assert!(!crate::process::settings().test.panic, "a test wants every entry to panic");
}

/// `sigset_t`: 1024 bits in glibc and musl.
#[repr(C)]
struct Signals([u64; 16]);

unsafe extern "C" {
    fn pthread_sigmask(how: c_int, set: *const Signals, old: *mut Signals) -> c_int;
}
const SIG_SETMASK: c_int = 2;

/// What `f` starts gets no signals: a thread inherits the mask of the one that starts it.
pub fn without_signals<T>(f: impl FnOnce() -> T) -> T {
    let (all, mut before) = (Signals([u64::MAX; 16]), Signals([0; 16]));
    // SAFETY: two signal sets; only the calling thread's mask changes, and it is put back.
    let changed = unsafe { pthread_sigmask(SIG_SETMASK, &all, &mut before) } == 0;
    let result = f();
    if changed {
        // SAFETY: as above.
        unsafe { pthread_sigmask(SIG_SETMASK, &before, std::ptr::null_mut()) };
    }
    result
}
