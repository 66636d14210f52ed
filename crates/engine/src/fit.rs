//! From readings to a model.

use crate::error::EngineError;
use crate::hold::Engine;
use predict::{BandwidthModel, Correction, FitOptions, Kind};
use serde::{Deserialize, Serialize};
use store::Source;
use topology::{Bytes, Collective};

/// Fits a model to all usable readings. The engine uses it from then on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FitRequest {
    /// Kind of model; none: `gp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The collective; none: the one that the store has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collective: Option<Collective>,
    /// Of kinds that draw numbers at random.
    #[serde(default)]
    pub seed: u64,
}

/// What was fitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FitAnswer {
    /// Kind of the model.
    pub kind: String,
    /// The collective.
    pub collective: Collective,
    /// The sizes, ascending.
    pub sizes_bytes: Vec<Bytes>,
    /// Readings of single hosts.
    pub intra_readings: usize,
    /// Distinct readings of several hosts.
    pub multi_host_readings: usize,
    /// Readings left out: contended, or of another collective.
    pub left_out: usize,
    /// Readings of several hosts that the process distrusts.
    pub distrusted: usize,
    /// Subsets of single hosts whose reading lies outside their class.
    pub intra_suspects: usize,
    /// Simulated readings among them.
    pub simulated_readings: usize,
    /// Relative deviation of repeated measurements.
    pub repeat_noise: f64,
    /// Evaluations of the fit.
    pub evaluations: usize,
    /// Seed.
    pub seed: u64,
    /// Parameters of a network.
    pub parameters: Option<usize>,
    /// Their bytes.
    pub parameter_bytes: Option<usize>,
    /// Epochs of every training.
    pub epochs: Vec<usize>,
    /// Epoch whose parameters were kept, from 0.
    pub best_epochs: Vec<usize>,
}

impl Engine {
    /// Fits a model to all usable readings, and uses and keeps it from then on. Pure but for that: the same readings give the same model.
    ///
    /// # Errors
    /// An unknown kind; no readings, or none that the kind can use.
    pub fn fit(&self, r: &FitRequest) -> Result<FitAnswer, EngineError> {
        let name = r.kind.as_deref().unwrap_or("gp");
        let kind = self.kinds.by_name(name).ok_or_else(|| {
            let (name, kinds) = (name.chars().take(60).collect::<String>(), self.kinds.names());
            let message = format!("`{name}` is no kind of model; known are {kinds}");
            EngineError::BadRequest { code: "unknown_kind", message }
        })?;
        let _alone = self.learning();
        let readings = match self.usable_readings() {
            Err(EngineError::Missing(_)) if kind == Kind::Nccl => Vec::new(),
            other => other?,
        };
        let options = FitOptions { collective: r.collective, ..FitOptions::of(kind).seed(r.seed) };
        let (model, report) = predict::fit(&self.cluster, &readings, &options)?;
        // A request that stored readings and was killed before it taught them: the model has them now, and its repetition teaches nothing.
        if let Ok(mut store) = self.store() {
            store.mark_all_taught()?;
        }
        let model = self.replace_model(model)?;
        let network = match model.correction() {
            Correction::Learned(l) => Some((l.parameter_count(), l.parameter_bytes())),
            _ => None,
        };
        Ok(FitAnswer {
            kind: model.kind().into(),
            collective: model.collective(),
            sizes_bytes: model.sizes(),
            intra_readings: report.intra_readings,
            multi_host_readings: report.multi_host_readings,
            left_out: report.left_out,
            distrusted: report.distrusted,
            intra_suspects: report.intra_suspects,
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
        })
    }
}
