//! Agreement between the ranks of a communicator on which arm each call uses.
//!
//! NCCL hangs, or worse, if two ranks run one collective with different algorithms. A choice may therefore change only at a call that every rank
//! knows in advance. One rank of the communicator leads. It asks all ranks whether they could run an [`Epoch`]; the answer binds no rank. When all are
//! ready it proposes the epoch: from call N on, these arms; N is seconds ahead. Every rank acknowledges that it holds the proposal and has not begun
//! call N. The leader publishes the verdict only after all acknowledgements. A rank that has acknowledged and reaches call N without a verdict waits;
//! it does not guess. A rank that has begun call N refuses, which voids the epoch for all ranks. An epoch lapses to AUTO at a call that it names,
//! unless a renewal was agreed by the same steps.
//!
//! ```text
//!  leader    idle ──ask──► asked ──all ready──► proposed ──all acknowledged──► decided: commit ──all confirmed──► idle
//!                            └── time ──► idle     └── a refusal, or time ──► decided: abort  ──all confirmed──► idle
//!  member    free ──proposal, call N not begun──► bound ──commit──► from call N the new arms ──► free
//!              └────proposal, call N begun──► refused for ever  └──abort──► free
//! ```
//!
//! Fault model: processes may stop forever; messages may be lost, delayed without bound or duplicated; no process of the job
//! forges messages, and [`wire::auth`] keeps others out. In every such
//! schedule **two live ranks never use different arms for one call**. [`leader`] and [`member`] are functions of their inputs, without clock or I/O;
//! `tests/` shows the property.
//!
//! A bound rank may have to wait: for the leader's verdict, or for the end of the job if the leader's process has
//! stopped. The leader is a rank of the communicator, so no collective completes without it in any case.

#![allow(missing_docs, reason = "an item whose name says everything needs no comment")]

pub mod digest;
pub mod epoch;
pub mod launcher;
pub mod leader;
pub mod member;
pub mod message;
pub mod roster;
pub mod transport;

pub use digest::CallDigest;
pub use epoch::{ArmRun, Epoch, Slot, SlotPlan};
pub use leader::Leader;
pub use member::{CallAction, Member};
pub use message::{RankReading, SlotView, TimeSource, ToLeader, ToMember};
pub use roster::{Announcement, Disagreement, MemberId, ProcessId, Roster};
pub use transport::{Endpoint, Rendezvous, TransportEvent};
