//! The wish to end a fit before its end.

use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that another thread may set. A fit looks at it in its loops and ends within about a second; a fit that is not stopped computes
/// the same bits with it as without it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stop<'a>(Option<&'a AtomicBool>);

impl<'a> Stop<'a> {
    /// Ends the work when the flag is set.
    pub fn when(flag: &'a AtomicBool) -> Stop<'a> {
        Stop(Some(flag))
    }

    /// True if the work is to end. Loops then leave early; the caller throws their results away.
    pub fn is_set(self) -> bool {
        self.0.is_some_and(|f| f.load(Ordering::Relaxed))
    }
}
