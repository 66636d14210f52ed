//! Messages between leader and members. Each may be lost, delayed or duplicated.

use crate::Epoch;
use crate::epoch::Slot;
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
    /// Asks the member to hold this epoch unless it has begun the epoch's first call.
    Propose(Arc<Epoch>),
    /// All members hold the epoch of this number: it applies from its first call.
    Commit(u64),
    /// The epoch of this number is void.
    Abort(u64),
}

/// From a member to the leader.
#[derive(Debug, Clone, PartialEq)]
pub enum ToLeader {
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
            ToMember::Propose(e) => e.write(w.u8(0)),
            ToMember::Commit(n) => {
                w.u8(1).u64(*n);
            }
            ToMember::Abort(n) => {
                w.u8(2).u64(*n);
            }
        }
    }

    pub fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match r.u8()? {
            0 => ToMember::Propose(Arc::new(Epoch::read(r)?)),
            1 => ToMember::Commit(r.u64()?),
            2 => ToMember::Abort(r.u64()?),
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
        };
    }

    pub fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let kind = r.u8()?;
        if kind == 3 {
            let n = r.len(READINGS_MAX, 27)?;
            return (0..n).map(|_| reading(r)).collect::<Result<_, _>>().map(ToLeader::Readings);
        }
        if kind == 4 {
            return Ok(ToLeader::Stop);
        }
        let (epoch, begun) = (r.u64()?, r.u64()?);
        Ok(match kind {
            0 => ToLeader::Ack { epoch, begun },
            1 => ToLeader::Refuse { epoch, begun },
            2 => ToLeader::Confirm { epoch, begun },
            _ => return Err(Malformed("unknown kind of message to the leader")),
        })
    }
}

fn reading(r: &mut Reader<'_>) -> Result<RankReading, Malformed> {
    let epoch = r.u64()?;
    let collective = Collective::tuned_of_number(r.u8()?.into()).ok_or(Malformed("unknown collective"))?;
    let bucket = r.u8()?;
    if usize::from(bucket) >= crate::epoch::BUCKETS {
        return Err(Malformed("the size bucket is above 63"));
    }
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
    Ok(RankReading { epoch, slot: Slot { collective, bucket }, k, source, time_us })
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
        (any::<u64>(), any::<u64>(), keys).prop_map(|(number, from_call, keys)| Epoch {
            number,
            from_call,
            plans: keys
                .into_iter()
                .map(|((c, bucket), (runs, settled))| SlotPlan {
                    slot: Slot { collective: Collective::tuned_of_number(c).unwrap(), bucket },
                    runs,
                    settled,
                })
                .collect(),
        })
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
        fn messages_of_members_survive_encoding(kind in 0u8..5, epoch: u64, begun: u64, k: u64, time_us in 0.0f64..1e9) {
            let slot = Slot { collective: Collective::AllReduce, bucket: 20 };
            let message = match kind {
                0 => ToLeader::Ack { epoch, begun },
                1 => ToLeader::Refuse { epoch, begun },
                2 => ToLeader::Confirm { epoch, begun },
                3 => ToLeader::Stop,
                _ => ToLeader::Readings(vec![RankReading { epoch, slot, k, source: TimeSource::Kernel, time_us }; 3]),
            };
            let mut w = Writer::default();
            message.write(&mut w);
            prop_assert_eq!(ToLeader::read(&mut Reader::new(&w.0)), Ok(message));
        }
    }
}
