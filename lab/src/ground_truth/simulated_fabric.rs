//! linkwise's own physics as a ground truth, with irregularity and noise. linkwise's models have the same form, so this
//! is their easiest ground truth. It is never used alone.

use fabric::{Constants, Fabric, FabricTables};
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask, HostId};
use truths::{About, Irregularity, Keyed, Parts, Truth};

/// Its name for `--truth`.
pub const NAME: &str = "fabric";
/// Standard deviation of the log factor of one reading.
const NOISE: f64 = 0.02;
/// Largest absolute value of [`Keyed::normal`], rounded up.
const LUCK_MAX: f64 = 3.47;
/// Maximum number of nodes of an enumeration: one or two seconds, because every estimate takes a microsecond.
const NODES_MAX: u64 = 1_000_000;
/// Message size.
const SIZE: Bytes = Bytes::gib(2);

/// The simulated fabric of one cluster, all-reduce of 2 GiB.
#[derive(Clone, Debug)]
pub struct SimulatedFabric {
    about: About,
    tables: FabricTables,
    seed: u64,
    irregularity: f64,
}

impl SimulatedFabric {
    /// A fabric with a standard deviation of `irregularity` for every host, every subset of a host, and every count
    /// vector.
    pub fn new(cluster: &Cluster, seed: u64, irregularity: f64) -> Result<Self, String> {
        if !(0.0..=truths::IRREGULARITY_MAX).contains(&irregularity) {
            return Err(format!("an irregularity of {irregularity}; 0 to {} was expected", truths::IRREGULARITY_MAX));
        }
        let tables = Fabric::with_constants(cluster, Constants::default()).tables();
        Ok(SimulatedFabric {
            about: About {
                name: NAME.to_owned(),
                description: format!(
                    "linkwise's own physics, all-reduce; simulated, seed {seed}, irregularity {} %: the form of linkwise's models",
                    100.0 * irregularity
                ),
                cluster: cluster.clone(),
                size: SIZE,
                collective: Collective::AllReduce,
                simulated: true,
            },
            tables,
            seed,
            irregularity,
        })
    }

    fn factor(&self, key: Keyed) -> f64 {
        (self.irregularity * key.normal()).exp()
    }

    /// Pace of the slowest host.
    fn pace(&self, parts: Parts) -> f64 {
        let pace = |h: HostId| self.factor(Keyed::new(self.seed, 0xfab1).with(u64::from(h.0)));
        parts.iter().map(|p| pace(p.0)).fold(f64::INFINITY, f64::min)
    }
}

impl Truth for SimulatedFabric {
    fn about(&self) -> &About {
        &self.about
    }
    fn of_parts(&self, parts: Parts, irregularity: Irregularity) -> Option<f64> {
        let (&(host, mask), several) = (parts.first()?, parts.len() > 1);
        if !several && mask.count() < 2 {
            return Some(0.0);
        }
        let a = Allocation::new(parts.iter().copied());
        let base = self.tables.on(&self.about.cluster).estimate(&a, Collective::AllReduce, SIZE).busbw.gb_per_s();
        // Measured tables show the irregularity of hosts and subsets; only that of count vectors is unknown to a model.
        let surprise = match several {
            false => self.factor(Keyed::new(self.seed, 0xfab2).parts(&[(host, mask)])),
            true if irregularity == Irregularity::Without => 1.0,
            true => self.factor(Keyed::new(self.seed, 0xfab3).counts(parts)),
        };
        Some(base * self.pace(parts) * surprise)
    }
    fn noise(&self, _hosts: usize) -> f64 {
        NOISE
    }
    /// Rings and trees carry at most twice the bandwidth of the tightest host's links and NICs.
    fn at_most(&self, chosen: Parts, _gpus: usize, irregularity: Irregularity) -> f64 {
        let fabric = self.tables.on(&self.about.cluster);
        let limit = |&(h, m): &(HostId, GpuMask)| {
            let t = self.about.cluster.type_of(h);
            let nics = t.nics_touched(m);
            let rates =
                (0..t.nics.len()).filter(|i| nics >> i & 1 == 1).map(|i| self.about.cluster.nic_rate(h, i).gb_per_s());
            let inside = if m.count() < 2 { f64::INFINITY } else { fabric.intra(h, m).ring_gb_per_s };
            inside.min(rates.sum())
        };
        let luck = match irregularity {
            Irregularity::With => (self.irregularity * LUCK_MAX).exp(),
            Irregularity::Without => 1.0,
        };
        2.0 * chosen.iter().map(limit).fold(f64::INFINITY, f64::min) * self.pace(chosen) * luck
    }
    fn nodes_max(&self) -> u64 {
        NODES_MAX
    }
    /// Across hosts the physics sees only the ring's bandwidth and the NIC rates of a host's GPUs, so one mask per combination is enough.
    /// No combination is assumed to be better, because NCCL's choice of algorithm may favour either.
    fn masks_that_matter(
        &self,
        host: HostId,
        free: GpuMask,
        count: usize,
        alone: bool,
        irregularity: Irregularity,
    ) -> Vec<GpuMask> {
        let masks = free.subsets().filter(|m| m.count() == count);
        if alone {
            let value = |m: &GpuMask| self.of_parts(&[(host, *m)], irregularity).unwrap_or(0.0);
            return masks.max_by(|a, b| value(a).total_cmp(&value(b)).then(b.cmp(a))).into_iter().collect();
        }
        let masks: Vec<GpuMask> = masks.collect();
        let merits = masks.iter().map(|m| self.merits(host, *m).unwrap_or_default());
        truths::undominated(masks.iter().copied(), merits)
    }
    /// Every number appears twice, once negated, so that only masks with equal numbers are comparable.
    fn merits(&self, host: HostId, mask: GpuMask) -> Option<Vec<f64>> {
        let t = self.about.cluster.type_of(host);
        let nics = t.nics_touched(mask);
        let touched = (0..t.nics.len()).filter(|i| nics >> i & 1 == 1);
        let ring = self.tables.on(&self.about.cluster).intra(host, mask).ring_gb_per_s;
        let rates = touched.map(|i| self.about.cluster.nic_rate(host, i).gb_per_s());
        // The count of NICs comes first, so that lists of different lengths never are equal.
        let all = [f64::from(nics.count_ones()), ring].into_iter().chain(rates);
        Some(all.flat_map(|v| [v, -v]).collect())
    }
}
