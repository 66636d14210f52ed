//! Quantities as types, so that every number between crates has a unit.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A count of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// `n` binary kilobytes (1024 bytes).
    pub const fn kib(n: u64) -> Self {
        Bytes(n << 10)
    }
    /// `n` binary megabytes (1024² bytes).
    pub const fn mib(n: u64) -> Self {
        Bytes(n << 20)
    }
    /// `n` binary gigabytes (1024³ bytes).
    pub const fn gib(n: u64) -> Self {
        Bytes(n << 30)
    }
    /// The number of bytes as `f64`.
    pub fn as_f64(self) -> f64 {
        self.0 as f64
    }

    /// Reads `16MiB`, `1.5GiB`, `16 MB`, `512`, `8K`. KiB, MiB, GiB and TiB are powers of 1024, as are K, M, G and T
    /// (as in nccl-tests). KB, MB, GB and TB are powers of 1000. Letter case is ignored. A fraction must give whole
    /// bytes. The error quotes the text and lists all units.
    pub fn parse(text: &str) -> Result<Self, String> {
        let t = text.trim();
        let found: String = t.chars().take(40).collect();
        let split = t.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(t.len());
        let (number, unit) = t.split_at(split);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if number.is_empty() || number == "." || fraction.contains('.') {
            return Err(format!("`{found}` is not a size; write for example 16MiB, 1.5GB or a number of bytes"));
        }
        let word = unit.trim().to_ascii_lowercase();
        let factor = match word.as_str() {
            "b" | "" => Some(1),
            "k" => Some(1 << 10),
            "m" => Some(1 << 20),
            "g" => Some(1 << 30),
            "t" => Some(1 << 40),
            _ => UNITS.iter().find(|u| u.0.eq_ignore_ascii_case(&word)).map(|u| u.1),
        };
        let factor = factor.ok_or_else(|| {
            let unit: String = unit.trim().chars().take(20).collect();
            format!(
                "`{found}` has the unknown unit `{unit}`; known are B, KiB, MiB, GiB, TiB (or K, M, G, T), which count in \
                 1024s, and KB, MB, GB, TB, which count in 1000s"
            )
        })?;
        let too_large = || format!("`{found}` is more bytes than a 64-bit number holds");
        // Exact integer arithmetic: digits times the factor, divided by a power of ten.
        let fraction = fraction.trim_end_matches('0');
        if fraction.len() > FRACTION_DIGITS_MAX {
            return Err(format!("`{found}` has more than {FRACTION_DIGITS_MAX} digits after the point"));
        }
        let digits = format!("{whole}{fraction}");
        let digits = digits.trim_start_matches('0');
        if digits.len() > 20 + FRACTION_DIGITS_MAX {
            return Err(too_large());
        }
        let n: u128 = if digits.is_empty() { 0 } else { digits.parse().map_err(|_| too_large())? };
        let (product, power) = (n * u128::from(factor), 10u128.pow(fraction.len() as u32));
        if product % power != 0 {
            return Err(format!("`{found}` is not a whole number of bytes"));
        }
        u64::try_from(product / power).map(Bytes).map_err(|_| too_large())
    }
}

/// Units of printed sizes with their bytes, preferred unit first.
const UNITS: [(&str, u64); 8] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
];
/// Maximum number of digits after the point of a size (millionths of the unit).
const FRACTION_DIGITS_MAX: usize = 6;

impl fmt::Display for Bytes {
    /// The shortest exact form with at most two digits after the point: `16MiB`, `16MB`, `1.5GiB`, `7B`. If two forms
    /// have equal length, the binary one. The text reads back as the same size.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = u128::from(self.0);
        let mut shortest = format!("{n}B");
        for &(unit, factor) in UNITS.iter().rev() {
            let hundredths = n * 100;
            let factor = u128::from(factor);
            if n < factor || hundredths % factor != 0 {
                continue;
            }
            let (whole, rest) = (hundredths / factor / 100, hundredths / factor % 100);
            let text = match rest {
                0 => format!("{whole}{unit}"),
                r if r % 10 == 0 => format!("{whole}.{}{unit}", r / 10),
                r => format!("{whole}.{r:02}{unit}"),
            };
            if text.len() <= shortest.len() {
                shortest = text;
            }
        }
        f.write_str(&shortest)
    }
}

/// A duration in seconds.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub f64);

impl Seconds {
    /// From microseconds, the unit of time of nccl-tests.
    pub fn from_us(us: f64) -> Self {
        Seconds(us * 1e-6)
    }
    /// The duration in microseconds.
    pub fn us(self) -> f64 {
        self.0 * 1e6
    }
}

/// A data rate, stored in GB/s (1e9 bytes per second), the unit of nccl-tests.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bandwidth(f64);

impl Bandwidth {
    /// 0 GB/s.
    pub const ZERO: Bandwidth = Bandwidth(0.0);
    /// From gigabytes (1e9) per second.
    pub const fn from_gb_per_s(v: f64) -> Self {
        Bandwidth(v)
    }
    /// From gigabits per second, the unit of line rates: 400 Gbit/s are 50 GB/s.
    pub const fn from_gbit_per_s(v: f64) -> Self {
        Bandwidth(v / 8.0)
    }
    /// The rate in gigabytes (1e9) per second.
    pub const fn gb_per_s(self) -> f64 {
        self.0
    }
    /// The rate in gigabits per second.
    pub const fn gbit_per_s(self) -> f64 {
        self.0 * 8.0
    }
    /// The smaller of two rates.
    pub fn min(self, other: Self) -> Self {
        Bandwidth(self.0.min(other.0))
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.*} GB/s", decimals(self.0), self.0)
    }
}

/// Digits after the point of a bandwidth in GB/s: one, or more if three significant digits need them. Rates of slow networks are far below 1 GB/s.
pub fn decimals(gb_per_s: f64) -> usize {
    let v = gb_per_s.abs();
    if (1e-9..10.0).contains(&v) { (2 - v.log10().floor() as i32).clamp(1, 12) as usize } else { 1 }
}

/// A number with its noun, in the plural if it is not 1: `1 reading`, `0 readings`, `2 switches`.
pub fn count(n: usize, noun: &str) -> String {
    let ending = match noun.ends_with("ch") || noun.ends_with('s') {
        _ if n == 1 => "",
        true => "es",
        false => "s",
    };
    format!("{n} {noun}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_400_gbit_nic_is_50_gigabytes_per_second() {
        assert_eq!(Bandwidth::from_gbit_per_s(400.0).gb_per_s(), 50.0);
    }

    proptest::proptest! {
        #[test]
        fn every_size_reads_back_as_it_prints(mantissa in 0u64..5000, shift in 0u32..51, decimal in 0u32..13) {
            for n in [mantissa << shift, mantissa * 10u64.pow(decimal), mantissa.wrapping_mul(0x9e37_79b9_7f4a_7c15)] {
                let text = Bytes(n).to_string();
                proptest::prop_assert_eq!(Bytes::parse(&text), Ok(Bytes(n)), "{}", &text);
                proptest::prop_assert!(text.len() <= n.to_string().len() + 1);
            }
        }
    }

    #[test]
    fn sizes_read_back_as_they_print() {
        for s in
            ["16MiB", "2GiB", "3KiB", "7B", "1.5MiB", "16MB", "1.25GB", "1TiB", "0B", "100KB", "12345678B", "1025B"]
        {
            assert_eq!(Bytes::parse(s).unwrap().to_string(), s);
        }
        for (text, bytes) in [
            ("1.5GiB", 3 << 29),
            ("16 mib", 16 << 20),
            ("0.5k", 512),
            ("1.50", 0),
            (".5KiB", 512),
            ("2.0B", 2),
            ("18446744073709551615", u64::MAX),
            ("18446744073709.551615MB", u64::MAX),
        ] {
            match bytes {
                0 => assert!(Bytes::parse(text).unwrap_err().contains("whole number of bytes")),
                n => assert_eq!(Bytes::parse(text).unwrap(), Bytes(n), "{text}"),
            }
        }
        let unknown = Bytes::parse("12XB").unwrap_err();
        assert!(["XB", "MiB", "MB", "TB", "1024s"].iter().all(|w| unknown.contains(w)), "{unknown}");
        assert_eq!(Bytes::parse("8M").unwrap(), Bytes::mib(8));
        assert_eq!(Bytes::parse("8MB").unwrap(), Bytes(8_000_000));
        for bad in [
            "",
            "MiB",
            "12XB",
            "99999999999999999999",
            "18446744073709551615K",
            "1.2.3M",
            ".",
            "-1",
            "1e3",
            "1.0000001GB",
        ] {
            assert!(Bytes::parse(bad).is_err(), "{bad} was accepted");
        }
    }
}
