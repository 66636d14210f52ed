//! The exact search: every count vector over the hosts, with the masks that can matter per host and count.
//!
//! Exact for every model whose prediction, at given counts and NIC rates, never falls when intra bandwidth rises. All
//! models of linkwise satisfy this condition. Among running jobs, the GPUs with the best stand-alone bandwidth may
//! share NICs with a job or merge badly with it. The search then also judges other sets of GPUs that could score higher
//! (see `ordered`), and refuses to judge more than 2^20 of them. With a caller's merge rule, which sees only counts, it
//! judges only the sets with the best stand-alone bandwidth. The tests compare the search with brute force over all
//! subsets, without jobs and with both contention models. For a model that is a multiple of the bound, the search is a
//! branch and bound. For other models it enumerates up to [`COMBINATIONS_MAX`] candidates and refuses larger requests.

mod best;
mod branch_and_bound;
mod least;

use crate::objective::Objective;
use crate::options::{HostOptions, host_options};
use crate::ordered::{VARIANTS_OF_SEARCH_MAX, judge};
use crate::request::{Refusal, Request};
use crate::shape::{Left, Shape};
use branch_and_bound::branch_and_bound;
use predict::{BandwidthModel, Candidates, HostShare, Prediction};
use topology::{Allocation, Cluster};

pub use best::{OTHER_HOSTS, best_of};

/// Maximum number of candidates combined without pruning.
pub const COMBINATIONS_MAX: u64 = 1_000_000;
/// Maximum number of nodes that branch and bound visits. A candidate counts one more for every eight of its hosts, as it takes longer to judge.
pub const NODES_MAX: u64 = 1_000_000;
/// Maximum number of hosts of all candidates that are kept, in sum: half a gigabyte. Equal hosts make many equal candidates.
pub const PARTS_MAX: usize = 1 << 23;
/// Predictions whose relative difference is smaller are a tie. It is far below the accuracy of any model.
pub const TIE: f64 = 1e-9;

/// One candidate with its prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The GPUs.
    pub allocation: Allocation,
    /// The model's prediction without other jobs.
    pub prediction: Prediction,
    /// The score that the search maximised, GB/s: the mean of the prediction, or with other jobs
    /// [`crate::objective::Effect::score`].
    pub score_gb_per_s: f64,
    /// True for the split of the first candidate on other hosts (see [`OTHER_HOSTS`]).
    pub same_split_other_hosts: bool,
}

/// The outcome of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchResult {
    /// Best first; at least one, at most the number asked for. Each has a different split over the hosts (or different
    /// hosts, if one host holds all), except for a few that put the best split on other hosts (see [`OTHER_HOSTS`]).
    pub best: Vec<Scored>,
    /// Number of candidates that the model judged.
    pub evaluations: u64,
}

/// Number of standard deviations that [`promote_by_lower_confidence_bound`] subtracts from a prediction.
///
/// Winner's curse: the maximum of noisy predictions is biased upward, most where uncertainty is large. On the measured
/// tables, values from 0.3 to 1.0 give the same results (`linkwise evaluate`); 0 lowers the 5th percentile.
pub const CAUTION_SDS: f64 = 0.5;

/// Moves the candidate with the highest lower confidence bound (mean minus [`CAUTION_SDS`] deviations) to the front.
/// The others keep their order; a tie changes nothing.
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

/// Moves candidate `i` to the front; the others keep their order.
pub(crate) fn promote(candidates: &mut [Scored], i: usize) {
    if i == 0 || i >= candidates.len() {
        return;
    }
    // The flag is relative to the first candidate, which has just changed.
    if std::mem::take(&mut candidates[i].same_split_other_hosts) {
        candidates[0].same_split_other_hosts = true;
    } else {
        candidates.iter_mut().for_each(|c| c.same_split_other_hosts = false);
    }
    candidates[..=i].rotate_right(1);
}

/// The best `keep` allocations for a request, by exact search.
pub fn exact(
    cluster: &Cluster,
    model: &dyn BandwidthModel,
    request: &Request,
    keep: usize,
) -> Result<SearchResult, Refusal> {
    search(&Objective::new(cluster, model, request), keep)
}

/// Exact search through an objective.
pub fn search(objective: &Objective, keep: usize) -> Result<SearchResult, Refusal> {
    let (found, skipped) = run(objective, keep, COMBINATIONS_MAX, NODES_MAX, VARIANTS_OF_SEARCH_MAX)?;
    match skipped {
        0 => Ok(found),
        n => Err(Refusal::TooLarge { combinations: u128::from(n), limit: VARIANTS_OF_SEARCH_MAX as u64 }),
    }
}

/// Maximum number of GPU sets that differ in the resources shared with running jobs, for a search that need not be
/// exact; takes about 20 ms.
const VARIANTS_QUICK_MAX: usize = 1 << 14;

/// The same with the caller's limits on the number of enumerated candidates and of nodes of branch and bound;
/// [`Refusal::TooLarge`] beyond. Among running jobs the result is not always exact: at most 2^14 GPU sets that share
/// different NICs or links with jobs are judged.
pub fn within(
    objective: &Objective,
    keep: usize,
    combinations_max: u64,
    nodes_max: u64,
) -> Result<SearchResult, Refusal> {
    run(objective, keep, combinations_max, nodes_max, VARIANTS_QUICK_MAX).map(|f| f.0)
}

/// The result, and the number of variants left out.
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
        if !enumerate(&options, &shape, &mut candidates) {
            // So many candidates of this size fit.
            return Err(Refusal::TooLarge { combinations, limit: candidates.len() as u64 });
        }
    }
    let before = objective.evaluations();
    let judged = judge(objective, &candidates, &usable, keep.max(1), variants_max);
    let evaluations = pruned.unwrap_or(objective.evaluations() - before);
    let best = best_of(objective, &judged.candidates, &judged.scores, keep.max(1));
    Ok((SearchResult { best, evaluations }, judged.skipped))
}

/// Number of candidates of a complete enumeration, by convolution over hosts. O(hosts x k x counts).
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

/// Every combination, in the order of the hosts. `false` if they have more than [`PARTS_MAX`] parts.
#[must_use]
pub(crate) fn enumerate(options: &[HostOptions], shape: &Shape, out: &mut Candidates) -> bool {
    fn go(
        options: &[HostOptions],
        shape: &Shape,
        i: usize,
        left: Left,
        chosen: &mut Vec<HostShare>,
        out: &mut Candidates,
    ) {
        if out.part_count() > PARTS_MAX {
            return;
        }
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
    out.part_count() <= PARTS_MAX
}
