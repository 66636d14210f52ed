//! Accuracy of a model, on random subsets of the GPUs (the test in the papers) and on the allocations that a decision
//! compares.
//!
//! The two differ: random subsets nearly always use every host, so their error is not the error on a search's
//! candidates (facts: placement-prototype, section 0).

use crate::model::BandwidthModel;
use crate::shares::{Candidates, HostShareTable};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use topology::{Allocation, Bytes, Cluster, GpuId, GpuMask, HostId};

/// Maximum number of attempts to draw one multi-host allocation.
const DRAWS_MAX: usize = 1000;

/// Errors of predictions against the truth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accuracy {
    /// Number of allocations compared.
    pub n: usize,
    /// Coefficient of determination; negative if the predictions are worse than the mean of the truth. NaN if the truth
    /// does not vary.
    pub r2: f64,
    /// Mean absolute error relative to the truth, percent.
    pub mape_percent: f64,
    /// Mean absolute error, GB/s.
    pub mae_gb_per_s: f64,
}

/// Accuracy of a model on allocations with their true bandwidths, GB/s; None without rows. Computed as one batch.
pub fn accuracy(model: &dyn BandwidthModel, size: Bytes, rows: &[(Allocation, f64)]) -> Option<Accuracy> {
    let candidates = Candidates::of(model.share_table(size), rows.iter().map(|r| &r.0));
    let mut means = Vec::new();
    model.means(size, &candidates, &mut means);
    let pairs: Vec<(f64, f64)> = means.into_iter().zip(rows.iter().map(|r| r.1)).collect();
    figures(&pairs)
}

/// Accuracy from pairs of prediction and truth.
pub fn figures(pairs: &[(f64, f64)]) -> Option<Accuracy> {
    if pairs.is_empty() {
        return None;
    }
    let n = pairs.len() as f64;
    let mean = pairs.iter().map(|p| p.1).sum::<f64>() / n;
    let total: f64 = pairs.iter().map(|p| (p.1 - mean).powi(2)).sum();
    let left: f64 = pairs.iter().map(|p| (p.1 - p.0).powi(2)).sum();
    Some(Accuracy {
        n: pairs.len(),
        r2: if total > 0.0 { 1.0 - left / total } else { f64::NAN },
        mape_percent: 100.0 * pairs.iter().map(|p| ((p.0 - p.1) / p.1).abs()).sum::<f64>() / n,
        mae_gb_per_s: pairs.iter().map(|p| (p.0 - p.1).abs()).sum::<f64>() / n,
    })
}

fn unit(rng: &mut ChaCha8Rng) -> f64 {
    f64::from(rng.next_u32()) / (f64::from(u32::MAX) + 1.0)
}

/// Shuffles in place (Fisher and Yates).
pub fn shuffle<T>(items: &mut [T], rng: &mut ChaCha8Rng) {
    for i in (1..items.len()).rev() {
        items.swap(i, rng.next_u32() as usize % (i + 1));
    }
}

/// Multi-host allocations, drawn as BandPilot draws them: every GPU with a probability that is itself drawn from 0.1 to
/// 0.9. Returns fewer than `n` only if the cluster has too few hosts.
pub fn random_subsets(cluster: &Cluster, n: usize, seed: u64) -> Vec<Allocation> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut draw = || {
        let density = 0.1 + 0.8 * unit(&mut rng);
        Allocation::new(cluster.host_ids().map(|h| {
            let gpus = cluster.type_of(h).all_gpus().iter().filter(|_| unit(&mut rng) < density);
            (h, GpuMask(gpus.fold(0, |m, g| m | 1 << g)))
        }))
    };
    (0..n).filter_map(|_| (0..DRAWS_MAX).map(|_| draw()).find(|a| a.host_count() > 1)).collect()
}

/// Training allocations as BandPilot's published code draws them: shares of 10 to 88 % of the GPUs. Half of the
/// allocations are spread evenly over two or more random hosts, half are random over several hosts. No two are equal.
/// Returns fewer than `n` only if the cluster is too small.
pub fn bandpilot_design(cluster: &Cluster, n: usize, seed: u64) -> Vec<Allocation> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let gpus: Vec<GpuId> = cluster
        .host_ids()
        .flat_map(|host| cluster.type_of(host).all_gpus().iter().map(move |gpu| GpuId { host, gpu: gpu as u8 }))
        .collect();
    let share = |i: usize| match i % 28 {
        i if i < 21 => 0.1 + 0.02 * i as f64,
        i => 0.52 + 0.06 * (i - 21) as f64,
    };
    let mut counts: Vec<usize> = (0..n).map(|i| ((gpus.len() as f64 * share(i)) as usize).max(2)).collect();
    shuffle(&mut counts, &mut rng);
    let mut out: Vec<Allocation> = Vec::with_capacity(n);
    for (i, k) in counts.into_iter().enumerate() {
        let mut draw = || {
            let mut all = gpus.clone();
            shuffle(&mut all, &mut rng);
            if i >= n / 2 {
                return Allocation::from_gpus(all.into_iter().take(k));
            }
            let mut hosts: Vec<HostId> = cluster.host_ids().collect();
            shuffle(&mut hosts, &mut rng);
            hosts.truncate(2 + rng.next_u32() as usize % hosts.len().saturating_sub(1).max(1));
            let (each, more) = (k / hosts.len(), k % hosts.len());
            let taken = hosts.iter().enumerate().flat_map(|(at, h)| {
                let wanted = each + usize::from(at < more);
                all.iter().filter(move |g| g.host == *h).take(wanted).copied()
            });
            let a = Allocation::from_gpus(taken);
            if a.gpu_count() == k { a } else { Allocation::new([]) } // a host has too few
        };
        let fresh = |a: &Allocation| a.host_count() > 1 && !out.contains(a);
        if let Some(a) = (0..DRAWS_MAX).map(|_| draw()).find(fresh) {
            out.push(a);
        }
    }
    out
}

/// Allocations that a decision compares. For a random request on a partly busy cluster, GPUs are spread over some
/// hosts, near balance or a few moves away from it; each host contributes its free GPUs with the best intra bandwidth.
pub fn compared(cluster: &Cluster, table: &HostShareTable, n: usize, seed: u64) -> Vec<Allocation> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut draw = || {
        let free_share = 0.3 + 0.7 * unit(&mut rng);
        let mut free: Vec<(HostId, GpuMask)> = cluster
            .host_ids()
            .map(|h| {
                let gpus = cluster.type_of(h).all_gpus().iter().filter(|_| unit(&mut rng) < free_share);
                (h, GpuMask(gpus.fold(0, |m, g| m | 1 << g)))
            })
            .filter(|f| !f.1.is_empty())
            .collect();
        shuffle(&mut free, &mut rng);
        let hosts = 2 + rng.next_u32() as usize % free.len().saturating_sub(1).max(1);
        free.truncate(hosts);
        let room: usize = free.iter().map(|f| f.1.count()).sum();
        if free.len() < 2 {
            return Allocation::new([]);
        }
        let k = free.len() + rng.next_u32() as usize % (room - free.len() + 1);
        let mut counts = vec![0usize; free.len()];
        for _ in 0..k {
            // The host with the fewest chosen GPUs and room for another one: as even as the free GPUs allow.
            let next = (0..counts.len()).filter(|i| counts[*i] < free[*i].1.count()).min_by_key(|i| counts[*i]);
            counts[next.expect("k is at most what is free")] += 1;
        }
        for _ in 0..rng.next_u32() % 4 {
            let (from, to) = (rng.next_u32() as usize % counts.len(), rng.next_u32() as usize % counts.len());
            if from != to && counts[from] > 1 && counts[to] < free[to].1.count() {
                counts[from] -= 1;
                counts[to] += 1;
            }
        }
        Allocation::new(free.iter().zip(&counts).map(|(f, c)| (f.0, best_mask(table, f.0, f.1, *c))))
    };
    (0..n).filter_map(|_| (0..DRAWS_MAX).map(|_| draw()).find(|a| a.host_count() > 1)).collect()
}

/// The `count` GPUs of `free` with the best intra bandwidth; the first among equals.
fn best_mask(table: &HostShareTable, host: HostId, free: GpuMask, count: usize) -> GpuMask {
    let mut best = (f64::NEG_INFINITY, GpuMask::EMPTY);
    for mask in free.subsets().filter(|m| m.count() == count) {
        let v = table.intra_gb_per_s(host, mask);
        if v > best.0 {
            best = (v, mask);
        }
    }
    best.1
}
