//! `linkwise nccl`: what NCCL would choose on some GPUs, why it is as fast or slow as it is, and which settings are worth trying.
//!
//! [`view`] makes a communicator of the arguments, from the model or, with `--exact`, from the real library on simulated hosts;
//! [`explain`] and [`advise`] say what follows; [`findings`] puts limits into words.

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

/// Runs it.
pub fn run(command: Nccl) -> Result<(), Failure> {
    match command {
        Nccl::Explain(a) => explain::run(*a),
        Nccl::Advise(a) => advise::run(*a),
    }
}
