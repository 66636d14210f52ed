//! What a policy chooses between.

use std::fmt;
use std::str::FromStr;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// All of them, in the order of NCCL's numbers: the position is the number.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The word in capitals, as arms are written.
            pub const fn word(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }

            /// By NCCL's number.
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
            /// Reads the word in any case, with or without underscores.
            fn from_str(text: &str) -> Result<Self, String> {
                let plain = |t: &str| t.replace('_', "").to_ascii_uppercase();
                let wanted = plain(text.trim());
                Self::ALL.iter().copied().find(|v| plain(v.word()) == wanted).ok_or_else(|| {
                    let all: Vec<_> = Self::ALL.iter().map(|v| v.word()).collect();
                    format!("{text:?} is none of {}", all.join(", "))
                })
            }
        }
    };
}
pub(crate) use words;

words! {
    /// How a collective is laid out over ranks; NCCL's numbers 0 to 6.
    Algorithm {
        /// Double binary tree.
        Tree = "TREE",
        /// Ring.
        Ring = "RING",
        /// CollNet, every GPU to the network.
        CollNetDirect = "COLLNETDIRECT",
        /// CollNet, a chain inside the node.
        CollNetChain = "COLLNETCHAIN",
        /// NVLink SHARP inside one NVLink domain.
        Nvls = "NVLS",
        /// NVLink SHARP inside, tree between nodes.
        NvlsTree = "NVLSTREE",
        /// Parallel aggregated trees (2.23 and later).
        Pat = "PAT",
    }
}

words! {
    /// How bytes are handed over; NCCL's numbers 0 to 2.
    Protocol {
        /// 8-byte words, half of them flags.
        Ll = "LL",
        /// 128-byte lines with a flag each.
        Ll128 = "LL128",
        /// Chunks with a fence.
        Simple = "SIMPLE",
    }
}

/// One choice. Written `AUTO`, `TREE/SIMPLE`, `RING/LL128@8` (eight channels) or `AUTO@4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arm {
    /// The algorithm and protocol, or `None` for what NCCL's own cost model chooses.
    pub forced: Option<(Algorithm, Protocol)>,
    /// The number of channels, 1 to 64, or `None` for what NCCL chooses.
    pub channels: Option<u8>,
}

/// The most channels that NCCL has.
pub const CHANNELS_MAX: u8 = 64;

impl Arm {
    /// What NCCL does by itself.
    pub const AUTO: Arm = Arm { forced: None, channels: None };

    /// An algorithm and a protocol, with NCCL's channel count.
    pub const fn new(algorithm: Algorithm, protocol: Protocol) -> Self {
        Arm { forced: Some((algorithm, protocol)), channels: None }
    }

    /// True for what NCCL does by itself.
    pub fn is_auto(self) -> bool {
        self == Arm::AUTO
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.forced {
            None => "AUTO".to_string(),
            Some((a, p)) => format!("{a}/{p}"),
        };
        f.pad(&self.channels.map_or(name.clone(), |c| format!("{name}@{c}")))
    }
}

impl FromStr for Arm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (name, channels) = match text.split_once('@') {
            None => (text, None),
            Some((name, c)) => {
                let n = c.trim().parse::<u8>().ok().filter(|n| (1..=CHANNELS_MAX).contains(n));
                let n =
                    n.ok_or_else(|| format!("`{text}`: channels are a number from 1 to {CHANNELS_MAX}, not {c:?}"))?;
                (name, Some(n))
            }
        };
        if name.eq_ignore_ascii_case("auto") {
            return Ok(Arm { forced: None, channels });
        }
        let (a, p) = name.split_once('/').ok_or_else(|| {
            format!("`{text}` is not an arm; write AUTO, TREE/SIMPLE or RING/LL128@8 (eight channels)")
        })?;
        let algorithm = a.parse().map_err(|e| format!("`{text}`: algorithm {e}"))?;
        let protocol = p.parse().map_err(|e| format!("`{text}`: protocol {e}"))?;
        Ok(Arm { forced: Some((algorithm, protocol)), channels })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_arm_reads_back_as_it_is_written(a in 0usize..7, p in 0usize..3, auto: bool, c in proptest::option::of(1u8..=64)) {
            let forced = (!auto).then(|| (Algorithm::ALL[a], Protocol::ALL[p]));
            let arm = Arm { forced, channels: c };
            prop_assert_eq!(arm.to_string().parse::<Arm>(), Ok(arm));
        }
    }

    #[test]
    fn what_is_no_arm_is_refused_with_the_reason() {
        for bad in ["", "TREE", "TREE/", "TREE/FAST", "HEDGE/LL", "RING/LL@0", "RING/LL@65", "AUTO@x"] {
            let error = bad.parse::<Arm>().unwrap_err();
            assert!(error.contains(bad), "{error}");
        }
    }
}
