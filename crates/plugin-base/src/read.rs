//! Files of a limited size, read before a deadline.

use crate::{library, threads};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Largest file of settings, bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// Longest time for all files of a plugin's settings. A file system that hangs turns the plugin off.
pub const READ_TIME_MAX: Duration = Duration::from_secs(1);

/// Reads a regular file of at most `most` bytes before `deadline`, on a thread of its own: the file system may hang.
///
/// # Errors
/// A sentence for the user.
pub fn read_file_until(path: &Path, most: u64, deadline: Instant) -> Result<String, String> {
    let (path, (done, result)) = (path.to_owned(), channel());
    let reader = threads::spawn("linkwise-files", move || _ = done.send(read_file(&path, most)));
    let reader = reader.map_err(|e| format!("cannot start a thread to read it: {e}"))?;
    match result.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(read) => {
            let _ = reader.join();
            read
        }
        Err(_) => {
            library::keep(); // the thread goes on when its file system does
            Err(format!("could not be read within {} s: does its file system hang?", READ_TIME_MAX.as_secs()))
        }
    }
}

/// Reads a regular file of at most `most` bytes. Opening a FIFO or a device does not wait.
///
/// # Errors
/// A sentence for the user.
pub fn read_file(path: &Path, most: u64) -> Result<String, String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|e| e.to_string())?);
    if !file.metadata().map_err(|e| e.to_string())?.is_file() {
        return Err("not a regular file".into());
    }
    let mut text = String::new();
    file.take(most + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
    if text.len() as u64 > most { Err(format!("more than {most} bytes")) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_and_a_folder_are_no_files_and_a_large_file_is_too_large() {
        let folder = tempfile::tempdir().unwrap();
        let (fifo, large) = (folder.path().join("fifo"), folder.path().join("large"));
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(read_file(&fifo, 9), Err("not a regular file".into()));
        assert_eq!(read_file(folder.path(), 9), Err("not a regular file".into()));
        std::fs::write(&large, vec![b' '; FILE_BYTES_MAX as usize]).unwrap();
        assert_eq!(
            read_file_until(&large, FILE_BYTES_MAX, Instant::now() + READ_TIME_MAX).map(|t| t.len()),
            Ok(FILE_BYTES_MAX as usize)
        );
        std::fs::write(&large, vec![b' '; FILE_BYTES_MAX as usize + 1]).unwrap();
        assert_eq!(read_file(&large, FILE_BYTES_MAX), Err("more than 1048576 bytes".into()));
    }
}
