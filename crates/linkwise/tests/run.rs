//! `linkwise run`: the command's exit code, signals and environment. Without NCCL: any file stands for the plugin.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn linkwise(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_linkwise"));
    c.args(args).env("LINKWISE_PLUGIN", env!("CARGO_BIN_EXE_linkwise")).stdin(Stdio::null());
    for name in ["NCCL_TUNER_PLUGIN", "NCCL_ALGO", "LINKWISE_MEETING", "MASTER_ADDR"] {
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
