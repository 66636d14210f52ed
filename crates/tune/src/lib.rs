//! Policies that choose algorithm, protocol and channel count of collectives.
//!
//! Every result is a function of the inputs: no clock, no I/O, no hidden randomness. A policy with the same arms and
//! the same readings makes the same decisions on every rank. Training processes load this crate, so it depends only on
//! `nccl-types` and `stats`.

pub mod adaptive;
pub mod arm;
pub mod bucket;
pub mod gates;
pub mod ledger;
pub mod objective;
pub mod overlap;
pub mod policy;
pub mod profile;
pub mod registry;
pub mod round_robin;
pub mod steps;

pub use arm::Arm;
pub use nccl_types::{Algorithm, Collective, Protocol};
pub use objective::Objective;
pub use policy::{ArmDecision, Context, Phase, Policy, Reading};
pub use registry::{PolicyOptions, build};
