//! The network plugin that NCCL loads: every connection uses all rails (NICs) of the host.
//!
//! ```text
//!  NCCL ──tables v8 to v12──► abi (C border, catches panics) ──► net::Endpoint ──► I/O threads ──► one TCP path per rail
//!                                │
//!                    config (variables, file), nics (which NICs are rails)
//! ```
//!
//! With fewer than two rails the plugin offers no device, and NCCL uses its own transport.

#![allow(missing_docs, reason = "an item whose name says everything needs no comment")]

#[allow(unsafe_code)]
pub mod abi;
pub mod config;
pub mod nics;
pub mod process;
