//! Converts errors of the engine, the store and the state to failures of a command.

use console::Failure;
use engine::{EngineError, ErrorKind};
use store::{StateError, StoreError};

/// A result whose error converts to a [`Failure`]: a refusal gives exit code 1, bad input 2.
pub trait OrFailure<T> {
    /// The value, or the failure.
    fn or_failure(self) -> Result<T, Failure>;
}

impl<T> OrFailure<T> for Result<T, StateError> {
    fn or_failure(self) -> Result<T, Failure> {
        self.map_err(|e| if e.is_refusal() { Failure::impossible(e) } else { Failure::input(e) })
    }
}

impl<T> OrFailure<T> for Result<T, StoreError> {
    fn or_failure(self) -> Result<T, Failure> {
        self.map_err(Failure::input)
    }
}

impl<T> OrFailure<T> for Result<T, EngineError> {
    fn or_failure(self) -> Result<T, Failure> {
        self.map_err(|e| match e.kind() {
            ErrorKind::Impossible | ErrorKind::Busy => Failure::impossible(e.with_remedy()),
            ErrorKind::Malformed | ErrorKind::Broken => Failure::input(e.with_remedy()),
        })
    }
}
