//! A job with the plugin: the launcher that started it ([`launched`]), the path of the plugin ([`plugin`]), its
//! check ([`plugin_check`]) and that of the whole installation ([`install`]), the signals
//! that are forwarded to the job ([`signals`]), the report of its traces ([`report`]), and the status files of running jobs ([`status`]).

pub mod bundled;
pub mod calls;
mod error;
pub mod install;
pub mod launched;
pub mod limits;
pub mod plugin;
pub mod plugin_check;
pub mod report;
pub mod signals;
pub mod status;

pub use error::JobError;
