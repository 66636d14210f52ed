//! BandPilot's equilibrium-driven heuristic algorithm (EHA).

use crate::hosts::{best_masks, host_sets};
use crate::judge::{affordable, argmax};
use place::search::hosts::{choose, freest_first, singles, subsets_of};
use place::search::{admit, one};
use place::{Objective, Refusal, Search, SearchResult};
use predict::{Candidates, HostShare};
use topology::Allocation;

/// Maximum number of candidates of the balanced construction; combinations of the hosts with the most free GPUs come
/// first. The paper names no limit; its four hosts give 36 candidates at most.
pub const CANDIDATES_MAX: usize = 1024;

/// EHA: arXiv 2506.15595, section 4.3.2, algorithm 1. One batch.
///
/// If single hosts can hold the job (𝒩_single), judges every k-subset of each and returns the best, even where several
/// hosts would be better. Otherwise spreads k GPUs as evenly as possible over every combination of m hosts, the minimum
/// number that can hold them, and returns the best. These candidates (𝒞_balanced) have the remainder in every
/// arrangement, and on each host the GPUs with the best intra bandwidth.
///
/// Evaluations: the sum of C(|𝒜_n|, k) over 𝒩_single; otherwise at most C(hosts, m) x C(m, k mod m), limited to
/// [`CANDIDATES_MAX`].
pub struct Eha;

impl Search for Eha {
    fn name(&self) -> &'static str {
        "eha"
    }
    fn search(&self, objective: &Objective, _keep: usize) -> Result<SearchResult, Refusal> {
        let before = objective.evaluations();
        let free = admit(objective, "eha")?;
        Ok(one(objective, eha(objective, &free, "eha")?, before))
    }
}

/// Algorithm 1. `free` must hold at least k GPUs.
pub(crate) fn eha(objective: &Objective, free: &Allocation, search: &'static str) -> Result<Allocation, Refusal> {
    if let Some(a) = best_single(objective, free, search)? {
        return Ok(a);
    }
    let mut candidates = Candidates::new();
    balanced(objective, free, &mut candidates);
    let mut scores = Vec::new();
    objective.scores(&candidates, &mut scores);
    let best = argmax(&scores).expect("the freest hosts hold k GPUs together");
    Ok(candidates.allocation(best))
}

/// Lines 4 to 7: the best k GPUs inside one host, if one can hold the job. One batch.
pub(crate) fn best_single(
    objective: &Objective,
    free: &Allocation,
    search: &'static str,
) -> Result<Option<Allocation>, Refusal> {
    let k = objective.request.gpus;
    affordable(search, singles(free, k).map(|(_, m)| choose(m.count(), k)).sum())?;
    let mut candidates = Candidates::new();
    for (h, m) in singles(free, k) {
        for s in subsets_of(m, k) {
            candidates.push(&[objective.part(h, s)]);
        }
    }
    if candidates.is_empty() {
        return Ok(None);
    }
    let mut scores = Vec::new();
    objective.scores(&candidates, &mut scores);
    Ok(argmax(&scores).map(|b| candidates.allocation(b)))
}

/// Lines 9 and 10: spreads k GPUs evenly over every combination of the fewest hosts that can hold them.
fn balanced(objective: &Objective, free: &Allocation, out: &mut Candidates) {
    let k = objective.request.gpus;
    let hosts = freest_first(free);
    let mut m = 0;
    let mut held = 0;
    while held < k {
        held += hosts[m].1.count();
        m += 1;
    }
    let masks = best_masks(objective.table(), &hosts, k);
    let mut parts = Vec::with_capacity(m);
    host_sets(&hosts, m, k, &mut |chosen| {
        let capacities: Vec<usize> = chosen.iter().map(|&i| hosts[i].1.count()).collect();
        spread(&capacities, k, &mut |counts| {
            parts.clear();
            parts.extend(chosen.iter().zip(counts).map(|(&i, &c)| objective.part(hosts[i].0, masks[i][c - 1])));
            parts.sort_unstable_by_key(|p: &HostShare| p.host);
            out.push(&parts);
            out.len() < CANDIDATES_MAX
        })
    });
}

/// Every way to divide `k` among bins of these capacities (together at least k) as evenly as possible. All counts are
/// equal, except in full bins; a remainder gives one more to some bins, in every arrangement. Every bin gets at least
/// one if k is large enough.
fn spread(capacities: &[usize], k: usize, visit: &mut dyn FnMut(&[usize]) -> bool) -> bool {
    let mut counts = vec![0; capacities.len()];
    let mut left = k;
    loop {
        let open: Vec<usize> = (0..counts.len()).filter(|i| counts[*i] < capacities[*i]).collect();
        if left >= open.len() && left > 0 && !open.is_empty() {
            open.iter().for_each(|i| counts[*i] += 1);
            left -= open.len();
        } else {
            return arrangements(&open, left, &mut counts, visit);
        }
    }
}

/// Gives one more to `left` of the `open` bins, in every way.
fn arrangements(open: &[usize], left: usize, counts: &mut Vec<usize>, visit: &mut dyn FnMut(&[usize]) -> bool) -> bool {
    if left == 0 {
        return visit(counts);
    }
    for i in 0..(open.len() + 1).saturating_sub(left) {
        counts[open[i]] += 1;
        let more = arrangements(&open[i + 1..], left - 1, counts, visit);
        counts[open[i]] -= 1;
        if !more {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(capacities: &[usize], k: usize) -> Vec<Vec<usize>> {
        let mut out = Vec::new();
        spread(capacities, k, &mut |c| {
            out.push(c.to_vec());
            true
        });
        out
    }

    #[test]
    fn the_remainder_goes_in_every_arrangement() {
        assert_eq!(all(&[8, 8, 8], 8), [[3, 3, 2], [3, 2, 3], [2, 3, 3]]);
        assert_eq!(all(&[8, 8], 8), [[4, 4]]);
    }

    #[test]
    fn a_full_host_leaves_the_rest_to_the_others() {
        assert_eq!(all(&[8, 2], 9), [[7, 2]]);
        assert_eq!(all(&[8, 7, 2], 11), [[5, 4, 2], [4, 5, 2]]);
    }
}
