//! A job with the plugin: which launcher started it ([`launched`]), where the plugin is ([`plugin`]), which signals
//! reach the job ([`signals`]), and what its traces say
//! ([`report`]).

mod error;
pub mod launched;
pub mod plugin;
pub mod report;
pub mod signals;

pub use error::JobError;
