//! Jobs at the same time: who gets what of the NICs they share.
//!
//! A job alone gets [`Fabric::estimate`]; that is also its demand. Jobs that touch the same NIC of a host share it max-min fairly
//! (Galvatron, 2x8 GPUs: one group of 16 reads 44.7 GB/s, two strided groups of 8 over the same NICs 20.8 each). Inside a host, GPUs are
//! not shared and NVSwitches do not block, so nothing else contends. Uplinks of oversubscribed tiers are not shared between jobs here yet.

use crate::estimate::{Algorithm, Fabric};
use crate::maxmin::{self, Flow};
use crate::tree;
use std::collections::HashMap;
use topology::{Allocation, Bandwidth, Bytes, Collective};

/// One job.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its GPUs.
    pub allocation: Allocation,
    /// What it runs all the time.
    pub collective: Collective,
    /// At this size.
    pub size: Bytes,
    /// Share of the time that it communicates, 0 to 1: its demand is so much of what it would get alone.
    pub duty: f64,
}

impl Fabric<'_> {
    /// Bus bandwidth of every job while all run, in their order. A job's figure is its average over time if `duty` is below 1. O(jobs^2 x NICs)
    /// at worst; deterministic, and independent of the order of jobs.
    pub fn concurrent(&self, jobs: &[Job]) -> Vec<Bandwidth> {
        let mut link_of: HashMap<(u32, usize), usize> = HashMap::new();
        let mut capacities = Vec::new();
        let mut flows = Vec::with_capacity(jobs.len());
        for job in jobs {
            let alone = self.estimate(&job.allocation, job.collective, job.size);
            let ranks = job.allocation.gpu_count() as f64;
            let hosts = job.allocation.host_count();
            let mut links = Vec::new();
            if hosts > 1 {
                for &(host, mask) in job.allocation.parts() {
                    let touched = self.cluster().type_of(host).nics_touched(mask);
                    let nics = f64::from(touched.count_ones().max(1));
                    // Bytes that leave a host over bus bandwidth: rings carry everything once, trees L(N) buffers.
                    let leaves = match (job.collective, alone.algorithm) {
                        (Collective::AllToAll, _) => {
                            let g = mask.count() as f64;
                            g * (ranks - g) / (ranks - 1.0)
                        }
                        (_, Algorithm::Tree | Algorithm::NvlsTree) => tree::load(hosts) * ranks / (2.0 * (ranks - 1.0)),
                        _ => 1.0,
                    };
                    for nic in (0..32).filter(|n| touched >> n & 1 == 1) {
                        let next = capacities.len();
                        let link = *link_of.entry((host.0, nic)).or_insert(next);
                        if link == next {
                            let rate = self.cluster().nic_rate(host, nic).gb_per_s();
                            capacities.push(rate * self.efficiency(&job.allocation));
                        }
                        links.push((link, leaves / nics));
                    }
                }
            }
            let demand = alone.busbw.gb_per_s() * job.duty.clamp(0.0, 1.0);
            flows.push(Flow { links, demand, priority: 1.0 });
        }
        match maxmin::share(&capacities, &flows) {
            Ok(rates) => rates.into_iter().map(Bandwidth::from_gb_per_s).collect(),
            // Not reachable with a checked cluster; the stand-alone figures are the honest upper bound.
            Err(_) => flows.iter().map(|f| Bandwidth::from_gb_per_s(f.demand)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::{Cluster, GpuMask, HostId, NetworkClass, Nic, PathKind, catalog};

    fn job(masks: &[u32]) -> Job {
        let parts = masks.iter().enumerate().map(|(h, &m)| (HostId(h as u32), GpuMask(m)));
        Job { allocation: Allocation::new(parts), collective: Collective::AllReduce, size: Bytes::gib(1), duty: 1.0 }
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
    fn jobs_on_nics_of_their_own_do_not_disturb_each_other() {
        let c = catalog::cluster("h100").unwrap();
        let f = Fabric::new(&c);
        let alone = f.concurrent(&[job(&[0x0f, 0x0f])])[0];
        assert_eq!(f.concurrent(&[job(&[0x0f, 0x0f]), job(&[0xf0, 0xf0])]), vec![alone; 2]);
    }

    #[test]
    fn an_idle_job_takes_nothing_and_the_order_of_jobs_does_not_matter() {
        let c = narrow();
        let f = Fabric::new(&c);
        let idle = Job { duty: 0.0, ..job(&[0xaa, 0xaa]) };
        let busy = job(&[0x55, 0x55]);
        let rates = f.concurrent(&[busy.clone(), idle.clone()]);
        assert_eq!(rates[0], f.concurrent(std::slice::from_ref(&busy))[0]);
        assert_eq!(rates[1], Bandwidth::ZERO);
        let turned = f.concurrent(&[idle, busy]);
        assert_eq!(turned, vec![rates[1], rates[0]]);
    }
}
