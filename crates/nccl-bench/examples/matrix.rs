//! Prints one line per release: `cargo run -p nccl-bench --example matrix -- 2.21 2.28 2.32`. Exits with 1 if a release cannot run.

use nccl_bench::{Bench, BenchError, BenchReport, BenchSpec, SimulatedNode};
use std::process::ExitCode;
use topology::nccl::{Algorithm, Protocol, Version};
use topology::{Cluster, Collective, GpuMask, Host, HostId, catalog};

fn main() -> ExitCode {
    let versions: Vec<String> = std::env::args().skip(1).collect();
    println!(
        "8 and 3 GPUs of two H100 hosts; all-reduce of 16 MiB and 1 GiB as NCCL decides, time by its own estimate"
    );
    println!(
        "{:<8} {:>8} {:>8} {:>10} {:>22} {:>11} {:>22} {:>11} {:>6}",
        "NCCL", "channels", "NVLS", "ring GB/s", "16 MiB", "us", "1 GiB", "us", "s"
    );
    let mut code = ExitCode::SUCCESS;
    for version in versions {
        match version.parse::<Version>().map_err(BenchError::Spec).and_then(row) {
            Ok(line) => println!("{line}"),
            Err(e) => {
                println!("{version:<8} {e}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

fn row(version: Version) -> Result<String, BenchError> {
    let h100 = catalog::host_type("hgx-h100").expect("the catalog has it");
    let host = |name: &str| Host { name: name.into(), ..Host::default() };
    let cluster =
        Cluster { name: "matrix".into(), types: vec![h100], hosts: vec![host("n0"), host("n1")], ..Cluster::default() };
    let nodes =
        vec![SimulatedNode::new(HostId(0), GpuMask::first(8)), SimulatedNode::new(HostId(1), GpuMask::first(3))];
    let spec = BenchSpec::new(cluster, nodes, version).with_calls(&[Collective::AllReduce], &[16 << 20, 1 << 30]);
    let r: BenchReport = Bench::new()?.run(&spec)?;
    let ring = r.rates.iter().find(|x| {
        (x.collective, x.algorithm, x.protocol) == (Collective::AllReduce, Algorithm::Ring, Protocol::Simple)
    });
    let call = |i: usize| {
        let words = r.calls[i].decision.map(|d| format!("{} {} x{}", d.algorithm, d.protocol, d.channels));
        (words.unwrap_or_default(), r.calls[i].estimate_us.unwrap_or(f64::NAN))
    };
    let ((small, small_us), (large, large_us)) = (call(0), call(1));
    Ok(format!(
        "{:<8} {:>8} {:>8} {:>10.1} {small:>22} {small_us:>11.1} {large:>22} {large_us:>11.1} {:>6.1}",
        r.version.to_string(),
        r.channels.coll,
        r.channels.nvls,
        ring.map_or(f64::NAN, |x| x.bandwidth_gb_per_s),
        r.seconds.total
    ))
}
