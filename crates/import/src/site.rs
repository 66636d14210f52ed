//! A cluster brought up to what a scheduler's books and the nodes say: new and lost nodes, UUIDs, switches.
//!
//! What an operator edited stays: host types, drained and degraded parts, the class of the network, oversubscription, rates of pairs. Every change
//! is one sentence in [`Updated::differences`].

use crate::switches::{NetworkOptions, Wiring};
use std::collections::{BTreeMap, BTreeSet};
use topology::{Cluster, Host, HostType, Network, NetworkClass, catalog, count};

/// The scheduler whose books are read.
#[derive(Clone, Copy, Debug)]
pub struct Books {
    /// Its name in sentences.
    pub scheduler: &'static str,
    /// The name of a host in its books.
    pub node_name: fn(&Host) -> &str,
}

/// The type of a node that the cluster lacks.
#[derive(Clone, Debug, PartialEq)]
pub enum TypeOf {
    /// A type of the cluster or of the catalog, by name.
    Named(String),
    /// A type that the node's own files describe.
    Found(Box<HostType>),
    /// No source names it; what to do, in words.
    Unknown(String),
}

/// A node with GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub name: String,
    pub gpus: usize,
    pub host_type: TypeOf,
    /// UUIDs in the order of nvidia-smi; empty if unknown.
    pub uuids: Vec<String>,
}

/// Why a cluster cannot be brought up to its nodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SiteError {
    /// The books and the type of a host name different numbers of GPUs: the operator decides which is right.
    #[error("{node} has {} in {scheduler}, and a host of type {host_type} has {whole}", count(*gpus, "GPU"))]
    Gpus { node: String, gpus: usize, scheduler: &'static str, host_type: String, whole: usize },
    /// The type of a new node cannot be told.
    #[error("{0}")]
    Type(String),
    /// Nodes are gone, and the switches of the rest are not named.
    #[error("nodes are gone and the cluster has switches; name the switches of the rest")]
    Gone,
    /// The switches do not fit the hosts.
    #[error("{0}")]
    Switches(String),
    /// The cluster breaks a rule.
    #[error("{0}")]
    Rule(String),
}

/// The cluster as it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Updated {
    pub cluster: Cluster,
    /// How it differs from the old one, one sentence each; empty: it is the old one.
    pub differences: Vec<String>,
    /// What was inferred, one sentence each.
    pub notes: Vec<String>,
}

/// The old cluster brought up to the nodes. The error says which node or switch, and what to do. O(nodes x types + hosts x tiers).
///
/// Hosts of nodes that are gone leave the cluster. A node with another number of GPUs than its type is an error: the operator decides which is
/// right. `wiring`: the switches and the name of their source; none: those of the old cluster stay.
pub fn update(
    old: Option<&Cluster>,
    nodes: &[Node],
    wiring: Option<(&Wiring, &str)>,
    books: Books,
) -> Result<Updated, SiteError> {
    let mut cluster = old.cloned().unwrap_or_default();
    let (mut differences, mut notes) = (Vec::new(), Vec::new());
    let known: BTreeSet<&str> = nodes.iter().map(|n| n.name.as_str()).collect();
    let gone = |h: &Host| !known.contains((books.node_name)(h));
    for h in cluster.hosts.iter().filter(|h| gone(h)) {
        differences.push(format!("{}: {} has no such node with GPUs", h.name, books.scheduler));
    }
    let lost = cluster.hosts.iter().any(gone);
    cluster.hosts.retain(|h| !gone(h));
    let mut at: BTreeMap<String, usize> =
        cluster.hosts.iter().enumerate().map(|(i, h)| ((books.node_name)(h).to_owned(), i)).collect();
    for node in nodes {
        let i = match at.get(&node.name) {
            Some(i) => {
                let held = &cluster.hosts[*i].gpu_uuids;
                if node.uuids.len() == node.gpus && *held != node.uuids {
                    differences.push(format!("{}: other UUIDs of GPUs", node.name));
                }
                *i
            }
            None => {
                let host_type = type_index(&mut cluster, node).map_err(SiteError::Type)?;
                differences.push(format!("{}: a new node", node.name));
                cluster.hosts.push(Host { name: node.name.clone(), host_type, ..Host::default() });
                at.insert(node.name.clone(), cluster.hosts.len() - 1);
                cluster.hosts.len() - 1
            }
        };
        let host = &mut cluster.hosts[i];
        let t = &cluster.types[host.host_type];
        if t.gpu_count() != node.gpus {
            return Err(SiteError::Gpus {
                node: node.name.clone(),
                gpus: node.gpus,
                scheduler: books.scheduler,
                host_type: t.name.clone(),
                whole: t.gpu_count(),
            });
        }
        if node.uuids.len() == node.gpus {
            host.gpu_uuids.clone_from(&node.uuids);
        }
    }
    network(&mut cluster, old, lost, wiring, &mut differences, &mut notes)?;
    cluster.check().map_err(SiteError::Rule)?;
    Ok(Updated { cluster, differences, notes })
}

/// A note if nvidia-smi shows other links between the GPUs of a node than its type has. The cluster stays: an operator decides.
pub fn other_links(node: &str, found: &HostType, t: &HostType) -> Option<String> {
    let kinds = |t: &HostType| (t.gpu_count(), t.nvlink.is_some(), t.nvlink.is_some_and(|l| l.switched));
    let differ = kinds(found) != kinds(t);
    differ.then(|| format!("{node}: nvidia-smi shows other links between the GPUs than type {} has", t.name))
}

/// Index of a new node's type, which is added if the cluster lacks it.
fn type_index(cluster: &mut Cluster, node: &Node) -> Result<usize, String> {
    match &node.host_type {
        TypeOf::Named(name) => {
            if let Some(at) = cluster.types.iter().position(|t| t.name == *name) {
                return Ok(at);
            }
            let t = catalog::host_type(name).ok_or_else(|| {
                format!("{}: no host type `{name}`; `linkwise topology types` lists those of the catalog", node.name)
            })?;
            cluster.types.push(t);
        }
        TypeOf::Found(found) => {
            let same = |t: &HostType| {
                HostType { name: found.name.clone(), source: found.source.clone(), ..t.clone() } == **found
            };
            if let Some(at) = cluster.types.iter().position(same) {
                return Ok(at);
            }
            let mut found = (**found).clone();
            if cluster.types.iter().any(|t| t.name == found.name) {
                found.name = format!("{}-{}", found.name, node.name);
            }
            cluster.types.push(found);
        }
        TypeOf::Unknown(remedy) => return Err(format!("{}: the host type is not known; {remedy}", node.name)),
    }
    Ok(cluster.types.len() - 1)
}

/// The network: the switches of `wiring` if there is one, else those of the old cluster; class and oversubscription stay.
fn network(
    cluster: &mut Cluster,
    old: Option<&Cluster>,
    lost: bool,
    wiring: Option<(&Wiring, &str)>,
    differences: &mut Vec<String>,
    notes: &mut Vec<String>,
) -> Result<(), SiteError> {
    let class = match old {
        Some(c) => c.network.class,
        None => {
            notes.push(
                "network taken as InfiniBand with GPUDirect RDMA; edit network.class where it is another one".into(),
            );
            NetworkClass::Infiniband
        }
    };
    let Some((wiring, source)) = wiring else {
        let has_switches = |c: &Cluster| !(c.network.tiers.is_empty() && c.network.host_links.is_empty());
        match old {
            None => cluster.network = Network { class, ..Network::default() },
            // Indices of hosts in the switches are those of the old cluster.
            Some(c) if lost && has_switches(c) => {
                return Err(SiteError::Gone);
            }
            Some(_) => {}
        }
        return Ok(());
    };
    let kept = |t: &topology::Tier| (t.name.clone(), t.oversubscription);
    let known = |n: &(String, f64)| wiring.tiers.iter().any(|t| t.name == n.0 && t.oversubscription.is_none());
    let oversubscription = cluster.network.tiers.iter().map(kept).filter(known).collect();
    let made = wiring.network(&cluster.hosts, class, &NetworkOptions { oversubscription }, source);
    let (mut network, said) = made.map_err(|e| SiteError::Switches(format!("{source}: {e}")))?;
    notes.extend(said);
    if let Some(old) = old {
        network.rails = network.rails.or(old.network.rails);
        if !lost {
            network.host_links.clone_from(&old.network.host_links);
        }
        if network != old.network {
            differences.push(format!("switches: not those of {source}"));
        }
    }
    cluster.network = network;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switches::{WiredSwitch, WiredTier};
    use topology::names;

    const BOOKS: Books = Books { scheduler: "Kubernetes", node_name: names::kubernetes::node_name };

    fn node(name: &str) -> Node {
        let uuids = (0..8).map(|g| format!("GPU-{name}-{g}")).collect();
        Node { name: name.into(), gpus: 8, host_type: TypeOf::Named("hgx-h100".into()), uuids }
    }

    fn wiring(leaves: &[&[&str]]) -> Wiring {
        let switch = |(i, hosts): (usize, &&[&str])| WiredSwitch {
            name: format!("leaf-{i}"),
            hosts: hosts.iter().map(|h| (*h).to_owned()).collect(),
        };
        let switches = leaves.iter().enumerate().map(switch).collect();
        let hosts = leaves.iter().flat_map(|l| l.iter().map(|h| (*h).to_owned())).collect();
        Wiring {
            tiers: vec![WiredTier { name: "leaf".into(), switches, oversubscription: None }],
            hosts,
            ..Wiring::default()
        }
    }

    #[test]
    fn new_and_lost_nodes_change_the_cluster_and_what_was_edited_stays() {
        let first = update(None, &[node("a"), node("b")], Some((&wiring(&[&["a"], &["b"]]), "labels")), BOOKS).unwrap();
        assert_eq!((first.cluster.hosts.len(), first.cluster.network.tiers.len()), (2, 1));
        let mut edited = first.cluster.clone();
        edited.network.class = NetworkClass::Roce;
        edited.network.tiers[0].oversubscription = 2.0;
        edited.hosts[1].drained = topology::GpuMask(1);
        let same = update(Some(&edited), &[node("a"), node("b")], Some((&wiring(&[&["a"], &["b"]]), "labels")), BOOKS)
            .unwrap();
        assert_eq!((same.cluster, same.differences), (edited.clone(), vec![]));
        let next = update(Some(&edited), &[node("b"), node("c")], Some((&wiring(&[&["b"], &["c"]]), "labels")), BOOKS)
            .unwrap();
        assert_eq!(next.differences[..2], ["a: Kubernetes has no such node with GPUs", "c: a new node"]);
        assert_eq!(next.cluster.hosts[0].drained, topology::GpuMask(1));
        assert_eq!(
            (next.cluster.network.class, next.cluster.network.tiers[0].oversubscription),
            (NetworkClass::Roce, 2.0)
        );
    }

    #[test]
    fn what_cannot_be_decided_is_refused_with_what_to_do() {
        let other = Node { gpus: 4, ..node("a") };
        assert!(
            update(None, &[other], None, BOOKS)
                .unwrap_err()
                .to_string()
                .contains("a has 4 GPUs in Kubernetes, and a host of type hgx-h100 has 8")
        );
        let unknown = Node { host_type: TypeOf::Unknown("name one".into()), ..node("a") };
        assert_eq!(
            update(None, &[unknown], None, BOOKS).unwrap_err().to_string(),
            "a: the host type is not known; name one"
        );
        let two =
            update(None, &[node("a"), node("b")], Some((&wiring(&[&["a"], &["b"]]), "labels")), BOOKS).unwrap().cluster;
        assert!(update(Some(&two), &[node("a")], None, BOOKS).unwrap_err().to_string().contains("name the switches"));
    }
}
