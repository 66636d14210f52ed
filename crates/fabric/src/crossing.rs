//! Bandwidth that flows lose when they cross a tier of switches: collisions of hashed flows, and other traffic.
//!
//! Only flows that cross the tier lose. Two hosts below one leaf are as fast as ever, and a host that gives fewer GPUs
//! than others costs little if its neighbours on the ring are below the same leaf.

use topology::{Cluster, GpuMask, HostId};

/// The share of their rate that flows keep on every tier that they cross.
#[derive(Clone, Debug, PartialEq)]
pub struct Crossings {
    /// By tier, above 0 and at most 1.
    kept: Vec<f64>,
}

impl Crossings {
    /// Flows that cross tier `t` keep the share `kept[t]`. None if no tier loses bandwidth.
    pub fn new(kept: Vec<f64>) -> Option<Crossings> {
        kept.iter().any(|k| *k < 1.0).then_some(Crossings { kept })
    }

    /// The tiers with loss, and the share that flows keep.
    fn tiers(&self) -> impl Iterator<Item = (usize, f64)> {
        self.kept.iter().copied().enumerate().filter(|t| t.1 < 1.0)
    }

    /// The share that the slowest flow between these hosts keeps. O(hosts x tiers).
    pub fn worst(&self, cluster: &Cluster, hosts: &[(HostId, GpuMask)]) -> f64 {
        let spans = |tier: usize| {
            let mut switches = hosts.iter().map(|h| cluster.switch_of(tier, h.0));
            let first = switches.next();
            switches.any(|s| Some(s) != first)
        };
        self.tiers().filter(|t| spans(t.0)).map(|t| t.1).product()
    }

    /// The least rate of hosts, each with its rate, on a ring on which hosts below one switch are adjacent: the flows that
    /// a host exchanges over a tier load its rate more. O(hosts x tiers).
    pub fn least_rate(&self, cluster: &Cluster, hosts: impl Iterator<Item = (HostId, f64)>) -> f64 {
        let mut ring: Vec<(HostId, f64)> = hosts.collect();
        let key = |h: &(HostId, f64)| (cluster.switches_above(h.0), h.0);
        if !ring.is_sorted_by_key(key) {
            ring.sort_by_cached_key(key);
        }
        let job = self.of_job(cluster, ring.iter().map(|h| h.0));
        let n = ring.len();
        let load = |i: usize| job.as_ref().map_or(1.0, |j| j.load((i + n - 1) % n, i).max(j.load(i, (i + 1) % n)));
        (0..n).map(|i| ring[i].1 / load(i)).fold(f64::INFINITY, f64::min)
    }

    /// The hosts in an order in which hosts below one switch are adjacent on every tier, as positions.
    pub(crate) fn grouped(cluster: &Cluster, hosts: &[(HostId, GpuMask)]) -> Vec<u32> {
        let mut order: Vec<u32> = (0..hosts.len() as u32).collect();
        let key = |i: &u32| cluster.switches_above(hosts[*i as usize].0);
        // Below regular switches the hosts are already in this order.
        if !order.is_sorted_by_key(key) {
            order.sort_by_cached_key(key);
        }
        order
    }

    /// The crossings of a job whose hosts follow each other as given; None if no flow between them loses bandwidth.
    pub(crate) fn of_job(
        &self,
        cluster: &Cluster,
        hosts: impl Iterator<Item = HostId> + Clone,
    ) -> Option<JobCrossings> {
        let above = |(tier, kept): (usize, f64)| -> (f64, Vec<u32>) {
            (1.0 / kept.max(1e-3), hosts.clone().map(|h| cluster.switch_of(tier, h) as u32).collect())
        };
        let spans = |t: &(f64, Vec<u32>)| t.1.iter().any(|s| *s != t.1[0]);
        let tiers: Vec<(f64, Vec<u32>)> = self.tiers().map(above).filter(spans).collect();
        (!tiers.is_empty()).then_some(JobCrossings { tiers })
    }
}

/// The crossings of one job, by position of its hosts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobCrossings {
    /// Of every tier with loss that the job spans: the load of a flow that crosses it over that of one that does not,
    /// and the switch above every host.
    tiers: Vec<(f64, Vec<u32>)>,
}

impl JobCrossings {
    /// How many times its bytes a flow between two positions loads the NICs at its ends: 1 below one switch. O(tiers).
    pub fn load(&self, a: usize, b: usize) -> f64 {
        self.tiers.iter().map(|(load, above)| if above[a] == above[b] { 1.0 } else { *load }).product()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Constants, Crossings, Fabric};
    use std::sync::Arc;
    use topology::list::ListReader;
    use topology::{Bytes, Cluster, Collective, Tier, catalog};

    /// Sixteen hosts behind four leaves whose flows to other leaves keep 70 %.
    fn site() -> Cluster {
        let mut c = catalog::cluster("16xhgx-h100").unwrap();
        c.network.tiers = vec![Tier::regular("leaf", 4, 1.0)];
        c
    }

    fn busbw_gb_per_s(c: &Cluster, gpus: &str, kept: f64) -> f64 {
        let fabric = Fabric::with_constants(c, Constants::nominal());
        let fabric = fabric.with_crossings(Crossings::new(vec![kept]).map(Arc::new));
        let gpus = ListReader::new(c).gpus(gpus.split_whitespace()).unwrap();
        fabric.estimate_between_hosts(&gpus, Collective::AllReduce, Bytes::gib(2)).busbw.gb_per_s()
    }

    #[test]
    fn only_jobs_across_switches_lose() {
        let c = site();
        let share = |gpus| busbw_gb_per_s(&c, gpus, 0.7) / busbw_gb_per_s(&c, gpus, 1.0);
        assert_eq!(share("n[0-3]:[0-7]"), 1.0);
        let across = share("n[0-5]:[0-7]");
        assert!((0.6..0.95).contains(&across), "{across}");
        assert!(busbw_gb_per_s(&c, "n[0-5]:[0-7]", 0.5) < busbw_gb_per_s(&c, "n[0-5]:[0-7]", 0.7));
    }

    #[test]
    fn the_least_rate_counts_the_loss_of_hosts_at_the_edges_of_switches_only() {
        let c = site();
        let crossings = Crossings::new(vec![0.5]).unwrap();
        let least = |rates: &[(u32, f64)]| crossings.least_rate(&c, rates.iter().map(|r| (topology::HostId(r.0), r.1)));
        assert_eq!(least(&[(0, 8.0), (1, 5.0), (2, 8.0)]), 5.0, "below one switch");
        assert_eq!(least(&[(0, 8.0), (1, 5.0), (2, 8.0), (4, 8.0)]), 4.0, "the edges decide, host 1 is inside");
        assert_eq!(least(&[(4, 8.0), (2, 8.0), (0, 5.0), (1, 8.0)]), 2.5, "host 0 is at an edge, in whatever order");
    }

    #[test]
    fn a_host_with_fewer_gpus_costs_less_where_both_of_its_neighbours_are_below_its_leaf() {
        let c = site();
        let (edge, inside) = ("n[0-2,4-6]:[0-7] n3:[0-3]", "n[0,2-6]:[0-7] n1:[0-3]");
        let equal = busbw_gb_per_s(&c, edge, 1.0) / busbw_gb_per_s(&c, inside, 1.0);
        assert!((equal - 1.0).abs() < 1e-9, "{equal}");
        let ratio = busbw_gb_per_s(&c, edge, 0.7) / busbw_gb_per_s(&c, inside, 0.7);
        assert!(ratio < 0.9, "{ratio}");
    }
}
