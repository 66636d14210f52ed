//! What the plugin wrote in the real NCCL library, on the bench, as `tune report` and `observe` read it. GPU times are scripted: kernels finish
//! at once there, and everything here is called simulated.

use nccl_bench::{Bench, BenchSpec, CallMode, SimulatedNode};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use topology::{Cluster, Collective, Host, HostId, catalog};

fn linkwise(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_linkwise")).args(args).current_dir(dir).env("NO_COLOR", "1").output().unwrap()
}

fn ok(dir: &Path, args: &[&str]) -> String {
    let o = linkwise(dir, args);
    assert_eq!(o.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&o.stderr));
    String::from_utf8(o.stdout).unwrap()
}

fn refused(dir: &Path, args: &[&str]) -> String {
    let o = linkwise(dir, args);
    let err = String::from_utf8(o.stderr).unwrap().replace("\n  ", " ");
    assert_eq!(o.status.code(), Some(2), "{args:?}: {err}");
    assert!(err.starts_with("error: ") && err.trim().lines().count() == 1, "one clear error: {err}");
    err
}

/// Traces of 8 ranks in 8 processes of an H100 host, 40 calls of 16 MiB; `None`, with a SKIP line, where the bench or the plugin cannot be had.
fn job(test: &str, folder: &Path, settings: &[(&str, &str)]) -> Option<()> {
    let library: PathBuf = std::env::current_exe().unwrap().parent().unwrap().join("liblinkwise_nccl.so");
    if !library.exists() {
        eprintln!("SKIP {test}: {} is not built (cargo test -p nccl-plugin builds it)", library.display());
        return None;
    }
    let types = vec![catalog::host_type("hgx-h100").unwrap()];
    let hosts = vec![Host { name: "n0".into(), ..Host::default() }];
    let cluster = Cluster { name: "test".into(), types, hosts, ..Cluster::default() };
    let nodes = vec![SimulatedNode { host: HostId(0), gpus: (0..8).collect(), nvlink_domain: None }];
    let mut s =
        BenchSpec::new(cluster, nodes, "2.28".parse().unwrap()).with_calls(&[Collective::AllReduce], &[16 << 20; 40]);
    (s.mode, s.process_per_rank, s.in_step_every) = (CallMode::Launch, true, 5);
    (s.tuner_plugin, s.profiler_plugin) = (Some(library.clone()), Some(library));
    let trace = ("TRACE", folder.to_str().unwrap());
    s.plugin_env = settings
        .iter()
        .chain([&trace, &("LEAD", "0")])
        .map(|(k, v)| (format!("LINKWISE_{k}"), v.to_string()))
        .collect();
    match Bench::new().and_then(|b| b.run(&s)) {
        Ok(_) => Some(()),
        Err(e) => {
            assert!(e.is_about_this_machine(), "{e}");
            eprintln!("SKIP {test}: {e}");
            None
        }
    }
}

#[test]
fn a_job_on_the_bench_is_observed_and_shows_up_in_the_store() {
    let name = "a_job_on_the_bench_is_observed_and_shows_up_in_the_store";
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    // The last arriver's 200 us are 16 MiB x 7/4 at 146.8 GB/s; all others wait.
    let kernels: String = ["NVLS/SIMPLE", "RING/SIMPLE", "RING/LL128", "TREE/LL128", "TREE/SIMPLE"]
        .iter()
        .map(|arm| format!("kernel AllReduce 24 {arm} 200\n"))
        .chain((0..7).map(|r| format!("waits {r} {}\n", 100 * (r + 1))))
        .collect();
    std::fs::write(d.join("script"), kernels).unwrap();
    let script = d.join("script");
    let settings =
        [("MODE", "observe"), ("KERNEL_TIMES", "0"), ("TEST", "1"), ("TEST_REWARDS", script.to_str().unwrap())];
    if job(name, &d.join("traces"), &settings).is_none() {
        return;
    }
    let report: Value = serde_json::from_str(&ok(
        d,
        &["tune", "report", "traces", "--cluster", "h100", "--gpus", "n0", "--format", "json"],
    ))
    .unwrap();
    let row = &report["rows"][0];
    assert_eq!(
        (row["calls"].as_u64(), row["ranks"].as_u64(), row["bytes"].as_u64()),
        (Some(40), Some(8), Some(40 << 24))
    );
    assert_eq!(row["auto_kernel_us"].as_f64(), Some(200.0));
    let busbw = row["busbw_gb_per_s"].as_f64().unwrap();
    assert!((busbw - 146.8).abs() < 0.1, "{busbw}");
    assert!(row["predicted"]["headroom"].as_f64().is_some(), "{}", row["predicted"]);
    assert!(ok(d, &["tune", "report", "traces"]).contains("SIMULATED"));

    let observe = ["observe", "--store", "S.db", "--cluster", "h100", "--job", "j", "--trace", "traces"];
    let e = refused(d, &observe);
    assert!(e.contains("has no host") && e.contains("--gpus names the job's GPUs"), "{e}");
    // As if these processes had run on the cluster's host.
    for f in std::fs::read_dir(d.join("traces")).unwrap().flatten() {
        let text = std::fs::read_to_string(f.path()).unwrap();
        let (first, rest) = text.split_once('\n').unwrap();
        let mut process: Value = serde_json::from_str(first).unwrap();
        process["host_name"] = "n0".into();
        std::fs::write(f.path(), format!("{process}\n{rest}")).unwrap();
    }
    let e = refused(d, &observe);
    assert!(e.contains("given by a test") && e.contains("--simulated"), "{e}");
    // What the launcher says of the job's hosts bounds what its user may have written.
    let e = refused(d, &[&observe[..], &["--simulated", "--within", "n[1-3]"]].concat());
    assert!(e.contains("names the host n0") && e.contains("n[1-3]"), "{e}");
    let e = refused(d, &[&observe[..], &["--simulated", "--within", "n[1-"]].concat());
    assert!(e.contains("--within"), "{e}");
    let within = ["--simulated", "--format", "json", "--within", "n[0-1]"];
    let answer: Value = serde_json::from_str(&ok(d, &[&observe[..], &within].concat())).unwrap();
    assert_eq!(answer["readings"].as_array().unwrap().len(), 1, "{answer}");
    assert_eq!(answer["readings"][0]["gpus"].as_array().unwrap().len(), 8, "{answer}");

    // The store shows it beside the model of the same GPUs.
    let args = [
        "nccl",
        "explain",
        "--cluster",
        "h100",
        "--gpus",
        "n0",
        "--sizes",
        "16MiB",
        "--store",
        "S.db",
        "--format",
        "json",
    ];
    let explained: Value = serde_json::from_str(&ok(d, &args)).unwrap();
    let measured = explained["cells"][0]["measured_busbw_gb_per_s"].as_f64().unwrap();
    assert!((measured - 146.8).abs() < 0.1, "{explained}");
}

#[test]
fn traces_without_gpu_times_or_of_other_ranks_are_refused_with_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let process = r#"{"kind":"process","host_name":"n0","visible_gpus":"0,1","local_rank":null,"mode":"observe","tuner_api":5,"profiler_api":5}"#;
    let comms = "{\"kind\":\"comm\",\"comm\":\"0a\",\"rank\":0,\"ordinal\":0,\"ranks\":2,\"nodes\":1}\n\
                 {\"kind\":\"comm\",\"comm\":\"0a\",\"rank\":1,\"ordinal\":1,\"ranks\":2,\"nodes\":1}\n";
    let ran = |rank: u32, call: u32| {
        format!(
            "{{\"kind\":\"launched\",\"comm\":\"0a\",\"rank\":{rank},\"collective\":\"ALLREDUCE\",\"size_bytes\":1048576,\"bucket\":20,\"call\":{call},\"arm\":\"RING/LL\",\"channels\":4,\"kernel_us\":50.0}}\n"
        )
    };
    let of_one: String = (0..5).map(|c| ran(0, c)).collect();
    let of_both: String = (0..5).map(|c| ran(0, c) + &ran(1, c)).collect();
    let observe = ["observe", "--store", "S.db", "--cluster", "h100", "--job", "j", "--trace", "t.jsonl"];
    for (text, more, what) in [
        (format!("{process}\n{comms}"), None, "linkwise run --kernel-times"),
        (
            format!("{}\n{comms}", process.replace("\"profiler_api\":5", "\"profiler_api\":0")),
            None,
            "did not load the plugin as its profiler",
        ),
        (
            format!("{process}\n{comms}{of_one}"),
            None,
            "GPU times of 1 of 2 ranks; give the folder with the traces of all hosts",
        ),
        (format!("{process}\n{comms}{of_both}"), Some("n0"), "no communicator has 8 ranks"),
        (
            format!("{process}\n{}", comms.lines().next().unwrap().to_owned() + "\n"),
            None,
            "rank 1 of 2 is in none of these traces",
        ),
        (format!("{}\n{comms}", process.replace("0,1", "GPU-a1b2")), None, "--gpus names them"),
        (format!("{process}\n"), None, "no communicator is in this trace"),
        (
            format!("{process}\n{comms}{}\n{process}\n", "{\"kind\":\"launched\",\"kernel_us\":-1}"),
            None,
            "line 4: `kernel_us` is -1",
        ),
    ] {
        std::fs::write(d.join("t.jsonl"), &text).unwrap();
        let more: Vec<&str> = more.iter().flat_map(|g| ["--gpus", g]).collect();
        let e = refused(d, &[&observe[..], &more].concat());
        assert!(e.contains(what), "{what}: {e}");
    }
    std::fs::write(d.join("t.jsonl"), format!("{process}\n{comms}{of_both}")).unwrap();
    let said = ok(d, &observe);
    assert!(
        said.contains("job j got 21.0 GB/s in all_reduce of 1MiB on n0:[0-1]") && said.contains("1 reading"),
        "{said}"
    );
}

#[test]
fn hostile_traces_end_in_one_error_that_says_where() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let good = "{\"kind\":\"process\",\"mode\":\"observe\",\"pid\":1}\n";
    for (text, what) in [
        (format!("{good}{}\n", "x".repeat(3 << 20)), "line 2: longer than 65536 bytes"),
        (format!("{good}{{\"kind\":\"sample\",\"time_us\":NaN}}\n"), "line 2: expected value"),
        (format!("{good}{{\"kind\":\"comm\",\"ranks\":-1}}\n"), "line 2: "),
        ("\u{0}\u{1}\u{2}\n\n".to_string(), "line 1: "),
        (good.trim_end().to_string() + "garbage\n", "line 1: trailing characters"),
    ] {
        std::fs::write(d.join("t.jsonl"), &text).unwrap();
        let e = refused(d, &["tune", "report", "t.jsonl"]);
        assert!(e.contains("t.jsonl: ") && e.contains(what), "{what}: {e}");
    }
    std::fs::write(d.join("t.jsonl"), format!("{good}{{\"kind\":\"sam")).unwrap();
    assert!(ok(d, &["tune", "report", "t.jsonl"]).contains("1 process with the plugin"), "a job that was killed");
}
