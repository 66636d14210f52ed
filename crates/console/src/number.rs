//! Parsers for numbers in options, with error messages for users instead of those of Rust's parsers.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A value parser of options: a whole number from 0 to the largest `T`, for example `12`.
pub fn whole<T: FromStr + Bounded>(text: &str) -> Result<T, String> {
    let t = text.trim();
    if t.is_empty() || !t.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("found `{}`; a whole number was expected, such as 8", short(t)));
    }
    t.parse().map_err(|_| format!("found `{}`; at most {} is possible", short(t), T::MAX))
}

/// A whole number within limits.
pub fn whole_within<T: FromStr + Bounded + PartialOrd + Display>(
    text: &str,
    limits: RangeInclusive<T>,
) -> Result<T, String> {
    let n = whole(text)?;
    match limits.contains(&n) {
        true => Ok(n),
        false => Err(format!("found `{n}`; {} to {} is possible", limits.start(), limits.end())),
    }
}

/// A value parser of options: a finite number, for example `2.5` or `1e-3`.
pub fn real(text: &str) -> Result<f64, String> {
    let t = text.trim();
    let n = t.parse::<f64>().ok().filter(|v| v.is_finite());
    n.ok_or_else(|| format!("found `{}`; a number was expected, such as 2.5", short(t)))
}

fn short(text: &str) -> String {
    let mut out: String = text.chars().take(40).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().count() > 40 {
        out.push_str("...");
    }
    out
}

/// Types of whole numbers with a largest value.
pub trait Bounded {
    /// The largest value.
    const MAX: u64;
}

macro_rules! bounded {
    ($($t:ty),*) => { $(impl Bounded for $t { const MAX: u64 = <$t>::MAX as u64; })* };
}
bounded!(u8, u16, u32, u64, usize, i64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_found_and_the_expected_value() {
        assert_eq!(whole::<usize>(" 12 "), Ok(12));
        assert_eq!(whole::<u8>("256").unwrap_err(), "found `256`; at most 255 is possible");
        assert_eq!(whole::<u32>("12x").unwrap_err(), "found `12x`; a whole number was expected, such as 8");
        assert_eq!(whole::<u32>("-1").unwrap_err(), "found `-1`; a whole number was expected, such as 8");
        assert_eq!(whole_within("5", 1u32..=4).unwrap_err(), "found `5`; 1 to 4 is possible");
        assert_eq!(real("2.5"), Ok(2.5));
        for bad in ["", "2,5", "nan", "inf", "1e999", "\u{1b}[31m"] {
            assert!(real(bad).unwrap_err().ends_with("a number was expected, such as 2.5"), "{bad}");
        }
        assert!(real(&"9".repeat(10_000)).unwrap_err().len() < 100);
    }
}
