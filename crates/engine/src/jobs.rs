//! Jobs and their GPUs: allocate, release, drain, and the status of the state.

use crate::error::EngineError;
use crate::gpus::GpuList;
use crate::hold::Engine;
use diagnose::Component;
use serde::{Deserialize, Serialize};
use store::state::{Allocated, NewJob, Snapshot, Suspect};
use store::{By, Once};
use topology::{Allocation, Bytes};

/// Allocates named GPUs to a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AllocateRequest {
    /// The job.
    #[serde(default)]
    pub job: String,
    /// GPUs such as `n0:3`; a host means all its GPUs.
    pub gpus: Vec<String>,
    /// The bus bandwidth that the job uses, GB/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demand_gb_per_s: Option<f64>,
    /// Length of the lease, seconds: the job loses its GPUs unless it is renewed within this time. None: no lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_s: Option<f64>,
    /// Idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// The result of an allocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AllocateAnswer {
    /// The job.
    pub job: String,
    /// Its GPUs.
    pub gpus: GpuList,
    /// True if the job held these GPUs before.
    pub already: bool,
    /// Number of free GPUs after the allocation.
    pub free: usize,
    /// True if the request was executed before, under the same key.
    #[serde(default)]
    pub repeated: bool,
}

/// Releases the GPUs of all these jobs, or of none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    /// Ids of the jobs, each once.
    pub jobs: Vec<String>,
    /// Idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// The result of a release.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ReleaseAnswer {
    /// The jobs, in the order of the request.
    pub released: Vec<ReleasedJob>,
    /// Number of free GPUs after the release.
    pub free: usize,
    /// True if the jobs were released before, under the same key.
    pub repeated: bool,
}

/// A released job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ReleasedJob {
    /// Its id.
    pub job: String,
    /// The GPUs that it held.
    pub gpus: GpuList,
}

/// Drains GPUs: no job gets them from now on. Jobs that hold some of them keep them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// GPUs and hosts.
    pub gpus: Vec<String>,
    /// The reason, in one line.
    #[serde(default)]
    pub reason: String,
    /// Idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// The result of a drain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DrainAnswer {
    /// The GPUs.
    pub drained: GpuList,
    /// Jobs that hold some of the GPUs and continue, oldest first.
    pub jobs_going_on: Vec<String>,
    /// Number of free GPUs after the drain.
    pub free: usize,
    /// True if the request was executed before, under the same key.
    #[serde(default)]
    pub repeated: bool,
}

/// Ends the drain of GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UndrainRequest {
    /// GPUs and hosts.
    pub gpus: Vec<String>,
    /// Idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// The result of an undrain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct UndrainAnswer {
    /// Number of GPUs whose drain ended.
    pub undrained: usize,
    /// Number of GPUs in the request.
    pub named: usize,
    /// Number of GPUs that the cluster file drains; they stay drained.
    pub drained_by_cluster_file: usize,
    /// Number of free GPUs after the request.
    pub free: usize,
    /// True if the request was executed before, under the same key.
    #[serde(default)]
    pub repeated: bool,
}

/// Asks for the status of the state. The request has no fields; unknown fields are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatusRequest {}

/// The status of the state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct StatusAnswer {
    /// Name of the cluster.
    pub cluster: String,
    /// Number of hosts.
    pub hosts: usize,
    /// Number of GPUs.
    pub gpus: usize,
    /// GPUs that a job can get.
    pub free: GpuList,
    /// Jobs, oldest first.
    pub jobs: Vec<JobAnswer>,
    /// Drained GPUs, by reason.
    pub drained: Vec<DrainedAnswer>,
    /// Suspected components, by defect, most probable first.
    pub suspects: Vec<SuspectAnswer>,
    /// Version of the state; it rises with every change.
    pub version: u64,
}

/// A job and its GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct JobAnswer {
    /// Its id.
    pub id: String,
    /// Its GPUs.
    pub gpus: GpuList,
    /// GPUs per host, largest first.
    pub split: String,
    /// Time of the allocation, seconds since 1970.
    pub since_unix_s: f64,
    /// Predicted bus bandwidth, GB/s.
    pub predicted_gb_per_s: Option<f64>,
    /// Bus bandwidth that it uses, GB/s.
    pub demand_gb_per_s: Option<f64>,
    /// Message size of the prediction.
    pub size_bytes: Option<Bytes>,
    /// Author of the allocation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub made_by: String,
    /// Length of the lease, seconds; none: the job holds its GPUs until it is released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_s: Option<f64>,
    /// End of the lease, seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_until_unix_s: Option<f64>,
}

/// GPUs with the same reason of their drain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DrainedAnswer {
    /// The GPUs.
    pub gpus: GpuList,
    /// The reason.
    pub reason: String,
}

/// A suspected component.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SuspectAnswer {
    /// The component as text: `NIC mlx5_3 of n1`.
    pub component: String,
    /// Its host.
    pub host: String,
    /// Number of the defect; suspects of one defect exclude each other.
    pub defect: u32,
    /// Estimated share of its full rate, 0 to 1.
    pub factor: f64,
    /// Probability of the defect in this component, 0 to 1.
    pub probability: f64,
}

/// The key of a request, if it has one, with the digest of the request without the key.
pub(crate) fn once<T: Serialize>(key: Option<&String>, request: &T) -> Result<Option<Once>, EngineError> {
    let Some(key) = key else { return Ok(None) };
    let text = serde_json::to_string(request).map_err(EngineError::bad)?;
    Once::new(key, &text).map(Some).map_err(EngineError::bad)
}

impl Engine {
    /// Allocates all of the named GPUs to a job, or none of them.
    pub fn allocate<'a>(&self, r: &AllocateRequest, by: impl Into<By<'a>>) -> Result<AllocateAnswer, EngineError> {
        let by = by.into();
        let gpus = self.gpus(&r.gpus)?;
        let once = match r.lease_s {
            // Without a lease the digest is that of earlier versions.
            None => once(r.key.as_ref(), &("allocate", &r.job, &r.gpus, r.demand_gb_per_s))?,
            Some(s) => once(r.key.as_ref(), &("allocate", &r.job, &r.gpus, r.demand_gb_per_s, s))?,
        };
        let job = NewJob {
            id: r.job.clone(),
            gpus,
            demand_gb_per_s: r.demand_gb_per_s,
            predicted_gb_per_s: None,
            size: None,
            lease_s: r.lease_s,
        };
        let done = self.state()?.allocate(&job, once.as_ref(), &by)?;
        Ok(AllocateAnswer {
            job: job.id,
            gpus: GpuList::new(&self.cluster, &job.gpus),
            already: done.repeated || done.value == Allocated::Already,
            free: self.free()?,
            repeated: done.repeated,
        })
    }

    /// Releases the GPUs of all these jobs, or of none.
    pub fn release<'a>(&self, r: &ReleaseRequest, by: impl Into<By<'a>>) -> Result<ReleaseAnswer, EngineError> {
        let by = by.into();
        let mut ids: Vec<&String> = r.jobs.iter().collect();
        ids.sort();
        if let Some(twice) = ids.windows(2).find(|w| w[0] == w[1]) {
            return Err(EngineError::bad(format!("job `{}` is named twice", twice[0])));
        }
        let once = once(r.key.as_ref(), &("release", &r.jobs))?;
        let done = self.state()?.release(&r.jobs, once.as_ref(), &by)?;
        let job =
            |j: &store::state::JobHeld| ReleasedJob { job: j.id.clone(), gpus: GpuList::new(&self.cluster, &j.gpus) };
        let released = done.value.jobs.iter().map(job).collect();
        Ok(ReleaseAnswer { released, free: self.free()?, repeated: done.repeated })
    }

    /// Drains GPUs: no job gets them from now on.
    pub fn drain<'a>(&self, r: &DrainRequest, by: impl Into<By<'a>>) -> Result<DrainAnswer, EngineError> {
        let by = by.into();
        let gpus = self.gpus(&r.gpus)?;
        let once = once(r.key.as_ref(), &("drain", &r.gpus, &r.reason))?;
        let done = self.state()?.drain(&gpus, &r.reason, once.as_ref(), &by)?;
        Ok(DrainAnswer {
            drained: GpuList::new(&self.cluster, &gpus),
            jobs_going_on: done.value.jobs_going_on,
            free: self.free()?,
            repeated: done.repeated,
        })
    }

    /// Ends the drain of GPUs.
    pub fn undrain<'a>(&self, r: &UndrainRequest, by: impl Into<By<'a>>) -> Result<UndrainAnswer, EngineError> {
        let by = by.into();
        let gpus = self.gpus(&r.gpus)?;
        let once = once(r.key.as_ref(), &("undrain", &r.gpus))?;
        let done = self.state()?.undrain(&gpus, once.as_ref(), &by)?;
        let by_file = |g: &topology::GpuId| self.cluster.host(g.host).drained.contains(g.gpu.into());
        Ok(UndrainAnswer {
            undrained: done.value,
            named: gpus.gpu_count(),
            drained_by_cluster_file: gpus.gpus().filter(by_file).count(),
            free: self.free()?,
            repeated: done.repeated,
        })
    }

    /// The status of the state.
    pub fn status(&self) -> Result<StatusAnswer, EngineError> {
        let s = self.snapshot()?;
        let list = |a: &Allocation| GpuList::new(&self.cluster, a);
        Ok(StatusAnswer {
            cluster: self.cluster.name.clone(),
            hosts: self.cluster.hosts.len(),
            gpus: self.cluster.gpu_count(),
            free: list(&s.free),
            jobs: s.jobs.iter().map(|j| self.job_answer(j)).collect(),
            drained: self.drains(&s),
            suspects: s.suspects.iter().map(|x| self.suspect(x)).collect(),
            version: s.version,
        })
    }

    /// A job of the state.
    pub(crate) fn job_answer(&self, j: &store::state::JobHeld) -> JobAnswer {
        JobAnswer {
            id: j.id.clone(),
            gpus: GpuList::new(&self.cluster, &j.gpus),
            split: j.gpus.split(),
            since_unix_s: j.since_unix_s,
            predicted_gb_per_s: j.predicted_gb_per_s,
            demand_gb_per_s: j.demand_gb_per_s,
            size_bytes: j.size,
            made_by: j.made_by.clone(),
            lease_s: j.lease_s,
            lease_until_unix_s: j.lease_until_unix_s,
        }
    }

    /// Reads GPU names; a host name means all GPUs of the host.
    pub(crate) fn gpus(&self, names: &[String]) -> Result<Allocation, EngineError> {
        self.cluster.parse_gpus(names.iter().map(String::as_str)).map_err(EngineError::bad)
    }

    fn free(&self) -> Result<usize, EngineError> {
        Ok(self.snapshot()?.free.gpu_count())
    }

    pub(crate) fn suspect(&self, s: &Suspect) -> SuspectAnswer {
        let host = &self.cluster.host(s.host).name;
        let component = match Component::parse(&self.cluster, s.host, &s.component) {
            Some(c) => c.name(&self.cluster),
            None => format!("{} of {host}", s.component),
        };
        let (defect, factor, probability) = (s.defect, s.factor, s.probability);
        SuspectAnswer { component, host: host.clone(), defect, factor, probability }
    }

    /// Drained GPUs by reason, in order of appearance; those of the cluster file last.
    fn drains(&self, s: &Snapshot) -> Vec<DrainedAnswer> {
        let mut by_reason: Vec<(&str, Vec<topology::GpuId>)> = Vec::new();
        for d in &s.drained {
            match by_reason.iter_mut().find(|x| x.0 == d.reason) {
                Some(x) => x.1.push(d.gpu),
                None => by_reason.push((&d.reason, vec![d.gpu])),
            }
        }
        let file = Allocation::new(self.cluster.host_ids().map(|h| (h, self.cluster.host(h).drained)));
        if !file.is_empty() {
            by_reason.push(("in the cluster file", file.gpus().collect()));
        }
        let told = |(reason, gpus): (&str, Vec<topology::GpuId>)| DrainedAnswer {
            gpus: GpuList::new(&self.cluster, &Allocation::from_gpus(gpus)),
            reason: reason.to_owned(),
        };
        by_reason.into_iter().map(told).collect()
    }
}
