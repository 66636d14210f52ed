//! A p-norm of limits: the links and NICs of every host reduce the bandwidth, not only the slowest ones, and uneven
//! splits lose bandwidth.
//!
//! `B = balance * (sum over hosts of intra^-p + (f(hosts) nic count eff)^-p)^(-1/p)`, p = 5, where balance is `1 - 0.4
//! cv^2 / (1 + cv^2)` of the counts (cv: standard deviation over mean) and f is 2(n-1)/n for two hosts of n GPUs, 1.1
//! for more. The formula has no minimum: a model with a hard or soft minimum of the two weakest limits has a small
//! error everywhere, which depends on the number of hosts.

use crate::families::{Family, nic_gb_per_s};
use crate::form::Form;
use crate::intra::Intra;
use crate::randomness::Keyed;
use crate::truth::Parts;
use topology::{Cluster, GpuMask, HostId};

const POWER: f64 = 5.0;
/// Loss at extreme imbalance.
const IMBALANCE: f64 = 0.4;
/// Gain of rings over three and more hosts.
const MANY_HOSTS: f64 = 1.1;

/// The truth on one cluster.
pub(crate) struct PNorm {
    intra: Intra,
    /// Network bandwidth of one GPU of every host, GB/s.
    side: Vec<f64>,
}

impl PNorm {
    pub(crate) fn new(cluster: &Cluster, intra: Intra, seed: u64, irregularity: f64) -> Self {
        let side = cluster.host_ids().map(|h| {
            let t = cluster.type_of(h);
            let nics = t.nics.len();
            // The host's NICs at their mean health.
            let health = (0..nics).map(|n| cluster.nic_rate(h, n).gb_per_s()).sum::<f64>()
                / t.nics.iter().map(|n| n.line_rate.gb_per_s()).sum::<f64>().max(1e-9);
            let health = if nics == 0 { 1.0 } else { health };
            let luck = (irregularity * Keyed::new(seed, 0x9057).with(h.0.into()).normal()).exp();
            nic_gb_per_s(t) * health * Family::of(t).efficiency() * luck
        });
        PNorm { side: side.collect(), intra }
    }

    /// Sum of inverse powers of the limits of these hosts.
    fn slowness(&self, parts: Parts, f: f64) -> f64 {
        parts
            .iter()
            .map(|&(h, m)| {
                self.intra.limit(h, m).powf(-POWER) + (f * self.side[h.index()] * m.count() as f64).powf(-POWER)
            })
            .sum()
    }
}

fn f(hosts: usize, gpus: f64) -> f64 {
    if hosts == 2 { 2.0 * (gpus - 1.0) / gpus } else { MANY_HOSTS }
}

impl Form for PNorm {
    fn one_host(&self, host: HostId, mask: GpuMask) -> f64 {
        self.intra.alone(host, mask)
    }

    fn hosts(&self, parts: Parts) -> f64 {
        let counts = parts.iter().map(|p| p.1.count() as f64);
        let (hosts, gpus) = (parts.len() as f64, counts.clone().sum::<f64>());
        let mean = gpus / hosts;
        let cv2 = counts.map(|c| (c / mean - 1.0).powi(2)).sum::<f64>() / hosts;
        (1.0 - IMBALANCE * cv2 / (1.0 + cv2)) * self.slowness(parts, f(parts.len(), gpus)).powf(-1.0 / POWER)
    }

    fn merits(&self, host: HostId, mask: GpuMask) -> [f64; 3] {
        [self.intra.limit(host, mask), 0.0, 0.0]
    }

    fn at_most(&self, chosen: Parts, gpus: usize) -> f64 {
        let most = if chosen.len() < 2 { f(2, gpus as f64).max(MANY_HOSTS) } else { MANY_HOSTS };
        self.slowness(chosen, most).powf(-1.0 / POWER)
    }
}
