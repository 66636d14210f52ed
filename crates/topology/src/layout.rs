//! Derives the matrix of paths from groups of GPUs (sockets, PCIe switches), so that a file does not need a label for
//! every pair of GPUs.

use crate::host::PathKind;

/// Groups of GPUs that share a part of the host. A GPU is in at most one group of each kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    /// GPUs of every NUMA node: `NODE` inside, `SYS` between. Empty: one node.
    pub sockets: Vec<Vec<usize>>,
    /// GPUs below one PCIe host bridge: `PHB`.
    pub host_bridges: Vec<Vec<usize>>,
    /// GPUs below one tree of several PCIe switches: `PXB`.
    pub pcie_switch_trees: Vec<Vec<usize>>,
    /// GPUs on one PCIe switch: `PIX`.
    pub pcie_switches: Vec<Vec<usize>>,
}

impl Layout {
    /// The path between every two of `n` GPUs without NVLink: the nearest part that both GPUs share. O(n² x groups).
    pub fn paths(&self, n: usize) -> Vec<Vec<PathKind>> {
        let share = |groups: &[Vec<usize>], i, j| groups.iter().any(|g| g.contains(&i) && g.contains(&j));
        let path = |i, j| {
            if i == j {
                PathKind::Same
            } else if share(&self.pcie_switches, i, j) {
                PathKind::Pix
            } else if share(&self.pcie_switch_trees, i, j) {
                PathKind::Pxb
            } else if share(&self.host_bridges, i, j) {
                PathKind::Phb
            } else if self.sockets.is_empty() || share(&self.sockets, i, j) {
                PathKind::Node
            } else {
                PathKind::Sys
            }
        };
        (0..n).map(|i| (0..n).map(|j| path(i, j)).collect()).collect()
    }

    /// Socket of every GPU: the index in [`Layout::sockets`], 0 for a GPU without a group.
    pub fn socket_of(&self, gpu: usize) -> u8 {
        self.sockets.iter().position(|g| g.contains(&gpu)).unwrap_or(0) as u8
    }

    /// `0..n` divided into groups of `size`: `[[0,1],[2,3]]`.
    pub fn runs(n: usize, size: usize) -> Vec<Vec<usize>> {
        (0..n).collect::<Vec<_>>().chunks(size.max(1)).map(<[usize]>::to_vec).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use PathKind::*;

    #[test]
    fn the_nearest_shared_part_gives_the_path() {
        let layout = Layout {
            sockets: Layout::runs(8, 4),
            pcie_switch_trees: Layout::runs(8, 4),
            pcie_switches: vec![vec![2, 3], vec![6, 7]],
            ..Layout::default()
        };
        let m = layout.paths(8);
        assert_eq!(m[2], [Pxb, Pxb, Same, Pix, Sys, Sys, Sys, Sys]);
        assert_eq!(layout.socket_of(5), 1);
        assert_eq!(Layout::default().paths(2), [[Same, Node], [Node, Same]]);
    }
}
