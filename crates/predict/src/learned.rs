//! The interface to models of multi-host allocations in other crates: fit, predict, save and load.
//!
//! [`crate::Model`] predicts single hosts from its intra tables and passes all other allocations to a [`LearnedModel`],
//! which predicts bandwidth without the bound. A [`Learner`] fits one. [`crate::ModelKinds`] holds the learners and the
//! loaders of their file forms by name.

use crate::model::SizeTables;
use crate::shares::{Candidates, HostShareTable};
use crate::stop::Stop;
use std::any::Any;
use std::fmt::Debug;
use topology::{Allocation, Bytes, Cluster};

/// Multi-host readings at one size: allocation and busbw in GB/s, repeated ones merged.
pub type ReadingsOfSize = (Bytes, Vec<(Allocation, f64)>);

/// The input of a learner.
#[derive(Clone, Copy, Debug)]
pub struct LearnerData<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// Intra tables by size, ascending.
    pub tables: &'a [SizeTables],
    /// Multi-host readings by size, ascending.
    pub readings: &'a [ReadingsOfSize],
    /// Ends the fit: a learner then returns early, with any result.
    pub stop: Stop<'a>,
}

/// One training run of a learner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrainingRun {
    /// Number of epochs run.
    pub epochs: usize,
    /// Epoch (counted from 0) whose parameters were kept.
    pub best_epoch: usize,
}

/// Fits a [`LearnedModel`].
pub trait Learner: Debug + Send + Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;
    /// One-line description.
    fn about(&self) -> &'static str;
    /// Minimum number of readings at one size for learning.
    fn readings_min(&self) -> usize;
    /// Fits a model and returns it with one [`TrainingRun`] per size. None if no size has [`Learner::readings_min`]
    /// readings. The same data and seed give the same model.
    fn fit(&self, data: LearnerData, seed: u64) -> Option<(Box<dyn LearnedModel>, Vec<TrainingRun>)>;
}

/// Predicts the bandwidth of multi-host allocations.
pub trait LearnedModel: Any + Debug + Send + Sync {
    /// The name of the model's kind.
    fn name(&self) -> &'static str;
    /// Predictions in GB/s of all candidates, in order, as one batch; 0 for single-host candidates. `out` is
    /// overwritten. A model that was learned at several sizes uses the nearest size.
    fn means(&self, size: Bytes, candidates: &Candidates, out: &mut Vec<f64>);
    /// Relative standard deviation of a prediction.
    fn deviation(&self, size: Bytes) -> f64;
    /// Learns new multi-host readings and keeps the old ones. Returns `false` and learns nothing if the model cannot
    /// learn them.
    fn learn(&mut self, table: &HostShareTable, size: Bytes, new: &[(Allocation, f64)], seed: u64) -> bool;
    /// Number of parameters per size.
    fn parameter_count(&self) -> usize;
    /// Memory of the parameters of all sizes, bytes.
    fn parameter_bytes(&self) -> usize;
    /// The name of the file form, under which [`crate::ModelKinds`] finds the loader for the text of
    /// [`LearnedModel::save`].
    fn form(&self) -> &'static str;
    /// The model as JSON text.
    fn save(&self) -> Result<String, String>;
    /// A copy.
    fn boxed_clone(&self) -> Box<dyn LearnedModel>;
}

impl Clone for Box<dyn LearnedModel> {
    fn clone(&self) -> Self {
        (**self).boxed_clone()
    }
}

/// Loads a learned model for a cluster from JSON text and checks every field that predictions depend on. The error
/// message describes the invalid field.
pub type LoadLearned = fn(text: &str, cluster: &Cluster) -> Result<Box<dyn LearnedModel>, String>;
