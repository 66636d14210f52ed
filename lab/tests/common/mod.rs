//! Helpers for the tests of `linkwise-lab`. They repeat lines of `crates/linkwise/tests/common`, because only the tests
//! of a package can run its binary.
#![allow(dead_code)] // every test binary uses its own part

use assert_cmd::Command;
use std::time::Duration;

/// `linkwise-lab COMMAND ARGS`, with a deadline.
pub fn lab(command: &str, args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_linkwise-lab"));
    c.arg(command).args(args).timeout(Duration::from_secs(120));
    c
}

/// Exit code, standard output, standard error.
pub fn said(mut command: Command) -> (i32, String, String) {
    let out = command.output().unwrap();
    let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
    (out.status.code().unwrap_or(-1), text(out.stdout), text(out.stderr))
}

/// A folder that is removed after the test.
pub struct Folder(pub tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    pub fn at(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}
