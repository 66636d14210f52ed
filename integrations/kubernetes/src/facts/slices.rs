//! Devices of ResourceSlices: GPUs by uuid, NICs by the name of their RDMA device.
//!
//! Attributes are found by the part of their name after `/`, since drivers publish the same fact under their own domain or that of Kubernetes
//! (`pciBusID` was `pcieBusID` in earlier releases of NVIDIA's driver).

use crate::device::{Place, keep_newest};
use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, ResourceSlice};
use std::collections::{BTreeMap, BTreeSet};
use topology::{GPUS_PER_HOST_MAX, HOSTS_MAX, NICS_PER_HOST_MAX};

/// Maximum number of slices that are read: a slice has up to 128 devices, a node a slice per driver.
pub const SLICES_MAX: usize = 4 * HOSTS_MAX;
/// Maximum length of an attribute that is kept, bytes; the API allows 64 characters.
const VALUE_BYTES_MAX: usize = 256;

/// A whole GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SliceGpu {
    pub place: Place,
    pub uuid: String,
    /// `NVIDIA H100 80GB HBM3`; empty if the driver does not say.
    pub product: String,
    /// `0000:18:00.0`, lower case; empty if the driver does not say.
    pub pci_bus_id: String,
    /// `pci0000:18`; empty if the driver does not say.
    pub pcie_root: String,
    pub numa_node: Option<u8>,
    /// The NVLink domain over several hosts; empty outside of one.
    pub clique: String,
}

/// The devices of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDevices {
    /// In the order of nvidia-smi, which is that of PCI bus ids.
    pub gpus: Vec<SliceGpu>,
    /// NICs by the name of their RDMA device or interface.
    pub nics: BTreeMap<String, Place>,
}

/// The devices of all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    pub nodes: BTreeMap<String, NodeDevices>,
    /// Slices and devices that are left out, one sentence each.
    pub notes: Vec<String>,
}

impl Devices {
    /// The name of a GPU by its uuid. O(1) would need an index; O(GPUs) here, call it for single devices.
    pub fn gpu(&self, uuid: &str) -> Option<&SliceGpu> {
        self.nodes.values().flat_map(|n| &n.gpus).find(|g| g.uuid == uuid)
    }
}

/// Reads the slices: GPUs of `gpu_driver`, NICs of every other driver. Of each pool the newest generation counts, once all its slices are there.
/// O(devices).
pub fn read(slices: &[ResourceSlice], gpu_driver: &str) -> Devices {
    let mut out = Devices::default();
    if slices.len() > SLICES_MAX {
        out.notes.push(format!("{} ResourceSlices; the first {SLICES_MAX} are read", slices.len()));
    }
    let slices = &slices[..slices.len().min(SLICES_MAX)];
    let mut pools: BTreeMap<(&str, &str), Vec<&ResourceSlice>> = BTreeMap::new();
    for s in slices {
        pools.entry((s.spec.driver.as_str(), s.spec.pool.name.as_str())).or_default().push(s);
    }
    let mut uuids: BTreeSet<String> = BTreeSet::new();
    for ((driver, pool), mut of_pool) in pools {
        if let Err(partly) = keep_newest(&mut of_pool) {
            out.notes.push(format!("pool {pool} of {driver}: {partly} are there; it is read when all are"));
            continue;
        }
        for slice in of_pool {
            for device in slice.spec.devices.iter().flatten() {
                let Some(node) = device.node_name.as_ref().or(slice.spec.node_name.as_ref()) else { continue };
                let place = Place { driver: driver.into(), pool: pool.into(), name: device.name.clone() };
                if driver != gpu_driver {
                    if let Some(nic) = nic_name(device) {
                        let nics = &mut out.nodes.entry(node.clone()).or_default().nics;
                        if nics.len() < NICS_PER_HOST_MAX {
                            nics.insert(nic, place);
                        }
                    }
                    continue;
                }
                match gpu(device, place) {
                    Ok(None) => {}
                    Ok(Some(g)) if !uuids.insert(g.uuid.clone()) => {
                        out.notes.push(format!(
                            "device {}: its uuid {} is that of another device; left out",
                            g.place, g.uuid
                        ));
                    }
                    Ok(Some(g)) => out.nodes.entry(node.clone()).or_default().gpus.push(g),
                    Err(why) => out.notes.push(why),
                }
            }
        }
    }
    out.nodes.retain(|_, n| !n.gpus.is_empty());
    for (node, n) in &mut out.nodes {
        n.gpus.sort_by_cached_key(|g| (g.pci_bus_id.clone(), g.place.name.len(), g.place.name.clone()));
        if n.gpus.iter().any(|g| g.pci_bus_id.is_empty()) {
            out.notes.push(format!(
                "node {node}: the driver names no PCI bus ids; GPUs are in the order of their device names"
            ));
        }
        if n.gpus.len() > GPUS_PER_HOST_MAX {
            out.notes.push(format!("node {node} has {} GPUs; at most {GPUS_PER_HOST_MAX} are supported", n.gpus.len()));
        }
    }
    out.nodes.retain(|_, n| n.gpus.len() <= GPUS_PER_HOST_MAX);
    out
}

/// A whole GPU; none for a MIG slice, a device for virtual machines and other kinds, which linkwise leaves alone.
fn gpu(device: &Device, place: Place) -> Result<Option<SliceGpu>, String> {
    if text(device, &["type"]).is_some_and(|t| t != "gpu") {
        return Ok(None);
    }
    let Some(uuid) = text(device, &["uuid"]) else {
        return Err(format!("device {place} has no attribute uuid; left out"));
    };
    let of = |keys: &[&str]| text(device, keys).unwrap_or_default();
    let numa = attribute(device, &["numaNode", "numa"]).and_then(|a| a.int);
    Ok(Some(SliceGpu {
        uuid,
        product: of(&["productName"]),
        pci_bus_id: of(&["pciBusID", "pcieBusID"]).to_ascii_lowercase(),
        pcie_root: of(&["pcieRoot"]),
        numa_node: numa.and_then(|n| u8::try_from(n).ok()),
        clique: of(&["cliqueID", "clique"]),
        place,
    }))
}

/// The name of a NIC's RDMA device, else of its interface; none for other devices.
fn nic_name(device: &Device) -> Option<String> {
    text(device, &["rdmaDevice", "rdmaDevName"]).or_else(|| text(device, &["ifName", "interfaceName"]))
}

fn attribute<'a>(device: &'a Device, keys: &[&str]) -> Option<&'a DeviceAttribute> {
    let all = device.attributes.as_ref()?;
    let is = |name: &str, key: &str| name.rsplit('/').next() == Some(key);
    keys.iter().find_map(|key| all.iter().find(|(name, _)| is(name, key)).map(|(_, a)| a))
}

fn text(device: &Device, keys: &[&str]) -> Option<String> {
    let found = attribute(device, keys)?;
    // With lists of attributes a device below several roots names them all; the first is the nearest.
    let text = found.string.as_deref().or_else(|| found.strings.as_deref()?.first().map(String::as_str))?.trim();
    (!text.is_empty() && text.len() <= VALUE_BYTES_MAX).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn slice(node: &str, generation: i64, count: i64, devices: Value) -> ResourceSlice {
        serde_json::from_value(json!({"metadata": {"name": format!("{node}-{generation}")}, "spec": {"driver": "gpu.nvidia.com",
            "nodeName": node, "pool": {"name": node, "generation": generation, "resourceSliceCount": count}, "devices": devices}}))
        .unwrap()
    }

    fn device(name: &str, uuid: &str, bus: &str) -> Value {
        json!({"name": name, "attributes": {"type": {"string": "gpu"}, "uuid": {"string": uuid}, "pcieBusID": {"string": bus},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:10"}, "gpu.nvidia.com/numaNode": {"int": 1}}})
    }

    #[test]
    fn gpus_are_in_the_order_of_nvidia_smi_and_known_by_uuid() {
        let all = read(
            &[slice(
                "n0",
                1,
                1,
                json!([device("gpu-0", "GPU-b", "0000:20:00.0"), device("gpu-1", "GPU-a", "0000:10:00.0")]),
            )],
            "gpu.nvidia.com",
        );
        let gpus = &all.nodes["n0"].gpus;
        assert_eq!(gpus.iter().map(|g| g.uuid.as_str()).collect::<Vec<_>>(), ["GPU-a", "GPU-b"]);
        assert_eq!((gpus[0].numa_node, gpus[0].pcie_root.as_str()), (Some(1), "pci0000:10"));
        assert_eq!(all.gpu("GPU-b").unwrap().place.to_string(), "gpu.nvidia.com/n0/gpu-0");
        assert!(all.notes.is_empty(), "{:?}", all.notes);
    }

    #[test]
    fn old_generations_and_pools_that_are_not_whole_do_not_count() {
        let old = slice("n0", 1, 1, json!([device("gpu-0", "GPU-old", "0000:10:00.0")]));
        let new = slice("n0", 2, 1, json!([device("gpu-0", "GPU-new", "0000:10:00.0")]));
        let half = slice("n1", 1, 2, json!([device("gpu-0", "GPU-x", "0000:10:00.0")]));
        let all = read(&[old, new, half], "gpu.nvidia.com");
        assert_eq!(all.nodes.len(), 1);
        assert_eq!(all.nodes["n0"].gpus[0].uuid, "GPU-new");
        assert!(all.notes[0].contains("1 of 2 slices"), "{:?}", all.notes);
    }

    #[test]
    fn mig_devices_are_left_alone_and_devices_without_or_with_a_known_uuid_are_named() {
        let mig =
            json!({"name": "gpu-0-mig-1", "attributes": {"type": {"string": "mig"}, "uuid": {"string": "MIG-1"}}});
        let bare = json!({"name": "gpu-7"});
        let all = read(
            &[slice("n0", 1, 1, json!([mig, bare, device("gpu-1", "GPU-a", ""), device("gpu-2", "GPU-a", "")]))],
            "gpu.nvidia.com",
        );
        assert_eq!(all.nodes["n0"].gpus.len(), 1);
        assert!(all.notes[0].contains("gpu-7 has no attribute uuid"), "{:?}", all.notes);
        assert!(all.notes[1].contains("gpu-2: its uuid GPU-a"), "{:?}", all.notes);
    }

    #[test]
    fn nics_of_other_drivers_are_known_by_their_rdma_device() {
        let gpus = slice("n0", 1, 1, json!([device("gpu-0", "GPU-a", "0000:10:00.0")]));
        let mut nics = slice(
            "n0",
            1,
            1,
            json!([{"name": "pci-0000-18-00-0", "attributes": {"dra.net/rdmaDevice": {"string": "mlx5_3"}, "dra.net/ifName": {"string": "eth3"}}}]),
        );
        nics.spec.driver = "dra.net".into();
        let all = read(&[gpus, nics], "gpu.nvidia.com");
        assert_eq!(all.nodes["n0"].nics["mlx5_3"].to_string(), "dra.net/n0/pci-0000-18-00-0");
    }
}
