//! Tests of the bench's behaviour: any GPUs, settings, plugins, and cleaning up.

mod common;

use common::{hosts, rate, run, skip, spec};
use nccl_bench::{Bench, BenchError, BenchReport, BenchSpec, CallMode};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use topology::nccl::{Algorithm, Protocol};
use topology::{Collective, catalog};

#[test]
fn any_gpus_in_any_order_keep_their_names_in_the_graphs() {
    let name = "any_gpus_in_any_order_keep_their_names_in_the_graphs";
    let (cluster, nodes) = hosts(&catalog::host_type("hgx-h100").unwrap(), &[vec![6, 1, 4], vec![7, 0]]);
    for version in ["2.28", "2.32"] {
        let spec = BenchSpec::new(cluster.clone(), nodes.clone(), version.parse().unwrap());
        let Some(report) = run(name, &spec) else { return };
        for node in &report.nodes {
            for graph in node.graphs.iter().filter(|g| g.pattern <= 4) {
                for channel in &graph.channels {
                    let mut gpus = channel.gpus.clone();
                    gpus.sort_unstable();
                    let mut given = node.gpus.clone();
                    given.sort_unstable();
                    assert_eq!(gpus, given, "{version} {:?}", graph.kind);
                    // Every NIC is next to the GPU where the channel enters: GPU i has NIC i.
                    assert!(channel.nics.iter().all(|n| given.contains(n)), "{version} {channel:?}");
                }
            }
        }
    }
}

#[test]
fn two_h100_hosts_have_the_latencies_of_a_real_log() {
    // NVIDIA/nccl issue 1519: a tree over two H100 hosts has 25.2 us (LL) and 48.5 us (LL128).
    let Some(report) = run("two_h100_hosts_have_the_latencies_of_a_real_log", &spec("hgx-h100", &[8, 8], "2.28"))
    else {
        return;
    };
    let latency = |p| rate(&report, Collective::AllReduce, Algorithm::Tree, p).latency_us;
    assert_eq!((latency(Protocol::Ll), latency(Protocol::Ll128)), (25.2, 48.5));
    assert_eq!(report.nvls_heads, (0..8).map(|i| vec![i, i + 8]).collect::<Vec<_>>());
}

#[test]
fn simulation_gives_the_estimate_of_the_full_run_without_a_launch() {
    let name = "simulation_gives_the_estimate_of_the_full_run_without_a_launch";
    let both = spec("hgx-h100", &[4], "2.28").with_calls(&[Collective::AllReduce], &[1 << 20, 1 << 28]);
    let simulated = BenchSpec { mode: CallMode::Simulate, ..both.clone() };
    let (Some(both), Some(simulated)) = (run(name, &both), run(name, &simulated)) else { return };
    for (b, s) in both.calls.iter().zip(&simulated.calls) {
        assert_eq!(b.estimate_us, s.estimate_us);
        assert!(s.estimate_us.is_some() && s.launch.is_none() && s.decision.is_none() && b.decision.is_some());
    }
}

#[test]
fn nccl_sees_a_network_without_gpudirect() {
    let name = "nccl_sees_a_network_without_gpudirect";
    let with = spec("hgx-h100", &[2, 2], "2.28").with_calls(&[Collective::AllReduce], &[1 << 24]);
    let mut without = with.clone();
    without.cluster.network.class = topology::NetworkClass::RdmaNoGdr;
    let (Some(with), Some(without)) = (run(name, &with), run(name, &without)) else { return };
    let direct = |r: &BenchReport| r.connections.iter().filter(|c| c.send.is_some()).all(|c| c.via.contains("/GDRDMA"));
    let none = |r: &BenchReport| r.connections.iter().all(|c| !c.via.contains("GDRDMA"));
    assert!(direct(&with) && none(&without) && without.connections.iter().any(|c| c.send.is_some()));
}

#[test]
fn the_same_run_gives_the_same_report() {
    let name = "the_same_run_gives_the_same_report";
    let s = spec("hgx-h100", &[4, 2], "2.28").with_calls(&common::FIVE, &[1 << 12, 1 << 24]);
    let (Some(mut first), Some(second)) = (run(name, &s), run(name, &s)) else { return };
    first.seconds = second.seconds;
    assert_eq!(first, second);
    let text = serde_json::to_string(&first).unwrap();
    assert_eq!(serde_json::from_str::<BenchReport>(&text).unwrap(), first, "and its JSON holds all of it");
}

#[test]
fn nccl_uses_the_given_settings() {
    let mut s = spec("hgx-h100", &[8], "2.30").with_calls(&[Collective::AllReduce], &[1 << 26]);
    s.env = vec![("NCCL_ALGO".into(), "Tree".into()), ("NCCL_MAX_NCHANNELS".into(), "8".into())];
    let Some(report) = run("nccl_uses_the_given_settings", &s) else { return };
    assert_eq!(report.channels.coll, 8);
    assert_eq!(report.decisions().next().unwrap().algorithm, Algorithm::Tree);
}

#[test]
fn an_nvlink_domain_over_two_trays_is_one_node_for_nccl() {
    let name = "an_nvlink_domain_over_two_trays_is_one_node_for_nccl";
    let apart = spec("gb200-tray", &[4, 4], "2.28");
    let mut together = apart.clone();
    for node in &mut together.nodes {
        node.nvlink_domain = Some(7);
    }
    let (Some(apart), Some(together)) = (run(name, &apart), run(name, &together)) else { return };
    assert_eq!((apart.nccl_nodes, together.nccl_nodes), (2, 1));
    assert!(together.channels.nvls > 0);
}

#[test]
fn nccl_loads_a_tuner_plugin_and_uses_its_choice() {
    let name = "nccl_loads_a_tuner_plugin_and_uses_its_choice";
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("libtuner.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tuner.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-DALGORITHM=0", "-DPROTOCOL=2", "-DCHANNELS=4", "-o"])
        .args([&plugin, &source])
        .status();
    if !built.is_ok_and(|s| s.success()) {
        eprintln!("SKIP {name}: no C compiler");
        return;
    }
    for version in ["2.24", "2.28", "2.30", "2.32"] {
        let mut s = spec("hgx-h100", &[2], version).with_calls(&[Collective::AllReduce], &[1 << 26]);
        let Some(auto) = run(name, &s) else { return };
        s.tuner_plugin = Some(plugin.clone());
        let Some(tuned) = run(name, &s) else { return };
        let choice = |r: &BenchReport| r.decisions().next().map(|d| (d.algorithm, d.protocol, d.channels)).unwrap();
        assert_ne!(choice(&auto), choice(&tuned), "{version}");
        assert_eq!(choice(&tuned), (Algorithm::Tree, Protocol::Simple, 4), "{version}");
        assert_eq!(tuned.calls[0].launch.unwrap().grid, 4, "{version}");
    }
}

/// Processes whose command line names `what`.
fn processes_with(what: &Path) -> Vec<u32> {
    let what = what.to_string_lossy().into_owned();
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let names = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|c| String::from_utf8_lossy(&c).contains(&what))
    };
    pids.filter(names).collect()
}

/// A long run: two hosts and many calls.
fn long_spec() -> BenchSpec {
    let sizes: Vec<u64> = (0..2000).map(|i| (1 << 20) + i * 4096).collect();
    spec("hgx-h100", &[8, 2], "2.28").with_calls(&[Collective::AllReduce], &sizes)
}

/// Runs a bench only if the tests below start it as a child process.
#[test]
fn a_bench_in_a_separate_process() {
    if std::env::var_os("LINKWISE_TEST_CHILD").is_none() {
        return;
    }
    let cache = std::env::var_os("LINKWISE_TEST_CACHE").map(PathBuf::from);
    let bench = cache.map_or_else(|| Bench::new().unwrap(), Bench::in_cache);
    let s = match std::env::var("LINKWISE_TEST_CHILD").as_deref() {
        Ok("long") => long_spec(),
        _ => spec("hgx-h100", &[2], "2.28").with_calls(&[Collective::AllReduce], &[1 << 20]),
    };
    let report = bench.run(&s).unwrap();
    println!("CHILD {}", report.calls.len());
}

fn child(exe: &Path, what: &str) -> Command {
    let mut c = Command::new(exe);
    c.args(["--exact", "a_bench_in_a_separate_process", "--nocapture"]).env("LINKWISE_TEST_CHILD", what);
    c
}

fn wait_for<T>(seconds: u64, mut f: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(t) = f() {
            return Some(t);
        }
        if Instant::now() > end {
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

/// Number of NCCL's files in /dev/shm. Simulated hosts must not add any, because their files go to the folder of the run.
fn shared_memory_files() -> usize {
    let all = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    all.filter(|e| e.file_name().to_string_lossy().starts_with("nccl-")).count()
}

#[test]
fn a_host_that_is_killed_ends_the_run_and_leaves_nothing() {
    let name = "a_host_that_is_killed_ends_the_run_and_leaves_nothing";
    if run(name, &spec("hgx-h100", &[2], "2.28")).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let exe = std::env::current_exe().unwrap();
    let mut bench =
        child(&exe, "long").env("TMPDIR", folder.path()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let nodes = wait_for(60, || Some(processes_with(folder.path())).filter(|p| p.len() == 2)).expect("two hosts run");
    std::thread::sleep(Duration::from_millis(800)); // in the middle of initialisation or of calls
    kill(nodes[1]);
    let out = wait_for(30, || bench.try_wait().unwrap()).expect("the bench ends when a host does");
    assert!(!out.success());
    let mut said = String::new();
    std::io::Read::read_to_string(bench.stderr.as_mut().unwrap(), &mut said).unwrap();
    assert!(said.contains("signal: 9"), "{said}");
    assert_eq!(processes_with(folder.path()), Vec::<u32>::new());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the folder of the run is gone");
}

#[test]
fn a_bench_that_is_killed_leaves_no_process_and_no_shared_memory() {
    let name = "a_bench_that_is_killed_leaves_no_process_and_no_shared_memory";
    if run(name, &spec("hgx-h100", &[2], "2.28")).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut bench = child(&std::env::current_exe().unwrap(), "long")
        .env("TMPDIR", folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for(60, || Some(processes_with(folder.path())).filter(|p| p.len() == 2)).expect("two hosts run");
    std::thread::sleep(Duration::from_millis(800));
    let before = shared_memory_files();
    kill(bench.id());
    bench.wait().unwrap();
    wait_for(10, || processes_with(folder.path()).is_empty().then_some(())).expect("its hosts end when it does");
    assert!(shared_memory_files() <= before, "nothing new in /dev/shm");
    let left = || std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().path()).collect::<Vec<_>>();
    assert_eq!(left(), Vec::<PathBuf>::new(), "its hosts remove the folder of the run");
}

#[test]
fn an_invalid_specification_is_refused_with_a_reason() {
    let good = || spec("hgx-h100", &[4, 4], "2.28").with_calls(&[Collective::AllReduce], &[1 << 20]);
    type Change = fn(&mut BenchSpec);
    let cases: [(Change, &str); 13] = [
        (|s| s.cluster.types[0].nics.clear(), "host `n0` has no NIC, and several hosts need a network"),
        (|s| s.nodes.clear(), "1 to 64 hosts, not 0"),
        (|s| s.nodes[1].host = topology::HostId(7), "host 7 is not in cluster `test`"),
        (|s| s.nodes[1].host = s.nodes[0].host, "host `n0` is named twice"),
        (|s| s.nodes[0].gpus.clear(), "host `n0` has no GPU"),
        (|s| s.nodes[0].gpus[3] = 8, "host `n0` has GPUs 0 to 7, not 8"),
        (|s| s.nodes[0].gpus[3] = 0, "GPU 0 of host `n0` is named twice"),
        (|s| s.calls[0].size_bytes = u64::MAX, "at most 68719476736"),
        (|s| s.calls = vec![s.calls[0]; 5000], "5000 calls; at most 4096"),
        (|s| s.env.push(("LD_PRELOAD".into(), "x".into())), "`LD_PRELOAD` is not a setting of NCCL"),
        (|s| s.env.push(("NCCL_TOPO_FILE".into(), "x".into())), "NCCL_TOPO_FILE belongs to the bench"),
        (|s| s.version = "2.99".parse().unwrap(), "no patch of NCCL 2.99 is known"),
        (|s| s.cluster.types[0].gpu_model = "Voodoo 2".into(), "the bench does not know the GPU `Voodoo 2`"),
    ];
    for (change, wanted) in cases {
        let mut s = good();
        change(&mut s);
        match Bench::new().unwrap().run(&s) {
            Err(e @ BenchError::Spec(_)) => assert!(e.to_string().contains(wanted), "{e}"),
            Err(e) => drop(skip::<()>("an_invalid_specification_is_refused_with_a_reason", e)),
            Ok(_) => panic!("{wanted}: the bench ran it"),
        }
    }
}

#[test]
fn a_deadline_ends_all_hosts() {
    let name = "a_deadline_ends_all_hosts";
    let mut s = long_spec();
    s.deadline = Duration::from_millis(700);
    let begin = Instant::now();
    match Bench::new().and_then(|b| b.run(&s)) {
        Err(e @ BenchError::Deadline { .. }) => {
            assert!(e.to_string().contains("did not finish within 1 s") && e.to_string().contains("of 2 hosts"), "{e}");
            assert!(begin.elapsed() < Duration::from_secs(30));
        }
        Err(e) => drop(skip::<()>(name, e)),
        Ok(_) => panic!("2000 calls in 0.7 s"),
    }
}

#[test]
fn an_unprivileged_user_can_run_the_bench() {
    let name = "an_unprivileged_user_can_run_the_bench";
    if run(name, &spec("hgx-h100", &[2], "2.28")).is_none() {
        return;
    }
    let id = Command::new("id").arg("-u").output().unwrap();
    if String::from_utf8_lossy(&id.stdout).trim() != "0" {
        return; // this user is unprivileged, so the run above was the test
    }
    // Run as user `nobody` with an empty cache: link or copy the library, and compile the emulation again.
    let folder = tempfile::tempdir().unwrap();
    let open = |p: &Path| std::fs::set_permissions(p, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let home = folder.path().join("2.28.9");
    std::fs::create_dir(&home).unwrap();
    let library = nccl_bench::library::default_cache().unwrap().join("2.28.9/libnccl.so.2");
    if std::fs::hard_link(&library, home.join("libnccl.so.2")).is_err() {
        std::fs::copy(&library, home.join("libnccl.so.2")).unwrap();
    }
    let exe = folder.path().join("test");
    std::fs::copy(std::env::current_exe().unwrap(), &exe).unwrap();
    for p in [folder.path(), &home, &exe] {
        open(p);
    }
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let out = Command::new("setpriv")
        .args(nobody)
        .arg(&exe)
        .args(["--exact", "a_bench_in_a_separate_process", "--nocapture"])
        .env("LINKWISE_TEST_CHILD", "short")
        .env("LINKWISE_TEST_CACHE", folder.path())
        .env("TMPDIR", folder.path())
        .current_dir(folder.path())
        .output();
    let out = out.expect("setpriv is part of util-linux");
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("CHILD 1"), "{said}");
}

#[test]
fn a_call_that_is_not_emulated_fails_the_run_by_name() {
    let name = "a_call_that_is_not_emulated_fails_the_run_by_name";
    if run(name, &spec("hgx-h100", &[2], "2.28")).is_none() {
        return;
    }
    // A tuner plugin that calls a runtime function which NCCL itself does not call.
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("caller.c");
    std::fs::write(&source, CALLER).unwrap();
    let plugin = folder.path().join("libtuner.so");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&plugin, &source]).status();
    assert!(built.is_ok_and(|s| s.success()));
    let mut s = spec("hgx-h100", &[2], "2.28").with_calls(&[Collective::AllReduce], &[1 << 20]);
    s.tuner_plugin = Some(plugin);
    match Bench::new().unwrap().run(&s) {
        Err(BenchError::NotEmulated { calls, .. }) => assert_eq!(calls, ["cudaArrayGetInfo"]),
        other => panic!("{other:?}"),
    }
}

/// Finds `cudaArrayGetInfo` among the report-only functions and calls it from its init.
const CALLER: &str = r#"
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
static int init(void **c, uint64_t i, size_t r, size_t n, void *l, void *d, void *k) {
  *c = NULL;
  void *(*symbol)(const char *) = (void *(*)(const char *))dlsym(RTLD_DEFAULT, "linkwise_emu_symbol");
  int (*call)(void) = (int (*)(void))symbol("cudaArrayGetInfo");
  return call && call() == 801 ? 0 : 3;
}
static int choose(void *c, int f, size_t n, int p, float **t, int a, int q, int r, int *k) { return 0; }
static int finish(void *c) { return 0; }
const struct { const char *name; void *init, *choose, *finish; } ncclTunerPlugin_v5 = {"caller", (void *)init, (void *)choose, (void *)finish};
"#;
