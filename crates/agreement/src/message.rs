//! What leader and members say to one another. Every message may be lost, late or doubled.

use crate::Epoch;
use crate::epoch::Slot;
use std::sync::Arc;
use tune::Collective;
use wire::{Malformed, Reader, Writer};

/// [`RankSample::time_us`] of a call of which no time will come: nobody need wait for it.
pub const NO_TIME: f64 = 0.0;
/// Most samples in one message.
pub const SAMPLES_MAX: usize = 4096;

/// From the leader to a member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ToMember {
    /// Hold this; say whether you have not begun its first call.
    Propose(Arc<Epoch>),
    /// Everybody holds the epoch of this number: it is in force from its first call.
    Commit(u64),
    /// The epoch of this number is void.
    Abort(u64),
}

/// From a member to the leader.
#[derive(Debug, Clone, PartialEq)]
pub enum ToLeader {
    /// Held, and its first call not begun; it will wait there for the verdict.
    Ack {
        /// The epoch's number.
        epoch: u64,
        /// Calls that this member has begun.
        begun: u64,
    },
    /// Not held: its first call has begun, or it cannot be obeyed here.
    Refuse {
        /// The epoch's number.
        epoch: u64,
        /// Calls that this member has begun.
        begun: u64,
    },
    /// The verdict has arrived.
    Confirm {
        /// The epoch's number.
        epoch: u64,
        /// Calls that this member has begun.
        begun: u64,
    },
    /// What calls took here.
    Samples(Vec<RankSample>),
    /// The operator wants AUTO, for good.
    Stop,
}

/// What a call took on one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankSample {
    /// The epoch that it ran in.
    pub epoch: u64,
    /// Its slot.
    pub slot: Slot,
    /// Its number among the calls of the slot in that epoch.
    pub k: u64,
    /// Where the time comes from.
    pub source: Source,
    /// Microseconds, or [`NO_TIME`].
    pub time_us: f64,
}

/// Where a time comes from, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Source {
    /// A training step, as the program said.
    Step = 0,
    /// The interval between outermost groups.
    Interval = 1,
    /// The interval between calls of a slot, where NCCL does not tell groups.
    Calls = 2,
    /// GPU time of the kernel.
    Kernel = 3,
    /// Given by a test.
    Scripted = 4,
}

impl ToMember {
    /// As bytes.
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

    /// From bytes.
    pub fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match r.u8()? {
            0 => ToMember::Propose(Arc::new(Epoch::read(r)?)),
            1 => ToMember::Commit(r.u64()?),
            2 => ToMember::Abort(r.u64()?),
            _ => return Err(Malformed("no such message to a member")),
        })
    }
}

impl ToLeader {
    /// As bytes.
    pub fn write(&self, w: &mut Writer) {
        match self {
            ToLeader::Ack { epoch, begun } => w.u8(0).u64(*epoch).u64(*begun),
            ToLeader::Refuse { epoch, begun } => w.u8(1).u64(*epoch).u64(*begun),
            ToLeader::Confirm { epoch, begun } => w.u8(2).u64(*epoch).u64(*begun),
            ToLeader::Samples(all) => {
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

    /// From bytes.
    pub fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let kind = r.u8()?;
        if kind == 3 {
            let n = r.len(SAMPLES_MAX, 27)?;
            return (0..n).map(|_| sample(r)).collect::<Result<_, _>>().map(ToLeader::Samples);
        }
        if kind == 4 {
            return Ok(ToLeader::Stop);
        }
        let (epoch, begun) = (r.u64()?, r.u64()?);
        Ok(match kind {
            0 => ToLeader::Ack { epoch, begun },
            1 => ToLeader::Refuse { epoch, begun },
            2 => ToLeader::Confirm { epoch, begun },
            _ => return Err(Malformed("no such message to the leader")),
        })
    }
}

fn sample(r: &mut Reader<'_>) -> Result<RankSample, Malformed> {
    let epoch = r.u64()?;
    let collective = Collective::tuned_of_number(r.u8()?.into()).ok_or(Malformed("no such collective"))?;
    let bucket = r.u8()?;
    if usize::from(bucket) >= crate::epoch::BUCKETS {
        return Err(Malformed("no such size bucket"));
    }
    let k = r.u64()?;
    let source = match r.u8()? {
        0 => Source::Step,
        1 => Source::Interval,
        2 => Source::Calls,
        3 => Source::Kernel,
        4 => Source::Scripted,
        _ => return Err(Malformed("no such source of times")),
    };
    let time_us = r.f64()?;
    Ok(RankSample { epoch, slot: Slot { collective, bucket }, k, source, time_us })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch::{KeyPlan, Run, arm_of_code};
    use proptest::prelude::*;

    fn epochs() -> impl Strategy<Value = Epoch> {
        let arm = (0u32..=7, 0u32..3, 0u32..=64)
            .prop_map(|(a, p, c)| arm_of_code(if a == 0 { c } else { a << 16 | p << 8 | c }).unwrap());
        let run = (arm.clone(), 1u32..1000).prop_map(|(arm, calls)| Run { arm, calls });
        let key = ((0usize..5, 0u8..64), (proptest::collection::vec(run, 0..5), arm));
        let keys = proptest::collection::btree_map(key.0, key.1, 0..10);
        (any::<u64>(), any::<u64>(), keys).prop_map(|(number, from_call, keys)| Epoch {
            number,
            from_call,
            plans: keys
                .into_iter()
                .map(|((c, bucket), (runs, settled))| KeyPlan {
                    slot: Slot { collective: Collective::tuned_of_number(c).unwrap(), bucket },
                    runs,
                    settled,
                })
                .collect(),
        })
    }

    proptest! {
        #[test]
        fn a_proposal_reads_back_as_it_was_written(epoch in epochs()) {
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
        fn what_members_say_reads_back(kind in 0u8..5, epoch: u64, begun: u64, k: u64, time_us in 0.0f64..1e9) {
            let slot = Slot { collective: Collective::AllReduce, bucket: 20 };
            let message = match kind {
                0 => ToLeader::Ack { epoch, begun },
                1 => ToLeader::Refuse { epoch, begun },
                2 => ToLeader::Confirm { epoch, begun },
                3 => ToLeader::Stop,
                _ => ToLeader::Samples(vec![RankSample { epoch, slot, k, source: Source::Kernel, time_us }; 3]),
            };
            let mut w = Writer::default();
            message.write(&mut w);
            prop_assert_eq!(ToLeader::read(&mut Reader::new(&w.0)), Ok(message));
        }
    }
}
