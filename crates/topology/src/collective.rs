//! The collectives.

pub use nccl_types::Collective;
