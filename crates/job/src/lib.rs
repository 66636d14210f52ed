//! A job with the plugin: which launcher started it ([`launched`]), which signals reach it ([`signals`]), and what its traces say
//! ([`report`]).

mod error;
pub mod launched;
pub mod report;
pub mod signals;

pub use error::JobError;
