//! The objective of every search: the bandwidth of the new job among the running jobs, less the bandwidth that they lose.
//!
//! A search sees only the [`Objective`], so every search works with every model, with and without running jobs. Candidates are judged in
//! batches.

use crate::merge::Merge;
use crate::physical::Sharing;
use crate::request::{Contention, Request};
use predict::{BandwidthModel, Candidates, HostShare, HostShareTable};
use std::cell::Cell;
use topology::{Allocation, Cluster};

/// A request with the model that judges its candidates.
pub struct Objective<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The model.
    pub model: &'a dyn BandwidthModel,
    /// The request.
    pub request: &'a Request,
    running: Vec<Running>,
    rule: Rule<'a>,
    evaluations: Cell<u64>,
    batches: Cell<u64>,
}

/// How the running jobs share bandwidth with a candidate.
pub(crate) enum Rule<'a> {
    /// Virtual merge.
    Merge(Merge),
    /// Flows over links.
    Physical(Sharing<'a>),
}

/// A job that can contend, with its shares of hosts.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    /// Index into the request's jobs.
    pub job: usize,
    /// Its GPUs.
    pub gpus: Allocation,
    /// Bandwidth that it uses, GB/s.
    pub demand_gb_per_s: f64,
}

/// The effect of a choice on the new job and on the running jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Effect {
    /// Bandwidth of the new job if it were alone, GB/s.
    pub alone_gb_per_s: f64,
    /// Bandwidth of the new job among the others, GB/s.
    pub shared_gb_per_s: f64,
    /// For each job of the request, in order: its bandwidth now and with the new job, GB/s.
    pub jobs_gb_per_s: Vec<(f64, f64)>,
}

impl Effect {
    /// The value that a search maximises, GB/s.
    pub fn score(&self, loss_weight: f64) -> f64 {
        let lost: f64 = self.jobs_gb_per_s.iter().map(|(before, after)| before - after).sum();
        self.shared_gb_per_s - loss_weight * lost
    }
}

impl<'a> Objective<'a> {
    /// Prepares. O(jobs) predictions.
    pub fn new(cluster: &'a Cluster, model: &'a dyn BandwidthModel, request: &'a Request) -> Self {
        let table = model.share_table(request.size);
        let running: Vec<Running> = request
            .jobs
            .iter()
            .enumerate()
            .filter(|(_, j)| j.gpus.host_count() > 1)
            .map(|(job, j)| {
                let parts: Vec<HostShare> = j.gpus.parts().iter().map(|&(h, m)| table.part(h, m)).collect();
                let demand_gb_per_s = j.demand_gb_per_s.unwrap_or_else(|| model.mean(request.size, &parts));
                Running { job, gpus: j.gpus.clone(), demand_gb_per_s }
            })
            .collect();
        let rule = match request.contention {
            Contention::Physical => Rule::Physical(Sharing::new(cluster, model, request.size, &running)),
            Contention::Merge => Rule::Merge(Merge::new(table, &running, None)),
            Contention::MergeBy(rule) => Rule::Merge(Merge::new(table, &running, Some(rule))),
        };
        Objective { cluster, model, request, running, rule, evaluations: Cell::new(0), batches: Cell::new(0) }
    }

    /// The shares of hosts that searches combine.
    pub fn table(&self) -> &'a HostShareTable {
        self.model.share_table(self.request.size)
    }

    /// The share of these GPUs of a host.
    pub fn part(&self, host: topology::HostId, mask: topology::GpuMask) -> HostShare {
        self.table().part(host, mask)
    }

    /// The score of each candidate, GB/s, in order; one batch. `out` is overwritten.
    pub fn scores(&self, candidates: &Candidates, out: &mut Vec<f64>) {
        self.alone(candidates, out);
        self.shared(candidates, out);
    }

    /// The bandwidth of each candidate without running jobs, GB/s: an upper bound of its score. One batch.
    pub fn alone(&self, candidates: &Candidates, out: &mut Vec<f64>) {
        self.evaluations.set(self.evaluations.get() + candidates.len() as u64);
        self.batches.set(self.batches.get() + 1);
        self.model.means(self.request.size, candidates, out);
    }

    /// Turns bandwidths without running jobs into scores among the running jobs.
    pub fn shared(&self, candidates: &Candidates, values_gb_per_s: &mut [f64]) {
        if !self.contended() {
            return;
        }
        let weight = self.request.loss_weight;
        match &self.rule {
            Rule::Merge(m) => {
                let meetings = m.meetings(self.model, self.request.size, candidates, false);
                values_gb_per_s.iter_mut().zip(meetings).for_each(|(v, m)| *v = m.score(*v, weight));
            }
            Rule::Physical(s) => {
                let effects = s.effects(self.model.collective(), self.request.size, candidates, values_gb_per_s);
                values_gb_per_s.iter_mut().zip(effects).for_each(|(v, e)| *v = e.score(weight));
            }
        }
    }

    /// The rule of sharing.
    pub(crate) fn rule(&self) -> &Rule<'a> {
        &self.rule
    }

    /// True if a running job can contend. A job inside one host, or one that uses no bandwidth, cannot.
    pub fn contended(&self) -> bool {
        self.running.iter().any(|r| r.demand_gb_per_s > 0.0)
    }

    /// The effect of a choice on the new job and on the running jobs.
    pub fn effect(&self, parts: &[HostShare]) -> Effect {
        let mut one = Candidates::new();
        one.push(parts);
        let alone = self.model.mean(self.request.size, parts);
        self.effects(&one, &[alone]).remove(0)
    }

    fn effects(&self, candidates: &Candidates, alone_gb_per_s: &[f64]) -> Vec<Effect> {
        let size = self.request.size;
        let mut effects = match &self.rule {
            Rule::Merge(m) => m.effects(self.model, size, candidates, alone_gb_per_s),
            Rule::Physical(s) => s.effects(self.model.collective(), size, candidates, alone_gb_per_s),
        };
        // From the jobs that can contend to all jobs of the request.
        let table = self.table();
        for e in &mut effects {
            let of_running = std::mem::take(&mut e.jobs_gb_per_s);
            let mut next = self.running.iter().zip(of_running).peekable();
            e.jobs_gb_per_s = (0..self.request.jobs.len())
                .map(|i| match next.peek() {
                    Some((r, _)) if r.job == i => next.next().map_or((0.0, 0.0), |n| n.1),
                    _ => {
                        let j = &self.request.jobs[i];
                        let parts: Vec<HostShare> = j.gpus.parts().iter().map(|&(h, m)| table.part(h, m)).collect();
                        let v = j.demand_gb_per_s.unwrap_or_else(|| self.model.mean(self.request.size, &parts));
                        (v, v)
                    }
                })
                .collect();
        }
        effects
    }

    /// Candidates judged so far.
    pub fn evaluations(&self) -> u64 {
        self.evaluations.get()
    }

    /// Batches so far; each is one call of the model that needs the result of the previous batch.
    pub fn batches(&self) -> u64 {
        self.batches.get()
    }
}
