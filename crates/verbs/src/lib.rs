//! RDMA queue pairs of libibverbs. See README.md of this crate.
//!
//! ```text
//!  Library (opened at run time) ──► Nic (an open device and one of its addresses) ──► Region (registered memory)
//!                                          └──► Pair (queue pair, its completions, its buffers for messages)
//! ```
#![allow(missing_docs, reason = "an item whose name says everything needs no comment")]

pub mod abi;
mod library;
mod nic;
mod pair;

pub use library::Library;
pub use nic::{Nic, Region};
pub use pair::{Address, Event, MESSAGE_BYTES, Pair};
