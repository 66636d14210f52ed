//! The hosts of a job on several hosts, grouped by kind.
//!
//! The network traffic of a host depends on its type, on the NICs of its GPUs and on their health. A job on hundreds of
//! hosts therefore has few kinds of hosts. [`crate::network`] computes once per kind, or once per pair of neighbouring
//! kinds in the ring, instead of once per host.

use crate::constants::GpuClass;
use crate::crossing::{Crossings, JobCrossings};
use crate::estimate::Fabric;
use rustc_hash::FxHashMap;
use topology::{Allocation, HostId};

/// A kind of host: the GPUs and NICs that the job uses on a host.
#[derive(Clone, Debug)]
pub struct JobHost {
    /// The first host of this kind.
    pub host: HostId,
    /// Number of the job's GPUs on the host.
    pub gpus: usize,
    /// The NICs next to these GPUs: (index, rate in GB/s as line rate times health), ascending by index.
    pub nics: Vec<(u8, f64)>,
    /// Line rate of one healthy NIC, GB/s.
    pub line: f64,
    /// True if the job uses all GPUs of the host and each GPU has one NIC.
    pub whole_rail: bool,
    /// Bus bandwidth of a ring inside the host for large messages, GB/s; infinite for one GPU.
    pub ring_gb_per_s: f64,
    /// True if the host's NVSwitches multicast.
    pub multicast: bool,
    /// The generation of the host's GPUs.
    pub class: GpuClass,
}

/// The hosts of a job.
#[derive(Clone, Debug, Default)]
pub struct JobHosts {
    /// The kinds, ordered by first host.
    pub kinds: Vec<JobHost>,
    /// Index of the kind of every host, in ring order.
    pub order: Vec<u32>,
    /// Number of GPUs.
    pub ranks: usize,
    /// What flows between the hosts lose above their switches; None if nothing.
    pub crossings: Option<JobCrossings>,
    /// By position of the ring: the position in the allocation. Empty if they are the same.
    pub places: Vec<u32>,
}

impl JobHosts {
    /// Position in the allocation of the host at a position of the ring.
    pub fn place(&self, at: usize) -> usize {
        self.places.get(at).map_or(at, |p| *p as usize)
    }
    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        self.order.len()
    }
    /// Index of the kind of the host at a position of the ring.
    pub fn kind(&self, at: usize) -> usize {
        self.order[at] as usize
    }
    /// Position in the ring of the first host of a kind.
    pub fn first_of(&self, kind: usize) -> usize {
        self.order.iter().position(|k| *k as usize == kind).unwrap_or(0)
    }
}

impl Fabric<'_> {
    /// The hosts of an allocation. O(hosts + hosts with degraded NICs x their kinds).
    pub(crate) fn job_hosts(&self, allocation: &Allocation) -> JobHosts {
        /// The fields that define a kind.
        #[derive(Clone, Copy, PartialEq)]
        struct HostKey<'h> {
            host_type: usize,
            mask: u32,
            /// Health of the NICs; empty if all are healthy.
            nic_health: &'h [f64],
        }
        /// Number of kinds up to which a scan is faster than a hash.
        const SCANNED_MAX: usize = 8;
        let mut job = JobHosts { order: Vec::with_capacity(allocation.host_count()), ..JobHosts::default() };
        let parts = allocation.parts();
        if let Some(crossings) = self.crossings() {
            job.places = Crossings::grouped(self.cluster(), parts);
            let hosts = job.places.iter().map(|p| parts[*p as usize].0);
            job.crossings = crossings.of_job(self.cluster(), hosts);
        }
        let mut keys: Vec<HostKey> = Vec::new();
        let mut healthy_kinds: FxHashMap<(usize, u32), u32> = FxHashMap::default();
        for at in 0..parts.len() {
            let (host, mask) = parts[job.place(at)];
            let h = self.cluster().host(host);
            let healthy = h.nic_health.iter().all(|f| *f == 1.0);
            let nic_health = if healthy { &[][..] } else { &h.nic_health };
            let key = HostKey { host_type: h.host_type, mask: mask.0, nic_health };
            job.ranks += mask.count();
            // Try the previous host's kind first: neighbouring hosts often have the same kind.
            let kind = match job.order.last() {
                Some(&last) if keys[last as usize] == key => last as usize,
                _ if healthy && keys.len() > SCANNED_MAX => {
                    if healthy_kinds.is_empty() {
                        let known = keys.iter().enumerate().filter(|k| k.1.nic_health.is_empty());
                        healthy_kinds.extend(known.map(|(i, k)| ((k.host_type, k.mask), i as u32)));
                    }
                    *healthy_kinds.entry((key.host_type, key.mask)).or_insert(keys.len() as u32) as usize
                }
                _ => keys.iter().position(|k| *k == key).unwrap_or(keys.len()),
            };
            if kind == keys.len() {
                keys.push(key);
                job.kinds.push(self.job_host(host, mask));
            }
            job.order.push(kind as u32);
        }
        job
    }

    fn job_host(&self, host: HostId, mask: topology::GpuMask) -> JobHost {
        let t = self.cluster().type_of(host);
        let touched = self.nics_touched(host, mask);
        let mut nics: Vec<(u8, f64)> = (0..t.nics.len())
            .filter(|i| touched >> i & 1 == 1)
            .map(|i| (i as u8, self.cluster().nic_rate(host, i).gb_per_s()))
            .collect();
        let line = nics.iter().map(|n| t.nics[usize::from(n.0)].line_rate.gb_per_s()).fold(0.0, f64::max);
        if nics.is_empty() {
            nics.push((0, 0.0)); // a host without NICs has no bandwidth to other hosts
        }
        let alone = mask.count() < 2;
        JobHost {
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
        fn grouping_hosts_by_kind_changes_no_limit(
            types in 1usize..5,
            degraded: bool,
            kept in prop_oneof![Just(1.0), 0.3f64..1.0],
            masks in proptest::collection::vec(prop_oneof![Just(0u32), Just(255), Just(15), 1u32..256], HOSTS),
        ) {
            let mut cluster = cluster(types, degraded);
            cluster.network.tiers = vec![topology::Tier::regular("leaf", 5, 1.0)];
            let f = Fabric::new(&cluster).with_crossings(Crossings::new(vec![kept]).map(std::sync::Arc::new));
            let a = Allocation::new(masks.iter().enumerate().map(|(h, m)| (HostId(h as u32), GpuMask(*m))));
            prop_assume!(a.host_count() >= 2);
            let once = f.job_hosts(&a);
            let apart = JobHosts {
                kinds: once.order.iter().map(|k| once.kinds[*k as usize].clone()).collect(),
                order: (0..once.hosts() as u32).collect(),
                ..once.clone()
            };
            let c = Constants::default();
            for size in [1e5, 1e7, 1e9] {
                let choice = network::predict_nccl_choice(&once, size);
                prop_assert_eq!(&choice, &network::predict_nccl_choice(&apart, size));
                for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::NvlsTree] {
                    let limit = |s: &JobHosts| network::limit(s, &choice, Some(algorithm), 0.93, &c);
                    let (a, b) = (limit(&once), limit(&apart));
                    prop_assert_eq!(a.busbw_gb_per_s, b.busbw_gb_per_s);
                    // Of equal hops with different losses, the first one names the NIC.
                    prop_assert!(kept < 1.0 || a.nic == b.nic);
                }
            }
        }
    }
}
