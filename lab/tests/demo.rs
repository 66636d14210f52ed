//! `linkwise-lab demo` for users and scripts.

use assert_cmd::Command;
use std::path::{Path, PathBuf};
use std::process::Output;

/// Runs the demo without published data: the working folder has no `../shared/data`.
fn demo(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_linkwise-lab"))
        .arg("demo")
        .args(args)
        .current_dir(dir)
        .env_remove("LINKWISE_DATA")
        .env("NO_COLOR", "1")
        .output()
        .expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn read(path: PathBuf) -> String {
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn the_simulated_demo_writes_a_report_that_says_simulated_and_refers_to_nothing_outside() {
    let dir = tempfile::tempdir().expect("a folder");
    let output = demo(dir.path(), &["--simulated", "--requests-per-k", "1", "--out", "mine"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{err}");
    for k in 1..=7 {
        assert!(err.contains(&format!("step {k} of 7")), "{err}");
    }
    assert!(out.lines().all(|l| l.chars().count() <= 80), "wider than 80 columns:\n{out}");
    assert!(out.contains("31 requests under random availability (SIMULATED)"), "{out}");
    assert!(!out.contains("measured bandwidth"), "{out}");

    let page = read(dir.path().join("mine/report.html"));
    assert!(page.contains("SIMULATED"), "the report does not say that it is simulated");
    assert!(page.contains("<svg") && page.contains("data:image/svg+xml"), "plots or drawing are missing");
    for outside in ["src=\"http", "href=\"http", "url(http", "@import", "<script", "<link"] {
        assert!(!page.contains(outside), "the report refers to something outside: {outside}");
    }
    let plot = read(dir.path().join("mine/gbe-by-k.svg"));
    assert!(plot.starts_with("<svg") && plot.contains("SIMULATED") && plot.contains("packed"));
    assert!(page.contains("The loop, closed"), "the report lacks the loop");
    assert_the_loop_is_closed(&dir.path().join("mine"), &out);
    // Other commands can read the files of the demo.
    let show = Command::cargo_bin("linkwise")
        .expect("the built command")
        .args(["topology", "show", "mine/cluster.yaml"])
        .current_dir(dir.path())
        .output()
        .expect("it runs");
    assert!(text(&show.stdout).starts_with("h100: 4 hosts, 32 GPUs"), "{}", text(&show.stderr));
    let commands: Vec<&str> =
        out.lines().filter_map(|l| l.trim().strip_prefix("$ linkwise ")).filter(|c| !c.ends_with('\\')).collect();
    assert_eq!(commands.len(), 4, "{out}");
    for command in commands {
        let by_hand = Command::cargo_bin("linkwise")
            .expect("the built command")
            .args(command.split(' '))
            .current_dir(dir.path())
            .output()
            .expect("it runs");
        assert_eq!(by_hand.status.code(), Some(0), "{command}: {}", text(&by_hand.stderr));
    }
}

#[test]
fn the_same_seed_gives_the_same_report_twice_in_one_folder_and_another_seed_another() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = |seed: &str| {
        let output = demo(dir.path(), &["--requests-per-k", "1", "--seed", seed]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("a SIMULATED cluster (no published tables were found"));
        read(dir.path().join("out/gbe-by-k.svg"))
    };
    let first = run("1");
    assert_eq!(first, run("1"));
    assert_ne!(first, run("2"));
    let left: Vec<String> = std::fs::read_dir(dir.path().join("out"))
        .expect("the folder")
        .map(|f| f.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|f| f.starts_with('.'))
        .collect();
    assert!(left.is_empty(), "temporary files are left: {left:?}");
}

/// The end of the loop: the host of the slow NIC is avoided, and the doctor names the NIC.
fn assert_the_loop_is_closed(dir: &Path, out: &str) {
    let part = out.split("6. The loop, closed").nth(1).and_then(|t| t.split("\n7. ").next()).expect("the loop");
    let part = part.split_whitespace().collect::<Vec<_>>().join(" ");
    let culprit = part.split(" silently drops").next().and_then(|t| t.rsplit("GB/s. ").next()).expect("a NIC");
    let culprit = culprit.rsplit(". ").next().expect("a NIC");
    let host = culprit.rsplit(' ').next().expect("its host");
    let (before, after) =
        part.split_once("avoids both hosts: it is placed on ").expect("the second job avoids the hosts");
    assert!(before.contains(&format!("is placed on {host}")), "{part}");
    let after = after.split(" and gets").next().expect("hosts");
    assert!(!after.split(' ').any(|w| w == host), "the second job is on {host} again: {part}");
    assert!(part.contains("names the NIC:"), "{part}");
    assert!(part.contains(&format!("DEFECT: {culprit} has about ")), "{culprit}: {part}");
    assert!(part.contains("SIMULATED"), "{part}");
    // The same result from the files of the demo.
    let run = |args: &[&str]| {
        let output =
            Command::cargo_bin("linkwise").expect("built").args(args).current_dir(dir).output().expect("it runs");
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let doctor = run(&["doctor", "--cluster", "cluster.yaml", "--store", "loop.db"]);
    assert!(doctor.contains(&format!("DEFECT: {culprit}")), "{doctor}");
    let state = run(&["cluster", "show", "--state", "loop.state"]);
    assert!(state.contains("train-2") && !state.contains("train-1") && state.contains(culprit), "{state}");
}

#[test]
fn a_report_that_no_demo_wrote_is_left_alone_with_exit_code_2() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(dir.path().join("out")).expect("a folder");
    std::fs::write(dir.path().join("out/report.html"), "theirs").expect("a file");
    let output = demo(dir.path(), &["--simulated"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no demo wrote it"), "{}", text(&output.stderr));
    assert_eq!(read(dir.path().join("out/report.html")), "theirs");
}

#[test]
fn a_data_folder_without_the_tables_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("a folder");
    let output = demo(dir.path(), &["--data", "."]);
    assert_eq!(output.status.code(), Some(2));
    let err = text(&output.stderr);
    assert!(err.contains("multihost_h100_16mib.csv") && err.contains("docs/data.md"), "{err}");
    assert!(!dir.path().join("out").exists());
}

#[test]
fn on_the_published_tables_linkwise_beats_packing_and_nothing_is_called_simulated() {
    let name = "on_the_published_tables_linkwise_beats_packing_and_nothing_is_called_simulated";
    let data = std::env::var_os("LINKWISE_DATA")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"), PathBuf::from);
    if !data.join("bandpilot").is_dir() {
        eprintln!("SKIP {name}: no data folder (set LINKWISE_DATA)");
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let output = demo(dir.path(), &["--data", &data.to_string_lossy(), "--requests-per-k", "4"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{err}");
    // Only the loop's slow NIC is simulated, and called so.
    let measured = out.split("6. The loop, closed").next().expect("the first steps");
    assert!(!measured.contains("SIMULATED"), "{out}");
    assert_the_loop_is_closed(&dir.path().join("out"), &out);
    let mean = |method: &str| -> f64 {
        let line = out.lines().find(|l| l.trim_start().starts_with(&format!("{method}  "))).expect(method);
        let words = line.trim_start()[method.len()..].split_whitespace();
        words.map(|w| w.parse::<f64>()).find_map(Result::ok).expect("a number")
    };
    assert!(mean("linkwise") > 98.0 && mean("linkwise") > mean("packed") + 5.0, "{out}");
    assert!(mean("packed") > mean("random"), "{out}");
}

/// `make demo` with stand-ins for the compiler: it says what it does before it builds, and the time left while it builds.
#[cfg(target_os = "linux")]
#[test]
fn the_demo_says_what_it_does_before_it_builds_and_counts_parts_while_it_builds() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("executable");
    };
    let progress = "#!/bin/sh\n[ \"$1\" = build ] || exit 0\nprintf '   Compiling a v1\\n    Building [=>    ] 3/40: a\\r'\nsleep 6\n\
                    printf '    Building [==>   ] 20/40: b\\r'\nprintf 'warning: unused\\n    Building [===>  ] 39/40: c\\rerror: stand-in\\n'\nexit 101\n";
    write("cargo", progress);
    write("rustc", "#!/bin/sh\necho 'rustc 1.99.0 (stand-in)'\n");
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/demo.sh");
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").expect("a PATH"));
    // A line every 20 s is too seldom for a test: on a terminal each change is shown. `script` is one.
    let ran = std::process::Command::new("script")
        .args(["-qec", &format!("bash {}", script.display()), "/dev/null"])
        .env("PATH", path)
        .output();
    let ran = match ran {
        Ok(ran) => ran,
        Err(e) => {
            eprintln!(
                "SKIP the_demo_says_what_it_does_before_it_builds_and_counts_parts_while_it_builds: no `script`: {e}"
            );
            return;
        }
    };
    let said = text(&ran.stdout);
    let at = |words: &str| said.find(words).unwrap_or_else(|| panic!("{words}: {said}"));
    assert!(at("demo: builds linkwise") < at("building: 3 of 40 parts"), "{said}");
    assert!(at("building: 3 of 40 parts") < at("building: 20 of 40 parts, less than a minute left"), "{said}");
    assert!(at("warning: unused") < at("error: stand-in"), "{said}");
    assert!(!said.contains("Compiling") && !said.contains("built in"), "{said}");
    assert_eq!(ran.status.code(), Some(101), "the compiler's exit code: {said}");
}
