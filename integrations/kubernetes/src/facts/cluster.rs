//! The cluster from what Kubernetes says: slices, labels of nodes, collected matrices.

use super::collected;
use super::resource::HostFactsSpec;
use super::slices::{Devices, NodeDevices};
use import::host;
use import::site::{self, Books, Node as SiteNode, TypeOf, Updated};
use import::switches;
use k8s_openapi::api::core::v1::Node;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use topology::read::infer;
use topology::{Cluster, Gpu, HostType, PathKind, Pcie, catalog, names};

/// Label of GPU feature discovery: the product, with dashes for spaces.
const PRODUCT_LABEL: &str = "nvidia.com/gpu.product";
/// Label of GPU feature discovery: the NVLink domain over several hosts.
const CLIQUE_LABEL: &str = "nvidia.com/gpu.clique";
/// The source of types without a collected matrix.
const SLICES: &str = "ResourceSlices";
/// The source of the switches in messages.
const LABELS: &str = "the labels network.topology.nvidia.com/*";

/// The books of Kubernetes.
pub const BOOKS: Books = Books { scheduler: "Kubernetes", node_name: names::kubernetes::node_name };

/// What is read.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    pub devices: &'a Devices,
    pub nodes: &'a [Node],
    /// By node.
    pub collected: &'a BTreeMap<String, HostFactsSpec>,
    /// Host type by product, named by the operator.
    pub types: &'a BTreeMap<String, String>,
}

/// The cluster that the nodes are, and how it differs from the old one. Nodes without GPUs in slices are no hosts. O(GPUs + text of matrices).
///
/// # Errors
/// A node whose type cannot be told, or that contradicts its type; what to do.
pub fn update(old: Option<&Cluster>, name: &str, inputs: Inputs<'_>) -> Result<Updated, String> {
    let mut notes = inputs.devices.notes.clone();
    let by_name: HashMap<&str, &Node> =
        inputs.nodes.iter().filter_map(|n| Some((n.metadata.name.as_deref()?, n))).collect();
    let mut here: Vec<String> =
        inputs.devices.nodes.keys().filter(|n| by_name.contains_key(n.as_str())).cloned().collect();
    if here.is_empty() {
        return Err(
            "no node has GPUs in a ResourceSlice; is the DRA driver installed, and is its name the one of --driver?"
                .into(),
        );
    }
    switches::sort_hosts(&mut here);
    let mut old = old.cloned();
    let mut found = Found { inputs, read: HashMap::new(), said: BTreeSet::new() };
    let (mut hosts, mut replaced) = (Vec::with_capacity(here.len()), Vec::new());
    for node in &here {
        let devices = &inputs.devices.nodes[node];
        let labels = by_name[node.as_str()].metadata.labels.as_ref();
        let label = |key: &str| labels.and_then(|l| l.get(key)).cloned().unwrap_or_default();
        let product = match devices.gpus[0].product.as_str() {
            "" => label(PRODUCT_LABEL).replace('-', " "),
            named => named.to_owned(),
        };
        if host::shares_nvlink_with_other_hosts(&product) {
            let of_slice = Some(devices.gpus[0].clique.clone()).filter(|c| !c.is_empty());
            let clique = of_slice.unwrap_or_else(|| label(CLIQUE_LABEL));
            if !clique.is_empty() {
                found.said.insert(format!(
                    "NVLink domain {clique} spans hosts; linkwise models NVLink inside one host only and predicts too little between them"
                ));
            }
        }
        let uuids = uuids(node, devices, inputs.collected.get(node), &mut notes);
        let host_type = found.host_type(node, devices, &product);
        let known = old.as_mut().and_then(|c| {
            let at = c.hosts.iter().position(|h| (BOOKS.node_name)(h) == node)?;
            Some((c, at))
        });
        let gpus = devices.gpus.len();
        match (known, host_type) {
            (Some((c, at)), host_type) => {
                if let Ok(TypeOf::Found(t)) = &host_type
                    && c.types[c.hosts[at].host_type].source == SLICES
                    && t.source != SLICES
                {
                    c.hosts[at].host_type = index(c, t, node);
                    replaced.push(format!("{node}: links and NICs as its collector found them"));
                }
                let whole = c.types[c.hosts[at].host_type].gpu_count();
                if let Ok(TypeOf::Found(t)) = &host_type {
                    notes.extend(site::other_links(node, t, &c.types[c.hosts[at].host_type]));
                }
                if whole == gpus {
                    hosts.push(SiteNode {
                        name: node.clone(),
                        gpus,
                        host_type: host_type.unwrap_or_else(TypeOf::Unknown),
                        uuids,
                    });
                } else {
                    // A GPU that fell off its bus: the driver does not offer it, so no pod gets it.
                    notes.push(format!(
                        "{node}: {gpus} GPUs are in its slices, and its type has {whole}; the cluster stays"
                    ));
                    let host_type = TypeOf::Unknown(String::new());
                    hosts.push(SiteNode { name: node.clone(), gpus: whole, host_type, uuids: Vec::new() });
                }
            }
            // One node that cannot be understood does not keep the others out.
            (None, Err(why)) => notes.push(format!("{node} is left out: {why}")),
            (None, Ok(host_type)) => hosts.push(SiteNode { name: node.clone(), gpus, host_type, uuids }),
        }
    }
    if hosts.is_empty() {
        return Err(notes.join("; "));
    }
    let (said, old) = (found.said, old);
    notes.extend(said);
    let label_sets =
        hosts.iter().filter_map(|h| Some((h.name.as_str(), by_name[h.name.as_str()].metadata.labels.as_ref()?)));
    let wiring = switches::of_labels(label_sets).map_err(|e| format!("{LABELS}: {e}"))?;
    if let Some(w) = &wiring {
        notes.extend(w.notes.iter().cloned());
    }
    let mut updated =
        site::update(old.as_ref(), &hosts, wiring.as_ref().map(|w| (w, LABELS)), BOOKS).map_err(|e| e.to_string())?;
    updated.differences.append(&mut replaced);
    if old.is_none() {
        updated.cluster.name = name.into();
    }
    notes.append(&mut updated.notes);
    Ok(Updated { notes, ..updated })
}

/// Types of nodes; nodes with the same matrix are read once.
struct Found<'a> {
    inputs: Inputs<'a>,
    #[allow(clippy::type_complexity)]
    read: HashMap<(String, &'a str), Result<(HostType, Vec<String>), String>>,
    said: BTreeSet<String>,
}

impl<'a> Found<'a> {
    /// What the collector found, else what the operator names, else what the slices tell. The error says what to do.
    fn host_type(&mut self, node: &str, devices: &NodeDevices, product: &str) -> Result<TypeOf, String> {
        let named = named(self.inputs.types, product);
        let gpus = devices.gpus.len();
        let counted = |n: usize, what: &str| match n == gpus {
            true => Ok(()),
            false => Err(format!("it has {gpus} GPUs in its slices, and {what} has {n}")),
        };
        if let Some(f) = self.inputs.collected.get(node) {
            let read = self.read.entry((product.to_owned(), f.topology.as_str()));
            match (read.or_insert_with(|| collected::host_type(node, f, product)), named) {
                (Ok((t, why)), _) => {
                    self.said.extend(why.iter().cloned());
                    counted(t.gpu_count(), "nvidia-smi")?;
                    return Ok(TypeOf::Found(Box::new(t.clone())));
                }
                (Err(e), None) => return Err(format!("{e} (or name one: `types: {{\"{product}\": TYPE}}`)")),
                (Err(_), Some(_)) => {}
            }
        }
        match named {
            Some(name) => {
                if let Some(t) = catalog::host_type(name) {
                    counted(t.gpu_count(), name)?;
                }
                Ok(TypeOf::Named(name.to_owned()))
            }
            None => of_slices(product, devices),
        }
    }
}

/// Index of a type in a cluster, which gets it if it lacks it.
fn index(c: &mut Cluster, t: &HostType, node: &str) -> usize {
    let same = |x: &HostType| HostType { name: t.name.clone(), ..x.clone() } == *t;
    if let Some(at) = c.types.iter().position(same) {
        return at;
    }
    let mut t = t.clone();
    if c.types.iter().any(|x| x.name == t.name) {
        t.name = format!("{}-{node}", t.name);
    }
    c.types.push(t);
    c.types.len() - 1
}

/// The operator's type for a product: exact, or as GPU feature discovery writes it.
fn named<'a>(types: &'a BTreeMap<String, String>, product: &str) -> Option<&'a str> {
    let same = |k: &&String| k.replace('-', " ").eq_ignore_ascii_case(&product.replace('-', " "));
    types.get(product).or_else(|| types.keys().find(same).and_then(|k| types.get(k))).map(String::as_str)
}

/// UUIDs in the order of nvidia-smi: the collected one if it names the same GPUs, else that of PCI bus ids.
fn uuids(node: &str, devices: &NodeDevices, facts: Option<&HostFactsSpec>, notes: &mut Vec<String>) -> Vec<String> {
    let of_slices: Vec<String> = devices.gpus.iter().map(|g| g.uuid.clone()).collect();
    let Some(facts) = facts.filter(|f| !f.gpus.is_empty()) else { return of_slices };
    let mut gpus = facts.gpus.clone();
    gpus.sort_by_key(|g| g.index);
    let collected: Vec<String> = gpus.into_iter().map(|g| g.uuid).collect();
    if collected.iter().collect::<BTreeSet<_>>() == of_slices.iter().collect() {
        return collected;
    }
    notes.push(format!("{node}: nvidia-smi and the ResourceSlices name other GPUs; those of the slices are used"));
    of_slices
}

/// The type of a node without a collected matrix: PCIe and NUMA from the slices, NVLinks from the only board of the catalog with such GPUs. It has
/// no NICs, so that jobs over several hosts cannot be predicted; once its collector reports, it gets the type that was found.
fn of_slices(product: &str, devices: &NodeDevices) -> Result<TypeOf, String> {
    let ask = format!(
        "its host type is not known: wait for its collector (HostFacts), or name a type: `types: {{\"{product}\": TYPE}}`"
    );
    if product.is_empty() {
        return Err(ask);
    }
    let gpus = &devices.gpus;
    let socket = |g: usize| gpus[g].numa_node.unwrap_or(0);
    let path = |a: usize, b: usize| match () {
        () if a == b => PathKind::Same,
        // One PCIe root: below one host bridge. Switches between are not in the slices.
        () if !gpus[a].pcie_root.is_empty() && gpus[a].pcie_root == gpus[b].pcie_root => PathKind::Phb,
        () if socket(a) == socket(b) => PathKind::Node,
        () => PathKind::Sys,
    };
    let n = gpus.len();
    let bus = |id: &str| (!id.is_empty()).then(|| id.to_owned());
    let generation = infer::model_by_name(product).map_or(4, |m| m.pcie_generation);
    let mut t = HostType {
        name: collected::slug(product),
        description: String::new(),
        source: SLICES.into(),
        gpu_model: product.into(),
        gpus: gpus.iter().map(|g| Gpu { socket: g.numa_node.unwrap_or(0), pci_bus_id: bus(&g.pci_bus_id) }).collect(),
        gpu_paths: (0..n).map(|a| (0..n).map(|b| path(a, b)).collect()).collect(),
        nvlink: None,
        pcie: Pcie { generation, lanes: 16 },
        nics: Vec::new(),
        p2p: None,
    };
    match host::board(&mut t, None).and_then(|_| t.check()) {
        Ok(()) => Ok(TypeOf::Found(Box::new(t))),
        Err(_) => Err(ask),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Place;
    use crate::facts::slices::SliceGpu;

    fn devices(nodes: &[&str], product: &str) -> Devices {
        let gpu = |node: &str, g: usize| SliceGpu {
            place: Place { driver: "gpu.nvidia.com".into(), pool: node.into(), name: format!("gpu-{}", 7 - g) },
            uuid: format!("GPU-{node}-{g}"),
            product: product.into(),
            pci_bus_id: format!("0000:{g}0:00.0"),
            pcie_root: format!("pci0000:{g}0"),
            numa_node: Some(g as u8 / 4),
            clique: String::new(),
        };
        let node = |n: &&str| {
            ((*n).to_owned(), NodeDevices { gpus: (0..8).map(|g| gpu(n, g)).collect(), nics: BTreeMap::new() })
        };
        Devices { nodes: nodes.iter().map(node).collect(), notes: vec![] }
    }

    fn node(name: &str, leaf: &str) -> Node {
        let labels = if leaf.is_empty() {
            serde_json::json!({})
        } else {
            serde_json::json!({"network.topology.nvidia.com/leaf": leaf})
        };
        serde_json::from_value(serde_json::json!({"metadata": {"name": name, "labels": labels}})).unwrap()
    }

    fn facts(node: &str) -> HostFactsSpec {
        let mut text = String::from("GPU0 GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 GPU7 mlx5_0\n");
        for a in 0..8 {
            text += &format!("GPU{a} ");
            (0..8).for_each(|b| text += if a == b { "X " } else { "NV18 " });
            text += "PIX\n";
        }
        text += "mlx5_0 PIX PIX PIX PIX PIX PIX PIX PIX X\n";
        let gpu = |i: u8| super::super::resource::CollectedGpu {
            index: i,
            uuid: format!("GPU-{node}-{}", 7 - i),
            product: String::new(),
        };
        HostFactsSpec { topology: text, gpus: (0..8).map(gpu).collect(), ports: vec![] }
    }

    #[test]
    fn slices_labels_and_collected_matrices_give_the_cluster() {
        let d = devices(&["n10", "n2", "n3"], "NVIDIA H100 80GB HBM3");
        let nodes = [node("n10", "a"), node("n2", "b"), node("n3", "b"), node("cpu", "")];
        let collected = d.nodes.keys().map(|n| (n.clone(), facts(n))).collect();
        let none = BTreeMap::new();
        let inputs = Inputs { devices: &d, nodes: &nodes, collected: &collected, types: &none };
        let made = update(None, "site", inputs).unwrap();
        let c = &made.cluster;
        assert_eq!(c.hosts.iter().map(|h| h.name.as_str()).collect::<Vec<_>>(), ["n2", "n3", "n10"]);
        assert_eq!((c.types.len(), c.network.tiers.len(), c.types[0].nics.len()), (1, 1, 1), "{:?}", made.notes);
        assert_eq!(c.hosts[0].gpu_uuids[0], "GPU-n2-7", "the order is that of nvidia-smi");
        let again = update(Some(c), "site", inputs).unwrap();
        assert!(again.differences.is_empty(), "{:?}", again.differences);
    }

    #[test]
    fn without_a_collector_the_slices_give_pcie_and_numa_or_the_operator_names_the_type() {
        let d = devices(&["n0"], "NVIDIA L40S");
        let nodes = [node("n0", "")];
        let (none, no_types) = (BTreeMap::new(), BTreeMap::new());
        let inputs = Inputs { devices: &d, nodes: &nodes, collected: &none, types: &no_types };
        let t = update(None, "site", inputs).unwrap().cluster.types.remove(0);
        assert_eq!((t.gpu_paths[0][1], t.gpu_paths[0][7]), (PathKind::Node, PathKind::Sys));
        let d = devices(&["n0"], "Voodoo");
        let named = BTreeMap::from([("Voodoo".to_owned(), "hgx-h100".to_owned())]);
        let inputs = Inputs { devices: &d, types: &named, ..inputs };
        assert_eq!(update(None, "site", inputs).unwrap().cluster.types[0].name, "hgx-h100");
        let empty = Devices::default();
        let inputs = Inputs { devices: &empty, ..inputs };
        assert!(update(None, "site", inputs).unwrap_err().contains("DRA driver"));
    }

    #[test]
    fn one_node_that_is_not_understood_or_not_whole_does_not_keep_the_others_out() {
        let d = devices(&["n0", "n1"], "NVIDIA H100 80GB HBM3");
        let nodes = [node("n0", ""), node("n1", "")];
        let no_types = BTreeMap::new();
        let mut bad = facts("n1");
        bad.topology = "nonsense".into();
        let collected = BTreeMap::from([("n0".to_owned(), facts("n0")), ("n1".to_owned(), bad)]);
        let inputs = Inputs { devices: &d, nodes: &nodes, collected: &collected, types: &no_types };
        let made = update(None, "site", inputs).unwrap();
        assert_eq!(made.cluster.hosts.len(), 1);
        assert!(made.notes.iter().any(|n| n.starts_with("n1 is left out: HostFacts n1:")), "{:?}", made.notes);
        let mut seven = d.clone();
        seven.nodes.get_mut("n0").unwrap().gpus.pop();
        let lost = update(Some(&made.cluster), "site", Inputs { devices: &seven, ..inputs }).unwrap();
        assert_eq!(lost.cluster, made.cluster);
        assert!(
            lost.notes.iter().any(|n| n.contains("7 GPUs are in its slices, and its type has 8")),
            "{:?}",
            lost.notes
        );
    }

    #[test]
    fn a_type_of_slices_gives_way_to_what_the_collector_finds() {
        let d = devices(&["n0"], "NVIDIA L40S");
        let nodes = [node("n0", "")];
        let (none, no_types) = (BTreeMap::new(), BTreeMap::new());
        let inputs = Inputs { devices: &d, nodes: &nodes, collected: &none, types: &no_types };
        let first = update(None, "site", inputs).unwrap();
        assert!(first.cluster.types[0].nics.is_empty());
        let mut f = facts("n0");
        f.topology = f.topology.replace("NV18", "SYS ");
        let collected = BTreeMap::from([("n0".to_owned(), f)]);
        let then = update(Some(&first.cluster), "site", Inputs { collected: &collected, ..inputs }).unwrap();
        assert!(!then.cluster.types[then.cluster.hosts[0].host_type].nics.is_empty());
        assert!(
            then.differences.iter().any(|d| d == "n0: links and NICs as its collector found them"),
            "{:?}",
            then.differences
        );
    }
}
