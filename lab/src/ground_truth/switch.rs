//! LiteGD's switch: the network of a simulated cluster with a fixed or random bandwidth.
//!
//! The paper (section 6.1): "manually defining inter-host (switch) bandwidths connecting the different simulated
//! hosts", uniform 20, 40 or 60 GB/s, or "a random distribution (between 20GB/s and 40GB/s)"; an allocation gets "the
//! minimum of the intra-host bandwidths within each involved host segment and the inter-host path bandwidths". The
//! paper does not say for which links the random bandwidths are drawn. Here every pair of hosts has a separate
//! bandwidth, drawn uniformly, and an allocation's path is its slowest pair.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::str::FromStr;

/// Range of the random switch, GB/s.
pub const RANDOM_GB_PER_S: std::ops::Range<f64> = 20.0..40.0;
/// Largest uniform switch, GB/s.
const GB_PER_S_MAX: f64 = 100_000.0;

/// The network between the hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Switch {
    /// The same between all hosts, GB/s.
    Uniform(f64),
    /// Drawn per pair of hosts, 20 to 40 GB/s.
    Random,
}

impl FromStr for Switch {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        if s == "random" {
            return Ok(Switch::Random);
        }
        match s.parse::<f64>() {
            Ok(v) if v > 0.0 && v <= GB_PER_S_MAX => Ok(Switch::Uniform(v)),
            _ => Err(format!(
                "`{s}` is not a switch: write GB/s between hosts (20, 40, 60) or `random` (20 to 40 per pair of hosts)"
            )),
        }
    }
}

impl std::fmt::Display for Switch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Switch::Uniform(v) => write!(f, "{v} GB/s"),
            Switch::Random => write!(f, "random 20 to 40 GB/s per pair of hosts"),
        }
    }
}

impl Switch {
    /// GB/s between every two hosts; infinite on the diagonal.
    pub fn pairs(self, hosts: usize, seed: u64) -> Vec<Vec<f64>> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x0005_717c_4000);
        let mut pairs = vec![vec![f64::INFINITY; hosts]; hosts];
        let above = (0..hosts).flat_map(|a| (a + 1..hosts).map(move |b| (a, b)));
        for (a, b) in above {
            let v = match self {
                Switch::Uniform(v) => v,
                Switch::Random => rng.random_range(RANDOM_GB_PER_S),
            };
            pairs[a][b] = v;
            pairs[b][a] = v;
        }
        pairs
    }
}
