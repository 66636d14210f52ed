//! The C border: the functions that NCCL calls, and the only modules with `unsafe`. Layouts follow NCCL's published plugin interfaces.
//!
//! Every entry point returns success, catches every panic, and writes its outputs only if it has a result.

pub mod nccl;
pub mod profiler;
pub mod step;
pub mod tuner;

use crate::overhead::{self, Entry};
use plugin_base::Log;
pub(crate) use plugin_base::border::SUCCESS;
pub(crate) use plugin_base::{Logger, Name, Status};

/// The communicator was aborted while a call waited. The call must not go on: NCCL is freeing what the call uses. Any other status than this one and
/// success would fail the user's collective.
pub const ABORTED: Status = plugin_base::border::REMOTE;

/// NCCL's log.
pub static LOG: Log = Log::new("linkwise", plugin_base::log::TUNING | plugin_base::log::INIT);
/// The plugin's name in every table.
pub(crate) const NAME: Name = Name::new(c"linkwise");

/// Runs an entry point. A panic in it has no effect.
#[inline]
pub(crate) fn guarded(kind: Entry, f: impl FnOnce()) -> Status {
    plugin_base::guarded((), || overhead::entry(kind, f));
    SUCCESS
}

/// Panics if a test requests it.
fn panic_if_tested() {
    assert!(!crate::process::settings().test.panic, "LINKWISE_TEST_PANIC: every entry panics");
}
