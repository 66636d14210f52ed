//! `linkwise tune profile`, and `characterize` of what it writes, as scripts see them: the programs that are measured are scripts.

mod common;

use assert_cmd::Command;
use common::{Folder, said};
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;

fn linkwise(args: &[&str]) -> Command {
    common::linkwise("tune", args)
}

/// Exit code, standard output, standard error.
fn run(args: &[&str]) -> (i32, String, String) {
    said(linkwise(args))
}

fn json(args: &[&str]) -> Value {
    let (code, out, err) = run(args);
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).unwrap()
}

const ARMS: &str = "TREE/SIMPLE,RING/SIMPLE,AUTO";

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
    // Both sizes in one go; a pilot, five turns of three arms, two tries of the one that fails; the first arm changes; results are
    // checked until an arm's were right once.
    let calls = std::fs::read_to_string(folder.at("calls.log")).unwrap();
    let calls: Vec<&str> = calls.lines().collect();
    assert_eq!(calls.len(), 1 + 5 * 3 + 2, "{calls:?}");
    assert!(calls[0].ends_with("-g 8 -b 1048576 -e 4194304 -f 4 -w 10 -n 1 -N 5"));
    assert!(
        calls[1..5].iter().all(|l| l.ends_with("-n 1 -N 10"))
            && calls[5..].iter().all(|l| l.ends_with("-c 0") || l.starts_with("NVLS"))
    );
    assert_ne!(&calls[1][..2], &calls[5][..2]);
    // The table is what `linkwise run --profile` reads: 1M to 4M were measured, a power of two more is near enough.
    let table = std::fs::read_to_string(folder.at("policy.json.table")).unwrap();
    let rules: Vec<&str> = table.lines().filter(|l| !l.starts_with('#')).collect();
    assert_eq!(rules, ["all_reduce 524288 16777216 TREE/SIMPLE"]);
    // The file is what `characterize` reads.
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
    assert_eq!(folder.lines("calls.log"), 1 + 12);
    // Cut off in the middle of the eighth line; the third is the plan.
    let samples = folder.at("policy.json.samples.jsonl");
    let whole = std::fs::read_to_string(&samples).unwrap();
    let eighth: usize = whole.lines().take(7).map(|l| l.len() + 1).sum();
    std::fs::write(&samples, &whole[..eighth + 20]).unwrap();
    let policy =
        || serde_json::from_str::<Value>(&std::fs::read_to_string(&file).unwrap()).unwrap()["isolated"].clone();
    let before = policy();
    assert_eq!(profile("4", &[]).0, 0);
    assert_eq!(folder.lines("calls.log"), 13 + 8, "head, pilot, plan and four launches were whole");
    assert_eq!(before, policy(), "the same policy");
    let (code, _, err) = profile("4", &[]);
    assert_eq!(code, 0, "a line that was cut off stays");
    assert_eq!(folder.lines("calls.log"), 21, "nothing is left to do");
    assert!(err.contains("resumed: 13 launches from ") && err.contains("--restart measures again"), "{err}");
    // NCCL was updated meanwhile: its times are not comparable with those of the journal.
    std::fs::write(&samples, &whole[..eighth]).unwrap();
    folder.script("all_reduce_perf", &NCCL_TESTS.replace("nccl-library=22809", "nccl-library=22901"));
    let (code, _, err) = profile("4", &[]);
    assert!(code == 1 && err.contains("NCCL 2.29.1, not 2.28.9") && err.contains("--restart"), "{err}");
    assert_eq!(folder.lines("calls.log"), 22, "it ended with the first of them");
    folder.script("all_reduce_perf", NCCL_TESTS);
    let (code, _, err) = profile("3", &[]);
    assert!(code == 2 && err.contains("--restart") && err.lines().count() == 1, "{err}");
    assert_eq!(profile("3", &["--restart"]).0, 0);
}

#[test]
fn an_arm_that_computes_wrong_results_is_never_recommended() {
    let folder = Folder::new();
    // TREE/SIMPLE is fast and wrong where results are compared; as nccl-tests do, it ends with an error then.
    let wrong = NCCL_TESTS
        .replace(
            "while [ $# -gt 0 ]",
            "w=0; case \"$NCCL_ALGO$*\" in TREE*\"-c 0\") ;; TREE*) w=5;; esac; while [ $# -gt 0 ]",
        )
        .replace("1.0 1.0 0 %d.50 1.0 1.0 0\\n", "1.0 1.0 0 %d.50 1.0 1.0 '$w'\\n")
        + "[ $w = 0 ]\n";
    let program = folder.script("all_reduce_perf", &wrong);
    let file = folder.at("policy.json");
    let v = json(&["profile", "--arms", ARMS, "--sizes", "1M", "-o", &file, "--format", "json", "--", &program]);
    let line = &v["isolated"][0];
    assert_eq!((&line["use_arm"], &line["arms"][0]["samples"]), (&"AUTO".into(), &0.into()), "{line}");
    let why = line["arms"][0]["failure"].as_str().unwrap();
    assert!(why.contains("ruled out: 5 wrong elements in place at 1048576 bytes"), "{why}");
    assert!(v["provenance"]["warnings"][0].as_str().unwrap().contains("wrong elements"), "{}", v["provenance"]);
    let calls = std::fs::read_to_string(folder.at("calls.log")).unwrap();
    assert_eq!(calls.lines().filter(|l| l.starts_with("TREE")).count(), 1, "{calls}");
}

#[test]
fn what_should_run_beside_and_ends_early_is_one_clear_error() {
    let folder = Folder::new();
    let program = folder.script("all_reduce_perf", NCCL_TESTS);
    let file = folder.at("policy.json");
    let profile = |beside: &str| {
        let base = ["profile", "--overlap", "--beside", beside, "--arms", ARMS, "--sizes", "1M", "--rounds", "1"];
        run(&[&base[..], &["--restart", "-o", &file, "--", &program]].concat())
    };
    let (code, _, err) = profile("pythn burn.py");
    let last = err.lines().last().unwrap_or("");
    assert!(
        code == 2
            && last.contains("background command `pythn burn.py` (--background) exited")
            && last.contains("not found"),
        "{err}"
    );
    let (code, out, err) = profile("sleep 1000");
    assert!(code == 0 && out.contains("during computation"), "{err}");
    // One turn of launches says so, in the file as well.
    assert!(out.contains("Warning: one turn only"), "{out}");
    let v: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert!(v["provenance"]["warnings"][0].as_str().unwrap().starts_with("one turn only"));
    assert!(v["isolated"][0]["arms"][0]["verdict"].as_str().unwrap().ends_with("in one launch only"), "{v}");
}

#[test]
fn a_profile_keeps_the_time_that_it_was_given_by_measuring_less() {
    let folder = Folder::new();
    let slow = NCCL_TESTS.replace("while [ $# -gt 0 ]", "sleep 0.25; while [ $# -gt 0 ]");
    let program = folder.script("all_reduce_perf", &slow);
    let file = folder.at("policy.json");
    let arms = "AUTO,TREE/SIMPLE,TREE/LL,TREE/LL128,RING/SIMPLE,RING/LL,RING/LL128,NVLS/SIMPLE";
    let profile = |minutes: &str, more: &[&str]| {
        let base = ["profile", "--arms", arms, "--sizes", "1M", "--minutes", minutes, "-o", &file, "--format", "json"];
        run(&[&base, more, &["--", &program]].concat())
    };
    // Eight launches of a quarter of a second do not fit into one second, whatever else is left out.
    let (code, _, err) = profile("0.017", &[]);
    assert!(code == 1 && err.contains("give --minutes 1 or fewer --arms"), "{err}");
    assert_eq!(folder.lines("calls.log"), 1, "the pilot told that");
    // Five turns take ten seconds at least: of six seconds the plan makes fewer, with more samples each. The pilot still counts.
    let (code, out, err) = profile("0.1", &[]);
    assert_eq!(code, 0, "{err}");
    let v: Value = serde_json::from_str(&out).unwrap();
    let kept = &v["provenance"]["kept"];
    let number = |name: &str| kept[name].as_u64().unwrap();
    assert!((1..5).contains(&number("turns")) && number("iterations_per_launch") > 10, "{kept}");
    assert!(err.contains("5 turns of everything would take"), "{err}");
    // One of the eight arms fails, twice at most.
    let launches = folder.lines("calls.log") as u64;
    let is_whole = kept["stopped"].is_null();
    let begun = number("turns") + u64::from(!is_whole); // on a busy machine the time is up within a turn
    assert!(launches <= 1 + begun * 8 && launches > number("turns") * 7, "{launches} launches, {kept}");
    if is_whole {
        let samples = number("turns") * number("iterations_per_launch");
        assert_eq!(v["isolated"][0]["arms"][0]["samples"], samples);
    }
}

#[test]
fn without_a_list_every_arm_of_the_collective_is_tried_and_what_fails_is_named() {
    let folder = Folder::new();
    let program = folder.script("all_gather_perf", &NCCL_TESTS.replace("NVLS/SIMPLE)", "PAT/*|COLL*|NVLS/SIMPLE)"));
    let file = folder.at("policy.json");
    let (code, out, err) =
        run(&["profile", "--sizes", "1M", "--rounds", "1", "--iterations", "20", "-o", &file, "--", &program]);
    assert_eq!(code, 0, "{err}");
    for arm in ["RING/SIMPLE", "RING/LL128", "RING/LL"] {
        assert!(out.contains(arm), "{out}");
    }
    for arm in ["PAT/SIMPLE", "NVLS/SIMPLE", "COLLNETDIRECT/SIMPLE"] {
        assert!(out.contains(&format!("unavailable: {arm}: ")), "{out}");
    }
    assert!(!out.contains("TREE/") && err.contains("plan: 1 turn of 7 launches, 20 readings each of 1 size"), "{err}");
    // A cluster tells which of them there are before anything is run, and how many channels NCCL takes.
    let machine = ["--cluster", "h100", "--gpus", "n0", "--channels", "auto", "--restart"];
    let base = ["profile", "--sizes", "1M", "--rounds", "1", "--iterations", "20", "--format", "json", "-o", &file];
    let v = json(&[&base[..], &machine, &["--", &program]].concat());
    let arms: Vec<&str> = v["arms"].as_array().unwrap().iter().filter_map(|a| a.as_str()).collect();
    assert!(arms.contains(&"NVLS/SIMPLE") && !arms.contains(&"COLLNETDIRECT/SIMPLE"), "{arms:?}");
    assert!(arms.iter().any(|a| a.starts_with("RING/SIMPLE@")), "{arms:?}");
}

#[test]
fn a_journal_that_was_tampered_with_is_one_clear_error() {
    let folder = Folder::new();
    let program = folder.script("all_reduce_perf", NCCL_TESTS);
    let file = folder.at("policy.json");
    let args = ["profile", "--arms", ARMS, "--sizes", "1M", "--rounds", "1", "-o", &file, "--", &program];
    assert_eq!(run(&args).0, 0);
    let samples = folder.at("policy.json.samples.jsonl");
    let whole = std::fs::read_to_string(&samples).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    for (text, words) in [
        (String::new(), "the journal is empty"),
        ("{\"x\":1}\n".into(), "1: not the journal of a profile"),
        (whole.replacen("\"seconds\":", "\"seconds\":-", 1), "2: a launch of -"),
        (whole.replace(":[60.", ":[-60."), ": a time of -60"),
        ([lines[0], lines[3], lines[1], ""].join("\n"), "2: this launch does not follow"),
        ([lines[0], lines[2], lines[1], ""].join("\n"), "2: a plan follows the first launch"),
        (whole.replacen("{\"turns\":1", "{\"turns\":9", 1), "3: the plan does not belong to this run"),
        (format!("{whole}rubbish\n"), "7: expected value"),
    ] {
        std::fs::write(&samples, &text).unwrap();
        let (code, _, err) = run(&args);
        assert!(
            code == 2 && err.contains(words) && err.contains("--restart") && err.lines().count() == 1,
            "{words}: {err}"
        );
    }
    std::fs::write(&samples, [0u8, 159, 146, 150]).unwrap();
    assert_eq!(run(&args).0, 2);
}

#[test]
fn characterize_tells_best_arm_gap_flips_and_amplification_over_topologies() {
    let folder = Folder::new();
    let steps = r#"#!/bin/sh
base=100; [ "$NCCL_ALGO" = TREE ] && base=$FAST
[ "$LINKWISE_OVERLAP" = 1 ] && base=$(( 250 - base ))
i=0
while [ $i -lt $(( LINKWISE_WARMUP + LINKWISE_ITERATIONS )) ]; do echo "linkwise_step_time_us=$base.$i"; i=$(( i + 1 )); done
"#;
    let program = folder.script("train.sh", steps);
    let profile = |name: &str, fast: &str| {
        let file = folder.at(name);
        let base =
            ["profile", "--overlap", "--arms", "AUTO,TREE/SIMPLE", "--sizes", "1M,4M", "-o", &file, "--", &program];
        let mut command = linkwise(&base);
        command.env("FAST", fast);
        let (code, _, err) = said(command);
        assert_eq!(code, 0, "{err}");
        file
    };
    let (one, two) = (profile("one.json", "90"), profile("two.json", "50"));
    let v = json(&["characterize", &one, &two, "--format", "json"]);
    let row = &v["topologies"][1]["rows"][0];
    assert_eq!((&row["alone"]["arm"], &row["overlapped"]["arm"]), (&"TREE/SIMPLE".into(), &"AUTO".into()));
    assert_eq!((&row["is_flip"], &row["alone"]["is_proven"]), (&true.into(), &true.into()));
    let gap = row["alone"]["auto_gap_percent"].as_f64().unwrap();
    assert!((95.0..101.0).contains(&gap), "{gap}");
    let a = v["amplification"].as_array().unwrap();
    assert_eq!(a.len(), 2 * 2, "two sizes, alone and overlapped");
    assert!((8.0..10.0).contains(&a[0]["factor"].as_f64().unwrap()), "{}", a[0]);
    let (code, out, _) = run(&["characterize", &one, &two]);
    assert!(code == 0 && out.contains("2 of 2 sizes flip") && out.contains("Amplification"), "{out}");
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
    // A table for calls alone and one for calls during computation.
    let rules = |ending: &str| {
        let text = std::fs::read_to_string(format!("{file}{ending}")).unwrap();
        text.lines().filter(|l| !l.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(rules(".table").len(), 1);
    assert!(rules(".overlapped.table").is_empty(), "AUTO is best there");
    // A run without the overlapped part leaves no table of an older one behind.
    let alone = ["profile", "--restart", "--arms", arms, "--sizes", "1M", "-o", &file, "--", &program];
    assert_eq!(run(&alone).0, 0);
    assert!(!std::path::Path::new(&format!("{file}.overlapped.table")).exists());
    let (code, _, err) = run(&["profile", "--overlap", "-o", &file, "--", "./all_reduce_perf"]);
    assert!(code == 2 && err.contains("--background"), "{err}");
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
    // Once the program works, the same command does.
    let program =
        folder.script("fails", "#!/bin/sh\nfor i in 1 2 3 4 5 6 7 8 9; do echo linkwise_step_time_us=$i; done\n");
    let again = ["profile", "--arms", "AUTO,TREE/LL", "--sizes", "8", "--warmup", "0", "-o", &file, "--", &program];
    let (code, _, err) = run(&again);
    assert_eq!(code, 0, "{err}");
    let (code, _, err) = run(&["profile", "-o", &folder.at("."), "--", &program]);
    assert!(code == 2 && err.contains("a file was expected"), "{err}");
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
    let (code, _, err) = run(&["characterize", &file]);
    assert!(code == 2 && err.contains("sha256"), "{err}");
}
