//! Choices without a model: the choice of a packing scheduler, and random GPUs.

use rand::Rng;
use topology::{Allocation, Cluster};

/// The baseline of every answer: BandPilot's Topo ([`crate::search::topo`]), which packs as topology-aware schedulers do. `None` if `k` is 0
/// or fewer than `k` GPUs are free.
pub fn packed(cluster: &Cluster, free: &Allocation, k: usize) -> Option<Allocation> {
    crate::search::topo::choose(cluster, free, k)
}

/// Draws `k` free GPUs uniformly at random. Source: BandPilot, algorithm 3.
pub fn random(free: &Allocation, k: usize, rng: &mut impl Rng) -> Option<Allocation> {
    if k == 0 || free.gpu_count() < k {
        return None;
    }
    let mut gpus: Vec<_> = free.gpus().collect();
    for i in 0..k {
        let j = i + below(rng, gpus.len() - i);
        gpus.swap(i, j);
    }
    Some(Allocation::from_gpus(gpus[..k].iter().copied()))
}

/// A uniform random integer below `n`, from the top bits (bias below 2^-32 for the small `n` here).
pub fn below(rng: &mut impl Rng, n: usize) -> usize {
    ((u128::from(rng.next_u64()) * n as u128) >> 64) as usize
}
