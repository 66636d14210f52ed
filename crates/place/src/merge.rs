//! Contention as BandPilot models it (arXiv 2506.15595 v4): jobs that meet are merged in thought.
//!
//! Only jobs that span hosts contend, and only with jobs on whose hosts they are. For a candidate C and a running job J, the GPUs of J on
//! C's hosts join C, and the GPUs of C on J's hosts join J; the smaller bandwidth of the two merged sets is what both share. Over several
//! jobs the smallest counts. Where the demands exceed it, everybody gets a share in proportion to its demand. A job that uses nothing
//! (BandPilot's "idle" load) is as good as absent. By counts, a merged set that a host has too few GPUs for is passed over.

use crate::objective::{Effect, Running};
use predict::{BandwidthModel, Candidates, Part, PartTable};
use topology::{Allocation, Bytes, GpuMask};

/// `a` and the GPUs of `b` on hosts of `a`; None if, by counts, a host would need more GPUs than it has.
fn joined(table: &PartTable, a: &[Part], b: &[Part], by_counts: bool) -> Option<Vec<Part>> {
    a.iter()
        .map(|p| {
            let other = b.iter().find(|q| q.host == p.host).map_or(GpuMask::EMPTY, |q| q.mask);
            if !by_counts {
                return Some(if other.is_empty() { *p } else { table.part(p.host, p.mask.union(other)) });
            }
            let n = p.mask.count() + other.count();
            (n <= table.all_gpus(p.host).count()).then(|| table.part(p.host, GpuMask::first(n)))
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
    by_counts: bool,
    candidates: &Candidates,
    alone_gb_per_s: &[f64],
) -> Vec<Effect> {
    let table = model.part_table(size);
    let jobs: Vec<Vec<Part>> = running.iter().map(|r| parts(table, &r.gpus)).collect();
    let mut merged = Candidates::new();
    // (candidate, job, where its merged sets end)
    let mut pairs: Vec<(usize, usize, usize)> = Vec::new();
    for (i, c) in candidates.iter().enumerate() {
        for (j, job) in jobs.iter().enumerate() {
            if c.len() > 1 && running[j].demand_gb_per_s > 0.0 && c.iter().any(|p| job.iter().any(|q| q.host == p.host))
            {
                for set in [joined(table, c, job, by_counts), joined(table, job, c, by_counts)].into_iter().flatten() {
                    merged.push(&set);
                }
                pairs.push((i, j, merged.len()));
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
    let (mut at, mut from) = (0, 0);
    while at < pairs.len() {
        let i = pairs[at].0;
        let end = at + pairs[at..].iter().take_while(|p| p.0 == i).count();
        let to = pairs[end - 1].2;
        let capacity = means[from..to].iter().copied().fold(f64::INFINITY, f64::min);
        let others: f64 = pairs[at..end].iter().map(|p| running[p.1].demand_gb_per_s).sum();
        let demand = alone_gb_per_s[i] + others;
        if demand > capacity && demand > 0.0 {
            let share = capacity / demand;
            out[i].shared_gb_per_s = alone_gb_per_s[i] * share;
            for p in &pairs[at..end] {
                out[i].jobs_gb_per_s[p.1].1 = running[p.1].demand_gb_per_s * share;
            }
        }
        (at, from) = (end, to);
    }
    out
}
