//! Reads files with a size limit.

use crate::FileError;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Reads a file of at most `size_max` bytes. A pipe has no known size: reading stops with an error at the limit.
/// O(size).
///
/// # Errors
/// [`FileError::Folder`], [`FileError::TooLarge`], or an error of the operating system.
pub fn read_limited(path: &Path, size_max: usize) -> Result<Vec<u8>, FileError> {
    let fail = |source| FileError::Io { doing: "read", path: path.into(), source };
    let meta = std::fs::metadata(path).map_err(fail)?;
    if meta.is_dir() {
        return Err(FileError::Folder(path.into()));
    }
    let too_large = || FileError::TooLarge { path: path.into(), size_max };
    if meta.len() > size_max as u64 {
        return Err(too_large());
    }
    to_the_end(path, std::fs::File::open(path).map_err(fail)?, size_max)
}

fn to_the_end(path: &Path, file: File, size_max: usize) -> Result<Vec<u8>, FileError> {
    let fail = |source| FileError::Io { doing: "read", path: path.into(), source };
    let mut bytes = Vec::new();
    file.take((size_max as u64).saturating_add(1)).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() > size_max {
        return Err(FileError::TooLarge { path: path.into(), size_max });
    }
    Ok(bytes)
}

/// Opens a regular file that a program found in a folder. A pipe, on which a reader would wait for ever, is refused.
///
/// # Errors
/// [`FileError::NotRegular`], or an error of the operating system.
pub fn open_regular(path: &Path) -> Result<File, FileError> {
    let fail = |source| FileError::Io { doing: "read", path: path.into(), source };
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(fail)?;
    match file.metadata().map_err(fail)?.is_file() {
        true => Ok(file),
        false => Err(FileError::NotRegular(path.into())),
    }
}

/// Reads a UTF-8 text file of at most `size_max` bytes that a program found in a folder. O(size).
///
/// # Errors
/// Those of [`open_regular`] and [`read_text`].
pub fn read_regular_text(path: &Path, size_max: usize) -> Result<String, FileError> {
    text(path, to_the_end(path, open_regular(path)?, size_max)?)
}

/// Reads a UTF-8 text file of at most `size_max` bytes. O(size).
///
/// # Errors
/// Those of [`read_limited`], and [`FileError::NotUtf8`].
pub fn read_text(path: &Path, size_max: usize) -> Result<String, FileError> {
    text(path, read_limited(path, size_max)?)
}

fn text(path: &Path, bytes: Vec<u8>) -> Result<String, FileError> {
    String::from_utf8(bytes)
        .map_err(|e| FileError::NotUtf8 { path: path.into(), valid_up_to: e.utf8_error().valid_up_to() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_at_the_limit_is_read_and_one_byte_more_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, [b'x'; 10]).unwrap();
        assert_eq!(read_limited(&path, 10).unwrap().len(), 10);
        assert!(matches!(read_limited(&path, 9), Err(FileError::TooLarge { size_max: 9, .. })));
    }

    #[test]
    fn an_endless_file_is_refused_at_the_limit() {
        assert!(matches!(read_limited(Path::new("/dev/zero"), 1000), Err(FileError::TooLarge { .. })));
    }

    #[test]
    fn what_is_found_in_a_folder_and_is_no_regular_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "text").unwrap();
        assert_eq!(read_regular_text(&path, 10).unwrap(), "text");
        assert!(matches!(read_regular_text(&path, 3), Err(FileError::TooLarge { .. })));
        assert!(matches!(open_regular(dir.path()), Err(FileError::NotRegular(_))));
        let pipe = dir.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let e = read_regular_text(&pipe, 10).unwrap_err().to_string();
        assert!(e.ends_with("pipe is no regular file"), "{e}");
    }

    #[test]
    fn a_folder_a_missing_file_and_bad_text_are_named() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(read_limited(dir.path(), 10), Err(FileError::Folder(_))));
        let path = dir.path().join("f");
        let e = read_limited(&path, 10).unwrap_err().to_string();
        assert!(e.starts_with("cannot read ") && e.contains("No such file"), "{e}");
        std::fs::write(&path, b"ab\xff").unwrap();
        let e = read_text(&path, 10).unwrap_err().to_string();
        assert!(e.contains("first bad byte at 2"), "{e}");
    }
}
