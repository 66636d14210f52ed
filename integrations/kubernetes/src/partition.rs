//! Partitions of Fabric Manager: on hosts that have them, the GPUs of a claim must be exactly one partition, else the driver cannot prepare the claim.
//!
//! NVIDIA's driver publishes them as attributes: `partition4: 1` says that the GPU is in partition 1 of those with four GPUs.

use crate::device::{Device, Inventory};
use std::collections::{BTreeMap, BTreeSet};

/// The same GPUs, or the free partition of their node that shares most GPUs with them; none if no partition of this size is free. `taken` are the
/// GPUs that other claims of the decision got, by UUID. O(devices of the node).
pub fn obey<'a>(
    inventory: &'a Inventory,
    chosen: &[&'a Device],
    is_free: impl Fn(&Device) -> bool,
    taken: &BTreeSet<String>,
) -> Option<Vec<&'a Device>> {
    let Some(first) = chosen.first() else { return Some(Vec::new()) };
    let node: Vec<&Device> = inventory.devices().filter(|d| d.node == first.node).collect();
    if node.iter().all(|d| d.partitions.is_empty()) {
        return Some(chosen.to_vec());
    }
    let size = u32::try_from(chosen.len()).ok()?;
    let mut partitions: BTreeMap<i64, Vec<&Device>> = BTreeMap::new();
    for device in node {
        if let Some(partition) = device.partitions.get(&size) {
            partitions.entry(*partition).or_default().push(device);
        }
    }
    let usable =
        |p: &&Vec<&Device>| p.len() == chosen.len() && p.iter().all(|d| is_free(d) && !taken.contains(&d.uuid));
    let shared = |p: &Vec<&Device>| p.iter().filter(|d| chosen.iter().any(|c| c.uuid == d.uuid)).count();
    partitions.values().filter(usable).max_by_key(|p| shared(p)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::resource::v1::ResourceSlice;
    use serde_json::{Value, json};

    fn inventory(partitions: bool) -> Inventory {
        let devices: Vec<Value> = (0..8)
            .map(|g| {
                let mut attributes = json!({"uuid": {"string": format!("GPU-{g}")}});
                if partitions {
                    for size in [1, 2, 4, 8] {
                        attributes[format!("partition{size}")] = json!({"int": g / size});
                    }
                }
                json!({"name": format!("gpu-{g}"), "attributes": attributes})
            })
            .collect();
        let slice: ResourceSlice =
            serde_json::from_value(json!({"metadata": {"name": "n0"}, "spec": {"driver": "d", "nodeName": "n0",
            "devices": devices, "pool": {"name": "n0", "generation": 1, "resourceSliceCount": 1}}}))
            .unwrap();
        Inventory::of([&slice], "d")
    }

    fn choose(inventory: &Inventory, gpus: &[u32], held: &[u32]) -> Option<Vec<String>> {
        let name = |g: &u32| format!("GPU-{g}");
        let chosen: Vec<&Device> = gpus.iter().map(|g| inventory.get(&name(g)).unwrap()).collect();
        let held: Vec<String> = held.iter().map(name).collect();
        let found = obey(inventory, &chosen, |d| !held.contains(&d.uuid), &BTreeSet::new())?;
        Some(found.iter().map(|d| d.uuid.clone()).collect())
    }

    #[test]
    fn a_choice_becomes_the_partition_that_shares_most_gpus_with_it() {
        let with = inventory(true);
        let names = |gpus: [u32; 2]| Some(gpus.map(|g| format!("GPU-{g}")).to_vec());
        assert_eq!(choose(&with, &[2, 3], &[]), names([2, 3]));
        assert_eq!(choose(&with, &[3, 4], &[2]), names([4, 5]));
        assert_eq!(choose(&with, &[0, 1, 2], &[]), None, "there is no partition of three");
        assert_eq!(choose(&with, &[1, 3], &[0, 2, 4, 6]), None, "no pair is free");
        assert_eq!(choose(&inventory(false), &[1, 3], &[0]), names([1, 3]));
    }
}
