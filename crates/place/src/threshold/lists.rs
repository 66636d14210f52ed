//! Selects the hosts to plan with.

use super::levels::Levels;
use crate::objective::Objective;
use std::collections::{BTreeMap, HashSet};

/// The hosts to plan with, as rows in order of preference: all hosts, those without a contending job, those below one
/// switch, those whose own effect is not among the worst.
pub(super) fn lists(objective: &Objective, levels: &Levels) -> Vec<Vec<u32>> {
    let mut all: Vec<u32> = (0..levels.rows.len() as u32).collect();
    let row = |i: &u32| &levels.rows[*i as usize];
    all.sort_by(|a, b| {
        row(b).effect.total_cmp(&row(a).effect).then(row(a).free.cmp(&row(b).free)).then(row(a).host.cmp(&row(b).host))
    });
    let mut lists = Vec::new();
    if objective.contended() {
        let busy: HashSet<_> = objective.request.jobs.iter().flat_map(|j| j.gpus.parts()).map(|p| p.0).collect();
        lists.push(all.iter().copied().filter(|i| !busy.contains(&row(i).host)).collect());
    }
    let spread = all.first().map_or(0.0, |i| row(i).effect) - all.last().map_or(0.0, |i| row(i).effect);
    if spread > 1e-3 {
        let kept = |share: usize| all[..all.len() * share / 4].to_vec();
        lists.extend([kept(3), kept(2)]);
    }
    lists.extend(switches(objective, levels, &all));
    lists.push(all);
    lists
}

/// Maximum number of switches of one tier that are examined.
const SWITCHES_MAX: usize = 6;

/// The hosts below single switches that have enough free GPUs: in every tier the switches with the fewest spare GPUs
/// and those with the most.
fn switches(objective: &Objective, levels: &Levels, all: &[u32]) -> Vec<Vec<u32>> {
    let mut out = Vec::new();
    for tier in objective.cluster.tiers() {
        let mut by_switch: BTreeMap<usize, (usize, Vec<u32>)> = Default::default();
        for &i in all {
            let r = &levels.rows[i as usize];
            let s = by_switch.entry(tier.switches.of(r.host)).or_default();
            s.0 += usize::from(r.free);
            s.1.push(i);
        }
        let mut enough: Vec<(usize, Vec<u32>)> =
            by_switch.into_values().filter(|s| s.0 >= objective.request.gpus && s.1.len() < all.len()).collect();
        enough.sort_by_key(|s| s.0);
        while enough.len() > SWITCHES_MAX {
            enough.remove(SWITCHES_MAX / 2);
        }
        out.extend(enough.into_iter().map(|s| s.1));
    }
    out
}
