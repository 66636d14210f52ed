//! An answer of the engine as JSON; [`super::text`] prints sentences, [`super::launch`] Slurm options and hostfiles.

use crate::advice_json::advice_json;
use crate::brief::gb;
use engine::{AvoidedSuspects, GpuList, HostGpus, PlaceAnswer};
use nccl_model::{Advice, by_model};
use serde_json::{Value, json};
use std::time::Duration;
use topology::nccl::Version;
use topology::{Bytes, Cluster, GpuMask, HostId};

/// An answer with everything that its printed forms need.
pub struct Reply<'a> {
    pub cluster: &'a Cluster,
    pub answer: &'a PlaceAnswer,
    /// Time that the answer took.
    pub elapsed: Duration,
    /// NCCL release of the job, if settings are requested.
    pub nccl: Option<Version>,
}

/// Maximum number of NCCL settings in an answer.
const SETTINGS: usize = 3;
/// Maximum number of suspects in a note.
const NAMED_MAX: usize = 4;

impl Reply<'_> {
    /// The hosts in rank order with their GPUs in rank order.
    pub fn hosts(&self) -> &[HostGpus] {
        &self.answer.rank_order.0
    }

    /// Hosts and GPUs of a list, in the list's order.
    pub fn masks(&self, gpus: &GpuList) -> Vec<(HostId, GpuMask)> {
        let index = self.cluster.host_index();
        gpus.0.iter().filter_map(|h| Some((*index.get(h.host.as_str())?, mask_of(&h.gpus)))).collect()
    }

    /// NCCL settings worth trying on the chosen GPUs, best first.
    pub fn settings(&self) -> Vec<Advice> {
        let Some(version) = self.nccl else { return Vec::new() };
        let order = self.masks(&self.answer.rank_order);
        let mut all = by_model(version, self.cluster, &order, self.answer.collective, self.answer.size_bytes);
        all.truncate(SETTINGS);
        all
    }

    /// Notes printed next to the answer.
    pub fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.answer.avoided.iter().map(avoided).collect();
        if let Some(c) = self.answer.committed.as_ref().filter(|c| c.repeated) {
            notes.push(format!("job {} was placed before by the same request: this is the answer of then", c.job));
        }
        notes
    }

    /// Message size of the request.
    pub fn size(&self) -> Bytes {
        Bytes(self.answer.size_bytes)
    }

    /// The answer as one JSON object; `id` is that of the request.
    pub fn json(&self, id: Option<&Value>) -> Value {
        let mut v = json!(self.answer);
        let Some(map) = v.as_object_mut() else { return v };
        map.insert("elapsed_us".into(), json!((self.elapsed.as_secs_f64() * 1e6).round()));
        if let Some(id) = id {
            map.insert("id".into(), id.clone());
        }
        if let Some(version) = self.nccl {
            let settings: Vec<Value> = self.settings().iter().map(advice_json).collect();
            map.insert("nccl".into(), json!({"release": version, "settings": settings}));
        }
        v
    }
}

/// GPU indices as a mask.
pub fn mask_of(gpus: &[u8]) -> GpuMask {
    GpuMask::from_indices(gpus.iter().map(|g| usize::from(*g)))
}

fn avoided(a: &AvoidedSuspects) -> String {
    let named = a.suspects.iter().take(NAMED_MAX).map(|s| format!("{} ({:.0} %)", s.component, 100.0 * s.probability));
    let named = named.collect::<Vec<_>>().join(", ");
    let more = a.suspects.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(
        "avoided {named}{more}: first choice {} GB/s, {} GB/s expected with the suspected defects",
        gb(a.predicted_gb_per_s),
        gb(a.expected_with_suspects_gb_per_s)
    )
}
