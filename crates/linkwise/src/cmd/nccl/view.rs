//! The communicator that the arguments describe, built by the model or by the real library on simulated hosts.

use console::Failure;
use console::load_cluster;
use nccl_bench::{Bench, BenchError, BenchReport, BenchSpec, SimulatedNode};
use nccl_model::{BuildError, Communicator, ExpectedBusbw, LoadConstants, ReportedGraphs};
use serde_json::{Value, json};
use std::path::PathBuf;
use store::{Query, Store};
use topology::nccl::{NcclDecision, Version};
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask, HostId};

/// Maximum number of sizes of one call.
const SIZES_MAX: usize = 64;
/// Maximum ranks of a bench run without a warning: a larger run takes minutes and gigabytes of shared memory.
const RANKS_OF_A_QUICK_RUN: usize = 64;

/// Which GPUs, which library, which calls.
#[derive(clap::Args)]
pub struct What {
    /// Built-in cluster or cluster file
    #[arg(long)]
    pub cluster: String,
    /// The job's GPUs (n[0-3]:[0-7], n0:3, whole hosts n0), hosts in rank order [default: all usable ones]
    #[arg(long)]
    pub gpus: Option<String>,
    /// NCCL release, such as 2.28 or 2.28.9
    #[arg(long, default_value = "2.28", value_parser = release)]
    pub nccl: Version,
    /// Collective: all_reduce, all_gather, reduce_scatter, broadcast, reduce
    #[arg(long, default_value = "all_reduce", value_parser = nccl_model::collective_by_name)]
    pub collective: Collective,
    /// Sizes, such as 64KiB,16MiB; for all_gather and reduce_scatter the buffer of all ranks together [default: 1KiB to 4GiB in steps of 4]
    #[arg(long, value_delimiter = ',', value_parser = Bytes::parse)]
    pub sizes: Vec<Bytes>,
    /// Store whose measurements of these GPUs are shown next to the model
    #[arg(long, value_name = "STORE.db")]
    pub store: Option<PathBuf>,
}

fn release(text: &str) -> Result<Version, String> {
    text.parse()
}

/// The parsed arguments.
pub struct Case {
    pub cluster: Cluster,
    pub order: Vec<(HostId, GpuMask)>,
    pub version: Version,
    pub collective: Collective,
    pub sizes: Vec<u64>,
    /// Measured bus bandwidths of these GPUs: bytes, GB/s, newest last.
    pub measured: Vec<(u64, f64)>,
    /// The measurements that say how NCCL did the call.
    ways: Vec<MeasuredWay>,
}

/// A measurement that names NCCL's algorithm, and protocol and channels if known.
struct MeasuredWay {
    size_bytes: u64,
    algorithm: String,
    protocol: Option<String>,
    channels: Option<u32>,
    gb_per_s: f64,
}

impl What {
    /// Reads the cluster, the GPUs and the measurements.
    pub fn case(&self) -> Result<Case, Failure> {
        let cluster = load_cluster(&self.cluster)?;
        let order = nccl_model::gpus_in_rank_order(&cluster, self.gpus.as_deref()).map_err(not_built)?;
        let sizes: Vec<u64> = match self.sizes.as_slice() {
            [] => (0..12).map(|i| 1024u64 << (2 * i)).collect(),
            given => given.iter().map(|b| b.0).collect(),
        };
        if sizes.len() > SIZES_MAX || sizes.contains(&0) {
            return Err(Failure::input(format!("--sizes: 1 to {SIZES_MAX} sizes above zero are possible")));
        }
        let mut case = Case {
            cluster,
            order,
            version: self.nccl,
            collective: self.collective,
            sizes,
            measured: Vec::new(),
            ways: Vec::new(),
        };
        if let Some(path) = &self.store {
            let store = Store::open(path, &case.cluster).map_err(Failure::input)?;
            let a = case.allocation();
            let rows = store.measurements(&Query::usable()).map_err(Failure::input)?;
            let mine = rows.iter().filter(|m| m.allocation == a && m.collective == case.collective);
            let mine: Vec<_> = mine.collect();
            case.measured = mine.iter().map(|m| (m.size.0, m.busbw.gb_per_s())).collect();
            let way = |m: &&store::Measurement| -> Option<MeasuredWay> {
                Some(MeasuredWay {
                    size_bytes: m.size.0,
                    algorithm: m.algorithm.clone()?,
                    protocol: m.protocol.clone(),
                    channels: m.channels,
                    gb_per_s: m.busbw.gb_per_s(),
                })
            };
            case.ways = mine.iter().filter_map(way).collect();
        }
        Ok(case)
    }
}

/// The failure of the command for a communicator that the model cannot build.
fn not_built(e: BuildError) -> Failure {
    match e {
        BuildError::Gpus(why) => Failure::input(format!("--gpus: {why}")),
        e if e.is_malformed() => Failure::input(e),
        e => Failure::impossible(e),
    }
}

/// One call: NCCL's decision and the bandwidths expected of it.
pub struct Cell {
    pub decision: NcclDecision,
    /// Bandwidth that the loads of its rings and trees on the links allow.
    pub expected: Option<ExpectedBusbw>,
    /// Maximum bus bandwidth that the links of the same GPUs allow any algorithm, without latency, GB/s.
    pub physics_gb_per_s: f64,
    /// Bus bandwidth of the last measurement at this size, GB/s.
    pub measured_gb_per_s: Option<f64>,
}

impl Cell {
    /// Bus bandwidth according to NCCL's own estimate, GB/s.
    pub fn nccl_gb_per_s(&self, ranks: usize) -> Option<f64> {
        let d = &self.decision;
        Some(d.size_bytes as f64 / d.time_us? / 1000.0 * d.collective.bus_factor(ranks))
    }

    pub fn expected_gb_per_s(&self) -> Option<f64> {
        self.expected.as_ref().map(|e| e.busbw.gb_per_s())
    }
}

impl Case {
    pub fn allocation(&self) -> Allocation {
        Allocation::new(self.order.iter().copied())
    }

    pub fn ranks(&self) -> usize {
        self.order.iter().map(|o| o.1.count()).sum()
    }

    /// The last measurement of a call with the algorithm, protocol and channels of `d`, GB/s. A measurement without a
    /// protocol or channel count matches any.
    pub fn measured_as(&self, d: &NcclDecision) -> Option<f64> {
        let same = |w: &&MeasuredWay| {
            w.size_bytes == d.size_bytes
                && w.algorithm.parse() == Ok(d.algorithm)
                && w.protocol.as_ref().is_none_or(|p| p.parse() == Ok(d.protocol))
                && w.channels.is_none_or(|c| c == d.channels)
        };
        self.ways.iter().rev().find(same).map(|w| w.gb_per_s)
    }

    /// The communicator as the model builds it.
    pub fn communicator(&self, version: Version) -> Result<Communicator, Failure> {
        Communicator::build(version, &self.cluster, &self.order).map_err(not_built)
    }

    /// Runs the real library on simulated hosts with these settings.
    pub fn bench(&self, settings: &[(String, String)], sizes: &[u64]) -> Result<BenchReport, Failure> {
        let nodes = self.order.iter().map(|&(h, m)| SimulatedNode::new(h, m)).collect();
        let mut spec = BenchSpec::new(self.cluster.clone(), nodes, self.version).with_calls(&[self.collective], sizes);
        spec.env = settings.to_vec();
        if spec.rank_count() > RANKS_OF_A_QUICK_RUN {
            eprintln!(
                "note: {} ranks of NCCL are simulated on this machine; that takes minutes and gigabytes",
                spec.rank_count()
            );
        }
        let run = Bench::new().and_then(|b| b.run(&spec));
        run.map_err(|e: BenchError| match &e {
            BenchError::Spec(_) => Failure::input(e),
            _ => Failure::impossible(e),
        })
    }

    /// The communicator as the library built it: with its graphs and channels instead of the recorded ones.
    pub fn as_run(&self, report: &BenchReport) -> Result<Communicator, Failure> {
        let graphs: Vec<_> = report.nodes.iter().map(|n| n.graphs.clone()).collect();
        let (channels, nvls_channels) = (report.channels.coll, report.channels.nvls);
        let reported = ReportedGraphs { graphs: &graphs, channels, nvls_channels };
        Communicator::from_graphs(self.version, &self.cluster, &self.order, reported).map_err(Failure::impossible)
    }

    /// One cell per size, with the model's decisions.
    pub fn cells(&self, c: &Communicator) -> Vec<Cell> {
        let decisions = self.sizes.iter().filter_map(|&s| c.choose(self.collective, s));
        self.put_beside(c, decisions)
    }

    /// One cell per given decision.
    pub fn put_beside(&self, c: &Communicator, decisions: impl Iterator<Item = NcclDecision>) -> Vec<Cell> {
        let fabric = fabric::Fabric::new(&self.cluster);
        let a = self.allocation();
        let constants = LoadConstants::of(self.cluster.network.class);
        decisions
            .map(|decision| {
                let NcclDecision { collective, size_bytes, algorithm, protocol, .. } = decision;
                let way = c.choice_with(collective, size_bytes, algorithm, protocol);
                let of_size = |m: &&(u64, f64)| m.0 == size_bytes;
                Cell {
                    expected: way.and_then(|w| c.busbw_of(collective, size_bytes, &w, &constants)),
                    physics_gb_per_s: fabric.links_alone(&a, collective).gb_per_s(),
                    measured_gb_per_s: self.measured.iter().rev().find(of_size).map(|m| m.1),
                    decision,
                }
            })
            .collect()
    }

    /// Hosts in rank order, for JSON.
    pub fn hosts_json(&self) -> Value {
        let of = |&(h, m): &(HostId, GpuMask)| json!({"host": self.cluster.host(h).name, "gpus": m.iter().collect::<Vec<_>>()});
        self.order.iter().map(of).collect()
    }

    /// GPUs in rank order, as text: `n0:[0-7] n1:[0-3]`.
    pub fn hosts_text(&self) -> String {
        self.cluster.gpu_list_in_order(&self.order)
    }
}
