//! What links should carry: the physics of collectives and max-min fair sharing.

pub mod estimate;

pub use estimate::{Algorithm, Bottleneck, Estimate, Fabric};
