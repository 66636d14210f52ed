//! NCCL's double binary tree over hosts: how many tree links every host has.

/// Links of `rank` in one binary tree over `n` ranks: its parent and its children. In NCCL's tree the lowest set bit of a rank is its
/// height; the left child is one half step down, the right one the highest existing rank of the other half (src/graph/trees.cc).
fn degree(n: usize, rank: usize) -> usize {
    match (n, rank) {
        (0 | 1, _) => 0,
        (_, 0) => 1,             // the root has one child
        _ if rank % 2 == 1 => 1, // a leaf
        _ => 2 + usize::from(rank + 1 < n),
    }
}

/// Links of a host in the first and in the second tree; the second mirrors (even host count) or shifts (odd) the first.
pub fn degrees(hosts: usize, host: usize) -> [usize; 2] {
    let other = if hosts.is_multiple_of(2) { hosts - 1 - host } else { (host + hosts - 1) % hosts };
    [degree(hosts, host), degree(hosts, other)]
}

/// L(N): bytes that the busiest host sends, over the size of the buffer, when each tree carries half: 1, 1.5, 2 for two, three, four
/// hosts or more. O(N) for small N; constant beyond eight, where it is 2.
pub fn load(hosts: usize) -> f64 {
    match hosts {
        0 | 1 => 0.0,
        9.. => 2.0,
        _ => (0..hosts).map(|h| degrees(hosts, h).iter().sum::<usize>() as f64 / 2.0).fold(0.0, f64::max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_host_carries_one_one_and_a_half_and_two_buffers() {
        assert_eq!([2, 3, 4, 5, 8].map(load), [1.0, 1.5, 2.0, 2.0, 2.0]);
    }

    #[test]
    fn a_tree_of_n_hosts_has_n_minus_one_links() {
        for n in 2..=64 {
            let ends: usize = (0..n).map(|h| degree(n, h)).sum();
            assert_eq!(ends, 2 * (n - 1), "{n} hosts");
        }
    }
}
