//! What NCCL launched, per rank: the algorithm and protocol in its own profiler events must be the same on all ranks, whatever the plugin counted.

mod common;

use common::{rendezvous, run, spec, with_plugin};
use nccl_bench::BenchSpec;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use topology::Collective;

/// By rank: the collectives that NCCL launched, in order, with size, algorithm and protocol. NCCL also reports those that it captures into a graph, with
/// the number of the next one that it launches.
fn launched(folder: &Path) -> BTreeMap<i64, Vec<String>> {
    let mut ranks = BTreeMap::<i64, BTreeMap<u64, String>>::new();
    for line in common::traces(folder).concat().iter().filter(|l| l["kind"] == "launched") {
        let what = format!("{} {} {}", line["collective"], line["count"], line["arm"]);
        ranks.entry(line["rank"].as_i64().unwrap()).or_default().insert(line["sequence"].as_u64().unwrap(), what);
    }
    ranks.into_iter().map(|(rank, calls)| (rank, calls.into_values().collect())).collect()
}

/// Launched calls in which a rank differs from the first one.
fn differing(ranks: &BTreeMap<i64, Vec<String>>) -> usize {
    let first = ranks.values().next().expect("NCCL reported launches");
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

/// The releases under test that report launches to the plugin's profiler.
fn versions() -> Vec<String> {
    common::versions("2.28.9").into_iter().filter(|v| common::identifies_communicators(v)).collect()
}

fn arms(ranks: &BTreeMap<i64, Vec<String>>) -> BTreeSet<String> {
    ranks.values().flatten().cloned().collect()
}

/// A job with a script of rewards, in mode adaptive, with many epochs.
fn adaptive(name: &str, version: &str, folder: &Path, gpus: u8, calls: usize) -> BenchSpec {
    let [script, trace] = ["rewards", "trace"].map(|f| folder.join(f));
    std::fs::write(&script, TIMES).unwrap();
    let settings = [
        ("MODE", "adaptive"),
        ("RENDEZVOUS", &rendezvous(&format!("{name}-{}", version.replace('.', "-")))),
        ("TRACE", trace.to_str().unwrap()),
        ("EXPLORE", "all"),
        ("TEST", "1"),
        ("TEST_REWARDS", script.to_str().unwrap()),
    ];
    let mut s =
        with_plugin(spec(&[gpus], version).with_calls(&[Collective::AllReduce], &vec![1 << 20; calls]), &settings);
    in_step(&mut s);
    s
}

/// A job with a table that replaces AUTO's choice, in mode profile.
fn profile(name: &str, version: &str, folder: &Path, size: u64) -> BenchSpec {
    let [table, trace] = ["table", "trace"].map(|f| folder.join(f));
    std::fs::write(&table, "AllReduce 1KiB max TREE/LL\n").unwrap();
    let settings = [
        ("MODE", "profile"),
        ("PROFILE", table.to_str().unwrap()),
        ("RENDEZVOUS", &rendezvous(&format!("{name}-{}", version.replace('.', "-")))),
        ("TRACE", trace.to_str().unwrap()),
    ];
    let mut s = with_plugin(spec(&[2], version).with_calls(&[Collective::AllReduce], &vec![size; 300]), &settings);
    in_step(&mut s);
    s
}

/// From 2.28 on NCCL reports groups and launches, so a simulated group is told from a launched one.
fn tells_simulated_groups(version: &str) -> bool {
    version.split('.').nth(1).and_then(|m| m.parse().ok()).is_some_and(|m: u32| m >= 28)
}

#[test]
fn a_rank_that_simulates_groups_launches_what_the_others_launch() {
    let name = "simulates";
    for version in versions() {
        for mode in ["adaptive", "profile"] {
            let folder = tempfile::tempdir().unwrap();
            let mut s = match mode {
                "adaptive" => adaptive(name, &version, folder.path(), 2, 600),
                _ => profile(name, &version, folder.path(), 1 << 20),
            };
            // In mode profile before the table comes into force: the simulating rank would use it some calls too early.
            s.simulates = Some(if mode == "adaptive" { (1, 100, 3) } else { (1, 5, 3) });
            s.late = Some((0, Duration::from_millis(200)));
            if run(name, &s).is_none() {
                return;
            }
            let launched = launched(&folder.path().join("trace"));
            let differ = differing(&launched);
            assert_eq!((launched.len(), differ), (2, 0), "{version} {mode}: calls launched with different arms");
            let arms = arms(&launched);
            assert_eq!(arms.len() > 1, tells_simulated_groups(&version), "{version} {mode}: {arms:?}");
        }
    }
}

#[test]
fn a_rank_that_captures_graphs_it_never_launches_launches_what_the_others_launch() {
    let name = "captures";
    // One call, and a whole period of calls: no hash of calls shows the second one.
    for (version, times) in versions().into_iter().flat_map(|v| [(v.clone(), 1), (v, 4)]) {
        for mode in ["adaptive", "profile"] {
            let folder = tempfile::tempdir().unwrap();
            let mut s = match mode {
                "adaptive" => adaptive(&format!("{name}{times}"), &version, folder.path(), 2, 600),
                _ => profile(&format!("{name}{times}"), &version, folder.path(), 1 << 20),
            };
            s.captures = Some(if mode == "adaptive" { (1, 100, times) } else { (1, 5, times) });
            s.late = Some((0, Duration::from_millis(200)));
            let Some(report) = run(name, &s) else { return };
            let launched = launched(&folder.path().join("trace"));
            let differ = differing(&launched);
            assert_eq!((launched.len(), differ), (2, 0), "{version} {mode}: calls launched with different arms");
            let arms = arms(&launched);
            assert_eq!(arms.len() > 1, tells_simulated_groups(&version), "{version} {mode}: {arms:?}");
            let warned = report.warnings.iter().any(|w| w.contains("count different calls"));
            assert!(!warned, "{version} {mode}: {:?}", report.warnings);
        }
    }
}

/// The largest size at which AUTO takes RING/SIMPLE also without `NCCL_PROTO=Simple`.
const SAME_AT_AUTO: u64 = 1 << 30;

#[test]
fn a_table_that_one_hosts_settings_forbid_is_used_by_no_rank_and_the_setting_is_named() {
    let name = "settings";
    for version in versions() {
        let folder = tempfile::tempdir().unwrap();
        let mut s = profile(name, &version, folder.path(), SAME_AT_AUTO);
        s.env_of_rank = vec![(1, "NCCL_PROTO".into(), "Simple".into())];
        let Some(report) = run(name, &s) else { return };
        let launched = launched(&folder.path().join("trace"));
        assert_eq!((launched.len(), differing(&launched), arms(&launched).len()), (2, 0, 1), "{version}");
        if tells_simulated_groups(&version) {
            let said: Vec<_> = report.warnings.iter().filter(|w| w.contains("different settings")).collect();
            assert!(said.iter().any(|w| w.contains("they differ in NCCL_ALGO, NCCL_PROTO")), "{:?}", report.warnings);
        }
    }
}

#[test]
fn an_arm_that_one_rank_lacks_is_used_by_no_rank_whatever_the_reason() {
    let name = "unlike";
    for version in versions() {
        for lacks in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let mut s = profile(name, &version, folder.path(), SAME_AT_AUTO);
            s.plugin_env.extend([("LINKWISE_TEST".into(), "1".into()), ("LINKWISE_TEST_UNLIKE".into(), "1".into())]);
            if lacks {
                s.env_of_rank = vec![(1, "NCCL_PROTO".into(), "Simple".into())];
            }
            if run(name, &s).is_none() {
                return;
            }
            let launched = launched(&folder.path().join("trace"));
            assert_eq!((launched.len(), differing(&launched)), (2, 0), "{version}");
            let used = arms(&launched).iter().any(|a| a.contains("TREE/LL"));
            assert_eq!(
                used,
                !lacks && tells_simulated_groups(&version),
                "{version}, lacks {lacks}: {:?}",
                arms(&launched)
            );
        }
    }
}

#[test]
fn only_the_canary_changes_arms() {
    let name = "canary";
    for version in versions().into_iter().filter(|v| tells_simulated_groups(v)) {
        for (canary, changes) in
            [("ranks=2", true), ("ranks=4", false), ("processes=0-0", false), ("index=0 processes=0-1", true)]
        {
            let folder = tempfile::tempdir().unwrap();
            let mut s =
                profile(&format!("{name}{}", canary.replace(['=', ' '], "-")), &version, folder.path(), 1 << 20);
            s.plugin_env.push(("LINKWISE_CANARY".into(), canary.into()));
            if run(name, &s).is_none() {
                return;
            }
            let launched = launched(&folder.path().join("trace"));
            assert_eq!((differing(&launched), arms(&launched).len() > 1), (0, changes), "{version} {canary}");
        }
    }
}
