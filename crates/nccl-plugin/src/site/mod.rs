//! The site's own tuner and profiler: the plugins that NCCL would have loaded without linkwise.
//!
//! NCCL loads one tuner and one profiler. When linkwise takes their place, it loads what NCCL would have loaded, by
//! NCCL's rules ([`find`]), and forwards every call to it first. The site's answer is what AUTO means: linkwise sees the
//! cost table and the channel count after the site's call ([`tuner`]). The site's profiler receives the events that it
//! asked for, with its own handles ([`profiler`]).
//!
//! ```text
//!  NCCL ──► site::tuner (exported) ──► the site's tuner ──► abi::tuner (sees the table after the site's call)
//!       ──► site::profiler (exported) ──► the site's profiler; abi::profiler; a handle of ours for both (handles)
//! ```
//!
//! The site's plugin sees the calls that it would have seen from NCCL, and its errors are returned to NCCL. Without a
//! plugin of the site the exported functions call linkwise's own at once.

pub mod find;
pub mod handles;
#[allow(unsafe_code)]
pub mod library;
#[allow(unsafe_code)]
pub mod profiler;
#[allow(unsafe_code)]
pub mod tuner;

/// Names of the site's plugins, for traces and reports: (tuner, profiler).
pub fn names() -> (Option<String>, Option<String>) {
    (tuner::name(), profiler::name())
}
