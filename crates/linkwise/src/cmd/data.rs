//! `linkwise data`.

use crate::failure::Failure;

/// Sub-commands of `linkwise data`.
#[derive(clap::Subcommand)]
pub enum Data {
    /// Verify a folder of public data sets
    Check {
        /// The folder
        dir: std::path::PathBuf,
    },
}

/// Runs it.
pub fn run(_args: Data) -> Result<(), Failure> {
    Err(Failure::input("this build has no `data` yet"))
}
