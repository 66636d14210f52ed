//! The metrics and rules with a real Prometheus, beside a server of DCGM's metrics that the test plays.

mod common;

use common::{Server, skip};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn files() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integrations/prometheus")
}

fn installed(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Answers every request with this text.
fn exporter(text: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 4096]);
            let head =
                "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\nconnection: close\r\ncontent-length";
            let _ = stream.write_all(format!("{head}: {}\r\n\r\n{text}", text.len()).as_bytes());
        }
    });
    at
}

/// The result of a query; none while there is none.
fn query(at: SocketAddr, expression: &str) -> Option<Vec<(Value, f64)>> {
    let mut c = TcpStream::connect(at).ok()?;
    let escaped: String = expression.bytes().map(|b| format!("%{b:02x}")).collect();
    let request = format!("GET /api/v1/query?query={escaped} HTTP/1.0\r\nhost: localhost\r\n\r\n");
    c.write_all(request.as_bytes()).ok()?;
    let text = common::read_all(&mut c);
    let v: Value = serde_json::from_str(text.split("\r\n\r\n").nth(1)?).ok()?;
    let rows = v["data"]["result"].as_array()?;
    let row = |r: &Value| Some((r["metric"].clone(), r["value"][1].as_str()?.parse().ok()?));
    rows.iter().map(row).collect::<Option<Vec<_>>>().filter(|r| !r.is_empty())
}

#[test]
fn a_real_prometheus_reads_the_metrics_and_finds_the_gpus_of_a_job_in_dcgms() {
    let test = "a_real_prometheus_reads_the_metrics_and_finds_the_gpus_of_a_job_in_dcgms";
    if !installed("prometheus") {
        return skip(test, "needs prometheus");
    }
    let folder = tempfile::tempdir().unwrap();
    let engine = common::engine_of(folder.path(), common::cluster_with_uuids(2));
    let s = Server::of(folder, engine, |c| c);
    s.post("/v1/allocations", &json!({"gpus": 12, "commit": "train"}));
    let gpus = s.get("/v1/allocations/train").json()["gpus"].clone();
    let held: Vec<&str> = gpus.as_array().unwrap().iter().map(|g| g.as_str().unwrap()).collect();
    // The GPUs of the job run at 80 % on the first host, whose name is another one to DCGM, and at 90 % on the second; all
    // others at 10 %.
    let on = |host: &str| held.iter().filter(|g| g.starts_with(host)).count() as f64;
    let average = (80.0 * on("n0:") + 90.0 * on("n1:")) / 12.0;
    assert!(on("n0:") > 0.0 && on("n1:") > 0.0, "{held:?}");
    let mut dcgm = "# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n".to_owned();
    for (host, gpu) in (0..2).flat_map(|h| (0..8).map(move |g| (h, g))) {
        let value = if held.contains(&format!("n{host}:{gpu}").as_str()) { 80 + 10 * host } else { 10 };
        let name = ["gpu-node-1.example", "n1"][host];
        dcgm +=
            &format!("DCGM_FI_DEV_GPU_UTIL{{gpu=\"{gpu}\",Hostname=\"{name}\",UUID=\"GPU-{host}-{gpu}\"}} {value}\n");
    }
    let folder = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = json!({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [files().join("rules.yml")],
        "scrape_configs": [
            {"job_name": "linkwise", "static_configs": [{"targets": [s.at.to_string()]}]},
            {"job_name": "dcgm", "static_configs": [{"targets": [exporter(dcgm).to_string()]}]}
        ]
    });
    std::fs::write(folder.path().join("prometheus.yml"), config.to_string()).unwrap(); // JSON is YAML
    let mut command = Command::new("prometheus");
    command
        .arg("--config.file=prometheus.yml")
        .arg("--storage.tsdb.path=data")
        .arg(format!("--web.listen-address={port}"))
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(folder.path().join("log")).unwrap());
    let _prometheus = Ends(command.spawn().unwrap());
    let start = Instant::now();
    let answer = |expression: &str| loop {
        if let Some(rows) = query(port, expression) {
            return rows;
        }
        let log = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
        assert!(start.elapsed() < Duration::from_secs(120), "no answer to {expression}: {log}");
        std::thread::sleep(Duration::from_millis(200));
    };
    let up = answer("up{job=\"linkwise\"} == 1");
    assert_eq!(up.len(), 1);
    assert_eq!(answer("linkwise_gpus{state=\"held\"}")[0].1, 12.0);
    let joined = answer("linkwise:job_gpu_utilisation:avg");
    assert_eq!((joined.len(), &joined[0].0["exported_job"]), (1, &json!("train")), "{joined:?}");
    assert!((joined[0].1 - average).abs() < 1e-6, "{joined:?}, not {average}");
    for _ in 0..20 {
        s.post("/v1/place", &json!({"gpus": 2}));
    }
    let rate = answer("linkwise:decisions:rate5m{outcome=\"placed\"} > 0");
    assert_eq!(rate.len(), 1);
    // Every expression of the dashboard is one that this Prometheus understands, of a metric that the server has.
    let dashboard: Value =
        serde_json::from_str(&std::fs::read_to_string(files().join("dashboard.json")).unwrap()).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let counted = format!("count({expression}) or vector(0)");
            assert_eq!(answer(&counted).len(), 1, "{expression}");
        }
    }
}

#[test]
fn promtool_finds_no_fault_in_the_rules_and_the_metrics() {
    if !installed("promtool") {
        return skip("promtool_finds_no_fault_in_the_rules_and_the_metrics", "needs promtool");
    }
    let check = |args: &[&str], input: &str| {
        let mut child = Command::new("promtool")
            .args(args)
            .current_dir(files())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let done = child.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
        (done.status.success(), told)
    };
    let (good, told) = check(&["check", "rules", "rules.yml"], "");
    assert!(good && !told.contains("FAILED"), "{told}");
    let (good, told) = check(&["test", "rules", "rules-test.yml"], "");
    assert!(good, "every alert fires when it should, and only then: {told}");
    let s = Server::new(2);
    s.post("/v1/allocations", &json!({"gpus": 4, "commit": "a"}));
    s.post("/v1/readings", &json!({"job": "a", "readings": [{"collective": "all_reduce", "busbw_gb_per_s": 40}]}));
    let text = s.get("/metrics").text;
    // promtool reads the older text form, in which the name of a counter's type line has the suffix, too.
    let mut older = String::new();
    let mut counter = String::new();
    for line in text.lines().filter(|l| *l != "# EOF") {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(name)) => counter = name.to_owned(),
            (Some("#"), Some("TYPE"), Some(name)) if line.ends_with(" counter") => {
                older = older.replace(&format!("# HELP {counter} "), &format!("# HELP {counter}_total "));
                older += &format!("# TYPE {name}_total counter\n");
                continue;
            }
            _ => {}
        }
        older += &format!("{line}\n");
    }
    let (good, told) = check(&["check", "metrics"], &older);
    assert!(good, "{told}\n{older}");
    // Every metric that the rules name is one of the server, or of DCGM.
    let rules = std::fs::read_to_string(files().join("rules.yml")).unwrap();
    for word in rules.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')) {
        if let Some(name) = word.strip_prefix("linkwise_") {
            let base = name.trim_end_matches("_bucket").trim_end_matches("_total");
            // A family without a series, such as suspects, is not in the text: its name is in the source.
            assert!(include_str!("../src/metrics.rs").contains(&format!("\"{base}\"")), "linkwise_{name}");
        }
    }
}
