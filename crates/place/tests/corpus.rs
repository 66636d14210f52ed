//! The fuzz target's hand-written corpus of request lines, replayed without a fuzzer.

use place::read::{Defaults, Reader};
use place::{Contention, Registry, Request};
use std::path::PathBuf;
use topology::{Bytes, Cluster, HostId, catalog};

fn cluster() -> Cluster {
    catalog::cluster("het-4mix").unwrap()
}

/// The request of a corpus file, or the code of its refusal.
fn read(cluster: &Cluster, name: &str) -> Result<Request, &'static str> {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/request_line").join(name);
    let defaults = Defaults {
        size: Bytes::mib(16),
        contention: Contention::Merge,
        loss_weight: 0.0,
        slack: place::Slack::default(),
    };
    let (_, asked) = Reader::new(cluster, defaults, &Registry::shipped()).line(&std::fs::read(file).unwrap());
    asked.map(|a| a.request).map_err(|e| e.code)
}

#[test]
fn every_field_of_a_request_line_is_read() {
    let c = cluster();
    let total = read(&c, "total.json").unwrap();
    assert_eq!((total.gpus, total.size, total.free.counts()), (8, Bytes::gib(2), vec![4, 8, 1]));
    let pods = read(&c, "pods.json").unwrap();
    assert_eq!((pods.gpus, &pods.pods[..]), (8, &[4, 2, 2][..]));
    assert_eq!(pods.constraints.only_hosts, [HostId(0), HostId(1), HostId(2)]);
    assert_eq!(pods.constraints.excluded_hosts, [HostId(1)]);
    assert_eq!((pods.constraints.gpus_per_host_min, pods.constraints.hosts_max), (2, Some(2)));
    let jobs = read(&c, "jobs.json").unwrap();
    assert_eq!(
        jobs.jobs.iter().map(|j| (j.id.as_str(), j.demand_gb_per_s)).collect::<Vec<_>>(),
        [("a", Some(12.5)), ("7", None)]
    );
    assert_eq!((jobs.contention, jobs.loss_weight), (Contention::Physical, 0.5));
    assert!(jobs.constraints.exclusive_nics);
    assert_eq!(jobs.free.gpu_count(), 32 - 10, "what running jobs hold is not free");
    assert_eq!(read(&c, "wrong.json").unwrap_err(), "unknown_gpu");
}

#[test]
fn a_cut_line_is_never_more_than_a_bad_request() {
    let c = cluster();
    let defaults = Defaults {
        size: Bytes::mib(16),
        contention: Contention::Merge,
        loss_weight: 0.0,
        slack: place::Slack::default(),
    };
    let registry = Registry::shipped();
    let reader = Reader::new(&c, defaults, &registry);
    let line = br#"{"id":1,"pods":[4,4],"jobs":[{"id":"a","gpus":["n0:0"],"demand_gb_per_s":1.5}],"search":"exact"}"#;
    assert!(reader.line(line).1.is_ok());
    for cut in 0..line.len() {
        assert_eq!(reader.line(&line[..cut]).1.unwrap_err().code, "bad_request", "cut at {cut}");
        let mut changed = line.to_vec();
        changed[cut] = b'x';
        let _ = reader.line(&changed);
    }
}

#[test]
fn every_code_of_a_refusal_is_documented() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../../docs/requests.md")).unwrap();
    let source = std::fs::read_to_string(root.join("src/refusal.rs")).unwrap();
    let codes: Vec<&str> =
        source.lines().filter_map(|l| l.split_once("=> \"")?.1.split_once("\",").map(|c| c.0)).collect();
    let codes: Vec<&str> = codes.into_iter().filter(|c| !c.contains(' ')).collect();
    assert!(codes.len() > 20, "{codes:?}");
    for code in codes.into_iter().chain(["bad_request", "duplicate_gpu", "unknown_search"]) {
        assert!(page.contains(&format!("`{code}`")), "{code} is not in docs/requests.md");
    }
}
