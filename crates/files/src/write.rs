//! Writes that are all or nothing.

use crate::FileError;
use std::io::Write;
use std::path::Path;

/// Replaces a file in one step: writes the bytes into a temporary file of the same folder, syncs and renames it. The umask sets the
/// permissions, as for any new file. A failure leaves the old file unchanged.
///
/// # Errors
/// [`FileError::Folder`], or the system's error with the name of `path`, not of the temporary file.
pub fn write_atomic(path: &Path, bytes: impl AsRef<[u8]>) -> Result<(), FileError> {
    let file = write_beside(path, |file| file.write_all(bytes.as_ref()))?;
    persist(file, path)
}

/// Replaces `to` with a copy of `from`, in one step.
///
/// # Errors
/// Those of [`write_atomic`]; a source that cannot be read is named.
pub fn copy_atomic(from: &Path, to: &Path) -> Result<(), FileError> {
    let mut source =
        std::fs::File::open(from).map_err(|e| FileError::Io { doing: "read", path: from.into(), source: e })?;
    let file = write_beside(to, |file| std::io::copy(&mut source, file).map(|_| ()))?;
    persist(file, to)
}

fn write_beside(
    path: &Path,
    fill: impl FnOnce(&mut std::fs::File) -> std::io::Result<()>,
) -> Result<tempfile::NamedTempFile, FileError> {
    if path.is_dir() {
        return Err(FileError::Folder(path.into()));
    }
    let fail = |source: std::io::Error| FileError::Io { doing: "write", path: path.into(), source };
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // `tempfile` adds the temporary name to the error, which tells a user nothing: only the system's error is kept.
    let refused = std::cell::Cell::new(None);
    let open = |temporary: &Path| {
        let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(temporary);
        file.inspect_err(|e| refused.set(e.raw_os_error()))
    };
    let mut file = tempfile::Builder::new()
        .prefix(".linkwise-")
        .make_in(folder, open)
        .map_err(|e| fail(refused.get().map_or(e, std::io::Error::from_raw_os_error)))?;
    fill(file.as_file_mut()).map_err(fail)?;
    file.as_file().sync_all().map_err(fail)?;
    Ok(file)
}

fn persist(file: tempfile::NamedTempFile, path: &Path) -> Result<(), FileError> {
    file.persist(path).map_err(|e| FileError::Io { doing: "write", path: path.into(), source: e.error })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn written_files_follow_the_umask_as_any_new_file() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
        let (ours, plain) = (dir.path().join("ours"), dir.path().join("plain"));
        std::fs::write(&plain, "x").unwrap();
        write_atomic(&ours, b"x").unwrap();
        assert_eq!(mode(&ours), mode(&plain));
        copy_atomic(&ours, &dir.path().join("copy")).unwrap();
        assert_eq!(mode(&dir.path().join("copy")), mode(&plain));
    }

    #[test]
    fn a_failed_write_names_the_file_and_not_the_temporary_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("missing/x.yaml");
        let e = write_atomic(&path, b"x").unwrap_err().to_string();
        assert!(e.contains("x.yaml: No such file") && !e.contains(".linkwise-"), "{e}");
        assert!(matches!(write_atomic(dir.path(), b"x"), Err(FileError::Folder(_))));
    }

    #[test]
    fn a_write_replaces_the_file_and_leaves_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        write_atomic(&path, b"one").unwrap();
        write_atomic(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
