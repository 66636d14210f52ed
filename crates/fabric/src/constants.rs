//! The constants that cannot be derived from the topology: one set per GPU generation and one per network class.
//!
//! Every field says whether it is *nominal* (a property of the hardware or of NCCL, from a source), *measured* (the
//! plateau of a single link's bandwidth) or *fitted* (a latency or ramp that the fitter of `linkwise validate
//! --cross-fit` adjusted to published measurements). Measured bandwidths are not fitted to the families that `linkwise
//! validate` reports.

mod fitted;

use topology::NetworkClass;

/// GPU generation: GPUs with the same kind of links and kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuClass {
    /// P100: NVLink 1.
    Pascal,
    /// V100: NVLink 2.
    Volta,
    /// A100, A800, A6000, A40: NVLink 3.
    Ampere,
    /// L40S, RTX 4090: PCIe only.
    Ada,
    /// H100, H200, H800, H20: NVLink 4, NVLink SHARP.
    Hopper,
    /// B200, GB200, RTX PRO 6000: NVLink 5, NVLink SHARP.
    Blackwell,
}

impl GpuClass {
    /// The generation of a model name as `nvidia-smi -L` prints it; Ampere for unknown names.
    pub fn of(model: &str) -> GpuClass {
        Self::known(model).unwrap_or(GpuClass::Ampere)
    }

    /// The generation of a model name; `None` for unknown names.
    pub fn known(model: &str) -> Option<GpuClass> {
        let m: String = model.to_ascii_uppercase().replace(['_', '-'], " ");
        let has = |words: &[&str]| words.iter().any(|w| m.contains(w));
        Some(if has(&["B200", "B300", "B100", "RTX PRO", "5090", "5080"]) {
            GpuClass::Blackwell
        } else if has(&["H100", "H200", "H800", "H20", "GH200"]) {
            GpuClass::Hopper
        } else if has(&["L40", "L4 ", "L20", "4090", "4080", "6000 ADA"]) || m.ends_with("L4") {
            GpuClass::Ada
        } else if has(&["A100", "A800", "A6000", "A5000", "A4000", "A40", "A30", "A10", "3090"]) {
            GpuClass::Ampere
        } else if has(&["V100"]) {
            GpuClass::Volta
        } else if has(&["P100"]) {
            GpuClass::Pascal
        } else {
            return None;
        })
    }
}

/// `time = base + step * steps + bytes / bandwidth + fill * steps^power * ln(1 + size / fill_at)`: the alpha-beta model
/// plus the time to fill the pipeline. The chunks of the pipeline grow with the size, because NCCL changes from LL to
/// LL128 to Simple.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyCurve {
    /// Start of the kernel, microseconds (fitted).
    pub base_us: f64,
    /// Time per step of the algorithm, microseconds (fitted; NCCL's own table has 0.6 to 4.0).
    pub step_us: f64,
    /// Weight of the ramp, microseconds (fitted).
    pub fill_us: f64,
    /// Size where the ramp begins, bytes (fitted).
    pub fill_at: f64,
    /// Exponent of the number of steps in the ramp: 0 is no dependence, 1 is proportional (fitted).
    pub fill_power: f64,
}

impl LatencyCurve {
    /// Time without the transfer of bytes, microseconds. `width` is the ring rate of the GPU set divided by the ring
    /// rate of a fully linked set of the same generation. More lanes mean more channels. Each channel carries a smaller
    /// piece and fills its own pipeline: a DGX-1 V100 at 16 MiB loses 15 us with two rings, 30 to 42 us with four, 50
    /// us with six.
    pub fn overhead_us(&self, steps: f64, size: f64, width: f64) -> f64 {
        let fill = self.fill_us * width.sqrt() * steps.powf(self.fill_power) * (size / self.fill_at).ln_1p();
        self.base_us + self.step_us * steps + fill
    }
}

/// Constants of one GPU generation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassConstants {
    /// Share of a link's nominal rate that a ring reaches (measured): P100 17.36 of 20, V100 22.6 of 25, A100 19.5 of 25, H100 20.33 of 25,
    /// B200 37.7 of 50 GB/s (`facts/measurements.md` section 2; NCCL's own table has 18, 20, 20.6, 40 in src/graph/topo.h).
    pub link_efficiency: f64,
    /// Rate of a ring over all NVLinks of a GPU, GB/s (nominal links times `link_efficiency`): the unit of `width` in [`LatencyCurve`].
    pub full_ring_gb_per_s: f64,
    /// Ring collectives inside one host.
    pub ring: LatencyCurve,
    /// Rate at which a rank copies its own share in an out-of-place collective, divided by the ring's rate (fitted).
    pub own_copy: f64,
    /// Share of the time of such a copy that an all-reduce takes (fitted).
    pub all_reduce_own_copy: f64,
    /// NVLink SHARP all-reduce inside one host.
    pub nvls: LatencyCurve,
    /// Ratio of NVLink SHARP's constant B to the ring's rate (measured: 306.6/366 on H200, 309.6/366 on H100).
    pub nvls_share: f64,
    /// All-to-all inside one host.
    pub all_to_all: LatencyCurve,
    /// Ratio of the rate of direct sends to the ring's rate (fitted).
    pub direct_share: f64,
    /// As `own_copy`, for all-to-all (fitted).
    pub direct_own_copy: f64,
}

/// Constants of PCIe paths; rates are shares of the rate of a GPU's own link after line coding
/// ([`topology::Pcie::rate`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PcieConstants {
    /// A ring below PCIe switches (measured: A6000 0.68, WRX90 with Gen5 switches 0.74).
    pub switched: f64,
    /// Two GPUs across a host bridge (measured: L40S 20.1 of 31.5, RTX PRO 6000 38.6 of 63 GB/s).
    pub bridge_pair: f64,
    /// A ring of three or more across host bridges or sockets (measured: RTX PRO 6000 0.40, A6000 0.41, L40S 0.48).
    pub bridge_ring: f64,
    /// Two rings over NVLink pairs, one pair per socket (measured: A100 NC96 0.75, H100 pairs 0.77).
    pub bridge_two_rings: f64,
    /// Two rings over NVLink pairs, several pairs per socket that share the bridge (measured: 8x A6000 0.47).
    pub bridge_shared_rings: f64,
    /// No peer-to-peer: one GPU through host memory (measured: 4090 across sockets 0.43).
    pub staged_gpu: f64,
    /// No peer-to-peer: all GPUs of one socket together through its memory (measured: 4090 0.52).
    pub staged_socket: f64,
    /// Old host bridges between sockets (Gen3; measured on a DGX-1 V100: 4.0 to 9.3 of 15.8 GB/s).
    pub gen3_sockets: f64,
    /// Ring collectives.
    pub ring: LatencyCurve,
    /// Rate at which a rank copies its own share in an out-of-place collective, divided by the ring's rate (fitted).
    pub own_copy: f64,
    /// As `own_copy`, for all-to-all (fitted).
    pub direct_own_copy: f64,
    /// All-to-all.
    pub all_to_all: LatencyCurve,
    /// Ratio of the rate of direct sends to the ring's rate (fitted).
    pub direct_share: f64,
}

/// Constants of one network class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkConstants {
    /// Share of the NICs' line rate that payload reaches (measured: uncongested InfiniBand 0.95 to 0.98, RoCE and EFA 0.80 to 0.95,
    /// TCPX 0.71, no GPUDirect 0.30; `facts/measurements.md` section 5).
    pub efficiency: f64,
    /// Start of a tree over hosts, microseconds (fitted).
    pub tree_base_us: f64,
    /// Latency of a tree per doubling of the host count, microseconds (fitted).
    pub tree_level_us: f64,
    /// Weight of the chunk in flight on each level of a tree; see [`NetworkConstants::levels_us`] (fitted).
    pub tree_chunk: f64,
    /// Start of a ring over hosts, microseconds (fitted).
    pub ring_base_us: f64,
    /// Minimum time of a step of a ring over hosts, microseconds (fitted).
    pub ring_step_us: f64,
    /// Start of NVLSTree, microseconds (fitted).
    pub nvls_tree_base_us: f64,
    /// Latency of NVLSTree per doubling of the host count, microseconds (fitted).
    pub nvls_tree_level_us: f64,
    /// As `tree_chunk`, for NVLSTree (fitted).
    pub nvls_tree_chunk: f64,
    /// Time of the largest chunk on a level, microseconds (fitted).
    pub chunk_max_us: f64,
    /// Weight of the ramp of large messages of rings and direct sends (congestion control, registration), microseconds (fitted).
    pub ramp_us: f64,
    /// Size where that ramp begins, bytes (fitted).
    pub ramp_at: f64,
}

impl NetworkConstants {
    /// Cost of a tree's levels over `hosts` hosts, microseconds: each doubling of the host count adds a latency and one
    /// chunk in flight. A pipeline over `L` levels with chunks of `c` bytes takes `(L + S/c)(latency + c/B)`. The
    /// minimum is at the chunk whose transfer takes `sqrt(latency * (S/B) / L)`, where `S/B` is the time of the whole
    /// message (`flow_us`). NCCL's chunks grow in this way up to the size of its buffers. On 2 to 512 hosts of Alps a
    /// doubling costs 12.6 us at 8 B, 68 us at 1 MiB, 275 us at 16 MiB, and 380 to 530 us from 64 to 512 MiB.
    pub fn levels_us(&self, hosts: usize, level_us: f64, chunk: f64, flow_us: f64) -> f64 {
        let growing = chunk * (level_us * flow_us).sqrt();
        let chunk_us = if growing.is_finite() {
            growing / (1.0 + (growing / self.chunk_max_us).powi(4)).powf(0.25)
        } else {
            self.chunk_max_us
        };
        (hosts.max(1) as f64).log2() * (level_us + chunk_us)
    }

    /// Time of a ring, microseconds: each step has a minimum time, and the bytes take `flow_us`. Steps and bytes
    /// overlap in part, so the time is a soft maximum of order 2. (Order 4 fits ten H100 hosts best, a sum fits the 16
    /// MiB rows of BandPilot's four hosts best; order 2 has the smallest error over both.)
    pub fn ring_us(&self, steps: f64, flow_us: f64) -> f64 {
        (self.ring_base_us + self.ring_step_us * steps).hypot(flow_us)
    }
}

/// Weights of shared NICs, channels and trees (fitted to the NIC loads of NCCL's own rings and trees on half of
/// BandPilot's 2 GiB table).
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ShareConstants {
    /// Highest rate of one channel, GB/s (measured: 8+8+8 18.7, 8+8+8+8 19.8).
    pub channel_gb_per_s: f64,
    /// Weight of channels that share other NICs of the ring (fitted).
    pub met: f64,
    /// Load factor if several NICs send into one NIC (fitted).
    pub incast: f64,
    /// Load factor if several NICs send into one NIC and the receiving GPU is not next to that NIC (fitted).
    pub incast_far: f64,
    /// Further factor if the channels of one NIC end on several GPUs (fitted).
    pub scattered: f64,
    /// Ratio of the efficiency of trees to that of rings (fitted).
    pub tree: f64,
    /// Efficiency factor of NVLSTree on three hosts or more (fitted).
    pub nvls_tree_many: f64,
    /// Ratio of NVLSTree's highest algorithm bandwidth to the ring rate of one host (fitted: 244 of 366 GB/s).
    pub nvls_tree_ceiling: f64,
    /// Factor by which a tree over LL128 takes longer (fitted).
    pub tree_ll128: f64,
}

/// All constants. [`Constants::default`] gives the shipped constants. Fitting changes the fields marked as fitted.
#[derive(Clone, Debug, PartialEq)]
pub struct Constants {
    classes: [ClassConstants; 6],
    /// Constants of PCIe paths.
    pub pcie: PcieConstants,
    networks: [NetworkConstants; 6],
    /// Weights of shared NICs and channels.
    pub share: ShareConstants,
    /// Ratio of the rate of an NVLink hop through another GPU to that of a direct hop (measured: V100 18 of 22 GB/s).
    pub relay: f64,
}

const fn curve(base_us: f64, step_us: f64, fill_us: f64, fill_at: f64, fill_power: f64) -> LatencyCurve {
    LatencyCurve { base_us, step_us, fill_us, fill_at, fill_power }
}

impl Default for Constants {
    fn default() -> Self {
        fitted::SHIPPED
    }
}

impl Constants {
    /// The starting point of every fit: measured and nominal fields as shipped, and the same latencies for every
    /// generation, near those of NCCL's own cost model (base 6.6 us, 0.6 to 3.4 us per step, NVLS 25 us, network 14 us;
    /// `facts/nccl.md` 3.2).
    pub fn nominal() -> Constants {
        let mut c = Constants::default();
        for class in &mut c.classes {
            class.ring = curve(6.6, 1.0, 10.0, 1.0e6, 0.2);
            class.nvls = curve(25.0, 0.01, 20.0, 1.0e7, 0.0);
            class.all_to_all = curve(6.6, 0.3, 3.0, 1.0e5, 0.1);
            class.own_copy = 3.0;
            class.all_reduce_own_copy = 0.5;
            class.direct_share = 0.9;
            class.direct_own_copy = 3.0;
        }
        c.pcie.ring = curve(6.6, 1.0, 3.0, 1.0e5, 0.2);
        c.pcie.all_to_all = curve(6.6, 0.3, 3.0, 1.0e5, 0.1);
        c.pcie.own_copy = 3.0;
        c.pcie.direct_own_copy = 3.0;
        c.pcie.direct_share = 0.9;
        for n in &mut c.networks {
            n.tree_base_us = 20.0;
            n.tree_level_us = 14.0;
            n.tree_chunk = 2.0;
            n.ring_base_us = 20.0;
            n.ring_step_us = 5.0;
            n.nvls_tree_base_us = 40.0;
            n.nvls_tree_level_us = 40.0;
            n.nvls_tree_chunk = 1.0;
            n.chunk_max_us = 300.0;
            n.ramp_us = 10.0;
            n.ramp_at = 1.0e7;
        }
        c
    }
    /// True if the weights of shared NICs and channels are fitted.
    pub fn is_fitted(&self) -> bool {
        self.share != Constants::unfitted().share
    }

    /// Constants without any fit: [`Constants::nominal`] with neutral weights for sharing and an efficiency of at most
    /// 0.95. For evaluations on the tables that the shipped constants were fitted to.
    pub fn unfitted() -> Constants {
        let mut c = Constants::nominal();
        for n in &mut c.networks {
            n.efficiency = n.efficiency.min(0.95);
        }
        c.share = ShareConstants {
            channel_gb_per_s: 20.6, // NCCL's own figure for one NVLink of an H100
            met: 0.0,
            incast: 1.0,
            incast_far: 1.0,
            scattered: 1.0,
            tree: 1.0,
            nvls_tree_many: 1.0,
            nvls_tree_ceiling: 1.0,
            tree_ll128: 1.0,
        };
        c
    }
    /// The constants of a GPU generation.
    pub fn class(&self, class: GpuClass) -> &ClassConstants {
        &self.classes[class as usize]
    }
    /// The mutable constants of a GPU generation.
    pub fn class_mut(&mut self, class: GpuClass) -> &mut ClassConstants {
        &mut self.classes[class as usize]
    }
    /// The constants of a network class between hosts whose oldest GPUs are of generation `oldest`. EFA v1 belongs to A100 hosts (p4d, p4de) and
    /// older ones, EFA v2 to later ones.
    pub fn network(&self, class: NetworkClass, oldest: GpuClass) -> &NetworkConstants {
        &self.networks[network_slot(class, oldest)]
    }
    /// The mutable constants of a network class, as [`Constants::network`].
    pub fn network_mut(&mut self, class: NetworkClass, oldest: GpuClass) -> &mut NetworkConstants {
        &mut self.networks[network_slot(class, oldest)]
    }
}

fn network_slot(class: NetworkClass, oldest: GpuClass) -> usize {
    match class {
        NetworkClass::Infiniband => 0,
        NetworkClass::Roce => 1,
        NetworkClass::Efa if oldest <= GpuClass::Ampere => 5,
        NetworkClass::Efa => 2,
        NetworkClass::RdmaNoGdr => 3,
        NetworkClass::Tcp => 4,
    }
}
