//! Host types and clusters that linkwise knows by name.
//!
//! Matrices marked "appendix" are those of the BandPilot paper (arXiv 2506.15595, appendix E) and of LiteGD, cell by cell.

use crate::cluster::{Cluster, Host, Network};
use crate::host::{Gpu, HostType, Nic, NvLinkFabric, PathKind, Pcie};
use crate::quantity::Bandwidth;

use PathKind::{Phb, Pix, Pxb, Same, Sys};

const NV1: PathKind = PathKind::NvLink(1);
const NV2: PathKind = PathKind::NvLink(2);
const NV4: PathKind = PathKind::NvLink(4);

fn gpus(n: usize, sockets: usize) -> Vec<Gpu> {
    (0..n).map(|i| Gpu { socket: (i * sockets / n) as u8, pci_bus_id: None }).collect()
}

fn uniform(n: usize, kind: PathKind) -> Vec<Vec<PathKind>> {
    (0..n).map(|i| (0..n).map(|j| if i == j { Same } else { kind }).collect()).collect()
}

fn nvlink(link_gb_per_s: f64, switched: bool, multicast: bool) -> Option<NvLinkFabric> {
    Some(NvLinkFabric { link_rate: Bandwidth::from_gb_per_s(link_gb_per_s), switched, multicast })
}

/// One NIC beside every GPU.
fn nic_per_gpu(n: usize, gbit: f64, near: PathKind) -> Vec<Nic> {
    let g = gpus(n, 2);
    (0..n)
        .map(|i| Nic {
            name: format!("mlx5_{i}"),
            line_rate: Bandwidth::from_gbit_per_s(gbit),
            socket: Some(g[i].socket),
            gpu_paths: (0..n)
                .map(|j| {
                    if i == j {
                        near
                    } else if g[i].socket == g[j].socket {
                        PathKind::Node
                    } else {
                        Sys
                    }
                })
                .collect(),
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

/// HGX H100: NVSwitch, 18 links a GPU, one 400 Gbit/s NIC per GPU on its own PCIe switch. The paper's appendix prints NV16.
fn hgx_h100(name: &str, links: u8) -> HostType {
    HostType {
        name: name.into(),
        description: "8x H100 SXM5 80 GB, NVSwitch, one 400 Gbit/s NIC per GPU".into(),
        source: "NVIDIA HGX H100 data sheet; BandPilot appendix E, table 8 (NV16)".into(),
        gpu_model: "NVIDIA H100 80GB HBM3".into(),
        gpus: gpus(8, 2),
        gpu_paths: uniform(8, PathKind::NvLink(links)),
        nvlink: nvlink(25.0, true, true),
        pcie: pcie(5),
        nics: nic_per_gpu(8, 400.0, Pix),
        p2p: None,
    }
}

/// 8x A800: NVSwitch with 8 links a GPU (export variant of the A100).
fn a800() -> HostType {
    HostType {
        name: "a800".into(),
        description: "8x A800 SXM4, NVSwitch, NV8".into(),
        source: "BandPilot appendix E, table 7".into(),
        gpu_model: "NVIDIA A800-SXM4-80GB".into(),
        gpus: gpus(8, 2),
        gpu_paths: uniform(8, PathKind::NvLink(8)),
        nvlink: nvlink(25.0, true, false),
        pcie: pcie(4),
        nics: nic_per_gpu(8, 100.0, Pxb),
        p2p: None,
    }
}

/// DGX-1 with V100: hybrid cube mesh of six NVLinks a GPU.
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
        description: "8x V100 SXM2, NVLink 2 hybrid cube mesh".into(),
        source: "BandPilot appendix E, table 5".into(),
        gpu_model: "Tesla V100-SXM2-32GB".into(),
        gpus: gpus(8, 2),
        gpu_paths: m.iter().map(|r| r.to_vec()).collect(),
        nvlink: nvlink(25.0, false, false),
        pcie: pcie(3),
        nics: one_nic(8, 100.0),
        p2p: None,
    }
}

/// 8x RTX A6000 in four NVLink-bridged pairs.
fn a6000() -> HostType {
    let m = (0..8)
        .map(|i: usize| {
            (0..8)
                .map(|j| match (i, j) {
                    _ if i == j => Same,
                    _ if i / 2 == j / 2 => NV4,
                    _ if i / 4 == j / 4 => Pxb,
                    _ => Sys,
                })
                .collect()
        })
        .collect();
    HostType {
        name: "a6000".into(),
        description: "8x RTX A6000, NVLink bridges in pairs".into(),
        source: "BandPilot appendix E, table 6".into(),
        gpu_model: "NVIDIA RTX A6000".into(),
        gpus: gpus(8, 2),
        gpu_paths: m,
        nvlink: nvlink(14.0625, false, false), // NVLink 3 bridge: 112.5 GB/s for four links, both directions
        pcie: pcie(4),
        nics: one_nic(8, 100.0),
        p2p: None,
    }
}

/// 8x RTX 4090 without peer-to-peer, PIX pairs (2,3) and (6,7).
fn rtx4090() -> HostType {
    let m = (0..8)
        .map(|i: usize| {
            (0..8)
                .map(|j| match (i, j) {
                    _ if i == j => Same,
                    _ if i / 2 == j / 2 && i % 4 >= 2 => Pix,
                    _ if i / 4 == j / 4 => Pxb,
                    _ => Sys,
                })
                .collect()
        })
        .collect();
    HostType {
        name: "rtx4090".into(),
        description: "8x RTX 4090, PCIe switches, no NVLink, no peer-to-peer".into(),
        source: "BandPilot appendix E, table 4".into(),
        gpu_model: "NVIDIA GeForce RTX 4090".into(),
        gpus: gpus(8, 2),
        gpu_paths: m,
        nvlink: None,
        pcie: pcie(4),
        nics: one_nic(8, 100.0),
        p2p: None,
    }
}

/// Every host type of the catalog.
pub fn host_types() -> Vec<HostType> {
    vec![hgx_h100("hgx-h100", 18), a800(), dgx1_v100(), a6000(), rtx4090()]
}

/// A host type by name.
pub fn host_type(name: &str) -> Option<HostType> {
    host_types().into_iter().find(|t| t.name == name)
}

/// Names of the built-in clusters.
pub const CLUSTERS: [&str; 4] = ["h100", "het-ra", "het-va", "het-4mix"];

/// A built-in cluster by name: four hosts `n0` to `n3` on one non-blocking switch.
pub fn cluster(name: &str) -> Option<Cluster> {
    let types: [&str; 4] = match name {
        "h100" => ["hgx-h100"; 4],
        "het-ra" => ["rtx4090", "rtx4090", "a800", "a800"],
        "het-va" => ["dgx1-v100", "dgx1-v100", "a6000", "a6000"],
        "het-4mix" => ["rtx4090", "dgx1-v100", "a6000", "a800"],
        _ => return None,
    };
    let mut cluster = Cluster { name: name.into(), network: Network::default(), ..Cluster::default() };
    for (i, t) in types.iter().enumerate() {
        let host_type = match cluster.types.iter().position(|x| x.name == *t) {
            Some(p) => p,
            None => {
                cluster.types.push(host_type(t)?);
                cluster.types.len() - 1
            }
        };
        cluster.hosts.push(Host { name: format!("n{i}"), host_type, ..Host::default() });
    }
    Some(cluster)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_catalog_entry_keeps_the_rules() {
        for t in host_types() {
            t.check().unwrap();
        }
        for c in CLUSTERS {
            cluster(c).unwrap().check().unwrap();
        }
    }
}
