//! Reads files with a size limit.

use crate::FileError;
use std::io::Read;
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
    let file = std::fs::File::open(path).map_err(fail)?;
    let mut bytes = Vec::new();
    file.take((size_max as u64).saturating_add(1)).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() > size_max {
        return Err(too_large());
    }
    Ok(bytes)
}

/// Reads a UTF-8 text file of at most `size_max` bytes. O(size).
///
/// # Errors
/// Those of [`read_limited`], and [`FileError::NotUtf8`].
pub fn read_text(path: &Path, size_max: usize) -> Result<String, FileError> {
    String::from_utf8(read_limited(path, size_max)?)
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
