//! The hardware of one host: GPUs, NICs, NVLinks and PCIe.

use crate::allocation::{GPUS_PER_HOST_MAX, GpuMask};
use crate::quantity::Bandwidth;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Maximum number of NICs of one host.
pub const NICS_PER_HOST_MAX: usize = 32;

/// The path between two devices of a host, by the labels of `nvidia-smi topo -m`, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathKind {
    /// The device itself (`X`).
    Same,
    /// A bonded set of this number of NVLinks, direct or through NVSwitches (`NV4`).
    NvLink(u8),
    /// At most one PCIe switch (`PIX`).
    Pix,
    /// Several PCIe switches, no host bridge (`PXB`).
    Pxb,
    /// A PCIe host bridge (`PHB`).
    Phb,
    /// Host bridges of one NUMA node (`NODE`).
    Node,
    /// The interconnect between NUMA nodes (`SYS`).
    Sys,
}

impl fmt::Display for PathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathKind::Same => f.pad("X"),
            PathKind::NvLink(n) => f.pad(&format!("NV{n}")),
            PathKind::Pix => f.pad("PIX"),
            PathKind::Pxb => f.pad("PXB"),
            PathKind::Phb => f.pad("PHB"),
            PathKind::Node => f.pad("NODE"),
            PathKind::Sys => f.pad("SYS"),
        }
    }
}

impl std::str::FromStr for PathKind {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        Ok(match s {
            "X" => PathKind::Same,
            "PIX" => PathKind::Pix,
            "PXB" => PathKind::Pxb,
            "PHB" => PathKind::Phb,
            "NODE" => PathKind::Node,
            "SYS" | "SOC" => PathKind::Sys, // drivers before 384 print SOC
            _ => match s.strip_prefix("NV").and_then(|n| n.parse::<u8>().ok()) {
                Some(n) if (1..=64).contains(&n) => PathKind::NvLink(n),
                _ => return Err(format!("`{s}` is not a link label; known: X, NV<n>, PIX, PXB, PHB, NODE, SYS")),
            },
        })
    }
}

impl Serialize for PathKind {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}
impl<'de> Deserialize<'de> for PathKind {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let s = String::deserialize(d)?;
        s.parse().map_err(serde::de::Error::custom)
    }
}

/// One GPU of a host type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// NUMA node (socket) of its PCIe root.
    pub socket: u8,
    /// PCI bus id, lower case, with domain, if known.
    pub pci_bus_id: Option<String>,
}

/// One network port of a host type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nic {
    /// Device name (`mlx5_0`, `NIC0`).
    pub name: String,
    /// Line rate, one direction.
    pub line_rate: Bandwidth,
    /// NUMA node (socket), if known.
    pub socket: Option<u8>,
    /// Path to every GPU of the host, one entry per GPU.
    pub gpu_paths: Vec<PathKind>,
}

/// The NVLinks of a host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NvLinkFabric {
    /// Nominal rate of one link in one direction (NVLink 3 and 4: 25 GB/s).
    pub link_rate: Bandwidth,
    /// All GPUs reach all GPUs through NVSwitches at full rate.
    pub switched: bool,
    /// The switches reduce and multicast (NVLink SHARP; H100 and later).
    pub multicast: bool,
}

/// The PCIe link of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pcie {
    /// Generation, 1 to 7.
    pub generation: u8,
    /// Lanes, 1 to 32.
    pub lanes: u8,
}

impl Pcie {
    /// Usable rate in one direction after line coding, before packet headers: Gen4 x16 is 31.5 GB/s.
    pub fn rate(self) -> Bandwidth {
        let per_lane = match self.generation {
            0 | 1 => 0.25,
            2 => 0.5,
            3 => 0.985,
            4 => 1.969,
            5 => 3.938,
            6 => 7.563,
            _ => 15.125,
        };
        Bandwidth::from_gb_per_s(per_lane * f64::from(self.lanes))
    }
}

/// A host type: the common hardware of hosts of one make.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostType {
    /// Short name, unique in a cluster (`hgx-h100`).
    pub name: String,
    /// A description in one line.
    pub description: String,
    /// Sources of these facts.
    pub source: String,
    /// GPU model as `nvidia-smi -L` prints it, or the short marketing name.
    pub gpu_model: String,
    /// The GPUs in the order of `nvidia-smi`.
    pub gpus: Vec<Gpu>,
    /// Path between every two GPUs: symmetric, `Same` on the diagonal.
    pub gpu_paths: Vec<Vec<PathKind>>,
    /// NVLinks; `None` on a host without them.
    pub nvlink: Option<NvLinkFabric>,
    /// PCIe link of every GPU.
    pub pcie: Pcie,
    /// Network ports used for GPU traffic.
    pub nics: Vec<Nic>,
    /// Measured peer-to-peer rate in one direction, `p2p[from][to]`, if known; overrides nominal rates.
    pub p2p: Option<Vec<Vec<Bandwidth>>>,
}

impl HostType {
    /// Number of GPUs.
    pub fn gpu_count(&self) -> usize {
        self.gpus.len()
    }
    /// All its GPUs.
    pub fn all_gpus(&self) -> GpuMask {
        GpuMask::first(self.gpu_count())
    }

    /// The NICs nearest to a GPU, as a bit mask over [`HostType::nics`]. NICs at equal distance are all included. 0
    /// without NICs.
    pub fn nearest_nics(&self, gpu: usize) -> u32 {
        let Some(best) = self.nics.iter().map(|n| n.gpu_paths[gpu]).min() else { return 0 };
        self.nics.iter().enumerate().filter(|(_, n)| n.gpu_paths[gpu] == best).fold(0, |m, (i, _)| m | 1 << i)
    }

    /// The NICs nearest to any GPU of a set: the union of [`HostType::nearest_nics`]. O(gpus x nics).
    pub fn nics_touched(&self, mask: GpuMask) -> u32 {
        mask.iter().fold(0, |m, g| m | self.nearest_nics(g))
    }

    /// Checks sizes, symmetry and limits. The error states the first broken rule.
    pub fn check(&self) -> Result<(), String> {
        let n = self.gpu_count();
        let name = &self.name;
        if n == 0 || n > GPUS_PER_HOST_MAX {
            return Err(format!("host type `{name}` has {n} GPUs; 1 to {GPUS_PER_HOST_MAX} are supported"));
        }
        if self.nics.len() > NICS_PER_HOST_MAX {
            return Err(format!("host type `{name}` has {} NICs; at most {NICS_PER_HOST_MAX}", self.nics.len()));
        }
        if self.gpu_paths.len() != n || self.gpu_paths.iter().any(|r| r.len() != n) {
            return Err(format!("host type `{name}`: the GPU matrix is not {n} x {n}"));
        }
        for i in 0..n {
            for j in 0..n {
                let (a, b) = (self.gpu_paths[i][j], self.gpu_paths[j][i]);
                if (i == j) != (a == PathKind::Same) {
                    return Err(format!("host type `{name}`: GPU{i} to GPU{j} is `{a}`"));
                }
                if a != b {
                    return Err(format!("host type `{name}`: GPU{i} to GPU{j} is {a}, but GPU{j} to GPU{i} is {b}"));
                }
            }
        }
        let links = self.gpu_paths.iter().flatten().any(|p| matches!(p, PathKind::NvLink(_)));
        if links && self.nvlink.is_none() {
            return Err(format!("host type `{name}` has NV links in its matrix but no `nvlink` rate"));
        }
        for nic in &self.nics {
            if nic.gpu_paths.len() != n {
                return Err(format!(
                    "host type `{name}`: NIC `{}` names paths to {} of {n} GPUs",
                    nic.name,
                    nic.gpu_paths.len()
                ));
            }
            let gbit = nic.line_rate.gbit_per_s();
            if !(gbit > 0.0 && gbit <= 10_000.0) {
                return Err(format!("host type `{name}`: NIC `{}` has a line rate of {gbit} Gbit/s", nic.name));
            }
        }
        if let Some(p2p) = &self.p2p {
            if p2p.len() != n || p2p.iter().any(|r| r.len() != n) {
                return Err(format!("host type `{name}`: the P2P matrix is not {n} x {n}"));
            }
            for (i, row) in p2p.iter().enumerate() {
                for (j, rate) in row.iter().enumerate() {
                    let gb = rate.gb_per_s();
                    let least = if i == j { 0.0 } else { f64::MIN_POSITIVE };
                    if !(gb >= least && gb <= 100_000.0) {
                        return Err(format!("host type `{name}`: P2P from GPU{i} to GPU{j} is {gb} GB/s"));
                    }
                }
            }
        }
        if let Some(nv) = &self.nvlink {
            let gb = nv.link_rate.gb_per_s();
            if !(gb > 0.0 && gb <= 1000.0) {
                return Err(format!("host type `{name}`: an NVLink of {gb} GB/s"));
            }
        }
        if !(1..=7).contains(&self.pcie.generation) || !(1..=32).contains(&self.pcie.lanes) {
            let Pcie { generation, lanes } = self.pcie;
            return Err(format!("host type `{name}`: PCIe generation {generation} with {lanes} lanes"));
        }
        let mut nics: Vec<&str> = self.nics.iter().map(|n| n.name.as_str()).collect();
        nics.sort_unstable();
        if let Some(w) = nics.windows(2).find(|w| w[0] == w[1]) {
            return Err(format!("host type `{name}` has two NICs named `{}`", w[0]));
        }
        if nics.iter().any(|n| n.is_empty() || n.contains(char::is_whitespace)) || name.is_empty() {
            return Err(format!("host type `{name}`: a name is empty or has a space in it"));
        }
        if self.nics.iter().any(|n| n.gpu_paths.contains(&PathKind::Same)) {
            return Err(format!("host type `{name}`: a NIC cannot be `X` (itself) to a GPU"));
        }
        Ok(())
    }
}
