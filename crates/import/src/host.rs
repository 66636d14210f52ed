//! Facts that a host's files state only indirectly: NICs that carry GPU traffic, NVLinks of boards that always have
//! them, class of the network.

use crate::ports::RdmaPort;
use topology::read::infer;
use topology::{Bandwidth, HostType, NetworkClass, Nic, PathKind, catalog, names};

/// A NIC slower than this share of the fastest one is for storage or management.
const SLOW_NIC: f64 = 0.5;

/// Selection of the NICs to keep.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum NicChoice {
    /// The NICs next to a GPU, at the rate of the fastest.
    #[default]
    ByRule,
    /// All NICs of the file.
    All,
    /// The NICs with these names, such as `mlx5_[0,3-9]`.
    Only(String),
    /// Those of [`NicChoice::ByRule`] without the NICs with these names.
    Without(String),
}

/// Removes the NICs that carry no GPU traffic. Returns notes on each removal and its reason. The error names a NIC that
/// the host lacks.
pub fn choose_nics(t: &mut HostType, choice: &NicChoice) -> Result<Vec<String>, String> {
    let listed = |list: &str| -> Result<Vec<String>, String> {
        let wanted = names::hostlist::expand(list, 1024).map_err(|e| e.to_string())?;
        if let Some(unknown) = wanted.iter().find(|w| !t.nics.iter().any(|n| n.name == **w)) {
            let known: Vec<&str> = t.nics.iter().map(|n| n.name.as_str()).collect();
            let known = if known.is_empty() { "no NIC".into() } else { known.join(", ") };
            return Err(format!("host type `{}` has no NIC `{unknown}`; it has {known}", t.name));
        }
        Ok(wanted)
    };
    match choice {
        NicChoice::All => Ok(Vec::new()),
        NicChoice::Only(list) => {
            let wanted = listed(list)?;
            t.nics.retain(|n| wanted.contains(&n.name));
            Ok(Vec::new())
        }
        NicChoice::Without(list) => {
            let unwanted = listed(list)?;
            t.nics.retain(|n| !unwanted.contains(&n.name));
            Ok(by_rule(t))
        }
        NicChoice::ByRule => Ok(by_rule(t)),
    }
}

fn by_rule(t: &mut HostType) -> Vec<String> {
    let mut notes = Vec::new();
    let nearest = |n: &Nic| n.gpu_paths.iter().copied().min().unwrap_or(PathKind::Sys);
    let is_near = |n: &Nic| nearest(n) <= PathKind::Pxb;
    let mut drop = |t: &mut HostType, out: &dyn Fn(&Nic) -> bool, why: &str| {
        let names: Vec<String> = t.nics.iter().filter(|n| out(n)).map(|n| n.name.clone()).collect();
        if !names.is_empty() && names.len() < t.nics.len() {
            t.nics.retain(|n| !out(n));
            let one = if names.len() == 1 { "NIC" } else { "NICs" };
            notes.push(format!(
                "{one} {} left out: {why}, so taken for storage or management (--nics, --all-nics)",
                names.join(", ")
            ));
        }
    };
    if t.nics.iter().any(is_near) {
        drop(t, &|n| !is_near(n), "no GPU below the same PCIe switch, while other NICs have one");
    }
    let fastest = t.nics.iter().map(|n| n.line_rate.gbit_per_s()).fold(0.0, f64::max);
    drop(t, &|n| n.line_rate.gbit_per_s() < SLOW_NIC * fastest, "less than half the rate of the fastest NIC");
    notes
}

/// Applies the name of the GPU model: NVLink rates and the generation of PCIe. Returns notes.
pub fn apply_model(t: &mut HostType, model: &str) -> Vec<String> {
    model.clone_into(&mut t.gpu_model);
    let Some(facts) = infer::model_by_name(model) else {
        return vec![format!("link rates of `{model}` are not known; those of the files stay")];
    };
    let mut notes = Vec::new();
    t.nvlink = match (t.nvlink, infer::nvlink(&t.gpu_paths, Some(facts))) {
        (Some(had), Some((found, why))) => {
            notes.push(why);
            Some(topology::NvLinkFabric { switched: had.switched || found.switched, ..found })
        }
        (had, _) => had,
    };
    t.pcie.generation = facts.pcie_generation;
    notes.push(format!("PCIe taken as Gen{} x{} ({})", t.pcie.generation, t.pcie.lanes, facts.name));
    notes
}

/// Applies the ports of `ibstat` or `ibv_devinfo`: sets rates, and removes NICs that are down or of the other link layer. Returns the
/// class of the network according to the ports, and notes.
pub fn apply_ports(t: &mut HostType, ports: &[RdmaPort]) -> (Option<NetworkClass>, Vec<String>) {
    let mut notes = Vec::new();
    let port = |n: &Nic| ports.iter().find(|p| p.device == n.name);
    let of_layer = |layer: &str| {
        let of = |n: &&Nic| port(n).is_some_and(|p| p.active && p.link_layer == layer);
        t.nics.iter().filter(of).count()
    };
    let (ib, ethernet) = (of_layer("InfiniBand"), of_layer("Ethernet"));
    let class = match (ib, ethernet) {
        (0, 0) => None,
        (i, e) if i >= e => Some(NetworkClass::Infiniband),
        _ => Some(NetworkClass::Roce),
    };
    let layer = if class == Some(NetworkClass::Roce) { "Ethernet" } else { "InfiniBand" };
    let (mut out, mut unknown) = (Vec::new(), Vec::new());
    t.nics.retain_mut(|n| match ports.iter().find(|p| p.device == n.name) {
        None => {
            unknown.push(n.name.clone());
            true
        }
        Some(p) if class.is_some() && (!p.active || p.link_layer != layer) => {
            out.push(format!("{} ({})", n.name, if p.active { p.link_layer.as_str() } else { "not active" }));
            false
        }
        Some(p) => {
            if p.rate_gbit_per_s > 0.0 {
                n.line_rate = Bandwidth::from_gbit_per_s(p.rate_gbit_per_s);
            }
            true
        }
    });
    if !out.is_empty() {
        notes.push(format!("left out, as their ports have another link layer or are not active: {}", out.join(", ")));
    }
    if !unknown.is_empty() {
        notes.push(format!("the list of ports has no device {}", unknown.join(", ")));
    }
    (class, notes)
}

/// The class of the network according to the names of RDMA devices in Linux: `ibp*` InfiniBand, `rocep*` RoCE, `rdmap*`
/// and `efa*` EFA, `eth*` and `en*` plain Ethernet. `None` if the names state no protocol (`mlx5_0`) or contradict each
/// other.
pub fn class_by_names(t: &HostType) -> Option<NetworkClass> {
    let of = |n: &Nic| {
        let name = n.name.to_ascii_lowercase();
        let starts = |with: &[&str]| with.iter().any(|w| name.starts_with(w));
        match () {
            _ if starts(&["efa", "rdmap"]) => Some(NetworkClass::Efa),
            _ if starts(&["roce"]) => Some(NetworkClass::Roce),
            _ if starts(&["ib"]) => Some(NetworkClass::Infiniband),
            _ if starts(&["eth", "en"]) => Some(NetworkClass::Tcp),
            _ => None,
        }
    };
    let first = of(t.nics.first()?)?;
    t.nics.iter().all(|n| of(n) == Some(first)).then_some(first)
}

/// True for a GPU soldered to a board with NVLink. A name without a form factor (`H100`) means SXM, as in `infer`.
pub fn is_on_nvlink_board(gpu_model: &str) -> bool {
    let is_card = |name: &str| {
        name.split(|c: char| !c.is_ascii_alphanumeric())
            .any(|w| ["PCIE", "NVL"].contains(&w.to_ascii_uppercase().as_str()))
    };
    let known = infer::model_by_name(gpu_model).map_or("", |m| m.name);
    let sxm = ["SXM", "HBM3", "H200", "B200", "B300", "H800", "H20"];
    !is_card(gpu_model) && !is_card(known) && sxm.iter().any(|w| known.contains(w))
}

/// True for GPUs of racks in which all trays share NVLink (NVL72).
pub fn shares_nvlink_with_other_hosts(gpu_model: &str) -> bool {
    let name = gpu_model.to_ascii_uppercase();
    name.contains("GB200") || name.contains("GB300")
}

/// Adds the NVLinks of a board whose file has none: those of the catalog's board `named`, or of the only catalog board
/// that fits. Returns a note, or `None` if the file needs no addition. The error names the missing option.
pub fn board(t: &mut HostType, named: Option<&str>) -> Result<Option<String>, String> {
    if t.nvlink.is_some() && named.is_none() {
        return Ok(None);
    }
    let n = t.gpu_count();
    let facts = infer::model_by_name(&t.gpu_model);
    let from = match named {
        Some(name) => {
            let board = catalog::host_type(name).ok_or_else(|| {
                let names: Vec<String> =
                    catalog::host_types().into_iter().filter(|b| b.nvlink.is_some()).map(|b| b.name).collect();
                format!("--board: the catalog has no `{name}`; boards with NVLink: {}", names.join(", "))
            })?;
            if board.gpu_count() != n || board.nvlink.is_none() {
                return Err(format!(
                    "--board: `{name}` has {} GPUs{}, the file has {n}",
                    board.gpu_count(),
                    if board.nvlink.is_some() { "" } else { " and no NVLink" }
                ));
            }
            board
        }
        None if n < 2 || !is_on_nvlink_board(&t.gpu_model) => return Ok(None),
        None => {
            // With switches between all GPUs, the order of GPUs does not matter; other boards need the exact pairs.
            let fits = |b: &HostType| {
                b.gpu_count() == n
                    && b.nvlink.is_some_and(|l| l.switched)
                    && infer::model_by_name(&b.gpu_model).map(family) == facts.map(family)
            };
            let mut fitting: Vec<HostType> = catalog::host_types().into_iter().filter(fits).collect();
            if fitting.len() != 1 {
                let names: Vec<String> = fitting.iter().map(|b| format!("`{}`", b.name)).collect();
                let which = match names.is_empty() {
                    true => "the catalog has no such board".to_owned(),
                    false => format!("the catalog has {}", names.join(" and ")),
                };
                return Err(format!(
                    "{n} GPUs `{}` without a NVLink: such GPUs sit on boards with NVLink, and the file does not describe it ({which}). \
                     Give the output of `nvidia-smi topo -m` of such a host as a further file, or name the board with --board; \
                     for PCIe cards say --gpu-model '{} PCIe'",
                    t.gpu_model,
                    facts.map_or("...".into(), family)
                ));
            }
            fitting.remove(0)
        }
    };
    for i in 0..n {
        for j in 0..n {
            if matches!(from.gpu_paths[i][j], PathKind::NvLink(_)) {
                t.gpu_paths[i][j] = from.gpu_paths[i][j];
            }
        }
    }
    t.nvlink = from.nvlink;
    Ok(Some(format!("NVLinks taken from `{}` of the catalog ({}), not from the file", from.name, from.gpu_model)))
}

/// The chip of a GPU model: `A100` for `NVIDIA A100-SXM4-80GB`.
fn family(facts: infer::ModelFacts) -> String {
    let words = facts.name.split(|c: char| !c.is_ascii_alphanumeric());
    let is_chip =
        |w: &&str| w.bytes().any(|b| b.is_ascii_digit()) && w.bytes().next().is_some_and(|b| b.is_ascii_alphabetic());
    words.into_iter().find(is_chip).unwrap_or(facts.name).to_owned()
}
