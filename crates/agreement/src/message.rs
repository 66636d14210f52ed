//! Messages between leader and members. Each may be lost, delayed or duplicated.

use crate::Epoch;
use crate::digest::CallDigest;
use crate::epoch::{SLOT_PLANS_MAX, Slot};
use std::sync::Arc;
use tune::Collective;
use wire::{Malformed, Reader, Writer};

/// [`RankReading::time_us`] of a call whose time will never be known. It keeps the leader from waiting for that time.
pub const NO_TIME: f64 = 0.0;
/// Limit on readings in one message.
pub const READINGS_MAX: usize = 4096;

/// From the leader to a member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ToMember {
    /// Asks whether the member could run this epoch. Its first call is not known yet; the answer binds the member to nothing.
    Ask(Arc<Epoch>),
    /// Asks the member to hold this epoch unless it has begun the epoch's first call. Sent after all members have answered that they are ready.
    Propose(Arc<Epoch>),
    /// All members hold the epoch of this number: it applies from its first call.
    Commit(u64),
    /// The epoch of this number is void.
    Abort(u64),
    /// Asks how far the member is, and for its digest after this number of calls.
    Check { at: u64 },
}

/// A slot as one rank has seen it at AUTO.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotView {
    pub slot: Slot,
    /// Bit set of the cost-table entries that were possible in all calls of the slot so far.
    pub mask: u32,
    /// The entry that AUTO chose, or [`NO_ENTRY`] if it chose several, or none is known.
    pub auto: u8,
}

/// [`SlotView::auto`] of a slot in which AUTO has chosen several entries.
pub const NO_ENTRY: u8 = u8::MAX;

/// From a member to the leader.
#[derive(Debug, Clone, PartialEq)]
pub enum ToLeader {
    /// The member can run the epoch it was asked about. Binds it to nothing.
    Ready {
        epoch: u64,
        /// Calls that this member has begun.
        begun: u64,
        /// The member's digest after [`Epoch::check_at`] calls, if it has made and kept them.
        digest: Option<CallDigest>,
        /// The epoch's slots that this member has seen, ascending by slot.
        slots: Vec<SlotView>,
    },
    /// The answer to [`ToMember::Check`].
    Status { begun: u64, digest: Option<CallDigest> },
    /// The member's communicator has ended: it makes no more calls.
    Left,
    /// The member holds the proposal, has not begun its first call, and will wait there for the verdict.
    Ack {
        epoch: u64,
        /// Calls that this member has begun.
        begun: u64,
    },
    /// The member does not hold the proposal: it has begun the first call, or cannot run an arm.
    Refuse {
        epoch: u64,
        /// Calls that this member has begun.
        begun: u64,
    },
    /// The member has received the verdict.
    Confirm {
        epoch: u64,
        /// Calls that this member has begun.
        begun: u64,
    },
    /// Times of calls on this rank.
    Readings(Vec<RankReading>),
    /// The operator requests AUTO for the rest of the job.
    Stop,
}

/// The time of one call on one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankReading {
    /// The epoch in which the call ran.
    pub epoch: u64,
    pub slot: Slot,
    /// Number of the call among those of its slot in that epoch, from 0.
    pub k: u64,
    pub source: TimeSource,
    /// Microseconds, or [`NO_TIME`].
    pub time_us: f64,
}

/// The source of a time, most meaningful first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum TimeSource {
    /// A training step, reported by the program.
    Step = 0,
    /// From one outermost NCCL group to the next.
    Interval = 1,
    /// From one call of a slot to the next, if NCCL does not report groups.
    Calls = 2,
    /// The kernel on the GPU.
    Kernel = 3,
    /// Set by a test.
    Scripted = 4,
}

impl ToMember {
    pub fn write(&self, w: &mut Writer) {
        match self {
            ToMember::Ask(e) => e.write(w.u8(3)),
            ToMember::Propose(e) => e.write(w.u8(0)),
            ToMember::Commit(n) => {
                w.u8(1).u64(*n);
            }
            ToMember::Abort(n) => {
                w.u8(2).u64(*n);
            }
            ToMember::Check { at } => {
                w.u8(4).u64(*at);
            }
        }
    }

    pub fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match r.u8()? {
            0 => ToMember::Propose(Arc::new(Epoch::read(r)?)),
            1 => ToMember::Commit(r.u64()?),
            2 => ToMember::Abort(r.u64()?),
            3 => ToMember::Ask(Arc::new(Epoch::read(r)?)),
            4 => ToMember::Check { at: r.u64()? },
            _ => return Err(Malformed("unknown kind of message to a member")),
        })
    }
}

impl ToLeader {
    pub fn write(&self, w: &mut Writer) {
        match self {
            ToLeader::Ack { epoch, begun } => w.u8(0).u64(*epoch).u64(*begun),
            ToLeader::Refuse { epoch, begun } => w.u8(1).u64(*epoch).u64(*begun),
            ToLeader::Confirm { epoch, begun } => w.u8(2).u64(*epoch).u64(*begun),
            ToLeader::Readings(all) => {
                w.u8(3).len(all.len());
                for s in all {
                    w.u64(s.epoch).u8(s.slot.collective.number()).u8(s.slot.bucket).u64(s.k);
                    w.u8(s.source as u8).f64(s.time_us);
                }
                w
            }
            ToLeader::Stop => w.u8(4),
            ToLeader::Ready { epoch, begun, digest, slots } => {
                write_digest(w.u8(5).u64(*epoch).u64(*begun), digest);
                w.len(slots.len());
                for s in slots {
                    w.u8(s.slot.collective.number()).u8(s.slot.bucket).u32(s.mask).u8(s.auto);
                }
                w
            }
            ToLeader::Status { begun, digest } => {
                write_digest(w.u8(6).u64(*begun), digest);
                w
            }
            ToLeader::Left => w.u8(7),
        };
    }

    pub fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let kind = r.u8()?;
        if kind == 3 {
            let n = r.len(READINGS_MAX, 27)?;
            return (0..n).map(|_| reading(r)).collect::<Result<_, _>>().map(ToLeader::Readings);
        }
        match kind {
            4 => return Ok(ToLeader::Stop),
            6 => return Ok(ToLeader::Status { begun: r.u64()?, digest: read_digest(r)? }),
            7 => return Ok(ToLeader::Left),
            _ => {}
        }
        let (epoch, begun) = (r.u64()?, r.u64()?);
        if kind == 5 {
            let digest = read_digest(r)?;
            let n = r.len(SLOT_PLANS_MAX, 7)?;
            let view = |r: &mut Reader<'_>| Ok(SlotView { slot: slot(r)?, mask: r.u32()?, auto: r.u8()? });
            let slots = (0..n).map(|_| view(r)).collect::<Result<Vec<_>, Malformed>>()?;
            if slots.windows(2).any(|w| matches!(w, [a, b] if a.slot >= b.slot)) {
                return Err(Malformed("the slots are not in order"));
            }
            return Ok(ToLeader::Ready { epoch, begun, digest, slots });
        }
        Ok(match kind {
            0 => ToLeader::Ack { epoch, begun },
            1 => ToLeader::Refuse { epoch, begun },
            2 => ToLeader::Confirm { epoch, begun },
            _ => return Err(Malformed("unknown kind of message to the leader")),
        })
    }
}

/// A flag, and if it is 1 the digest.
fn write_digest(w: &mut Writer, digest: &Option<CallDigest>) {
    match digest {
        None => w.u8(0),
        Some(d) => w.u8(1).u64(d.calls).u64(d.hash),
    };
}

fn read_digest(r: &mut Reader<'_>) -> Result<Option<CallDigest>, Malformed> {
    match r.u8()? {
        0 => Ok(None),
        1 => Ok(Some(CallDigest { calls: r.u64()?, hash: r.u64()? })),
        _ => Err(Malformed("neither a digest nor none")),
    }
}

fn slot(r: &mut Reader<'_>) -> Result<Slot, Malformed> {
    let collective = Collective::tuned_of_number(r.u8()?.into()).ok_or(Malformed("unknown collective"))?;
    let bucket = r.u8()?;
    if usize::from(bucket) >= crate::epoch::BUCKETS {
        return Err(Malformed("the size bucket is above 63"));
    }
    Ok(Slot { collective, bucket })
}

fn reading(r: &mut Reader<'_>) -> Result<RankReading, Malformed> {
    let epoch = r.u64()?;
    let slot = slot(r)?;
    let k = r.u64()?;
    let source = match r.u8()? {
        0 => TimeSource::Step,
        1 => TimeSource::Interval,
        2 => TimeSource::Calls,
        3 => TimeSource::Kernel,
        4 => TimeSource::Scripted,
        _ => return Err(Malformed("unknown source of a time")),
    };
    let time_us = r.f64()?;
    Ok(RankReading { epoch, slot, k, source, time_us })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch::{ArmRun, SlotPlan, arm_of_code};
    use proptest::prelude::*;

    fn epochs() -> impl Strategy<Value = Epoch> {
        let arm = (0u32..=7, 0u32..3, 0u32..=64)
            .prop_map(|(a, p, c)| arm_of_code(if a == 0 { c } else { a << 16 | p << 8 | c }).unwrap());
        let run = (arm.clone(), 1u32..1000).prop_map(|(arm, calls)| ArmRun { arm, calls });
        let key = ((0usize..5, 0u8..64), (proptest::collection::vec(run, 0..5), arm));
        let keys = proptest::collection::btree_map(key.0, key.1, 0..10);
        (any::<[u64; 4]>(), any::<bool>(), keys).prop_map(
            |([number, from_call, until_call, check_at], renews, keys)| Epoch {
                number,
                from_call,
                until_call,
                renews,
                check_at,
                plans: keys
                    .into_iter()
                    .map(|((c, bucket), (runs, settled))| SlotPlan {
                        slot: Slot { collective: Collective::tuned_of_number(c).unwrap(), bucket },
                        runs,
                        settled,
                    })
                    .collect(),
            },
        )
    }

    proptest! {
        #[test]
        fn a_proposal_survives_encoding(epoch in epochs()) {
            let message = ToMember::Propose(Arc::new(epoch));
            let mut w = Writer::default();
            message.write(&mut w);
            let mut r = Reader::new(&w.0);
            prop_assert_eq!(ToMember::read(&mut r), Ok(message));
            prop_assert_eq!(r.end(), Ok(()));
        }

        #[test]
        fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = ToMember::read(&mut Reader::new(&bytes));
            let _ = ToLeader::read(&mut Reader::new(&bytes));
        }

        #[test]
        fn messages_of_members_survive_encoding(kind in 0u8..8, epoch: u64, begun: u64, k: u64, time_us in 0.0f64..1e9, mask: u32, kept: bool) {
            let digest = kept.then_some(CallDigest { calls: k, hash: epoch });
            let slot = Slot { collective: Collective::AllReduce, bucket: 20 };
            let message = match kind {
                0 => ToLeader::Ack { epoch, begun },
                1 => ToLeader::Refuse { epoch, begun },
                2 => ToLeader::Confirm { epoch, begun },
                3 => ToLeader::Stop,
                4 => ToLeader::Left,
                5 => ToLeader::Status { begun, digest },
                6 => ToLeader::Ready { epoch, begun, digest, slots: vec![SlotView { slot, mask, auto: 3 }] },
                _ => ToLeader::Readings(vec![RankReading { epoch, slot, k, source: TimeSource::Kernel, time_us }; 3]),
            };
            let mut w = Writer::default();
            message.write(&mut w);
            prop_assert_eq!(ToLeader::read(&mut Reader::new(&w.0)), Ok(message));
        }
    }
}
