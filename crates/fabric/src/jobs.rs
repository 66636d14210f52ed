//! Bandwidth of concurrent jobs that share NICs and links.
//!
//! The demand of a job is the bandwidth that it reaches alone. Jobs on the same NIC, the same link between two hosts or the same uplinks of
//! an oversubscribed switch share it max-min fairly (Galvatron, 2x8 GPUs: one group of 16 reaches 44.7 GB/s, two strided groups of 8 over
//! the same NICs 20.8 GB/s each). Inside a host jobs do not contend: they share no GPU, and NVSwitches do not block.

use crate::estimate::Fabric;
use crate::maxmin::{self, MaxMinFlow};
use crate::tree;
use std::collections::HashMap;
use topology::nccl::Algorithm;
use topology::{Allocation, Bandwidth, Bytes, Collective, HostId};

/// A job that runs one collective repeatedly.
#[derive(Clone, Debug, PartialEq)]
pub struct ConcurrentJob {
    /// The job's GPUs.
    pub allocation: Allocation,
    /// The collective that it repeats.
    pub collective: Collective,
    /// Size of each call.
    pub size: Bytes,
    /// Share of the time in which the job communicates, 0 to 1. Its demand is this share of its bandwidth alone.
    pub duty: f64,
}

/// A link between hosts that jobs may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SharedLink {
    /// A NIC of a host, by its index.
    Nic(HostId, u8),
    /// A link between two hosts: index into `Network::host_links`.
    Pair(u32),
    /// The uplinks of one switch of a tier: index into `Network::tiers`, index of the switch.
    Uplink(u32, u32),
}

/// A job's demand on the network.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// (link, GB/s of line rate per GB/s of bus bandwidth), ascending by link. Empty on one host.
    pub loads: Vec<(SharedLink, f64)>,
    /// Bus bandwidth that the job reaches alone, GB/s.
    pub demand_gb_per_s: f64,
}

impl Fabric<'_> {
    /// Load of a collective on every link per GB/s of bus bandwidth, ascending by link. O(NICs).
    pub fn loads(&self, allocation: &Allocation, collective: Collective, size: Bytes) -> Vec<(SharedLink, f64)> {
        let mut out = Vec::new();
        let hosts = allocation.host_count();
        if hosts < 2 {
            return out;
        }
        let cluster = self.cluster();
        let ranks = allocation.gpu_count() as f64;
        let algorithm = self.bandwidth_limits(allocation, collective, size).algorithm;
        // A job's payload reaches only this share of a link's line rate, so its loads are divided by it.
        let efficiency = self.efficiency(allocation).max(1e-6);
        let tree =
            matches!(algorithm, Some(Algorithm::Tree | Algorithm::NvlsTree)) && collective == Collective::AllReduce;
        let per_buffer = ranks / (2.0 * (ranks - 1.0));
        let all_to_all = |gpus: f64| gpus * (ranks - gpus) / (ranks - 1.0);
        for &(host, mask) in allocation.parts() {
            let touched = cluster.type_of(host).nics_touched(mask);
            let alive = |n: &u8| touched >> n & 1 == 1 && cluster.nic_rate(host, usize::from(*n)).gb_per_s() > 0.0;
            let nics: Vec<u8> = (0..32).filter(alive).collect();
            // Bytes that leave a host, over bus bandwidth: rings send everything once, trees L(N) buffers.
            let leaves = match collective {
                Collective::AllToAll => all_to_all(mask.count() as f64),
                _ if tree => tree::busiest_host_load(hosts) * per_buffer,
                _ => 1.0,
            };
            let share = leaves / nics.len().max(1) as f64 / efficiency;
            out.extend(nics.into_iter().map(|n| (SharedLink::Nic(host, n), share)));
        }
        // Bytes between neighbours on a ring or a tree, as in `Fabric::shared_links`.
        let cross = if tree { per_buffer } else { 1.0 };
        for (i, l) in cluster.network.host_links.iter().enumerate() {
            let (a, b) = (allocation.mask(l.a).count() as f64, allocation.mask(l.b).count() as f64);
            if a > 0.0 && b > 0.0 {
                let c = if collective == Collective::AllToAll { a * b / (ranks - 1.0) } else { cross };
                out.push((SharedLink::Pair(i as u32), c / efficiency));
            }
        }
        let uplink = |(t, switch, c): (usize, usize, f64)| (SharedLink::Uplink(t as u32, switch as u32), c / efficiency);
        out.extend(self.uplink_crossings(allocation, collective, cross).into_iter().map(uplink));
        out.retain(|l| l.1 > 0.0 && l.1.is_finite());
        out.sort_by_key(|l| l.0);
        out
    }

    /// Line rate of a link, GB/s in one direction.
    pub fn line_rate_gb_per_s(&self, link: SharedLink) -> f64 {
        let cluster = self.cluster();
        match link {
            SharedLink::Nic(host, nic) => cluster.nic_rate(host, usize::from(nic)).gb_per_s(),
            SharedLink::Pair(i) => cluster.network.host_links[i as usize].rate.gb_per_s(),
            SharedLink::Uplink(t, switch) => self.uplink_gb_per_s(t as usize, switch as usize),
        }
    }

    /// Bus bandwidth in GB/s of every claim while all run, in their order: max-min fair over the links, never more than the demand.
    ///
    /// A single claim never exceeds a link: if its demand does, the link's capacity is raised to it. So a claim that shares no link gets its
    /// whole demand. Independent of the order of claims. O(claims^2 x links) at worst.
    pub fn share(&self, claims: &[&Claim]) -> Vec<f64> {
        let mut index: HashMap<SharedLink, (usize, usize)> = HashMap::new();
        for (link, _) in claims.iter().filter(|c| c.demand_gb_per_s > 0.0).flat_map(|c| &c.loads) {
            let next = index.len();
            index.entry(*link).or_insert((next, 0)).1 += 1;
        }
        let mut capacities = vec![0.0f64; index.len()];
        for (link, (i, _)) in &index {
            capacities[*i] = self.line_rate_gb_per_s(*link);
        }
        let flows: Vec<MaxMinFlow> = claims
            .iter()
            .map(|c| {
                let demand = c.demand_gb_per_s.max(0.0);
                let mut links = Vec::new();
                for (link, load) in c.loads.iter().filter(|_| demand > 0.0) {
                    let (i, users) = index[link];
                    capacities[i] = capacities[i].max(load * demand);
                    if users > 1 {
                        links.push((i, *load));
                    }
                }
                MaxMinFlow { links, demand, priority: 1.0 }
            })
            .collect();
        // The call fails only for numbers that no checked cluster and no finite demand give. The demands are an upper bound then.
        maxmin::share(&capacities, &flows).unwrap_or_else(|_| flows.iter().map(|f| f.demand).collect())
    }

    /// Bus bandwidth of every job while all run, in their order; an average over time for jobs with `duty` below 1. Deterministic and
    /// independent of the order of jobs. Costs as much as [`Fabric::share`].
    pub fn concurrent(&self, jobs: &[ConcurrentJob]) -> Vec<Bandwidth> {
        let claims: Vec<Claim> = jobs
            .iter()
            .map(|j| {
                let alone = self.estimate(&j.allocation, j.collective, j.size).busbw.gb_per_s();
                Claim {
                    loads: self.loads(&j.allocation, j.collective, j.size),
                    demand_gb_per_s: alone * j.duty.clamp(0.0, 1.0),
                }
            })
            .collect();
        let claims: Vec<&Claim> = claims.iter().collect();
        self.share(&claims).into_iter().map(Bandwidth::from_gb_per_s).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::{Cluster, GpuMask, HostId, NetworkClass, Nic, PathKind, catalog};

    fn job(masks: &[u32]) -> ConcurrentJob {
        let parts = masks.iter().enumerate().map(|(h, &m)| (HostId(h as u32), GpuMask(m)));
        ConcurrentJob {
            allocation: Allocation::new(parts),
            collective: Collective::AllReduce,
            size: Bytes::gib(1),
            duty: 1.0,
        }
    }

    /// Two hosts with one NIC each that all GPUs share.
    fn narrow() -> Cluster {
        let mut c = catalog::cluster("h100").unwrap();
        c.network.class = NetworkClass::Infiniband;
        let line_rate = Bandwidth::from_gbit_per_s(400.0);
        c.types[0].nics = vec![Nic { name: "ib0".into(), line_rate, socket: None, gpu_paths: vec![PathKind::Node; 8] }];
        c
    }

    #[test]
    fn two_strided_groups_share_a_nic_exactly_fairly() {
        let c = narrow();
        let f = Fabric::new(&c);
        let alone = f.concurrent(&[job(&[0x55, 0x55])])[0].gb_per_s();
        let both = f.concurrent(&[job(&[0x55, 0x55]), job(&[0xaa, 0xaa])]);
        assert_eq!(both[0], both[1]);
        let sum = both[0].gb_per_s() + both[1].gb_per_s();
        assert!(sum < alone * 1.25 && both[0].gb_per_s() < alone * 0.65, "{both:?} against {alone} alone");
    }

    #[test]
    fn jobs_on_different_nics_do_not_slow_each_other() {
        let c = catalog::cluster("h100").unwrap();
        let f = Fabric::new(&c);
        let alone = f.concurrent(&[job(&[0x0f, 0x0f])])[0];
        assert_eq!(f.concurrent(&[job(&[0x0f, 0x0f]), job(&[0xf0, 0xf0])]), vec![alone; 2]);
    }

    #[test]
    fn an_idle_job_takes_nothing_and_the_order_of_jobs_does_not_matter() {
        let c = narrow();
        let f = Fabric::new(&c);
        let idle = ConcurrentJob { duty: 0.0, ..job(&[0xaa, 0xaa]) };
        let busy = job(&[0x55, 0x55]);
        let rates = f.concurrent(&[busy.clone(), idle.clone()]);
        assert_eq!(rates[0], f.concurrent(std::slice::from_ref(&busy))[0]);
        assert_eq!(rates[1], Bandwidth::ZERO);
        let turned = f.concurrent(&[idle, busy]);
        assert_eq!(turned, vec![rates[1], rates[0]]);
    }
}
