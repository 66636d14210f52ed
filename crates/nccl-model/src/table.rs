//! NCCL's table of latency and bandwidth for every collective, algorithm and protocol. The library computes it once per communicator.
//!
//! All values have single precision, as in NCCL, because rounding decides ties.

use crate::agreed::{AgreedGraph, CostModelInput};
use crate::constants::{ALGORITHMS, Constants, HopLink, PROTOCOLS};
use crate::machines::{CpuArch, CpuVendor};
use crate::releases::ReleaseRules;
use topology::Collective;
use topology::nccl::{Algorithm, NcclRate, PathType, Protocol};

/// The collectives of the table, in NCCL's order.
pub const COLLECTIVES: [Collective; 5] = Collective::TUNED;

/// A name that is not in [`COLLECTIVES`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("NCCL has no algorithms for `{0}`, only for {names}", names = COLLECTIVES.map(|c| c.name()).join(", "))]
pub struct NotTuned(String);

/// The collective with this name, if NCCL has algorithms for it.
///
/// # Errors
/// The name is not in [`COLLECTIVES`].
pub fn collective_by_name(name: &str) -> Result<Collective, NotTuned> {
    COLLECTIVES.into_iter().find(|c| c.name() == name).ok_or_else(|| NotTuned(name.to_owned()))
}

/// NCCL's pattern number of the plain tree.
const PATTERN_TREE: u8 = 3;

/// One cell of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TableCell {
    /// Latency, microseconds.
    pub latency_us: f32,
    /// Algorithm bandwidth, GB/s; 0 if NCCL does not offer the pair.
    pub bandwidth_gb_per_s: f32,
}

/// The table of one communicator.
#[derive(Clone, Debug, PartialEq)]
pub struct CostTable {
    cells: [[[TableCell; PROTOCOLS]; ALGORITHMS]; COLLECTIVES.len()],
}

/// Index of a collective in the table; `None` for collectives without an algorithm (all-to-all, send and receive).
pub(crate) fn collective_index(collective: Collective) -> Option<usize> {
    COLLECTIVES.iter().position(|c| *c == collective)
}

impl CostTable {
    /// Computes the table in about a microsecond.
    pub fn of(agreed: &CostModelInput) -> CostTable {
        let model =
            CostModel { agreed, constants: Constants::of(agreed.version), rules: ReleaseRules::of(agreed.version) };
        let mut cells = [[[TableCell::default(); PROTOCOLS]; ALGORITHMS]; COLLECTIVES.len()];
        for (cells, &collective) in cells.iter_mut().zip(&COLLECTIVES) {
            for (cells, &algorithm) in cells.iter_mut().zip(Algorithm::ALL) {
                for (cell, &protocol) in cells.iter_mut().zip(Protocol::ALL) {
                    *cell = model.cell(collective, algorithm, protocol);
                }
            }
        }
        CostTable { cells }
    }

    /// One cell; zero for collectives that are not in the table.
    pub fn cell(&self, collective: Collective, algorithm: Algorithm, protocol: Protocol) -> TableCell {
        collective_index(collective)
            .map_or(TableCell::default(), |c| self.cells[c][algorithm as usize][protocol as usize])
    }

    /// Every cell with a bandwidth above 0.
    pub fn rates(&self) -> impl Iterator<Item = NcclRate> + '_ {
        COLLECTIVES.iter().flat_map(move |&collective| {
            Algorithm::ALL.iter().flat_map(move |&algorithm| {
                Protocol::ALL.iter().filter_map(move |&protocol| {
                    let cell = self.cell(collective, algorithm, protocol);
                    (cell.bandwidth_gb_per_s > 0.0).then_some(NcclRate {
                        collective,
                        algorithm,
                        protocol,
                        latency_us: f64::from(cell.latency_us),
                        bandwidth_gb_per_s: f64::from(cell.bandwidth_gb_per_s),
                    })
                })
            })
        })
    }
}

struct CostModel<'a> {
    agreed: &'a CostModelInput,
    constants: Constants,
    rules: ReleaseRules,
}

impl CostModel<'_> {
    fn cell(&self, collective: Collective, algorithm: Algorithm, protocol: Protocol) -> TableCell {
        let bandwidth = self.bandwidth(collective, algorithm, protocol);
        if bandwidth <= 0.0 || !self.allowed(algorithm, protocol) {
            return TableCell::default();
        }
        TableCell { latency_us: self.latency(collective, algorithm, protocol), bandwidth_gb_per_s: bandwidth }
    }

    /// Number of times that one rank's share passes each rank.
    fn steps(&self, collective: Collective) -> u32 {
        let r = self.agreed.ranks;
        match collective {
            Collective::AllReduce => 2 * (r - 1),
            Collective::AllGather | Collective::ReduceScatter => r - 1,
            _ => r,
        }
    }

    fn exists(&self, collective: Collective, algorithm: Algorithm, protocol: Protocol) -> bool {
        let all_reduce = collective == Collective::AllReduce;
        let scattered = matches!(collective, Collective::AllGather | Collective::ReduceScatter);
        let simple = protocol == Protocol::Simple;
        match algorithm {
            Algorithm::Ring => true,
            Algorithm::Tree => all_reduce,
            Algorithm::Nvls => simple && (all_reduce || scattered) && self.agreed.nvls.is_some(),
            Algorithm::NvlsTree => simple && all_reduce && self.agreed.nvls.is_some(),
            Algorithm::Pat => simple && scattered && self.rules.pat.is_some(),
            // CollNet algorithms need a CollNet plugin (SHARP), which is not modelled.
            Algorithm::CollNetDirect | Algorithm::CollNetChain => false,
        }
    }

    /// True if NCCL keeps the pair after it has computed the table.
    fn allowed(&self, algorithm: Algorithm, protocol: Protocol) -> bool {
        let a = self.agreed;
        let by_algorithm = match algorithm {
            // NVLS across nodes needs CollNet.
            Algorithm::Nvls => a.hosts == 1,
            Algorithm::NvlsTree => a.hosts > 1,
            Algorithm::Pat => a.hosts == a.ranks && a.machines.capability_min >= 60,
            _ => true,
        };
        by_algorithm && (protocol != Protocol::Ll128 || self.ll128(algorithm))
    }

    fn ll128(&self, algorithm: Algorithm) -> bool {
        let a = self.agreed;
        let graph = if algorithm == Algorithm::Ring { &a.ring } else { &a.tree };
        let (low, high) = (a.machines.capability_min, a.machines.capability_max);
        let far = if low >= 90 { PathType::Pxn } else { PathType::Pxb };
        let near = graph.type_intra <= PathType::Nvb && graph.type_inter <= far;
        let alike = low == high || a.version.at_least(2, 30, 0) && low >= 90;
        let generation = match low {
            _ if a.version.at_least(2, 27, 0) => low >= 70,
            100 | 120 => a.version.at_least(2, 25, 0),
            _ => matches!(low, 70 | 80 | 90),
        };
        near && alike && generation
    }

    fn graph(&self, algorithm: Algorithm) -> &AgreedGraph {
        match algorithm {
            Algorithm::Ring => &self.agreed.ring,
            Algorithm::Nvls | Algorithm::NvlsTree => self.agreed.nvls.as_ref().unwrap_or(&self.agreed.tree),
            _ => &self.agreed.tree,
        }
    }

    fn row(&self) -> usize {
        Constants::row(self.agreed.version, self.agreed.machines.class())
    }

    fn scale(&self) -> usize {
        (self.agreed.hosts as usize - 1).min(2)
    }

    fn ll_max(&self) -> f32 {
        let a = self.agreed;
        let by_cpu = matches!(a.machines.cpu.vendor, CpuVendor::Amd | CpuVendor::Mixed);
        let row = if a.hosts == 1 { self.row() } else { usize::from(by_cpu) };
        self.constants.ll_max[row][self.scale()]
    }

    fn bandwidth(&self, collective: Collective, algorithm: Algorithm, protocol: Protocol) -> f32 {
        if !self.exists(collective, algorithm, protocol) {
            return 0.0;
        }
        let a = self.agreed;
        let graph = self.graph(algorithm);
        let channels = graph.channels as f32;
        let (intra, inter) = (graph.bw_intra_gb_per_s, graph.bw_inter_gb_per_s);
        let (row, scale) = (self.row(), self.scale());
        let c = &self.constants;
        let all_reduce = collective == Collective::AllReduce;
        let ratio = a.ranks as f32 / self.steps(collective) as f32;
        let per_channel = self.per_channel(algorithm, intra, inter);
        let bus = channels * per_channel;
        match algorithm {
            Algorithm::Ring => {
                ratio
                    * match protocol {
                        Protocol::Ll => (0.5 * bus).min(self.ll_max()),
                        Protocol::Ll128 => {
                            let thin = self.rules.ring_ll128_thin && a.ranks_per_host() < 2.0;
                            let share = if thin { 0.7 } else { 0.92 };
                            (share * bus).min(channels * c.ring_ll128_per_channel[row][scale])
                        }
                        Protocol::Simple => bus,
                    }
            }
            Algorithm::Tree => {
                let capped = (0.92 * bus).min(channels * c.tree_per_channel[row][scale]);
                let by_protocol = match protocol {
                    Protocol::Ll => (capped / 3.8).min(self.ll_max()),
                    Protocol::Ll128 => {
                        let share = if a.hosts == 1 { 7.0 / 9.0 } else { 120.0 / 128.0 };
                        (capped * share).min(channels * c.tree_ll128_per_channel[row][scale])
                    }
                    Protocol::Simple => capped,
                };
                0.5 * by_protocol * if graph.pattern == PATTERN_TREE { 0.85 } else { 1.0 }
            }
            Algorithm::Nvls | Algorithm::NvlsTree => self.nvls(algorithm, graph, ratio, all_reduce),
            Algorithm::Pat => bus * self.rules.pat.unwrap_or(0.0),
            Algorithm::CollNetDirect | Algorithm::CollNetChain => 0.0,
        }
    }

    /// Bandwidth of one search channel.
    fn per_channel(&self, algorithm: Algorithm, intra: f32, inter: f32) -> f32 {
        let a = self.agreed;
        match algorithm {
            _ if !self.rules.split_model => {
                if a.hosts <= 2 {
                    intra
                } else {
                    inter
                }
            }
            Algorithm::Ring | Algorithm::Tree if a.hosts == 2 && a.machines.capability_min >= 100 => inter,
            Algorithm::Pat => intra.min(inter),
            _ => {
                if a.hosts <= 2 {
                    intra
                } else {
                    inter
                }
            }
        }
    }

    fn nvls(&self, algorithm: Algorithm, graph: &AgreedGraph, ratio: f32, all_reduce: bool) -> f32 {
        let a = self.agreed;
        let heads = graph.channels as f32;
        let (intra, inter) = (graph.bw_intra_gb_per_s, graph.bw_inter_gb_per_s);
        let (row, scale) = (self.row(), self.scale());
        let tree = algorithm == Algorithm::NvlsTree;
        if !self.rules.nvls_efficiency {
            // Releases before 2.28.
            let per_head =
                if tree { intra.min(if a.hosts <= 2 { inter } else { inter / 2.0 }) } else { intra.min(inter) };
            let own = if self.rules.nvls_own_share { (a.ranks_per_host() - 1.0) / a.ranks_per_host() } else { 1.0 };
            return heads * per_head * if all_reduce || self.rules.nvls_sixth_for_all { 5.0 / 6.0 } else { own };
        }
        if graph.channels < 2 {
            return 0.0;
        }
        let mut inside = intra * self.constants.nvls_efficiency[row] * (heads - 1.0) / heads;
        inside *= if all_reduce { 2.0 } else { (a.ranks_per_host() - 1.0) / a.ranks_per_host() };
        let between = if tree && a.hosts <= 2 { 2.0 * inter } else { inter };
        let mut per_head = inside.min(between);
        if tree {
            per_head = per_head.min(self.constants.nvls_tree_per_channel[row][scale]);
        }
        // For all-gather and reduce-scatter NCCL's table holds the bus bandwidth.
        heads * per_head * if all_reduce { ratio } else { 1.0 }
    }

    fn hop(&self, link: HopLink, algorithm: Algorithm, protocol: Protocol) -> f32 {
        if link == HopLink::Pci
            && self.agreed.machines.cpu.arch == CpuArch::Power
            && algorithm == Algorithm::Tree
            && protocol == Protocol::Simple
        {
            return self.constants.hop_us[link as usize][Algorithm::Ring as usize][protocol as usize];
        }
        self.constants.hop_us[link as usize][algorithm as usize][protocol as usize]
    }

    /// Time that NCCL adds when a ring enters the network, microseconds.
    fn network_overhead_us(&self) -> f32 {
        if self.agreed.machines.is_amd() { 2.0 } else { 1.0 }
    }

    fn latency(&self, collective: Collective, algorithm: Algorithm, protocol: Protocol) -> f32 {
        let a = self.agreed;
        let graph = self.graph(algorithm);
        let simple = protocol == Protocol::Simple;
        let base = self.constants.base_us[algorithm as usize][protocol as usize];
        let inside = if graph.type_intra == PathType::Nvl { HopLink::Nv } else { HopLink::Pci };
        let mut intra = self.hop(inside, algorithm, protocol);
        let lone = a.hosts == a.ranks && self.rules.lone_ranks_pay_tree;
        let net_of = if lone { Algorithm::Tree } else { algorithm };
        let mut inter = self.hop(HopLink::Net, net_of, protocol) + graph.latency_inter_us;
        if simple {
            inter += graph.latency_inter_us;
        }
        let log2_hosts = a.hosts.ilog2() as f32;
        match algorithm {
            Algorithm::Ring => {
                let link = if a.hosts == 1 { inside } else { HopLink::Net };
                let hop = self.hop(link, algorithm, protocol);
                if matches!(collective, Collective::Broadcast | Collective::Reduce) {
                    if graph.same_channels {
                        return base + hop;
                    }
                    let hop = if simple { self.hop(link, Algorithm::Tree, protocol) } else { hop };
                    return base + self.steps(collective) as f32 * hop;
                }
                let crossings = match collective {
                    _ if a.hosts == 1 => 0,
                    Collective::AllReduce if self.rules.crosses_twice_n => 2 * a.hosts,
                    Collective::AllReduce => 2 * (a.hosts - 1),
                    _ => a.hosts - 1,
                };
                let overhead = if a.hosts == 1 { 0.0 } else { self.network_overhead_us() };
                intra = intra.max(if simple { 3.0 * overhead } else { overhead });
                let steps = self.steps(collective);
                base + (steps as f32 - crossings as f32) * intra + crossings as f32 * inter
            }
            Algorithm::Tree => base + 2.0 * (((a.ranks / a.hosts) as f32 - 1.0) * intra + log2_hosts * inter),
            Algorithm::Nvls => intra + if a.hosts > 1 { inter } else { 0.0 },
            Algorithm::NvlsTree => base + intra + 2.0 * log2_hosts * inter,
            Algorithm::Pat => base + log2_hosts * (inter / 3.5) + 2.8 * a.ranks as f32,
            Algorithm::CollNetDirect | Algorithm::CollNetChain => 0.0,
        }
    }
}
