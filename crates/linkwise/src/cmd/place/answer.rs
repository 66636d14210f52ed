//! An answer, and its form in JSON; sentences are in [`super::text`], Slurm options and hostfiles in [`super::launch`].

use crate::cmd::nccl::{Advice, by_model};
use place::{Answer, Bottleneck, Request, Scored};
use predict::{BandwidthModel, Model};
use serde_json::{Value, json};
use std::time::Duration;
use topology::nccl::Version;
use topology::{Allocation, Cluster, HostId};

/// Everything that an answer is printed from.
pub struct Reply<'a> {
    pub cluster: &'a Cluster,
    pub model: &'a Model,
    pub request: &'a Request,
    pub answer: &'a Answer,
    pub elapsed: Duration,
    /// Which NCCL the job will use, if its settings are wanted.
    pub nccl: Option<Version>,
}

/// How many candidates are named as worth measuring.
const PROBES: usize = 3;
/// How many settings of NCCL are named.
const SETTINGS: usize = 3;

fn round(v: f64) -> f64 {
    (v * 1000.0).round() / 1000.0
}

impl Reply<'_> {
    /// A host's name.
    pub fn name(&self, h: HostId) -> &str {
        &self.cluster.host(h).name
    }

    /// The candidates whose measurement would tell most, the choice first: what `--readings` takes.
    fn worth_measuring(&self) -> Vec<Value> {
        let all: Vec<Scored> = std::iter::once(&self.answer.choice).chain(&self.answer.runner_ups).cloned().collect();
        place::worth_measuring(&all, &[], PROBES, self.model.repeat_noise())
            .into_iter()
            .map(|i| json!(self.cluster.gpu_names(&all[i].allocation)))
            .collect()
    }

    /// Settings of NCCL worth trying on the choice, best first.
    pub fn settings(&self) -> Vec<Advice> {
        let of = |v| by_model(v, self.cluster, &self.answer.host_order, self.model.collective(), self.request.size.0);
        let mut all = self.nccl.map(of).unwrap_or_default();
        all.truncate(SETTINGS);
        all
    }

    fn scored(&self, s: &Scored) -> Value {
        json!({
            "split": s.allocation.split(),
            "gpus": self.cluster.gpu_names(&s.allocation),
            "predicted_busbw_gb_per_s": round(s.prediction.busbw_gb_per_s),
            "std_gb_per_s": round(s.prediction.std_gb_per_s),
        })
    }

    /// What the choice means for it and the running jobs; null without jobs.
    fn contention(&self) -> Value {
        if self.request.jobs.is_empty() {
            return Value::Null;
        }
        let e = &self.answer.effect;
        let jobs = self.request.jobs.iter().zip(&e.jobs_gb_per_s).map(|(j, (before, after))| {
            json!({"id": j.id, "before_busbw_gb_per_s": round(*before), "after_busbw_gb_per_s": round(*after)})
        });
        json!({
            "kind": self.request.contention.name(),
            "loss_weight": self.request.loss_weight,
            "alone_busbw_gb_per_s": round(e.alone_gb_per_s),
            "shared_busbw_gb_per_s": round(e.shared_gb_per_s),
            "jobs": jobs.collect::<Vec<_>>(),
        })
    }

    /// One JSON object; `id` as the request gave it.
    pub fn json(&self, id: Option<&Value>) -> Value {
        let a = self.answer;
        let bottleneck = match &a.bottleneck {
            Bottleneck::Host { host } => json!({"kind": "host", "host": self.name(*host)}),
            Bottleneck::Nic { host, nics, gb_per_s } => {
                json!({"kind": "nic", "host": self.name(*host), "nics": nics, "gb_per_s": round(*gb_per_s)})
            }
            Bottleneck::Network { name } => json!({"kind": "link", "name": name}),
            Bottleneck::Latency => json!({"kind": "latency"}),
            Bottleneck::None => json!({"kind": "none"}),
        };
        let mut v = json!({
            "gpus": self.cluster.gpu_names(&a.choice.allocation),
            "predicted_busbw_gb_per_s": round(a.choice.prediction.busbw_gb_per_s),
            "std_gb_per_s": round(a.choice.prediction.std_gb_per_s),
            "split": a.choice.allocation.split(),
            "search": a.search,
            "pods": a.pods.iter().map(|p| self.cluster.gpu_names(&Allocation::new([*p]))).collect::<Vec<_>>(),
            "rank_order": a.rank_order.iter().map(|g| self.cluster.gpu_name(*g)).collect::<Vec<_>>(),
            "contention": self.contention(),
            "model": self.model.kind(),
            "collective": self.model.collective(),
            "size_bytes": self.request.size.0,
            "evaluations": a.evaluations,
            "elapsed_us": (self.elapsed.as_secs_f64() * 1e6).round(),
            "bottleneck": bottleneck,
            "packed": a.packed.as_ref().map(|p| self.scored(p)),
            "worth_measuring": self.worth_measuring(),
            "runner_ups": a.runner_ups.iter().map(|s| self.scored(s)).collect::<Vec<_>>(),
        });
        let Some(map) = v.as_object_mut() else { return v };
        if let Some(id) = id {
            map.insert("id".into(), id.clone());
        }
        if let Some(version) = self.nccl {
            let settings: Vec<Value> = self.settings().iter().map(Advice::json).collect();
            map.insert("nccl".into(), json!({"release": version, "settings": settings}));
        }
        v
    }
}
