//! The communication of a job as kinds of calls: the common form of all that is read about jobs.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use topology::{Bytes, Collective};

/// Longest plausible call, microseconds: a limit on what jobs write.
pub(crate) const TIME_US_MAX: f64 = 1e9;
/// True if so many ranks have a time of a call that their shortest one is that of the rank which arrived last: nine in ten. A few ranks of a large job
/// may have been killed before they wrote.
pub fn nearly_all(timed: u32, ranks: u32) -> bool {
    ranks > 0 && u64::from(timed) * 10 >= u64::from(ranks) * 9
}

/// Limit on kinds; the most frequent are kept.
pub const KINDS_MAX: usize = 10_000;
/// Limit on times kept per kind; later ones count as calls only.
const TIMES_MAX: usize = 100_000;
/// Of times that not all ranks have, this share of the calls is expected to have waited for no other rank.
const UNDELAYED: f64 = 0.1;

/// All calls of one collective and size on as many ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct CallKind {
    pub collective: Collective,
    /// The whole buffer, as in nccl-tests' size column.
    pub size: Bytes,
    /// Ranks of the communicator; 0 if the source does not tell.
    pub ranks: u32,
    pub calls: usize,
    /// Time of one call, microseconds: the median over calls of the last arriver's time; if some rank's times are missing, the 10th percentile of the
    /// shortest known, because a kernel waits for the slowest rank. `None` without times.
    pub time_us: Option<f64>,
    /// The times are those of the last arriver: [nearly all](nearly_all) ranks have one.
    pub by_all_ranks: bool,
}

impl CallKind {
    /// Time of all calls, seconds; 0 without times.
    pub fn total_s(&self) -> f64 {
        self.time_us.unwrap_or(0.0) * 1e-6 * self.calls as f64
    }
}

/// Times of one kind.
#[derive(Default)]
struct Times {
    calls: usize,
    of_all: Vec<f64>,
    of_some: Vec<f64>,
}

/// Gathers calls into kinds.
#[derive(Default)]
pub struct CallTimes {
    kinds: BTreeMap<(Collective, u64, u32), Times>,
}

impl CallTimes {
    /// Adds one call. `us`: its shortest time among the known ranks; `by_all`: all ranks' times are known. O(log kinds).
    pub fn add(&mut self, collective: Collective, size: Bytes, ranks: u32, us: Option<f64>, by_all: bool) {
        let times = self.kinds.entry((collective, size.0, ranks)).or_default();
        times.calls += 1;
        let of = if by_all { &mut times.of_all } else { &mut times.of_some };
        if of.len() < TIMES_MAX {
            of.extend(us);
        }
    }

    /// The kinds, the most frequent first. O(calls log calls).
    pub fn finish(self) -> Vec<CallKind> {
        let kind = |((collective, size, ranks), times): ((Collective, u64, u32), Times)| {
            let by_all_ranks = !times.of_all.is_empty();
            let time_us = match by_all_ranks {
                true => Some(stats::upper_median(&times.of_all)),
                false => low(times.of_some),
            };
            CallKind { collective, size: Bytes(size), ranks, calls: times.calls, time_us, by_all_ranks }
        };
        let mut kinds: Vec<CallKind> = self.kinds.into_iter().map(kind).collect();
        kinds.sort_by_key(|k| (Reverse(k.calls), k.collective, k.size, k.ranks));
        kinds.truncate(KINDS_MAX);
        kinds
    }
}

/// The [`UNDELAYED`] quantile.
fn low(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get((times.len() as f64 * UNDELAYED) as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_ranks_give_the_median_and_those_of_some_a_low_quantile() {
        let mut calls = CallTimes::default();
        for i in 0..10 {
            calls.add(Collective::AllReduce, Bytes(1024), 8, Some(100.0 + f64::from(i)), true);
            calls.add(Collective::AllReduce, Bytes(1024), 4, Some(100.0 + f64::from(i)), false);
        }
        calls.add(Collective::AllReduce, Bytes(1024), 8, Some(1.0), false);
        calls.add(Collective::Reduce, Bytes(8), 0, None, false);
        let kinds = calls.finish();
        let brief: Vec<_> = kinds.iter().map(|k| (k.ranks, k.calls, k.time_us, k.by_all_ranks)).collect();
        assert_eq!(brief, [(8, 11, Some(105.0), true), (4, 10, Some(101.0), false), (0, 1, None, false)]);
        assert!((kinds[1].total_s() - 1010e-6).abs() < 1e-12);
    }
}
