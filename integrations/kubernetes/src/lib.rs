//! Gate, place, release: gangs of pods get the exact GPUs that linkwise chooses, and the stock scheduler binds them.
//!
//! ```text
//!  pod with the gate ──> gang complete? ──> server: which GPUs? ──> claims: allocation ──> pods: node, no gate ──> kube-scheduler binds
//!        gang.rs             gang.rs            ask.rs                  write.rs               write.rs
//! ```
//!
//! - ResourceClaims are the truth. The controller keeps nothing that it cannot read again: after any loss the next leader goes on from the objects.
//! - [`world`] is what the API said; [`plan`] is a function of it; [`write`] does what the plan says, each write with the resourceVersion that the
//!   plan has seen. A leader that lost its lease unnoticed changes nothing ([`leader`]).
//! - All or none: no gate is removed before every claim of the gang is allocated. Until then everything can be undone, and is.
//! - GPUs are identified by UUID; names of devices are used only to write allocations.

#![forbid(unsafe_code)]

pub mod advise;
pub mod ask;
pub mod budget;
pub mod claim;
pub mod client;
pub mod controller;
pub mod device;
pub mod facts;
pub mod gang;
mod hash;
pub mod leader;
pub mod names;
pub mod node;
pub mod owner;
pub mod partition;
pub mod plan;
pub mod preempt;
pub mod pulse;
pub mod quantity;
pub mod readings;
pub mod room;
pub mod say;
pub mod settings;
pub mod world;
pub mod write;

pub use settings::Settings;
