//! Contention as BandPilot models it (arXiv 2506.15595 v4): jobs that meet are merged in thought.
//!
//! Only jobs that span hosts contend, and only with jobs on whose hosts they are. For a candidate C and a running job J, the GPUs of J on
//! C's hosts join C, and the GPUs of C on J's hosts join J; the smaller bandwidth of the two merged sets is what both share. Over several
//! jobs the smallest counts. Where the demands exceed it, everybody gets a share in proportion to its demand.

use crate::objective::{Effect, Running};
use predict::{BandwidthModel, Candidates, Part, PartTable};
use topology::{Allocation, Bytes};

/// `a` and the GPUs of `b` on hosts of `a`.
fn joined(table: &PartTable, a: &[Part], b: &[Part]) -> Vec<Part> {
    a.iter()
        .map(|p| match b.iter().find(|q| q.host == p.host) {
            Some(q) => table.part(p.host, p.mask.union(q.mask)),
            None => *p,
        })
        .collect()
}

fn parts(table: &PartTable, a: &Allocation) -> Vec<Part> {
    a.parts().iter().map(|&(h, m)| table.part(h, m)).collect()
}

/// The effect of every candidate on itself and on the running jobs (which span hosts), in two batches of predictions.
pub(crate) fn effects(
    model: &dyn BandwidthModel,
    size: Bytes,
    running: &[Running],
    candidates: &Candidates,
    alone_gb_per_s: &[f64],
) -> Vec<Effect> {
    let table = model.part_table(size);
    let jobs: Vec<Vec<Part>> = running.iter().map(|r| parts(table, &r.gpus)).collect();
    let mut merged = Candidates::new();
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    for (i, c) in candidates.iter().enumerate() {
        for (j, job) in jobs.iter().enumerate() {
            if c.len() > 1 && c.iter().any(|p| job.iter().any(|q| q.host == p.host)) {
                merged.push(&joined(table, c, job));
                merged.push(&joined(table, job, c));
                pairs.push((i, j));
            }
        }
    }
    let mut means = Vec::new();
    model.means(size, &merged, &mut means);
    let mut out: Vec<Effect> = alone_gb_per_s
        .iter()
        .map(|&v| Effect {
            alone_gb_per_s: v,
            shared_gb_per_s: v,
            jobs_gb_per_s: running.iter().map(|r| (r.demand_gb_per_s, r.demand_gb_per_s)).collect(),
        })
        .collect();
    let mut at = 0;
    while at < pairs.len() {
        let i = pairs[at].0;
        let end = at + pairs[at..].iter().take_while(|p| p.0 == i).count();
        let capacity = (2 * at..2 * end).map(|m| means[m]).fold(f64::INFINITY, f64::min);
        let others: f64 = pairs[at..end].iter().map(|p| running[p.1].demand_gb_per_s).sum();
        let demand = alone_gb_per_s[i] + others;
        if demand > capacity && demand > 0.0 {
            let share = capacity / demand;
            out[i].shared_gb_per_s = alone_gb_per_s[i] * share;
            for p in &pairs[at..end] {
                out[i].jobs_gb_per_s[p.1].1 = running[p.1].demand_gb_per_s * share;
            }
        }
        at = end;
    }
    out
}
