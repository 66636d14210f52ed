//! Greedy growth by the bandwidths of pairs.

use crate::judge::{affordable, argmax};
use crate::litegd::judge_pairs;
use place::search::{admit, one};
use place::{Objective, Refusal, Search, SearchResult};
use std::collections::HashSet;
use topology::{Allocation, GpuId, HostId};

/// Penalty for a pair across hosts, for each of its hosts that a running job uses, GB/s. The authors' setting.
const BUSY_HOST_PENALTY_GB_PER_S: f64 = 0.15;

/// BWGreedy: a baseline of arXiv 2506.15595 v4, in its public code (`algorithms/network_baselines.py`).
///
/// Begins with the pair of free GPUs with the highest bandwidth. Then repeatedly adds the GPU with the largest sum of
/// pair bandwidths to the chosen GPUs; pairs across hosts that running jobs use get a penalty. The authors use true
/// bandwidths of pairs; this code uses the model's, like every search. It ignores all effects that only sets of three
/// or more GPUs show (balance, NICs). Evaluations: N (N - 1) / 2 pairs in one batch.
pub struct BwGreedy;

impl Search for BwGreedy {
    fn name(&self) -> &'static str {
        "bw-greedy"
    }
    fn search(&self, objective: &Objective, _keep: usize) -> Result<SearchResult, Refusal> {
        let before = objective.evaluations();
        let free = admit(objective, "bw-greedy")?;
        let gpus: Vec<GpuId> = free.gpus().collect();
        let n = gpus.len();
        affordable("bw-greedy", (n as u128) * (n as u128 - 1) / 2)?;
        if n == 1 {
            return Ok(one(objective, free, before));
        }
        let pairs = PairScores::new(objective, &gpus);
        Ok(one(
            objective,
            Allocation::from_gpus(pairs.grow(objective.request.gpus).into_iter().map(|i| gpus[i])),
            before,
        ))
    }
}

/// Scores of all pairs, as a full matrix.
struct PairScores {
    gpus: usize,
    scores: Vec<f64>,
}

impl PairScores {
    fn new(objective: &Objective, gpus: &[GpuId]) -> Self {
        let busy: HashSet<HostId> = objective.request.jobs.iter().flat_map(|j| j.gpus.parts()).map(|p| p.0).collect();
        let end = |h: HostId| if busy.contains(&h) { BUSY_HOST_PENALTY_GB_PER_S } else { 0.0 };
        let (_, judged) = judge_pairs(objective, gpus);
        let n = gpus.len();
        let mut scores = vec![f64::NEG_INFINITY; n * n];
        let pairs = (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j)));
        for ((i, j), judged) in pairs.zip(judged) {
            let (a, b) = (gpus[i].host, gpus[j].host);
            let v = if a == b { judged } else { judged - end(a) - end(b) };
            scores[i * n + j] = v;
            scores[j * n + i] = v;
        }
        PairScores { gpus: n, scores }
    }

    /// Indices of `k` GPUs, grown from the best pair. O(N² + N x k).
    fn grow(&self, k: usize) -> Vec<usize> {
        let n = self.gpus;
        let Some(pair) = argmax(&self.scores) else { return Vec::new() };
        let mut chosen = vec![pair / n];
        let mut gains = self.scores[pair / n * n..][..n].to_vec();
        while chosen.len() < k {
            // A GPU's score with itself is minus infinity, so a chosen GPU is not chosen again.
            let Some(g) = argmax(&gains) else { break };
            chosen.push(g);
            for (gain, s) in gains.iter_mut().zip(&self.scores[g * n..]) {
                *gain += s;
            }
        }
        chosen
    }
}
