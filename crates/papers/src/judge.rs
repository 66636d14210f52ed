//! Shared code of the published searches: a limit on their work, and comparisons in one batch.

use place::exact::TIE;
use place::{Objective, Refusal};
use predict::Candidates;
use topology::Allocation;

/// Maximum number of candidates that one stage of a published search may judge; larger stages are refused before they
/// begin. The limit allows about 1,400 free GPUs for searches with quadratic work, a second with the bound, and 100 MB
/// for all pairs in one batch.
pub const EVALUATIONS_MAX: u64 = 1_000_000;

/// Refuses a stage with more than [`EVALUATIONS_MAX`] candidates.
pub fn affordable(search: &'static str, evaluations: u128) -> Result<(), Refusal> {
    if evaluations > u128::from(EVALUATIONS_MAX) {
        return Err(Refusal::SearchTooLarge { search, evaluations, limit: EVALUATIONS_MAX });
    }
    Ok(())
}

/// The index of the largest score; ties go to the first. Every number is larger than NaN.
pub fn argmax(scores: &[f64]) -> Option<usize> {
    let beats =
        |v: f64, best: f64| if best.is_finite() { v > best + TIE * best.abs() } else { v > best || best.is_nan() };
    let mut best: Option<usize> = None;
    for (i, v) in scores.iter().enumerate() {
        if best.is_none_or(|b| beats(*v, scores[b])) {
            best = Some(i);
        }
    }
    best
}

/// The index of the best allocation, judged in one batch; ties go to the first.
pub fn better(objective: &Objective, allocations: &[Allocation]) -> Option<usize> {
    let candidates = Candidates::of(objective.table(), allocations);
    let mut scores = Vec::new();
    objective.scores(&candidates, &mut scores);
    argmax(&scores)
}
