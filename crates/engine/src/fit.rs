//! Fits a model to readings.

use crate::error::EngineError;
use crate::hold::Engine;
use crate::slow_parts::SlowPartAnswer;
use predict::{BandwidthModel, Correction, FitOptions, Kind, Model, Stop, TierRates};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use store::{Measurement, Source};
use topology::{Bytes, Collective};

/// Fits a model to all usable readings. The engine then uses this model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FitRequest {
    /// Kind of model; none: `gp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The collective; none: the only one in the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::collective")]
    pub collective: Option<Collective>,
    /// Random seed (only for kinds of model that use random numbers).
    #[serde(default)]
    pub seed: u64,
}

/// The result of a fit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FitAnswer {
    /// Kind of the model.
    pub kind: String,
    /// The collective.
    #[schemars(schema_with = "crate::schema::collective")]
    pub collective: Collective,
    /// The sizes, ascending.
    pub sizes_bytes: Vec<Bytes>,
    /// Number of readings of single hosts.
    pub intra_readings: usize,
    /// Number of distinct readings of several hosts.
    pub multi_host_readings: usize,
    /// Number of readings left out: contended, or of another collective.
    pub left_out: usize,
    /// Number of readings of several hosts that the Gaussian process gives less weight.
    pub distrusted: usize,
    /// Number of subsets of single hosts whose reading deviates far from comparable subsets.
    pub intra_suspects: usize,
    /// Number of distinct readings of several hosts beyond the limit: others of the same splits stand for them.
    pub not_chosen: usize,
    /// Number of repeated readings that newer ones of the same GPUs replace.
    pub replaced: usize,
    /// Parts of the network that the readings show to be slower than their kind. The model predicts with them.
    pub slow_parts: Vec<SlowPartAnswer>,
    /// By host type: factor of the NICs' line rates in the cluster file, where the readings show others.
    pub nic_factors: BTreeMap<String, f64>,
    /// By tier: what the readings show of its uplinks, and of flows that cross it.
    #[schemars(with = "BTreeMap<String, BTreeMap<String, f64>>")]
    pub tiers: BTreeMap<String, TierRates>,
    /// Number of simulated readings among them.
    pub simulated_readings: usize,
    /// Relative standard deviation of repeated measurements.
    pub repeat_noise: f64,
    /// Number of evaluations of the objective function.
    pub evaluations: usize,
    /// Random seed.
    pub seed: u64,
    /// Number of parameters of a network.
    pub parameters: Option<usize>,
    /// Size of the parameters, bytes.
    pub parameter_bytes: Option<usize>,
    /// Number of epochs of every training.
    pub epochs: Vec<usize>,
    /// Epoch whose parameters were chosen, from 0.
    pub best_epochs: Vec<usize>,
}

impl Engine {
    /// Fits a model to all usable readings, then uses and saves it. The same readings give the same model.
    ///
    /// # Errors
    /// An unknown kind; no readings, or none that the kind can use.
    pub fn fit(&self, r: &FitRequest) -> Result<FitAnswer, EngineError> {
        let kind = self.kind_of(r)?;
        let _alone = self.learning();
        let readings = match self.usable_readings() {
            Err(EngineError::Missing(_)) if kind == Kind::Nccl => Vec::new(),
            other => other?,
        };
        let (model, answer) = self.fitted(kind, r, &readings, Stop::default())?;
        // A killed request may have stored readings without teaching them: the new model has them, so a repetition must teach nothing.
        if let Ok(mut store) = self.store() {
            store.mark_all_taught()?;
        }
        self.use_uncompared(model)?;
        Ok(answer)
    }

    /// The kind of model that a request names.
    pub(crate) fn kind_of(&self, r: &FitRequest) -> Result<Kind<'_>, EngineError> {
        let name = r.kind.as_deref().unwrap_or("gp");
        self.kinds.by_name(name).ok_or_else(|| {
            let (name, kinds) = (name.chars().take(60).collect::<String>(), self.kinds.names());
            let message = format!("`{name}` is not a kind of model; known are {kinds}");
            EngineError::BadRequest { code: "unknown_kind", message }
        })
    }

    /// A model of these readings, which the engine does not use yet.
    pub(crate) fn fitted(
        &self,
        kind: Kind<'_>,
        r: &FitRequest,
        readings: &[Measurement],
        stop: Stop<'_>,
    ) -> Result<(Model, FitAnswer), EngineError> {
        let options = FitOptions { collective: r.collective, stop, ..FitOptions::of(kind).seed(r.seed) };
        let (model, report) = predict::fit(&self.cluster, readings, &options)?;
        let network = match model.correction() {
            Correction::Learned(l) => Some((l.parameter_count(), l.parameter_bytes())),
            _ => None,
        };
        let answer = FitAnswer {
            kind: model.kind().into(),
            collective: model.collective(),
            sizes_bytes: model.sizes(),
            intra_readings: report.intra_readings,
            multi_host_readings: report.multi_host_readings,
            left_out: report.left_out,
            distrusted: report.distrusted,
            intra_suspects: report.intra_suspects,
            not_chosen: report.multi_host_not_chosen,
            replaced: report.replaced,
            slow_parts: report.slow_parts.iter().map(|s| SlowPartAnswer::new(&self.cluster, s)).collect(),
            nic_factors: model.rates().nics.clone(),
            tiers: model.rates().tiers.clone(),
            simulated_readings: readings.iter().filter(|m| m.source == Source::Simulated).count(),
            repeat_noise: model.repeat_noise(),
            evaluations: match model.correction() {
                Correction::Gp(g) => g.evaluations(),
                Correction::Offset { .. } => 1,
                Correction::Learned(_) => report.training.iter().map(|p| p.epochs).sum(),
            },
            seed: r.seed,
            parameters: network.map(|n| n.0),
            parameter_bytes: network.map(|n| n.1),
            epochs: report.training.iter().map(|p| p.epochs).collect(),
            best_epochs: report.training.iter().map(|p| p.best_epoch).collect(),
        };
        Ok((model, answer))
    }
}
