//! Runs NCCL with real bytes and prints a `BytesReport` as JSON. Exit code 1 if a byte is wrong.
//!
//! ```sh
//! cargo run -p nccl-bench --example bytes -- --hosts 2x4 --version 2.28.9 --call all_reduce:8000000 --call all_to_all:400000
//! cargo run -p nccl-bench --example bytes -- --hosts 2x4 --net-plugin libX.so --prefix 'ip netns exec host{host}' --call matrix:demand.txt
//! ```
//! Calls: `all_reduce`, `all_gather`, `reduce_scatter`, `broadcast`, `reduce` and `all_to_all` (bytes per pair) with `:BYTES`, and
//! `matrix:FILE` (bytes from rank to rank, separated by spaces or commas). `--repetitions`, `--element` and `--captured` stand before the calls that they change.

use nccl_bench::bytes::{BytesCall, BytesSpec, Element, HostPlace, Player, Traffic};
use nccl_bench::{Bench, SimulatedNode};
use std::process::ExitCode;
use std::time::Duration;
use topology::{Cluster, Host, HostId, catalog};

fn traffic(text: &str, ranks: usize) -> Result<Traffic, String> {
    let (name, value) = text.split_once(':').ok_or(format!("`{text}` is not NAME:BYTES"))?;
    if name == "matrix" {
        let file = std::fs::read_to_string(value).map_err(|e| format!("cannot read {value}: {e}"))?;
        let number = |w: &str| w.parse::<f64>().map(|n| n as u64).map_err(|e| format!("`{w}` in {value}: {e}"));
        let words = |l: &str| l.split([' ', ',', '\t']).filter(|w| !w.is_empty()).map(number).collect();
        let rows = file.lines().filter(|l| !l.trim().is_empty()).map(words).collect::<Result<_, _>>()?;
        return Ok(Traffic::SendRecv(rows));
    }
    let bytes: u64 = value.parse().map_err(|e| format!("`{value}`: {e}"))?;
    Ok(match name {
        "all_reduce" => Traffic::AllReduce(bytes),
        "all_gather" => Traffic::AllGather(bytes),
        "reduce_scatter" => Traffic::ReduceScatter(bytes),
        "broadcast" => Traffic::Broadcast(bytes),
        "reduce" => Traffic::Reduce(bytes),
        "all_to_all" => Traffic::SendRecv(vec![vec![bytes; ranks]; ranks]),
        _ => return Err(format!("`{name}` is not a call")),
    })
}

fn read() -> Result<(BytesSpec, bool), String> {
    let (mut hosts, mut local, mut prefix, mut log) = (2, 1, String::new(), false);
    let (mut calls, mut host_type) = (Vec::new(), "hgx-h100".to_string());
    let (mut repetitions, mut element, mut captured) = (1, Element::F32, false);
    let mut spec = BytesSpec::new(Cluster::default(), Vec::new(), "2.28.9".parse().unwrap());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|e| format!("{text}: {e}"));
        match arg.as_str() {
            "--hosts" => {
                let text = value()?;
                let (h, l) = text.split_once('x').ok_or("--hosts takes HOSTSxGPUS, such as 2x4")?;
                (hosts, local) = (number(h.into())? as usize, number(l.into())? as usize);
            }
            "--type" => host_type = value()?,
            "--version" => spec.version = value()?.parse().map_err(|e| format!("{e}"))?,
            "--interfaces" => spec.interfaces = value()?,
            "--net-plugin" => spec.net_plugin = Some(value()?.into()),
            "--tuner-plugin" => spec.tuner_plugin = Some(value()?.into()),
            "--profiler-plugin" => spec.profiler_plugin = Some(value()?.into()),
            "--prefix" => prefix = value()?,
            "--env" => {
                let text = value()?;
                let (name, value) = text.split_once('=').ok_or("--env takes NAME=VALUE")?;
                spec.env.push((name.into(), value.into()));
            }
            "--stall" => spec.stall = Duration::from_secs(number(value()?)?),
            "--deadline" => spec.deadline = Duration::from_secs(number(value()?)?),
            "--player" => spec.player = if value()? == "nothing" { Player::Nothing } else { Player::Plays },
            "--repetitions" => repetitions = number(value()?)? as u32,
            "--element" => element = serde_json::from_value(value()?.into()).map_err(|e| e.to_string())?,
            "--captured" => captured = true,
            "--log" => log = true,
            "--call" => calls.push((value()?, repetitions, element, captured)),
            _ => return Err(format!("`{arg}` is not an option")),
        }
    }
    let t = catalog::host_type(&host_type).ok_or(format!("no host type `{host_type}`"))?;
    spec.cluster = Cluster { name: "bytes".into(), types: vec![t], ..Cluster::default() };
    for i in 0..hosts {
        spec.cluster.hosts.push(Host { name: format!("host{i}"), ..Host::default() });
        spec.nodes.push(SimulatedNode {
            host: HostId(i as u32),
            gpus: (0..local as u8).collect(),
            nvlink_domain: None,
        });
        let words = prefix.split_whitespace().map(|w| w.replace("{host}", &i.to_string())).collect();
        spec.places.push(HostPlace { prefix: words, ..HostPlace::default() });
    }
    for (text, repetitions, element, captured) in calls {
        let traffic = traffic(&text, hosts * local)?;
        spec.calls.push(BytesCall { repetitions, element, captured, ..BytesCall::new(traffic) });
    }
    Ok((spec, log))
}

fn main() -> ExitCode {
    let (spec, log) = match read() {
        Ok(read) => read,
        Err(e) => {
            eprintln!("error: {e}");
            return ExitCode::from(2);
        }
    };
    match Bench::new().and_then(|b| b.run_bytes(&spec)) {
        Ok(report) => {
            if log {
                eprint!("{}", report.log);
            }
            println!("{}", serde_json::to_string_pretty(&report).expect("a report is plain data"));
            ExitCode::from(u8::from(report.wrong_bytes() > 0))
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::from(3)
        }
    }
}
