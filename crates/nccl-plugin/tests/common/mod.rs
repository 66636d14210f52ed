//! Helpers for the plugin's tests.
#![allow(dead_code)] // each test binary uses a part

pub mod job;
pub mod schedule;

use nccl_bench::{Bench, BenchError, BenchReport, BenchSpec, SimulatedNode};
use std::path::{Path, PathBuf};
use std::process::Command;
use topology::nccl::Version;
use topology::{Cluster, Collective, Host, HostId, catalog};

/// The five collectives that NCCL asks a tuner about.
pub const FIVE: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
];

/// The library under test, which cargo builds with the tests.
pub fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let path = exe.parent().unwrap().join("liblinkwise_nccl.so");
    assert!(path.exists(), "cargo builds {} with the tests", path.display());
    path
}

/// Compiles a program of `tests/program` against `linkwise.h` and the library; `None`, with a SKIP line, without a C compiler.
pub fn compiled(test: &str, folder: &Path, source: &str) -> Option<PathBuf> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (program, library) = (folder.join("program"), library());
    let built = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .arg(&program)
        .arg(home.join("tests/program").join(source))
        .arg("-I")
        .arg(home.join("include"))
        .arg("-Wl,--as-needed") // only a program that calls the library's functions needs it at its start
        .arg(&library)
        .arg(format!("-Wl,-rpath,{}", library.parent().unwrap().display()))
        .args(["-ldl", "-pthread"])
        .output();
    match built {
        Err(e) => {
            eprintln!("SKIP {test}: no C compiler: {e}");
            None
        }
        Ok(out) => {
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            Some(program)
        }
    }
}

/// Gives a command these settings of the plugin and none of this process's.
pub fn with_settings(command: &mut Command, settings: &[(&str, &str)]) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("LINKWISE_") || text.starts_with("NCCL_") || text == "MASTER_ADDR" {
            command.env_remove(&name);
        }
    }
    command.envs(settings.iter().map(|(k, v)| (format!("LINKWISE_{k}"), v)));
}

/// The releases of a test: `LINKWISE_NCCL_VERSIONS` if it is set, otherwise `these`.
pub fn versions(these: &str) -> Vec<String> {
    let said = std::env::var("LINKWISE_NCCL_VERSIONS").unwrap_or_else(|_| these.into());
    said.split_whitespace().map(str::to_string).collect()
}

/// From 2.27.3 on, with the profiler loaded. See docs/plugin.md.
pub fn identifies_communicators(version: &str) -> bool {
    version.split('.').nth(1).and_then(|m| m.parse().ok()).is_some_and(|m: u32| m >= 27)
}

/// A run on H100 hosts with this many GPUs each, with the plugin as tuner and profiler.
pub fn spec(counts: &[u8], version: &str) -> BenchSpec {
    let mut cluster =
        Cluster { name: "test".into(), types: vec![catalog::host_type("hgx-h100").unwrap()], ..Cluster::default() };
    let mut nodes = Vec::new();
    for (i, n) in counts.iter().enumerate() {
        cluster.hosts.push(Host { name: format!("n{i}"), ..Host::default() });
        nodes.push(SimulatedNode { host: HostId(i as u32), gpus: (0..*n).collect(), nvlink_domain: None });
    }
    let mut s = BenchSpec::new(cluster, nodes, version.parse::<Version>().unwrap());
    s.mode = nccl_bench::CallMode::Launch;
    s
}

/// Adds the plugin and its settings.
pub fn with_plugin(mut s: BenchSpec, settings: &[(&str, &str)]) -> BenchSpec {
    // 2.27.3 opens no path, only a name that the dynamic linker finds; cargo sets LD_LIBRARY_PATH for tests.
    let path = if s.version == Version::new(2, 27, 3) { "liblinkwise_nccl.so".into() } else { library() };
    s.tuner_plugin = Some(path.clone());
    s.profiler_plugin = Some(path);
    // Short jobs: the default lead is longer than most of them.
    let near = [("LEAD", "0")].into_iter().filter(|_| !settings.iter().any(|(k, _)| *k == "LEAD"));
    let all = settings.iter().copied().chain(near);
    s.plugin_env = all.map(|(k, v)| (format!("LINKWISE_{k}"), v.to_string())).collect();
    s
}

/// The report of a run; `None`, with a SKIP line, if this machine has no compiler or cannot get a library.
pub fn run(test: &str, spec: &BenchSpec) -> Option<BenchReport> {
    match Bench::new().and_then(|b| b.run(spec)) {
        Ok(report) => Some(report),
        Err(e) => {
            assert!(e.is_about_this_machine(), "{e}");
            eprintln!("SKIP {test}: {e}");
            let _: BenchError = e;
            None
        }
    }
}

/// The decisions, one line each.
pub fn decisions(report: &BenchReport) -> Vec<String> {
    report
        .calls
        .iter()
        .map(|c| format!("{} {} {:?} {:?} {:?}", c.collective, c.size_bytes, c.decision, c.channel_range, c.launch))
        .collect()
}

/// A rendezvous that no other test uses.
pub fn rendezvous(test: &str) -> String {
    format!("local:{}-{test}", std::process::id())
}

/// The lines of all traces in a folder, one trace per process.
pub fn traces(folder: &std::path::Path) -> Vec<Vec<serde_json::Value>> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let lines =
        |text: String| text.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{l}: {e}"))).collect();
    files.map(|f| lines(std::fs::read_to_string(f.path()).unwrap())).collect()
}
