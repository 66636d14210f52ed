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
    /// By tier and switch: the root of the share that flows from or to the switch keep over that of the tier. Empty tiers
    /// have equal switches.
    own: Vec<Vec<f64>>,
}

impl Crossings {
    /// Flows that cross tier `t` keep the share `kept[t]`. None if no tier loses bandwidth.
    pub fn new(kept: Vec<f64>) -> Option<Crossings> {
        kept.iter().any(|k| *k < 1.0).then_some(Crossings { kept, own: Vec::new() })
    }

    /// The same, where a flow between two switches of a tier keeps the geometric mean of their factors of what others
    /// keep. `factors`: by tier and switch, above 0; an empty tier has equal switches. No flow keeps more than all.
    pub fn with_switches(self, factors: Vec<Vec<f64>>) -> Crossings {
        let root = |of_tier: Vec<f64>| of_tier.into_iter().map(|f| f.max(1e-3).sqrt()).collect();
        Crossings { own: factors.into_iter().map(root).collect(), ..self }
    }

    /// The root of a switch's factor.
    fn own(&self, tier: usize, switch: usize) -> f64 {
        self.own.get(tier).and_then(|t| t.get(switch)).copied().unwrap_or(1.0)
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
        let slowest = |(tier, kept): (usize, f64)| -> f64 {
            if self.own.get(tier).is_none_or(Vec::is_empty) {
                return kept;
            }
            let mut switches: Vec<usize> = hosts.iter().map(|h| cluster.switch_of(tier, h.0)).collect();
            switches.sort_unstable();
            switches.dedup();
            let mut own: Vec<f64> = switches.iter().map(|s| self.own(tier, *s)).collect();
            own.sort_by(f64::total_cmp);
            (kept * own[0] * own[1]).min(1.0)
        };
        self.tiers().filter(|t| spans(t.0)).map(slowest).product()
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
        let above = |(tier, kept): (usize, f64)| -> TierCrossings {
            let above: Vec<u32> = hosts.clone().map(|h| cluster.switch_of(tier, h) as u32).collect();
            let equal = self.own.get(tier).is_none_or(Vec::is_empty);
            let own = |s: &u32| 1.0 / self.own(tier, *s as usize);
            let own = if equal { Vec::new() } else { above.iter().map(own).collect() };
            TierCrossings { load: 1.0 / kept.max(1e-3), above, own }
        };
        let spans = |t: &TierCrossings| t.above.iter().any(|s| *s != t.above[0]);
        let tiers: Vec<TierCrossings> = self.tiers().map(above).filter(spans).collect();
        (!tiers.is_empty()).then_some(JobCrossings { tiers })
    }
}

/// The crossings of one job, by position of its hosts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobCrossings {
    /// Every tier with loss that the job spans.
    tiers: Vec<TierCrossings>,
}

/// The crossings of one tier, by position of the job's hosts.
#[derive(Clone, Debug, Default, PartialEq)]
struct TierCrossings {
    /// The load of a flow that crosses the tier over that of one that does not.
    load: f64,
    /// The switch above every host.
    above: Vec<u32>,
    /// The factor of the load at the switch above every host; empty if all switches are equal.
    own: Vec<f64>,
}

impl TierCrossings {
    fn load(&self, a: usize, b: usize) -> f64 {
        match (self.above[a] == self.above[b], self.own.is_empty()) {
            (true, _) => 1.0,
            (false, true) => self.load,
            (false, false) => (self.load * self.own[a] * self.own[b]).max(1.0),
        }
    }
}

impl JobCrossings {
    /// How many times its bytes a flow between two positions loads the NICs at its ends: 1 below one switch. O(tiers).
    pub fn load(&self, a: usize, b: usize) -> f64 {
        self.tiers.iter().map(|t| t.load(a, b)).product()
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
    fn a_flow_between_two_switches_keeps_what_both_of_them_let_through() {
        let c = site();
        let even = Crossings::new(vec![0.7]).unwrap();
        let uneven = even.clone().with_switches(vec![vec![1.0, 1.2, 0.5, 4.0]]);
        let kept = |x: &Crossings, a: u32, b: u32| {
            let hosts = [topology::HostId(a), topology::HostId(b)];
            x.of_job(&c, hosts.into_iter()).map_or(1.0, |j| 1.0 / j.load(0, 1))
        };
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
        near(kept(&even, 0, 4), 0.7);
        near(kept(&uneven, 0, 1), 1.0);
        near(kept(&uneven, 0, 4), 0.7 * 1.2f64.sqrt());
        near(kept(&uneven, 4, 8), 0.7 * (1.2f64 * 0.5).sqrt());
        near(kept(&uneven, 4, 12), 1.0); // never more than all
        let parts = |hosts: &[u32]| {
            hosts.iter().map(|h| (topology::HostId(*h), topology::GpuMask::first(8))).collect::<Vec<_>>()
        };
        near(uneven.worst(&c, &parts(&[0, 4, 8])), 0.7 * 0.5f64.sqrt());
        near(uneven.worst(&c, &parts(&[8, 9])), 1.0);
        assert_eq!(even.clone().with_switches(vec![vec![1.0; 4]]).worst(&c, &parts(&[0, 8])), 0.7);
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
