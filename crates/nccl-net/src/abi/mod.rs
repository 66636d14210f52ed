//! The C border: the functions that NCCL calls, and the only modules of this crate with `unsafe`. Layouts follow NCCL's published network interfaces.
//!
//! Every entry point catches panics; a panic is an internal error of the call. No entry point blocks, except the close of a connection, which
//! waits until its I/O thread no longer uses NCCL's buffers.

pub mod calls;
pub mod library;
pub mod properties;
pub mod tables;
pub mod wrap;

use plugin_base::Log;
use plugin_base::border::INTERNAL;
pub(crate) use plugin_base::{Logger, Name, Status};

/// NCCL's log.
pub static LOG: Log = Log::new("NET/linkwise", plugin_base::log::NET | plugin_base::log::INIT);

/// Runs an entry point. A panic in it is an internal error of the call.
#[inline]
pub(crate) fn guarded(f: impl FnOnce() -> Status) -> Status {
    plugin_base::guarded(INTERNAL, f)
}
