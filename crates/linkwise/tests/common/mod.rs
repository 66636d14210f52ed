//! What the tests of the command share.
#![allow(dead_code)] // every test binary uses its own part

use assert_cmd::Command;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};
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

/// `linkwise serve`, killed when it is dropped.
pub struct Served {
    pub child: Child,
    pub at: SocketAddr,
}

impl Served {
    /// Starts the command, `linkwise serve ... --format json`, and waits for the line that says where it listens.
    pub fn start(command: &mut std::process::Command) -> Served {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let v: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
        Served { child, at: v["listens"].as_str().unwrap().parse().unwrap() }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
