//! What a call is worth: the time of the step that it was part of, or the interval to the slot's next call; and, for tests, a script.
//!
//! # Scripts
//!
//! Times that a test gives instead of a clock: on the bench kernels finish at once.
//!
//! ```text
//! # collective  size of the slot  arm          microseconds
//! AllReduce     1MiB              TREE/LL128   80
//! noise 0.1
//! ```
//!
//! Every rank gets the time with noise of its own.

use crate::comm::Decision;
use agreement::{RankSample, Slot, Source};
use tune::{Arm, Collective};

/// A step that lasted from one time to another, nanoseconds of the communicator's clock, judges the counted calls within it: those slots whose
/// arm did not change in the step. `calls` are in the order of time; what is over is removed from them.
pub fn of_step(calls: &mut Vec<Decision>, begin_ns: u64, end_ns: u64, out: &mut Vec<RankSample>) {
    let within: Vec<Decision> =
        calls.iter().filter(|d| (begin_ns..end_ns).contains(&d.at_ns) && d.counted).copied().collect();
    calls.retain(|d| d.at_ns >= end_ns);
    for (i, d) in within.iter().enumerate() {
        let alike = |o: &&Decision| o.slot() == d.slot();
        let constant = within.iter().filter(alike).all(|o| (o.arm, o.epoch) == (d.arm, d.epoch));
        let first = within.iter().position(|o| o.slot() == d.slot()) == Some(i);
        // One time per slot and step: the slot's calls in a step are not independent looks at it. The other calls count as lost.
        if constant && first {
            let time_us = (end_ns - begin_ns) as f64 / 1e3;
            out.push(RankSample { epoch: d.epoch, slot: d.slot(), k: d.k, source: Source::Step, time_us });
        }
    }
}

/// The interval from a call to the next one of its slot, where both are in one epoch with one arm.
pub fn of_interval(before: &Decision, next: &Decision) -> Option<RankSample> {
    let same = (before.arm, before.epoch, before.counted) == (next.arm, next.epoch, true) && next.k == before.k + 1;
    let time_us = next.at_ns.saturating_sub(before.at_ns) as f64 / 1e3;
    let sample =
        RankSample { epoch: before.epoch, slot: before.slot(), k: before.k, source: Source::Interval, time_us };
    (same && time_us > 0.0).then_some(sample)
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Script {
    times: Vec<(Collective, u8, Arm, f64)>,
    noise: f64,
}

impl Script {
    /// From text; an error has its line.
    pub fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut script = Script::default();
        for (i, line) in text.lines().enumerate() {
            let line = line.split_once('#').map_or(line, |(l, _)| l).trim();
            let words: Vec<&str> = line.split_whitespace().collect();
            let wrong = |what: String| (i + 1, what);
            match words.as_slice() {
                [] => {}
                ["noise", n] => script.noise = n.parse().map_err(|_| wrong(format!("`{n}` is not a number")))?,
                [collective, bucket, arm, time] => script.times.push((
                    collective.parse().map_err(wrong)?,
                    bucket.parse().map_err(|_| wrong(format!("`{bucket}` is not the number of a bucket")))?,
                    arm.parse().map_err(wrong)?,
                    time.parse().map_err(|_| wrong(format!("`{time}` is not a time")))?,
                )),
                _ => return Err(wrong("write COLLECTIVE BUCKET ARM MICROSECONDS, or noise SHARE".into())),
            }
        }
        Ok(script)
    }

    /// What a call takes on a rank, where the script knows. `auto` is the arm that AUTO stands for.
    pub fn time_us(&self, slot: Slot, arm: Arm, auto: Arm, rank: i32, call: u64) -> Option<f64> {
        let plain = if arm.forced.is_none() { auto } else { Arm { channels: None, ..arm } };
        let known = self.times.iter().find(|t| t.0 == slot.collective && t.1 == slot.bucket && t.2 == plain)?;
        let mut bytes = [0u8; 12];
        bytes[..8].copy_from_slice(&call.to_le_bytes());
        bytes[8..].copy_from_slice(&rank.to_le_bytes());
        let h = wire::bytes::hash(&bytes);
        let mixed = (h ^ h >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let unit = (mixed >> 11) as f64 / (1u64 << 53) as f64; // 0 to 1
        Some(known.3 * (1.0 + self.noise * (2.0 * unit - 1.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tune::{Algorithm, Protocol};

    fn call(k: u64, arm: Arm, at_ns: u64, bytes: u64) -> Decision {
        Decision {
            call: k,
            bytes,
            collective: Collective::AllReduce,
            arm,
            taken: true,
            captured: false,
            counted: true,
            mask: 0,
            auto: 0,
            epoch: 3,
            k,
            at_ns,
        }
    }

    #[test]
    fn a_step_judges_slots_whose_arm_did_not_change_in_it() {
        let (ring, tree) = (Arm::new(Algorithm::Ring, Protocol::Ll), Arm::new(Algorithm::Tree, Protocol::Ll));
        let mut calls = vec![
            call(0, ring, 5, 1024),     // before the step
            call(1, ring, 10, 1024),    // changes in it
            call(0, tree, 20, 1 << 20), // does not
            call(1, tree, 30, 1 << 20), // a second look at the same step
            call(2, tree, 40, 1024),
            call(2, tree, 2000, 1 << 20), // after it
        ];
        let mut out = Vec::new();
        of_step(&mut calls, 10, 1010, &mut out);
        let [only] = out.as_slice() else { panic!("{out:?}") };
        assert_eq!((only.slot, only.k, only.time_us, only.source), (calls[0].slot(), 0, 1.0, Source::Step));
        assert_eq!(calls.len(), 1);
    }

    #[test]
    fn an_interval_is_between_neighbours_with_one_arm() {
        let (ring, tree) = (Arm::new(Algorithm::Ring, Protocol::Ll), Arm::new(Algorithm::Tree, Protocol::Ll));
        let time = |a: &Decision, b: &Decision| of_interval(a, b).map(|s| (s.k, s.time_us));
        assert_eq!(time(&call(4, ring, 1000, 8), &call(5, ring, 3000, 8)), Some((4, 2.0)));
        assert_eq!(time(&call(4, ring, 1000, 8), &call(6, ring, 3000, 8)), None);
        assert_eq!(time(&call(4, ring, 1000, 8), &call(5, tree, 3000, 8)), None);
    }
}
