//! NCCL's double binary tree over hosts: the number of tree links of every host.

use crate::crossing::JobCrossings;

/// Number of links of `rank` to its parent and children in one binary tree over `n` ranks. In NCCL's tree the lowest
/// set bit of a rank is its height. The left child is half of that bit lower, the right child is the highest existing
/// rank of the other half (src/graph/trees.cc).
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

/// The parent of `rank` in the first tree over `n` ranks; `None` for the root, rank 0.
fn parent(n: usize, rank: usize) -> Option<usize> {
    if rank == 0 {
        return None;
    }
    let bit = 1 << rank.trailing_zeros();
    let up = (rank ^ bit) | (bit << 1);
    Some(if up < n { up } else { rank ^ bit })
}

/// The links of both trees over `n` hosts: `(tree, host, its parent)`. O(hosts).
pub fn links(n: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    // The positions in the second tree are those of `link_counts`.
    let other = move |place: usize| if n.is_multiple_of(2) { n - 1 - place } else { (place + 1) % n };
    (1..n)
        .filter_map(move |rank| Some((rank, parent(n, rank)?)))
        .flat_map(move |(rank, up)| [(0, rank, up), (1, other(rank), other(up))])
}

/// For every switch, the number of links of both trees that leave the hosts below it. `switch_of[i]` is the switch
/// above host `i` of the trees, less than `switches`. O(hosts).
pub fn links_that_leave(switch_of: &[u32], switches: usize) -> Vec<u32> {
    let mut out = vec![0; switches];
    for (_, a, b) in links(switch_of.len()) {
        let (a, b) = (switch_of[a] as usize, switch_of[b] as usize);
        if a != b {
            out[a] += 1;
            out[b] += 1;
        }
    }
    out
}

/// By host, the load of its links in each tree: 1 for a link that loses nothing. O(hosts x tiers).
pub fn link_loads(hosts: usize, crossings: &JobCrossings) -> Vec<[f64; 2]> {
    let mut out = vec![[0.0; 2]; hosts];
    for (tree, a, b) in links(hosts) {
        let load = crossings.load(a, b);
        out[a][tree] += load;
        out[b][tree] += load;
    }
    out
}

/// L(N): bytes that the busiest host sends, as a multiple of the buffer size, if each tree carries half: 1 for two
/// hosts, 1.5 for three, 2 for four or more. O(1).
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
    fn links_between_switches_of_one_host_each_are_the_links_of_the_hosts() {
        for n in 2..=64 {
            let each: Vec<u32> = (0..n as u32).collect();
            let links: Vec<u32> = (0..n).map(|h| link_counts(n, h).iter().sum::<usize>() as u32).collect();
            assert_eq!(links_that_leave(&each, n), links, "{n} hosts");
            assert_eq!(links_that_leave(&vec![0; n], 1), [0], "all below one switch");
        }
        // Two halves of eight hosts: each tree has one link between them.
        assert_eq!(links_that_leave(&[0, 0, 0, 0, 1, 1, 1, 1], 2).iter().sum::<u32>() % 2, 0);
    }

    #[test]
    fn a_tree_of_n_hosts_has_n_minus_one_links() {
        for n in 2..=64 {
            let ends: usize = (0..n).map(|h| link_count(n, h)).sum();
            assert_eq!(ends, 2 * (n - 1), "{n} hosts");
        }
    }
}
