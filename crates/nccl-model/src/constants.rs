//! The numbers of NCCL's cost model, per release: latencies in microseconds, bandwidths in GB/s.
//!
//! Source: `facts/nccl.md` sections 3.2 and 3.9, compared cell by cell with the tables that the real library prints
//! (`cargo run -p nccl-model --example check`). Rows are algorithms, columns are protocols, both in NCCL's order.

use crate::machines::CostModelGeneration;
use topology::nccl::Version;

/// Number of NCCL's algorithms.
pub(crate) const ALGORITHMS: usize = 7;
/// Number of NCCL's protocols: LL, LL128, Simple.
pub(crate) const PROTOCOLS: usize = 3;

/// Values for one, two, and more than two nodes.
type ByNodes = [f32; 3];
/// A value per algorithm and protocol.
type ByArm = [[f32; PROTOCOLS]; ALGORITHMS];

/// The kind of link that a hop crosses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HopLink {
    Nv = 0,
    Pci = 1,
    Net = 2,
}

/// The constants of one release.
#[derive(Clone, Debug)]
pub(crate) struct Constants {
    pub base_us: ByArm,
    pub hop_us: [ByArm; 3],
    /// Highest bandwidth of the LL protocol. Rows are GPU generations on one node, CPU vendors on several nodes.
    pub ll_max: [ByNodes; 4],
    pub ring_ll128_per_channel: [ByNodes; 4],
    pub tree_ll128_per_channel: [ByNodes; 4],
    pub tree_per_channel: [ByNodes; 4],
    pub nvls_tree_per_channel: [ByNodes; 4],
    /// Efficiency of NVLS on a GPU's NVLinks.
    pub nvls_efficiency: [f32; 4],
}

impl Constants {
    pub(crate) fn of(version: Version) -> Constants {
        let from = |minor, patch| version.at_least(2, minor, patch);
        Constants {
            base_us: base_us(version),
            hop_us: hop_us(version),
            ll_max: [
                [39.0, 39.0, 20.4],
                [87.7, 22.5, 19.0],
                [141.0, 45.0, 35.0],
                if from(32, 0) { [282.4, 90.0, 70.0] } else { [282.0, 90.0, 70.0] },
            ],
            ring_ll128_per_channel: [[20.0; 3], [20.0; 3], [36.7; 3], ring_ll128_of_blackwell(version)],
            tree_ll128_per_channel: tree_ll128_per_channel(version),
            tree_per_channel: tree_per_channel(version),
            nvls_tree_per_channel: nvls_tree_per_channel(version),
            nvls_efficiency: [0.0, 0.0, 0.85, 0.74],
        }
    }

    /// The cost model's row for a GPU generation. Releases before 2.25 treat Blackwell as Hopper.
    pub(crate) fn row(version: Version, class: CostModelGeneration) -> usize {
        match class {
            CostModelGeneration::Volta => 0,
            CostModelGeneration::Ampere => 1,
            CostModelGeneration::Hopper => 2,
            CostModelGeneration::Blackwell => 2 + usize::from(version.at_least(2, 25, 0)),
        }
    }
}

/// Latency of a call on one rank.
fn base_us(version: Version) -> ByArm {
    let none = [0.0; 3];
    let tree_simple = if version.at_least(2, 23, 0) { 8.4 } else { 0.0 };
    [[6.8, 14.0, tree_simple], [6.6, 14.0, 8.4], none, none, none, none, [8.0; 3]]
}

/// Latency of a hop over NVLink, PCIe and the network.
fn hop_us(version: Version) -> [ByArm; 3] {
    let tree_simple = if version.at_least(2, 23, 0) { [4.0, 4.0, 14.0] } else { [28.0; 3] };
    let nvls_tree_net = if version.at_least(2, 28, 9) { 20.9 } else { 14.0 };
    let simple = |us| [0.0, 0.0, us];
    [
        [
            [0.6, 1.25, tree_simple[0]],
            [0.6, 1.9, 3.4],
            simple(3.7),
            simple(2.8),
            simple(25.0),
            simple(25.0),
            simple(4.0),
        ],
        [[1.0, 1.9, tree_simple[1]], [1.0, 2.5, 5.7], simple(3.7), simple(2.8), simple(0.0), simple(0.0), simple(4.0)],
        [
            [5.0, 8.5, tree_simple[2]],
            [2.7, 4.0, 14.0],
            simple(31.0),
            simple(30.0),
            simple(18.0),
            simple(nvls_tree_net),
            simple(14.0),
        ],
    ]
}

fn ring_ll128_of_blackwell(version: Version) -> ByNodes {
    let from = |minor, patch| version.at_least(2, minor, patch);
    match () {
        _ if from(29, 7) => [40.0; 3],
        _ if from(29, 0) => [34.5; 3],
        _ if from(28, 9) => [73.4, 34.6, 73.4],
        _ => [73.4; 3],
    }
}

/// Releases before 2.28 give a Blackwell channel twice the bandwidth of a Hopper channel.
fn twice(hopper: ByNodes) -> ByNodes {
    hopper.map(|v| 2.0 * v)
}

fn tree_ll128_per_channel(version: Version) -> [ByNodes; 4] {
    let hopper = [36.7, 36.7, 29.0];
    let blackwell = match () {
        _ if version.at_least(2, 31, 0) => [55.6, 36.7, 20.0],
        _ if version.at_least(2, 28, 0) => [55.6, 31.67, 20.0],
        _ => twice(hopper),
    };
    [[20.0; 3], [20.0; 3], hopper, blackwell]
}

fn tree_per_channel(version: Version) -> [ByNodes; 4] {
    let hopper = [38.7, 41.4, 36.0];
    let blackwell = if version.at_least(2, 28, 0) { [70.0, 42.8, 24.0] } else { twice(hopper) };
    [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], hopper, blackwell]
}

fn nvls_tree_per_channel(version: Version) -> [ByNodes; 4] {
    let blackwell = match () {
        _ if version.at_least(2, 30, 3) => [0.0, 96.0, 80.0],
        _ if version.at_least(2, 28, 9) => [0.0, 96.0, 43.8],
        _ => [0.0, 96.0, 43.1],
    };
    [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [0.0, 57.7, 45.5], blackwell]
}

/// Factor of the bandwidth of trees, by `floor(log2(bytes / 64))`. It models the time that the pipeline of a tree costs
/// at medium sizes. The last entry applies to NVLSTree only.
pub(crate) const TREE_CORRECTION: [[f32; 24]; PROTOCOLS] = [
    [
        1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0,
        1.0, 1.0,
    ],
    [
        1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0,
        1.0, 1.0,
    ],
    [
        0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9,
        0.9, 0.9,
    ],
];
/// Number of entries that apply to Tree. Sizes from `64 << 23` bytes on are not corrected.
pub(crate) const TREE_CORRECTIONS: usize = 23;
