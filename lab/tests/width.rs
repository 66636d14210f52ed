//! Without a terminal no line of text that `linkwise-lab` prints is wider than 80 columns.

mod common;

use common::{Folder, lab, said};

const WIDTH_MAX: usize = 80;

/// Lines of the output that are too wide.
fn wide_lines(text: &str) -> Vec<&str> {
    text.lines().filter(|l| l.chars().count() > WIDTH_MAX).collect()
}

fn assert_fits(command: &str, args: &[&str]) {
    let (code, out, err) = said(lab(command, args));
    assert_eq!(code, 0, "{command} {args:?}: {err}");
    assert!(!out.is_empty(), "{command} {args:?} prints nothing");
    assert_eq!(wide_lines(&out), Vec::<&str>::new(), "{command} {args:?}:\n{out}");
}

#[test]
fn items_of_the_papers_fit_80_columns() {
    let folder = Folder::new();
    let any = folder.at(".");
    assert_fits("reproduce", &["bandpilot"]);
    assert_fits("reproduce", &["litegd"]);
    assert_fits("reproduce", &["bandpilot", "appendix-a", "table-3", "--truth", &any]);
    assert_fits("reproduce", &["litegd", "table-2", "--truth", &any]);
}

#[test]
fn tables_of_route_plans_fit_80_columns() {
    let folder = Folder::new();
    assert_fits("route", &["paths", "rails", "skew", "hotspot", "shapes", "--data", &folder.at(".")]);
    assert_fits("route", &["quality", "--seeds", "1", "--data", &folder.at(".")]);
}

#[test]
fn scores_of_tuning_policies_fit_80_columns() {
    assert_fits("tune", &["evaluate", "--environment", "list"]);
    assert_fits("tune", &["evaluate", "--runs", "2", "--environment", "cv10", "--policy", "v1,round-robin,ucb1"]);
}

#[test]
fn an_evaluation_on_a_simulated_truth_fits_80_columns() {
    let small =
        ["--cluster", "h100", "--truth", "rule-r", "--seeds", "1", "--per-k", "1", "--methods", "topo,bound,gp"];
    assert_fits("evaluate", &small);
    assert_fits("evaluate", &[&small[..], &["--by-k"]].concat());
}

#[test]
fn a_comparison_with_measurements_fits_80_columns() {
    let folder = Folder::new();
    let file = folder.at("measured.csv");
    let head = "source,system,gpu,gpus_per_node,nodes,allocation,interconnect,nic,collective,algo,proto,nccl_version,\
                size_bytes,time_us,algbw_GBps,busbw_GBps,note";
    let rows = [
        "github owner/repository/path,two nodes,H100-SXM5,8,2,8+8,NVSwitch,8x400 IB NDR,all_reduce,,,,1073741824,,,470,peak",
        "github o/r x,HGX H200,H200,8,1,4 of 8,NVSwitch,,all_reduce,Ring (auto),,2.27.7,8589934592,,,363.3,",
        "github o/r x,two nodes,H100-SXM5,8,2,8+8,NVSwitch,unknown,all_reduce,,,,1048576,100,10,20,",
    ];
    std::fs::write(&file, format!("{head}\n{}\n", rows.join("\n"))).unwrap();
    assert_fits("validate", &[&file]);
}

#[test]
fn scores_of_diagnoses_fit_80_columns() {
    assert_fits("doctor", &["--hosts", "8", "--slow", "0,1", "--seeds", "1", "--readings", "12"]);
}
