//! Enumerations of values that NCCL numbers and names.

use std::fmt;
use std::str::FromStr;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[repr(u8)]
        pub enum $name { $($(#[$vdoc])* #[cfg_attr(feature = "serde", serde(rename = $word))] $variant),+ }

        impl $name {
            /// All values, in the order of declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The word in NCCL's logs and in this project's files.
            pub const fn word(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }

            /// The value at an index of [`Self::ALL`].
            pub fn of_number(number: usize) -> Option<Self> {
                Self::ALL.get(number).copied()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.word())
            }
        }

        impl FromStr for $name {
            type Err = String;

            /// Parses the word in any case, with or without underscores. The error names the text and all valid words.
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
    /// The pattern of a collective over ranks, in the order of NCCL's numbers 0 to 6.
    Algorithm {
        /// Double binary tree.
        Tree = "Tree",
        /// Ring.
        Ring = "Ring",
        /// CollNet: every GPU sends to the network.
        CollNetDirect = "CollNetDirect",
        /// CollNet: a chain inside the node.
        CollNetChain = "CollNetChain",
        /// NVLink SHARP inside one NVLink domain.
        Nvls = "NVLS",
        /// NVLink SHARP inside nodes, a tree between them.
        NvlsTree = "NVLSTree",
        /// Parallel aggregated trees (2.23 and later).
        Pat = "PAT",
    }
}

impl Algorithm {
    /// The word in capitals, as in arms, policy tables and traces: `TREE`, `NVLSTREE`.
    pub const fn capitals(self) -> &'static str {
        match self {
            Algorithm::Tree => "TREE",
            Algorithm::Ring => "RING",
            Algorithm::CollNetDirect => "COLLNETDIRECT",
            Algorithm::CollNetChain => "COLLNETCHAIN",
            Algorithm::Nvls => "NVLS",
            Algorithm::NvlsTree => "NVLSTREE",
            Algorithm::Pat => "PAT",
        }
    }
}

words! {
    /// The way in which ranks exchange bytes, in the order of NCCL's numbers 0 to 2.
    Protocol {
        /// 8-byte words, half of them flags: lowest latency.
        Ll = "LL",
        /// 128-byte lines with a flag each, over NVLink.
        Ll128 = "LL128",
        /// Chunks with a fence: highest bandwidth.
        Simple = "Simple",
    }
}

impl Protocol {
    /// The word in capitals, as in arms, policy tables and traces: `LL128`, `SIMPLE`.
    pub const fn capitals(self) -> &'static str {
        match self {
            Protocol::Ll => "LL",
            Protocol::Ll128 => "LL128",
            Protocol::Simple => "SIMPLE",
        }
    }
}

words! {
    /// The graphs that NCCL searches on every node, in the order of NCCL's ids 0 to 4.
    GraphKind {
        /// Ring.
        Ring = "ring",
        /// Tree; also used by PAT.
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
    /// The distance between two devices, by NCCL's name, nearest first. NCCL's numbers differ between releases.
    PathType {
        /// The same device.
        Loc = "LOC",
        /// NVLink.
        Nvl = "NVL",
        /// NVLink through another GPU.
        Nvb = "NVB",
        /// The chip-to-chip link between a GPU and its CPU.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_logs_and_variables_write_them() {
        for (i, a) in Algorithm::ALL.iter().enumerate() {
            assert_eq!(a.word().to_uppercase(), a.capitals());
            assert_eq!(a.capitals().parse(), Ok(*a));
            assert_eq!((Algorithm::of_number(i), *a as usize), (Some(*a), i));
        }
        for p in Protocol::ALL {
            assert_eq!(p.word().to_uppercase(), p.capitals());
        }
        assert_eq!("NVLS_TREE".parse(), Ok(Algorithm::NvlsTree));
        assert_eq!("ll128".parse(), Ok(Protocol::Ll128));
        assert!("LL64".parse::<Protocol>().unwrap_err().contains("LL, LL128, Simple"));
        assert_eq!(Protocol::of_number(3), None);
    }
}
