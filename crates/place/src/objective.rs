//! The objective of every search: the bandwidth of the new job among the running jobs, minus the weighted bandwidth
//! that they lose.
//!
//! A search sees only the [`Objective`], so every search works with every model, with and without running jobs. Candidates are judged in
//! batches.

use crate::means::{self, Means};
use crate::merge::Merge;
use crate::physical::Sharing;
use crate::request::{Contention, Request};
use predict::{BandwidthModel, Candidates, HostShare, HostShareTable};
use std::cell::Cell;
use std::rc::Rc;
use topology::{Allocation, Cluster};

/// Minimum share of the best score that a candidate must promise to be judged among the running jobs.
pub const PROMISING_SHARE: f64 = 0.9;
/// Maximum number of candidates of one batch that are judged among the running jobs.
pub const SHARED_MAX: usize = 96;
/// Number of candidates judged first; each next batch is twice as large.
const SHARED_BATCH: usize = 6;

/// A request with the model that judges its candidates.
pub struct Objective<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The model.
    pub model: &'a dyn BandwidthModel,
    /// The request.
    pub request: &'a Request,
    means: Rc<dyn Means + 'a>,
    running: Vec<Running>,
    /// Hosts of jobs that can contend, by index.
    busy: Vec<bool>,
    rule: Rule<'a>,
    evaluations: Cell<u64>,
    batches: Cell<u64>,
    meetings: Cell<u64>,
}

/// How the running jobs share bandwidth with a candidate.
pub(crate) enum Rule<'a> {
    /// Virtual merge.
    Merge(Merge),
    /// Flows over links.
    Physical(Sharing<'a>),
}

/// A job that can contend, with its share of each host.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    /// Index into the jobs of the request.
    pub job: usize,
    /// Its GPUs.
    pub gpus: Allocation,
    /// Bandwidth that it uses, GB/s.
    pub demand_gb_per_s: f64,
}

/// The effect of a choice on the new job and on the running jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Effect {
    /// Bandwidth of the new job without running jobs, GB/s.
    pub alone_gb_per_s: f64,
    /// Bandwidth of the new job among the running jobs, GB/s.
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
    /// Prepares the objective. O(jobs) predictions.
    pub fn new(cluster: &'a Cluster, model: &'a dyn BandwidthModel, request: &'a Request) -> Self {
        Self::with(cluster, model, request, means::of(model, request.size))
    }

    /// The same with the predictions of another objective of the same model and size.
    pub(crate) fn with(
        cluster: &'a Cluster,
        model: &'a dyn BandwidthModel,
        request: &'a Request,
        means: Rc<dyn Means + 'a>,
    ) -> Self {
        let table = model.share_table(request.size);
        let running: Vec<Running> = request
            .jobs
            .iter()
            .enumerate()
            .filter(|(_, j)| j.gpus.host_count() > 1)
            .map(|(job, j)| {
                let parts: Vec<HostShare> = j.gpus.parts().iter().map(|&(h, m)| table.part(h, m)).collect();
                let demand_gb_per_s = j.duty * j.demand_gb_per_s.unwrap_or_else(|| means.one(&parts));
                Running { job, gpus: j.gpus.clone(), demand_gb_per_s }
            })
            .collect();
        let rule = match request.contention {
            Contention::Physical => Rule::Physical(Sharing::new(cluster, model, request.size, &running)),
            Contention::Merge => Rule::Merge(Merge::new(table, &running, None)),
            Contention::MergeBy(rule) => Rule::Merge(Merge::new(table, &running, Some(rule))),
        };
        let mut busy = vec![false; if running.is_empty() { 0 } else { cluster.hosts.len() }];
        running.iter().flat_map(|r| r.gpus.parts()).for_each(|p| busy[p.0.index()] = true);
        Objective {
            cluster,
            model,
            request,
            means,
            running,
            busy,
            rule,
            evaluations: Cell::new(0),
            batches: Cell::new(0),
            meetings: Cell::new(0),
        }
    }

    /// The shares of hosts that searches combine.
    pub fn table(&self) -> &'a HostShareTable {
        self.model.share_table(self.request.size)
    }

    /// The share that these GPUs of a host form.
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
        self.means.all(candidates, out);
    }

    /// The scores for searches on many hosts, where judging a candidate among many running jobs costs more than
    /// predicting it. Candidates are judged in descending order of their upper bounds. Candidates that cannot reach
    /// `at_least` or [`PROMISING_SHARE`] of the best score get minus infinity. At most [`SHARED_MAX`] are judged among
    /// the jobs. One batch.
    pub fn promising_scores(&self, candidates: &Candidates, at_least: f64, out: &mut Vec<f64>) {
        self.alone(candidates, out);
        if !self.contended() {
            return;
        }
        let promise = |(i, alone): (usize, &f64)| {
            let parts = candidates.parts(i);
            let met = parts.iter().filter(|p| self.busy[p.host.index()]).count() as f64 / parts.len().max(1) as f64;
            (alone * (1.0 - met / 2.0), i)
        };
        let mut order: Vec<(f64, usize)> = out.iter().enumerate().map(promise).collect();
        order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let alone = std::mem::take(out);
        out.resize(alone.len(), f64::NEG_INFINITY);
        let (mut floor, mut judged, mut most) = (at_least, 0, SHARED_BATCH);
        let (mut batch, mut places, mut values) = (Candidates::new(), Vec::new(), Vec::new());
        let mut rest = order.into_iter().map(|o| o.1).peekable();
        while rest.peek().is_some() && judged < SHARED_MAX {
            batch.clear();
            places.clear();
            values.clear();
            while places.len() < most.min(SHARED_MAX - judged) {
                let Some(i) = rest.next() else { break };
                if alone[i] >= floor {
                    batch.push(candidates.parts(i));
                    places.push(i);
                    values.push(alone[i]);
                }
            }
            judged += places.len();
            most *= 2;
            self.shared(&batch, &mut values);
            for (i, v) in places.iter().zip(&values) {
                out[*i] = *v;
                floor = floor.max(PROMISING_SHARE * v);
            }
        }
    }

    /// Turns bandwidths without running jobs into scores among the running jobs.
    pub fn shared(&self, candidates: &Candidates, values_gb_per_s: &mut [f64]) {
        if !self.contended() {
            return;
        }
        self.meetings.set(self.meetings.get() + candidates.len() as u64);
        let weight = self.request.loss_weight;
        match &self.rule {
            Rule::Merge(m) => {
                let meetings = m.meetings(self.table(), &*self.means, candidates, false);
                values_gb_per_s.iter_mut().zip(meetings).for_each(|(v, m)| *v = m.score(*v, weight));
            }
            Rule::Physical(s) => {
                let effects = s.effects(self.model.collective(), self.request.size, candidates, values_gb_per_s);
                values_gb_per_s.iter_mut().zip(effects).for_each(|(v, e)| *v = e.score(weight));
            }
        }
    }

    /// The predictions of the request's size.
    pub(crate) fn means(&self) -> &Rc<dyn Means + 'a> {
        &self.means
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
        let alone = self.means.one(parts);
        self.effects(&one, &[alone]).remove(0)
    }

    fn effects(&self, candidates: &Candidates, alone_gb_per_s: &[f64]) -> Vec<Effect> {
        let size = self.request.size;
        let mut effects = match &self.rule {
            Rule::Merge(m) => m.effects(self.table(), &*self.means, candidates, alone_gb_per_s),
            Rule::Physical(s) => s.effects(self.model.collective(), size, candidates, alone_gb_per_s),
        };
        // Maps the jobs that can contend to all jobs of the request.
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
                        let busbw = j.demand_gb_per_s.unwrap_or_else(|| self.means.one(&parts));
                        let v = j.duty * busbw;
                        (v, v)
                    }
                })
                .collect();
        }
        effects
    }

    /// Number of candidates judged so far.
    pub fn evaluations(&self) -> u64 {
        self.evaluations.get()
    }

    /// Number of candidates judged among the running jobs so far.
    pub fn judged_among_jobs(&self) -> u64 {
        self.meetings.get()
    }

    /// Number of batches so far. Each is one call of the model that needs the result of the previous batch.
    pub fn batches(&self) -> u64 {
        self.batches.get()
    }
}
