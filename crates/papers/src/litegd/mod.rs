//! LiteGD: its bidirectional tree search with insertion, and its greedy topology baseline ([`topo_greedy`]).

pub mod topo_greedy;

use crate::bandpilot::pts::pts;
use crate::judge::{affordable, argmax, better};
use crate::neighbours::Current;
use place::search::{admit, one};
use place::{Objective, Refusal, Search, SearchResult};
use predict::Candidates;
use topology::{Allocation, GpuId};

/// Bidirectional tree search: LiteGD (by the authors of BandPilot), section 4.3.2, algorithm 1.
///
/// Top-down (C_TD, `InsertionTreeSearch`): elimination as in [`crate::bandpilot::Pts`], inside the best single host
/// whenever one can hold the job. The paper inserts "if inter-host bandwidth is a likely bottleneck" and gives no test
/// for it; this code always assumes it, as in the paper's experiments. Bottom-up (C_BU): starts with the best pair of
/// all free GPUs (`BestPair`), then repeatedly adds the GPU that makes the best set. Algorithm 1 as printed adds a GPU
/// only if bandwidth *rises*, and would not terminate where no GPU raises it. This code follows the text, which adds
/// the GPU "that yields the highest predicted bandwidth". The result is the better of both; C_TD in a tie.
///
/// Evaluations from N free GPUs: elimination's (N² - k² + N - k) / 2 (or those of one host), N (N - 1) / 2 pairs in one
/// batch, then (N - 2) + ... + (N - k + 1) in k - 2 batches, and two to compare.
pub struct LiteGd;

impl Search for LiteGd {
    fn name(&self) -> &'static str {
        "litegd"
    }
    fn search(&self, objective: &Objective, _keep: usize) -> Result<SearchResult, Refusal> {
        let before = objective.evaluations();
        let free = admit(objective, "litegd")?;
        let (n, k) = (free.gpu_count() as u128, objective.request.gpus as u128);
        affordable("litegd", n * n.saturating_sub(1) / 2 + n * k)?;
        let top_down = pts(objective, &free, usize::MAX, "litegd")?;
        if objective.request.gpus < 2 {
            return Ok(one(objective, top_down, before));
        }
        let mut current = Current::new(objective, &best_pair(objective, &free));
        current.grow_to(objective.request.gpus, &free);
        let mut both = [top_down, current.allocation()];
        let best = better(objective, &both).unwrap_or(0);
        Ok(one(objective, std::mem::take(&mut both[best]), before))
    }
}

/// `BestPair`: the pair of free GPUs with the highest prediction; ties go to the first. One batch.
fn best_pair(objective: &Objective, free: &Allocation) -> Allocation {
    let gpus: Vec<GpuId> = free.gpus().collect();
    let (pairs, scores) = judge_pairs(objective, &gpus);
    argmax(&scores).map_or_else(Allocation::default, |b| pairs.allocation(b))
}

/// Every pair of the GPUs (ascending; second index fastest) with its score. One batch.
pub(crate) fn judge_pairs(objective: &Objective, gpus: &[GpuId]) -> (Candidates, Vec<f64>) {
    let mut pairs = Candidates::new();
    for (i, &a) in gpus.iter().enumerate() {
        for &b in &gpus[i + 1..] {
            let (one, two) = (1u32 << a.gpu, 1u32 << b.gpu);
            if a.host == b.host {
                pairs.push(&[objective.part(a.host, topology::GpuMask(one | two))]);
            } else {
                let part = |g: GpuId, m| objective.part(g.host, topology::GpuMask(m));
                pairs.push(&[part(a, one), part(b, two)]);
            }
        }
    }
    let mut scores = Vec::new();
    objective.scores(&pairs, &mut scores);
    (pairs, scores)
}
