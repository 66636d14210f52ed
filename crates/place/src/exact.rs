//! The exact search: every count vector over the hosts, with the masks that can matter per host and count.
//!
//! Exact for every model whose prediction, at given counts and NIC rates, never falls when intra bandwidth rises, as all of
//! linkwise's models do. Among running jobs the GPUs that are best alone may share NICs with a job, or merge badly with it: there every set
//! of GPUs that differs in this respect is judged where it could be better (see `ordered`), and a search that would need more than
//! 2^20 of them is refused. With a caller's merge rule, which sees counts only, the sets that are best alone are judged.
//! The tests compare it with brute force over all subsets, without jobs and with both contention models. For a model that is a multiple of the bound the
//! enumeration is a branch and bound; for others it is complete up to [`COMBINATIONS_MAX`], beyond which it refuses.

mod best;
mod branch_and_bound;

use crate::objective::Objective;
use crate::options::{HostOptions, host_options};
use crate::ordered::{VARIANTS_OF_SEARCH_MAX, judge};
use crate::request::{Refusal, Request};
use crate::shape::{Left, Shape};
use branch_and_bound::branch_and_bound;
use predict::{BandwidthModel, Candidates, HostShare, Prediction};
use topology::{Allocation, Cluster};

pub use best::{OTHER_HOSTS, best_of};

/// Most candidates that are combined without pruning.
pub const COMBINATIONS_MAX: u64 = 1_000_000;
/// Most nodes that branch and bound visits.
pub const NODES_MAX: u64 = 20_000_000;
/// Predictions closer than this, relatively, are a tie: far below what any model knows.
pub const TIE: f64 = 1e-9;

/// One candidate with its prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The GPUs.
    pub allocation: Allocation,
    /// The model's prediction without other jobs.
    pub prediction: Prediction,
    /// The score that the search maximised, GB/s: the prediction's mean, or with other jobs [`crate::objective::Effect::score`].
    pub score_gb_per_s: f64,
    /// True for the split of the first candidate on other hosts (see [`OTHER_HOSTS`]).
    pub same_split_other_hosts: bool,
}

/// The outcome of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchResult {
    /// Best first; at least one, at most as many as asked for, with different splits over the hosts (or on different hosts, where one
    /// host holds all), but for a few that take the best split to other hosts (see [`OTHER_HOSTS`]).
    pub best: Vec<Scored>,
    /// Candidates that the model judged.
    pub evaluations: u64,
}

/// Standard deviations that [`promote_by_lower_confidence_bound`] subtracts from a prediction.
///
/// Winner's curse: the maximum of noisy predictions is biased upward, most where uncertainty is large. On the measured tables 0.3 to 1.0 give
/// the same figures (`linkwise evaluate`); 0 lowers the 5th percentile.
pub const CAUTION_SDS: f64 = 0.5;

/// Moves the candidate with the highest lower confidence bound (mean less [`CAUTION_SDS`] deviations) to the front; the others keep their
/// order, also in a tie.
pub fn promote_by_lower_confidence_bound(candidates: &mut [Scored]) {
    let value = |s: &Scored| {
        let relative_sd = s.prediction.std_gb_per_s / s.prediction.busbw_gb_per_s.max(1e-9);
        s.score_gb_per_s - CAUTION_SDS * relative_sd * s.score_gb_per_s.abs()
    };
    let mut best = 0;
    for i in 1..candidates.len() {
        if value(&candidates[i]) > value(&candidates[best]) * (1.0 + TIE) {
            best = i;
        }
    }
    promote(candidates, best);
}

/// Makes candidate `i` the first; the others keep their order.
pub(crate) fn promote(candidates: &mut [Scored], i: usize) {
    if i == 0 || i >= candidates.len() {
        return;
    }
    // The flag is relative to the first candidate, which changes here.
    if std::mem::take(&mut candidates[i].same_split_other_hosts) {
        candidates[0].same_split_other_hosts = true;
    } else {
        candidates.iter_mut().for_each(|c| c.same_split_other_hosts = false);
    }
    candidates[..=i].rotate_right(1);
}

/// The best `keep` allocations for a request, exactly.
pub fn exact(
    cluster: &Cluster,
    model: &dyn BandwidthModel,
    request: &Request,
    keep: usize,
) -> Result<SearchResult, Refusal> {
    search(&Objective::new(cluster, model, request), keep)
}

/// The same through an objective.
pub fn search(objective: &Objective, keep: usize) -> Result<SearchResult, Refusal> {
    let (found, skipped) = run(objective, keep, COMBINATIONS_MAX, NODES_MAX, VARIANTS_OF_SEARCH_MAX)?;
    match skipped {
        0 => Ok(found),
        n => Err(Refusal::TooLarge { combinations: u128::from(n), limit: VARIANTS_OF_SEARCH_MAX as u64 }),
    }
}

/// Sets of GPUs that differ in what they share with running jobs, of a search that need not be exact: about 20 ms.
const VARIANTS_QUICK_MAX: usize = 1 << 14;

/// The same with the caller's limits on enumerated candidates and on nodes of branch and bound; [`Refusal::TooLarge`] beyond. Among
/// running jobs not always exact: it judges 2^14 sets of GPUs at most that differ in what they share with a job.
pub fn within(
    objective: &Objective,
    keep: usize,
    combinations_max: u64,
    nodes_max: u64,
) -> Result<SearchResult, Refusal> {
    run(objective, keep, combinations_max, nodes_max, VARIANTS_QUICK_MAX).map(|f| f.0)
}

/// The result, and how many variants were left out.
fn run(
    objective: &Objective,
    keep: usize,
    combinations_max: u64,
    nodes_max: u64,
    variants_max: usize,
) -> Result<(SearchResult, u64), Refusal> {
    let (model, request) = (objective.model, objective.request);
    let k = request.gpus;
    let usable = request.usable(objective.cluster)?;
    let options = host_options(objective.table(), &usable, k);
    let shape = Shape::new(request, &options)?;
    let mut candidates = Candidates::new();
    let mut pruned = None;
    if !objective.contended() && model.upper_bound_hosts_or_more(f64::INFINITY, f64::INFINITY, 2, k).is_some() {
        pruned = Some(branch_and_bound(model, request, &options, &shape, keep.max(1), nodes_max, &mut candidates)?);
    } else {
        let combinations = shape.combinations().unwrap_or_else(|| combinations(&options, k));
        if combinations > u128::from(combinations_max) {
            return Err(Refusal::TooLarge { combinations, limit: combinations_max });
        }
        enumerate(&options, &shape, &mut candidates);
    }
    let before = objective.evaluations();
    let judged = judge(objective, &candidates, &usable, keep.max(1), variants_max);
    let evaluations = pruned.unwrap_or(objective.evaluations() - before);
    let best = best_of(objective, &judged.candidates, &judged.scores, keep.max(1));
    Ok((SearchResult { best, evaluations }, judged.skipped))
}

/// Number of candidates of a complete enumeration: a convolution over hosts. O(hosts x k x counts).
pub fn combinations(options: &[HostOptions], k: usize) -> u128 {
    let mut ways = vec![0u128; k + 1];
    ways[0] = 1;
    for o in options {
        for total in (1..=k).rev() {
            let mut sum = ways[total];
            for (c, parts) in o.by_count.iter().enumerate() {
                if c < total {
                    sum = sum.saturating_add(ways[total - c - 1].saturating_mul(parts.len() as u128));
                }
            }
            ways[total] = sum;
        }
    }
    ways[k]
}

/// Every combination, in the order of the hosts.
pub(crate) fn enumerate(options: &[HostOptions], shape: &Shape, out: &mut Candidates) {
    fn go(
        options: &[HostOptions],
        shape: &Shape,
        i: usize,
        left: Left,
        chosen: &mut Vec<HostShare>,
        out: &mut Candidates,
    ) {
        if left.gpus == 0 {
            out.push(chosen);
            return;
        }
        if i == options.len() || !shape.can_end(i, left) {
            return;
        }
        go(options, shape, i + 1, left, chosen, out);
        for (c, parts) in options[i].by_count.iter().enumerate().take(left.gpus as usize) {
            let Some(less) = shape.take(left, c + 1) else { continue };
            for p in parts {
                chosen.push(*p);
                go(options, shape, i + 1, less, chosen, out);
                chosen.pop();
            }
        }
    }
    go(options, shape, 0, shape.start(), &mut Vec::new(), out);
}
