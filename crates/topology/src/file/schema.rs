//! The fields of the cluster file. `linkwise topology schema` prints their comments.

use crate::cluster::NetworkClass;
use crate::switches::Rails;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A value and its position in the file (line and column from 1; 0 = unknown).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
}

impl<T> From<T> for At<T> {
    fn from(value: T) -> Self {
        At { value, line: 0, column: 0 }
    }
}
impl<'de, T: Deserialize<'de>> Deserialize<'de> for At<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let s = serde_saphyr::Spanned::<T>::deserialize(d)?;
        Ok(At { line: s.referenced.line() as usize, column: s.referenced.column() as usize, value: s.value })
    }
}
impl<T: Serialize> Serialize for At<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(s)
    }
}
impl<T: JsonSchema> JsonSchema for At<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }
    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        T::json_schema(g)
    }
}

/// A short list, written on one line: `[0, 1, 2]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct MatrixRow<T>(pub Vec<T>);

impl<T: Serialize> Serialize for MatrixRow<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        serde_saphyr::FlowSeq(&self.0).serialize(s)
    }
}
impl<T: JsonSchema> JsonSchema for MatrixRow<T> {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        Vec::<T>::schema_name()
    }
    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        Vec::<T>::json_schema(g)
    }
}

/// A cluster: its host types, its hosts and the network between them.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "linkwise cluster file")]
pub struct ClusterFile {
    /// Name of the cluster.
    #[serde(default = "default_name")]
    pub name: String,
    /// The network between the hosts; left out, one non-blocking InfiniBand switch.
    #[serde(default, skip_serializing_if = "is_default")]
    pub network: NetworkFile,
    /// Host types that the catalog lacks or describes differently (`linkwise topology types` lists the catalog).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_types: Vec<At<HostTypeFile>>,
    /// The hosts.
    pub hosts: Vec<At<HostsFile>>,
}

fn default_name() -> String {
    "cluster".into()
}
fn is_default<T: Default + PartialEq>(v: &T) -> bool {
    *v == T::default()
}
fn one() -> f64 {
    1.0
}

/// The network between hosts.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkFile {
    /// The transport between hosts.
    #[serde(default)]
    pub class: NetworkClass,
    /// Tiers of switches, nearest to the hosts first; left out, one non-blocking switch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<At<TierFile>>,
    /// The lowest tier is rail-optimised: NIC `i` of each host goes to rail switch `i`. `joined`: the rails meet in the tier
    /// above; `separate`: no path joins them. Left out, all NICs of a host reach the same switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rails: Option<Rails>,
    /// Pairs of hosts whose rate differs from that of their NICs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_links: Vec<At<HostLinkFile>>,
}

/// One tier of switches.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TierFile {
    /// `leaf`, `spine`, ...
    pub name: String,
    /// Hosts below one switch of this tier, counted in the order of `hosts`; replaces `switches` where all have the same number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts_per_switch: Option<usize>,
    /// The switches of this tier with their hosts; each host is below exactly one. Replaces `hosts_per_switch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switches: Option<At<Vec<At<SwitchFile>>>>,
    /// Bandwidth below a switch over bandwidth above it; 1 is non-blocking, 2 (2:1) halves the uplinks.
    #[serde(default = "one")]
    pub oversubscription: f64,
}

/// A switch and the hosts below it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchFile {
    /// Name, unique in the tier.
    pub name: String,
    /// Its hosts, as Slurm writes them: `n[0-3,7]`.
    pub hosts: At<String>,
}

/// A pair of hosts whose rate differs from that of their NICs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostLinkFile {
    /// The two hosts.
    pub between: MatrixRow<String>,
    /// Rate of the pair in one direction, all NICs together, Gbit/s.
    pub rate_gbit_per_s: f64,
}

/// The hardware that hosts of one make share.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostTypeFile {
    /// Name, unique in the file.
    pub name: String,
    /// A type of the catalog, or an earlier one of this file; it supplies every field that is left out here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub like: Option<At<String>>,
    /// A description in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Sources of these facts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// GPU model, as `nvidia-smi -L` prints it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_model: Option<String>,
    /// Number of GPUs, 1 to 16; may be left out with `gpu_matrix` or `like`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<At<usize>>,
    /// GPUs of each NUMA node: `[[0, 1, 2, 3], [4, 5, 6, 7]]`. Paths inside a node are NODE, between nodes SYS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<At<Vec<MatrixRow<usize>>>>,
    /// NUMA node of each GPU: `[0, 0, 1, 1]`. Replaces `sockets` where the node numbers matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_sockets: Option<At<MatrixRow<u8>>>,
    /// GPUs on one PCIe switch (PIX): `[[0, 1], [2, 3]]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_switches: Option<At<Vec<MatrixRow<usize>>>>,
    /// GPUs below one tree of several PCIe switches (PXB).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_switch_trees: Option<At<Vec<MatrixRow<usize>>>>,
    /// GPUs below one PCIe host bridge (PHB).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_bridges: Option<At<Vec<MatrixRow<usize>>>>,
    /// PCIe link of every GPU; left out, Gen4 x16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie: Option<PcieFile>,
    /// The NVLinks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink: Option<At<NvLinkFile>>,
    /// The whole matrix, one line per GPU as nvidia-smi prints it: `"X NV4 PXB SYS"`. Replaces sockets, switches and
    /// NVLink pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_matrix: Option<At<Vec<At<String>>>>,
    /// Network ports used for GPU traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nics: Option<Vec<At<NicFile>>>,
    /// PCI bus id of each GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_pci_bus_ids: Option<At<Vec<Option<String>>>>,
    /// Measured peer-to-peer rates in one direction, GB/s, `[from][to]`; they override nominal rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p2p_gb_per_s: Option<At<Vec<MatrixRow<f64>>>>,
}

/// A PCIe link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PcieFile {
    /// Generation, 1 to 7.
    pub generation: u8,
    /// Lanes, 1 to 32.
    #[serde(default = "sixteen")]
    pub lanes: u8,
}

fn sixteen() -> u8 {
    16
}

/// The NVLinks of a host.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NvLinkFile {
    /// Rate of one link in one direction, GB/s (NVLink 3 and 4: 25).
    pub link_rate_gb_per_s: f64,
    /// All GPUs reach all GPUs through NVSwitches.
    #[serde(default)]
    pub switched: bool,
    /// The switches reduce and multicast (H100 and later).
    #[serde(default)]
    pub multicast: bool,
    /// Links of each linked pair; with switches, links of each GPU. Not together with `gpu_matrix`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<u8>,
    /// Linked pairs `[[0, 1], [2, 3]]`, or with their number of links `[[0, 1, 2], [2, 3, 1]]`; left out, all pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<Vec<MatrixRow<usize>>>,
}

/// A network port, or one per GPU.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NicFile {
    /// Device name; with `one_per_gpu` the part before the number.
    pub name: String,
    /// Line rate in one direction, Gbit/s.
    pub line_rate_gbit_per_s: f64,
    /// NUMA node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<u8>,
    /// GPUs on the same PCIe switch (PIX). The others are NODE on the same socket, else SYS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near: Option<At<MatrixRow<usize>>>,
    /// Path to every GPU, as nvidia-smi prints them: `"PIX NODE SYS SYS"`. Replaces `near`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_paths: Option<At<String>>,
    /// One such NIC next to every GPU.
    #[serde(default, skip_serializing_if = "is_default")]
    pub one_per_gpu: bool,
}

/// One host or several equal ones.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostsFile {
    /// A name, or names as Slurm writes them: `n[0-3,7]`. With `count`, the part before the number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<At<String>>,
    /// Number of hosts, named `name` (or `n`) followed by 0, 1, ...; numbering continues over entries with the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<At<usize>>,
    /// Their type: one of `host_types` or of the catalog.
    #[serde(rename = "type")]
    pub host_type: At<String>,
    /// Drained GPUs, which get no jobs: `true` (all) or a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained: Option<At<Drained>>,
    /// Parts that run below their rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub degraded: Option<At<DegradedFile>>,
    /// GPU UUIDs in the order of nvidia-smi (one host only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_uuids: Option<At<Vec<String>>>,
    /// Device minor numbers (`/dev/nvidiaN`) in the order of nvidia-smi, where they differ from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_minors: Option<At<MatrixRow<u8>>>,
    /// Name in Slurm, where it differs (one host only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_name: Option<String>,
    /// Name in Kubernetes, where it differs (one host only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_name: Option<String>,
}

/// The drained GPUs of a host.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Drained {
    /// `true`: all GPUs; `false`: none.
    All(bool),
    /// GPUs by index.
    Gpus(MatrixRow<usize>),
}

/// Parts of a host that run below their rate; factors from 0 (dead) to 1 (full rate).
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DegradedFile {
    /// The whole host: all its NICs and GPU links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<f64>,
    /// NICs by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nics: BTreeMap<String, f64>,
    /// NICs by name, as a rate in Gbit/s instead of a factor.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nic_rates_gbit_per_s: BTreeMap<String, f64>,
    /// All links of a GPU, by its index.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gpus: BTreeMap<String, f64>,
    /// Single links between two GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<DegradedLinkFile>,
}

/// A link between two GPUs that runs below its rate.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DegradedLinkFile {
    /// The two GPUs.
    pub between: MatrixRow<u8>,
    /// Share of the full rate, 0 (dead) to 1.
    pub factor: f64,
}
