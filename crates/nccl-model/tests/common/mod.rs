//! Compares the model with reports of the real library, cell by cell. Used by the tests and by `examples/check.rs`.

use nccl_bench::{Bench, BenchError, BenchReport, BenchSpec, CallMode, SimulatedNode};
use nccl_model::{AgreedMachines, COLLECTIVES, Communicator, CostModelInput, CostTable, HostMachine, choose};
use std::time::Duration;
use topology::nccl::{Graph, Version};
use topology::{Cluster, GpuMask, HostId};

/// One comparison of counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    pub equal: usize,
    pub of: usize,
}

impl Score {
    fn add(&mut self, equal: bool) -> bool {
        self.of += 1;
        self.equal += usize::from(equal);
        equal
    }
    pub fn percent(self) -> f64 {
        100.0 * self.equal as f64 / self.of.max(1) as f64
    }
}

impl std::ops::AddAssign for Score {
    fn add_assign(&mut self, other: Score) {
        self.equal += other.equal;
        self.of += other.of;
    }
}

impl std::fmt::Display for Score {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("{}/{}", self.equal, self.of))
    }
}

/// Agreement of model and library.
#[derive(Clone, Debug, Default)]
pub struct Scores {
    /// Table cells that differ by at most 1 % plus the rounding of the printed table.
    pub cells: Score,
    /// Calls with the same algorithm and protocol.
    pub choices: Score,
    /// Calls with the same algorithm, protocol and channels.
    pub channels: Score,
    /// NCCL's own estimate within 1 %.
    pub estimates: Score,
    /// Channel counts of communicators.
    pub counts: Score,
    /// Rings with the same order of ranks.
    pub rings: Score,
    /// Ranks with the same parent and children in a tree.
    pub trees: Score,
    /// One line per difference.
    pub differences: Vec<String>,
}

impl std::ops::AddAssign for Scores {
    fn add_assign(&mut self, other: Scores) {
        self.cells += other.cells;
        self.choices += other.choices;
        self.channels += other.channels;
        self.estimates += other.estimates;
        self.counts += other.counts;
        self.rings += other.rings;
        self.trees += other.trees;
        self.differences.extend(other.differences);
    }
}

/// An allocation as text: hosts joined by `+`, each a count of first GPUs or GPUs joined by dots (`8+0.2.5`).
pub fn allocation(text: &str) -> Vec<(HostId, GpuMask)> {
    text.split('+')
        .enumerate()
        .map(|(i, part)| {
            let mask = match part.split_once('.') {
                Some(_) => GpuMask::from_indices(part.split('.').map(|g| g.parse::<usize>().expect("a GPU index"))),
                None => GpuMask::first(part.parse().expect("a count of GPUs")),
            };
            (HostId(i as u32), mask)
        })
        .collect()
}

/// Sizes 1 KiB to 4 GiB, every power of two.
pub fn sizes() -> Vec<u64> {
    (10..=32).map(|k| 1u64 << k).collect()
}

/// Runs the real library.
pub fn run(
    bench: &Bench,
    cluster: &Cluster,
    order: &[(HostId, GpuMask)],
    version: Version,
    sizes: &[u64],
) -> Result<BenchReport, BenchError> {
    let nodes = order.iter().map(|(h, m)| SimulatedNode::new(*h, *m)).collect();
    let mut spec = BenchSpec::new(cluster.clone(), nodes, version).with_calls(&COLLECTIVES, sizes);
    spec.mode = if version.at_least(2, 24, 0) { CallMode::Both } else { CallMode::Launch };
    spec.deadline = Duration::from_secs(100);
    bench.run(&spec)
}

/// Level 1: from the library's own graphs.
pub fn from_graphs(report: &BenchReport, cluster: &Cluster, order: &[(HostId, GpuMask)]) -> Scores {
    let machines = order.iter().map(|(h, _)| HostMachine::of(cluster.type_of(*h)).expect("a known GPU"));
    let machines = AgreedMachines::agree(machines).expect("hosts");
    let hosts: Vec<(u32, &[Graph])> = report.nodes.iter().map(|n| (n.gpus.len() as u32, n.graphs.as_slice())).collect();
    let mut s = Scores::default();
    let agreed = match CostModelInput::of(report.version, machines, &hosts) {
        Ok(a) => a,
        Err(e) => {
            s.differences.push(e.to_string());
            s.counts.add(false);
            return s;
        }
    };
    compare(&mut s, report, &agreed, &CostTable::of(&agreed));
    s
}

/// Level 2 (and 3): from hosts alone.
pub fn from_hosts(report: &BenchReport, cluster: &Cluster, order: &[(HostId, GpuMask)]) -> Scores {
    let mut s = Scores::default();
    let c = match Communicator::build(report.version, cluster, order) {
        Ok(c) => c,
        Err(e) => {
            s.differences.push(e.to_string());
            s.counts.add(false);
            return s;
        }
    };
    compare(&mut s, report, c.agreed(), c.table());
    for (channel, real) in report.rings.iter().enumerate() {
        if !s.rings.add(*real == c.ring(channel)) {
            s.differences.push(format!("ring {channel}: model {:?}, library {real:?}", c.ring(channel)));
        }
    }
    for (channel, places) in report.trees.iter().enumerate() {
        let model = c.tree(channel);
        for place in places {
            let (up, mut down) = model[place.rank as usize].clone();
            let mut real = place.down.clone();
            down.sort_unstable();
            real.sort_unstable();
            if !s.trees.add(up == place.up && down == real) {
                s.differences.push(format!(
                    "tree {channel} rank {}: model {up:?} {down:?}, library {:?} {real:?}",
                    place.rank, place.up
                ));
            }
        }
    }
    s
}

fn compare(s: &mut Scores, report: &BenchReport, agreed: &CostModelInput, table: &CostTable) {
    let real = report.channels;
    if !s.counts.add((real.coll, real.nvls) == (agreed.channels, agreed.nvls_channels)) {
        s.differences.push(format!(
            "channels: model {} and {} for NVLS, library {} and {}",
            agreed.channels, agreed.nvls_channels, real.coll, real.nvls
        ));
    }
    for rate in &report.rates {
        let model = table.cell(rate.collective, rate.algorithm, rate.protocol);
        let (latency, bandwidth) = (f64::from(model.latency_us), f64::from(model.bandwidth_gb_per_s));
        // From 2.31 on the printed table also holds entries that NCCL then rules out. The comparison of choices covers them.
        if bandwidth == 0.0 && (rate.bandwidth_gb_per_s < 0.05 || report.version.at_least(2, 31, 0)) {
            continue;
        }
        let near = |a: f64, b: f64| (a - b).abs() <= 0.051 + 0.01 * b.abs();
        if !s.cells.add(near(latency, rate.latency_us) && near(bandwidth, rate.bandwidth_gb_per_s)) {
            s.differences.push(format!(
                "table {} {} {}: model {latency:.1}/{bandwidth:.1}, library {}/{}",
                rate.collective, rate.algorithm, rate.protocol, rate.latency_us, rate.bandwidth_gb_per_s
            ));
        }
    }
    for call in &report.calls {
        let Some(model) = choose(agreed, table, call.collective, call.size_bytes) else { continue };
        let what = |a, p, c: u32, t| format!("{a}/{p} {c} channels {t:.1} us");
        let said =
            |model: &nccl_model::CallChoice| what(model.algorithm, model.protocol, model.channels, model.time_us);
        if let Some(real) = &call.decision {
            let same = (real.algorithm, real.protocol) == (model.algorithm, model.protocol);
            let real_channels = call.launch.map(|l| l.grid).unwrap_or(real.channels);
            s.choices.add(same);
            if !s.channels.add(same && real_channels == model.channels) {
                let real = format!("{}/{} {real_channels} channels", real.algorithm, real.protocol);
                s.differences.push(format!(
                    "{} {}: model {}, library {real}",
                    call.collective,
                    call.size_bytes,
                    said(&model)
                ));
            }
        }
        let Some(us) = call.estimate_us.filter(|us| *us > 0.0) else { continue };
        if !s.estimates.add((f64::from(model.time_us) / us - 1.0).abs() < 0.01) {
            s.differences.push(format!(
                "{} {}: model {}, library estimates {us:.1} us",
                call.collective,
                call.size_bytes,
                said(&model)
            ));
        }
    }
}
