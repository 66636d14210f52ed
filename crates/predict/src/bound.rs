//! The analytic bound of an allocation: what its weakest host and its thinnest network side allow.

use crate::parts::Part;

/// Which limit a bound comes from; indices are into the parts it was computed of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// The links inside a host.
    Intra {
        /// Which part.
        part: usize,
    },
    /// The NICs of a host.
    Nic {
        /// Which part.
        part: usize,
    },
}

/// Bandwidth that the network side of an allocation allows at most, GB/s busbw, from the thinnest host's NICs.
///
/// Two hosts carry a tree, whose bus bandwidth is `2 (n - 1) / n` times the NICs' rate, since every byte crosses the pair once
/// per direction; three and more move like a ring, once the NICs' rate (facts: measurements, section 5).
pub fn network_gb_per_s(nic_min_gb_per_s: f64, hosts: usize, gpus: usize) -> f64 {
    match hosts {
        0 | 1 => f64::INFINITY,
        2 => nic_min_gb_per_s * 2.0 * (gpus as f64 - 1.0) / gpus as f64,
        _ => nic_min_gb_per_s,
    }
}

/// The bound of one candidate in GB/s busbw, and where it comes from. 0 for fewer than two GPUs. O(hosts).
///
/// For a given set of counts and NIC rates it never falls when a part's intra bandwidth rises: searches rely on that.
pub fn bound(parts: &[Part]) -> (f64, Limit) {
    let mut intra = (f64::INFINITY, 0);
    let mut nic = (f64::INFINITY, 0);
    let mut gpus = 0usize;
    for (i, p) in parts.iter().enumerate() {
        gpus += p.count as usize;
        if p.intra_gb_per_s < intra.0 {
            intra = (p.intra_gb_per_s, i);
        }
        if p.nic_gb_per_s < nic.0 {
            nic = (p.nic_gb_per_s, i);
        }
    }
    if gpus < 2 {
        return (0.0, Limit::Intra { part: 0 });
    }
    let network = network_gb_per_s(nic.0, parts.len(), gpus);
    let (value, limit) = if intra.0 <= network {
        (intra.0, Limit::Intra { part: intra.1 })
    } else {
        (network, Limit::Nic { part: nic.1 })
    };
    // A host without any listed NIC and single GPUs everywhere leaves nothing to bound with.
    (if value.is_finite() { value } else { UNKNOWN_GB_PER_S }, limit)
}

/// Stands in where the topology names no limit at all (no NIC listed, one GPU per host).
pub const UNKNOWN_GB_PER_S: f64 = 1.0;
