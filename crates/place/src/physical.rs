//! Contention by physics: the flows of all jobs over the NICs and links that they share, max-min fair ([`fabric::RunningClaims`]).
//!
//! A job's demand is its bandwidth without other jobs. Running jobs share links among themselves before the new job
//! starts. A job without contention keeps its demand.

use crate::objective::{Effect, Running};
use fabric::{Claim, Fabric, RunningClaims};
use predict::{BandwidthModel, Candidates};
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask, HostId};

/// The running jobs as claims on the network.
pub(crate) struct Sharing<'c> {
    fabric: Fabric<'c>,
    jobs: RunningClaims,
}

impl<'c> Sharing<'c> {
    /// The claims of running jobs that span hosts. O(jobs x their NICs).
    pub(crate) fn new(cluster: &'c Cluster, model: &dyn BandwidthModel, size: Bytes, running: &[Running]) -> Self {
        let fabric = model.physics().map_or_else(|| Fabric::new(cluster), |t| t.on(cluster));
        let claim = |r: &Running| Claim {
            loads: fabric.loads(&r.gpus, model.collective(), size),
            demand_gb_per_s: r.demand_gb_per_s,
        };
        let jobs = RunningClaims::new(&fabric, running.iter().map(claim).collect());
        Sharing { fabric, jobs }
    }

    /// The effect of one candidate. Hosts without jobs cost no time if no job uses links above the hosts.
    fn effect(&self, collective: Collective, size: Bytes, candidate: &Allocation, alone_gb_per_s: f64) -> Effect {
        let mut effect = Effect {
            alone_gb_per_s,
            shared_gb_per_s: alone_gb_per_s,
            jobs_gb_per_s: self.jobs.now().iter().map(|v| (*v, *v)).collect(),
        };
        let used = |h: HostId| self.jobs.nics_in_use(h) != 0;
        if candidate.host_count() < 2 || !(self.jobs.uses_common_links() || candidate.parts().iter().any(|p| used(p.0)))
        {
            return effect;
        }
        let loads = self.fabric.loads_on(candidate, collective, size, &used);
        let joined = self.jobs.with(&self.fabric, &Claim { loads, demand_gb_per_s: alone_gb_per_s });
        effect.shared_gb_per_s = joined.own_gb_per_s;
        // A job that the new one slows leaves room for a third. A candidate earns nothing by that.
        for (j, rate) in joined.others_gb_per_s {
            let (before, after) = &mut effect.jobs_gb_per_s[j];
            *after = rate.min(*before);
        }
        effect
    }

    /// For GPUs of a host: the number of NICs they use, and which of these NICs running jobs use; empty if no job uses
    /// NICs of the host.
    pub(crate) fn shared_nics(&self, host: HostId) -> Box<dyn Fn(GpuMask) -> Vec<f64> + '_> {
        let used = self.jobs.nics_in_use(host);
        let (cluster, ty) = (self.fabric.cluster(), self.fabric.cluster().type_of(host));
        let alive: u32 =
            (0..ty.nics.len()).filter(|n| cluster.nic_rate(host, *n).gb_per_s() > 0.0).fold(0, |m, n| m | 1 << n);
        Box::new(move |m| {
            let touched = ty.nics_touched(m) & alive;
            if used == 0 { Vec::new() } else { vec![f64::from(touched & used), f64::from(touched.count_ones())] }
        })
    }

    /// The effect of every candidate on itself and on the running jobs.
    pub(crate) fn effects(
        &self,
        collective: Collective,
        size: Bytes,
        candidates: &Candidates,
        alone_gb_per_s: &[f64],
    ) -> Vec<Effect> {
        let each = alone_gb_per_s.iter().enumerate();
        each.map(|(i, v)| self.effect(collective, size, &candidates.allocation(i), *v)).collect()
    }
}
