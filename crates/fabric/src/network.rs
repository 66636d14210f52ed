//! Network between hosts: the load of a job's rings and trees on every NIC, and the resulting bandwidth limit.
//!
//! NCCL searches channels on every host separately and takes the smallest count of all hosts. It copies the channels
//! until there are 16 or more and puts an equal share of the bytes on every channel. The copies do not always divide
//! evenly over the NICs, so the most loaded NIC sets the limit. The rules follow `facts/nccl-graph-search.md`, section
//! "What one host's search finds"; the weights are [`crate::constants::ShareConstants`]. Cost: arithmetic on a few bit
//! masks, about a microsecond for four hosts.

use crate::constants::{Constants, GpuClass, ShareConstants};
pub use crate::job_hosts::{JobHost, JobHosts};
use crate::tree;
use rustc_hash::FxHashSet;
use topology::nccl::Algorithm;

/// Maximum number of NICs of one host.
const NICS_MAX: usize = 32;
/// Maximum number of channels of a communicator (NCCL's MAXCHANNELS).
const CHANNELS_MAX: usize = 32;
/// Ratio of the speeds in NCCL's search to line rates: the search uses 48 GB/s for a NIC of 50 GB/s, 24 for 25 and so
/// on.
const SEARCH_SPEED: f64 = 0.96;
/// Unit of NIC loads, GB/s: a 400 Gbit/s port.
const NIC_UNIT_GB_PER_S: f64 = 50.0;
/// Speeds that NCCL's search tries for channels inside a host (GB/s, Hopper).
const INTRA_SPEEDS: [f64; 11] = [60.0, 50.0, 48.0, 45.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 6.0];

/// Channels and algorithm of a job, as NCCL chooses them.
#[derive(Clone, Debug, PartialEq)]
pub struct NcclChoice {
    /// Number of search channels: the smallest count of any host.
    pub search: usize,
    /// Number of channels after copying.
    pub channels: usize,
    /// The algorithm with the shortest time in NCCL's cost model.
    pub algorithm: Algorithm,
    /// True if the algorithm uses the LL128 protocol.
    pub ll128: bool,
}

/// The network's limit for one algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkLimit {
    /// Bus bandwidth, GB/s.
    pub busbw_gb_per_s: f64,
    /// The limiting NIC: position of the host in the ring, index of the NIC.
    pub nic: (usize, u8),
}

impl JobHost {
    /// Number of channels that the search finds on this host: two per NIC (each at half the NIC's rate) up to four
    /// NICs, one per NIC for more NICs.
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
    /// The NICs of a channel as indices in `nics`: `(receiving NIC, sending NIC, true if the receiving GPU is not next
    /// to its NIC)`.
    fn ports(&self, channel: usize, search: usize, swap: bool) -> (usize, usize, bool) {
        let m = self.nics.len();
        let q = channel % search;
        if self.whole_rail && m.is_multiple_of(2) {
            // A ring over all GPUs of a host enters by one NIC and leaves by the next NIC (crossNic 2).
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

/// The channels and algorithm that NCCL chooses for an all-reduce of `size` bytes. O(kinds of hosts).
pub fn predict_nccl_choice(job: &JobHosts, size: f64) -> NcclChoice {
    let cost = CostModel::of(job, size);
    let candidates = [cost.tree_ll128(), cost.tree_simple(), cost.ring_ll128(), cost.ring_simple()];
    let mut best = (f64::INFINITY, Algorithm::Ring, false);
    for candidate in candidates.into_iter().chain(cost.nvls_tree()) {
        let time = candidate.latency_us + size / (1000.0 * candidate.gb_per_s);
        if candidate.gb_per_s > 0.0 && time < best.0 {
            best = (time, candidate.algorithm, candidate.ll128);
        }
    }
    NcclChoice { search: cost.search, channels: cost.channels, algorithm: best.1, ll128: best.2 }
}

/// An algorithm and protocol with NCCL's estimate of its latency and bandwidth.
struct Candidate {
    latency_us: f64,
    gb_per_s: f64,
    algorithm: Algorithm,
    ll128: bool,
}

/// NCCL's cost model (facts/nccl.md section 3), restricted to the choices that can be fastest between hosts from 64 KiB
/// on.
struct CostModel<'a> {
    kinds: &'a [JobHost],
    size: f64,
    ranks: f64,
    /// Number of channels that the graph search finds on every host, and number of channels of the communicator.
    search: usize,
    channels: usize,
    two_hosts: bool,
    hopper: bool,
    nvls: bool,
    /// Number of levels of a tree over the hosts.
    levels: f64,
    /// Number of hops of a tree inside a host.
    inner_hops: f64,
    /// Number of steps of a ring: all steps, and steps between hosts.
    ring_steps: f64,
    ring_steps_between_hosts: f64,
    /// Bus bandwidth of the rings and bandwidth of the trees, before the limits of a protocol, GB/s.
    ring_gb_per_s: f64,
    tree_gb_per_s: f64,
}

fn least(kinds: &[JobHost], speed: impl Fn(&JobHost) -> f64) -> f64 {
    kinds.iter().map(speed).fold(f64::INFINITY, f64::min)
}

impl<'a> CostModel<'a> {
    fn of(job: &'a JobHosts, size: f64) -> Self {
        let (hosts, kinds) = (job.hosts(), &job.kinds);
        let search = kinds.iter().map(JobHost::search_channels).min().unwrap_or(1).max(1);
        let hopper = kinds.iter().all(|s| s.class >= GpuClass::Hopper);
        let nvls = hopper && kinds.iter().all(|s| s.nvls_heads() >= 3);
        let (n, ranks, searched) = (hosts as f64, job.ranks as f64, search as f64);
        let two_hosts = hosts <= 2;
        let channel_speed = least(kinds, JobHost::channel_speed);
        let tree_speed = if two_hosts { least(kinds, JobHost::tree_speed) } else { channel_speed };
        let tree_channel_max = match (hopper, two_hosts) {
            (true, true) => 41.4,
            (true, false) => 36.0,
            (false, true) => 23.6,
            (false, false) => 17.8,
        };
        let mut channels = 2 * search;
        if hopper && channel_speed > 45.0 && channels < 16 {
            channels *= 2;
        }
        if nvls {
            channels = channels.max(16);
        }
        CostModel {
            kinds,
            size,
            ranks,
            search,
            channels: channels.min(CHANNELS_MAX),
            two_hosts,
            hopper,
            nvls,
            levels: n.log2().floor(),
            inner_hops: (ranks / n).floor() - 1.0,
            ring_steps: 2.0 * (ranks - 1.0),
            ring_steps_between_hosts: 2.0 * (n - 1.0),
            ring_gb_per_s: searched * channel_speed,
            tree_gb_per_s: (0.92 * (searched * tree_speed)).min(searched * tree_channel_max),
        }
    }

    /// Ratio of a ring's algorithm bandwidth to its bus bandwidth.
    fn ring_share(&self) -> f64 {
        self.ranks / (2.0 * (self.ranks - 1.0))
    }

    fn tree_correction(&self, table: &[f64; 23]) -> f64 {
        let k = (self.size / 64.0).max(1.0).log2().floor() as usize;
        table.get(k).copied().unwrap_or(1.0)
    }

    fn tree_ll128(&self) -> Candidate {
        let per_channel_max = match (self.hopper, self.two_hosts) {
            (true, true) => 36.7,
            (true, false) => 29.0,
            (false, _) => 20.0,
        };
        let bus = (self.tree_gb_per_s * 120.0 / 128.0).min(self.search as f64 * per_channel_max);
        Candidate {
            latency_us: 14.0 + 2.0 * (self.inner_hops * 1.25 + self.levels * 8.5),
            gb_per_s: bus * 0.5 * 0.85 * self.tree_correction(&TREE_LL128),
            algorithm: Algorithm::Tree,
            ll128: true,
        }
    }

    fn tree_simple(&self) -> Candidate {
        Candidate {
            latency_us: 8.4 + 2.0 * (self.inner_hops * 4.0 + self.levels * 14.0),
            gb_per_s: self.tree_gb_per_s * 0.5 * 0.85 * self.tree_correction(&TREE_SIMPLE),
            algorithm: Algorithm::Tree,
            ll128: false,
        }
    }

    fn ring_ll128(&self) -> Candidate {
        let step_us = if self.kinds.iter().all(|s| s.gpus == 1) { 8.5 } else { 4.0 };
        let per_channel_max = if self.hopper { 36.7 } else { 20.0 };
        Candidate {
            latency_us: 14.0
                + (self.ring_steps - self.ring_steps_between_hosts) * 1.9
                + self.ring_steps_between_hosts * step_us,
            gb_per_s: (0.92 * self.ring_gb_per_s).min(self.search as f64 * per_channel_max) * self.ring_share(),
            algorithm: Algorithm::Ring,
            ll128: true,
        }
    }

    fn ring_simple(&self) -> Candidate {
        // The latency is higher when the pipeline of every hop is full.
        let plateau = if self.size / (self.channels as f64 * self.ranks) >= 64.0 { 1.4 } else { 1.0 };
        let latency_us =
            8.4 + (self.ring_steps - self.ring_steps_between_hosts) * 3.4 + self.ring_steps_between_hosts * 14.0;
        Candidate {
            latency_us: latency_us * plateau,
            gb_per_s: self.ring_gb_per_s * self.ring_share(),
            algorithm: Algorithm::Ring,
            ll128: false,
        }
    }

    fn nvls_tree(&self) -> Option<Candidate> {
        let heads = self.kinds.iter().map(JobHost::nvls_heads).min().unwrap_or(0) as f64;
        let nic = least(self.kinds, |s| SEARCH_SPEED * s.line);
        let speed = least(self.kinds, JobHost::nvls_speed).min(if self.two_hosts { nic } else { nic / 2.0 });
        self.nvls.then_some(Candidate {
            latency_us: 25.0 + 2.0 * self.levels * 14.0,
            gb_per_s: heads * speed * 5.0 / 6.0,
            algorithm: Algorithm::NvlsTree,
            ll128: false,
        })
    }
}

/// NCCL's correction of tree bandwidth by size, LL128 (facts/nccl.md 3.2).
const TREE_LL128: [f64; 23] =
    [1., 1., 1., 1., 1., 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1., 1.];
/// NCCL's correction of tree bandwidth by size, Simple.
const TREE_SIMPLE: [f64; 23] =
    [0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9];

/// The network's limit on a job's bus bandwidth under one algorithm. `efficiency` is that of the network class. O(hosts
/// x channels).
pub fn limit(
    job: &JobHosts,
    choice: &NcclChoice,
    algorithm: Option<Algorithm>,
    efficiency: f64,
    constants: &Constants,
) -> NetworkLimit {
    let share = &constants.share;
    let ranks = job.ranks;
    let bus = 2.0 * (ranks as f64 - 1.0) / ranks as f64;
    match algorithm {
        Some(Algorithm::Tree) => tree_limit(job, choice, bus * efficiency * share.tree),
        Some(Algorithm::NvlsTree | Algorithm::Nvls) => nvls_tree_limit(job, bus, efficiency, share),
        _ => ring_limit(job, choice, efficiency, share),
    }
}

/// The kinds of a host of a ring and of the host before it.
#[derive(Clone, Copy)]
struct RingHop {
    /// Position of the host in the ring. For equal hops, the lowest position.
    at: usize,
    kind: usize,
    swap: bool,
    before: usize,
    swap_before: bool,
    /// Loads of the flow from the host before and of the flow to the next host, over those without loss above switches;
    /// the highest of equal hops.
    loss: [f64; 2],
}

/// The distinct hops of a ring, ordered by first position. O(hosts x tiers).
fn hops(job: &JobHosts, swap_any: bool) -> Vec<RingHop> {
    let (n, kinds) = (job.hosts(), job.kinds.len());
    let mut out: Vec<RingHop> = Vec::new();
    // With few hosts or many kinds of hosts, most hops are distinct, and finding equal ones costs more time than it
    // saves.
    let skip_equal = n > 8 && kinds * kinds <= 4 * n;
    let mut seen = vec![0u32; if skip_equal { kinds * kinds * 4 } else { 0 }];
    let load = |a: usize, b: usize| job.crossings.as_ref().map_or(1.0, |c| c.load(a, b));
    let swaps = |h: usize| swap_any && h % 2 == 1;
    let mut last = n - 1;
    for at in 0..n {
        let (kind, before) = (job.kind(at), job.kind(last));
        let loss = [load(last, at), load(at, if at + 1 == n { 0 } else { at + 1 })];
        let hop = RingHop { at, kind, swap: swaps(at), before, swap_before: swaps(last), loss };
        last = at;
        if skip_equal {
            let known =
                &mut seen[((before * kinds + kind) * 2 + usize::from(hop.swap_before)) * 2 + usize::from(hop.swap)];
            if let Some(equal) = known.checked_sub(1).map(|i| &mut out[i as usize]) {
                equal.loss = [equal.loss[0].max(loss[0]), equal.loss[1].max(loss[1])];
                continue;
            }
            *known = out.len() as u32 + 1;
        }
        out.push(hop);
    }
    out
}

/// Channels of a kind of host, as a bit mask by NIC.
#[derive(Clone, Copy)]
enum NicChannels {
    /// Channels that enter by a NIC.
    In,
    /// Channels that leave by a NIC.
    Out,
    /// Channels whose receiving GPU is not next to their NIC, by the NIC next to that GPU.
    Landing,
}

/// A ring of hosts in rank order, with the channels on its NICs.
struct RingLoad<'a> {
    job: &'a JobHosts,
    search: usize,
    channels: usize,
    /// True if every second host swaps the channels of a pair.
    swap_any: bool,
    /// Largest number of NICs of a host.
    nics: usize,
    /// `nics` masks for each of [`NicChannels`], by [`RingLoad::index`].
    ports: Vec<u32>,
}

/// The load of a channel's most loaded NIC, and that NIC as (host, NIC).
type NicLoad = (f64, (usize, u8));

impl<'a> RingLoad<'a> {
    fn of(job: &'a JobHosts, choice: &NcclChoice) -> Self {
        let swap_any = choice.search.is_multiple_of(2)
            && job.kinds.iter().any(|s| s.whole_rail && s.nics.len().is_multiple_of(2) && s.nics.len() >= 8);
        let nics = job.kinds.iter().map(|s| s.nics.len()).max().unwrap_or(0);
        let ports = vec![0; job.kinds.len() * (1 + usize::from(swap_any)) * 3 * nics];
        let mut load = RingLoad { job, search: choice.search, channels: choice.channels, swap_any, nics, ports };
        for (kind, side) in job.kinds.iter().enumerate() {
            for &swap in if swap_any { &[false, true][..] } else { &[false] } {
                let index = load.index(kind, swap);
                for c in 0..choice.channels {
                    let (i, o, far) = side.ports(c, choice.search, swap);
                    load.of_mut(index, NicChannels::In)[i] |= 1 << c;
                    load.of_mut(index, NicChannels::Out)[o] |= 1 << c;
                    if far {
                        load.of_mut(index, NicChannels::Landing)[side.receiver(c, choice.search, swap)] |= 1 << c;
                    }
                }
            }
        }
        load
    }

    fn index(&self, kind: usize, swap: bool) -> usize {
        if self.swap_any { 2 * kind + usize::from(swap) } else { kind }
    }

    fn of_mut(&mut self, index: usize, which: NicChannels) -> &mut [u32] {
        &mut self.ports[(index * 3 + which as usize) * self.nics..][..self.nics]
    }

    fn on_nics(&self, index: usize, which: NicChannels) -> &[u32] {
        &self.ports[(index * 3 + which as usize) * self.nics..][..self.nics]
    }

    /// The load that limits channel `c`: the load of its most loaded NIC plus a share of the other channels on its
    /// NICs.
    fn of_channel(&self, c: usize, hops: &[RingHop], unit: f64, k: &ShareConstants) -> NicLoad {
        let mut met = 0u32;
        let mut own = 0.0f64;
        let mut loaded = (0.0f64, (0usize, 0u8));
        for hop in hops {
            let side = &self.job.kinds[hop.kind];
            let at = self.index(hop.kind, hop.swap);
            let (i, o, far) = side.ports(c, self.search, hop.swap);
            let before = self.on_nics(self.index(hop.before, hop.swap_before), NicChannels::Out);
            let into = self.on_nics(at, NicChannels::In)[i];
            let feeders = before.iter().filter(|b| *b & into != 0).count();
            let receiver = || side.receiver(c, self.search, hop.swap);
            let landed = if far { self.on_nics(at, NicChannels::Landing)[receiver()] } else { 0 };
            met |= landed;
            let out = self.on_nics(at, NicChannels::Out)[o];
            for (mask, nic, inbound, loss) in [(into, i, true, hop.loss[0]), (out, o, false, hop.loss[1])] {
                met |= mask;
                let rate = side.nics[nic].1;
                let load = f64::from(mask.count_ones()) * NIC_UNIT_GB_PER_S / rate.max(1e-9);
                own = own.max(load);
                let incast = inbound && feeders > 1;
                let mut weighted = load * loss;
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
        (loaded.0 + k.met * extra, loaded.1)
    }
}

/// Rings: every channel carries an equal share, and the most loaded NIC of a channel limits it.
fn ring_limit(job: &JobHosts, choice: &NcclChoice, efficiency: f64, k: &ShareConstants) -> NetworkLimit {
    let ring = RingLoad::of(job, choice);
    let hops = hops(job, ring.swap_any);
    let best_rate = job.kinds.iter().flat_map(|s| s.nics.iter().map(|n| n.1)).fold(0.0, f64::max);
    let unit = if best_rate > 0.0 { NIC_UNIT_GB_PER_S / best_rate } else { 1.0 };
    let mut worst = (0.0f64, (0usize, 0u8));
    // A copy of a search channel uses the same NICs, and the ports hold the channels of all copies.
    for c in 0..ring.channels.min(ring.search) {
        let load = ring.of_channel(c, &hops, unit, k);
        if load.0 > worst.0 {
            worst = load;
        }
    }
    let channels = ring.channels as f64;
    let by_nic = efficiency * NIC_UNIT_GB_PER_S * channels / worst.0.max(1e-12);
    let by_channel = channels * k.channel_gb_per_s;
    NetworkLimit { busbw_gb_per_s: soft_min(by_nic, by_channel, 8.0), nic: worst.1 }
}

/// Trees: the NIC with the most tree links sets the limit.
fn tree_limit(job: &JobHosts, choice: &NcclChoice, factor: f64) -> NetworkLimit {
    let (n, channels) = (choice.search, choice.channels);
    let lossy = job.crossings.as_ref().map(|c| tree::link_loads(job.hosts(), c));
    // The first of the hosts of equal kind and equal loads. Numbers of links are below 4 in each tree.
    let mut seen = vec![false; if lossy.is_none() { job.kinds.len() * 16 } else { 0 }];
    let mut seen_lossy: FxHashSet<(usize, [u64; 2])> = FxHashSet::default();
    let mut distinct: Vec<(usize, [f64; 2])> = Vec::new();
    for h in 0..job.hosts() {
        let (kind, links) = (job.kind(h), tree::link_counts(job.hosts(), h));
        let (new, loads) = match &lossy {
            None => {
                (!std::mem::replace(&mut seen[(kind * 4 + links[0]) * 4 + links[1]], true), links.map(|l| l as f64))
            }
            Some(l) => (seen_lossy.insert((kind, l[h].map(f64::to_bits))), l[h]),
        };
        if new {
            distinct.push((h, loads));
        }
    }
    let mut worst = (0.0f64, (0usize, 0u8));
    for (h, loads) in distinct {
        let side = &job.kinds[job.kind(h)];
        let mut load = [0.0f64; NICS_MAX];
        for c in 0..channels {
            let t = c % (2 * n);
            load[t % n % side.nics.len()] += loads[usize::from(t >= n)];
        }
        for (i, &(nic, rate)) in side.nics.iter().enumerate() {
            let weighted = load[i] / rate.max(1e-9);
            if weighted > worst.0 {
                worst = (weighted, (h, nic));
            }
        }
    }
    NetworkLimit { busbw_gb_per_s: factor * channels as f64 / worst.0.max(1e-12), nic: worst.1 }
}

/// NVLSTree: NVLink SHARP inside hosts, trees between hosts. Every head sends L(N) buffers over its NIC. The host with
/// the fewest heads sets the number of heads.
fn nvls_tree_limit(job: &JobHosts, bus: f64, efficiency: f64, k: &ShareConstants) -> NetworkLimit {
    let heads = job.kinds.iter().map(|s| s.gpus.min(s.nics.len())).min().unwrap_or(1).max(1);
    let mut worst = (f64::INFINITY, (0usize, 0u8));
    for (kind, side) in job.kinds.iter().enumerate() {
        // With more NICs than GPUs, a head uses several NICs.
        let per_head = (side.nics.len() / side.gpus.max(1)).max(1);
        for chunk in side.nics.chunks(per_head) {
            let rate: f64 = chunk.iter().map(|c| c.1).sum();
            if rate < worst.0 {
                worst = (rate, (kind, chunk[0].0));
            }
        }
    }
    let many = if job.hosts() > 2 { k.nvls_tree_many } else { 1.0 };
    let busiest = match &job.crossings {
        None => tree::busiest_host_load(job.hosts()),
        Some(c) => tree::link_loads(job.hosts(), c).into_iter().map(|l| (l[0] + l[1]) / 2.0).fold(1.0, f64::max),
    };
    let nic = efficiency * worst.0 * heads as f64 / busiest * many;
    let ceiling = job.kinds.iter().map(|s| s.ring_gb_per_s).fold(f64::INFINITY, f64::min) * k.nvls_tree_ceiling;
    NetworkLimit { busbw_gb_per_s: bus * soft_min(nic, ceiling, 9.8), nic: (job.first_of(worst.1.0), worst.1.1) }
}

/// A smooth minimum: the p-norm of the reciprocals.
fn soft_min(a: f64, b: f64, p: f64) -> f64 {
    if a <= 0.0 || b <= 0.0 {
        return 0.0;
    }
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    low * (1.0 + (low / high).powf(p)).powf(-1.0 / p)
}
