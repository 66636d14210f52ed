//! A small deterministic stream of random numbers: xoshiro256** seeded through SplitMix64 (Blackman and Vigna, public domain).
//!
//! For simulations, trials and tests, not for secrets. The generator is implemented here so that a seed gives the same
//! stream in every version; a test checks the streams.

/// One step of SplitMix64: advances `state` and returns its mix.
pub fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A standard normal number from two uniform numbers in [0, 1) (Box and Muller, the cosine half). Streams with fixed
/// values use this function: `rand_distr` takes a different number of draws, which would change all later numbers.
pub fn box_muller(u: f64, v: f64) -> f64 {
    (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos() // 1 - u is in (0, 1]: the logarithm is finite
}

/// A stream of random numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        let mut s = seed;
        Random { state: std::array::from_fn(|_| split_mix(&mut s)) }
    }

    /// The stream of a seed and a stream number. Streams with different numbers are independent.
    pub fn of(seed: u64, stream: u64) -> Self {
        let mut s = seed;
        let mixed = split_mix(&mut s) ^ stream.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        Random::new(mixed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.state;
        let out = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// Uniform in [0, 1), 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform in 0..n; 0 when `n` is 0. The bias of the multiplication is below n / 2^64.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// Standard normal; uses two draws.
    pub fn normal(&mut self) -> f64 {
        let u = self.unit();
        box_muller(u, self.unit())
    }

    /// Log-normal with mean 1 and coefficient of variation `cv` (0 or more).
    pub fn log_normal(&mut self, cv: f64) -> f64 {
        let variance = (1.0 + cv * cv).ln();
        (self.normal() * variance.sqrt() - variance / 2.0).exp()
    }

    /// Shuffles in place (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_streams_are_those_of_the_published_generators() {
        // SplitMix64 of seed 1234567: the values of its author's test vector.
        let mut s = 1_234_567;
        let first: Vec<u64> = (0..3).map(|_| split_mix(&mut s)).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
        // xoshiro256** from the state 1, 2, 3, 4: the values of other implementations.
        let mut r = Random { state: [1, 2, 3, 4] };
        assert_eq!([r.bits(), r.bits(), r.bits(), r.bits()], [11_520, 0, 1_509_978_240, 1_215_971_899_390_074_240]);
    }

    #[test]
    fn draws_have_the_moments_of_their_distributions() {
        let mut r = Random::new(1);
        let n = 200_000;
        let normal: Vec<f64> = (0..n).map(|_| r.normal()).collect();
        let mean = normal.iter().sum::<f64>() / n as f64;
        let variance = normal.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        for cv in [0.03, 0.2, 1.0] {
            let draws: Vec<f64> = (0..n).map(|_| r.log_normal(cv)).collect();
            let mean = draws.iter().sum::<f64>() / n as f64;
            let sd = (draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64).sqrt();
            assert!((mean - 1.0).abs() < 0.01 * (1.0 + cv) && (sd / cv - 1.0).abs() < 0.05, "{cv}: {mean} {sd}");
        }
        assert_eq!(r.below(0), 0);
        assert!((0..1000).all(|_| r.below(7) < 7));
    }
}
