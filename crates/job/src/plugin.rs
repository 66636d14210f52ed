//! The path of the NCCL plugin of this installation.

use crate::JobError;
use std::path::PathBuf;

/// The library's file name.
pub const LIBRARY: &str = "liblinkwise_nccl.so";

/// Where the plugins are, from the folder of the running command: next to it, as in a wheel or tarball, as in a package, or as cargo builds them.
pub const FOLDERS: [&str; 4] = ["", "../lib", "../lib/linkwise", "deps"];

/// The path of the library: `LINKWISE_PLUGIN`, or in one of [`FOLDERS`].
///
/// # Errors
/// [`JobError::PluginNotThere`], [`JobError::PluginNotInstalled`].
pub fn library() -> Result<PathBuf, JobError> {
    if let Some(path) = std::env::var_os("LINKWISE_PLUGIN").filter(|p| !p.is_empty()).map(PathBuf::from) {
        return path.canonicalize().map_err(|_| JobError::PluginNotThere(path));
    }
    next_to_command(LIBRARY, &FOLDERS).ok_or(JobError::PluginNotInstalled { library: LIBRARY })
}

/// A file in one of these folders. The folders are relative to the folder of the running command.
pub fn next_to_command(name: &str, folders: &[&str]) -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?.canonicalize().ok()?;
    let home = exe.parent()?;
    folders.iter().find_map(|f| home.join(f).join(name).canonicalize().ok())
}
