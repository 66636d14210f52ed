//! The plugin next to the site's own tuner and profiler, on the real NCCL library. The site's plugins are `tests/site/*.c`, compiled here.

mod common;

use common::{decisions, rendezvous, run, spec, with_plugin};
use nccl_bench::BenchSpec;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use topology::Collective;
use topology::nccl::{Algorithm, Protocol};

/// Compiles a plugin of the site; `None`, with a SKIP line, without a compiler.
fn compile(test: &str, source: &str, api: u32, out: &Path) -> Option<PathBuf> {
    compile_all(test, &[source], api, out)
}

/// The same of several files, relative to `tests/site`.
fn compile_all(test: &str, sources: &[&str], api: u32, out: &Path) -> Option<PathBuf> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/site");
    let cc = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let done = Command::new(cc)
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"])
        .arg(format!("-DAPI={api}"))
        .args(sources.iter().map(|source| home.join(source)))
        .arg("-o")
        .arg(out)
        .output();
    match done {
        Ok(done) => assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr)),
        Err(e) => {
            eprintln!("SKIP {test}: no C compiler: {e}");
            return None;
        }
    }
    Some(out.to_path_buf())
}

fn calls(version: &str) -> BenchSpec {
    spec(&[4], version).with_calls(
        &[Collective::AllReduce, Collective::AllGather, Collective::Broadcast],
        &[1 << 12, 1 << 20, 1 << 26],
    )
}

/// Adds a variable, which `with_plugin` would replace.
fn set(mut s: BenchSpec, name: &str, value: &str) -> BenchSpec {
    s.plugin_env.push((name.into(), value.into()));
    s
}

fn path(p: &Path) -> &str {
    p.to_str().unwrap()
}

#[test]
fn under_observe_the_sites_tuner_decides_as_without_linkwise() {
    let name = "under_observe_the_sites_tuner_decides_as_without_linkwise";
    let folder = tempfile::tempdir().unwrap();
    // The release, and the interface that the site's tuner has: the release's own, or an older one.
    for (version, api) in [("2.28", 5), ("2.28", 4), ("2.28", 3), ("2.28", 2), ("2.30", 6), ("2.27.7", 4), ("2.24", 3)]
    {
        let Some(tuner) = compile(name, "tuner.c", api, &folder.path().join(format!("tuner-{api}.so"))) else { return };
        // With and without a channel count of its own.
        for channels in ["0", "3"].into_iter().skip(usize::from(api != 5)) {
            let mut plain = calls(version);
            plain.tuner_plugin = Some(tuner.clone());
            let plain = set(plain, "LINKWISE_TEST_SITE_CHANNELS", channels);
            let Some(site) = run(name, &plain) else { return };
            assert!(site.decisions().any(|d| d.algorithm == Algorithm::Tree && d.protocol == Protocol::Simple));
            for mode in ["observe", "off"].into_iter().skip(usize::from(api != 5)) {
                let with = with_plugin(plain.clone(), &[("MODE", mode), ("SITE_TUNER", path(&tuner))]);
                let with = run(name, &set(with, "LINKWISE_TEST_SITE_CHANNELS", channels)).unwrap();
                assert_eq!(decisions(&site), decisions(&with), "{version} v{api} {mode} channels {channels}");
            }
        }
    }
}

#[test]
fn a_tuner_by_its_default_name_is_found_as_nccl_would() {
    let name = "a_tuner_by_its_default_name_is_found_as_nccl_would";
    const INSIDE: &str = "LINKWISE_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_none() {
        // This test again, with a library path that has the site's tuner.
        let folder = tempfile::tempdir().unwrap();
        if compile(name, "tuner.c", 5, &folder.path().join("libnccl-tuner.so")).is_none() {
            return;
        }
        let paths = format!("{}:{}", path(folder.path()), std::env::var("LD_LIBRARY_PATH").unwrap_or_default());
        let again = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .envs([(INSIDE, "1"), ("LD_LIBRARY_PATH", &paths)])
            .status();
        assert!(again.unwrap().success());
        return;
    }
    let Some(site) = run(name, &calls("2.28")) else { return };
    let is_tree = |d: &topology::nccl::NcclDecision| (d.algorithm, d.protocol) == (Algorithm::Tree, Protocol::Simple);
    assert!(site.decisions().any(is_tree), "NCCL loads the site's tuner by its name");
    let with = run(name, &with_plugin(calls("2.28"), &[("MODE", "observe")])).unwrap();
    assert_eq!(decisions(&site), decisions(&with));
    let without = run(name, &with_plugin(calls("2.28"), &[("MODE", "observe"), ("SITE_TUNER", "none")])).unwrap();
    assert!(!without.decisions().any(is_tree), "none is none");
}

/// The site's network plugin, which also exports a tuner as those of AWS and Google do: the bench's network and the site's tuner in one library.
fn net_with_tuner(test: &str, api: u32, out: &Path) -> Option<PathBuf> {
    compile_all(test, &["../../../nccl-bench/emulation/net.c", "tuner.c"], api, out)
}

#[test]
fn a_tuner_inside_of_the_sites_network_plugin_is_found_as_nccl_would_and_its_answer_is_auto() {
    let name = "a_tuner_inside_of_the_sites_network_plugin_is_found_as_nccl_would_and_its_answer_is_auto";
    const INSIDE: &str = "LINKWISE_TEST_INSIDE";
    let is_tree = |d: &topology::nccl::NcclDecision| (d.algorithm, d.protocol) == (Algorithm::Tree, Protocol::Simple);
    let same_as_alone = |version: &str, net: &Path| {
        let mut plain = calls(version);
        plain.net_plugin = Some(net.to_path_buf());
        let plain = set(plain, "LINKWISE_TEST_SITE_CHANNELS", "3");
        let site = run(name, &plain)?;
        assert!(site.decisions().any(is_tree), "{version}: NCCL loads the tuner inside of its network plugin");
        let folder = tempfile::tempdir().unwrap();
        let with = with_plugin(plain.clone(), &[("MODE", "observe"), ("TRACE", path(folder.path()))]);
        let with = run(name, &set(with, "LINKWISE_TEST_SITE_CHANNELS", "3")).unwrap();
        assert_eq!(decisions(&site), decisions(&with), "{version}");
        let lines = common::traces(folder.path()).concat();
        let mut big = lines.iter().filter(|l| l["kind"] == "call" && l["collective"] == "ALLREDUCE").peekable();
        assert!(
            big.peek().is_some() && big.all(|l| l["auto"] == "TREE/SIMPLE"),
            "{version}: AUTO is the site's answer"
        );
        let process = lines.iter().find(|l| l["kind"] == "process").unwrap();
        assert_eq!(process["site_tuner"], "site", "{version}");
        Some(())
    };
    if std::env::var_os(INSIDE).is_some() {
        same_as_alone("2.28", Path::new("site")); // a name: libnccl-net-site.so
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (version, api) in [("2.28", 5), ("2.30", 6), ("2.27.7", 4), ("2.24", 3)] {
        let file = folder.path().join(format!("net-{api}.so"));
        if net_with_tuner(name, api, &file).and_then(|net| same_as_alone(version, &net)).is_none() {
            return;
        }
    }
    net_with_tuner(name, 5, &folder.path().join("libnccl-net-site.so")).unwrap();
    let paths = format!("{}:{}", path(folder.path()), std::env::var("LD_LIBRARY_PATH").unwrap_or_default());
    let again = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .envs([(INSIDE, "1"), ("LD_LIBRARY_PATH", &paths)])
        .status();
    assert!(again.unwrap().success());
}

#[test]
fn in_adaptive_the_sites_answer_is_auto_and_other_arms_can_still_win() {
    let name = "in_adaptive_the_sites_answer_is_auto_and_other_arms_can_still_win";
    let folder = tempfile::tempdir().unwrap();
    let [script, trace, status] = ["rewards", "trace", "status"].map(|f| folder.path().join(f));
    let Some(tuner) = compile(name, "tuner.c", 5, &folder.path().join("tuner.so")) else { return };
    // The site's choice is slow, and RING/LL is the fastest.
    let times = "AllReduce 20 TREE/SIMPLE 100\nAllReduce 20 TREE/LL 90\nAllReduce 20 TREE/LL128 95\nAllReduce 20 NVLS/SIMPLE 99\n\
                 AllReduce 20 RING/LL 50\nAllReduce 20 RING/LL128 80\nAllReduce 20 RING/SIMPLE 85\n";
    std::fs::write(&script, times).unwrap();
    let rendezvous = rendezvous("site-adaptive");
    let settings = [
        ("MODE", "adaptive"),
        ("SITE_TUNER", path(&tuner)),
        ("RENDEZVOUS", rendezvous.as_str()),
        ("TRACE", path(&trace)),
        ("STATUS", path(&status)),
        ("EXPLORE", "all"),
        ("KERNEL_TIMES", "0"),
        ("TEST", "1"),
        ("TEST_REWARDS", path(&script)),
    ];
    let mut s = with_plugin(spec(&[2], "2.28").with_calls(&[Collective::AllReduce], &vec![1 << 20; 1000]), &settings);
    s = set(s, "LINKWISE_TEST_SITE_CHANNELS", "3");
    s.process_per_rank = true;
    (s.in_step_every, s.pause) = (10, Duration::from_millis(2));
    s.late = Some((1, Duration::from_millis(300)));
    let Some(report) = run(name, &s) else { return };
    let all: Vec<_> = report.decisions().map(|d| (d.algorithm, d.protocol, d.channels)).collect();
    assert_eq!(all[0], (Algorithm::Tree, Protocol::Simple, 3), "AUTO is the site's answer, with its channels");
    let last = *all.last().unwrap();
    assert_eq!((last.0, last.1), (Algorithm::Ring, Protocol::Ll), "the fastest arm is found");
    assert!(last.2 > 3, "the site's channels belong to the site's choice: {last:?}");
    let lines = common::traces(&trace).concat();
    let mut calls = lines.iter().filter(|l| l["kind"] == "call");
    assert!(calls.all(|l| l["auto"] == "TREE/SIMPLE"), "the trace says what AUTO is");
    let process = lines.iter().find(|l| l["kind"] == "process").unwrap();
    assert_eq!((&process["site_tuner"], &process["nccl"]), (&"site".into(), &"2.28.9".into()));
    // What an operator sees: the arm in the leader's status, and the same for Prometheus.
    let files: Vec<PathBuf> = std::fs::read_dir(&status).unwrap().map(|f| f.unwrap().path()).collect();
    let text = |end: &str| -> Vec<String> {
        let these = files.iter().filter(|f| f.to_str().unwrap().ends_with(end));
        these.map(|f| std::fs::read_to_string(f).unwrap()).collect()
    };
    let leader: Vec<serde_json::Value> = text(".json").iter().map(|t| serde_json::from_str(t).unwrap()).collect();
    let leader = leader.iter().find(|s| s["comms"][0]["leads"] == true).expect("a leader writes its status");
    let slot = &leader["comms"][0]["slots"][0];
    assert_eq!((&slot["arm"], &slot["size_bytes"]), (&"RING/LL".into(), &(1u64 << 20).into()), "{leader}");
    assert_eq!((&leader["site_tuner"], &leader["comms"][0]["silent"]), (&"site".into(), &serde_json::json!([])));
    assert!(leader["changes"].as_u64().unwrap() >= 1, "{leader}");
    assert!(text(".prom").iter().any(|t| t.contains("arm=\"RING/LL\"} 1")), "{:?}", text(".prom"));
}

/// NVIDIA's own example tuner, where `LINKWISE_NCCL_SOURCE` names a source tree of NCCL 2.28 or later.
#[test]
fn nvidias_example_tuner_decides_as_without_linkwise() {
    let name = "nvidias_example_tuner_decides_as_without_linkwise";
    let Some(source) = std::env::var_os("LINKWISE_NCCL_SOURCE") else {
        eprintln!("SKIP {name}: LINKWISE_NCCL_SOURCE names no source tree of NCCL");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let example = Path::new(&source).join("plugins/tuner/example");
    let [tuner, table] = ["tuner.so", "table.csv"].map(|f| folder.path().join(f));
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(["-shared", "-fPIC", "-I"]).arg(example.join("nccl")).arg("-o").arg(&tuner).arg(example.join("plugin.c"));
    assert!(cc.status().unwrap().success(), "{} compiles", example.display());
    // The first and last byte of the size classes of 1 and 2 MiB, as `linkwise tune export --format csv` writes them.
    std::fs::write(&table, "allreduce,741456,2965820,tree,ll128,8,1,4\nallgather,0,4294967296,ring,ll,2,-1,-1\n")
        .unwrap();
    for version in ["2.28", "2.30"] {
        let mut plain = calls(version);
        plain.tuner_plugin = Some(tuner.clone());
        plain.env.push(("NCCL_TUNER_CONFIG_FILE".into(), path(&table).into()));
        let Some(site) = run(name, &plain) else { return };
        let of = |c: Collective, size: u64| {
            let call = site.calls.iter().find(|k| k.collective == c && k.size_bytes == size).unwrap();
            call.decision.map(|d| (d.algorithm, d.protocol, d.channels)).unwrap()
        };
        assert_eq!(of(Collective::AllReduce, 1 << 20), (Algorithm::Tree, Protocol::Ll128, 8), "a line of the table");
        assert_eq!(of(Collective::AllReduce, 1 << 26).2, 1, "one channel where no line matches");
        let with = with_plugin(plain.clone(), &[("MODE", "observe"), ("SITE_TUNER", path(&tuner))]);
        assert_eq!(decisions(&site), decisions(&run(name, &with).unwrap()), "{version}");
    }
}

#[test]
fn a_table_that_was_found_elsewhere_is_refused_and_one_found_here_is_used() {
    let name = "a_table_that_was_found_elsewhere_is_refused_and_one_found_here_is_used";
    let folder = tempfile::tempdir().unwrap();
    let arm = |made_on: &str, test: &str| {
        let profile = folder.path().join(test);
        std::fs::write(&profile, format!("# linkwise: {made_on}\nAllReduce 1KiB max TREE/LL128@4\n")).unwrap();
        let rendezvous = rendezvous(&format!("found-{test}"));
        let settings = [
            ("MODE", "profile"),
            ("PROFILE", path(&profile)),
            ("RENDEZVOUS", rendezvous.as_str()),
            ("KERNEL_TIMES", "0"),
        ];
        let calls = spec(&[2], "2.28").with_calls(&[Collective::AllReduce], &vec![1 << 20; 400]);
        let mut s = with_plugin(calls, &settings);
        s.process_per_rank = true;
        (s.in_step_every, s.pause) = (10, Duration::from_millis(2));
        s.late = Some((1, Duration::from_millis(300)));
        let report = run(name, &s)?;
        let last = report.decisions().last().unwrap();
        Some(((last.algorithm, last.protocol) == (Algorithm::Tree, Protocol::Ll128), report.warnings))
    };
    let Some((used, _)) = arm("nccl=2.28.9 ranks_per_node=2 hosts=1", "here") else { return };
    assert!(used, "found here");
    for (test, made_on, why) in [
        ("release", "nccl=2.30.7", "it was found on NCCL 2.30.7, and this is 2.28.9"),
        ("ranks", "nccl=2.28.9 ranks_per_node=8 hosts=1", "with 8 ranks per node, and here are 2"),
        ("hosts", "hosts=4", "on 4 hosts, and these are 1"),
    ] {
        let (used, warnings) = arm(made_on, test).unwrap();
        assert!(!used, "{made_on}");
        let said = warnings.iter().filter(|w| w.contains("the table does not apply here")).collect::<Vec<_>>();
        assert!(!said.is_empty() && said.iter().all(|w| w.contains(why)), "{warnings:?}");
    }
}

#[test]
fn after_the_freeze_no_arm_is_tried_any_more() {
    let name = "after_the_freeze_no_arm_is_tried_any_more";
    let folder = tempfile::tempdir().unwrap();
    let [script, trace] = ["rewards", "trace"].map(|f| folder.path().join(f));
    let times = "AllReduce 20 TREE/SIMPLE 100\nAllReduce 20 TREE/LL 90\nAllReduce 20 TREE/LL128 95\nAllReduce 20 NVLS/SIMPLE 99\n\
                 AllReduce 20 RING/LL 50\nAllReduce 20 RING/LL128 80\nAllReduce 20 RING/SIMPLE 85\n";
    std::fs::write(&script, times).unwrap();
    let rendezvous = rendezvous("freeze");
    let settings = [
        ("MODE", "adaptive"),
        ("POLICY", "round-robin"), // explores for ever
        ("FREEZE_AFTER", "500"),
        ("RENDEZVOUS", rendezvous.as_str()),
        ("TRACE", path(&trace)),
        ("EXPLORE", "all"),
        ("KERNEL_TIMES", "0"),
        ("TEST", "1"),
        ("TEST_REWARDS", path(&script)),
    ];
    let mut s = with_plugin(spec(&[2], "2.28").with_calls(&[Collective::AllReduce], &vec![1 << 20; 1500]), &settings);
    s.process_per_rank = true;
    (s.in_step_every, s.pause) = (10, Duration::from_millis(2));
    s.late = Some((1, Duration::from_millis(300)));
    if run(name, &s).is_none() {
        return;
    }
    let lines = common::traces(&trace).remove(0);
    let arms: Vec<&str> = lines.iter().filter(|l| l["kind"] == "call").map(|l| l["arm"].as_str().unwrap()).collect();
    let different = |arms: &[&str]| arms.iter().collect::<std::collections::BTreeSet<_>>().len();
    assert!(different(&arms[..500]) > 3, "it explores: {:?}", &arms[..500]);
    assert_eq!(different(&arms[1200..]), 1, "it has stopped: {:?}", &arms[1200..]);
}

#[test]
fn the_sites_profiler_gets_its_events_with_its_own_handles_and_parents() {
    let name = "the_sites_profiler_gets_its_events_with_its_own_handles_and_parents";
    let folder = tempfile::tempdir().unwrap();
    let events = |log: &str| -> Vec<String> {
        let files = std::fs::read_dir(folder.path()).unwrap().flatten();
        let logs = files.filter(|f| f.file_name().to_str().unwrap().starts_with(&format!("{log}.")));
        let mut lines: Vec<String> = logs
            .flat_map(|f| std::fs::read_to_string(f.path()).unwrap().lines().map(String::from).collect::<Vec<_>>())
            .collect();
        lines.sort(); // threads interleave
        lines
    };
    // The release, the interface of the site's profiler, and the events that it requests.
    for (version, api, mask) in [
        ("2.28", 5, "0x2"),
        ("2.28", 5, "0x802"),
        ("2.28", 4, "0x2"),
        ("2.30", 5, "0x200"),
        ("2.27.7", 4, "0x2"),
        ("2.28", 5, "0x0"),
    ] {
        let file = folder.path().join(format!("profiler-{api}.so"));
        let Some(profiler) = compile(name, "profiler.c", api, &file) else { return };
        let logged = |mut s: BenchSpec, log: &str| {
            s.in_group = 2;
            set(set(s, "LINKWISE_TEST_SITE_MASK", mask), "LINKWISE_TEST_SITE_LOG", path(&folder.path().join(log)))
        };
        let (alone, chained) = (format!("alone-{version}-{api}-{mask}"), format!("chained-{version}-{api}-{mask}"));
        let mut plain = calls(version);
        plain.profiler_plugin = Some(profiler.clone());
        if run(name, &logged(plain, &alone)).is_none() {
            return;
        }
        let trace = folder.path().join(format!("trace-{version}-{api}-{mask}"));
        let settings =
            [("MODE", "observe"), ("SITE_PROFILER", path(&profiler)), ("TRACE", path(&trace)), ("KERNEL_TIMES", "0")];
        run(name, &logged(with_plugin(calls(version), &settings), &chained)).unwrap();
        assert_eq!(events(&alone), events(&chained), "{version} v{api} {mask}");
        assert_eq!(events(&alone).is_empty(), mask == "0x0", "{version} v{api} {mask}: NCCL reports events");
        let lines = common::traces(&trace).concat();
        assert!(lines.iter().any(|l| l["kind"] == "launched"), "linkwise has its own events");
    }
}

#[test]
fn an_error_of_the_sites_plugin_is_what_nccl_sees() {
    let name = "an_error_of_the_sites_plugin_is_what_nccl_sees";
    let folder = tempfile::tempdir().unwrap();
    let Some(tuner) = compile(name, "tuner.c", 5, &folder.path().join("tuner.so")) else { return };
    let profiler = compile(name, "profiler.c", 5, &folder.path().join("profiler.so")).unwrap();
    let Some(none) = run(name, &calls("2.28")) else { return };
    // A profiler that fails to start is only missing.
    let settings = [("MODE", "observe"), ("SITE_PROFILER", path(&profiler)), ("SITE_TUNER", "none")];
    let with = set(with_plugin(calls("2.28"), &settings), "LINKWISE_TEST_SITE_INIT_ERROR", "3");
    let with = run(name, &with).unwrap();
    assert_eq!(decisions(&none), decisions(&with));
    let said: Vec<_> = with.warnings.iter().filter(|w| w.contains("the site's profiler site")).collect();
    assert_eq!(said.len(), 1, "{:?}", with.warnings);
    // A tuner that fails ends what it would have ended.
    for error in ["LINKWISE_TEST_SITE_INIT_ERROR", "LINKWISE_TEST_SITE_ASK_ERROR"] {
        let with = with_plugin(calls("2.28"), &[("MODE", "observe"), ("SITE_TUNER", path(&tuner))]);
        let with = set(with, error, "3");
        let failed = nccl_bench::Bench::new().and_then(|b| b.run(&with));
        assert!(failed.is_err(), "{error}");
    }
}
