//! When exploring ends.

/// When exploring ends for good: `freeze_after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreezeAfter {
    /// After so many calls of the communicator.
    Calls(u64),
    /// After so many microseconds of the worker.
    Us(u64),
}

impl FreezeAfter {
    /// `calls` of the communicator and `now_us` of the worker are past the end.
    pub fn is_over(self, calls: u64, now_us: u64) -> bool {
        match self {
            FreezeAfter::Calls(n) => calls >= n,
            FreezeAfter::Us(us) => now_us >= us,
        }
    }
}

impl std::str::FromStr for FreezeAfter {
    type Err = String;

    /// `5000` calls, or `90s`, `10min`, `2h`.
    fn from_str(text: &str) -> Result<Self, String> {
        let units = [("min", 60), ("s", 1), ("h", 3600)];
        let (number, seconds) =
            units.iter().find_map(|(unit, s)| Some((text.strip_suffix(unit)?, *s))).unwrap_or((text, 0));
        let number: Option<u64> = number.trim().parse().ok().filter(|n| (1..=1 << 40).contains(n));
        match number {
            Some(n) if seconds == 0 => Ok(FreezeAfter::Calls(n)),
            Some(n) => Ok(FreezeAfter::Us(n.saturating_mul(seconds * 1_000_000))),
            None => Err(format!("`{text}` is not a number of calls (5000) or a time (90s, 10min, 2h)")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freeze_is_a_number_of_calls_or_a_time() {
        for (text, freeze) in [
            ("5000", FreezeAfter::Calls(5000)),
            ("90s", FreezeAfter::Us(90_000_000)),
            ("10min", FreezeAfter::Us(600_000_000)),
            ("2h", FreezeAfter::Us(7_200_000_000)),
        ] {
            assert_eq!(text.parse(), Ok(freeze), "{text}");
        }
        for text in ["", "0", "-1", "soon", "1d", "99999999999999999999", "s"] {
            assert!(text.parse::<FreezeAfter>().is_err(), "{text}");
        }
    }
}
