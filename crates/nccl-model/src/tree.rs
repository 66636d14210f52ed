//! NCCL's double binary tree over hosts.

/// A host's parent and children in one tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeNode {
    /// The parent; `None` at the root.
    pub up: Option<u32>,
    /// The children.
    pub down: [Option<u32>; 2],
}

impl TreeNode {
    /// Links to other hosts.
    pub fn links(&self) -> u32 {
        u32::from(self.up.is_some()) + self.down.iter().flatten().count() as u32
    }
}

/// Parent and children of `node` in the binary tree of `hosts` nodes whose leaves are the odd numbers. O(log hosts).
fn binary(hosts: u32, node: u32) -> TreeNode {
    let lowest = if node == 0 { hosts.next_power_of_two() } else { 1 << node.trailing_zeros() };
    let up = (node != 0).then(|| {
        let up = (node ^ lowest) | lowest << 1;
        if up < hosts { up } else { node ^ lowest }
    });
    let step = lowest >> 1;
    if node == 0 {
        // The root's only child is in the second slot.
        return TreeNode { up, down: [None, (hosts > 1).then_some(step)] };
    }
    let mut down = [None, None];
    if step > 0 {
        down[0] = Some(node - step);
        let mut reach = step;
        while reach > 0 && node + reach >= hosts {
            reach >>= 1;
        }
        down[1] = (reach > 0).then_some(node + reach);
    }
    TreeNode { up, down }
}

/// Parent and children of `node` in both trees. The second tree is the first tree mirrored (even number of hosts) or
/// shifted (odd number), so inner nodes of one tree are leaves of the other. O(log hosts).
pub fn double_tree(hosts: u32, node: u32) -> [TreeNode; 2] {
    let other = |n: u32| if hosts.is_multiple_of(2) { hosts - 1 - n } else { (n + 1) % hosts };
    let to = |n: u32| if hosts.is_multiple_of(2) { hosts - 1 - n } else { (n + hosts - 1) % hosts };
    let second = binary(hosts, to(node));
    [binary(hosts, node), TreeNode { up: second.up.map(other), down: second.down.map(|d| d.map(other)) }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_trees_span_all_hosts_and_inner_nodes_are_leaves_of_the_other() {
        for hosts in 1..=70u32 {
            for tree in 0..2 {
                let nodes: Vec<TreeNode> = (0..hosts).map(|h| double_tree(hosts, h)[tree]).collect();
                assert_eq!(nodes.iter().filter(|n| n.up.is_none()).count(), 1, "{hosts} hosts, one root");
                for (h, n) in nodes.iter().enumerate() {
                    for d in n.down.iter().flatten() {
                        assert_eq!(nodes[*d as usize].up, Some(h as u32), "{hosts} hosts: {h} and {d} disagree");
                    }
                    if let Some(up) = n.up {
                        assert!(nodes[up as usize].down.contains(&Some(h as u32)));
                    }
                }
            }
            let both =
                (0..hosts).filter(|&h| double_tree(hosts, h).iter().all(|n| n.down.iter().flatten().count() == 2));
            assert!(hosts < 3 || both.count() <= 1, "{hosts} hosts");
        }
    }
}
