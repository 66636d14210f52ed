//! The published systems as their authors describe them: searches, networks, planners.
//!
//! | module | source |
//! |---|---|
//! | [`bandpilot`] | BandPilot, arXiv 2506.15595, versions 1 and 4, and its baselines |
//! | [`litegd`] | LiteGD, by the same authors, and its greedy baseline |
//!
//! The core does not know this crate. A program that offers the published systems registers them by name before it reads requests:
//!
//! ```
//! let mut registry = place::Registry::shipped();
//! papers::register(&mut registry).unwrap();
//! assert_eq!(registry.search("bandpilot-v4", 0).unwrap().name(), "bandpilot-v4");
//! ```

pub mod bandpilot;
mod hosts;
pub mod judge;
pub mod litegd;
mod neighbours;
mod registered;

pub use registered::register;
