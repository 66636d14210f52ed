//! Errors of the engine as the exception `linkwise.Error`.

use console::Failure;
use engine::{EngineError, ErrorForm, ErrorKind};
use files::FileError;
use pyo3::prelude::*;
use std::io;
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

    /// A file that cannot be read. The program must name another one, or the machine must be mended.
    pub fn file(e: FileError) -> Problem {
        let (code, kind, remedy) = match &e {
            FileError::Io { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => ("no_file", ErrorKind::Malformed, "name a file that exists"),
                io::ErrorKind::PermissionDenied => {
                    ("unreadable", ErrorKind::Broken, "grant this user the right to read the file and its folder")
                }
                _ => ("unreadable", ErrorKind::Broken, "repair the file or the disk"),
            },
            FileError::Folder(_) | FileError::NotRegular(_) => {
                ("no_file", ErrorKind::Malformed, "name the file, not a folder or a device")
            }
            FileError::TooLarge { .. } | FileError::NotUtf8 { .. } => {
                ("bad_file", ErrorKind::Malformed, "name a file of this kind")
            }
        };
        Problem::new(code, kind, e, remedy)
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

/// A cluster that cannot be used: [`Problem::file`] has told the files that cannot be read.
impl From<Failure> for Problem {
    fn from(e: Failure) -> Self {
        match e {
            Failure::Impossible(m) => {
                Problem::new("bad_file", ErrorKind::Impossible, m, "name another cluster, or write a cluster file")
            }
            Failure::Input(m) => {
                let remedy = "name a cluster of `linkwise.clusters()`, or a cluster file";
                Problem::new("bad_file", ErrorKind::Malformed, m, remedy)
            }
            Failure::Located(report) => {
                let remedy = report.help().map_or("correct the file".into(), |help| help.to_string());
                Problem::new("bad_file", ErrorKind::Malformed, report, &remedy)
            }
        }
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
