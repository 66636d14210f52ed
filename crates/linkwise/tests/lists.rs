//! Lists of hosts and GPUs on a cluster of 64 hosts: short, at most 80 columns wide, and accepted by every option.

use assert_cmd::Command;
use serde_json::Value;
use std::path::Path;

/// Columns of text without a terminal.
const WIDTH: usize = 80;

fn linkwise(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let out = Command::cargo_bin("linkwise").expect("built").current_dir(dir).args(args).output().expect("runs");
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    (out.status.code().unwrap_or(-1), text(&out.stdout), text(&out.stderr).replace("\n  ", " "))
}

fn ok(dir: &Path, args: &[&str]) -> String {
    let (code, out, err) = linkwise(dir, args);
    assert_eq!(code, 0, "{args:?}: {err}");
    out
}

/// The text is no wider than a terminal without a terminal, and no line ends in blanks.
fn fits(text: &str) {
    for l in text.lines() {
        assert!(l.chars().count() <= WIDTH, "{} columns: {l}\nin\n{text}", l.chars().count());
        assert_eq!(l, l.trim_end(), "blanks at the end of a line of\n{text}");
    }
}

/// A cluster of 64 hosts with four GPUs each, and a model of it.
fn site() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let d = dir.path();
    let yaml = "name: site\nhosts:\n  - {name: 'n[0-63]', type: hgx-h100}\n";
    std::fs::write(d.join("site.yaml"), yaml).expect("written");
    let measure = ["measure", "--cluster", "site.yaml", "--backend", "simulated", "--store", "s.db", "--samples", "20"];
    ok(d, &[&measure[..], &["--idle", "n[0-7]:[0-7]", "--no-intra"]].concat());
    ok(d, &["fit", "--cluster", "site.yaml", "--store", "s.db", "--model", "bound", "-o", "m.json"]);
    dir
}

/// What stands between `head` and the end of its paragraph, without the line ends.
fn listed(text: &str, head: &str) -> String {
    let from = text.find(head).unwrap_or_else(|| panic!("no {head} in\n{text}")) + head.len();
    let mut lines = text[from..].lines();
    let first = lines.next().unwrap_or("").trim().to_owned();
    lines.take_while(|l| l.starts_with("  ")).fold(first, |s, l| s + "\n" + l.trim())
}

#[test]
fn a_large_answer_is_short_and_its_list_is_accepted_by_every_option() {
    let dir = site();
    let d = dir.path();
    let place = ["place", "--cluster", "site.yaml", "--model", "m.json"];
    let text = ok(d, &[&place[..], &["--gpus", "256"]].concat());
    fits(&text);
    assert!(text.lines().count() < 30, "{text}");
    let head = text.lines().next().expect("a line");
    assert!(head.starts_with("256 GPUs, split ") && head.contains('x') && !head.contains("8+8+8"), "{head}");
    let split = head["256 GPUs, split ".len()..].split(':').next().expect("a split");
    let gpus = listed(&text, &format!("split {split}:"));
    assert!(gpus.contains("n[") && gpus.contains("]:"), "{gpus}");

    // The list, pasted back as the free GPUs of a request that needs them all, is the same allocation.
    let json: Value =
        serde_json::from_str(&ok(d, &[&place[..], &["--gpus", "256", "--free", &gpus, "--format", "json"]].concat()))
            .expect("JSON");
    assert_eq!(json["gpus"].as_array().map(Vec::len), Some(256), "JSON lists every GPU");
    assert_eq!(json["split"], split);
    let all: Vec<&str> = json["gpus"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    let one_by_one = all.join(" ");
    let again = ok(d, &[&place[..], &["--gpus", "256", "--free", &one_by_one]].concat());
    assert_eq!(again.lines().next(), text.lines().next());

    // The state.
    ok(d, &["cluster", "init", "--cluster", "site.yaml", "--state", "site.state"]);
    let words: Vec<&str> = gpus.split_whitespace().collect();
    fits(&ok(d, &[&["cluster", "allocate", "big"][..], &words, &["--state", "site.state"]].concat()));
    ok(d, &["cluster", "drain", "n[60-61]:[6-7]", "--state", "site.state"]);
    let show = ok(d, &["cluster", "show", "--state", "site.state"]);
    fits(&show);
    assert!(show.contains("drained: n[60-61]:[6-7]"), "{show}");
    let state: Value =
        serde_json::from_str(&ok(d, &["cluster", "show", "--state", "site.state", "--format", "json"])).expect("JSON");
    assert_eq!(state["jobs"][0]["gpus"].as_array().map(Vec::len), Some(256));
    assert_eq!(state["jobs"][0]["gpus"], json["gpus"]);
    let free = listed(&show, "free:");
    let n = state["free"].as_array().expect("a list").len();
    ok(
        d,
        &[
            &["cluster", "allocate", "rest"][..],
            &free.split_whitespace().collect::<Vec<_>>(),
            &["--state", "site.state"],
        ]
        .concat(),
    );
    let after: Value =
        serde_json::from_str(&ok(d, &["cluster", "show", "--state", "site.state", "--format", "json"])).expect("JSON");
    assert_eq!(after["jobs"][1]["gpus"].as_array().map(Vec::len), Some(n));
    assert!(after["free"].as_array().is_some_and(Vec::is_empty));

    // What a job got.
    let observe = ["observe", "--store", "s.db", "--cluster", "site.yaml", "--job", "big", "--busbw", "40"];
    let said = ok(d, &[&observe[..], &["--gpus", &gpus]].concat());
    fits(&said);
    let short = |s: &str| s.split_whitespace().collect::<String>();
    assert!(short(&said).contains(&short(&gpus)), "{said}");
}

#[test]
fn hosts_are_excluded_by_lists_and_mistakes_are_pointed_at() {
    let dir = site();
    let d = dir.path();
    let place = ["place", "--cluster", "site.yaml", "--model", "m.json", "--gpus", "16"];
    let of = |more: &[&str]| -> Value {
        serde_json::from_str(&ok(d, &[&place[..], more, &["--format", "json"]].concat())).expect("JSON")
    };
    let hosts = |v: &Value| -> Vec<String> {
        let names = v["gpus"].as_array().expect("a list").iter().filter_map(Value::as_str);
        let mut hosts: Vec<String> = names.map(|g| g.split(':').next().unwrap_or("").to_owned()).collect();
        hosts.dedup();
        hosts
    };
    let a = of(&["--exclude-hosts", "n[0-20], n[22-61] n62"]);
    assert_eq!(hosts(&a), ["n21", "n63"]);
    assert_eq!(of(&["--only-hosts", "n[21,63]"])["gpus"], a["gpus"]);
    assert_eq!(of(&["--free", "n21{0-7} n63:0-7"])["gpus"], a["gpus"], "what earlier releases printed");
    for (more, says) in [
        (&["--free", "n0 n[3-1]"][..], "`3-1` runs backwards; write 1-3 (character 6)"),
        (&["--free", "n[0-999999999]"], "more than 65536 names"),
        (&["--free", "n63 n64:0"], "no host `n64` (its hosts are n[0-63])"),
        (&["--free", "n0 n0:3"], "`n0:3` is named twice"),
        (&["--exclude-hosts", "m3"], "did you mean `n3`?"),
        (&["--only-hosts", "n3:0"], "hosts are expected"),
        (&["--max-hosts", "two"], "found `two`; a whole number was expected"),
        (&["--loss-weight", "much"], "found `much`; a number was expected"),
        (&["--size", "16XB"], "known are B, KiB, MiB, GiB, TiB"),
    ] {
        let (code, _, err) = linkwise(d, &[&place[..], more].concat());
        let joined = err.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(code == 2 && joined.contains(says), "{more:?}: {err}");
    }
}

#[test]
fn a_large_cluster_is_drawn_in_eighty_columns() {
    let dir = site();
    let text = ok(dir.path(), &["topology", "show", "site.yaml"]);
    fits(&text);
    assert!(text.contains("n[0-63]"), "{text}");
    fits(&ok(dir.path(), &["nccl", "explain", "--cluster", "site.yaml", "--gpus", "n[0-3]:[0-7]"]));
}
