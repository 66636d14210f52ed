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
        self.map_err(|e| if e.is_refusal() || e.is_transient() { Failure::impossible(e) } else { Failure::input(e) })
    }
}

impl<T> OrFailure<T> for Result<T, StoreError> {
    fn or_failure(self) -> Result<T, Failure> {
        self.map_err(of_store)
    }
}

/// A store that is locked or cannot be reached is no bad input: the same command succeeds later.
pub fn of_store(e: StoreError) -> Failure {
    if e.is_transient() { Failure::impossible(e) } else { Failure::input(e) }
}

impl<T> OrFailure<T> for Result<T, EngineError> {
    fn or_failure(self) -> Result<T, Failure> {
        self.map_err(|e| match e.kind() {
            ErrorKind::Impossible | ErrorKind::Busy => Failure::impossible(e.with_remedy()),
            ErrorKind::Malformed | ErrorKind::Broken => Failure::input(e.with_remedy()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_a_refusal_that_may_be_tried_again() {
        let path = || std::path::PathBuf::from("a.db");
        let of = |r: Result<(), StoreError>| r.or_failure().unwrap_err().exit_code();
        assert_eq!(of(Err(StoreError::Busy(path()))), 1);
        assert_eq!(of(Err(StoreError::Missing(path()))), 2);
        assert_eq!(Err::<(), _>(StateError::Busy(path())).or_failure().unwrap_err().exit_code(), 1);
    }
}
