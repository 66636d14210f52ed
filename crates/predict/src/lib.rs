//! Predicts the bandwidth of any allocation: physics at learned rates, corrected by Gaussian processes.
//!
//! [`fit`] makes a [`Model`] from measurements; searches use it through [`BandwidthModel`]. The shipped kinds are the
//! analytic bound with an offset, Gaussian processes, and NCCL's own decisions ([`Kind`]). Other crates add kinds as a
//! [`Learner`] and register them in [`ModelKinds`].

pub mod accuracy;
pub mod bound;
mod calibrate;
mod committee;
mod features;
mod file;
mod fit;
pub mod gp;
mod intra;
mod kind;
mod learned;
mod model;
mod names;
mod nccl;
mod rates;
mod shares;
mod sizes;
mod slow_parts;
mod stop;
mod uneven;

pub use committee::Committee;
pub use features::{FEATURES_MAX, Row};
pub use file::{FILE_BYTES_MAX, SIZES_MAX};
pub use fit::{
    AGE_MAX_S, ALLOCATIONS_MAX, FitError, FitOptions, FitReport, REPEAT_NOISE_DEFAULT, REPETITIONS_MAX, fit,
    slow_shared_parts,
};
pub use intra::{HostReadings, IntraTables, equivalent};
pub use kind::{Kind, KindNameTaken, ModelKinds};
pub use learned::{LearnedModel, Learner, LearnerData, LoadLearned, ReadingsOfSize, TrainingRun};
pub use model::{
    BandwidthModel, BatchEvaluator, Correction, Evaluator, Model, Oracle, Prediction, SizeTables, host_weights,
};
pub use rates::{LearnedRates, Part, RatedCluster, SLOW_PARTS_MAX, SlowPart, TierRates};
pub use shares::{Candidates, HostShare, HostShareTable};
pub use stop::Stop;
