//! A file system that hangs, as those of a network do: FUSE without a program that answers. Needs root and /dev/fuse. The tests of every library that
//! NCCL loads include this file by its path.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A mount that hangs until this value is dropped.
pub struct Hanging {
    folder: tempfile::TempDir,
    server: Child,
}

impl Hanging {
    /// `None`, with a SKIP line, on a machine without a C compiler, FUSE or root.
    pub fn new(test: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("hangfs");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugin-base/tests/hanging/hangfs.c");
        let built = Command::new("cc").args(["-std=gnu11", "-O1", "-o"]).arg(&program).arg(source).output();
        match built {
            Err(e) => {
                eprintln!("SKIP {test}: no C compiler: {e}");
                return None;
            }
            Ok(out) => assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr)),
        }
        let at = folder.path().join("mount");
        std::fs::create_dir(&at).unwrap();
        let mut server = Command::new(program).arg(&at).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut said).unwrap();
        if said != "mounted\n" {
            assert_eq!(server.wait().unwrap().code(), Some(9), "{said}");
            eprintln!("SKIP {test}: {}", said.trim());
            return None;
        }
        Some(Hanging { folder, server })
    }

    /// The mount's folder.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("mount")
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        drop(self.server.stdin.take());
        let _ = self.server.wait();
    }
}
