//! A fitted model with intra tables in which the exact GPUs matter.

use predict::{FitOptions, Kind, Model, fit};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use store::{Measurement, Source};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask};

/// The size of every test's messages.
pub const SIZE: Bytes = Bytes::mib(16);

/// Intra bandwidth that depends on the exact mask, so that the choice of GPUs matters.
fn intra(host: u32, mask: GpuMask, salt: u64) -> f64 {
    let h = (u64::from(mask.0) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15 ^ salt.wrapping_mul(u64::from(host) + 3));
    20.0 + (h >> 56) as f64 / 3.0
}

/// Fitted on 40 random readings of several hosts and the intra tables of the first four.
pub fn model(cluster: &Cluster, kind: Kind, seed: u64) -> Model {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let usable = cluster.usable();
    let mut rows = Vec::new();
    let row = |a, v| Measurement::new(a, Collective::AllReduce, SIZE, Bandwidth::from_gb_per_s(v), Source::Simulated);
    while rows.len() < 40 {
        let k = 2 + place::baselines::below(&mut rng, usable.gpu_count() - 1);
        let a = place::baselines::random(&usable, k, &mut rng).unwrap();
        if a.host_count() > 1 {
            rows.push(row(a, 10.0 + place::baselines::below(&mut rng, 1000) as f64 / 10.0));
        }
    }
    for h in cluster.host_ids().take(4) {
        let all = GpuMask::first(8).subsets();
        rows.extend(all.map(|m| row(Allocation::new([(h, m)]), intra(h.0, m, seed))));
    }
    fit(cluster, &rows, &FitOptions::of(kind)).unwrap().0
}
