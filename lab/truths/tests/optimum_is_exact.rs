//! Compares the optimum with brute force over every subset of the free GPUs.

use proptest::prelude::*;
use topology::{Allocation, Cluster, GpuId, catalog};
use truths::{Irregularity, NAMES, Truth, by_name};

/// Every subset of `k` of the free GPUs.
fn brute(truth: &dyn Truth, free: &[GpuId], k: usize, kind: Irregularity) -> (Option<f64>, bool) {
    let (mut best, mut missing) = (None::<f64>, false);
    for bits in 0u32..1 << free.len() {
        if bits.count_ones() as usize == k {
            let chosen = (0..free.len()).filter(|i| bits >> i & 1 == 1).map(|i| free[i]);
            let a = Allocation::from_gpus(chosen);
            match truth.of_parts(a.parts(), kind) {
                Some(v) => best = Some(best.map_or(v, |b| b.max(v))),
                None => missing = true,
            }
        }
    }
    (best, missing)
}

fn cluster(which: usize) -> Cluster {
    catalog::cluster(["h100", "het-ra", "het-va", "het-4mix"][which]).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn the_optimum_is_that_of_all_subsets(
        name in 0..NAMES.len(),
        which in 0..4usize,
        seed in 0..1000u64,
        irregularity in prop::sample::select(vec![0.0, 0.02, 0.1]),
        kind in prop::sample::select(vec![Irregularity::With, Irregularity::Without]),
        // With fewer hosts more GPUs of each host are free, so that their choice matters more.
        (from, hosts) in (0..3usize, 2..=4usize),
        picks in prop::collection::btree_set(0..32usize, 2..=13),
        k in 1..=13usize,
    ) {
        let hosts = hosts.min(4 - from);
        let picks: std::collections::BTreeSet<usize> = picks.into_iter().map(|p| from * 8 + p % (8 * hosts)).collect();
        let truth = by_name(NAMES[name].0, &cluster(which), seed, irregularity).unwrap();
        let free: Vec<GpuId> = picks.iter().map(|p| GpuId { host: topology::HostId((p / 8) as u32), gpu: (p % 8) as u8 }).collect();
        let k = k.min(free.len());
        let found = truth.optimum(&Allocation::from_gpus(free.iter().copied()), k, kind);
        let (best, missing) = brute(&*truth, &free, k, kind);
        prop_assert_eq!(found.best, best);
        prop_assert_eq!(found.missing, missing);
        let a = found.allocation.unwrap();
        prop_assert_eq!(a.gpu_count(), k);
        let value = truth.of_parts(a.parts(), kind);
        prop_assert_eq!(value, found.best);
    }
}
