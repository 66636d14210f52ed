//! `linkwise topology`.

use crate::failure::Failure;

/// Sub-commands of `linkwise topology`.
#[derive(clap::Subcommand)]
pub enum Topology {
    /// Draw a cluster
    Show {
        /// A built-in cluster or a cluster file
        cluster: String,
    },
}

/// Runs it.
pub fn run(_args: Topology) -> Result<(), Failure> {
    Err(Failure::input("this build has no `topology` yet"))
}
