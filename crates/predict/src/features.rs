//! The features of the Gaussian process.
//!
//! Features depend only on counts, NIC rates and host types, never on the intra bandwidth of the chosen GPUs. Intra
//! bandwidth enters only through the bound, which rises with it. Therefore, for given counts and NICs, the mask with
//! the best intra bandwidth is the best under every fitted correction, and the exact search keeps one mask for each.

use crate::names::Names;
use crate::shares::HostShare;
use topology::Bytes;

/// Features of every cluster. If the hosts are of several types, one feature per host type follows.
pub const BASE_NAMES: [&str; 13] = [
    "ln thinnest NIC rate",
    "ln GPUs",
    "two hosts",
    "ln hosts",
    "thinnest over fattest",
    "ln second thinnest over thinnest",
    "ln second fattest over thinnest",
    "share of NIC rate left idle",
    "a host is taken whole",
    "every host gives more than half",
    "ln class intra over NIC",
    "ln size",
    "ln physics over NICs",
];
/// Index of the feature for the ratio of the physics to the plain NIC rule.
pub const PHYSICS_OVER_NICS: usize = 12;
/// Number of features of every cluster.
pub const BASE: usize = BASE_NAMES.len();
/// Maximum number of host types with their own feature.
pub const TYPES_MAX: usize = 8;
/// Maximum number of features.
pub const FEATURES_MAX: usize = BASE + TYPES_MAX;

/// A feature vector; only the first `feature_count` entries are used.
pub type Row = [f64; FEATURES_MAX];

/// Number of features of a cluster with `host_types` host types.
pub fn feature_count(host_types: usize) -> usize {
    if host_types < 2 { BASE } else { BASE + host_types.min(TYPES_MAX) }
}

const NIC_MAX_GB_PER_S: f64 = 1e5;

/// The features of a candidate of at least two hosts. `ln_physics_over_nics` is a field of the candidate's
/// [`crate::bound::Analytic`]. O(hosts).
pub(crate) fn features(parts: &[HostShare], names: &Names, size: Bytes, ln_physics_over_nics: f64) -> Row {
    let mut row = [0.0; FEATURES_MAX];
    let m = parts.len();
    let (mut lo1, mut lo2) = (f64::INFINITY, f64::INFINITY);
    let (mut hi1, mut hi2) = (0.0f64, 0.0f64);
    let (mut sum, mut gpus, mut whole, mut more_than_half) = (0.0, 0usize, false, true);
    let mut class = f64::INFINITY;
    for p in parts {
        let n = p.nic_gb_per_s.min(NIC_MAX_GB_PER_S);
        if n < lo1 {
            lo2 = lo1;
            lo1 = n;
        } else if n < lo2 {
            lo2 = n;
        }
        if n > hi1 {
            hi2 = hi1;
            hi1 = n;
        } else if n > hi2 {
            hi2 = n;
        }
        sum += n;
        gpus += p.count as usize;
        whole |= p.whole;
        more_than_half &= 2 * p.count > names.gpus_of(p.host_type);
        class = class.min(p.class_intra_gb_per_s);
    }
    let lo1 = lo1.max(1e-6);
    row[0] = lo1.ln();
    row[1] = (gpus as f64).ln();
    row[2] = f64::from(m == 2);
    row[3] = (m as f64).ln();
    row[4] = lo1 / hi1.max(lo1);
    row[5] = (lo2.min(NIC_MAX_GB_PER_S) / lo1).ln();
    row[6] = (hi2 / lo1).ln();
    row[7] = (sum - m as f64 * lo1) / sum.max(1e-9);
    row[8] = f64::from(whole);
    row[9] = f64::from(more_than_half);
    row[10] = if class.is_finite() { (class / lo1).ln().clamp(-2.0, 2.0) } else { 2.0 };
    row[11] = size.as_f64().max(1.0).ln();
    row[PHYSICS_OVER_NICS] = ln_physics_over_nics;
    for p in parts {
        if let Some(t) = names.feature_of(p.host_type) {
            // 1 if the thinnest host is of this type, smaller the more slack the type has, 0 if the type is absent.
            let slack = lo1 / p.nic_gb_per_s.clamp(lo1, NIC_MAX_GB_PER_S);
            row[BASE + t] = row[BASE + t].max(slack);
        }
    }
    row
}

/// Influence of a host of the candidate on its bandwidth: 1 for the thinnest host, small for hosts with slack.
pub fn host_weight(part: &HostShare, thinnest_gb_per_s: f64) -> f64 {
    let s = (thinnest_gb_per_s / part.nic_gb_per_s.min(NIC_MAX_GB_PER_S)).clamp(0.0, 1.0);
    s * s * s
}

/// The thinnest NIC side of a candidate, GB/s.
pub fn thinnest_gb_per_s(parts: &[HostShare]) -> f64 {
    parts.iter().map(|p| p.nic_gb_per_s).fold(NIC_MAX_GB_PER_S, f64::min)
}
