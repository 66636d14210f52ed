//! `linkwise route`: distributes the bytes of skewed traffic over links, and gives the distance to the lower bound.
//!
//! [`input`] builds a network and a demand from the arguments; [`plan`] plans one demand.

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

pub fn run(command: Route) -> Result<(), Failure> {
    match command {
        Route::Plan(a) => plan::run(*a),
    }
}
