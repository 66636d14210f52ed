//! What NCCL launched, per rank: the algorithm and protocol in its own profiler events must be the same on all ranks, whatever the plugin counted.

mod common;

use common::{rendezvous, run, spec, with_plugin};
use nccl_bench::BenchSpec;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use topology::Collective;

/// By rank: the collectives that NCCL launched, in order, with size, algorithm and protocol.
fn launched(folder: &Path) -> BTreeMap<i64, Vec<String>> {
    let mut ranks = BTreeMap::<i64, Vec<String>>::new();
    for line in common::traces(folder).concat().iter().filter(|l| l["kind"] == "launched") {
        let what = format!("{} {} {}", line["collective"], line["count"], line["arm"]);
        ranks.entry(line["rank"].as_i64().unwrap()).or_default().push(what);
    }
    ranks
}

/// Launched calls in which a rank differs from the first one.
fn differing(ranks: &BTreeMap<i64, Vec<String>>) -> usize {
    let first = ranks.values().next().unwrap();
    assert!(ranks.values().all(|log| log.len() == first.len()), "every rank launched every call");
    (0..first.len()).filter(|i| ranks.values().any(|log| log[*i] != first[*i])).count()
}

/// Ranks wait for each other every ten calls, so that they stay close together.
fn in_step(s: &mut BenchSpec) {
    s.process_per_rank = true;
    (s.in_step_every, s.pause) = (10, Duration::from_millis(1));
}

const TIMES: &str = "AllReduce 20 TREE/LL 300\nAllReduce 20 TREE/LL128 120\nAllReduce 20 TREE/SIMPLE 130\nAllReduce 20 NVLS/SIMPLE 140\n\
                     AllReduce 20 RING/LL 200\nAllReduce 20 RING/LL128 180\nAllReduce 20 RING/SIMPLE 90\nnoise 0.15\n";

#[test]
fn a_rank_that_simulates_groups_launches_what_the_others_launch() {
    let name = "a_rank_that_simulates_groups_launches_what_the_others_launch";
    for version in common::versions("2.28.9") {
        let folder = tempfile::tempdir().unwrap();
        let [script, trace] = ["rewards", "trace"].map(|f| folder.path().join(f));
        std::fs::write(&script, TIMES).unwrap();
        let rendezvous = rendezvous(&format!("simulates-{}", version.replace('.', "-")));
        let settings = [
            ("MODE", "adaptive"),
            ("RENDEZVOUS", rendezvous.as_str()),
            ("TRACE", trace.to_str().unwrap()),
            ("EXPLORE", "all"),
            ("KERNEL_TIMES", "0"),
            ("TEST", "1"),
            ("TEST_REWARDS", script.to_str().unwrap()),
        ];
        let mut s =
            with_plugin(spec(&[2], &version).with_calls(&[Collective::AllReduce], &vec![1 << 20; 600]), &settings);
        in_step(&mut s);
        s.simulates = Some((1, 100, 3));
        if run(name, &s).is_none() {
            return;
        }
        let launched = launched(&trace);
        assert_eq!((launched.len(), launched[&0].len()), (2, 600), "{version}");
        let arms: std::collections::BTreeSet<_> = launched[&0].iter().collect();
        assert_eq!(differing(&launched), 0, "{version}: calls launched with different arms");
        assert!(arms.len() > 2 || !tells_simulated_groups(&version), "{version}: arms were tried: {arms:?}");
    }
}

/// From 2.28 on NCCL reports groups and launches, so a simulated group is told from a launched one.
fn tells_simulated_groups(version: &str) -> bool {
    version.split('.').nth(1).and_then(|m| m.parse().ok()).is_some_and(|m: u32| m >= 28)
}
