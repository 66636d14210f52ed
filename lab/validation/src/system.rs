//! One fixed rule that converts the system columns of a row to a cluster and an allocation.
//!
//! Only the columns gpu, gpus_per_node, nodes, allocation, interconnect, nic, algo, proto and note are read, never the result.

use fabric::{GpuClass, RunOptions};
use topology::nccl::Algorithm;
use topology::{
    Allocation, Bandwidth, Cluster, Gpu, GpuMask, Host, HostId, HostType, Network, NetworkClass, Nic, NvLinkFabric,
    PathKind, Pcie, catalog,
};

/// Maximum number of hosts of a row.
const HOSTS_MAX: usize = 4_096;

/// The system columns of a row, as text.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a> {
    /// GPU model.
    pub gpu: &'a str,
    /// System.
    pub system: &'a str,
    /// GPUs of one node.
    pub gpus_per_node: &'a str,
    /// Number of nodes.
    pub nodes: &'a str,
    /// GPUs used.
    pub allocation: &'a str,
    /// Links inside a node.
    pub interconnect: &'a str,
    /// NICs of a node.
    pub nic: &'a str,
    /// Algorithm.
    pub algo: &'a str,
    /// Protocol.
    pub proto: &'a str,
    /// Remarks.
    pub note: &'a str,
}

impl<'a> Words<'a> {
    /// Reads the fields of a row by column.
    pub fn of(field: impl Fn(&'static str) -> &'a str) -> Self {
        Words {
            gpu: field("gpu"),
            system: field("system"),
            gpus_per_node: field("gpus_per_node"),
            nodes: field("nodes"),
            allocation: field("allocation"),
            interconnect: field("interconnect"),
            nic: field("nic"),
            algo: field("algo"),
            proto: field("proto"),
            note: field("note"),
        }
    }

    /// A key that is equal for all rows on the same cluster with the same number of hosts.
    pub fn cluster_key(&self, hosts: usize) -> String {
        let Words { gpu, system, gpus_per_node, nodes, interconnect, nic, note, .. } = self;
        format!("{gpu}|{system}|{gpus_per_node}|{nodes}|{interconnect}|{nic}|{note}|{hosts}")
    }
}

/// A row that can be predicted.
#[derive(Clone, Debug)]
pub struct Case {
    /// The system.
    pub cluster: Cluster,
    pub allocation: Allocation,
    /// Settings of the run.
    pub run: RunOptions,
}

/// Why a row is left out.
pub type Reason = String;

/// GPUs of each node of the job.
fn counts(w: &Words, nodes: usize) -> Result<Vec<usize>, Reason> {
    let text = w.allocation.split('(').next().unwrap_or("").trim();
    let no = || Err(format!("allocation `{}` names no set of GPUs", super::table::shortened(w.allocation)));
    let number = |s: &str| s.trim().parse::<usize>().ok().filter(|n| *n > 0 && *n <= 1024);
    if let Some(group) = text.strip_prefix("group ") {
        // "group 2 of 4, strided": several groups work at once.
        let (size, rest) = group.split_once(" of ").ok_or_else(|| "allocation names no group".to_string())?;
        let all = rest.split(',').next().unwrap_or("");
        let (Some(size), Some(all)) = (number(size), number(all)) else { return no() };
        let strided = rest.contains("strided");
        if nodes > 1 && size < all && (strided || size > all / nodes) {
            return Err("concurrent groups share NICs that the source does not document".into());
        }
        return Ok(if size > all / nodes.max(1) { vec![all / nodes; nodes] } else { vec![size] });
    }
    if let Some((some, _)) = text.split_once(" of ") {
        return number(some).map_or_else(no, |n| Ok(vec![n]));
    }
    if text.contains('+') {
        let parts: Option<Vec<usize>> = text.split('+').map(number).collect();
        return match parts {
            Some(p) if p.len() <= HOSTS_MAX => Ok(p),
            _ => no(),
        };
    }
    if let Some((g, n)) = text.split_once('x') {
        return match (number(g), number(n)) {
            (Some(g), Some(n)) if n == nodes && n <= HOSTS_MAX => Ok(vec![g; n]),
            (Some(n), Some(g)) if n == nodes => Ok(vec![g; n]),
            _ => no(),
        };
    }
    number(text).map_or_else(no, |n| Ok(vec![n]))
}

fn leading_number(text: &str) -> Option<usize> {
    let digits: String = text.trim().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().filter(|n| *n > 0)
}

/// Number before or after a word: `k x` in `4x200 IB HDR`.
fn nic_spec(text: &str, gpus: usize) -> Option<(usize, f64)> {
    let lower = text.to_ascii_lowercase();
    // `400G per GPU`
    if let Some((rate, _)) = lower.split_once("g per gpu")
        && let Some(speed) = rate.split_whitespace().next_back().and_then(|r| r.parse::<f64>().ok())
        && (1.0..=3200.0).contains(&speed)
    {
        return Some((gpus, speed));
    }
    for (i, _) in lower.match_indices('x') {
        let before: String =
            lower[..i].chars().rev().take_while(char::is_ascii_digit).collect::<String>().chars().rev().collect();
        let after: String = lower[i + 1..].chars().take_while(char::is_ascii_digit).collect();
        let speed = match after.parse::<f64>() {
            Ok(s) => s,
            Err(_) if lower[i + 1..].starts_with("cx7") => 400.0,
            Err(_) if lower[i + 1..].starts_with("cx6") => 200.0,
            _ => continue,
        };
        if let Some(k) = before.parse::<usize>().ok().filter(|k| (1..=32).contains(k))
            && (1.0..=3200.0).contains(&speed)
        {
            let per_gpu = lower.contains("per gpu");
            return Some((if per_gpu { k * gpus } else { k }, speed));
        }
    }
    None
}

fn network_class(nic: &str, note: &str) -> NetworkClass {
    let n = nic.to_ascii_uppercase();
    let both = format!("{n} {}", note.to_ascii_uppercase());
    if both.contains("GDR 0") || both.contains("NO GDR") || both.contains("WITHOUT GPUDIRECT") {
        NetworkClass::RdmaNoGdr
    } else if n.contains("TCP") || n.contains("SOCKET") {
        NetworkClass::Tcp
    } else if n.contains("EFA") {
        NetworkClass::Efa
    } else if n.contains("ROCE") && !n.contains("IB") || n.contains("SLINGSHOT") {
        // Slingshot is an Ethernet with RDMA.
        NetworkClass::Roce
    } else {
        NetworkClass::Infiniband
    }
}

/// The NVLinks of a GPU.
#[derive(Clone, Copy)]
struct NvLinks {
    links: u8,
    /// Nominal rate of one link in one direction, GB/s.
    link_gb_per_s: f64,
    /// True if its switches multicast and reduce (NVLink SHARP).
    sharp: bool,
}

/// The NVLinks of a GPU model.
fn nvlinks(gpu: &str, interconnect: &str) -> Option<NvLinks> {
    let g = gpu.to_ascii_uppercase();
    let has = |w: &str| g.contains(w);
    let slow = interconnect.contains("200 GB/s") || interconnect.contains("400 GB/s");
    let (links, link_gb_per_s, sharp) = match GpuClass::known(gpu)? {
        GpuClass::Pascal => (4, 20.0, false),
        GpuClass::Volta => (6, 25.0, false),
        GpuClass::Ampere if has("A800") => (8, 25.0, false),
        GpuClass::Ampere if has("A6000") || has("A40") || has("3090") || has("A10") && !has("A100") => {
            (4, 14.0625, false)
        }
        GpuClass::Ampere => (12, 25.0, false),
        GpuClass::Hopper if has("H800") || slow && !has("H20") => (8, 25.0, true),
        GpuClass::Hopper => (18, 25.0, true),
        GpuClass::Blackwell => (18, 50.0, true),
        GpuClass::Ada => return None,
    };
    Some(NvLinks { links, link_gb_per_s, sharp })
}

fn pcie_generation(gpu: &str, interconnect: &str) -> u8 {
    let text = interconnect.to_ascii_uppercase().replace(' ', "");
    for g in (3..=6).rev() {
        if text.contains(&format!("PCIE{g}"))
            || text.contains(&format!("GEN{g}"))
            || text.contains(&format!("PCIEGEN{g}"))
        {
            return g;
        }
    }
    match GpuClass::of(gpu) {
        GpuClass::Pascal | GpuClass::Volta => 3,
        GpuClass::Ampere | GpuClass::Ada => 4,
        GpuClass::Hopper | GpuClass::Blackwell => 5,
    }
}

/// A host of `n` GPUs without NICs.
fn host_type(w: &Words, n: usize) -> Result<HostType, Reason> {
    if n > topology::GPUS_PER_HOST_MAX {
        return Err(format!(
            "a link domain of {n} GPUs; cluster files hold hosts of up to {}",
            topology::GPUS_PER_HOST_MAX
        ));
    }
    if GpuClass::known(w.gpu).is_none() {
        return Err(format!("GPU model `{}` is not stated or not known", super::table::shortened(w.gpu)));
    }
    let board = Board::of(w, n);
    let (gpu_paths, nvlink) = gpu_paths(w, &board)?;
    Ok(HostType {
        name: "row".into(),
        description: String::new(),
        source: String::new(),
        gpu_model: w.gpu.into(),
        gpus: (0..n).map(|i| Gpu { socket: board.socket(i), pci_bus_id: None }).collect(),
        gpu_paths,
        nvlink,
        pcie: Pcie { generation: pcie_generation(w.gpu, w.interconnect), lanes: 16 },
        nics: Vec::new(),
        p2p: None,
    })
}

/// Sockets and PCIe switches of a host, from the fields of a row.
struct Board {
    gpus: usize,
    two_sockets: bool,
    switches: bool,
}

impl Board {
    fn of(w: &Words, gpus: usize) -> Board {
        let inter = w.interconnect.to_ascii_uppercase();
        Board {
            gpus,
            two_sockets: gpus > 2 && !w.system.to_ascii_uppercase().contains("WRX") && !inter.contains("SINGLE SOCKET"),
            switches: inter.contains("SWITCH") && !inter.contains("NVSWITCH"),
        }
    }

    fn socket(&self, gpu: usize) -> u8 {
        if self.two_sockets { (gpu * 2 / self.gpus) as u8 } else { 0 }
    }

    /// The path between two GPUs that share no NVLink.
    fn without_nvlink(&self, a: usize, b: usize) -> PathKind {
        if self.socket(a) != self.socket(b) {
            PathKind::Sys
        } else if self.switches {
            PathKind::Pxb
        } else {
            PathKind::Phb
        }
    }

    /// The paths between all GPUs. `links`: the number of NVLinks between two GPUs.
    fn paths(&self, links: impl Fn(usize, usize) -> Option<u8>) -> Vec<Vec<PathKind>> {
        let path = |a: usize, b: usize| match links(a, b) {
            _ if a == b => PathKind::Same,
            Some(l) => PathKind::NvLink(l),
            None => self.without_nvlink(a, b),
        };
        (0..self.gpus).map(|a| (0..self.gpus).map(|b| path(a, b)).collect()).collect()
    }
}

/// The connections of the GPUs of a host by NVLink.
enum Wiring {
    /// Bridges between neighbours.
    Pairs,
    /// This number of links between any two GPUs.
    Mesh(u8),
    /// The cube mesh of the first hosts with eight V100.
    CubeMesh,
    Switched,
}

/// The wiring in a row, for GPUs with `links` NVLinks; `None` if the GPUs have only PCIe.
fn wiring(w: &Words, board: &Board, links: u8) -> Option<Wiring> {
    let inter = w.interconnect.to_ascii_uppercase();
    let says = |word: &str| inter.contains(word);
    let n = board.gpus;
    if !(says("NV") && !board.switches || inter.is_empty() || inter == "N/A") {
        return None;
    }
    if (says("PAIRS") || says("PAIRWISE") || says("BRIDGE")) && !says("MESH") {
        return Some(Wiring::Pairs);
    }
    let direct = inter.split("NV").nth(1).and_then(leading_number).filter(|_| says("DIRECT"));
    // Direct links to every other GPU: the number in parentheses, else the links of the GPU divided by the number of peers.
    let all_to_all = says("ALL-TO-ALL");
    let mesh = (says("MESH") || all_to_all).then(|| {
        let stated = inter.split('(').nth(1).and_then(leading_number).filter(|_| !all_to_all);
        stated.unwrap_or_else(|| (usize::from(links) / (n - 1).max(1)).max(1))
    });
    if let Some(k) = direct.or(mesh).filter(|k| (1..=18).contains(k)) {
        return Some(Wiring::Mesh(k as u8));
    }
    let eight_v100 = n == 8 && says("NVLINK") && GpuClass::of(w.gpu) <= GpuClass::Volta && !says("NVSWITCH");
    Some(if says("CUBE") || eight_v100 { Wiring::CubeMesh } else { Wiring::Switched })
}

/// The paths between the GPUs of a host, and its NVLinks.
fn gpu_paths(w: &Words, board: &Board) -> Result<(Vec<Vec<PathKind>>, Option<NvLinkFabric>), Reason> {
    let spec = nvlinks(w.gpu, w.interconnect);
    let Some((spec, wiring)) = spec.and_then(|s| Some((s, wiring(w, board, s.links)?))) else {
        return Ok((board.paths(|_, _| None), None));
    };
    let paths = match wiring {
        Wiring::Pairs => board.paths(|a, b| (a / 2 == b / 2).then_some(bridge_links(w, spec.links))),
        Wiring::Mesh(k) => board.paths(|_, _| Some(k)),
        Wiring::CubeMesh => catalog::host_type("dgx1-v100").ok_or("no cube mesh in the catalog")?.gpu_paths,
        Wiring::Switched => board.paths(|_, _| Some(spec.links)),
    };
    let switched = matches!(wiring, Wiring::Switched);
    let link_rate = Bandwidth::from_gb_per_s(spec.link_gb_per_s);
    Ok((paths, Some(NvLinkFabric { link_rate, switched, multicast: spec.sharp && switched })))
}

/// Number of links of an NVLink bridge: H100 and A100 boards have 12, other models have the given number.
fn bridge_links(w: &Words, links: u8) -> u8 {
    let stated = w.interconnect.split('(').nth(1).and_then(leading_number);
    match stated {
        Some(k) if k <= 18 => k as u8,
        _ => links.min(12),
    }
}

/// `k` NICs of one rate: several per GPU, one per GPU, or each shared by neighbours.
fn nics(k: usize, gbit: f64, host: &HostType) -> Vec<Nic> {
    let n = host.gpu_count();
    (0..k)
        .map(|i| {
            let owner = |g: usize| if k >= n { i * n / k == g } else { g * k / n == i };
            Nic {
                name: format!("nic{i}"),
                line_rate: Bandwidth::from_gbit_per_s(gbit),
                socket: None,
                gpu_paths: (0..n).map(|g| if owner(g) { PathKind::Pix } else { PathKind::Sys }).collect(),
            }
        })
        .collect()
}

/// The algorithm that a row forces, if any.
fn forced(w: &Words) -> Result<Option<Algorithm>, Reason> {
    let a = w.algo.to_ascii_lowercase();
    if a.contains("sharp") || a.contains("collnet") {
        return Err("in-network reduction (SHARP, CollNet) is not modelled".into());
    }
    if w.proto.to_ascii_lowercase().contains("forced") {
        return Err("forced protocol".into());
    }
    if !(a.contains("forced") || a.contains("off")) {
        return Ok(None);
    }
    Ok(if a.starts_with("ring") {
        Some(Algorithm::Ring)
    } else if a.starts_with("tree") {
        Some(Algorithm::Tree)
    } else if a.starts_with("nvlstree") || a.starts_with("nvls_tree") {
        Some(Algorithm::NvlsTree)
    } else if a.starts_with("nvls") {
        Some(Algorithm::Nvls)
    } else {
        return Err(format!("forced algorithm `{}` is not modelled", super::table::shortened(w.algo)));
    })
}

/// Applies the rule.
pub fn interpret(w: &Words) -> Result<Case, Reason> {
    let note = w.note.to_ascii_lowercase();
    if note.contains("concurrent compute") || note.contains("contended") {
        return Err("GPUs were busy with other work".into());
    }
    if note.contains("average over") {
        return Err("an average over sizes".into());
    }
    if note.contains("pipeline p2p") {
        return Err("pipeline of concurrent sends: the pattern is not stated".into());
    }
    let algorithm = forced(w)?;
    let nodes = leading_number(w.nodes).unwrap_or(1);
    let per_node = leading_number(w.gpus_per_node).unwrap_or(8);
    let counts = counts(w, nodes)?;
    if counts.len() != nodes && counts.len() > 1 {
        return Err(format!("allocation `{}` does not fit {nodes} nodes", super::table::shortened(w.allocation)));
    }
    if counts.len() == 1 && nodes > 1 && !w.allocation.starts_with("group") {
        return Err(format!(
            "allocation `{}` does not say how GPUs are spread over {nodes} nodes",
            super::table::shortened(w.allocation)
        ));
    }
    if counts.iter().sum::<usize>() < 2 {
        return Err("a single GPU".into());
    }
    if let Some(c) = counts.iter().find(|c| **c > per_node) {
        return Err(format!("{c} GPUs on nodes of {per_node}"));
    }
    let mut host = host_type(w, per_node)?;
    if counts.len() > 1 {
        let lower = w.nic.to_ascii_lowercase();
        let spec = nic_spec(w.nic, per_node).filter(|_| !lower.contains("unknown"));
        let Some((k, gbit)) = spec else {
            return Err("the network is not documented".into());
        };
        if k > topology::host::NICS_PER_HOST_MAX {
            return Err(format!("{k} NICs on a node"));
        }
        host.nics = nics(k, gbit, &host);
    }
    let cluster = Cluster {
        name: "row".into(),
        types: vec![host],
        hosts: (0..counts.len()).map(|i| Host { name: format!("n{i}"), ..Host::default() }).collect(),
        network: Network { class: network_class(w.nic, w.note), ..Network::default() },
    };
    let allocation = Allocation::new(counts.iter().enumerate().map(|(i, &c)| (HostId(i as u32), GpuMask::first(c))));
    let out_of_place = !note.contains("in-place") && !note.contains("in place");
    Ok(Case { cluster, allocation, run: RunOptions { algorithm, out_of_place } })
}
