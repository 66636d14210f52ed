//! The status files of the NCCL plugin in the metrics.

mod common;

use common::Server;
use serde_json::{Value, json};
use server::Config;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// A file as the plugin writes it.
fn status(pid: u64, comms: &[Value]) -> Value {
    json!({"linkwise_status": 1, "at_unix_s": now(), "job": "0a", "host": "0b", "host_name": "n0", "pid": pid, "mode": "adaptive",
        "policy": "adaptive", "site_tuner": null, "stopped": false, "frozen": true, "changes": 2, "left_out": 0, "comms": comms})
}

fn comm(id: &str, arm: &str) -> Value {
    json!({"comm": id, "rank": 0, "ranks": 8, "nodes": 1, "leads": true, "calls": 9, "epoch": 3, "waits": 1,
        "longest_wait_us": 50_000, "waiting_us": null, "dropped": 0, "silent": [3, 5],
        "slots": [{"collective": "AllReduce", "size_bytes": 1_048_576, "arm": arm, "because": "faster"}]})
}

fn until(s: &Server, done: impl Fn(&str) -> bool) -> String {
    let start = Instant::now();
    loop {
        let said = s.get("/metrics");
        assert_eq!(said.status, 200, "{}", said.text);
        if done(&said.text) {
            return said.text;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{}", said.text);
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn the_plugins_communicators_are_metrics_and_hostile_files_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("status");
    let s = Server::with(1, |c| Config { plugin_status: Some(at.clone()), ..c });
    let missing = until(&s, |t| t.contains("linkwise_plugin_files_refused 1"));
    assert!(missing.contains("linkwise_gpus{state=\"free\"} 8"), "the other metrics are there without the folder");

    std::fs::create_dir(&at).unwrap();
    let write = |name: &str, text: &str| std::fs::write(at.join(name), text).unwrap();
    write("status-0b-7.json", &status(7, &[comm("0c", "RING/LL")]).to_string());
    let text = until(&s, |t| t.contains("linkwise_plugin_processes{state=\"live\"} 1"));
    for line in [
        "linkwise_plugin_epoch{comm=\"0c\",host=\"n0\",rank=\"0\"} 3.0",
        "linkwise_plugin_longest_wait_seconds{comm=\"0c\",host=\"n0\",rank=\"0\"} 0.05",
        "linkwise_plugin_silent_ranks{comm=\"0c\",host=\"n0\",rank=\"0\"} 2.0",
        "linkwise_plugin_arm{comm=\"0c\",collective=\"AllReduce\",size_bytes=\"1048576\",arm=\"RING/LL\"} 1.0",
        "linkwise_plugin_processes{state=\"frozen\"} 1",
        "linkwise_plugin_files_refused 0",
    ] {
        assert!(text.contains(line), "{line} is missing: {text}");
    }

    // Names that would end a line or a label, more communicators than have series, an old file, rubbish, a link, a pipe.
    let evil = "x\"} 1\nlinkwise_gpus{state=\"free\"} 77\n# EOF\u{1b}[31m\\";
    write("status-0b-8.json", &status(8, &[comm(evil, evil)]).to_string());
    let many: Vec<Value> = (0..2500).map(|i| comm(&format!("{i:x}"), "TREE/LL")).collect();
    write("status-0b-9.json", &status(9, &many).to_string());
    let mut old = status(10, &[comm("0d", "RING/LL")]);
    old["at_unix_s"] = json!(now() - 1000);
    write("status-0b-10.json", &old.to_string());
    write("status-rubbish.json", "{");
    write("status-deep.json", &"[".repeat(100_000));
    std::os::unix::fs::symlink("/dev/zero", at.join("status-zero.json")).unwrap();
    std::os::unix::fs::symlink(&at, at.join("status-folder.json")).unwrap();
    let text = until(&s, |t| t.contains("linkwise_plugin_processes{state=\"live\"} 3"));
    assert!(text.contains("linkwise_plugin_files_refused 4"), "{text}");
    assert!(text.contains("linkwise_plugin_processes{state=\"silent\"} 1") && !text.contains("comm=\"0d\""));
    assert!(text.lines().filter(|l| l.starts_with("linkwise_plugin_epoch{")).count() <= 2000);
    let left: f64 = text.lines().find_map(|l| l.strip_prefix("linkwise_plugin_left_out ")).unwrap().parse().unwrap();
    assert!(left >= 500.0, "{left}");
    assert_eq!(text.lines().filter(|l| l.starts_with("linkwise_gpus{state=\"free\"}")).count(), 1);
    assert_eq!(text.lines().filter(|l| *l == "# EOF").count(), 1);
    assert!(text.ends_with("# EOF\n") && !text.contains('\u{1b}'));
}
