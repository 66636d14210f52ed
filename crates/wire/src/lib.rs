//! How linkwise processes talk: values in bytes ([`bytes`]), frames of them ([`frame`]), sockets that carry frames ([`socket`]), and a ring
//! between two threads or processes ([`ring`]).
//!
//! Whatever arrives is hostile until it has been read: every length has a limit, nothing is allocated for a length that was only claimed, and
//! no input panics. Nothing here waits without a deadline.

pub mod bytes;
pub mod frame;
pub mod ring;
pub mod socket;

pub use bytes::{Malformed, Reader, Writer};
pub use frame::{FRAME_BYTES_MAX, Frames};
pub use ring::Ring;
pub use socket::{Address, Link, Listener};
