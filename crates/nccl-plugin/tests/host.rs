//! The plugin in a host other than NCCL: every interface, without finalize, across fork, at exit, with invalid files.

use std::path::PathBuf;
use std::process::{Command, Output};

fn check(settings: &[(&str, &str)], calls: &str) -> Output {
    let library = std::env::current_exe().unwrap().parent().unwrap().join("liblinkwise_nccl.so");
    let mut command = Command::new(env!("CARGO_BIN_EXE_linkwise-plugin-check"));
    for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("LINKWISE_")) {
        command.env_remove(name);
    }
    command.env("LINKWISE_LEAD", "0"); // a short program
    command.arg(library).arg(calls).envs(settings.iter().map(|(k, v)| (format!("LINKWISE_{k}"), v)));
    command.output().unwrap()
}

fn lines(out: &Output) -> Vec<serde_json::Value> {
    String::from_utf8_lossy(&out.stdout).lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

#[test]
fn every_interface_is_inert_when_nothing_is_configured() {
    let out = check(&[], "1000");
    let all = lines(&out);
    assert!(out.status.success() && all.len() == 9, "{out:?}");
    for v in all {
        assert!(v["success"] == true && v["context"] == false, "{v}");
        assert!(v["changed"] != true && v["revived"] != true, "{v}");
    }
}

#[test]
fn without_the_other_ranks_no_interface_changes_a_table() {
    for mode in ["observe", "adaptive"] {
        let out = check(&[("MODE", mode), ("RENDEZVOUS", &format!("local:host-{mode}-{}", std::process::id()))], "200");
        assert!(out.status.success(), "{out:?}");
        assert!(
            lines(&out).iter().all(|v| v["success"] == true && v["changed"] != true && v["revived"] != true),
            "{out:?}"
        );
    }
}

#[test]
fn a_panic_in_every_entry_does_not_reach_the_host() {
    let out = check(&[("MODE", "observe"), ("TEST", "1"), ("TEST_PANIC", "1")], "10");
    assert!(out.status.success(), "{out:?}");
    assert!(lines(&out).iter().all(|v| v["success"] == true && v["changed"] != true), "{out:?}");
}

#[test]
fn unreadable_and_unwritable_files_do_not_disturb_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let binary: PathBuf = folder.path().join("binary");
    std::fs::write(&binary, [0u8, 255, 13, 10, 61, 61]).unwrap();
    let binary = binary.to_str().unwrap();
    for settings in [
        &[("CONFIG", "/nonexistent")][..],
        &[("CONFIG", binary)],
        &[("MODE", "profile"), ("PROFILE", binary)],
        &[("MODE", "observe"), ("TRACE", "/proc/nowhere")],
        &[("MODE", "adaptive"), ("RENDEZVOUS", "folder:/proc/nowhere")],
        &[("MODE", "adaptive"), ("RENDEZVOUS", "tcp:host.invalid:99")],
        &[("MODE", "adaptive")],
    ] {
        let out = check(settings, "20");
        assert!(out.status.success(), "{settings:?}: {out:?}");
        assert!(lines(&out).iter().all(|v| v["success"] == true && v["changed"] != true), "{settings:?}: {out:?}");
    }
}
