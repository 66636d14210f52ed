//! The published systems as their authors describe them: searches, networks, planners.
//!
//! | module | source |
//! |---|---|
//! | [`bandpilot`] | BandPilot, arXiv 2506.15595, versions 1 and 4, and its baselines |
//! | [`litegd`] | LiteGD, by the same authors, and its greedy baseline |
//! | [`network`] | the Transformers of both, and LinearBW |
//! | [`nimble`] | NIMBLE's planner, multiplicative weights |
//!
//! The core does not know this crate. A program that offers the published systems registers them by name before it reads requests:
//!
//! ```
//! let mut registry = place::Registry::shipped();
//! papers::register_searches(&mut registry).unwrap();
//! assert_eq!(registry.search("bandpilot-v4", 0).unwrap().name(), "bandpilot-v4");
//! let mut kinds = predict::ModelKinds::shipped();
//! papers::register_models(&mut kinds).unwrap();
//! assert!(kinds.by_name("transformer").is_some());
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
pub use registered::register as register_searches;
