//! What the published searches share: a limit on their work, and comparisons in one batch.

use place::exact::TIE;
use place::{Objective, Refusal};
use predict::Candidates;
use topology::Allocation;

/// Most candidates that one stage of a published search judges: more is refused before the stage begins. That is about 1,400 free GPUs for
/// searches whose work grows with their square, a second with the bound, and 100 MB for all pairs in one batch.
pub const EVALUATIONS_MAX: u64 = 1_000_000;

/// Refuses what would judge more than [`EVALUATIONS_MAX`] candidates.
pub fn affordable(search: &'static str, evaluations: u128) -> Result<(), Refusal> {
    if evaluations > u128::from(EVALUATIONS_MAX) {
        return Err(Refusal::SearchTooLarge { search, evaluations, limit: EVALUATIONS_MAX });
    }
    Ok(())
}

/// The largest score; the first of those that tie. A score that is no number loses against any that is one.
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

/// The best of some allocations, in one batch; the first of those that tie.
pub fn better(objective: &Objective, allocations: &[Allocation]) -> Option<usize> {
    let candidates = Candidates::of(objective.table(), allocations);
    let mut scores = Vec::new();
    objective.scores(&candidates, &mut scores);
    argmax(&scores)
}
