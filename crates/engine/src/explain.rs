//! The predicted bandwidth of given GPUs, and its reasons.

use crate::answer::{BottleneckAnswer, ScoredAnswer, SuspectTouched, bottleneck, outside_validated, round};
use crate::avoid::Suspicion;
use crate::error::EngineError;
use crate::gpus::GpuList;
use crate::hold::Engine;
use crate::place::check_size;
use diagnose::Effects;
use predict::BandwidthModel;
use serde::{Deserialize, Serialize};
use topology::{Bytes, Collective};

/// Asks for the predicted bandwidth of GPUs or of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExplainRequest {
    /// The GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Vec<String>>,
    /// A job of the state; replaces `gpus`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Message size, bytes; none: the largest size of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
}

/// The predicted bandwidth, and its reasons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ExplainAnswer {
    /// The GPUs, and their predicted bandwidth without other jobs.
    #[serde(flatten)]
    pub expected: ScoredAnswer,
    /// Kind of the model.
    pub model: String,
    /// Collective of the prediction.
    #[schemars(schema_with = "crate::schema::collective")]
    pub collective: Collective,
    /// Message size.
    pub size_bytes: u64,
    /// The bottleneck.
    pub bottleneck: BottleneckAnswer,
    /// Suspected components that they use, most probable first.
    pub suspects_touched: Vec<SuspectTouched>,
    /// Expected bandwidth, weighted by the probabilities of the suspects, GB/s.
    pub expected_with_suspects_gb_per_s: f64,
    /// Why the prediction is extrapolated, as in [`crate::PlaceAnswer`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outside_validated: Vec<String>,
}

impl Engine {
    /// Predicts the bandwidth of given GPUs and lists its reasons.
    ///
    /// # Errors
    /// No model; unknown GPUs; a job that holds no GPUs.
    pub fn explain(&self, r: &ExplainRequest) -> Result<ExplainAnswer, EngineError> {
        let model = self.model()?;
        let snapshot = if self.has_state() { Some(self.snapshot()?) } else { None };
        let gpus = match (&r.gpus, &r.job) {
            (Some(gpus), None) => self.gpus(gpus)?,
            (None, Some(job)) => self.observed_job(job, None)?.gpus,
            _ => return Err(EngineError::bad("either `gpus` or `job` was expected")),
        };
        let size = r.size_bytes.map_or_else(|| self.default_size(), Bytes);
        check_size(size)?;
        let request = place::Request::new(gpus.gpu_count(), gpus.clone(), size);
        request.check(&self.cluster)?;
        let p = model.predict_allocation(size, &gpus);
        let suspicion = Suspicion::new(&self.cluster, snapshot.as_ref().map_or(&[][..], |s| &s.suspects));
        let left = suspicion.share_left(&Effects::new(&self.cluster, &model), &gpus, size);
        let limit = place::bottleneck(&self.cluster, &*model, &request, &gpus);
        Ok(ExplainAnswer {
            expected: ScoredAnswer {
                split: gpus.split(),
                gpus: GpuList::new(&self.cluster, &gpus),
                predicted_busbw_gb_per_s: round(p.busbw_gb_per_s),
                std_gb_per_s: round(p.std_gb_per_s),
                score_gb_per_s: None,
            },
            model: model.kind().into(),
            collective: model.collective(),
            size_bytes: size.0,
            bottleneck: bottleneck(&self.cluster, &limit),
            suspects_touched: suspicion.touched(&gpus),
            expected_with_suspects_gb_per_s: round(p.busbw_gb_per_s * left),
            outside_validated: outside_validated(&self.cluster, &model, &gpus, size, p.busbw_gb_per_s),
        })
    }
}
