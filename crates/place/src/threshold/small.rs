//! Candidates on one host and on two.

use super::Rules;
use super::candidates::Pool;
use super::levels::Levels;
use crate::options::HostOptions;
use predict::HostShare;
use predict::bound::network_at_most_gb_per_s;
use topology::GPUS_PER_HOST_MAX;

/// Two-host candidates.
const PAIRS_MAX: usize = 64;
/// Single-host candidates.
const SINGLES_MAX: usize = 16;

/// The best hosts that can hold the whole job.
pub(super) fn singles(options: &[HostOptions], k: usize, rules: Rules, pool: &mut Pool) {
    if k > GPUS_PER_HOST_MAX || rules.counts >> k & 1 == 0 {
        return;
    }
    let mut best: Vec<&HostShare> =
        options.iter().filter_map(|o| o.by_count.get(k - 1)).filter_map(|parts| inside(parts)).collect();
    best.sort_by(|a, b| b.intra_gb_per_s.total_cmp(&a.intra_gb_per_s));
    // One GPU has no collective traffic: hosts differ only in the GPUs that stay free, so all hosts are offered.
    let most = if k == 1 { best.len() } else { SINGLES_MAX };
    for p in best.into_iter().take(most) {
        pool.add(&[*p]);
    }
}

fn inside(parts: &[HostShare]) -> Option<&HostShare> {
    parts.iter().max_by(|a, b| a.intra_gb_per_s.total_cmp(&b.intra_gb_per_s))
}

/// Two-host candidates with any counts: for every type, count and NIC rate the two hosts with the highest intra
/// bandwidth, combined in every way; of these the most promising.
pub(super) fn pairs(levels: &Levels, k: usize, rules: Rules, pool: &mut Pool) {
    if k > 2 * (levels.stride - 1) || rules.hosts_max < 2 {
        return;
    }
    let champions = levels.champions(rules.counts);
    let mut found: Vec<(f64, &HostShare, &HostShare)> = Vec::new();
    for (i, a) in champions.iter().enumerate() {
        for b in &champions[..i] {
            if usize::from(a.count) + usize::from(b.count) == k
                && a.host != b.host
                && (a.count == b.count || !rules.equal)
            {
                let nic = network_at_most_gb_per_s(a.nic_gb_per_s.min(b.nic_gb_per_s), 2, k);
                found.push((a.intra_gb_per_s.min(b.intra_gb_per_s).min(nic), a, b));
            }
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (_, a, b) in found.into_iter().take(PAIRS_MAX) {
        pool.add(&if a.host < b.host { [*a, *b] } else { [*b, *a] });
    }
}
