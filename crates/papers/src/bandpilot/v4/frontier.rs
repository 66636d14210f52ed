//! EHA's plans in version 4: a few balanced splits and their neighbours, over hosts, or first over pods of hosts and
//! then over hosts.
//!
//! A plan is the number of GPUs that each unit (host or pod) gives. Units are ordered by free GPUs, most first. The
//! plans are:
//!
//! - One that fills the units in order.
//! - The even plan over the fewest units that can hold the job, and its neighbours. A neighbour moves one GPU between
//!   two units, or exchanges one unit for an unused unit with as many free GPUs.
//! - The same over one unit more.
//!
//! The best few by [`priority`] are kept; it does not use bandwidth.

use crate::hosts::best_masks;
use place::Objective;
use place::search::hosts::{FreeHost, freest_first};
use std::cmp::Reverse;
use topology::{Allocation, GpuMask, HostId};

/// Hosts of a pod, in host order.
const POD_HOSTS: usize = 4;
/// Maximum number of plans over hosts that are judged if there is one pod, without and with other jobs.
const FLAT_BUDGET: [usize; 2] = [5, 8];
/// Maximum number of plans over pods.
const POD_BUDGET: usize = 8;
/// Maximum number of plans over the hosts of one pod, and of combinations of pods that are kept.
const HOST_BUDGET: usize = 4;
/// Maximum number of plans over one unit more.
const WIDER_BUDGET: usize = 2;
/// Maximum number of units of an even split that take part in moves and exchanges: those with the most free GPUs.
const MOVING_UNITS_MAX: usize = 32;

/// The allocations to judge.
pub(super) struct Plans {
    pub allocations: Vec<Allocation>,
    /// Used share of the budget, 0 to 1.
    pub coverage: f64,
}

/// Counts per unit, and the priority of the split.
#[derive(Clone, PartialEq)]
struct Plan {
    counts: Vec<usize>,
    priority: f64,
}

/// Plans for a request that no single host can hold.
pub(super) fn plans(objective: &Objective, free: &Allocation) -> Plans {
    let k = objective.request.gpus;
    let hosts = freest_first(free);
    if hosts.len() <= POD_HOSTS { flat(objective, &hosts, k) } else { hierarchical(objective, &hosts, k) }
}

fn flat(objective: &Objective, hosts: &[FreeHost], k: usize) -> Plans {
    let capacities: Vec<usize> = hosts.iter().map(|h| h.1.count()).collect();
    let budget = FLAT_BUDGET[usize::from(objective.contended())];
    let mut all: Vec<Plan> = plan(&capacities, in_order(&capacities, k)).into_iter().collect();
    let fewest = fewest(&capacities, k);
    all.extend(around(&capacities, k, fewest, budget, true));
    // One additional host is tried among jobs, and for numbers of GPUs that fill whole hosts.
    let fills_a_host = even(&capacities, k, fewest).is_some_and(|c| c.iter().zip(&capacities).any(|(c, m)| c == m));
    let wider = objective.contended() || (k >= 16 && k.is_multiple_of(8) && fills_a_host);
    let widths = if wider && fewest < capacities.len() {
        all.extend(around(&capacities, k, fewest + 1, WIDER_BUDGET, false));
        2
    } else {
        1
    };
    let masks = best_masks(objective.table(), hosts, k);
    let counts = unique(all);
    let allocations = counts.iter().map(|p| realise(hosts, &masks, &p.counts)).collect();
    Plans { allocations, coverage: coverage(widths, counts.len(), budget) }
}

fn hierarchical(objective: &Objective, hosts: &[FreeHost], k: usize) -> Plans {
    let mut pods: Vec<Vec<FreeHost>> = Vec::new();
    let mut in_order_of_id = hosts.to_vec();
    in_order_of_id.sort_unstable();
    for pod in in_order_of_id.chunk_by(|a, b| a.0.index() / POD_HOSTS == b.0.index() / POD_HOSTS) {
        let mut pod = pod.to_vec();
        pod.sort_by_key(|(h, m)| (Reverse(m.count()), *h));
        pods.push(pod);
    }
    let gpus = |pod: &Vec<FreeHost>| pod.iter().map(|h| h.1.count()).sum::<usize>();
    pods.sort_by_key(|pod| (Reverse(gpus(pod)), pod[0].0));
    let capacities: Vec<usize> = pods.iter().map(gpus).collect();
    let fewest_pods = fewest(&capacities, k);
    let mut over_pods: Vec<Plan> = plan(&capacities, in_order(&capacities, k)).into_iter().collect();
    over_pods.extend(around(&capacities, k, fewest_pods, POD_BUDGET, true));
    over_pods.extend(around(&capacities, k, fewest_pods + 1, WIDER_BUDGET, false));
    let over_pods = unique(over_pods);
    let masks: Vec<Vec<Vec<GpuMask>>> = pods.iter().map(|p| best_masks(objective.table(), p, k)).collect();
    let mut allocations: Vec<Allocation> = Vec::new();
    for plan in &over_pods {
        for parts in follow(&pods, &masks, plan) {
            let a = Allocation::new(parts);
            if !allocations.contains(&a) {
                allocations.push(a);
            }
        }
    }
    Plans { allocations, coverage: coverage(2, over_pods.len(), POD_BUDGET) }
}

/// The best few ways to divide a plan over pods among their hosts.
fn follow(pods: &[Vec<FreeHost>], masks: &[Vec<Vec<GpuMask>>], plan: &Plan) -> Vec<Vec<(HostId, GpuMask)>> {
    let mut partial: Vec<(f64, Vec<(HostId, GpuMask)>)> = vec![(plan.priority, Vec::new())];
    for (i, &count) in plan.counts.iter().enumerate().filter(|c| *c.1 > 0) {
        let capacities: Vec<usize> = pods[i].iter().map(|h| h.1.count()).collect();
        let fewest = fewest(&capacities, count);
        let mut inside = around(&capacities, count, fewest, HOST_BUDGET, true);
        inside.extend(around(&capacities, count, fewest + 1, 1, false));
        let mut inside = unique(inside);
        inside.truncate(HOST_BUDGET);
        let mut next: Vec<(f64, Vec<(HostId, GpuMask)>)> = Vec::new();
        for (priority, parts) in &partial {
            for p in &inside {
                let mut parts = parts.clone();
                parts.extend(realise(&pods[i], &masks[i], &p.counts).parts());
                next.push((priority + p.priority, parts));
            }
        }
        next.sort_by(|a, b| b.0.total_cmp(&a.0));
        next.truncate(HOST_BUDGET);
        partial = next;
    }
    partial.into_iter().map(|p| p.1).collect()
}

/// GPUs for counts per host: on each host those with the best intra bandwidth.
fn realise(hosts: &[FreeHost], masks: &[Vec<GpuMask>], counts: &[usize]) -> Allocation {
    let of = |i: usize, c: usize| (hosts[i].0, masks[i][c - 1]);
    Allocation::new(counts.iter().enumerate().filter(|c| *c.1 > 0).map(|(i, c)| of(i, *c)))
}

/// Number of units, those with the most free GPUs first, that hold `k` GPUs.
fn fewest(capacities: &[usize], k: usize) -> usize {
    let mut held = 0;
    capacities
        .iter()
        .take_while(|c| {
            let more = held < k;
            held += **c;
            more
        })
        .count()
}

/// Fills the units in order.
fn in_order(capacities: &[usize], k: usize) -> Option<Vec<usize>> {
    let mut left = k;
    let counts = capacities
        .iter()
        .map(|c| {
            let take = left.min(*c);
            left -= take;
            take
        })
        .collect();
    (left == 0).then_some(counts)
}

/// The most even split over the first `units` units.
fn even(capacities: &[usize], k: usize, units: usize) -> Option<Vec<usize>> {
    if units > capacities.len() || capacities[..units].iter().sum::<usize>() < k {
        return None;
    }
    let mut counts = vec![0; capacities.len()];
    for _ in 0..k {
        let least = (0..units).filter(|i| counts[*i] < capacities[*i]).min_by_key(|i| counts[*i])?;
        counts[least] += 1;
    }
    Some(counts)
}

/// The `budget` splits of highest priority among the even split over the first `units` units and its neighbours.
fn around(capacities: &[usize], k: usize, units: usize, budget: usize, exchange: bool) -> Vec<Plan> {
    let Some(base) = even(capacities, k, units) else { return Vec::new() };
    let used: Vec<usize> = (0..base.len()).filter(|i| base[*i] > 0).take(MOVING_UNITS_MAX).collect();
    let mut all = vec![base.clone()];
    for &from in &used {
        for &to in used.iter().filter(|to| **to != from && base[**to] < capacities[**to]) {
            let mut moved = base.clone();
            moved[from] -= 1;
            moved[to] += 1;
            all.push(moved);
        }
        if exchange {
            for other in (units..base.len()).filter(|o| capacities[*o] == capacities[from]).take(MOVING_UNITS_MAX) {
                let mut exchanged = base.clone();
                exchanged.swap(from, other);
                all.push(exchanged);
            }
        }
    }
    all.sort_unstable();
    all.dedup();
    let mut plans: Vec<Plan> = all.into_iter().filter_map(|c| plan(capacities, Some(c))).collect();
    plans.sort_by(|a, b| b.priority.total_cmp(&a.priority).then_with(|| a.counts.cmp(&b.counts)));
    plans.truncate(budget);
    plans
}

fn plan(capacities: &[usize], counts: Option<Vec<usize>>) -> Option<Plan> {
    counts.map(|counts| Plan { priority: priority(&counts, capacities), counts })
}

/// Priority of a split: higher for full units, few units, even counts, units close to each other. 100 x least
/// density + 10 x mean density - 4 x units - sum of |count - mean| - 0.25 x distance from the first to the last.
fn priority(counts: &[usize], capacities: &[usize]) -> f64 {
    let used: Vec<usize> = (0..counts.len()).filter(|i| counts[*i] > 0).collect();
    let (Some(first), Some(last)) = (used.first(), used.last()) else { return f64::NEG_INFINITY };
    let units = used.len() as f64;
    let densities = used.iter().map(|i| counts[*i] as f64 / capacities[*i].max(1) as f64);
    let mean = used.iter().map(|i| counts[*i]).sum::<usize>() as f64 / units;
    let imbalance: f64 = used.iter().map(|i| (counts[*i] as f64 - mean).abs()).sum();
    100.0 * densities.clone().fold(f64::INFINITY, f64::min) + 10.0 * densities.sum::<f64>() / units
        - 4.0 * units
        - imbalance
        - 0.25 * (last - first) as f64
}

/// The first plan of each split.
fn unique(plans: Vec<Plan>) -> Vec<Plan> {
    let mut out: Vec<Plan> = Vec::with_capacity(plans.len());
    for p in plans {
        if out.iter().all(|o| o.counts != p.counts) {
            out.push(p);
        }
    }
    out
}

fn coverage(widths: usize, plans: usize, budget: usize) -> f64 {
    0.5 * (widths as f64 / 2.0).min(1.0) + 0.5 * (plans as f64 / budget as f64).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_even_split_comes_with_its_neighbours() {
        let plans = around(&[8, 8, 8], 10, 2, 8, true);
        let counts: Vec<&[usize]> = plans.iter().map(|p| p.counts.as_slice()).collect();
        for c in [[5, 5, 0], [6, 4, 0], [4, 6, 0], [0, 5, 5], [5, 0, 5]] {
            assert!(counts.contains(&c.as_slice()), "{c:?} in {counts:?}");
        }
        assert!(plans.windows(2).all(|w| w[0].priority >= w[1].priority));
        assert_eq!(plans[0].priority, priority(&[5, 5, 0], &[8, 8, 8]), "the even split is the most promising");
    }

    #[test]
    fn filling_in_order_packs() {
        assert_eq!(in_order(&[6, 6], 8), Some(vec![6, 2]));
        assert_eq!(in_order(&[6, 1], 8), None);
        assert_eq!(fewest(&[6, 6, 4], 8), 2);
    }
}
