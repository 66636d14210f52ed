//! The least work of branch and bound, known before it begins.

use crate::options::HostOptions;
use predict::{BandwidthModel, HostShare};

/// A number of nodes that branch and bound visits at least for a request without constraints on its shape, counted until it is above `most`.
///
/// No candidate is better than the best bound of a single part among the fewest hosts that can hold `k` GPUs. A branch whose own bound reaches this one is
/// never pruned, whatever is found meanwhile. Such a branch takes or skips, one after another, the hosts that have a part at least as fast as that one; their
/// number is a sum of binomial coefficients. O(parts + `most`).
pub(super) fn least_nodes(model: &dyn BandwidthModel, k: usize, options: &[HostOptions], most: u64) -> u64 {
    let largest = options.iter().map(|o| o.by_count.len()).max().unwrap_or(0);
    let hosts_min = k.div_ceil(largest.max(1));
    if hosts_min < 2 {
        return 0; // one host has no such bound
    }
    let bound = |p: &HostShare, hosts| {
        let most = model.upper_bound_hosts_or_more(p.intra_gb_per_s, p.nic_gb_per_s, hosts, k);
        most.unwrap_or(f64::INFINITY)
    };
    let parts = || options.iter().flat_map(|o| o.by_count.iter().flatten());
    let best = parts().map(|p| bound(p, hosts_min)).fold(0.0, f64::max);
    let slower = |a: &&HostShare, b: &&HostShare| {
        a.nic_gb_per_s.total_cmp(&b.nic_gb_per_s).then(a.intra_gb_per_s.total_cmp(&b.intra_gb_per_s))
    };
    let Some(least) = parts().filter(|p| bound(p, hosts_min) >= best).min_by(slower) else { return 0 };
    let Some(hosts) = Hosts::of(options, k, least) else { return 0 };
    let unpruned = |taken: u64| bound(least, taken as usize + 1) >= best && taken * hosts.gives_most < k as u64;
    hosts.branches((0..=hosts.number).take_while(|t| unpruned(*t)), most)
}

/// The hosts that a branch takes or skips; it skips all others.
struct Hosts {
    number: u64,
    /// Free GPUs that a branch may pass over.
    spare: u64,
    /// The most GPUs that it passes over at a host that it skips, and at one that it takes.
    skipped_most: u64,
    left_most: u64,
    /// The most GPUs that it takes of a host.
    gives_most: u64,
}

impl Hosts {
    /// The hosts with a part at least as fast as `least`; none if the others have more GPUs than may be passed over.
    fn of(options: &[HostOptions], k: usize, least: &HostShare) -> Option<Hosts> {
        let fast = |p: &HostShare| p.nic_gb_per_s >= least.nic_gb_per_s && p.intra_gb_per_s >= least.intra_gb_per_s;
        let all: usize = options.iter().map(|o| o.by_count.len()).sum();
        let mut hosts =
            Hosts { number: 0, spare: all.checked_sub(k)? as u64, skipped_most: 1, left_most: 0, gives_most: 1 };
        for o in options {
            let free = o.by_count.len();
            match o.by_count.iter().rposition(|parts| parts.iter().any(fast)) {
                Some(i) => {
                    hosts.number += 1;
                    hosts.skipped_most = hosts.skipped_most.max(free as u64);
                    hosts.left_most = hosts.left_most.max((free - i - 1) as u64);
                    hosts.gives_most = hosts.gives_most.max(i as u64 + 1);
                }
                None => hosts.spare = hosts.spare.checked_sub(free as u64)?,
            }
        }
        Some(hosts)
    }

    /// The number of branches that take as many hosts as `taken` says, in any order with the hosts that they skip, until it is above `most`.
    fn branches(&self, taken: impl Iterator<Item = u64>, most: u64) -> u64 {
        let mut sum = 0;
        for t in taken {
            let Some(spare) = self.spare.checked_sub(t * self.left_most) else { break };
            let skips_max = (spare / self.skipped_most).min(self.number - t);
            let mut orders = 1u64; // of t taken hosts and s skipped ones
            for s in 1..=skips_max + 1 {
                sum += orders;
                if sum > most {
                    return sum;
                }
                orders = orders.saturating_mul(s + t) / s;
            }
        }
        sum
    }
}
