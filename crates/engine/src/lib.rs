//! The loop as a library: place, commit, observe, learn, diagnose.
//!
//! An [`Engine`] has a cluster and optionally the operator's state, the store of readings and a model. It answers typed requests with
//! typed answers; both are serde types, and [`Engine::handle`] accepts every request. Text, JSON and REST are views of an answer, which
//! contains the decision and its reasons. The engine does not print, read a clock or use HTTP: times are arguments.
//!
//! Rules of every request:
//! - A search runs on a snapshot of the state, outside of any lock. The commit checks that the basis of the choice is unchanged; else the
//!   engine decides again ([`ATTEMPTS_FREE`], [`ATTEMPTS_MAX`]).
//! - A write takes an idempotency key: under one key it is done once, and every repetition gets the same answer ([`store::once`]).
//! - An error is an [`EngineError`] with a stable code, a message and a remedy. The door derives exit codes and status codes from its kind.
//!
//! Threads can share an engine: it locks the state and the store for single reads and writes, never for a search, a fit or a diagnosis.
//! Memory: a snapshot (about 100 bytes per held GPU), the model, and for a diagnosis at most [`READINGS_MAX`] readings of about 400 bytes
//! each, plus 8 bytes per host of a reading.

#![forbid(unsafe_code)]

mod answer;
mod avoid;
mod commit;
mod diagnose;
mod error;
mod events;
mod explain;
mod fit;
mod gpus;
mod handle;
mod hold;
mod hosts;
mod jobs;
mod kept_models;
mod lease;
mod model_file;
mod models;
mod network;
mod observe;
mod place;
mod plausible;
mod predict;
mod readings;
mod request;
mod sampling;
mod schema;
mod slow_parts;
mod tasks;
mod teach;
mod watch;

pub use ::diagnose::rail_sweep;
pub use answer::{
    AllocationCost, AvoidedSuspects, BottleneckAnswer, CommittedJob, ContentionAnswer, GroupAnswer, NeighbourEffect,
    PlaceAnswer, PriceAnswer, ScoredAnswer, SuspectTouched, SwitchesSpanned, extrapolation_note,
};
pub use commit::{ATTEMPTS_FREE, ATTEMPTS_MAX};
pub use diagnose::{
    CandidateAnswer, CostAnswer, DefectAnswer, DiagnoseAnswer, DiagnoseRequest, HostAnswer, StrayAnswer, suspects_of,
};
pub use error::{EngineError, ErrorForm, ErrorKind};
pub use events::{EventsAnswer, EventsRequest};
pub use explain::{ExplainAnswer, ExplainRequest};
pub use fit::{FitAnswer, FitRequest};
pub use gpus::{GpuList, HostGpus};
pub use handle::{Answer, Request};
pub use hold::{Builder, Engine, ModelKeeper, READINGS_MAX};
pub use hosts::{GpuStatus, HostStatus, HostsAnswer, HostsRequest, ModelAnswer, ModelRequest};
pub use jobs::{
    AllocateAnswer, AllocateRequest, DrainAnswer, DrainRequest, DrainedAnswer, JobAnswer, ReleaseAnswer,
    ReleaseRequest, ReleasedJob, StatusAnswer, StatusRequest, SuspectAnswer, UndrainAnswer, UndrainRequest,
};
pub use kept_models::rename_kept_models;
pub use lease::{JobRequest, RenewRequest};
pub use model_file::ModelFile;
pub use models::{Compared, MODELS_KEPT_MAX, ModelVersion, Progress, PromoteRequest, RefitAnswer, STEPS, VersionState};
pub use network::network_changes;
pub use observe::{ObserveAnswer, ObserveRequest, ObservedJob, ReadingAnswer, ReadingIn};
pub use plausible::{
    ABOVE_LINKS_FACTOR, BELOW_PHYSICS_SHARE, IMPOSSIBLE_FACTOR, above_links, below_physics, check as check_plausible,
    check_time,
};
pub use readings::{
    CorrectRequest, ReadingChangeAnswer, ReadingsAnswer, ReadingsRequest, StoredReadingAnswer, WithdrawRequest,
};
pub use request::{ConstraintsIn, GroupIn, JobIn, MeasuredIn, PlaceQuery, PlaceRequest};
pub use sampling::UncertaintySampler;
pub use slow_parts::SlowPartAnswer;
pub use teach::{LearnAnswer, LearnRequest, NotLearned, Taught};
