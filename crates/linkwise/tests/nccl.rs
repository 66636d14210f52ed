//! `linkwise nccl` as a user runs it.

use assert_cmd::Command;
use serde_json::Value;

fn linkwise(args: &[&str]) -> Command {
    let mut c = Command::cargo_bin("linkwise").expect("the program is built");
    c.args(args);
    c
}

fn json(args: &[&str]) -> Value {
    let out = linkwise(args).assert().success().get_output().stdout.clone();
    serde_json::from_slice(&out).expect("one JSON object")
}

/// Exit code and message of a call that must fail.
fn refused(args: &[&str]) -> (i32, String) {
    let out = linkwise(args).assert().failure().get_output().clone();
    (out.status.code().expect("it exits"), String::from_utf8_lossy(&out.stderr).replace("\n  ", " "))
}

/// `nccl advise` on GPUs of the h100 cluster for one size.
fn advise(gpus: &str, release: &str, size: &str, more: &[&str]) -> Value {
    let base = ["nccl", "advise", "--cluster", "h100", "--gpus", gpus, "--nccl", release, "--sizes", size];
    json(&[&base[..], &["--format", "json"], more].concat())
}

const THREE_TIMES_THREE: &str = "n0:0 n0:1 n0:2 n1:0 n1:1 n1:2 n2:0 n2:1 n2:2";
const EIGHT_AND_THREE: &str = "n0 n1:0 n1:1 n1:2";

#[test]
fn every_size_is_a_cell_with_what_nccl_would_choose() {
    let v = json(&[
        "nccl",
        "explain",
        "--cluster",
        "h100",
        "--gpus",
        EIGHT_AND_THREE,
        "--nccl",
        "2.27",
        "--format",
        "json",
    ]);
    let cells = v["cells"].as_array().expect("cells");
    assert_eq!(cells.len(), 12);
    for c in cells {
        assert_eq!((c["collective"].as_str(), c["source"].as_str()), (Some("all_reduce"), Some("model")));
        assert!(c["size_bytes"].is_u64() && c["channels"].as_u64().is_some_and(|n| (1..=64).contains(&n)), "{c}");
        assert!(c["algorithm"].is_string() && c["protocol"].is_string());
        assert!(
            c["time_us"].as_f64().is_some_and(|t| t > 0.0)
                && c["expected_busbw_gb_per_s"].as_f64().is_some_and(|b| b > 0.0)
        );
    }
    // The published 2 GiB table has 226 GB/s for 8+3, a tree over two hosts.
    let last = cells.last().expect("a cell");
    assert_eq!(last["algorithm"], "Tree");
    let expected = last["expected_busbw_gb_per_s"].as_f64().expect("a number");
    assert!((200.0..250.0).contains(&expected), "{expected}");
}

#[test]
fn the_order_of_hosts_is_part_of_the_question() {
    let ask = |gpus: &str| {
        let v = json(&[
            "nccl",
            "explain",
            "--cluster",
            "h100",
            "--gpus",
            gpus,
            "--sizes",
            "2GiB",
            "--nccl",
            "2.27",
            "--format",
            "json",
        ]);
        (v["hosts"].clone(), v["cells"][0]["expected_busbw_gb_per_s"].as_f64().expect("a number"))
    };
    let (three_last, odd) = ask("n0 n1 n2 n3:0 n3:1 n3:2");
    let (three_third, even) = ask("n0 n1 n3:0 n3:1 n3:2 n2");
    assert_eq!((&three_last[3]["host"], &three_third[2]["host"]), (&"n3".into(), &"n3".into()));
    assert!(even > 1.2 * odd, "a host of three in an even place avoids crossing NICs: {even} and {odd}");
}

#[test]
fn releases_are_compared_and_only_changes_are_listed() {
    let v = json(&["nccl", "explain", "--cluster", "h100", "--diff", "2.24..2.32", "--format", "json"]);
    for c in v["changes"].as_array().expect("changes") {
        let way = |side: &str| [c[side]["algorithm"].clone(), c[side]["protocol"].clone(), c[side]["channels"].clone()];
        assert_ne!(way("before"), way("after"));
    }
}

#[test]
fn wrong_questions_are_refused_with_what_would_be_right() {
    for (args, says) in [
        (&["--cluster", "h100", "--collective", "alltoall"][..], "all_gather"),
        (&["--cluster", "h100", "--nccl", "2.5"][..], "2.21"),
        (&["--cluster", "h100", "--nccl", "two"][..], "2.28"),
        (&["--cluster", "h100", "--gpus", "n9:0"][..], "no host `n9`"),
        (&["--cluster", "h100", "--gpus", "n0:0"][..], "1 GPU"),
        (&["--cluster", "h100", "--gpus", "n0:0 n0:0"][..], "twice"),
        (&["--cluster", "h100", "--diff", "2.32..2.24"][..], "older"),
        (&["--cluster", "h101"][..], "did you mean `h100`"),
    ] {
        let (code, message) = refused(&[&["nccl", "explain"], args].concat());
        assert_eq!(code, 2, "{args:?}: {message}");
        assert!(message.contains(says), "{args:?}: {message}");
    }
}

#[test]
fn channels_that_divide_are_advised_where_copies_do_not() {
    let v = advise(THREE_TIMES_THREE, "2.27", "2GiB", &["--unchecked"]);
    assert!(v["limited_by"].as_str().is_some_and(|l| l.contains("6 of 16 channels")), "{v}");
    let advice = v["advice"].as_array().expect("a list");
    let channels = advice.iter().find(|a| a["settings"][0]["name"] == "NCCL_MIN_NCHANNELS").expect("a channel count");
    let value: u32 = channels["settings"][0]["value"].as_str().and_then(|v| v.parse().ok()).expect("a number");
    assert!(value.is_multiple_of(6), "{channels}");
    assert!(channels["gain"].as_f64().is_some_and(|g| g > 0.05), "{channels}");
    assert_eq!((&channels["gain_source"], &channels["checked_in_library"]), (&"model".into(), &false.into()));
}

/// The real library, if this machine can have it.
fn bench(test: &str) -> bool {
    let ready = nccl_bench::Bench::new().and_then(|b| {
        let cluster = topology::catalog::cluster("h100").expect("built in");
        let nodes = vec![nccl_bench::SimulatedNode::new(topology::HostId(0), topology::GpuMask::first(2))];
        b.run(&nccl_bench::BenchSpec::new(cluster, nodes, topology::nccl::Version::new(2, 28, 9)))
    });
    match ready {
        Ok(_) => true,
        Err(e) if e.is_about_this_machine() => {
            eprintln!("SKIP {test}: {e}");
            false
        }
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn the_library_itself_says_what_the_model_says() {
    if !bench("the_library_itself_says_what_the_model_says") {
        return;
    }
    let ask = |more: &[&str]| {
        let base =
            ["nccl", "explain", "--cluster", "h100", "--gpus", EIGHT_AND_THREE, "--nccl", "2.28.9", "--format", "json"];
        json(&[&base[..], &["--sizes", "64KiB,1MiB,64MiB,2GiB"], more].concat())
    };
    let (model, exact) = (ask(&[]), ask(&["--exact"]));
    assert_eq!((&model["source"], &exact["source"]), (&"model".into(), &"bench".into()));
    for (m, e) in model["cells"].as_array().expect("cells").iter().zip(exact["cells"].as_array().expect("cells")) {
        assert_eq!(e["source"], "bench");
        for field in ["collective", "algorithm", "protocol", "channels"] {
            assert_eq!(m[field], e[field], "{field} at {}", m["size_bytes"]);
        }
    }
}

#[test]
fn settings_are_tried_in_the_library_and_those_without_effect_are_named() {
    if !bench("settings_are_tried_in_the_library_and_those_without_effect_are_named") {
        return;
    }
    let gpus = "n0:0 n0:1 n1:0 n1:1";
    let v = advise(gpus, "2.28.9", "256MiB", &[]);
    for a in v["advice"].as_array().expect("a list") {
        assert_eq!(a["checked_in_library"], true, "{a}");
        assert!(a["effect"].as_str().is_some_and(|e| e.contains(" becomes ")), "{a}");
    }
    let tried = v["advice"].as_array().map_or(0, Vec::len) + v["without_effect"].as_array().map_or(0, Vec::len);
    assert!(tried >= 3, "CROSS_NIC has three values: {v}");
}

#[test]
fn a_cold_start_needs_no_measurement_and_places() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = dir.path().join("cold.json").display().to_string();
    linkwise(&["fit", "--cluster", "h100", "--model", "nccl", "-o", &model]).assert().success();
    let (code, message) = refused(&["fit", "--cluster", "h100", "--model", "gp", "-o", &model]);
    assert!(code == 2 && message.contains("--store"), "{message}");
    let v = json(&[
        "place",
        "--cluster",
        "h100",
        "--model",
        &model,
        "--gpus",
        "8",
        "--nccl",
        "2.28",
        "--format",
        "json",
        "--free",
        "n0:0 n0:1 n0:2 n0:3 n0:4 n0:5 n1:0 n1:1 n1:2 n1:3",
    ]);
    assert_eq!((&v["model"], &v["split"]), (&"nccl".into(), &"4+4".into()), "4+4 has twice the bandwidth of 6+2");
    assert!(v["nccl"]["settings"].is_array(), "{v}");
}

#[test]
fn a_gain_that_was_measured_is_said_to_be_measured() {
    if !bench("a_gain_that_was_measured_is_said_to_be_measured") {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("s.db");
    let cluster = topology::catalog::cluster("h100").expect("built in");
    let hosts = (0..3).map(|h| (topology::HostId(h), topology::GpuMask::first(3)));
    let mut store = store::Store::create(&path, &cluster).expect("a store");
    for (algorithm, channels, gb_per_s) in [("RING", 16, 131.0), ("RING", 24, 146.0)] {
        let mut m = store::Measurement::new(
            topology::Allocation::new(hosts.clone()),
            topology::Collective::AllReduce,
            topology::Bytes::gib(2),
            topology::Bandwidth::from_gb_per_s(gb_per_s),
            store::Source::Simulated,
        );
        m.algorithm = Some(algorithm.into());
        m.channels = Some(channels);
        store.insert(&store::Record { run_id: None, measurement: m }).expect("inserted");
    }
    drop(store);
    let v = advise(THREE_TIMES_THREE, "2.27", "2GiB", &["--store", &path.display().to_string()]);
    let advice = v["advice"].as_array().expect("a list");
    let of = |value: &str| {
        advice.iter().find(|a| a["settings"][0]["value"] == value).unwrap_or_else(|| panic!("{value}: {v}"))
    };
    assert_eq!((&of("24")["gain_source"], &of("30")["gain_source"]), (&"measured".into(), &"model".into()));
    assert!(of("24")["gain"].as_f64().is_some_and(|g| (g - (146.0 / 131.0 - 1.0)).abs() < 1e-9), "{}", of("24"));
}
