//! The content of an agreement: the arms in use from a given call on.

use std::cmp::Ordering;
use tune::arm::CHANNELS_MAX;
use tune::{Algorithm, Arm, Collective, Protocol};
use wire::{Malformed, Reader, Writer};

/// Limit on plans of one epoch: every slot (5 collectives x 64 buckets).
pub const SLOT_PLANS_MAX: usize = Collective::TUNED.len() * BUCKETS;
/// Limit on plans with runs in one epoch. Jobs use a handful of sizes per collective.
pub const RUN_SLOTS_MAX: usize = 64;
/// Limit on runs of one plan: the blocks of [`tune::steps`].
pub const RUNS_MAX: usize = tune::steps::BLOCKS_MAX;
pub const BUCKETS: usize = tune::bucket::BUCKETS as usize;

/// The calls of one communicator with the same collective and the same size bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot {
    /// The collective, one that NCCL asks a tuner about ([`Collective::TUNED`]).
    pub collective: Collective,
    /// [`tune::bucket::bucket`] of the bytes, 0 to 63: log2 of the nearest power of two.
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
    /// A dense index: 0 to 319 for [`Collective::TUNED`], higher for other collectives.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.collective.number()) * BUCKETS + usize::from(self.bucket)
    }

    #[inline]
    pub fn of(collective: Collective, bytes: u64) -> Self {
        Slot { collective, bucket: tune::bucket::bucket(bytes) }
    }
}

/// A number of consecutive calls with one arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ArmRun {
    pub arm: Arm,
    /// Calls of the slot, at least 1.
    pub calls: u32,
}

/// The arms of one slot: its runs in order, then one arm until the next epoch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SlotPlan {
    pub slot: Slot,
    pub runs: Vec<ArmRun>,
    /// The arm after the runs. Calls captured into a CUDA graph always use it: NCCL asks once and replays the answer.
    pub settled: Arm,
}

impl SlotPlan {
    /// The arm of the slot's call `k`, counted from 0 in the epoch. O(runs).
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

/// A stretch of calls during which every rank uses the same plans. Slots without a plan use AUTO.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Epoch {
    /// Counted from 1 by the leader.
    pub number: u64,
    /// The first call of the communicator, counted from 0, to which the epoch applies.
    pub from_call: u64,
    /// The first call to which the epoch no longer applies: from it on every rank is at AUTO, unless a later epoch says otherwise. `u64::MAX`: the
    /// epoch does not lapse.
    pub until_call: u64,
    /// The epoch only extends the one in force: ranks keep their arms and the counts of their runs.
    pub renews: bool,
    /// A number of calls: the members' digests after so many calls are compared.
    pub check_at: u64,
    /// At most one plan per slot, ascending by slot.
    pub plans: Vec<SlotPlan>,
}

impl Epoch {
    /// An epoch that never lapses.
    pub fn new(number: u64, from_call: u64, plans: Vec<SlotPlan>) -> Self {
        Epoch { number, from_call, until_call: u64::MAX, renews: false, check_at: 0, plans }
    }

    /// The plan of a slot. O(log plans).
    pub fn plan(&self, slot: Slot) -> Option<&SlotPlan> {
        self.plans.binary_search_by_key(&slot, |p| p.slot).ok().and_then(|i| self.plans.get(i))
    }

    pub fn write(&self, w: &mut Writer) {
        w.u64(self.number).u64(self.from_call).u64(self.until_call).u8(self.renews.into()).u64(self.check_at);
        w.len(self.plans.len());
        for p in &self.plans {
            w.u8(p.slot.collective.number()).u8(p.slot.bucket).u32(arm_code(p.settled)).len(p.runs.len());
            for r in &p.runs {
                w.u32(arm_code(r.arm)).u32(r.calls);
            }
        }
    }

    /// # Errors
    /// More than [`SLOT_PLANS_MAX`] plans or [`RUN_SLOTS_MAX`] plans with runs, plans out of order, or a value out of range.
    pub fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (number, from_call, until_call) = (r.u64()?, r.u64()?, r.u64()?);
        let renews = match r.u8()? {
            0 => false,
            1 => true,
            _ => return Err(Malformed("neither a renewal nor none")),
        };
        let check_at = r.u64()?;
        let mut plans: Vec<SlotPlan> = Vec::new();
        for _ in 0..r.len(SLOT_PLANS_MAX, 10)? {
            let collective = Collective::tuned_of_number(r.u8()?.into()).ok_or(Malformed("unknown collective"))?;
            let bucket = r.u8()?;
            if usize::from(bucket) >= BUCKETS {
                return Err(Malformed("the size bucket is above 63"));
            }
            let slot = Slot { collective, bucket };
            if plans.last().is_some_and(|p| p.slot >= slot) {
                return Err(Malformed("the plans are not sorted by slot"));
            }
            let settled = arm_of_code(r.u32()?)?;
            let mut runs = Vec::new();
            for _ in 0..r.len(RUNS_MAX, 8)? {
                let run = ArmRun { arm: arm_of_code(r.u32()?)?, calls: r.u32()? };
                if run.calls == 0 {
                    return Err(Malformed("a run has no calls"));
                }
                runs.push(run);
            }
            plans.push(SlotPlan { slot, runs, settled });
        }
        if plans.iter().filter(|p| !p.runs.is_empty()).count() > RUN_SLOTS_MAX {
            return Err(Malformed("more than 64 plans have runs"));
        }
        Ok(Epoch { number, from_call, until_call, renews, check_at, plans })
    }
}

/// An arm as a number: 0 is AUTO; else one byte each for algorithm + 1, protocol and channels.
#[inline]
pub fn arm_code(arm: Arm) -> u32 {
    let choice = arm.forced.map_or(0, |(a, p)| (a as u32 + 1) << 16 | (p as u32) << 8);
    choice | u32::from(arm.channels.unwrap_or(0))
}

/// The inverse of [`arm_code`].
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
