//! Random numbers by key: the same key gives the same number, independent of earlier draws.
//!
//! A truth needs one number per allocation among millions, in any order. A stream would have to be replayed, and
//! seeding a ChaCha generator per number costs more than the truth itself. The key is therefore hashed (SplitMix64's
//! finaliser, as in `placement-prototype.md`).

use crate::truth::Parts;

/// Largest absolute value of [`Keyed::normal`].
pub(crate) const NORMAL_MAX: f64 = 3.464_101_615_137_755;

/// A key under construction.
#[derive(Clone, Copy, Debug)]
pub struct Keyed(u64);

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Keyed {
    /// A key from a seed and a purpose. Two properties of one object have different purposes.
    pub fn new(seed: u64, purpose: u64) -> Self {
        Keyed(mix(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mix(purpose.wrapping_add(0x632b_e59b_d9b4_e019))))
    }
    /// Adds a number.
    pub fn with(self, x: u64) -> Self {
        Keyed(mix(self.0.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ mix(x.wrapping_add(0x2545_f491_4f6c_dd1d))))
    }
    /// Adds hosts and their exact GPUs.
    pub fn parts(self, parts: Parts) -> Self {
        parts.iter().fold(self, |k, (h, m)| k.with(u64::from(h.0) << 32 | u64::from(m.0)))
    }
    /// Adds hosts and their numbers of GPUs.
    pub fn counts(self, parts: Parts) -> Self {
        parts.iter().fold(self, |k, (h, m)| k.with(u64::from(h.0) << 32 | m.count() as u64))
    }
    /// Uniform between 0 and 1.
    pub fn uniform(self) -> f64 {
        (mix(self.0) >> 11) as f64 / (1u64 << 53) as f64
    }
    /// Approximately normal, mean 0 and standard deviation 1: a sum of four uniforms, so its absolute value never
    /// exceeds `NORMAL_MAX`.
    pub fn normal(self) -> f64 {
        let sum: f64 = (1..=4).map(|i| self.with(i).uniform()).sum();
        (sum - 2.0) * 3f64.sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normals_have_mean_zero_deviation_one_and_stay_within_their_limit() {
        let v: Vec<f64> = (0..20_000).map(|i| Keyed::new(7, 3).with(i).normal()).collect();
        let mean = v.iter().sum::<f64>() / v.len() as f64;
        let sd = (v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / v.len() as f64).sqrt();
        assert!(mean.abs() < 0.03 && (sd - 1.0).abs() < 0.02, "{mean} {sd}");
        assert!(v.iter().all(|x| x.abs() <= NORMAL_MAX));
    }

    #[test]
    fn seeds_and_purposes_give_unrelated_numbers() {
        let pairs = |a: fn(u64) -> Keyed, b: fn(u64) -> Keyed| -> f64 {
            (0..5_000).map(|i| a(i).normal() * b(i).normal()).sum::<f64>() / 5_000.0
        };
        assert!(pairs(|i| Keyed::new(1, 1).with(i), |i| Keyed::new(2, 1).with(i)).abs() < 0.06);
        assert!(pairs(|i| Keyed::new(1, 1).with(i), |i| Keyed::new(1, 2).with(i)).abs() < 0.06);
        assert!(pairs(|i| Keyed::new(1, 1).with(i), |i| Keyed::new(1, 1).with(i + 1)).abs() < 0.06);
    }
}
