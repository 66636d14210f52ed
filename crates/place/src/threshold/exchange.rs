//! Local improvement: the best candidates give and take single GPUs and hosts.

use crate::objective::Objective;
use crate::options::HostOptions;
use predict::{Candidates, Part};
use std::collections::HashMap;
use topology::HostId;

/// How many of the best candidates are improved in a round.
const BEST: usize = 3;
/// Most parts of a round's candidates together.
const PARTS_MAX: usize = 20_000;
/// Most rounds; a round that finds nothing better is the last.
const ROUNDS_MAX: usize = 3;
/// Most hosts of a candidate whose GPUs are moved, and most that take them.
const HOSTS_MAX: usize = 8;

/// Adds what the neighbours of the best candidates are worth, in up to [`ROUNDS_MAX`] batches.
pub fn improve(objective: &Objective, options: &[HostOptions], candidates: &mut Candidates, scores: &mut Vec<f64>) {
    let by_host: HashMap<HostId, &HostOptions> =
        objective.request.free.parts().iter().map(|p| p.0).zip(options).collect();
    let mut best = top(scores, BEST);
    for _ in 0..ROUNDS_MAX {
        let Some(&first) = best.first() else { return };
        let mut next = Candidates::new();
        let mut budget = PARTS_MAX;
        for &i in &best {
            neighbours(objective, &by_host, candidates.parts(i), &mut budget, &mut next);
        }
        if next.is_empty() {
            return;
        }
        let mut values = Vec::new();
        objective.scores(&next, &mut values);
        let from = scores.len();
        let floor = scores[first];
        for (j, v) in values.iter().enumerate() {
            candidates.push(next.parts(j));
            scores.push(*v);
        }
        best = top(&scores[from..], BEST).into_iter().map(|i| i + from).filter(|i| scores[*i] > floor).collect();
    }
}

/// Places of the best values, best first.
fn top(scores: &[f64], n: usize) -> Vec<usize> {
    let mut best: Vec<usize> = Vec::with_capacity(n + 1);
    for (i, v) in scores.iter().enumerate() {
        let at = best.iter().position(|b| *v > scores[*b]).unwrap_or(best.len());
        if at < n {
            best.insert(at, i);
            best.truncate(n);
        }
    }
    best
}

fn option(options: &HostOptions, count: u8) -> Option<&Part> {
    let parts = options.by_count.get(usize::from(count.checked_sub(1)?))?;
    parts.iter().max_by(|a, b| {
        let least = |p: &Part| p.intra_gb_per_s.min(p.nic_gb_per_s);
        least(a).total_cmp(&least(b)).then(a.nic_gb_per_s.total_cmp(&b.nic_gb_per_s))
    })
}

/// One GPU from here to there; one host for another with as many GPUs; one host's GPUs to the others.
fn neighbours(
    objective: &Objective,
    by_host: &HashMap<HostId, &HostOptions>,
    parts: &[Part],
    budget: &mut usize,
    out: &mut Candidates,
) {
    if parts.len() < 2 {
        return;
    }
    let rules = &objective.request.constraints;
    let count_min = rules.gpus_per_host_min.max(1) as u8;
    let mut push = |list: &[Part]| {
        if *budget >= list.len() {
            *budget -= list.len();
            out.push(list);
        }
    };
    // The hosts that may hold the rest back: worst inside, thinnest NICs, worst effect.
    let effect = |p: &Part| objective.model.host_effect(p.host);
    let mut order: Vec<usize> = (0..parts.len()).collect();
    let worth = |p: &Part| p.intra_gb_per_s.min(p.nic_gb_per_s) * effect(p).exp();
    order.sort_by(|a, b| worth(&parts[*a]).total_cmp(&worth(&parts[*b])));
    let weak: Vec<usize> = order.iter().copied().take(HOSTS_MAX).collect();
    let strong: Vec<usize> = order.iter().rev().copied().take(HOSTS_MAX).collect();
    let mut list: Vec<Part> = Vec::with_capacity(parts.len() + 1);
    for &w in &weak {
        for &s in &strong {
            // One GPU from the weak to the strong, and back.
            for (from, to) in [(w, s), (s, w)] {
                if from == to || parts[from].count <= count_min {
                    continue;
                }
                let (Some(a), Some(b)) = (
                    by_host.get(&parts[from].host).and_then(|o| option(o, parts[from].count - 1)),
                    by_host.get(&parts[to].host).and_then(|o| option(o, parts[to].count + 1)),
                ) else {
                    continue;
                };
                list.clear();
                list.extend_from_slice(parts);
                list[from] = *a;
                list[to] = *b;
                push(&list);
            }
        }
    }
    // A host outside for a weak one.
    let inside: std::collections::HashSet<HostId> = parts.iter().map(|p| p.host).collect();
    for &w in &weak {
        let mut outside: Vec<&Part> = by_host
            .iter()
            .filter(|(h, _)| !inside.contains(h))
            .filter_map(|(_, o)| option(o, parts[w].count))
            .filter(|p| worth(p) > worth(&parts[w]) || p.nic_gb_per_s > parts[w].nic_gb_per_s)
            .collect();
        outside.sort_by(|a, b| worth(b).total_cmp(&worth(a)).then(a.host.cmp(&b.host)));
        for p in outside.into_iter().take(2) {
            list.clear();
            list.extend_from_slice(parts);
            list[w] = *p;
            list.sort_unstable_by_key(|p| p.host);
            push(&list);
        }
    }
}
