//! What a training process loads: an NCCL tuner and profiler plugin.
//!
//! NCCL asks it before every collective which algorithm, protocol and channel count to use. In mode `off` it does nothing; `observe` writes
//! down what NCCL does; `profile` applies a fixed table; `adaptive` tries arms and keeps what measures best. Ranks never differ: arms change
//! only at calls that all ranks have agreed on ([`agreement`]).
//!
//! ```text
//!  NCCL ──calls──► abi (C border, nothing unwinds over it) ──► comm (one rank: the arm of a call, no lock)
//!                                                                │ ring of decisions      ▲ epochs
//!  other ranks ◄──frames──► agreement::transport ◄──► worker (one thread) ──► conductor (leads: policies, plans, samples)
//! ```
//!
//! The worker starts with the first communicator that needs it and ends with the last: nothing outlives finalize.

#[allow(unsafe_code)]
pub mod abi;
pub mod comm;
pub mod conductor;
pub mod config;
pub mod cost;
pub mod costs;
pub mod events;
pub mod job;
pub mod launcher;
pub mod policies;
pub mod process;
pub mod profile;
pub mod rewards;
pub mod step;
pub mod trace;
mod worker;
