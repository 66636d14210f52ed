//! The library of the NCCL plugin, for the commands that need it.

use console::Failure;
use job::JobError;
use std::path::PathBuf;

/// The library of this installation. A wrong LINKWISE_PLUGIN gives exit code 2, a missing plugin exit code 1.
pub fn find() -> Result<PathBuf, Failure> {
    job::plugin::library().map_err(|e| match e {
        JobError::PluginNotThere(_) => Failure::input(e),
        e => Failure::impossible(e),
    })
}
