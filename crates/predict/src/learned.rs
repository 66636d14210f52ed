//! The interface to models of multi-host allocations from other crates: fit, predict, save and load.
//!
//! [`crate::Model`] answers for single hosts from its intra tables and hands everything else to a [`LearnedModel`], which predicts
//! bandwidth by itself, without the bound. A [`Learner`] makes one; [`crate::ModelKinds`] holds learners and the forms of their files by name.

use crate::model::SizeTables;
use crate::shares::{Candidates, HostShareTable};
use std::any::Any;
use std::fmt::Debug;
use topology::{Allocation, Bytes, Cluster};

/// Readings of several hosts at one size: allocation and busbw in GB/s, repeated ones merged.
pub type ReadingsOfSize = (Bytes, Vec<(Allocation, f64)>);

/// The data of a learner.
#[derive(Clone, Copy, Debug)]
pub struct LearnerData<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// Intra tables by size, ascending.
    pub tables: &'a [SizeTables],
    /// Readings of several hosts by size, ascending.
    pub readings: &'a [ReadingsOfSize],
}

/// One training run of a learner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrainingRun {
    /// Epochs run.
    pub epochs: usize,
    /// Epoch (from 0) whose parameters were kept.
    pub best_epoch: usize,
}

/// Fits a [`LearnedModel`].
pub trait Learner: Debug + Send + Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;
    /// One line of description.
    fn about(&self) -> &'static str;
    /// Fewest readings of one size that it learns from.
    fn readings_min(&self) -> usize;
    /// Fits a model, and returns it with one [`TrainingRun`] per size. None if no size has [`Learner::readings_min`] readings. The same data and seed give the
    /// same model.
    fn fit(&self, data: LearnerData, seed: u64) -> Option<(Box<dyn LearnedModel>, Vec<TrainingRun>)>;
}

/// Predicts the bandwidth of allocations that span hosts.
pub trait LearnedModel: Any + Debug + Send + Sync {
    /// The name of its kind.
    fn name(&self) -> &'static str;
    /// Predictions in GB/s of all candidates, in order, in one batch; 0 for those on one host. `out` is overwritten. A model that was
    /// learned at several sizes uses the nearest.
    fn means(&self, size: Bytes, candidates: &Candidates, out: &mut Vec<f64>);
    /// Relative deviation of a prediction.
    fn deviation(&self, size: Bytes) -> f64;
    /// Learns new readings of several hosts without forgetting the old ones. `false`, and nothing learned, where it cannot.
    fn learn(&mut self, table: &HostShareTable, size: Bytes, new: &[(Allocation, f64)], seed: u64) -> bool;
    /// Number of parameters of one size.
    fn parameter_count(&self) -> usize;
    /// Memory of the parameters of all sizes, bytes.
    fn parameter_bytes(&self) -> usize;
    /// The form of its files: a name under which [`crate::ModelKinds`] knows how to read [`LearnedModel::save`]'s text.
    fn form(&self) -> &'static str;
    /// As JSON text.
    fn save(&self) -> Result<String, String>;
    /// A copy.
    fn boxed_clone(&self) -> Box<dyn LearnedModel>;
}

impl Clone for Box<dyn LearnedModel> {
    fn clone(&self) -> Self {
        (**self).boxed_clone()
    }
}

/// Reads a learned model for a cluster from the JSON text of its form, and checks all that a prediction relies on. The message says what is
/// wrong.
pub type LoadLearned = fn(text: &str, cluster: &Cluster) -> Result<Box<dyn LearnedModel>, String>;
