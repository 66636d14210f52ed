//! The custom resources: `GpuCluster`, the cluster as kubectl shows and edits it, and `HostFacts`, what a node's collector found.
//!
//! The chart's definitions (`chart/crds`) are made from these types; a test compares them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::core::{ApiResource, GroupVersionKind, Object};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use topology::file::schema::ClusterFile;

/// The group of the resources.
pub const GROUP: &str = "linkwise.dev";
/// Their version.
pub const VERSION: &str = "v1alpha1";
/// Maximum number of entries of a list in a status; the rest is counted.
pub const LISTED_MAX: usize = 50;
/// Maximum size of a cluster in an object, bytes: etcd takes 1.5 MiB. About 2,000 hosts of 8 GPUs with UUIDs.
pub const CLUSTER_BYTES_MAX: usize = 1_300_000;

/// A `GpuCluster`.
pub type GpuCluster = Object<ClusterSpec, ClusterStatus>;
/// A `HostFacts`, named like its node.
pub type HostFacts = Object<HostFactsSpec, Value>;

/// The resource of `GpuCluster`.
pub fn gpu_cluster() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, "GpuCluster"), "gpuclusters")
}

/// The resource of `HostFacts`.
pub fn host_facts() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, "HostFacts"), "hostfacts")
}

/// Who changes the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Update {
    /// linkwise adds and removes nodes; what was edited stays.
    #[default]
    Automatic,
    /// linkwise only reports differences in the status.
    Manual,
}

/// What kubectl edits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSpec {
    /// Who changes the cluster.
    #[serde(default)]
    pub update: Update,
    /// Host type by GPU product, for nodes without collected facts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub types: BTreeMap<String, String>,
    /// The cluster: the fields of the cluster file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Value>,
}

/// The shape of [`ClusterSpec`]: the cluster is that of the cluster file.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its schema is used")]
struct ClusterSpecShape {
    /// Automatic: linkwise adds and removes nodes, and what was edited stays. Manual: linkwise only reports differences in the status.
    #[serde(default)]
    update: Update,
    /// Host type by GPU product, for nodes without readable facts of a collector: `{"NVIDIA H100 80GB HBM3": "hgx-h100"}`.
    #[serde(default)]
    types: BTreeMap<String, String>,
    /// The cluster: the fields of the cluster file.
    #[serde(default)]
    cluster: Option<ClusterFile>,
}

/// A suspected part and its taint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SuspectStatus {
    /// The part: `NIC mlx5_3 of n1`.
    pub component: String,
    /// Probability in percent.
    pub probability_percent: u8,
    /// Estimated share of its rate, percent.
    pub rate_percent: u8,
    /// DeviceTaintRules of it; empty: below the threshold, or no device of a driver is this part.
    #[serde(default)]
    pub rules: Vec<String>,
}

/// What linkwise found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// Generation of the spec that this is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// Number of hosts and GPUs of the cluster in force.
    #[serde(default)]
    pub hosts: u32,
    #[serde(default)]
    pub gpus: u32,
    /// How the spec differs from the nodes.
    #[serde(default)]
    pub differences: Vec<String>,
    /// What was inferred or left out.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Suspected parts.
    #[serde(default)]
    pub suspects: Vec<SuspectStatus>,
    /// Allocations that are not linkwise's and conflict, with their writers.
    #[serde(default)]
    pub alarms: Vec<String>,
    /// `Accepted`, `UpToDate`, `OneWriter`.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

/// A GPU of nvidia-smi.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CollectedGpu {
    /// Index of nvidia-smi.
    pub index: u8,
    pub uuid: String,
    /// As nvidia-smi names it.
    #[serde(default)]
    pub product: String,
}

/// A network port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CollectedPort {
    /// RDMA device, such as `mlx5_0`.
    pub device: String,
    pub active: bool,
    /// Gbit/s in whole numbers; 0 if unknown.
    pub rate_gbit_per_s: u32,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: String,
}

/// What a collector found on its node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostFactsSpec {
    /// Output of `nvidia-smi topo -m`.
    pub topology: String,
    /// GPUs in the order of nvidia-smi.
    #[serde(default)]
    pub gpus: Vec<CollectedGpu>,
    /// RDMA ports.
    #[serde(default)]
    pub ports: Vec<CollectedPort>,
}

/// The definitions of both resources.
pub fn definitions() -> [Value; 2] {
    let column = |name: &str, kind: &str, path: &str| json!({"name": name, "type": kind, "jsonPath": path});
    let condition = |name: &str| column(name, "string", &format!(".status.conditions[?(@.type==\"{name}\")].status"));
    let age = column("Age", "date", ".metadata.creationTimestamp");
    let cluster = json!({
        "description": "The cluster as linkwise sees it.",
        "type": "object", "required": ["spec"],
        "properties": {"spec": schema::<ClusterSpecShape>(), "status": status()},
    });
    let mut facts = schema::<HostFactsSpec>();
    facts["properties"]["topology"]["maxLength"] = json!(super::collected::TOPOLOGY_BYTES_MAX);
    facts["properties"]["gpus"]["maxItems"] = json!(topology::GPUS_PER_HOST_MAX);
    facts["properties"]["ports"]["maxItems"] = json!(topology::NICS_PER_HOST_MAX);
    let facts = json!({
        "description": "What linkwise's collector found on the node of this name.",
        "type": "object", "required": ["spec"],
        "properties": {"spec": facts},
    });
    [
        definition(
            "GpuCluster",
            "gpuclusters",
            "gpucluster",
            cluster,
            json!({"status": {}}),
            json!([
                column("Hosts", "integer", ".status.hosts"),
                column("GPUs", "integer", ".status.gpus"),
                condition("Accepted"),
                condition("UpToDate"),
                condition("OneWriter"),
                age
            ]),
        ),
        definition("HostFacts", "hostfacts", "hostfacts", facts, json!({}), json!([age])),
    ]
}

fn definition(kind: &str, plural: &str, singular: &str, schema: Value, sub: Value, columns: Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {"kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": singular},
            "versions": [{
                "name": VERSION, "served": true, "storage": true, "subresources": sub,
                "additionalPrinterColumns": columns, "schema": {"openAPIV3Schema": schema},
            }],
        },
    })
}

fn status() -> Value {
    let sentences = json!({"type": "array", "items": {"type": "string"}, "maxItems": LISTED_MAX + 1});
    json!({
        "type": "object",
        "properties": {
            "observedGeneration": {"type": "integer"}, "hosts": {"type": "integer"}, "gpus": {"type": "integer"},
            "differences": sentences, "notes": sentences, "alarms": sentences,
            "suspects": {"type": "array", "items": schema::<SuspectStatus>(), "maxItems": LISTED_MAX},
            "conditions": {
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
                "items": {
                    "type": "object", "required": ["type", "status", "reason", "message", "lastTransitionTime"],
                    "properties": {
                        "type": {"type": "string"}, "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                        "reason": {"type": "string"}, "message": {"type": "string"},
                        "lastTransitionTime": {"type": "string", "format": "date-time"},
                        "observedGeneration": {"type": "integer"},
                    },
                },
            },
        },
    })
}

/// The structural schema of a type, as definitions need it.
fn schema<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true);
    structural(&settings.into_generator().into_root_schema_for::<T>().to_value())
}

/// A JSON Schema as the API server takes it: no references, no alternatives of types, no closed objects. What it cannot express is left open;
/// linkwise reads the cluster whole and says in the status what is wrong.
fn structural(schema: &Value) -> Value {
    let Value::Object(from) = schema else { return json!({"x-kubernetes-preserve-unknown-fields": true}) };
    let mut to = Map::new();
    let described = |to: &mut Map<String, Value>| {
        if let Some(text) = from.get("description") {
            to.entry("description").or_insert_with(|| text.clone());
        }
    };
    let is_null = |v: &Value| v.get("type").and_then(Value::as_str) == Some("null");
    for key in ["anyOf", "oneOf"] {
        let Some(all) = from.get(key).and_then(Value::as_array) else { continue };
        let some: Vec<&Value> = all.iter().filter(|v| !is_null(v)).collect();
        let mut found = match some.as_slice() {
            [one] => structural(one),
            // Names with a sentence each: an enumeration.
            many if many.iter().all(|v| v.get("const").is_some_and(Value::is_string) || v.get("enum").is_some()) => {
                let names = many.iter().flat_map(|v| match v.get("enum").and_then(Value::as_array) {
                    Some(list) => list.clone(),
                    None => v.get("const").cloned().into_iter().collect(),
                });
                json!({"type": "string", "enum": names.collect::<Vec<_>>()})
            }
            _ => json!({"x-kubernetes-preserve-unknown-fields": true}),
        };
        if let Value::Object(o) = &mut found {
            if some.len() < all.len() {
                o.insert("nullable".into(), json!(true));
            }
            if let Some(text) = from.get("description") {
                o.insert("description".into(), text.clone());
            }
        }
        return found;
    }
    for (key, value) in from {
        match (key.as_str(), value) {
            ("type", Value::Array(types)) => {
                let kinds: Vec<&Value> = types.iter().filter(|t| t.as_str() != Some("null")).collect();
                match kinds.as_slice() {
                    [one] => to.insert("type".into(), (*one).clone()),
                    _ => to.insert("x-kubernetes-preserve-unknown-fields".into(), json!(true)),
                };
                if kinds.len() < types.len() {
                    to.insert("nullable".into(), json!(true));
                }
            }
            ("properties", Value::Object(all)) => {
                let each = all.iter().map(|(k, v)| (k.clone(), structural(v))).collect::<Map<_, _>>();
                to.insert(key.clone(), Value::Object(each));
            }
            ("items" | "additionalProperties", Value::Object(_)) => {
                to.insert(key.clone(), structural(value));
            }
            ("const", one) => {
                to.insert("enum".into(), json!([one]));
            }
            (
                "type" | "description" | "required" | "enum" | "minimum" | "maximum" | "minItems" | "maxItems"
                | "pattern",
                _,
            ) => {
                to.insert(key.clone(), value.clone());
            }
            _ => {} // defaults, formats, titles and closed objects
        }
    }
    described(&mut to);
    Value::Object(to)
}

/// Sentences for a status: at most [`LISTED_MAX`], and how many more there are.
pub fn listed(mut all: Vec<String>) -> Vec<String> {
    if all.len() > LISTED_MAX {
        let more = all.len() - LISTED_MAX;
        all.truncate(LISTED_MAX);
        all.push(format!("{more} more"));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(v: &Value, at: &str, bad: &mut Vec<String>) {
        if let Value::Object(o) = v {
            for key in ["$ref", "anyOf", "oneOf", "const", "$defs"] {
                if o.contains_key(key) {
                    bad.push(format!("{at}/{key}"));
                }
            }
        }
        match v {
            Value::Object(o) => o.iter().for_each(|(k, v)| walk(v, &format!("{at}/{k}"), bad)),
            Value::Array(a) => a.iter().enumerate().for_each(|(i, v)| walk(v, &format!("{at}/{i}"), bad)),
            _ => {}
        }
    }

    #[test]
    fn definitions_are_structural_and_know_the_fields_of_the_cluster_file() {
        for d in definitions() {
            let mut bad = Vec::new();
            walk(&d["spec"]["versions"][0]["schema"], "", &mut bad);
            assert!(bad.is_empty(), "{bad:?}");
        }
        let [cluster, _] = definitions();
        let spec = &cluster["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        let network = &spec["cluster"]["properties"]["network"]["properties"];
        assert_eq!(network["class"]["enum"][1], "roce", "{network:#}");
        let host = &spec["cluster"]["properties"]["hosts"]["items"]["properties"];
        assert_eq!(host["count"]["type"], "integer", "{host:#}");
        assert_eq!(host["drained"]["x-kubernetes-preserve-unknown-fields"], true, "{host:#}");
    }

    #[test]
    fn long_lists_are_cut_and_counted() {
        let all = listed((0..60).map(|i| i.to_string()).collect());
        assert_eq!((all.len(), all[50].as_str()), (51, "10 more"));
    }
}
