//! Quantities as types: a number that crosses a border carries its unit.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A count of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
    /// The plain number, for arithmetic in `f64`.
    pub fn as_f64(self) -> f64 {
        self.0 as f64
    }

    /// Reads `"16MiB"`, `"2GiB"`, `"512"`, `"8K"`, `"4M"`, `"1G"` (as nccl-tests: K, M, G are binary) and
    /// `"4MB"` (decimal). The error says what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let t = text.trim();
        let split = t.find(|c: char| !c.is_ascii_digit()).unwrap_or(t.len());
        let (digits, unit) = t.split_at(split);
        let n: u64 = digits
            .parse()
            .map_err(|_| format!("`{text}` is not a size; write for example 16MiB, 2GiB or a number of bytes"))?;
        let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            _ => return Err(format!("`{text}` has an unknown unit `{unit}`; use B, KiB, MiB, GiB (or K, M, G)")),
        };
        n.checked_mul(factor).map(Bytes).ok_or_else(|| format!("`{text}` is more bytes than a 64-bit number holds"))
    }
}

impl fmt::Display for Bytes {
    /// The shortest exact form: `16MiB`, `2GiB`, `512B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0;
        for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if n != 0 && n.is_multiple_of(1 << shift) {
                return write!(f, "{}{unit}", n >> shift);
            }
        }
        write!(f, "{n}B")
    }
}

/// A duration in seconds.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub f64);

impl Seconds {
    /// From microseconds, nccl-tests' unit of time.
    pub fn from_us(us: f64) -> Self {
        Seconds(us * 1e-6)
    }
    /// In microseconds.
    pub fn us(self) -> f64 {
        self.0 * 1e6
    }
}

/// A rate of data. Inside: GB/s = 1e9 bytes per second, nccl-tests' unit.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bandwidth(f64);

impl Bandwidth {
    /// No data at all.
    pub const ZERO: Bandwidth = Bandwidth(0.0);
    /// From gigabytes (1e9) per second.
    pub const fn from_gb_per_s(v: f64) -> Self {
        Bandwidth(v)
    }
    /// From gigabits per second, the unit of line rates: 400 Gbit/s are 50 GB/s.
    pub const fn from_gbit_per_s(v: f64) -> Self {
        Bandwidth(v / 8.0)
    }
    /// In gigabytes (1e9) per second.
    pub const fn gb_per_s(self) -> f64 {
        self.0
    }
    /// In gigabits per second.
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
        write!(f, "{:.1} GB/s", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_400_gbit_nic_is_50_gigabytes_per_second() {
        assert_eq!(Bandwidth::from_gbit_per_s(400.0).gb_per_s(), 50.0);
    }

    #[test]
    fn sizes_read_back_as_they_print() {
        for s in ["16MiB", "2GiB", "3KiB", "7B", "1536KiB"] {
            assert_eq!(Bytes::parse(s).unwrap().to_string(), s);
        }
        assert_eq!(Bytes::parse("8M").unwrap(), Bytes::mib(8));
        assert_eq!(Bytes::parse("8MB").unwrap(), Bytes(8_000_000));
        for bad in ["", "MiB", "12XB", "99999999999999999999", "18446744073709551615K"] {
            assert!(Bytes::parse(bad).is_err(), "{bad} was accepted");
        }
    }
}
