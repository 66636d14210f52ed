//! `linkwise tune` as scripts see it.

use assert_cmd::Command;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

fn linkwise(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_linkwise"));
    c.arg("tune").args(args).timeout(Duration::from_secs(120));
    c
}

/// Exit code, standard output, standard error.
fn run(args: &[&str]) -> (i32, String, String) {
    run_with(args, "")
}

fn run_with(args: &[&str], input: &str) -> (i32, String, String) {
    let out = linkwise(args).write_stdin(input).output().unwrap();
    let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
    (out.status.code().unwrap_or(-1), text(out.stdout), text(out.stderr))
}

fn json(args: &[&str]) -> Value {
    let (code, out, err) = run(args);
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).unwrap()
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }
    fn at(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
    fn script(&self, name: &str, text: &str) -> String {
        use std::os::unix::fs::PermissionsExt;
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    }
    fn lines(&self, name: &str) -> usize {
        std::fs::read_to_string(self.at(name)).unwrap().lines().count()
    }
}

const ARMS: &str = "TREE/SIMPLE,RING/SIMPLE,AUTO";

#[test]
fn play_speaks_line_by_line_and_ends_with_its_input() {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_linkwise"))
        .args(["tune", "play", "--policy", "round-robin", "--arms", ARMS])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut last = Value::Null;
    for call in 0..40 {
        let mut line = String::new();
        output.read_line(&mut line).unwrap(); // hangs here if a line is not flushed
        last = serde_json::from_str(&line).unwrap();
        assert_eq!(last["call"], call);
        let time = if last["arm"] == "TREE/SIMPLE" { 70.0 } else { 100.0 };
        writeln!(input, "{{\"time_us\":{time}}}").unwrap();
    }
    assert_eq!((last["arm"].as_str(), last["phase"].as_str()), (Some("TREE/SIMPLE"), Some("exploit")));
    drop(input);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn play_refuses_bad_lines_arms_and_policies_with_one_error_each() {
    let play = |policy: &str, arms: &str, input: &str| run_with(&["play", "--policy", policy, "--arms", arms], input);
    for (policy, arms, input, words) in [
        ("round-robin", ARMS, "{\"time_us\":1}\nrubbish\n", "line 2"),
        ("round-robin", ARMS, "{\"time_us\":-4}\n", "above 0"),
        ("round-robbin", ARMS, "", "did you mean `round-robin`"),
        ("round-robin", "TREE/SIMPLE", "", "AUTO"),
        ("round-robin", "TREE/FAST,AUTO", "", "TREE/FAST"),
        ("round-robin", "AUTO,AUTO", "", "twice"),
    ] {
        let (code, _, err) = play(policy, arms, input);
        assert_eq!(code, 2, "{err}");
        assert!(err.contains(words) && err.lines().count() == 1, "{err}");
    }
    assert_eq!(play("round-robin", ARMS, "").0, 0, "no input at all");
    assert_eq!(play("round-robin", ARMS, "{\"time_us\":null}\n").0, 0);
}

#[test]
fn the_same_seed_plays_the_same_game() {
    let input = "{\"time_us\":100}\n".repeat(60);
    for policy in ["thompson", "epsilon-greedy", "v1", "round-robin"] {
        let play = |seed: &str| run_with(&["play", "--policy", policy, "--arms", ARMS, "--seed", seed], &input).1;
        assert_eq!(play("7"), play("7"), "{policy}");
    }
}

#[test]
fn evaluate_reports_every_score_and_is_repeatable() {
    let args =
        ["evaluate", "--policy", "round-robin,ucb1", "--environment", "cv10,worse", "--runs", "20", "--format", "json"];
    let first = json(&args);
    assert_eq!(first, json(&args), "the number of threads does not matter");
    let policies = first["environments"][0]["policies"].as_array().unwrap();
    assert_eq!(policies.len(), 2);
    assert_eq!(policies[0]["right_after_40"], 1.0, "30 % at CV 10 % is easy for forty calls");
    assert_eq!(policies[0]["right_after_20"], 0.0, "round-robin is still exploring");
    assert!(policies[0]["improvement_over_auto_mean"].as_f64().unwrap() > 0.25);
    let worse = &first["environments"][1]["policies"][0];
    assert!(worse["recovered_after_p50"].is_null(), "round-robin never looks again");
}

#[test]
fn ranks_of_v1_disagree_and_those_of_epsilon_greedy_do_not() {
    let v = json(&[
        "evaluate",
        "--policy",
        "v1,epsilon-greedy",
        "--environment",
        "cv10",
        "--runs",
        "5",
        "--ranks",
        "8",
        "--format",
        "json",
    ]);
    let differ = |i: usize| v["environments"][0]["policies"][i]["differing_calls_mean"].as_f64().unwrap();
    assert!(differ(0) > 500.0 && differ(1) == 0.0, "{} {}", differ(0), differ(1));
}

#[test]
fn round_robin_is_fooled_by_two_modes_and_the_aims_say_so() {
    let v = json(&[
        "evaluate",
        "--aims",
        "--only",
        "two modes: AUTO left wrongly",
        "--policy",
        "round-robin,auto",
        "--runs",
        "200",
        "--format",
        "json",
    ]);
    let measured = &v["aims"][0]["measured"];
    let wrong = measured[0]["value"].as_f64().unwrap();
    assert!((50.0..85.0).contains(&wrong) && measured[0]["is_met"] == false, "{wrong}");
    assert!(measured[1]["value"] == 0.0 && measured[1]["is_met"] == true, "who stays on AUTO never leaves it wrongly");
}

#[test]
fn reports_are_pages_or_drawings() {
    let folder = Folder::new();
    for (name, start) in [("curves.html", "<!doctype html>"), ("curves.svg", "<svg")] {
        let file = folder.at(name);
        let (code, out, err) = run(&["evaluate", "--environment", "cv10", "--runs", "5", "--report", &file]);
        assert_eq!(code, 0, "{err}");
        assert!(out.contains("simulated"));
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.trim_start().to_ascii_lowercase().starts_with(start), "{}", &text[..80]);
    }
}

#[test]
fn what_evaluate_cannot_do_is_said() {
    for (args, words) in [
        (["evaluate", "--environment", "cv11"], "did you mean"),
        (["evaluate", "--policy", "hope"], "known are"),
        (["evaluate", "--runs", "0"], "1 to"),
        (["evaluate", "--channel-price", "7"], "0 to 1"),
    ] {
        let (code, _, err) = run(&args);
        assert_eq!(code, 2, "{err}");
        assert!(err.contains(words), "{err}");
    }
}

/// Prints as nccl-tests do: time by arm and size, with a wobble; obeys -b -e -f -N.
const NCCL_TESTS: &str = r##"#!/bin/sh
echo "$NCCL_ALGO/$NCCL_PROTO $*" >> "$(dirname "$0")/calls.log"
while [ $# -gt 0 ]; do case "$1" in -b) b=$2;; -e) e=$2;; -f) f=$2;; -N) n=$2;; esac; shift; done
case "$NCCL_ALGO/$NCCL_PROTO" in
  TREE/SIMPLE) base=60;; RING/SIMPLE) base=97;; /) base=100;;
  NVLS/SIMPLE) echo "NCCL WARN no algorithm available" >&2; exit 3;;
  *) base=140;;
esac
[ "$LINKWISE_OVERLAP" = 1 ] && [ $base = 97 ] && base=50
echo "# nccl-tests version 2.17.1 nccl-headers=22809 nccl-library=22809"
echo "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong"
i=0
while [ $i -lt "$n" ]; do
  s=$b
  while [ "$s" -le "$e" ]; do
    t=$(( base * 100 + (i * 37) % 300 ))
    printf '%d %d float sum -1 %d.%02d 1.0 1.0 0 %d.50 1.0 1.0 0\n' "$s" $(( s / 4 )) $(( t / 100 )) $(( t % 100 )) $(( t / 100 ))
    s=$(( s * f ))
  done
  i=$(( i + 1 ))
done
echo "# Avg bus bandwidth    : 1.0"
"##;

#[test]
fn profile_finds_the_arm_that_passes_the_gates_and_says_why_others_do_not() {
    let folder = Folder::new();
    let program = folder.script("all_reduce_perf", NCCL_TESTS);
    let file = folder.at("policy.json");
    let arms = "AUTO,TREE/SIMPLE,RING/SIMPLE,NVLS/SIMPLE";
    let args =
        ["profile", "--arms", arms, "--sizes", "1M,4M", "-o", &file, "--format", "json", "--", &program, "-g", "8"];
    let v = json(&args);
    for line in v["isolated"].as_array().unwrap() {
        assert_eq!(line["use_arm"], "TREE/SIMPLE");
        let arms = line["arms"].as_array().unwrap();
        assert_eq!(arms[0]["samples"], 50);
        assert_eq!(arms[2]["failed_gate"], "improvement", "3 % do not pass: {}", arms[2]);
        assert!(arms[3]["failure"].as_str().unwrap().contains("no algorithm available"));
        assert_eq!(arms[3]["failed_gate"], "samples");
    }
    assert_eq!(v["provenance"]["nccl_version"], "2.28.9");
    // Both sizes in one go; five turns of three arms, two tries of the one that fails; the first arm changes.
    let calls = std::fs::read_to_string(folder.at("calls.log")).unwrap();
    assert_eq!(calls.lines().count(), 5 * 3 + 2, "{calls}");
    assert!(calls.lines().next().unwrap().contains("-g 8 -b 1048576 -e 4194304 -f 4 -w 10 -n 1 -N 10"));
    assert_ne!(calls.lines().next().map(|l| &l[..2]), calls.lines().nth(4).map(|l| &l[..2]));
    // The file is what `play` and `characterize` read.
    let (code, out, err) = run(&["play", "--policy", "profile", "--arms", arms, "--profile", &file, "--size", "2M"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("\"arm\":\"TREE/SIMPLE\""), "{out}");
    let t = json(&["characterize", &file, "--format", "json"]);
    let best = &t["topologies"][0]["rows"][0]["alone"];
    assert!(
        best["arm"] == "TREE/SIMPLE" && (60.0..70.0).contains(&best["auto_gap_percent"].as_f64().unwrap()),
        "{best}"
    );
}

#[test]
fn a_profile_that_was_cut_off_goes_on_and_other_settings_are_refused() {
    let folder = Folder::new();
    let program = folder.script("all_reduce_perf", NCCL_TESTS);
    let file = folder.at("policy.json");
    let profile = |rounds: &str, more: &[&str]| {
        let mut args = vec!["profile", "--arms", ARMS, "--sizes", "1M", "--rounds", rounds, "-o", &file];
        args.extend(more);
        args.extend(["--", &program]);
        run(&args)
    };
    assert_eq!(profile("4", &[]).0, 0);
    assert_eq!(folder.lines("calls.log"), 12);
    // Cut off in the middle of the eighth line.
    let samples = folder.at("policy.json.samples.jsonl");
    let whole = std::fs::read_to_string(&samples).unwrap();
    let eighth: usize = whole.lines().take(7).map(|l| l.len() + 1).sum();
    std::fs::write(&samples, &whole[..eighth + 20]).unwrap();
    let before = std::fs::read_to_string(&file).unwrap();
    assert_eq!(profile("4", &[]).0, 0);
    assert_eq!(folder.lines("calls.log"), 12 + 6, "head and six launches were whole");
    assert_eq!(before, std::fs::read_to_string(&file).unwrap(), "the same policy");
    let (code, _, err) = profile("3", &[]);
    assert!(code == 2 && err.contains("--restart") && err.lines().count() == 1, "{err}");
    assert_eq!(profile("3", &["--restart"]).0, 0);
}

#[test]
fn computation_beside_it_is_profiled_apart_and_any_program_can_report_steps() {
    let folder = Folder::new();
    let steps = r#"#!/bin/sh
base=100; [ "$NCCL_ALGO" = TREE ] && base=70
[ "$LINKWISE_OVERLAP" = 1 ] && base=$(( 250 - base ))
i=0
while [ $i -lt $(( LINKWISE_WARMUP + LINKWISE_ITERATIONS )) ]; do
  [ $i -lt "$LINKWISE_WARMUP" ] && echo "linkwise_step_time_us=9999" || echo "{\"linkwise_step_time_us\": $base.$i}"
  i=$(( i + 1 ))
done
"#;
    let program = folder.script("train.sh", steps);
    let file = folder.at("policy.json");
    let arms = "AUTO,TREE/SIMPLE";
    let v = json(&[
        "profile",
        "--overlap",
        "--arms",
        arms,
        "--sizes",
        "1M",
        "--format",
        "json",
        "-o",
        &file,
        "--",
        &program,
    ]);
    assert_eq!((&v["isolated"][0]["use_arm"], &v["overlapped"][0]["use_arm"]), (&"TREE/SIMPLE".into(), &"AUTO".into()));
    let t = json(&["characterize", &file, "--format", "json"]);
    assert_eq!(t["topologies"][0]["rows"][0]["is_flip"], true);
    let (code, _, err) = run(&["profile", "--overlap", "-o", &file, "--", "./all_reduce_perf"]);
    assert!(code == 2 && err.contains("--beside"), "{err}");
}

#[test]
fn a_program_that_hangs_or_fails_is_one_clear_error() {
    let folder = Folder::new();
    let file = folder.at("policy.json");
    for (name, script, words) in [
        ("hangs", "#!/bin/sh\nsleep 100\n", "no end within 0.2 s"),
        ("fails", "#!/bin/sh\necho no GPU here >&2\nexit 1\n", "no GPU here"),
        ("babbles", "#!/bin/sh\necho hello\n", "linkwise_step_time_us"),
    ] {
        let program = folder.script(name, script);
        let (code, _, err) = run(&[
            "profile",
            "--restart",
            "--arms",
            "AUTO,TREE/LL",
            "--sizes",
            "8",
            "--timeout",
            "0.2",
            "-o",
            &file,
            "--",
            &program,
        ]);
        assert!(code == 1 && err.contains(words) && err.contains("AUTO"), "{name}: {err}");
        assert!(!std::path::Path::new(&file).exists());
    }
    let (code, _, err) = run(&["characterize", &folder.at("hangs")]);
    assert!(code == 2 && err.contains("neither a policy file nor a sweep"), "{err}");
}

#[test]
fn a_profile_that_is_killed_leaves_no_program_running() {
    let folder = Folder::new();
    let program = folder.script("hangs", "#!/bin/sh\necho $$ > \"$(dirname \"$0\")/pid\"\nsleep 100\n");
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_linkwise"))
        .args(["tune", "profile", "--arms", "AUTO", "--sizes", "8", "-o", &folder.at("policy.json"), "--", &program])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let within = |what: &str, done: &dyn Fn() -> bool| {
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        while !done() {
            assert!(std::time::Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let pid = || std::fs::read_to_string(folder.at("pid")).ok()?.trim().parse::<u32>().ok();
    within("the program never started", &|| pid().is_some());
    child.kill().unwrap();
    child.wait().unwrap();
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", pid().unwrap())).unwrap_or_default();
    within("the program goes on", &|| state().is_empty() || state().contains(") Z "));
}

#[test]
fn a_policy_file_that_was_changed_is_refused() {
    let folder = Folder::new();
    let program = folder.script("all_reduce_perf", NCCL_TESTS);
    let file = folder.at("policy.json");
    assert_eq!(run(&["profile", "--arms", ARMS, "--sizes", "1M", "--rounds", "1", "-o", &file, "--", &program]).0, 0);
    let changed =
        std::fs::read_to_string(&file).unwrap().replace("\"use_arm\": \"TREE/SIMPLE\"", "\"use_arm\": \"RING/SIMPLE\"");
    std::fs::write(&file, changed).unwrap();
    for args in [vec!["characterize", &file], vec!["play", "--policy", "profile", "--arms", ARMS, "--profile", &file]] {
        let (code, _, err) = run(&args);
        assert!(code == 2 && err.contains("sha256"), "{err}");
    }
}

#[test]
fn the_published_data_are_characterized() {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data");
    let data = std::env::var("LINKWISE_DATA").unwrap_or(beside.into());
    if !std::path::Path::new(&data).join("bandit").is_dir() {
        eprintln!("SKIP the_published_data_are_characterized: no data folder (set LINKWISE_DATA)");
        return;
    }
    let out = linkwise(&["characterize"]).env("LINKWISE_DATA", &data).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!(out.status.code(), Some(0));
    assert!(text.contains("6 of 9 sizes flip") && text.contains("57.2"), "{text}");
}
