//! What the tests of the command share.
#![allow(dead_code)] // every test binary uses its own part

use assert_cmd::Command;
use std::time::Duration;

/// `linkwise COMMAND ARGS`, with a deadline.
pub fn linkwise(command: &str, args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_linkwise"));
    c.arg(command).args(args).timeout(Duration::from_secs(120));
    c
}

/// Exit code, standard output, standard error; lines of the latter that belong to one sentence are joined.
pub fn said(mut command: Command) -> (i32, String, String) {
    let out = command.output().unwrap();
    let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
    (out.status.code().unwrap_or(-1), text(out.stdout), text(out.stderr).replace("\n  ", " "))
}

/// A folder that goes away with the test.
pub struct Folder(pub tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    pub fn at(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// A program of these lines.
    pub fn script(&self, name: &str, text: &str) -> String {
        use std::os::unix::fs::PermissionsExt;
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    }

    pub fn lines(&self, name: &str) -> usize {
        std::fs::read_to_string(self.at(name)).unwrap().lines().count()
    }
}
