//! The main path of BandPilot's version 4 (arXiv 2506.15595 v4, January 2026).
//!
//! ```text
//! one host can hold the job ──► best of its k-subsets (EHA, algorithm 1, lines 4 to 7)
//! otherwise ── frontier of balanced plans (EHA over hosts, or pods and hosts)
//!           │
//!         trigger: do past requests like this say that PTS helps? ── no ──► EHA's answer
//!           │ yes, or too few or contradictory ones
//!         PTS: whole hosts go first, down to k + 8 GPUs, then single GPUs
//!           │
//!         the better of both; among running jobs a lopsided split counts less
//! ```
//!
//! The paper describes the parts. For details that it omits (budgets, features, weights) this code follows the authors'
//! public code; each file documents its part. Differences from that code: a plan has one GPU set per host (the best
//! intra bandwidth) instead of up to four; node insertion follows algorithm 2 as printed, while the code inserts only
//! into hosts that are entirely free; there are no caches.

mod frontier;
mod rerank;
mod trigger;

pub use trigger::{FEATURES, NEIGHBOURS, Past, RISK_MAX};

use super::eha::best_single;
use super::pts::{INSERTION_GPUS_MAX, eliminations, insertion};
use crate::judge::{affordable, argmax};
use crate::neighbours::Current;
use place::search::{admit, one};
use place::{Objective, Refusal, Search, SearchResult};
use predict::Candidates;
use std::sync::{Mutex, PoisonError};
use topology::Allocation;

/// Number of GPUs beyond k at which elimination of whole hosts ends and elimination of single GPUs begins.
pub const COARSE_SLACK_GPUS: usize = 8;
/// Relative gain from which PTS counts as helpful: the authors' 0.5 %.
pub const HELPFUL_GAIN: f64 = 0.005;

/// BandPilot v4. Deterministic: its past requests are part of its data.
///
/// With an empty `past`, PTS always runs. Fill `past` with the results of [`BandPilotV4::observe`] for served requests.
#[derive(Clone, Debug, Default)]
pub struct BandPilotV4 {
    /// Past requests: their features, and whether PTS found a better allocation than EHA.
    pub past: Vec<Past>,
}

/// EHA's answer and the features that the trigger uses.
struct Constructed {
    allocation: Allocation,
    /// Share of the planned candidates that were made, 0 to 1.
    coverage: f64,
}

impl Search for BandPilotV4 {
    fn name(&self) -> &'static str {
        "bandpilot-v4"
    }
    fn search(&self, objective: &Objective, _keep: usize) -> Result<SearchResult, Refusal> {
        Ok(decide(&self.past, objective)?.0)
    }
}

/// BandPilot v4 that learns while it serves. After each run of PTS, the comparison with EHA is stored and votes on
/// later requests. An answer therefore depends on the earlier requests and their order.
#[derive(Debug, Default)]
pub struct Serving {
    past: Mutex<Vec<Past>>,
}

/// Maximum number of past requests that [`Serving`] keeps; the oldest are removed first.
const PAST_MAX: usize = 4096;

impl Search for Serving {
    fn name(&self) -> &'static str {
        "bandpilot-v4"
    }
    fn search(&self, objective: &Objective, _keep: usize) -> Result<SearchResult, Refusal> {
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        let (found, seen) = decide(&past, objective)?;
        if let Some(seen) = seen {
            if past.len() == PAST_MAX {
                past.remove(0);
            }
            past.push(seen);
        }
        Ok(found)
    }
}

/// The answer, and the past request to store if PTS ran.
fn decide(past: &[Past], objective: &Objective) -> Result<(SearchResult, Option<Past>), Refusal> {
    let before = objective.evaluations();
    let free = admit(objective, "bandpilot-v4")?;
    let eha = construct(objective, &free)?;
    if eha.allocation.host_count() < 2 {
        return Ok((one(objective, eha.allocation, before), None));
    }
    let features = trigger::features(objective.request.gpus, &free, &eha.allocation, eha.coverage);
    if !trigger::pts_may_help(past, &features, objective.contended()) {
        return Ok((one(objective, eha.allocation, before), None));
    }
    let mut both = [eha.allocation, eliminate(objective, &free)?];
    let scores = ranked(objective, &both);
    let best = argmax(&scores).unwrap_or(0);
    let pts_helped = scores[1] > scores[0] && scores[1] - scores[0] >= HELPFUL_GAIN * scores[1].abs();
    let seen = Past { features, contended: objective.contended(), pts_helped };
    Ok((one(objective, std::mem::take(&mut both[best]), before), Some(seen)))
}

impl BandPilotV4 {
    /// Runs EHA and PTS on a request and compares them by the objective; the result is an entry of `past`. None if one
    /// host holds the job, because PTS is then never considered.
    pub fn observe(objective: &Objective) -> Result<Option<Past>, Refusal> {
        // With an empty past, PTS always runs.
        Ok(decide(&[], objective)?.1)
    }
}

/// EHA with the frontier of plans. One batch.
fn construct(objective: &Objective, free: &Allocation) -> Result<Constructed, Refusal> {
    if let Some(allocation) = best_single(objective, free, "bandpilot-v4")? {
        return Ok(Constructed { allocation, coverage: 1.0 });
    }
    let plans = frontier::plans(objective, free);
    let best =
        argmax(&ranked(objective, &plans.allocations)).expect("a balanced plan over the freest hosts always exists");
    Ok(Constructed { allocation: plans.allocations[best].clone(), coverage: plans.coverage })
}

/// PTS with its coarse stage of whole hosts.
fn eliminate(objective: &Objective, free: &Allocation) -> Result<Allocation, Refusal> {
    let k = objective.request.gpus;
    let start = insertion(objective, free, INSERTION_GPUS_MAX, "bandpilot-v4")?;
    let mut current = Current::new(objective, start.as_ref().unwrap_or(free));
    if start.is_none() {
        // At most one batch per host, of one candidate per host.
        let hosts = free.host_count() as u128;
        affordable("bandpilot-v4", hosts * (hosts + 1) / 2 + eliminations(k + 2 * COARSE_SLACK_GPUS, k))?;
        current.drop_hosts_to(k + COARSE_SLACK_GPUS);
    }
    current.shrink_to(k);
    Ok(current.allocation())
}

/// Scores of allocations in one batch, re-ranked by structure.
fn ranked(objective: &Objective, allocations: &[Allocation]) -> Vec<f64> {
    let candidates = Candidates::of(objective.table(), allocations);
    let mut scores = Vec::new();
    objective.scores(&candidates, &mut scores);
    if rerank::applies(objective) {
        for (score, a) in scores.iter_mut().zip(allocations) {
            *score *= rerank::multiplier(&a.counts());
        }
    }
    scores
}
