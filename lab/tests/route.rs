//! `linkwise-lab route` as a user runs it.

mod common;

use common::{lab, said};
use serde_json::Value;
use std::path::PathBuf;

fn json(args: &[&str]) -> Value {
    let (code, out, err) = said(lab("route", &[args, &["--format", "json"]].concat()));
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).expect("JSON")
}

#[test]
fn the_evaluation_has_the_known_ratios_next_to_the_published_figures() {
    let v = json(&["paths", "rails", "hotspot"]);
    let rows = |i: usize| v[i]["rows"].as_array().expect("rows").clone();
    assert_eq!(rows(0)[2]["optimum"], 360.0);
    assert_eq!(rows(0)[2]["NIMBLE, measured"], 278.2);
    assert!((rows(1)[3]["stripe"].as_f64().expect("a rate") - 180.4).abs() < 1e-6);
    let hot = rows(2);
    let at = |i: usize, c: &str| hot[i][c].as_f64().expect("a ratio");
    assert_eq!(hot[7]["hotspot ratio"], "1.0");
    assert!((at(7, "destination-rail") - 4.0).abs() < 1e-6 && (at(0, "destination-rail") - 1.0).abs() < 1e-6);
    assert!((0..8).all(|i| at(i, "linkwise") < 1.005 && at(i, "stripe") < 1.005));
    assert!(v[2]["notes"][0].as_str().expect("a note").contains("already optimal in 8 of 8"));
}

#[test]
fn quality_meets_its_targets_on_a_small_sample() {
    let v = json(&["quality", "--seeds", "2"]);
    for row in v[0]["rows"].as_array().expect("rows") {
        let n = |c: &str| row[c].as_f64().expect("a number");
        assert!(n("gap median %") <= 1.0 && n("worst %") <= 3.0 && n("reported - true, 95th") <= 2.0, "{row}");
        assert!(n("matrices") >= 18.0);
    }
}

#[test]
fn real_routing_is_evaluated_for_four_sizes() {
    let data = std::env::var_os("LINKWISE_DATA")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"), PathBuf::from);
    if !data.join("moe/esft").is_dir() {
        eprintln!("SKIP real_routing_is_evaluated_for_four_sizes: no folder of public data with moe/esft");
        return;
    }
    let data = data.display().to_string();
    let v = json(&["routing", "--data", &data]);
    let rows = v[0]["rows"].as_array().expect("rows");
    let ranks: Vec<f64> = rows.iter().filter(|r| r["routing"] == "real").filter_map(|r| r["ranks"].as_f64()).collect();
    assert_eq!(ranks, [4.0, 8.0, 16.0, 32.0]);
    let skew = rows[2]["receive skew"].as_f64().expect("a number");
    assert!((1.05..1.7).contains(&skew), "facts say 1.1 to 1.6 at 8 ranks, here {skew}");
}

#[test]
fn a_folder_without_routing_is_named() {
    let (code, _, message) = said(lab("route", &["routing", "--data", "/nonexistent"]));
    assert_eq!(code, 2, "{message}");
    assert!(message.contains("moe/esft"), "{message}");
}
