//! Bandwidth from decisions: what NCCL's own rings and trees load, and what that leaves.
//!
//! NCCL's time estimate never sees that copies of channels share NICs. Here the channels of the chosen algorithm are laid over the NICs
//! of every host, and the fullest NIC sets the pace. Constants are measured on one half of a published four-host H100 table (all-reduce of
//! 2 GiB; `examples/accuracy.rs` prints the error on the other half).

use crate::choose::Choice;
use crate::communicator::{Communicator, Crossing};
use crate::tree::double_tree;
use serde::Serialize;
use std::collections::HashMap;
use topology::host::NICS_PER_HOST_MAX;
use topology::nccl::{Algorithm, Protocol};
use topology::{Bandwidth, Collective, GPUS_PER_HOST_MAX, HostId, NetworkClass};

/// Share of the line rate that a NIC carries, by network (InfiniBand: 49.6 of 50 GB/s on the measured table; others as `fabric` has them).
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
/// Rings need three. A channel alone reaches [`LoadConstants::channel_gb_per_s`]; a NIC carries its share of the line rate; and where
/// rings meet other rings on more than one NIC, a part of the transfers that wait at one NIC holds the other meanwhile (head of line
/// blocking; a closed-loop simulation with transfers that always hold both loses two to three times as much, one with transfers that
/// never do loses nothing).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadConstants {
    /// Share of a NIC's line rate that its channels carry together.
    pub nic: f64,
    /// Most that one channel carries between hosts, GB/s.
    pub channel_gb_per_s: f64,
    /// Share of transfers that hold a NIC while they wait for another: the weight of a channel met elsewhere against one on the fullest NIC.
    pub holding: f64,
    /// Share of the NICs' rate that trees reach.
    pub tree: f64,
    /// Algorithm bandwidth that NVLSTree does not exceed, GB/s.
    pub nvls_tree_gb_per_s: f64,
    /// Share of the NICs' rate that NVLSTree reaches with three hosts and more.
    pub nvls_tree_many: f64,
    /// Microseconds before the first byte counts, rings and trees: a constant,
    pub start_us: f64,
    /// and so many times NCCL's own latency.
    pub start_over_latency: f64,
    /// Microseconds before the first byte counts, NVLSTree: a constant,
    pub nvls_tree_start_us: f64,
    /// and so much for every level of the tree.
    pub nvls_tree_level_us: f64,
    /// What trees of flagged packets (LL, LL128) take longer than trees of chunks; two hosts measured.
    pub tree_packets: f64,
}

/// How sharply two limits bend into one another (p-norms).
const CHANNEL_NORM: f64 = 8.0;
const NVLS_TREE_NORM: f64 = 10.0;

impl LoadConstants {
    /// For a network.
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

/// Share of its rate that a NIC reaches when `channels` channels come to it from several NICs, not in step: a closed queue in which each
/// channel thinks as long as its own ceiling makes it (the machine repair model, M/M/1//N). `think` in units of the service time.
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

/// What limits a call.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Limit {
    /// One NIC carries more of the channels than the others, or all carry the same.
    Nic {
        /// The host.
        host: HostId,
        /// The NIC.
        nic: u8,
        /// Channels (tree links, heads) on it.
        on_it: f64,
        /// Channels of the call.
        channels: u32,
        /// Channels on it if they divided evenly over the NICs that this host uses.
        even: f64,
    },
    /// Rings receive through NICs that are not beside their GPU.
    CrossingNics {
        /// The host that receives.
        host: HostId,
        /// The NIC.
        nic: u8,
        /// Channels on it.
        on_it: f64,
        /// Channels of the call.
        channels: u32,
    },
    /// Too few channels for the NICs: each is at its own limit.
    Channels {
        /// Channels of the call.
        channels: u32,
    },
    /// NVLinks inside a host.
    NvLink,
    /// Latency: too few bytes.
    Latency,
}

/// What a call should get.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Busbw {
    /// Bus bandwidth, as nccl-tests defines it.
    pub busbw: Bandwidth,
    /// Time of the call, microseconds.
    pub time_us: f64,
    /// What sets it.
    pub limit: Limit,
}

/// A NIC in one direction.
#[derive(Clone, Copy)]
struct Port {
    member: usize,
    nic: u8,
    into: bool,
}

/// What the network leaves of a flow of endless length.
struct Flow {
    busbw_gb_per_s: f64,
    limit: Limit,
}

impl Communicator {
    /// Expected bus bandwidth of a call, as AUTO would do it. `None` where there is no choice to make (see [`Communicator::choose`]).
    /// O(hosts x channels).
    pub fn busbw(&self, collective: Collective, size_bytes: u64) -> Option<Busbw> {
        self.busbw_with(collective, size_bytes, &LoadConstants::of(self.network))
    }

    /// The same with other constants.
    pub fn busbw_with(&self, collective: Collective, size_bytes: u64, constants: &LoadConstants) -> Option<Busbw> {
        self.busbw_of(collective, size_bytes, &self.choice(collective, size_bytes)?, constants)
    }

    /// The same of a call that does not take AUTO's way (see [`Communicator::ways`]).
    pub fn busbw_of(
        &self,
        collective: Collective,
        size_bytes: u64,
        choice: &Choice,
        constants: &LoadConstants,
    ) -> Option<Busbw> {
        let ranks = self.agreed().ranks as usize;
        let factor = collective.bus_factor(ranks);
        let bytes = size_bytes.max(1) as f64;
        if self.agreed().hosts == 1 {
            // Inside a host NCCL's own estimate is the best that is known.
            let time_us = f64::from(choice.time_us);
            let busbw = Bandwidth::from_gb_per_s(bytes / time_us / 1000.0 * factor);
            let wire_us = bytes
                / 1000.0
                / f64::from(self.table().cell(collective, choice.algorithm, choice.protocol).bandwidth_gb_per_s);
            let limit = if wire_us < 0.5 * time_us { Limit::Latency } else { Limit::NvLink };
            return Some(Busbw { busbw, time_us, limit });
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
        let limit = if start_us > wire_us { Limit::Latency } else { flow.limit };
        Some(Busbw { busbw: Bandwidth::from_gb_per_s(bytes / time_us / 1000.0 * factor), time_us, limit })
    }

    /// Microseconds before the first byte counts: NCCL's own latency, which is too low by a factor, and the levels of NVLSTree.
    fn start_us(&self, collective: Collective, choice: &Choice, k: &LoadConstants) -> f64 {
        if choice.algorithm == Algorithm::NvlsTree {
            let levels = f64::from(self.agreed().hosts.next_power_of_two().ilog2());
            return k.nvls_tree_start_us + levels * k.nvls_tree_level_us;
        }
        k.start_us
            + k.start_over_latency
                * f64::from(self.table().cell(collective, choice.algorithm, choice.protocol).latency_us)
    }

    fn flow(&self, choice: &Choice, bus_factor: f64, k: &LoadConstants) -> Option<Flow> {
        match choice.algorithm {
            Algorithm::Tree => self.tree_flow(bus_factor, k),
            Algorithm::NvlsTree => self.nvls_tree_flow(bus_factor, k),
            _ => self.ring_flow(k),
        }
    }

    fn rate(&self, member: usize, nic: u8, k: &LoadConstants) -> f64 {
        k.nic * self.nic_gb_per_s[member].get(usize::from(nic)).copied().unwrap_or(0.0)
    }

    /// Rings: every channel carries the same share; a channel is as slow as the fullest NIC on its way, and slower for every other
    /// channel that it meets on it.
    fn ring_flow(&self, k: &LoadConstants) -> Option<Flow> {
        let channels = self.agreed().channels.min(u64::BITS);
        let search = self.search_channels();
        let hosts = self.members().len();
        // Copies of a search channel take its way: the channels of every search channel as a bit set.
        let copies = |q: usize| (q..channels as usize).step_by(search).fold(0u64, |set, c| set | 1 << c);
        let sets: Vec<u64> = (0..search).map(copies).collect();
        let mut ways: Vec<Crossing> = Vec::with_capacity(search * hosts);
        for q in 0..search {
            for from in 0..hosts {
                ways.push(self.crossing(q, from)?);
            }
        }
        let port = |member: usize, nic: u8, into: bool| {
            (member * NICS_PER_HOST_MAX + usize::from(nic)) * 2 + usize::from(into)
        };
        let ends_at = |x: &Crossing| x.to * GPUS_PER_HOST_MAX + usize::from(x.gpu_in);
        let mut on = vec![0u64; hosts * NICS_PER_HOST_MAX * 2];
        // Who feeds a port: nobody yet, one, several.
        let mut feeder: Vec<Option<Result<usize, ()>>> = vec![None; on.len()];
        // Channels that end on a GPU which is not beside their NIC.
        let mut ends = vec![0u64; hosts * GPUS_PER_HOST_MAX];
        for (x, set) in ways.iter().enumerate().map(|(i, x)| (x, sets[i / hosts])) {
            let (out, into) = (port(x.from, x.nic_out, false), port(x.to, x.nic_in, true));
            on[out] |= set;
            on[into] |= set;
            feeder[into] = match feeder[into] {
                None => Some(Ok(out)),
                Some(Ok(one)) if one == out => Some(Ok(one)),
                _ => Some(Err(())),
            };
            if !self.members()[x.to].places.beside(x.gpu_in, x.nic_in) {
                ends[ends_at(x)] |= set;
            }
        }
        let (mut worst, mut worst_at) = (0.0, None);
        for way in ways.chunks(hosts) {
            let (mut met, mut slowest, mut at) = (0u64, 0.0f64, None);
            for x in way {
                for (member, nic, into) in [(x.from, x.nic_out, false), (x.to, x.nic_in, true)] {
                    let at_port = port(member, nic, into);
                    let here = on[at_port];
                    let far = into && !self.members()[x.to].places.beside(x.gpu_in, x.nic_in);
                    let ending = if far { ends[ends_at(x)] } else { 0 };
                    met |= here | ending;
                    let unit = 1.0 / self.rate(member, nic, k);
                    // A GPU that is not beside the NIC is reached through the host bridge, where transfers always hold both.
                    let together = (here | ending).count_ones();
                    let mixed = into && feeder[at_port] == Some(Err(()));
                    let think = 1.0 / (unit * k.channel_gb_per_s) - 1.0;
                    let own = f64::from(together) * unit / if mixed { share_in_use(together, think) } else { 1.0 };
                    if own > slowest {
                        (slowest, at) = (own, Some((Port { member, nic, into }, here, ending & !here != 0, unit)));
                    }
                }
            }
            let unit = at.map_or(0.0, |a| a.3);
            let load = slowest + k.holding * (f64::from(met.count_ones()) * unit - slowest).max(0.0);
            if load > worst {
                (worst, worst_at) = (load, at);
            }
        }
        let (at, here, crossing, _) = worst_at?;
        let network = f64::from(channels) / worst;
        let ceiling = f64::from(channels) * k.channel_gb_per_s;
        let busbw_gb_per_s = (network.powf(-CHANNEL_NORM) + ceiling.powf(-CHANNEL_NORM)).powf(-1.0 / CHANNEL_NORM);
        let host = self.members()[at.member].host;
        let on_it = f64::from(here.count_ones());
        let of_host = &on[at.member * NICS_PER_HOST_MAX * 2..(at.member + 1) * NICS_PER_HOST_MAX * 2];
        let used = of_host.iter().skip(usize::from(at.into)).step_by(2).filter(|set| **set != 0).count().max(1);
        let limit = match () {
            _ if ceiling < network => Limit::Channels { channels },
            _ if crossing => Limit::CrossingNics { host, nic: at.nic, on_it, channels },
            _ => Limit::Nic { host, nic: at.nic, on_it, channels, even: f64::from(channels) / used as f64 },
        };
        Some(Flow { busbw_gb_per_s, limit })
    }

    /// Trees: the NIC with the most tree links of all its channels.
    fn tree_flow(&self, bus_factor: f64, k: &LoadConstants) -> Option<Flow> {
        let channels = self.agreed().channels;
        let n = self.search_channels() as u32;
        let hosts = self.members().len() as u32;
        let mut load: HashMap<(usize, u8), f64> = HashMap::new();
        for member in 0..self.members().len() {
            let links = double_tree(hosts, member as u32).map(|t| t.links());
            for c in 0..channels {
                let second = usize::from(c % (2 * n) >= n);
                let nic = self.tree_nic(member, c as usize)?;
                *load.entry((member, nic)).or_default() += f64::from(links[second]);
            }
        }
        let time = |(&(m, nic), links): (&(usize, u8), &f64)| links / self.rate(m, nic, k);
        let fullest = load.iter().max_by(|a, b| time(*a).total_cmp(&time(*b)).then(b.0.cmp(a.0)))?;
        let (&(member, nic), &on_it) = fullest;
        let used = load.keys().filter(|p| p.0 == member).count().max(1) as f64;
        let all: f64 = load.iter().filter(|p| p.0.0 == member).map(|p| p.1).sum();
        // Inside a host every GPU sends each byte twice, up and down again, over the links that the search found.
        let tree = &self.agreed().tree;
        let inside = f64::from(tree.channels) * f64::from(tree.bw_intra_gb_per_s) / 2.0;
        let network = k.tree * f64::from(channels) / time(fullest);
        if inside < network {
            return Some(Flow { busbw_gb_per_s: bus_factor * inside, limit: Limit::NvLink });
        }
        Some(Flow {
            busbw_gb_per_s: bus_factor * network,
            limit: Limit::Nic { host: self.members()[member].host, nic, on_it, channels, even: all / used },
        })
    }

    /// NVLSTree: every head's tree crosses by its own NIC; a head has two trees, which carry half each.
    fn nvls_tree_flow(&self, bus_factor: f64, k: &LoadConstants) -> Option<Flow> {
        let heads = self.agreed().nvls?.channels as usize;
        let hosts = self.members().len() as u32;
        let mut load: HashMap<(usize, u8), f64> = HashMap::new();
        for member in 0..self.members().len() {
            let [a, b] = double_tree(hosts, member as u32).map(|t| f64::from(t.links()));
            for &nic in self.head_nics(member).iter().take(heads) {
                *load.entry((member, nic)).or_default() += (a + b) / 2.0;
            }
        }
        let time = |(&(m, nic), links): (&(usize, u8), &f64)| links / self.rate(m, nic, k);
        let fullest = load.iter().max_by(|a, b| time(*a).total_cmp(&time(*b)).then(b.0.cmp(a.0)))?;
        let (&(member, nic), &on_it) = fullest;
        let many = if hosts > 2 { k.nvls_tree_many } else { 1.0 };
        let network = many * heads as f64 / time(fullest);
        let p = NVLS_TREE_NORM;
        let algbw = (network.powf(-p) + k.nvls_tree_gb_per_s.powf(-p)).powf(-1.0 / p);
        let limit = if k.nvls_tree_gb_per_s < network {
            Limit::NvLink
        } else {
            Limit::Nic { host: self.members()[member].host, nic, on_it, channels: heads as u32, even: on_it }
        };
        Some(Flow { busbw_gb_per_s: bus_factor * algbw, limit })
    }
}
