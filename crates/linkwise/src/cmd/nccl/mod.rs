//! `linkwise nccl`: NCCL's choices on given GPUs, the reasons for their speed, and settings worth trying.
//!
//! [`view`] builds a communicator from the arguments, by the model or, with `--exact`, by the real library on simulated
//! hosts; [`explain`] and [`advise`] print the results; [`findings`] describes the limits.

mod advise;
mod explain;
mod findings;
mod view;

use console::Failure;

/// `linkwise nccl ...`
#[derive(clap::Subcommand)]
pub enum Nccl {
    /// Show NCCL's choice at every size, its limit, and where releases, physics and measurements differ
    Explain(Box<explain::Args>),
    /// Find settings worth trying on these GPUs
    Advise(Box<advise::Args>),
}

pub fn run(command: Nccl) -> Result<(), Failure> {
    match command {
        Nccl::Explain(a) => explain::run(*a),
        Nccl::Advise(a) => advise::run(*a),
    }
}
