//! A program that knows nothing of the bench runs on simulated hosts: its own NCCL calls, its own CUDA calls, a launcher's variables.

mod common;

use common::skip;
use nccl_bench::{Bench, EmulateSpec, Library};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use topology::catalog;

const DEADLINE: Duration = Duration::from_secs(60);

fn program(folder: &Path) -> Option<PathBuf> {
    let path = folder.join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/program.c");
    let built =
        Command::new("cc").args(["-O1", "-Wno-unused-parameter", "-o"]).args([&path, &source]).arg("-ldl").status();
    built.is_ok_and(|s| s.success()).then_some(path)
}

/// The file of offsets of a library, printed by a shell in place of `linkwise emulate --layout-of`.
fn layout_command(bench: &Bench, library: &Path) -> String {
    format!("echo '{}' #", bench.layout_of(library).unwrap().display())
}

fn start(
    spec: &EmulateSpec,
    bench: &Bench,
    program: &Path,
    library: &Path,
    folder: &Path,
    ranks: usize,
) -> (Vec<Output>, Vec<(String, u64)>) {
    let emulated = bench.emulate(spec).unwrap();
    let id = folder.join(format!("id-{}", spec.refuse_kernels));
    let children: Vec<Child> = (0..ranks)
        .map(|rank| {
            Command::new(program)
                .args([library, &id])
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
    while children.iter_mut().any(|c| c.try_wait().unwrap().is_none()) {
        if begin.elapsed() > DEADLINE {
            children.iter_mut().for_each(|c| drop(c.kill()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let outputs = children.into_iter().map(|c| c.wait_with_output().unwrap()).collect();
    (outputs, emulated.skipped().into_iter().collect())
}

#[test]
fn an_unchanged_program_reduces_on_simulated_hosts_and_its_own_kernels_are_counted_or_refused() {
    let name = "an_unchanged_program_reduces_on_simulated_hosts_and_its_own_kernels_are_counted_or_refused";
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = program(folder.path()) else {
        eprintln!("SKIP {name}: no C compiler");
        return;
    };
    let cache = nccl_bench::library::default_cache().unwrap();
    let library = match Library::get_or_fetch(&cache, "2.30.7".parse().unwrap()) {
        Ok(library) => library.path,
        Err(e) => return skip(name, e).unwrap_or_default(),
    };
    let bench = Bench::in_cache(&cache);
    let mut spec = EmulateSpec {
        host_type: catalog::host_type("hgx-h100").unwrap(),
        hosts: 2,
        gpus: 2,
        refuse_kernels: false,
        layout_command: layout_command(&bench, &library).into(),
    };
    let (outputs, skipped) = start(&spec, &bench, &program, &library, folder.path(), 4);
    for (rank, out) in outputs.iter().enumerate() {
        let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "rank {rank}, {}: {said}", out.status);
        assert!(said.contains(&format!("rank {rank} local {} of 2 host linkwise-", rank % 2)), "{said}");
        assert!(said.contains(&format!("-{} gpus 2 right", rank / 2)), "{said}");
    }
    assert!(skipped.len() == 1 && skipped[0].1 == 4 * 3 && skipped[0].0.starts_with("program+0x"), "{skipped:?}");
    spec.refuse_kernels = true;
    let (outputs, _) = start(&spec, &bench, &program, &library, folder.path(), 4);
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
