//! Makes a truth from a formula. Irregularity, noise and the masks that matter are the same for all formulas.

use crate::randomness::{Keyed, NORMAL_MAX};
use crate::truth::{About, Irregularity, Parts, Truth, undominated};
use topology::{Bytes, GpuMask, HostId};

/// Standard deviation of one reading of the intra tables. They are measured once per subset, with many repetitions.
const NOISE_ONE_HOST: f64 = 0.01;
/// Message size of the simulated truths.
pub(crate) const SIZE: Bytes = Bytes::gib(2);

/// A formula for the bandwidth of allocations.
pub(crate) trait Form: Send + Sync {
    /// GB/s of two or more GPUs of one host.
    fn one_host(&self, host: HostId, mask: GpuMask) -> f64;
    /// GB/s over two or more hosts, without irregularity.
    fn hosts(&self, parts: Parts) -> f64;
    /// The quantities besides the count of a host's GPUs that the multi-host bandwidth depends on. At equal counts the
    /// bandwidth never falls when one of them rises.
    fn merits(&self, host: HostId, mask: GpuMask) -> [f64; 3];
    /// Upper bound, without irregularity, of every allocation of `gpus` GPUs on more hosts than `chosen`.
    fn at_most(&self, chosen: Parts, gpus: usize) -> f64;
}

/// A formula with seeded irregularity and noise.
pub(crate) struct Simulated<F> {
    pub about: About,
    pub form: F,
    pub seed: u64,
    /// Standard deviation of the log factor of every count vector (the number of GPUs of each host).
    pub irregularity: f64,
    /// Standard deviation of one reading over several hosts.
    pub noise: f64,
}

impl<F: Form> Truth for Simulated<F> {
    fn about(&self) -> &About {
        &self.about
    }

    fn of_parts(&self, parts: Parts, irregularity: Irregularity) -> Option<f64> {
        Some(match parts {
            [] => return None,
            [(_, m)] if m.count() < 2 => 0.0,
            // Models know the irregularity of a host's table, because every subset is measured.
            [(h, m)] => self.form.one_host(*h, *m),
            _ if irregularity == Irregularity::Without || self.irregularity == 0.0 => self.form.hosts(parts),
            _ => {
                let key = Keyed::new(self.seed, 0xc0047).counts(parts);
                self.form.hosts(parts) * (self.irregularity * key.normal()).exp()
            }
        })
    }

    fn noise(&self, hosts: usize) -> f64 {
        if hosts < 2 { self.noise.min(NOISE_ONE_HOST) } else { self.noise }
    }

    fn masks_that_matter(
        &self,
        host: HostId,
        free: GpuMask,
        count: usize,
        alone: bool,
        _: Irregularity,
    ) -> Vec<GpuMask> {
        let masks = free.subsets().filter(|m| m.count() == count);
        if alone {
            let value = |m: &GpuMask| if count < 2 { 0.0 } else { self.form.one_host(host, *m) };
            return masks.max_by(|a, b| value(a).total_cmp(&value(b)).then(b.cmp(a))).into_iter().collect();
        }
        // At equal counts the irregularity is the same, so only masks that are not dominated can be optimal.
        let masks: Vec<GpuMask> = masks.collect();
        undominated(masks.iter().copied(), masks.iter().map(|m| self.form.merits(host, *m)))
    }

    fn merits(&self, host: HostId, mask: GpuMask) -> Option<Vec<f64>> {
        Some(self.form.merits(host, mask).to_vec())
    }

    fn at_most(&self, chosen: Parts, gpus: usize, irregularity: Irregularity) -> f64 {
        let luck = match irregularity {
            Irregularity::With => (self.irregularity * NORMAL_MAX).exp(),
            Irregularity::Without => 1.0,
        };
        // Slightly higher, so that rounding never prunes the optimum.
        self.form.at_most(chosen, gpus) * luck * (1.0 + 1e-12)
    }
}
