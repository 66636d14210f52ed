//! Tests of the library cache: verification, sharing between processes, errors without a network. They need no library: a script of the test
//! replaces `python3`.

use nccl_bench::library::Library;
use nccl_bench::{Bench, BenchError};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use topology::nccl::Version;

const VERSION: Version = Version::new(2, 28, 9);

fn put(cache: &Path, text: &str) {
    fs::create_dir_all(cache.join("2.28.9")).unwrap();
    fs::write(cache.join("2.28.9/libnccl.so.2"), text).unwrap();
}

#[test]
fn a_library_copied_by_hand_is_used_and_must_not_change() {
    let cache = tempfile::tempdir().unwrap();
    put(cache.path(), "...NCCL version 2.28.9+cuda12.9...");
    let library = Library::get_or_fetch(cache.path(), "2.28".parse().unwrap()).unwrap();
    assert_eq!((library.version, library.sha256.len()), (VERSION, 64));
    // Another process, later.
    put(cache.path(), "...NCCL version 2.28.9+cuda12.9... and more");
    let out = user(cache.path(), None).output().unwrap();
    assert!(stdout_and_stderr(&out).contains("its SHA-256 has changed"), "{}", stdout_and_stderr(&out));
    put(cache.path(), "...NCCL version 2.28.9+cuda12.9...");
    assert!(stdout_and_stderr(&user(cache.path(), None).output().unwrap()).contains("GOT 2.28.9"));
}

#[test]
fn a_library_of_another_release_is_refused() {
    for text in
        ["...NCCL version 2.28.91+cuda12.9...", "...NCCL version 2.27.7+cuda12.9...", "<html>not found</html>", ""]
    {
        let cache = tempfile::tempdir().unwrap();
        put(cache.path(), text);
        match Library::get_or_fetch(cache.path(), VERSION) {
            Err(e @ BenchError::Cache { .. }) => {
                assert!(e.to_string().contains("does not contain `NCCL version 2.28.9`"), "{e}")
            }
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn without_a_network_there_is_one_clear_error() {
    let cache = tempfile::tempdir().unwrap();
    let out = user(cache.path(), None).env("LINKWISE_OFFLINE", "1").output().unwrap();
    let text = stdout_and_stderr(&out);
    assert!(
        text.contains("cannot download NCCL 2.28.9: LINKWISE_OFFLINE is set; connect to a package index"),
        "{text}"
    );
    // The error repeats pip's message, or says that python3 is missing.
    let tools = tempfile::tempdir().unwrap();
    python(tools.path(), "echo 'WARNING: retrying' >&2; echo 'ERROR: Could not find a version' >&2; exit 1");
    let out = user(cache.path(), Some(tools.path())).output().unwrap();
    assert!(
        stdout_and_stderr(&out).contains("cannot download NCCL 2.28.9: ERROR: Could not find a version;"),
        "{}",
        stdout_and_stderr(&out)
    );
    let nothing = tempfile::tempdir().unwrap();
    let out = user(cache.path(), Some(nothing.path())).output().unwrap();
    assert!(stdout_and_stderr(&out).contains("install python3 with pip"), "{}", stdout_and_stderr(&out));
    let left: Vec<_> = fs::read_dir(cache.path().join("2.28.9")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"], "no part of a download is left");
}

#[test]
fn racing_processes_download_once_and_all_get_the_library() {
    let (cache, tools) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let count = tools.path().join("count");
    // The script delays like pip, then unpacks.
    python(
        tools.path(),
        &format!(
            "case $1 in -m) echo x >> {}; /bin/sleep 0.5;; -c) echo 'NCCL version 2.28.9+cuda' > \"$4\";; esac",
            count.display()
        ),
    );
    let children: Vec<_> = (0..4)
        .map(|_| user(cache.path(), Some(tools.path())).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        .collect();
    for child in children {
        let out = child.wait_with_output().unwrap();
        assert!(stdout_and_stderr(&out).contains("GOT 2.28.9"), "{}", stdout_and_stderr(&out));
    }
    assert_eq!(fs::read_to_string(count).unwrap().lines().count(), 1);
}

#[test]
fn without_a_compiler_there_is_one_clear_error() {
    let cache = tempfile::tempdir().unwrap();
    let out =
        user(cache.path(), None).env("CC", "no-such-compiler").env("LINKWISE_TEST_CACHE_USER", "compile").output();
    let text = stdout_and_stderr(&out.unwrap());
    assert!(text.contains("the C compiler `no-such-compiler` does not start"), "{text}");
    assert!(text.contains("apt-get install gcc"), "{text}");
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0, "no partial output of the compiler is left");
}

/// Writes a script named `python3` into a folder.
fn python(folder: &Path, script: &str) {
    let path = folder.join("python3");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Starts this test program as a child process, with only the programs of `path` if given.
fn user(cache: &Path, path: Option<&Path>) -> Command {
    let mut c = Command::new(std::env::current_exe().unwrap());
    c.args(["--exact", "a_user_of_the_cache_in_a_separate_process", "--nocapture"]);
    c.env("LINKWISE_TEST_CACHE", cache).env("LINKWISE_TEST_CACHE_USER", "fetch").env_remove("LINKWISE_OFFLINE");
    if let Some(path) = path {
        c.env("PATH", path);
    }
    c
}

fn stdout_and_stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

/// Runs only if the other tests start it as a child process.
#[test]
fn a_user_of_the_cache_in_a_separate_process() {
    let Some(what) = std::env::var_os("LINKWISE_TEST_CACHE_USER") else { return };
    let cache = std::env::var_os("LINKWISE_TEST_CACHE").unwrap();
    let result = if what == "fetch" {
        Library::get_or_fetch(Path::new(&cache), VERSION).map(|l| l.version.to_string())
    } else {
        let h100 = topology::catalog::host_type("hgx-h100").unwrap();
        let host = topology::Host { name: "n0".into(), ..topology::Host::default() };
        let cluster =
            topology::Cluster { name: "c".into(), types: vec![h100], hosts: vec![host], ..Default::default() };
        let nodes = vec![nccl_bench::SimulatedNode::new(topology::HostId(0), topology::GpuMask::first(2))];
        Bench::in_cache(&cache).run(&nccl_bench::BenchSpec::new(cluster, nodes, VERSION)).map(|r| r.version.to_string())
    };
    match result {
        Ok(version) => println!("GOT {version}"),
        Err(e) => println!("ERROR {e}"),
    }
}
