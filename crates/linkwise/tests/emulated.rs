//! `linkwise emulate` as a parent process: its exit code, its folder, and what a signal to it does. No NCCL library is needed.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(60);

/// The command on two hosts, with its temporary folders in `temporary`.
fn emulate(temporary: &Path, script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_linkwise"));
    command.args(["emulate", "--hosts", "2x1", "--each", "--", "sh", "-c", script]).env("TMPDIR", temporary);
    command
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < DEADLINE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn has_compiler() -> bool {
    Command::new("cc").arg("--version").output().is_ok()
}

#[test]
fn a_failed_command_gives_its_exit_code_and_leaves_no_folder() {
    if !has_compiler() {
        return eprintln!("SKIP: no C compiler");
    }
    let temporary = tempfile::tempdir().unwrap();
    let out =
        emulate(temporary.path(), "echo $LD_PRELOAD; exit 3").env("LD_PRELOAD", "/no/library.so").output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert_eq!(out.status.code(), Some(3), "{errors}");
    assert!(is_empty(temporary.path()));
    assert!(said.contains("libemulation.so:/no/library.so"), "{said}");
    assert!(errors.contains("no process made an emulated CUDA call"), "{errors}");
}

/// A run of two shells that print their numbers and then sleep.
fn asleep(temporary: &Path) -> (Child, Vec<u32>) {
    let mut run = emulate(temporary, "echo $$; sleep 100; true").stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(run.stdout.take().unwrap()).lines();
    let ranks = lines.take(2).map(|l| l.unwrap().trim().parse().unwrap()).collect();
    (run, ranks)
}

#[test]
fn a_signal_ends_the_ranks_and_their_children_and_removes_the_folder() {
    if !has_compiler() {
        return eprintln!("SKIP: no C compiler");
    }
    for (signal, code) in
        [(Signal::TERM, Some(143)), (Signal::HUP, Some(129)), (Signal::INT, Some(130)), (Signal::KILL, None)]
    {
        let temporary = tempfile::tempdir().unwrap();
        let (mut run, ranks) = asleep(temporary.path());
        assert!(!is_empty(temporary.path()));
        kill_process(Pid::from_raw(run.id() as i32).unwrap(), signal).unwrap();
        let status = run.wait().unwrap();
        assert!(status.code() == code && status.signal() == code.is_none().then_some(9), "{status}");
        until("the folder is left", || is_empty(temporary.path()));
        let dead = |rank: &u32| {
            let text = std::fs::read_to_string(format!("/proc/{rank}/stat")).unwrap_or_default();
            text.is_empty() || text.contains(") Z ")
        };
        until("a rank is left", || ranks.iter().all(dead));
    }
}
