//! The directed links of a cluster and the paths over them.
//!
//! A path between two GPUs of a host is direct, or goes over one relay GPU with a link to both. If the GPUs are linked unevenly (a cube, a
//! degraded mesh), it may go over two relays. A path between hosts leaves by NIC `k` of the sender's host and arrives at NIC `k` of the
//! receiver's host ("rail-matched"). If that NIC belongs to another GPU, NVLink carries the bytes to or from that GPU. Such a path is an
//! out-leg of the sender and an in-leg of the receiver, so a network of `n` ranks and `k` rails stores `2 n k` legs instead of `n² k` paths.
//!
//! The ends of a link are named nodes: a GPU (`n0:3`), a switch (`n0:switch`), a host's PCIe (`n0:pcie`), a NIC that several GPUs share
//! (`n0:nic0`), a rail (`rail2`), or the whole network if hosts have different numbers of NICs (`network`). A NIC that belongs to one GPU is
//! the link between that GPU and the rail. The forwarding limit of a relay is a link from the GPU to itself.

mod build;

use crate::demand::RANKS_MAX;
use build::Builder;
use topology::{Allocation, Cluster, GpuId};

/// Maximum number of links of one leg, and of one path inside a host.
pub const LEG_LINKS_MAX: usize = 8;
/// Maximum number of overrides of single links.
pub const OVERRIDES_MAX: usize = 4096;
/// Highest accepted rate of a link, GB/s.
const CAPACITY_MAX_GB_PER_S: f64 = 100_000.0;

/// The hardware of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// NVLinks between two GPUs, or between a GPU and the switch of its host.
    NvLink,
    /// PCIe between a GPU and its host, or between a GPU and a shared NIC.
    Pcie,
    /// A NIC, sending.
    NicSend,
    /// A NIC, receiving.
    NicReceive,
    /// The forwarding limit of a GPU.
    Relay,
}

/// One directed link.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Sending end, an index into [`RoutingNetwork::nodes`].
    pub from: u32,
    /// Receiving end, an index into [`RoutingNetwork::nodes`].
    pub to: u32,
    /// Rate, GB/s; 0 for a dead link.
    pub capacity_gb_per_s: f64,
    /// The hardware of the link.
    pub kind: LinkKind,
}

/// The links of one leg or path, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Leg {
    links: [u32; LEG_LINKS_MAX],
    len: u8,
}

impl Leg {
    /// The links, as indices into [`RoutingNetwork::links`].
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

/// Facts and limits that the cluster file does not hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoutingOptions {
    /// The GPUs of the job; `None`: all usable GPUs of the cluster. Other GPUs forward nothing.
    pub gpus: Option<Allocation>,
    /// Highest rate at which a GPU reads bytes that it forwards for others, GB/s.
    pub relay_read_gb_per_s: Option<f64>,
    /// Highest rate at which a GPU writes bytes that it forwards for others, GB/s.
    pub relay_write_gb_per_s: Option<f64>,
    /// Links whose rate differs from the cluster file.
    pub overrides: Vec<LinkOverride>,
    /// Use only this many NICs of each host, the first ones (for comparisons).
    pub rails_max: Option<usize>,
    /// Use only this many relay paths of each pair, the first ones (for comparisons); at least one if there is no direct link.
    pub relays_max: Option<usize>,
    /// Use at most one relay per path, even if GPUs are linked unevenly (for comparisons).
    pub one_relay: bool,
}

/// A link whose rate differs from the cluster file.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkOverride {
    /// Name of the sending node.
    pub from: String,
    /// Name of the receiving node.
    pub to: String,
    /// The link's rate.
    pub rate: LinkRate,
}

/// A rate, or a share of the cluster file's rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LinkRate {
    /// Rate in GB/s.
    GbPerS(f64),
    /// Share of the cluster file's rate.
    Share(f64),
}

impl std::str::FromStr for LinkOverride {
    type Err = String;
    /// Parses `n0:0>n0:1=60` (60 GB/s), `n0:2>rail2=x0.5` (half of the rate) or `n1:3>rail3=0` (dead).
    fn from_str(s: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "`{s}` is not a link; write FROM>TO=GB_PER_S or FROM>TO=xSHARE, such as n0:0>n0:1=60 or n0:2>rail2=x0.5"
            )
        };
        let (ends, rate) = s.rsplit_once('=').ok_or_else(expected)?;
        let (from, to) = ends.split_once('>').ok_or_else(expected)?;
        let number = |t: &str| {
            t.trim().parse::<f64>().ok().filter(|v| (0.0..=CAPACITY_MAX_GB_PER_S).contains(v)).ok_or_else(expected)
        };
        let rate = match rate.trim().strip_prefix('x') {
            Some(share) => LinkRate::Share(number(share)?),
            None => LinkRate::GbPerS(number(rate)?),
        };
        Ok(LinkOverride { from: from.trim().into(), to: to.trim().into(), rate })
    }
}

/// Why a cluster has no routing network.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RoutingNetworkError {
    /// More GPUs than ranks are supported.
    #[error("{0} GPUs are more than the {RANKS_MAX} ranks that routing supports; name the GPUs of the job")]
    TooManyRanks(usize),
    /// Every GPU is drained, or the cluster has none.
    #[error("the cluster has no usable GPU")]
    Empty,
    /// An override names a link that does not exist.
    #[error("no link goes from `{from}` to `{to}`{hint}")]
    NoSuchLink {
        /// Sending node, as given.
        from: String,
        /// Receiving node, as given.
        to: String,
        /// The nodes or links that exist.
        hint: String,
    },
    /// More than [`OVERRIDES_MAX`] overrides.
    #[error("{0} links have a given rate; at most {OVERRIDES_MAX} are supported")]
    TooManyOverrides(usize),
    /// A rate is negative, not a number or too high.
    #[error("{what} of {gb_per_s} GB/s is not between 0 and {CAPACITY_MAX_GB_PER_S} GB/s")]
    Rate {
        /// The option with the rate.
        what: &'static str,
        /// The rate as given.
        gb_per_s: f64,
    },
}

/// The links and paths between the ranks of a cluster.
#[derive(Clone, Debug)]
pub struct RoutingNetwork {
    /// Name of the cluster.
    pub name: String,
    /// Names of the nodes.
    pub nodes: Vec<String>,
    /// The directed links.
    pub links: Vec<Link>,
    /// Facts of the cluster file that this model ignores, one sentence each.
    pub notes: Vec<String>,
    /// Seconds per byte of every link; infinite for a dead link.
    pub(crate) inverse: Vec<f64>,
    /// The GPU of every rank: the cluster's usable GPUs in host order.
    pub ranks: Vec<GpuId>,
    pub(crate) host_of: Vec<u16>,
    /// First rank of every host, and the number of ranks.
    pub(crate) first: Vec<u32>,
    pub(crate) slots: usize,
    pub(crate) host_nics: Vec<u16>,
    /// Whether bytes may leave or arrive by a slot, `[host * slots + slot]`.
    pub(crate) out_alive: Vec<bool>,
    pub(crate) in_alive: Vec<bool>,
    pub(crate) out_legs: Vec<Leg>,
    pub(crate) in_legs: Vec<Leg>,
    /// The slot of the NIC nearest to every rank.
    pub(crate) home: Vec<u8>,
    /// [`RoutingNetwork::slots_between`] of every pair of hosts.
    pub(crate) masks: Vec<u32>,
    /// Weight of every slot between two hosts, `[(from * hosts + to) * slots + slot]`, in proportion to the slower of its two NICs. The weights
    /// of a pair of hosts sum to 1 if a slot is alive.
    pub(crate) weights: Vec<f64>,
    /// Bytes per second (out, in) of every rank over all its links, and of every host over all its NICs.
    pub(crate) rank_rates: Vec<(f64, f64)>,
    pub(crate) host_rates: Vec<(f64, f64)>,
    pub(crate) intra: Vec<Leg>,
    pub(crate) intra_share: Vec<f64>,
    /// Index in `intra` of the first path of (rank, local receiver); see [`RoutingNetwork::intra_paths`].
    pub(crate) intra_at: Vec<u32>,
    /// Index in `intra_at` of a rank's first pair.
    pub(crate) intra_row: Vec<u32>,
    /// Whether path 0 of the pair needs no relay.
    pub(crate) direct: Vec<bool>,
}

impl RoutingNetwork {
    /// The network of a cluster. The GPUs of the job, or all that are not drained, are the ranks, in host order. O(ranks x (rails + GPUs of a host²)).
    pub fn of(cluster: &Cluster, options: &RoutingOptions) -> Result<Self, RoutingNetworkError> {
        Builder::new(cluster, options)?.build()
    }

    /// Seconds per byte of every link; infinite for a dead link.
    pub fn seconds_per_byte(&self) -> &[f64] {
        &self.inverse
    }

    /// Number of ranks.
    #[inline]
    pub fn rank_count(&self) -> usize {
        self.ranks.len()
    }
    /// Number of hosts with at least one rank.
    #[inline]
    pub fn host_count(&self) -> usize {
        self.first.len() - 1
    }
    /// Number of slots: rails, or the most NICs of any host.
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
    /// The paths between two ranks of one host: first the direct path if there is one, then the relay paths.
    #[inline]
    pub fn intra_paths(&self, src: usize, dst: usize) -> &[Leg] {
        let at = self.intra_row[src] as usize + dst - self.first[self.host(src)] as usize;
        &self.intra[self.intra_at[at] as usize..self.intra_at[at + 1] as usize]
    }
    /// Share of each of these paths under [`crate::Rule::Weighted`]: 1 for the direct path; without one, in proportion to the rates.
    #[inline]
    pub(crate) fn intra_shares(&self, src: usize, dst: usize) -> &[f64] {
        let at = self.intra_row[src] as usize + dst - self.first[self.host(src)] as usize;
        &self.intra_share[self.intra_at[at] as usize..self.intra_at[at + 1] as usize]
    }
    /// Maximum number of relays on a path inside a host: its NVLink hops minus one.
    pub fn relays_in_series(&self) -> usize {
        let hops = |l: &Leg| l.links().iter().filter(|&&l| self.links[l as usize].kind == LinkKind::NvLink).count();
        self.intra.iter().map(hops).max().unwrap_or(1).saturating_sub(1)
    }
    /// Whether two ranks of one host have a path without a relay.
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
    /// Number of paths of a pair; 0 for a rank and itself.
    pub fn path_count(&self, src: usize, dst: usize) -> usize {
        match (src == dst, self.host(src) == self.host(dst)) {
            (true, _) => 0,
            (_, true) => self.intra_paths(src, dst).len(),
            _ => self.slots_between(self.host(src), self.host(dst)).count_ones() as usize,
        }
    }
    /// The links of a path, in order. `path` is an index in [`RoutingNetwork::intra_paths`] inside a host, and a slot between hosts.
    pub fn path(&self, src: usize, dst: usize, path: usize) -> impl Iterator<Item = u32> + '_ {
        let (a, b) = match self.host(src) == self.host(dst) {
            true => (self.intra_paths(src, dst)[path], Leg::default()),
            false => (*self.out_leg(src, path), *self.in_leg(dst, path)),
        };
        (0..a.len).map(move |i| a.links[usize::from(i)]).chain((0..b.len).map(move |i| b.links[usize::from(i)]))
    }
    /// The name of a link, such as `n0:0 > n0:1`.
    pub fn link_name(&self, link: usize) -> String {
        let l = &self.links[link];
        format!("{} > {}", self.nodes[l.from as usize], self.nodes[l.to as usize])
    }
    /// Computes everything that follows from the link capacities.
    fn compute_rates(&mut self) {
        self.inverse = self.links.iter().map(|l| 1e-9 / l.capacity_gb_per_s).collect();
        self.intra_share = self.shares_of_intra_paths();
        self.rank_rates = self.rates_of_ranks();
        self.host_rates = self.rates_of_hosts();
        self.weights = self.rail_weights();
    }
    /// The share of a pair's bytes on each of its paths inside the host: all bytes on the direct link, or without a direct link
    /// spread over the paths with the fewest hops.
    fn shares_of_intra_paths(&self) -> Vec<f64> {
        let rate =
            |leg: &Leg| 1.0 / leg.links().iter().map(|&l| self.inverse[l as usize]).fold(f64::MIN_POSITIVE, f64::max);
        let mut out = vec![0.0; self.intra.len()];
        for (pair, &direct) in self.direct.iter().enumerate() {
            let paths = self.intra_at[pair] as usize..self.intra_at[pair + 1] as usize;
            let short = |p: usize| self.intra[p].len == self.intra[paths.start].len;
            let total: f64 = paths.clone().filter(|&p| short(p)).map(|p| rate(&self.intra[p])).sum();
            for (n, p) in paths.clone().enumerate() {
                out[p] = match direct {
                    true => f64::from(u8::from(n == 0)),
                    false if short(p) => rate(&self.intra[p]) / total,
                    false => 0.0,
                };
            }
        }
        out
    }
    /// Total rate of the links out of a rank, and of the links to it, bytes per second.
    fn rates_of_ranks(&self) -> Vec<(f64, f64)> {
        let mut out = vec![(0.0, 0.0); self.ranks.len()];
        for l in self.links.iter().filter(|l| l.from != l.to) {
            if let Some(r) = out.get_mut(l.from as usize) {
                r.0 += l.capacity_gb_per_s * 1e9;
            }
            if let Some(r) = out.get_mut(l.to as usize) {
                r.1 += l.capacity_gb_per_s * 1e9;
            }
        }
        out
    }
    /// Rate of the NIC of a leg, GB/s.
    fn nic_gb_per_s(&self, leg: &Leg, kind: LinkKind) -> f64 {
        let mut links = leg.links().iter().map(|&l| &self.links[l as usize]);
        links.find(|l| l.kind == kind).map_or(0.0, |l| l.capacity_gb_per_s)
    }
    /// Total rate of the NICs of a host, bytes per second: send and receive.
    fn rates_of_hosts(&self) -> Vec<(f64, f64)> {
        let nic_rates = |h: usize| {
            let r = self.first[h] as usize;
            let own = 0..usize::from(self.host_nics[h]).min(self.slots);
            own.fold((0.0, 0.0), |sum, k| {
                let out = self.nic_gb_per_s(self.out_leg(r, k), LinkKind::NicSend) * 1e9;
                (sum.0 + out, sum.1 + self.nic_gb_per_s(self.in_leg(r, k), LinkKind::NicReceive) * 1e9)
            })
        };
        (0..self.host_count()).map(nic_rates).collect()
    }
    /// The share of every rail between two hosts, by the rate of the slower of its two NICs.
    fn rail_weights(&self) -> Vec<f64> {
        let (hosts, slots) = (self.host_count(), self.slots);
        let mut weights = vec![0.0; hosts * hosts * slots];
        for a in 0..hosts {
            for b in (0..hosts).filter(|&b| b != a) {
                let at = (a * hosts + b) * slots;
                let (i, j) = (self.first[a] as usize, self.first[b] as usize);
                let mask = self.masks[a * hosts + b];
                let mut total = 0.0;
                for k in (0..slots).filter(|k| mask >> k & 1 == 1) {
                    let sends = self.nic_gb_per_s(self.out_leg(i, k), LinkKind::NicSend);
                    let rate = sends.min(self.nic_gb_per_s(self.in_leg(j, k), LinkKind::NicReceive));
                    weights[at + k] = rate;
                    total += rate;
                }
                weights[at..at + slots].iter_mut().for_each(|w| *w /= total.max(f64::MIN_POSITIVE));
            }
        }
        weights
    }
    #[inline]
    pub(crate) fn weights_between(&self, a: usize, b: usize) -> &[f64] {
        let at = (a * self.host_count() + b) * self.slots;
        &self.weights[at..at + self.slots]
    }
}
