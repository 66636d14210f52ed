//! `linkwise measure` as scripts see it.

mod common;

use assert_cmd::Command;
use common::{Folder, said};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// Exit code, standard output, standard error.
fn run(args: &[&str]) -> (i32, String, String) {
    said(linkwise(args))
}

fn linkwise(args: &[&str]) -> Command {
    common::linkwise("measure", args)
}

/// The rows of a store's export without the time at which they were taken, sorted.
fn rows(store: &str) -> Vec<String> {
    let (code, out, err) = run(&["--cluster", "h100", "--store", store, "--export", "-"]);
    assert_eq!(code, 0, "{err}");
    let mut rows: Vec<String> = out
        .lines()
        .map(|l| {
            let mut fields: Vec<&str> = l.split(',').collect();
            fields.remove(11);
            fields.join(",")
        })
        .collect();
    rows.sort();
    rows
}

const SIMULATED: [&str; 10] =
    ["--cluster", "h100", "--backend", "simulated", "--seed", "3", "--samples", "40", "--outliers", "3"];

#[test]
fn a_simulated_campaign_killed_many_times_ends_with_the_store_of_one_that_was_not() {
    let folder = Folder::new();
    let (whole, killed) = (folder.at("whole.db"), folder.at("killed.db"));
    let with = |store| [&SIMULATED[..], &["--sizes", "16MiB,2GiB", "--store", store]].concat();
    let (code, out, err) = run(&with(&whole));
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("the campaign is finished"), "{out}");
    let mut partial = 0;
    for i in 0..15 {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_linkwise"))
            .arg("measure")
            .args(with(&killed))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(5 + 7 * i));
        child.kill().unwrap();
        child.wait().unwrap();
        if Path::new(&killed).exists() {
            let n = rows(&killed).len();
            partial += usize::from(n > 1 && n < rows(&whole).len());
        }
    }
    assert!(partial >= 1, "no kill came in the middle");
    let (code, out, err) = run(&with(&killed));
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("the campaign"), "{out}");
    assert_eq!(rows(&killed), rows(&whole));
    let (code, out, _) = run(&with(&killed));
    assert!(code == 0 && out.contains("finished before; nothing was measured"), "{out}");
}

#[test]
fn a_plan_above_the_budget_names_the_budget_and_only_flags_that_are_not_given() {
    let folder = Folder::new();
    let store = folder.at("s.db");
    let base = ["--cluster", "h100", "--backend", "simulated", "--store", &store, "--budget-gpu-minutes", "0.001"];
    let (code, _, err) = run(&base);
    assert!(code == 1 && err.contains("the budget is 0.001;") && err.contains("use --clip"), "{err}");
    let (code, _, err) = run(&[&base[..], &["--clip"]].concat());
    assert!(code == 1 && err.contains("raise --budget-gpu-minutes or use --no-intra"), "{err}");
    assert!(!err.contains("use --clip") && !err.contains("--samples"), "{err}");
}

#[test]
fn runs_of_one_host_are_measured_without_a_multi_host_sample() {
    let folder = Folder::new();
    let store = folder.at("s.db");
    for samples in ["0", "20"] {
        let flags = ["--cluster", "h100", "--backend", "simulated", "--max-hosts", "1", "--samples", samples];
        let (code, out, err) = run(&[&flags[..], &["--store", &store]].concat());
        assert!(code == 0 && !out.contains("multi-host"), "{out}{err}");
    }
}

#[test]
fn the_users_benchmark_may_crash_sleep_and_print_garbage() {
    let folder = Folder::new();
    let script = folder.script(
        "bench.sh",
        r#"#!/bin/sh
echo "welcome to my benchmark"
n=0
while read -r line; do
  id=${line#*\"id\":}; id=${id%%[,\}]*}
  n=$((n+1))
  case $n in
    5) echo "segmentation fault" >&2; kill -s SEGV $$;;
    9) sleep 30;;
    12) echo '{"id":'"$id"',"error":"cuda error 719"}'; continue;;
  esac
  echo "[rank 0] noise"
  echo '{"id":'"$id"',"busbw_gb_per_s":'$((100 + id % 3))'.5}'
done
"#,
    );
    let store = folder.at("s.db");
    let args = [
        "--cluster",
        "h100",
        "--backend",
        "command",
        "--command",
        &script,
        "--idle",
        "n0:0,n0:1,n0:2,n0:3,n1:0,n1:1",
        "--samples",
        "6",
        "--timeout-s",
        "1",
        "--store",
        &store,
        "--format",
        "json",
    ];
    let (code, out, err) = run(&args);
    assert_eq!(code, 0, "{err}");
    let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(answer["campaign"]["finished"], true, "{out}\n{err}");
    assert_eq!(answer["campaign"]["source"], "command");
    assert_eq!(answer["measurements"], 11 + 1 + 6);
    let (code, _, err) = run(&[
        "--cluster",
        "h100",
        "--backend",
        "command",
        "--command",
        "echo broken >&2; exit 1",
        "--all-idle",
        "--store",
        &folder.at("t.db"),
        "--samples",
        "3",
    ]);
    assert_eq!(code, 1);
    assert!(
        err.contains("was started 5 times in a row without an answer")
            && err.contains("broken")
            && err.contains("rerun the same command to resume"),
        "{err}"
    );
}

#[test]
fn nccl_tests_run_through_the_local_launcher_and_their_text_is_stored() {
    let folder = Folder::new();
    folder.script(
        "all_reduce_perf",
        "#!/bin/sh\necho '# nccl-tests version 2.19.6 nccl-headers=22707 nccl-library=22707'\n\
         echo '#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong'\n\
         echo \"16777216 4194304 float sum -1 100.0 90.0 1$(echo $CUDA_VISIBLE_DEVICES | tr -cd 0-9).5 0 100.0 90.0 1.0 0\"\n",
    );
    let (store, programs) = (folder.at("s.db"), folder.at(""));
    let base = ["--cluster", "h100", "--backend", "nccl-tests", "--nccl-tests", &programs, "--idle", "n2:0,n2:1,n2:5"];
    let (code, out, err) = run(&[&base[..], &["--dry-run"]].concat());
    assert_eq!(code, 0, "{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 4, "{out}");
    assert!(
        lines[3].starts_with("CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,1,5 ")
            && lines[3].ends_with("all_reduce_perf -b 16777216 -e 16777216 -t 1 -g 3 -n 20 -w 5"),
        "{out}"
    );
    assert!(!Path::new(&store).exists());
    let (code, _, err) = run(&[&base[..], &["--store", &store]].concat());
    assert_eq!(code, 0, "{err}");
    let rows = rows(&store);
    for expected in ["n2:0 n2:1,all_reduce,16777216,101.5,0.0001", "n2:0 n2:1 n2:5,all_reduce,16777216,1015.5,0.0001"] {
        assert!(
            rows.iter().any(|r| r.starts_with(expected) && r.contains(",2.27.7,") && r.contains("nccl-tests")),
            "{rows:?}"
        );
    }
    let (code, _, err) = run(&[
        "--cluster",
        "h100",
        "--backend",
        "nccl-tests",
        "--nccl-tests",
        "/nowhere",
        "--idle",
        "n3:0,n3:1",
        "--store",
        &store,
    ]);
    assert_eq!(code, 1);
    assert!(err.contains("cannot start `/nowhere/all_reduce_perf`"), "{err}");
}

#[test]
fn a_dry_run_of_srun_prints_host_files_and_commands() {
    let (code, out, err) = run(&[
        "--cluster",
        "h100",
        "--backend",
        "nccl-tests",
        "--launcher",
        "srun",
        "--dry-run",
        "--samples",
        "2",
        "--no-intra",
        "--launcher-args",
        "--partition=gpu",
    ]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(out.lines().filter(|l| l.starts_with("# HOSTFILE: n")).count(), 2, "{out}");
    assert_eq!(
        out.lines().filter(|l| l.starts_with("SLURM_HOSTFILE=HOSTFILE srun --partition=gpu --nodes=")).count(),
        2,
        "{out}"
    );
}

#[test]
fn a_budget_is_kept_by_refusal_or_by_fewer_samples() {
    let folder = Folder::new();
    let store = folder.at("s.db");
    let args = [&SIMULATED[..], &["--no-intra", "--store", &store, "--budget-gpu-minutes", "10"]].concat();
    let (code, _, err) = run(&args);
    assert_eq!(code, 1);
    assert!(
        err.contains("40 points would take about") && err.contains("the budget is 10") && err.contains("--clip"),
        "{err}"
    );
    let (code, out, err) = run(&[&args[..], &["--clip", "--format", "json"]].concat());
    assert_eq!(code, 0, "{err}");
    let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
    let minutes = answer["campaign"]["gpu_minutes"].as_f64().unwrap();
    assert!(minutes > 5.0 && minutes <= 10.0, "{minutes}");
}

#[test]
fn bad_input_is_one_error_and_exit_code_2() {
    let folder = Folder::new();
    let store = folder.at("s.db");
    let base = ["--cluster", "h100", "--backend", "simulated", "--store", &store];
    let with = |more: &[&'static str]| [&base[..], more].concat();
    std::fs::write(folder.at("junk.db"), "junk".repeat(1000)).unwrap();
    let junk = folder.at("junk.db");
    let cases: Vec<(Vec<&str>, &str)> = vec![
        (vec!["--cluster", "h100"], "nothing to do"),
        (vec!["--cluster", "h100", "--backend", "simulated"], "--store FILE is missing"),
        (vec!["--cluster", "nowhere", "--backend", "simulated", "--store", &store], "nowhere"),
        (with(&["--sizes", "16MiB,3XB"]), "--sizes: `3XB` has the unknown unit"),
        (with(&["--sizes", "1MiB,1024KiB"]), "--sizes: `1024KiB` is given twice"),
        (with(&["--sizes", "0"]), "--sizes: `0` is not between"),
        (with(&["--idle", "n0:0,n0:99"]), "--idle: `n0:99`: host `n0` has GPUs 0 to 7"),
        (with(&["--idle", "n0:0,n0:0"]), "--idle: `n0:0` is named twice"),
        (with(&["--collective", "all_to_none"]), "--collective: `all_to_none` is not a collective"),
        (with(&["--noise", "300"]), "--noise: 300 is not between 0 and 100 percent"),
        (with(&["--budget-gpu-minutes", "-1"]), "--budget-gpu-minutes: a number above 0"),
        (with(&["--budget-gpu-minutes=-1"]), "--budget-gpu-minutes: a number above 0"),
        (vec!["--cluster", "h100", "--backend", "command", "--store", &store], "--backend command needs --command"),
        (with(&["--timeout-s", "0"]), "--timeout-s: 0 is not between"),
        (with(&["--dry-run"]), "--dry-run prints the commands of --backend nccl-tests"),
        (with(&["--import", "/nowhere.csv"]), "cannot read /nowhere.csv"),
        (
            vec!["--cluster", "h100", "--backend", "simulated", "--store", &junk],
            "is not a linkwise store: it is not a SQLite database",
        ),
    ];
    for (args, expected) in cases {
        let (code, _, err) = run(&args);
        assert_eq!(code, 2, "{args:?}: {err}");
        assert!(err.contains(expected), "{args:?}\n found {err}\n expected {expected}");
        assert!(!Path::new(&store).exists(), "{args:?} made a store");
    }
    let (code, _, err) = run(&with(&["--idle", "n0:0"]));
    assert!(code == 1 && err.contains("fewer than two idle GPUs"), "{err}");
    assert_eq!(run(&with(&["--samples", "5", "--no-intra"])).0, 0);
    let (code, _, err) = run(&["--cluster", "het-ra", "--backend", "simulated", "--store", &store]);
    assert!(code == 2 && err.contains("belongs to another cluster (`h100`, given: `het-ra`)"), "{err}");
}

#[test]
fn of_several_imports_with_one_error_nothing_is_imported() {
    let folder = Folder::new();
    let (store, good, bad) = (folder.at("s.db"), folder.at("good.csv"), folder.at("bad.csv"));
    std::fs::write(&good, "host,gpus,size_bytes,collective,busbw_gb_per_s\nx_26,0 1,16777216,all_reduce,200\n")
        .unwrap();
    std::fs::write(&bad, "host,gpus,size_bytes,collective,busbw_gb_per_s\nx_26,0 1,16777216,all_reduce,200\nx_26,0 1,16777216,all_reduce,fast\n").unwrap();
    let (code, _, err) =
        run(&["--cluster", "h100", "--store", &store, "--import", &good, "--import", &bad, "--host-map", "26=n0"]);
    assert_eq!(code, 2);
    assert!(err.contains("bad.csv:3:5: `busbw_gb_per_s` is `fast`"), "{err}");
    assert!(!Path::new(&store).exists());
    std::fs::write(&bad, b"host,gpus\n\xff\xfe\n").unwrap();
    let (code, _, err) = run(&["--cluster", "h100", "--store", &store, "--import", &bad]);
    assert!(code == 2 && err.contains("bad.csv:2:1: not UTF-8 text"), "{err}");
    let (code, out, _) = run(&["--cluster", "h100", "--store", &store, "--import", &good, "--host-map", "26=n0"]);
    assert!(code == 0 && out.contains("1 row, 1 added"), "{out}");
}

#[test]
fn published_tables_come_in_once_and_go_out_as_they_came() {
    let folder = std::env::var("LINKWISE_DATA")
        .map_or_else(|_| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"), PathBuf::from)
        .join("bandpilot");
    let file = |name: &str| folder.join(name).display().to_string();
    let (intra, multi) = (file("intra_h100_28_16mib.csv"), file("multihost_h100_16mib.csv"));
    if !Path::new(&intra).exists() {
        eprintln!("SKIP published_tables_come_in_once_and_go_out_as_they_came: no data folder (set LINKWISE_DATA)");
        return;
    }
    let scratch = Folder::new();
    let (store, csv, copy) = (scratch.at("s.db"), scratch.at("all.csv"), scratch.at("copy.db"));
    let args = [
        "--cluster",
        "h100",
        "--store",
        &store,
        "--import",
        &intra,
        "--import",
        &multi,
        "--host-map",
        "26=n0,27=n1,28=n2,29=n3",
    ];
    let (code, out, err) = run(&[&args[..], &["--export", &csv]].concat());
    assert_eq!(code, 0, "{err}");
    assert!(
        out.contains("247 rows, 247 added") && out.contains("493 rows, 493 added") && out.contains("(suspect)"),
        "{out}"
    );
    let (_, out, _) = run(&args);
    assert!(out.contains("247 rows, 0 added, 247 known already") && out.contains("holds 740 measurements"), "{out}");
    assert_eq!(run(&["--cluster", "h100", "--store", &copy, "--import", &csv]).0, 0);
    assert_eq!(rows(&copy), rows(&store));
}

#[test]
fn the_help_shows_examples() {
    let (code, out, _) = run(&["--help"]);
    assert_eq!(code, 0);
    // A long command goes on after a backslash.
    let words = out.replace(" \\\n", " ").split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["Examples:", "--import t.csv --host-map 26=n0,27=n1", "--launcher srun --dry-run", "Exit codes:"] {
        assert!(words.contains(part), "{part} is missing");
    }
}

/// 1,280 hosts with rails, below 40 leaves and 4 pods; the links of one GPU of the last host run at 0.3 of their rate. All simulated.
#[test]
fn a_site_of_10240_gpus_is_measured_fitted_placed_on_and_diagnosed() {
    let folder = Folder::new();
    let (site, store, model) = (folder.at("site.yaml"), folder.at("r.db"), folder.at("m.json"));
    let text = "name: large\nnetwork:\n  class: infiniband\n  rails: joined\n  tiers:\n  - {name: leaf, hosts_per_switch: 32, oversubscription: 1}\n  \
                - {name: pod, hosts_per_switch: 320, oversubscription: 2}\nhosts:\n- {name: 'n[0-1278]', type: hgx-h100}\n\
                - {name: n1279, type: hgx-h100, degraded: {gpus: {3: 0.3}}}\n";
    std::fs::write(&site, text).unwrap();
    let json = |command: &str, args: &[&str]| -> serde_json::Value {
        let (code, out, err) =
            said(common::linkwise(command, &[args, &["--cluster", &site, "--format", "json"]].concat()));
        assert_eq!(code, 0, "{command}: {err}");
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{command}: {e}: {out}"))
    };
    let budget = ["--budget-gpu-minutes", "1500", "--clip"];
    let measured =
        json("measure", &[&["--backend", "simulated", "--noise", "3", "--store", &store], &budget[..]].concat());
    let campaign = &measured["campaign"];
    assert!(campaign["finished"] == true && campaign["gpu_minutes"].as_f64().unwrap() <= 1500.0, "{measured}");
    assert_eq!(campaign["deviating_hosts"], serde_json::json!(["n1279"]));
    assert!(measured["simulated"] == measured["measurements"] && campaign["stages"][1]["points"] == 1279, "{measured}");
    let fitted = json("fit", &["--store", &store, "-o", &model]);
    assert!(fitted["intra_readings"].as_u64().unwrap() > 1500 && fitted["multi_host_readings"] == 100, "{fitted}");
    let placed = json("place", &["--model", &model, "--gpus", "4096"]);
    let gpus = placed["gpus"].as_array().unwrap();
    assert!(gpus.len() == 4096 && gpus.iter().all(|g| g != "n1279:3"), "{}", placed["split"]);
    let diagnosed = json("doctor", &["--store", &store]);
    let candidates = diagnosed["defects"].as_array().unwrap().iter().flat_map(|d| d["candidates"].as_array().unwrap());
    let hosts: Vec<&str> = candidates.filter_map(|c| c["host"].as_str()).collect();
    assert!(!hosts.is_empty() && hosts.iter().all(|h| *h == "n1279"), "{hosts:?}");
}
