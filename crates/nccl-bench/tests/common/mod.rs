//! Helpers of the bench's tests.
#![allow(dead_code)] // every test binary uses its own part

use nccl_bench::{Bench, BenchError, BenchReport, BenchSpec, SimulatedNode};
use topology::nccl::{Algorithm, NcclRate, Protocol, Version};
use topology::{Cluster, Collective, Host, HostId, HostType, catalog};

/// The five collectives with an algorithm.
pub const FIVE: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
];

/// 1 KiB to 1 GiB, every fourth power.
pub fn sizes() -> Vec<u64> {
    (10..=30).step_by(4).map(|k| 1 << k).collect()
}

/// Hosts of one type, each with its list of GPUs in the order of the ranks.
pub fn hosts(host_type: &HostType, gpus: &[Vec<u8>]) -> (Cluster, Vec<SimulatedNode>) {
    let mut cluster = Cluster { name: "test".into(), types: vec![host_type.clone()], ..Cluster::default() };
    let mut nodes = Vec::new();
    for (i, gpus) in gpus.iter().enumerate() {
        cluster.hosts.push(Host { name: format!("n{i}"), ..Host::default() });
        nodes.push(SimulatedNode { host: HostId(i as u32), gpus: gpus.clone(), nvlink_domain: None });
    }
    (cluster, nodes)
}

/// A specification of hosts of a catalog type; each uses its first GPUs, as many as `counts` gives.
pub fn spec(host_type: &str, counts: &[u8], version: &str) -> BenchSpec {
    let gpus: Vec<Vec<u8>> = counts.iter().map(|n| (0..*n).collect()).collect();
    let (cluster, nodes) = hosts(&catalog::host_type(host_type).unwrap(), &gpus);
    BenchSpec::new(cluster, nodes, version.parse::<Version>().unwrap())
}

/// A run's report; `None`, with a SKIP line, if this machine has no compiler or cannot get a library.
pub fn run(test: &str, spec: &BenchSpec) -> Option<BenchReport> {
    match Bench::new().and_then(|b| b.run(spec)) {
        Ok(report) => Some(report),
        Err(e) => skip(test, e),
    }
}

/// `None` if the error is about this machine; any other error fails the test.
pub fn skip<T>(test: &str, e: BenchError) -> Option<T> {
    assert!(e.is_about_this_machine(), "{e}");
    eprintln!("SKIP {test}: {e}");
    None
}

/// One cell of the table.
pub fn rate(report: &BenchReport, collective: Collective, algorithm: Algorithm, protocol: Protocol) -> NcclRate {
    let fits = |r: &&NcclRate| (r.collective, r.algorithm, r.protocol) == (collective, algorithm, protocol);
    *report.rates.iter().find(fits).unwrap_or_else(|| panic!("no {collective} {algorithm} {protocol}"))
}
