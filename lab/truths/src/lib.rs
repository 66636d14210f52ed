//! Ground truths of other functional forms than linkwise's own physics. Imports nothing from `fabric` or `predict`.
//!
//! A [`Truth`] gives the true bandwidth of every allocation of a cluster and judges decisions. Measured tables
//! implement the same trait in `linkwise-lab` (`ground_truth`); the truths here are **simulated**, seeded, and listed
//! in [`NAMES`]. Their forms differ from linkwise's models on purpose: a model must not win because the simulator has
//! the same form.

mod enumerate;
mod families;
mod form;
mod intra;
mod names;
mod p_norm;
mod packing;
mod randomness;
mod ring_search;
mod rules;
pub mod site;
mod slow_host;
mod truth;

pub use enumerate::{NODES_MAX, enumerate};
pub use families::{with_one_nic, with_own_nics, with_shared_nics};
pub use names::{IRREGULARITY_MAX, NAMES, by_name};
pub use randomness::Keyed;
pub use truth::{About, Irregularity, Optimum, Parts, Truth, undominated};
