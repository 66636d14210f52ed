//! `linkwise demo`.

use crate::failure::Failure;

/// Arguments of `linkwise demo`.
#[derive(clap::Args)]
pub struct Args {}

/// Runs it.
pub fn run(_args: Args) -> Result<(), Failure> {
    Err(Failure::input("this build has no `demo` yet"))
}
