//! What people get today, for those who need no [`crate::Search`]: the packed choice and lots.

use rand::Rng;
use topology::{Allocation, Cluster};

/// What answers are compared with: BandPilot's Topo ([`crate::search::topo`]), which packs like topology-aware schedulers. `None` if too few
/// are free, or none is asked for.
pub fn packed(cluster: &Cluster, free: &Allocation, k: usize) -> Option<Allocation> {
    crate::search::topo::choose(cluster, free, k)
}

/// `k` free GPUs drawn evenly. Source: BandPilot, algorithm 3.
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

/// A whole number below `n`, evenly, from the top bits (bias below 2^-32 for the small `n` here).
pub fn below(rng: &mut impl Rng, n: usize) -> usize {
    ((u128::from(rng.next_u64()) * n as u128) >> 64) as usize
}
