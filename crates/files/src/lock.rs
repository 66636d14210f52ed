//! A lock on a file that other processes may replace.

use crate::FileError;
use std::fs::File;
use std::path::Path;

/// An exclusive lock on a file; dropping the value releases the lock.
///
/// [`crate::write_atomic`] may replace the file before the lock is granted. Then the lock on the old file is released,
/// and the new file is locked.
#[derive(Debug)]
pub struct FileLock {
    _file: File,
}

impl FileLock {
    /// Blocks until no other process holds the lock.
    ///
    /// # Errors
    /// An error of the operating system; a missing file is an error.
    pub fn acquire(path: &Path) -> Result<FileLock, FileError> {
        loop {
            let file = File::open(path).map_err(|e| FileError::Io { doing: "read", path: path.into(), source: e })?;
            file.lock().map_err(|e| FileError::Io { doing: "lock", path: path.into(), source: e })?;
            if is_same_file(&file, path) {
                return Ok(FileLock { _file: file });
            }
        }
    }
}

#[cfg(unix)]
fn is_same_file(open: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |m: std::io::Result<std::fs::Metadata>| m.map(|m| (m.dev(), m.ino())).ok();
    id(open.metadata()) == id(std::fs::metadata(path))
}

#[cfg(not(unix))]
fn is_same_file(_: &File, _: &Path) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write_atomic;

    #[test]
    fn increments_under_the_lock_are_never_lost_though_each_replaces_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("count");
        std::fs::write(&path, "0").unwrap();
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..10 {
                        let _lock = FileLock::acquire(&path).unwrap();
                        let n: u32 = std::fs::read_to_string(&path).unwrap().parse().unwrap();
                        write_atomic(&path, (n + 1).to_string().as_bytes()).unwrap();
                    }
                });
            }
        });
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "40");
    }
}
