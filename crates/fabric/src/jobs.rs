//! Bandwidth of concurrent jobs that share NICs and links.
//!
//! The demand of a job is the bandwidth that it reaches alone. Jobs on the same NIC, the same link between two hosts or the same uplinks of
//! an oversubscribed switch share it max-min fairly (Galvatron, 2x8 GPUs: one group of 16 reaches 44.7 GB/s, two strided groups of 8 over
//! the same NICs 20.8 GB/s each). Inside a host jobs do not contend: they share no GPU, and NVSwitches do not block.

use crate::estimate::Fabric;
use crate::maxmin::{self, MaxMinFlow};
use crate::tree;
use rustc_hash::FxHashMap;
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
        self.loads_on(allocation, collective, size, &|_| true)
    }

    /// The same, restricted to the NICs of the given hosts. O(hosts + NICs of these hosts).
    pub fn loads_on(
        &self,
        allocation: &Allocation,
        collective: Collective,
        size: Bytes,
        wanted: &dyn Fn(HostId) -> bool,
    ) -> Vec<(SharedLink, f64)> {
        let mut out = Vec::new();
        let hosts = allocation.host_count();
        if hosts < 2 {
            return out;
        }
        let cluster = self.cluster();
        let ranks = allocation.gpu_count() as f64;
        let job = self.job_hosts(allocation);
        let algorithm = self.algorithm_between(&job, collective, size);
        // The payload reaches only this share of a link's line rate, so divide the loads by the share.
        let efficiency = self.efficiency(&job).max(1e-6);
        let tree =
            matches!(algorithm, Some(Algorithm::Tree | Algorithm::NvlsTree)) && collective == Collective::AllReduce;
        let per_buffer = ranks / (2.0 * (ranks - 1.0));
        let all_to_all = |gpus: f64| gpus * (ranks - gpus) / (ranks - 1.0);
        for &(host, mask) in allocation.parts().iter().filter(|p| wanted(p.0)) {
            let touched = self.nics_touched(host, mask);
            let alive = |n: &u8| touched >> n & 1 == 1 && cluster.nic_rate(host, usize::from(*n)).gb_per_s() > 0.0;
            let nics: Vec<u8> = (0..32).filter(alive).collect();
            // Ratio of the bytes that leave a host to bus bandwidth: a ring sends all bytes once, a tree sends L(N)
            // buffers.
            let leaves = match collective {
                Collective::AllToAll => all_to_all(mask.count() as f64),
                _ if tree => tree::busiest_host_load(hosts) * per_buffer,
                _ => 1.0,
            };
            let share = leaves / nics.len().max(1) as f64 / efficiency;
            out.extend(nics.into_iter().map(|n| (SharedLink::Nic(host, n), share)));
        }
        // Bytes between neighbours of a ring or tree, as in `Fabric::shared_links`.
        let cross = if tree { per_buffer } else { 1.0 };
        for (i, l) in cluster.network.host_links.iter().enumerate() {
            let (a, b) = (allocation.mask(l.a).count() as f64, allocation.mask(l.b).count() as f64);
            if a > 0.0 && b > 0.0 {
                let c = if collective == Collective::AllToAll { a * b / (ranks - 1.0) } else { cross };
                out.push((SharedLink::Pair(i as u32), c / efficiency));
            }
        }
        let uplink =
            |(t, switch, c): (usize, usize, f64)| (SharedLink::Uplink(t as u32, switch as u32), c / efficiency);
        out.extend(self.uplink_crossings(allocation, collective, cross, tree).into_iter().map(uplink));
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

    /// Bus bandwidth in GB/s of every claim, in the order of `claims`, while all claims run: max-min fair over the
    /// links, never more than the demand.
    ///
    /// A claim that shares no link gets its whole demand: if one claim's demand exceeds a link's capacity, the capacity
    /// is raised to the demand. The result does not depend on the order of the claims. O(links of all claims), plus the
    /// sharing of the links that could be full.
    pub fn share(&self, claims: &[&Claim]) -> Vec<f64> {
        RunningClaims::new(self, claims.iter().map(|c| (*c).clone()).collect()).now
    }

    /// Bus bandwidth of every job, in the given order, while all jobs run; an average over time for jobs with `duty`
    /// below 1. Deterministic and independent of the order of the jobs. Same cost as [`Fabric::share`].
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
        RunningClaims::new(self, claims).now.into_iter().map(Bandwidth::from_gb_per_s).collect()
    }
}

/// A link that could be full, with the claims that use it.
#[derive(Clone, Debug, PartialEq)]
struct TightLink {
    capacity: f64,
    /// (claim, load), ascending by claim.
    users: Vec<(u32, f64)>,
}

/// Running claims that share links, prepared to compute the effect of one more claim at low cost.
///
/// A link whose capacity is at least the sum of its users' demands is never full, because no claim gets more than its
/// demand. Such links do not affect the rates and are omitted; of thousands of NICs and uplinks few remain. Links with
/// the same users and loads are merged into one link with the smallest capacity. A claim keeps its rate if it shares no
/// remaining link with the new claim, neither directly nor through other claims.
#[derive(Clone, Debug)]
pub struct RunningClaims {
    claims: Vec<Claim>,
    /// Users of each link of a claim with a demand: (claim, load).
    users: FxHashMap<SharedLink, Vec<(u32, f64)>>,
    /// NICs in use by host.
    nics: Vec<u32>,
    common_links: bool,
    /// The links that could be full, and the subset that each claim uses.
    tight: Vec<TightLink>,
    tight_of: Vec<Vec<u32>>,
    now: Vec<f64>,
}

/// The rates while one more claim runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Joined {
    /// Rate of the new claim, GB/s of bus bandwidth.
    pub own_gb_per_s: f64,
    /// Index and rate of the running claims that share links with the new claim, directly or through other claims.
    pub others_gb_per_s: Vec<(usize, f64)>,
    /// Number of shared links that could be full. The cost of this answer grows with it.
    pub links: usize,
}

impl RunningClaims {
    /// Prepares running claims. O(links of all claims), plus the cost of sharing the links that could be full.
    pub fn new(fabric: &Fabric, claims: Vec<Claim>) -> Self {
        let mut users: FxHashMap<SharedLink, Vec<(u32, f64)>> = FxHashMap::default();
        for (i, c) in claims.iter().enumerate().filter(|c| c.1.demand_gb_per_s > 0.0) {
            for (link, load) in &c.loads {
                users.entry(*link).or_default().push((i as u32, *load));
            }
        }
        let mut nics = Vec::new();
        let mut common_links = false;
        for link in users.keys() {
            match link {
                SharedLink::Nic(h, nic) => {
                    if nics.len() <= h.index() {
                        nics.resize(h.index() + 1, 0);
                    }
                    nics[h.index()] |= 1u32 << nic;
                }
                SharedLink::Pair(_) | SharedLink::Uplink(..) => common_links = true,
            }
        }
        let mut shared: Vec<(&SharedLink, &Vec<(u32, f64)>)> = users.iter().filter(|u| u.1.len() > 1).collect();
        shared.sort_unstable_by_key(|s| *s.0);
        let demand = |i: u32| claims[i as usize].demand_gb_per_s;
        let mut tight = Tight::default();
        for (link, of) in shared {
            tight.add(fabric.line_rate_gb_per_s(*link), of.clone(), demand);
        }
        let tight = tight.links;
        let mut tight_of = vec![Vec::new(); claims.len()];
        for (l, link) in tight.iter().enumerate() {
            link.users.iter().for_each(|u| tight_of[u.0 as usize].push(l as u32));
        }
        let all: Vec<&TightLink> = tight.iter().collect();
        let now = divide(&claims.iter().map(|c| c.demand_gb_per_s.max(0.0)).collect::<Vec<_>>(), &all, |u| u as usize);
        RunningClaims { claims, users, nics, common_links, tight, tight_of, now }
    }

    /// Current rates of the claims, GB/s of bus bandwidth, in the order of the claims.
    pub fn now(&self) -> &[f64] {
        &self.now
    }
    /// Indices of the host's NICs that claims with a demand use. O(1).
    pub fn nics_in_use(&self, host: HostId) -> u32 {
        self.nics.get(host.index()).copied().unwrap_or(0)
    }
    /// True if claims with a demand use links that other hosts can also use: uplinks, links between two hosts. O(1).
    pub fn uses_common_links(&self) -> bool {
        self.common_links
    }

    /// The rates while `own` also runs. O(links of `own` + the links that could be full of the claims that share with
    /// `own`).
    pub fn with(&self, fabric: &Fabric, own: &Claim) -> Joined {
        let wanted = own.demand_gb_per_s.max(0.0);
        let alone = Joined { own_gb_per_s: wanted, others_gb_per_s: Vec::new(), links: 0 };
        if wanted == 0.0 {
            return alone;
        }
        let me = self.claims.len() as u32;
        let demand = |i: u32| if i == me { wanted } else { self.claims[i as usize].demand_gb_per_s };
        let mut new = Tight::default();
        for (link, load) in &own.loads {
            if let Some(of) = self.users.get(link) {
                let sum = load * wanted + of.iter().map(|u| u.1 * demand(u.0)).sum::<f64>();
                let capacity = fabric.line_rate_gb_per_s(*link);
                if sum > capacity {
                    new.add(capacity, of.iter().copied().chain([(me, *load)]).collect(), demand);
                }
            }
        }
        if new.links.is_empty() {
            return alone;
        }
        // The claims that share links that could be full, and these links.
        let mut place: FxHashMap<u32, usize> = FxHashMap::from_iter([(me, 0)]);
        let mut reached = vec![me];
        let mut seen = vec![false; self.tight.len()];
        let mut links: Vec<&TightLink> = new.links.iter().collect();
        let meet = |link: &TightLink, reached: &mut Vec<u32>, place: &mut FxHashMap<u32, usize>| {
            for u in &link.users {
                place.entry(u.0).or_insert_with(|| {
                    reached.push(u.0);
                    reached.len() - 1
                });
            }
        };
        new.links.iter().for_each(|l| meet(l, &mut reached, &mut place));
        let mut at = 0;
        while at < reached.len() {
            let claim = reached[at];
            at += 1;
            if claim == me {
                continue;
            }
            for &l in &self.tight_of[claim as usize] {
                if !std::mem::replace(&mut seen[l as usize], true) {
                    links.push(&self.tight[l as usize]);
                    meet(&self.tight[l as usize], &mut reached, &mut place);
                }
            }
        }
        let demands: Vec<f64> = reached.iter().map(|c| demand(*c).max(0.0)).collect();
        let rates = divide(&demands, &links, |u| place[&u]);
        let mut others: Vec<(usize, f64)> =
            reached.iter().zip(&rates).skip(1).map(|(c, r)| (*c as usize, *r)).collect();
        others.sort_unstable_by_key(|o| o.0);
        Joined { own_gb_per_s: rates[0], others_gb_per_s: others, links: links.len() }
    }
}

/// The links that could be full. Links with the same users and loads are merged.
#[derive(Default)]
struct Tight {
    links: Vec<TightLink>,
    known: FxHashMap<Vec<(u32, u64)>, usize>,
}

impl Tight {
    fn add(&mut self, capacity: f64, users: Vec<(u32, f64)>, demand: impl Fn(u32) -> f64) {
        let wanted = |u: &(u32, f64)| u.1 * demand(u.0);
        let capacity = users.iter().map(wanted).fold(capacity, f64::max);
        if users.iter().map(wanted).sum::<f64>() <= capacity {
            return;
        }
        let key = users.iter().map(|u| (u.0, u.1.to_bits())).collect();
        let at = *self.known.entry(key).or_insert(self.links.len());
        match self.links.get_mut(at) {
            Some(link) => link.capacity = link.capacity.min(capacity),
            None => self.links.push(TightLink { capacity, users }),
        }
    }
}

/// Max-min fair rates of claims with these demands over the links. `place` maps a user to its position in `demands`.
fn divide(demands: &[f64], links: &[&TightLink], place: impl Fn(u32) -> usize) -> Vec<f64> {
    let mut flows: Vec<MaxMinFlow> =
        demands.iter().map(|d| MaxMinFlow { links: Vec::new(), demand: *d, priority: 1.0 }).collect();
    for (l, link) in links.iter().enumerate() {
        link.users.iter().for_each(|u| flows[place(u.0)].links.push((l, u.1)));
    }
    let capacities: Vec<f64> = links.iter().map(|l| l.capacity).collect();
    // The call fails only for numbers that checked clusters and finite demands never give. If it fails, use the demands
    // as an upper bound.
    maxmin::share(&capacities, &flows).unwrap_or_else(|_| demands.to_vec())
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

    /// Two hosts. All GPUs of a host share its only NIC.
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
