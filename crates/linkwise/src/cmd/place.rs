//! `linkwise place`.

use crate::failure::Failure;

/// Arguments of `linkwise place`.
#[derive(clap::Args)]
pub struct Args {}

/// Runs it.
pub fn run(_args: Args) -> Result<(), Failure> {
    Err(Failure::input("this build has no `place` yet"))
}
