//! Compares the model with the real library over releases, hosts and allocations:
//!
//! `cargo run -p nccl-model --example check -- --versions 2.24,2.28,2.30,2.32 --hosts hgx-h100,dgx-a100,hgx-b200 --verbose`
//!
//! Rows `graphs` start from the library's own graphs. Rows `hosts` start from the hosts (recorded searches, or the model's own search without
//! a record). The cache of `nccl-bench` holds the wheels.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Scores, allocation, from_graphs, from_hosts, run, sizes};
use nccl_bench::Bench;
use topology::nccl::Version;

/// One to eight hosts: even, uneven and permuted counts, some with other GPUs than the first.
const ALLOCATIONS: &str = "2,3,4,5,6,7,8,1+1,2+1,3+2,4+2,4+4,5+5,6+2,8+1,8+3,3+8,8+8,0.2+1.3,4.5.6.7+0.1,8+8+3,8+3+8,3+8+8,5+4+3,7+7+7,\
                           2+2+2,1+1+1+1,4+4+4+4,8+6+4+2,3+8+3+8,8+8+8+8,1+1+1+1+1,4+4+4+4+4+4,1+1+1+1+1+1+1+1,8+8+8+8+8+8+8+8";

fn argument(name: &str, default: &str) -> Vec<String> {
    let args: Vec<String> = std::env::args().collect();
    let value = args.iter().position(|a| a == name).and_then(|i| args.get(i + 1)).cloned();
    value.unwrap_or_else(|| default.to_owned()).split(',').map(|s| s.trim().to_owned()).collect()
}

fn main() -> Result<(), String> {
    let verbose = std::env::args().any(|a| a == "--verbose");
    let allocations = argument("--allocations", ALLOCATIONS);
    let bench = Bench::new().map_err(|e| e.to_string())?;
    println!(
        "{:8} {:14} {:6} | {:>9} {:>11} {:>11} {:>11} {:>7} {:>11} {:>13}",
        "NCCL", "hosts", "from", "cells", "choices", "channels", "estimates", "counts", "rings", "tree places"
    );
    let mut all = [Scores::default(), Scores::default()];
    for version in argument("--versions", "2.24,2.28,2.30,2.32") {
        let version: Version = version.parse()?;
        for host in argument("--hosts", "hgx-h100,dgx-a100,hgx-b200") {
            let cluster =
                topology::catalog::cluster(&format!("8x{host}")).ok_or(format!("{host} is not in the catalog"))?;
            let mut sum = [Scores::default(), Scores::default()];
            let mut refused = 0;
            for text in &allocations {
                let order = allocation(text);
                if order.iter().any(|(h, m)| !cluster.type_of(*h).all_gpus().contains_all(*m)) {
                    continue;
                }
                let report = match run(&bench, &cluster, &order, version, &sizes()) {
                    Ok(r) => r,
                    Err(e) => {
                        refused += 1;
                        eprintln!("{version} {host} {text}: {e}");
                        continue;
                    }
                };
                for (sum, scores) in
                    sum.iter_mut().zip([from_graphs(&report, &cluster, &order), from_hosts(&report, &cluster, &order)])
                {
                    if verbose {
                        scores.differences.iter().take(12).for_each(|d| println!("  {version} {host} {text}: {d}"));
                    }
                    *sum += scores;
                }
            }
            for (from, s) in ["graphs", "hosts"].iter().zip(&sum) {
                print(&version.to_string(), &host, from, s);
            }
            if refused > 0 {
                println!("  ({refused} runs that the library did not finish)");
            }
            for (all, s) in all.iter_mut().zip(sum) {
                *all += s;
            }
        }
    }
    for (from, s) in ["graphs", "hosts"].iter().zip(&all) {
        print("all", "all", from, s);
    }
    Ok(())
}

fn print(version: &str, host: &str, from: &str, s: &Scores) {
    println!(
        "{version:8} {host:14} {from:6} | {:>9} {:>11} {:>11} {:>11} {:>7} {:>11} {:>13} | choices {:.1} %",
        s.cells,
        s.choices,
        s.channels,
        s.estimates,
        s.counts,
        s.rings,
        s.trees,
        s.choices.percent()
    );
}
