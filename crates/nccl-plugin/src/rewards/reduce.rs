//! Reduces the readings of all ranks of one call to one time.
//!
//! A kernel that waits for another rank runs longer, so the rank that arrives last measures the collective itself: GPU times take the **minimum**
//! over the ranks. A step or an interval is the same stretch of time on every rank: they take the **mean**.

use agreement::message::NO_TIME;
use agreement::{RankReading, TimeSource};
use std::collections::BTreeMap;

/// Limit on calls with missing readings; the oldest are dropped first.
const OPEN_MAX: usize = 1 << 17;

/// State of a call's time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reduced {
    /// Readings are missing.
    Waiting,
    /// Microseconds, over all ranks.
    Time(f64),
    /// A rank has no time for the call, so there will be none.
    NoTime,
}

/// The calls of one slot with missing readings.
#[derive(Debug, Default)]
pub struct Reduction {
    /// By epoch and number of the call.
    open: BTreeMap<(u64, u64), PendingCall>,
}

#[derive(Debug)]
struct PendingCall {
    source: TimeSource,
    /// One bit per rank: its reading is here.
    ranks: Vec<u64>,
    missing: usize,
    time_us: f64,
}

impl Reduction {
    /// Adds the reading of rank `from` of `members`. O(log calls).
    pub fn add(&mut self, from: usize, members: usize, s: &RankReading) -> Reduced {
        let at = (s.epoch, s.k);
        if from >= members {
            return Reduced::Waiting;
        }
        if !(s.time_us.is_finite() && s.time_us > NO_TIME) {
            self.open.remove(&at);
            return Reduced::NoTime;
        }
        if self.open.len() >= OPEN_MAX && !self.open.contains_key(&at) {
            self.open.pop_first();
        }
        let least = s.source == TimeSource::Kernel;
        let pending = self.open.entry(at).or_insert_with(|| PendingCall {
            source: s.source,
            ranks: vec![0; members.div_ceil(64)],
            missing: members,
            time_us: if least { f64::INFINITY } else { 0.0 },
        });
        // Readings of different sources have no common time.
        if pending.source != s.source {
            self.open.remove(&at);
            return Reduced::NoTime;
        }
        let Some(word) = pending.ranks.get_mut(from / 64) else { return Reduced::Waiting };
        if *word >> (from % 64) & 1 == 1 {
            return Reduced::Waiting; // a duplicate
        }
        *word |= 1 << (from % 64);
        pending.missing -= 1;
        pending.time_us =
            if least { pending.time_us.min(s.time_us) } else { pending.time_us + s.time_us / members as f64 };
        if pending.missing > 0 {
            return Reduced::Waiting;
        }
        self.open.remove(&at).map_or(Reduced::NoTime, |p| Reduced::Time(p.time_us))
    }

    /// Drops calls of epochs before this one.
    pub fn forget_before(&mut self, epoch: u64) {
        self.open = self.open.split_off(&(epoch, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agreement::Slot;
    use proptest::prelude::*;
    use tune::Collective;

    fn reading(source: TimeSource, k: u64, time_us: f64) -> RankReading {
        RankReading { epoch: 1, slot: Slot::of(Collective::AllReduce, 8), k, source, time_us }
    }

    proptest! {
        #[test]
        fn the_gpu_time_is_that_of_the_rank_that_arrives_last(
            own in 1.0f64..1000.0, waits in proptest::collection::vec(0.0f64..1e6, 2..130), last in any::<proptest::sample::Index>()
        ) {
            let last = last.index(waits.len());
            let mut r = Reduction::default();
            for (rank, wait) in waits.iter().enumerate() {
                let time = own + if rank == last { 0.0 } else { *wait };
                let heard = r.add(rank, waits.len(), &reading(TimeSource::Kernel, 0, time));
                prop_assert_eq!(heard, if rank + 1 == waits.len() { Reduced::Time(own) } else { Reduced::Waiting });
            }
        }

        #[test]
        fn steps_are_averaged_and_duplicate_messages_count_once(times in proptest::collection::vec(1.0f64..1000.0, 2..70)) {
            let mut r = Reduction::default();
            let mut heard = Reduced::Waiting;
            for (rank, t) in times.iter().enumerate() {
                if rank > 0 {
                    prop_assert_eq!(r.add(rank - 1, times.len(), &reading(TimeSource::Step, 5, 1e9)), Reduced::Waiting);
                }
                heard = r.add(rank, times.len(), &reading(TimeSource::Step, 5, *t));
            }
            let mean = times.iter().sum::<f64>() / times.len() as f64;
            let Reduced::Time(t) = heard else { return Err(TestCaseError::fail(format!("{heard:?}"))) };
            prop_assert!((t - mean).abs() < 1e-9 * mean);
        }
    }

    #[test]
    fn a_rank_without_a_time_or_with_another_source_ends_the_wait() {
        let mut r = Reduction::default();
        assert_eq!(r.add(0, 2, &reading(TimeSource::Interval, 0, 5.0)), Reduced::Waiting);
        assert_eq!(r.add(1, 2, &reading(TimeSource::Interval, 0, NO_TIME)), Reduced::NoTime);
        assert_eq!(r.add(0, 2, &reading(TimeSource::Interval, 1, 5.0)), Reduced::Waiting);
        assert_eq!(r.add(1, 2, &reading(TimeSource::Step, 1, 5.0)), Reduced::NoTime);
        for nonsense in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(r.add(0, 2, &reading(TimeSource::Step, 2, nonsense)), Reduced::NoTime);
        }
        assert_eq!(r.add(7, 2, &reading(TimeSource::Step, 3, 1.0)), Reduced::Waiting, "no such rank");
        assert!(r.open.is_empty());
    }
}
