//! Errors of the engine as the exception `linkwise.Error`.

use console::Failure;
use engine::{EngineError, ErrorForm, ErrorKind};
use pyo3::prelude::*;
use store::{StateError, StoreError};

/// An error on its way to Python.
#[derive(Debug)]
pub struct Problem(ErrorForm);

impl Problem {
    /// A request that must be corrected.
    pub fn bad(code: &str, message: impl std::fmt::Display) -> Problem {
        Problem::new(code, ErrorKind::Malformed, message, "correct the request")
    }

    /// An error of any kind.
    pub fn new(code: &str, kind: ErrorKind, message: impl std::fmt::Display, remedy: &str) -> Problem {
        Problem(ErrorForm { code: code.into(), kind, message: message.to_string(), remedy: remedy.into() })
    }
}

impl From<EngineError> for Problem {
    fn from(e: EngineError) -> Self {
        Problem::new(e.code(), e.kind(), &e, e.remedy())
    }
}

impl From<StateError> for Problem {
    fn from(e: StateError) -> Self {
        EngineError::from(e).into()
    }
}

impl From<StoreError> for Problem {
    fn from(e: StoreError) -> Self {
        EngineError::from(e).into()
    }
}

impl From<Failure> for Problem {
    fn from(e: Failure) -> Self {
        let message = match e {
            Failure::Impossible(m) | Failure::Input(m) => m,
            Failure::Located(report) => match report.help() {
                Some(help) => format!("{report}; {help}"),
                None => report.to_string(),
            },
        };
        Problem::bad("bad_file", message)
    }
}

impl From<Problem> for PyErr {
    fn from(Problem(e): Problem) -> PyErr {
        let kind = match e.kind {
            ErrorKind::Malformed => "malformed",
            ErrorKind::Impossible => "impossible",
            ErrorKind::Busy => "busy",
            ErrorKind::Broken => "broken",
        };
        Python::attach(|py| {
            let class = py.import("linkwise._errors").and_then(|m| m.getattr("Error"));
            match class.and_then(|c| c.call1((e.message, e.code, kind, e.remedy))) {
                Ok(error) => PyErr::from_value(error),
                Err(error) => error,
            }
        })
    }
}
