//! A job with the plugin: the launcher that started it ([`launched`]), the path of the plugin ([`plugin`]), the signals
//! that are forwarded to the job ([`signals`]), and the report of its traces ([`report`]).

mod error;
pub mod launched;
pub mod limits;
pub mod plugin;
pub mod report;
pub mod signals;

pub use error::JobError;
