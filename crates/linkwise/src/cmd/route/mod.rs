//! `linkwise route`: which links the bytes of skewed traffic take, and how far from the best possible that is.
//!
//! [`input`] makes a network and a demand of the arguments, [`plan`] answers for one demand.

mod input;
mod plan;
mod print;

use console::Failure;

/// `linkwise route ...`
#[derive(clap::Subcommand)]
pub enum Route {
    /// Split one demand over links, with a proven distance from the optimum
    Plan(Box<plan::Args>),
}

/// Runs it.
pub fn run(command: Route) -> Result<(), Failure> {
    match command {
        Route::Plan(a) => plan::run(*a),
    }
}
