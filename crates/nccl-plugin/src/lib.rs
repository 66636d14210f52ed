//! The library that a training process loads: an NCCL tuner and profiler plugin.
//!
//! NCCL asks the plugin before every collective which algorithm, protocol and channel count to use. Mode `off` does nothing, `observe` records what
//! NCCL does, `profile` applies a fixed table, and `adaptive` tries arms and keeps the fastest. Ranks never differ: arms change only at calls that
//! all ranks have agreed on ([`agreement`]).
//!
//! ```text
//!  NCCL ──calls──► abi (C border, catches panics) ──► comm (one rank: the arm of a call, no lock)
//!                                                                │ ring of decisions      ▲ epochs
//!  other ranks ◄──frames──► agreement::transport ◄──► worker (one thread) ──► coordinator (leads: policies, plans, readings)
//! ```
//!
//! The worker starts with the first communicator that needs it and ends with the last one: nothing outlives finalize.

#[allow(unsafe_code)]
pub mod abi;
pub mod alike;
pub mod canary;
pub mod comm;
pub mod config;
pub mod coordinator;
pub mod cost_table;
pub mod envelope;
pub mod events;
pub mod job;
pub mod kernel_times;
pub mod launcher;
pub mod made_on;
pub mod overhead;
pub mod policies;
pub mod process;
pub mod profile;
pub mod rewards;
pub mod site;
pub mod status;
pub mod step;
pub mod trace;
pub mod views;
mod worker;
