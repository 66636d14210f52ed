//! The shipped constants. The fields that [`super`] marks as fitted are least-squares fits of the logarithm of the time
//! to these tables:
//!
//! - rings, NVLS and all-to-all of A100, H100 and B200 hosts: the one-node sweeps of ai-dynamo/aiconfigurator and BandPilot's H100 tables;
//! - V100: BandPilot's tables;
//! - PCIe: the RTX PRO 6000 sweeps;
//! - InfiniBand: BandPilot's four hosts (16 MiB) and the small messages of ABCI 2.0;
//! - EFA: AWS's published runs.
//!
//! `linkwise validate --cross-fit` fits these fields again on half of the measurement families and reports the error on
//! the other half. The other fields are measured or nominal.

use super::{ClassConstants, Constants, LatencyCurve, NetworkConstants, PcieConstants, ShareConstants};

const fn curve(base_us: f64, step_us: f64, fill_us: f64, fill_at: f64, fill_power: f64) -> LatencyCurve {
    LatencyCurve { base_us, step_us, fill_us, fill_at, fill_power }
}

/// RoCE. Networks without their own fit (RDMA without GPUDirect, TCP) use its latencies.
const ROCE: NetworkConstants = NetworkConstants {
    efficiency: 0.92,
    tree_base_us: 10.5,
    tree_level_us: 12.9,
    tree_chunk: 1.37,
    ring_base_us: 12.8,
    ring_step_us: 10.0,
    nvls_tree_base_us: 62.7,
    nvls_tree_level_us: 49.8,
    nvls_tree_chunk: 0.703,
    chunk_max_us: 650.0,
    ramp_us: 7.24,
    ramp_at: 6.57e6,
};

/// The value of [`Constants::default`].
pub(super) const SHIPPED: Constants = Constants {
    // Every class lists all its values, so that a new fit changes one class only.
    classes: [
        // Pascal: P100.
        ClassConstants {
            link_efficiency: 0.868,
            full_ring_gb_per_s: 69.4,
            ring: curve(4.14, 0.759, 7.511, 8.333e4, 0.4465),
            own_copy: 4.027,
            all_reduce_own_copy: 0.3714,
            nvls: curve(25.0, 0.01, 20.0, 1.0e7, 0.001),
            nvls_share: 0.85,
            all_to_all: curve(6.6, 0.3, 3.0, 1.0e5, 0.1),
            direct_share: 0.9,
            direct_own_copy: 3.0,
        },
        // Volta: V100.
        ClassConstants {
            link_efficiency: 0.905,
            full_ring_gb_per_s: 135.8,
            ring: curve(6.0, 0.6, 6.0, 1.0e6, 0.2),
            own_copy: 4.027,
            all_reduce_own_copy: 0.3714,
            nvls: curve(25.0, 0.01, 20.0, 1.0e7, 0.001),
            nvls_share: 0.85,
            all_to_all: curve(6.6, 0.3, 3.0, 1.0e5, 0.1),
            direct_share: 0.9,
            direct_own_copy: 3.0,
        },
        // Ampere: A100, A800, A6000, A40.
        ClassConstants {
            link_efficiency: 0.78,
            full_ring_gb_per_s: 234.0,
            ring: curve(8.84, 0.935, 13.76, 1.225e6, 0.067),
            own_copy: 2.97,
            all_reduce_own_copy: 1.0,
            nvls: curve(25.0, 0.01, 20.0, 1.0e7, 0.001),
            nvls_share: 0.85,
            all_to_all: curve(11.4, 0.331, 7.333, 6.1e5, 0.095),
            direct_share: 0.916,
            direct_own_copy: 3.55,
        },
        // Ada: L40S, RTX 4090.
        ClassConstants {
            link_efficiency: 0.78,
            full_ring_gb_per_s: 234.0,
            ring: curve(6.6, 1.0, 10.0, 1.0e6, 0.2),
            own_copy: 3.0,
            all_reduce_own_copy: 0.5,
            nvls: curve(25.0, 0.01, 20.0, 1.0e7, 0.0),
            nvls_share: 0.85,
            all_to_all: curve(6.6, 0.3, 3.0, 1.0e5, 0.1),
            direct_share: 0.9,
            direct_own_copy: 3.0,
        },
        // Hopper: H100, H200, H800, H20.
        ClassConstants {
            link_efficiency: 0.8133,
            full_ring_gb_per_s: 366.0,
            ring: curve(5.13, 0.837, 10.45, 2.355e6, 0.068),
            own_copy: 3.03,
            all_reduce_own_copy: 0.54,
            nvls: curve(68.88, 0.01, 59.33, 2.459e8, 0.001),
            nvls_share: 0.849,
            all_to_all: curve(6.154, 0.2267, 1.359, 9.41e3, 0.01),
            direct_share: 0.848,
            direct_own_copy: 5.86,
        },
        // Blackwell: B200, GB200, RTX PRO 6000.
        ClassConstants {
            link_efficiency: 0.7533,
            full_ring_gb_per_s: 678.0,
            ring: curve(7.9, 1.313, 6.256, 2.28e6, 0.187),
            own_copy: 2.57,
            all_reduce_own_copy: 0.893,
            nvls: curve(25.39, 0.01, 6.734, 1.42e4, 0.001),
            nvls_share: 0.71,
            all_to_all: curve(9.443, 0.17, 1.209, 7.2e3, 0.025),
            direct_share: 0.90,
            direct_own_copy: 1.168,
        },
    ],
    pcie: PcieConstants {
        switched: 0.7,
        bridge_pair: 0.64,
        bridge_ring: 0.42,
        bridge_two_rings: 0.76,
        bridge_shared_rings: 0.47,
        staged_gpu: 0.43,
        staged_socket: 0.52,
        gen3_sockets: 0.38,
        ring: curve(3.717, 1.672, 3.227, 6.01e4, 0.366),
        own_copy: 3.824,
        direct_own_copy: 6.0,
        all_to_all: curve(6.546, 0.542, 1.303, 3.084e4, 1.2),
        direct_share: 0.671,
    },
    networks: [
        // InfiniBand.
        NetworkConstants {
            efficiency: 0.974,
            tree_base_us: 31.7,
            tree_level_us: 5.9,
            tree_chunk: 9.14,
            ring_base_us: 6.76,
            ring_step_us: 8.16,
            nvls_tree_base_us: 62.9,
            nvls_tree_level_us: 30.5,
            nvls_tree_chunk: 0.855,
            chunk_max_us: 129.0,
            ramp_us: 27.6,
            ramp_at: 2.28e6,
        },
        ROCE,
        // EFA v2 and later (with H100 and later).
        NetworkConstants {
            efficiency: 0.92,
            tree_base_us: 36.6,
            tree_level_us: 32.2,
            tree_chunk: 12.0,
            ring_base_us: 12.6,
            ring_step_us: 15.4,
            nvls_tree_base_us: 128.7,
            nvls_tree_level_us: 115.6,
            nvls_tree_chunk: 0.327,
            chunk_max_us: 151.0,
            ramp_us: 7.57,
            ramp_at: 6.18e6,
        },
        // RDMA without GPUDirect.
        NetworkConstants { efficiency: 0.3, ..ROCE },
        // TCP.
        NetworkConstants { efficiency: 0.71, ..ROCE },
        // EFA v1 (with A100 and older).
        NetworkConstants {
            efficiency: 0.92,
            tree_base_us: 80.1,
            tree_level_us: 84.0,
            tree_chunk: 2.63,
            ring_base_us: 13.0,
            ring_step_us: 8.66,
            nvls_tree_base_us: 62.7,
            nvls_tree_level_us: 49.8,
            nvls_tree_chunk: 0.703,
            chunk_max_us: 279.0,
            ramp_us: 11.0,
            ramp_at: 6.01e6,
        },
    ],
    share: ShareConstants {
        channel_gb_per_s: 20.33,
        met: 0.342,
        incast: 1.008,
        incast_far: 1.041,
        scattered: 1.218,
        tree: 0.9,
        nvls_tree_many: 0.955,
        nvls_tree_ceiling: 0.667,
        tree_ll128: 1.65,
    },
    relay: 0.82,
};
