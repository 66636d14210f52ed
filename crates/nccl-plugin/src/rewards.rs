//! The time that judges a call, most meaningful first: the training step that contains it, the interval between outermost groups, the GPU time.
//!
//! The program reports steps. Without steps, linkwise derives the program's rhythm from NCCL's groups: an **interval**
//! begins with an outermost group (`ncclGroupStart`, or a call outside any group) that calls a slot, and ends with the
//! next outermost group that calls it. In a training loop that is one step, including the arm's effect on concurrent
//! computation. NCCL reports groups to its profiler from 2.27.3 on. In older releases an interval runs from call to
//! call, and its readings are marked ([`TimeSource::Calls`]).
//!
//! Other GPU times appear in reports only; they judge arms if `LINKWISE_REWARD` is `kernel`.

mod match_launch;
mod reduce;
mod script;

pub use match_launch::match_launch;
pub use reduce::{Reduced, Reduction};
pub use script::Script;

use crate::comm::CallDecision;
use agreement::message::NO_TIME;
use agreement::{RankReading, Slot, TimeSource};
use std::collections::{BTreeMap, VecDeque};

/// Calls of one slot in one group after which the group is no longer trusted: an event for its end must have been lost.
const GROUP_CALLS_MAX: u32 = 4096;

fn reading(d: &CallDecision, source: TimeSource, time_us: f64) -> RankReading {
    RankReading { epoch: d.epoch, slot: d.slot(), k: d.k, source, time_us }
}

/// The reading of a call that will have no time.
pub fn no_time(d: &CallDecision, source: TimeSource) -> RankReading {
    reading(d, source, NO_TIME)
}

/// The readings of a step, given in nanoseconds of the communicator's clock. The step judges the counted calls within it of slots whose arm did not
/// change during the step. `calls` are in order of time; those before `end_ns` are removed.
pub fn time_step(calls: &mut VecDeque<CallDecision>, begin_ns: u64, end_ns: u64, out: &mut Vec<RankReading>) {
    let within: Vec<CallDecision> =
        calls.iter().filter(|d| (begin_ns..end_ns).contains(&d.at_ns) && d.counted).copied().collect();
    // Calls between steps belong to no step.
    let between = calls.iter().filter(|d| d.at_ns < begin_ns && d.counted);
    out.extend(between.map(|d| reading(d, TimeSource::Step, NO_TIME)));
    calls.retain(|d| d.at_ns >= end_ns);
    let mut slots: BTreeMap<Slot, (&CallDecision, bool)> = BTreeMap::new();
    for d in &within {
        let (first, constant) = slots.entry(d.slot()).or_insert((d, true));
        *constant &= (first.arm, first.epoch) == (d.arm, d.epoch);
    }
    for d in &within {
        // One time per slot and step: several calls of a slot in one step are not independent readings.
        let judged = slots.get(&d.slot()).is_some_and(|(first, constant)| *constant && std::ptr::eq(*first, d));
        let time_us = if judged { (end_ns - begin_ns) as f64 / 1e3 } else { NO_TIME };
        out.push(reading(d, TimeSource::Step, time_us));
    }
}

/// Intervals of one rank by slot. See the module documentation.
#[derive(Debug, Default)]
pub struct Intervals {
    open: BTreeMap<Slot, OpenInterval>,
}

/// The calls of a slot in its last group.
#[derive(Debug)]
struct OpenInterval {
    first: CallDecision,
    last: CallDecision,
    /// All calls have one arm.
    constant: bool,
    calls: u32,
}

impl Intervals {
    /// Handles a counted call: appends the reading of the interval that it ends, and readings without a time for calls that will have none.
    pub fn call(&mut self, d: &CallDecision, out: &mut Vec<RankReading>) {
        let alike = |a: &CallDecision, b: &CallDecision| (a.arm, a.epoch) == (b.arm, b.epoch);
        if let Some(open) = self.open.get_mut(&d.slot())
            && d.group != 0
            && d.group == open.first.group
            && open.calls < GROUP_CALLS_MAX
        {
            open.constant &= alike(&open.first, d);
            (open.last, open.calls) = (*d, open.calls + 1);
            out.push(reading(d, TimeSource::Interval, NO_TIME)); // one time per group
            return;
        }
        let now = OpenInterval { first: *d, last: *d, constant: true, calls: 1 };
        let Some(before) = self.open.insert(d.slot(), now) else { return };
        let first = &before.first;
        let grouped = first.group != 0 && d.group != 0 && first.group != d.group;
        let source = if grouped { TimeSource::Interval } else { TimeSource::Calls };
        // The next group must use the same arm too: the host runs ahead of the GPU, and an interval ends with a call of the next group.
        let whole = before.constant && alike(first, d) && d.k == before.last.k + 1 && d.at_ns > first.at_ns;
        let time_us = if whole { (d.at_ns - first.at_ns) as f64 / 1e3 } else { NO_TIME };
        out.push(reading(first, source, time_us));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tune::{Algorithm, Arm, Protocol};

    const RING: Arm = Arm::new(Algorithm::Ring, Protocol::Ll);
    const TREE: Arm = Arm::new(Algorithm::Tree, Protocol::Ll);

    fn call(k: u64, arm: Arm, at_ns: u64, bytes: u64) -> CallDecision {
        CallDecision { at_ns, ..CallDecision::for_test(k, bytes, arm) }
    }

    fn in_group(group: u32, d: CallDecision) -> CallDecision {
        CallDecision { group, ..d }
    }

    fn times(calls: &[CallDecision]) -> Vec<(u64, TimeSource, f64)> {
        let (mut intervals, mut out) = (Intervals::default(), Vec::new());
        calls.iter().for_each(|d| intervals.call(d, &mut out));
        out.iter().filter(|s| s.time_us != NO_TIME).map(|s| (s.k, s.source, s.time_us)).collect()
    }

    #[test]
    fn a_step_judges_slots_whose_arm_did_not_change_in_it() {
        let mut calls = VecDeque::from([
            call(0, RING, 5, 1024),     // before the step
            call(1, RING, 10, 1024),    // its arm changes during the step
            call(0, TREE, 20, 1 << 20), // its arm does not change
            call(1, TREE, 30, 1 << 20), // a second call in the same step
            call(2, TREE, 40, 1024),
            call(2, TREE, 2000, 1 << 20), // after the step
        ]);
        let mut out = Vec::new();
        time_step(&mut calls, 10, 1010, &mut out);
        let (judged, others): (Vec<RankReading>, Vec<_>) = out.iter().partition(|s| s.time_us != NO_TIME);
        let [only] = judged.as_slice() else { panic!("{out:?}") };
        assert_eq!((only.slot, only.k, only.time_us, only.source), (calls[0].slot(), 0, 1.0, TimeSource::Step));
        assert_eq!((calls.len(), others.len()), (1, 4), "the other calls get a reading without a time");
    }

    #[test]
    fn an_interval_runs_from_a_group_to_the_next_one_with_the_slot() {
        let calls = [
            in_group(1, call(0, RING, 1_000, 8)),
            in_group(1, call(1, RING, 1_100, 8)), // the same group: not an interval of 0.1 us
            in_group(3, call(2, RING, 9_000, 8)), // group 2 had other slots
            in_group(4, call(3, RING, 20_000, 8)),
        ];
        assert_eq!(times(&calls), [(0, TimeSource::Interval, 8.0), (2, TimeSource::Interval, 11.0)]);
    }

    #[test]
    fn without_groups_an_interval_runs_from_call_to_call_and_is_marked() {
        let calls = [call(4, RING, 1000, 8), call(5, RING, 3000, 8)];
        assert_eq!(times(&calls), [(4, TimeSource::Calls, 2.0)]);
        assert_eq!(times(&[call(4, RING, 1000, 8), call(6, RING, 3000, 8)]), [], "one in between was lost");
        assert_eq!(times(&[call(4, RING, 1000, 8), call(5, TREE, 3000, 8)]), [], "another arm");
    }

    #[test]
    fn an_arm_that_changes_inside_a_group_is_not_judged_by_it() {
        let calls = [
            in_group(1, call(0, RING, 1_000, 8)),
            in_group(1, call(1, TREE, 1_100, 8)),
            in_group(2, call(2, RING, 5_000, 8)),
        ];
        assert_eq!(times(&calls), []);
    }

    #[test]
    fn a_group_without_an_end_gives_no_reading() {
        let calls: Vec<_> =
            (0..3 * u64::from(GROUP_CALLS_MAX)).map(|k| in_group(7, call(k, RING, 10 * k, 8))).collect();
        let found = times(&calls);
        assert!(found.len() >= 2 && found.iter().all(|t| t.1 == TimeSource::Calls), "{found:?}");
    }

    proptest! {
        /// Each call gets one reading, so that the leader waits for no time in vain.
        #[test]
        fn every_call_before_the_last_group_gets_one_reading(
            jumps in proptest::collection::vec((0u32..3, any::<bool>(), 1u64..1000), 1..60)
        ) {
            let (mut group, mut at) = (1, 0);
            let calls: Vec<CallDecision> = jumps.iter().enumerate().map(|(k, (jump, ring, later))| {
                group += jump;
                at += later;
                in_group(group, call(k as u64, if *ring { RING } else { TREE }, at, 8))
            }).collect();
            let (mut intervals, mut out) = (Intervals::default(), Vec::new());
            calls.iter().for_each(|d| intervals.call(d, &mut out));
            let mut said: Vec<u64> = out.iter().map(|s| s.k).collect();
            said.sort_unstable();
            let begin = calls.iter().position(|d| d.group == group).unwrap_or(0) as u64;
            let expected: Vec<u64> = (0..calls.len() as u64).filter(|k| *k != begin).collect();
            prop_assert_eq!(said, expected);
            for s in out.iter().filter(|s| s.time_us != NO_TIME) {
                prop_assert!(s.time_us > 0.0 && s.source == TimeSource::Interval);
            }
        }
    }
}
