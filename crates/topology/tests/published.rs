//! Every published topology file and P2P matrix loads as what it is, or is refused for a stated reason.

mod common;

use std::collections::BTreeMap;
use topology::read::{self, TopologyFile, p2p};
use topology::{HostType, PathKind, ReadError};

fn load(path: &std::path::Path) -> Result<TopologyFile, ReadError> {
    let name = path.file_name().unwrap().to_string_lossy().to_string();
    let bytes = std::fs::read(path).unwrap();
    read::read(read::text(&bytes, &name, read::TOPOLOGY_SIZE_MAX)?, &name)
}

/// Expected content of a file: GPUs, NICs, and single cells `(i, j, label)` of the GPU matrix.
enum Wanted {
    Loads { gpus: usize, nics: usize, cells: &'static [(usize, usize, &'static str)], note: &'static str },
    Refused { because: &'static str },
}
use Wanted::{Loads, Refused};

#[rustfmt::skip]
const FILES: &[(&str, Wanted)] = &[
    ("2gpu_nv2.topo.txt", Loads { gpus: 2, nics: 0, cells: &[(0, 1, "NV2")], note: "no NIC" }),
    ("2gpu_phb.topo.txt", Loads { gpus: 2, nics: 0, cells: &[(0, 1, "PHB")], note: "PCIe taken" }),
    ("a100_4gpu_nv4_2hdr.topo.txt", Loads { gpus: 4, nics: 2, cells: &[(0, 3, "NV4")], note: "direct from GPU to GPU" }),
    ("a100_4gpu_nv4_4nic.topo.txt", Loads { gpus: 4, nics: 4, cells: &[(2, 3, "NV4")], note: "direct from GPU to GPU" }),
    ("a100_hgx_8gpu_nonic.topo.txt", Loads { gpus: 8, nics: 0, cells: &[(0, 7, "NV12")], note: "behind NVSwitches" }),
    ("a100_pcie_8gpu_nvlink_pairs.topo.txt", Loads { gpus: 8, nics: 0, cells: &[(0, 1, "NV12"), (0, 2, "NODE"), (3, 4, "SYS"), (6, 7, "NV12")], note: "`a100-pcie`" }),
    ("amd_8xMI300_940.xml", Refused { because: "AMD accelerators (8 gpu elements, xGMI links)" }),
    ("aws_g5_8xA10G.xml", Refused { because: "9 PCI devices without a class attribute" }),
    ("aws_p4d_8xA100.xml", Loads { gpus: 8, nics: 4, cells: &[(0, 1, "PIX"), (1, 2, "PHB"), (3, 4, "SYS")], note: "no gpu elements" }),
    ("azure_nc48v4_2xA100pcie.xml", Loads { gpus: 2, nics: 1, cells: &[(0, 1, "NV12")], note: "link_speed" }),
    ("azure_ncv4_A100pcie.xml", Loads { gpus: 4, nics: 1, cells: &[(0, 1, "SYS"), (2, 3, "SYS")], note: "4 NVLinks lead from a GPU to itself" }),
    ("azure_ndv2_8xV100.xml", Loads { gpus: 8, nics: 1, cells: &[(0, 3, "PHB"), (3, 4, "SYS")], note: "no gpu elements" }),
    ("azure_ndv4_8xA100.xml", Loads { gpus: 8, nics: 8, cells: &[(0, 1, "PIX"), (2, 3, "PIX"), (1, 2, "SYS")], note: "no gpu elements" }),
    ("blog_consumer_0.topo.txt", Loads { gpus: 2, nics: 0, cells: &[(0, 1, "PHB")], note: "" }),
    ("blog_consumer_2.topo.txt", Loads { gpus: 4, nics: 2, cells: &[(0, 3, "SYS")], note: "" }),
    ("h100_hgx_8gpu_nonic.topo.txt", Loads { gpus: 8, nics: 0, cells: &[(3, 4, "NV18")], note: "behind NVSwitches with multicast" }),
    ("l40s_2gpu_2nic.topo.txt", Loads { gpus: 2, nics: 2, cells: &[(0, 1, "NODE")], note: "100 Gbit/s" }),
    ("l40s_4gpu_node_2nic.topo.txt", Loads { gpus: 4, nics: 2, cells: &[(0, 3, "NODE")], note: "`l40s`" }),
    ("oci_bm_gpu4_8xA100_b4.xml", Loads { gpus: 8, nics: 8, cells: &[(0, 1, "PIX"), (1, 2, "SYS")], note: "no gpu elements" }),
    ("oci_bm_gpu_a100_flattened.xml", Loads { gpus: 8, nics: 8, cells: &[(0, 1, "PIX"), (1, 2, "SYS")], note: "no gpu elements" }),
    ("oci_bm_gpu_h100_8.xml", Loads { gpus: 8, nics: 16, cells: &[(0, 7, "NV18"), (3, 4, "NV18")], note: "NVSwitches with multicast" }),
    ("rtx3090_4gpu_nvlink_pairs.topo.txt", Loads { gpus: 4, nics: 0, cells: &[(0, 2, "NV4"), (1, 3, "NV4"), (0, 1, "PHB"), (0, 3, "NODE")], note: "14.0625" }),
    ("rtx4090_8gpu_all_sys.topo.txt", Loads { gpus: 8, nics: 2, cells: &[(0, 1, "SYS"), (6, 7, "SYS")], note: "`rtx4090-sys`" }),
    ("rtxpro6000_esc8000a_pcie5_0.topo.txt", Loads { gpus: 8, nics: 0, cells: &[(0, 1, "PIX"), (1, 2, "NODE"), (3, 4, "SYS")], note: "`rtx-pro-6000`" }),
    ("rtxpro6000_wrx90_flat_0.topo.txt", Loads { gpus: 8, nics: 0, cells: &[(0, 3, "PIX"), (3, 4, "NODE")], note: "" }),
    ("rtxpro6000_wrx90_microchip_0.topo.txt", Loads { gpus: 8, nics: 0, cells: &[(0, 1, "PIX"), (0, 2, "PXB"), (3, 4, "NODE")], note: "" }),
    ("stanford_a100_1gpu_visible_dump.xml", Loads { gpus: 1, nics: 1, cells: &[], note: "saw no other GPU" }),
    ("v100_4gpu_nv2_c4140.topo.txt", Loads { gpus: 4, nics: 1, cells: &[(0, 3, "NV2")], note: "" }),
];

#[test]
fn every_published_topology_loads_or_is_refused_for_a_stated_reason() {
    let Some(data) = common::data("every_published_topology_loads_or_is_refused_for_a_stated_reason") else { return };
    let mut wanted: BTreeMap<&str, &Wanted> = FILES.iter().map(|(n, w)| (*n, w)).collect();
    for entry in std::fs::read_dir(data.join("topologies")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().to_string();
        if name.ends_with(".md") {
            continue;
        }
        let found = load(&path);
        match wanted.remove(name.as_str()) {
            None => panic!("{name} is not in the list of this test: {found:?}"),
            Some(Refused { because }) => {
                let e = found.unwrap_err();
                assert!(e.message().contains(because), "{name}: {e}");
                assert!(e.line() > 1 && !e.remedy().is_empty(), "{name}: {e}");
            }
            Some(Loads { gpus, nics, cells, note }) => {
                let r = found.unwrap_or_else(|e| panic!("{e}"));
                let t = r.single().unwrap();
                assert_eq!((t.gpu_count(), t.nics.len()), (*gpus, *nics), "{name}");
                for &(i, j, label) in *cells {
                    assert_eq!(t.gpu_paths[i][j].to_string(), label, "{name}: GPU{i} to GPU{j}");
                }
                assert!(r.notes.iter().any(|n| n.contains(note)), "{name}: no note of `{note}` in {:#?}", r.notes);
            }
        }
    }
    assert!(wanted.is_empty(), "files of the list that are not there: {:?}", wanted.keys());
}

fn one(data: &std::path::Path, name: &str) -> HostType {
    load(&data.join("topologies").join(name)).unwrap().single().unwrap().clone()
}

#[test]
fn nics_of_published_hosts_are_near_the_right_gpus() {
    let Some(data) = common::data("nics_of_published_hosts_are_near_the_right_gpus") else { return };
    let t = one(&data, "oci_bm_gpu_h100_8.xml");
    for g in 0..8 {
        assert_eq!(t.nearest_nics(g), 0b11 << (2 * g), "GPU{g} has both ports of its own card");
    }
    assert_eq!(t.nics[0].line_rate.gbit_per_s(), 180.0);
    assert_eq!(t.nics[0].gpu_paths[0], PathKind::Pix, "one Broadcom chip that appears as a cascade");
    assert_eq!((t.pcie.generation, t.gpu_model.as_str()), (5, "NVIDIA H100 80GB HBM3"));
    let t = one(&data, "aws_p4d_8xA100.xml");
    for g in 0..8 {
        assert_eq!(t.nearest_nics(g), 1 << (g / 2), "two GPUs share a NIC");
    }
    let t = one(&data, "a100_4gpu_nv4_2hdr.topo.txt");
    assert_eq!((t.nearest_nics(1), t.nearest_nics(2), t.nearest_nics(0)), (1, 2, 3));
    assert_eq!(t.gpus.iter().map(|g| g.socket).collect::<Vec<_>>(), [1, 0, 3, 2]);
    let t = one(&data, "rtx4090_8gpu_all_sys.topo.txt");
    assert_eq!(t.nearest_nics(6), 0b11);
    assert_eq!(t.nics[0].gpu_paths[6], PathKind::Phb);
}

#[test]
fn sockets_of_published_hosts_are_read_from_every_age_of_columns() {
    let Some(data) = common::data("sockets_of_published_hosts_are_read_from_every_age_of_columns") else { return };
    let sockets = |name| one(&data, name).gpus.iter().map(|g| g.socket).collect::<Vec<_>>();
    assert_eq!(sockets("rtxpro6000_esc8000a_pcie5_0.topo.txt"), [0, 0, 0, 0, 1, 1, 1, 1]);
    assert_eq!(sockets("l40s_4gpu_node_2nic.topo.txt"), [0, 0, 1, 1], "the CPU cell of GPU2 and 3 is blank");
    assert_eq!(sockets("l40s_2gpu_2nic.topo.txt"), [1, 1]);
    assert_eq!(sockets("a100_hgx_8gpu_nonic.topo.txt"), [0, 0, 0, 0, 1, 1, 1, 1]);
    assert_eq!(sockets("2gpu_nv2.topo.txt"), [0, 0], "NUMA affinity N/A, one CPU range");
    assert_eq!(sockets("a100_4gpu_nv4_4nic.topo.txt"), [0, 0, 0, 0], "NUMA affinity is a range");
}

#[test]
fn every_published_p2p_matrix_loads_or_is_refused_because_it_is_partial() {
    let Some(data) = common::data("every_published_p2p_matrix_loads_or_is_refused_because_it_is_partial") else {
        return;
    };
    let text = std::fs::read_to_string(data.join("measurements/p2p_matrices.csv")).unwrap();
    let matrices = p2p::parse_long_csv(&text, "p2p_matrices.csv").unwrap();
    let mut loaded: BTreeMap<String, usize> = BTreeMap::new();
    let mut refused = Vec::new();
    for m in matrices {
        match m {
            Ok(m) => assert!(loaded.insert(m.id.clone(), m.gpu_count()).is_none()),
            Err(e) => refused.push(e),
        }
    }
    let wanted: BTreeMap<String, usize> = [
        (1, 8),
        (2, 8),
        (3, 8),
        (4, 8),
        (5, 8),
        (6, 8),
        (7, 8),
        (8, 8),
        (15, 2),
        (16, 2),
        (17, 2),
        (18, 2),
        (21, 8),
        (24, 6),
        (25, 6),
        (26, 6),
        (27, 3),
        (28, 3),
        (29, 9),
    ]
    .into_iter()
    .map(|(id, n): (u32, usize)| (id.to_string(), n))
    .collect();
    assert_eq!(loaded, wanted);
    assert_eq!(refused.len(), 2, "the two that show row 0 only");
    for e in &refused {
        assert!(e.message().contains("7 of 8 rows are missing"), "{e}");
    }
    let r = p2p::read_csv(&text, "p2p_matrices.csv").unwrap();
    let t = r.types.iter().find(|t| t.source.contains("dgx1_ascending")).unwrap();
    let p2p = t.p2p.as_ref().unwrap();
    assert!((p2p[0][1].gb_per_s() - 18.4).abs() < 0.1, "one way, P2P enabled: {}", p2p[0][1]);
    assert_eq!(t.gpu_model, "Tesla P100-SXM2-16GB");
}

#[test]
fn the_p100_mesh_of_the_catalog_is_where_the_measured_rates_are_high() {
    let Some(data) = common::data("the_p100_mesh_of_the_catalog_is_where_the_measured_rates_are_high") else { return };
    let text = std::fs::read_to_string(data.join("measurements/p2p_matrices.csv")).unwrap();
    let matrices = p2p::parse_long_csv(&text, "f").unwrap();
    let m = matrices.iter().flatten().find(|m| m.id == "2").unwrap();
    let t = topology::catalog::host_type("dgx1-p100").unwrap();
    for i in 0..8 {
        for j in (0..8).filter(|&j| j != i) {
            let linked = matches!(t.gpu_paths[i][j], PathKind::NvLink(_));
            assert_eq!(m.gb_per_s[i][j] > 14.0, linked, "GPU{i} to GPU{j}: {} GB/s", m.gb_per_s[i][j]);
        }
    }
}
