//! Slurm's jobs on exact GPUs.
//!
//! The plugin of the controller (`integrations/slurm`) asks for the GPUs of a job when Slurm would start it; an [`Agent`] answers.
//! Slurm is the only truth of which GPU is free and which job holds which: the question lists the free GPUs that the job may use, and
//! [`books`] reads the running jobs from `scontrol`. The agent keeps nothing between two questions but these.
//!
//! - [`message`]: the plugin's lines and the answers. Text of another process: limited, checked, never trusted.
//! - [`books`]: `scontrol show nodes -o` and `scontrol show job -d -o`.
//! - [`choose`]: from a question to the engine's requests, and from its answer to an order or the reason why there is none.
//! - [`Agent`]: one connection. It reads and writes through the traits that the caller passes and starts no program.

#![forbid(unsafe_code)]

mod agent;
pub mod books;
pub mod choose;
pub mod message;

pub use agent::{Agent, Ended, Running, running, suspected};
