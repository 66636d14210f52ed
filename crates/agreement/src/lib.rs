//! Ranks deciding alike.
//!
//! NCCL hangs, or worse, when two ranks run one collective with different algorithms, so a choice may change only at a call that every rank
//! knows beforehand. One rank of a communicator leads. It proposes an [`Epoch`]: from call N on, these arms. Every rank acknowledges that it
//! holds the proposal and has not begun call N; only then the leader publishes the verdict. A rank that has acknowledged and reaches call N
//! without a verdict waits; it never guesses. A rank that had begun call N refuses, and the epoch is void for everybody.
//!
//! ```text
//!  leader    idle ──propose──► proposed ──all acknowledged──► decided: commit ──all confirmed──► idle
//!                                   └── a refusal, or time ──► decided: abort  ──all confirmed──► idle
//!  member    free ──proposal, call N not begun──► bound ──commit──► from call N the new arms ──► free
//!              └────proposal, call N begun──► refused for ever  └──abort──► free
//! ```
//!
//! Failures: processes stop for good, messages are lost, delayed without bound or sent twice; nobody forges. In every such schedule **two live
//! ranks never use different arms for one call** ([`leader`], [`member`]: functions of their inputs, without clock or I/O; shown in `tests/`).
//! What may happen is that a bound rank waits: for the leader's verdict, or for the end of the job if the leader's process is gone, without
//! which a collective cannot complete anyway, for the leader is one of the communicator's own ranks.

pub mod epoch;
pub mod launcher;
pub mod leader;
pub mod member;
pub mod message;
pub mod roster;
pub mod transport;

pub use epoch::{Epoch, KeyPlan, Run, Slot};
pub use leader::Leader;
pub use member::{At, Member};
pub use message::{RankSample, Source, ToLeader, ToMember};
pub use roster::{Announcement, Disagreement, Place, ProcessId, Roster};
pub use transport::{Endpoint, Event, Meeting};
