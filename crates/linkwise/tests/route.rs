//! `linkwise route` as a user runs it. Plans are checked from outside: from the JSON alone.

use assert_cmd::Command;
use serde_json::Value;
use std::collections::BTreeMap;

fn linkwise(args: &[&str]) -> Command {
    let mut c = Command::cargo_bin("linkwise").expect("the program is built");
    c.args(args);
    c
}

fn out(args: &[&str]) -> String {
    let out = linkwise(args).assert().success().get_output().stdout.clone();
    String::from_utf8(out).expect("text")
}

fn refused(args: &[&str]) -> (i32, String) {
    let out = linkwise(args).assert().failure().get_output().clone();
    (out.status.code().expect("it exits"), String::from_utf8_lossy(&out.stderr).replace("\n  ", " "))
}

/// A demand file in a folder that is removed at the end.
struct File {
    _folder: tempfile::TempDir,
    path: String,
}

fn file(name: &str, text: &str) -> File {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("a file");
    File { path: path.display().to_string(), _folder: folder }
}

fn square(ranks: usize, cell: impl Fn(usize, usize) -> u64) -> String {
    let row = |i| (0..ranks).map(|j| cell(i, j).to_string()).collect::<Vec<_>>().join(",");
    (0..ranks).map(|i| row(i) + "\n").collect()
}

/// A scatter of bytes, from 0 to 100 MB.
fn scattered(i: usize, j: usize) -> u64 {
    if i == j { 0 } else { ((i * 7919 + j * 104_729 + 13) * 2_654_435_761 % 100_000) as u64 * 1000 }
}

/// Checks a plan against what it says of itself, and returns congestion and bound.
fn check(v: &Value, ranks: usize, demand: impl Fn(usize, usize) -> u64) -> (f64, f64) {
    let links = v["links"].as_array().expect("links");
    let mut load = vec![0.0; links.len()];
    let mut left: BTreeMap<(u64, u64), i64> = BTreeMap::new();
    for i in 0..ranks {
        for j in (0..ranks).filter(|&j| j != i) {
            left.insert((i as u64, j as u64), demand(i, j) as i64);
        }
    }
    for f in v["flows"].as_array().expect("flows") {
        let (src, dst, bytes) =
            (f["src"].as_u64().expect("src"), f["dst"].as_u64().expect("dst"), f["bytes"].as_u64().expect("bytes"));
        let hops: Vec<usize> =
            f["hops"].as_array().expect("hops").iter().map(|h| h.as_u64().expect("an index") as usize).collect();
        assert!(hops.windows(2).all(|w| links[w[0]]["to"] == links[w[1]]["from"]), "a broken path: {f}");
        // Ranks are GPUs in host order, four or eight a host.
        let per_host = if ranks == 32 { 8 } else { ranks.min(4) };
        let name = |r: u64| format!("n{}:{}", r as usize / per_host, r as usize % per_host);
        assert_eq!(links[hops[0]]["from"], name(src).as_str());
        assert_eq!(links[hops[hops.len() - 1]]["to"], name(dst).as_str());
        hops.iter().for_each(|&h| load[h] += bytes as f64);
        *left.get_mut(&(src, dst)).expect("a pair of ranks") -= bytes as i64;
    }
    assert!(left.values().all(|&b| b == 0), "bytes are lost or made");
    let seconds = |l: usize| load[l] / (links[l]["capacity_gb_per_s"].as_f64().expect("a rate") * 1e9);
    let congestion = (0..links.len()).map(seconds).fold(0.0, f64::max);
    let said = v["congestion_s"].as_f64().expect("congestion");
    let bound = v["lower_bound_s"].as_f64().expect("a bound");
    assert!((congestion / said - 1.0).abs() < 1e-9, "{congestion} and {said}");
    assert!((seconds(v["bottleneck"].as_u64().expect("a link") as usize) / said - 1.0).abs() < 1e-9);
    assert!(bound <= said * (1.0 + 1e-12) && (v["gap"].as_f64().expect("a gap") - (said / bound - 1.0)).abs() < 1e-9);
    (said, bound)
}

fn planned(path: &str, cluster: &str, more: &[&str]) -> Value {
    let args = [&["route", "plan", path, "--cluster", cluster, "--format", "json"], more].concat();
    serde_json::from_str(&out(&args)).expect("one JSON object")
}

#[test]
fn a_plan_can_be_checked_from_its_json_alone() {
    for (cluster, ranks) in [("mesh4", 4), ("rails2x4", 8), ("rails4x8", 32)] {
        let f = file("d.csv", &square(ranks, scattered));
        let v = planned(&f.path, cluster, &[]);
        let (congestion, _) = check(&v, ranks, scattered);
        for (name, rule) in v["baselines"].as_object().expect("baselines") {
            assert!(congestion <= rule.as_f64().expect("seconds") * 1.0001, "{name} is better on {cluster}");
        }
        assert_eq!(v["baselines"].as_object().expect("baselines").len(), 5);
        assert!(v["planning_us"].as_f64().expect("a time") > 0.0 && v["gap"].as_f64().expect("a gap") < 0.01);
        for planner in ["mwu", "mwu-sum", "exact", "stripe"] {
            let (other, _) = check(&planned(&f.path, cluster, &["--planner", planner]), ranks, scattered);
            assert!(other * 1.006 >= congestion, "{planner} beats linkwise on {cluster}");
        }
    }
}

#[test]
fn the_network_plugin_reads_a_plan_and_gives_every_rail_its_load() {
    let f = file("d.csv", &square(8, |i, j| if (i, j) == (0, 5) { 400_000_000 } else { scattered(i, j) }));
    let text = out(&["route", "plan", &f.path, "--cluster", "rails2x4", "--format", "json"]);
    let address = |host: usize| format!("10.0.0.{host}").parse::<std::net::IpAddr>().expect("an address");
    let hosts = [("n0".to_owned(), address(0)), ("n1".to_owned(), address(1))];
    let table = net::plan::routes::table(&text, &hosts).expect("a table");
    let v: Value = serde_json::from_str(&text).expect("one JSON object");
    for (from, to) in [(0, 1), (1, 0)] {
        // What leaves the host over a rail, from the links alone.
        let load = |rail: usize| {
            let links = v["links"].as_array().expect("links").iter();
            let own = |l: &&Value| {
                l["to"] == format!("rail{rail}").as_str()
                    && l["from"].as_str().expect("a name").starts_with(&format!("n{from}:"))
            };
            links.filter(own).map(|l| l["bytes"].as_f64().expect("bytes")).sum::<f64>()
        };
        let (loads, shares): (Vec<f64>, Vec<f64>) = (0..4)
            .map(|rail| (load(rail), f64::from(table.share(&[address(from)], &[address(to)], rail, false))))
            .unzip();
        let (all, sum) = (loads.iter().sum::<f64>(), shares.iter().sum::<f64>());
        assert!(
            all > 1e8 && loads.iter().zip(&shares).all(|(l, s)| (l / all - s / sum).abs() < 1e-4),
            "{loads:?} {shares:?}"
        );
    }
    let e = net::plan::routes::table(&text, &hosts[..1]).expect_err("n1 has no address");
    assert!(e.contains("add n1=ADDRESS to LINKWISE_NET_HOSTS"), "{e}");
    let inside =
        out(&["route", "plan", &file("d.csv", &square(4, scattered)).path, "--cluster", "mesh4", "--format", "json"]);
    let e = net::plan::routes::table(&inside, &hosts).expect_err("one host");
    assert!(e.contains("no flow of the plan goes over a rail"), "{e}");
}

#[test]
fn known_optima_come_out_exactly() {
    let hot_pair = file("d.csv", &square(4, |i, j| if (i, j) == (0, 1) { 360_000_000 } else { 0 }));
    let v = planned(&hot_pair.path, "mesh4", &[]);
    let over = |v: &Value, rule: &str| {
        v["baselines"][rule].as_f64().expect("seconds") / v["lower_bound_s"].as_f64().expect("a bound")
    };
    assert!((over(&v, "direct") - 3.0).abs() < 1e-6);
    let hot_rank = file("d.csv", &square(8, |i, j| if j == 0 && i != 0 { 64 << 20 } else { 0 }));
    let v = planned(&hot_rank.path, "rails2x4", &[]);
    assert!((over(&v, "destination-rail") - 4.0).abs() < 1e-6 && v["gap"].as_f64().expect("a gap") < 1e-5);
    let balanced = file("d.csv", &square(8, |i, j| if i == j { 0 } else { 64 << 20 }));
    let v = planned(&balanced.path, "rails2x4", &[]);
    assert!((over(&v, "direct") - 1.0).abs() < 1e-6);
    assert_eq!((v["rule"].as_str(), v["exceptions"].as_u64()), (Some("direct"), Some(0)));
}

#[test]
fn small_messages_stay_on_the_direct_path_and_large_ones_do_not() {
    let flows = |bytes: u64| {
        let f = file("d.csv", &square(4, |i, j| if (i, j) == (0, 1) { bytes } else { 0 }));
        planned(&f.path, "mesh4", &[])["flows"].as_array().expect("flows").len()
    };
    assert_eq!((flows(64 << 10), flows(1 << 20), flows(64 << 20)), (1, 1, 3));
}

#[test]
fn slow_and_dead_links_are_planned_around() {
    let f = file("d.csv", &square(8, scattered));
    let links = ["--link", "n0:2>rail2=x0.5", "--link", "n0:0>n0:1=0", "--link", "rail3>n1:3=0"];
    let v = planned(&f.path, "rails2x4", &links);
    check(&v, 8, scattered);
    for l in v["links"].as_array().expect("links") {
        assert!(
            l["capacity_gb_per_s"].as_f64() > Some(0.0) || l["bytes"].as_u64() == Some(0),
            "bytes over a dead link: {l}"
        );
    }
    let slow = v["links"]
        .as_array()
        .expect("links")
        .iter()
        .find(|l| l["from"] == "n0:2" && l["to"] == "rail2")
        .expect("the NIC");
    assert_eq!(slow["capacity_gb_per_s"], 22.55);
    // No path at all: the request cannot be met.
    let all: Vec<String> = (0..4).map(|k| format!("n0:{k}>rail{k}=0")).collect();
    let cut: Vec<&str> = all.iter().flat_map(|l| ["--link", l.as_str()]).collect();
    let (code, message) = refused(&[&["route", "plan", &f.path, "--cluster", "rails2x4"], &cut[..]].concat());
    assert_eq!(code, 1, "{message}");
    assert!(message.contains("n0:0") && message.contains("no path"), "{message}");
}

#[test]
fn a_relays_own_limit_is_a_link_of_its_own() {
    let demand = |i: usize, j: usize| if (i, j) == (0, 1) { 300_000_000 } else { 0 };
    let f = file("d.csv", &square(4, demand));
    let v = planned(&f.path, "mesh4", &["--relay-write", "30"]);
    let (congestion, _) = check(&v, 4, demand);
    // 120 direct and 30 over each of two relays.
    assert!((congestion - 0.3 / 180.0).abs() < 1e-6, "{congestion}");
}

#[test]
fn cluster_files_are_planned_on_too() {
    let yaml = out(&["topology", "show", "2xhgx-h100", "--format", "yaml"]);
    let cluster = file("cluster.yaml", &yaml);
    let f = file("d.csv", &square(16, scattered));
    let v = planned(&f.path, &cluster.path, &[]);
    assert!(v["gap"].as_f64().expect("a gap") < 0.01, "{}", v["gap"]);
}

#[test]
fn bad_demands_are_pointed_at() {
    for (text, cluster, says) in [
        ("0,5\n7,x\n", "mesh4", "2:3"),
        ("0,5\n7\n", "mesh4", "1 numbers"),
        ("0,5\n7,0\n", "mesh4", "2 ranks"),
        ("{\"bytes\":[[0,5],[7,}", "mesh4", "1:20"),
        ("", "mesh4", "0 lines of 0 numbers"),
        ("0\t1\t2\t3\t4\t5\t\t1\t1\t1\t1\t1\t1\n", "rails2x4", "--ep 8"),
    ] {
        let f = file("d.csv", text);
        let (code, message) = refused(&["route", "plan", &f.path, "--cluster", cluster]);
        assert_eq!(code, 2, "{text:?}: {message}");
        assert!(message.contains(says), "{text:?}: {message}");
    }
    let f = file("d.csv", &square(4, |_, _| 1));
    for (args, says) in [
        (&["--cluster", "mesh5"][..], "rails2x4"),
        (&["--cluster", "rails2x"], "did you mean `rails2x4`?"),
        (&["--cluster", "mesh4", "--planner", "best"][..], "destination-rail"),
        (&["--cluster", "mesh4", "--link", "n0:0>n0:9=3"][..], "n0:9"),
        (&["--cluster", "mesh4", "--link", "n0:0=3"][..], "FROM>TO"),
        (&["--cluster", "mesh4", "--relay-read", "-3"][..], "-3"),
        (&["--cluster", "litegd-64"][..], "64"),
    ] {
        let (code, message) = refused(&[&["route", "plan", &f.path], args].concat());
        assert_eq!(code, 2, "{args:?}: {message}");
        assert!(message.contains(says), "{args:?}: {message}");
    }
}

#[test]
fn text_and_drawing_name_the_links() {
    let f = file("d.csv", &square(8, scattered));
    let text = out(&["route", "plan", &f.path, "--cluster", "rails2x4"]);
    for word in ["within", "proof", "stripe", "rail2", "utilisation", "none is measured"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let svg = out(&["route", "plan", &f.path, "--cluster", "rails2x4", "--format", "svg"]);
    let svg = roxmltree::Document::parse(&svg).expect("SVG");
    assert!(svg.descendants().any(|n| n.text().is_some_and(|t| t.contains("rail2"))));
}

#[test]
fn a_job_on_a_few_gpus_of_a_site_of_1280_hosts_has_a_plan_and_all_gpus_are_refused_with_the_remedy() {
    let site = file("site.yaml", "name: site\nhosts:\n- {name: 'gpu-[0001-1280]', type: hgx-h100}\n");
    let demand = file("demand.csv", &square(4, scattered));
    let plan = |gpus: &[&str]| {
        let args = ["route", "plan", &demand.path, "--cluster", &site.path, "--format", "json"];
        args.iter().chain(gpus).map(|a| (*a).to_owned()).collect::<Vec<_>>()
    };
    let args = plan(&["--gpus", "gpu-[0007,0900]:[2-3]"]);
    let v: Value = serde_json::from_str(&out(&args.iter().map(String::as_str).collect::<Vec<_>>())).expect("JSON");
    assert!(!v["flows"].as_array().expect("flows").is_empty());
    assert!(v["links"].to_string().contains("gpu-0900:3") && !v["links"].to_string().contains("gpu-0001"), "{v}");
    for (gpus, expected) in
        [(&[][..], "--gpus"), (&["--gpus", "gpu-0007"], "name 4 GPUs with --gpus"), (&["--gpus", "x"], "--gpus: ")]
    {
        let args = plan(gpus);
        let (code, said) = refused(&args.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(code == 2 && said.contains(expected), "{said}");
    }
}
