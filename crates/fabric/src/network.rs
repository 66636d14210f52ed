//! Between hosts: which NICs a job's rings and trees load, and what that leaves.
//!
//! NCCL searches channels on every host by itself, takes the smallest count of all hosts, copies the channels up to 16 or more, and
//! puts an equal share of the bytes on every channel. Copies do not always divide evenly over NICs, and the fullest NIC decides
//! (`facts/nccl-graph-search.md`; the rules below are the decisions of its section "What one host's search finds", the weights are
//! [`crate::constants::ShareConstants`]). Everything here is arithmetic on a few bit masks: about a microsecond for four hosts.

use crate::constants::{Constants, GpuClass, ShareConstants};
pub use crate::sides::{Side, Sides};
use crate::tree;
use topology::nccl::Algorithm;

/// Most NICs that one host uses here.
const NICS_MAX: usize = 32;
/// Most channels of a communicator (NCCL's MAXCHANNELS).
const CHANNELS_MAX: usize = 32;
/// NCCL counts a NIC at 48 of 50 GB/s, 24 of 25 and so on: its search knows only certain speeds.
const SEARCH_SPEED: f64 = 0.96;
/// The NIC rate that loads are counted in: a 400 Gbit/s port.
const NIC_UNIT_GB_PER_S: f64 = 50.0;
/// Speeds that NCCL's search tries for channels inside a host (GB/s, Hopper).
const INTRA_SPEEDS: [f64; 11] = [60.0, 50.0, 48.0, 45.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 6.0];

/// What the hosts agree on.
#[derive(Clone, Debug, PartialEq)]
pub struct Agreement {
    /// Search channels: the fewest of any host.
    pub search: usize,
    /// Channels after copying.
    pub channels: usize,
    /// Algorithm that NCCL's cost model takes.
    pub algorithm: Algorithm,
    /// Does it run over LL128?
    pub ll128: bool,
}

/// The network's limit for one algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Bus bandwidth, GB/s.
    pub busbw_gb_per_s: f64,
    /// Host (its place in the ring) and NIC index that limit it.
    pub nic: (usize, u8),
}

impl Side {
    /// Channels of this host's own search: two for every NIC up to four NICs (each at half its rate), one for every NIC beyond.
    fn search_channels(&self) -> usize {
        let m = self.nics.len();
        if m <= 4 { 2 * m } else { m.min(CHANNELS_MAX) }
    }
    fn channel_speed(&self) -> f64 {
        let nic = SEARCH_SPEED * self.line;
        let nic = if self.nics.len() <= 4 { nic / 2.0 } else { nic };
        nic.min(self.ring_gb_per_s / self.search_channels().max(1) as f64)
    }
    fn tree_speed(&self) -> f64 {
        (SEARCH_SPEED * self.line).min(self.ring_gb_per_s / self.search_channels().max(1) as f64 * 2.0)
    }
    fn nvls_heads(&self) -> usize {
        if self.multicast && self.gpus >= 3 { self.gpus.min(self.nics.len()) } else { 0 }
    }
    fn nvls_speed(&self) -> f64 {
        let heads = self.nvls_heads().max(1) as f64;
        let most = (SEARCH_SPEED * self.line).min(0.88 * self.ring_gb_per_s / heads);
        INTRA_SPEEDS.into_iter().find(|s| *s <= most + 1e-9).unwrap_or(most)
    }
    /// NIC (place in `nics`) and far flag of channel `c`: `(into, out of, receiving GPU is elsewhere)`.
    fn ports(&self, channel: usize, search: usize, swap: bool) -> (usize, usize, bool) {
        let m = self.nics.len();
        let q = channel % search;
        if self.whole_rail && m.is_multiple_of(2) {
            // Rings of a whole host enter by one NIC and leave by its neighbour (crossNic 2).
            let (i, o) = (q % m, (q ^ 1) % m);
            return if swap { (o, i, false) } else { (i, o, false) };
        }
        let nic = q % m;
        (nic, nic, swap && (q ^ 1) % m != nic)
    }
    fn receiver(&self, channel: usize, search: usize, swap: bool) -> usize {
        let q = channel % search;
        (if swap { q ^ 1 } else { q }) % self.nics.len()
    }
}

/// Channels and algorithm that NCCL would settle on for an all-reduce of `size` bytes.
pub fn agree(sides: &Sides, size: f64) -> Agreement {
    let hosts = sides.hosts();
    let ranks = sides.ranks;
    let sides = &sides.kinds;
    let search = sides.iter().map(Side::search_channels).min().unwrap_or(1).max(1);
    let hopper = sides.iter().all(|s| s.class >= GpuClass::Hopper);
    let ring_speed = sides.iter().map(Side::channel_speed).fold(f64::INFINITY, f64::min);
    let tree_speed = sides.iter().map(Side::tree_speed).fold(f64::INFINITY, f64::min);
    let nvls = hopper && sides.iter().all(|s| s.nvls_heads() >= 3);
    let mut channels = 2 * search;
    if hopper && ring_speed > 45.0 && channels < 16 {
        channels *= 2;
    }
    if nvls {
        channels = channels.max(16);
    }
    channels = channels.min(CHANNELS_MAX);

    // NCCL's cost model (facts/nccl.md section 3), restricted to what can win between hosts at 64 KiB and more.
    let (n, r, c) = (hosts as f64, ranks as f64, search as f64);
    let two = hosts <= 2;
    let per_rank = r / (2.0 * (r - 1.0));
    let ring_bus = c * ring_speed;
    let nic_tree = sides.iter().map(Side::channel_speed).fold(f64::INFINITY, f64::min);
    let tree_bus = c * if two { tree_speed } else { nic_tree };
    let (tree_cap, tree_ll_cap, ring_ll_cap) = if hopper {
        (if two { 41.4 } else { 36.0 }, if two { 36.7 } else { 29.0 }, 36.7)
    } else {
        (if two { 23.6 } else { 17.8 }, 20.0, 20.0)
    };
    let tree_bw = (0.92 * tree_bus).min(c * tree_cap);
    let levels = n.log2().floor();
    let inner = (r / n).floor() - 1.0;
    let steps = 2.0 * (r - 1.0);
    let inter_steps = 2.0 * (n - 1.0);
    let inter_ll128 = if sides.iter().all(|s| s.gpus == 1) { 8.5 } else { 4.0 };
    let plateau = if size / (channels as f64 * r) >= 64.0 { 1.4 } else { 1.0 };
    let tree_factor = |table: &[f64; 23]| {
        let k = (size / 64.0).max(1.0).log2().floor() as usize;
        table.get(k).copied().unwrap_or(1.0)
    };
    let mut best = (f64::INFINITY, Algorithm::Ring, false);
    let mut offer = |latency: f64, bw: f64, algorithm: Algorithm, ll128: bool| {
        let time = latency + size / (1000.0 * bw);
        if bw > 0.0 && time < best.0 {
            best = (time, algorithm, ll128);
        }
    };
    offer(
        14.0 + 2.0 * (inner * 1.25 + levels * 8.5),
        (tree_bw * 120.0 / 128.0).min(c * tree_ll_cap) * 0.5 * 0.85 * tree_factor(&TREE_LL128),
        Algorithm::Tree,
        true,
    );
    offer(
        8.4 + 2.0 * (inner * 4.0 + levels * 14.0),
        tree_bw * 0.5 * 0.85 * tree_factor(&TREE_SIMPLE),
        Algorithm::Tree,
        false,
    );
    offer(
        14.0 + (steps - inter_steps) * 1.9 + inter_steps * inter_ll128,
        (0.92 * ring_bus).min(c * ring_ll_cap) * per_rank,
        Algorithm::Ring,
        true,
    );
    offer(
        (8.4 + (steps - inter_steps) * 3.4 + inter_steps * 14.0) * plateau,
        ring_bus * per_rank,
        Algorithm::Ring,
        false,
    );
    if nvls {
        let heads = sides.iter().map(Side::nvls_heads).min().unwrap_or(0) as f64;
        let intra = sides.iter().map(Side::nvls_speed).fold(f64::INFINITY, f64::min);
        let nic = sides.iter().map(|s| SEARCH_SPEED * s.line).fold(f64::INFINITY, f64::min);
        let speed = intra.min(if two { nic } else { nic / 2.0 });
        offer(25.0 + 2.0 * levels * 14.0, heads * speed * 5.0 / 6.0, Algorithm::NvlsTree, false);
    }
    Agreement { search, channels, algorithm: best.1, ll128: best.2 }
}

/// NCCL's correction of tree bandwidth by size, LL128 (facts/nccl.md 3.2).
const TREE_LL128: [f64; 23] =
    [1., 1., 1., 1., 1., 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1., 1.];
/// The same for Simple.
const TREE_SIMPLE: [f64; 23] =
    [0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9];

/// The network's limit of a job's bus bandwidth under one algorithm. `efficiency` is the network class's.
pub fn limit(
    sides: &Sides,
    agreement: &Agreement,
    algorithm: Option<Algorithm>,
    efficiency: f64,
    constants: &Constants,
) -> Limit {
    let share = &constants.share;
    let ranks = sides.ranks;
    let bus = 2.0 * (ranks as f64 - 1.0) / ranks as f64;
    match algorithm {
        Some(Algorithm::Tree) => tree_limit(sides, agreement, bus * efficiency * share.tree),
        Some(Algorithm::NvlsTree | Algorithm::Nvls) => nvls_tree_limit(sides, bus, efficiency, share),
        _ => ring_limit(sides, agreement, efficiency, share),
    }
}

/// One host of a ring and the one before it, as far as they matter.
#[derive(Clone, Copy)]
struct Hop {
    /// Place of the host in the ring; of hops that are alike the first.
    at: usize,
    kind: usize,
    swap: bool,
    before: usize,
    swap_before: bool,
}

/// The hops of a ring that differ, in the order in which they come first. O(hosts).
fn hops(sides: &Sides, swap_any: bool) -> Vec<Hop> {
    let (n, kinds) = (sides.hosts(), sides.kinds.len());
    let mut out: Vec<Hop> = Vec::new();
    // On few hosts most hops differ, and on hosts that are all different telling them apart would cost more than it saves.
    let tell = n > 8 && kinds <= 256;
    let mut seen = vec![false; if tell { kinds * kinds * 4 } else { 0 }];
    let swaps = |h: usize| swap_any && h % 2 == 1;
    let mut last = n - 1;
    for at in 0..n {
        let (kind, before) = (sides.kind(at), sides.kind(last));
        let hop = Hop { at, kind, swap: swaps(at), before, swap_before: swaps(last) };
        last = at;
        if tell {
            let known =
                &mut seen[((before * kinds + kind) * 2 + usize::from(hop.swap_before)) * 2 + usize::from(hop.swap)];
            if *known {
                continue;
            }
            *known = true;
        }
        out.push(hop);
    }
    out
}

/// Which channels go over the NICs of a kind of host.
#[derive(Clone, Copy)]
struct Ports {
    /// By direction (in, out) and NIC: channels, as a bit mask.
    by: [[u32; NICS_MAX]; 2],
    /// Far channels, by the NIC of the GPU that receives them.
    landing: [u32; NICS_MAX],
}

/// Rings: every channel carries an equal share; a channel is as fast as the fullest NIC on its way lets it.
fn ring_limit(sides: &Sides, agreement: &Agreement, efficiency: f64, k: &ShareConstants) -> Limit {
    let (n, channels) = (agreement.search, agreement.channels);
    let swap_any = n.is_multiple_of(2)
        && sides.kinds.iter().any(|s| s.whole_rail && s.nics.len().is_multiple_of(2) && s.nics.len() >= 8);
    // By kind, and whether it swaps.
    let empty = Ports { by: [[0; NICS_MAX]; 2], landing: [0; NICS_MAX] };
    let mut ports = vec![empty; sides.kinds.len() * (1 + usize::from(swap_any))];
    let place = |kind: usize, swap: bool| if swap_any { 2 * kind + usize::from(swap) } else { kind };
    for (kind, side) in sides.kinds.iter().enumerate() {
        for swap in if swap_any { &[false, true][..] } else { &[false] } {
            let p = &mut ports[place(kind, *swap)];
            for c in 0..channels {
                let (i, o, far) = side.ports(c, n, *swap);
                p.by[0][i] |= 1 << c;
                p.by[1][o] |= 1 << c;
                if far {
                    p.landing[side.receiver(c, n, *swap)] |= 1 << c;
                }
            }
        }
    }
    let hops = hops(sides, swap_any);
    let best_rate = sides.kinds.iter().flat_map(|s| s.nics.iter().map(|n| n.1)).fold(0.0, f64::max);
    let unit = if best_rate > 0.0 { NIC_UNIT_GB_PER_S / best_rate } else { 1.0 };
    let mut worst = (0.0f64, (0usize, 0u8));
    // Channels repeat with the period of the search only if the copies divide evenly, so look at all of them.
    for c in 0..channels {
        let mut met = 0u32;
        let mut own = 0.0f64;
        let mut loaded = (0.0f64, (0usize, 0u8));
        for hop in &hops {
            let side = &sides.kinds[hop.kind];
            let own_ports = &ports[place(hop.kind, hop.swap)];
            let (i, o, far) = side.ports(c, n, hop.swap);
            let before = &ports[place(hop.before, hop.swap_before)].by[1];
            let into = own_ports.by[0][i];
            let feeders = before[..sides.kinds[hop.before].nics.len()].iter().filter(|b| *b & into != 0).count();
            let landed = if far { own_ports.landing[side.receiver(c, n, hop.swap)] } else { 0 };
            met |= landed;
            for (mask, nic, inbound) in [(into, i, true), (own_ports.by[1][o], o, false)] {
                met |= mask;
                let rate = side.nics[nic].1;
                let load = f64::from(mask.count_ones()) * NIC_UNIT_GB_PER_S / rate.max(1e-9);
                own = own.max(load);
                let incast = inbound && feeders > 1;
                let mut weighted = load;
                if incast {
                    weighted *= if far { k.incast_far } else { k.incast };
                }
                if inbound && far && landed != into {
                    weighted *= k.scattered;
                }
                if weighted > loaded.0 {
                    loaded = (weighted, (hop.at, side.nics[nic].0));
                }
            }
        }
        let extra = (f64::from(met.count_ones()) * unit - own).max(0.0);
        let total = loaded.0 + k.met * extra;
        if total > worst.0 {
            worst = (total, loaded.1);
        }
    }
    let by_nic = efficiency * NIC_UNIT_GB_PER_S * channels as f64 / worst.0.max(1e-12);
    let by_channel = channels as f64 * k.channel_gb_per_s;
    Limit { busbw_gb_per_s: soft_min(by_nic, by_channel, 8.0), nic: worst.1 }
}

/// Trees: the fullest NIC's sum of tree links.
fn tree_limit(sides: &Sides, agreement: &Agreement, factor: f64) -> Limit {
    let (n, channels) = (agreement.search, agreement.channels);
    let mut worst = (0.0f64, (0usize, 0u8));
    // Degrees are below 4.
    let mut seen = vec![false; sides.kinds.len() * 16];
    for h in 0..sides.hosts() {
        let kind = sides.kind(h);
        let degrees = tree::degrees(sides.hosts(), h);
        if std::mem::replace(&mut seen[(kind * 4 + degrees[0]) * 4 + degrees[1]], true) {
            continue;
        }
        let side = &sides.kinds[kind];
        let mut load = [0usize; NICS_MAX];
        for c in 0..channels {
            let t = c % (2 * n);
            load[t % n % side.nics.len()] += degrees[usize::from(t >= n)];
        }
        for (i, &(nic, rate)) in side.nics.iter().enumerate() {
            let weighted = load[i] as f64 / rate.max(1e-9);
            if weighted > worst.0 {
                worst = (weighted, (h, nic));
            }
        }
    }
    Limit { busbw_gb_per_s: factor * channels as f64 / worst.0.max(1e-12), nic: worst.1 }
}

/// NVLink SHARP inside, trees between: as many heads as the smallest host has, each on its NIC, L(N) buffers a head.
fn nvls_tree_limit(sides: &Sides, bus: f64, efficiency: f64, k: &ShareConstants) -> Limit {
    let heads = sides.kinds.iter().map(|s| s.gpus.min(s.nics.len())).min().unwrap_or(1).max(1);
    let mut worst = (f64::INFINITY, (0usize, 0u8));
    for (kind, side) in sides.kinds.iter().enumerate() {
        // More NICs than heads: the NICs of a GPU work together.
        let per_head = (side.nics.len() / side.gpus.max(1)).max(1);
        for chunk in side.nics.chunks(per_head) {
            let rate: f64 = chunk.iter().map(|c| c.1).sum();
            if rate < worst.0 {
                worst = (rate, (kind, chunk[0].0));
            }
        }
    }
    let many = if sides.hosts() > 2 { k.nvls_tree_many } else { 1.0 };
    let nic = efficiency * worst.0 * heads as f64 / tree::load(sides.hosts()) * many;
    let ceiling = sides.kinds.iter().map(|s| s.ring_gb_per_s).fold(f64::INFINITY, f64::min) * k.nvls_tree_ceiling;
    Limit { busbw_gb_per_s: bus * soft_min(nic, ceiling, 9.8), nic: (sides.first_of(worst.1.0), worst.1.1) }
}

/// A minimum that bends where both are close: the p-norm of the reciprocals.
fn soft_min(a: f64, b: f64, p: f64) -> f64 {
    if a <= 0.0 || b <= 0.0 {
        return 0.0;
    }
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    low * (1.0 + (low / high).powf(p)).powf(-1.0 / p)
}
