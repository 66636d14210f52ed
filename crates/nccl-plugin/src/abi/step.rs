//! The functions of `linkwise.h`, by which a program reports its steps.

use super::{Status, guarded};
use crate::overhead::Entry;

/// A training step begins.
#[unsafe(no_mangle)]
pub extern "C" fn linkwise_step_begin() -> Status {
    guarded(Entry::Event, crate::step::begin)
}

/// The step ends.
#[unsafe(no_mangle)]
pub extern "C" fn linkwise_step_end() -> Status {
    guarded(Entry::Event, crate::step::end)
}
