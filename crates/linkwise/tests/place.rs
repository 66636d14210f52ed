//! `linkwise fit`, `place` and `evaluate` as scripts see them.

use assert_cmd::Command;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn linkwise() -> Command {
    Command::cargo_bin("linkwise").expect("the command is built")
}

/// A folder with a store and models of the simulated h100 cluster.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let at = |f: &str| dir.path().join(f).display().to_string();
    linkwise()
        .args(["measure", "--cluster", "h100", "--backend", "simulated", "--samples", "60", "--seed", "3"])
        .args(["--store", &at("s.db")])
        .assert()
        .success();
    for kind in ["gp", "bound"] {
        linkwise()
            .args(["fit", "--cluster", "h100", "--store", &at("s.db"), "--model", kind, "-o", &at(kind)])
            .assert()
            .success();
    }
    dir
}

fn place(dir: &Path, args: &[&str]) -> assert_cmd::assert::Assert {
    linkwise().args(["place", "--cluster", "h100", "--model"]).arg(dir.join("gp")).args(args).assert()
}

fn stdout(a: &assert_cmd::assert::Assert) -> String {
    String::from_utf8_lossy(&a.get_output().stdout).into_owned()
}

#[test]
fn a_stream_of_requests_is_answered_line_by_line_whatever_its_lines_are() {
    let dir = folder();
    let requests = dir.path().join("r.jsonl");
    let long = format!("{{\"id\":9,\"gpus\":2,\"free\":[\"{}\"]}}", "x".repeat(5 << 20));
    let lines = [
        r#"{"id":1,"gpus":8,"free":["n0:0","n0:1","n0:2","n0:3","n0:4","n0:5","n1:0","n1:1","n1:2","n1:3","n2:0"]}"#,
        "not json",
        r#"{"id":"two","gpus":40}"#,
        "",
        r#"{"id":3,"gpus":0}"#,
        r#"{"id":4,"gpus":1}"#,
        r#"{"id":5,"gpus":2,"free":["n0:1","n0:1"]}"#,
        r#"{"id":6,"gpus":2,"free":["n7:1"]}"#,
        r#"{"id":7,"gpus":-2}"#,
        r#"{"id":8,"gpus":2,"fre":["n0:1"]}"#,
        &long,
        r#"{"id":10,"gpus":32,"size_bytes":16777216}"#,
    ];
    std::fs::write(&requests, lines.join("\n")).expect("written");
    let a = place(dir.path(), &["--requests", requests.to_str().expect("utf-8")]).success();
    let answers: Vec<Value> =
        stdout(&a).lines().map(|l| serde_json::from_str(l).expect("every answer is JSON")).collect();
    assert_eq!(answers.len(), 11, "an answer for every line that is not empty");
    for key in ["id", "gpus", "predicted_busbw_gb_per_s", "std_gb_per_s", "search", "evaluations", "elapsed_us"] {
        assert!(answers[0].get(key).is_some(), "{key} is missing");
    }
    assert_eq!(answers[0]["split"], "4+4");
    let codes: Vec<&str> = answers.iter().map(|a| a["error"]["code"].as_str().unwrap_or("-")).collect();
    let bad = "bad_request";
    assert_eq!(
        codes,
        ["-", bad, "not_enough_free", "no_gpus", "-", "duplicate_gpu", "unknown_gpu", bad, bad, bad, "-"]
    );
    assert_eq!(answers[2]["id"], "two");
    assert_eq!(answers[4]["predicted_busbw_gb_per_s"], 0.0, "one GPU talks to nobody");
    assert_eq!(answers[10]["gpus"].as_array().map(Vec::len), Some(32));
}

#[test]
fn exit_codes_tell_bad_input_from_a_request_that_cannot_be_met() {
    let dir = folder();
    place(dir.path(), &["--gpus", "33"]).code(1);
    place(dir.path(), &["--gpus", "0"]).code(2);
    place(dir.path(), &["--gpus", "2", "--free", "n0:1 n0:1"]).code(2);
    place(dir.path(), &["--gpus", "2", "--free", "n0:8 n0:1"]).code(2);
    place(dir.path(), &[]).code(2);
    let other = linkwise()
        .args(["place", "--cluster", "het-ra", "--gpus", "2", "--model"])
        .arg(dir.path().join("gp"))
        .assert()
        .code(2);
    let message = String::from_utf8_lossy(&other.get_output().stderr).into_owned();
    assert!(message.contains("fit a model for this cluster"), "{message}");
    std::fs::write(dir.path().join("torn"), &std::fs::read(dir.path().join("gp")).expect("read")[..5000])
        .expect("written");
    linkwise()
        .args(["place", "--cluster", "h100", "--gpus", "2", "--model"])
        .arg(dir.path().join("torn"))
        .assert()
        .code(2);
}

#[test]
fn every_format_names_the_same_gpus() {
    let dir = folder();
    let free = "n0:0 n0:1 n0:2 n0:3 n0:4 n0:5 n1:0 n1:1 n1:2 n1:3";
    let json: Value = serde_json::from_str(&stdout(
        &place(dir.path(), &["--gpus", "8", "--free", free, "--format", "json"]).success(),
    ))
    .expect("JSON");
    assert_eq!(json["split"], "4+4");
    let text = stdout(&place(dir.path(), &["--gpus", "8", "--free", free]).success());
    assert!(text.contains("packed") && text.contains("6+2"), "{text}");
    assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
    let slurm = stdout(&place(dir.path(), &["--gpus", "8", "--free", free, "--format", "slurm"]).success());
    assert!(slurm.contains("--nodes=2 --nodelist=n[0-1] --gpus-per-node=4"), "{slurm}");
    let hosts = stdout(&place(dir.path(), &["--gpus", "8", "--free", free, "--format", "hostfile"]).success());
    assert_eq!(hosts.lines().filter(|l| l.contains("slots=4")).count(), 2, "{hosts}");
}

#[test]
fn readings_of_the_candidates_worth_measuring_decide_the_choice() {
    let dir = folder();
    let args = ["--gpus", "10", "--format", "json"];
    let first: Value = serde_json::from_str(&stdout(&place(dir.path(), &args).success())).expect("JSON");
    let worth = first["worth_measuring"].as_array().expect("a list").clone();
    assert_eq!(worth.len(), 3);
    assert_eq!(worth[0], first["gpus"], "the choice is measured first");
    let expected = first["predicted_busbw_gb_per_s"].as_f64().expect("a number");
    // The choice disappoints, the second is as good as the choice was thought to be.
    let lines: Vec<String> = [0.6, 1.0, 0.7]
        .iter()
        .zip(&worth)
        .map(|(f, w)| format!("{{\"gpus\":{w},\"busbw_gb_per_s\":{}}}", expected * f))
        .collect();
    let file = dir.path().join("readings.jsonl");
    std::fs::write(&file, lines.join("\n")).expect("written");
    let path = file.display().to_string();
    let args = ["--gpus", "10", "--format", "json", "--readings", &path];
    let second: Value = serde_json::from_str(&stdout(&place(dir.path(), &args).success())).expect("JSON");
    assert_eq!(second["gpus"], worth[1]);
    assert!(second["std_gb_per_s"].as_f64() < first["std_gb_per_s"].as_f64());
    std::fs::write(&file, "{\"gpus\":[\"n0:0\"],\"busbw_gb_per_s\":1}").expect("written");
    place(dir.path(), &args).code(2);
    std::fs::write(&file, "{\"gpus\":[\"n0:0\"],\"busbw_gb_per_s\":-1}").expect("written");
    place(dir.path(), &args).code(2);
}

#[test]
fn a_nic_that_degraded_after_the_fit_is_avoided_with_the_same_model() {
    let dir = folder();
    let file = dir.path().join("now.yaml");
    let host = |i: u8, more: &str| format!("  - {{name: n{i}, type: hgx-h100{more}}}\n");
    let slow = ", degraded: {host: 0.5}";
    let text = format!("name: h100\nhosts:\n{}{}{}{}", host(0, ""), host(1, slow), host(2, ""), host(3, ""));
    std::fs::write(&file, text).expect("written");
    let of = |cluster: &str| -> Value {
        let a = linkwise()
            .args(["place", "--gpus", "8", "--free", "n0:0 n0:1 n0:2 n0:3 n1:0 n1:1 n1:2 n1:3 n2:0 n2:1 n2:2 n2:3"])
            .args(["--format", "json", "--cluster", cluster, "--model"])
            .arg(dir.path().join("gp"))
            .assert()
            .success();
        serde_json::from_str(&stdout(&a)).expect("JSON")
    };
    let now = of(&file.display().to_string());
    let gpus = now["gpus"].as_array().expect("a list");
    assert!(gpus.iter().all(|g| !g.as_str().unwrap_or("n1").starts_with("n1:")), "{now}");
    assert_eq!(of("h100")["split"], "4+4");
}

#[test]
fn a_store_that_does_not_exist_is_not_created_by_fit() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = dir.path().join("none.db");
    linkwise().args(["fit", "--cluster", "h100", "-o", "x", "--store"]).arg(&store).assert().code(2);
    assert!(!store.exists());
}

/// The published tables, where they are.
fn data(test: &str) -> Option<PathBuf> {
    let dir = std::env::var_os("LINKWISE_DATA")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"), PathBuf::from)
        .join("bandpilot");
    if dir.is_dir() {
        return Some(dir);
    }
    eprintln!("SKIP {test}: no data folder (set LINKWISE_DATA)");
    None
}

/// GBE of every method by name.
fn evaluate(dir: &Path, args: &[&str]) -> Vec<(String, f64, f64, f64)> {
    let a = linkwise()
        .args(["evaluate", "--cluster", "h100", "--seeds", "3", "--format", "json", "--truth"])
        .arg(dir)
        .args(args)
        .assert()
        .success();
    let v: Value = serde_json::from_str(&stdout(&a)).expect("JSON");
    let number = |m: &Value, k: &str| m[k].as_f64().expect("a number");
    v[0]["methods"]
        .as_array()
        .expect("methods")
        .iter()
        .map(|m| {
            let name = m["method"].as_str().expect("a name").to_owned();
            (name, number(m, "mean_pct"), number(m, "p5_pct"), number(m, "worst_pct"))
        })
        .collect()
}

#[test]
fn a_hundred_samples_of_the_measured_16_mib_table_place_almost_as_well_as_knowing_it() {
    let Some(dir) = data("a_hundred_samples_of_the_measured_16_mib_table_place_almost_as_well_as_knowing_it") else {
        return;
    };
    let m = evaluate(&dir, &["--sizes", "16MiB"]);
    let of = |n: &str| m.iter().find(|m| m.0 == n).unwrap_or_else(|| panic!("{n} is missing")).clone();
    let (gp, probed, packed) = (of("gp"), of("gp + probes"), of("packed"));
    // Aims: 99.0 / 93, and 99.8 / 99.5 / 90 with three probes; three seeds instead of many leave a margin.
    assert!(gp.1 > 98.7 && gp.2 > 91.5, "{gp:?}");
    assert!(probed.1 > 99.8 && probed.2 > 99.5 && probed.3 > 88.0, "{probed:?}");
    assert!(packed.1 < 90.0, "{packed:?}");
}

#[test]
fn the_measured_2_gib_rows_are_placed_well_too() {
    let Some(dir) = data("the_measured_2_gib_rows_are_placed_well_too") else { return };
    let m = evaluate(&dir, &["--sizes", "2GiB", "--missing", "restrict"]);
    let gp = m.iter().find(|m| m.0 == "gp").expect("gp");
    assert!(gp.1 > 99.3 && gp.2 > 97.0, "{gp:?}");
}
