//! NCCL's terms as types: [`Collective`], [`Algorithm`], [`Protocol`], [`GraphKind`], [`PathType`] and [`Version`].
//!
//! The crate has no dependencies, because training processes load it. The feature `serde` (off by default) adds
//! serialisation as the text of `Display`.

mod collective;
mod version;
mod word;

pub use collective::Collective;
pub use version::Version;
pub use word::{Algorithm, GraphKind, PathType, Protocol};
