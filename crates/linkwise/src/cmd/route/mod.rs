//! `linkwise route`: which links the bytes of skewed traffic take, and how far from the best possible that is.
//!
//! [`input`] makes a network and a demand of the arguments, [`plan`] answers for one demand, [`evaluate`] compares planners on many.

mod evaluate;
mod input;
mod plan;
mod print;

use crate::failure::Failure;

/// `linkwise route ...`
#[derive(clap::Subcommand)]
pub enum Route {
    /// How should this traffic be split over links, and how good is that provably?
    Plan(Box<plan::Args>),
    /// How good are the plans? NIMBLE's experiments and real routing on a model of its testbed
    Evaluate(Box<evaluate::Args>),
}

/// Runs it.
pub fn run(command: Route) -> Result<(), Failure> {
    match command {
        Route::Plan(a) => plan::run(*a),
        Route::Evaluate(a) => evaluate::run(*a),
    }
}
