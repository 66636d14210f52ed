//! Both back ends for every test of behaviour.

#[allow(dead_code)] // the tests of several servers use the rest
pub mod postgres;
#[allow(dead_code)] // the tests of faults use it
pub mod relay;

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;

/// Places for states and stores: files in a folder of the test, or databases of its own.
pub struct Places {
    folder: tempfile::TempDir,
    server: Option<&'static postgres::Server>,
    urls: RefCell<HashMap<String, PathBuf>>,
}

impl Places {
    /// Files.
    pub fn files() -> Places {
        Places { folder: tempfile::tempdir().unwrap(), server: None, urls: RefCell::default() }
    }

    /// Databases of PostgreSQL; none where it is not installed.
    pub fn postgres() -> Option<Places> {
        let server = Some(postgres::shared("tests_of_the_store_on_postgresql")?);
        Some(Places { server, ..Places::files() })
    }

    /// The place with this name.
    pub fn at(&self, name: &str) -> PathBuf {
        match self.server {
            Some(server) => {
                self.urls.borrow_mut().entry(name.into()).or_insert_with(|| server.database().into()).clone()
            }
            None => self.folder.path().join(name),
        }
    }

    /// True for databases.
    #[allow(dead_code)] // one test asks
    pub fn is_postgres(&self) -> bool {
        self.server.is_some()
    }
}

/// Runs every test on files and on databases.
macro_rules! on_both {
    ($(fn $name:ident($at:ident) $body:block)*) => {
        mod cases {
            use super::*;
            $(pub fn $name($at: &common::Places) $body)*
        }
        mod in_files {
            $(#[test]
            fn $name() {
                super::cases::$name(&super::common::Places::files());
            })*
        }
        mod in_postgresql {
            $(#[test]
            fn $name() {
                if let Some(places) = super::common::Places::postgres() {
                    super::cases::$name(&places);
                }
            })*
        }
    };
}
pub(crate) use on_both;

/// Damages 512 bytes at 60 places of a file in turn, and lets `look` open each version. The file ends damaged.
#[allow(dead_code, reason = "not every test uses it")]
pub fn with_damage(file: &std::path::Path, mut look: impl FnMut()) {
    let whole = std::fs::read(file).unwrap();
    for at in (100..whole.len()).step_by(whole.len() / 60) {
        let mut bytes = whole.clone();
        let end = (at + 512).min(bytes.len());
        bytes[at..end].fill(0xa5);
        std::fs::write(file, bytes).unwrap();
        look();
    }
}
