//! Brings a choice of the server to the pods: on which node each pod may be, and what it gets there.

use crate::ask::Choice;
use crate::device::Device;
use crate::plan::{Plan, Wanted};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Keeps at most so many GPUs of each node.
pub(super) fn offer(free: &mut Vec<&Device>, most: &BTreeMap<&str, usize>) {
    let mut kept: BTreeMap<&str, usize> = BTreeMap::new();
    free.retain(|d| {
        let n = kept.entry(&d.node).or_default();
        *n += 1;
        *n <= most.get(d.node.as_str()).copied().unwrap_or(0)
    });
}

/// The devices of a choice in another order: each pod gets as many as before, on one of its own nodes; none if there is no such order. A maximum
/// matching by augmenting paths: O(pods²) where most pods agree.
pub(super) fn assigned<'p>(
    choice: Vec<Vec<&'p Device>>,
    nodes: &[Arc<BTreeSet<String>>],
) -> Option<Vec<Vec<&'p Device>>> {
    fn augment(pod: usize, fits: &dyn Fn(usize, usize) -> bool, seen: &mut [bool], of: &mut [Option<usize>]) -> bool {
        for group in 0..of.len() {
            if !seen[group] && fits(pod, group) {
                seen[group] = true;
                if of[group].is_none_or(|other| augment(other, fits, seen, of)) {
                    of[group] = Some(pod);
                    return true;
                }
            }
        }
        false
    }
    let fits = |pod: usize, group: usize| {
        choice[group].len() == choice[pod].len() && choice[group].first().is_none_or(|d| nodes[pod].contains(&d.node))
    };
    let mut of = vec![None; choice.len()];
    for pod in 0..choice.len() {
        if !augment(pod, &fits, &mut vec![false; choice.len()], &mut of) {
            return None;
        }
    }
    let mut ordered = vec![Vec::new(); choice.len()];
    for (group, pod) in choice.into_iter().zip(of) {
        ordered[pod?] = group;
    }
    Some(ordered)
}

/// GPUs to offer of each node, so that every pod can be on one of its own: pods with few nodes first, each on the fullest node that has enough.
pub(super) fn by_hand<'n>(
    free: &[&Device],
    gpus: &[usize],
    nodes: &'n [Arc<BTreeSet<String>>],
) -> Option<BTreeMap<&'n str, usize>> {
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    free.iter().for_each(|d| *left.entry(&d.node).or_default() += 1);
    let mut order: Vec<usize> = (0..gpus.len()).collect();
    order.sort_by_key(|i| (nodes[*i].len(), std::cmp::Reverse(gpus[*i])));
    let mut most: BTreeMap<&str, usize> = BTreeMap::new();
    for i in order {
        let has = |node: &&String| left.get(node.as_str()).copied().filter(|n| *n >= gpus[i]);
        let node = nodes[i].iter().filter(|n| has(n).is_some()).min_by_key(|n| has(n))?;
        *left.get_mut(node.as_str())? -= gpus[i];
        *most.entry(node).or_default() += gpus[i];
    }
    Some(most)
}

/// The devices of a choice: free ones, as many as were asked for, of one node per pod, each once. The server is trusted with the choice, not with the rules.
pub(super) fn checked<'p>(
    plan: &'p Plan,
    free: &[&'p Device],
    gpus: &[usize],
    choice: &Choice,
) -> Result<Vec<Vec<&'p Device>>, String> {
    let wrong = |what: &str| format!("the server's choice {what}; nothing was written");
    if choice.pods.len() != gpus.len() {
        return Err(wrong("has another number of pods"));
    }
    let free: BTreeSet<&str> = free.iter().map(|d| d.uuid.as_str()).collect();
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for (pod, n) in choice.pods.iter().zip(gpus) {
        let devices: Vec<&Device> = pod.iter().filter_map(|u| plan.inventory.get(u)).collect();
        if devices.len() != *n || pod.len() != *n {
            return Err(wrong("has another number of GPUs than was asked for"));
        }
        if let Some(d) = devices.iter().find(|d| !free.contains(d.uuid.as_str()) || !seen.insert(d.uuid.as_str())) {
            return Err(wrong(&format!("has {}, which is not free", d.uuid)));
        }
        if devices.iter().any(|d| d.node != devices[0].node) {
            return Err(wrong("has a pod on two nodes"));
        }
        all.push(devices);
    }
    Ok(all)
}

/// The devices of every pod with those of each claim moved to a partition of Fabric Manager; none if all are where they must be. The error is a node
/// without a fitting partition.
pub(super) fn partitioned<'p>(
    plan: &'p Plan,
    wanted: &Wanted,
    devices: &[Vec<&'p Device>],
) -> Result<Option<Vec<Vec<&'p Device>>>, String> {
    if devices.iter().flatten().all(|d| d.partitions.is_empty()) {
        return Ok(None);
    }
    let mut taken = BTreeSet::new();
    let mut all = Vec::new();
    for (want, devices) in wanted.pods.iter().zip(devices) {
        let mut rest = &devices[..];
        let mut of_pod = Vec::new();
        for (_, need) in &want.claims {
            let (chosen, later) = rest.split_at(need.gpus.min(rest.len()));
            rest = later;
            let usable = |d: &Device| d.out.is_none() && plan.held.is_free(d);
            let found = crate::partition::obey(&plan.inventory, chosen, usable, &taken);
            let found = found.ok_or_else(|| chosen.first().map(|d| d.node.clone()).unwrap_or_default())?;
            taken.extend(found.iter().map(|d| d.uuid.clone()));
            of_pod.extend(found);
        }
        all.push(of_pod);
    }
    let same = all.iter().flatten().map(|d| &d.uuid).eq(devices.iter().flatten().map(|d| &d.uuid));
    Ok((!same).then_some(all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Inventory;
    use serde_json::json;

    fn inventory() -> Inventory {
        let slices = ["n0", "n1", "n2"].map(|node| {
            let device =
                |g: u8| json!({"name": format!("gpu-{g}"), "attributes": {"uuid": {"string": format!("{node}-{g}")}}});
            serde_json::from_value(json!({"metadata": {"name": node}, "spec": {"driver": "d", "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": (0..4).map(device).collect::<Vec<_>>()}}))
            .unwrap()
        });
        Inventory::of(&slices, "d")
    }

    fn nodes(of: &[&[&str]]) -> Vec<Arc<BTreeSet<String>>> {
        of.iter().map(|names| Arc::new(names.iter().map(|n| (*n).to_owned()).collect())).collect()
    }

    #[test]
    fn pods_that_select_different_nodes_get_the_gpus_of_their_own() {
        let inventory = inventory();
        let get = |uuids: &[&str]| uuids.iter().map(|u| inventory.get(u).unwrap()).collect::<Vec<_>>();
        let choice = vec![get(&["n0-0", "n0-1"]), get(&["n1-0", "n1-1"]), get(&["n2-0"])];
        let own = nodes(&[&["n0", "n1"], &["n0"], &["n2"]]);
        let found = assigned(choice.clone(), &own).unwrap();
        assert_eq!(found.iter().map(|g| g[0].uuid.as_str()).collect::<Vec<_>>(), ["n1-0", "n0-0", "n2-0"]);
        assert_eq!(assigned(choice.clone(), &nodes(&[&["n0"], &["n0"], &["n2"]])), None);
        // The third has one GPU: it cannot change with a pod of two.
        assert_eq!(assigned(choice, &nodes(&[&["n0", "n1"], &["n2"], &["n0"]])), None);
    }

    #[test]
    fn a_node_offers_what_its_pods_can_use() {
        let inventory = inventory();
        let mut free: Vec<&Device> = inventory.devices().collect();
        let own = nodes(&[&["n0", "n1"], &["n0"]]);
        let most = by_hand(&free, &[2, 3], &own).unwrap();
        assert_eq!(most, BTreeMap::from([("n0", 3), ("n1", 2)]));
        offer(&mut free, &most);
        assert_eq!(free.iter().map(|d| d.uuid.as_str()).collect::<Vec<_>>(), ["n0-0", "n0-1", "n0-2", "n1-0", "n1-1"]);
        assert_eq!(by_hand(&free, &[3, 3], &own), None);
    }
}
