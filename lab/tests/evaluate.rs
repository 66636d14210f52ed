//! `linkwise-lab evaluate` on the published tables.

mod common;

use common::{lab, said};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The folder of the published tables, if there is one.
fn data(test: &str) -> Option<PathBuf> {
    let dir = std::env::var_os("LINKWISE_DATA")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"), PathBuf::from)
        .join("bandpilot");
    if dir.is_dir() {
        return Some(dir);
    }
    eprintln!("SKIP {test}: no data folder (set LINKWISE_DATA)");
    None
}

/// GBE of every method by name.
fn evaluate(dir: &Path, args: &[&str]) -> Vec<(String, f64, f64, f64)> {
    let mut command =
        lab("evaluate", &["--cluster", "h100", "--seeds", "3", "--per-k", "10", "--format", "json", "--truth"]);
    command.arg(dir).args(args);
    let (code, out, err) = said(command);
    assert_eq!(code, 0, "{err}");
    let v: Value = serde_json::from_str(&out).expect("JSON");
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
    let (gp, probed, packed) = (of("gp"), of("gp+3"), of("topo"));
    // Target: 99.0 / 93; three seeds instead of many leave a margin. A probe has 3 % noise: 20 seeds give 99.79 / 98.4 / 86.9 with three of them.
    assert!(gp.1 > 98.7 && gp.2 > 91.5, "{gp:?}");
    assert!(probed.1 > gp.1.max(99.5) && probed.2 > gp.2.max(97.0) && probed.3 > 85.0, "{probed:?}");
    assert!(packed.1 < 90.0, "{packed:?}");
}

#[test]
fn the_measured_2_gib_rows_are_placed_well_too() {
    let Some(dir) = data("the_measured_2_gib_rows_are_placed_well_too") else { return };
    let m = evaluate(&dir, &["--sizes", "2GiB", "--missing", "restrict"]);
    let gp = m.iter().find(|m| m.0 == "gp").expect("gp");
    assert!(gp.1 > 99.3 && gp.2 > 97.0, "{gp:?}");
}
