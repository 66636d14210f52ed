//! Rules that operators and schedulers use without a measurement. They see switches and free GPUs only.
//!
//! `levels` is [`truths::site::Site::switches`]: for each level from the hosts up, the switch above every host.

use topology::{Allocation, GpuMask, HostId};

type FreeHost = (HostId, GpuMask);

/// The even split: one host if one fits; else the lowest switch that fits, on it the fewest hosts, an even split and
/// the same GPU indices, over as few switches in between as possible. This is the choice of a careful person without
/// data. If no even split fits, the freest hosts. O(levels x hosts²).
pub fn even(levels: &[Vec<u32>], free: &Allocation, k: usize) -> Option<Allocation> {
    if k == 0 || free.gpu_count() < k {
        return None;
    }
    let mut found: Vec<(bool, usize, usize, Allocation)> = Vec::new();
    for (level, groups) in groups_by_level(levels, free, k).into_iter().enumerate() {
        let below = &levels[..level.min(levels.len())];
        let even = groups.iter().filter_map(|g| even_in(below, g, k));
        found.extend(even.map(|a| (a.host_count() > 1, level, a.host_count(), a)));
    }
    // Among equal candidates the first one: groups are ordered by size, the tightest first.
    if let Some(best) = found.into_iter().min_by_key(|f| (f.0, f.1, f.2)) {
        return Some(best.3);
    }
    let mut hosts = free.parts().to_vec();
    hosts.sort_by_key(|(h, m)| (std::cmp::Reverse(m.count()), *h));
    Some(take_in_order(hosts, k))
}

/// Slurm's topology/tree: the lowest switch that fits, its leaves by best fit, and on a leaf the tightest node that
/// holds the rest, else its nodes in order. Lowest GPU indices. Source: Slurm's topology guide, in the interpretation
/// of `place::search::slurm`.
pub fn slurm(levels: &[Vec<u32>], free: &Allocation, k: usize) -> Option<Allocation> {
    let switch = groups_by_level(levels, free, k).into_iter().flatten().next()?;
    let mut leaves = match levels.first() {
        Some(leaf) => by_switch(leaf, &switch),
        None => vec![switch],
    };
    let (mut order, mut left) = (Vec::new(), k);
    while left > 0 && !leaves.is_empty() {
        let i = best_fit(&leaves.iter().map(|l| gpus(l)).collect::<Vec<_>>(), left);
        let mut leaf = leaves.swap_remove(i);
        leaves.sort_by_key(|l| l[0].0);
        if let Some(node) = leaf.iter().filter(|h| h.1.count() >= left).min_by_key(|h| h.1.count()) {
            leaf = vec![*node];
        }
        left = left.saturating_sub(gpus(&leaf));
        order.extend(leaf);
    }
    Some(take_in_order(order, k))
}

/// Kueue's topology-aware scheduling with the profile BestFit, one GPU per pod: the lowest level with a domain that
/// fits, and the tightest such domain. Inside it, level by level, the largest domains until the rest fits into one; for
/// the rest the tightest domain.
pub fn kueue(levels: &[Vec<u32>], free: &Allocation, k: usize) -> Option<Allocation> {
    // A host is the lowest domain.
    let one = free.parts().iter().filter(|p| p.1.count() >= k).min_by_key(|p| p.1.count());
    if let Some(one) = one.filter(|_| k > 0) {
        return Some(take_in_order(vec![*one], k));
    }
    let mut domains = vec![groups_by_level(levels, free, k).into_iter().flatten().next()?];
    for level in levels.iter().rev().map(Some).chain([None]) {
        let mut below: Vec<Vec<FreeHost>> = match level {
            Some(level) => domains.iter().flat_map(|d| by_switch(level, d)).collect(),
            None => domains.iter().flatten().map(|h| vec![*h]).collect(),
        };
        below.sort_by_key(|d| (std::cmp::Reverse(gpus(d)), d[0].0));
        let (mut chosen, mut left) = (Vec::new(), k);
        while left > 0 {
            let tightest = (0..below.len()).rev().find(|i| gpus(&below[*i]) >= left);
            let domain = below.remove(tightest.unwrap_or(0));
            left = left.saturating_sub(gpus(&domain));
            chosen.push(domain);
        }
        domains = chosen;
    }
    Some(take_in_order(domains.into_iter().flatten().collect(), k))
}

fn gpus(hosts: &[FreeHost]) -> usize {
    hosts.iter().map(|h| h.1.count()).sum()
}

/// The tightest domain that holds `k`, else the largest.
fn best_fit(sizes: &[usize], k: usize) -> usize {
    let fits = (0..sizes.len()).filter(|i| sizes[*i] >= k).min_by_key(|i| sizes[*i]);
    fits.or_else(|| (0..sizes.len()).max_by_key(|i| (sizes[*i], std::cmp::Reverse(*i)))).unwrap_or(0)
}

/// Hosts by their switch, in order of the first host.
fn by_switch(level: &[u32], hosts: &[FreeHost]) -> Vec<Vec<FreeHost>> {
    let mut out: Vec<Vec<FreeHost>> = Vec::new();
    for h in hosts {
        let switch = level[h.0.index()];
        match out.iter_mut().find(|g| level[g[0].0.index()] == switch) {
            Some(g) => g.push(*h),
            None => out.push(vec![*h]),
        }
    }
    out
}

/// For each level, the lowest first: the switches whose free GPUs hold the job, the tightest first; last the whole
/// site.
fn groups_by_level(levels: &[Vec<u32>], free: &Allocation, k: usize) -> Vec<Vec<Vec<FreeHost>>> {
    let fits = |g: &Vec<FreeHost>| k > 0 && gpus(g) >= k;
    let mut out: Vec<Vec<Vec<FreeHost>>> = Vec::new();
    for level in levels {
        let mut groups: Vec<Vec<FreeHost>> = by_switch(level, free.parts()).into_iter().filter(fits).collect();
        groups.sort_by_key(|g| gpus(g));
        out.push(groups);
    }
    out.push(vec![free.parts().to_vec()].into_iter().filter(fits).collect());
    out
}

/// An even split of `k` of these hosts' GPUs over the fewest hosts, which span the fewest switches of the `levels` in between.
fn even_in(levels: &[Vec<u32>], hosts: &[FreeHost], k: usize) -> Option<Allocation> {
    let mut tight = hosts.to_vec();
    tight.sort_by_key(|h| (h.1.count(), h.0));
    if let Some(one) = tight.iter().find(|h| h.1.count() >= k) {
        return Some(take_in_order(vec![*one], k));
    }
    let most = tight.last()?.1.count();
    for n in k.div_ceil(most)..=hosts.len().min(k) {
        let (base, more) = (k / n, k % n);
        let with = |least: usize| tight.iter().filter(|h| h.1.count() >= least).copied().collect::<Vec<FreeHost>>();
        let mut chosen = on_fewest_switches(levels, with(base + usize::from(more > 0)), n);
        if chosen.len() < n {
            // Too few hosts can give one GPU more than the others: those that can come first, then the others.
            chosen = on_fewest_switches(levels, with(base + 1), more);
            let others: Vec<FreeHost> = with(base).into_iter().filter(|h| !chosen.contains(h)).collect();
            if chosen.len() < more || others.len() < n - more {
                continue;
            }
            chosen.extend(on_fewest_switches(levels, others, n - more));
        }
        let common = GpuMask(chosen.iter().fold(u32::MAX, |m, h| m & h.1.0));
        let part = |(i, (h, m)): (usize, &FreeHost)| {
            let count = base + usize::from(i < more);
            let same = GpuMask::from_indices(if common.count() >= base { common } else { *m }.iter().take(base));
            let rest = m.minus(same).iter().take(count - same.count());
            (*h, GpuMask::from_indices(same.iter().chain(rest)))
        };
        return Some(Allocation::new(chosen.iter().enumerate().map(part)));
    }
    None
}

/// Chooses `n` of these hosts, which are in order of preference. From the highest level down: the tightest switch that
/// holds the rest, else the largest. Returns fewer if there are fewer.
fn on_fewest_switches(levels: &[Vec<u32>], hosts: Vec<FreeHost>, n: usize) -> Vec<FreeHost> {
    let Some((level, below)) = levels.split_last() else {
        return hosts.into_iter().take(n).collect();
    };
    let mut groups = by_switch(level, &hosts);
    let mut chosen: Vec<FreeHost> = Vec::new();
    while chosen.len() < n && !groups.is_empty() {
        let left = n - chosen.len();
        let next = best_fit(&groups.iter().map(Vec::len).collect::<Vec<_>>(), left);
        chosen.extend(on_fewest_switches(below, groups.remove(next), left));
    }
    chosen
}

/// `k` GPUs of the hosts in order, lowest indices first.
fn take_in_order(hosts: Vec<FreeHost>, k: usize) -> Allocation {
    let mut left = k;
    Allocation::new(hosts.into_iter().map(|(h, m)| {
        let part = GpuMask::from_indices(m.iter().take(left));
        left -= part.count();
        (h, part)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Free GPUs of hosts 0, 1, ...
    fn free(masks: &[u32]) -> Allocation {
        Allocation::new(masks.iter().enumerate().map(|(h, m)| (HostId(h as u32), GpuMask(*m))))
    }

    fn counts(a: Option<Allocation>) -> Vec<(u32, usize)> {
        a.unwrap().parts().iter().map(|p| (p.0.0, p.1.count())).collect()
    }

    #[test]
    fn the_even_split_takes_one_host_else_the_lowest_switch_with_the_fewest_hosts_and_equal_counts() {
        let leaves = [vec![0, 0, 1, 1, 1]];
        let f = free(&[0xff, 0x0f, 0xff, 0xff, 0x3f]);
        assert_eq!(counts(even(&leaves, &f, 6)), [(0, 6)], "the tightest leaf that holds 6");
        assert_eq!(counts(even(&leaves, &f, 10)), [(2, 5), (4, 5)], "8+4 of the tightest leaf is not even");
        assert_eq!(counts(even(&leaves, &f, 16)), [(2, 8), (3, 8)]);
    }

    #[test]
    fn an_even_split_over_switches_spans_as_few_as_possible() {
        let leaves = [vec![0, 0, 1, 1, 1, 2, 2]];
        assert_eq!(counts(even(&leaves, &free(&[0xff; 7]), 40)), [(0, 8), (1, 8), (2, 8), (3, 8), (4, 8)]);
    }

    #[test]
    fn an_even_split_uses_the_same_gpus_of_every_host_where_they_are_free() {
        let a = even(&[], &free(&[0b1111_0000, 0b0111_1000]), 6).unwrap();
        assert_eq!(a.parts(), [(HostId(0), GpuMask(0b111_0000)), (HostId(1), GpuMask(0b111_0000))]);
    }

    #[test]
    fn slurm_takes_the_tightest_leaf_and_its_nodes_in_order() {
        let leaves = [vec![0, 0, 1, 1]];
        let f = free(&[0xff, 0xff, 0xff, 0x0f]);
        assert_eq!(counts(slurm(&leaves, &f, 12)), [(2, 8), (3, 4)]);
        assert_eq!(counts(slurm(&leaves, &f, 20)), [(0, 8), (1, 8), (3, 4)], "the rest on the tightest node");
    }

    #[test]
    fn kueue_takes_the_largest_hosts_and_the_tightest_for_the_rest() {
        let f = free(&[0xff, 0x0f, 0x3f, 0xff]);
        assert_eq!(counts(kueue(&[], &f, 20)), [(0, 8), (1, 4), (3, 8)]);
        assert_eq!(counts(kueue(&[], &f, 5)), [(2, 5)], "one host that fits, the tightest");
    }

    #[test]
    fn every_rule_takes_as_many_free_gpus_as_asked_for() {
        let leaves = [vec![0, 0, 1, 1, 2], vec![0, 0, 0, 0, 1]];
        let f = free(&[0b1010_1010, 0xff, 1, 0b111, 0xf0]);
        for k in 1..=f.gpu_count() {
            for rule in [even, slurm, kueue] {
                let a = rule(&leaves, &f, k).unwrap();
                assert!(a.gpu_count() == k && f.contains_all(&a), "{k}: {a:?}");
            }
        }
        assert_eq!(even(&leaves, &f, f.gpu_count() + 1), None);
    }
}
