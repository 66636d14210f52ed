//! Reads the log of one node: NCCL's lines of the subsystems INIT, GRAPH and TUNING (2.21 to 2.32), and the runner's lines between them.

use super::CHANNELS_MAX;
use crate::report::{ChannelCounts, Connection, KernelLaunch};
use std::collections::BTreeMap;
use topology::Collective;
use topology::nccl::{Algorithm, Graph, GraphKind, NcclRate, PathType, Protocol};

/// Maximum length of a line, bytes. Longer lines are skipped.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Maximum number of stored warnings.
const WARNINGS_MAX: usize = 50;
/// Maximum number of stored connections: enough for 256 ranks with 64 channels and a few peers each.
const CONNECTIONS_MAX: usize = 1 << 20;
/// Ranks from this number on are ignored.
const RANK_MAX: u32 = 1 << 16;

/// The contents of one node's log.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeLog {
    /// The library's version as one number, such as 22809.
    pub version_code: Option<u32>,
    /// Seconds until the communicator was initialised.
    pub initialised_s: Option<f64>,
    /// Seconds from the first call to the end of the last.
    pub calls_s: Option<f64>,
    /// True if the runner finished.
    pub done: bool,
    /// The runner's errors.
    pub errors: Vec<String>,
    /// NCCL's warnings.
    pub warnings: Vec<String>,
    /// Number of nodes as NCCL counts them.
    pub nccl_nodes: Option<u32>,
    /// "maxBw" and "totalBw" of the first rank, GB/s.
    pub bandwidths: Option<(f64, f64)>,
    /// (local device, graph without channels).
    pub graphs: Vec<(u32, Graph)>,
    /// The next rank of each rank in the ring, by (channel, rank).
    pub ring_next: BTreeMap<(u32, u32), u32>,
    /// (parent, children) by (channel, rank).
    pub trees: BTreeMap<(u32, u32), (Option<u32>, Vec<u32>)>,
    /// Ranks by NVLS head.
    pub nvls_heads: BTreeMap<u32, Vec<u32>>,
    /// Channel counts, if this node prints them.
    pub channels: Option<ChannelCounts>,
    /// The cost table, in the log of the node with rank 0.
    pub rates: Vec<NcclRate>,
    /// The calls.
    pub calls: Vec<CallLog>,
    /// The connections between ranks.
    pub connections: Vec<Connection>,
}

/// The lines of one call.
#[derive(Debug, Clone, PartialEq)]
pub struct CallLog {
    /// The collective.
    pub collective: Collective,
    /// Bytes of the call.
    pub size_bytes: u64,
    /// Requested bytes.
    pub requested_bytes: u64,
    /// True if the call was captured into a CUDA graph.
    pub captured: bool,
    /// Estimate of `ncclGroupSimulateEnd`, microseconds.
    pub estimate_us: Option<f64>,
    /// The decision lines of the launch.
    pub decisions: Vec<DecisionLine>,
    /// The launched kernel.
    pub launch: Option<KernelLaunch>,
}

/// A line "AllReduce: 1024 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}", before 2.24 "1024 Bytes -> Algo 0 proto 0 time 20.4".
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecisionLine {
    /// Algorithm.
    pub algorithm: Algorithm,
    /// Protocol.
    pub protocol: Protocol,
    /// First and last channel.
    pub channels: Option<(u32, u32)>,
    /// NCCL's estimate, microseconds.
    pub time_us: Option<f64>,
}

/// Reads a log. Skips unknown lines. O(text).
pub fn read(text: &str) -> NodeLog {
    let mut r = LogReader::default();
    for line in text.lines().filter(|l| l.len() <= LINE_BYTES_MAX) {
        if let Some(own) = line.strip_prefix("@linkwise ") {
            r.runner_line(own);
        } else if let Some((head, said)) = line.split_once(" NCCL INFO ") {
            let device = head.rsplit_once('[').and_then(|(_, d)| d.split(']').next()?.parse().ok()).unwrap_or(0);
            r.nccl_line(device, said.trim());
        } else if let Some((_, said)) = line.split_once(" NCCL WARN ")
            && r.log.warnings.len() < WARNINGS_MAX
        {
            r.log.warnings.push(said.trim().to_string());
        }
    }
    r.log
}

#[derive(Default)]
struct LogReader {
    log: NodeLog,
    /// True between the lines "launch" and "launched". Decision lines of simulations are outside and ignored.
    launching: bool,
    /// Columns of the current table.
    table: Vec<Algorithm>,
}

impl LogReader {
    fn runner_line(&mut self, line: &str) {
        let mut words = line.split(' ');
        let kind = words.next().unwrap_or("");
        let rest: Vec<&str> = words.collect();
        let last = self.log.calls.last_mut();
        match (kind, &rest[..]) {
            ("version", [code]) => self.log.version_code = code.parse().ok(),
            ("initialised", [s]) => self.log.initialised_s = positive(s),
            ("called", [s]) => self.log.calls_s = positive(s),
            ("done", _) => self.log.done = true,
            ("error", _) => self.log.errors.push(line.trim_start_matches("error ").to_string()),
            ("call", [_, name, bytes, requested, how]) => {
                self.launching = false;
                let (Ok(collective), Ok(size_bytes), Ok(requested_bytes)) =
                    (name.parse(), bytes.parse(), requested.parse())
                else {
                    return;
                };
                self.log.calls.push(CallLog {
                    collective,
                    size_bytes,
                    requested_bytes,
                    captured: *how == "graph",
                    estimate_us: None,
                    decisions: Vec::new(),
                    launch: None,
                });
            }
            ("estimate", [_, us]) => {
                if let Some(call) = last {
                    call.estimate_us = positive(us);
                }
            }
            ("launch", _) => self.launching = true,
            ("launched", [_, "kernels", n, "grid", grid, "block", block]) => {
                self.launching = false;
                if let (Some(call), Ok(kernels), Ok(grid), Ok(block)) = (last, n.parse(), grid.parse(), block.parse()) {
                    call.launch = (kernels > 0).then_some(KernelLaunch { kernels, grid, block });
                }
            }
            _ => {}
        }
    }

    fn nccl_line(&mut self, device: u32, line: &str) {
        if let Some(rest) = line.strip_prefix("Pattern ") {
            if let Some(g) = graph(rest) {
                self.log.graphs.push((device, g));
            }
        } else if let Some(rest) = line.strip_prefix("Ring ") {
            self.ring(rest);
        } else if let Some(rest) = line.strip_prefix("Trees ") {
            self.trees(rest);
        } else if let Some(rest) = line.strip_prefix("NVLS Head ") {
            self.nvls_head(rest);
        } else if let Some(rest) = line.strip_prefix("=== System : maxBw ") {
            if self.log.bandwidths.is_none() {
                let mut words = rest.split_whitespace();
                let (max, total) = (words.next().and_then(positive), words.nth(1).and_then(positive));
                self.log.bandwidths = max.zip(total);
            }
        } else if let Some(rest) = line.strip_prefix("Algorithm ") {
            self.table = rest.split('|').filter_map(|w| w.trim().parse().ok()).collect();
        } else if line.starts_with("comm ") && line.contains(" nNodes ") {
            let after = |key: &str| line.split(key).nth(1)?.split_whitespace().next()?.parse().ok();
            self.log.nccl_nodes = self.log.nccl_nodes.or(after(" nNodes "));
        } else if line.contains(" coll channels, ") {
            self.log.channels = self.log.channels.or_else(|| channel_counts(line));
        } else if line.contains(" Bytes -> Algo ") {
            if let (true, Some(d), Some(call)) = (self.launching, decision(line), self.log.calls.last_mut()) {
                call.decisions.push(d);
            }
        } else if line.starts_with("Channel ") && line.contains(" via ") {
            if let (true, Some(c)) = (self.log.connections.len() < CONNECTIONS_MAX, connection(line)) {
                self.log.connections.push(c);
            }
        } else if let Some((name, cells)) = line.split_once('|') {
            self.table_row(name.trim(), cells);
        }
    }

    /// `00 : 5 -> 0 -> 3`
    fn ring(&mut self, rest: &str) {
        let Some((channel, hops)) = rest.split_once(':') else { return };
        let hops: Vec<Option<u32>> = hops.split("->").map(rank).collect();
        // Some releases append more text after the hops.
        if let (Some(channel), [_, Some(at), Some(next)]) = (number(channel), &hops[..]) {
            self.log.ring_next.insert((channel, *at), *next);
        }
    }

    /// `[0] 1/4/-1->0->-1 [1] ...`: children, rank, parent.
    fn trees(&mut self, rest: &str) {
        for piece in rest.split('[').skip(1) {
            let Some((channel, tree)) = piece.split_once(']') else { continue };
            let hops: Vec<&str> = tree.trim().split("->").collect();
            let (Some(channel), [down, at, up]) = (number(channel), &hops[..]) else { continue };
            if let Some(at) = rank(at) {
                self.log.trees.insert((channel, at), (rank(up), down.split('/').filter_map(rank).collect()));
            }
        }
    }

    /// `0:  0  4`
    fn nvls_head(&mut self, rest: &str) {
        if let Some((head, ranks)) = rest.split_once(':')
            && let Some(head) = number(head)
        {
            self.log.nvls_heads.insert(head, ranks.split_whitespace().filter_map(rank).collect());
        }
    }

    /// `AllReduce |    20.4/  16.6 | ...`: three protocols for each algorithm of the header.
    fn table_row(&mut self, name: &str, cells: &str) {
        let Some(collective) = function(name) else { return };
        let kinds = self.table.iter().flat_map(|a| Protocol::ALL.iter().map(move |p| (*a, *p)));
        for ((algorithm, protocol), cell) in kinds.zip(cells.split('|')) {
            let Some((latency, bandwidth)) = cell.split_once('/') else { return };
            let (Some(latency), Some(bandwidth)) = (finite(latency), finite(bandwidth)) else { return };
            // NCCL prints 0/0 for unavailable pairs, from 2.31 on also -1/-1.
            let rate = NcclRate {
                collective,
                algorithm,
                protocol,
                latency_us: latency.max(0.0),
                bandwidth_gb_per_s: bandwidth.max(0.0),
            };
            let same = |r: &NcclRate| (r.collective, r.algorithm, r.protocol) == (collective, algorithm, protocol);
            if !self.log.rates.iter().any(same) {
                self.log.rates.push(rate);
            }
        }
    }
}

/// The collective with this NCCL name, for the five collectives with an algorithm.
fn function(name: &str) -> Option<Collective> {
    Some(match name {
        "AllReduce" => Collective::AllReduce,
        "AllGather" => Collective::AllGather,
        "ReduceScatter" => Collective::ReduceScatter,
        "Broadcast" => Collective::Broadcast,
        "Reduce" => Collective::Reduce,
        _ => return None,
    })
}

/// `4, crossNic 0, nChannels 8, bw 24.000000/24.000000, type NVL/PXN, sameChannels 0`
fn graph(rest: &str) -> Option<Graph> {
    let (pattern, rest) = rest.split_once(',')?;
    let after = |key: &str| rest.split(key).nth(1).map(|t| t.split(',').next().unwrap_or("").trim());
    let pattern: u8 = pattern.trim().parse().ok()?;
    let (intra, inter) = after(" bw ")?.split_once('/')?;
    let (type_intra, type_inter) = after(" type ")?.split_once('/')?;
    let kind = match pattern {
        1..=3 => GraphKind::Tree,
        4 => GraphKind::Ring,
        5 => GraphKind::Nvls,
        6 => GraphKind::CollNetDirect,
        _ => return None,
    };
    Some(Graph {
        kind,
        pattern,
        cross_nic: after("crossNic ")?.parse().ok()?,
        channel_count: after("nChannels ")?.parse().ok().filter(|n| *n <= CHANNELS_MAX)?,
        bw_intra_gb_per_s: positive(intra)?,
        bw_inter_gb_per_s: positive(inter)?,
        latency_inter_us: 0.0, // not printed
        type_intra: type_intra.parse::<PathType>().ok()?,
        type_inter: type_inter.parse::<PathType>().ok()?,
        same_channels: after("sameChannels ")? != "0",
        channels: Vec::new(),
    })
}

/// `16 coll channels, 16 collnet channels, 16 nvls channels, 16 p2p channels, 2 p2p channels per peer`
fn channel_counts(line: &str) -> Option<ChannelCounts> {
    let mut counts = ChannelCounts::default();
    for piece in line.split(',') {
        let (n, what) = piece.trim().split_once(' ')?;
        let Ok(n) = n.parse::<u32>() else { continue };
        match what {
            "coll channels" => counts.coll = n,
            "collnet channels" => counts.collnet = n,
            "nvls channels" => counts.nvls = n,
            "p2p channels" => counts.p2p = n,
            "p2p channels per peer" => counts.p2p_per_peer = n,
            _ => {}
        }
    }
    (counts.coll > 0).then_some(counts)
}

fn decision(line: &str) -> Option<DecisionLine> {
    let rest = line.split(" Bytes -> Algo ").nth(1)?;
    let (algorithm, rest) = rest.split_once(" proto ")?;
    let protocol = rest.split_whitespace().next()?;
    // A number up to 2.23, a name from 2.24 on.
    let by_number = |t: &str| t.parse::<usize>().ok();
    let algorithm = match by_number(algorithm.trim()) {
        Some(n) => *Algorithm::ALL.get(n)?,
        None => algorithm.trim().parse().ok()?,
    };
    let protocol = match by_number(protocol) {
        Some(n) => *Protocol::ALL.get(n)?,
        None => protocol.parse().ok()?,
    };
    let channels = rest.split("={").nth(1).and_then(|t| {
        let (low, high) = t.split('}').next()?.split_once("..")?;
        let (low, high) = (low.trim().parse::<u32>().ok()?, high.trim().parse::<u32>().ok()?);
        (low <= high && (high as usize) < CHANNELS_MAX).then_some((low, high))
    });
    let time_us = rest.split(" time ").nth(1).and_then(|t| positive(t.split_whitespace().next()?));
    Some(DecisionLine { algorithm, protocol, channels, time_us })
}

/// `Channel 03/0 : 0[0] -> 7[3] [send] via NET/Simulated/3(3)/GDRDMA`; `3(3)`: NIC 3 next to rank 3's GPU.
fn connection(line: &str) -> Option<Connection> {
    let (head, via) = line.split_once(" via ")?;
    let (channel, pair) = head.strip_prefix("Channel ")?.split_once(':')?;
    let channel = number(channel.split('/').next()?)?;
    let (from, to) = pair.split_once("->")?;
    let at = |t: &str| rank(t.trim().split('[').next()?);
    let send = if to.contains("[send]") {
        Some(true)
    } else if to.contains("[receive]") {
        Some(false)
    } else {
        None
    };
    let device = via.strip_prefix("NET/").and_then(|t| t.split('/').nth(1));
    let nic = device.and_then(|d| d.split('(').next()?.trim().parse().ok());
    let through = device.and_then(|d| rank(d.split_once('(')?.1.split(')').next()?));
    Some(Connection { channel, from: at(from)?, to: at(to)?, send, via: via.trim().to_string(), nic, through })
}

fn number(text: &str) -> Option<u32> {
    text.trim().parse().ok().filter(|n| (*n as usize) < CHANNELS_MAX)
}

/// A rank; `None` for -1, which means no rank.
fn rank(text: &str) -> Option<u32> {
    text.trim().parse().ok().filter(|n| *n < RANK_MAX)
}

fn finite(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|v: &f64| v.is_finite() && v.abs() < 1e12)
}

fn positive(text: &str) -> Option<f64> {
    finite(text).filter(|v| *v >= 0.0)
}
