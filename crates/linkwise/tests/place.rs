//! `linkwise fit` and `place` as scripts see them.

use assert_cmd::Command;
use serde_json::Value;
use std::path::Path;

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
    assert_eq!(answers[4]["predicted_busbw_gb_per_s"], 0.0, "one GPU sends nothing");
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
    let message = String::from_utf8_lossy(&other.get_output().stderr).replace("\n  ", " ");
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

/// The answers to request lines.
fn answers(dir: &Path, lines: &[&str], args: &[&str]) -> Vec<Value> {
    let requests = dir.join("lines.jsonl");
    std::fs::write(&requests, lines.join("\n")).expect("written");
    let mut all = vec!["--requests", requests.to_str().expect("utf-8")];
    all.extend(args);
    let a = place(dir, &all).success();
    stdout(&a).lines().map(|l| serde_json::from_str(l).expect("every answer is JSON")).collect()
}

fn names(v: &Value) -> Vec<&str> {
    v.as_array().expect("a list").iter().map(|g| g.as_str().expect("a name")).collect()
}

#[test]
fn pods_constraints_and_jobs_of_a_request_line_are_kept_and_answered() {
    let dir = folder();
    let job = r#"{"id":"a","gpus":["n0:0","n1:0","n0:1","n1:1"],"demand_gb_per_s":60},{"id":7,"gpus":["n2:0","n3:0"]}"#;
    let free = r#"["n0:0","n0:1","n0:2","n0:3","n0:4","n0:5","n1:0","n1:1","n1:2","n1:3","n2:0"]"#;
    let lines = [
        format!(r#"{{"id":1,"pods":[2,4,2],"free":{free}}}"#),
        r#"{"id":2,"gpus":12,"constraints":{"excluded_hosts":["n1"],"only_hosts":["n[1-3]"],"gpus_per_host_min":5}}"#.into(),
        r#"{"id":3,"gpus":4,"constraints":{"hosts_max":1,"gpu_type":"h100"},"free":["n0:1","n0:2","n1","n2:7"]}"#.into(),
        format!(r#"{{"id":4,"gpus":12,"jobs":[{job}],"search":"exact","constraints":null}}"#),
        format!(r#"{{"id":5,"gpus":12,"jobs":[{job}],"contention":"physical","loss_weight":2.5}}"#),
        r#"{"id":6,"pods":[8,8,8,3],"gpus":27,"free":["n0","n1","n2","n3:0","n3:1","n3:2"]}"#.into(),
        r#"{"id":7,"gpus":8,"jobs":[{"id":"x","gpus":["n0:0","n1:0"]}],"constraints":{"exclusive_nics":true,"only_hosts":["n0"]}}"#.into(),
    ];
    let a = answers(dir.path(), &lines.each_ref().map(String::as_str), &[]);
    // Pods: each on one host, in the request's order, together the choice; ranks pod by pod.
    let pods: Vec<Vec<&str>> = a[0]["pods"].as_array().expect("pods").iter().map(names).collect();
    assert_eq!(pods.iter().map(Vec::len).collect::<Vec<_>>(), [2, 4, 2]);
    assert!(pods.iter().all(|p| p.iter().all(|g| g[..3] == p[0][..3])), "{pods:?}");
    let mut of_pods = pods.concat();
    of_pods.sort_unstable();
    assert_eq!(of_pods, names(&a[0]["gpus"]));
    let mut ranked = names(&a[0]["rank_order"]);
    assert_eq!(ranked.iter().position(|g| *g == pods[1][0]).map(|i| i % 2), Some(0));
    ranked.sort_unstable();
    assert_eq!(ranked, names(&a[0]["gpus"]));
    assert_eq!(a[0]["contention"], Value::Null);
    // Constraints.
    assert!(names(&a[1]["gpus"]).iter().all(|g| g.starts_with("n2") || g.starts_with("n3")), "{}", a[1]);
    assert!(["6+6", "7+5"].contains(&a[1]["split"].as_str().expect("a split")), "{}", a[1]);
    assert!(names(&a[2]["gpus"]).iter().all(|g| g.starts_with("n1")), "{}", a[2]);
    // Jobs: held GPUs are not free, both see what they lose.
    let c = &a[3]["contention"];
    assert_eq!((&c["kind"], &c["loss_weight"]), (&Value::from("merge"), &Value::from(0.0)));
    assert_eq!((&c["jobs"][0]["id"], &c["jobs"][1]["id"]), (&Value::from("a"), &Value::from("7")));
    assert_eq!(c["jobs"][0]["before_busbw_gb_per_s"], 60.0);
    assert!(c["jobs"][1]["before_busbw_gb_per_s"].as_f64() > Some(10.0), "its own prediction: {c}");
    assert!(c["shared_busbw_gb_per_s"].as_f64() <= c["alone_busbw_gb_per_s"].as_f64());
    assert_eq!(c["alone_busbw_gb_per_s"], a[3]["predicted_busbw_gb_per_s"]);
    for g in ["n0:0", "n1:0", "n0:1", "n1:1", "n2:0", "n3:0"] {
        assert!(!names(&a[3]["gpus"]).contains(&g), "{g} is taken");
    }
    let c = &a[4]["contention"];
    assert_eq!((&c["kind"], &c["loss_weight"]), (&Value::from("physical"), &Value::from(2.5)));
    // The host of three GPUs takes an even place beside whole hosts.
    let hosts: Vec<&str> = names(&a[5]["rank_order"]).iter().map(|g| &g[..2]).collect();
    assert_eq!(hosts.iter().position(|h| *h == "n3"), Some(16), "{hosts:?}");
    assert_eq!(names(&a[5]["pods"][3]), ["n3:0", "n3:1", "n3:2"]);
    assert_eq!(a[6]["error"]["code"], "constraints_leave_too_few", "{}", a[6]);
}

#[test]
fn hostile_request_lines_get_one_error_each_and_the_stream_goes_on() {
    let dir = folder();
    let many_jobs = format!(r#"{{"id":"J","gpus":2,"jobs":[{}1]}}"#, "1,".repeat(20_000));
    let many_pods = format!(r#"{{"id":"P","pods":[{}1]}}"#, "1,".repeat(70_000));
    let many_free = format!(r#"{{"id":"F","gpus":2,"free":[{}"n0:0"]}}"#, "\"n0:0\",".repeat(100_000));
    let wide = r#"{"gpus":2,"constraints":{"only_hosts":["n[0-99999999]"]}}"#;
    let deep = format!(r#"{{"gpus":2,"jobs":{}}}"#, "[".repeat(5000));
    let long = format!(r#"{{"id":3,"gpus":2,"search":"{}"}}"#, "x".repeat(1 << 20));
    let cases: Vec<(&str, &str)> = vec![
        ("unknown_gpu", r#"{"gpus":2,"jobs":[{"id":"a","gpus":["n9:0"]}]}"#),
        ("unknown_gpu", r#"{"gpus":2,"jobs":[{"id":"a","gpus":["n0:8"]}]}"#),
        ("duplicate_gpu", r#"{"gpus":2,"jobs":[{"id":"a","gpus":["n0:1","n0"]}]}"#),
        ("jobs_overlap", r#"{"gpus":2,"jobs":[{"id":"a","gpus":["n0:1"]},{"id":"b","gpus":["n0:1"]}]}"#),
        ("duplicate_job", r#"{"gpus":2,"jobs":[{"id":"a","gpus":["n0:1"]},{"id":"a","gpus":["n0:2"]}]}"#),
        ("job_gpu_is_free", r#"{"gpus":2,"free":["n0"],"jobs":[{"id":"a","gpus":["n0:1"]}]}"#),
        ("empty_job", r#"{"gpus":2,"jobs":[{"id":"a","gpus":[]}]}"#),
        ("bad_demand", r#"{"gpus":2,"jobs":[{"id":"a","gpus":["n0:1"],"demand_gb_per_s":-4}]}"#),
        ("bad_request", r#"{"gpus":2,"jobs":[{"id":"a","gpus":["n0:1"],"demand_gb_per_s":"4"}]}"#),
        ("bad_request", r#"{"gpus":2,"jobs":[{"id":"a","gpus":["n0:1"],"demand_gb_per_s":1e999}]}"#),
        ("bad_request", r#"{"gpus":2,"jobs":[{"id":"a","gpus":"n0:1"}]}"#),
        ("bad_request", r#"{"gpus":2,"jobs":[{"id":{},"gpus":["n0:1"]}]}"#),
        ("bad_request", r#"{"gpus":2,"jobs":[{"gpus":["n0:1"]}]}"#),
        ("bad_request", r#"{"gpus":2,"jobs":[{"id":"a"}]}"#),
        ("bad_request", r#"{"gpus":2,"jobs":[{"id":"a","gpus":["n0:1"],"dutty":1}]}"#),
        ("bad_duty", r#"{"gpus":2,"jobs":[{"id":"a","gpus":["n0:1"],"duty":1.5}]}"#),
        ("bad_request", r#"{"gpus":2,"slack":5}"#),
        ("bad_request", r#"{"gpus":2,"slack":"5"}"#),
        ("unknown_level", r#"{"gpus":2,"constraints":{"require_level":"leaf"}}"#),
        ("no_switches_allowed", r#"{"gpus":2,"constraints":{"switches_max":0}}"#),
        ("per_host_does_not_divide", r#"{"gpus":6,"constraints":{"per_host":4}}"#),
        ("bad_request", r#"{"gpus":8,"constraints":{"per_host":4,"uneven":true}}"#),
        ("groups_product", r#"{"gpus":8,"groups":[{"kind":"tensor","size":4}]}"#),
        ("bad_request", r#"{"gpus":8,"groups":[{"kind":"tensr","size":8}]}"#),
        ("bad_request", r#"{"gpus":2,"jobs":{"id":"a"}}"#),
        ("too_many_jobs", &many_jobs),
        ("too_many_pods", &many_pods),
        ("duplicate_gpu", &many_free),
        ("bad_request", wide),
        ("bad_request", &deep),
        ("unknown_search", &long),
        ("unknown_search", r#"{"gpus":2,"search":"exakt"}"#),
        ("bad_request", r#"{"gpus":2,"search":5}"#),
        ("empty_pod", r#"{"pods":[4,0]}"#),
        ("pods_sum", r#"{"gpus":8,"pods":[4,3]}"#),
        ("pods_sum", r#"{"gpus":8,"pods":[18446744073709551615,9]}"#),
        ("pod_too_large", r#"{"pods":[9]}"#),
        ("pods_do_not_fit", r#"{"pods":[5,5,5,5,5]}"#),
        ("bad_request", r#"{"pods":[]}"#),
        ("bad_request", r#"{"pods":[4.5]}"#),
        ("bad_request", r#"{"pods":[-4]}"#),
        ("bad_request", r#"{"pods":4}"#),
        ("bad_request", r#"{"gpus":2,"contention":"mrege"}"#),
        ("bad_loss_weight", r#"{"gpus":2,"loss_weight":-1}"#),
        ("bad_request", r#"{"gpus":2,"loss_weight":"1"}"#),
        ("unknown_host", r#"{"gpus":2,"constraints":{"only_hosts":["n7"]}}"#),
        ("bad_request", r#"{"gpus":2,"constraints":{"only_hosts":[]}}"#),
        ("bad_request", r#"{"gpus":2,"constraints":{"hosts":["n1"]}}"#),
        ("bad_request", r#"{"gpus":2,"constraints":["n1"]}"#),
        ("no_host_matches", r#"{"gpus":2,"constraints":{"gpu_type":"b300"}}"#),
        ("no_hosts_allowed", r#"{"gpus":2,"constraints":{"hosts_max":0}}"#),
        ("hosts_too_small", r#"{"gpus":2,"constraints":{"gpus_per_host_min":3}}"#),
        ("bad_request", r#"{"gpus":2,"constraints":{"exclusive_nics":1}}"#),
        ("bad_request", r#"{"gpus":2,"gpus":8}"#),
        ("bad_request", r#"{"gpus":2,"constraints":{"hosts_max":1,"hosts_max":2}}"#),
        ("bad_request", r#"[1,2]"#),
        ("-", r#"{"gpus":2}"#),
    ];
    let lines: Vec<&str> = cases.iter().map(|c| c.1).collect();
    let a = answers(dir.path(), &lines, &[]);
    assert_eq!(a.len(), cases.len());
    for (answer, (code, line)) in a.iter().zip(&cases) {
        let shown: String = line.chars().take(90).collect();
        assert_eq!(answer["error"]["code"].as_str().unwrap_or("-"), *code, "{shown}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap_or("-");
        assert!(!message.is_empty() && message.chars().count() < 420, "{message}");
    }
    let said = |i: usize| a[i]["error"]["message"].as_str().expect("a message").to_owned();
    assert!(said(7).contains("`a`") && said(7).contains("-4"), "{}", said(7));
    assert!(said(8).contains("`jobs[0].demand_gb_per_s` is \"4\""), "{}", said(8));
    assert!(said(31).contains("did you mean `exact`?"), "{}", said(31));
}

#[test]
fn flags_ask_what_request_lines_ask() {
    let dir = folder();
    let jobs = dir.path().join("jobs.json");
    std::fs::write(&jobs, r#"[{"id":"train-7","gpus":["n0:0","n1:0","n0:1","n1:1"],"demand_gb_per_s":120}]"#)
        .expect("written");
    let jobs = jobs.to_str().expect("utf-8");
    let flags =
        ["--pods", "4,4,4", "--exclude-hosts", "n3", "--jobs", jobs, "--contention", "merge", "--loss-weight", "0.5"];
    let more = [
        "--gpu-type",
        "H100",
        "--min-per-host",
        "4",
        "--max-hosts",
        "3",
        "--search",
        "exact",
        "--only-hosts",
        "n[0-2]",
    ];
    let all: Vec<&str> = flags.iter().chain(&more).copied().collect();
    let json: Value =
        serde_json::from_str(&stdout(&place(dir.path(), &[&all[..], &["--format", "json"]].concat()).success()))
            .expect("JSON");
    let line =
        r#"{"id":1,"pods":[4,4,4],"search":"exact","jobs":[{"id":"train-7","gpus":["n0:0","n1:0","n0:1","n1:1"],"demand_gb_per_s":120}],
        "loss_weight":0.5,"constraints":{"excluded_hosts":["n3"],"only_hosts":["n0","n1","n2"],"gpu_type":"H100",
        "gpus_per_host_min":4,"hosts_max":3,"exclusive_nics":false}}"#
            .replace('\n', " ");
    let by_line = answers(dir.path(), &[&line], &[]).remove(0);
    for key in ["gpus", "pods", "rank_order", "contention", "predicted_busbw_gb_per_s", "search"] {
        assert_eq!(json[key], by_line[key], "{key}");
    }
    let text = stdout(&place(dir.path(), &all).success());
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    for words in ["Pods: 0=n", "Rank order: ", "Beside 1 running job (merge contention):", "GB/s of", "exact search"] {
        assert!(text.split_whitespace().collect::<Vec<_>>().join(" ").contains(words), "{words}: {text}");
    }
    assert!(text.contains("train-7") || text.contains("No running job loses"), "{text}");
    // Wrong flags.
    let bad = |args: &[&str], code: i32, words: &str| {
        let a = place(dir.path(), args).code(code);
        let e = String::from_utf8_lossy(&a.get_output().stderr).replace("\n  ", " ");
        assert!(e.contains(words), "{e}");
    };
    bad(&["--gpus", "2", "--search", "exakt"], 2, "did you mean `exact`?");
    bad(&["--gpus", "2", "--only-hosts", "n8"], 2, "--only-hosts");
    bad(&["--gpus", "2", "--contention", "none"], 2, "`merge-counts` or `physical` was expected");
    bad(&["--gpus", "9", "--pods", "4,4"], 2, "together, but 9");
    bad(&["--pods", "4,x"], 2, "--pods");
    bad(&["--gpus", "9", "--max-hosts", "1"], 1, "1 host holds at most 8 GPUs");
    bad(&["--gpus", "2", "--jobs", "nothing.json"], 2, "nothing.json");
    bad(&["--gpus", "2", "--loss-weight=-1"], 2, "loss_weight");
    bad(&["--requests", "-", "--exclude-hosts", "n1"], 2, "cannot be used with");
}

#[test]
fn a_missing_model_file_is_an_error_that_says_how_to_make_one() {
    let out = linkwise().args(["place", "--cluster", "h100", "--model", "none.json", "--gpus", "8"]).output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2), "{said}");
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("none.json: there is no such file; `linkwise fit --store STORE"), "{said}");
}

#[test]
fn a_store_that_does_not_exist_is_not_created_by_fit() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = dir.path().join("none.db");
    linkwise().args(["fit", "--cluster", "h100", "-o", "x", "--store"]).arg(&store).assert().code(2);
    assert!(!store.exists());
}
