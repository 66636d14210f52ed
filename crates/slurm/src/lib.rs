//! Slurm's jobs on exact GPUs.
//!
//! The plugin of the controller (`integrations/slurm`) asks for the GPUs of a job when Slurm would start it; an [`Agent`] answers.
//! Slurm is the only truth of which GPU is free and which job holds which: the question lists the free GPUs that the job may use, and
//! [`books`] reads the running jobs from `scontrol`. The agent keeps nothing between two questions but these.
//!
//! - [`message`]: the plugin's lines and the answers. Text of another process: limited, checked, never trusted.
//! - [`books`]: `scontrol show nodes -o` and `scontrol show job -d -o`.
//! - [`choose`]: from a question to the engine's requests, and from its answer to an order or the reason why there is none.
//! - [`policy`]: what a job's comment or QOS says about the choice.
//! - [`reason`]: why Slurm placed a job itself, for jobs that the plugin did not ask about.
//! - [`mirror`]: Slurm's drains and jobs in linkwise's state.
//! - [`queue`]: waiting and running jobs with their bandwidth.
//! - [`gres`], which reads `gres.conf`.
//! - [`Decider`]: the engine of this process, or a server that the caller asks.
//! - [`Agent`]: one connection. It reads and writes through the traits that the caller passes and starts no program.

#![forbid(unsafe_code)]

mod agent;
pub mod books;
pub mod choose;
mod decider;
pub mod gres;
pub mod message;
pub mod mirror;
pub mod policy;
pub mod queue;
pub mod reason;
mod tres;

pub use agent::{Agent, Controller, Ended, running, suspected};
pub use decider::{Decider, Unable};
