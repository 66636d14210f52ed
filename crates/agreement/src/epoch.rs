//! What is agreed on: which arms, from which call.

use std::cmp::Ordering;
use tune::arm::CHANNELS_MAX;
use tune::{Algorithm, Arm, Collective, Protocol};
use wire::{Malformed, Reader, Writer};

/// Most slots with a plan in one epoch: all of them.
pub const KEYS_MAX: usize = Collective::TUNED.len() * BUCKETS;
/// Most slots whose plan has runs; jobs use a handful of sizes per collective.
pub const RUN_KEYS_MAX: usize = 64;
/// Most runs of one key in one epoch.
pub const RUNS_MAX: usize = 16;
/// Size buckets.
pub const BUCKETS: usize = tune::bucket::BUCKETS as usize;

/// Calls of one collective and one size bucket in one communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot {
    /// The collective, one that NCCL asks a tuner about ([`Collective::TUNED`]).
    pub collective: Collective,
    /// [`tune::bucket::bucket`] of the bytes, 0 to 63: the nearest power of two.
    pub bucket: u8,
}

/// By NCCL's number of the collective, then by size.
impl Ord for Slot {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.collective.number(), self.bucket).cmp(&(other.collective.number(), other.bucket))
    }
}

impl PartialOrd for Slot {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Slot {
    /// 0 to 319 for [`Collective::TUNED`], higher for other collectives.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.collective.number()) * BUCKETS + usize::from(self.bucket)
    }

    /// The slot of a call.
    #[inline]
    pub fn of(collective: Collective, bytes: u64) -> Self {
        Slot { collective, bucket: tune::bucket::bucket(bytes) }
    }
}

/// So many calls with one arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Run {
    /// The arm.
    pub arm: Arm,
    /// How many calls of the slot; at least 1.
    pub calls: u32,
}

/// The arms of one slot: the runs, one after the other, then one arm until the next epoch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeyPlan {
    /// Which calls.
    pub slot: Slot,
    /// At first.
    pub runs: Vec<Run>,
    /// After the runs; also for calls that are captured into a CUDA graph, which are asked for once and replayed for long.
    pub settled: Arm,
}

impl KeyPlan {
    /// The arm of the slot's call number `k`, counted from 0 in the epoch. O(runs).
    pub fn arm_of(&self, k: u64) -> Arm {
        let mut end = 0u64;
        for run in &self.runs {
            end += u64::from(run.calls);
            if k < end {
                return run.arm;
            }
        }
        self.settled
    }
}

/// A stretch of calls with one plan. Slots without a plan are AUTO.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Epoch {
    /// Counted from 1, by the leader.
    pub number: u64,
    /// The first call of the communicator, counted from 0, that it is about.
    pub from_call: u64,
    /// One for every slot that has a plan, in the order of slots.
    pub plans: Vec<KeyPlan>,
}

impl Epoch {
    /// The plan of a slot.
    pub fn plan(&self, slot: Slot) -> Option<&KeyPlan> {
        self.plans.binary_search_by_key(&slot, |p| p.slot).ok().and_then(|i| self.plans.get(i))
    }

    /// As bytes.
    pub fn write(&self, w: &mut Writer) {
        w.u64(self.number).u64(self.from_call).len(self.plans.len());
        for p in &self.plans {
            w.u8(p.slot.collective.number()).u8(p.slot.bucket).u32(arm_code(p.settled)).len(p.runs.len());
            for r in &p.runs {
                w.u32(arm_code(r.arm)).u32(r.calls);
            }
        }
    }

    /// From bytes.
    pub fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (number, from_call) = (r.u64()?, r.u64()?);
        let mut plans: Vec<KeyPlan> = Vec::new();
        for _ in 0..r.len(KEYS_MAX, 10)? {
            let collective = Collective::tuned_of_number(r.u8()?.into()).ok_or(Malformed("no such collective"))?;
            let bucket = r.u8()?;
            if usize::from(bucket) >= BUCKETS {
                return Err(Malformed("no such size bucket"));
            }
            let slot = Slot { collective, bucket };
            if plans.last().is_some_and(|p| p.slot >= slot) {
                return Err(Malformed("plans are not in the order of their slots"));
            }
            let settled = arm_of_code(r.u32()?)?;
            let mut runs = Vec::new();
            for _ in 0..r.len(RUNS_MAX, 8)? {
                let run = Run { arm: arm_of_code(r.u32()?)?, calls: r.u32()? };
                if run.calls == 0 {
                    return Err(Malformed("a run of no calls"));
                }
                runs.push(run);
            }
            plans.push(KeyPlan { slot, runs, settled });
        }
        if plans.iter().filter(|p| !p.runs.is_empty()).count() > RUN_KEYS_MAX {
            return Err(Malformed("too many plans with runs"));
        }
        Ok(Epoch { number, from_call, plans })
    }
}

/// An arm as a number: 0 is AUTO; else algorithm + 1, protocol and channels, one byte each.
#[inline]
pub fn arm_code(arm: Arm) -> u32 {
    let choice = arm.forced.map_or(0, |(a, p)| (a as u32 + 1) << 16 | (p as u32) << 8);
    choice | u32::from(arm.channels.unwrap_or(0))
}

/// The arm of a number.
pub fn arm_of_code(code: u32) -> Result<Arm, Malformed> {
    let bad = Malformed("no such arm");
    let channels = match code & 0xff {
        0 => None,
        c => Some(u8::try_from(c).ok().filter(|c| *c <= CHANNELS_MAX).ok_or(bad)?),
    };
    let forced = match (code >> 16, code >> 8 & 0xff) {
        (0, 0) => None,
        (0, _) => return Err(bad),
        (a, p) => Some((Algorithm::of_number(a as usize - 1).ok_or(bad)?, Protocol::of_number(p as usize).ok_or(bad)?)),
    };
    Ok(Arm { forced, channels })
}
