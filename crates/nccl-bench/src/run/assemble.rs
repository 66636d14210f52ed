//! Assembles the report of a run from the logs of its processes.

use super::BenchRun;
use crate::BenchError;
use crate::read::{GRAPHS_BYTES_MAX, graphs, log};
use crate::report::{BenchReport, BenchSeconds, NodeReport, ReportedCall, TreePlace};
use std::collections::BTreeMap;
use topology::nccl::{DecisionSource, Graph, GraphKind, NcclDecision, Version};

impl BenchRun<'_> {
    /// Reads the logs of all processes into one report. Fails if NCCL called a function that the emulation does not
    /// have, or if a log is incomplete.
    pub(super) fn report(&self, total: f64) -> Result<BenchReport, BenchError> {
        let calls = self.emulation_lines("not emulated: ")?;
        if !calls.is_empty() {
            return Err(BenchError::NotEmulated { version: self.library.version, calls });
        }
        let logs = (0..self.processes.len()).map(|p| self.log(p)).collect::<Result<Vec<_>, _>>()?;
        let node = |n: usize| self.node(n, &logs[self.first_process(n)]);
        let nodes = (0..self.spec.nodes.len()).map(node).collect::<Result<Vec<NodeReport>, _>>()?;
        let first = &logs[0];
        let missing = |what: &str| self.log_error(format!("it does not contain {what}"));
        let ranks = self.spec.rank_count() as u32;
        let version = first.version_code.and_then(version_of).ok_or_else(|| missing("NCCL's version"))?;
        if version != self.library.version {
            return Err(BenchError::Cache {
                path: self.library.path.clone(),
                reason: format!("it is NCCL {version}, not {}", self.library.version),
            });
        }
        if first.rates.is_empty() {
            return Err(missing("the table of latencies and bandwidths"));
        }
        let mut warnings: Vec<String> = logs.iter().flat_map(|l| l.warnings.iter().cloned()).collect();
        warnings.sort();
        warnings.dedup();
        // Ranks connect in separate threads, so the log has no fixed order.
        let mut connections: Vec<_> = logs.iter().flat_map(|l| l.connections.iter().cloned()).collect();
        connections
            .sort_by(|a, b| (a.channel, a.from, a.to, a.send, &a.via).cmp(&(b.channel, b.from, b.to, b.send, &b.via)));
        Ok(BenchReport {
            version,
            library_sha256: self.library.sha256.clone(),
            ranks,
            nccl_nodes: first.nccl_nodes.ok_or_else(|| missing("the number of nodes"))?,
            merged_graphs: merge(&nodes),
            nodes,
            channels: first.channels.ok_or_else(|| missing("the numbers of channels"))?,
            rings: rings(&logs, ranks).map_err(|e| self.log_error(e))?,
            trees: trees(&logs),
            nvls_heads: first.nvls_heads.values().cloned().collect(),
            rates: first.rates.clone(),
            calls: self.calls(first)?,
            connections,
            absent: self.emulation_lines("absent: ")?,
            warnings,
            seconds: BenchSeconds {
                initialised: logs.iter().filter_map(|l| l.initialised_s).fold(0.0, f64::max),
                calls: logs.iter().filter_map(|l| l.calls_s).fold(0.0, f64::max),
                total,
            },
        })
    }

    fn node(&self, node: usize, log: &log::NodeLog) -> Result<NodeReport, BenchError> {
        let place = &self.spec.nodes[node];
        let (max, total) = log.bandwidths.unwrap_or_default();
        let dump = self.text(self.first_process(node), "graphs.xml", GRAPHS_BYTES_MAX + 1)?;
        let cluster = &self.spec.cluster;
        let mates =
            self.spec.nodes.iter().filter(|n| n.nvlink_domain == place.nvlink_domain && n.nvlink_domain.is_some());
        let devices = mates.map(|n| (cluster.type_of(n.host).gpu_count(), cluster.type_of(n.host).nics.len()));
        let here =
            graphs::DumpContext { gpus: &place.gpus, first_rank: self.first_rank(node), domain: devices.collect() };
        let graphs = graphs::read(&dump, &here).map_err(|e| self.log_error(e))?;
        Ok(NodeReport {
            host: self.host(node),
            host_type: self.spec.cluster.type_of(place.host).name.clone(),
            cpu: self.topologies[node].cpu.clone(),
            gpus: place.gpus.clone(),
            first_rank: self.first_rank(node),
            graphs,
            max_bw_gb_per_s: max,
            total_bw_gb_per_s: total,
        })
    }

    fn calls(&self, log: &log::NodeLog) -> Result<Vec<ReportedCall>, BenchError> {
        if log.calls.len() != self.spec.calls.len() {
            let reason = format!("it has {} of {} calls", log.calls.len(), self.spec.calls.len());
            return Err(self.log_error(reason));
        }
        Ok(log.calls.iter().map(|c| self.call(c)).collect())
    }

    fn call(&self, c: &log::CallLog) -> ReportedCall {
        let line = c.decisions.first();
        let estimate_us = c.estimate_us.or(line.and_then(|d| d.time_us));
        let channel_range = line.and_then(|d| d.channels);
        let channels = channel_range.map(|(low, high)| high - low + 1).or(c.launch.map(|l| l.grid));
        let decision = line.zip(channels).map(|(d, channels)| NcclDecision {
            collective: c.collective,
            size_bytes: c.size_bytes,
            algorithm: d.algorithm,
            protocol: d.protocol,
            channels,
            time_us: estimate_us,
            source: DecisionSource::Bench,
        });
        ReportedCall {
            collective: c.collective,
            requested_bytes: c.requested_bytes,
            size_bytes: c.size_bytes,
            captured: c.captured,
            decision,
            channel_range,
            estimate_us,
            launch: c.launch,
        }
    }
}

/// Converts NCCL's version code to a version: 22809 is 2.28.9.
fn version_of(code: u32) -> Option<Version> {
    let part = |n: u32| u16::try_from(n).ok();
    Some(Version::new(part(code / 10_000)?, part(code / 100 % 100)?, part(code % 100)?))
}

/// One ring per channel, starting at rank 0. Fails if a ring does not contain every rank exactly once.
pub(crate) fn rings(logs: &[log::NodeLog], ranks: u32) -> Result<Vec<Vec<u32>>, String> {
    let next: BTreeMap<(u32, u32), u32> = logs.iter().flat_map(|l| l.ring_next.iter().map(|(k, v)| (*k, *v))).collect();
    let count = next.keys().map(|k| k.0 + 1).max().unwrap_or(0);
    let ring = |channel: u32| {
        let mut ring = vec![0];
        loop {
            let at = *next.get(&(channel, ring[ring.len() - 1])).ok_or(format!("ring {channel} is not complete"))?;
            if at == 0 {
                break;
            }
            if ring.len() as u32 == ranks {
                return Err(format!("ring {channel} does not return to rank 0"));
            }
            ring.push(at);
        }
        if ring.len() as u32 == ranks { Ok(ring) } else { Err(format!("ring {channel} does not hold all ranks")) }
    };
    (0..count).map(ring).collect()
}

pub(crate) fn trees(logs: &[log::NodeLog]) -> Vec<Vec<TreePlace>> {
    let all: BTreeMap<_, _> = logs.iter().flat_map(|l| l.trees.iter()).collect();
    let count = all.keys().map(|k| k.0 as usize + 1).max().unwrap_or(0);
    let mut trees = vec![Vec::new(); count];
    for ((channel, rank), (up, down)) in all {
        trees[*channel as usize].push(TreePlace { rank: *rank, up: *up, down: down.clone() });
    }
    trees
}

/// Merges the nodes' graphs by NCCL's rule: smallest channel counts and bandwidths, highest latency and distance. Only
/// kinds that every node has are merged. Ring and tree get the same number of channels. The channels differ between
/// nodes and are omitted.
fn merge(nodes: &[NodeReport]) -> Vec<Graph> {
    let of = |node: &NodeReport, kind| node.graphs.iter().find(|g| g.kind == kind).cloned();
    let mut merged: Vec<Graph> = Vec::new();
    for &kind in GraphKind::ALL {
        let Some(all) = nodes.iter().map(|n| of(n, kind)).collect::<Option<Vec<Graph>>>() else { continue };
        let Some(m) = all.into_iter().reduce(|a, b| Graph {
            kind,
            pattern: a.pattern.max(b.pattern),
            cross_nic: a.cross_nic.max(b.cross_nic),
            channel_count: a.channel_count.min(b.channel_count),
            bw_intra_gb_per_s: a.bw_intra_gb_per_s.min(b.bw_intra_gb_per_s),
            bw_inter_gb_per_s: a.bw_inter_gb_per_s.min(b.bw_inter_gb_per_s),
            latency_inter_us: a.latency_inter_us.max(b.latency_inter_us),
            type_intra: a.type_intra.max(b.type_intra),
            type_inter: a.type_inter.max(b.type_inter),
            same_channels: a.same_channels && b.same_channels,
            channels: Vec::new(),
        }) else {
            continue;
        };
        merged.push(Graph { channels: Vec::new(), ..m });
    }
    let least =
        merged.iter().filter(|g| matches!(g.kind, GraphKind::Ring | GraphKind::Tree)).map(|g| g.channel_count).min();
    for g in merged.iter_mut().filter(|g| matches!(g.kind, GraphKind::Ring | GraphKind::Tree)) {
        g.channel_count = least.unwrap_or(g.channel_count);
    }
    merged
}
