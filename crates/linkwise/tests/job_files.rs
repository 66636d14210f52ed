//! What jobs leave, as scripts give it to linkwise: PyTorch's flight recorder and NCCL Inspector's metrics as readings, the plugin's traces in
//! Inspector's forms, and all of them as the plan of `tune profile`. The files are written here, so every time in them is simulated.

mod common;

use common::{Folder, linkwise, said};
use serde_json::Value;
use std::process::Command;

/// Exit code, standard output, and standard error in one line.
fn run(words: &[&str]) -> (i32, String, String) {
    let (code, out, err) = said(linkwise(words[0], &words[1..]));
    (code, out, err.replace("\n  ", " "))
}

fn json(words: &[&str]) -> Value {
    let (code, out, err) = run(&[words, &["--format", "json"]].concat());
    assert_eq!(code, 0, "{words:?}: {err}");
    serde_json::from_str(&out).unwrap()
}

/// One clear error: exit code 2, one line that names the file.
fn refused(words: &[&str], says: &str) {
    let (code, _, err) = run(words);
    assert_eq!(code, 2, "{words:?}: {err}");
    assert!(err.starts_with("error: ") && err.trim().lines().count() == 1 && err.contains(says), "{says}: {err}");
}

/// A dump of the flight recorder: 5 AllReduce of 64 MiB in `ms`, and 3 of 4 KiB over two of the four ranks.
fn flight_record(ms: f64) -> String {
    let entry = |i: u32, group: &str, elements: u64, duration: &str| {
        format!(
            r#"{{"record_id":{i},"process_group":["{group}",""],"collective_seq_id":{i},"op_id":{i},"profiling_name":"nccl:all_reduce",
            "input_sizes":[[{elements}]],"input_dtypes":["Float"],"output_sizes":[[{elements}]],"output_dtypes":["Float"],{duration}"is_p2p":false}}"#
        )
    };
    let large = (0..5).map(|i| entry(i, "0", 16 << 20, &format!("\"duration_ms\":{ms},")));
    let small = (5..8).map(|i| entry(i, "1", 1024, "\"duration_ms\":0.02,"));
    let entries: Vec<String> = large.chain(small).collect();
    format!(
        r#"{{"version":"2.10","entries":[{}],"pg_config":{{"0":{{"ranks":"[0, 1, 2, 3]"}},"1":{{"ranks":"[0, 1]"}}}}}}"#,
        entries.join(",")
    )
}

/// The plugin's trace of one rank of four: 5 AllReduce of 64 MiB and 4 AllGather of 16 MiB.
fn plugin_trace(rank: u32, us: f64) -> String {
    let mut out = format!(
        "{{\"kind\":\"process\",\"host\":\"00ab\",\"host_name\":\"n0\",\"pid\":{},\"local_rank\":{rank},\"profiler_api\":5}}\n\
         {{\"kind\":\"comm\",\"comm\":\"0a\",\"rank\":{rank},\"ranks\":4,\"nodes\":1}}\n",
        100 + rank
    );
    for call in 0..9u32 {
        let (collective, bytes, us) =
            if call < 5 { ("AllReduce", 64 << 20, us) } else { ("AllGather", 16 << 20, us / 2.0) };
        out += &format!(
            "{{\"kind\":\"launched\",\"comm\":\"0a\",\"rank\":{rank},\"collective\":\"{collective}\",\"size_bytes\":{bytes},\"call\":{call},\
             \"sequence\":{call},\"arm\":\"RING/LL128\",\"channels\":8,\"kernel_us\":{us}}}\n"
        );
    }
    out
}

/// Folders with the files of four ranks; the last to arrive has the shortest times.
fn site() -> Folder {
    let folder = Folder::new();
    for name in ["flight", "traces"] {
        std::fs::create_dir(folder.at(name)).unwrap();
    }
    for rank in 0..4u32 {
        let wait = f64::from(3 - rank) * 0.3;
        std::fs::write(folder.at(&format!("flight/nccl_trace_rank_{rank}")), flight_record(1.0 + wait)).unwrap();
        std::fs::write(
            folder.at(&format!("traces/trace-0ab-{}.jsonl", 100 + rank)),
            plugin_trace(rank, 1e3 * (1.0 + wait)),
        )
        .unwrap();
    }
    folder
}

/// Size, bus bandwidth and collective of the readings.
fn readings(answer: &Value) -> Vec<(u64, f64, String)> {
    let of = |r: &Value| {
        let collective = r["collective"].as_str().unwrap().to_owned();
        (r["size_bytes"].as_u64().unwrap(), r["busbw_gb_per_s"].as_f64().unwrap(), collective)
    };
    let mut all: Vec<_> = answer["readings"].as_array().unwrap().iter().map(of).collect();
    all.sort_by_key(|r| std::cmp::Reverse(r.0));
    all
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-3 * b
}

#[test]
fn the_same_job_gives_the_same_readings_from_every_form() {
    let site = site();
    let (store, flight, traces, inspector) =
        (site.at("s.db"), site.at("flight"), site.at("traces"), site.at("inspector"));
    let base = ["observe", "--store", &store, "--cluster", "h100", "--job", "j", "--gpus", "n0:[0-3]", "--simulated"];
    let observe = |form: &str, path: &str| json(&[&base[..], &[form, path]].concat());
    // 64 MiB by 3/2 in 1 ms.
    let busbw = f64::from(64 << 20) * 1.5 / 1e6;
    let of_flight = observe("--trace", &flight);
    let got = readings(&of_flight);
    assert_eq!((got.len(), got[0].0, got[0].2.as_str()), (1, 64 << 20, "all_reduce"), "{of_flight:#}");
    assert!(close(got[0].1, busbw) && of_flight["left_out"] == 3, "{of_flight:#}");

    let of_plugin = readings(&observe("--trace", &traces));
    assert_eq!(of_plugin.len(), 2);
    let (code, out, err) = run(&["tune", "inspector", &traces, "-o", &inspector]);
    assert!(code == 0 && out.contains("36 collectives of 4 processes, metrics of 4 GPUs"), "{out}{err}");
    let mut names: Vec<String> =
        std::fs::read_dir(&inspector).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(
        (names.len(), names[0].as_str(), names[4].as_str()),
        (8, "n0-pid100.log", "nccl_inspector_metrics_n0-GPU0.prom")
    );
    assert_eq!(readings(&observe("--inspector", &inspector)).len(), 2, "the JSON counts where both are");
    // Each form in a folder of its own, as Inspector leaves them.
    for (form, ending) in [("json", ".log"), ("metrics", ".prom")] {
        std::fs::create_dir(site.at(form)).unwrap();
        for name in names.iter().filter(|n| n.ends_with(ending)) {
            std::fs::copy(format!("{inspector}/{name}"), format!("{}/{name}", site.at(form))).unwrap();
        }
        let got = readings(&observe("--inspector", &site.at(form)));
        assert_eq!(got.len(), of_plugin.len(), "{form}: {got:?}");
        for (a, b) in got.iter().zip(&of_plugin) {
            assert!(a.0 == b.0 && a.2 == b.2 && close(a.1, b.1), "{form}: {a:?} {b:?}");
        }
    }
    // The store has them, marked as simulated.
    let list = json(&["readings", "list", "--store", &store, "--cluster", "h100"]);
    assert!(list.to_string().contains("flight recorder, median of 5 calls"), "{list:#}");
    assert!(list.to_string().contains("the GPU of 4 that waited least"), "{list:#}");
}

/// A restarted process: Prometheus refuses a scrape that has a series twice.
#[test]
fn a_gpu_whose_process_was_restarted_has_each_series_once_and_the_jobs_id() {
    let site = site();
    let (traces, output) = (site.at("traces"), site.at("inspector"));
    let restarted = plugin_trace(0, 2e3).replace("\"pid\":100", "\"pid\":777");
    std::fs::write(format!("{traces}/trace-0ab-777.jsonl"), restarted).unwrap();
    let (code, out, err) = run(&["tune", "inspector", &traces, "-o", &output, "--slurm-job", "4711"]);
    assert!(code == 0 && out.contains("45 collectives of 5 processes, metrics of 4 GPUs"), "{out}{err}");
    let mut series = std::collections::BTreeSet::new();
    for rank in 0..4 {
        let text = std::fs::read_to_string(format!("{output}/nccl_inspector_metrics_n0-GPU{rank}.prom")).unwrap();
        for line in text.lines() {
            let (labels, value) = line.rsplit_once(' ').unwrap();
            assert!(series.insert(labels.to_owned()), "twice: {labels}");
            assert!(labels.contains("slurm_job_id=\"4711\""), "{labels}");
            // 1.9 ms and 2 ms, five times each.
            if rank == 0 && labels.contains("exec_time") && labels.contains("collective=\"AllReduce\"") {
                assert!(close(value.parse().unwrap(), 1950.0), "{line}");
            }
        }
    }
    assert_eq!(series.len(), 4 * 2 * 2, "two collectives, bandwidth and time");
    let (code, _, err) = run(&["tune", "inspector", &traces, "-o", &site.at("new"), "--slurm-job", "a\"b"]);
    assert!(code == 2 && err.contains("Slurm's job id was expected, such as 4711"), "{err}");
}

/// What a user gave by mistake, or somebody by intent.
#[test]
fn files_that_are_none_are_refused_with_their_name_and_a_remedy() {
    let site = site();
    let (store, traces) = (site.at("s.db"), site.at("traces"));
    let base = ["observe", "--store", &store, "--cluster", "h100", "--job", "j", "--gpus", "n0:[0-3]"];
    let file = site.at("file");
    for (bytes, form, says) in [
        (&b"\x80\x02}q\x00X\x07\x00\x00\x00entriesq\x01]"[..], "--trace", "a Python pickle, which is not read"),
        (b"{\"entries\":[{]}", "--trace", "file: line 1, column 14: not a dump"),
        (b"{\"pg_config\":{\"0\":{\"ranks\":\"[0]\"}},\"entries\":[]}", "--trace", "TORCH_NCCL_ENABLE_TIMING=1"),
        (b"nccl_bus_bandwidth_gbs{nranks=\"x\"} 1\nmore", "--inspector", "line 1: `nranks`"),
        (b"nccl_bus_bandwidth_gbs{} 1\n", "--trace", "give it with --inspector"),
        (b"\x1f\x8b\x08\x00", "--inspector", "unpack it with gunzip"),
        (b"", "--inspector", "nothing to record"),
    ] {
        std::fs::write(&file, bytes).unwrap();
        refused(&[&base[..], &[form, &file]].concat(), says);
    }
    // Cut anywhere, a dump is an error or a whole file, and never a crash.
    let whole = flight_record(1.0);
    for at in (0..whole.len()).step_by(whole.len() / 16) {
        std::fs::write(&file, &whole[..at]).unwrap();
        assert_eq!(run(&[&base[..], &["--trace", &file]].concat()).0, 2, "cut at {at}");
    }
    assert!(!std::path::Path::new(&store).exists(), "a refused file makes no store");
    refused(&["tune", "inspector", &traces, "-o", &traces], "is not empty");
    std::fs::create_dir(site.at("empty")).unwrap();
    refused(&["tune", "inspector", &site.at("empty"), "-o", &site.at("new")], "hold no trace");
    refused(&[&base[..], &["--trace", &site.at("empty")]].concat(), "there is no file of a job in this folder");
}

/// Prints times of steps, the same for every arm.
const PROGRAM: &str = "#!/bin/sh\nfor i in $(seq $((LINKWISE_ITERATIONS + LINKWISE_WARMUP))); do echo linkwise_step_time_us=$LINKWISE_SIZE_BYTES; done\n";

#[test]
fn a_profile_measures_the_collective_and_sizes_that_cost_the_job_most() {
    let site = site();
    let (program, policy) = (site.script("step", PROGRAM), site.at("policy.json"));
    let profile = |path: &str, more: &[&str]| {
        let begin = [
            "tune",
            "profile",
            "--arms",
            "AUTO,RING/SIMPLE",
            "--iterations",
            "10",
            "--rounds",
            "1",
            "--restart",
            "-o",
            &policy,
        ];
        let words = [&begin[..], &["--job-trace", path], more, &["--", &program]].concat();
        let (code, _, err) = run(&words);
        assert_eq!(code, 0, "{err}");
        let file: Value = serde_json::from_str(&std::fs::read_to_string(&policy).unwrap()).unwrap();
        let sizes: Vec<u64> =
            file["isolated"].as_array().unwrap().iter().map(|l| l["size_bytes"].as_u64().unwrap()).collect();
        (file["provenance"]["collective"].as_str().unwrap().to_owned(), sizes, err)
    };
    // 5 x 1 ms of 64 MiB; 3 x 20 us of 4 KiB are 1.2 % of it.
    let (collective, sizes, err) = profile(&site.at("flight"), &[]);
    assert_eq!((collective.as_str(), sizes), ("all_reduce", vec![4096, 64 << 20]), "{err}");
    assert!(err.contains("job: 8 calls of all_reduce in dumps of PyTorch's flight recorder"), "{err}");
    // 5 x 1 ms and 4 x 0.5 ms: the other collective is named.
    let (collective, sizes, err) = profile(&site.at("traces"), &[]);
    assert_eq!((collective.as_str(), sizes), ("all_reduce", vec![64 << 20]));
    assert!(
        err.contains("are 71 % of the time of its collectives; all_gather is 29 %: profile it on its own"),
        "{err}"
    );
    let (collective, sizes, _) = profile(&site.at("traces"), &["--collective", "all_gather"]);
    assert_eq!((collective.as_str(), sizes), ("all_gather", vec![16 << 20]));
    let (_, sizes, _) = profile(&site.at("traces"), &["--sizes", "1M"]);
    assert_eq!(sizes, [1 << 20], "--sizes counts");
    refused(
        &[
            "tune",
            "profile",
            "--collective",
            "broadcast",
            "-o",
            &policy,
            "--job-trace",
            &site.at("traces"),
            "--",
            &program,
        ],
        "the job has no broadcast, it has all_gather, all_reduce",
    );
}

#[test]
fn traces_without_gpu_times_are_told_how_to_get_them() {
    let site = site();
    let folder = site.at("without");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(
        format!("{folder}/trace-0ab-1.jsonl"),
        plugin_trace(0, 1.0).replace("_us\":1}", "_us\":null}").replace("_us\":0.5}", "_us\":null}"),
    )
    .unwrap();
    let (code, _, err) = run(&["tune", "inspector", &folder, "-o", &site.at("new")]);
    assert!(code == 1 && err.contains("linkwise run --kernel-times"), "{err}");
}

/// A file of NVIDIA's NCCL repository in `LINKWISE_TEST_NCCL_SOURCE`; `None`, with a line, if it is not there.
fn of_inspector(test: &str, name: &str) -> Option<std::path::PathBuf> {
    let source = std::env::var_os("LINKWISE_TEST_NCCL_SOURCE").map(std::path::PathBuf::from);
    let path = source.map(|s| s.join("plugins/profiler/inspector").join(name)).filter(|p| p.is_file());
    if path.is_none() {
        eprintln!("SKIP {test}: LINKWISE_TEST_NCCL_SOURCE names no checkout of NVIDIA/nccl with {name}");
    }
    path
}

/// The exporter that comes with Inspector, unchanged.
#[test]
fn nvidias_exporter_reads_what_is_written_for_it() {
    let test = "nvidias_exporter_reads_what_is_written_for_it";
    let Some(exporter) = of_inspector(test, "exporter/example/perf_summary_exporter.py") else { return };
    let python = std::env::var_os("LINKWISE_TEST_PYTHON").unwrap_or("python3".into());
    let needs = "import pandas, tqdm, duckdb, matplotlib, pyarrow, numpy";
    if !Command::new(&python).args(["-c", needs]).output().is_ok_and(|o| o.status.success()) {
        return eprintln!("SKIP {test}: LINKWISE_TEST_PYTHON has not the exporter's packages ({needs})");
    }
    let site = site();
    let (code, _, err) = run(&["tune", "inspector", &site.at("traces"), "-o", &site.at("inspector")]);
    assert_eq!(code, 0, "{err}");
    let mut command = Command::new(&python);
    command.arg(exporter).args(["--input_dir", &site.at("inspector"), "--output_dir", &site.at("summary")]);
    let out = command.env("MPLBACKEND", "Agg").output().unwrap();
    let log = std::fs::read_to_string(site.at("summary/output.log")).unwrap_or_default();
    assert!(out.status.success() && !log.contains("ERROR"), "{}{log}", String::from_utf8_lossy(&out.stderr));
    // 5 AllReduce of 64 MiB on four ranks, each with the mean of the ranks' bandwidths.
    let table = site.at("summary/summary/msg_size_67108864_67.11MB/summary_nvlink-only_AllReduce_67108864.csv");
    let table = std::fs::read_to_string(&table).unwrap_or_else(|e| panic!("{table}: {e}: {log}"));
    let rows: Vec<Vec<&str>> = table.lines().map(|l| l.split(',').collect()).collect();
    let column = |name: &str| rows[0].iter().position(|c| *c == name).unwrap_or_else(|| panic!("{name}: {table}"));
    assert_eq!(rows.len(), 6, "{table}");
    let mean = (0..4).map(|wait| f64::from(64 << 20) * 1.5 / (1e6 * (1.0 + 0.3 * f64::from(wait)))).sum::<f64>() / 4.0;
    for row in &rows[1..] {
        let busbw: f64 = row[column("mean_coll_busbw_gbs")].parse().unwrap();
        assert!(close(busbw, mean) && row[column("log_count")] == "4", "{busbw} {mean}: {table}");
    }
}

/// Every question that the dashboard asks about collectives, with a line of ours that answers it. Sends and receives are not in our metrics.
#[test]
fn nvidias_dashboard_finds_the_series_that_it_asks_for() {
    let test = "nvidias_dashboard_finds_the_series_that_it_asks_for";
    let Some(dashboard) = of_inspector(test, "grafana/nccl-inspector-job-performance-template.json") else { return };
    let site = site();
    let (code, _, err) =
        run(&["tune", "inspector", &site.at("traces"), "-o", &site.at("inspector"), "--slurm-job", "7"]);
    assert_eq!(code, 0, "{err}");
    let text = std::fs::read_to_string(site.at("inspector/nccl_inspector_metrics_n0-GPU0.prom")).unwrap();
    let asked = std::fs::read_to_string(dashboard).unwrap().replace("\\\"", "\"");
    let mut questions = 0;
    // nccl_bus_bandwidth_gbs{cluster="$cluster", slurm_job_id="$jobid", collective="AllReduce", n_nodes="1"}
    for question in asked.split("(nccl_").skip(1).map(|q| q.split('}').next().unwrap()) {
        let (name, labels) = question.split_once('{').unwrap();
        let labels: Vec<(&str, &str)> = labels.split(", ").filter_map(|l| l.split_once('=')).collect();
        // Prometheus adds `cluster`; this job is on one host and has no Broadcast, and `n_nodes!=` is for the others.
        let ours = labels
            .iter()
            .all(|(k, v)| !k.ends_with('!') && (*k != "collective" || ["\"AllReduce\"", "\"AllGather\""].contains(v)));
        if name.starts_with("p2p_") || !ours {
            continue;
        }
        questions += 1;
        let answers = |line: &&str| {
            let has = |k: &str, v: &str| line.contains(&format!("{k}={}", v.replace("$jobid", "7")));
            line.starts_with(&format!("nccl_{name}{{")) && labels.iter().all(|(k, v)| *k == "cluster" || has(k, v))
        };
        let line = text.lines().find(answers).unwrap_or_else(|| panic!("{question}\n{text}"));
        assert!(line.contains("message_size=\"") && line.contains("nranks=\"4\""), "{line}");
    }
    assert_eq!(questions, 4, "bandwidth and time of AllReduce and AllGather");
}

#[test]
fn the_calls_of_a_job_are_described_with_counts_per_step() {
    let site = site();
    let described = |path: &str, more: &[&str]| json(&[&["tune", "calls", path], more].concat());
    let flight = described(&site.at("flight"), &["--steps", "5"]);
    let first = &flight["calls"][0];
    assert_eq!(
        (&first["collective"], &first["size_bytes"], &first["ranks"]),
        (&"all_reduce".into(), &(64 << 20).into(), &4.into())
    );
    assert_eq!(
        (&first["calls"], &first["calls_per_step"], &first["time_us"]),
        (&5.into(), &1.0.into(), &1000.0.into())
    );
    assert_eq!((&flight["steps"], &flight["calls"][1]["ranks"]), (&5.into(), &2.into()));
    assert_eq!(described(&site.at("flight"), &[])["calls"][0]["calls_per_step"], Value::Null, "it has no steps");
    // The plugin knows the steps that the job reported.
    let traces = site.at("traces");
    for entry in std::fs::read_dir(&traces).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text + &"{\"kind\":\"step\",\"time_us\":2000}\n".repeat(4)).unwrap();
    }
    let plugin = described(&traces, &[]);
    assert_eq!((&plugin["steps"], &plugin["calls"][0]["calls_per_step"]), (&4.into(), &1.25.into()), "{plugin:#}");
    let (code, text, _) = run(&["tune", "calls", &traces]);
    assert!(code == 0 && text.contains("traces of the NCCL plugin, 4 steps") && text.contains("all_gather"), "{text}");
    let (code, text, _) = run(&["tune", "calls", &site.at("flight")]);
    assert!(code == 0 && text.contains("an unknown number of steps (--steps N)"), "{text}");
}
