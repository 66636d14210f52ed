//! The GPUs of the slices, by UUID, and who holds them.

use k8s_openapi::api::resource::v1::{
    Device as SliceDevice, DeviceAttribute, DeviceRequestAllocationResult, ResourceClaim, ResourceSlice,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Devices of all slices together. A site of 1,280 hosts has 10,240.
pub const DEVICES_MAX: usize = 100_000;

/// Where a device is: driver, pool, name. Allocations name devices by it; everything else by UUID.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The driver.
    pub driver: String,
    /// The pool.
    pub pool: String,
    /// The name in the pool.
    pub name: String,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}", self.driver, self.pool, self.name)
    }
}

/// A whole GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its UUID.
    pub uuid: String,
    /// Where it is.
    pub place: Place,
    /// Its node.
    pub node: String,
    /// Why no pod may get it, such as a taint; none: it may be given.
    pub out: Option<String>,
    /// Partitions of Fabric Manager that have it, by their number of GPUs: attributes `partition1`, `partition2`, ...
    pub partitions: BTreeMap<u32, i64>,
    /// Counter sets of its pool that it uses. Devices that share one, such as MIG slices of the GPU, exclude each other.
    counters: BTreeSet<String>,
}

/// The GPUs of a driver.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    devices: BTreeMap<String, Device>,
    by_place: HashMap<Place, String>,
    /// Counter sets of devices that are not whole GPUs.
    parts: HashMap<Place, BTreeSet<String>>,
    /// What could not be read, in words.
    pub faults: Vec<String>,
}

/// Keeps the slices of a pool's newest generation. The error, "2 of 3 slices", is a driver in the middle of an update.
pub(crate) fn keep_newest(pool: &mut Vec<&ResourceSlice>) -> Result<(), String> {
    let newest = pool.iter().map(|s| s.spec.pool.generation).max().unwrap_or(0);
    pool.retain(|s| s.spec.pool.generation == newest);
    let (found, expected) = (pool.len(), pool.iter().map(|s| s.spec.pool.resource_slice_count).max().unwrap_or(0));
    if usize::try_from(expected) == Ok(found) { Ok(()) } else { Err(format!("{found} of {expected} slices")) }
}

impl Inventory {
    /// The devices of a driver's slices. A pool counts only when all slices of its newest generation are there: before, a driver is in the middle of
    /// an update. O(devices).
    pub fn of<'a>(slices: impl IntoIterator<Item = &'a ResourceSlice>, driver: &str) -> Inventory {
        let mut pools: BTreeMap<&str, Vec<&ResourceSlice>> = BTreeMap::new();
        for slice in slices.into_iter().filter(|s| s.spec.driver == driver) {
            pools.entry(&slice.spec.pool.name).or_default().push(slice);
        }
        let mut inventory = Inventory::default();
        for (pool, mut slices) in pools {
            if let Err(partly) = keep_newest(&mut slices) {
                inventory.faults.push(format!("pool {pool}: {partly}; its GPUs are not used until all are there"));
                continue;
            }
            for slice in slices {
                let node = slice.spec.node_name.as_deref().unwrap_or("");
                for device in slice.spec.devices.iter().flatten() {
                    inventory.add(device, driver, pool, device.node_name.as_deref().unwrap_or(node));
                }
            }
        }
        inventory
    }

    fn add(&mut self, device: &SliceDevice, driver: &str, pool: &str, node: &str) {
        let place = Place { driver: driver.into(), pool: pool.into(), name: device.name.clone() };
        let counters: BTreeSet<String> =
            device.consumes_counters.iter().flatten().map(|c| c.counter_set.clone()).collect();
        let attribute = |name: &str| find(device, driver, name);
        let kind = attribute("type").and_then(|a| a.string.clone());
        if kind.as_deref().is_some_and(|k| k != "gpu") || node.is_empty() {
            self.parts.insert(place, counters);
            return;
        }
        let Some(uuid) = attribute("uuid").and_then(|a| a.string.clone()).filter(|u| !u.is_empty()) else {
            self.faults.push(format!("device {}/{} has no attribute `uuid`; it is not used", place.pool, place.name));
            return;
        };
        if self.devices.len() >= DEVICES_MAX {
            self.faults.push(format!("more than {DEVICES_MAX} devices; {uuid} is not used"));
            return;
        }
        if let Some(other) = self.devices.get_mut(&uuid) {
            let fault =
                format!("{uuid} is both {}/{} and {}/{}", other.place.pool, other.place.name, place.pool, place.name);
            other.out = Some(fault.clone());
            self.faults.push(format!("{fault}; neither is used"));
            return;
        }
        let taint = device.taints.iter().flatten().find(|t| t.effect != "None");
        let out = taint.map(|t| format!("has the taint {}:{}", t.key, t.effect));
        let partitions = device.attributes.iter().flatten().filter_map(|(name, a)| {
            let name = name.rsplit('/').next()?;
            Some((name.strip_prefix("partition")?.parse().ok()?, a.int?))
        });
        let device =
            Device { uuid: uuid.clone(), node: node.into(), out, partitions: partitions.collect(), counters, place };
        self.by_place.insert(device.place.clone(), uuid.clone());
        self.devices.insert(uuid, device);
    }

    /// The devices, by UUID.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.devices.values()
    }

    /// The device with this UUID.
    pub fn get(&self, uuid: &str) -> Option<&Device> {
        self.devices.get(uuid)
    }

    /// The device of an allocation.
    pub fn at(&self, place: &Place) -> Option<&Device> {
        self.devices.get(self.by_place.get(place)?)
    }

    /// Takes GPUs out that a rule taints; `reason` says which.
    pub fn take_out(&mut self, mut which: impl FnMut(&Device) -> bool, reason: &str) {
        for device in self.devices.values_mut().filter(|d| d.out.is_none()) {
            if which(device) {
                device.out = Some(reason.to_owned());
            }
        }
    }

    fn counters(&self, place: &Place) -> Option<&BTreeSet<String>> {
        self.at(place).map(|d| &d.counters).or_else(|| self.parts.get(place))
    }
}

fn find<'a>(device: &'a SliceDevice, driver: &str, name: &str) -> Option<&'a DeviceAttribute> {
    let all = device.attributes.as_ref()?;
    all.get(name).or_else(|| all.get(&format!("{driver}/{name}")))
}

/// Devices that an allocation names, with the request that got each.
pub fn allocated(claim: &ResourceClaim) -> impl Iterator<Item = (&str, Place)> {
    results(claim).map(|r| (r.request.as_str(), place(r)))
}

/// Devices that an allocation names whole, without shares of a device.
pub fn allocated_whole(claim: &ResourceClaim) -> impl Iterator<Item = Place> {
    results(claim).filter(|r| r.share_id.is_none()).map(place)
}

/// The results of an allocation, without those for administrators, which take nothing.
fn results(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let allocation = claim.status.as_ref().and_then(|s| s.allocation.as_ref());
    let results = allocation.and_then(|a| a.devices.as_ref()).and_then(|d| d.results.as_deref()).unwrap_or_default();
    results.iter().filter(|r| r.admin_access != Some(true))
}

fn place(r: &DeviceRequestAllocationResult) -> Place {
    Place { driver: r.driver.clone(), pool: r.pool.clone(), name: r.device.clone() }
}

/// Who holds what.
#[derive(Clone, Debug, Default)]
pub struct Held {
    by_place: HashMap<Place, String>,
    counters: HashMap<(String, String), usize>,
    /// Devices in more than one claim: the device, and the claims.
    pub doubles: Vec<(Place, [String; 2])>,
}

impl Held {
    /// The devices of all claims. O(allocated devices).
    pub fn of<'a>(claims: impl IntoIterator<Item = &'a ResourceClaim>, inventory: &Inventory) -> Held {
        let mut held = Held::default();
        for claim in claims {
            let name = format!(
                "{}/{}",
                claim.metadata.namespace.as_deref().unwrap_or(""),
                claim.metadata.name.as_deref().unwrap_or("")
            );
            for (_, place) in allocated(claim) {
                held.add(place, &name, inventory);
            }
        }
        held
    }

    /// Adds a device of a claim.
    pub fn add(&mut self, place: Place, claim: &str, inventory: &Inventory) {
        for set in inventory.counters(&place).into_iter().flatten() {
            *self.counters.entry((place.pool.clone(), set.clone())).or_default() += 1;
        }
        if let Some(other) = self.by_place.insert(place.clone(), claim.to_owned()) {
            self.doubles.push((place, [other, claim.to_owned()]));
        }
    }

    /// The claim that holds a device, `NAMESPACE/NAME`.
    pub fn by(&self, place: &Place) -> Option<&str> {
        self.by_place.get(place).map(String::as_str)
    }

    /// True if neither the device nor a part of it is allocated.
    pub fn is_free(&self, device: &Device) -> bool {
        let shared = |set: &String| self.counters.contains_key(&(device.place.pool.clone(), set.clone()));
        !self.by_place.contains_key(&device.place) && !device.counters.iter().any(shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn slice(pool: &str, generation: i64, count: i64, devices: Value) -> ResourceSlice {
        serde_json::from_value(json!({"metadata": {"name": format!("{pool}-{generation}-{count}")}, "spec": {
            "driver": "gpu.nvidia.com", "nodeName": pool, "devices": devices,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count}}}))
        .unwrap()
    }

    fn gpu(name: &str, uuid: &str) -> Value {
        json!({"name": name, "attributes": {"uuid": {"string": uuid}, "type": {"string": "gpu"}}})
    }

    fn claim(name: &str, devices: &[&str]) -> ResourceClaim {
        let results: Vec<Value> = devices
            .iter()
            .map(|d| json!({"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n0", "device": d}))
            .collect();
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "a"}, "spec": {},
            "status": {"allocation": {"devices": {"results": results}}}}))
        .unwrap()
    }

    #[test]
    fn only_whole_pools_of_the_newest_generation_count() {
        let slices = [
            slice("n0", 1, 1, json!([gpu("gpu-0", "GPU-old")])),
            slice("n0", 2, 1, json!([gpu("gpu-0", "GPU-new")])),
            slice("n1", 1, 2, json!([gpu("gpu-0", "GPU-half")])),
        ];
        let found = Inventory::of(&slices, "gpu.nvidia.com");
        assert_eq!(found.devices().map(|d| d.uuid.as_str()).collect::<Vec<_>>(), ["GPU-new"]);
        assert_eq!(found.faults.len(), 1, "{:?}", found.faults);
        assert!(found.faults[0].starts_with("pool n1: 1 of 2 slices"), "{:?}", found.faults);
    }

    #[test]
    fn a_gpu_with_an_allocated_part_is_not_free_and_parts_are_never_chosen() {
        let counters = |set: &str| json!([{"counterSet": set, "counters": {"memory": {"value": "1"}}}]);
        let mut whole = gpu("gpu-0", "GPU-0");
        whole["consumesCounters"] = counters("gpu-0");
        let part = json!({"name": "gpu-0-mig-1", "consumesCounters": counters("gpu-0"),
            "attributes": {"uuid": {"string": "MIG-1"}, "type": {"string": "mig"}}});
        let found = Inventory::of(&[slice("n0", 1, 1, json!([whole, part, gpu("gpu-1", "GPU-1")]))], "gpu.nvidia.com");
        assert_eq!(found.devices().count(), 2);
        let held = Held::of(&[claim("m", &["gpu-0-mig-1"])], &found);
        let free: Vec<&str> = found.devices().filter(|d| held.is_free(d)).map(|d| d.uuid.as_str()).collect();
        assert_eq!(free, ["GPU-1"]);
    }

    #[test]
    fn taints_partitions_missing_and_repeated_uuids_are_seen() {
        let mut tainted = gpu("gpu-0", "GPU-0");
        tainted["taints"] = json!([{"key": "linkwise.dev/suspected", "effect": "NoSchedule"}]);
        tainted["attributes"]["partition4"] = json!({"int": 1});
        let mut noted = gpu("gpu-1", "GPU-1");
        noted["taints"] = json!([{"key": "linkwise.dev/suspected", "effect": "None"}]);
        let nameless = json!({"name": "gpu-2", "attributes": {"type": {"string": "gpu"}}});
        let devices = json!([tainted, noted, nameless, gpu("gpu-3", "GPU-3"), gpu("gpu-4", "GPU-3")]);
        let found = Inventory::of(&[slice("n0", 1, 1, devices)], "gpu.nvidia.com");
        let out: Vec<bool> = found.devices().map(|d| d.out.is_some()).collect();
        assert_eq!(out, [true, false, true], "{found:?}");
        assert_eq!(found.get("GPU-0").unwrap().partitions, BTreeMap::from([(4, 1)]));
        assert_eq!(found.faults.len(), 2, "{:?}", found.faults);
    }

    #[test]
    fn a_device_in_two_claims_is_named_with_both() {
        let found = Inventory::of(&[slice("n0", 1, 1, json!([gpu("gpu-0", "GPU-0")]))], "gpu.nvidia.com");
        let held = Held::of(&[claim("x", &["gpu-0"]), claim("y", &["gpu-0"])], &found);
        assert_eq!(held.doubles.len(), 1);
        assert_eq!(held.doubles[0].1, ["a/x", "a/y"]);
    }
}
