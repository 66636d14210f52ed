//! Tests of the reader, of the rule against every published choice, and of the minimum quality on the published
//! requests.

use super::reader::{LINE_BYTES_MAX, ReadError, Scenario, parse};
use super::replay::{Settings, decide, learn, samples};
use crate::evaluation::summary;
use crate::ground_truth::{PublicCode, public_code};
use measure::design::DesignKind;
use proptest::prelude::*;
use std::path::PathBuf;
use topology::Cluster;

const LINE: &str = r#"{"id":"a","cluster":"h100","contention":"common","k":3,"available":["n0:0","n0:1","n1:0","n1:1"],
"background":[{"gpus":["n0:2","n1:2"],"standalone_gbps":46,"demand_gbps":20.5}],"optimum_gbps":40,"optimum_counts":[2,1,0,0],
"bandpilot":{"gpus":["n0:0","n0:1","n1:0"],"truth_gbps":40,"truth_standalone_gbps":46.4,"decision_cpu_ms":90},
"others":{"Random":{"gpus":"n0:0 n1:0 n1:1","truth_gbps":38,"cpu_ms":0.1}}}"#;

fn line() -> String {
    LINE.replace('\n', "")
}

fn read(text: &str) -> Result<Vec<(String, Vec<Scenario>)>, ReadError> {
    let h100 = public_code::cluster("h100").unwrap();
    let of = |name: &str| if name == "h100" { Ok(&h100) } else { Err(format!("no cluster `{name}`")) };
    parse(text, "f.jsonl", &of)
}

#[test]
fn a_request_is_read_with_everything_that_the_file_knows() {
    let read = read(&format!("\n{}\n\n", line())).unwrap();
    let s = &read[0].1[0];
    assert_eq!((s.k, s.available.gpu_count(), s.background.len(), s.peers.len()), (3, 4, 1, 2));
    assert_eq!((s.peers[0].name.as_str(), s.peers[0].cpu_ms), ("BandPilot", Some(90.0)));
    assert_eq!(s.peers[1].gpus.counts(), [1, 2]);
    assert_eq!(s.optimum_counts, Some(vec![2, 1, 0, 0]));
}

#[test]
fn a_bad_line_is_one_error_that_names_line_and_field() {
    for (from, to, expected) in [
        ("\"k\":3", "\"k\":5", "field `k`: 5 GPUs of 4 available; expected 2 to 4"),
        ("\"k\":3", "\"k\":1", "field `k`: 1 GPUs of 4 available; expected 2 to 4"),
        ("n0:0\",\"n0:1\",\"n1:0\",\"n1:1", "n0:0\",\"n0:9\",\"n1:0\",\"n1:1", "field `available`"),
        ("\"n0:2\",\"n1:2\"", "\"n0:2\",\"n1:1\"", "field `background.gpus`: n1:1 is available or another job's"),
        ("\"demand_gbps\":20.5", "\"demand_gbps\":-1", "field `background.demand_gbps`: -1 is not a rate"),
        ("n0:0 n1:0 n1:1", "n0:0 n1:0 n2:1", "field `Random.gpus`: expected 3 of the available GPUs"),
        ("[2,1,0,0]", "[2,2,0,0]", "field `optimum_counts`: expected 4 counts that sum to 3"),
        ("\"cluster\":\"h100\"", "\"cluster\":\"moon\"", "field `cluster`: no cluster `moon`"),
        ("\"contention\":\"common\"", "\"contention\":\"much\"", "unknown variant `much`"),
    ] {
        let text = format!("{}\n{}", line(), line().replace(from, to));
        let e = read(&text).unwrap_err();
        assert_eq!(e.line, 2, "{e}");
        assert!(e.to_string().starts_with("f.jsonl, line 2: ") && e.what.contains(expected), "{e}");
    }
    assert!(read("").unwrap_err().what.contains("no request"));
    assert!(read(&" {".repeat(LINE_BYTES_MAX)).unwrap_err().what.contains("a request has at most"));
}

proptest! {
    #[test]
    fn no_content_of_a_file_makes_the_reader_panic(
        noise in ".{0,200}", at in 0usize..700, len in 0usize..20, byte in any::<char>(),
    ) {
        let _ = read(&noise);
        let mut chars: Vec<char> = line().chars().collect();
        let from = at.min(chars.len());
        let to = (from + len).min(chars.len());
        chars.splice(from..to, [byte]);
        let _ = read(&chars.into_iter().collect::<String>());
    }
}

/// The published requests of a cluster and the truth that judges them.
fn published(test: &str, file: &str) -> Option<(PublicCode, Vec<Scenario>, Vec<store::Measurement>)> {
    let dir = lab_kit::published::published_tables(test)?;
    let text = std::fs::read_to_string(dir.join(file)).unwrap();
    let all: Vec<(&str, Cluster)> =
        ["h100", "het4mix"].into_iter().map(|n| (n, public_code::cluster(n).unwrap())).collect();
    let of = |name: &str| Ok(&all.iter().find(|c| c.0 == name).unwrap().1);
    let (name, scenarios) = parse(&text, file, &of).unwrap().remove(0);
    let mut truth = PublicCode::load(&dir, public_code::cluster(&name).unwrap()).unwrap();
    let inside = truth.measured_inside(&dir).unwrap();
    let told = [dir.join("multihost_h100_2gib_half.csv")].iter().map(PathBuf::as_path).all(|p| p.is_file());
    assert!(told, "the folder of the requests holds the half table");
    truth.recover(&scenarios);
    Some((truth, scenarios, inside))
}

#[test]
fn every_published_truth_follows_from_the_rule_wherever_rows_exist() {
    for (file, least) in [("peer-scenarios-h100.jsonl", 700), ("peer-scenarios-het4mix.jsonl", 700)] {
        let Some((truth, scenarios, _)) = published("published_truths", file) else { return };
        let mut judged = 0;
        for s in &scenarios {
            for p in &s.peers {
                if let Some(v) = truth.shared(s, &p.gpus) {
                    judged += 1;
                    let near = (v - p.truth_gb_per_s).abs() <= 2e-3 * p.truth_gb_per_s.max(1.0);
                    assert!(near, "{}, {}: the rule says {v}, the file {}", s.id, p.name, p.truth_gb_per_s);
                    assert!(v <= s.optimum_gb_per_s * 1.001 + 1e-6, "{}: {} beats the optimum", s.id, p.name);
                }
            }
        }
        assert!(judged >= least, "{file}: only {judged} choices could be judged");
    }
}

#[test]
fn the_published_requests_keep_the_minimum_quality() {
    for (file, n, floor) in [
        ("peer-scenarios-h100.jsonl", 250, (99.9, 100.0, 90.0)),
        ("peer-scenarios-h100.jsonl", 100, (99.4, 99.0, 77.0)),
        ("peer-scenarios-het4mix.jsonl", 100, (99.9, 100.0, 98.0)),
    ] {
        let Some((truth, scenarios, inside)) = published("published_floor", file) else { return };
        let settings = Settings { samples: n, design: DesignKind::Random };
        let model = learn(&truth, &inside, &settings, 1).unwrap();
        let decided = decide(&truth, &model, &scenarios).unwrap();
        let judged =
            scenarios.iter().zip(&decided).filter_map(|(s, d)| Some(100.0 * d.truth_gb_per_s? / s.optimum_gb_per_s));
        let s = summary(judged).unwrap();
        assert!(s.requests >= 130, "{file}: {} judged", s.requests);
        let kept = s.mean >= floor.0 && s.p5 >= floor.1 - 0.01 && s.worst >= floor.2;
        assert!(kept, "{file}, {n} samples: {s:?} is below {floor:?}");
    }
}

#[test]
fn samples_are_rows_of_the_table_and_never_rows_recovered_from_requests() {
    let Some((truth, ..)) = published("samples", "peer-scenarios-h100.jsonl") else { return };
    let rows = |seed| samples(&truth, &Settings { samples: 40, design: DesignKind::Random }, seed);
    let (a, b) = (rows(1), rows(1));
    assert_eq!(a, b);
    assert_ne!(a, rows(2));
    let mut seen = std::collections::BTreeSet::new();
    for m in &a {
        assert!(truth.counts.by_counts.values().any(|v| *v == m.busbw.gb_per_s()) && m.allocation.host_count() > 1);
        assert!(seen.insert(m.allocation.split()), "a row counts once");
    }
    assert_eq!(a.len(), 40);
}
