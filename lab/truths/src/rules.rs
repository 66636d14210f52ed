//! The prototype's rules P, R and N (`placement-prototype.md`, section 1). The project's simulation targets refer to
//! them.
//!
//! - P: `min(min intra, 0.95 nic min count)`, hard and regular. The papers' simulators have this form.
//! - R: `softmin(min intra, 0.972 nic min(count eff) f(hosts) balance)`. f is 2(n-1)/n for two hosts of n GPUs in total
//!   and 1.05 for more; balance is a loss of up to 10 % between the smallest and the largest count; every further host
//!   costs 1 %.
//! - N: the same as R, but GPUs share NICs, so that the choice of GPUs determines how many NICs a host contributes.
//!
//! R's constants were fitted to the four points of BandPilot's Fig. 1.

use crate::families::{Family, nic_gb_per_s};
use crate::form::Form;
use crate::intra::Intra;
use crate::randomness::Keyed;
use crate::truth::Parts;
use topology::{Cluster, GpuMask, HostId};

/// Exponent of the soft minimum of R and N.
const SOFT_POWER: f64 = 7.7;
/// Rate of a network of 400 Gbit/s NICs, GB/s. The hosts of a network from this rate on differ half as much.
const FAST_NIC_GB_PER_S: f64 = 50.0;

/// The rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    P,
    R,
    N,
}

/// One of the rules on one cluster.
pub(crate) struct Rules {
    rule: Rule,
    intra: Intra,
    /// Network bandwidth of every host, GB/s: of one GPU for P and R, by mask for N.
    side: Vec<Side>,
}

enum Side {
    PerGpu(f64),
    ByMask(Vec<f64>),
}

impl Rules {
    /// The rule on `cluster`, which has shared NICs for N.
    pub(crate) fn new(rule: Rule, cluster: &Cluster, intra: Intra, seed: u64, irregularity: f64) -> Self {
        // The network runs at the rate of its slowest hosts' NICs.
        let slowest = cluster.host_ids().map(|h| nic_gb_per_s(cluster.type_of(h))).fold(f64::INFINITY, f64::min);
        let fast = slowest >= FAST_NIC_GB_PER_S;
        // At 2 %: hosts differ by 3 %, in a fast network by 1.5 %.
        let host_sd = irregularity * if fast { 0.75 } else { 1.5 };
        let side = cluster.host_ids().map(|h| {
            let t = cluster.type_of(h);
            let health = (0..t.nics.len())
                .map(|n| cluster.nic_rate(h, n).gb_per_s() / t.nics[n].line_rate.gb_per_s().max(1e-9))
                .fold(1.0, f64::min);
            let efficiency = if rule == Rule::P { 1.0 } else { Family::of(t).efficiency() };
            let luck = if rule == Rule::P {
                1.0
            } else {
                (host_sd * Keyed::new(seed, 0x4057).with(h.0.into()).normal()).exp()
            };
            if rule != Rule::N {
                return Side::PerGpu(slowest * health * efficiency * luck);
            }
            let touched = |m: u32| {
                let nics = t.nics_touched(GpuMask(m));
                let rates = (0..t.nics.len()).filter(|i| nics >> i & 1 == 1).map(|i| cluster.nic_rate(h, i).gb_per_s());
                if t.nics.is_empty() { slowest } else { rates.sum::<f64>() }
            };
            Side::ByMask((0..1u32 << t.gpu_count()).map(|m| touched(m) * efficiency * luck).collect())
        });
        Rules { rule, side: side.collect(), intra }
    }

    fn side(&self, host: HostId, mask: GpuMask) -> f64 {
        match &self.side[host.index()] {
            Side::PerGpu(v) => v * mask.count() as f64,
            Side::ByMask(v) => v[mask.0 as usize],
        }
    }

    fn combine(&self, intra: f64, network: f64) -> f64 {
        let low = intra.min(network);
        if self.rule == Rule::P {
            return low;
        }
        let ratio = low / intra.max(network);
        if ratio.is_finite() { low * (1.0 + ratio.powf(SOFT_POWER)).powf(-1.0 / SOFT_POWER) } else { low }
    }

    fn limits(&self, parts: Parts) -> (f64, f64) {
        let intra = parts.iter().map(|&(h, m)| self.intra.limit(h, m)).fold(f64::INFINITY, f64::min);
        let side = parts.iter().map(|&(h, m)| self.side(h, m)).fold(f64::INFINITY, f64::min);
        (intra, side)
    }
}

impl Form for Rules {
    fn one_host(&self, host: HostId, mask: GpuMask) -> f64 {
        self.intra.alone(host, mask)
    }

    fn hosts(&self, parts: Parts) -> f64 {
        let (intra, side) = self.limits(parts);
        if self.rule == Rule::P {
            return self.combine(intra, 0.95 * side);
        }
        let counts = parts.iter().map(|p| p.1.count() as f64);
        let n: f64 = counts.clone().sum();
        let (least, most) = counts.fold((f64::INFINITY, 0.0f64), |(l, m), c| (l.min(c), m.max(c)));
        let hosts = parts.len();
        let f = if hosts == 2 { 2.0 * (n - 1.0) / n } else { 1.05 };
        let balance = 1.0 - 0.10 * (1.0 - (-6.0 * (1.0 - least / most)).exp());
        let spread = 1.0 - 0.01 * (hosts.saturating_sub(2).min(10)) as f64;
        self.combine(intra, 0.972 * side * f * balance * spread)
    }

    fn merits(&self, host: HostId, mask: GpuMask) -> [f64; 3] {
        [self.intra.limit(host, mask), self.side(host, mask), 0.0]
    }

    fn at_most(&self, chosen: Parts, gpus: usize) -> f64 {
        let (intra, side) = self.limits(chosen);
        if self.rule == Rule::P {
            return self.combine(intra, 0.95 * side);
        }
        let n = gpus as f64;
        let f = if chosen.len() < 2 { (2.0 * (n - 1.0) / n).max(1.05) } else { 1.05 };
        self.combine(intra, 0.972 * side * f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intra::Flavour;
    use topology::catalog;

    #[test]
    fn rule_r_meets_the_four_points_of_bandpilots_figure_1() {
        let cluster = catalog::cluster("h100").unwrap();
        let intra = Intra::new(&cluster, Flavour::AllReduce, 0, 0.0).unwrap();
        let r = Rules::new(Rule::R, &cluster, intra, 0, 0.0);
        let f = |a: usize, b: usize| r.hosts(&[(HostId(0), GpuMask::first(a)), (HostId(1), GpuMask::first(b))]);
        for (a, b, published) in [(4, 4, 337.17), (6, 2, 153.44), (5, 5, 412.49), (8, 2, 157.30)] {
            let v = f(a, b);
            assert!((v / published - 1.0).abs() < 0.01, "{a}+{b}: {v:.1}, published {published}");
        }
    }

    #[test]
    fn under_rule_n_gpus_next_to_different_nics_are_faster() {
        let cluster = crate::with_shared_nics(&catalog::cluster("het-ra").unwrap());
        let intra = Intra::new(&cluster, Flavour::AllReduce, 0, 0.0).unwrap();
        let n = Rules::new(Rule::N, &cluster, intra, 0, 0.0);
        let f = |m: u32| n.hosts(&[(HostId(2), GpuMask(m)), (HostId(3), GpuMask(m))]);
        assert!(f(0b0101) > 1.5 * f(0b0011));
    }
}
