//! NCCL's words, once: [`Collective`], [`Algorithm`], [`Protocol`], [`GraphKind`], [`PathType`] and [`Version`].
//!
//! The crate depends on nothing, because training processes load it. The feature `serde` (off by default) adds the form in files: the
//! text of `Display`.

mod collective;
mod version;
mod word;

pub use collective::Collective;
pub use version::Version;
pub use word::{Algorithm, GraphKind, PathType, Protocol};
