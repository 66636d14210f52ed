//! A communicator as NCCL would build it: hosts in order, their graphs, channels, rings, trees and choices.

use crate::agreed::{AgreeError, Agreed};
use crate::choose::{Choice, choose};
use crate::machines::{Machine, Machines};
use crate::releases::{NEWEST, OLDEST, Rules, is_modelled};
use crate::search;
use crate::table::Table;
use crate::templates::{Found, Places, Signature, lookup};
use crate::tree::double_tree;
use std::collections::HashMap;
use std::sync::Arc;
use topology::nccl::{Channel, Decision, DecisionSource, Graph, GraphKind, Version};
use topology::{Cluster, Collective, GpuMask, HOSTS_MAX, HostId, NetworkClass};

/// Patterns of graphs, by NCCL's numbers: trees whose children hang on the second GPU of a channel.
const PATTERN_BALANCED_TREE: u8 = 1;
const PATTERN_SPLIT_TREE: u8 = 2;

/// Where a host's graphs come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GraphSource {
    /// Recorded from the real library, this minor release.
    Recorded,
    /// Recorded from the real library, another release.
    RecordedElsewhere,
    /// The model's own search: not recorded.
    Searched,
    /// Given by the caller.
    Given,
}

/// A host of a communicator.
#[derive(Clone, Debug)]
pub struct Member {
    /// Which.
    pub host: HostId,
    /// Its GPUs in the communicator.
    pub mask: GpuMask,
    /// Rank of its first GPU; the others follow in ascending order.
    pub first_rank: u32,
    /// Where its graphs come from.
    pub source: GraphSource,
    /// GPUs and NICs that the positions in `found` stand for.
    pub(crate) places: Arc<Places>,
    pub(crate) found: Arc<Found>,
}

impl Member {
    /// Ranks of the host.
    pub fn ranks(&self) -> u32 {
        self.places.gpus.len() as u32
    }
    pub(crate) fn graph(&self, kind: GraphKind) -> Option<&Graph> {
        self.found.graphs.iter().find(|g| g.kind == kind)
    }
    fn channel(&self, kind: GraphKind, search: usize) -> Option<&Channel> {
        self.graph(kind)?.channels.get(search)
    }
}

/// Why a communicator cannot be modelled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// A release that is not modelled.
    #[error("NCCL {0} is not modelled; {OLDEST} to {NEWEST} are")]
    Version(Version),
    /// Not a list of hosts with GPUs.
    #[error("the communicator is not valid: {0}")]
    Order(String),
    /// A GPU whose generation is not known.
    #[error(
        "the compute capability of `{0}` is not known to the model; give the host type a GPU name such as \"NVIDIA H100\""
    )]
    Gpu(String),
    /// No graph could be found.
    #[error(transparent)]
    Agree(#[from] AgreeError),
}

/// What NCCL would build.
#[derive(Clone, Debug)]
pub struct Communicator {
    pub(crate) agreed: Agreed,
    pub(crate) table: Table,
    pub(crate) members: Vec<Member>,
    pub(crate) nic_gb_per_s: Vec<Vec<f64>>,
    pub(crate) network: NetworkClass,
}

/// What was found of hosts before: many communicators of one cluster share their hosts' searches.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    release: Option<Version>,
    hosts: HashMap<(usize, GpuMask, bool), Known>,
}

/// What is known of some GPUs of a type of host.
pub(crate) type Known = (Machine, Arc<Places>, Arc<Found>, GraphSource);

/// A hop of a ring between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// Place in [`Communicator::members`] of the host that sends.
    pub from: usize,
    /// Its NIC.
    pub nic_out: u8,
    /// Place of the host that receives.
    pub to: usize,
    /// Its NIC.
    pub nic_in: u8,
    /// The GPU that receives.
    pub gpu_in: u8,
}

impl Cache {
    /// Empty, for one release.
    pub(crate) fn of(version: Version) -> Cache {
        Cache { release: Some(version), ..Cache::default() }
    }

    /// Takes what is known of some GPUs of a host and of all hosts of its type.
    pub(crate) fn know(&mut self, cluster: &Cluster, host: HostId, mask: GpuMask, several: bool, known: Known) {
        self.hosts.insert((cluster.host(host).host_type, mask, several), known);
    }

    fn host(
        &mut self,
        version: Version,
        cluster: &Cluster,
        host: HostId,
        mask: GpuMask,
        several: bool,
    ) -> Result<Known, BuildError> {
        let key = (cluster.host(host).host_type, mask, several);
        if let Some(known) = self.hosts.get(&key) {
            return Ok(known.clone());
        }
        let of = cluster.type_of(host);
        let machine = Machine::of(of).ok_or_else(|| BuildError::Gpu(of.gpu_model.clone()))?;
        let (found, source) = match lookup(version, &Signature::of(of, mask, several)) {
            Some(found) if found.checked => (found, GraphSource::Recorded),
            Some(found) => (found, GraphSource::RecordedElsewhere),
            None => (search::search(version, of, mask, several), GraphSource::Searched),
        };
        let known = (machine, Arc::new(Places::of(of, mask)), found, source);
        self.hosts.insert(key, known.clone());
        Ok(known)
    }
}

impl Communicator {
    /// Builds it: hosts in rank order, each with its GPUs. O(hosts x channels), some microseconds where the searches are recorded.
    ///
    /// The order of hosts is part of the input: NCCL's rings and trees follow it.
    pub fn build(version: Version, cluster: &Cluster, order: &[(HostId, GpuMask)]) -> Result<Communicator, BuildError> {
        Communicator::build_with(&mut Cache::default(), version, cluster, order)
    }

    /// The same, remembering hosts in a cache of this very cluster: about a microsecond where they are known.
    pub fn build_with(
        cache: &mut Cache,
        version: Version,
        cluster: &Cluster,
        order: &[(HostId, GpuMask)],
    ) -> Result<Communicator, BuildError> {
        if !is_modelled(version) {
            return Err(BuildError::Version(version));
        }
        check(cluster, order)?;
        if cache.release != Some(version) {
            *cache = Cache { release: Some(version), ..Cache::default() };
        }
        let several = order.len() > 1;
        let mut members: Vec<Member> = Vec::with_capacity(order.len());
        let mut machines = Vec::with_capacity(order.len());
        let mut first_rank = 0;
        for &(host, mask) in order {
            let (machine, places, found, source) = cache.host(version, cluster, host, mask, several)?;
            machines.push(machine);
            let ranks = places.gpus.len() as u32;
            members.push(Member { host, mask, first_rank, source, places, found });
            first_rank += ranks;
        }
        let graphs: Vec<(u32, &[Graph])> = members.iter().map(|m| (m.ranks(), m.found.graphs.as_slice())).collect();
        let machines = Machines::agree(machines).ok_or(AgreeError::NoRanks)?;
        let agreed = Agreed::of(version, machines, &graphs)?;
        let nic_gb_per_s = members
            .iter()
            .map(|m| (0..cluster.type_of(m.host).nics.len()).map(|n| cluster.nic_rate(m.host, n).gb_per_s()).collect())
            .collect();
        Ok(Communicator { table: Table::of(&agreed), agreed, members, nic_gb_per_s, network: cluster.network.class })
    }

    /// What the ranks agree on.
    pub fn agreed(&self) -> &Agreed {
        &self.agreed
    }
    /// NCCL's table of latencies and bandwidths.
    pub fn table(&self) -> &Table {
        &self.table
    }
    /// The hosts in rank order.
    pub fn members(&self) -> &[Member] {
        &self.members
    }
    /// True where every host's search was recorded from this minor release of the real library.
    pub fn checked(&self) -> bool {
        self.members.iter().all(|m| m.source == GraphSource::Recorded)
    }

    /// What AUTO does with a call of `size_bytes` (the whole buffer of all ranks for all-gather and reduce-scatter). `None` for
    /// collectives without algorithms of their own and for one rank. Well below a microsecond.
    pub fn choose(&self, collective: Collective, size_bytes: u64) -> Option<Decision> {
        let c = self.choice(collective, size_bytes)?;
        Some(Decision {
            collective,
            size_bytes,
            algorithm: c.algorithm,
            protocol: c.protocol,
            channels: c.channels,
            time_us: Some(f64::from(c.time_us)),
            source: DecisionSource::Model,
        })
    }

    /// As [`Communicator::choose`], with threads.
    pub fn choice(&self, collective: Collective, size_bytes: u64) -> Option<Choice> {
        choose(&self.agreed, &self.table, collective, size_bytes)
    }

    /// Search channels: every host takes part with so many of its own.
    pub fn search_channels(&self) -> usize {
        self.agreed.ring.channels as usize
    }

    /// The search channel of a host that ring channel `channel` runs on: hosts of odd number exchange pairs where rings cross NICs, so
    /// that rails meet.
    fn ring_search_channel(&self, member: usize, channel: usize) -> usize {
        let n = self.search_channels();
        let search = channel % n;
        let rules = Rules::of(self.agreed.version);
        let crossing = |cross_nic: u8| cross_nic >= rules.swaps_from_cross_nic;
        let crosses = crossing(self.agreed.ring.cross_nic) && n.is_multiple_of(2) && member % 2 == 1;
        let own = self.members[member].graph(GraphKind::Ring).is_some_and(|g| crossing(g.cross_nic));
        if crosses && (own || !rules.swaps_own_pairs_only) { search ^ 1 } else { search }
    }

    /// Ranks in the order of ring channel `channel`, from rank 0 on. O(ranks).
    pub fn ring(&self, channel: usize) -> Vec<u32> {
        let mut ring: Vec<u32> = Vec::with_capacity(self.agreed.ranks as usize);
        for (i, m) in self.members.iter().enumerate() {
            if let Some(c) = m.channel(GraphKind::Ring, self.ring_search_channel(i, channel)) {
                ring.extend(c.gpus.iter().map(|&p| m.first_rank + u32::from(p)));
            }
        }
        if let Some(zero) = ring.iter().position(|&r| r == 0) {
            ring.rotate_left(zero);
        }
        ring
    }

    /// Where ring channel `channel` crosses between hosts, in host order; none on one host. O(hosts).
    pub fn crossings(&self, channel: usize) -> Vec<Crossing> {
        let hosts = self.members.len();
        (0..hosts).filter_map(|from| self.crossing(channel, from)).collect()
    }

    /// Where ring channel `channel` leaves host `from`, by its place in the list; `None` on one host. O(1).
    pub fn crossing(&self, channel: usize, from: usize) -> Option<Crossing> {
        let hosts = self.members.len();
        if hosts < 2 || from >= hosts {
            return None;
        }
        let search = channel % self.search_channels();
        // A GPU at an end of the channel takes the NIC that its host's search gave the channel: the first NIC for the first GPU of the
        // search's own order, the second for any other.
        let port = |member: usize, first: bool| -> Option<(u8, u8)> {
            let m = &self.members[member];
            let order = m.channel(GraphKind::Ring, self.ring_search_channel(member, channel))?;
            let own = m.channel(GraphKind::Ring, search)?;
            let gpu = if first { order.gpus.first()? } else { order.gpus.last()? };
            let nic = if own.gpus.first()? == gpu { own.nics.first()? } else { own.nics.last()? };
            let nic = m.places.nics.get(usize::from(*nic))?;
            Some((*nic, *m.places.gpus.get(usize::from(*gpu))?))
        };
        let to = (from + 1) % hosts;
        let (nic_out, _) = port(from, false)?;
        let (nic_in, gpu_in) = port(to, true)?;
        Some(Crossing { from, nic_out, to, nic_in, gpu_in })
    }

    /// Parent and children of every rank on tree channel `channel`, by rank: `(up, down)`. O(ranks).
    pub fn tree(&self, channel: usize) -> Vec<(Option<u32>, Vec<u32>)> {
        let n = self.search_channels();
        let second = usize::from(channel % (2 * n) >= n);
        let hosts = self.members.len() as u32;
        let chain = |h: usize| -> Vec<u32> {
            let m = &self.members[h];
            let gpus = m.channel(GraphKind::Tree, channel % n).map(|c| c.gpus.as_slice()).unwrap_or_default();
            gpus.iter().map(|&p| m.first_rank + u32::from(p)).collect()
        };
        let ends = |h: usize| -> (u32, [u32; 2]) {
            let c = chain(h);
            let at = |i: usize| c.get(i).or(c.first()).copied().unwrap_or(0);
            match self.members[h].graph(GraphKind::Tree).map(|g| g.pattern) {
                Some(PATTERN_BALANCED_TREE) => (at(0), [at(1), at(0)]),
                Some(PATTERN_SPLIT_TREE) => (at(0), [at(1), at(1)]),
                _ => (at(0), [at(0), at(0)]),
            }
        };
        let mut tree = vec![(None, Vec::new()); self.agreed.ranks as usize];
        for h in 0..hosts as usize {
            for pair in chain(h).windows(2) {
                tree[pair[0] as usize].1.push(pair[1]);
                tree[pair[1] as usize].0 = Some(pair[0]);
            }
        }
        for h in 0..hosts {
            let place = double_tree(hosts, h)[second];
            let Some(up) = place.up else { continue };
            let parent = double_tree(hosts, up)[second];
            let slot = usize::from(parent.down[0] != Some(h));
            let (from, to) = (ends(h as usize).0, ends(up as usize).1[slot]);
            tree[from as usize].0 = Some(to);
            tree[to as usize].1.push(from);
        }
        tree
    }

    /// The NIC that a host's trees use on tree channel `channel`.
    pub fn tree_nic(&self, member: usize, channel: usize) -> Option<u8> {
        let m = &self.members[member];
        let nic = m.channel(GraphKind::Tree, channel % self.search_channels())?.nics.first()?;
        m.places.nics.get(usize::from(*nic)).copied()
    }

    /// The NICs of a host's NVLS heads, in the order of heads.
    pub fn head_nics(&self, member: usize) -> Vec<u8> {
        let m = &self.members[member];
        let channels = m.graph(GraphKind::Nvls).map(|g| g.channels.as_slice()).unwrap_or_default();
        channels.iter().filter_map(|c| m.places.nics.get(usize::from(*c.nics.first()?)).copied()).collect()
    }
}

fn check(cluster: &Cluster, order: &[(HostId, GpuMask)]) -> Result<(), BuildError> {
    let wrong = |text: String| Err(BuildError::Order(text));
    if order.is_empty() || order.len() > HOSTS_MAX {
        return wrong(format!("it has {} hosts; 1 to {HOSTS_MAX} are possible", order.len()));
    }
    if let [(_, mask)] = order
        && mask.count() == 1
    {
        return wrong("one GPU alone has nobody to communicate with".into());
    }
    let mut seen = vec![false; cluster.hosts.len()];
    for &(host, mask) in order {
        let Some(seen) = seen.get_mut(host.index()) else {
            return wrong(format!("host {} is not in the cluster of {} hosts", host.0, cluster.hosts.len()));
        };
        let name = &cluster.host(host).name;
        if std::mem::replace(seen, true) {
            return wrong(format!("host {name} is listed twice"));
        }
        if mask.is_empty() || !cluster.type_of(host).all_gpus().contains_all(mask) {
            return wrong(format!("host {name} has GPUs {}, not {mask}", cluster.type_of(host).all_gpus()));
        }
    }
    Ok(())
}
