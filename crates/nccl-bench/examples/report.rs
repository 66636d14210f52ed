//! Runs the bench once and prints the report as JSON.
//!
//! ```text
//! cargo run -p nccl-bench --example report -- --type hgx-h100 --gpus 8,8 --version 2.28.9 \
//!     [--collectives all_reduce,all_gather] [--sizes 1KiB,16MiB | --sizes 1KiB..1GiB] [--mode both] [--env NCCL_ALGO=Ring]
//! ```
//!
//! `--gpus`: GPUs per host, as a count (8) or a list (0+2+5). `--type`: one type for all hosts, or one per host, separated by commas.
//! `--nvl-domain`: all hosts form one NVLink domain. `--tuner FILE`: a tuner plugin.

use nccl_bench::{Bench, BenchSpec, CallMode, SimulatedNode};
use std::process::ExitCode;
use topology::{Bytes, Cluster, Collective, Host, HostId, catalog};

const FIVE: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
];

fn main() -> ExitCode {
    match run() {
        Ok(json) => {
            println!("{json}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<String, String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (mut types, mut gpus, mut version) = ("hgx-h100".to_string(), "8".to_string(), "2.28".to_string());
    let (mut collectives, mut sizes, mut mode) = (FIVE.to_vec(), powers(10, 30), CallMode::Both);
    let (mut env, mut domain, mut tuner) = (Vec::new(), None, None);
    let mut rest = args.iter();
    while let Some(flag) = rest.next() {
        if flag == "--nvl-domain" {
            domain = Some(1);
            continue;
        }
        let value = rest.next().ok_or(format!("{flag} needs a value"))?.clone();
        match flag.as_str() {
            "--type" => types = value,
            "--gpus" => gpus = value,
            "--version" => version = value,
            "--collectives" => collectives = value.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--sizes" => sizes = parse_sizes(&value)?,
            "--mode" => {
                mode = serde_json::from_value(value.into()).map_err(|_| "--mode: simulate, launch or both")?;
            }
            "--env" => env.push(value.split_once('=').map(|(k, v)| (k.into(), v.into())).ok_or("--env NAME=VALUE")?),
            "--tuner" => tuner = Some(value.into()),
            _ => return Err(format!("{flag} is not known; the flags are in the file's first lines")),
        }
    }
    let gpus: Vec<Vec<u8>> = gpus.split(',').map(parse_gpus).collect::<Result<_, _>>()?;
    let types: Vec<&str> = types.split(',').collect();
    let mut cluster = Cluster { name: "example".into(), ..Cluster::default() };
    let mut nodes = Vec::new();
    for (i, gpus) in gpus.into_iter().enumerate() {
        let name = types[i.min(types.len() - 1)];
        let host_type = match cluster.types.iter().position(|t| t.name == name) {
            Some(known) => known,
            None => {
                cluster.types.push(catalog::host_type(name).ok_or(format!("`{name}` is not in the catalog"))?);
                cluster.types.len() - 1
            }
        };
        cluster.hosts.push(Host { name: format!("n{i}"), host_type, ..Host::default() });
        nodes.push(SimulatedNode { host: HostId(i as u32), gpus, nvlink_domain: domain });
    }
    let mut spec = BenchSpec::new(cluster, nodes, version.parse()?).with_calls(&collectives, &sizes);
    spec.mode = mode;
    spec.env = env;
    spec.tuner_plugin = tuner;
    let report = Bench::new().and_then(|b| b.run(&spec)).map_err(|e| e.to_string())?;
    serde_json::to_string_pretty(&report).map_err(|e| e.to_string())
}

fn powers(from: u32, to: u32) -> Vec<u64> {
    (from..=to).map(|k| 1 << k).collect()
}

fn parse_sizes(text: &str) -> Result<Vec<u64>, String> {
    if let Some((from, to)) = text.split_once("..") {
        let (from, to) = (Bytes::parse(from)?.0, Bytes::parse(to)?.0);
        return Ok(powers(0, 40).into_iter().filter(|s| (from..=to).contains(s)).collect());
    }
    text.split(',').map(|s| Ok(Bytes::parse(s)?.0)).collect()
}

fn parse_gpus(text: &str) -> Result<Vec<u8>, String> {
    let number = |t: &str| t.parse::<u8>().map_err(|_| format!("`{t}` is not a GPU or a number of GPUs"));
    if text.contains('+') { text.split('+').map(number).collect() } else { Ok((0..number(text)?).collect()) }
}
