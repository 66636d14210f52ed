//! The GPUs that Slurm allocates for `sbatch --gpus=k` (`select/cons_tres`).
//!
//! Written from its documentation (the topology guide, the gres.conf and select plugin pages of schedmd.com) and from
//! observed behaviour of version 22.05: `--gpus=8` over at least three idle nodes gives 6+1+1, lowest GPUs first.
//! Assumptions where sites differ: CPUs are free in proportion to GPUs, all nodes have one weight, and
//! `AutoDetect=nvml` fills `Links` of gres.conf, so that Slurm prefers the GPUs of a node with the most NVLinks between
//! them. Without `Links` Slurm takes the lowest indices, so this assumption favours Slurm.

use super::hosts::{FreeHost, fill};
use super::links::{PairSums, nvlinks};
use topology::{Allocation, Cluster};

/// Best fit without a topology plugin: Slurm's "one-dimensional array" of nodes.
///
/// Forms runs of consecutive nodes with free GPUs. Until the job has its GPUs, takes the tightest run that can hold the
/// rest, otherwise the largest run; inside a run the tightest node that can hold the rest, otherwise its nodes in
/// order. No evaluations; O(hosts²) at worst.
pub fn best_fit(cluster: &Cluster, free: &Allocation, k: usize) -> Option<Allocation> {
    if k == 0 || free.gpu_count() < k {
        return None;
    }
    let mut runs: Vec<Vec<FreeHost>> = Vec::new();
    for &(h, m) in free.parts() {
        match runs.last_mut() {
            Some(run) if run.last().is_some_and(|l| l.0.0 + 1 == h.0) => run.push((h, m)),
            _ => runs.push(vec![(h, m)]),
        }
    }
    take(cluster, by_best_fit(runs, k), k)
}

/// Best fit with `topology/tree`, whose switches are the cluster file's tiers (nearest to the hosts first). Without
/// tiers one switch connects all hosts.
///
/// The topology guide: "identify the lowest level switch in the hierarchy that can satisfy a job's request", then
/// "select resources on its underlying leaf switches using a best-fit algorithm". Among switches of one level, takes
/// the tightest; leaves and nodes are taken like runs and nodes in [`best_fit`]. Slurm's own code takes the nodes of a
/// leaf in order; taking the tightest node first favours Slurm. No evaluations.
pub fn tree(cluster: &Cluster, free: &Allocation, k: usize) -> Option<Allocation> {
    if k == 0 || free.gpu_count() < k {
        return None;
    }
    let tiers = cluster.tiers().len();
    for tier in 0..=tiers {
        let fitting = under_switches(cluster, free.parts(), tier).into_iter().filter(|s| gpus(s) >= k);
        if let Some(switch) = fitting.min_by_key(|s| gpus(s)) {
            return take(cluster, by_best_fit(under_switches(cluster, &switch, 0), k), k);
        }
    }
    None
}

fn gpus(hosts: &[FreeHost]) -> usize {
    hosts.iter().map(|h| h.1.count()).sum()
}

/// Free hosts by the switch of a tier above them; above the highest tier, one switch connects all hosts.
fn under_switches(cluster: &Cluster, hosts: &[FreeHost], tier: usize) -> Vec<Vec<FreeHost>> {
    let switch = |h: &FreeHost| if tier < cluster.tiers().len() { cluster.switch_of(tier, h.0) } else { 0 };
    let mut sorted = hosts.to_vec();
    sorted.sort_by_key(switch);
    sorted.chunk_by(|a, b| switch(a) == switch(b)).map(<[FreeHost]>::to_vec).collect()
}

/// The hosts in the order in which best fit takes them from the groups, until they have `k` GPUs.
fn by_best_fit(mut groups: Vec<Vec<FreeHost>>, k: usize) -> Vec<FreeHost> {
    let mut order = Vec::new();
    let mut left = k;
    while left > 0 && !groups.is_empty() {
        let tightest = (0..groups.len()).filter(|g| gpus(&groups[*g]) >= left).min_by_key(|g| gpus(&groups[*g]));
        let largest = || (0..groups.len()).max_by_key(|g| (gpus(&groups[*g]), std::cmp::Reverse(*g)));
        let Some(g) = tightest.or_else(largest) else { break };
        let mut group = groups.swap_remove(g);
        groups.sort_by_key(|g| g[0].0);
        if let Some(&node) = group.iter().filter(|h| h.1.count() >= left).min_by_key(|h| h.1.count()) {
            group = vec![node];
        }
        left = left.saturating_sub(gpus(&group));
        order.extend(group);
    }
    order
}

/// `k` GPUs from hosts in order; on each host those with the most NVLinks between them.
fn take(cluster: &Cluster, order: Vec<FreeHost>, k: usize) -> Option<Allocation> {
    let mut links = PairSums::new(cluster, nvlinks);
    fill(order, k, |h, m, count| links.best(h, m, count))
}
