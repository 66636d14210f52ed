//! Optima at 64 GPUs: they are found within the limit of nodes; the time is printed.

use topology::catalog;
use truths::{Irregularity, NAMES, by_name};

#[test]
fn optima_of_64_gpus_are_found_within_the_limit_of_nodes() {
    let cluster = catalog::cluster("litegd-64").unwrap();
    for (name, _) in NAMES {
        let truth = by_name(name, &cluster, 1, 0.02).unwrap();
        let (with, without) = (Irregularity::With, Irregularity::Without);
        for (k, irregularity) in [(8, with), (32, with), (32, without), (50, with)] {
            let start = std::time::Instant::now();
            let found = truth.optimum(&cluster.usable(), k, irregularity);
            let ms = start.elapsed().as_secs_f64() * 1e3;
            eprintln!("{name} k {k}, {irregularity:?} irregularity: {ms:.0} ms, {:?}", found.best);
            assert!(found.best.is_some() && !found.missing, "{name} k {k}");
        }
    }
}
