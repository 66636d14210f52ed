//! Nodes and GPUs that are objects only.

use futures_util::StreamExt;
use futures_util::stream;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceSlice};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Error, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The driver of the simulated GPUs: NVIDIA's, so that class, attributes and names are those of real clusters.
pub const DRIVER: &str = "gpu.nvidia.com";
/// Requests in flight while a site is made.
const IN_FLIGHT: usize = 16;

/// Name of a node.
pub fn node_name(node: usize) -> String {
    format!("n{node}")
}

/// UUID of a GPU, by its index in the cluster file.
pub fn uuid(node: usize, gpu: usize) -> String {
    format!("GPU-{node:08x}-0000-4000-8000-{gpu:012x}")
}

/// Name of a GPU's device. NVIDIA's driver names devices by minor number, which is not the index of the cluster file: here neither.
pub fn gpu_name(gpu: usize, gpus: usize) -> String {
    format!("gpu-{}", (gpu * 5 + 3) % gpus.max(1))
}

/// A site: nodes with GPUs and a class of devices.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// Number of nodes.
    pub nodes: usize,
    /// GPUs of each; 1, 2, 4 or 8, so that names are a permutation.
    pub gpus: usize,
}

impl Site {
    /// Makes class, nodes and slices. 1,000 nodes take about 10 s.
    ///
    /// # Errors
    /// The API refuses an object.
    pub async fn create(&self, client: &Client) -> Result<(), Error> {
        let classes: Api<DeviceClass> = Api::all(client.clone());
        classes.create(&PostParams::default(), &self.class()).await?;
        let made = stream::iter(0..self.nodes).map(|n| self.node(client, n)).buffer_unordered(IN_FLIGHT);
        made.collect::<Vec<_>>().await.into_iter().collect()
    }

    fn class(&self) -> DeviceClass {
        object(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": DRIVER},
            "spec": {"selectors": [{"cel": {"expression":
                format!("device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'")}}]},
        }))
    }

    async fn node(&self, client: &Client, n: usize) -> Result<(), Error> {
        let nodes: Api<Node> = Api::all(client.clone());
        let name = node_name(n);
        let node: Node = object(json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        }));
        let made = nodes.create(&PostParams::default(), &node).await?;
        nodes.patch_status(&name, &PatchParams::default(), &Patch::Merge(json!({"status": ready()}))).await?;
        let slices: Api<ResourceSlice> = Api::all(client.clone());
        slices.create(&PostParams::default(), &self.slice(n, &made.uid().unwrap_or_default())).await?;
        Ok(())
    }

    /// The slice of a node, with the attributes of NVIDIA's driver 0.5.
    pub fn slice(&self, n: usize, node_uid: &str) -> ResourceSlice {
        let device = |g: usize| {
            json!({"name": gpu_name(g, self.gpus), "attributes": {
                "uuid": {"string": uuid(n, g)}, "type": {"string": "gpu"},
                "productName": {"string": "NVIDIA H100 80GB HBM3 (simulated)"}, "architecture": {"string": "Hopper"},
                "pciBusID": {"string": format!("0000:{:02x}:00.0", 0x10 + g * 0x10)},
                "resource.kubernetes.io/pcieRoot": {"string": format!("pci0000:{:02x}", 0x10 + g * 0x10)},
                "numaNode": {"int": g / self.gpus.div_ceil(2)},
            }, "capacity": {"memory": {"value": "80Gi"}}})
        };
        // Devices are listed by name, as drivers do: the stock scheduler takes the first that fit.
        let mut devices: Vec<Value> = (0..self.gpus).map(device).collect();
        devices.sort_by_key(|d| d["name"].to_string());
        let name = node_name(n);
        let owner = json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid, "controller": true});
        object(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": format!("{name}-{DRIVER}"), "ownerReferences": [owner]},
            "spec": {"driver": DRIVER, "nodeName": name, "devices": devices,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}},
        }))
    }
}

fn ready() -> Value {
    let room = json!({"cpu": "128", "memory": "1Ti", "pods": "110"});
    json!({
        "capacity": room, "allocatable": room,
        "conditions": [{"type": "Ready", "status": "True", "reason": "Simulated", "message": "no kubelet",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    })
}

fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap_or_else(|e| panic!("an object of the site: {e}"))
}
