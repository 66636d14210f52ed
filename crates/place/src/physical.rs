//! RunningClaims by physics: flows of all jobs over the NICs and links that they share, max-min fair ([`fabric::RunningClaims`]).
//!
//! A job's demand is its bandwidth without other jobs. Running jobs share links among themselves before the new job comes; a job without
//! contention keeps its demand.

use crate::objective::{Effect, Running};
use fabric::{Claim, Fabric, RunningClaims};
use predict::{BandwidthModel, Candidates};
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask, HostId};

/// The running jobs as flows over the network.
pub(crate) struct Sharing<'c> {
    fabric: Fabric<'c>,
    jobs: RunningClaims,
}

impl<'c> Sharing<'c> {
    /// Of running jobs that span hosts.
    pub(crate) fn new(cluster: &'c Cluster, model: &dyn BandwidthModel, size: Bytes, running: &[Running]) -> Self {
        let fabric = model.physics().map_or_else(|| Fabric::new(cluster), |t| t.on(cluster));
        let claims: Vec<Claim> = running
            .iter()
            .map(|r| Claim {
                loads: fabric.loads(&r.gpus, model.collective(), size),
                demand_gb_per_s: r.demand_gb_per_s,
            })
            .collect();
        let jobs = RunningClaims::new(&fabric, claims);
        Sharing { fabric, jobs }
    }

    /// The effect of one candidate.
    fn effect(&self, collective: Collective, size: Bytes, candidate: &Allocation, alone_gb_per_s: f64) -> Effect {
        let mut effect = Effect {
            alone_gb_per_s,
            shared_gb_per_s: alone_gb_per_s,
            jobs_gb_per_s: self.jobs.now().iter().map(|v| (*v, *v)).collect(),
        };
        if candidate.host_count() < 2 || !candidate.parts().iter().any(|p| self.on_host(p.0)) {
            return effect;
        }
        let own = Claim { loads: self.fabric.loads(candidate, collective, size), demand_gb_per_s: alone_gb_per_s };
        let joined = self.jobs.with(&self.fabric, &own);
        effect.shared_gb_per_s = joined.own_gb_per_s;
        for (j, rate) in joined.others_gb_per_s {
            effect.jobs_gb_per_s[j].1 = rate;
        }
        effect
    }

    /// True if a running job could contend on this host: on its NICs, or on links that several hosts use.
    fn on_host(&self, host: HostId) -> bool {
        self.jobs.uses_common_links() || self.jobs.nics_in_use(host) != 0
    }

    /// For some GPUs of a host: which NICs they would share with running jobs; empty where no job uses NICs of the host.
    pub(crate) fn shared_nics(&self, host: HostId) -> Box<dyn Fn(GpuMask) -> Vec<f64> + '_> {
        let used = self.jobs.nics_in_use(host);
        let ty = self.fabric.cluster().type_of(host);
        Box::new(move |m| if used == 0 { Vec::new() } else { vec![f64::from(ty.nics_touched(m) & used)] })
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
