//! A random choice of GPUs.

use place::search::{admit, not_enough, one};
use place::{Objective, Refusal, Search, SearchResult, baselines};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use topology::Allocation;

/// `k` free GPUs, drawn uniformly at random: arXiv 2506.15595, algorithm 3 (Random). No evaluations.
///
/// The same seed and request give the same GPUs; other requests use other random streams.
pub struct RandomSearch {
    /// Seed of the draw.
    pub seed: u64,
}

impl Search for RandomSearch {
    fn name(&self) -> &'static str {
        "random"
    }
    fn search(&self, objective: &Objective, _keep: usize) -> Result<SearchResult, Refusal> {
        let free = admit(objective, "random")?;
        let k = objective.request.gpus;
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed ^ fingerprint(&free, k));
        let chosen = baselines::random(&free, k, &mut rng).ok_or_else(|| not_enough(objective.request, &free))?;
        Ok(one(objective, chosen, objective.evaluations()))
    }
}

/// FNV-1a over k and the free GPUs: different requests, different streams.
fn fingerprint(free: &Allocation, k: usize) -> u64 {
    let words = free.parts().iter().flat_map(|(h, m)| [u64::from(h.0), u64::from(m.0)]);
    std::iter::once(k as u64).chain(words).fold(0xcbf2_9ce4_8422_2325, |h, w| (h ^ w).wrapping_mul(0x0100_0000_01b3))
}
