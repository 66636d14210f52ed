//! The directed links of a cluster and the paths that bytes may take over them.
//!
//! A path between two GPUs of a host is the direct way, or one relay GPU with a link to both. A path between hosts leaves by NIC `k` of
//! the sender's host and arrives at NIC `k` of the receiver's ("rail-matched"), with an NVLink leg before or after where the NIC belongs to
//! another GPU. Such a path is an out-leg of the sender and an in-leg of the receiver, so that a network of `n` ranks and `k` rails stores
//! `2 n k` legs instead of `n² k` paths.
//!
//! A link's two ends are named nodes: a GPU (`n0:3`), a switch (`n0:switch`), a NIC that several GPUs share (`n0:nic0`), a rail (`rail2`)
//! or the whole network where hosts have different numbers of NICs (`network`). The NIC that belongs to one GPU is the link between that
//! GPU and the rail. A relay's own limit is a link from the GPU to itself.

use crate::demand::RANKS_MAX;
use std::collections::HashMap;
use topology::{Cluster, GpuId, HostId, HostType, PathKind};

/// Most links of one leg, and of one path inside a host.
pub const LEG_LINKS_MAX: usize = 8;
/// Most overrides of single links.
pub const OVERRIDES_MAX: usize = 4096;
/// Fastest link that is believed, GB/s.
const CAPACITY_MAX_GB_PER_S: f64 = 100_000.0;

/// What a link is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// NVLinks between two GPUs, or between a GPU and the switch of its host.
    NvLink,
    /// PCIe between a GPU and its host, or a GPU and a NIC that is not its own.
    Pcie,
    /// A NIC, sending.
    NicSend,
    /// A NIC, receiving.
    NicReceive,
    /// What a GPU can forward for others.
    Relay,
}

/// One directed link.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Where bytes enter, an index into [`Network::nodes`].
    pub from: u32,
    /// Where they leave.
    pub to: u32,
    /// What it carries, GB/s. 0 = dead.
    pub capacity_gb_per_s: f64,
    /// What it is made of.
    pub kind: LinkKind,
}

/// The links of one leg or path, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Leg {
    links: [u32; LEG_LINKS_MAX],
    len: u8,
}

impl Leg {
    /// As a slice.
    #[inline]
    pub fn links(&self) -> &[u32] {
        &self.links[..usize::from(self.len)]
    }
    fn push(&mut self, link: u32) {
        self.links[usize::from(self.len)] = link;
        self.len += 1;
    }
    fn of(links: &[u32]) -> Self {
        let mut leg = Leg::default();
        links.iter().for_each(|&l| leg.push(l));
        leg
    }
}

/// What the cluster's description leaves open.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetworkOptions {
    /// Most that a GPU reads of what it forwards for others, GB/s.
    pub relay_read_gb_per_s: Option<f64>,
    /// Most that it writes of it.
    pub relay_write_gb_per_s: Option<f64>,
    /// Links that run at another rate than the cluster says.
    pub overrides: Vec<Override>,
    /// Paths inside a host may not cross a relay (for comparisons).
    pub no_relays: bool,
    /// Only the first so many NICs of a host (for comparisons).
    pub rails_max: Option<usize>,
    /// Only the first so many relays of a pair (for comparisons).
    pub relays_max: Option<usize>,
}

/// A link that runs at another rate than the cluster says.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// Name of the node where the link begins.
    pub from: String,
    /// Name of the node where it ends.
    pub to: String,
    /// What it carries.
    pub rate: Rate,
}

/// A rate, or a share of the known one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// GB/s.
    GbPerS(f64),
    /// Share of what the cluster says.
    Share(f64),
}

impl std::str::FromStr for Override {
    type Err = String;
    /// `n0:0>n0:1=60` (GB/s), `n0:2>rail2=x0.5` (half of it), `n1:3>rail3=0` (dead).
    fn from_str(s: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "`{s}` is no link; write FROM>TO=GB_PER_S or FROM>TO=xSHARE, such as n0:0>n0:1=60 or n0:2>rail2=x0.5"
            )
        };
        let (ends, rate) = s.rsplit_once('=').ok_or_else(expected)?;
        let (from, to) = ends.split_once('>').ok_or_else(expected)?;
        let number = |t: &str| {
            t.trim().parse::<f64>().ok().filter(|v| (0.0..=CAPACITY_MAX_GB_PER_S).contains(v)).ok_or_else(expected)
        };
        let rate = match rate.trim().strip_prefix('x') {
            Some(share) => Rate::Share(number(share)?),
            None => Rate::GbPerS(number(rate)?),
        };
        Ok(Override { from: from.trim().into(), to: to.trim().into(), rate })
    }
}

/// Why a cluster cannot be routed on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NetworkError {
    /// Too many GPUs.
    #[error("the cluster has {0} usable GPUs; routing plans for at most {RANKS_MAX} ranks. Name a smaller cluster")]
    TooManyRanks(usize),
    /// No GPU.
    #[error("the cluster has no usable GPU")]
    Empty,
    /// An override that names no link.
    #[error("no link goes from `{from}` to `{to}`{hint}")]
    NoSuchLink {
        /// As given.
        from: String,
        /// As given.
        to: String,
        /// What would be right.
        hint: String,
    },
    /// More overrides than anybody writes by hand.
    #[error("{0} links with rates of their own; at most {OVERRIDES_MAX}")]
    TooManyOverrides(usize),
    /// A rate that is none.
    #[error("{what} of {gb_per_s} GB/s is not between 0 and {CAPACITY_MAX_GB_PER_S} GB/s")]
    Rate {
        /// Which.
        what: &'static str,
        /// As given.
        gb_per_s: f64,
    },
}

/// Links and paths.
#[derive(Clone, Debug)]
pub struct Network {
    /// Name of the cluster.
    pub name: String,
    /// Names of the nodes.
    pub nodes: Vec<String>,
    /// The links.
    pub links: Vec<Link>,
    /// What is known of the cluster but not part of this model, a sentence each.
    pub notes: Vec<String>,
    /// Seconds per byte of every link; infinite where it is dead.
    pub(crate) inverse: Vec<f64>,
    /// GPU of every rank: the usable GPUs of the cluster in host order.
    pub ranks: Vec<GpuId>,
    pub(crate) host_of: Vec<u16>,
    /// First rank of every host, and the number of ranks.
    pub(crate) first: Vec<u32>,
    pub(crate) slots: usize,
    pub(crate) host_nics: Vec<u16>,
    /// May bytes leave by this slot? `[host * slots + slot]`; likewise arrive.
    pub(crate) out_alive: Vec<bool>,
    pub(crate) in_alive: Vec<bool>,
    pub(crate) out_legs: Vec<Leg>,
    pub(crate) in_legs: Vec<Leg>,
    /// The slot of the NIC nearest to every rank.
    pub(crate) home: Vec<u8>,
    /// [`Network::slots_between`] of every two hosts.
    pub(crate) masks: Vec<u32>,
    /// Share of every slot between every two hosts, by the slower of its two NICs; sums to 1 where a slot is alive.
    pub(crate) weights: Vec<f64>,
    /// Bytes per second out of and into every rank by all its links, and out of and into every host by its NICs.
    pub(crate) rank_rates: Vec<(f64, f64)>,
    pub(crate) host_rates: Vec<(f64, f64)>,
    pub(crate) intra: Vec<Leg>,
    pub(crate) intra_share: Vec<f64>,
    /// Where the paths of (rank, local receiver) begin in `intra`; see [`Network::intra_paths`].
    pub(crate) intra_at: Vec<u32>,
    /// Where the pairs of a rank begin in `intra_at`.
    pub(crate) intra_row: Vec<u32>,
    /// Does path 0 of the pair need no relay?
    pub(crate) direct: Vec<bool>,
}

impl Network {
    /// Of a cluster: every GPU that is not drained is a rank, in host order. O(ranks x (rails + GPUs of a host²)).
    pub fn of(cluster: &Cluster, options: &NetworkOptions) -> Result<Self, NetworkError> {
        Builder::new(cluster, options)?.build()
    }

    /// How many ranks.
    #[inline]
    pub fn rank_count(&self) -> usize {
        self.ranks.len()
    }
    /// How many hosts with at least one rank.
    #[inline]
    pub fn host_count(&self) -> usize {
        self.first.len() - 1
    }
    /// Rails, or the most NICs of any host.
    #[inline]
    pub fn slot_count(&self) -> usize {
        self.slots
    }
    /// The ranks of a host.
    #[inline]
    pub fn ranks_of(&self, host: usize) -> std::ops::Range<usize> {
        self.first[host] as usize..self.first[host + 1] as usize
    }
    /// The host of a rank.
    #[inline]
    pub fn host(&self, rank: usize) -> usize {
        usize::from(self.host_of[rank])
    }
    /// The paths between two ranks of one host: the direct one first, if there is one, then by relay.
    #[inline]
    pub fn intra_paths(&self, src: usize, dst: usize) -> &[Leg] {
        let at = self.intra_row[src] as usize + dst - self.first[self.host(src)] as usize;
        &self.intra[self.intra_at[at] as usize..self.intra_at[at + 1] as usize]
    }
    /// Share of each of these paths where bytes are spread: all on the direct one, or by rate where there is none.
    #[inline]
    pub(crate) fn intra_shares(&self, src: usize, dst: usize) -> &[f64] {
        let at = self.intra_row[src] as usize + dst - self.first[self.host(src)] as usize;
        &self.intra_share[self.intra_at[at] as usize..self.intra_at[at + 1] as usize]
    }
    /// Have these ranks of one host a path without a relay?
    #[inline]
    pub fn is_direct(&self, src: usize, dst: usize) -> bool {
        self.direct[self.intra_row[src] as usize + dst - self.first[self.host(src)] as usize]
    }
    #[inline]
    pub(crate) fn out_leg(&self, src: usize, slot: usize) -> &Leg {
        &self.out_legs[src * self.slots + slot]
    }
    #[inline]
    pub(crate) fn in_leg(&self, dst: usize, slot: usize) -> &Leg {
        &self.in_legs[dst * self.slots + slot]
    }
    /// Slots that may carry bytes from one host to another, as a bit mask.
    #[inline]
    pub fn slots_between(&self, a: usize, b: usize) -> u32 {
        self.masks[a * self.host_count() + b]
    }
    fn find_slots(&self, a: usize, b: usize) -> u32 {
        let limit = usize::from(self.host_nics[a].max(self.host_nics[b]));
        (0..limit.min(self.slots)).fold(0, |m, k| {
            m | (u32::from(self.out_alive[a * self.slots + k] && self.in_alive[b * self.slots + k]) << k)
        })
    }
    /// How many paths a pair has. 0 = none at all; a rank needs none to itself.
    pub fn path_count(&self, src: usize, dst: usize) -> usize {
        match (src == dst, self.host(src) == self.host(dst)) {
            (true, _) => 0,
            (_, true) => self.intra_paths(src, dst).len(),
            _ => self.slots_between(self.host(src), self.host(dst)).count_ones() as usize,
        }
    }
    /// The links of a path, in order: of the path at that place inside a host, of that slot between hosts.
    pub fn path(&self, src: usize, dst: usize, path: usize) -> impl Iterator<Item = u32> + '_ {
        let (a, b) = match self.host(src) == self.host(dst) {
            true => (self.intra_paths(src, dst)[path], Leg::default()),
            false => (*self.out_leg(src, path), *self.in_leg(dst, path)),
        };
        (0..a.len).map(move |i| a.links[usize::from(i)]).chain((0..b.len).map(move |i| b.links[usize::from(i)]))
    }
    /// `n0:0 > n0:1`.
    pub fn link_name(&self, link: usize) -> String {
        let l = &self.links[link];
        format!("{} > {}", self.nodes[l.from as usize], self.nodes[l.to as usize])
    }
    /// What follows from the capacities.
    fn refresh(&mut self) {
        self.inverse = self.links.iter().map(|l| 1e-9 / l.capacity_gb_per_s).collect();
        let (hosts, slots) = (self.host_count(), self.slots);
        self.weights = vec![0.0; hosts * hosts * slots];
        let nic = |leg: &Leg, kind: LinkKind| {
            leg.links()
                .iter()
                .map(|&l| &self.links[l as usize])
                .find(|l| l.kind == kind)
                .map_or(0.0, |l| l.capacity_gb_per_s)
        };
        let rate =
            |leg: &Leg| 1.0 / leg.links().iter().map(|&l| self.inverse[l as usize]).fold(f64::MIN_POSITIVE, f64::max);
        let mut intra_share = vec![0.0; self.intra.len()];
        for (pair, &direct) in self.direct.iter().enumerate() {
            let paths = self.intra_at[pair] as usize..self.intra_at[pair + 1] as usize;
            let total: f64 = self.intra[paths.clone()].iter().map(rate).sum();
            for (n, p) in paths.enumerate() {
                intra_share[p] = if direct { f64::from(u8::from(n == 0)) } else { rate(&self.intra[p]) / total };
            }
        }
        self.intra_share = intra_share;
        self.rank_rates = vec![(0.0, 0.0); self.ranks.len()];
        for l in self.links.iter().filter(|l| l.from != l.to) {
            if let Some(r) = self.rank_rates.get_mut(l.from as usize) {
                r.0 += l.capacity_gb_per_s * 1e9;
            }
            if let Some(r) = self.rank_rates.get_mut(l.to as usize) {
                r.1 += l.capacity_gb_per_s * 1e9;
            }
        }
        let nic_rates = |h: usize| {
            let r = self.first[h] as usize;
            let own = 0..usize::from(self.host_nics[h]).min(slots);
            own.fold((0.0, 0.0), |sum, k| {
                let out = nic(self.out_leg(r, k), LinkKind::NicSend) * 1e9;
                (sum.0 + out, sum.1 + nic(self.in_leg(r, k), LinkKind::NicReceive) * 1e9)
            })
        };
        self.host_rates = (0..hosts).map(nic_rates).collect();
        for a in 0..hosts {
            for b in (0..hosts).filter(|&b| b != a) {
                let at = (a * hosts + b) * slots;
                let (i, j) = (self.first[a] as usize, self.first[b] as usize);
                let mask = self.masks[a * hosts + b];
                let mut total = 0.0;
                for k in (0..slots).filter(|k| mask >> k & 1 == 1) {
                    let rate =
                        nic(self.out_leg(i, k), LinkKind::NicSend).min(nic(self.in_leg(j, k), LinkKind::NicReceive));
                    self.weights[at + k] = rate;
                    total += rate;
                }
                self.weights[at..at + slots].iter_mut().for_each(|w| *w /= total.max(f64::MIN_POSITIVE));
            }
        }
    }
    /// Seconds per byte of a rail between two hosts: the slower of the two NICs.
    pub fn rail_inverse(&self, a: usize, b: usize, slot: usize) -> f64 {
        let nic = |leg: &Leg, kind: LinkKind| {
            let own = leg.links().iter().filter(|&&l| self.links[l as usize].kind == kind);
            own.map(|&l| self.inverse[l as usize]).fold(0.0, f64::max)
        };
        let (i, j) = (self.first[a] as usize, self.first[b] as usize);
        nic(self.out_leg(i, slot), LinkKind::NicSend).max(nic(self.in_leg(j, slot), LinkKind::NicReceive))
    }
    #[inline]
    pub(crate) fn weights_between(&self, a: usize, b: usize) -> &[f64] {
        let at = (a * self.host_count() + b) * self.slots;
        &self.weights[at..at + self.slots]
    }
}

/// One host's ranks and how they reach each other.
struct Local<'a> {
    id: HostId,
    name: &'a str,
    kind: &'a HostType,
    gpus: Vec<usize>,
    /// NVLink between two ranks (places in `gpus`): one link, or two where a switch is between; empty = none.
    nvlink: Vec<Vec<Leg>>,
}

struct Builder<'a> {
    cluster: &'a Cluster,
    options: &'a NetworkOptions,
    net: Network,
    node_ids: HashMap<String, u32>,
    link_ids: HashMap<(u32, u32), u32>,
    rates: HashMap<(String, String), Rate>,
    relay_loop: Vec<Option<u32>>,
}

impl<'a> Builder<'a> {
    fn new(cluster: &'a Cluster, options: &'a NetworkOptions) -> Result<Self, NetworkError> {
        let usable = cluster.usable();
        let ranks: Vec<GpuId> = usable.gpus().collect();
        if ranks.is_empty() {
            return Err(NetworkError::Empty);
        }
        if ranks.len() > RANKS_MAX {
            return Err(NetworkError::TooManyRanks(ranks.len()));
        }
        if options.overrides.len() > OVERRIDES_MAX {
            return Err(NetworkError::TooManyOverrides(options.overrides.len()));
        }
        for (what, rate) in [
            ("a relay's reading limit", options.relay_read_gb_per_s),
            ("a relay's writing limit", options.relay_write_gb_per_s),
        ] {
            if let Some(gb_per_s) = rate.filter(|r| !(0.0..=CAPACITY_MAX_GB_PER_S).contains(r)) {
                return Err(NetworkError::Rate { what, gb_per_s });
            }
        }
        let mut first = Vec::new();
        let mut host_of = Vec::new();
        for (h, &(_, mask)) in usable.parts().iter().enumerate() {
            first.push(host_of.len() as u32);
            host_of.extend(std::iter::repeat_n(h as u16, mask.count()));
        }
        first.push(host_of.len() as u32);
        let mut notes = Vec::new();
        if !cluster.network.host_links.is_empty() {
            notes.push("rates of single pairs of hosts are not part of the routing model".to_string());
        }
        if cluster.network.tiers.iter().any(|t| t.oversubscription > 1.0) {
            notes.push("oversubscribed tiers of switches are not part of the routing model".to_string());
        }
        let net = Network {
            name: cluster.name.clone(),
            nodes: Vec::new(),
            links: Vec::new(),
            notes,
            inverse: Vec::new(),
            host_of,
            first,
            slots: 0,
            host_nics: Vec::new(),
            out_alive: Vec::new(),
            in_alive: Vec::new(),
            out_legs: Vec::new(),
            in_legs: Vec::new(),
            home: vec![0; ranks.len()],
            intra: Vec::new(),
            intra_share: Vec::new(),
            intra_at: vec![0],
            intra_row: Vec::new(),
            direct: Vec::new(),
            masks: Vec::new(),
            weights: Vec::new(),
            rank_rates: Vec::new(),
            host_rates: Vec::new(),
            ranks,
        };
        let rates = options.overrides.iter().map(|o| ((o.from.clone(), o.to.clone()), o.rate)).collect();
        Ok(Builder {
            cluster,
            options,
            net,
            node_ids: HashMap::new(),
            link_ids: HashMap::new(),
            rates,
            relay_loop: Vec::new(),
        })
    }

    fn node(&mut self, name: String) -> u32 {
        let next = self.net.nodes.len() as u32;
        *self.node_ids.entry(name.clone()).or_insert_with(|| {
            self.net.nodes.push(name);
            next
        })
    }

    /// The link between two nodes, made when first asked for.
    fn link(&mut self, from: u32, to: u32, gb_per_s: f64, kind: LinkKind) -> u32 {
        if let Some(&l) = self.link_ids.get(&(from, to)) {
            return l;
        }
        let ends = (self.net.nodes[from as usize].clone(), self.net.nodes[to as usize].clone());
        let capacity_gb_per_s = match self.rates.remove(&ends) {
            Some(Rate::GbPerS(v)) => v,
            Some(Rate::Share(s)) => gb_per_s * s,
            None => gb_per_s,
        };
        let id = self.net.links.len() as u32;
        self.net.links.push(Link { from, to, capacity_gb_per_s, kind });
        self.link_ids.insert((from, to), id);
        id
    }

    fn gpu_node(&mut self, local: &Local, g: usize) -> u32 {
        self.node(format!("{}:{}", local.name, local.gpus[g]))
    }

    fn alive(&self, leg: &Leg) -> bool {
        leg.links().iter().all(|&l| self.net.links[l as usize].capacity_gb_per_s > 0.0)
    }

    fn build(mut self) -> Result<Network, NetworkError> {
        for r in 0..self.net.ranks.len() {
            let GpuId { host, gpu } = self.net.ranks[r];
            self.node(format!("{}:{gpu}", self.cluster.host(host).name));
        }
        let usable = self.cluster.usable();
        let mut locals = Vec::new();
        for &(id, mask) in usable.parts() {
            let mut local = Local {
                id,
                name: &self.cluster.host(id).name,
                kind: self.cluster.type_of(id),
                gpus: mask.iter().collect(),
                nvlink: Vec::new(),
            };
            self.nvlinks(&mut local);
            locals.push(local);
        }
        self.relay_loops();
        for local in &locals {
            self.paths_inside(local);
        }
        self.paths_between(&locals);
        if let Some((from, to)) = self.rates.keys().min().cloned() {
            let known = |n: &str| self.node_ids.contains_key(n);
            let hint = match (known(&from), known(&to)) {
                (true, true) => format!("; links from `{from}` go to {}", self.neighbours(&from)),
                (false, _) => format!("; there is no node `{from}`. Nodes are {} and so on", self.some_nodes()),
                _ => format!("; there is no node `{to}`. Links from `{from}` go to {}", self.neighbours(&from)),
            };
            return Err(NetworkError::NoSuchLink { from, to, hint });
        }
        let mut net = self.net;
        let hosts = net.host_count();
        net.masks = (0..hosts * hosts)
            .map(|p| if p / hosts == p % hosts { 0 } else { net.find_slots(p / hosts, p % hosts) })
            .collect();
        net.refresh();
        Ok(net)
    }

    fn neighbours(&self, from: &str) -> String {
        let id = self.node_ids[from];
        let to = self.net.links.iter().filter(|l| l.from == id).map(|l| self.net.nodes[l.to as usize].as_str());
        to.take(8).collect::<Vec<_>>().join(", ")
    }

    fn some_nodes(&self) -> String {
        let n = &self.net.nodes;
        n.iter().take(4).chain(n.iter().skip(4).rev().take(2)).map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    /// Share of its rate that the link between two GPUs has left.
    fn health(&self, local: &Local, i: usize, j: usize) -> f64 {
        let h = self.cluster.host(local.id);
        let gpu = |g: usize| h.gpu_health.get(g).copied().unwrap_or(1.0);
        let pair = h.link_health.iter().filter(|l| {
            (usize::from(l.a), usize::from(l.b)) == (i, j) || (usize::from(l.b), usize::from(l.a)) == (i, j)
        });
        pair.map(|l| l.factor).fold(gpu(i).min(gpu(j)), f64::min)
    }

    fn nvlinks(&mut self, local: &mut Local) {
        let n = local.gpus.len();
        local.nvlink = vec![vec![Leg::default(); n]; n];
        let Some(fabric) = local.kind.nvlink else { return };
        let rate = |i: usize, j: usize| match (local.kind.gpu_paths[i][j], &local.kind.p2p) {
            (PathKind::NvLink(_), Some(p2p)) => p2p[i][j].gb_per_s(),
            (PathKind::NvLink(links), None) => f64::from(links) * fabric.link_rate.gb_per_s(),
            _ => 0.0,
        };
        let linked = |i: usize, j: usize| matches!(local.kind.gpu_paths[i][j], PathKind::NvLink(_));
        let mut legs = local.nvlink.clone();
        if fabric.switched {
            let switch = self.node(format!("{}:switch", local.name));
            let all = 0..local.kind.gpu_count();
            let gpu_health = |g: usize| self.cluster.host(local.id).gpu_health.get(g).copied().unwrap_or(1.0);
            let ports: Vec<(f64, f64)> = local
                .gpus
                .iter()
                .map(|&g| {
                    let best = |f: &dyn Fn(usize) -> f64| all.clone().map(f).fold(0.0, f64::max) * gpu_health(g);
                    (best(&|j| rate(g, j)), best(&|j| rate(j, g)))
                })
                .collect();
            let mut up = Vec::new();
            let mut down = Vec::new();
            for (g, &(out_rate, in_rate)) in ports.iter().enumerate() {
                let gpu = self.gpu_node(local, g);
                up.push(self.link(gpu, switch, out_rate, LinkKind::NvLink));
                down.push(self.link(switch, gpu, in_rate, LinkKind::NvLink));
            }
            for (i, row) in legs.iter_mut().enumerate() {
                for (j, leg) in row.iter_mut().enumerate() {
                    if i != j && linked(local.gpus[i], local.gpus[j]) {
                        *leg = Leg::of(&[up[i], down[j]]);
                    }
                }
            }
        } else {
            for (i, row) in legs.iter_mut().enumerate() {
                for (j, leg) in row.iter_mut().enumerate() {
                    let (gi, gj) = (local.gpus[i], local.gpus[j]);
                    if i != j && linked(gi, gj) {
                        let (from, to) = (self.gpu_node(local, i), self.gpu_node(local, j));
                        let rate = rate(gi, gj) * self.health(local, gi, gj);
                        *leg = Leg::of(&[self.link(from, to, rate, LinkKind::NvLink)]);
                    }
                }
            }
        }
        local.nvlink = legs;
    }

    /// A link from every GPU to itself, if relays have limits.
    fn relay_loops(&mut self) {
        let o = self.options;
        let limit = [o.relay_read_gb_per_s, o.relay_write_gb_per_s].into_iter().flatten().fold(f64::INFINITY, f64::min);
        let ranks = self.net.ranks.len() as u32; // nodes 0 to ranks - 1 are the ranks
        self.relay_loop =
            (0..ranks).map(|r| limit.is_finite().then(|| self.link(r, r, limit, LinkKind::Relay))).collect();
    }

    /// By NVLink from one place of a host to another over a relay.
    fn over(&self, local: &Local, i: usize, relay: usize, j: usize) -> Option<Leg> {
        let (a, b) = (&local.nvlink[i][relay], &local.nvlink[relay][j]);
        if a.len == 0 || b.len == 0 {
            return None;
        }
        let mut leg = *a;
        self.relay_loop[self.first_rank(local) + relay].into_iter().for_each(|l| leg.push(l));
        b.links().iter().for_each(|&l| leg.push(l));
        self.alive(&leg).then_some(leg)
    }

    fn first_rank(&self, local: &Local) -> usize {
        let gpu = GpuId { host: local.id, gpu: local.gpus[0] as u8 };
        self.net.ranks.binary_search(&gpu).unwrap_or(0)
    }

    /// Seconds per GB of a leg that is alone.
    fn slowness(&self, leg: &Leg) -> f64 {
        leg.links().iter().map(|&l| 1.0 / self.net.links[l as usize].capacity_gb_per_s).fold(0.0, f64::max)
    }

    fn pcie_leg(&mut self, local: &Local, i: usize, j: usize) -> Leg {
        let bus = self.node(format!("{}:pcie", local.name));
        let (gi, gj) = (local.gpus[i], local.gpus[j]);
        let port = |me: usize, out: bool| match &local.kind.p2p {
            Some(p2p) => (0..local.kind.gpu_count())
                .filter(|&o| o != me && !matches!(local.kind.gpu_paths[me][o], PathKind::NvLink(_)))
                .map(|o| if out { p2p[me][o] } else { p2p[o][me] }.gb_per_s())
                .fold(0.0, f64::max),
            None => local.kind.pcie.rate().gb_per_s(),
        };
        let (from, to) = (self.gpu_node(local, i), self.gpu_node(local, j));
        let up = self.link(from, bus, port(gi, true) * self.health(local, gi, gi), LinkKind::Pcie);
        let down = self.link(bus, to, port(gj, false) * self.health(local, gj, gj), LinkKind::Pcie);
        Leg::of(&[up, down])
    }

    fn paths_inside(&mut self, local: &Local) {
        let n = local.gpus.len();
        let switched = local.kind.nvlink.is_some_and(|f| f.switched);
        for i in 0..n {
            self.net.intra_row.push(self.net.intra_at.len() as u32 - 1);
            for j in 0..n {
                let from = self.net.intra.len();
                let direct = local.nvlink[i][j];
                let has_direct = i != j && direct.len > 0 && self.alive(&direct);
                if has_direct {
                    self.net.intra.push(direct);
                }
                // Behind a switch a relay uses the ports that the direct path uses, and two more: it cannot help.
                if i != j && !(switched && has_direct) && !(self.options.no_relays && has_direct) {
                    let relays = (0..n).filter(|&r| r != i && r != j).filter_map(|r| self.over(local, i, r, j));
                    let mut relays: Vec<Leg> = relays.collect();
                    if !has_direct {
                        // The best two-hop path is what stands in for the direct one.
                        relays.sort_by(|a, b| self.slowness(a).total_cmp(&self.slowness(b)));
                    }
                    relays.truncate(self.options.relays_max.unwrap_or(n));
                    self.net.intra.extend(relays);
                }
                let mut over_pcie = false;
                if i != j && self.net.intra.len() == from {
                    let leg = self.pcie_leg(local, i, j);
                    if self.alive(&leg) {
                        self.net.intra.push(leg);
                        over_pcie = true;
                    }
                }
                self.net.direct.push(has_direct || over_pcie);
                self.net.intra_at.push(self.net.intra.len() as u32);
            }
        }
    }

    fn paths_between(&mut self, locals: &[Local]) {
        let nics = |l: &Local| l.kind.nics.len().min(self.options.rails_max.unwrap_or(usize::MAX));
        let counts: Vec<usize> = locals.iter().map(nics).collect();
        let slots = counts.iter().copied().max().unwrap_or(0);
        if locals.len() < 2 || slots == 0 {
            self.net.host_nics = vec![0; locals.len()];
            return;
        }
        let rails = counts.iter().all(|&c| c == slots);
        self.net.slots = slots;
        self.net.host_nics = counts.iter().map(|&c| c as u16).collect();
        for (h, local) in locals.iter().enumerate() {
            let mut out_legs = vec![Leg::default(); local.gpus.len() * slots];
            let mut in_legs = out_legs.clone();
            for k in 0..slots {
                let nic = if counts[h] == 0 { None } else { Some(k % counts[h]) };
                let mut out_ok = nic.is_some();
                let mut in_ok = nic.is_some();
                for g in 0..local.gpus.len() {
                    let Some(nic) = nic else { continue };
                    let up = if rails { format!("rail{nic}") } else { "network".into() };
                    let (out, back) = self.nic_legs(local, g, nic, up);
                    (out_legs[g * slots + k], in_legs[g * slots + k]) = (out, back);
                    out_ok &= self.alive(&out);
                    in_ok &= self.alive(&back);
                }
                self.net.out_alive.push(out_ok);
                self.net.in_alive.push(in_ok);
            }
            for (g, &gpu) in local.gpus.iter().enumerate() {
                let near = (local.kind.nearest_nics(gpu) as usize) & ((1 << counts[h]) - 1);
                // Several NICs may be as near: GPUs take them in turn.
                let list: Vec<usize> = (0..counts[h]).filter(|k| near >> k & 1 == 1).collect();
                let r = self.net.first[h] as usize + g;
                self.net.home[r] = match list.len() {
                    0 => (g % slots) as u8,
                    n => list[g % n] as u8,
                };
            }
            self.net.out_legs.extend(out_legs);
            self.net.in_legs.extend(in_legs);
        }
    }

    /// The legs of a GPU to and from one NIC of its host.
    fn nic_legs(&mut self, local: &Local, g: usize, nic: usize, rail: String) -> (Leg, Leg) {
        let n = &local.kind.nics[nic];
        let health = self.cluster.host(local.id).nic_health.get(nic).copied().unwrap_or(1.0);
        let rate = n.line_rate.gb_per_s() * health;
        let nearest = local.gpus.iter().map(|&x| n.gpu_paths[x]).min().unwrap_or(PathKind::Sys);
        let near: Vec<usize> = (0..local.gpus.len()).filter(|&x| n.gpu_paths[local.gpus[x]] == nearest).collect();
        // The way to a GPU next to the NIC: none if this is one, else by NVLink, the fastest first.
        let gate = match near.contains(&g) {
            true => Some((g, Leg::default(), Leg::default())),
            false => self.gate(local, g, &near),
        };
        let own =
            near.len() == 1 && (0..local.gpus.len()).all(|x| near.contains(&x) || self.gate(local, x, &near).is_some());
        let rail = self.node(rail);
        let (gate, to_gate, from_gate) = gate.unwrap_or((g, Leg::default(), Leg::default()));
        let gpu = self.gpu_node(local, gate);
        let (mut out, mut back) = (to_gate, Leg::default());
        let relay = self.relay_loop[self.first_rank(local) + gate].filter(|_| gate != g);
        relay.into_iter().for_each(|l| out.push(l));
        if own {
            out.push(self.link(gpu, rail, rate, LinkKind::NicSend));
            back.push(self.link(rail, gpu, rate, LinkKind::NicReceive));
        } else {
            let port = self.node(format!("{}:nic{nic}", local.name));
            let pcie = local.kind.pcie.rate().gb_per_s();
            out.push(self.link(gpu, port, pcie, LinkKind::Pcie));
            out.push(self.link(port, rail, rate, LinkKind::NicSend));
            back.push(self.link(rail, port, rate, LinkKind::NicReceive));
            back.push(self.link(port, gpu, pcie, LinkKind::Pcie));
        }
        relay.into_iter().for_each(|l| back.push(l));
        from_gate.links().iter().for_each(|&l| back.push(l));
        (out, back)
    }

    /// The GPU next to a NIC that another GPU reaches fastest by NVLink, with the ways there and back.
    fn gate(&self, local: &Local, g: usize, near: &[usize]) -> Option<(usize, Leg, Leg)> {
        let count = local.gpus.len();
        let way = |i: usize, j: usize| {
            let direct = local.nvlink[i][j];
            if direct.len > 0 && self.alive(&direct) {
                return Some(direct);
            }
            let relays = (0..count).filter(|&r| r != i && r != j).filter_map(|r| self.over(local, i, r, j));
            relays.min_by(|a, b| self.slowness(a).total_cmp(&self.slowness(b)))
        };
        let ways = (0..near.len()).filter_map(|x| {
            let gate = near[(x + g) % near.len()];
            Some((gate, way(g, gate)?, way(gate, g)?))
        });
        let hops = |l: &Leg| l.len;
        ways.min_by(|a, b| hops(&a.1).cmp(&hops(&b.1)).then(self.slowness(&a.1).total_cmp(&self.slowness(&b.1))))
    }
}
