//! `linkwise evaluate`.

use crate::failure::Failure;

/// Arguments of `linkwise evaluate`.
#[derive(clap::Args)]
pub struct Args {}

/// Runs it.
pub fn run(_args: Args) -> Result<(), Failure> {
    Err(Failure::input("this build has no `evaluate` yet"))
}
