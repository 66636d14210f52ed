//! [`GpuList`]: lists of GPU names in answers.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::fmt;
use topology::{Allocation, Cluster, GpuId, HostId};

/// GPUs of one host, in the order of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostGpus {
    /// The host's name.
    pub host: String,
    /// Indices of the GPUs.
    pub gpus: Vec<u8>,
}

/// An ordered list of GPU names that can be used without a cluster: `["n0:0", "n0:1", "n1:0"]` in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuList(pub Vec<HostGpus>);

impl GpuList {
    /// The GPUs of an allocation, by host and index.
    pub fn new(cluster: &Cluster, allocation: &Allocation) -> GpuList {
        let of = |&(h, m): &(HostId, topology::GpuMask)| HostGpus {
            host: cluster.host(h).name.clone(),
            gpus: m.iter().map(|g| g as u8).collect(),
        };
        GpuList(allocation.parts().iter().map(of).collect())
    }

    /// The GPUs in the given order.
    pub fn ordered(cluster: &Cluster, gpus: &[GpuId]) -> GpuList {
        let run = |run: &[GpuId]| HostGpus {
            host: cluster.host(run[0].host).name.clone(),
            gpus: run.iter().map(|g| g.gpu).collect(),
        };
        GpuList(gpus.chunk_by(|a, b| a.host == b.host).map(run).collect())
    }

    /// The same GPUs as an allocation; GPUs that the cluster does not have are omitted.
    pub fn allocation(&self, cluster: &Cluster) -> Allocation {
        let index = cluster.host_index();
        let mask =
            |h: &HostGpus| topology::GpuMask::from_indices(h.gpus.iter().filter(|g| **g < 32).map(|g| usize::from(*g)));
        Allocation::new(self.0.iter().filter_map(|h| Some((*index.get(h.host.as_str())?, mask(h)))))
    }

    /// Number of GPUs.
    pub fn gpu_count(&self) -> usize {
        self.0.iter().map(|h| h.gpus.len()).sum()
    }

    /// The GPUs' names: `n0:0`.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.0.iter().flat_map(|h| h.gpus.iter().map(move |g| format!("{}:{g}", h.host)))
    }
}

impl fmt::Display for GpuList {
    /// The names, separated by spaces: `n0:0 n0:1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().collect::<Vec<_>>().join(" "))
    }
}

impl Serialize for GpuList {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.names())
    }
}

impl schemars::JsonSchema for GpuList {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "GpuList".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "array",
            "description": "GPUs by name: HOST:INDEX.",
            "items": {"type": "string", "pattern": ":[0-9]+$", "examples": ["n0:3"]}
        })
    }
}

impl<'de> Deserialize<'de> for GpuList {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let names = Vec::<String>::deserialize(d)?;
        let mut out: Vec<HostGpus> = Vec::new();
        for name in &names {
            let (host, gpu) = name
                .rsplit_once(':')
                .and_then(|(h, g)| Some((h, g.parse().ok()?)))
                .ok_or_else(|| D::Error::custom(format!("`{name}` is not a GPU; HOST:INDEX was expected")))?;
            match out.last_mut() {
                Some(last) if last.host == host => last.gpus.push(gpu),
                _ => out.push(HostGpus { host: host.into(), gpus: vec![gpu] }),
            }
        }
        Ok(GpuList(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_the_same_after_json_whatever_its_order() {
        let c = topology::catalog::cluster("h100").unwrap();
        let gpu = |host, gpu| GpuId { host: HostId(host), gpu };
        let list = GpuList::ordered(&c, &[gpu(1, 3), gpu(1, 0), gpu(0, 2), gpu(1, 1)]);
        let json = serde_json::to_string(&list).unwrap();
        assert_eq!(json, r#"["n1:3","n1:0","n0:2","n1:1"]"#);
        assert_eq!(serde_json::from_str::<GpuList>(&json).unwrap(), list);
        assert_eq!((list.gpu_count(), list.to_string().as_str()), (4, "n1:3 n1:0 n0:2 n1:1"));
        assert!(serde_json::from_str::<GpuList>(r#"["n1"]"#).is_err());
    }
}
