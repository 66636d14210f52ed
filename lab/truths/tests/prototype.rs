//! Compares rule R with the results of the prototype in `placement-prototype.md`: the same form must be equally
//! difficult.

use topology::{Allocation, Cluster, GpuId, catalog};
use truths::{Irregularity, Keyed, by_name};

/// `n` of some GPUs, by a key.
fn pick(gpus: &[GpuId], n: usize, key: Keyed) -> Vec<GpuId> {
    let mut all: Vec<(u64, GpuId)> =
        gpus.iter().enumerate().map(|(i, g)| ((key.with(i as u64).uniform() * 1e15) as u64, *g)).collect();
    all.sort();
    all.into_iter().take(n).map(|x| x.1).collect()
}

/// (k, free) as in the prototype: k is uniform between k and all GPUs.
fn requests(cluster: &Cluster, per_k: u64, seed: u64) -> Vec<(usize, Vec<GpuId>)> {
    let all: Vec<GpuId> = cluster.usable().gpus().collect();
    let mut out = Vec::new();
    for k in 2..=all.len() {
        for i in 0..per_k {
            let key = Keyed::new(seed, 77).with(k as u64).with(i);
            let free = k + (key.uniform() * (all.len() - k + 1) as f64) as usize;
            out.push((k, pick(&all, free, key.with(1))));
        }
    }
    out
}

#[test]
fn a_perfect_smooth_model_and_a_random_choice_score_as_on_the_prototype() {
    // Mean GBE of a perfect smooth model (99.0 to 99.6) and of random choices (55.8 to 61.7), section 2 and 4.
    for (name, ceiling, random) in
        [("h100", 99.0, 55.8), ("het-ra", 99.3, 60.5), ("het-va", 99.2, 61.7), ("het-4mix", 99.6, 59.7)]
    {
        let cluster = catalog::cluster(name).unwrap();
        let (mut smooth, mut drawn, mut n) = (0.0, 0.0, 0.0);
        for seed in 1..=4 {
            let truth = by_name("rule-r", &cluster, seed, 0.02).unwrap();
            for (k, free) in requests(&cluster, 5, seed) {
                let all = Allocation::from_gpus(free.iter().copied());
                let best = truth.optimum(&all, k, Irregularity::With).best.unwrap();
                let chosen = truth.optimum(&all, k, Irregularity::Without).allocation.unwrap();
                let blind = Allocation::from_gpus(pick(&free, k, Keyed::new(seed, 9).with(k as u64)));
                smooth += truth.busbw_gb_per_s(&chosen).unwrap() / best;
                drawn += truth.busbw_gb_per_s(&blind).unwrap() / best;
                n += 1.0;
            }
        }
        let (smooth, drawn) = (100.0 * smooth / n, 100.0 * drawn / n);
        eprintln!(
            "{name}: perfect smooth model {smooth:.2} (prototype {ceiling}), random {drawn:.1} (prototype {random})"
        );
        assert!((smooth - ceiling).abs() < 0.5, "{name}: {smooth:.2}, prototype {ceiling}");
        assert!((drawn - random).abs() < 8.0, "{name}: {drawn:.1}, prototype {random}");
    }
}
