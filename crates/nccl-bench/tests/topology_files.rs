//! Topology files for NCCL read back as they were written. The tests need no library.

use nccl_bench::TopologyFile;
use proptest::prelude::*;
use topology::layout::Layout;
use topology::{Bandwidth, Gpu, HostType, Nic, PathKind, Pcie, catalog, read};

/// The path kind after a round trip: the XML does not distinguish NODE and PHB.
fn as_xml_says(p: PathKind) -> PathKind {
    if p == PathKind::Node { PathKind::Phb } else { p }
}

#[test]
fn every_catalog_type_reads_back_as_it_was_written() {
    for t in catalog::host_types() {
        let file = TopologyFile::of(&t, true).unwrap();
        let reading =
            read::nccl_xml::read(&file.xml, "type.xml").unwrap_or_else(|e| panic!("{}: {e:?}\n{}", t.name, file.xml));
        let back = &reading.types[0];
        let paths = |t: &HostType| -> Vec<Vec<PathKind>> {
            t.gpu_paths.iter().map(|r| r.iter().map(|p| as_xml_says(*p)).collect()).collect()
        };
        assert_eq!(paths(back), paths(&t), "{}", t.name);
        assert_eq!(back.nics.len(), t.nics.len(), "{}", t.name);
        for (a, b) in back.nics.iter().zip(&t.nics) {
            let near = |n: &Nic| n.gpu_paths.iter().map(|p| as_xml_says(*p)).collect::<Vec<_>>();
            assert_eq!((&a.name, a.line_rate, near(a)), (&b.name, b.line_rate, near(b)), "{}", t.name);
        }
        assert_eq!(back.pcie, t.pcie, "{}", t.name);
        assert_eq!(back.nvlink, t.nvlink, "{}", t.name);
        let sockets = |t: &HostType| t.gpus.iter().map(|g| g.socket).collect::<Vec<_>>();
        // The matrices of two types cut NUMA nodes otherwise than their sockets, and the XML follows the matrix.
        let split = ["rtx4090-sys", "l40s"].contains(&t.name.as_str());
        assert!(split || sockets(back) == sockets(&t), "{}", t.name);
    }
}

#[test]
fn bus_ids_have_nccls_form_and_other_text_is_refused() {
    let mut t = catalog::host_type("hgx-h100").unwrap();
    t.gpus[0].pci_bus_id = Some("00000000:1B:00.0".into());
    t.gpus[1].pci_bus_id = Some("0001:12:00.0".into());
    let file = TopologyFile::of(&t, true).unwrap();
    assert_eq!(file.gpu_bus_ids[..2], ["0000:1b:00.0", "0001:12:00.0"]);
    let mut all: Vec<&String> = file.gpu_bus_ids.iter().chain(file.nics.iter().map(|n| &n.1)).collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 16, "every device has its own bus id");
    for bad in ["\"/><x", "0000:1b:00", "0000:1b:00.0,0000:1c:00.0", "0000:1b:00.9", "+000:1b:00.0", "1:2:3:4:5"] {
        t.gpus[1].pci_bus_id = Some(bad.into());
        assert!(TopologyFile::of(&t, true).unwrap_err().contains("is not of the form 0000:1b:00.0"), "{bad}");
    }
    t.gpus[1].pci_bus_id = Some("0000:1b:00.0".into());
    assert!(TopologyFile::of(&t, true).unwrap_err().contains("occurs twice"));
    t.gpus[1].pci_bus_id = None;
    t.nics[0].name = "\"/><evil,;".into();
    assert_eq!(TopologyFile::of(&t, true).unwrap().nics[0].0, "nic0");
}

prop_compose! {
    /// A random host: consecutive GPUs share sockets, PCIe trees and switches, and every NIC is next to one GPU.
    fn laid_out()(
        n in 1usize..=16, sockets in 1usize..=4, tree in 1usize..=8, switch in 1usize..=4,
        nics in proptest::collection::vec((0usize..16, 1u32..8), 0..10), links in 0u8..3,
    ) -> HostType {
        let per_socket = n.div_ceil(sockets);
        // A tree of switches lies within one socket, and a switch within one tree.
        let cut = |size: usize, of: &[Vec<usize>]| -> Vec<Vec<usize>> {
            of.iter().flat_map(|g| g.chunks(size).map(<[usize]>::to_vec)).collect()
        };
        let sockets = Layout::runs(n, per_socket);
        let trees = cut(tree, &sockets);
        let layout = Layout { pcie_switches: cut(switch, &trees), pcie_switch_trees: trees, sockets, ..Layout::default() };
        let plain = layout.paths(n);
        let mut t = catalog::host_type("dgx-a100").unwrap();
        t.gpus = (0..n).map(|g| Gpu { socket: layout.socket_of(g), pci_bus_id: None }).collect();
        t.gpu_paths = plain.clone();
        t.nvlink = None;
        if links > 0 && n > 1 {
            // NVLink pairs inside sockets, as with bridges.
            for i in (0..n - 1).step_by(2).filter(|&i| layout.socket_of(i) == layout.socket_of(i + 1)) {
                // NVLink hides the PCIe path of a pair. The NICs do not reveal it here, so only pairs with path NODE get NVLink.
                if plain[i][i + 1] == PathKind::Node {
                    t.gpu_paths[i][i + 1] = PathKind::NvLink(links);
                    t.gpu_paths[i + 1][i] = PathKind::NvLink(links);
                }
            }
            t.nvlink = Some(topology::NvLinkFabric { link_rate: Bandwidth::from_gb_per_s(25.0), switched: false, multicast: false });
        }
        t.pcie = Pcie { generation: 4, lanes: 16 };
        t.nics = nics.into_iter().enumerate().map(|(i, (g, speed))| {
            let g = g % n;
            let near = |j: usize| if j == g { PathKind::Pix } else { plain[g][j] };
            Nic {
                name: format!("mlx5_{i}"),
                line_rate: Bandwidth::from_gbit_per_s(f64::from(speed) * 50.0),
                socket: Some(layout.socket_of(g)),
                gpu_paths: (0..n).map(near).collect(),
            }
        }).collect();
        t
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_tree_of_switches_reads_back_as_it_was_laid_out(t in laid_out()) {
        prop_assert_eq!(t.check(), Ok(()));
        let file = TopologyFile::of(&t, true).unwrap();
        let reading = read::nccl_xml::read(&file.xml, "t.xml").unwrap_or_else(|e| panic!("{e:?}\n{}", file.xml));
        let back = &reading.types[0];
        let said = |m: &[Vec<PathKind>]| -> Vec<Vec<PathKind>> {
            m.iter().map(|r| r.iter().map(|p| as_xml_says(*p)).collect()).collect()
        };
        prop_assert_eq!(said(&back.gpu_paths), said(&t.gpu_paths), "{}", file.xml);
        // The reader has them in the order of the file.
        let nics = |t: &HostType| {
            let mut nics: Vec<_> = t.nics.iter().map(|n| (n.name.clone(), said(std::slice::from_ref(&n.gpu_paths)))).collect();
            nics.sort();
            nics
        };
        prop_assert_eq!(nics(back), nics(&t), "{}", file.xml);
    }
}
