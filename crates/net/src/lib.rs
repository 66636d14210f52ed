//! Moves bytes over every link between two hosts. See README.md of this crate.
//!
//! ```text
//!  program ──► endpoint (posts, polls requests)            other processes of the host
//!                 │ mailbox      ▲ requests                         │
//!                 ▼              │                                  ▼
//!              io (threads) ──► connection ──► sender, receiver    share: the board of rails
//!                                   │           (pure)
//!                                   └──► path (one TCP socket per rail)
//! ```

#![allow(missing_docs, reason = "an item whose name says everything needs no comment")]

pub mod buffer;
mod connection;
mod dialer;
mod discovery;
pub mod endpoint;
pub mod frame;
pub mod greeting;
pub mod handle;
mod io;
pub mod limits;
mod path;
pub mod plan;
pub mod rails;
pub mod rdma;
pub mod reach;
pub mod receiver;
mod regions;
mod relay;
pub mod request;
pub mod sender;
pub mod share;
mod shared;
mod sockets;

pub use buffer::Buffer;
pub use endpoint::{Endpoint, Listen, NetError, Rail, ReceiveEnd, SendEnd, Settings, Verbs};
pub use regions::Registration;
pub use request::{Progress, Request};
pub use shared::Counts;
pub use sockets::open_sockets;
