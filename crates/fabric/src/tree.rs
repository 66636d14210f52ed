//! NCCL's double binary tree over hosts: the number of tree links of every host.

/// Number of links of `rank` to parent and children in one binary tree over `n` ranks. In NCCL's tree the lowest set bit of a rank is its
/// height; the left child is one half step down, the right child the highest existing rank of the other half (src/graph/trees.cc).
fn link_count(n: usize, rank: usize) -> usize {
    match (n, rank) {
        (0 | 1, _) => 0,
        (_, 0) => 1,             // the root has one child
        _ if rank % 2 == 1 => 1, // a leaf
        _ => 2 + usize::from(rank + 1 < n),
    }
}

/// Number of links of a host in the first and second tree. The second tree mirrors (even host count) or shifts (odd) the first. O(1).
pub fn link_counts(hosts: usize, host: usize) -> [usize; 2] {
    let other = if hosts.is_multiple_of(2) { hosts - 1 - host } else { (host + hosts - 1) % hosts };
    [link_count(hosts, host), link_count(hosts, other)]
}

/// L(N): bytes that the busiest host sends over the buffer size, when each tree carries half: 1, 1.5, 2 for two, three, four or more hosts.
/// O(1).
pub fn busiest_host_load(hosts: usize) -> f64 {
    match hosts {
        0 | 1 => 0.0,
        9.. => 2.0,
        _ => (0..hosts).map(|h| link_counts(hosts, h).iter().sum::<usize>() as f64 / 2.0).fold(0.0, f64::max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_host_carries_one_one_and_a_half_and_two_buffers() {
        assert_eq!([2, 3, 4, 5, 8].map(busiest_host_load), [1.0, 1.5, 2.0, 2.0, 2.0]);
    }

    #[test]
    fn a_tree_of_n_hosts_has_n_minus_one_links() {
        for n in 2..=64 {
            let ends: usize = (0..n).map(|h| link_count(n, h)).sum();
            assert_eq!(ends, 2 * (n - 1), "{n} hosts");
        }
    }
}
