//! The C border: the functions that NCCL calls, and the only modules of this crate with `unsafe`. Layouts follow NCCL's published network interfaces.
//!
//! Every entry point catches panics; a panic is an internal error of the call. No entry point blocks, but the close of a connection until its I/O
//! thread has let go of NCCL's buffers.

pub mod library;
pub mod log;
pub mod net;

use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `ncclResult_t`.
pub type Status = c_int;
pub const SUCCESS: Status = 0;
/// `ncclSystemError`.
pub const SYSTEM: Status = 2;
/// `ncclInternalError`.
pub const INTERNAL: Status = 3;
/// `ncclInvalidArgument`.
pub const ARGUMENT: Status = 4;
/// `ncclRemoteError`.
pub const REMOTE: Status = 6;

/// The first member of every table.
#[repr(C)]
#[derive(Debug)]
pub struct Name(*const c_char);
// SAFETY: the pointer refers to a literal.
unsafe impl Sync for Name {}
pub(crate) const NAME: Name = Name(c"linkwise".as_ptr());

/// Runs an entry point and catches its panics.
#[inline]
pub(crate) fn guarded(f: impl FnOnce() -> Status) -> Status {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or(INTERNAL)
}
