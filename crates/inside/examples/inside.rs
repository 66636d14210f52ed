//! The time of traffic between emulated GPUs over the optimum: the direct copy, equal shares, and linkwise's plan, in turn. Simulated: the rates of the
//! links are scaled down, and host memory plays the GPUs' memory. Cells: median (least; computed from the loads of the links).
//!
//! `cargo build --workspace --bin linkwise-inside && cargo run --workspace --example inside -- [--mbit 100] [--seconds 2] [--rounds 3] [--chunk 65536] [CLUSTER:TRAFFIC ...]`

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Arm, Run, Traffic, median};

fn main() {
    let (mut mbit, mut seconds, mut rounds, mut chunk) = (100.0, 2.0, 3usize, 65536usize);
    let mut cases = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        let mut value = || args.next().expect("a value");
        match a.as_str() {
            "--mbit" => mbit = value().parse().expect("a number"),
            "--seconds" => seconds = value().parse().expect("a number"),
            "--rounds" => rounds = value().parse().expect("a number"),
            "--chunk" => chunk = value().parse().expect("a number"),
            case => cases.push(case.to_string()),
        }
    }
    if cases.is_empty() {
        let of = |c: &'static str| Traffic::ALL.map(|t| format!("{c}:{}", t.name()));
        cases.extend(of("mesh4").into_iter().chain(of("cube8")));
    }
    let program = std::env::current_exe().unwrap().parent().unwrap().join("../linkwise-inside");
    println!("| cluster | traffic | optimum | direct | stripe | plan | wrong bytes |\n|---|---|---|---|---|---|---|");
    for case in cases {
        let (cluster, traffic) = case.split_once(':').expect("CLUSTER:TRAFFIC");
        let traffic = Traffic::ALL.into_iter().find(|t| t.name() == traffic).expect("a kind of traffic");
        let run = Run::new(cluster, traffic, mbit, seconds);
        let (mut cells, mut wrong) = (Vec::new(), 0);
        for arm in Arm::ALL {
            let outcome = run.run(&program, arm, rounds, chunk).unwrap_or_else(|e| panic!("{e}"));
            let least = outcome.rounds_s.iter().copied().fold(f64::INFINITY, f64::min);
            let of = |s: f64| s / run.theory_s;
            cells.push(format!(
                "{:.2} ({:.2}; {:.2})",
                of(median(&outcome.rounds_s)),
                of(least),
                of(run.congestion_s(arm))
            ));
            wrong += outcome.wrong;
        }
        println!("| {cluster} | {} | {:.2} s | {} | {wrong} |", traffic.name(), run.theory_s, cells.join(" | "));
    }
}
