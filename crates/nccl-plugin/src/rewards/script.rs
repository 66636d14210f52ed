//! Scripted times for tests, because kernels finish at once on the bench.
//!
//! ```text
//! # collective  bucket of the size  arm          microseconds
//! AllReduce     20                  TREE/LL128   80
//! kernel AllReduce 20               TREE/LL128   55    # the GPU time of the same call on the rank that arrives last
//! waits 3 500                                          # rank 3 arrives 500 us before the last one: its kernels run that much longer
//! noise 0.1
//! ```
//!
//! Each rank adds its own noise. The trace of a process with a script says so.

use agreement::Slot;
use tune::{Arm, Collective};

/// Limit on lines of one kind.
const LINES_MAX: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Script {
    times: Vec<Line>,
    kernels: Vec<Line>,
    waits: Vec<(i32, f64)>,
    noise: f64,
}

type Line = (Collective, u8, Arm, f64);

fn microseconds(text: &str) -> Result<f64, String> {
    let time: f64 = text.parse().map_err(|_| format!("`{text}` is not a time"))?;
    if (0.0..1e12).contains(&time) {
        Ok(time)
    } else {
        Err(format!("`{text}` us is out of range; 0 to 1e12 us was expected"))
    }
}

fn line(words: &[&str]) -> Result<Line, String> {
    let [collective, bucket, arm, time] = words else {
        return Err("write [kernel] COLLECTIVE BUCKET ARM MICROSECONDS, waits RANK MICROSECONDS, or noise SHARE".into());
    };
    let bucket = bucket.parse().map_err(|_| format!("`{bucket}` is not a bucket number"))?;
    Ok((crate::profile::tuned(collective)?, bucket, arm.parse()?, microseconds(time)?))
}

impl Script {
    /// Parses a script. An error has its line, counted from 1.
    pub fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut script = Script::default();
        for (i, text) in text.lines().enumerate() {
            let text = text.split_once('#').map_or(text, |(l, _)| l).trim();
            let words: Vec<&str> = text.split_whitespace().collect();
            script.take(&words).map_err(|what| (i + 1, what))?;
        }
        Ok(script)
    }

    fn take(&mut self, words: &[&str]) -> Result<(), String> {
        match words {
            [] => {}
            ["noise", n] => {
                let noise: f64 = n.parse().map_err(|_| format!("`{n}` is not a number"))?;
                if !(0.0..=1.0).contains(&noise) {
                    return Err(format!("noise `{n}` is not a share from 0 to 1"));
                }
                self.noise = noise;
            }
            ["waits", rank, time] => {
                let rank = rank.parse().map_err(|_| format!("`{rank}` is not a rank"))?;
                self.waits.push((rank, microseconds(time)?));
            }
            ["kernel", rest @ ..] => self.kernels.push(line(rest)?),
            words => self.times.push(line(words)?),
        }
        if self.times.len().max(self.kernels.len()).max(self.waits.len()) > LINES_MAX {
            return Err(format!("more than {LINES_MAX} lines of one kind"));
        }
        Ok(())
    }

    /// True if it has times that replace steps and intervals, not only GPU times.
    pub fn decides(&self) -> bool {
        !self.times.is_empty()
    }

    /// The time of a call on a rank, if the script has it, microseconds. `auto` is the arm that AUTO stands for.
    pub fn time_us(&self, slot: Slot, arm: Arm, auto: Arm, rank: i32, call: u64) -> Option<f64> {
        Some(self.noisy(known(&self.times, slot, arm, auto)?, rank, call))
    }

    /// The GPU time of its kernel on the rank, waiting included, microseconds.
    pub fn kernel_us(&self, slot: Slot, arm: Arm, auto: Arm, rank: i32, call: u64) -> Option<f64> {
        let waits = self.waits.iter().find(|w| w.0 == rank).map_or(0.0, |w| w.1);
        Some(self.noisy(known(&self.kernels, slot, arm, auto)?, 0, call) + waits)
    }

    fn noisy(&self, time_us: f64, rank: i32, call: u64) -> f64 {
        let mut bytes = [0u8; 12];
        bytes[..8].copy_from_slice(&call.to_le_bytes());
        bytes[8..].copy_from_slice(&rank.to_le_bytes());
        let h = wire::bytes::hash(&bytes);
        let mixed = (h ^ h >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let unit = (mixed >> 11) as f64 / (1u64 << 53) as f64; // 0 to 1
        time_us * (1.0 + self.noise * (2.0 * unit - 1.0))
    }
}

fn known(lines: &[Line], slot: Slot, arm: Arm, auto: Arm) -> Option<f64> {
    let plain = if arm.forced.is_none() { auto } else { Arm { channels: None, ..arm } };
    lines.iter().find(|t| t.0 == slot.collective && t.1 == slot.bucket && t.2 == plain).map(|t| t.3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tune::{Algorithm, Protocol};

    #[test]
    fn kernels_wait_on_ranks_that_arrive_early_but_steps_do_not() {
        let s =
            Script::parse("AllReduce 20 RING/LL 100 # a step\nkernel AllReduce 20 RING/LL 40\nwaits 1 500\n").unwrap();
        let (slot, ring) = (Slot::of(Collective::AllReduce, 1 << 20), Arm::new(Algorithm::Ring, Protocol::Ll));
        let of = |rank| (s.time_us(slot, ring, ring, rank, 3), s.kernel_us(slot, Arm::AUTO, ring, rank, 3));
        assert_eq!((of(0), of(1)), ((Some(100.0), Some(40.0)), (Some(100.0), Some(540.0))));
        assert_eq!(s.kernel_us(Slot::of(Collective::Reduce, 1 << 20), ring, ring, 0, 0), None);
    }

    #[test]
    fn an_error_has_its_line() {
        for (text, at, what) in [
            ("noise 0.1\nAllReduce 20 RING/LL\n", 2, "write [kernel]"),
            ("AllReduce 20 RING/LL -4\n", 1, "out of range"),
            ("AllReduce 20 RING/LL NaN\n", 1, "out of range"),
            ("kernel AllReduce x RING/LL 4\n", 1, "bucket number"),
            ("waits me 4\n", 1, "not a rank"),
            ("noise 7\n", 1, "share"),
        ] {
            let (line, said) = Script::parse(text).unwrap_err();
            assert!(line == at && said.contains(what), "{text:?}: {line}: {said}");
        }
    }
}
