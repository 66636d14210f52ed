//! Unmodified PyTorch on `linkwise emulate`, with NCCL's sockets and with the network plugin over three rails. `LINKWISE_TEST_PYTHON` names a Python that
//! has a PyTorch with CUDA (default: `python3`), `LINKWISE_TEST_PARAM` a checkout of facebookresearch/param, `LINKWISE_TEST_MOE` a folder of public
//! routing files (`moe/esft/*/*.txt`).

use assert_cmd::assert::OutputAssertExt;
use route::read::{DispatchLayout, esft};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const RANKS: usize = 4;
const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pytorch");

fn python() -> PathBuf {
    std::env::var_os("LINKWISE_TEST_PYTHON").map_or("python3".into(), PathBuf::from)
}

/// Whether there is a PyTorch with CUDA; a line if not.
fn has_pytorch(test: &str) -> bool {
    let probe = "import torch, sys; sys.exit(0 if torch.version.cuda else 1)";
    let found = Command::new(python()).args(["-c", probe]).output().is_ok_and(|o| o.status.success());
    if !found {
        println!("SKIP {test}: {} has no PyTorch with CUDA", python().display());
    }
    found
}

/// Runs a program of four ranks on two simulated hosts. `program` is what follows torchrun's own options.
fn run(plugin: bool, folder: &Path, program: &[&str]) -> Output {
    let mut c = Command::new(env!("CARGO_BIN_EXE_linkwise"));
    c.args(["emulate", "--hosts", "2x2", "--"]).arg(python()).args(["-m", "torch.distributed.run"]);
    // A free port of its own, so that runs side by side do not meet.
    c.args(["--nproc-per-node", "4", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]).args(program);
    c.current_dir(folder).env("NCCL_DEBUG", "INFO").env("OMP_NUM_THREADS", "1").env("LOCAL_SIZE", "2");
    if plugin {
        let library = Path::new(env!("CARGO_BIN_EXE_linkwise")).with_file_name("deps").join("liblinkwise_nccl_net.so");
        c.env("NCCL_NET_PLUGIN", library).env("LINKWISE_NET", "tcp");
        c.env("LINKWISE_NET_RAILS", "127.0.0.1,127.0.0.2,127.0.0.3").env("LINKWISE_TOKEN", "pytorch-test");
    }
    c.output().unwrap()
}

/// Calls by collective and size, with the calls per step.
fn calls_of(path: &Path, more: &[&str]) -> Vec<(String, u64, u64, f64)> {
    let mut c = Command::new(env!("CARGO_BIN_EXE_linkwise"));
    let out = c.args(["tune", "calls"]).arg(path).args(more).args(["--format", "json"]).output().unwrap();
    let answer: serde_json::Value =
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&out.stderr)));
    let of = |k: &serde_json::Value| {
        assert_eq!(k["ranks"], RANKS, "{answer:#}");
        let name = k["collective"].as_str().unwrap().to_owned();
        (name, k["size_bytes"].as_u64().unwrap(), k["calls"].as_u64().unwrap(), k["calls_per_step"].as_f64().unwrap())
    };
    // The barrier is an AllReduce of one element.
    let mut all: Vec<_> = answer["calls"].as_array().unwrap().iter().map(of).filter(|k| k.1 > 1024).collect();
    all.sort_by(|a, b| a.partial_cmp(b).unwrap());
    all
}

/// What PyTorch itself writes about a job of known calls, not what we think that it writes.
#[test]
fn real_flight_records_and_profiler_traces_tell_the_calls_of_the_job() {
    if !has_pytorch("real_flight_records_and_profiler_traces_tell_the_calls_of_the_job") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["flight", "profiler"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    let out = run(false, folder.path(), &[&format!("{HERE}/record.py"), folder.path().to_str().unwrap()]);
    let _ = out.assert().success();
    let expected = [("all_gather", 16u64, 3u64), ("all_reduce", 4, 6), ("reduce_scatter", 16, 3)]
        .map(|(name, mib, calls)| (name.to_owned(), mib << 20, calls, calls as f64 / 3.0));
    assert_eq!(calls_of(&at("flight"), &["--steps", "3"]), expected);
    // The profiler tells its steps itself.
    assert_eq!(calls_of(&at("profiler/trace-0.json"), &[]), expected);
}

/// Both networks, one after the other: the program succeeds, and NCCL used the network that was meant.
fn runs_on_both(folder: &Path, program: &[&str]) -> Vec<String> {
    let one = |plugin| {
        let out = run(plugin, folder, program).assert().success().get_output().clone();
        let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        let network = if plugin { "Using network linkwise" } else { "Using network Socket" };
        assert!(said.contains(network), "{said}");
        said
    };
    [false, true].map(one).to_vec()
}

/// Writes the traffic matrices and runs them: every rank compares every byte.
fn every_byte_arrives(calls: &[Vec<Vec<u64>>]) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("traffic.jsonl");
    let lines: Vec<String> = calls.iter().map(|c| serde_json::to_string(c).unwrap()).collect();
    std::fs::write(&file, lines.join("\n") + "\n").unwrap();
    let program = format!("{HERE}/traffic.py");
    for said in runs_on_both(folder.path(), &[&program, file.to_str().unwrap()]) {
        let right = format!(": 0 wrong bytes in {} calls", calls.len());
        assert_eq!(said.matches(&right).count(), RANKS, "{said}");
    }
}

#[test]
fn all_to_all_of_pytorch_brings_every_byte() {
    if !has_pytorch("all_to_all_of_pytorch_brings_every_byte") {
        return;
    }
    let call = |of: &dyn Fn(u64, u64) -> u64| (0..4).map(|i| (0..4).map(|j| of(i, j)).collect()).collect();
    every_byte_arrives(&[
        call(&|i, j| 50_000 + 37 * i + j),
        call(&|i, j| if j == 0 { 1_500_000 } else { 300 * i }),
        call(&|i, j| if (i + j) % 3 == 0 { 777_777 } else { 0 }),
        call(&|i, j| if (i, j) == (0, 2) { 6_000_001 } else { 11 }),
    ]);
}

#[test]
fn real_expert_routing_brings_every_byte() {
    let name = "real_expert_routing_brings_every_byte";
    let Some(root) = std::env::var_os("LINKWISE_TEST_MOE").map(PathBuf::from) else {
        return println!("SKIP {name}: LINKWISE_TEST_MOE names no folder of routing files");
    };
    if !has_pytorch(name) {
        return;
    }
    let mut calls = Vec::new();
    for domain in ["translation", "law"] {
        for layer in [1, 12, 26] {
            let file = root.join(format!("moe/esft/{domain}/expert_weights_{layer}.txt"));
            let text = std::fs::read_to_string(&file).unwrap();
            let routing = esft(&text, "routing", 64, 6).unwrap();
            // 64 experts, of which each rank has 16; 4 KiB per token.
            let layout = DispatchLayout { ranks: RANKS, bytes_per_token: 4096, tokens: Some(512) };
            let demand = routing.demand(&layout).unwrap();
            calls.push((0..RANKS).map(|i| (0..RANKS).map(|j| demand.get(i, j)).collect()).collect());
        }
    }
    every_byte_arrives(&calls);
}

#[test]
fn steps_of_parallel_training_run_to_their_end() {
    if !has_pytorch("steps_of_parallel_training_run_to_their_end") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = format!("{HERE}/train.py");
    for said in runs_on_both(folder.path(), &[&program]) {
        for wrapper in ["ddp", "fsdp", "fsdp2"] {
            assert!(said.contains(&format!("{wrapper}: 3 steps")), "{said}");
        }
    }
}

#[test]
fn the_param_benchmark_runs_unchanged() {
    let name = "the_param_benchmark_runs_unchanged";
    let Some(checkout) = std::env::var_os("LINKWISE_TEST_PARAM").map(PathBuf::from) else {
        return println!("SKIP {name}: LINKWISE_TEST_PARAM names no checkout of facebookresearch/param");
    };
    if !has_pytorch(name) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // The benchmark imports itself as `param_bench`.
    std::os::unix::fs::symlink(checkout.canonicalize().unwrap(), folder.path().join("param_bench")).unwrap();
    for collective in ["all_to_all", "all_to_allv", "all_reduce", "all_gather", "reduce_scatter"] {
        // A shell between, because torchrun takes the benchmark's short options for its own.
        let script = format!(
            "exec '{}' -m param_bench.train.comms.pt.comms --master-ip 127.0.0.1 --master-port $MASTER_PORT --b 64K --e 4M \
             --f 8 --n 3 --w 1 --z 1 --c 0 --collective {collective} --backend nccl --device cuda",
            python().display()
        );
        std::fs::write(folder.path().join("param.sh"), script).unwrap();
        for said in runs_on_both(folder.path(), &["--no-python", "sh", "param.sh"]) {
            let rows = said.lines().filter(|l| l.contains(&format!("COMMS-RES-{collective}-float32"))).count();
            assert_eq!(rows, 3, "{said}");
        }
    }
}
