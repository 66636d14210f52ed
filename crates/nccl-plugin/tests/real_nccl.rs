//! The plugin in the real NCCL library on the bench.

mod common;

use common::{FIVE, decisions, identifies_communicators, rendezvous, run, spec, with_plugin};
use nccl_bench::BenchSpec;
use std::time::Duration;
use topology::Collective;
use topology::nccl::{Algorithm, Protocol};

/// The releases under test; `LINKWISE_NCCL_VERSIONS` selects others.
fn versions() -> Vec<String> {
    common::versions("2.24 2.28 2.30 2.32")
}

/// Ranks wait for each other, and one is late, so that the table comes into force also on a busy machine. One rank per process: before 2.27.3 the
/// job agrees.
fn slow_down(s: &mut BenchSpec) {
    s.process_per_rank = true;
    (s.in_step_every, s.pause) = (10, Duration::from_millis(2));
    s.late = Some((1, Duration::from_millis(300)));
}

#[test]
fn a_plugin_that_is_off_changes_no_decision() {
    let name = "a_plugin_that_is_off_changes_no_decision";
    let sizes: Vec<u64> = (10..=30).step_by(4).map(|k| 1 << k).collect();
    for version in versions() {
        let plain = spec(&[8], &version).with_calls(&FIVE, &sizes);
        let Some(without) = run(name, &plain) else { return };
        for settings in [&[][..], &[("MODE", "off")], &[("MODE", "observe")]] {
            let with = run(name, &with_plugin(plain.clone(), settings)).unwrap();
            assert_eq!(decisions(&without), decisions(&with), "{version} {settings:?}");
        }
    }
}

#[test]
fn a_profile_is_used_once_all_ranks_hold_it() {
    let name = "a_profile_is_used_once_all_ranks_hold_it";
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("profile");
    std::fs::write(&profile, "AllReduce 1KiB max TREE/LL128@4\n").unwrap();
    // Older releases: tests/job.rs.
    for version in versions().iter().filter(|v| identifies_communicators(v)) {
        let sizes = vec![1 << 20; 400];
        let rendezvous = rendezvous(&version.replace('.', "-"));
        let settings = [
            ("MODE", "profile"),
            ("JOB", "closed"), // two promises that releases before 2.28 need
            ("SIMULATED_GROUPS", "none"),
            ("GRAPHS", "none"),
            ("PROFILE", profile.to_str().unwrap()),
            ("RENDEZVOUS", rendezvous.as_str()),
            ("KERNEL_TIMES", "0"),
        ];
        let mut s = with_plugin(spec(&[4], version).with_calls(&[Collective::AllReduce], &sizes), &settings);
        slow_down(&mut s);
        let Some(report) = run(name, &s) else { return };
        let last = report.decisions().last().unwrap();
        assert_eq!((last.algorithm, last.protocol, last.channels), (Algorithm::Tree, Protocol::Ll128, 4), "{version}");
    }
}

#[test]
fn a_panic_in_every_entry_changes_no_decision() {
    let name = "a_panic_in_every_entry_changes_no_decision";
    for version in versions() {
        let plain = spec(&[4], &version).with_calls(&FIVE, &[1 << 12, 1 << 24]);
        let Some(without) = run(name, &plain) else { return };
        let rendezvous = rendezvous(&format!("panic-{}", version.replace('.', "-")));
        let settings = [("MODE", "adaptive"), ("RENDEZVOUS", rendezvous.as_str()), ("TEST", "1"), ("TEST_PANIC", "1")];
        let with = run(name, &with_plugin(plain, &settings)).unwrap();
        assert_eq!(decisions(&without), decisions(&with), "{version}");
    }
}

#[test]
fn the_users_nccl_settings_override_a_profile() {
    let name = "the_users_nccl_settings_override_a_profile";
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("profile");
    std::fs::write(&profile, "AllReduce 1KiB max TREE/LL128\n").unwrap();
    let rendezvous = rendezvous("forced");
    let trace = folder.path().join("trace");
    let settings = [
        ("MODE", "profile"),
        ("PROFILE", profile.to_str().unwrap()),
        ("RENDEZVOUS", rendezvous.as_str()),
        ("TRACE", trace.to_str().unwrap()),
        ("KERNEL_TIMES", "0"),
    ];
    let mut s = with_plugin(spec(&[4], "2.30").with_calls(&[Collective::AllReduce], &vec![1 << 20; 400]), &settings);
    slow_down(&mut s);
    s.env.push(("NCCL_ALGO".into(), "Ring".into()));
    let Some(report) = run(name, &s) else { return };
    let asked = common::traces(&trace).concat();
    let calls: Vec<_> = asked.iter().filter(|l| l["kind"] == "call").collect();
    assert!(!calls.is_empty() && calls.iter().all(|l| l["arm"] == "AUTO"), "no rank has the arm, so it is not used");
    assert!(report.decisions().all(|d| d.algorithm == Algorithm::Ring));
}

#[test]
fn wrong_settings_turn_the_plugin_off_and_are_reported_with_their_line() {
    let name = "wrong_settings_turn_the_plugin_off_and_are_reported_with_their_line";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings");
    std::fs::write(&file, "mode = adaptive\nspeed = high\n").unwrap();
    let plain = spec(&[2], "2.30").with_calls(&[Collective::AllReduce], &[1 << 20]);
    let Some(without) = run(name, &plain) else { return };
    let with = run(name, &with_plugin(plain, &[("CONFIG", file.to_str().unwrap())])).unwrap();
    assert_eq!(decisions(&without), decisions(&with));
    let said: Vec<&String> = with.warnings.iter().filter(|w| w.contains("settings:2")).collect();
    assert!(said.len() == 1 && said[0].contains("there is no setting `speed`"), "{:?}", with.warnings);
}

#[test]
fn the_stop_file_returns_all_ranks_to_auto() {
    let name = "the_stop_file_returns_all_ranks_to_auto";
    let folder = tempfile::tempdir().unwrap();
    let [profile, stop, trace] = ["profile", "stop", "trace"].map(|f| folder.path().join(f));
    std::fs::write(&profile, "AllReduce 1KiB max TREE/LL\n").unwrap();
    let rendezvous = rendezvous("stop");
    let settings = [
        ("MODE", "profile"),
        ("PROFILE", profile.to_str().unwrap()),
        ("RENDEZVOUS", rendezvous.as_str()),
        ("STOP_FILE", stop.to_str().unwrap()),
        ("TRACE", trace.to_str().unwrap()),
        ("KERNEL_TIMES", "0"),
    ];
    let mut plain = spec(&[2], "2.28").with_calls(&[Collective::AllReduce], &vec![1 << 20; 2000]);
    // One rank pauses in the middle to give the operator time.
    plain.process_per_rank = true;
    (plain.in_step_every, plain.pause) = (10, Duration::from_millis(1));
    plain.late = Some((1, Duration::from_millis(1500)));
    let operator = {
        let (trace, stop) = (trace.clone(), stop.clone());
        std::thread::spawn(move || {
            for _ in 0..600 {
                std::thread::sleep(Duration::from_millis(20));
                let files = std::fs::read_dir(&trace).into_iter().flatten().flatten();
                let mut texts = files.filter_map(|f| std::fs::read_to_string(f.path()).ok());
                if texts.any(|t| t.contains("\"arm\":\"TREE/LL\"")) {
                    std::fs::write(&stop, "").unwrap();
                    return true;
                }
            }
            false
        })
    };
    let Some(report) = run(name, &with_plugin(plain, &settings)) else { return };
    assert!(operator.join().unwrap(), "the profile came into force");
    let all: Vec<_> = report.decisions().map(|d| (d.algorithm, d.protocol)).collect();
    assert!(all.contains(&(Algorithm::Tree, Protocol::Ll)));
    assert_eq!(all.first(), all.last(), "AUTO at the beginning and at the end");
}

#[test]
fn a_captured_call_uses_the_settled_arm() {
    let name = "a_captured_call_uses_the_settled_arm";
    let folder = tempfile::tempdir().unwrap();
    let [script, trace] = ["rewards", "trace"].map(|f| folder.path().join(f));
    // All arms take the same time, so the policy settles on AUTO.
    let arms = ["TREE/LL", "TREE/LL128", "TREE/SIMPLE", "NVLS/SIMPLE", "RING/LL", "RING/LL128", "RING/SIMPLE"];
    std::fs::write(&script, arms.map(|arm| format!("AllReduce 20 {arm} 100\n")).concat()).unwrap();
    let rendezvous = rendezvous("captured");
    let settings = [
        ("MODE", "adaptive"),
        ("RENDEZVOUS", rendezvous.as_str()),
        ("TRACE", trace.to_str().unwrap()),
        ("EXPLORE", "all"),
        ("KERNEL_TIMES", "0"),
        ("TEST", "1"),
        ("TEST_REWARDS", script.to_str().unwrap()),
    ];
    let mut plain = spec(&[2], "2.28").with_calls(&[Collective::AllReduce], &vec![1 << 20; 600]);
    plain.calls.iter_mut().skip(300).for_each(|c| c.captured = true);
    slow_down(&mut plain);
    if run(name, &with_plugin(plain, &settings)).is_none() {
        return;
    }
    let calls: Vec<_> = common::traces(&trace).concat().into_iter().filter(|l| l["kind"] == "call").collect();
    let (captured, others): (Vec<_>, Vec<_>) = calls.iter().partition(|l| l["captured"] == true);
    assert_eq!((captured.len(), others.len()), (2 * 300, 2 * 300), "NCCL reported which calls were captured");
    assert!(others.iter().any(|l| l["arm"] != "AUTO"), "the others explore");
    assert!(captured.iter().all(|l| l["arm"] == "AUTO"), "no captured call explores");
}

#[test]
fn without_reports_of_captured_calls_no_arm_is_tried() {
    let name = "without_reports_of_captured_calls_no_arm_is_tried";
    let folder = tempfile::tempdir().unwrap();
    // 2.27's profiler does not report captures; later ones do if loaded.
    for (version, profiler) in [("2.27.7", true), ("2.28", false)] {
        let trace = folder.path().join(version);
        let rendezvous = rendezvous(&format!("untold-{}", version.replace('.', "-")));
        let settings = [
            ("MODE", "adaptive"),
            ("RENDEZVOUS", rendezvous.as_str()),
            ("TRACE", trace.to_str().unwrap()),
            ("EXPLORE", "all"),
        ];
        let mut s = with_plugin(spec(&[2], version).with_calls(&[Collective::AllReduce], &[1 << 20; 300]), &settings);
        if !profiler {
            s.profiler_plugin = None;
        }
        slow_down(&mut s);
        if run(name, &s).is_none() {
            return;
        }
        let lines = common::traces(&trace).concat();
        assert!(lines.iter().filter(|l| l["kind"] == "call").all(|l| l["arm"] == "AUTO"), "{version}");
        let why = lines.iter().find(|l| l["kind"] == "never").map(|l| l["why"].as_str().unwrap().to_string());
        assert!(why.as_ref().is_some_and(|w| w.contains("LINKWISE_GRAPHS=none")), "{version}: {why:?}");
    }
}

#[test]
fn nccl_uses_every_arm_of_the_five_collectives() {
    let name = "nccl_uses_every_arm_of_the_five_collectives";
    // One H100 host; each arm has its own size, all in one table.
    let rings = ["RING/LL", "RING/LL128", "RING/SIMPLE"];
    let with_nvls = ["RING/LL", "RING/LL128", "RING/SIMPLE", "NVLS/SIMPLE"];
    let reduce = ["TREE/LL", "TREE/LL128", "TREE/SIMPLE", "RING/LL", "RING/LL128", "RING/SIMPLE", "NVLS/SIMPLE"];
    let arms: [(Collective, &str, &[&str]); 5] = [
        (Collective::AllReduce, "AllReduce", &reduce),
        (Collective::AllGather, "AllGather", &with_nvls),
        (Collective::ReduceScatter, "ReduceScatter", &with_nvls),
        (Collective::Broadcast, "Broadcast", &rings),
        (Collective::Reduce, "Reduce", &rings),
    ];
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("profile");
    let (mut table, mut calls, mut wanted) = (String::new(), Vec::new(), Vec::new());
    for (collective, word, list) in arms {
        for (i, arm) in list.iter().enumerate() {
            let size_kib = 64u64 << i;
            table += &format!("{word} {}KiB {}KiB {arm}\n", size_kib, 2 * size_kib);
            calls.push(nccl_bench::PlannedCall { collective, size_bytes: size_kib << 10, captured: false });
            wanted.push(format!("{collective} {arm}"));
        }
    }
    std::fs::write(&profile, table).unwrap();
    // 2.21 logs no line about a call that a tuner decides: see tests/job.rs.
    for version in versions().into_iter().filter(|v| !v.starts_with("2.21")) {
        let rendezvous = rendezvous(&format!("arms-{}", version.replace('.', "-")));
        let settings = [
            ("MODE", "profile"),
            ("JOB", "closed"), // two promises that releases before 2.28 need
            ("SIMULATED_GROUPS", "none"),
            ("GRAPHS", "none"),
            ("PROFILE", profile.to_str().unwrap()),
            ("RENDEZVOUS", rendezvous.as_str()),
            ("KERNEL_TIMES", "0"),
        ];
        // Every size many times: it is watched at AUTO before its arm comes into force.
        const ROUNDS: usize = 60;
        let mut s = with_plugin(spec(&[4], &version), &settings);
        s.calls = calls.repeat(ROUNDS);
        slow_down(&mut s);
        let Some(report) = run(name, &s) else { return };
        let got: Vec<String> = report.calls[calls.len() * (ROUNDS - 1)..]
            .iter()
            .filter_map(|c| c.decision.as_ref())
            .map(|d| {
                let plain = |t: String| t.to_ascii_uppercase().replace('_', "");
                format!("{} {}/{}", d.collective, plain(d.algorithm.to_string()), plain(d.protocol.to_string()))
            })
            .collect();
        // From 2.30 on NCCL reports no launch of a broadcast, so broadcasts are no calls and stay at AUTO.
        let minor: u32 = version.split('.').nth(1).and_then(|m| m.parse().ok()).unwrap_or(0);
        let stays = |d: &String| minor >= 30 && d.starts_with("broadcast");
        let counted = |list: &[String]| list.iter().filter(|d| !stays(d)).cloned().collect::<Vec<_>>();
        assert_eq!(counted(&got), counted(&wanted), "{version}");
        assert!(got.iter().filter(|d| stays(d)).all(|d| d == "broadcast RING/LL"), "{version}: {got:?}");
    }
}

#[test]
fn grouped_collectives_are_one_decision() {
    let name = "grouped_collectives_are_one_decision";
    // 2.21 asks about the group, then about each of its calls.
    for version in versions().into_iter().filter(|v| !v.starts_with("2.21")) {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace");
        let calls = spec(&[4], &version).with_calls(&[Collective::AllReduce], &[1 << 20; 20]);
        let mut s = with_plugin(calls, &[("MODE", "observe"), ("TRACE", trace.to_str().unwrap())]);
        s.in_group = 3;
        if run(name, &s).is_none() {
            return;
        }
        let lines: Vec<_> = common::traces(&trace).remove(0);
        for ordinal in 0..4 {
            // Four ranks in one process; identified by rank, or not at all before 2.27.3.
            let mine = |l: &&serde_json::Value| l["kind"] == "call" && (l["rank"] == ordinal || l["rank"] == -1);
            let sizes: Vec<u64> = lines.iter().filter(mine).map(|l| l["size_bytes"].as_u64().unwrap()).collect();
            let ranks = if identifies_communicators(&version) { 1 } else { 4 };
            assert_eq!(sizes, vec![3 << 20; 20 * ranks], "{version}: one decision about the three together");
        }
    }
}

#[test]
fn exploration_uses_only_connected_algorithms_unless_all_are_allowed() {
    let name = "exploration_uses_only_connected_algorithms_unless_all_are_allowed";
    let tried = |explore: &str| {
        let folder = tempfile::tempdir().unwrap();
        let [script, trace] = ["rewards", "trace"].map(|f| folder.path().join(f));
        // A tree would be by far the fastest.
        let times = "AllReduce 20 TREE/LL 10\nAllReduce 20 TREE/LL128 11\nAllReduce 20 TREE/SIMPLE 12\nAllReduce 20 NVLS/SIMPLE 13\n\
                     AllReduce 20 RING/LL 80\nAllReduce 20 RING/LL128 90\nAllReduce 20 RING/SIMPLE 100\n";
        std::fs::write(&script, times).unwrap();
        let rendezvous = rendezvous(&format!("connected-{explore}"));
        let settings = [
            ("MODE", "adaptive"),
            ("RENDEZVOUS", rendezvous.as_str()),
            ("TRACE", trace.to_str().unwrap()),
            ("EXPLORE", explore),
            ("KERNEL_TIMES", "0"),
            ("TEST", "1"),
            ("TEST_REWARDS", script.to_str().unwrap()),
        ];
        let calls = spec(&[2], "2.28").with_calls(&[Collective::AllReduce], &vec![1 << 20; 1000]);
        let mut s = with_plugin(calls, &settings);
        slow_down(&mut s);
        run(name, &s)?;
        let lines = common::traces(&trace).concat();
        let arms: std::collections::BTreeSet<String> = lines
            .iter()
            .filter(|l| l["kind"] == "call" && l["arm"] != "AUTO")
            .map(|l| l["arm"].as_str().unwrap().to_string())
            .collect();
        Some(arms)
    };
    let Some(connected) = tried("connected") else { return };
    assert!(!connected.is_empty() && connected.iter().all(|a| a.starts_with("RING")), "AUTO is a ring: {connected:?}");
    let all = tried("all").unwrap();
    assert!(all.iter().any(|a| a.starts_with("TREE")), "{all:?}");
}
