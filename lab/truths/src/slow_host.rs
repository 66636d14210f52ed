//! Shared NICs that lose bandwidth when several GPUs use them, and one host that is slow for an unknown reason.
//!
//! `B = min over hosts of pace * min(intra, f * sum over used NICs of rate / (1 + 0.08 (g - 1)))`. f is 2(n-1)/n for
//! two hosts of n GPUs, else 1. g is the number of chosen GPUs that share the NIC. pace is 1, except for one host, for
//! which the seed draws it between 0.55 and 0.8. The slow host is also slow without others, so its table shows the
//! pace; only multi-host jobs show that its NICs are slow.

use crate::families::nic_gb_per_s;
use crate::form::Form;
use crate::intra::Intra;
use crate::randomness::Keyed;
use crate::truth::Parts;
use topology::{Cluster, GpuMask, HostId};

/// Loss for every further GPU on a NIC.
const CROWDING: f64 = 0.08;
/// Pace of the slow host.
const PACE: std::ops::Range<f64> = 0.55..0.80;

/// The truth on one cluster.
pub(crate) struct SlowHost {
    intra: Intra,
    /// Network bandwidth of every host by mask, GB/s, pace included.
    side: Vec<Vec<f64>>,
    /// The slow host and its pace.
    slow: (HostId, f64),
}

impl SlowHost {
    /// The truth on `cluster` with shared NICs.
    pub(crate) fn new(cluster: &Cluster, intra: Intra, seed: u64) -> Self {
        let key = Keyed::new(seed, 0x510e);
        let which = (key.with(0).uniform() * cluster.hosts.len() as f64) as u32;
        let slow = (HostId(which), PACE.start + (PACE.end - PACE.start) * key.with(1).uniform());
        let side = cluster.host_ids().map(|h| {
            let t = cluster.type_of(h);
            let pace = if h == slow.0 { slow.1 } else { 1.0 };
            let of = |mask: GpuMask| -> f64 {
                if t.nics.is_empty() {
                    return pace * nic_gb_per_s(t);
                }
                // A GPU that is equally near to several NICs uses the first one.
                let mut users = vec![0u32; t.nics.len()];
                for g in mask.iter() {
                    users[t.nearest_nics(g).trailing_zeros() as usize] += 1;
                }
                let used = users.iter().enumerate().filter(|u| *u.1 > 0);
                let rates = used.map(|(n, g)| cluster.nic_rate(h, n).gb_per_s() / (1.0 + CROWDING * f64::from(g - 1)));
                pace * rates.sum::<f64>()
            };
            (0..1u32 << t.gpu_count()).map(|m| of(GpuMask(m))).collect()
        });
        SlowHost { side: side.collect(), intra, slow }
    }

    /// The slow host and its pace.
    pub(crate) fn slow(&self) -> (HostId, f64) {
        self.slow
    }

    fn pace(&self, host: HostId) -> f64 {
        if host == self.slow.0 { self.slow.1 } else { 1.0 }
    }

    fn weakest(&self, parts: Parts, f: f64) -> f64 {
        let limit = |&(h, m): &(HostId, GpuMask)| {
            let [inside, side, _] = self.merits(h, m);
            inside.min(f * side)
        };
        parts.iter().map(limit).fold(f64::INFINITY, f64::min)
    }
}

impl Form for SlowHost {
    fn one_host(&self, host: HostId, mask: GpuMask) -> f64 {
        self.pace(host) * self.intra.alone(host, mask)
    }
    fn hosts(&self, parts: Parts) -> f64 {
        let n: f64 = parts.iter().map(|p| p.1.count() as f64).sum();
        self.weakest(parts, if parts.len() == 2 { 2.0 * (n - 1.0) / n } else { 1.0 })
    }
    fn merits(&self, host: HostId, mask: GpuMask) -> [f64; 3] {
        [self.pace(host) * self.intra.limit(host, mask), self.side[host.index()][mask.0 as usize], 0.0]
    }
    fn at_most(&self, chosen: Parts, gpus: usize) -> f64 {
        let n = gpus as f64;
        self.weakest(chosen, if chosen.len() < 2 { (2.0 * (n - 1.0) / n).max(1.0) } else { 1.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intra::Flavour;
    use topology::catalog;

    #[test]
    fn one_host_is_slow_and_a_shared_nic_is_slower_than_separate_nics() {
        let cluster = crate::with_shared_nics(&catalog::cluster("het-ra").unwrap());
        let mut slow = Vec::new();
        for seed in 0..20 {
            let intra = Intra::new(&cluster, Flavour::AllReduce, seed, 0.0).unwrap();
            let s = SlowHost::new(&cluster, intra, seed);
            assert!(PACE.contains(&s.slow().1));
            slow.push(s.slow().0);
            let (a, b) = (HostId(2), HostId(3));
            let f = |m: u32| s.hosts(&[(a, GpuMask(m)), (b, GpuMask(m))]);
            assert!(f(0b0101) > 1.9 * f(0b0011), "two NICs of one GPU each beat one NIC of two");
        }
        slow.sort();
        slow.dedup();
        assert!(slow.len() > 1, "the seed chooses the slow host");
    }
}
