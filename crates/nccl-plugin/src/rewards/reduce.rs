//! What all ranks say of one call, brought to one number.
//!
//! A kernel that waits for another rank runs longer for it, so the rank that arrives last has the time that the collective itself needs: the
//! **least** over the ranks. A step or an interval is the same stretch of time seen by every rank: their **mean**.

use agreement::message::NO_TIME;
use agreement::{RankSample, Source};
use std::collections::BTreeMap;

/// Most calls that wait for ranks; the oldest are given up first.
const OPEN_MAX: usize = 1 << 17;

/// What has become of a call's time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Heard {
    /// Not all ranks have spoken.
    Waiting,
    /// Microseconds, of all ranks.
    Time(f64),
    /// One rank has no time of it: there will be none.
    Never,
}

/// See the module. For one slot.
#[derive(Debug, Default)]
pub struct Reduction {
    /// By epoch and number of the call in it.
    open: BTreeMap<(u64, u64), Part>,
}

#[derive(Debug)]
struct Part {
    source: Source,
    /// A bit for every rank that has spoken.
    ranks: Vec<u64>,
    left: usize,
    time_us: f64,
}

impl Reduction {
    /// A rank's word, `from` of `members`. O(log calls).
    pub fn add(&mut self, from: usize, members: usize, s: &RankSample) -> Heard {
        let at = (s.epoch, s.k);
        if from >= members {
            return Heard::Waiting;
        }
        if !(s.time_us.is_finite() && s.time_us > NO_TIME) {
            self.open.remove(&at);
            return Heard::Never;
        }
        if self.open.len() >= OPEN_MAX && !self.open.contains_key(&at) {
            self.open.pop_first();
        }
        let least = s.source == Source::Kernel;
        let part = self.open.entry(at).or_insert_with(|| Part {
            source: s.source,
            ranks: vec![0; members.div_ceil(64)],
            left: members,
            time_us: if least { f64::INFINITY } else { 0.0 },
        });
        // A rank that measures another thing than the others has no time of this one.
        if part.source != s.source {
            self.open.remove(&at);
            return Heard::Never;
        }
        let Some(word) = part.ranks.get_mut(from / 64) else { return Heard::Waiting };
        if *word >> (from % 64) & 1 == 1 {
            return Heard::Waiting; // a message came twice
        }
        *word |= 1 << (from % 64);
        part.left -= 1;
        part.time_us = if least { part.time_us.min(s.time_us) } else { part.time_us + s.time_us / members as f64 };
        if part.left > 0 {
            return Heard::Waiting;
        }
        self.open.remove(&at).map_or(Heard::Never, |p| Heard::Time(p.time_us))
    }

    /// Forgets what is older than an epoch.
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

    fn said(source: Source, k: u64, time_us: f64) -> RankSample {
        RankSample { epoch: 1, slot: Slot::of(Collective::AllReduce, 8), k, source, time_us }
    }

    proptest! {
        #[test]
        fn a_kernel_took_what_it_took_on_the_rank_that_came_last(
            own in 1.0f64..1000.0, waits in proptest::collection::vec(0.0f64..1e6, 2..130), last in any::<proptest::sample::Index>()
        ) {
            let last = last.index(waits.len());
            let mut r = Reduction::default();
            for (rank, wait) in waits.iter().enumerate() {
                let time = own + if rank == last { 0.0 } else { *wait };
                let heard = r.add(rank, waits.len(), &said(Source::Kernel, 0, time));
                prop_assert_eq!(heard, if rank + 1 == waits.len() { Heard::Time(own) } else { Heard::Waiting });
            }
        }

        #[test]
        fn steps_are_averaged_and_messages_that_come_twice_count_once(times in proptest::collection::vec(1.0f64..1000.0, 2..70)) {
            let mut r = Reduction::default();
            let mut heard = Heard::Waiting;
            for (rank, t) in times.iter().enumerate() {
                if rank > 0 {
                    prop_assert_eq!(r.add(rank - 1, times.len(), &said(Source::Step, 5, 1e9)), Heard::Waiting);
                }
                heard = r.add(rank, times.len(), &said(Source::Step, 5, *t));
            }
            let mean = times.iter().sum::<f64>() / times.len() as f64;
            let Heard::Time(t) = heard else { return Err(TestCaseError::fail(format!("{heard:?}"))) };
            prop_assert!((t - mean).abs() < 1e-9 * mean);
        }
    }

    #[test]
    fn a_rank_without_a_time_or_with_another_source_ends_the_wait() {
        let mut r = Reduction::default();
        assert_eq!(r.add(0, 2, &said(Source::Interval, 0, 5.0)), Heard::Waiting);
        assert_eq!(r.add(1, 2, &said(Source::Interval, 0, NO_TIME)), Heard::Never);
        assert_eq!(r.add(0, 2, &said(Source::Interval, 1, 5.0)), Heard::Waiting);
        assert_eq!(r.add(1, 2, &said(Source::Step, 1, 5.0)), Heard::Never);
        for nonsense in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(r.add(0, 2, &said(Source::Step, 2, nonsense)), Heard::Never);
        }
        assert_eq!(r.add(7, 2, &said(Source::Step, 3, 1.0)), Heard::Waiting, "no such rank");
        assert!(r.open.is_empty());
    }
}
