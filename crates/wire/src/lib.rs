//! How linkwise processes talk: values in bytes ([`bytes`]), frames of them ([`frame`]), connections that carry frames ([`link`]) over sockets
//! ([`socket`]) or, inside a host, through memory that both map ([`memory`], [`pipe`]); and a ring of records between two threads ([`ring`]).
//!
//! Whatever arrives is hostile until it has been read: every length has a limit, nothing is allocated for a length that was only claimed, and
//! no input panics. Nothing here waits without a deadline.

pub mod address;
pub mod bytes;
pub mod frame;
pub mod link;
pub mod memory;
pub mod pipe;
pub mod ring;
pub mod socket;

pub use address::Address;
pub use bytes::{Malformed, Reader, Writer};
pub use frame::{FRAME_BYTES_MAX, Frames};
pub use link::{Inside, Link};
pub use ring::Ring;
pub use socket::Listener;
