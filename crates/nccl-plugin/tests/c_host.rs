//! The plugin in a C host that drives every interface through function pointers of NCCL's prototypes: `tests/host/host.c`. It runs under
//! AddressSanitizer (with leak detection) and UndefinedBehaviorSanitizer if the compiler has them. The library itself is instrumented only in
//! `scripts/sanitize-plugin.sh`.

use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The host, compiled once; an error says why it cannot be compiled.
fn host() -> &'static Result<PathBuf, String> {
    static HOST: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    HOST.get_or_init(|| {
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c-host");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/host/host.c");
        let compile = |extra: &[&str]| -> Result<(), String> {
            let cc = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
            let mut command = Command::new(cc);
            command
                .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"])
                .args(extra)
                .arg(&source)
                .arg("-o")
                .arg(&out);
            let done = command.args(["-ldl", "-pthread", "-lm"]).output().map_err(|e| format!("no C compiler: {e}"))?;
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            if done.status.success() { Ok(()) } else { Err(said) }
        };
        if let Err(why) = compile(&["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]) {
            eprintln!("SKIP c_host_sanitizers: {}", why.lines().last().unwrap_or("the compiler has none"));
            compile(&[])?;
        }
        Ok(out)
    })
}

/// Runs a scenario, which must end by itself and succeed.
fn scenario(test: &str, name: &str, settings: &[(&str, &str)]) -> Option<()> {
    let host = match host() {
        Ok(host) => host,
        Err(why) => {
            assert!(why.starts_with("no C compiler"), "{why}");
            eprintln!("SKIP {test}: {why}");
            return None;
        }
    };
    let library = std::env::current_exe().unwrap().parent().unwrap().join("liblinkwise_nccl.so");
    let mut command = Command::new(host);
    let foreign =
        |n: &str| n.starts_with("LINKWISE_") || n.starts_with("NCCL_") || n == "MASTER_ADDR" || n == "WORLD_SIZE";
    for (variable, _) in std::env::vars_os().filter(|(n, _)| foreign(&n.to_string_lossy())) {
        command.env_remove(variable);
    }
    command.env("RUST_BACKTRACE", "0"); // backtraces slow panics down
    command.env("LINKWISE_LEAD", "0"); // short programs
    command.arg(library).arg(name).envs(settings.iter().map(|(k, v)| (*k, *v)));
    // Output goes to a file: a pipe without a reader would block the host.
    let mut said = tempfile::tempfile().unwrap();
    let mut running = command.stderr(said.try_clone().unwrap()).spawn().unwrap();
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = running.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > Duration::from_secs(120) {
            let _ = running.kill();
            break running.wait().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut text = String::new();
    said.rewind().and_then(|()| said.read_to_string(&mut text)).unwrap();
    let end: Vec<&str> = text.lines().rev().take(30).collect();
    assert!(
        status.success(),
        "{name} {settings:?}: {status} after {:?}; its output, last line first:\n{}",
        begin.elapsed(),
        end.join("\n")
    );
    Some(())
}

/// A rendezvous that no other test uses.
fn rendezvous(test: &str) -> String {
    format!("local:c-host-{}-{test}", std::process::id())
}

#[test]
fn every_interface_survives_any_arguments_and_changes_nothing_without_agreement() {
    let name = "every_interface_survives_any_arguments_and_changes_nothing_without_agreement";
    let folder = tempfile::tempdir().unwrap();
    let [trace, profile] = ["trace", "profile"].map(|f| folder.path().join(f).to_str().unwrap().to_string());
    std::fs::write(&profile, "AllReduce 0 max TREE/SIMPLE@4\n").unwrap();
    let rendezvous = rendezvous("every");
    let panics = [("LINKWISE_TEST", "1"), ("LINKWISE_TEST_PANIC", "1")];
    let profiles = [("LINKWISE_PROFILE", profile.as_str()), ("RANK", "0"), ("WORLD_SIZE", "8")];
    for (mode, more) in [
        ("off", &[][..]),
        ("observe", &[][..]),
        ("observe", &[("LINKWISE_TRACE", trace.as_str())][..]),
        ("adaptive", &[("LINKWISE_REWARD", "kernel"), ("LINKWISE_KERNEL_TIMES", "1")][..]),
        ("profile", &profiles[..]),
        ("adaptive", &panics[..]),
    ] {
        let mut settings = vec![("LINKWISE_MODE", mode), ("LINKWISE_RENDEZVOUS", rendezvous.as_str())];
        settings.extend(more);
        if scenario(name, "every-version", &settings).is_none() {
            return;
        }
    }
}

#[test]
fn a_table_in_force_changes_one_entry_from_the_agreed_call_on_counts_no_question_and_yields_to_the_user() {
    let name = "a_table_in_force_changes_one_entry_from_the_agreed_call_on_counts_no_question_and_yields_to_the_user";
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("profile");
    std::fs::write(&profile, "AllReduce 0 max TREE/SIMPLE@4\nAllGather 0 max RING/LL\nBroadcast 0 max AUTO@8\n")
        .unwrap();
    let settings = [
        ("LINKWISE_MODE", "profile"),
        ("LINKWISE_PROFILE", profile.to_str().unwrap()),
        ("LINKWISE_PROCESS", "0/8"),
        ("LINKWISE_JOB", "closed"),
        ("LINKWISE_SIMULATED_GROUPS", "none"),
        ("LINKWISE_GRAPHS", "none"),
        ("LINKWISE_TEST", "1"),
        ("LINKWISE_TEST_ALONE", "1"),
        ("LINKWISE_LEAD", "0"),
    ];
    scenario(name, "in-force", &settings);
    for variable in [("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "LL")] {
        let forced: Vec<_> = settings.iter().copied().chain([variable]).collect();
        scenario(name, "forced", &forced);
    }
}

#[test]
fn corrupt_and_unreadable_files_turn_the_plugin_off_and_are_reported_once() {
    let name = "corrupt_and_unreadable_files_turn_the_plugin_off_and_are_reported_once";
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_string()
    };
    let mut whole = b"mode = profile\nlead = 4\n".to_vec();
    let good = file("good", &whole);
    whole[9] = 0xff;
    let fifo = folder.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    let bad = [
        fifo.to_str().unwrap().to_string(), // nothing ever writes to it
        file("binary", &[0, 255, 13, 10, 61, 61]),
        file("flipped", &whole),
        file("cut", b"mode = adaptive\nmeeti"),
        file("huge", &vec![b'#'; (1 << 20) + 1]),
        file("endless-line", &[b"mode = ".to_vec(), vec![b'a'; 1 << 19]].concat()),
        folder.path().to_str().unwrap().to_string(),
        "/nonexistent/settings".into(),
        "/dev/zero".into(),
    ];
    for path in bad {
        let settings = [("LINKWISE_CONFIG", path.as_str()), ("WARNINGS_MAX", "1"), ("WARNINGS_MIN", "1")];
        if scenario(name, "off", &settings).is_none() {
            return;
        }
        // The table of a valid configuration is the same file.
        let settings = [
            ("LINKWISE_CONFIG", good.as_str()),
            ("LINKWISE_PROFILE", path.as_str()),
            ("WARNINGS_MAX", "1"),
            ("WARNINGS_MIN", "1"),
        ];
        scenario(name, "off", &settings);
    }
}

#[test]
fn nothing_outlives_finalize_and_a_second_finalize_is_ignored() {
    let name = "nothing_outlives_finalize_and_a_second_finalize_is_ignored";
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let rendezvous = rendezvous("twice");
    for mode in ["observe", "adaptive"] {
        let settings = [
            ("LINKWISE_MODE", mode),
            ("LINKWISE_RENDEZVOUS", rendezvous.as_str()),
            ("LINKWISE_TRACE", trace.to_str().unwrap()),
        ];
        scenario(name, "twice", &settings);
    }
    scenario(name, "twice", &[]);
}

#[test]
fn sixteen_threads_make_and_end_512_communicators() {
    let name = "sixteen_threads_make_and_end_512_communicators";
    let rendezvous = rendezvous("threads");
    for mode in ["observe", "adaptive"] {
        scenario(name, "threads", &[("LINKWISE_MODE", mode), ("LINKWISE_RENDEZVOUS", rendezvous.as_str())]);
    }
}

#[test]
fn forked_children_neither_hang_nor_harm_their_parent() {
    let name = "forked_children_neither_hang_nor_harm_their_parent";
    let rendezvous = rendezvous("fork");
    for mode in ["observe", "adaptive"] {
        // A child has no access to what the parent's thread holds.
        let settings =
            [("LINKWISE_MODE", mode), ("LINKWISE_RENDEZVOUS", rendezvous.as_str()), ("ASAN_OPTIONS", "detect_leaks=0")];
        scenario(name, "fork", &settings);
    }
}

#[test]
fn a_process_that_never_finalizes_exits_normally() {
    let name = "a_process_that_never_finalizes_exits_normally";
    let rendezvous = rendezvous("exit");
    for end in ["exit", "close"] {
        for mode in ["observe", "adaptive"] {
            // Memory of a live communicator is in use when the process ends: no leak.
            let settings = [
                ("LINKWISE_MODE", mode),
                ("LINKWISE_RENDEZVOUS", rendezvous.as_str()),
                ("ASAN_OPTIONS", "detect_leaks=0"),
            ];
            scenario(name, end, &settings);
        }
    }
}

#[test]
fn a_full_disk_ends_only_the_trace() {
    let name = "a_full_disk_ends_only_the_trace";
    let folder = tempfile::tempdir().unwrap();
    let settings = [("LINKWISE_MODE", "observe"), ("LINKWISE_TRACE", folder.path().to_str().unwrap())];
    if scenario(name, "full-disk", &settings).is_none() {
        return;
    }
    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap();
    let bytes = file.metadata().unwrap().len();
    assert!((1..=16_384).contains(&bytes), "the trace reached its limit and did not exceed it: {bytes} bytes");
}

#[test]
fn the_jobs_signals_do_not_run_on_the_plugins_thread() {
    scenario("the_jobs_signals_do_not_run_on_the_plugins_thread", "signals", &[("LINKWISE_MODE", "observe")]);
}
