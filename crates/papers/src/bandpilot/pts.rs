//! BandPilot's pruned tree search (PTS).

use super::eha::best_single;
use crate::judge::affordable;
use crate::neighbours::Current;
use place::search::{admit, one};
use place::{Objective, Refusal, Search, SearchResult};
use topology::Allocation;

/// Requests of up to this number of GPUs are searched inside one host if one can hold them (`k ≤ 8` in the paper, whose
/// hosts have 8).
pub const INSERTION_GPUS_MAX: usize = 8;

/// PTS: arXiv 2506.15595, section 4.3.3, algorithm 2.
///
/// S_curr starts as all free GPUs 𝒜. For k ≤ 8, if single hosts can hold the job, it starts as the free GPUs of the
/// host n* whose best k-subset has the highest prediction ("node insertion"). Each step removes one GPU: of all sets
/// that are S_curr without one GPU, the best remains, until k GPUs are left. Ties go to the first, in order of the
/// removed GPU's host and index.
///
/// Evaluations from N = |S_curr|: N + (N-1) + ... + (k+1) = (N² - k² + N - k) / 2 in N - k batches. Node insertion
/// needs one more batch, for n*, of C(|𝒜_n|, k) per host that can hold the job.
pub struct Pts;

impl Search for Pts {
    fn name(&self) -> &'static str {
        "pts"
    }
    fn search(&self, objective: &Objective, _keep: usize) -> Result<SearchResult, Refusal> {
        let before = objective.evaluations();
        let free = admit(objective, "pts")?;
        Ok(one(objective, pts(objective, &free, INSERTION_GPUS_MAX, "pts")?, before))
    }
}

/// Algorithm 2. `free` must hold at least k GPUs; node insertion up to `insertion_max` GPUs.
pub(crate) fn pts(
    objective: &Objective,
    free: &Allocation,
    insertion_max: usize,
    search: &'static str,
) -> Result<Allocation, Refusal> {
    let k = objective.request.gpus;
    let start = match insertion(objective, free, insertion_max, search)? {
        Some(host) => host,
        None => free.clone(),
    };
    affordable(search, eliminations(start.gpu_count(), k))?;
    let mut current = Current::new(objective, &start);
    current.shrink_to(k);
    Ok(current.allocation())
}

/// Lines 4 to 9: all free GPUs of n*, if one host can hold the job.
pub(crate) fn insertion(
    objective: &Objective,
    free: &Allocation,
    insertion_max: usize,
    search: &'static str,
) -> Result<Option<Allocation>, Refusal> {
    if objective.request.gpus > insertion_max {
        return Ok(None);
    }
    let best = best_single(objective, free, search)?;
    Ok(best.map(|a| Allocation::new(a.parts().iter().map(|&(h, _)| (h, free.mask(h))))))
}

/// Number of candidates that elimination from `n` to `k` GPUs judges.
pub(crate) fn eliminations(n: usize, k: usize) -> u128 {
    let (n, k) = (n as u128, k as u128);
    (n * (n + 1) - k * (k + 1)) / 2
}
