//! A job with the plugin: its launcher ([`launched`]), the signals that it gets ([`signals`]), and a report of its traces ([`report`]).

mod error;
pub mod launched;
pub mod report;
pub mod signals;

pub use error::JobError;
