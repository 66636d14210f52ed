//! Inside one host: what the chosen GPUs' links carry, and how long a collective takes.

use crate::constants::{ClassConstants, Constants, GpuClass};
use crate::cycles;
use topology::nccl::Algorithm;
use topology::{Bandwidth, Bytes, Collective, GpuMask, HostType, PathKind};

/// What carries a set's bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Carrier {
    /// NVLink through switches or direct.
    NvLink,
    /// PCIe (or host memory, without peer-to-peer).
    Pcie,
}

/// A set of GPUs of one host: the plateau of a ring and what carries it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Intra {
    /// Bus bandwidth that a ring reaches when latency no longer matters, GB/s; 0 for a single GPU.
    pub ring_gb_per_s: f64,
    /// What carries it.
    pub carrier: Carrier,
    /// NVLink SHARP's constant B, GB/s, where the switches multicast and three GPUs or more take part; else 0.
    pub nvls_gb_per_s: f64,
}

impl Intra {
    const ALONE: Intra = Intra { ring_gb_per_s: 0.0, carrier: Carrier::NvLink, nvls_gb_per_s: 0.0 };
}

/// [`Intra`] of every set of one host type.
#[derive(Clone, Debug)]
pub struct IntraTable {
    /// By count if every set of one size is alike, else by mask.
    entries: Vec<Intra>,
    by_count: bool,
    class: GpuClass,
}

impl IntraTable {
    /// Computes the table: O(2^n n^2), and O(n) for hosts with NVSwitches. Once per host type.
    pub fn new(host: &HostType, constants: &Constants) -> IntraTable {
        let n = host.gpu_count();
        let by_count = host.nvlink.is_some_and(|f| f.switched);
        let entries = if by_count {
            (0..=n).map(|c| intra(host, GpuMask::first(c), constants)).collect()
        } else {
            (0..1u32 << n).map(|m| intra(host, GpuMask(m), constants)).collect()
        };
        IntraTable { entries, by_count, class: GpuClass::of(&host.gpu_model) }
    }

    /// The generation of the type's GPUs.
    pub fn class(&self) -> GpuClass {
        self.class
    }

    /// The entry of a set; O(1). GPUs that the host lacks are ignored.
    pub fn get(&self, mask: GpuMask) -> &Intra {
        let i = if self.by_count { mask.count() } else { mask.0 as usize };
        self.entries.get(i).unwrap_or(&Intra::ALONE)
    }
}

/// The plateau of one set, computed afresh (see [`IntraTable`] for many).
pub fn intra(host: &HostType, mask: GpuMask, constants: &Constants) -> Intra {
    let gpus: Vec<usize> = mask.iter().filter(|&g| g < host.gpu_count()).collect();
    let n = gpus.len();
    if n < 2 {
        return Intra::ALONE;
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
            return Intra { ring_gb_per_s: ring, carrier: Carrier::NvLink, nvls_gb_per_s: nvls };
        }
        let lanes: Vec<u8> = gpus.iter().flat_map(|&a| gpus.iter().map(move |&b| lanes_of(a, b))).collect();
        let packing = cycles::pack(n, &lanes);
        if packing.rings > 0.0 {
            let relay = if packing.relayed { constants.relay } else { 1.0 };
            return Intra { ring_gb_per_s: packing.rings * link * relay, carrier: Carrier::NvLink, nvls_gb_per_s: 0.0 };
        }
    }
    Intra { ring_gb_per_s: pcie_ring(host, &gpus, constants), carrier: Carrier::Pcie, nvls_gb_per_s: 0.0 }
}

/// A ring that must cross PCIe: the weakest hop, with the capacity of host bridges and sockets.
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
    // A measured matrix overrides nominal rates: the weakest pair of the best ring is not worse than the weakest of all pairs.
    let pairs = || gpus.iter().flat_map(|&a| gpus.iter().filter(move |&&b| b != a).map(move |&b| (a, b)));
    let worst = pairs().map(|(a, b)| host.gpu_paths[a][b]).filter(|p| !matches!(p, PathKind::NvLink(_))).max();
    let below_switch = matches!(worst, Some(PathKind::Pix | PathKind::Pxb) | None);
    // Two rings in opposite order fit if every GPU enters or leaves over NVLink: each PCIe direction is used once.
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

/// GeForce boards since the 40 series have no peer-to-peer over PCIe: bytes are staged through host memory.
fn peer_to_peer(host: &HostType) -> bool {
    !["4090", "4080", "5090", "5080"].iter().any(|m| host.gpu_model.contains(m))
}

/// How a collective is run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Run {
    /// The algorithm, if it is forced. Ring, tree, NVLS and NVLS tree have a model of their own; others count as a ring.
    pub algorithm: Option<Algorithm>,
    /// Send and receive buffers differ, so that every rank copies its own share (nccl-tests' out-of-place column).
    pub out_of_place: bool,
}

/// Time in microseconds and algorithm of a collective inside one host.
pub fn time_us(
    set: &Intra,
    class: &ClassConstants,
    constants: &Constants,
    n: usize,
    collective: Collective,
    size: Bytes,
    run: Run,
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
        // An all-reduce copies its own share whatever the buffers; over PCIe that hides behind the links.
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
        // A tree of one host is a chain: the ring's links, twice over the same path (measured on L40S: 0.92 of the ring).
        (Some(Algorithm::Tree), _) => (by_ring + wire / ring * 0.087, Algorithm::Tree),
        (Some(Algorithm::Nvls | Algorithm::NvlsTree), Some(t)) => (t, Algorithm::Nvls),
        (_, Some(t)) if t < by_ring => (t, Algorithm::Nvls),
        _ => (by_ring, Algorithm::Ring),
    };
    (us, Some(algorithm))
}

/// Bus bandwidth of a set of GPUs of one host, in place, NCCL's choice of algorithm; zero for fewer than two GPUs.
/// Computes the set's links afresh: O(n^2), for NVLink meshes up to a few milliseconds.
pub fn intra_busbw(host: &HostType, mask: GpuMask, collective: Collective, size: Bytes) -> Bandwidth {
    let constants = Constants::default();
    let n = mask.count();
    if n < 2 {
        return Bandwidth::ZERO;
    }
    let set = intra(host, mask, &constants);
    let class = constants.class(GpuClass::of(&host.gpu_model));
    let (us, _) = time_us(&set, class, &constants, n, collective, size, Run::default());
    Bandwidth::from_gb_per_s(collective.busbw_gb_per_s(n, size.as_f64(), us * 1e-6))
}
