//! The points of a plan: a function of plan and cluster.

use crate::backend::Point;
use crate::campaign::CampaignPlan;
use crate::design::design_at;
use crate::intra;
use std::collections::{BTreeSet, HashSet};
use topology::{Allocation, Bytes, Cluster, GpuMask, HostId};

#[derive(Clone, Copy)]
pub(crate) struct Layout<'a> {
    pub plan: &'a CampaignPlan,
    pub cluster: &'a Cluster,
    /// Hosts of which an earlier run took the table.
    pub tabled: &'a HashSet<HostId>,
}

/// The spot checks of the hosts of one type.
pub(crate) struct SpotGroup {
    /// The host with the full table.
    pub reference: HostId,
    /// The checks of all hosts, and the points of the reference's table on the same GPU subsets.
    pub points: Vec<(HostId, Point)>,
}

impl Layout<'_> {
    /// Hosts for full tables (for each type the host with the most idle GPUs; of these one that has a table, so that
    /// another order of hosts in the cluster file costs no second one), and pairs of a host to spot-check and its
    /// reference host.
    pub fn hosts(&self) -> (Vec<HostId>, Vec<(HostId, HostId)>) {
        let (mut tables, mut checks) = (Vec::new(), Vec::new());
        if !self.plan.intra {
            return (tables, checks);
        }
        for t in 0..self.cluster.types.len() {
            let of_type: Vec<(HostId, GpuMask)> = self
                .plan
                .idle
                .parts()
                .iter()
                .copied()
                .filter(|(h, m)| self.cluster.host(*h).host_type == t && m.count() >= 2)
                .collect();
            let first = |(h, m): &&(HostId, GpuMask)| (m.count(), self.tabled.contains(h), std::cmp::Reverse(*h));
            let Some(&(first, _)) = of_type.iter().max_by_key(first) else {
                continue;
            };
            tables.push(first);
            checks.extend(of_type.iter().filter(|(h, _)| *h != first).map(|(h, _)| (*h, first)));
        }
        tables.sort_unstable();
        checks.sort_unstable();
        (tables, checks)
    }

    pub fn point(&self, allocation: Allocation, size: Bytes) -> Point {
        Point { allocation, collective: self.plan.collective, size, repetition: 0 }
    }

    pub fn table_points(&self, host: HostId, size: Bytes) -> Vec<Point> {
        let masks = intra::table(self.plan.idle.mask(host), self.plan.seed);
        masks.into_iter().map(|m| self.point(Allocation::new([(host, m)]), size)).collect()
    }

    /// The first points of a host's table: all of them are known only of a host whose table was taken.
    pub fn table_probe(&self, host: HostId, size: Bytes) -> Vec<Point> {
        let gpus: Vec<usize> = self.plan.idle.mask(host).iter().collect();
        let pairs = gpus.windows(2).map(|p| GpuMask::from_indices([p[0], p[1]]));
        pairs.map(|m| self.point(Allocation::new([(host, m)]), size)).collect()
    }

    /// Spot checks of GPU subsets that are idle on both hosts.
    pub fn spot_points(&self, host: HostId, reference: HostId, size: Bytes) -> Vec<Point> {
        self.checks_of(host, reference, self.plan.scale.spot_checks, size)
    }

    /// This many of them.
    pub fn checks_of(&self, host: HostId, reference: HostId, checks: usize, size: Bytes) -> Vec<Point> {
        let idle = &self.plan.idle;
        let both = GpuMask(idle.mask(host).0 & idle.mask(reference).0);
        let of_reference: HashSet<GpuMask> = intra::table(idle.mask(reference), self.plan.seed).into_iter().collect();
        let mut common = intra::table(both, self.plan.seed);
        common.retain(|m| of_reference.contains(m));
        let masks = intra::spot_checks(&common, checks, self.plan.seed);
        masks.into_iter().map(|m| self.point(Allocation::new([(host, m)]), size)).collect()
    }

    /// The checks of all hosts of one reference. `spots`: the points of each of `checks`.
    pub fn spot_group(&self, reference: HostId, checks: &[(HostId, HostId)], spots: &[Vec<Point>]) -> SpotGroup {
        let mut points: Vec<(HostId, Point)> = Vec::new();
        let mut masks: BTreeSet<GpuMask> = BTreeSet::new();
        let mut size = None;
        for ((host, r), of_host) in checks.iter().zip(spots) {
            if *r == reference {
                masks.extend(of_host.iter().map(|p| p.allocation.mask(*host)));
                size = of_host.first().map(|p| p.size).or(size);
                points.extend(of_host.iter().map(|p| (*host, p.clone())));
            }
        }
        if let Some(size) = size {
            let of_reference = masks.into_iter().map(|m| self.point(Allocation::new([(reference, m)]), size));
            points.extend(of_reference.map(|p| (reference, p)));
        }
        SpotGroup { reference, points }
    }

    pub fn sample_points(&self, size: Bytes) -> Vec<Point> {
        let plan = self.plan;
        let chosen = design_at(self.cluster, &plan.idle, plan.sample_size, plan.design, plan.seed, plan.scale);
        chosen.into_iter().map(|a| self.point(a, size)).collect()
    }
}

/// The points known before the first reading: full tables, spot checks and the sample (for an adaptive design the farthest-point one).
pub fn first_points(plan: &CampaignPlan, cluster: &Cluster) -> Vec<Point> {
    let layout = Layout { plan, cluster, tabled: &HashSet::new() };
    let mut out = Vec::new();
    for &size in &plan.sizes {
        let (tables, checks) = layout.hosts();
        out.extend(tables.iter().flat_map(|h| layout.table_points(*h, size)));
        out.extend(checks.iter().flat_map(|(h, r)| layout.spot_points(*h, *r, size)));
        out.extend(layout.sample_points(size));
    }
    out
}
