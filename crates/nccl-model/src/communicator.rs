//! A communicator as NCCL builds it: hosts in order, their graphs, channels, rings, trees and choices.

use crate::agreed::{AgreeError, CostModelInput};
use crate::choose::{CallChoice, choose};
use crate::machines::{AgreedMachines, HostMachine};
use crate::releases::{NEWEST, OLDEST, ReleaseRules, is_modelled};
use crate::search;
use crate::table::CostTable;
use crate::templates::{HostGraphs, Signature, VisibleDevices, find_recorded};
use crate::tree::double_tree;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use topology::nccl::{Channel, DecisionSource, Graph, GraphKind, NcclDecision, Version};
use topology::{Cluster, Collective, GpuMask, HOSTS_MAX, HostId, ListReader, NetworkClass};

/// NCCL's pattern numbers of trees with children on the second GPU of a channel.
const PATTERN_BALANCED_TREE: u8 = 1;
const PATTERN_SPLIT_TREE: u8 = 2;

/// Source of a host's graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GraphSource {
    /// Recorded from the real library of this minor release.
    Recorded,
    /// Recorded from the real library of another minor release.
    RecordedElsewhere,
    /// Found by the model's own search because no record exists.
    Searched,
    /// Given by the caller.
    Given,
}

/// A host of a communicator.
#[derive(Clone, Debug)]
pub struct MemberHost {
    /// The host in the cluster.
    pub host: HostId,
    /// The host's GPUs in the communicator.
    pub mask: GpuMask,
    /// Rank of its first GPU; the others follow in ascending order.
    pub first_rank: u32,
    /// Source of its graphs.
    pub source: GraphSource,
    /// The devices that the positions in `found` refer to.
    pub(crate) places: Arc<VisibleDevices>,
    pub(crate) found: Arc<HostGraphs>,
}

impl MemberHost {
    /// Number of ranks on the host.
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

/// Reason why a communicator cannot be modelled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The model does not cover the release.
    #[error("NCCL {0} is not modelled; the model covers {OLDEST} to {NEWEST}")]
    Version(Version),
    /// The list of hosts and GPUs is not valid.
    #[error("the communicator is not valid: {0}")]
    Order(String),
    /// The model does not know the GPU's compute capability.
    #[error(
        "the model does not know the compute capability of `{0}`; give the host type a GPU name such as \"NVIDIA H100\""
    )]
    Gpu(String),
    /// The list of GPUs names hosts or GPUs that are not in the cluster.
    #[error("the list of GPUs: {0}")]
    Gpus(String),
    /// No graph is known for a host.
    #[error(
        "no search of a host like {host} ({host_type}) was recorded, and the model's own search knows only switched hosts with a NIC per \
         GPU; `linkwise nccl explain --exact` asks the library itself"
    )]
    NoGraph {
        /// The host.
        host: String,
        /// Its type.
        host_type: String,
    },
    /// The hosts' graphs do not form a communicator.
    #[error(transparent)]
    Agree(#[from] AgreeError),
}

/// A communicator as NCCL builds it.
#[derive(Clone, Debug)]
pub struct Communicator {
    pub(crate) agreed: CostModelInput,
    pub(crate) table: CostTable,
    pub(crate) members: Vec<MemberHost>,
    pub(crate) nic_gb_per_s: Vec<Vec<f64>>,
    pub(crate) network: NetworkClass,
}

/// Search results of hosts, shared by many communicators of one cluster and release.
#[derive(Clone, Debug, Default)]
pub struct HostCache {
    release: Option<Version>,
    hosts: FxHashMap<(usize, GpuMask, bool), KnownHost>,
}

/// The search result for some GPUs of a host type.
pub(crate) type KnownHost = (HostMachine, Arc<VisibleDevices>, Arc<HostGraphs>, GraphSource);

/// A ring's hop between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// Index in [`Communicator::members`] of the sending host.
    pub from: usize,
    /// Sending NIC.
    pub nic_out: u8,
    /// Index of the receiving host.
    pub to: usize,
    /// Receiving NIC.
    pub nic_in: u8,
    /// Receiving GPU.
    pub gpu_in: u8,
}

impl HostCache {
    /// An empty cache for one release.
    pub(crate) fn for_release(version: Version) -> HostCache {
        HostCache { release: Some(version), ..HostCache::default() }
    }

    /// Inserts the search result for some GPUs of a host's type.
    pub(crate) fn insert(&mut self, cluster: &Cluster, host: HostId, mask: GpuMask, several: bool, known: KnownHost) {
        self.hosts.insert((cluster.host(host).host_type, mask, several), known);
    }

    fn get_or_find(
        &mut self,
        version: Version,
        cluster: &Cluster,
        host: HostId,
        mask: GpuMask,
        several: bool,
    ) -> Result<KnownHost, BuildError> {
        let key = (cluster.host(host).host_type, mask, several);
        if let Some(known) = self.hosts.get(&key) {
            return Ok(known.clone());
        }
        let of = cluster.type_of(host);
        let machine = HostMachine::of(of).ok_or_else(|| BuildError::Gpu(of.gpu_model.clone()))?;
        let (found, source) = match find_recorded(version, &Signature::of(of, mask, several)) {
            Some(found) if found.checked => (found, GraphSource::Recorded),
            Some(found) => (found, GraphSource::RecordedElsewhere),
            None => (search::search_graphs(version, of, mask, several), GraphSource::Searched),
        };
        let known = (machine, Arc::new(VisibleDevices::of(of, mask)), found, source);
        self.hosts.insert(key, known.clone());
        Ok(known)
    }
}

/// Hosts in rank order, each with its GPUs, from a list such as `n[0-1] n2:3`. Without a list: all usable GPUs. Needs
/// at least two GPUs.
///
/// # Errors
/// [`BuildError::Gpus`].
pub fn gpus_in_rank_order(cluster: &Cluster, gpus: Option<&str>) -> Result<Vec<(HostId, GpuMask)>, BuildError> {
    let order = match gpus {
        Some(list) => ListReader::new(cluster).gpus_in_order([list]).map_err(|e| BuildError::Gpus(e.to_string()))?,
        None => cluster.usable().parts().to_vec(),
    };
    match order.iter().map(|o| o.1.count()).sum::<usize>() {
        ranks @ 0..2 => Err(BuildError::Gpus(format!("{ranks} GPU; a communicator needs at least two"))),
        _ => Ok(order),
    }
}

impl BuildError {
    /// True if the input is invalid; false if the input is valid but cannot be modelled.
    pub fn is_malformed(&self) -> bool {
        matches!(self, BuildError::Version(_) | BuildError::Gpus(_))
    }
}

impl Communicator {
    /// Builds a communicator of hosts in rank order, each with its GPUs. The order matters: NCCL's rings and trees
    /// follow it. O(hosts x channels), a few microseconds for recorded hosts.
    pub fn build(version: Version, cluster: &Cluster, order: &[(HostId, GpuMask)]) -> Result<Communicator, BuildError> {
        Communicator::build_with(&mut HostCache::default(), version, cluster, order)
    }

    /// Builds a communicator from a list of GPUs such as `n[0-1] n2:3`, hosts in rank order. Without a list: all usable
    /// GPUs.
    ///
    /// # Errors
    /// As [`Communicator::build`], and [`BuildError::Gpus`] for a list that does not match the cluster.
    pub fn of_list(version: Version, cluster: &Cluster, gpus: Option<&str>) -> Result<Communicator, BuildError> {
        Communicator::build(version, cluster, &gpus_in_rank_order(cluster, gpus)?)
    }

    /// As [`Communicator::build`], with a cache. The cache must only be used with one cluster. About a microsecond for
    /// cached hosts.
    pub fn build_with(
        cache: &mut HostCache,
        version: Version,
        cluster: &Cluster,
        order: &[(HostId, GpuMask)],
    ) -> Result<Communicator, BuildError> {
        if !is_modelled(version) {
            return Err(BuildError::Version(version));
        }
        check_order(cluster, order)?;
        if cache.release != Some(version) {
            *cache = HostCache { release: Some(version), ..HostCache::default() };
        }
        let several = order.len() > 1;
        let mut members: Vec<MemberHost> = Vec::with_capacity(order.len());
        let mut machines = Vec::with_capacity(order.len());
        let mut first_rank = 0;
        for &(host, mask) in order {
            let (machine, places, found, source) = cache.get_or_find(version, cluster, host, mask, several)?;
            machines.push(machine);
            let ranks = places.gpus.len() as u32;
            members.push(MemberHost { host, mask, first_rank, source, places, found });
            first_rank += ranks;
        }
        let graphs: Vec<(u32, &[Graph])> = members.iter().map(|m| (m.ranks(), m.found.graphs.as_slice())).collect();
        let machines = AgreedMachines::agree(machines).ok_or(AgreeError::NoRanks)?;
        let agreed = CostModelInput::of(version, machines, &graphs).map_err(|e| match e {
            AgreeError::NoGraph { host, .. } => {
                let (host, _) = order[host];
                let (host, host_type) = (cluster.host(host).name.clone(), cluster.type_of(host).name.clone());
                BuildError::NoGraph { host, host_type }
            }
            e => BuildError::Agree(e),
        })?;
        let nic_gb_per_s = members
            .iter()
            .map(|m| (0..cluster.type_of(m.host).nics.len()).map(|n| cluster.nic_rate(m.host, n).gb_per_s()).collect())
            .collect();
        Ok(Communicator {
            table: CostTable::of(&agreed),
            agreed,
            members,
            nic_gb_per_s,
            network: cluster.network.class,
        })
    }

    /// The input of the cost model, equal on all ranks.
    pub fn agreed(&self) -> &CostModelInput {
        &self.agreed
    }
    /// NCCL's table of latencies and bandwidths.
    pub fn table(&self) -> &CostTable {
        &self.table
    }
    /// The hosts in rank order.
    pub fn members(&self) -> &[MemberHost] {
        &self.members
    }
    /// True if every host's search was recorded from this minor release of the real library.
    pub fn checked(&self) -> bool {
        self.members.iter().all(|m| m.source == GraphSource::Recorded)
    }

    /// AUTO's choice for a call of `size_bytes` bytes (for all-gather and reduce-scatter, the whole buffer of all
    /// ranks). `None` for collectives without an algorithm (all-to-all, send and receive) and for one rank. About 0.5
    /// us.
    pub fn choose(&self, collective: Collective, size_bytes: u64) -> Option<NcclDecision> {
        let c = self.choice(collective, size_bytes)?;
        Some(NcclDecision {
            collective,
            size_bytes,
            algorithm: c.algorithm,
            protocol: c.protocol,
            channels: c.channels,
            time_us: Some(f64::from(c.time_us)),
            source: DecisionSource::Model,
        })
    }

    /// As [`Communicator::choose`], including the number of threads.
    pub fn choice(&self, collective: Collective, size_bytes: u64) -> Option<CallChoice> {
        choose(&self.agreed, &self.table, collective, size_bytes)
    }

    /// Number of search channels that every host contributes.
    pub fn search_channels(&self) -> usize {
        self.agreed.ring.channels as usize
    }

    /// The search channel of a host that ring channel `channel` uses. If rings cross NICs, hosts with an odd index swap
    /// pairs of channels, so that NICs of the same rail are connected.
    fn ring_search_channel(&self, member: usize, channel: usize) -> usize {
        let n = self.search_channels();
        let search = channel % n;
        let rules = ReleaseRules::of(self.agreed.version);
        let crossing = |cross_nic: u8| cross_nic >= rules.swaps_from_cross_nic;
        let crosses = crossing(self.agreed.ring.cross_nic) && n.is_multiple_of(2) && member % 2 == 1;
        let own = self.members[member].graph(GraphKind::Ring).is_some_and(|g| crossing(g.cross_nic));
        if crosses && (own || !rules.swaps_own_pairs_only) { search ^ 1 } else { search }
    }

    /// Ranks in the order of ring channel `channel`, starting at rank 0. O(ranks).
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

    /// The hops of ring channel `channel` between hosts, in host order; empty on one host. O(hosts).
    pub fn crossings(&self, channel: usize) -> Vec<Crossing> {
        let hosts = self.members.len();
        (0..hosts).filter_map(|from| self.crossing(channel, from)).collect()
    }

    /// The hop of ring channel `channel` from host `from`, an index in [`Communicator::members`]; `None` on one host. O(1).
    pub fn crossing(&self, channel: usize, from: usize) -> Option<Crossing> {
        let hosts = self.members.len();
        if hosts < 2 || from >= hosts {
            return None;
        }
        let search = channel % self.search_channels();
        // A GPU at an end of the channel uses a NIC from its host's search: the first NIC if it is the first GPU in the
        // search's order, otherwise the second NIC.
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

    /// (parent, children) of every rank on tree channel `channel`. O(ranks).
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

fn check_order(cluster: &Cluster, order: &[(HostId, GpuMask)]) -> Result<(), BuildError> {
    let wrong = |text: String| Err(BuildError::Order(text));
    if order.is_empty() || order.len() > HOSTS_MAX {
        return wrong(format!("it has {} hosts; 1 to {HOSTS_MAX} are supported", order.len()));
    }
    if let [(_, mask)] = order
        && mask.count() == 1
    {
        return wrong("it has one GPU; a communicator needs at least two".into());
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
