//! Contention by physics: flows of all jobs over the NICs and links that they share, max-min fair ([`fabric::Fabric::share`]).
//!
//! A job's demand is its bandwidth without other jobs. Running jobs share links among themselves before the new job comes; a job without
//! contention keeps its demand.

use crate::objective::{Effect, Running};
use fabric::{Claim, Fabric, SharedLink};
use predict::{BandwidthModel, Candidates};
use std::collections::HashMap;
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask, HostId};

/// The running jobs as flows over the network.
pub(crate) struct Sharing<'c> {
    fabric: Fabric<'c>,
    claims: Vec<Claim>,
    /// Bandwidth of every job now, GB/s.
    now: Vec<f64>,
    /// The jobs that use each link (demand above zero).
    users: HashMap<SharedLink, Vec<usize>>,
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
        let now = fabric.share(&claims.iter().collect::<Vec<_>>());
        let mut users: HashMap<SharedLink, Vec<usize>> = HashMap::new();
        for (i, c) in claims.iter().enumerate().filter(|c| c.1.demand_gb_per_s > 0.0) {
            for (link, _) in &c.loads {
                users.entry(*link).or_default().push(i);
            }
        }
        Sharing { fabric, claims, now, users }
    }

    /// Jobs that use these links, and jobs that share links with those. Ascending.
    fn reached(&self, loads: &[(SharedLink, f64)]) -> Vec<usize> {
        let mut found: Vec<usize> = Vec::new();
        let meet = |loads: &[(SharedLink, f64)], found: &mut Vec<usize>| {
            for (link, _) in loads {
                for j in self.users.get(link).into_iter().flatten() {
                    if !found.contains(j) {
                        found.push(*j);
                    }
                }
            }
        };
        meet(loads, &mut found);
        let mut at = 0;
        while at < found.len() {
            meet(&self.claims[found[at]].loads, &mut found);
            at += 1;
        }
        found.sort_unstable();
        found
    }

    /// The effect of one candidate.
    fn effect(&self, collective: Collective, size: Bytes, candidate: &Allocation, alone_gb_per_s: f64) -> Effect {
        let mut effect = Effect {
            alone_gb_per_s,
            shared_gb_per_s: alone_gb_per_s,
            jobs_gb_per_s: self.now.iter().map(|v| (*v, *v)).collect(),
        };
        if candidate.host_count() < 2 || !candidate.parts().iter().any(|p| self.on_host(p.0)) {
            return effect;
        }
        let own = Claim { loads: self.fabric.loads(candidate, collective, size), demand_gb_per_s: alone_gb_per_s };
        let jobs = self.reached(&own.loads);
        if jobs.is_empty() {
            return effect;
        }
        let claims: Vec<&Claim> = std::iter::once(&own).chain(jobs.iter().map(|j| &self.claims[*j])).collect();
        let rates = self.fabric.share(&claims);
        effect.shared_gb_per_s = rates[0];
        for (j, rate) in jobs.into_iter().zip(&rates[1..]) {
            effect.jobs_gb_per_s[j].1 = *rate;
        }
        effect
    }

    /// True if a running job could contend on this host. Uplinks are shared by all hosts below their switch, links between hosts by their two ends.
    fn on_host(&self, host: HostId) -> bool {
        let network = &self.fabric.cluster().network;
        !network.tiers.is_empty()
            || self.users.keys().any(|l| match l {
                SharedLink::Nic(h, _) => *h == host,
                SharedLink::Pair(i) => {
                    [network.host_links[*i as usize].a, network.host_links[*i as usize].b].contains(&host)
                }
                SharedLink::Uplink(..) => true,
            })
    }

    /// For some GPUs of a host: which NICs they would share with running jobs; empty where no job uses NICs of the host.
    pub(crate) fn shared_nics(&self, host: HostId) -> Box<dyn Fn(GpuMask) -> Vec<f64> + '_> {
        let of_host = self.users.keys().filter_map(|l| match l {
            SharedLink::Nic(h, nic) if *h == host => Some(1u32 << nic),
            _ => None,
        });
        let used = of_host.fold(0, |m, n| m | n);
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
