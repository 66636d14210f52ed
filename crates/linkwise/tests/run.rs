//! `linkwise run`: the command's exit code, signals and environment. Without NCCL: any file stands for the plugin.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn linkwise(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_linkwise"));
    c.args(args).env("LINKWISE_PLUGIN", env!("CARGO_BIN_EXE_linkwise")).stdin(Stdio::null());
    let launchers = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"];
    for name in launchers.iter().chain(&["NCCL_TUNER_PLUGIN", "NCCL_ALGO", "LINKWISE_MEETING", "MASTER_ADDR"]) {
        c.env_remove(name);
    }
    c
}

fn err(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn the_exit_code_is_that_of_the_command() {
    for code in [0, 1, 7, 255] {
        let out = linkwise(&["run", "--", "sh", "-c", &format!("exit {code}")]).output().unwrap();
        assert_eq!(out.status.code(), Some(code), "{}", err(&out));
    }
    let out = linkwise(&["run", "--", "sh", "-c", "kill -TERM $$"]).output().unwrap();
    assert_eq!(out.status.code(), Some(128 + 15));
}

#[test]
fn a_signal_goes_to_the_command() {
    let ready = tempfile::tempdir().unwrap();
    let file = ready.path().join("ready");
    let script = format!("trap 'exit 9' TERM; touch {}; while :; do sleep 0.05; done", file.display());
    let mut child = linkwise(&["run", "--", "sh", "-c", &script]).stderr(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    while !file.exists() && begin.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(9), "the command's own answer to the signal");
}

#[test]
fn the_command_gets_the_settings_and_its_output_is_its_own() {
    let show = "echo $LINKWISE_MODE $NCCL_TUNER_PLUGIN ${LINKWISE_MEETING%%:*}";
    let out = linkwise(&["run", "--", "sh", "-c", show]).output().unwrap();
    let said = String::from_utf8(out.stdout).unwrap();
    let mut words = said.split_whitespace();
    assert_eq!(words.next(), Some("adaptive"));
    assert!(words.next().is_some_and(|w| w.ends_with("linkwise")), "{said}");
    assert_eq!(words.next(), Some("local"));
    let out = linkwise(&["run", "--observe", "--", "sh", "-c", "echo $LINKWISE_MODE"]).output().unwrap();
    assert_eq!(String::from_utf8(out.stdout).unwrap(), "observe\n");
}

#[test]
fn a_job_that_did_not_load_the_plugin_is_told_the_usual_reasons() {
    let out = linkwise(&["run", "--", "true"])
        .env("NCCL_TUNER_PLUGIN", "other.so")
        .env("NCCL_ALGO", "Ring")
        .output()
        .unwrap();
    let said = err(&out);
    for words in [
        "no process of this command loaded the plugin",
        "statically",
        "NCCL_TUNER_PLUGIN=other.so is replaced",
        "NCCL_ALGO=Ring is respected",
    ] {
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn what_cannot_be_run_is_said() {
    for (args, what) in [
        (&["run", "--", "no-such-program-at-all"][..], "cannot start `no-such-program-at-all`"),
        (&["run", "--policy", "magic", "--", "true"], "there is no policy `magic`"),
        (&["run", "--profile", "/nowhere", "--", "true"], "cannot open /nowhere"),
        (&["run"], "COMMAND"),
        (&["tune", "report", "/nowhere"], "cannot read /nowhere"),
    ] {
        let out = linkwise(args).output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{args:?}: {}", err(&out));
        assert!(err(&out).contains(what), "{args:?}: {}", err(&out));
    }
}

/// Stands for a process with the plugin: it writes a trace.
const TRACES: &str = r#"printf '%s\n' '{"kind":"process","pid":1,"mode":"observe","tuner_api":5,"profiler_api":5}' \
'{"kind":"comm","comm":"0a","rank":0,"ranks":8,"nodes":1}' \
'{"kind":"call","comm":"0a","rank":0,"call":0,"collective":"ALLREDUCE","size_bytes":1048576,"auto":"RING/LL","arm":"AUTO"}' \
'{"kind":"cost","run_us":1000000,"decisions":1,"decide_us":1}' > $LINKWISE_TRACE/trace-1.jsonl"#;

#[test]
fn the_report_is_said_at_the_end_and_written_as_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("out.html");
    let args = [
        "run",
        "--observe",
        "--cluster",
        "h100",
        "--gpus",
        "n0",
        "--report",
        page.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        TRACES,
    ];
    let out = linkwise(&args).output().unwrap();
    let said = err(&out);
    assert_eq!(out.status.code(), Some(0), "{said}");
    for words in [
        "1 process with the plugin, mode observe",
        "allreduce",
        "RING/LL",
        "The plugin cost",
        "headroom",
        "LINKWISE_KERNEL_TIMES=1",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.starts_with("<!doctype html>") || html.starts_with("<!DOCTYPE html>"), "{html:.60}");
    assert!(html.contains("allreduce"));
}

#[test]
fn a_report_that_fails_does_not_change_the_exit_code_of_the_job() {
    for (script, code) in
        [("echo nonsense > $LINKWISE_TRACE/t.jsonl", 0), ("echo nonsense > $LINKWISE_TRACE/t.jsonl; exit 5", 5)]
    {
        let out = linkwise(&["run", "--", "sh", "-c", script]).output().unwrap();
        assert_eq!(out.status.code(), Some(code), "{}", err(&out));
        assert!(err(&out).contains("t.jsonl: line 1: "), "{}", err(&out));
    }
}

#[test]
fn of_several_tasks_each_has_its_folder_and_task_0_reports() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("traces");
    for task in ["1", "0"] {
        let mut c = linkwise(&["run", "--observe", "--trace", folder.to_str().unwrap(), "--", "sh", "-c", TRACES]);
        c.env("SLURM_PROCID", task)
            .env("SLURM_STEP_NUM_TASKS", "2")
            .env("SLURM_STEP_TASKS_PER_NODE", "2")
            .env("SLURM_JOB_ID", "7");
        let out = c.output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{}", err(&out));
        assert_eq!(err(&out).contains("This is task 0 of 2"), task == "0", "{}", err(&out));
    }
    let out = linkwise(&["tune", "report", folder.to_str().unwrap()]).output().unwrap();
    assert!(String::from_utf8_lossy(&out.stdout).contains("2 processes with the plugin"), "{out:?}");
    // What they meet by is the job's, not the task's.
    let mut c = linkwise(&["run", "--", "sh", "-c", "echo $LINKWISE_MEETING"]);
    c.env("SLURM_PROCID", "1")
        .env("SLURM_STEP_NUM_TASKS", "2")
        .env("SLURM_STEP_TASKS_PER_NODE", "2")
        .env("SLURM_JOB_ID", "7");
    assert_eq!(String::from_utf8(c.output().unwrap().stdout).unwrap(), "local:7\n");
}

#[test]
fn every_signal_that_ends_a_job_is_passed_on() {
    for (signal, number) in [("INT", 2), ("HUP", 1), ("USR1", 10), ("USR2", 12)] {
        let ready = tempfile::tempdir().unwrap();
        let file = ready.path().join("ready");
        let script =
            format!("trap 'exit {}' {signal}; touch {}; while :; do sleep 0.05; done", 40 + number, file.display());
        let mut child = linkwise(&["run", "--", "sh", "-c", &script]).stderr(Stdio::null()).spawn().unwrap();
        let begin = Instant::now();
        while !file.exists() && begin.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(
            Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status().unwrap().success()
        );
        assert_eq!(child.wait().unwrap().code(), Some(40 + number), "{signal}");
    }
}
