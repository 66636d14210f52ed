//! Ranks in separate processes with the real NCCL library and an adaptive policy: all ranks run each call with the same arm.

mod common;

use common::{rendezvous, run, spec, with_plugin};
use nccl_bench::{Bench, BenchError, BenchSpec};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;
use topology::Collective;

/// Arms by rank and call.
type Logs = BTreeMap<i64, Vec<String>>;

/// The arms that ranks requested (`call`) or that NCCL launched (`launched`).
fn logs(folder: &Path, kind: &str) -> Logs {
    let mut ranks = Logs::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap();
        // A process killed at the deadline may leave a partial line.
        for line in text.split_inclusive('\n').filter(|l| l.ends_with('\n')) {
            let v: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
            if v["kind"] == kind {
                let what = format!("{} {} {} {}", v["collective"], v["size_bytes"], v["arm"], v["channels"]);
                ranks.entry(v["rank"].as_i64().unwrap()).or_default().push(what);
            }
        }
    }
    ranks
}

const CALLS: usize = 2000;

/// 2 hosts x 4 processes, one of them 300 ms late. `None`: skipped.
fn job(test: &str, version: &str, alone: bool) -> Option<(Logs, Logs)> {
    // One at a time: the second job has a deadline, and eight processes need the machine.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("rewards");
    let times = "AllReduce 20 TREE/LL 300\nAllReduce 20 TREE/LL128 120\nAllReduce 20 TREE/SIMPLE 130\n\
                 AllReduce 20 RING/LL 200\nAllReduce 20 RING/LL128 180\nAllReduce 20 RING/SIMPLE 90\n\
                 AllReduce 20 NVLSTREE/SIMPLE 140\nnoise 0.15\n";
    std::fs::write(&script, times).unwrap();
    let trace = std::env::var_os("KEEP_TRACE").map_or(folder.path().join("trace"), std::path::PathBuf::from);
    let rendezvous = rendezvous(&format!("{test}-{}", version.replace('.', "-")));
    let mut s = spec(&[4, 4], version).with_calls(&[Collective::AllReduce], &vec![1 << 20; CALLS]);
    s.process_per_rank = true;
    s.late = Some((5, Duration::from_millis(300)));
    (s.in_step_every, s.pause) = (10, Duration::from_millis(1));
    let settings = |trace: &Path| {
        [
            ("MODE", "adaptive".to_string()),
            ("RENDEZVOUS", rendezvous.clone()),
            ("TRACE", trace.display().to_string()),
            ("EXPLORE", "all".into()),
            ("GRAPHS", "none".into()), // 2.27 reports neither captures nor groups
            ("SIMULATED_GROUPS", "none".into()),
            ("KERNEL_TIMES", "0".into()),
            ("TEST", "1".into()),
            ("TEST_REWARDS", script.display().to_string()),
            ("TEST_ALONE", if alone { "1" } else { "0" }.into()),
        ]
    };
    let with = |s: &BenchSpec, trace: &Path| {
        let settings = settings(trace);
        with_plugin(s.clone(), &settings.each_ref().map(|(k, v)| (*k, v.as_str())))
    };
    if !alone {
        run(test, &with(&s, &trace))?;
        return Some((logs(&trace, "call"), logs(&trace, "launched")));
    }
    // Ranks that connect different algorithms wait for each other forever, as on hardware, so the run ends at its deadline. The call in which they
    // do so may be missing in the traces, because NCCL launches nothing in it.
    let mut found = (Logs::new(), Logs::new());
    for deadline_s in [20, 60] {
        s.deadline = Duration::from_secs(deadline_s);
        let trace = trace.join(deadline_s.to_string());
        match Bench::new().and_then(|b| b.run(&with(&s, &trace))) {
            Ok(_) | Err(BenchError::Deadline { .. }) => {}
            Err(e) => {
                assert!(e.is_about_this_machine(), "{e}");
                eprintln!("SKIP {test}: {e}");
                return None;
            }
        }
        if trace.exists() {
            found = (logs(&trace, "call"), logs(&trace, "launched"));
            if ranks_differ(&found.0) {
                break;
            }
        }
    }
    Some(found)
}

/// True if two ranks ran a call with different arms.
fn ranks_differ(asked: &Logs) -> bool {
    let first = asked.values().next();
    first.is_some_and(|f| asked.values().any(|log| log.iter().zip(f).any(|(a, b)| a != b)))
}

#[test]
fn eight_processes_run_every_call_with_one_arm_and_find_the_best() {
    let name = "eight_processes_run_every_call_with_one_arm_and_find_the_best";
    for version in common::versions("2.28").iter().filter(|v| common::identifies_communicators(v)) {
        let Some((asked, launched)) = job(name, version, false) else { return };
        assert_eq!(asked.keys().copied().collect::<Vec<_>>(), (0..8).collect::<Vec<i64>>());
        for (rank, log) in &asked {
            assert_eq!(log.len(), CALLS, "rank {rank} of {version}");
            assert_eq!(log, &asked[&0], "rank {rank} of {version}");
        }
        for (rank, log) in &launched {
            assert_eq!(log, &launched[&0], "rank {rank} of {version}");
        }
        // Most of the last calls: the very last one may explore another arm.
        let best = asked[&0].iter().rev().take(200).filter(|call| call.contains("RING/SIMPLE")).count();
        assert!(best > 100, "{best} of the last 200 calls");
        let arms: std::collections::BTreeSet<_> = asked[&0].iter().collect();
        assert!(arms.len() >= 5, "at least AUTO and two protocols of rings and trees: {arms:?}");
    }
}

#[test]
fn without_agreement_ranks_run_one_call_with_different_arms() {
    let name = "without_agreement_ranks_run_one_call_with_different_arms";
    let Some((asked, _)) = job(name, "2.28", true) else { return };
    // The job with agreement makes all its calls in a tenth of a minute.
    let hangs = !asked.is_empty() && asked.values().all(|log| log.len() < CALLS / 2);
    assert!(ranks_differ(&asked) || hangs, "each rank decided alone, but no difference was found, and no rank hangs");
}

/// The last value of a field in the lines of a kind, by rank.
fn field(folder: &Path, kind: &str, name: &str) -> BTreeMap<i64, u64> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        for line in std::fs::read_to_string(entry.path()).unwrap().lines() {
            let v: Value = serde_json::from_str(line).unwrap();
            if v["kind"] == kind {
                found.insert(v["rank"].as_i64().unwrap(), v[name].as_u64().unwrap());
            }
        }
    }
    found
}

/// A table with a lead: a lease is twelve leads, so this job renews it several times.
#[test]
fn with_a_lead_no_call_waits_and_the_table_is_renewed_to_the_end() {
    let name = "with_a_lead_no_call_waits_and_the_table_is_renewed_to_the_end";
    let folder = tempfile::tempdir().unwrap();
    let (table, trace) = (folder.path().join("table"), folder.path().join("trace"));
    std::fs::write(&table, "AllReduce 1KiB max TREE/LL\n").unwrap();
    let mut s = spec(&[2, 2], "2.28").with_calls(&[Collective::AllReduce], &vec![1 << 20; CALLS]);
    (s.process_per_rank, s.in_step_every, s.pause) = (true, 2, Duration::from_millis(3));
    let rendezvous = rendezvous(name);
    let settings = [
        ("MODE", "profile"),
        ("PROFILE", table.to_str().unwrap()),
        ("RENDEZVOUS", &rendezvous),
        ("TRACE", trace.to_str().unwrap()),
        ("LEAD", "0.05"),
    ];
    s = with_plugin(s, &settings);
    if run(name, &s).is_none() {
        return;
    }
    let logs = logs(&trace, "call");
    for (rank, log) in &logs {
        assert_eq!(log, &logs[&0], "rank {rank}");
        let tree = log.iter().filter(|call| call.contains("TREE/LL")).count();
        assert!(tree > CALLS / 2, "{tree} of {CALLS} calls used the table");
        assert!(log.last().unwrap().contains("TREE/LL"), "renewed to the end");
    }
    assert_eq!(logs.len(), 4);
    let waits = field(&trace, "end", "waits");
    assert!(waits.values().all(|n| *n == 0), "{waits:?}");
}
