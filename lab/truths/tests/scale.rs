//! Optima at 64 GPUs: within the limit of nodes, and how long.

use topology::catalog;
use truths::{NAMES, by_name};

#[test]
fn optima_of_64_gpus_are_found_within_the_limit_of_nodes() {
    let cluster = catalog::cluster("litegd-64").unwrap();
    for (name, _) in NAMES {
        let truth = by_name(name, &cluster, 1, 0.02).unwrap();
        for (k, smooth) in [(8, false), (32, false), (32, true), (50, false)] {
            let start = std::time::Instant::now();
            let found = truth.optimum(&cluster.usable(), k, smooth);
            eprintln!("{name} k {k} smooth {smooth}: {:.0} ms, {:?}", start.elapsed().as_secs_f64() * 1e3, found.best);
            assert!(found.best.is_some() && !found.missing, "{name} k {k}");
        }
    }
}
