//! NCCL's words: versions, algorithms, protocols, search graphs, decisions. The one form in which the real library (`nccl-bench`)
//! and the model of it (`nccl-model`) say what NCCL does, so that the two can be compared cell by cell.

use crate::Collective;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A release of NCCL. A patch of `None` is "any patch of the minor release", as in `--nccl 2.28`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Version {
    /// 2 in 2.28.9.
    pub major: u16,
    /// 28 in 2.28.9.
    pub minor: u16,
    /// 9 in 2.28.9.
    pub patch: Option<u16>,
}

impl Version {
    /// `Version::new(2, 28, 9)`.
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Version { major, minor, patch: Some(patch) }
    }

    /// True from the release `major.minor.patch` on; a version without a patch counts as the newest patch of its minor release.
    pub fn at_least(self, major: u16, minor: u16, patch: u16) -> bool {
        (self.major, self.minor, self.patch.unwrap_or(u16::MAX)) >= (major, minor, patch)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        self.patch.map_or(Ok(()), |p| write!(f, ".{p}"))
    }
}

impl FromStr for Version {
    type Err = String;

    /// Takes `2.28`, `2.28.9` and `2.28.9-1`.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not an NCCL version; write it like 2.28 or 2.28.9");
        let number = |t: &str| t.parse::<u16>().map_err(|_| bad());
        let release = text.trim().split('-').next().unwrap_or_default();
        let parts: Vec<&str> = release.split('.').collect();
        match parts[..] {
            [major, minor] => Ok(Version { major: number(major)?, minor: number(minor)?, patch: None }),
            [major, minor, patch] => Ok(Version::new(number(major)?, number(minor)?, number(patch)?)),
            _ => Err(bad()),
        }
    }
}

impl TryFrom<String> for Version {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Version> for String {
    fn from(v: Version) -> String {
        v.to_string()
    }
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $word)] $variant),+ }

        impl $name {
            /// All of them, in the order of NCCL's numbers.
            pub const ALL: &[$name] = &[$($name::$variant),+];

            /// The word that NCCL's environment variables use.
            pub const fn word(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.word())
            }
        }

        impl FromStr for $name {
            type Err = String;

            /// Reads the word in any case, with or without underscores, as NCCL's logs and variables write it.
            fn from_str(text: &str) -> Result<Self, String> {
                let plain = |t: &str| t.replace('_', "").to_ascii_lowercase();
                let wanted = plain(text.trim());
                Self::ALL.iter().copied().find(|v| plain(v.word()) == wanted).ok_or_else(|| {
                    let all: Vec<_> = Self::ALL.iter().map(|v| v.word()).collect();
                    format!("{text:?} is none of {}", all.join(", "))
                })
            }
        }
    };
}

words! {
    /// How a collective is laid out over ranks; NCCL's numbers 0 to 6 in this order.
    Algorithm {
        /// Double binary tree.
        Tree = "Tree",
        /// Ring.
        Ring = "Ring",
        /// CollNet, every GPU to the network.
        CollNetDirect = "CollNetDirect",
        /// CollNet, a chain inside the node.
        CollNetChain = "CollNetChain",
        /// NVLink SHARP inside one NVLink domain.
        Nvls = "NVLS",
        /// NVLink SHARP inside, tree between nodes.
        NvlsTree = "NVLSTree",
        /// Parallel aggregated trees (2.23 and later).
        Pat = "PAT",
    }
}

words! {
    /// How bytes are handed over; NCCL's numbers 0 to 2 in this order.
    Protocol {
        /// 8-byte words, half of them flags: least latency.
        Ll = "LL",
        /// 128-byte lines with a flag each, over NVLink.
        Ll128 = "LL128",
        /// Chunks with a fence: most bandwidth.
        Simple = "Simple",
    }
}

words! {
    /// The graphs that NCCL searches on every node; NCCL's ids 0 to 4 in this order.
    GraphKind {
        /// Ring.
        Ring = "ring",
        /// Tree; PAT uses it, too.
        Tree = "tree",
        /// CollNet chain.
        CollNetChain = "collnet-chain",
        /// NVLS and NVLSTree.
        Nvls = "nvls",
        /// CollNet direct.
        CollNetDirect = "collnet-direct",
    }
}

words! {
    /// How far apart two devices are, by NCCL's name (the numbers differ between releases), nearest first.
    PathType {
        /// The same device.
        Loc = "LOC",
        /// NVLink.
        Nvl = "NVL",
        /// NVLink through another GPU.
        Nvb = "NVB",
        /// Chip to chip, GPU and CPU.
        C2c = "C2C",
        /// One PCIe bridge.
        Pix = "PIX",
        /// Several PCIe bridges.
        Pxb = "PXB",
        /// GPU to NIC through the CPU behind C2C.
        P2c = "P2C",
        /// NIC through another GPU.
        Pxn = "PXN",
        /// A PCIe host bridge.
        Phb = "PHB",
        /// Between sockets.
        Sys = "SYS",
        /// The network.
        Net = "NET",
        /// Not connected.
        Dis = "DIS",
    }
}

/// One node's order of devices on one search channel.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Channel {
    /// GPUs of the node in the order of the channel: NVML indices, 0 to 63.
    pub gpus: Vec<u8>,
    /// NICs where the channel enters and leaves the node; empty on a single node. NVLS: the NIC of each head.
    pub nics: Vec<u8>,
}

/// What one search of NCCL found on one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    /// Which search.
    pub kind: GraphKind,
    /// NCCL's pattern number: 1 balanced tree, 2 split tree, 3 tree, 4 ring, 5 NVLS, 6 CollNet direct.
    pub pattern: u8,
    /// 0 same NIC in and out, 1 any, 2 the neighbouring rail.
    pub cross_nic: u8,
    /// Channels found; `channels.len()` where the channels themselves are known.
    pub channel_count: usize,
    /// GB/s (1e9 bytes) per channel inside the node.
    pub bw_intra_gb_per_s: f64,
    /// GB/s per channel between nodes.
    pub bw_inter_gb_per_s: f64,
    /// The NIC's latency, microseconds.
    pub latency_inter_us: f64,
    /// Farthest path inside the node.
    pub type_intra: PathType,
    /// Farthest path to a NIC.
    pub type_inter: PathType,
    /// True where all channels are alike.
    pub same_channels: bool,
    /// The channels, if known (the log line of a graph does not hold them).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<Channel>,
}

/// NCCL's prediction for one way of doing one collective: time = latency + bytes / bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// The collective.
    pub collective: Collective,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: Protocol,
    /// Microseconds.
    pub latency_us: f64,
    /// Algorithm bandwidth, GB/s; 0: not available.
    pub bandwidth_gb_per_s: f64,
}

/// Where a decision comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionSource {
    /// The model in `nccl-model`.
    Model,
    /// The real library in `nccl-bench`.
    Bench,
}

/// What NCCL does with one collective call.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The collective.
    pub collective: Collective,
    /// Bytes, as NCCL counts them: the whole buffer of all ranks for all-gather and reduce-scatter.
    pub size_bytes: u64,
    /// The algorithm chosen.
    pub algorithm: Algorithm,
    /// The protocol chosen.
    pub protocol: Protocol,
    /// Channels that carry the call.
    pub channels: u32,
    /// NCCL's own estimate, microseconds; `None` where the library did not say.
    pub time_us: Option<f64>,
    /// The model or the library.
    pub source: DecisionSource,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_with_and_without_patch_and_compare() {
        assert_eq!("2.28.9-1".parse(), Ok(Version::new(2, 28, 9)));
        let minor: Version = "2.28".parse().unwrap();
        assert!(minor.at_least(2, 28, 9) && !minor.at_least(2, 29, 1) && !Version::new(2, 28, 3).at_least(2, 28, 9));
        assert_eq!(minor.to_string(), "2.28");
        assert!("2".parse::<Version>().is_err() && "2.x".parse::<Version>().is_err());
    }

    #[test]
    fn words_are_read_as_logs_and_variables_write_them() {
        for a in Algorithm::ALL {
            assert_eq!(a.word().to_uppercase().parse(), Ok(*a));
        }
        assert_eq!("NVLS_TREE".parse(), Ok(Algorithm::NvlsTree));
        assert_eq!("ll128".parse(), Ok(Protocol::Ll128));
        assert!("LL64".parse::<Protocol>().unwrap_err().contains("LL, LL128, Simple"));
    }
}
