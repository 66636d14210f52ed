//! The times that judge arms, most meaningful first: training steps, intervals between outermost groups, GPU times.
//!
//! The program reports steps. Without steps, an **interval** begins with an outermost group (`ncclGroupStart`, or a call
//! outside any group) that calls a slot, and ends with the next outermost group that calls it. The leader adds up the
//! intervals of one period of the calls ([`tune::steps::CadenceFinder`]): in a training loop that is one step, including
//! the arm's effect on concurrent computation. NCCL reports groups to its profiler from 2.27.3 on. In older releases an
//! interval runs from call to call, and its readings are marked ([`TimeSource::Calls`]).
//!
//! Only the slot whose arms are compared has readings: one per step or interval. Other GPU times appear in reports only; they judge arms if `LINKWISE_REWARD` is `kernel`.

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

/// The readings of a step, given in nanoseconds of the communicator's clock: one per slot that is compared, at the slot's first call in the step. It
/// has no time if the slot's arm changed during the step. `calls` are all calls in order of time; those before `end_ns` are removed. Returns the number
/// of the step's first call.
pub fn time_step(
    calls: &mut VecDeque<CallDecision>,
    begin_ns: u64,
    end_ns: u64,
    out: &mut Vec<RankReading>,
) -> Option<u64> {
    let mut slots: BTreeMap<Slot, (&CallDecision, bool)> = BTreeMap::new();
    let within = || calls.iter().filter(|d| (begin_ns..end_ns).contains(&d.at_ns));
    for d in within().filter(|d| d.counted) {
        let (first, constant) = slots.entry(d.slot()).or_insert((d, true));
        *constant &= (first.arm, first.epoch) == (d.arm, d.epoch);
    }
    let time_us = (end_ns - begin_ns.min(end_ns)) as f64 / 1e3;
    let of =
        |(d, constant): &(&CallDecision, bool)| reading(d, TimeSource::Step, if *constant { time_us } else { NO_TIME });
    out.extend(slots.values().map(of));
    let first = within().map(|d| d.call).next();
    calls.retain(|d| d.at_ns >= end_ns);
    first
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
    /// Handles a counted call: appends the reading of the interval that it ends, at the first call of that interval.
    pub fn call(&mut self, d: &CallDecision, out: &mut Vec<RankReading>) {
        let alike = |a: &CallDecision, b: &CallDecision| (a.arm, a.epoch) == (b.arm, b.epoch);
        if let Some(open) = self.open.get_mut(&d.slot())
            && d.group != 0
            && d.group == open.first.group
            && open.calls < GROUP_CALLS_MAX
        {
            open.constant &= alike(&open.first, d);
            (open.last, open.calls) = (*d, open.calls + 1);
            return; // one time per group
        }
        let now = OpenInterval { first: *d, last: *d, constant: true, calls: 1 };
        let Some(before) = self.open.insert(d.slot(), now) else { return };
        let first = &before.first;
        let grouped = first.group != 0 && d.group != 0 && first.group != d.group;
        let source = if grouped { TimeSource::Interval } else { TimeSource::Calls };
        let follows = first.epoch == d.epoch && d.k == before.last.k + 1;
        let whole = before.constant && follows && d.at_ns > first.at_ns;
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
    fn a_step_gives_one_reading_per_slot_at_its_first_call() {
        let uncounted = |d: CallDecision| CallDecision { counted: false, ..d };
        let mut calls = VecDeque::from([
            call(0, RING, 5, 1024),                // before the step
            uncounted(call(7, RING, 10, 4 << 20)), // a slot that is not compared, the step's first call
            call(1, RING, 11, 1024),               // its arm changes during the step
            call(2, TREE, 20, 1 << 20),            // its arm does not change
            call(3, TREE, 30, 1 << 20),            // a second call in the same step
            call(4, TREE, 40, 1024),
            call(5, TREE, 2000, 1 << 20), // after the step
        ]);
        let mut out = Vec::new();
        assert_eq!(time_step(&mut calls, 10, 1010, &mut out), Some(7));
        let times: Vec<_> = out.iter().map(|s| (s.slot.bucket, s.k, s.time_us, s.source)).collect();
        assert_eq!(times, [(10, 1, NO_TIME, TimeSource::Step), (20, 2, 1.0, TimeSource::Step)]);
        assert_eq!(calls.len(), 1, "later calls stay");
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
        let changed = times(&[call(4, RING, 1000, 8), call(5, TREE, 3000, 8)]);
        assert_eq!(changed, [(4, TimeSource::Calls, 2.0)], "the time belongs to the arm of its first call");
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
        /// Each group but the last gets one reading, at its first call, and the readings fill the time without gaps.
        #[test]
        fn every_group_before_the_last_gets_one_reading(
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
            let said: Vec<u64> = out.iter().map(|s| s.k).collect();
            let begins = |k: &usize| *k == 0 || calls[*k].group != calls[*k - 1].group;
            let mut expected: Vec<usize> = (0..calls.len()).filter(begins).collect();
            expected.pop();
            prop_assert_eq!(said, expected.iter().map(|k| *k as u64).collect::<Vec<_>>());
            for s in out.iter().filter(|s| s.time_us != NO_TIME) {
                prop_assert!(s.time_us > 0.0 && s.source == TimeSource::Interval);
            }
        }
    }
}
