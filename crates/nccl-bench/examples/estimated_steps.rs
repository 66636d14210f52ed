//! Replaces a benchmark on machines without a GPU: `linkwise tune profile` runs it, the unmodified NCCL uses the forced arm, and the example
//! prints NCCL's own estimate of the call as the time of every step.
//!
//! ```sh
//! cargo build -p nccl-bench --example estimated_steps
//! linkwise tune profile --minutes 10 --sizes 64M --iterations 8 --warmup 0 --rounds 1 -o p.json -- target/debug/examples/estimated_steps hgx-h100 8,8
//! ```
//!
//! The times are not measurements: estimates have no noise and use no hardware. The example shows which arms NCCL offers on these hosts, that
//! NCCL uses a forced arm (otherwise the example fails), and the cost model's estimate of each arm.

use nccl_bench::{Bench, BenchSpec, CallMode, SimulatedNode};
use std::time::Duration;
use topology::{Cluster, Collective, Host, HostId, catalog};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Err(why) = run(&words) {
        eprintln!("estimated_steps: {why}");
        std::process::exit(1);
    }
}

fn run(words: &[String]) -> Result<(), String> {
    let usage = "usage: estimated_steps HOST_TYPE GPUS,GPUS,... [NCCL]; for example hgx-h100 8,8 2.28";
    let (host_type, counts) = words.first().zip(words.get(1)).ok_or(usage)?;
    let host_type = catalog::host_type(host_type).ok_or_else(|| format!("no host type `{host_type}`; {usage}"))?;
    let version = words.get(2).map_or("2.28", String::as_str).parse()?;
    let mut cluster = Cluster { name: "bench".into(), types: vec![host_type], ..Cluster::default() };
    let mut nodes = Vec::new();
    for (i, count) in counts.split(',').enumerate() {
        let count: u8 = count.parse().map_err(|_| usage)?;
        cluster.hosts.push(Host { name: format!("n{i}"), ..Host::default() });
        nodes.push(SimulatedNode { host: HostId(i as u32), gpus: (0..count).collect(), nvlink_domain: None });
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let size_bytes = number("LINKWISE_SIZE_BYTES").unwrap_or(64 << 20);
    let steps = number("LINKWISE_WARMUP").unwrap_or(0) + number("LINKWISE_ITERATIONS").unwrap_or(1);
    let mut spec = BenchSpec::new(cluster, nodes, version).with_calls(&[Collective::AllReduce], &[size_bytes]);
    let forced = ["NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"];
    spec.env = forced.iter().filter_map(|name| Some((name.to_string(), std::env::var(name).ok()?))).collect();
    spec.mode = CallMode::Both;
    spec.deadline = Duration::from_secs(120);
    let report = Bench::new().and_then(|b| b.run(&spec)).map_err(|e| e.to_string())?;
    let call = report.calls.first().ok_or("NCCL said nothing about the call")?;
    let taken = call.decision.as_ref().map(|d| format!("{}/{}", d.algorithm, d.protocol)).unwrap_or_default();
    let arm = std::env::var("LINKWISE_ARM").unwrap_or_default();
    let plain = |t: &str| t.split('@').next().unwrap_or("").replace('_', "").to_ascii_uppercase();
    if !arm.is_empty() && !arm.starts_with("AUTO") && plain(&arm) != plain(&taken) {
        return Err(format!("NCCL took {taken} where {arm} was forced"));
    }
    let estimate = call.estimate_us.ok_or_else(|| format!("NCCL has no estimate for {taken}"))?;
    eprintln!("NCCL {}: {taken}, {estimate} us by its own estimate", report.version);
    (0..steps).for_each(|_| println!("linkwise_step_time_us={estimate}"));
    Ok(())
}
