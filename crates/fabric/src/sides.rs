//! The hosts of a job that spans hosts, those that are alike told once.
//!
//! A job on hundreds of hosts has few kinds of them: what a host does between hosts depends on its type, its GPUs' NICs and their health.
//! Everything that the network's physics computes per host it computes per kind, or per pair of neighbours in the ring.

use crate::constants::GpuClass;
use crate::estimate::Fabric;
use topology::{Allocation, HostId};

/// One host's part in a job that spans hosts.
#[derive(Clone, Debug)]
pub struct Side {
    /// The host; of hosts that are alike the first.
    pub host: HostId,
    /// GPUs of the job on it.
    pub gpus: usize,
    /// The NICs that these GPUs stand beside, and their rates (line rate times health), ascending by index.
    pub nics: Vec<(u8, f64)>,
    /// Line rate of one healthy NIC.
    pub line: f64,
    /// Does the host have one NIC (or more) for every GPU, and does the job use the whole host?
    pub whole_rail: bool,
    /// Plateau of a ring inside the host, GB/s; infinite for one GPU.
    pub ring_gb_per_s: f64,
    /// Do its switches multicast?
    pub multicast: bool,
    /// The generation of its GPUs.
    pub class: GpuClass,
}

/// The sides of a job.
#[derive(Clone, Debug, Default)]
pub struct Sides {
    /// Sides that differ, in the order in which hosts show them first.
    pub kinds: Vec<Side>,
    /// Kind of every host, in the order of the ring.
    pub order: Vec<u32>,
    /// GPUs in all.
    pub ranks: usize,
}

impl Sides {
    /// How many hosts.
    pub fn hosts(&self) -> usize {
        self.order.len()
    }
    /// The kind of the host at a place of the ring.
    pub fn kind(&self, at: usize) -> usize {
        self.order[at] as usize
    }
    /// The first host of a kind, as its place in the ring.
    pub fn first_of(&self, kind: usize) -> usize {
        self.order.iter().position(|k| *k as usize == kind).unwrap_or(0)
    }
}

impl Fabric<'_> {
    /// The sides of an allocation. O(hosts x kinds).
    pub(crate) fn sides(&self, allocation: &Allocation) -> Sides {
        /// What hosts that are alike share; those with NICs below their rate are like nobody.
        #[derive(Clone, Copy, PartialEq)]
        struct Key {
            host_type: usize,
            mask: u32,
            host: Option<HostId>,
        }
        let mut sides = Sides { kinds: Vec::new(), order: Vec::with_capacity(allocation.host_count()), ranks: 0 };
        let mut keys: Vec<Key> = Vec::new();
        for &(host, mask) in allocation.parts() {
            let h = self.cluster().host(host);
            let healthy = h.nic_health.iter().all(|f| *f == 1.0);
            let key = Key { host_type: h.host_type, mask: mask.0, host: (!healthy).then_some(host) };
            sides.ranks += mask.count();
            // Neighbours are often alike.
            let kind = match sides.order.last() {
                Some(&last) if keys[last as usize] == key => last as usize,
                _ => keys.iter().position(|k| *k == key).unwrap_or(keys.len()),
            };
            if kind == keys.len() {
                keys.push(key);
                sides.kinds.push(self.side(host, mask));
            }
            sides.order.push(kind as u32);
        }
        sides
    }

    fn side(&self, host: HostId, mask: topology::GpuMask) -> Side {
        let t = self.cluster().type_of(host);
        let touched = t.nics_touched(mask);
        let mut nics: Vec<(u8, f64)> = (0..t.nics.len())
            .filter(|i| touched >> i & 1 == 1)
            .map(|i| (i as u8, self.cluster().nic_rate(host, i).gb_per_s()))
            .collect();
        let line = nics.iter().map(|n| t.nics[usize::from(n.0)].line_rate.gb_per_s()).fold(0.0, f64::max);
        if nics.is_empty() {
            nics.push((0, 0.0)); // a host without NICs reaches nobody
        }
        let alone = mask.count() < 2;
        Side {
            host,
            gpus: mask.count(),
            whole_rail: mask == t.all_gpus() && nics.len() == t.gpu_count(),
            line,
            nics,
            ring_gb_per_s: if alone { f64::INFINITY } else { self.intra(host, mask).ring_gb_per_s },
            multicast: t.nvlink.is_some_and(|f| f.multicast && f.switched),
            class: self.class_of(host),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Constants, network};
    use proptest::prelude::*;
    use topology::nccl::Algorithm;
    use topology::{Cluster, GpuMask, Host, Network, catalog};

    const HOSTS: usize = 24;

    fn cluster(types: usize, degraded: bool) -> Cluster {
        let names = ["hgx-h100", "a800", "dgx1-v100", "rtx4090"];
        let types: Vec<_> = names.iter().take(types).map(|t| catalog::host_type(t).unwrap()).collect();
        let host = |i: usize| {
            let host_type = i * 7 % types.len();
            let nics = types[host_type].nics.len();
            let nic_health = if degraded && i.is_multiple_of(5) { vec![0.5; nics] } else { Vec::new() };
            Host { name: format!("n{i}"), host_type, nic_health, ..Host::default() }
        };
        Cluster { name: "c".into(), hosts: (0..HOSTS).map(host).collect(), types, network: Network::default() }
    }

    proptest! {
        #[test]
        fn telling_alike_hosts_once_changes_no_limit(
            types in 1usize..5,
            degraded: bool,
            masks in proptest::collection::vec(prop_oneof![Just(0u32), Just(255), Just(15), 1u32..256], HOSTS),
        ) {
            let cluster = cluster(types, degraded);
            let f = Fabric::new(&cluster);
            let a = Allocation::new(masks.iter().enumerate().map(|(h, m)| (HostId(h as u32), GpuMask(*m))));
            prop_assume!(a.host_count() >= 2);
            let once = f.sides(&a);
            let apart = Sides {
                kinds: once.order.iter().map(|k| once.kinds[*k as usize].clone()).collect(),
                order: (0..once.hosts() as u32).collect(),
                ranks: once.ranks,
            };
            let c = Constants::default();
            for size in [1e5, 1e7, 1e9] {
                let agreement = network::agree(&once, size);
                prop_assert_eq!(&agreement, &network::agree(&apart, size));
                for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::NvlsTree] {
                    let limit = |s: &Sides| network::limit(s, &agreement, Some(algorithm), 0.93, &c);
                    prop_assert_eq!(limit(&once), limit(&apart));
                }
            }
        }
    }
}
