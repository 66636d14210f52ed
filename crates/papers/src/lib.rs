//! The published systems according to their authors' descriptions: searches, networks, planners.
//!
//! | module | source |
//! |---|---|
//! | [`bandpilot`] | BandPilot, arXiv 2506.15595, versions 1 and 4, and its baselines |
//! | [`litegd`] | LiteGD, by the same authors, and its greedy baseline |
//! | [`network`] | the Transformers of both, and LinearBW |
//! | [`nimble`] | NIMBLE's planner, multiplicative weights |
//!
//! The core does not depend on this crate. A program that offers the published systems takes its registries from here,
//! or adds them to its own:
//!
//! ```
//! assert_eq!(papers::searches().search("bandpilot-v4", 0).unwrap().name(), "bandpilot-v4");
//! assert!(papers::models().by_name("transformer").is_some());
//! let mut planners = route::Planners::shipped();
//! papers::register_planners(&mut planners).unwrap();
//! assert!(planners.by_name("mwu").is_some());
//! ```

pub mod bandpilot;
mod hosts;
pub mod judge;
pub mod litegd;
mod neighbours;
pub mod network;
pub mod nimble;
mod registered;

pub use network::kinds::register as register_models;
pub use nimble::register as register_planners;
pub use registered::{models, planners, register as register_searches, searches};
