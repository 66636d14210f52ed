//! An emulated libibverbs. See README.md of this crate. This is **not RDMA**: bytes go over TCP sockets and are copied by threads.
//!
//! ```text
//!  program ──ibv_post_send──► Pair ──(its thread: reads memory, header + bytes)──TCP──► thread of the peer's Pair: checks key and range, copies,
//!                               ▲                                                        takes a posted receive, completion
//!                               └──completion◄──────────(one word: the status)──────────┘
//! ```

pub mod border;
mod memory;
mod pair;
mod queue;
pub mod versions;
mod world;
