//! Runs of the real NCCL library on this machine's loopback interface, kernels played on the CPU.

#![allow(dead_code, reason = "each test file uses a part")]

use nccl_bench::bytes::{BytesCall, BytesReport, BytesSpec, Traffic};
use nccl_bench::{Bench, BenchError, SimulatedNode};
use std::path::PathBuf;
use topology::{Cluster, Host, HostId, catalog};

/// The releases that `LINKWISE_NCCL_VERSIONS` names, or these.
pub fn versions(usually: &str) -> Vec<String> {
    let named = std::env::var("LINKWISE_NCCL_VERSIONS").unwrap_or_default();
    let named = if named.trim().is_empty() { usually.to_owned() } else { named };
    named.split_whitespace().map(str::to_owned).collect()
}

/// A library that cargo built beside the test's own program.
pub fn library(name: &str) -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().join(name)
}

/// Hosts with the network plugin, without calls.
pub fn spec(version: &str, hosts: usize, gpus: u8, settings: &[(&str, &str)]) -> BytesSpec {
    let t = catalog::host_type("hgx-h100").unwrap();
    let cluster = Cluster { name: "net".into(), types: vec![t], ..Cluster::default() };
    let mut s = BytesSpec::new(cluster, Vec::new(), version.parse().unwrap());
    for h in 0..hosts {
        s.cluster.hosts.push(Host { name: format!("host{h}"), ..Host::default() });
        s.nodes.push(SimulatedNode { host: HostId(h as u32), gpus: (0..gpus).collect(), nvlink_domain: None });
    }
    s.net_plugin = Some(library("liblinkwise_nccl_net.so"));
    s.env.push(("NCCL_DEBUG".into(), "INFO".into()));
    set(&mut s, settings);
    s
}

pub fn set(s: &mut BytesSpec, settings: &[(&str, &str)]) {
    s.env.extend(settings.iter().map(|(k, v)| (k.to_string(), v.to_string())));
}

/// Sends and receives of all sizes between four ranks, and the five collectives.
pub fn every_call(repetitions: u32) -> Vec<BytesCall> {
    let sizes = [70_001, 0, 5, 4096, 1_000_003, 300];
    let row = |i: usize| (0..4).map(|k| sizes[(i * 5 + k * 3) % sizes.len()]).collect();
    let mut all = vec![Traffic::SendRecv((0..4).map(row).collect())];
    all.extend([Traffic::AllReduce, Traffic::AllGather, Traffic::ReduceScatter].map(|t| t(800_000)));
    all.extend([Traffic::Broadcast, Traffic::Reduce].map(|t| t(800_000)));
    all.into_iter().map(|t| BytesCall { repetitions, ..BytesCall::new(t) }).collect()
}

/// `None`, with a SKIP line, if this machine has no compiler or cannot get a library.
pub fn try_run(test: &str, spec: &BytesSpec) -> Option<Result<BytesReport, BenchError>> {
    match Bench::new().and_then(|b| b.run_bytes(spec)) {
        Err(e) if e.is_about_this_machine() => {
            println!("SKIP {test}: {e}");
            None
        }
        other => Some(other),
    }
}

/// As [`try_run`]; an error of the run is one of the test.
pub fn run(test: &str, spec: &BytesSpec) -> Option<BytesReport> {
    try_run(test, spec).map(|r| r.unwrap_or_else(|e| panic!("{e}")))
}
