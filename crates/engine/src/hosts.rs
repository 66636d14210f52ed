//! The hosts of the cluster with the state of every GPU, and the present model in numbers.

use crate::error::EngineError;
use crate::hold::Engine;
use crate::jobs::SuspectAnswer;
use crate::models::ModelVersion;
use predict::BandwidthModel;
use serde::{Deserialize, Serialize};
use topology::{Bytes, Collective};

/// Asks for the hosts. The request has no fields; unknown fields are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostsRequest {}

/// The hosts, in the order of the cluster file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct HostsAnswer {
    /// Name of the cluster.
    pub cluster: String,
    /// The hosts.
    pub hosts: Vec<HostStatus>,
    /// Version of the state.
    pub version: u64,
}

/// One host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct HostStatus {
    /// Its name.
    pub name: String,
    /// Its host type.
    pub host_type: String,
    /// Its switches, by tier, the nearest first: `leaf 2`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<String>,
    /// Its GPUs, by index.
    pub gpus: Vec<GpuStatus>,
    /// Its suspected components, most probable first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suspects: Vec<SuspectAnswer>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct GpuStatus {
    /// Its UUID, if the cluster file has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The job that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The reason of its drain; may be empty. None: not drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained: Option<String>,
}

/// Asks for the present model. The request has no fields; unknown fields are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelRequest {}

/// The present model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ModelAnswer {
    /// Its kind.
    pub kind: String,
    /// Its collective.
    #[schemars(schema_with = "crate::schema::collective")]
    pub collective: Collective,
    /// The message sizes of its fit, ascending.
    pub sizes_bytes: Vec<Bytes>,
    /// Largest number of hosts of its readings; none: it learned no reading of several hosts.
    pub hosts_measured_max: Option<usize>,
    /// Relative standard deviation of repeated readings.
    pub repeat_noise: f64,
    /// How the network differs from that of the fit.
    pub network_changes: Vec<String>,
    /// The versions that the engine keeps, oldest first: the present one, earlier ones, and fits that were refused.
    #[serde(default)]
    pub versions: Vec<ModelVersion>,
}

impl Engine {
    /// The hosts with the state of every GPU. O(GPUs of the cluster).
    pub fn hosts(&self) -> Result<HostsAnswer, EngineError> {
        let now = self.snapshot()?;
        let cluster = self.cluster();
        let host = |h: topology::HostId| {
            let of = cluster.host(h);
            let gpu = |g: usize| GpuStatus {
                uuid: of.gpu_uuids.get(g).filter(|u| !u.is_empty()).cloned(),
                job: None,
                drained: of.drained.contains(g).then(|| "in the cluster file".to_owned()),
            };
            let switch = |tier| cluster.switch_name(tier, cluster.switch_of(tier, h)).into_owned();
            HostStatus {
                name: of.name.clone(),
                host_type: cluster.type_of(h).name.clone(),
                switches: (0..cluster.tiers().len()).map(switch).collect(),
                gpus: (0..cluster.type_of(h).gpu_count()).map(gpu).collect(),
                suspects: now.suspects.iter().filter(|s| s.host == h).map(|s| self.suspect(s)).collect(),
            }
        };
        let mut hosts: Vec<HostStatus> = cluster.host_ids().map(host).collect();
        for d in &now.drained {
            hosts[d.gpu.host.index()].gpus[usize::from(d.gpu.gpu)].drained = Some(d.reason.clone());
        }
        for j in &now.jobs {
            for g in j.gpus.gpus() {
                hosts[g.host.index()].gpus[usize::from(g.gpu)].job = Some(j.id.clone());
            }
        }
        Ok(HostsAnswer { cluster: cluster.name.clone(), hosts, version: now.version })
    }

    /// The present model in numbers.
    pub fn model_answer(&self) -> Result<ModelAnswer, EngineError> {
        let model = self.model()?;
        Ok(ModelAnswer {
            kind: model.kind().into(),
            collective: model.collective(),
            sizes_bytes: model.sizes(),
            hosts_measured_max: model.hosts_measured_max(),
            repeat_noise: model.repeat_noise(),
            network_changes: self.network_changes(),
            versions: self.versions(),
        })
    }
}
