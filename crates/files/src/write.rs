//! Writes files all or nothing.

use crate::FileError;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Maximum number of symbolic links followed in one path, as in Linux.
const LINKS_MAX: usize = 40;

/// Replaces a file in one step: writes the bytes to a temporary file in the same folder, syncs it and renames it. The
/// umask sets the permissions, as for any new file. A failure leaves the old file unchanged. A symbolic link stays, and
/// its target is replaced. Devices and pipes (`/dev/null`, `/dev/stdout`) are written directly.
///
/// # Errors
/// [`FileError::Folder`], or an error of the operating system with the name of `path` instead of the temporary file.
pub fn write_atomic(path: &Path, bytes: impl AsRef<[u8]>) -> Result<(), FileError> {
    replace(path, |file| file.write_all(bytes.as_ref()))
}

/// Replaces `to` with a copy of `from`, in one step.
///
/// # Errors
/// Those of [`write_atomic`]; an error of reading names `from`.
pub fn copy_atomic(from: &Path, to: &Path) -> Result<(), FileError> {
    let mut source =
        std::fs::File::open(from).map_err(|e| FileError::Io { doing: "read", path: from.into(), source: e })?;
    replace(to, |file| std::io::copy(&mut source, file).map(|_| ()))
}

fn replace(path: &Path, fill: impl FnOnce(&mut std::fs::File) -> std::io::Result<()>) -> Result<(), FileError> {
    let fail = |source: std::io::Error| FileError::Io { doing: "write", path: path.into(), source };
    match file_behind(path).map_err(fail)? {
        Some(target) => persist(write_beside(&target, fill)?, &target),
        None => {
            let mut device = std::fs::OpenOptions::new().write(true).open(path).map_err(fail)?;
            fill(&mut device).map_err(fail)
        }
    }
}

/// The file that a path names after all symbolic links, existing or not; `None` for a device, a pipe or an open file of
/// a process.
fn file_behind(path: &Path) -> std::io::Result<Option<PathBuf>> {
    if std::fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir()) {
        return Ok(None);
    }
    let mut at = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        let Ok(to) = std::fs::read_link(&at) else { return Ok(Some(at)) };
        if at.starts_with("/proc") {
            return Ok(None);
        }
        at = at.parent().unwrap_or(Path::new("")).join(to);
    }
    Err(std::fs::metadata(path).err().unwrap_or_else(|| std::io::Error::other("too many links")))
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
    // `tempfile` adds the temporary name to the error. Users do not know that name, so only the system's error is kept.
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

    #[cfg(unix)]
    #[test]
    fn a_link_stays_and_the_file_that_it_names_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        std::fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        write_atomic(&link, b"new").unwrap();
        copy_atomic(&link, &dir.path().join("copy")).unwrap();
        assert_eq!(std::fs::read(&real).unwrap(), b"new");
        assert_eq!(std::fs::read_link(&link).unwrap(), Path::new("real"));
        std::fs::remove_file(&real).unwrap();
        write_atomic(&link, b"made").unwrap();
        assert_eq!(std::fs::read(&real).unwrap(), b"made", "a link to nothing yet");
        std::os::unix::fs::symlink("loop", dir.path().join("loop")).unwrap();
        assert!(write_atomic(&dir.path().join("loop"), b"x").unwrap_err().to_string().contains("loop"));
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_written_to_and_stays_a_pipe() {
        use std::os::unix::fs::FileTypeExt;
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("p");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read(pipe).unwrap()
        });
        write_atomic(&pipe, b"x").unwrap();
        assert!(std::fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
        assert_eq!(reader.join().unwrap(), b"x");
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
