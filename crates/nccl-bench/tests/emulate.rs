//! A program that knows nothing of the bench runs on simulated hosts: its own NCCL calls, its own CUDA calls, a launcher's variables.

mod common;

use common::skip;
use nccl_bench::{Bench, EmulateSpec, Library};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use topology::catalog;

const DEADLINE: Duration = Duration::from_secs(60);

fn program(folder: &Path, name: &str) -> Option<PathBuf> {
    let path = folder.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{name}.c"));
    let built =
        Command::new("cc").args(["-O1", "-Wno-unused-parameter", "-o"]).args([&path, &source]).arg("-ldl").status();
    built.is_ok_and(|s| s.success()).then_some(path)
}

/// The file of offsets of a library, printed by a shell in place of `linkwise emulate --layout-of`.
fn layout_command(bench: &Bench, library: &Path) -> String {
    format!("echo '{}' #", bench.layout_of(library).unwrap().display())
}

/// Runs a program once per rank, with the library as its first argument.
fn start(
    spec: &EmulateSpec,
    bench: &Bench,
    program: &Path,
    library: &Path,
    arguments: &[&OsStr],
) -> (Vec<Output>, Vec<(String, u64)>) {
    let emulated = bench.emulate(spec).unwrap();
    let ranks = spec.hosts * spec.gpus;
    let children: Vec<Child> = (0..ranks)
        .map(|rank| {
            Command::new(program)
                .arg(library)
                .args(arguments)
                .envs(emulated.env.iter().map(|(n, v)| (n, v)))
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", ranks.to_string())
                .env("LOCAL_RANK", rank.to_string())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let begin = Instant::now();
    let mut children = children;
    loop {
        let mut alive = 0;
        for (rank, child) in children.iter_mut().enumerate() {
            match child.try_wait().unwrap() {
                None => alive += 1,
                Some(status) if status.success() => emulated.rank_ended(rank),
                Some(_) => {}
            }
        }
        let failed = children.iter_mut().any(|c| c.try_wait().unwrap().is_some_and(|s| !s.success()));
        if alive == 0 {
            break;
        }
        if failed {
            std::thread::sleep(Duration::from_secs(1)); // the others may say more
        }
        if failed || begin.elapsed() > DEADLINE {
            children.iter_mut().for_each(|c| drop(c.kill()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let outputs = children.into_iter().map(|c| c.wait_with_output().unwrap()).collect();
    (outputs, emulated.skipped().into_iter().collect())
}

fn spec(bench: &Bench, library: &Path, hosts: usize, gpus: usize, stall_s: u64) -> EmulateSpec {
    EmulateSpec {
        host_type: catalog::host_type("hgx-h100").unwrap(),
        hosts,
        gpus,
        refuse_kernels: false,
        stall_s,
        layout_command: layout_command(bench, library).into(),
    }
}

/// A C program of these tests with a bench and a library; `None`, with a SKIP line, where there is no compiler or no library.
fn prepared(test: &str, source: &str, version: &str) -> Option<(tempfile::TempDir, PathBuf, Bench, PathBuf)> {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = program(folder.path(), source) else {
        eprintln!("SKIP {test}: no C compiler");
        return None;
    };
    let cache = nccl_bench::library::default_cache().unwrap();
    let library = match Library::get_or_fetch(&cache, version.parse().unwrap()) {
        Ok(library) => library.path,
        Err(e) => return skip(test, e),
    };
    Some((folder, program, Bench::in_cache(&cache), library))
}

fn said(outputs: &[Output]) -> String {
    let text = |o: &Output| String::from_utf8_lossy(&o.stdout).into_owned() + &String::from_utf8_lossy(&o.stderr);
    outputs.iter().map(text).collect()
}

#[test]
fn calls_that_differ_between_ranks_end_the_run_and_calls_that_only_look_different_do_not() {
    let name = "calls_that_differ_between_ranks_end_the_run_and_calls_that_only_look_different_do_not";
    let Some((folder, program, bench, library)) = prepared(name, "calls", "2.28.9") else { return };
    let run = |mode: &str, gpus: usize| {
        let ids = folder.path().join(mode);
        std::fs::create_dir(&ids).unwrap();
        start(&spec(&bench, &library, 2, gpus, 30), &bench, &program, &library, &[ids.as_os_str(), mode.as_ref()]).0
    };
    let same = run("same", 2);
    assert!(same.iter().all(|o| o.status.success()) && !said(&same).contains("linkwise-emulation"), "{}", said(&same));
    for (mode, expected) in [
        ("count", ["ncclAllReduce of 1000 float32, sum", "ncclAllReduce of 500 float32, sum"]),
        ("operation", ["1000 float32, sum", "1000 float32, max"]),
        ("root", ["ncclBroadcast of 1000 float32, root 0", "ncclBroadcast of 1000 float32, root 1"]),
        ("kind", ["ncclAllReduce of 1000 float32, sum", "ncclBroadcast of 1000 float32, root 0"]),
        ("order", ["1000 float32, sum", "10 float32, sum"]),
        ("length", ["rank 0 sends 4000 bytes to rank 1", "which receives 4004"]),
    ] {
        let outputs = run(mode, 1);
        let text = said(&outputs);
        let lines: Vec<&str> = text.lines().filter(|l| l.starts_with("linkwise-emulation: mismatch: ")).collect();
        assert!(lines.len() == 1 && expected.iter().all(|e| lines[0].contains(e)), "{mode}: {text}");
        assert!(lines[0].contains("rank 0") && lines[0].contains("rank 1"), "{mode}: {text}");
        assert!(outputs.iter().any(|o| o.status.code() == Some(71)), "{mode}: {outputs:?}");
    }
}

#[test]
fn a_run_ends_when_every_rank_waits_or_has_ended_and_goes_on_while_one_is_busy_elsewhere() {
    let name = "a_run_ends_when_every_rank_waits_or_has_ended_and_goes_on_while_one_is_busy_elsewhere";
    let Some((folder, program, bench, library)) = prepared(name, "calls", "2.28.9") else { return };
    let run = |mode: &str, stall_s: u64| {
        let ids = folder.path().join(format!("{mode}{stall_s}"));
        std::fs::create_dir(&ids).unwrap();
        start(&spec(&bench, &library, 2, 1, stall_s), &bench, &program, &library, &[ids.as_os_str(), mode.as_ref()]).0
    };
    for (mode, waits) in
        [("missing", ["rank 0 is in ", "rank 1 "]), ("left", ["rank 0 is in ncclCommInitRank", "rank 1 has ended"])]
    {
        let outputs = run(mode, 2);
        let text = said(&outputs);
        assert!(outputs[0].status.code() == Some(69) && waits.iter().all(|w| text.contains(w)), "{mode}: {text}");
    }
    for (stall_s, note) in [(2, true), (0, false)] {
        let outputs = run("late", stall_s);
        let text = said(&outputs);
        assert!(outputs.iter().all(|o| o.status.success()), "{text}");
        assert_eq!(text.contains("note: rank 0 waits in cudaStreamSynchronize"), note, "{text}");
    }
}

#[test]
fn an_unchanged_program_reduces_on_simulated_hosts_and_its_own_kernels_are_counted_or_refused() {
    let name = "an_unchanged_program_reduces_on_simulated_hosts_and_its_own_kernels_are_counted_or_refused";
    let Some((folder, program, bench, library)) = prepared(name, "program", "2.30.7") else { return };
    let mut spec = spec(&bench, &library, 2, 2, 30);
    let id = |n: u8| folder.path().join(format!("id-{n}"));
    let (outputs, skipped) = start(&spec, &bench, &program, &library, &[id(0).as_os_str()]);
    for (rank, out) in outputs.iter().enumerate() {
        let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "rank {rank}, {}: {said}", out.status);
        assert!(said.contains(&format!("rank {rank} local {} of 2 host linkwise-", rank % 2)), "{said}");
        assert!(said.contains(&format!("-{} gpus 2 right", rank / 2)), "{said}");
    }
    assert!(skipped.len() == 1 && skipped[0].1 == 4 * 3 && skipped[0].0.starts_with("program+0x"), "{skipped:?}");
    spec.refuse_kernels = true;
    let (outputs, _) = start(&spec, &bench, &program, &library, &[id(1).as_os_str()]);
    for out in outputs {
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && said.contains("not played: the program's kernel"), "{said}");
    }
}

#[test]
fn a_wrong_number_of_ranks_and_an_untested_release_are_refused() {
    let name = "a_wrong_number_of_ranks_and_an_untested_release_are_refused";
    let cache = tempfile::tempdir().unwrap();
    let bench = Bench::in_cache(cache.path());
    let mut spec = EmulateSpec {
        host_type: catalog::host_type("hgx-h100").unwrap(),
        hosts: 2,
        gpus: 2,
        refuse_kernels: false,
        stall_s: 30,
        layout_command: "false".into(),
    };
    let emulated = match bench.emulate(&spec) {
        Ok(emulated) => emulated,
        Err(e) => return skip(name, e).unwrap_or_default(),
    };
    let mut rank = Command::new("true");
    rank.envs(emulated.env.iter().map(|(n, v)| (n, v))).env("RANK", "0").env("WORLD_SIZE", "8");
    let out = rank.output().unwrap();
    assert!(String::from_utf8_lossy(&out.stderr).contains("rank 0 of 8 on hosts 2x2"), "{out:?}");
    assert_eq!(out.status.code(), Some(68));
    spec.gpus = 9;
    assert!(bench.emulate(&spec).unwrap_err().to_string().contains("`hgx-h100` has 8"));
    let fake = cache.path().join("libnccl.so.2");
    std::fs::write(&fake, "..NCCL version 2.23.4+cuda12.4..").unwrap();
    let e = bench.layout_of(&fake).unwrap_err().to_string();
    assert!(e.contains("2.23.4") && e.contains("2.32.3"), "{e}");
    std::fs::write(&fake, "nothing").unwrap();
    assert!(bench.layout_of(&fake).unwrap_err().to_string().contains("does not name a release"));
}
