//! What every library needs that NCCL loads into a training process: settings with their places, files with a deadline, NCCL's log, caught panics,
//! threads without signals, and a library that stays loaded.
//!
//! Rules: no panic crosses the C border, no wait is longer than its deadline, and a wrong setting turns a plugin off with one line.

#[allow(unsafe_code)]
pub mod border;
#[allow(unsafe_code)]
pub mod library;
#[allow(unsafe_code)]
pub mod log;
pub mod read;
pub mod settings;
#[allow(unsafe_code)]
pub mod threads;

pub use border::{Name, Status, guarded};
pub use log::{Log, Logger};
pub use settings::{ConfigError, Keys, Sources};
