//! The switches above hosts, as placement counts them. A tier is an index into [`topology::Network::tiers`], nearest to the hosts first.

use std::collections::HashSet;
use topology::{Allocation, Cluster, HostId};

/// The switch of a tier above a host.
pub fn switch_of(cluster: &Cluster, tier: usize, host: HostId) -> usize {
    host.index() / cluster.network.tiers[tier].hosts_per_switch.max(1)
}

/// How many switches of a tier an allocation spans. O(hosts).
pub fn spanned(cluster: &Cluster, tier: usize, a: &Allocation) -> usize {
    a.parts().iter().map(|p| switch_of(cluster, tier, p.0)).collect::<HashSet<_>>().len()
}

/// How many switches of every tier an allocation spans, nearest to the hosts first. O(tiers x hosts).
pub fn spanned_by_tier(cluster: &Cluster, a: &Allocation) -> Vec<usize> {
    (0..cluster.network.tiers.len()).map(|t| spanned(cluster, t, a)).collect()
}
