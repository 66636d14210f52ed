//! `linkwise validate`.

use crate::failure::Failure;

/// Arguments of `linkwise validate`.
#[derive(clap::Args)]
pub struct Args {}

/// Runs it.
pub fn run(_args: Args) -> Result<(), Failure> {
    Err(Failure::input("this build has no `validate` yet"))
}
