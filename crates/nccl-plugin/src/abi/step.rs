//! `linkwise.h`: what a program says about its steps.

use super::{Status, guarded};

/// A training step begins.
#[unsafe(no_mangle)]
pub extern "C" fn linkwise_step_begin() -> Status {
    guarded(crate::step::begin)
}

/// The step ends.
#[unsafe(no_mangle)]
pub extern "C" fn linkwise_step_end() -> Status {
    guarded(crate::step::end)
}
