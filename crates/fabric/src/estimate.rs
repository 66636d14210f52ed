//! [`Fabric`]: bandwidth and time of a collective on an allocation, from topology alone.

use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, HostId, Seconds};

/// The algorithm that carries a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Ring over all ranks.
    Ring,
    /// Double binary tree over hosts, chain inside.
    Tree,
    /// NVLink SHARP inside one host.
    Nvls,
    /// NVLink SHARP inside, tree between hosts.
    NvlsTree,
    /// Direct sends.
    Direct,
}

/// What limits an allocation.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Bottleneck {
    /// GPU links inside one host.
    Host {
        /// The host.
        host: HostId,
    },
    /// One NIC (or the NICs that the chosen GPUs touch) of a host.
    Nic {
        /// The host.
        host: HostId,
        /// Index of the busiest NIC.
        nic: usize,
    },
    /// A link between two hosts or a switch tier.
    Network {
        /// `n0-n1` or the tier's name.
        name: String,
    },
    /// Latency, not bandwidth.
    Latency,
}

/// What an allocation should get.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Estimate {
    /// Bus bandwidth.
    pub busbw: Bandwidth,
    /// Time of one operation.
    pub time: Seconds,
    /// The algorithm assumed.
    pub algorithm: Algorithm,
    /// What limits it.
    pub bottleneck: Bottleneck,
}

/// The physics of one cluster.
#[derive(Clone, Debug)]
pub struct Fabric<'c> {
    cluster: &'c Cluster,
}

impl<'c> Fabric<'c> {
    /// Of a cluster that passed [`Cluster::check`].
    pub fn new(cluster: &'c Cluster) -> Self {
        Fabric { cluster }
    }
    /// The cluster.
    pub fn cluster(&self) -> &'c Cluster {
        self.cluster
    }
    /// What `collective` over `size` should get on `allocation` (two GPUs or more) of an otherwise idle cluster.
    pub fn estimate(&self, allocation: &Allocation, collective: Collective, size: Bytes) -> Estimate {
        let _ = (allocation, collective, size);
        unimplemented!("filled by the fabric work")
    }
}
