//! The bandwidth of links between GPUs of one host, and the time of a collective on them.

use crate::constants::{ClassConstants, Constants, GpuClass};
use crate::cycles;
use topology::nccl::Algorithm;
use topology::{Bandwidth, Bytes, Collective, GpuMask, HostType, PathKind};

/// The kind of links that carries the bytes of a set of GPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Carrier {
    /// NVLink, direct or over switches.
    NvLink,
    /// PCIe, or host memory without peer-to-peer.
    Pcie,
}

/// Bandwidths of a set of GPUs of one host, without latency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IntraEntry {
    /// Bus bandwidth of a ring for large messages, GB/s; 0 for a single GPU.
    pub ring_gb_per_s: f64,
    /// The kind of links.
    pub carrier: Carrier,
    /// NVLink SHARP's constant B, GB/s; 0 below three GPUs or without switches that multicast.
    pub nvls_gb_per_s: f64,
}

impl IntraEntry {
    const ALONE: IntraEntry = IntraEntry { ring_gb_per_s: 0.0, carrier: Carrier::NvLink, nvls_gb_per_s: 0.0 };
}

/// The [`IntraEntry`] of every set of GPUs of one host type.
#[derive(Clone, Debug)]
pub struct IntraTable {
    /// Indexed by count if all sets of one size have the same bandwidth, otherwise by mask.
    entries: Vec<IntraEntry>,
    by_count: bool,
    class: GpuClass,
    /// The NICs nearest to every GPU, as bits.
    nearest_nics: Vec<u32>,
}

impl IntraTable {
    /// Computes the table of a host type with n GPUs. O(2^n n^2), and O(n) with NVSwitches.
    pub fn new(host: &HostType, constants: &Constants) -> IntraTable {
        let n = host.gpu_count();
        let by_count = host.nvlink.is_some_and(|f| f.switched);
        let entries = if by_count {
            (0..=n).map(|c| intra_entry(host, GpuMask::first(c), constants)).collect()
        } else {
            (0..1u32 << n).map(|m| intra_entry(host, GpuMask(m), constants)).collect()
        };
        IntraTable {
            entries,
            by_count,
            class: GpuClass::of(&host.gpu_model),
            nearest_nics: (0..n).map(|g| host.nearest_nics(g)).collect(),
        }
    }

    /// The NICs nearest to any GPU of a set, as bits. O(GPUs).
    pub fn nics_touched(&self, mask: GpuMask) -> u32 {
        mask.iter().fold(0, |m, g| m | self.nearest_nics[g])
    }

    /// The generation of the host type's GPUs.
    pub fn class(&self) -> GpuClass {
        self.class
    }

    /// The entry of a set of the host's GPUs. O(1).
    pub fn get(&self, mask: GpuMask) -> &IntraEntry {
        let i = if self.by_count { mask.count() } else { mask.0 as usize };
        self.entries.get(i).unwrap_or(&IntraEntry::ALONE)
    }
}

/// Computes the entry of one set. [`IntraTable`] holds the entries of all sets.
pub fn intra_entry(host: &HostType, mask: GpuMask, constants: &Constants) -> IntraEntry {
    let gpus: Vec<usize> = mask.iter().filter(|&g| g < host.gpu_count()).collect();
    let n = gpus.len();
    if n < 2 {
        return IntraEntry::ALONE;
    }
    let class = constants.class(GpuClass::of(&host.gpu_model));
    let lanes_of = |a: usize, b: usize| match host.gpu_paths[a][b] {
        PathKind::NvLink(l) => l,
        _ => 0,
    };
    if let Some(fabric) = host.nvlink {
        let link = fabric.link_rate.gb_per_s() * class.link_efficiency;
        if fabric.switched {
            let lanes = gpus.iter().flat_map(|&a| gpus.iter().map(move |&b| (a, b))).filter(|(a, b)| a != b);
            let fewest = lanes.map(|(a, b)| lanes_of(a, b)).min().unwrap_or(0);
            let ring = f64::from(fewest) * link;
            let nvls = if fabric.multicast && n >= 3 { ring * class.nvls_share } else { 0.0 };
            return IntraEntry { ring_gb_per_s: ring, carrier: Carrier::NvLink, nvls_gb_per_s: nvls };
        }
        let lanes: Vec<u8> = gpus.iter().flat_map(|&a| gpus.iter().map(move |&b| lanes_of(a, b))).collect();
        let packing = cycles::pack_rings(n, &lanes);
        if packing.rings > 0.0 {
            let relay = if packing.relayed { constants.relay } else { 1.0 };
            return IntraEntry {
                ring_gb_per_s: packing.rings * link * relay,
                carrier: Carrier::NvLink,
                nvls_gb_per_s: 0.0,
            };
        }
    }
    IntraEntry { ring_gb_per_s: pcie_ring(host, &gpus, constants), carrier: Carrier::Pcie, nvls_gb_per_s: 0.0 }
}

/// Rate of a ring that crosses PCIe, GB/s: the rate of its slowest hop, limited by the capacity of host bridges and
/// sockets.
fn pcie_ring(host: &HostType, gpus: &[usize], constants: &Constants) -> f64 {
    let c = &constants.pcie;
    let rate = host.pcie.rate().gb_per_s();
    let sockets = gpus.iter().map(|&g| usize::from(host.gpus[g].socket));
    let mut per_socket = [0usize; 256];
    sockets.for_each(|s| per_socket[s] += 1);
    let fullest = per_socket.iter().copied().max().unwrap_or(1);
    let spread = per_socket.iter().filter(|&&c| c > 0).count();
    if !peer_to_peer(host) {
        return (c.staged_gpu * rate).min(c.staged_socket * rate / fullest as f64);
    }
    // The ring is at least as fast as the slowest pair. A measured matrix of pairs therefore lowers the nominal rate.
    let pairs = || gpus.iter().flat_map(|&a| gpus.iter().filter(move |&&b| b != a).map(move |&b| (a, b)));
    let worst = pairs().map(|(a, b)| host.gpu_paths[a][b]).filter(|p| !matches!(p, PathKind::NvLink(_))).max();
    let below_switch = matches!(worst, Some(PathKind::Pix | PathKind::Pxb) | None);
    // If every GPU has an NVLink partner in the set, two rings in opposite order fit: each PCIe direction carries one ring.
    let paired = gpus.iter().all(|&a| gpus.iter().any(|&b| matches!(host.gpu_paths[a][b], PathKind::NvLink(_))));
    let share = match (below_switch, paired) {
        (true, true) => 2.0 * c.switched,
        (true, false) => c.switched,
        (false, true) if gpus.len() / 2 <= spread => c.bridge_two_rings,
        (false, true) => c.bridge_shared_rings,
        (false, false) if spread > 1 && host.pcie.generation <= 3 => c.gen3_sockets,
        (false, false) if gpus.len() == 2 && worst < Some(PathKind::Sys) => c.bridge_pair,
        (false, false) => c.bridge_ring,
    };
    let nominal = share * rate;
    match &host.p2p {
        Some(p2p) if !paired => {
            let measured = pairs().map(|(a, b)| p2p[a][b].gb_per_s()).fold(f64::INFINITY, f64::min);
            if measured > 0.0 { nominal.min(measured) } else { nominal }
        }
        _ => nominal,
    }
}

/// False for GeForce boards since the 40 series: they have no peer-to-peer over PCIe and copy bytes through host
/// memory.
fn peer_to_peer(host: &HostType) -> bool {
    !["4090", "4080", "5090", "5080"].iter().any(|m| host.gpu_model.contains(m))
}

/// Options of a collective.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunOptions {
    /// The forced algorithm, if any. Ring, tree, NVLS and NVLS tree have their own models; other algorithms count as a
    /// ring.
    pub algorithm: Option<Algorithm>,
    /// True if send and receive buffers differ, so that every rank copies its own share (nccl-tests' out-of-place
    /// column).
    pub out_of_place: bool,
}

/// Time in microseconds and algorithm of a collective inside one host.
pub fn time_us(
    set: &IntraEntry,
    class: &ClassConstants,
    constants: &Constants,
    n: usize,
    collective: Collective,
    size: Bytes,
    run: RunOptions,
) -> (f64, Option<Algorithm>) {
    let s = size.as_f64().max(1.0);
    let ranks = n as f64;
    let wire = s * collective.bus_factor(n) / 1e3; // bytes per GB/s are nanoseconds; / 1e3 makes microseconds
    let own = if run.out_of_place { s / ranks / 1e3 } else { 0.0 };
    let ring = set.ring_gb_per_s;
    let pcie = set.carrier == Carrier::Pcie;
    let width = if pcie { 1.0 } else { ring / class.full_ring_gb_per_s };
    if matches!(collective, Collective::AllToAll) {
        let (curve, rate) = if pcie {
            (constants.pcie.all_to_all, ring * constants.pcie.direct_share)
        } else {
            (class.all_to_all, ring * class.direct_share)
        };
        let direct_own_copy = if pcie { constants.pcie.direct_own_copy } else { class.direct_own_copy };
        let copy = own / (ring * direct_own_copy);
        return (curve.overhead_us(ranks - 1.0, s, width) + wire / rate + copy, None);
    }
    let steps = match collective {
        Collective::AllReduce => 2.0 * (ranks - 1.0),
        Collective::SendRecv => 1.0,
        _ => ranks - 1.0,
    };
    let curve = if pcie { constants.pcie.ring } else { class.ring };
    let overhead = curve.overhead_us(steps, s, width);
    let own_copy = if pcie { constants.pcie.own_copy } else { class.own_copy };
    let copy = match collective {
        // An all-reduce copies its own share both in place and out of place. Over PCIe the transfer hides the copy.
        Collective::AllReduce if pcie => 0.0,
        Collective::AllReduce => class.all_reduce_own_copy * (s / ranks / 1e3) / (ring * class.own_copy),
        Collective::AllGather | Collective::ReduceScatter => own / (ring * own_copy),
        _ => 0.0,
    };
    let by_ring = overhead + wire / ring + copy;
    if matches!(collective, Collective::SendRecv) {
        return (by_ring, None);
    }
    let by_nvls = (collective == Collective::AllReduce && set.nvls_gb_per_s > 0.0).then(|| {
        let busbw = 2.0 * set.nvls_gb_per_s * (ranks - 1.0) / (ranks + 1.0);
        class.nvls.overhead_us(steps, s, width) + wire / busbw
    });
    let (us, algorithm) = match (run.algorithm, by_nvls) {
        (Some(Algorithm::Ring), _) => (by_ring, Algorithm::Ring),
        // A tree inside one host is a chain: it uses the links of the ring twice (measured on L40S: 0.92 of the ring).
        (Some(Algorithm::Tree), _) => (by_ring + wire / ring * 0.087, Algorithm::Tree),
        (Some(Algorithm::Nvls | Algorithm::NvlsTree), Some(t)) => (t, Algorithm::Nvls),
        (_, Some(t)) if t < by_ring => (t, Algorithm::Nvls),
        _ => (by_ring, Algorithm::Ring),
    };
    (us, Some(algorithm))
}

/// Bus bandwidth of an in-place collective on a set of GPUs of one host, with NCCL's choice of algorithm; zero for fewer than two GPUs.
/// Computes the entry of the set: O(n^2), a few milliseconds for NVLink meshes.
pub fn intra_busbw(host: &HostType, mask: GpuMask, collective: Collective, size: Bytes) -> Bandwidth {
    let constants = Constants::default();
    let n = mask.count();
    if n < 2 {
        return Bandwidth::ZERO;
    }
    let set = intra_entry(host, mask, &constants);
    let class = constants.class(GpuClass::of(&host.gpu_model));
    let (us, _) = time_us(&set, class, &constants, n, collective, size, RunOptions::default());
    Bandwidth::from_gb_per_s(collective.busbw_gb_per_s(n, size.as_f64(), us * 1e-6))
}
