//! Files that a command carries which was built with the feature `bundled`: `cargo install` copies the command alone, so the plugins are inside of it. The
//! first use unpacks them into the user's cache, where NCCL can open them.

use crate::JobError;
use files::FileError;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Name and content.
type Bundled = (&'static str, &'static [u8]);

#[cfg(feature = "bundled")]
macro_rules! bundled {
    ($($name:literal),*) => { &[$(($name, include_bytes!(concat!(env!("OUT_DIR"), "/bundled/", $name)))),*] };
}

#[cfg(feature = "bundled")]
const FILES: &[Bundled] = bundled!["liblinkwise_nccl.so", "liblinkwise_nccl_net.so", "linkwise-plugin-check"];
#[cfg(not(feature = "bundled"))]
const FILES: &[Bundled] = &[];

/// The unpacked file of this name, if the command carries it. All are unpacked: they belong together.
///
/// # Errors
/// [`JobError::Unpack`]: the cache cannot be written.
pub fn file(name: &str) -> Result<Option<PathBuf>, JobError> {
    if !FILES.iter().any(|f| f.0 == name) {
        return Ok(None);
    }
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|h| h.join(".cache")));
    let cache = cache.ok_or(JobError::Unpack("neither XDG_CACHE_HOME nor HOME is set".into()))?;
    let folder = unpack(&cache.join("linkwise"), FILES).map_err(|e| JobError::Unpack(e.to_string()))?;
    Ok(Some(folder.join(name)))
}

/// True for a file that [`file`] gives: it is this user's alone, also if the user is root.
pub fn is_unpacked(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str());
    name.and_then(|n| file(n).ok().flatten()).as_deref() == Some(path)
}

/// Writes the files that are missing or differ into a folder below `cache`, whose name is that of their content: builds of other sources have other
/// folders. O(bytes).
fn unpack(cache: &Path, files: &[Bundled]) -> Result<PathBuf, FileError> {
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    let folder = cache.join(format!("plugins-{}-{:016x}", env!("CARGO_PKG_VERSION"), hasher.finish()));
    let io = |doing: &'static str, path: &Path| {
        let path = path.to_path_buf();
        move |source| FileError::Io { doing, path, source }
    };
    // No other user may replace what a job loads.
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(io("create", &folder))?;
    for (name, content) in files {
        let path = folder.join(name);
        if !files::read_limited(&path, content.len()).is_ok_and(|has| has == *content) {
            files::write_atomic(&path, content)?;
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).map_err(io("write", &path))?;
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[Bundled] = &[("a.so", b"plugin"), ("check", b"program")];

    #[test]
    fn files_are_unpacked_once_and_mended_when_they_are_damaged() {
        let cache = tempfile::tempdir().unwrap();
        let folder = unpack(cache.path(), TWO).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join("check"))), (0o700, 0o755));
        let written = folder.join("a.so").metadata().unwrap().modified().unwrap();
        assert_eq!(unpack(cache.path(), TWO).unwrap(), folder);
        assert_eq!(folder.join("a.so").metadata().unwrap().modified().unwrap(), written, "written again");
        std::fs::write(folder.join("a.so"), "pl").unwrap();
        unpack(cache.path(), TWO).unwrap();
        assert_eq!(std::fs::read(folder.join("a.so")).unwrap(), b"plugin");
    }

    #[test]
    fn other_contents_are_in_another_folder_and_a_cache_that_is_a_file_is_an_error() {
        let cache = tempfile::tempdir().unwrap();
        let other: &[Bundled] = &[("a.so", b"newer"), ("check", b"program")];
        assert_ne!(unpack(cache.path(), TWO).unwrap(), unpack(cache.path(), other).unwrap());
        let file = cache.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(unpack(&file, TWO).is_err());
    }

    #[test]
    fn what_the_command_does_not_carry_is_none() {
        assert_eq!(file("no-such-file").unwrap(), None);
        assert!(!is_unpacked(Path::new("/usr/lib/linkwise/no-such-file")));
    }
}
