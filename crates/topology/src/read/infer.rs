//! Infers facts that a matrix of labels does not contain: NVLink rates, switches, sockets, PCIe generation, NIC rates.
//!
//! Rates come from public data sheets, not from measurements, so every caller adds a note to its result.

use crate::host::{Gpu, NvLinkFabric, PathKind, Pcie};
use crate::quantity::Bandwidth;

/// Maximum number of links of any known GPU chip (H100, B200: 18).
const LINKS_PER_GPU_MAX: usize = 18;

/// Facts about a GPU model and its links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelFacts {
    /// Marketing name, as `nvidia-smi -L` prints it.
    pub name: &'static str,
    /// Rate of one NVLink in one direction, GB/s; 0 without NVLink.
    pub nvlink_gb_per_s: f64,
    /// PCIe generation.
    pub pcie_generation: u8,
    /// True if its NVSwitches reduce and multicast.
    pub multicast: bool,
    /// PCI device ids (vendor 0x10de), from the public PCI id list.
    device_ids: &'static [u16],
    /// Substrings that identify its name; lower case, letters and digits only.
    keys: &'static [&'static str],
}

macro_rules! model {
    ($name:literal, $link:literal, $gen:literal, $mc:literal, [$($id:literal),*], [$($key:literal),+]) => {
        ModelFacts {
            name: $name, nvlink_gb_per_s: $link, pcie_generation: $gen, multicast: $mc,
            device_ids: &[$($id),*], keys: &[$($key),+],
        }
    };
}

/// Sources: NVIDIA data sheets (rates), the PCI id list (device ids). More specific names first.
const MODELS: &[ModelFacts] = &[
    model!("NVIDIA GB200", 50.0, 5, true, [0x2941], ["gb200", "gb300"]),
    model!("NVIDIA B200", 50.0, 5, true, [0x2901], ["b200", "b300"]),
    model!("NVIDIA H200", 25.0, 5, true, [0x2335], ["h200", "gh200"]),
    model!("NVIDIA H100 80GB HBM3", 25.0, 5, true, [0x2330], ["h100"]),
    model!("NVIDIA H100 PCIe", 25.0, 5, false, [0x2331], ["h100pcie"]),
    model!("NVIDIA H800", 25.0, 5, true, [0x2324], ["h800"]),
    model!("NVIDIA H20", 25.0, 5, true, [0x2329], ["h20"]),
    model!("NVIDIA A800-SXM4-80GB", 25.0, 4, false, [0x20f3], ["a800"]),
    model!("NVIDIA A100-SXM4-40GB", 25.0, 4, false, [0x20b0], ["a100sxm440gb"]),
    model!("NVIDIA A100-SXM4-80GB", 25.0, 4, false, [0x20b2], ["a100"]),
    model!("NVIDIA A100 80GB PCIe", 25.0, 4, false, [0x20b5], ["a10080gbpcie"]),
    model!("NVIDIA A100-PCIE-40GB", 25.0, 4, false, [0x20f1], ["a100pcie40gb"]),
    model!("NVIDIA A10G", 0.0, 4, false, [0x2237], ["a10g"]),
    model!("NVIDIA RTX A6000", 14.0625, 4, false, [0x2230], ["a6000"]),
    model!("NVIDIA A40", 14.0625, 4, false, [0x2235], ["a40"]),
    model!("NVIDIA GeForce RTX 3090", 14.0625, 4, false, [0x2204], ["3090"]),
    model!("NVIDIA GeForce RTX 4090", 0.0, 4, false, [0x2684], ["4090"]),
    model!("NVIDIA GeForce RTX 5090", 0.0, 5, false, [0x2b85], ["5090"]),
    model!("NVIDIA RTX PRO 6000 Blackwell Server Edition", 0.0, 5, false, [0x2bb5], ["rtxpro6000", "pro6000"]),
    model!("NVIDIA L40S", 0.0, 4, false, [0x26b9], ["l40s"]),
    model!("NVIDIA L40", 0.0, 4, false, [0x26b5], ["l40"]),
    model!("NVIDIA L4", 0.0, 4, false, [0x27b8], ["l4"]),
    model!("Tesla V100-SXM2-16GB", 25.0, 3, false, [0x1db1], ["v100sxm216gb"]),
    model!("Tesla V100-SXM2-32GB", 25.0, 3, false, [0x1db5], ["v100"]),
    model!("Tesla V100-SXM3-32GB", 25.0, 3, false, [0x1db8], ["v100sxm3"]),
    model!("Tesla V100-PCIE-32GB", 0.0, 3, false, [0x1db6], ["v100pcie"]),
    model!("Tesla P100-SXM2-16GB", 20.0, 3, false, [0x15f9], ["p100"]),
    model!("Tesla T4", 0.0, 3, false, [0x1eb8], ["t4"]),
];

/// Facts of a model by its name: the longest known key that the name contains.
pub fn model_by_name(name: &str) -> Option<ModelFacts> {
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    let fits = |m: &ModelFacts| m.keys.iter().filter(|k| name.contains(*k)).map(|k| k.len()).max();
    MODELS.iter().filter_map(|m| Some((fits(m)?, m))).max_by_key(|(n, _)| *n).map(|(_, m)| *m)
}

/// Facts of a model by its PCI device id (vendor 0x10de).
pub fn model_by_device_id(id: u16) -> Option<ModelFacts> {
    MODELS.iter().find(|m| m.device_ids.contains(&id)).copied()
}

/// The NVLink fabric that a matrix shows, and the reason; `None` without NV labels.
pub fn nvlink(paths: &[Vec<PathKind>], model: Option<ModelFacts>) -> Option<(NvLinkFabric, String)> {
    let n = paths.len();
    let links = |p: &PathKind| if let PathKind::NvLink(k) = p { usize::from(*k) } else { 0 };
    let most = paths.iter().flatten().map(links).max().filter(|&m| m > 0)?;
    let least = paths.iter().flatten().map(links).filter(|&l| l > 0).min().unwrap_or(most);
    let all_to_all = (0..n).all(|i| (0..n).all(|j| i == j || links(&paths[i][j]) == most));
    let per_gpu = paths.iter().map(|r| r.iter().map(links).sum::<usize>()).max().unwrap_or(0);
    // A GPU cannot have this many direct links, so the links end in switches.
    let switched = all_to_all && per_gpu > LINKS_PER_GPU_MAX;
    let pairs = paths.iter().all(|r| r.iter().filter(|p| links(p) > 0).count() <= 1);
    let (rate, multicast, why) = match model {
        Some(m) if m.nvlink_gb_per_s > 0.0 => {
            (m.nvlink_gb_per_s, m.multicast && switched, format!("as a {} has", m.name))
        }
        _ if switched && most >= 18 => (25.0, true, "as on an HGX H100 or H200 (a B200 has 50)".into()),
        _ if switched && most >= 8 => (25.0, false, "as on an HGX A100 or A800".into()),
        _ if switched => (25.0, false, "as on a DGX-2".into()),
        _ if pairs && most == 4 => (14.0625, false, "as on an RTX A6000 or 3090 bridge".into()),
        _ if n == 8 && most == 1 && least == 1 => (20.0, false, "as on a DGX-1 with P100".into()),
        _ => (25.0, false, "as NVLink 2, 3 and 4 have".into()),
    };
    let fabric = NvLinkFabric { link_rate: Bandwidth::from_gb_per_s(rate), switched, multicast };
    let shape = match (switched, multicast) {
        (true, true) => "behind NVSwitches with multicast",
        (true, false) => "behind NVSwitches",
        _ => "direct from GPU to GPU",
    };
    Some((fabric, format!("NVLink taken as {rate} GB/s a link each way, {why}, {shape}")))
}

/// PCIe link of a GPU with 16 lanes, and a note. The generation is that of the model. For unknown models it is guessed
/// from the number of NVLinks of a pair, otherwise Gen4.
pub fn pcie(paths: &[Vec<PathKind>], model: Option<ModelFacts>) -> (Pcie, String) {
    let most = paths.iter().flatten().filter_map(|p| if let PathKind::NvLink(k) = p { Some(*k) } else { None }).max();
    let generation = match (model, most) {
        (Some(m), _) => m.pcie_generation,
        (None, Some(18..)) => 5,
        (None, Some(1..=2)) => 3,
        _ => 4,
    };
    (Pcie { generation, lanes: 16 }, format!("PCIe taken as Gen{generation} x16"))
}

/// Line rate in Gbit/s for NICs without a known rate, from the NVLink generation.
pub fn nic_gbit_per_s(nvlink: Option<NvLinkFabric>, paths: &[Vec<PathKind>]) -> f64 {
    let most = paths.iter().flatten().filter_map(|p| if let PathKind::NvLink(k) = p { Some(*k) } else { None }).max();
    match (nvlink.is_some_and(|n| n.switched), most) {
        (true, Some(18..)) => 400.0,
        (true, Some(12..)) => 200.0,
        _ => 100.0,
    }
}

/// GPUs with sockets inferred from paths: GPUs that reach each other without crossing NUMA nodes share a socket. O(n²).
pub fn sockets_from_paths(paths: &[Vec<PathKind>]) -> Vec<Gpu> {
    let n = paths.len();
    let mut socket: Vec<Option<u8>> = vec![None; n];
    let mut next = 0u8;
    for i in 0..n {
        if socket[i].is_some() {
            continue;
        }
        let mut reach = vec![i];
        while let Some(g) = reach.pop() {
            if socket[g].replace(next).is_none() {
                let near =
                    |j: &usize| matches!(paths[g][*j], PathKind::Pix | PathKind::Pxb | PathKind::Phb | PathKind::Node);
                reach.extend((0..n).filter(near).filter(|&j| socket[j].is_none()));
            }
        }
        next += 1;
    }
    let bounded = paths.iter().flatten().any(|p| *p == PathKind::Sys);
    socket.into_iter().map(|s| Gpu { socket: if bounded { s.unwrap_or(0) } else { 0 }, pci_bus_id: None }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    #[test]
    fn the_shape_of_a_catalog_matrix_gives_its_switches() {
        for t in catalog::host_types() {
            let found = nvlink(&t.gpu_paths, model_by_name(&t.gpu_model)).map(|(f, _)| f);
            assert_eq!(found, t.nvlink, "{}", t.name);
        }
    }

    #[test]
    fn the_more_specific_name_wins() {
        assert_eq!(model_by_name("NVIDIA L40S-48Q").unwrap().name, "NVIDIA L40S");
        assert_eq!(model_by_name("NVIDIA H100 PCIe").unwrap().name, "NVIDIA H100 PCIe");
        assert_eq!(model_by_name("NVIDIA GB200").unwrap().name, "NVIDIA GB200");
        assert_eq!(model_by_name("Voodoo 2"), None);
        assert_eq!(model_by_device_id(0x2330).unwrap().name, "NVIDIA H100 80GB HBM3");
    }

    #[test]
    fn every_model_is_found_by_its_own_name() {
        for m in MODELS {
            assert_eq!(model_by_name(m.name).unwrap().name, m.name);
        }
    }
}
