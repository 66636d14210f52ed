//! Rewards in the real NCCL library on the bench: groups as NCCL reports them, GPU times of all ranks. Kernels finish at once there, so GPU times are
//! scripted; everything else is NCCL's own.

mod common;

use common::job::Job;
use common::{rendezvous, run, spec, with_plugin};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;
use topology::Collective;

fn trace(folder: &Path) -> Vec<Value> {
    let files = std::fs::read_dir(folder).unwrap().flatten();
    let texts = files.map(|f| std::fs::read_to_string(f.path()).unwrap());
    texts.flat_map(|t| t.lines().map(|l| serde_json::from_str(l).unwrap()).collect::<Vec<Value>>()).collect()
}

#[test]
fn the_gpu_time_is_that_of_the_last_rank_and_does_not_decide() {
    let name = "the_gpu_time_is_that_of_the_last_rank_and_does_not_decide";
    let folder = tempfile::tempdir().unwrap();
    let (script, traces) = (folder.path().join("script"), folder.path().join("trace"));
    // TREE/LL has the shortest kernels and the longest steps. Rank 2 comes last; the others wait for it by their lead.
    let text = "AllReduce 20 TREE/LL 300\nAllReduce 20 TREE/LL128 120\nAllReduce 20 TREE/SIMPLE 130\nAllReduce 20 RING/LL 200\n\
                AllReduce 20 RING/LL128 180\nAllReduce 20 RING/SIMPLE 90\nAllReduce 20 NVLSTREE/SIMPLE 140\n\
                kernel AllReduce 20 TREE/LL 11\nkernel AllReduce 20 TREE/LL128 50\nkernel AllReduce 20 TREE/SIMPLE 60\n\
                kernel AllReduce 20 RING/LL 70\nkernel AllReduce 20 RING/LL128 75\nkernel AllReduce 20 RING/SIMPLE 80\n\
                kernel AllReduce 20 NVLSTREE/SIMPLE 85\nwaits 0 700\nwaits 1 40\nwaits 3 9\n";
    std::fs::write(&script, text).unwrap();
    let rendezvous = rendezvous(name);
    let settings = [
        ("MODE", "adaptive"),
        ("RENDEZVOUS", rendezvous.as_str()),
        ("TRACE", traces.to_str().unwrap()),
        ("EXPLORE", "all"),
        ("KERNEL_TIMES", "0"),
        ("TEST", "1"),
        ("TEST_REWARDS", script.to_str().unwrap()),
    ];
    let mut s = spec(&[2, 2], "2.28").with_calls(&[Collective::AllReduce], &vec![1 << 20; 1200]);
    s.process_per_rank = true;
    (s.in_step_every, s.pause) = (10, Duration::from_millis(1));
    if run(name, &with_plugin(s, &settings)).is_none() {
        return;
    }
    let trace = trace(&traces);
    let kernels: Vec<(&str, f64)> = trace
        .iter()
        .filter(|v| v["kind"] == "sample" && v["source"] == "kernel")
        .map(|v| (v["arm"].as_str().unwrap(), v["time_us"].as_f64().unwrap()))
        .collect();
    let of = |arm: &str| kernels.iter().filter(|k| k.0 == arm).map(|k| k.1).collect::<Vec<_>>();
    for (arm, us) in [("TREE/LL", 11.0), ("TREE/LL128", 50.0), ("RING/SIMPLE", 80.0)] {
        let times = of(arm);
        assert!(!times.is_empty() && times.iter().all(|t| *t == us), "{arm}: {times:?}");
    }
    assert!(kernels.len() >= 40, "{}", kernels.len());
    // Each single rank measured more.
    let alone = |rank: u64| {
        let of = |v: &&Value| v["kind"] == "launched" && v["rank"] == rank && v["arm"] == "TREE/LL";
        trace.iter().filter(of).find_map(|v| v["kernel_us"].as_f64()).unwrap()
    };
    assert_eq!([0, 1, 2, 3].map(alone), [711.0, 51.0, 11.0, 20.0]);
    // Most of the last calls: the very last one may explore another arm.
    let calls = trace.iter().filter(|v| v["kind"] == "call" && v["rank"] == 0);
    let best = calls.rev().take(100).filter(|v| v["arm"] == "RING/SIMPLE").count();
    assert!(best > 50, "the first reward wins: {best} of the last 100 calls");
    assert!(
        trace.iter().any(|v| v["kind"] == "process" && v["scripted"] == true),
        "the trace marks its times as scripted"
    );
}

#[test]
fn nccl_reports_outermost_groups_and_intervals_run_between_them() {
    let name = "nccl_reports_outermost_groups_and_intervals_run_between_them";
    const CALLS: usize = 1200;
    // API groups from 2.28 on (profiler v5 and later), launches of groups in 2.27.
    for version in ["2.27.7", "2.28", "2.32"] {
        let folder = tempfile::tempdir().unwrap();
        let rendezvous = rendezvous(&format!("groups-{}", version.replace('.', "-")));
        let settings = [
            ("MODE", "adaptive"),
            ("RENDEZVOUS", rendezvous.as_str()),
            ("TRACE", folder.path().to_str().unwrap()),
            ("EXPLORE", "all"),
            ("KERNEL_TIMES", "0"),
            ("GRAPHS", "none"), // 2.27 reports neither captures nor groups
            ("SIMULATED_GROUPS", "none"),
        ];
        let mut s = spec(&[2], version).with_calls(&[Collective::AllReduce], &vec![1 << 20; CALLS]);
        // Slow enough that no record is lost and that ranks agree on several epochs before the calls end, also on a busy machine.
        (s.process_per_rank, s.in_step_every, s.pause) = (true, 5, Duration::from_millis(2));
        if run(name, &with_plugin(s, &settings)).is_none() {
            return;
        }
        let trace = trace(folder.path());
        let groups: Vec<u64> = trace
            .iter()
            .filter(|v| v["kind"] == "call" && v["rank"] == 0)
            .map(|v| v["group"].as_u64().unwrap())
            .collect();
        // The bench makes each call in its own group.
        let differ = groups.windows(2).filter(|w| w[0] != w[1]).count();
        assert_eq!((groups.len(), differ), (CALLS, CALLS - 1), "{version}");
        let of = |source: &str| trace.iter().filter(|v| v["kind"] == "sample" && v["source"] == source).count();
        assert!(of("interval") >= 10, "{version}: {} intervals, {} between calls", of("interval"), of("calls"));
        // 2.27 does not report the group of the very first call.
        assert!(of("calls") <= 2, "{version}: {}", of("calls"));
        let epochs = trace.iter().filter(|v| v["kind"] == "epoch").count();
        assert!(epochs >= 3, "{version}: {epochs} epochs although some calls have no time");
    }
}

/// Profiler events of kernels, which NCCL reports GPU times with.
const KERNEL_CHANNEL: u64 = 0x40;

#[test]
fn gpu_times_are_measured_only_while_they_are_used() {
    let name = "gpu_times_are_measured_only_while_they_are_used";
    let folder = tempfile::tempdir().unwrap();
    let [trace, stop] = ["trace", "stop"].map(|f| folder.path().join(f).to_str().unwrap().to_string());
    std::fs::write(&stop, "").unwrap();
    let used = [("MODE", "adaptive")];
    for (settings, expected) in [
        (&used[..], true),
        (&[used[0], ("FREEZE_AFTER", "300")], false),
        (&[used[0], ("STOP_FILE", stop.as_str())], false),
        (&[("MODE", "observe")], false),
        (&[("MODE", "observe"), ("TRACE", trace.as_str())], true),
    ] {
        let Some(mut job) = Job::new(name, 2) else { return };
        let rendezvous = rendezvous("gpu-times");
        let all = [&[("KERNEL_TIMES", "force"), ("RENDEZVOUS", rendezvous.as_str())], settings].concat();
        (0..2).for_each(|rank| job.start(rank, Duration::from_millis(1), &all, |command| command));
        job.until("calls are made", |job| job.begun(0) > 1000);
        job.until(&format!("{settings:?}: {expected}"), |job| (job.mask(0) & KERNEL_CHANNEL != 0) == expected);
        assert_ne!(job.mask(0) & !KERNEL_CHANNEL, 0, "other events stay");
        job.finish();
    }
}
