//! Communication between linkwise processes: value encoding ([`bytes`]), frames ([`frame`]), connections that carry frames ([`link`]) over sockets
//! ([`socket`]) or, within one host, shared memory ([`memory`], [`pipe`]); and a ring of records between two threads ([`ring`]).
//!
//! All input is untrusted: every length has a limit, a claimed length causes no allocation, and no input causes a panic. Every wait has a deadline.

pub mod address;
pub mod auth;
pub mod bytes;
pub mod frame;
pub mod link;
pub mod memory;
pub mod pipe;
pub mod poller;
pub mod ring;
pub mod socket;

pub use address::Address;
pub use bytes::{Malformed, Reader, Writer};
pub use frame::{FRAME_BYTES_MAX, Frames};
pub use link::{IntraNodeTransport, Link};
pub use poller::Poller;
pub use ring::Ring;
pub use socket::Listener;
