//! Threshold search: hundreds of candidates instead of all combinations, for clusters of any size.
//!
//! The weakest part limits an allocation: the host with the lowest intra bandwidth, or the host with the lowest NIC
//! rate. So a good allocation is the best one *above a threshold*. Every host gives the largest number of GPUs whose
//! intra bandwidth is at least `t` and whose NIC rate is at least `u`; the fewest hosts that suffice are taken; their
//! counts are levelled like water. For every floor on NICs or counts and every set of host types, bisection finds the
//! highest `t` that suffices, for the fewest hosts and for fewer still. One batch judges all candidates; in another
//! batch the best few exchange single GPUs and hosts ([`exchange`]).
//!
//! | step | file |
//! |---|---|
//! | jobs on one or two hosts | [`small`] |
//! | selection of the hosts to plan with | [`lists`] |
//! | levels of bandwidth, and the capacity of hosts at each | [`levels`], [`capacity`] |
//! | plans: a level, a number of hosts, host types | [`plans`] |
//! | candidates of the most promising plans | [`candidates`], [`fill`] |
//! | exchanges of GPUs and hosts | [`exchange`] |
//!
//! Cost: floors x (hosts x counts + levels x types) to plan, candidates x hosts to judge. The number of candidates
//! shrinks as they grow, so that 10,000 GPUs take milliseconds.

mod candidates;
mod capacity;
mod exchange;
pub(crate) mod fill;
mod levels;
mod lists;
mod plans;
mod small;

use crate::exact::{self, SearchResult, best_of};
use crate::objective::Objective;
use crate::options::{HostOptions, host_options};
use crate::pods::packed_pods;
use crate::request::{Refusal, Request, Split};
use crate::search::Search;
use crate::shape::Shape;
use candidates::Pool;
use levels::Levels;

/// The best `keep` allocations of the threshold search.
pub fn search(objective: &Objective, keep: usize) -> Result<SearchResult, Refusal> {
    let request = objective.request;
    let k = request.gpus;
    let free = request.usable(objective.cluster)?;
    let before = objective.evaluations();
    let options = host_options(objective.table(), &free, k);
    if request.asks_shape() {
        can_be_met(request, &options)?;
    }
    let cluster = objective.cluster;
    let levels = Levels::new(free.parts(), &options, objective.model, &|h| cluster.host(h).host_type);
    let rules = Rules::of(request);
    let mut pool = Pool::new(request);
    small::singles(&options, k, rules, &mut pool);
    small::pairs(&levels, k, rules, &mut pool);
    let mut plans = plans::plan(&levels, lists::lists(objective, &levels), k, rules);
    candidates::build_candidates(&levels, &mut plans, k, &mut pool);
    if pool.candidates.is_empty()
        && let Some(packed) = packed_pods(cluster, &free, &request.pods).filter(|_| !request.pods.is_empty())
    {
        pool.add(&packed.parts().iter().map(|&(h, m)| objective.part(h, m)).collect::<Vec<_>>());
    }
    if pool.candidates.is_empty() {
        let what = if request.pods.is_empty() { "limits this tight" } else { "pods of these sizes" };
        return Err(Refusal::Unsupported { search: "threshold", what });
    }
    let mut candidates = pool.candidates;
    let mut scores = Vec::new();
    objective.promising_scores(&candidates, f64::NEG_INFINITY, &mut scores);
    exchange::improve(objective, &free, &options, &mut candidates, &mut scores);
    Ok(SearchResult {
        best: best_of(objective, &candidates, &scores, keep.max(1)),
        evaluations: objective.evaluations() - before,
    })
}

/// Refuses pods that no host can hold and, if the number of hosts allows the test, limits that leave no split.
fn can_be_met(request: &Request, options: &[HostOptions]) -> Result<(), Refusal> {
    let largest = options.iter().map(|o| o.by_count.len()).max().unwrap_or(0);
    if let Some(pod) = request.pods.iter().copied().filter(|p| *p > largest).max() {
        return Err(Refusal::PodTooLarge { pod, largest });
    }
    if options.len() > AUTO_HOSTS_MAX {
        return Ok(());
    }
    match Shape::new(request, options) {
        Err(e @ (Refusal::NoSplit { .. } | Refusal::PodsDoNotFit { .. })) => Err(e),
        _ => Ok(()),
    }
}

/// The constraints on every host and on the number of hosts.
#[derive(Clone, Copy)]
struct Rules {
    /// Bit `n`: a host may give `n` GPUs.
    counts: u32,
    count_min: u8,
    hosts_max: usize,
    /// True if all hosts must give the same number of GPUs.
    equal: bool,
}

impl Rules {
    fn of(request: &Request) -> Rules {
        let counts = request.counts_allowed();
        Rules {
            counts,
            count_min: counts.trailing_zeros().clamp(1, 31) as u8,
            hosts_max: request.constraints.hosts_max.unwrap_or(usize::MAX),
            equal: matches!(request.constraints.split, Split::Equal | Split::PerHost(_)),
        }
    }
}

/// Threshold search for clusters of any size.
pub struct Threshold;

impl Search for Threshold {
    fn name(&self) -> &'static str {
        "threshold"
    }
    fn keeps_to_rule(&self) -> bool {
        true
    }
    fn search(&self, objective: &Objective, keep: usize) -> Result<SearchResult, Refusal> {
        search(objective, keep)
    }
}

/// Exact search if it is fast, otherwise threshold search.
pub struct Auto;

/// Maximum number of hosts with free GPUs for which [`Auto`] searches exactly.
pub const AUTO_HOSTS_MAX: usize = 16;
/// Maximum number of combinations that [`Auto`] judges one by one: about 50 ms.
pub const AUTO_COMBINATIONS_MAX: u64 = 50_000;
/// Maximum number of nodes of [`Auto`]'s branch and bound.
pub const AUTO_NODES_MAX: u64 = 100_000;
/// Maximum number of combinations below tiers of switches: about 10 ms.
pub const AUTO_COMBINATIONS_BELOW_TIERS_MAX: u64 = 3_000;
/// Maximum number of nodes below tiers; see [`AUTO_COMBINATIONS_BELOW_TIERS_MAX`].
pub const AUTO_NODES_BELOW_TIERS_MAX: u64 = 10_000;

impl Search for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }
    fn keeps_to_rule(&self) -> bool {
        true
    }
    fn search(&self, objective: &Objective, keep: usize) -> Result<SearchResult, Refusal> {
        if objective.request.usable(objective.cluster)?.host_count() > AUTO_HOSTS_MAX {
            return search(objective, keep);
        }
        // Below tiers the hosts are all different, so no prediction repeats.
        let alike = objective.cluster.network.tiers.is_empty();
        let (combinations, nodes) = if alike {
            (AUTO_COMBINATIONS_MAX, AUTO_NODES_MAX)
        } else {
            (AUTO_COMBINATIONS_BELOW_TIERS_MAX, AUTO_NODES_BELOW_TIERS_MAX)
        };
        match exact::within(objective, keep, combinations, nodes) {
            Err(Refusal::TooLarge { .. } | Refusal::PodsTooMixed { .. }) => search(objective, keep),
            found => found,
        }
    }
}
