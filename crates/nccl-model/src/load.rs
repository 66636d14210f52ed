//! Bandwidth of a decision from the NIC loads of NCCL's rings and trees.
//!
//! NCCL's time estimate ignores that copies of channels share NICs. This model counts the channels of the chosen
//! algorithm on the NICs of every host. The most loaded NIC sets the bandwidth. The constants are fitted to a published
//! four-host H100 table (all-reduce of 2 GiB and 16 MiB). `examples/accuracy.rs` prints the error on rows that were not
//! used for the fit.

use crate::choose::CallChoice;
use crate::communicator::{Communicator, Crossing};
use crate::tree::double_tree;
use serde::Serialize;
use topology::host::NICS_PER_HOST_MAX;
use topology::nccl::{Algorithm, Protocol};
use topology::{Bandwidth, Collective, GPUS_PER_HOST_MAX, HostId, NetworkClass};

/// Share of the line rate that a NIC reaches, by network class (InfiniBand: 49.6 of 50 GB/s in the measured table; others as in `fabric`).
pub(crate) fn network_efficiency(class: NetworkClass) -> f64 {
    match class {
        NetworkClass::Infiniband => 0.992,
        NetworkClass::Roce | NetworkClass::Efa => 0.92,
        NetworkClass::Tcp => 0.71,
        NetworkClass::RdmaNoGdr => 0.30,
    }
}

/// Constants of the load model.
///
/// Rings use three constants: the rate of a channel alone ([`LoadConstants::channel_gb_per_s`]), the share of a NIC's
/// line rate, and head-of-line blocking. If rings share several NICs with other rings, some transfers hold one NIC
/// while they wait at another. In a closed-loop simulation the loss is two to three times as high if all transfers hold
/// a NIC in this way, and zero if no transfer does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadConstants {
    /// Share of a NIC's line rate that its channels reach together.
    pub nic: f64,
    /// Highest rate of one channel between hosts, GB/s.
    pub channel_gb_per_s: f64,
    /// Share of transfers that hold one NIC while they wait for another: the weight of a channel on another shared NIC,
    /// relative to a channel on the most loaded NIC.
    pub holding: f64,
    /// Share of the NICs' rate that trees reach.
    pub tree: f64,
    /// Highest algorithm bandwidth of NVLSTree, GB/s.
    pub nvls_tree_gb_per_s: f64,
    /// Share of the NICs' rate that NVLSTree reaches on three hosts or more.
    pub nvls_tree_many: f64,
    /// Start time of rings and trees, microseconds: the constant part.
    pub start_us: f64,
    /// Start time of rings and trees: the factor of NCCL's own latency.
    pub start_over_latency: f64,
    /// Start time of NVLSTree, microseconds: the constant part.
    pub nvls_tree_start_us: f64,
    /// Start time of NVLSTree, microseconds per level of the tree.
    pub nvls_tree_level_us: f64,
    /// Factor by which the time of trees over LL128 is longer; measured on two hosts.
    pub tree_packets: f64,
}

/// Exponents of the p-norms that join two limits smoothly.
const CHANNEL_NORM: f64 = 8.0;
const NVLS_TREE_NORM: f64 = 10.0;

impl LoadConstants {
    /// The constants of a network class.
    pub fn of(class: NetworkClass) -> Self {
        LoadConstants { nic: network_efficiency(class), ..LoadConstants::default() }
    }
}

impl Default for LoadConstants {
    fn default() -> Self {
        LoadConstants {
            nic: network_efficiency(NetworkClass::Infiniband),
            channel_gb_per_s: 23.75,
            holding: 0.351,
            tree: 0.890,
            nvls_tree_gb_per_s: 247.0,
            nvls_tree_many: 0.949,
            start_us: 7.4,
            start_over_latency: 1.89,
            nvls_tree_start_us: 59.0,
            nvls_tree_level_us: 79.8,
            tree_packets: 1.67,
        }
    }
}

/// Share of its rate that a NIC reaches if `channels` unsynchronised channels arrive from several NICs. The NIC is a
/// closed queue in which the think time of each channel is `think` service times (the machine repair model, M/M/1//N).
fn share_in_use(channels: u32, think: f64) -> f64 {
    if think <= 0.0 {
        return 1.0;
    }
    let (mut term, mut sum) = (1.0, 1.0);
    for k in 0..channels {
        term *= f64::from(channels - k) / think;
        sum += term;
    }
    1.0 - 1.0 / sum
}

/// The limit of a call's bandwidth.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum CallLimit {
    /// The most loaded NIC.
    Nic {
        /// The host.
        host: HostId,
        /// The NIC.
        nic: u8,
        /// Channels, tree links or heads on the NIC.
        on_it: f64,
        /// Number of channels of the call.
        channels: u32,
        /// Number of channels on the NIC if all channels were divided evenly over the NICs that the host uses.
        even: f64,
    },
    /// A NIC that receives for GPUs that are not next to it.
    CrossingNics {
        /// The receiving host.
        host: HostId,
        /// The NIC.
        nic: u8,
        /// Number of channels on the NIC.
        on_it: f64,
        /// Number of channels of the call.
        channels: u32,
    },
    /// The rate of a single channel, because the call has too few channels for the NICs.
    Channels {
        /// Number of channels of the call.
        channels: u32,
    },
    /// The NVLinks inside a host.
    NvLink,
    /// Latency, because the message is too small.
    Latency,
}

/// Expected performance of a call.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExpectedBusbw {
    /// Bus bandwidth, as nccl-tests defines it.
    pub busbw: Bandwidth,
    /// Time of the call, microseconds.
    pub time_us: f64,
    /// The limit of the bandwidth.
    pub limit: CallLimit,
}

/// One direction of a NIC.
#[derive(Clone, Copy)]
struct NicPort {
    member: usize,
    nic: u8,
    into: bool,
}

/// The network's limit on bus bandwidth for large messages.
struct NetworkFlow {
    busbw_gb_per_s: f64,
    limit: CallLimit,
}

impl Communicator {
    /// Expected bus bandwidth of a call with AUTO's choice; `None` as in [`Communicator::choose`]. O(hosts x channels).
    pub fn busbw(&self, collective: Collective, size_bytes: u64) -> Option<ExpectedBusbw> {
        self.busbw_with(collective, size_bytes, &LoadConstants::of(self.network))
    }

    /// As [`Communicator::busbw`], with other constants.
    pub fn busbw_with(
        &self,
        collective: Collective,
        size_bytes: u64,
        constants: &LoadConstants,
    ) -> Option<ExpectedBusbw> {
        self.busbw_of(collective, size_bytes, &self.choice(collective, size_bytes)?, constants)
    }

    /// As [`Communicator::busbw_with`], for any choice of [`Communicator::all_choices`].
    pub fn busbw_of(
        &self,
        collective: Collective,
        size_bytes: u64,
        choice: &CallChoice,
        constants: &LoadConstants,
    ) -> Option<ExpectedBusbw> {
        let ranks = self.agreed().ranks as usize;
        let factor = collective.bus_factor(ranks);
        let bytes = size_bytes.max(1) as f64;
        if self.agreed().hosts == 1 {
            // Inside a host the best available value is NCCL's own estimate.
            let time_us = f64::from(choice.time_us);
            let busbw = Bandwidth::from_gb_per_s(bytes / time_us / 1000.0 * factor);
            let wire_us = bytes
                / 1000.0
                / f64::from(self.table().cell(collective, choice.algorithm, choice.protocol).bandwidth_gb_per_s);
            let limit = if wire_us < 0.5 * time_us { CallLimit::Latency } else { CallLimit::NvLink };
            return Some(ExpectedBusbw { busbw, time_us, limit });
        }
        let flow = self.flow(choice, factor, constants)?;
        let stretch = match (choice.algorithm, choice.protocol) {
            // Every second word is a flag.
            (_, Protocol::Ll) => 2.0,
            (Algorithm::Tree, Protocol::Ll128) => constants.tree_packets,
            _ => 1.0,
        };
        let wire_us = stretch * bytes / 1000.0 * factor / flow.busbw_gb_per_s;
        let start_us = self.start_us(collective, choice, constants);
        let time_us = start_us + wire_us;
        let limit = if start_us > wire_us { CallLimit::Latency } else { flow.limit };
        Some(ExpectedBusbw { busbw: Bandwidth::from_gb_per_s(bytes / time_us / 1000.0 * factor), time_us, limit })
    }

    /// Start time of a call, microseconds. NCCL's own latency is too low and is multiplied by a factor. NVLSTree has a
    /// time per level.
    fn start_us(&self, collective: Collective, choice: &CallChoice, k: &LoadConstants) -> f64 {
        if choice.algorithm == Algorithm::NvlsTree {
            let levels = f64::from(self.agreed().hosts.next_power_of_two().ilog2());
            return k.nvls_tree_start_us + levels * k.nvls_tree_level_us;
        }
        k.start_us
            + k.start_over_latency
                * f64::from(self.table().cell(collective, choice.algorithm, choice.protocol).latency_us)
    }

    fn flow(&self, choice: &CallChoice, bus_factor: f64, k: &LoadConstants) -> Option<NetworkFlow> {
        match choice.algorithm {
            Algorithm::Tree => self.tree_flow(bus_factor, k),
            Algorithm::NvlsTree => self.nvls_tree_flow(bus_factor, k),
            _ => self.ring_flow(k),
        }
    }

    fn rate(&self, member: usize, nic: u8, k: &LoadConstants) -> f64 {
        k.nic * self.nic_gb_per_s[member].get(usize::from(nic)).copied().unwrap_or(0.0)
    }

    /// Rings: every channel carries the same share. The most loaded NIC of a channel limits it, and other channels that
    /// share one of its NICs slow it further.
    fn ring_flow(&self, k: &LoadConstants) -> Option<NetworkFlow> {
        let ring = RingLoad::of(self)?;
        let (mut worst, mut worst_at) = (0.0, None);
        for hops in ring.crossings.chunks(self.members().len()) {
            let (load, at) = ring.of_search_channel(hops, k);
            if load > worst {
                (worst, worst_at) = (load, at);
            }
        }
        let at = worst_at?;
        let channels = ring.channels;
        let network = f64::from(channels) / worst;
        let ceiling = f64::from(channels) * k.channel_gb_per_s;
        let busbw_gb_per_s = (network.powf(-CHANNEL_NORM) + ceiling.powf(-CHANNEL_NORM)).powf(-1.0 / CHANNEL_NORM);
        let (host, nic) = (self.members()[at.port.member].host, at.port.nic);
        let on_it = f64::from(at.channels.count_ones());
        let limit = match () {
            _ if ceiling < network => CallLimit::Channels { channels },
            _ if at.crossing => CallLimit::CrossingNics { host, nic, on_it, channels },
            _ => CallLimit::Nic {
                host,
                nic,
                on_it,
                channels,
                even: f64::from(channels) / ring.used_nics(at.port) as f64,
            },
        };
        Some(NetworkFlow { busbw_gb_per_s, limit })
    }

    /// Trees: the NIC with the most tree links of all channels sets the limit.
    fn tree_flow(&self, bus_factor: f64, k: &LoadConstants) -> Option<NetworkFlow> {
        let channels = self.agreed().channels;
        let n = self.search_channels() as u32;
        let hosts = self.members().len() as u32;
        let fullest = self.fullest_nic(k, |member, load| {
            let links = double_tree(hosts, member as u32).map(|t| t.links());
            for c in 0..channels {
                let second = usize::from(c % (2 * n) >= n);
                load.add(self.tree_nic(member, c as usize)?, f64::from(links[second]));
            }
            Some(())
        })?;
        let FullestNic { member, nic, on_it, used, all, time } = fullest;
        // Inside a host every GPU sends each byte twice (up and down) over the links of the search.
        let tree = &self.agreed().tree;
        let inside = f64::from(tree.channels) * f64::from(tree.bw_intra_gb_per_s) / 2.0;
        let network = k.tree * f64::from(channels) / time;
        if inside < network {
            return Some(NetworkFlow { busbw_gb_per_s: bus_factor * inside, limit: CallLimit::NvLink });
        }
        Some(NetworkFlow {
            busbw_gb_per_s: bus_factor * network,
            limit: CallLimit::Nic { host: self.members()[member].host, nic, on_it, channels, even: all / used },
        })
    }

    /// The NIC whose tree links take longest, of the first such host. `links_of` adds the links of a member; `None` if one
    /// has no NIC. O(members x NICs).
    fn fullest_nic(
        &self,
        k: &LoadConstants,
        links_of: impl Fn(usize, &mut NicLoad) -> Option<()>,
    ) -> Option<FullestNic> {
        let mut best: Option<FullestNic> = None;
        for member in 0..self.members().len() {
            let mut load = NicLoad::default();
            links_of(member, &mut load)?;
            for nic in (0..NICS_PER_HOST_MAX as u8).filter(|n| load.used >> n & 1 == 1) {
                let on_it = load.links[usize::from(nic)];
                let time = on_it / self.rate(member, nic, k);
                if on_it > 0.0 && best.as_ref().is_none_or(|b| time > b.time) {
                    let used = f64::from(load.used.count_ones());
                    best = Some(FullestNic { member, nic, on_it, used, all: load.links.iter().sum(), time });
                }
            }
        }
        best
    }

    /// NVLSTree: the trees of a head use the head's NIC. A head has two trees, each with half of the bytes.
    fn nvls_tree_flow(&self, bus_factor: f64, k: &LoadConstants) -> Option<NetworkFlow> {
        let heads = self.agreed().nvls?.channels as usize;
        let hosts = self.members().len() as u32;
        let fullest = self.fullest_nic(k, |member, load| {
            let [a, b] = double_tree(hosts, member as u32).map(|t| f64::from(t.links()));
            self.head_nics(member).iter().take(heads).for_each(|nic| load.add(*nic, (a + b) / 2.0));
            Some(())
        })?;
        let FullestNic { member, nic, on_it, time, .. } = fullest;
        let many = if hosts > 2 { k.nvls_tree_many } else { 1.0 };
        let network = many * heads as f64 / time;
        let p = NVLS_TREE_NORM;
        let algbw = (network.powf(-p) + k.nvls_tree_gb_per_s.powf(-p)).powf(-1.0 / p);
        let limit = if k.nvls_tree_gb_per_s < network {
            CallLimit::NvLink
        } else {
            CallLimit::Nic { host: self.members()[member].host, nic, on_it, channels: heads as u32, even: on_it }
        };
        Some(NetworkFlow { busbw_gb_per_s: bus_factor * algbw, limit })
    }
}

/// Tree links on the NICs of a host.
#[derive(Default)]
struct NicLoad {
    links: [f64; NICS_PER_HOST_MAX],
    /// Set of NICs with links.
    used: u32,
}

impl NicLoad {
    fn add(&mut self, nic: u8, links: f64) {
        self.links[usize::from(nic)] += links;
        self.used |= 1 << nic;
    }
}

/// The NIC that limits the trees.
struct FullestNic {
    member: usize,
    nic: u8,
    /// Tree links on it, number of NICs of its host that carry links, and all links of the host.
    on_it: f64,
    used: f64,
    all: f64,
    time: f64,
}

/// The most loaded NIC of a ring channel.
struct LoadedNic {
    port: NicPort,
    /// Set of channels on the NIC.
    channels: u64,
    /// True if other channels, for GPUs that are not next to their NIC, cross the host together with these.
    crossing: bool,
    /// Load of one channel.
    unit: f64,
}

/// The ports that send to a receiving port.
#[derive(Clone, Copy, PartialEq)]
enum Feeder {
    Nothing,
    One(usize),
    Several,
}

/// The ring channels on every NIC of a communicator. Sets of channels are bit masks.
struct RingLoad<'a> {
    communicator: &'a Communicator,
    channels: u32,
    /// The hops of every search channel between hosts, in host order.
    crossings: Vec<Crossing>,
    /// By [`NicPort::index`]: the channels on a port, and the ports that send to it.
    on: Vec<u64>,
    feeder: Vec<Feeder>,
    /// By member and GPU: channels that end on a GPU that is not next to their NIC.
    ends: Vec<u64>,
}

impl NicPort {
    fn index(self) -> usize {
        (self.member * NICS_PER_HOST_MAX + usize::from(self.nic)) * 2 + usize::from(self.into)
    }
}

fn ports(x: &Crossing) -> [NicPort; 2] {
    [NicPort { member: x.from, nic: x.nic_out, into: false }, NicPort { member: x.to, nic: x.nic_in, into: true }]
}

fn end_index(x: &Crossing) -> usize {
    x.to * GPUS_PER_HOST_MAX + usize::from(x.gpu_in)
}

impl<'a> RingLoad<'a> {
    fn of(communicator: &'a Communicator) -> Option<Self> {
        let channels = communicator.agreed().channels.min(u64::BITS);
        let search = communicator.search_channels();
        let hosts = communicator.members().len();
        let mut crossings = Vec::with_capacity(search * hosts);
        for q in 0..search {
            for from in 0..hosts {
                crossings.push(communicator.crossing(q, from)?);
            }
        }
        let port_count = hosts * NICS_PER_HOST_MAX * 2;
        let mut ring = RingLoad {
            communicator,
            channels,
            crossings,
            on: vec![0; port_count],
            feeder: vec![Feeder::Nothing; port_count],
            ends: vec![0; hosts * GPUS_PER_HOST_MAX],
        };
        // Copies of a search channel use the hops of that channel.
        let copies = |q: usize| (q..channels as usize).step_by(search).fold(0u64, |set, c| set | 1 << c);
        for q in 0..search {
            let set = copies(q);
            for i in q * hosts..(q + 1) * hosts {
                ring.add(ring.crossings[i], set);
            }
        }
        Some(ring)
    }

    fn add(&mut self, x: Crossing, set: u64) {
        let [out, into] = ports(&x).map(NicPort::index);
        self.on[out] |= set;
        self.on[into] |= set;
        self.feeder[into] = match self.feeder[into] {
            Feeder::Nothing => Feeder::One(out),
            Feeder::One(one) if one == out => Feeder::One(one),
            _ => Feeder::Several,
        };
        if self.is_far(&x) {
            self.ends[end_index(&x)] |= set;
        }
    }

    /// True if the receiving GPU is not next to the receiving NIC.
    fn is_far(&self, x: &Crossing) -> bool {
        !self.communicator.members()[x.to].places.adjacent(x.gpu_in, x.nic_in)
    }

    /// The load that limits a search channel with these hops, and its most loaded NIC.
    fn of_search_channel(&self, hops: &[Crossing], k: &LoadConstants) -> (f64, Option<LoadedNic>) {
        let (mut met, mut slowest, mut at) = (0u64, 0.0f64, None);
        for x in hops {
            for port in ports(x) {
                let here = self.on[port.index()];
                let ending = if port.into && self.is_far(x) { self.ends[end_index(x)] } else { 0 };
                met |= here | ending;
                let unit = 1.0 / self.communicator.rate(port.member, port.nic, k);
                // Bytes for a GPU that is not next to the NIC cross the host bridge. Such a transfer always holds both
                // the NIC and the bridge.
                let together = (here | ending).count_ones();
                let mixed = port.into && self.feeder[port.index()] == Feeder::Several;
                let think = 1.0 / (unit * k.channel_gb_per_s) - 1.0;
                let own = f64::from(together) * unit / if mixed { share_in_use(together, think) } else { 1.0 };
                if own > slowest {
                    slowest = own;
                    at = Some(LoadedNic { port, channels: here, crossing: ending & !here != 0, unit });
                }
            }
        }
        let unit = at.as_ref().map_or(0.0, |a| a.unit);
        (slowest + k.holding * (f64::from(met.count_ones()) * unit - slowest).max(0.0), at)
    }

    /// Number of NICs that the port's host uses in the port's direction.
    fn used_nics(&self, port: NicPort) -> usize {
        let of_host = &self.on[port.member * NICS_PER_HOST_MAX * 2..(port.member + 1) * NICS_PER_HOST_MAX * 2];
        of_host.iter().skip(usize::from(port.into)).step_by(2).filter(|set| **set != 0).count().max(1)
    }
}
