//! A cluster: hosts and the network between them.

use crate::allocation::{Allocation, GpuId, GpuMask, HOSTS_MAX, HostId};
use crate::host::HostType;
use crate::quantity::Bandwidth;
use crate::switches::{self, Rails, Tier};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// The transport between hosts; `fabric` documents the efficiency of each class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkClass {
    /// InfiniBand with GPUDirect RDMA.
    #[default]
    Infiniband,
    /// RDMA over Converged Ethernet with GPUDirect.
    Roce,
    /// AWS Elastic Fabric Adapter.
    Efa,
    /// RDMA without GPUDirect: bytes pass through host memory.
    RdmaNoGdr,
    /// TCP (sockets, or GPUDirect-TCPX class transports).
    Tcp,
}

impl NetworkClass {
    /// The name in sentences.
    pub fn words(self) -> &'static str {
        match self {
            NetworkClass::Infiniband => "InfiniBand",
            NetworkClass::Roce => "RoCE",
            NetworkClass::Efa => "EFA",
            NetworkClass::RdmaNoGdr => "RDMA without GPUDirect",
            NetworkClass::Tcp => "TCP",
        }
    }
}

/// A pair of hosts whose rate differs from that of their NICs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostLink {
    /// One host.
    pub a: HostId,
    /// The other host.
    pub b: HostId,
    /// Rate of the pair, one direction, all NICs together.
    pub rate: Bandwidth,
}

/// The network between hosts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Network {
    /// Its class.
    pub class: NetworkClass,
    /// Tiers of switches, nearest to the hosts first; empty: one non-blocking switch.
    pub tiers: Vec<Tier>,
    /// How the rails of a rail-optimised lowest tier meet. `None`: not rail-optimised, all NICs of a host reach the
    /// same switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rails: Option<Rails>,
    /// Pairs of hosts whose rate differs from that of their NICs.
    pub host_links: Vec<HostLink>,
}

/// One host of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Name, unique in the cluster.
    pub name: String,
    /// Index into [`Cluster::types`].
    pub host_type: usize,
    /// Drained GPUs, which get no jobs; all GPUs if the host is drained.
    pub drained: GpuMask,
    /// Health of every NIC, 1.0 = full rate, 0.0 = dead; empty = all healthy.
    pub nic_health: Vec<f64>,
    /// GPU UUIDs in GPU order, if known. Slurm, Kubernetes and CUDA use them as GPU names.
    pub gpu_uuids: Vec<String>,
    /// Health of every GPU's links (NVLink and PCIe), 1.0 = full rate; empty = all healthy.
    pub gpu_health: Vec<f64>,
    /// Single links between two GPUs that run below the rate of their type.
    pub link_health: Vec<LinkHealth>,
    /// Device minor numbers (`/dev/nvidiaN`) in GPU order, if they differ from the GPU indices. Slurm's GRES indices
    /// are minor numbers.
    pub gpu_minors: Vec<u8>,
    /// Name in Slurm, if it differs from [`Host::name`].
    pub slurm_name: Option<String>,
    /// Name in Kubernetes, if it differs from [`Host::name`].
    pub kubernetes_name: Option<String>,
}

/// A link between two GPUs of one host that runs below its rate (lost NVLink lanes, PCIe retraining).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkHealth {
    /// One GPU.
    pub a: u8,
    /// The other GPU.
    pub b: u8,
    /// Share of the full rate, 0 (dead) to 1.
    pub factor: f64,
}

/// The hardware of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    /// The types of its hosts.
    pub types: Vec<HostType>,
    /// Its hosts. A [`HostId`] is an index into this list.
    pub hosts: Vec<Host>,
    /// The network between the hosts.
    pub network: Network,
}

impl Cluster {
    /// The host of an id.
    #[inline]
    pub fn host(&self, id: HostId) -> &Host {
        &self.hosts[id.index()]
    }
    /// The type of a host.
    #[inline]
    pub fn type_of(&self, id: HostId) -> &HostType {
        &self.types[self.host(id).host_type]
    }
    /// Gives hosts new names, by old name; other names are ignored. O(hosts).
    pub fn rename_hosts(&mut self, names: &BTreeMap<String, String>) {
        for h in &mut self.hosts {
            if let Some(new) = names.get(&h.name) {
                h.name.clone_from(new);
            }
        }
    }
    /// Every host id.
    pub fn host_ids(&self) -> impl Iterator<Item = HostId> + use<> {
        (0..self.hosts.len() as u32).map(HostId)
    }
    /// Number of GPUs, including drained GPUs.
    pub fn gpu_count(&self) -> usize {
        self.host_ids().map(|h| self.type_of(h).gpu_count()).sum()
    }
    /// Every GPU that is not drained.
    pub fn usable(&self) -> Allocation {
        Allocation::new(self.host_ids().map(|h| (h, self.type_of(h).all_gpus().minus(self.host(h).drained))))
    }
    /// Rate of one NIC of a host: line rate times health.
    pub fn nic_rate(&self, host: HostId, nic: usize) -> Bandwidth {
        let health = self.host(host).nic_health.get(nic).copied().unwrap_or(1.0);
        Bandwidth::from_gb_per_s(self.type_of(host).nics[nic].line_rate.gb_per_s() * health)
    }
    /// Share of the nominal rate between two GPUs of a host: the smaller health of both GPUs times the health of their link.
    pub fn link_health(&self, host: HostId, a: usize, b: usize) -> f64 {
        let h = self.host(host);
        let gpu = |g: usize| h.gpu_health.get(g).copied().unwrap_or(1.0);
        let link = h.link_health.iter().filter(|l| {
            (usize::from(l.a), usize::from(l.b)) == (a, b) || (usize::from(l.a), usize::from(l.b)) == (b, a)
        });
        link.map(|l| l.factor).fold(gpu(a).min(gpu(b)), |f, l| f * l)
    }
    /// Host ids by name. O(hosts); build it once for many look-ups.
    pub fn host_index(&self) -> HashMap<&str, HostId> {
        self.hosts.iter().enumerate().map(|(i, h)| (h.name.as_str(), HostId(i as u32))).collect()
    }

    /// One GPU in text: `n0:3`.
    pub fn gpu_name(&self, gpu: GpuId) -> String {
        format!("{}:{}", self.host(gpu.host).name, gpu.gpu)
    }
    /// Every GPU of an allocation in text, by host and index.
    pub fn gpu_names(&self, allocation: &Allocation) -> Vec<String> {
        allocation.gpus().map(|g| self.gpu_name(g)).collect()
    }

    /// Reads one GPU: `host:index`, or a GPU UUID of the cluster. The error lists known names.
    pub fn parse_gpu(&self, text: &str) -> Result<GpuId, String> {
        self.parse_gpu_indexed(&self.host_index(), text)
    }

    /// [`Cluster::parse_gpu`] with the index of [`Cluster::host_index`], for many look-ups.
    pub fn parse_gpu_indexed(&self, index: &HashMap<&str, HostId>, text: &str) -> Result<GpuId, String> {
        let t = text.trim();
        if let Some((host, gpu)) = t.rsplit_once(':') {
            let id = *index.get(host).ok_or_else(|| {
                format!("`{t}`: cluster `{}` has no host `{host}`; its hosts are {}", self.name, self.hosts_in_words())
            })?;
            let n = self.type_of(id).gpu_count();
            return match gpu.parse::<usize>() {
                Ok(g) if g < n => Ok(GpuId { host: id, gpu: g as u8 }),
                _ => Err(format!("`{t}`: host `{host}` has GPUs 0 to {}", n - 1)),
            };
        }
        for h in self.host_ids() {
            if let Some(g) = self.host(h).gpu_uuids.iter().position(|u| u == t) {
                return Ok(GpuId { host: h, gpu: g as u8 });
            }
        }
        Err(format!(
            "`{t}` names no GPU; write HOST:INDEX (for example {}:0) or a known GPU UUID",
            self.hosts.first().map_or("n0", |h| &h.name)
        ))
    }

    fn hosts_in_words(&self) -> String {
        let names: Vec<&str> = self.hosts.iter().take(4).map(|h| h.name.as_str()).collect();
        let rest = self.hosts.len().saturating_sub(4);
        if rest > 0 { format!("{} and {rest} more", names.join(", ")) } else { names.join(", ") }
    }

    /// Checks that names are unique, types exist, factors are between 0 and 1, and sizes are within the limits. The
    /// error states the first broken rule. O(hosts + types).
    pub fn check(&self) -> Result<(), String> {
        if self.hosts.is_empty() || self.hosts.len() > HOSTS_MAX {
            return Err(format!(
                "cluster `{}` has {} hosts; 1 to {HOSTS_MAX} are supported",
                self.name,
                self.hosts.len()
            ));
        }
        let mut type_names = HashMap::new();
        for t in &self.types {
            t.check()?;
            if type_names.insert(t.name.as_str(), ()).is_some() {
                return Err(format!("two host types are named `{}`", t.name));
            }
        }
        let mut seen = HashMap::new();
        for (i, h) in self.hosts.iter().enumerate() {
            let Some(t) = self.types.get(h.host_type) else {
                return Err(format!("host `{}` has no known type", h.name));
            };
            check_host_name(&h.name)?;
            if let Some(first) = seen.insert(h.name.as_str(), i) {
                return Err(format!("hosts {first} and {i} are both named `{}`", h.name));
            }
            h.check(t)?;
        }
        self.network.check(&self.hosts)
    }
}

/// A host name is 1 to 253 characters without spaces, commas, colons, brackets or control characters: these characters
/// separate names in lists.
pub(crate) fn check_host_name(name: &str) -> Result<(), String> {
    let bad = |c: char| c.is_whitespace() || c.is_control() || ",:[]{}()\"'".contains(c);
    if name.is_empty() || name.len() > 253 || name.contains(bad) {
        return Err(format!(
            "`{name}` cannot be a host name: 1 to 253 characters without spaces, commas, colons or brackets"
        ));
    }
    Ok(())
}

impl Host {
    /// Checks the host against its type. The error states the first broken rule.
    pub fn check(&self, t: &HostType) -> Result<(), String> {
        let name = &self.name;
        let (gpus, nics) = (t.gpu_count(), t.nics.len());
        let length = |what: &str, found: usize, wanted: usize| match found {
            0 => Ok(()),
            n if n == wanted => Ok(()),
            n => Err(format!("host `{name}` gives {what} for {n}, but `{}` has {wanted}", t.name)),
        };
        length("the health of its NICs", self.nic_health.len(), nics)?;
        length("the health of its GPUs", self.gpu_health.len(), gpus)?;
        length("the UUIDs of its GPUs", self.gpu_uuids.len(), gpus)?;
        length("the minor numbers of its GPUs", self.gpu_minors.len(), gpus)?;
        if !t.all_gpus().contains_all(self.drained) {
            return Err(format!("host `{name}` drains GPUs that it does not have"));
        }
        for l in &self.link_health {
            if usize::from(l.a.max(l.b)) >= gpus || l.a == l.b {
                return Err(format!("host `{name}`: no link from GPU{} to GPU{} in its type `{}`", l.a, l.b, t.name));
            }
        }
        let factors = self.nic_health.iter().chain(&self.gpu_health).copied();
        if let Some(f) = factors.chain(self.link_health.iter().map(|l| l.factor)).find(|f| !(0.0..=1.0).contains(f)) {
            return Err(format!(
                "host `{name}` has a health of {f}; a value from 0 (dead) to 1 (full rate) was expected"
            ));
        }
        let mut minors = self.gpu_minors.clone();
        minors.sort_unstable();
        if minors.windows(2).any(|w| w[0] == w[1]) {
            return Err(format!("host `{name}` gives two GPUs the same minor number"));
        }
        let mut uuids: Vec<&str> = self.gpu_uuids.iter().map(String::as_str).filter(|u| !u.is_empty()).collect();
        uuids.sort_unstable();
        if let Some(w) = uuids.windows(2).find(|w| w[0] == w[1]) {
            return Err(format!("host `{name}` gives two GPUs the UUID `{}`", w[0]));
        }
        for alias in [&self.slurm_name, &self.kubernetes_name].into_iter().flatten() {
            check_host_name(alias)?;
        }
        Ok(())
    }
}

impl Network {
    /// Checks tiers and host links against the hosts. The error states the first broken rule. O(tiers x hosts).
    pub fn check(&self, hosts: &[Host]) -> Result<(), String> {
        let name = |h: HostId| hosts.get(h.index()).map_or_else(|| h.0.to_string(), |x| x.name.clone());
        switches::check(&self.tiers, hosts.len(), &name)?;
        let hosts = hosts.len();
        for l in &self.host_links {
            if l.a.index().max(l.b.index()) >= hosts || l.a == l.b {
                return Err(format!("a host link joins hosts {} and {}", l.a.0, l.b.0));
            }
            let gbit = l.rate.gbit_per_s();
            if !(gbit > 0.0 && gbit <= 1e6) {
                return Err(format!("the link of hosts {} and {} has a rate of {gbit} Gbit/s", l.a.0, l.b.0));
            }
        }
        Ok(())
    }
}
