//! aws-ofi-nccl's functional tests, unchanged, on this plugin. They use a net plugin's v11 table with host buffers.
//!
//! They need a checkout of aws-ofi-nccl, named by `LINKWISE_OFI_TESTS`, and `mpicxx` (libopenmpi-dev); a visible skip without. The tests are compiled by
//! themselves: without libfabric, CUDA or their configure.
//!
//! `LINKWISE_OFI_VERSIONS=8,9,10,11,12 LINKWISE_OFI_RAILS=1,2,4 LINKWISE_OFI_REPEATS=100` widen the run; with `LINKWISE_OFI_TURNS=1` every repeat takes
//! the next pair of a version and a number of rails, and not all pairs. `scripts/sanitize-net.sh` sets
//! `LINKWISE_OFI_PLUGIN`, a plugin under a sanitizer, and `LINKWISE_OFI_RUNTIME`, the sanitizer's library, which the tests are linked with.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// All that use the network table; the others test RMA and GIN tables or GPUs.
const TESTS: [(&str, usize); 7] = [
    ("nccl_connection", 2),
    ("nccl_message_transfer", 2),
    ("ring", 3),
    ("inflight_close", 2),
    ("reuse_listen_comm", 2),
    ("grouped_recv", 2),
    ("eager_multirecv", 2),
];
/// A test that takes longer hangs; it usually takes under 20 s.
const TIME_MAX: Duration = Duration::from_secs(300);

fn list(name: &str, default: &str) -> Vec<String> {
    let text = std::env::var(name).unwrap_or(default.into());
    text.split(',').map(|t| t.trim().to_owned()).filter(|t| !t.is_empty()).collect()
}

fn run(what: &str, command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{what}: {e}"));
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{what}: {}\n{}", out.status, tail(&text));
    text
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}

/// Builds the tests into `out`.
fn build(source: &Path, out: &Path) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ofi");
    std::fs::write(out.join("config.h"), "#define OFI_UNLIKELY(x) __builtin_expect(!!(x), 0)\n").unwrap();
    let cc = |output: &str, input: &str| {
        let mut c = Command::new("cc");
        c.args(["-shared", "-fPIC", "-O1", "-w", &format!("-Wl,-soname,{output}"), "-o"]);
        run(input, c.arg(out.join(output)).arg(here.join(input)).arg("-ldl"));
    };
    cc("libcudart.so", "cudart_host.c");
    cc("libnccl-net.so", "shim.c");
    let functional = source.join("tests/functional");
    for (test, _) in TESTS {
        let mut c = Command::new("mpicxx");
        c.args(["-std=c++17", "-O1", "-w", "-I"]).arg(out).arg("-I").arg(&here).arg("-I").arg(source.join("include"));
        c.arg("-isystem").arg(source.join("3rd-party")).arg("-isystem").arg(source.join("3rd-party/nccl/cuda/include"));
        c.arg("-o").arg(out.join(test)).arg(functional.join("functional_test.cpp"));
        c.arg(functional.join(format!("{test}.cpp")));
        if let Some(runtime) = std::env::var_os("LINKWISE_OFI_RUNTIME") {
            c.args(["-rdynamic", "-Wl,--whole-archive"]).arg(runtime).args(["-Wl,--no-whole-archive", "-lm", "-lrt"]);
        }
        c.arg("-L").arg(out).args(["-lcudart", "-ldl", "-lpthread"]);
        run(test, &mut c);
    }
}

/// The plugin, beside the test's own program if no other is named.
fn plugin() -> PathBuf {
    if let Some(named) = std::env::var_os("LINKWISE_OFI_PLUGIN") {
        return named.into();
    }
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().join("liblinkwise_nccl_net.so")
}

#[test]
fn aws_ofi_nccl_s_tests_of_the_network_table_pass() {
    let Some(source) = std::env::var_os("LINKWISE_OFI_TESTS").map(PathBuf::from) else {
        println!("SKIP functional: LINKWISE_OFI_TESTS names no checkout of aws-ofi-nccl");
        return;
    };
    if Command::new("mpicxx").arg("--version").output().is_err() {
        println!("SKIP functional: there is no mpicxx (libopenmpi-dev)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    build(&source, out);
    let (rails, versions) = (list("LINKWISE_OFI_RAILS", "3"), list("LINKWISE_OFI_VERSIONS", "11"));
    let pairs: Vec<(&String, &String)> = rails.iter().flat_map(|r| versions.iter().map(move |v| (r, v))).collect();
    let in_turn = std::env::var_os("LINKWISE_OFI_TURNS").is_some();
    let mut passed = 0;
    for repeat in 0..list("LINKWISE_OFI_REPEATS", "1")[0].parse::<usize>().unwrap() {
        let own = if in_turn { &pairs[repeat % pairs.len()..][..1] } else { &pairs[..] };
        for (rails, version) in own {
            for (test, ranks) in TESTS {
                let what = format!("{test}, v{version}, {rails} rails, repeat {repeat}");
                let text = launch(out, test, ranks, rails.parse().unwrap(), version, &what);
                assert!(!text.contains("Skipping"), "{what}: parts were skipped\n{}", tail(&text));
                passed += 1;
                println!("{what}: ok");
            }
        }
    }
    println!("{passed} passed");
    assert!(passed >= TESTS.len());
}

fn launch(out: &Path, test: &str, ranks: usize, rails: usize, version: &str, what: &str) -> String {
    let addresses: Vec<String> = (1..=rails).map(|i| format!("127.0.0.{i}")).collect();
    let mut c = Command::new("timeout");
    c.arg(TIME_MAX.as_secs().to_string()).args(["mpirun", "--allow-run-as-root", "--oversubscribe"]);
    c.args(["--mca", "btl", "self,vader", "--mca", "btl_base_warn_component_unused", "0"]);
    c.args(["--mca", "mpi_yield_when_idle", "1", "-np", &ranks.to_string()]).arg(out.join(test));
    c.env("LD_LIBRARY_PATH", out).env("SHIM_PLUGIN", plugin()).env("SHIM_VERSION", version);
    c.env("LINKWISE_NET", "tcp").env("LINKWISE_NET_RAILS", addresses.join(",")).env_remove("LINKWISE_CONFIG");
    run(what, c.current_dir(out))
}
