//! The NCCL plugin's library, for the commands that need it.

use console::Failure;
use job::JobError;
use std::path::PathBuf;

/// The library of this installation; a wrong LINKWISE_PLUGIN ends with exit code 2, a missing plugin with 1.
pub fn find() -> Result<PathBuf, Failure> {
    job::plugin::library().map_err(|e| match e {
        JobError::PluginNotThere(_) => Failure::input(e),
        e => Failure::impossible(e),
    })
}
