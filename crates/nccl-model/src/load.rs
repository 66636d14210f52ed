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
use topology::nccl::Algorithm;
use topology::{Bandwidth, Collective, HostId, NetworkClass};

/// Share of the line rate that a NIC carries, by network (InfiniBand: 48.7 of 50 GB/s on the measured table; others as `fabric` has them).
pub(crate) fn network_efficiency(class: NetworkClass) -> f64 {
    match class {
        NetworkClass::Infiniband => 0.974,
        NetworkClass::Roce | NetworkClass::Efa => 0.92,
        NetworkClass::Tcp => 0.71,
        NetworkClass::RdmaNoGdr => 0.30,
    }
}

/// Constants of the load model; measured, see the module's text.
#[derive(Clone, Copy, Debug)]
pub struct LoadConstants {
    /// Weight of a channel that a ring meets on other NICs of its way, against one on its own fullest NIC.
    pub met: f64,
    /// Several NICs send into one, and the GPU that receives is not beside it.
    pub crossed: f64,
    /// Several NICs send into one that is beside its GPU.
    pub mixed: f64,
    /// A NIC's channels end on several GPUs away from it.
    pub scattered: f64,
    /// Most that one channel carries between hosts, GB/s.
    pub channel_gb_per_s: f64,
    /// How sharply that limit bends the rest (p-norm).
    pub channel_norm: f64,
    /// Share of the NICs' rate that trees reach.
    pub tree: f64,
    /// Algorithm bandwidth that NVLSTree does not exceed, GB/s.
    pub nvls_tree_gb_per_s: f64,
    /// How sharply (p-norm).
    pub nvls_tree_norm: f64,
    /// Share of the NICs' rate that NVLSTree reaches with three hosts and more.
    pub nvls_tree_many: f64,
}

impl Default for LoadConstants {
    fn default() -> Self {
        LoadConstants {
            met: 0.342,
            crossed: 1.041,
            mixed: 1.008,
            scattered: 1.218,
            channel_gb_per_s: 20.33,
            channel_norm: 8.0,
            tree: 0.900,
            nvls_tree_gb_per_s: 244.0,
            nvls_tree_norm: 9.8,
            nvls_tree_many: 0.955,
        }
    }
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
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
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
        self.busbw_with(collective, size_bytes, &LoadConstants::default())
    }

    /// The same with other constants.
    pub fn busbw_with(&self, collective: Collective, size_bytes: u64, constants: &LoadConstants) -> Option<Busbw> {
        let choice = self.choice(collective, size_bytes)?;
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
        let flow = self.flow(&choice, factor, constants)?;
        let wire_us = bytes / 1000.0 * factor / flow.busbw_gb_per_s;
        let start_us = self.start_us(&choice);
        let time_us = start_us + wire_us;
        let limit = if start_us > wire_us { Limit::Latency } else { flow.limit };
        Some(Busbw { busbw: Bandwidth::from_gb_per_s(bytes / time_us / 1000.0 * factor), time_us, limit })
    }

    /// Microseconds before the first byte counts.
    fn start_us(&self, choice: &Choice) -> f64 {
        let _ = choice;
        0.0
    }

    fn flow(&self, choice: &Choice, bus_factor: f64, k: &LoadConstants) -> Option<Flow> {
        match choice.algorithm {
            Algorithm::Tree => self.tree_flow(bus_factor, k),
            Algorithm::NvlsTree => self.nvls_tree_flow(bus_factor, k),
            _ => self.ring_flow(k),
        }
    }

    fn rate(&self, member: usize, nic: u8) -> f64 {
        self.efficiency * self.nic_gb_per_s[member].get(usize::from(nic)).copied().unwrap_or(0.0)
    }

    /// Rings: every channel carries the same share; a channel is as slow as the fullest NIC on its way, and slower for every other
    /// channel that it meets on it.
    fn ring_flow(&self, k: &LoadConstants) -> Option<Flow> {
        let channels = self.agreed().channels.min(64);
        let ways: Vec<Vec<Crossing>> = (0..channels as usize).map(|c| self.crossings(c)).collect();
        let mut on: HashMap<Port, u64> = HashMap::new();
        let mut feeds: HashMap<Port, Vec<Port>> = HashMap::new();
        // Channels that end on a GPU which is not beside their NIC.
        let mut ends: HashMap<(usize, u8), u64> = HashMap::new();
        let beside = |x: &Crossing| {
            self.members()[x.to].places.nics.iter().position(|n| *n == x.nic_in)
                == self.members()[x.to].places.gpus.iter().position(|g| *g == x.gpu_in)
        };
        for (c, way) in ways.iter().enumerate() {
            for x in way {
                let out = Port { member: x.from, nic: x.nic_out, into: false };
                let into = Port { member: x.to, nic: x.nic_in, into: true };
                *on.entry(out).or_default() |= 1 << c;
                *on.entry(into).or_default() |= 1 << c;
                let feeding = feeds.entry(into).or_default();
                if !feeding.contains(&out) {
                    feeding.push(out);
                }
                if !beside(x) {
                    *ends.entry((x.to, x.gpu_in)).or_default() |= 1 << c;
                }
            }
        }
        let (mut worst, mut worst_at) = (0.0, None);
        for way in &ways {
            let (mut met, mut fullest, mut slowest, mut at) = (0u64, 0.0f64, 0.0f64, None);
            for x in way {
                for port in [
                    Port { member: x.from, nic: x.nic_out, into: false },
                    Port { member: x.to, nic: x.nic_in, into: true },
                ] {
                    let here = on[&port];
                    met |= here;
                    let unit = 1.0 / self.rate(port.member, port.nic);
                    let own = f64::from(here.count_ones()) * unit;
                    let mixed = port.into && feeds[&port].len() > 1;
                    let far = port.into && !beside(x);
                    let mut weight = match (mixed, far) {
                        (true, true) => k.crossed,
                        (true, false) => k.mixed,
                        _ => 1.0,
                    };
                    if far {
                        let ending = ends[&(x.to, x.gpu_in)];
                        met |= ending;
                        if ending != here {
                            weight *= k.scattered;
                        }
                    }
                    fullest = fullest.max(own);
                    if own * weight > slowest {
                        (slowest, at) = (own * weight, Some((port, here, far && mixed, unit)));
                    }
                }
            }
            let unit = at.map_or(0.0, |a| a.3);
            let load = slowest + k.met * (f64::from(met.count_ones()) * unit - fullest).max(0.0);
            if load > worst {
                (worst, worst_at) = (load, at);
            }
        }
        let (port, here, crossing, _) = worst_at?;
        let network = f64::from(channels) / worst;
        let ceiling = f64::from(channels) * k.channel_gb_per_s;
        let busbw_gb_per_s =
            (network.powf(-k.channel_norm) + ceiling.powf(-k.channel_norm)).powf(-1.0 / k.channel_norm);
        let host = self.members()[port.member].host;
        let on_it = f64::from(here.count_ones());
        let used = on.keys().filter(|p| p.member == port.member && p.into == port.into).count().max(1);
        let limit = match () {
            _ if ceiling < network => Limit::Channels { channels },
            _ if crossing => Limit::CrossingNics { host, nic: port.nic, on_it, channels },
            _ => Limit::Nic { host, nic: port.nic, on_it, channels, even: f64::from(channels) / used as f64 },
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
        let time = |(&(m, nic), links): (&(usize, u8), &f64)| links / self.rate(m, nic);
        let fullest = load.iter().max_by(|a, b| time(*a).total_cmp(&time(*b)).then(b.0.cmp(a.0)))?;
        let (&(member, nic), &on_it) = fullest;
        let used = load.keys().filter(|p| p.0 == member).count().max(1) as f64;
        let all: f64 = load.iter().filter(|p| p.0.0 == member).map(|p| p.1).sum();
        Some(Flow {
            busbw_gb_per_s: bus_factor * k.tree * f64::from(channels) / time(fullest),
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
        let time = |(&(m, nic), links): (&(usize, u8), &f64)| links / self.rate(m, nic);
        let fullest = load.iter().max_by(|a, b| time(*a).total_cmp(&time(*b)).then(b.0.cmp(a.0)))?;
        let (&(member, nic), &on_it) = fullest;
        let many = if hosts > 2 { k.nvls_tree_many } else { 1.0 };
        let network = many * heads as f64 / time(fullest);
        let p = k.nvls_tree_norm;
        let algbw = (network.powf(-p) + k.nvls_tree_gb_per_s.powf(-p)).powf(-1.0 / p);
        let limit = if k.nvls_tree_gb_per_s < network {
            Limit::NvLink
        } else {
            Limit::Nic { host: self.members()[member].host, nic, on_it, channels: heads as u32, even: on_it }
        };
        Some(Flow { busbw_gb_per_s: bus_factor * algbw, limit })
    }
}
