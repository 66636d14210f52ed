//! The next measurement that best separates the candidates of a defect.

use super::ask::SURE;
use super::effect::{Component, Effects, Touch};
use super::infer::Defect;
use super::window::JOB_HOSTS_MAX;
use predict::Model;
use std::collections::BTreeMap;
use topology::{Allocation, Bytes, Cluster, GpuMask, HostId};

/// The allocation of free GPUs whose bandwidth best separates the candidates of a defect: candidates with about half of
/// the probability would slow it. `None` if no free allocation separates them.
///
/// Each trial uses a part of one suspected host's GPUs, the most or the least suspected. For defects between hosts, the
/// part is combined with the same number of GPUs of another host; for defects inside a host, it is measured alone. If
/// more hosts than [`HOSTS_TRIED`] are suspected, parts of all suspects are tried, too. O(hosts x GPUs x candidates)
/// effects.
///
/// `read` are the allocations measured since the defect was suspected. They are not repeated, because a repetition
/// shares their irregularity.
pub fn most_informative_allocation(
    model: &Model,
    defect: &Defect,
    free: &Allocation,
    size: Bytes,
    read: &[Allocation],
) -> Option<Allocation> {
    let cluster = model.cluster();
    let effects = Effects::new(cluster, model);
    // The suspected probability of every GPU of the suspected hosts.
    let mut weight: BTreeMap<(HostId, usize), f64> = BTreeMap::new();
    for c in &defect.candidates {
        let h = c.component.host();
        let ty = cluster.type_of(h);
        for g in free.mask(h).iter() {
            let own = match c.component {
                Component::Host(_) | Component::HostNetwork(_) => true,
                Component::Nic(_, i) => ty.nearest_nics(g) >> i & 1 == 1,
                Component::Gpu(_, x) => usize::from(x) == g,
                Component::Link(_, a, b) => usize::from(a) == g || usize::from(b) == g,
            };
            *weight.entry((h, g)).or_default() += if own { c.probability } else { 0.0 };
        }
    }
    let weight_of = |h: HostId, g: usize| weight.get(&(h, g)).copied().unwrap_or(0.0);
    let suspected =
        |h: HostId| defect.candidates.iter().filter(|c| c.component.host() == h).map(|c| c.probability).sum::<f64>();
    let mut hosts: Vec<HostId> = free.parts().iter().map(|p| p.0).collect();
    hosts.sort_by(|a, b| suspected(*a).total_cmp(&suspected(*b)).then(a.cmp(b)));
    let mut tried: Vec<Allocation> = Vec::new();
    for h in hosts.iter().rev().take(HOSTS_TRIED).filter(|h| suspected(**h) > 0.0) {
        let mut gpus: Vec<usize> = free.mask(*h).iter().collect();
        gpus.sort_by(|a, b| weight_of(*h, *b).total_cmp(&weight_of(*h, *a)).then(a.cmp(b)));
        // The most suspected GPUs, and the remaining ones: a slow NIC and a slow network differ only on the other NICs.
        let parts = (1..=gpus.len()).map(|n| &gpus[..n]).chain((1..gpus.len()).map(|n| &gpus[n..]));
        for part in parts {
            let n = part.len();
            let part = GpuMask::from_indices(part.iter().copied());
            if n > 1 {
                tried.push(Allocation::new([(*h, part)]));
            }
            // The partner: the least suspected GPUs of the least suspected host with enough free GPUs.
            let beside = hosts.iter().find(|o| **o != *h && free.mask(**o).count() >= n);
            if let Some(o) = beside {
                let mut theirs: Vec<usize> = free.mask(*o).iter().collect();
                theirs.sort_by(|a, b| weight_of(*o, *a).total_cmp(&weight_of(*o, *b)).then(a.cmp(b)));
                let theirs = GpuMask::from_indices(theirs.into_iter().take(n));
                tried.push(Allocation::new([(*h, part), (*o, theirs)]));
            }
        }
    }
    // Of many suspected hosts, each with little of the probability: parts of all of them, one suspected GPU on each.
    let suspects: Vec<HostId> = hosts.iter().rev().copied().filter(|h| suspected(*h) > 0.0).collect();
    if suspects.len() > HOSTS_TRIED {
        let most = |h: &HostId| {
            let gpus = free.mask(*h).iter();
            gpus.reduce(|a, b| if weight_of(*h, b) > weight_of(*h, a) { b } else { a }).map(|g| (*h, GpuMask(1 << g)))
        };
        let sizes = std::iter::successors(Some(suspects.len().min(2 * JOB_HOSTS_MAX) / 2), |n| Some(n / 2));
        for n in sizes.take_while(|n| *n > 1) {
            tried.push(Allocation::new(suspects[..n].iter().filter_map(most)));
        }
    }
    tried.retain(|a| !read.contains(a));
    let total: f64 = defect.candidates.iter().map(|c| c.probability).sum();
    let shares: Vec<f64> = tried.iter().map(|a| shown(&effects, defect, a, size)).collect();
    // The candidates are separated from each other; if no reading does, an uncertain defect from no defect.
    let separated_from = |all: f64| {
        let information = |share: f64| (share / all.max(1e-9)).min(1.0 - share / all.max(1e-9));
        let each = shares.iter().zip(&tried).map(|(share, a)| (information(*share), a));
        each.reduce(|a, b| if b.0 > a.0 + 1e-9 { b } else { a }).filter(|best| best.0 > INFORMATION_MIN)
    };
    let best = separated_from(total).or_else(|| if total < SURE { separated_from(1.0) } else { None });
    best.map(|best| best.1.clone())
}

/// The probability of the candidates that a reading shows. O(candidates) effects.
fn shown(effects: &Effects, defect: &Defect, a: &Allocation, size: Bytes) -> f64 {
    let slowed = |c: &&super::Candidate| effects.of(c.component, c.factor, a, size) < -VISIBLE;
    defect.candidates.iter().filter(slowed).map(|c| c.probability).sum()
}

/// True if a reading uses candidates of the defect, however many other hosts hide their effect in the physics.
pub(super) fn concerns(cluster: &Cluster, defect: &Defect, a: &Allocation) -> bool {
    let uses = |c: &&super::Candidate| {
        let mask = a.mask(c.component.host());
        let nics = cluster.type_of(c.component.host()).nics_touched(mask);
        !mask.is_empty() && Effects::slow_part(c.component, mask, nics, a.host_count()) != Touch::Not
    };
    defect.candidates.iter().filter(uses).map(|c| c.probability).sum::<f64>() > INFORMATION_MIN
}

/// Maximum number of suspected hosts whose GPUs are tried.
const HOSTS_TRIED: usize = 8;
/// Minimum effect that a reading shows (of the logarithm).
const VISIBLE: f64 = 0.1;
/// Minimum share of the probability that a measurement must split off to be worth its time.
const INFORMATION_MIN: f64 = 0.01;
