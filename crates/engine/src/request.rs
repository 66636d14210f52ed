//! A request for GPUs, in the clients' form and in the engine's form.

use crate::error::EngineError;
use place::read::{Defaults, Reader};
use place::{Contention, Registry, Request, Split};
use serde::{Deserialize, Serialize};
use topology::{Allocation, Bytes, Cluster};

/// Maximum number of measured candidates of a request.
const MEASURED_MAX: usize = 1000;

/// Asks for GPUs for a job. Only `gpus` (or `pods`) is required. The fields of the job are those of a request line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlaceRequest {
    /// Number of GPUs; with `pods` their sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u64>,
    /// Number of GPUs of every pod. A pod runs on one host; several pods may share a host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<u64>,
    /// Kinds of groups of ranks; the first is the lowest digit of a rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupIn>,
    /// The GPUs to choose from; none: all that are neither drained nor held by `jobs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<Vec<String>>,
    /// The message size to optimise for; none: the largest size of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Constraints on the chosen GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraints: Option<ConstraintsIn>,
    /// Running jobs, in addition to those of the state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<JobIn>,
    /// `merge`, `merge-counts` or `physical`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contention: Option<String>,
    /// Weight of bandwidth that running jobs lose relative to the new job's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_weight: Option<f64>,
    /// The bandwidth to give up for fewer hosts, fewer switches, an even split and whole hosts: `5%`, or `1sd`
    /// (standard deviations of the difference of two predictions); none: `1sd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slack: Option<String>,
    /// Name of the search; none: `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<String>,
    /// Random seed (randomized searches only).
    #[serde(default)]
    pub seed: u64,
    /// Measured candidates: the decision uses their bandwidths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured: Vec<MeasuredIn>,
    /// The job to which the GPUs are allocated; none: no commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Length of the lease of a commit, seconds: the job loses its GPUs unless it is renewed within this time. None: no
    /// lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_s: Option<f64>,
    /// Idempotency key of a commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A kind of groups of ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupIn {
    /// `tensor`, `expert`, `data` or `pipeline`.
    pub kind: String,
    /// Ranks of one group.
    pub size: u64,
    /// Share of the job's traffic, relative to the other kinds; none: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
}

/// Constraints on the chosen GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConstraintsIn {
    /// Only these hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_hosts: Option<Vec<String>>,
    /// Exclude these hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excluded_hosts: Option<Vec<String>>,
    /// Only GPUs of this model, or hosts of this type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_type: Option<String>,
    /// Minimum number of GPUs on any host of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_per_host_min: Option<u64>,
    /// Maximum number of hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts_max: Option<u64>,
    /// No NIC may be shared with a running job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclusive_nics: Option<bool>,
    /// Hosts may give different numbers of GPUs; otherwise all give the same number where that is feasible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uneven: Option<bool>,
    /// Number of GPUs on every host of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_host: Option<u64>,
    /// Maximum number of GPUs on any host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_per_host_max: Option<u64>,
    /// Maximum number of switches of a tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switches_max: Option<u64>,
    /// The tier of `switches_max`; none: the tier nearest to the hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch_tier: Option<String>,
    /// All GPUs below one switch of this tier, or on one `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_level: Option<String>,
    /// All GPUs below one switch of this tier if possible, else below one switch of the next higher tier, and so on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefer_level: Option<String>,
    /// As few GPUs as possible below any one switch of this tier, or on any one `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<String>,
}

/// A running job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobIn {
    /// Its id.
    pub id: String,
    /// Its GPUs.
    pub gpus: Vec<String>,
    /// The bus bandwidth that it uses, GB/s; none: the model's prediction without other jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demand_gb_per_s: Option<f64>,
    /// Share of the time in which it communicates, 0 to 1; none: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duty: Option<f64>,
}

/// A measured candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MeasuredIn {
    /// Its GPUs.
    pub gpus: Vec<String>,
    /// Its measured bus bandwidth, GB/s.
    pub busbw_gb_per_s: f64,
}

/// A request in the engine's form. Clients in Rust can build it directly.
#[derive(Clone, Debug, PartialEq)]
pub struct PlaceQuery {
    /// The request; the engine takes free GPUs and running jobs of the state into account.
    pub request: Request,
    /// Name of the search.
    pub search: String,
    /// Random seed (randomized searches only).
    pub seed: u64,
    /// Candidates that were measured, GB/s.
    pub measured: Vec<(Allocation, f64)>,
    /// The job to which the GPUs are allocated; none: no commit.
    pub commit: Option<String>,
    /// Length of the lease of a commit, seconds; none: no lease.
    pub lease_s: Option<f64>,
    /// Idempotency key of a commit.
    pub key: Option<String>,
}

impl PlaceQuery {
    /// A request without a commit, with the default search.
    pub fn new(request: Request) -> PlaceQuery {
        PlaceQuery {
            request,
            search: "auto".into(),
            seed: 0,
            measured: Vec::new(),
            commit: None,
            lease_s: None,
            key: None,
        }
    }
}

impl PlaceRequest {
    /// Converts a request. `known` are the valid searches and contention rules, `size` is the default message size. O(names).
    pub fn read(&self, cluster: &Cluster, known: &Registry, size: Bytes) -> Result<PlaceQuery, EngineError> {
        let defaults =
            Defaults { size, contention: Contention::of(cluster), loss_weight: 0.0, slack: place::Slack::default() };
        let reader = Reader::new(cluster, defaults, known);
        let mut job =
            PlaceRequest { seed: 0, measured: Vec::new(), commit: None, lease_s: None, key: None, ..self.clone() };
        let search = job.search.take().unwrap_or_else(|| "auto".into());
        let mut value = serde_json::to_value(&job).map_err(EngineError::bad)?;
        value.as_object_mut().map(|m| m.remove("seed"));
        let request = reader.request(&value)?.request;
        if self.measured.len() > MEASURED_MAX {
            return Err(EngineError::bad(format!("`measured` has more than {MEASURED_MAX} entries")));
        }
        let measured = self.measured.iter().enumerate().map(|(i, m)| {
            if !(m.busbw_gb_per_s > 0.0 && m.busbw_gb_per_s < 1e6) {
                let v = m.busbw_gb_per_s;
                return Err(EngineError::bad(format!("`measured[{i}].busbw_gb_per_s` is {v}; 0 to 1e6 was expected")));
            }
            let gpus = reader.gpus(m.gpus.iter().map(String::as_str), &format!("measured[{i}].gpus"))?;
            Ok((gpus, m.busbw_gb_per_s))
        });
        Ok(PlaceQuery {
            measured: measured.collect::<Result<_, _>>()?,
            request,
            search,
            seed: self.seed,
            commit: self.commit.clone(),
            lease_s: self.lease_s,
            key: self.key.clone(),
        })
    }

    /// The same request in the clients' form; [`PlaceRequest::read`] is the inverse. O(GPUs named).
    pub fn of(cluster: &Cluster, q: &PlaceQuery) -> PlaceRequest {
        let r = &q.request;
        let hosts = |list: &[topology::HostId]| -> Option<Vec<String>> {
            (!list.is_empty()).then(|| list.iter().map(|h| cluster.host(*h).name.clone()).collect())
        };
        let c = &r.constraints;
        let constraints = ConstraintsIn {
            only_hosts: hosts(&c.only_hosts),
            excluded_hosts: hosts(&c.excluded_hosts),
            gpu_type: c.gpu_type.clone(),
            gpus_per_host_min: Some(c.gpus_per_host_min as u64).filter(|n| *n > 0),
            hosts_max: c.hosts_max.map(|n| n as u64),
            exclusive_nics: Some(c.exclusive_nics).filter(|e| *e),
            uneven: (c.split == Split::Any).then_some(true),
            gpus_per_host_max: c.gpus_per_host_max.map(|n| n as u64),
            switches_max: c.switches_max.map(|n| n as u64),
            switch_tier: c.switch_tier.clone(),
            require_level: c.require_level.clone(),
            prefer_level: c.prefer_level.clone(),
            spread: c.spread.clone(),
            per_host: if let Split::PerHost(n) = c.split { Some(n as u64) } else { None },
        };
        let job = |j: &place::Job| JobIn {
            id: j.id.clone(),
            gpus: cluster.gpu_names(&j.gpus),
            demand_gb_per_s: j.demand_gb_per_s,
            duty: Some(j.duty).filter(|d| *d < 1.0),
        };
        let measured = |m: &(Allocation, f64)| MeasuredIn { gpus: cluster.gpu_names(&m.0), busbw_gb_per_s: m.1 };
        PlaceRequest {
            gpus: Some(r.gpus as u64),
            pods: r.pods.iter().map(|p| *p as u64).collect(),
            groups: r
                .groups
                .iter()
                .map(|g| GroupIn { kind: g.kind.to_string(), size: g.size as u64, weight: Some(g.weight) })
                .collect(),
            free: Some(cluster.gpu_names(&r.free)),
            size_bytes: Some(r.size.0),
            constraints: Some(constraints).filter(|c| *c != ConstraintsIn::default()),
            jobs: r.jobs.iter().map(job).collect(),
            contention: Some(r.contention.name().into()),
            loss_weight: Some(r.loss_weight),
            slack: Some(r.slack.to_string()),
            search: Some(q.search.clone()),
            seed: q.seed,
            measured: q.measured.iter().map(measured).collect(),
            commit: q.commit.clone(),
            lease_s: q.lease_s,
            key: q.key.clone(),
        }
    }
}
