//! `linkwise-lab tune` for scripts.

mod common;

use assert_cmd::Command;
use common::{Folder, said};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

fn tune(args: &[&str]) -> Command {
    common::lab("tune", args)
}

/// Exit code, standard output, standard error.
fn run(args: &[&str]) -> (i32, String, String) {
    said(tune(args))
}

fn run_with(args: &[&str], input: &str) -> (i32, String, String) {
    let mut command = tune(args);
    command.write_stdin(input);
    said(command)
}

fn json(args: &[&str]) -> Value {
    let (code, out, err) = run(args);
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).unwrap()
}

const ARMS: &str = "TREE/SIMPLE,RING/SIMPLE,AUTO";

#[test]
fn play_speaks_line_by_line_and_ends_with_its_input() {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_linkwise-lab"))
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
fn the_same_seed_gives_the_same_result() {
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
    assert_eq!((&first["simulated"], &first["environments"][0]["levels"]), (&true.into(), &"made up".into()));
    assert_eq!(policies[0]["right_after_40"], 1.0, "30 % at CV 10 % is easy for forty calls");
    assert_eq!(policies[0]["right_after_20"], 0.0, "round-robin is still exploring");
    assert!(policies[0]["improvement_over_auto_mean"].as_f64().unwrap() > 0.25);
    let worse = &first["environments"][1]["policies"][0];
    assert!(worse["recovered_after_p50"].is_null(), "round-robin never explores again");
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
fn round_robin_is_misled_by_two_modes_and_misses_the_target() {
    let v = json(&[
        "evaluate",
        "--targets",
        "--only",
        "two modes: AUTO left wrongly",
        "--policy",
        "round-robin,auto",
        "--runs",
        "200",
        "--format",
        "json",
    ]);
    let measured = &v["targets"][0]["measured"];
    let wrong = measured[0]["value"].as_f64().unwrap();
    assert!((50.0..85.0).contains(&wrong) && measured[0]["is_met"] == false, "{wrong}");
    assert!(
        measured[1]["value"] == 0.0 && measured[1]["is_met"] == true,
        "a policy that stays on AUTO never leaves it wrongly"
    );
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
        assert!(text.contains("(simulated): expected time"), "the drawing says that it is simulated");
        assert!(text.trim_start().to_ascii_lowercase().starts_with(start), "{}", &text[..80]);
    }
}

#[test]
fn a_price_on_channels_changes_the_decision() {
    let in_use = |price: &str| {
        let base =
            ["evaluate", "--environment", "channels", "--policy", "adaptive", "--runs", "20", "--format", "json"];
        let v = json(&[&base[..], &["--channel-price", price]].concat());
        v["environments"][0]["policies"][0]["in_use_at_the_end"].clone()
    };
    let (free, dear) = (in_use("0"), in_use("0.02"));
    assert!(free["RING/SIMPLE@16"].as_f64().unwrap() > 0.8, "{free}");
    assert!(dear["RING/SIMPLE@4"].as_f64().unwrap() > 0.8, "{dear}");
}

#[test]
fn every_output_of_a_trial_says_that_it_is_simulated() {
    let v = json(&["evaluate", "--detector", "--runs", "1", "--format", "json"]);
    assert!(v["simulated"] == true && v["detector"][0]["levels"] == "made up");
    let v = json(&["evaluate", "--environment", "paper-bandit-2x4-64MB", "--runs", "2", "--format", "json"]);
    assert!(v["simulated"] == true && v["environments"][0]["levels"] == "published");
}

#[test]
fn a_short_run_shows_no_numbers_that_it_cannot_have() {
    let (code, out, err) = run(&["evaluate", "--environment", "cv10", "--calls", "100", "--runs", "3"]);
    assert!(code == 0 && !out.contains("NaN"), "{out}{err}");
    let v = json(&["evaluate", "--environment", "cv10", "--calls", "100", "--runs", "3", "--format", "json"]);
    let policy = &v["environments"][0]["policies"][0];
    for field in ["right_after_200", "looking_cost_mean", "looks_at_slow_max"] {
        assert!(policy[field].is_null(), "{field}: {policy}");
    }
}

#[test]
fn options_that_would_have_no_effect_are_refused() {
    for args in [
        &["evaluate", "--targets", "--environment", "cv10"][..],
        &["evaluate", "--targets", "--calls", "100"],
        &["evaluate", "--targets", "--report", "x.html"],
        &["evaluate", "--detector", "--policy", "adaptive"],
        &["evaluate", "--detector", "--ranks", "8"],
        &["evaluate", "--only", "modes"],
        &["play", "--policy", "adaptive", "--arms", ARMS, "--profile", "x.json"],
    ] {
        let (code, _, err) = run(args);
        assert_eq!(code, 2, "{args:?}: {err}");
        assert!(args[1..].iter().any(|a| a.starts_with("--") && err.contains(a)), "{args:?}: {err}");
    }
}

#[test]
fn a_broken_reward_log_is_an_error_and_not_a_missing_log() {
    let folder = Folder::new();
    std::fs::create_dir(folder.at("bandit")).unwrap();
    std::fs::write(folder.at("bandit/rewards_2x4_64MB.csv"), "phase,arm,time_ms\nexploit,AUTO,fast\n").unwrap();
    let mut command = tune(&["evaluate", "--targets", "--only", "no better arm, CV 3%", "--runs", "1"]);
    command.env("LINKWISE_DATA", folder.at("."));
    let (code, _, err) = said(command);
    assert!(code == 2 && err.contains("time_ms is not a number above 0"), "{err}");
}

#[test]
fn impossible_requests_to_evaluate_are_refused_with_the_reason() {
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

#[test]
fn the_published_data_are_characterized() {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data");
    let data = std::env::var("LINKWISE_DATA").unwrap_or(beside.into());
    if !std::path::Path::new(&data).join("bandit").is_dir() {
        eprintln!("SKIP the_published_data_are_characterized: no data folder (set LINKWISE_DATA)");
        return;
    }
    let out = tune(&["characterize"]).env("LINKWISE_DATA", &data).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!(out.status.code(), Some(0));
    assert!(text.contains("6 of 9 sizes flip") && text.contains("57.2"), "{text}");
}

#[test]
fn a_closed_pipe_is_not_an_error_and_a_full_disk_is_one() {
    let list = || {
        let mut c = std::process::Command::new(env!("CARGO_BIN_EXE_linkwise-lab"));
        c.args(["tune", "evaluate", "--environment", "list"]).stderr(Stdio::piped());
        c
    };
    let mut child = list().stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert_eq!((out.status.code(), out.stderr.len()), (Some(0), 0));
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let out = list().stdout(full).output().unwrap();
    let err = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.code() == Some(2) && err.contains("standard output") && err.lines().count() == 1, "{err}");
}
