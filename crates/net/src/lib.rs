//! Moves bytes over every link between two hosts. See README.md of this crate.

#![allow(missing_docs, reason = "an item whose name says everything needs no comment")]

pub mod frame;
pub mod limits;
pub mod rails;
pub mod receiver;
pub mod sender;
