//! The hardware that `linkwise measure --simulated` measures, as a ground truth: linkwise's own physics with seeded irregularity.

use measure::simulated::{Irregularity as Hardware, on_fabric};
use std::collections::HashMap;
use std::sync::Mutex;
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask, HostId};
use truths::{About, Irregularity, Parts, Truth};

/// GPUs per host, in host order.
type HostCounts = Vec<(HostId, u8)>;

/// The simulated hardware of one cluster, for all-reduce of one size, without the noise of a reading.
///
/// Across hosts a bandwidth depends only on the GPUs per host, because all GPUs of an H100 host have equal NICs. Each is computed once.
#[derive(Debug)]
pub struct SimulatedHardware {
    about: About,
    hardware: Hardware,
    /// By host and mask, GB/s.
    intra: Vec<HashMap<GpuMask, f64>>,
    /// Multi-host bandwidths computed so far.
    over_hosts: Mutex<HashMap<HostCounts, f64>>,
}

impl SimulatedHardware {
    /// The hardware with this seed. O(hosts x 2^GPUs).
    pub fn new(cluster: &Cluster, size: Bytes, seed: u64) -> Self {
        let hardware = Hardware { seed, ..Hardware::default() };
        let backend = on_fabric(cluster, hardware);
        let of_mask =
            |h: HostId, m: GpuMask| backend.truth(&Allocation::new([(h, m)]), Collective::AllReduce, size).gb_per_s();
        let of_host = |h: HostId| {
            let masks = cluster.type_of(h).all_gpus().subsets().filter(|m| m.count() >= 2);
            masks.map(|m| (m, of_mask(h, m))).collect()
        };
        SimulatedHardware {
            about: About {
                name: "simulated hardware".to_owned(),
                description: format!("the hardware that `measure --simulated` measures, seed {seed}"),
                cluster: cluster.clone(),
                size,
                collective: Collective::AllReduce,
                simulated: true,
            },
            hardware,
            intra: cluster.host_ids().map(of_host).collect(),
            over_hosts: Mutex::default(),
        }
    }

    pub fn hardware(&self) -> Hardware {
        self.hardware
    }

    fn over_hosts(&self, parts: Parts) -> f64 {
        let key: HostCounts = parts.iter().map(|&(h, m)| (h, m.count() as u8)).collect();
        let mut known = self.over_hosts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *known.entry(key).or_insert_with(|| {
            let first = Allocation::new(parts.iter().map(|&(h, m)| (h, GpuMask::first(m.count()))));
            on_fabric(&self.about.cluster, self.hardware)
                .truth(&first, Collective::AllReduce, self.about.size)
                .gb_per_s()
        })
    }
}

impl Truth for SimulatedHardware {
    fn about(&self) -> &About {
        &self.about
    }
    fn of_parts(&self, parts: Parts, _: Irregularity) -> Option<f64> {
        match parts {
            [] => None,
            [(_, m)] if m.count() < 2 => Some(0.0),
            [(h, m)] => self.intra[h.index()].get(m).copied(),
            _ => Some(self.over_hosts(parts)),
        }
    }
    fn noise(&self, _hosts: usize) -> f64 {
        self.hardware.noise
    }
    fn masks_that_matter(&self, _: HostId, free: GpuMask, count: usize, alone: bool, _: Irregularity) -> Vec<GpuMask> {
        let masks = free.subsets().filter(|m| m.count() == count);
        if alone { masks.collect() } else { masks.take(1).collect() }
    }
    fn merits(&self, _: HostId, _: GpuMask) -> Option<Vec<f64>> {
        Some(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use place::baselines::{below, random};
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::SeedableRng;

    #[test]
    fn the_truth_is_the_bandwidth_of_the_simulated_hardware_for_any_gpus_of_a_host() {
        let cluster = topology::catalog::cluster("h100").unwrap();
        let truth = SimulatedHardware::new(&cluster, Bytes::mib(16), 3);
        let hardware = on_fabric(&cluster, truth.hardware());
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for _ in 0..300 {
            let k = 2 + below(&mut rng, 31);
            let a = random(&cluster.usable(), k, &mut rng).unwrap();
            let given = hardware.truth(&a, Collective::AllReduce, truth.size()).gb_per_s();
            let known = truth.busbw_gb_per_s(&a).unwrap();
            assert!((given / known - 1.0).abs() < 1e-9, "{}: {given} and {known}", a.split());
        }
    }

    #[test]
    fn no_choice_beats_the_optimum_and_some_choice_reaches_it() {
        let cluster = topology::catalog::cluster("h100").unwrap();
        let truth = SimulatedHardware::new(&cluster, Bytes::mib(16), 5);
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let free = random(&cluster.usable(), 9, &mut rng).unwrap();
        let gpus: Vec<_> = free.gpus().collect();
        for k in 2..=9usize {
            let brute = (0u32..1 << 9)
                .filter(|m| m.count_ones() as usize == k)
                .filter_map(|m| {
                    let chosen = (0..9).filter(|i| m >> i & 1 == 1).map(|i| gpus[i]);
                    truth.busbw_gb_per_s(&Allocation::from_gpus(chosen))
                })
                .fold(0.0, f64::max);
            assert_eq!(truth.optimum(&free, k, Irregularity::With).best, Some(brute), "k = {k}");
        }
    }
}
