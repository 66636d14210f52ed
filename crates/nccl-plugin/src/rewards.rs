//! Times that a test gives instead of a clock: on the bench kernels finish at once.
//!
//! ```text
//! # collective  size of the slot  arm          microseconds
//! AllReduce     1MiB              TREE/LL128   80
//! noise 0.1
//! ```
//!
//! Every rank gets the time with noise of its own.

use agreement::Slot;
use tune::{Arm, Collective};

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
