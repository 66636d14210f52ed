//! A benchmark for `linkwise measure --backend command`: makes a cluster in a box and measures allocations in it with the real NCCL library.
//!
//! ```text
//! linkwise measure --cluster box.yaml --backend command --command 'box-bench --hosts 6 --per-leaf 3 --mbit 100 --uplink-mbit 60 --slow 1:30' ...
//! ```

use clap::Parser;
use nccl_bench::Bench;
use nccl_box::placement::{Site, busbw_gb_per_s, hosts_of};
use serde_json::{Value, json};
use std::io::BufRead;

/// Measures allocations of a cluster in a box with the real NCCL library: one JSON object per line in both directions
#[derive(Parser)]
struct Options {
    #[arg(long)]
    hosts: usize,
    #[arg(long)]
    per_leaf: usize,
    /// Rate of a NIC, Mbit/s
    #[arg(long)]
    mbit: u32,
    /// Rate of a leaf's uplink, Mbit/s
    #[arg(long)]
    uplink_mbit: u32,
    /// A host whose NIC has another rate, `HOST:MBIT`
    #[arg(long)]
    slow: String,
}

fn main() -> Result<(), String> {
    let o = Options::parse();
    let slow = o.slow.split_once(':').and_then(|(h, r)| Some((h.parse().ok()?, r.parse().ok()?)));
    let slow = slow.ok_or("--slow takes HOST:MBIT")?;
    let site = Site { hosts: o.hosts, per_leaf: o.per_leaf, mbit: o.mbit, uplink_mbit: o.uplink_mbit, slow };
    let netbox = site.netbox().map_err(|e| e.to_string())?;
    let bench = Bench::new().map_err(|e| e.to_string())?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| e.to_string())?;
        let request: Value = serde_json::from_str(&line).map_err(|e| format!("{line}: {e}"))?;
        let names = request["gpus"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let size = request["size_bytes"].as_u64().ok_or("no size_bytes")?;
        let measured = match (request["collective"].as_str(), hosts_of(names)) {
            (Some("all_reduce"), Ok(hosts)) => busbw_gb_per_s(&bench, &netbox, &hosts, size).map_err(|e| e.to_string()),
            (Some("all_reduce"), Err(e)) => Err(e),
            (other, _) => Err(format!("{other:?} is not measured in the box")),
        };
        match measured {
            Ok(busbw) => {
                println!("{}", json!({"id": request["id"], "busbw_gb_per_s": busbw, "nccl_version": "2.28.9"}))
            }
            Err(e) => println!("{}", json!({"id": request["id"], "error": e})),
        }
    }
    Ok(())
}
