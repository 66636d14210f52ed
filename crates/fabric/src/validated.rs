//! The range of published measurements on several hosts. Inside this range the network constants were fitted or
//! checked. Outside, they are extrapolated.

use crate::constants::GpuClass;
use std::fmt;
use topology::{Allocation, Bytes, Cluster, Collective, NetworkClass};

/// Published measurements of a collective on one class of network: the largest number of hosts and ranks, and the sizes.
struct Published {
    network: NetworkClass,
    /// First and last generation of the oldest GPU.
    gpus: (GpuClass, GpuClass),
    hosts_max: usize,
    ranks_max: usize,
    sizes: (u64, u64),
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// All-reduce: the tables that `linkwise-lab validate` reads ([`crate::constants`] names them).
const ALL_REDUCE: [Published; 7] = [
    // ABCI 2.0.
    published(NetworkClass::Infiniband, (GpuClass::Ampere, GpuClass::Ampere), 16, 128, (4, 8 * GIB)),
    // BandPilot's four hosts from 16 MiB; two H20 hosts from 1 MiB; ten H100 hosts.
    published(NetworkClass::Infiniband, (GpuClass::Hopper, GpuClass::Hopper), 10, 80, (MIB, 16 * GIB)),
    // Alps (GH200, Slingshot).
    published(NetworkClass::Roce, (GpuClass::Hopper, GpuClass::Hopper), 512, 2048, (8, 4 * GIB)),
    // p3dn, p4d, p4de.
    published(NetworkClass::Efa, (GpuClass::Pascal, GpuClass::Volta), 8, 64, (8, 32 * KIB)),
    published(NetworkClass::Efa, (GpuClass::Ampere, GpuClass::Ampere), 2, 16, (8, 2 * GIB)),
    // p5, p6.
    published(NetworkClass::Efa, (GpuClass::Hopper, GpuClass::Blackwell), 4, 32, (8, 16 * GIB)),
    published(NetworkClass::RdmaNoGdr, (GpuClass::Hopper, GpuClass::Hopper), 2, 2, (GIB, 24 * GIB)),
];
/// All-gather, reduce-scatter and all-to-all: ten H100 hosts.
const OTHERS: [Published; 1] =
    [published(NetworkClass::Infiniband, (GpuClass::Hopper, GpuClass::Hopper), 10, 80, (31 * MIB, 16 * GIB))];

const fn published(
    network: NetworkClass,
    gpus: (GpuClass, GpuClass),
    hosts_max: usize,
    ranks_max: usize,
    sizes: (u64, u64),
) -> Published {
    Published { network, gpus, hosts_max, ranks_max, sizes }
}

/// Reason why an allocation is outside the range.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "outside", rename_all = "kebab-case")]
pub enum Outside {
    /// No published measurement of this collective over several hosts with these GPUs on this network.
    Fabric {
        /// The network's class.
        network: NetworkClass,
        /// The oldest generation of GPUs.
        gpus: GpuClass,
    },
    /// More hosts than in any published measurement.
    Hosts {
        /// Hosts of the allocation.
        hosts: usize,
        /// Largest number of hosts measured.
        measured_max: usize,
    },
    /// More ranks than in any published measurement.
    Ranks {
        /// GPUs of the allocation.
        ranks: usize,
        /// Largest number of ranks measured.
        measured_max: usize,
    },
    /// A message outside the range of measured sizes.
    Size {
        /// The size.
        size: Bytes,
        /// Smallest and largest size measured.
        measured: (Bytes, Bytes),
    },
}

impl fmt::Display for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outside::Fabric { network, gpus } => {
                write!(f, "{gpus:?} GPUs on {network:?}: no published measurement over several hosts")
            }
            Outside::Hosts { hosts, measured_max } => write!(f, "{hosts} hosts (measured: up to {measured_max})"),
            Outside::Ranks { ranks, measured_max } => write!(f, "{ranks} GPUs (measured: up to {measured_max})"),
            Outside::Size { size, measured: (from, to) } => write!(f, "{size} (measured: {from} to {to})"),
        }
    }
}

/// The reasons why an allocation is outside the range of published measurements of its collective, network and GPUs.
/// Empty inside the range, and for one host. O(hosts of the allocation).
pub fn validated(cluster: &Cluster, allocation: &Allocation, collective: Collective, size: Bytes) -> Vec<Outside> {
    let (hosts, ranks) = (allocation.host_count(), allocation.gpu_count());
    if hosts < 2 {
        return Vec::new();
    }
    // All hosts of a type have the same GPUs, so check each type once.
    let mut used = vec![false; cluster.types.len()];
    allocation.parts().iter().for_each(|p| used[cluster.host(p.0).host_type] = true);
    let of_type = |t: usize| GpuClass::of(&cluster.types[t].gpu_model);
    let oldest = (0..used.len()).filter(|t| used[*t]).map(of_type).min().unwrap_or(GpuClass::Ampere);
    let table: &[Published] = match collective {
        Collective::AllReduce => &ALL_REDUCE,
        Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => &OTHERS,
        _ => &[],
    };
    let network = cluster.network.class;
    let row = table.iter().find(|p| p.network == network && (p.gpus.0..=p.gpus.1).contains(&oldest));
    let Some(p) = row else { return vec![Outside::Fabric { network, gpus: oldest }] };
    let mut out = Vec::new();
    if hosts > p.hosts_max {
        out.push(Outside::Hosts { hosts, measured_max: p.hosts_max });
    }
    if ranks > p.ranks_max {
        out.push(Outside::Ranks { ranks, measured_max: p.ranks_max });
    }
    if !(p.sizes.0..=p.sizes.1).contains(&size.0) {
        out.push(Outside::Size { size, measured: (Bytes(p.sizes.0), Bytes(p.sizes.1)) });
    }
    out
}
