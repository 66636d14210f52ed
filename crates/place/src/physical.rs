//! Contention by physics: flows of all jobs over the NICs and links that they share, max-min fair ([`fabric::maxmin`]).
//!
//! A job's demand is its bandwidth without other jobs. Running jobs share links among themselves before the new job comes; a job without
//! contention keeps its demand.
//!
//! Links that the same running jobs load equally, with equal capacity, constrain alike: they are one class, of which a flow crosses a
//! representative. A candidate is compared with the classes that it touches only, so its cost does not depend on hosts without jobs.

use crate::objective::{Effect, Running};
use fabric::maxmin::{self, MaxMinFlow};
use fabric::{Fabric, SharedLink};
use predict::{BandwidthModel, Candidates};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask, HostId};

/// Links on which the same jobs put the same loads.
struct Class {
    /// GB/s; no less than any single job needs.
    capacity: f64,
    /// Jobs with their load per GB/s of bus bandwidth.
    users: Vec<(u32, f64)>,
}

/// The running jobs as flows over the network.
pub(crate) struct Sharing<'c> {
    fabric: Fabric<'c>,
    demands: Vec<f64>,
    /// Bandwidth of every job now, GB/s.
    now: Vec<f64>,
    class_of: FxHashMap<SharedLink, u32>,
    classes: Vec<Class>,
    /// The classes that each job loads.
    of_job: Vec<Vec<(u32, f64)>>,
    /// Of every job, all jobs that it can affect through shared links, itself included; ascending.
    reached: Vec<std::rc::Rc<Vec<u32>>>,
    /// The NICs that jobs use, by host.
    nics_used: Vec<u32>,
    /// Do jobs use links above the hosts?
    above_hosts: bool,
}

impl<'c> Sharing<'c> {
    /// Of running jobs that span hosts. O(jobs x their NICs).
    pub(crate) fn new(cluster: &'c Cluster, model: &dyn BandwidthModel, size: Bytes, running: &[Running]) -> Self {
        let fabric = model.physics().map_or_else(|| Fabric::new(cluster), |t| t.on(cluster));
        let demands: Vec<f64> = running.iter().map(|r| r.demand_gb_per_s.max(0.0)).collect();
        let mut users: BTreeMap<SharedLink, Vec<(u32, f64)>> = BTreeMap::new();
        for (j, r) in running.iter().enumerate().filter(|r| r.1.demand_gb_per_s > 0.0) {
            for (link, load) in fabric.loads(&r.gpus, model.collective(), size) {
                users.entry(link).or_default().push((j as u32, load));
            }
        }
        let mut s = Sharing {
            fabric,
            now: Vec::new(),
            class_of: FxHashMap::default(),
            classes: Vec::new(),
            of_job: vec![Vec::new(); demands.len()],
            reached: Vec::new(),
            nics_used: vec![0; cluster.hosts.len()],
            above_hosts: false,
            demands,
        };
        s.classify(users);
        s.connect();
        let every: Vec<u32> = (0..s.demands.len() as u32).collect();
        s.now = s.share(&every, None);
        s
    }

    fn classify(&mut self, users: BTreeMap<SharedLink, Vec<(u32, f64)>>) {
        let mut known: FxHashMap<(u64, Vec<(u32, u64)>), u32> = FxHashMap::default();
        for (link, users) in users {
            match link {
                SharedLink::Nic(h, nic) => self.nics_used[h.index()] |= 1 << nic,
                SharedLink::Pair(_) | SharedLink::Uplink(..) => self.above_hosts = true,
            }
            let needs = users.iter().map(|(j, load)| load * self.demands[*j as usize]);
            let capacity = needs.fold(self.fabric.line_rate_gb_per_s(link), f64::max);
            let key = (capacity.to_bits(), users.iter().map(|(j, load)| (*j, load.to_bits())).collect());
            let next = self.classes.len() as u32;
            let class = *known.entry(key).or_insert(next);
            self.class_of.insert(link, class);
            if class == next {
                users.iter().for_each(|(j, load)| self.of_job[*j as usize].push((class, *load)));
                self.classes.push(Class { capacity, users });
            }
        }
    }

    /// Finds which jobs reach each other through links that they share.
    fn connect(&mut self) {
        let mut group: Vec<u32> = (0..self.demands.len() as u32).collect();
        fn root(group: &mut [u32], mut j: u32) -> u32 {
            while group[j as usize] != j {
                group[j as usize] = group[group[j as usize] as usize];
                j = group[j as usize];
            }
            j
        }
        for c in &self.classes {
            for w in c.users.windows(2) {
                let (a, b) = (root(&mut group, w[0].0), root(&mut group, w[1].0));
                group[b as usize] = a;
            }
        }
        let mut members: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for j in 0..group.len() as u32 {
            members.entry(root(&mut group, j)).or_default().push(j);
        }
        self.reached = vec![std::rc::Rc::default(); group.len()];
        for all in members.into_values().map(std::rc::Rc::new) {
            all.iter().for_each(|j| self.reached[*j as usize] = all.clone());
        }
    }

    /// Rates of some jobs, and before them that of a candidate with its loads by class and its demand. The jobs are whole groups of
    /// [`Self::connect`].
    fn share(&self, jobs: &[u32], own: Option<(&[(u32, f64)], f64)>) -> Vec<f64> {
        let mut local: FxHashMap<u32, usize> = FxHashMap::default();
        let mut capacities = Vec::new();
        let mut flows = Vec::with_capacity(jobs.len() + 1);
        let mut at = |class: u32, least: f64, capacities: &mut Vec<f64>| {
            let i = *local.entry(class).or_insert(capacities.len());
            if i == capacities.len() {
                capacities.push(self.classes[class as usize].capacity);
            }
            capacities[i] = capacities[i].max(least);
            i
        };
        if let Some((loads, demand)) = own {
            let links = loads.iter().map(|(c, load)| (at(*c, load * demand, &mut capacities), *load)).collect();
            flows.push(MaxMinFlow { links, demand, priority: 1.0 });
        }
        let touched = |class: u32| own.is_some_and(|o| o.0.binary_search_by_key(&class, |l| l.0).is_ok());
        for &j in jobs {
            let shared = |c: &&(u32, f64)| self.classes[c.0 as usize].users.len() > 1 || touched(c.0);
            let links = self.of_job[j as usize].iter().filter(shared);
            let links = links.map(|(c, load)| (at(*c, 0.0, &mut capacities), *load)).collect();
            flows.push(MaxMinFlow { links, demand: self.demands[j as usize], priority: 1.0 });
        }
        // The call fails only for numbers that no checked cluster and no finite demand give. The demands are an upper bound then.
        maxmin::share(&capacities, &flows).unwrap_or_else(|_| flows.iter().map(|f| f.demand).collect())
    }

    /// The effect of one candidate.
    fn effect(&self, collective: Collective, size: Bytes, candidate: &Allocation, alone_gb_per_s: f64) -> Effect {
        let mut effect = Effect {
            alone_gb_per_s,
            shared_gb_per_s: alone_gb_per_s,
            jobs_gb_per_s: self.now.iter().map(|v| (*v, *v)).collect(),
        };
        let used = |h: HostId| self.nics_used[h.index()] != 0;
        if candidate.host_count() < 2 || !(self.above_hosts || candidate.parts().iter().any(|p| used(p.0))) {
            return effect;
        }
        let loads = self.fabric.loads_on(candidate, collective, size, &used);
        let class = |(link, load): &(SharedLink, f64)| Some((*self.class_of.get(link)?, *load));
        let mut own: Vec<(u32, f64)> = loads.iter().filter_map(class).collect();
        if own.is_empty() {
            return effect;
        }
        // The largest load on each class decides.
        own.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
        own.dedup_by_key(|l| l.0);
        let mut jobs: Vec<u32> = Vec::new();
        let mut groups: Vec<u32> = Vec::new();
        for (j, _) in own.iter().flat_map(|(c, _)| &self.classes[*c as usize].users) {
            let group = &self.reached[*j as usize];
            if !groups.contains(&group[0]) {
                groups.push(group[0]);
                jobs.extend(group.iter());
            }
        }
        jobs.sort_unstable();
        let rates = self.share(&jobs, Some((&own, alone_gb_per_s.max(0.0))));
        effect.shared_gb_per_s = rates[0];
        for (j, rate) in jobs.into_iter().zip(&rates[1..]) {
            effect.jobs_gb_per_s[j as usize].1 = *rate;
        }
        effect
    }

    /// For some GPUs of a host: how many NICs they use and which of them they would share with running jobs; empty where no job uses NICs
    /// of the host.
    pub(crate) fn shared_nics(&self, host: HostId) -> Box<dyn Fn(GpuMask) -> Vec<f64> + '_> {
        let used = self.nics_used[host.index()];
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
