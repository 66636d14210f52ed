//! The interface of a ground truth.

use crate::enumerate::{NODES_MAX, enumerate};
use crate::randomness::Keyed;
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask, HostId};

/// Hosts and their GPUs: ascending by host, none empty.
pub type Parts<'a> = &'a [(HostId, GpuMask)];

/// The best possible answer to a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Optimum {
    /// GB/s bus bandwidth; `None` if no candidate has a row or there are too many candidates.
    pub best: Option<f64>,
    /// GPUs with this bandwidth.
    pub allocation: Option<Allocation>,
    /// True if a candidate without a row may be better than `best`.
    pub missing: bool,
}

impl Optimum {
    /// Adds a candidate; among equal ones the first is kept.
    pub fn see(&mut self, value: Option<f64>, allocation: impl FnOnce() -> Allocation) {
        match value {
            None => self.missing = true,
            Some(v) => {
                if self.best.is_none_or(|b| v > b) {
                    self.best = Some(v);
                    self.allocation = Some(allocation());
                }
            }
        }
    }
}

/// Whether a bandwidth includes the irregularity of single allocations, which no model can predict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Irregularity {
    /// Included: the bandwidth of exactly these GPUs.
    With,
    /// Not included: the bandwidth that a perfect model of the hardware predicts.
    Without,
}

/// The masks that no other mask matches or exceeds in all merits; among equals the first is kept. The masks have one
/// count, each with its merits. O(masks x kept).
pub fn undominated<M: AsRef<[f64]>>(
    masks: impl IntoIterator<Item = GpuMask>,
    merits: impl IntoIterator<Item = M>,
) -> Vec<GpuMask> {
    let covers = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(x, y)| x >= y);
    let mut kept: Vec<(M, GpuMask)> = Vec::new();
    for (mask, merits) in masks.into_iter().zip(merits) {
        if kept.iter().any(|k| covers(k.0.as_ref(), merits.as_ref())) {
            continue;
        }
        kept.retain(|k| !covers(merits.as_ref(), k.0.as_ref()));
        kept.push((merits, mask));
    }
    kept.into_iter().map(|k| k.1).collect()
}

/// The description of a truth.
#[derive(Clone, Debug)]
pub struct About {
    /// Name on the command line.
    pub name: String,
    /// One line: form, source, constants.
    pub description: String,
    /// The cluster that models see. Host ids are those of the cluster that the truth was made for; NICs differ if GPUs
    /// share them in the truth.
    pub cluster: Cluster,
    /// Message size.
    pub size: Bytes,
    /// Collective.
    pub collective: Collective,
    /// True if the bandwidths are computed, not measured. A table that a rule composes from measurements counts as
    /// simulated.
    pub simulated: bool,
}

/// The true bandwidth of every allocation of one cluster, for one collective at one size.
///
/// A truth is a function: the same allocation always has the same bandwidth; only [`Truth::measured`] adds noise. GB/s are 1e9 bytes per
/// second of bus bandwidth. A single GPU has no collective traffic: its bandwidth is 0.
pub trait Truth: Send + Sync {
    /// Its name, cluster and collective.
    fn about(&self) -> &About;
    /// See [`About::name`].
    fn name(&self) -> &str {
        &self.about().name
    }
    /// See [`About::description`].
    fn description(&self) -> &str {
        &self.about().description
    }
    /// See [`About::cluster`].
    fn cluster(&self) -> &Cluster {
        &self.about().cluster
    }
    /// Message size.
    fn size(&self) -> Bytes {
        self.about().size
    }
    /// Collective.
    fn collective(&self) -> Collective {
        self.about().collective
    }
    /// See [`About::simulated`].
    fn simulated(&self) -> bool {
        self.about().simulated
    }

    /// The bandwidth of some GPUs; `None` if the truth has no row for them.
    fn of_parts(&self, parts: Parts, irregularity: Irregularity) -> Option<f64>;

    /// Standard deviation of the logarithm of one reading over `hosts` hosts.
    fn noise(&self, hosts: usize) -> f64;

    /// The quantities besides the counts that the multi-host bandwidth depends on, for one host's GPUs. At equal counts
    /// the bandwidth never falls when one of these numbers rises. NaN is not comparable with any value. `None`:
    /// unknown, so every mask counts.
    fn merits(&self, host: HostId, mask: GpuMask) -> Option<Vec<f64>> {
        let _ = (host, mask);
        None
    }

    /// The masks of `count` GPUs of `free` that can be part of a best allocation: `alone` on this host, or with GPUs of others.
    ///
    /// [`Truth::optimum`] leaves out all other masks. By default this returns all of them.
    fn masks_that_matter(
        &self,
        host: HostId,
        free: GpuMask,
        count: usize,
        alone: bool,
        irregularity: Irregularity,
    ) -> Vec<GpuMask> {
        let _ = (host, alone, irregularity);
        free.subsets().filter(|m| m.count() == count).collect()
    }

    /// Upper bound, GB/s, of every allocation of `gpus` GPUs with `chosen` (one host or more) and GPUs of at least one
    /// further host. Enumeration prunes with this bound.
    fn at_most(&self, chosen: Parts, gpus: usize, irregularity: Irregularity) -> f64 {
        let _ = (chosen, gpus, irregularity);
        f64::INFINITY
    }

    /// Maximum number of nodes that enumeration may visit; beyond it the optimum counts as unknown.
    fn nodes_max(&self) -> u64 {
        NODES_MAX
    }

    /// The bandwidth of an allocation, GB/s; `None` without a row.
    fn busbw_gb_per_s(&self, allocation: &Allocation) -> Option<f64> {
        self.of_parts(allocation.parts(), Irregularity::With)
    }

    /// The same without irregularity.
    fn smooth_gb_per_s(&self, allocation: &Allocation) -> Option<f64> {
        self.of_parts(allocation.parts(), Irregularity::Without)
    }

    /// The reading of a benchmark: the bandwidth with noise of [`Truth::noise`], drawn by the repetition's seed.
    fn measured(&self, allocation: &Allocation, repetition_seed: u64) -> Option<f64> {
        let v = self.busbw_gb_per_s(allocation)?;
        let key = Keyed::new(repetition_seed, 0x4e01_5e00).parts(allocation.parts());
        Some(v * (self.noise(allocation.host_count()) * key.normal()).exp())
    }

    /// The best allocation of `k` of the free GPUs: exact, by enumeration of all masks that matter.
    fn optimum(&self, free: &Allocation, k: usize, irregularity: Irregularity) -> Optimum {
        enumerate(self, free, k, irregularity)
    }
}
