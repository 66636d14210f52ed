//! Mode `adaptive` in an unmodified PyTorch program between two hosts with one shaped rail, where a tree sends fewer bytes than the ring that NCCL takes.
//! GPUs are emulated. `LINKWISE_TEST_PYTHON` names a Python that has a PyTorch with CUDA (default: `python3`).

use nccl_box::tuning::{Launches, launches};
use netns::{NetBox, or_skip};
use std::path::Path;
use std::process::Command;

const STEPS: usize = 700;

/// Runs the loop of four ranks, and gives rank 0's seconds per step.
fn run(netbox: &NetBox, python: &str, programs: &Path, steps: usize, env: &[(&str, String)]) -> Vec<f64> {
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pytorch/loop.py");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python");
    let (a, b) = (netbox.namespace(0), netbox.namespace(1));
    let script = format!(
        "host={a}; [ $RANK -lt 2 ] || host={b}; export MASTER_ADDR={} MASTER_PORT=29500 PYTHONPATH={folder}; \
         exec ip netns exec $host {python} {here} {steps} {}",
        netbox.address(0, 0),
        256 << 10
    );
    let mut c = Command::new(programs.join("linkwise"));
    c.args(["emulate", "--hosts", "2x2", "--each", "--", "sh", "-c", &script]);
    c.env("OMP_NUM_THREADS", "1")
        .env("NCCL_SOCKET_IFNAME", netbox.interface(0, 0))
        .envs(env.iter().map(|(k, v)| (k, v)));
    let out = c.output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    let line = said.lines().find_map(|l| l.strip_prefix("steps ")).expect("rank 0 prints its steps");
    serde_json::from_str(line).unwrap()
}

#[test]
fn a_pytorch_loop_finds_the_arm_that_shortens_its_steps() {
    let name = "a_pytorch_loop_finds_the_arm_that_shortens_its_steps";
    let python = std::env::var("LINKWISE_TEST_PYTHON").unwrap_or("python3".into());
    let probe = "import torch, sys; sys.exit(0 if torch.version.cuda else 1)";
    if !Command::new(&python).args(["-c", probe]).output().is_ok_and(|o| o.status.success()) {
        println!("SKIP {name}: {python} has no PyTorch with CUDA");
        return;
    }
    let Some(netbox) = or_skip(name, NetBox::rails(2, 1, 100)) else { return };
    const PLUGIN: &str = "liblinkwise_nccl.so";
    let plugins = nccl_box::built(PLUGIN).expect("cargo builds the plugin with the workspace");
    let programs = nccl_box::built("linkwise").expect("cargo builds the command with the workspace");
    let median = |s: &[f64]| stats::upper_median(s);
    let alone = run(&netbox, &python, &programs, 40, &[]);
    let folder = tempfile::tempdir().unwrap();
    let plugin = plugins.join(PLUGIN).to_string_lossy().into_owned();
    let env = [
        ("NCCL_TUNER_PLUGIN", plugin.clone()),
        ("NCCL_PROFILER_PLUGIN", plugin),
        ("LINKWISE_MODE", "adaptive".into()),
        ("LINKWISE_RENDEZVOUS", format!("tcp:{}:4711", netbox.address(0, 0))),
        ("LINKWISE_TOKEN", "a secret of this job".into()),
        ("LINKWISE_LEAD", "0.5".into()),
        ("LINKWISE_EXPLORE", "all".into()),
        ("LINKWISE_TRACE", folder.path().to_string_lossy().into_owned()),
    ];
    let tuned = run(&netbox, &python, &programs, STEPS, &env);
    let Launches { arms, differing, waits } = launches(folder.path());
    assert_eq!((differing, waits), (0, 0));
    assert!(arms.len() >= STEPS, "every rank launched every call: {}", arms.len());
    let last = &arms[STEPS - 50..STEPS];
    let tree = last.iter().filter(|a| *a == "TREE/SIMPLE").count();
    let (with_auto, at_the_end) = (median(&alone[5..]), median(&tuned[STEPS - 50..]));
    println!(
        "steps: NCCL alone {with_auto:.4} s, the last 50 with linkwise {at_the_end:.4} s, {tree} of 50 TREE/SIMPLE"
    );
    assert!(tree > 40, "{last:?}");
    assert!(at_the_end < 0.9 * with_auto, "{at_the_end} against {with_auto}");
}
