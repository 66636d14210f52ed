//! Topograph's output: the JSON of its `graph` engine (`instances` with `network_layers`, leaf first), and its labels
//! on Kubernetes nodes (`kubectl get nodes -o json`). Its Slurm engine writes `topology.conf` and `topology.yaml`.

use super::{FILE_BYTES_MAX, SWITCHES_MAX, TIERS_MAX, WiredSwitch, WiredTier, Wiring, sort_hosts, tier_name};
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};
use topology::{HOSTS_MAX, ReadError};

/// The layers in a node's labels, nearest to the hosts first, and Topograph's default prefix.
const LABELS: [&str; 3] = ["leaf", "spine", "core"];
const LABEL_PREFIX: &str = "network.topology.nvidia.com/";
const ACCELERATOR: &str = "network.topology.nvidia.com/accelerator";

/// Reads the file. O(text + hosts x layers).
pub fn read(text: &str, file: &str) -> Result<Wiring, ReadError> {
    if text.len() > FILE_BYTES_MAX {
        return Err(topology::read::too_large(file, FILE_BYTES_MAX));
    }
    let root: Value = serde_json::from_str(text).map_err(|e| {
        let message = e.to_string();
        let message = message.split(" at line ").next().unwrap_or("not JSON").to_owned();
        ReadError::at_line(file, text, e.line().max(1), e.column().max(1), 1, message, "save Topograph's answer again")
    })?;
    let wrong = |message: String, remedy: &str| ReadError::in_file(file, message, remedy);
    let list = |key: &str| root.get(key).and_then(Value::as_array);
    let mut rows: Vec<(String, Vec<String>, Option<String>)> = Vec::new();
    if let Some(instances) = list("instances") {
        for (i, v) in instances.iter().enumerate() {
            let text = |key: &str| v.get(key).and_then(Value::as_str).map(str::to_owned);
            let id = text("id")
                .ok_or_else(|| wrong(format!("`instances[{i}].id` is missing"), "each instance has an id"))?;
            let layers = v.get("network_layers").and_then(Value::as_array).cloned().unwrap_or_default();
            let layers = layers.iter().filter_map(Value::as_str).map(str::to_owned).collect();
            let domain = v.pointer("/attributes/nvlink").and_then(Value::as_str).map(str::to_owned);
            rows.push((id, layers, domain));
        }
    } else if let Some(items) = list("items") {
        for (i, v) in items.iter().enumerate() {
            let name = v.pointer("/metadata/name").and_then(Value::as_str);
            let name = name
                .ok_or_else(|| wrong(format!("`items[{i}].metadata.name` is missing"), "kubectl get nodes -o json"))?;
            let labels = v.pointer("/metadata/labels");
            let label = |key: &str| labels.and_then(|l| l.get(key)).and_then(Value::as_str).map(str::to_owned);
            rows.extend(row(name, &label));
        }
    } else {
        return Err(wrong(
            "neither `instances` nor `items`".into(),
            "give the answer of Topograph's graph engine, or `kubectl get nodes -o json`",
        ));
    }
    of_rows(&rows)
        .map_err(|e| wrong(e, "give each node its layers, leaf first: \"network_layers\": [\"leaf-1\", \"spine-1\"]"))
}

/// The wiring of Kubernetes nodes by their labels; none if no node has one of Topograph's. O(nodes x layers).
///
/// # Errors
/// Nodes with different numbers of layers, more nodes or layers than are supported.
pub fn of_labels<'a>(
    nodes: impl IntoIterator<Item = (&'a str, &'a BTreeMap<String, String>)>,
) -> Result<Option<Wiring>, String> {
    let row = |(name, labels): (&str, &BTreeMap<String, String>)| row(name, &|key| labels.get(key).cloned());
    let rows: Vec<_> = nodes.into_iter().filter_map(row).collect();
    if rows.is_empty() { Ok(None) } else { of_rows(&rows).map(Some) }
}

/// A node's layers and NVLink domain; none for control-plane and CPU nodes, which have no label.
fn row(name: &str, label: &dyn Fn(&str) -> Option<String>) -> Option<(String, Vec<String>, Option<String>)> {
    let layers: Vec<String> = LABELS.iter().map_while(|l| label(&format!("{LABEL_PREFIX}{l}"))).collect();
    let domain = label(ACCELERATOR);
    (!layers.is_empty() || domain.is_some()).then(|| (name.to_owned(), layers, domain))
}

/// The wiring of hosts with their layers and NVLink domains.
fn of_rows(rows: &[(String, Vec<String>, Option<String>)]) -> Result<Wiring, String> {
    if rows.is_empty() || rows.len() > HOSTS_MAX {
        return Err(format!("{} nodes with a place in the network; 1 to {HOSTS_MAX} were expected", rows.len()));
    }
    let mut wiring = Wiring::default();
    let mut seen = HashSet::new();
    let depth = rows.iter().map(|r| r.1.len()).max().unwrap_or(0);
    if depth > TIERS_MAX {
        return Err(format!("{depth} network layers; at most {TIERS_MAX} are supported"));
    }
    for (host, layers, _) in rows {
        if !seen.insert(host) {
            return Err(format!("node `{host}` is there twice"));
        }
        if layers.len() != depth {
            return Err(format!("node `{host}` has {} network layers, others have {depth}", layers.len()));
        }
        wiring.hosts.push(host.clone());
    }
    for tier in 0..depth {
        let mut sets: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        rows.iter().for_each(|(host, layers, _)| sets.entry(&layers[tier]).or_default().push(host.clone()));
        if sets.len() > SWITCHES_MAX {
            return Err(format!("more than {SWITCHES_MAX} switches"));
        }
        let switches: Vec<WiredSwitch> = sets
            .into_iter()
            .map(|(name, mut hosts)| {
                sort_hosts(&mut hosts);
                WiredSwitch { name: name.into(), hosts }
            })
            .collect();
        if switches.len() > 1 {
            wiring.tiers.push(WiredTier { name: tier_name(tier), switches, oversubscription: None });
        }
    }
    let domains: HashSet<&String> = rows.iter().filter_map(|r| r.2.as_ref()).collect();
    let in_domains = rows.iter().filter(|r| r.2.is_some()).count();
    if domains.len() < in_domains {
        wiring.notes.push(format!(
            "{in_domains} hosts are in {} NVLink domains over several hosts; linkwise models NVLink inside one host only and predicts too little between them",
            domains.len()
        ));
    }
    Ok(wiring)
}
