//! `linkwise measure`.

use crate::failure::Failure;

/// Arguments of `linkwise measure`.
#[derive(clap::Args)]
pub struct Args {}

/// Runs it.
pub fn run(_args: Args) -> Result<(), Failure> {
    Err(Failure::input("this build has no `measure` yet"))
}
