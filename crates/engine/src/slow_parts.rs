//! Parts of the network that are slower than their kind, as readings show them.

use predict::{Part, SlowPart};
use serde::{Deserialize, Serialize};
use topology::Cluster;

/// A part of the network that is slower than its kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SlowPartAnswer {
    /// The part in words: `rail 3`, `the hosts below leaf 2`, `NIC mlx5_3 of n1`.
    pub part: String,
    /// `rail`, `switch`, `host` or `nic`.
    pub kind: String,
    /// Estimated share of its full rate, 0 to 1.
    pub factor: f64,
    /// Number of readings of several hosts that it slows.
    pub readings: u32,
}

impl SlowPartAnswer {
    pub(crate) fn new(cluster: &Cluster, s: &SlowPart) -> SlowPartAnswer {
        let kind = match s.part {
            Part::Rail { .. } | Part::SwitchRail { .. } => "rail",
            Part::Switch { .. } => "switch",
            Part::Host { .. } => "host",
            Part::Nic { .. } => "nic",
        };
        SlowPartAnswer { part: s.part.name(cluster), kind: kind.into(), factor: s.factor, readings: s.readings }
    }
}
