//! The host types, one function per type: GPUs, links, NICs, and the source of each fact.

use crate::host::{Gpu, HostType, Nic, NvLinkFabric, PathKind, Pcie};
use crate::layout::Layout;
use crate::quantity::Bandwidth;

use PathKind::{Node, Phb, Pix, Pxb, Same, Sys};

const NV1: PathKind = PathKind::NvLink(1);
const NV2: PathKind = PathKind::NvLink(2);

/// Every host type, oldest GPU first.
pub(super) fn all() -> Vec<HostType> {
    vec![
        dgx1_p100(),
        dgx1_v100(),
        dgx2(),
        dgx_a100(),
        a800(),
        a100_pcie(),
        a6000(),
        rtx4090(),
        rtx4090_sys(),
        l40s(),
        l40s_8gpu(),
        hgx_h100("hgx-h100", 18),
        hgx_h100("hgx-h100-nv16", 16),
        h100_mesh(),
        hgx_h200(),
        hgx_b200(),
        gb200_tray(),
        rtx_pro_6000(),
    ]
}

fn gpus(n: usize, sockets: usize) -> Vec<Gpu> {
    (0..n).map(|i| Gpu { socket: (i * sockets / n) as u8, pci_bus_id: None }).collect()
}

fn uniform(n: usize, kind: PathKind) -> Vec<Vec<PathKind>> {
    (0..n).map(|i| (0..n).map(|j| if i == j { Same } else { kind }).collect()).collect()
}

/// Adds an NVLink bridge of `links` links to each pair of consecutive GPUs.
fn with_bridges(mut paths: Vec<Vec<PathKind>>, links: u8) -> Vec<Vec<PathKind>> {
    for i in 0..paths.len() {
        if i ^ 1 < paths.len() {
            paths[i][i ^ 1] = PathKind::NvLink(links);
        }
    }
    paths
}

fn nvlink(link_gb_per_s: f64, switched: bool, multicast: bool) -> Option<NvLinkFabric> {
    Some(NvLinkFabric { link_rate: Bandwidth::from_gb_per_s(link_gb_per_s), switched, multicast })
}

/// `nics` NICs, divided evenly and in order among the GPUs of [`gpus`]`(n, 2)`: path `near` to their own GPUs, NODE or
/// SYS to other GPUs.
fn shared_nics(n: usize, nics: usize, gbit: f64, near: PathKind) -> Vec<Nic> {
    let g = gpus(n, 2);
    (0..nics)
        .map(|i| {
            let own = |j: usize| if n >= nics { j / (n / nics) == i } else { i / (nics / n) == j };
            let socket = g[i * n / nics].socket;
            Nic {
                name: format!("mlx5_{i}"),
                line_rate: Bandwidth::from_gbit_per_s(gbit),
                socket: Some(socket),
                gpu_paths: (0..n)
                    .map(|j| match () {
                        _ if own(j) => near,
                        _ if g[j].socket == socket => Node,
                        _ => Sys,
                    })
                    .collect(),
            }
        })
        .collect()
}

/// One NIC on the first socket.
fn one_nic(n: usize, gbit: f64) -> Vec<Nic> {
    let g = gpus(n, 2);
    vec![Nic {
        name: "mlx5_0".into(),
        line_rate: Bandwidth::from_gbit_per_s(gbit),
        socket: Some(0),
        gpu_paths: (0..n).map(|j| if g[j].socket == 0 { Phb } else { Sys }).collect(),
    }]
}

fn pcie(generation: u8) -> Pcie {
    Pcie { generation, lanes: 16 }
}

/// DGX-1 with P100: hybrid cube mesh of NVLink 1. Each GPU has three links inside its quad and one link to the other
/// quad.
fn dgx1_p100() -> HostType {
    let m = (0..8usize)
        .map(|i| {
            (0..8)
                .map(|j| match () {
                    _ if i == j => Same,
                    _ if i / 4 == j / 4 || i % 4 == j % 4 => NV1,
                    _ => Sys,
                })
                .collect()
        })
        .collect();
    HostType {
        name: "dgx1-p100".into(),
        description: "8x P100 SXM2, NVLink 1 hybrid cube mesh, four 100 Gbit/s NICs".into(),
        source: "NVIDIA DGX-1 system architecture white paper (4 links a GPU, 20 GB/s each way); links as in the P2P \
                 matrix of github uuudown/Tartan (18.41 GB/s linked, 9.19 not)"
            .into(),
        gpu_model: "Tesla P100-SXM2-16GB".into(),
        gpus: gpus(8, 2),
        gpu_paths: m,
        nvlink: nvlink(20.0, false, false),
        pcie: pcie(3),
        nics: shared_nics(8, 4, 100.0, Pix),
        p2p: None,
    }
}

/// 8x V100 in a hybrid cube mesh with six NVLinks per GPU, numbered as in the papers' appendix.
fn dgx1_v100() -> HostType {
    #[rustfmt::skip]
    let m = [
        [Same, NV1, NV2, NV1, Sys, Sys, Sys, NV2],
        [NV1, Same, NV1, NV2, Sys, Sys, NV2, Sys],
        [NV2, NV1, Same, NV2, Sys, NV1, Sys, Sys],
        [NV1, NV2, NV2, Same, NV1, Sys, Sys, Sys],
        [Sys, Sys, Sys, NV1, Same, NV2, NV2, NV1],
        [Sys, Sys, NV1, Sys, NV2, Same, NV1, NV2],
        [Sys, NV2, Sys, Sys, NV2, NV1, Same, NV1],
        [NV2, Sys, Sys, Sys, NV1, NV2, NV1, Same],
    ];
    HostType {
        name: "dgx1-v100".into(),
        description: "8x V100 SXM2, NVLink 2 hybrid cube mesh, one 100 Gbit/s NIC".into(),
        source: "links: BandPilot appendix E, table 5 (LiteGD appendix A, table 4); 25 GB/s a link each way: NVIDIA \
                 V100 data sheet; the NIC is not in the papers and assumed"
            .into(),
        gpu_model: "Tesla V100-SXM2-32GB".into(),
        gpus: gpus(8, 2),
        gpu_paths: m.iter().map(|r| r.to_vec()).collect(),
        nvlink: nvlink(25.0, false, false),
        pcie: pcie(3),
        nics: one_nic(8, 100.0),
        p2p: None,
    }
}

/// DGX-2: sixteen V100 behind NVSwitches, six links per GPU, eight NICs for two GPUs each.
fn dgx2() -> HostType {
    HostType {
        name: "dgx2-v100".into(),
        description: "16x V100 SXM3, NVSwitch, eight 100 Gbit/s NICs".into(),
        source: "NVIDIA DGX-2 user guide: 6 NVLink 2 a GPU at 25 GB/s each way, 8 ConnectX-5 EDR for compute".into(),
        gpu_model: "Tesla V100-SXM3-32GB".into(),
        gpus: gpus(16, 2),
        gpu_paths: uniform(16, PathKind::NvLink(6)),
        nvlink: nvlink(25.0, true, false),
        pcie: pcie(3),
        nics: shared_nics(16, 8, 100.0, Pix),
        p2p: None,
    }
}

/// DGX A100: twelve links per GPU to NVSwitches. Two GPUs and two NICs share a PCIe switch.
fn dgx_a100() -> HostType {
    let mut nics = shared_nics(8, 8, 200.0, Pxb);
    for (i, nic) in nics.iter_mut().enumerate() {
        nic.gpu_paths[i ^ 1] = Pxb;
    }
    HostType {
        name: "dgx-a100".into(),
        description: "8x A100 SXM4, NVSwitch, eight 200 Gbit/s NICs".into(),
        source: "NVIDIA DGX A100 user guide: 12 NVLink 3 a GPU at 25 GB/s each way, 8 ConnectX-6 HDR for compute, \
                 PCIe Gen4"
            .into(),
        gpu_model: "NVIDIA A100-SXM4-80GB".into(),
        gpus: gpus(8, 2),
        gpu_paths: uniform(8, PathKind::NvLink(12)),
        nvlink: nvlink(25.0, true, false),
        pcie: pcie(4),
        nics,
        p2p: None,
    }
}

/// 8x A800: NVSwitch with 8 links per GPU (export variant of the A100).
fn a800() -> HostType {
    HostType {
        name: "a800".into(),
        description: "8x A800 SXM4, NVSwitch, NV8, one 100 Gbit/s NIC per GPU".into(),
        source: "links: BandPilot appendix E, table 7 (LiteGD appendix A, table 6); A800 data sheet: 400 GB/s NVLink \
                 both ways; the NICs are not in the papers and assumed"
            .into(),
        gpu_model: "NVIDIA A800-SXM4-80GB".into(),
        gpus: gpus(8, 2),
        gpu_paths: uniform(8, PathKind::NvLink(8)),
        nvlink: nvlink(25.0, true, false),
        pcie: pcie(4),
        nics: shared_nics(8, 8, 100.0, Pxb),
        p2p: None,
    }
}

/// 8x A100 PCIe with NVLink bridges between neighbours.
fn a100_pcie() -> HostType {
    let layout = Layout { sockets: Layout::runs(8, 4), ..Layout::default() };
    HostType {
        name: "a100-pcie".into(),
        description: "8x A100 PCIe, NVLink bridges in pairs, one 200 Gbit/s NIC".into(),
        source:
            "links: github NVIDIA/nccl-tests issue 178; 12 NVLink 3 a bridge at 25 GB/s each way: NVIDIA A100 PCIe \
                 product brief; the NIC is assumed"
                .into(),
        gpu_model: "NVIDIA A100 80GB PCIe".into(),
        gpus: gpus(8, 2),
        gpu_paths: with_bridges(layout.paths(8), 12),
        nvlink: nvlink(25.0, false, false),
        pcie: pcie(4),
        nics: one_nic(8, 200.0),
        p2p: None,
    }
}

/// 8x RTX A6000 in four NVLink-bridged pairs.
fn a6000() -> HostType {
    let layout = Layout { sockets: Layout::runs(8, 4), pcie_switch_trees: Layout::runs(8, 4), ..Layout::default() };
    HostType {
        name: "a6000".into(),
        description: "8x RTX A6000, NVLink bridges in pairs, one 100 Gbit/s NIC".into(),
        source: "links: BandPilot appendix E, table 6 (LiteGD appendix A, table 5); bridge of 112.5 GB/s both ways in \
                 four links: NVIDIA RTX A6000 data sheet; the NIC is not in the papers and assumed"
            .into(),
        gpu_model: "NVIDIA RTX A6000".into(),
        gpus: gpus(8, 2),
        gpu_paths: with_bridges(layout.paths(8), 4),
        nvlink: nvlink(14.0625, false, false),
        pcie: pcie(4),
        nics: one_nic(8, 100.0),
        p2p: None,
    }
}

/// 8x RTX 4090 without peer-to-peer, PIX pairs (2,3) and (6,7).
fn rtx4090() -> HostType {
    let layout = Layout {
        sockets: Layout::runs(8, 4),
        pcie_switch_trees: Layout::runs(8, 4),
        pcie_switches: vec![vec![2, 3], vec![6, 7]],
        ..Layout::default()
    };
    HostType {
        name: "rtx4090".into(),
        description: "8x RTX 4090 behind PCIe switches, no NVLink, no peer-to-peer, one 100 Gbit/s NIC".into(),
        source: "paths: BandPilot appendix E, table 4 (LiteGD appendix A, table 3); PCIe Gen4 x16: NVIDIA Ada \
                 white paper; the NIC is not in the papers and assumed"
            .into(),
        gpu_model: "NVIDIA GeForce RTX 4090".into(),
        gpus: gpus(8, 2),
        gpu_paths: layout.paths(8),
        nvlink: None,
        pcie: pcie(4),
        nics: one_nic(8, 100.0),
        p2p: None,
    }
}

/// 8x RTX 4090, each GPU on its own root port; both ports of one NIC next to GPU 6.
fn rtx4090_sys() -> HostType {
    let nic = |i: usize| Nic {
        name: format!("mlx5_{i}"),
        line_rate: Bandwidth::from_gbit_per_s(100.0),
        socket: Some(1),
        gpu_paths: (0..8).map(|g| if g == 6 { Phb } else { Sys }).collect(),
    };
    HostType {
        name: "rtx4090-sys".into(),
        description: "8x RTX 4090 on CPU root ports (all SYS), two 100 Gbit/s NICs next to GPU 6".into(),
        source: "paths: github NVIDIA/go-gpuallocator issue 17; the NIC rate is assumed".into(),
        gpu_model: "NVIDIA GeForce RTX 4090".into(),
        gpus: gpus(8, 2),
        gpu_paths: uniform(8, Sys),
        nvlink: None,
        pcie: pcie(4),
        nics: vec![nic(0), nic(1)],
        p2p: None,
    }
}

/// 4x L40S on host bridges of one NUMA domain.
fn l40s() -> HostType {
    let nic = |i: usize| Nic {
        name: format!("mlx5_{i}"),
        line_rate: Bandwidth::from_gbit_per_s(100.0),
        socket: Some(0),
        gpu_paths: vec![Node; 4],
    };
    HostType {
        name: "l40s".into(),
        description: "4x L40S, PCIe only (all NODE), two 100 Gbit/s NICs".into(),
        source: "paths: github yumibyte/CS244C-Research notes-for-farmshare.md; PCIe Gen4 x16: NVIDIA L40S data \
                 sheet; the NIC rate is assumed"
            .into(),
        gpu_model: "NVIDIA L40S".into(),
        gpus: gpus(4, 2),
        gpu_paths: uniform(4, Node),
        nvlink: None,
        pcie: pcie(4),
        nics: vec![nic(0), nic(1)],
        p2p: None,
    }
}

/// 8x L40S: two sockets, each with a PCIe switch, four GPUs and two NICs.
fn l40s_8gpu() -> HostType {
    let layout = Layout { sockets: Layout::runs(8, 4), pcie_switches: Layout::runs(8, 4), ..Layout::default() };
    let mut nics = shared_nics(8, 4, 200.0, Pix);
    for nic in &mut nics {
        for path in &mut nic.gpu_paths {
            *path = if *path == Sys { Sys } else { Pix };
        }
    }
    HostType {
        name: "l40s-8gpu".into(),
        description: "8x L40S behind two PCIe Gen4 switches, four 200 Gbit/s NICs".into(),
        source: "the usual two-socket, two-switch PCIe server (NVIDIA OVX class); boards differ, import your own"
            .into(),
        gpu_model: "NVIDIA L40S".into(),
        gpus: gpus(8, 2),
        gpu_paths: layout.paths(8),
        nvlink: None,
        pcie: pcie(4),
        nics,
        p2p: None,
    }
}

/// HGX H100: NVSwitch, 18 links per GPU, one 400 Gbit/s NIC per GPU on its own PCIe switch. The papers' appendix prints
/// NV16 for the same machine; `hgx-h100-nv16` keeps that label.
fn hgx_h100(name: &str, links: u8) -> HostType {
    let links_source = match links {
        16 => "links: BandPilot appendix E, table 8, which prints NV16 where nvidia-smi prints NV18",
        _ => "18 NVLink 4 a GPU at 25 GB/s each way: NVIDIA HGX H100 data sheet (BandPilot appendix E prints NV16)",
    };
    HostType {
        name: name.into(),
        description: "8x H100 SXM5 80 GB, NVSwitch, one 400 Gbit/s NIC per GPU".into(),
        source: format!("{links_source}; 8 ConnectX-7 NDR, PCIe Gen5: NVIDIA DGX H100 user guide"),
        gpu_model: "NVIDIA H100 80GB HBM3".into(),
        gpus: gpus(8, 2),
        gpu_paths: uniform(8, PathKind::NvLink(links)),
        nvlink: nvlink(25.0, true, true),
        pcie: pcie(5),
        nics: shared_nics(8, 8, 400.0, Pix),
        p2p: None,
    }
}

/// Four H100 linked directly, six links per pair, one NIC per GPU.
fn h100_mesh() -> HostType {
    HostType {
        name: "h100-4gpu".into(),
        description: "4x H100 SXM5, direct NVLink mesh (NV6 a pair), four 200 Gbit/s NICs".into(),
        source: "NVIDIA HGX H100 4-GPU board: 18 NVLink 4 a GPU, 6 to each other GPU, no NVSwitch; NDR200 NIC per GPU \
                 as in BSC MareNostrum 5 ACC"
            .into(),
        gpu_model: "NVIDIA H100 64GB HBM2".into(),
        gpus: gpus(4, 2),
        gpu_paths: uniform(4, PathKind::NvLink(6)),
        nvlink: nvlink(25.0, false, false),
        pcie: pcie(5),
        nics: shared_nics(4, 4, 200.0, Pix),
        p2p: None,
    }
}

/// HGX H200: HGX H100 with larger memory.
fn hgx_h200() -> HostType {
    HostType {
        name: "hgx-h200".into(),
        description: "8x H200 SXM5 141 GB, NVSwitch, one 400 Gbit/s NIC per GPU".into(),
        source: "NVIDIA HGX H200 data sheet: 18 NVLink 4 a GPU at 25 GB/s each way; 8 ConnectX-7 NDR, PCIe Gen5".into(),
        gpu_model: "NVIDIA H200".into(),
        ..hgx_h100("hgx-h200", 18)
    }
}

/// HGX B200: 18 links per GPU, 50 GB/s each (twice the rate of H100).
fn hgx_b200() -> HostType {
    HostType {
        name: "hgx-b200".into(),
        description: "8x B200 SXM6, NVSwitch, one 400 Gbit/s NIC per GPU".into(),
        source: "NVIDIA DGX B200 data sheet: 18 NVLink 5 a GPU at 50 GB/s each way; 8 ConnectX-7 NDR, PCIe Gen5".into(),
        gpu_model: "NVIDIA B200".into(),
        nvlink: nvlink(50.0, true, true),
        ..hgx_h100("hgx-b200", 18)
    }
}

/// One compute tray of a GB200 NVL72: two Grace CPUs, four GPUs. The rack's NVLink domain of 18 trays is not modelled:
/// trays are connected by their NICs only.
fn gb200_tray() -> HostType {
    HostType {
        name: "gb200-tray".into(),
        description: "4x GB200 (one NVL72 tray), NVLink 5 switch trays, one 400 Gbit/s NIC per GPU".into(),
        source: "NVIDIA GB200 NVL72 data sheet: 18 NVLink 5 a GPU at 50 GB/s each way; 4 ConnectX-7 NDR a tray".into(),
        gpu_model: "NVIDIA GB200".into(),
        gpus: gpus(4, 2),
        gpu_paths: uniform(4, PathKind::NvLink(18)),
        nvlink: nvlink(50.0, true, true),
        pcie: pcie(5),
        nics: shared_nics(4, 4, 400.0, Node),
        p2p: None,
    }
}

/// 8x RTX PRO 6000 on four Gen5 switches of two GPUs each.
fn rtx_pro_6000() -> HostType {
    let layout = Layout { sockets: Layout::runs(8, 4), pcie_switches: Layout::runs(8, 2), ..Layout::default() };
    HostType {
        name: "rtx-pro-6000".into(),
        description: "8x RTX PRO 6000 Blackwell on four PCIe Gen5 switches, one 400 Gbit/s NIC".into(),
        source: "paths: github voipmonitor/rtx6kpro hardware/asus-esc8000a-e13p-broadcom-switches.md; the NIC is \
                 assumed"
            .into(),
        gpu_model: "NVIDIA RTX PRO 6000 Blackwell Server Edition".into(),
        gpus: gpus(8, 2),
        gpu_paths: layout.paths(8),
        nvlink: None,
        pcie: pcie(5),
        nics: one_nic(8, 400.0),
        p2p: None,
    }
}
