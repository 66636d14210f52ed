//! The networks and LinearBW as kinds of models.

use super::saved::{self, FORM};
use super::{CONTINUAL, Flavour, Guard, LearnedNetwork, LearningTarget, Training};
use crate::network::learned::READINGS_MIN;
use predict::{Candidates, HostShareTable, KindNameTaken, LearnedModel, Learner, LearnerData, ModelKinds, TrainingRun};
use topology::{Allocation, Bytes};

/// A network, or LinearBW, with the settings of its training.
#[derive(Clone, Copy, Debug)]
pub struct NetworkKind {
    /// Kind of the predictor.
    pub what: LearningTarget,
    /// Settings of the training.
    pub training: Training,
}

/// BandPilot's Transformer: reads intra bandwidth and GPU count of every host.
pub static TRANSFORMER: NetworkKind = NetworkKind::published(LearningTarget::Network(Flavour::Transformer));
/// LiteGD's Transformer: reads intra bandwidth and GPU mask of every host.
pub static TRANSFORMER_LITEGD: NetworkKind = NetworkKind::published(LearningTarget::Network(Flavour::Litegd));
/// The ablation: reads raw GPU ids.
pub static TRANSFORMER_NAIVE: NetworkKind = NetworkKind::published(LearningTarget::Network(Flavour::Naive));
/// LinearBW: a linear function of ten features of the hosts.
pub static LINEAR: NetworkKind = NetworkKind::published(LearningTarget::Line);

impl NetworkKind {
    /// The kind with the published training settings.
    pub const fn published(what: LearningTarget) -> Self {
        NetworkKind { what, training: Training::PUBLISHED }
    }
}

/// Adds the networks and LinearBW to the kinds of models that a program fits and reads.
pub fn register(kinds: &mut ModelKinds) -> Result<(), KindNameTaken> {
    for kind in [&TRANSFORMER, &TRANSFORMER_LITEGD, &TRANSFORMER_NAIVE, &LINEAR] {
        kinds.add(kind)?;
    }
    kinds.add_form(FORM, saved::load)
}

impl Learner for NetworkKind {
    fn name(&self) -> &'static str {
        self.what.name()
    }
    fn about(&self) -> &'static str {
        match self.what {
            LearningTarget::Network(Flavour::Transformer) => {
                "BandPilot's Transformer: intra bandwidth and GPU count of every host (takes seconds)"
            }
            LearningTarget::Network(Flavour::Litegd) => {
                "LiteGD's Transformer: intra bandwidth and GPU mask of every host (takes seconds)"
            }
            LearningTarget::Network(Flavour::Naive) => {
                "A Transformer that sees raw GPU ids, to compare with (takes seconds)"
            }
            LearningTarget::Line => "A line on ten features of the hosts, to compare with",
        }
    }
    fn readings_min(&self) -> usize {
        READINGS_MIN
    }
    fn fit(&self, data: LearnerData, seed: u64) -> Option<(Box<dyn LearnedModel>, Vec<TrainingRun>)> {
        let (learned, progress) = LearnedNetwork::fit(self.what, data, &self.training, seed)?;
        let run = |p: super::TrainingProgress| TrainingRun { epochs: p.epochs, best_epoch: p.best_epoch };
        Some((Box::new(learned), progress.into_iter().map(run).collect()))
    }
}

impl LearnedModel for LearnedNetwork {
    fn name(&self) -> &'static str {
        self.what.name()
    }
    fn means(&self, size: Bytes, candidates: &Candidates, out: &mut Vec<f64>) {
        LearnedNetwork::means(self, size, candidates, out);
    }
    fn deviation(&self, size: Bytes) -> f64 {
        LearnedNetwork::deviation(self, size)
    }
    fn learn(&mut self, table: &HostShareTable, size: Bytes, new: &[(Allocation, f64)], seed: u64) -> bool {
        LearnedNetwork::learn(self, table, size, new, Guard::Published, &CONTINUAL, seed).is_some()
    }
    fn parameter_count(&self) -> usize {
        LearnedNetwork::parameter_count(self)
    }
    fn parameter_bytes(&self) -> usize {
        LearnedNetwork::parameter_bytes(self)
    }
    fn form(&self) -> &'static str {
        FORM
    }
    fn save(&self) -> Result<String, String> {
        serde_json::to_string(&self.saved()).map_err(|e| e.to_string())
    }
    fn boxed_clone(&self) -> Box<dyn LearnedModel> {
        Box::new(self.clone())
    }
}
