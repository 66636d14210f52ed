//! The path of the NCCL plugin of this installation.

use crate::{JobError, bundled};
use std::path::PathBuf;

/// The library's file name.
pub const LIBRARY: &str = "liblinkwise_nccl.so";

/// Where the plugins are, from the folder of the running command: next to it, as in a wheel or tarball, as in a package, or as cargo builds them.
pub const FOLDERS: [&str; 4] = ["", "../lib", "../lib/linkwise", "deps"];

/// The path of the library: `LINKWISE_PLUGIN`, in one of [`FOLDERS`], or carried by the command.
///
/// # Errors
/// [`JobError::PluginNotThere`], [`JobError::PluginNotInstalled`], [`JobError::Unpack`].
pub fn library() -> Result<PathBuf, JobError> {
    if let Some(path) = std::env::var_os("LINKWISE_PLUGIN").filter(|p| !p.is_empty()).map(PathBuf::from) {
        return path.canonicalize().map_err(|_| JobError::PluginNotThere(path));
    }
    installed(LIBRARY, &FOLDERS)?.ok_or(JobError::PluginNotInstalled { library: LIBRARY })
}

/// A file of this installation: in one of these folders, which are relative to that of the running command, else one that the command carries.
///
/// # Errors
/// [`JobError::Unpack`].
pub fn installed(name: &str, folders: &[&str]) -> Result<Option<PathBuf>, JobError> {
    match next_to_command(name, folders) {
        Some(path) => Ok(Some(path)),
        None => bundled::file(name),
    }
}

fn next_to_command(name: &str, folders: &[&str]) -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?.canonicalize().ok()?;
    let home = exe.parent()?;
    folders.iter().find_map(|f| home.join(f).join(name).canonicalize().ok())
}
