//! `linkwise plugin`: where the library is, and that what is no sound plugin is not called one. The libraries are written here, in C.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn linkwise(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_linkwise"));
    c.args(args);
    for name in ["PLUGIN", "MODE", "CONFIG", "PROFILE", "RENDEZVOUS", "MEETING", "TRACE"] {
        c.env_remove(format!("LINKWISE_{name}"));
    }
    c
}

fn err(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).replace("\n  ", " ")
}

#[test]
fn the_path_is_that_of_the_library_that_is_named_or_an_error_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("any.so");
    std::fs::write(&file, "").unwrap();
    let path = |plugin: &Path| linkwise(&["plugin", "path"]).env("LINKWISE_PLUGIN", plugin).output().unwrap();
    let out = path(&file);
    let canonical = file.canonicalize().unwrap();
    assert_eq!((out.status.code(), out.stdout), (Some(0), format!("{}\n", canonical.display()).into_bytes()));
    let out = path(&dir.path().join("none.so"));
    assert_eq!(out.status.code(), Some(2));
    assert!(err(&out).contains("LINKWISE_PLUGIN: there is no "), "{}", err(&out));
    // A command without its library.
    let alone = dir.path().join("linkwise");
    std::fs::copy(env!("CARGO_BIN_EXE_linkwise"), &alone).unwrap();
    let out = Command::new(&alone).args(["plugin", "path"]).env_remove("LINKWISE_PLUGIN").output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(err(&out).contains("name it in LINKWISE_PLUGIN"), "{}", err(&out));
    let out = Command::new(&alone).args(["plugin", "check", "--library", "any.so"]).current_dir(&dir).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(err(&out).contains("linkwise-plugin-check is neither next to the command nor in"), "{}", err(&out));
}

/// The program that drives libraries; built with the plugin.
fn can_check(test: &str) -> bool {
    let there = Path::new(env!("CARGO_BIN_EXE_linkwise")).with_file_name("linkwise-plugin-check").exists();
    if !there {
        eprintln!("SKIP {test}: linkwise-plugin-check is not built (cargo test -p nccl-plugin builds it)");
    }
    there
}

fn check(library: &Path, format: &str) -> Output {
    linkwise(&["plugin", "check", "--format", format, "--library", library.to_str().unwrap()]).output().unwrap()
}

#[test]
fn the_plugin_itself_is_sound() {
    let name = "the_plugin_itself_is_sound";
    let library: PathBuf = std::env::current_exe().unwrap().parent().unwrap().join("liblinkwise_nccl.so");
    if !can_check(name) {
        return;
    }
    if !library.exists() {
        eprintln!("SKIP {name}: {} is not built (cargo test -p nccl-plugin builds it)", library.display());
        return;
    }
    let out = check(&library, "json");
    assert_eq!(out.status.code(), Some(0), "{}", err(&out));
    let said: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(said["sound"], true);
    assert_eq!(said["interfaces"].as_array().unwrap().len(), 9, "tuner v2 to v6, profiler v4 to v7: {said}");
    let out = check(&library, "text");
    let text = String::from_utf8(out.stdout).unwrap();
    for words in ["2.27.3 to 2.27.7", "tuner v6 in mode off: loaded, does nothing", "profiler v7 in mode off"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

/// Every interface that is asked for, by one set of functions: the border of C does not look at what they take.
const LIBRARY: &str = r#"
#include <stdlib.h>
#include <string.h>
static int init(void) { return INIT; }
static int choose(void *context, int collective, size_t bytes, int a, int b, int c, int *algorithm, int *protocol, int *channels) {
    CHOOSE;
    return 0;
}
static int choose_by_table(void *context, int collective, size_t bytes, int pipelined, float **costs) {
    CHOOSE_BY_TABLE;
    return 0;
}
static int finish(void *context) { return 0; }
#define TUNER(v, f) const void *ncclTunerPlugin_v##v[5] = {"test", init, f, finish, 0}
#define PROFILER(v) const void *ncclProfiler_v##v[6] = {"test", init, 0, 0, 0, finish}
TUNER(2, choose);
TUNER(3, choose_by_table);
TUNER(4, choose_by_table);
TUNER(5, choose_by_table);
#ifndef OLD
TUNER(6, choose_by_table);
#endif
PROFILER(4);
PROFILER(5);
PROFILER(6);
PROFILER(7);
"#;

/// With these macros; `None` without a C compiler.
fn library(test: &str, dir: &Path, name: &str, macros: &[(&str, &str)]) -> Option<PathBuf> {
    let source = dir.join("library.c");
    std::fs::write(&source, LIBRARY).unwrap();
    let library = dir.join(format!("{name}.so"));
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-w", "-o"]).arg(&library).arg(&source);
    let plain = [("INIT", "0"), ("CHOOSE", ""), ("CHOOSE_BY_TABLE", "")];
    for (macro_, value) in plain.iter().filter(|p| !macros.iter().any(|m| m.0 == p.0)).chain(macros) {
        cc.arg(format!("-D{macro_}={value}"));
    }
    match cc.output() {
        Ok(out) => assert!(out.status.success(), "{}", err(&out)),
        Err(e) => {
            eprintln!("SKIP {test}: no C compiler: {e}");
            return None;
        }
    }
    Some(library)
}

#[test]
fn a_library_that_crashes_or_does_what_it_must_not_is_refused_with_the_reason() {
    let name = "a_library_that_crashes_or_does_what_it_must_not_is_refused_with_the_reason";
    let dir = tempfile::tempdir().unwrap();
    if !can_check(name) {
        return;
    }
    let cases = [
        ("sound", &[][..], None),
        ("crashes", &[("CHOOSE_BY_TABLE", "abort()")], Some("ended early: signal: 6")),
        ("exits", &[("CHOOSE_BY_TABLE", "exit(0)")], Some("tuner v3 is missing")),
        ("old", &[("OLD", "1")], Some("tuner v6 is missing")),
        ("fails", &[("INIT", "3")], Some("profiler v4 returned an error")),
        ("meddles", &[("CHOOSE", "*algorithm=1")], Some("tuner v2 changed a cost table in mode off")),
        ("revives", &[("CHOOSE_BY_TABLE", "*(float*)costs=0")], Some("tuner v6 revived what NCCL had ruled out")),
    ];
    for (name_, macros, why) in cases {
        let Some(library) = library(name, dir.path(), name_, macros) else { return };
        let out = check(&library, "json");
        let said: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
        assert_eq!(said["sound"], why.is_none(), "{name_}: {said} {}", err(&out));
        assert_eq!(out.status.code(), Some(i32::from(why.is_some())), "{name_}: {}", err(&out));
        assert!(why.is_none_or(|why| err(&out).contains(why)), "{name_}: {}", err(&out));
    }
    // Before it says anything at all, and no library.
    let Some(library) = library(name, dir.path(), "at-once", &[("INIT", "(abort(),0)")]) else { return };
    std::fs::write(dir.path().join("text.so"), "no library").unwrap();
    for (library, why) in
        [(library, "cannot be used: it said nothing (signal: 6"), (dir.path().join("text.so"), "cannot be used: ")]
    {
        let out = check(&library, "text");
        assert_eq!(out.status.code(), Some(1), "{}", err(&out));
        assert!(err(&out).contains(why), "{}", err(&out));
    }
}
