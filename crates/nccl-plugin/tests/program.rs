//! Programs that use the plugin: one in C, compiled against `linkwise.h`, whose steps take longer with some arms; one in Python with `linkwise_step`.

mod common;

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

/// `LEAD` without a value: the default lead.
const DEFAULT_LEAD: (&str, &str) = ("LEAD", "");

/// Runs a command with these settings. Programs here are short, so `LEAD` is 0 unless it is set.
fn output(command: &mut Command, settings: &[(&str, &str)]) -> Output {
    common::with_settings(command, &[&[("LEAD", "0")], settings].concat());
    command.output().unwrap()
}

/// The lines of all traces in a folder.
fn trace(folder: &Path) -> Vec<Value> {
    common::traces(folder).concat()
}

/// The arm of most of the program's last calls, and its trace.
fn train(test: &str, says: &str, reward: &str) -> Option<(String, Vec<Value>)> {
    train_loop(test, &[says, "700"], reward, "1")
}

/// The same for a program with these arguments.
fn train_loop(test: &str, arguments: &[&str], reward: &str, kernel_times: &str) -> Option<(String, Vec<Value>)> {
    train_with_lead(test, arguments, reward, kernel_times, ("LEAD", "0")) // the job is short
}

/// Held by a job whose arms differ by less than another job beside it may cost.
static ALONE: Mutex<()> = Mutex::new(());

/// The same with this lead.
fn train_with_lead(
    test: &str,
    arguments: &[&str],
    reward: &str,
    kernel_times: &str,
    lead: (&str, &str),
) -> Option<(String, Vec<Value>)> {
    let folder = tempfile::tempdir().unwrap();
    let program = common::compiled(test, folder.path(), "program.c")?;
    let traces = folder.path().join("trace");
    let rendezvous = common::rendezvous(test);
    let settings = [
        ("MODE", "adaptive"),
        ("RENDEZVOUS", rendezvous.as_str()),
        ("TRACE", traces.to_str().unwrap()),
        ("EXPLORE", "all"),
        ("REWARD", reward),
        ("KERNEL_TIMES", kernel_times),
        lead,
    ];
    // A job with the default lead mostly sleeps.
    let alone = (lead != DEFAULT_LEAD).then(|| ALONE.lock().unwrap_or_else(PoisonError::into_inner));
    let out = output(Command::new(program).arg(common::library()).args(arguments), &settings);
    drop(alone);
    assert!(out.status.success(), "{out:?}");
    let trace = trace(&traces);
    // Most of the last calls: the very last one may explore another arm.
    let calls: Vec<&str> =
        trace.iter().filter(|v| v["kind"] == "call" && v["rank"] == 0).map(|v| v["arm"].as_str().unwrap()).collect();
    let mut counts = std::collections::BTreeMap::new();
    calls.iter().rev().take(150).for_each(|arm| *counts.entry(*arm).or_insert(0) += 1);
    let most = counts.into_iter().max_by_key(|c| c.1).map(|c| c.0).unwrap_or_default().to_string();
    Some((most, trace))
}

/// Times of one source and arm that all ranks have reported.
fn samples(trace: &[Value], source: &str, arm: &str) -> Vec<f64> {
    let of = |v: &&Value| v["kind"] == "sample" && v["source"] == source && v["arm"] == arm;
    trace.iter().filter(of).map(|v| v["time_us"].as_f64().unwrap()).collect()
}

#[test]
fn steps_decide_although_another_arm_has_shorter_kernels() {
    let name = "steps_decide_although_another_arm_has_shorter_kernels";
    let Some((last, trace)) = train(name, "steps", "auto") else { return };
    assert_eq!(last, "TREE/LL128", "the shortest step; TREE/LL has the shortest kernel");
    let (good, bad) = (samples(&trace, "step", "TREE/LL128"), samples(&trace, "step", "TREE/LL"));
    assert!(stats::upper_median(&good) < stats::upper_median(&bad), "{good:?} {bad:?}");
    // The trace has both. The GPU time is that of the last rank, without the 500 us that the other one waits.
    for (arm, us) in [("TREE/LL128", 80.0), ("TREE/LL", 20.0), ("AUTO", 100.0)] {
        let kernels = samples(&trace, "kernel", arm);
        assert!(kernels.len() >= 2 && kernels.iter().all(|t| *t == us), "{arm}: {kernels:?}");
    }
    assert!(trace.iter().filter(|v| v["kind"] == "step").count() >= 690);
    // After every epoch and at the end: comparisons may change what is known without a change of arms.
    let count = |kind: &str| trace.iter().filter(|v| v["kind"] == kind).count();
    assert_eq!(count("finding"), count("epoch") + 1);
    let finding = trace.iter().rfind(|v| v["kind"] == "finding").unwrap();
    assert!(finding["arm"] == "TREE/LL128" && finding["spent_steps"].as_f64() > Some(0.0), "{finding}");
}

/// Two minutes, which the program mostly sleeps: each change of arms is agreed on seconds before.
#[test]
fn at_the_default_lead_the_best_arm_is_found_within_two_minutes_and_no_call_waits() {
    let name = "default-lead";
    let arguments = ["steps", "60000", "4", "0"];
    let Some((last, trace)) = train_with_lead(name, &arguments, "auto", "0", DEFAULT_LEAD) else { return };
    assert_eq!(last, "TREE/LL128");
    let found = trace.iter().find(|v| v["kind"] == "finding" && v["arm"] == "TREE/LL128").unwrap();
    let epochs = trace.iter().filter(|v| v["kind"] == "epoch" && v["number"].as_u64() <= found["epoch"].as_u64());
    let (changes, at_us) = epochs.fold((0, 0), |(n, _), v| (n + 1, v["at_us"].as_u64().unwrap()));
    println!("agreed on the best arm after {} s and {changes} agreements; it runs a lead later", at_us / 1_000_000);
    assert!(changes >= 2, "the choice followed from comparisons: {changes}");
    assert!(trace.iter().filter(|v| v["kind"] == "end").all(|v| v["waits"] == 0));
}

/// The best arm of a loop with many calls per step whose host runs ahead of the GPU. On a busy machine the first comparisons may
/// be spoilt, so there are steps for a second search.
fn found(test: &str, says: &str, calls: &str, lag: &str) -> Option<(String, Vec<Value>)> {
    train_loop(&format!("{test}-{calls}-{lag}"), &[says, "1400", calls, lag], "auto", "0")
}

/// What the plugin said about the loop and its arms, to read after a failure.
fn decisions(trace: &[Value]) -> Vec<&Value> {
    trace.iter().filter(|v| ["loop", "finding", "epoch"].iter().any(|kind| v["kind"] == *kind)).collect()
}

#[test]
fn the_best_arm_is_found_with_many_calls_per_step_and_a_host_that_runs_ahead() {
    let name = "lag";
    for (calls, lag) in [("1", "2"), ("4", "0"), ("4", "1"), ("8", "0"), ("8", "3")] {
        let Some((last, trace)) = found(name, "steps", calls, lag) else { return };
        assert_eq!(last, "TREE/LL128", "{calls} calls per step, lag {lag}: {:?}", decisions(&trace));
        let mut runs: Vec<u64> = vec![0];
        let mut before = "";
        for v in trace.iter().filter(|v| v["kind"] == "call" && v["rank"] == 0) {
            let arm = v["arm"].as_str().unwrap();
            if arm != before {
                runs.push(0);
            }
            before = arm;
            *runs.last_mut().unwrap() += 1;
        }
        let calls: u64 = calls.parse().unwrap();
        let whole = runs.iter().filter(|r| r.is_multiple_of(calls)).count();
        assert_eq!(whole, runs.len(), "arms change between steps only: {runs:?}");
        let said = trace.iter().find(|v| v["kind"] == "loop").map(|v| v["why"].to_string()).unwrap_or_default();
        assert!(said.contains(&format!("{calls} calls per step")), "{said}");
    }
}

#[test]
fn without_steps_the_period_of_many_calls_is_found_and_their_best_arm() {
    for calls in ["4", "8"] {
        let Some((last, trace)) = found("period", "groups", calls, "1") else { return };
        assert_eq!(last, "TREE/LL128", "{calls} calls per step: {:?}", decisions(&trace));
        let said = trace.iter().rfind(|v| v["kind"] == "loop").map(|v| v["why"].to_string()).unwrap_or_default();
        assert!(said.contains(&format!("{calls} calls per step (period found")), "{said}");
    }
}

#[test]
fn without_steps_the_interval_between_outermost_groups_decides() {
    let name = "without_steps_the_interval_between_outermost_groups_decides";
    let Some((last, trace)) = train(name, "groups", "auto") else { return };
    assert_eq!(last, "TREE/LL128");
    assert!(samples(&trace, "interval", "TREE/LL128").len() >= 10 && samples(&trace, "calls", "TREE/LL128").is_empty());
}

#[test]
fn without_groups_the_interval_between_calls_decides_and_is_marked() {
    let name = "without_groups_the_interval_between_calls_decides_and_is_marked";
    let Some((last, trace)) = train(name, "calls", "auto") else { return };
    assert_eq!(last, "TREE/LL128");
    assert!(samples(&trace, "calls", "TREE/LL128").len() >= 10 && samples(&trace, "interval", "TREE/LL128").is_empty());
}

#[test]
fn gpu_times_judge_arms_only_on_request() {
    let name = "gpu_times_judge_arms_only_on_request";
    let Some((last, _)) = train(name, "steps", "kernel") else { return };
    assert_eq!(last, "TREE/LL", "TREE/LL has the shortest kernels, although its steps are the longest");
}

/// Runs Python code with the module on its path; `None`, with a SKIP line, without Python.
fn python(test: &str, code: &str, settings: &[(&str, &str)], plugin: &str) -> Option<Output> {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("SKIP {test}: no python3");
        return None;
    }
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python");
    let mut command = Command::new("python3");
    command.args(["-B", "-c", code]).env("PYTHONPATH", module).env("NCCL_TUNER_PLUGIN", plugin);
    Some(output(&mut command, settings))
}

/// Stands in for NCCL: makes a communicator of 8 ranks, so that the plugin's worker runs and writes its trace.
const STAND_IN: &str = r#"
import ctypes, os, time
import linkwise_step
lib = linkwise_step.library()
assert lib is not None
init_t = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)(lambda *a: None)
table = (ctypes.c_void_p * 4).in_dll(lib, "ncclTunerPlugin_v4")
context = ctypes.c_void_p()
assert init_t(table[1])(8, 1, ctypes.cast(log, ctypes.c_void_p), ctypes.byref(context)) == 0 and context.value
"#;
const THE_END: &str = r#"
time.sleep(0.1)
assert ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(table[3])(context) == 0
"#;

#[test]
fn python_reports_nested_steps_once_and_steps_that_raise() {
    let name = "python_reports_nested_steps_once_and_steps_that_raise";
    let folder = tempfile::tempdir().unwrap();
    let said = r#"
for _ in range(3):
    with linkwise_step.step():
        time.sleep(0.02)
with linkwise_step.step():            # one step of about 60 ms: those inside are parts of it
    with linkwise_step.step():
        time.sleep(0.03)
    with linkwise_step.step():
        time.sleep(0.03)
try:
    with linkwise_step.step():
        time.sleep(0.02)
        raise KeyError("the body's own")
except KeyError:
    pass
else:
    raise SystemExit("an exception of the body was lost")
linkwise_step.begin()                 # never ended: begun anew
linkwise_step.begin()
linkwise_step.end()
linkwise_step.end()                   # no step
"#;
    let settings = [("MODE", "observe"), ("TRACE", folder.path().to_str().unwrap())];
    let code = format!("{STAND_IN}{said}{THE_END}");
    let Some(out) = python(name, &code, &settings, common::library().to_str().unwrap()) else { return };
    assert!(out.status.success(), "{out:?}");
    let trace = trace(folder.path());
    let steps: Vec<f64> =
        trace.iter().filter(|v| v["kind"] == "step").map(|v| v["time_us"].as_f64().unwrap()).collect();
    assert_eq!(steps.len(), 6, "3, the outer one, the one that raised, the one begun twice: {steps:?}");
    assert!(steps[3] >= 60_000.0 && steps[4] >= 20_000.0, "{steps:?}");
    assert!(steps[..3].iter().all(|t| *t >= 20_000.0), "{steps:?}");
    let process = trace.iter().find(|v| v["kind"] == "process").unwrap();
    assert!(process["host_name"].as_str().is_some_and(|h| !h.is_empty()), "{process}");
    assert!(trace.iter().any(|v| v["kind"] == "cost" && v["run_us"].as_u64() > Some(0)));
}

#[test]
fn python_without_the_plugin_does_nothing() {
    let name = "python_without_the_plugin_does_nothing";
    let code = "import linkwise_step\nassert linkwise_step.library() is None\n\
                linkwise_step.begin(); linkwise_step.end()\nwith linkwise_step.step():\n    ran = True\nassert ran\n\
                try:\n    with linkwise_step.step():\n        raise ValueError\nexcept ValueError:\n    print('raised')\n";
    let folder = tempfile::tempdir().unwrap();
    let not_a_library = folder.path().join("text.so");
    std::fs::write(&not_a_library, "no library").unwrap();
    for plugin in ["", "/nowhere/at/all.so", not_a_library.to_str().unwrap(), "libc.so.6"] {
        let Some(out) = python(name, code, &[], plugin) else { return };
        assert!(out.status.success() && out.stdout == b"raised\n" && out.stderr.is_empty(), "{plugin}: {out:?}");
    }
}
