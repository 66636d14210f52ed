//! `linkwise run`: the command's exit code, signals and environment. Without NCCL: any file stands for the plugin.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use wait_timeout::ChildExt;

/// No command of these tests takes so long, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(120);

/// As a launcher or a user would start it; in a group of its own, which no terminal interrupts.
fn linkwise(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_linkwise"));
    c.args(args).process_group(0);
    around(&mut c);
    c
}

/// Settings for a command that runs `linkwise`: no launcher, nothing said.
fn around(c: &mut Command) {
    c.env("LINKWISE_PLUGIN", env!("CARGO_BIN_EXE_linkwise")).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        let launcher = ["SLURM_", "OMPI_", "PMI", "NCCL_", "LINKWISE_", "MASTER_"].iter().any(|p| name.starts_with(p));
        if launcher && name != "LINKWISE_PLUGIN" {
            c.env_remove(name.as_ref());
        }
    }
}

/// Its exit code; a child that does not end is killed.
fn ended(mut child: Child) -> Option<i32> {
    let Some(status) = child.wait_timeout(PATIENCE).unwrap() else {
        let _ = child.kill();
        panic!("it did not end");
    };
    status.code()
}

/// What somebody else writes into a file, once it is there.
fn said_in(file: &Path) -> String {
    let begin = Instant::now();
    loop {
        match std::fs::read_to_string(file) {
            Ok(text) if text.ends_with('\n') => return text.trim().to_string(),
            _ => assert!(begin.elapsed() < PATIENCE, "nothing in {}", file.display()),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn send(signal: &str, pid: &str) {
    assert!(Command::new("kill").args([&format!("-{signal}"), pid]).status().unwrap().success());
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
fn the_command_may_open_as_many_files_as_the_hard_limit_allows() {
    let run = format!(
        "ulimit -Sn 200; exec {} run --observe -- sh -c 'ulimit -Sn; ulimit -Hn'",
        env!("CARGO_BIN_EXE_linkwise")
    );
    let out = Command::new("sh").args(["-c", &run]).output().unwrap();
    let said = String::from_utf8(out.stdout).unwrap();
    let limits: Vec<&str> = said.split_whitespace().collect();
    assert!(
        matches!(limits.as_slice(), [soft, hard] if soft == hard),
        "{said} {}",
        String::from_utf8_lossy(&out.stderr)
    );
}

#[test]
fn a_signal_goes_to_the_command() {
    let ready = tempfile::tempdir().unwrap();
    let file = ready.path().join("ready");
    let script = format!("trap 'exit 9' TERM; echo > {}; while :; do sleep 0.05; done", file.display());
    let child = linkwise(&["run", "--", "sh", "-c", &script]).stderr(Stdio::null()).spawn().unwrap();
    said_in(&file);
    send("TERM", &child.id().to_string());
    assert_eq!(ended(child), Some(9), "the command's own answer to the signal");
}

#[test]
fn the_command_gets_the_settings_and_its_output_is_its_own() {
    let show = "echo $LINKWISE_MODE $NCCL_TUNER_PLUGIN ${LINKWISE_RENDEZVOUS_FALLBACK%%:*}";
    let out = linkwise(&["run", "--", "sh", "-c", show]).output().unwrap();
    let said = String::from_utf8(out.stdout).unwrap();
    let mut words = said.split_whitespace();
    assert_eq!(words.next(), Some("adaptive"));
    assert!(words.next().is_some_and(|w| w.ends_with("linkwise")), "{said}");
    assert_eq!(words.next(), Some("local"));
    // A random token that only the command's processes know, unless the user sets one or each host has a `linkwise run` of its own.
    let token = |vars: &[(&str, &str)]| {
        let show = ["run", "--", "sh", "-c", "echo ${LINKWISE_TOKEN_FALLBACK:-none}"];
        let out = linkwise(&show).envs(vars.iter().copied()).output().unwrap();
        (String::from_utf8(out.stdout).unwrap().trim().to_owned(), String::from_utf8(out.stderr).unwrap())
    };
    let (first, second) = (token(&[]).0, token(&[]).0);
    assert!(first.len() == 32 && first.bytes().all(|b| b.is_ascii_hexdigit()) && first != second, "{first} {second}");
    assert_eq!(token(&[("LINKWISE_TOKEN", "mine")]).0, "none");
    let launched = [("MASTER_ADDR", "n0"), ("MASTER_PORT", "29500")];
    let (none, said) = token(&launched);
    assert!(none == "none" && said.contains("is no secret"), "{none} {said}");
    let out = linkwise(&["run", "--observe", "--", "sh", "-c", "echo $LINKWISE_MODE"]).output().unwrap();
    assert_eq!(String::from_utf8(out.stdout).unwrap(), "observe\n");
}

#[test]
fn the_plugins_of_the_site_are_passed_on_and_linkwise_is_none_of_them() {
    let show =
        ["run", "--observe", "--", "sh", "-c", "echo ${LINKWISE_SITE_TUNER-unset} ${LINKWISE_SITE_PROFILER-unset}"];
    let said = |c: &mut Command| String::from_utf8(c.output().unwrap().stdout).unwrap();
    assert_eq!(said(&mut linkwise(&show)), "unset unset\n");
    let site = [("NCCL_TUNER_PLUGIN", "gib"), ("NCCL_PROFILER_PLUGIN", "/opt/inspector.so")];
    assert_eq!(said(linkwise(&show).envs(site)), "gib /opt/inspector.so\n");
    // A run inside a run finds linkwise in NCCL's variables, and the site's plugin where the outer run kept it.
    let me = env!("CARGO_BIN_EXE_linkwise");
    let inner = [("NCCL_TUNER_PLUGIN", me), ("LINKWISE_SITE_TUNER", "gib"), ("NCCL_PROFILER_PLUGIN", me)];
    assert_eq!(said(linkwise(&show).envs(inner)), "gib unset\n");
}

#[test]
fn a_tuner_that_cannot_be_asked_stays_nccls_under_observe_and_ends_other_runs_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let tuner = folder.path().join("libtuner.so");
    let with = |interfaces: &str, observe: bool| {
        std::fs::write(&tuner, format!("\x7fELF..\0{interfaces}\0")).unwrap();
        let show = "echo $NCCL_TUNER_PLUGIN ${LINKWISE_SITE_TUNER-unset} ${NCCL_PROFILER_PLUGIN##*/}";
        let mut args = vec!["run", "--", "sh", "-c", show];
        if observe {
            args.insert(1, "--observe");
        }
        let out = linkwise(&args).env("NCCL_TUNER_PLUGIN", &tuner).output().unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned(), err(&out))
    };
    let of = tuner.display().to_string();
    let (code, out, said) = with("ncclTunerPlugin_v9", true);
    assert_eq!((code, out.trim()), (Some(0), format!("{of} unset linkwise").as_str()), "{said}");
    assert!(said.contains("has only the interface v9") && said.contains("only the profiler"), "{said}");
    let (code, out, said) = with("ncclTunerPlugin_v9", false);
    assert!(code == Some(2) && out.is_empty() && said.contains("--observe leaves it to NCCL"), "{said}");
    for interfaces in ["ncclTunerPlugin_v9\0ncclTunerPlugin_v4", "nothing"] {
        let (code, out, said) = with(interfaces, true);
        assert!(code == Some(0) && out.contains(&format!(" {of} ")) && !out.starts_with(&of), "{out} {said}");
    }
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
        "NCCL_TUNER_PLUGIN=other.so: it is asked first, and its answer is AUTO",
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
        (&["run", "--report", "/nowhere/out.html", "--", "true"], "cannot write /nowhere/out.html"),
        (&["run", "--report", "/", "--", "true"], "cannot write /:"),
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
fn what_the_collectives_took_is_a_line_in_the_termination_message_of_a_pod() {
    let dir = tempfile::tempdir().unwrap();
    let message = dir.path().join("termination-log");
    std::fs::write(&message, "loss 3.1\n").unwrap();
    let run = |process: &str, us: f64| {
        let launched = |call: u32| {
            format!(
                r#"{{"kind":"launched","comm":"0a","rank":0,"call":{call},"collective":"AllReduce","size_bytes":1048576,"arm":"RING/LL","channels":2,"kernel_us":{us}}}"#
            )
        };
        let comm = r#"{"kind":"comm","comm":"0a","rank":0,"ranks":16,"nodes":2}"#;
        let lines: Vec<String> = (0..20).map(launched).collect();
        let trace = format!("{process}\n{comm}\n{}\n", lines.join("\n"));
        let script = format!("cat > $LINKWISE_TRACE/trace-1.jsonl <<'END'\n{trace}END");
        linkwise(&["run", "--observe", "--summary", message.to_str().unwrap(), "--", "sh", "-c", &script])
            .output()
            .unwrap()
    };
    let process = r#"{"kind":"process","pid":1,"mode":"observe","profiler_api":5}"#;
    let out = run(process, 80.5);
    assert_eq!(out.status.code(), Some(0), "{}", err(&out));
    let said = std::fs::read_to_string(&message).unwrap();
    assert_eq!(said, "loss 3.1\nlinkwise-calls 1 all_reduce,1048576,16,80.5,20\n");
    // Times that a test gave, or none, leave no line, and the job is as it was.
    for (process, us, why) in
        [(r#"{"kind":"process","pid":1,"scripted":true}"#, 80.5, "given by a test"), (process, 0.0, "--kernel-times")]
    {
        let out = run(process, us);
        assert!(out.status.success() && err(&out).contains(why), "{}", err(&out));
    }
    assert_eq!(std::fs::read_to_string(&message).unwrap(), said);
}

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
        let dir = tempfile::tempdir().unwrap();
        let out = linkwise(&["run", "--", "sh", "-c", script]).env("TMPDIR", dir.path()).output().unwrap();
        let said = err(&out);
        assert_eq!(out.status.code(), Some(code), "{said}");
        assert!(said.contains("t.jsonl: line 1: "), "{said}");
        // Nothing is lost: the traces are where it says.
        let kept = said.split("linkwise tune report ").nth(1).unwrap().trim();
        assert_eq!(std::fs::read_to_string(Path::new(kept).join("t.jsonl")).unwrap(), "nonsense\n");
    }
}

#[test]
fn a_job_leaves_no_folder_behind() {
    for script in [TRACES.to_string(), format!("{TRACES}; exit 3")] {
        let dir = tempfile::tempdir().unwrap();
        let out = linkwise(&["run", "--", "sh", "-c", &script]).env("TMPDIR", dir.path()).output().unwrap();
        assert!(err(&out).contains("1 process with the plugin"), "{}", err(&out));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

/// The rendezvous that the command gets: the user's, the fallback, and the messages.
fn rendezvous(args: &[&str], vars: &[(&str, &str)]) -> (String, String, String) {
    let show = ["--", "sh", "-c", "echo \"$LINKWISE_RENDEZVOUS\"; echo \"$LINKWISE_RENDEZVOUS_FALLBACK\""];
    let out = linkwise(&[&["run"], args, &show].concat()).envs(vars.iter().copied()).output().unwrap();
    let said = String::from_utf8(out.stdout.clone()).unwrap();
    let mut lines = said.lines().map(str::to_string);
    (lines.next().unwrap(), lines.next().unwrap(), err(&out))
}

#[test]
fn the_users_rendezvous_is_passed_on_and_otherwise_the_launcher_decides() {
    let (said, other, _) = rendezvous(&[], &[]);
    assert!(said.is_empty() && other.starts_with("local:"), "{said} {other}");
    // Started by torchrun itself, once per worker: every one of them would name another place.
    let (said, other, err) = rendezvous(&[], &[("MASTER_ADDR", "n0"), ("MASTER_PORT", "29500")]);
    assert!(said.is_empty() && other.is_empty() && !err.contains("AUTO"), "{said} {other} {err}");
    let (said, other, _) = rendezvous(&[], &[("MASTER_ADDR", "n0")]); // which is not enough to meet there
    assert!(said.is_empty() && other.starts_with("local:"), "{said} {other}");
    assert_eq!(rendezvous(&["--meeting", "tcp:n0:5000"], &[]).0, "tcp:n0:5000", "the former name");
    assert_eq!(rendezvous(&["--rendezvous", "tcp:n0:5000"], &[]).0, "tcp:n0:5000");
    assert_eq!(rendezvous(&[], &[("LINKWISE_RENDEZVOUS", "tcp:n0:5000")]).0, "tcp:n0:5000");
}

#[test]
fn tasks_of_several_hosts_are_not_told_to_meet_on_one() {
    let mpi = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "8"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "4")];
    // Around all of this another `linkwise run`, which knew one host.
    let outer = ("LINKWISE_RENDEZVOUS_FALLBACK", "local:outer");
    let (said, other, err) = rendezvous(&[], &[&mpi[..], &[outer]].concat());
    assert_eq!((said.as_str(), other.as_str()), ("", ""));
    assert!(err.contains("8 tasks, perhaps on several hosts, have no rendezvous: unless the command sets one"));
    // Nothing is said where it would not be true.
    for (args, more) in [
        (&["--rendezvous", "tcp:n0:5000"][..], &[][..]),
        (&["--observe"], &[]),
        (&[], &[("MASTER_ADDR", "n0"), ("MASTER_PORT", "29500")]),
        (&[], &[("LINKWISE_RENDEZVOUS", "tcp:n0:5000")]),
        // The plugin finds the first host in Slurm's list.
        (&[], &[("SLURM_NNODES", "2"), ("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[0-1]")]),
    ] {
        let (_, other, err) = rendezvous(args, &[&mpi[..], more].concat());
        assert!(other.is_empty() && !err.contains("AUTO"), "{args:?} {more:?}: {err}");
    }
}

#[test]
fn traces_that_will_not_come_back_are_announced() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/bin/true", dir.path().join("srun")).unwrap();
    let srun = dir.path().join("srun");
    let run = |args: &[&str], nodes: &str| {
        let args = [&["run", "--observe"], args, &["--", srun.to_str().unwrap()]].concat();
        err(&linkwise(&args).env("SLURM_JOB_NUM_NODES", nodes).output().unwrap())
    };
    let said = run(&[], "2");
    assert!(said.contains("where srun starts processes on other hosts their traces stay there"), "{said}");
    assert!(said.contains("they ran on other hosts: their traces are there"), "{said}");
    assert!(!run(&[], "1").contains("where srun starts"));
    assert!(!run(&["--trace", dir.path().join("all").to_str().unwrap()], "2").contains("where srun starts"));
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
    // Without --trace task 0 knows of its own processes alone, and says so.
    let mut c = linkwise(&["run", "--observe", "--", "sh", "-c", TRACES]);
    c.env("SLURM_PROCID", "0").env("SLURM_STEP_NUM_TASKS", "2").env("SLURM_STEP_TASKS_PER_NODE", "2");
    let said = err(&c.output().unwrap());
    assert!(said.contains("This is task 0 of 2: processes of the others are not in it; --trace FOLDER"), "{said}");
    // What they meet by is the job's, not the task's.
    let mut c = linkwise(&["run", "--", "sh", "-c", "echo $LINKWISE_RENDEZVOUS_FALLBACK"]);
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
            format!("trap 'exit {}' {signal}; echo > {}; while :; do sleep 0.05; done", 40 + number, file.display());
        let child = linkwise(&["run", "--", "sh", "-c", &script]).stderr(Stdio::null()).spawn().unwrap();
        said_in(&file);
        send(signal, &child.id().to_string());
        assert_eq!(ended(child), Some(40 + number), "{signal}");
    }
}

#[test]
fn what_was_ignored_when_it_began_ends_neither_it_nor_the_command() {
    // HUP as nohup leaves it, INT and QUIT as a shell leaves them to its background jobs.
    for signal in ["HUP", "INT", "QUIT"] {
        let ready = tempfile::tempdir().unwrap();
        let file = ready.path().join("ready");
        let inner = format!("trap 'exit 9' USR1; echo > {}; while :; do sleep 0.05; done", file.display());
        let outer = r#"trap '' "$1"; exec "$2" run -- sh -c "$3""#;
        let mut c = Command::new("sh");
        c.args(["-c", outer, "sh", signal, env!("CARGO_BIN_EXE_linkwise"), &inner]).process_group(0);
        around(&mut c);
        let child = c.stderr(Stdio::null()).spawn().unwrap();
        said_in(&file);
        // The second arrives after the first: had that been passed on, the command would not answer this one.
        send(signal, &child.id().to_string());
        send("USR1", &child.id().to_string());
        assert_eq!(ended(child), Some(9), "{signal}");
    }
}

#[test]
fn an_interrupt_from_the_terminal_is_not_passed_on_once_more_when_input_comes_from_elsewhere() {
    let name = "an_interrupt_from_the_terminal_is_not_passed_on_once_more_when_input_comes_from_elsewhere";
    for tool in ["script", "setsid"] {
        if Command::new(tool).arg("--version").output().is_err() {
            eprintln!("SKIP {name}: there is no `{tool}`");
            return;
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ready");
    // A session of its own: the terminal does not reach the command, so an interrupt can only come from `linkwise run`.
    let inner =
        format!("trap 'exit 9' USR1; trap 'exit 8' INT; echo $PPID > {}; while :; do sleep 0.05; done", file.display());
    let program = dir.path().join("job");
    std::fs::write(&program, inner).unwrap();
    let line = format!("exec {} run -- setsid sh {} </dev/null", env!("CARGO_BIN_EXE_linkwise"), program.display());
    let mut c = Command::new("script");
    c.args(["-qec", &line, "/dev/null"]);
    around(&mut c);
    let mut terminal = c.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = said_in(&file);
    let mut keyboard = terminal.stdin.take().unwrap();
    std::io::Write::write_all(&mut keyboard, b"\x03").unwrap();
    // Seen by `linkwise run`, before the other signal is sent: that it has caught it is all that can be waited for.
    std::thread::sleep(Duration::from_millis(500));
    send("USR1", &pid);
    assert_eq!(ended(terminal), Some(9));
    drop(keyboard);
}

#[test]
fn a_wrong_setting_or_table_ends_the_run_before_the_job() {
    if !std::path::Path::new(env!("CARGO_BIN_EXE_linkwise")).with_file_name("linkwise-plugin-check").exists() {
        eprintln!("SKIP a_wrong_setting_or_table_ends_the_run_before_the_job: linkwise-plugin-check is not built");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("table");
    std::fs::write(&table, "AllReduce 64KiB banana\n").unwrap();
    let began = folder.path().join("began");
    let job = format!("touch {}", began.display());
    let run = |options: &[&str], variable: (&str, &str)| {
        let mut args = vec!["run"];
        args.extend(options);
        args.extend(["--", "sh", "-c", &job]);
        let out = linkwise(&args).env(variable.0, variable.1).output().unwrap();
        (out.status.code(), err(&out))
    };
    let of = table.display().to_string();
    for (options, variable, said) in [
        (&["--profile", of.as_str()][..], ("HOME", "/"), ":1: `banana`"),
        (&[], ("LINKWISE_LEAD", "nan"), "LINKWISE_LEAD"),
        (&[], ("LINKWISE_LAED", "3"), "LINKWISE_LEAD"),
        (&[], ("LINKWISE_CONFIG", "/dev/zero"), "not a regular file"),
    ] {
        let (code, text) = run(options, variable);
        assert!(code == Some(2) && text.contains(said) && text.contains("stay off"), "{variable:?}: {code:?} {text}");
    }
    assert!(!began.exists());
    assert_eq!(run(&[], ("LINKWISE_LEAD", "3")).0, Some(0));
    assert!(began.exists());
}
