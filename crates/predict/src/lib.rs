//! What any allocation will get: bandwidth models and sampling designs.

pub mod accuracy;
pub mod bound;
pub mod committee;
pub mod doctor;
pub mod features;
pub mod file;
pub mod fit;
pub mod gp;
pub mod intra;
pub mod lbfgs;
pub mod linalg;
pub mod model;
pub mod nccl;
pub mod net;
pub mod parts;
mod tune;

pub use fit::{FitError, Kind, Report, fit, fit_any, fit_with};
pub use intra::IntraTables;
pub use model::{BandwidthModel, Correction, Model, Oracle, Prediction};
pub use parts::{Candidates, Part, PartTable};
