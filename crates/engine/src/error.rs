//! [`EngineError`]: everything that can go wrong, with a stable code.

use place::Refusal;
use place::read::Bad;
use predict::FitError;
use serde::{Deserialize, Serialize, Serializer};
use store::{StateError, StoreError};

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The request cannot be read.
    #[error("{message}")]
    BadRequest {
        /// Stable, for scripts.
        code: &'static str,
        /// What is wrong, and where.
        message: String,
    },
    /// No placement satisfies the request.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The state refused or failed.
    #[error(transparent)]
    State(#[from] StateError),
    /// The store refused or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Nothing could be fitted.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// The engine was built without something that the request needs.
    #[error("this request needs a {0}, and none is loaded")]
    Missing(&'static str),
    /// The model is of other hosts.
    #[error("the model was fitted on cluster `{fitted}`, whose hosts are not those of `{given}`")]
    OtherModel {
        /// Cluster of the model.
        fitted: String,
        /// Cluster of the engine.
        given: String,
    },
    /// Readings that should decide are of GPUs that are no candidate.
    #[error("{gpus} is not among the candidates of this request")]
    NotACandidate {
        /// The GPUs.
        gpus: String,
    },
    /// A job of one GPU communicates with no other.
    #[error("job `{job}` has one GPU: it has no collective bandwidth to record")]
    OneGpu {
        /// The job.
        job: String,
    },
    /// No GPUs are named and no job holds any.
    #[error("no job `{job}` holds GPUs; {known}. A job that has ended is named with --gpus and --cluster")]
    NotHeld {
        /// The job.
        job: String,
        /// Which jobs do, in words.
        known: String,
    },
    /// A reading says more than the links allow.
    #[error(
        "{busbw_gb_per_s} GB/s on {gpus} is impossible: the links allow about {bound_gb_per_s:.1} GB/s, and {} times that is the limit",
        crate::IMPOSSIBLE_FACTOR
    )]
    Impossible {
        /// The GPUs.
        gpus: String,
        /// What was read, GB/s.
        busbw_gb_per_s: f64,
        /// What the physics allows, GB/s.
        bound_gb_per_s: f64,
    },
    /// Others kept taking what was chosen.
    #[error("the state changed during each of {attempts} decisions: other clients took the chosen GPUs")]
    Conflict {
        /// How often it was decided.
        attempts: u32,
    },
    /// The model could not be kept.
    #[error("the readings are stored, but the model that learned them could not be saved: {0}")]
    ModelNotKept(String),
    /// An answer that was kept cannot be read.
    #[error("the kept answer to this request cannot be read: {0}")]
    KeptAnswer(String),
}

/// What a door makes of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The request is wrong, whatever the state: correct it. Exit code 2, status 400.
    Malformed,
    /// The request is fine and cannot be met as things stand. Exit code 1, status 409 or 422.
    Impossible,
    /// Another client was in the way: the same request may succeed at once. Exit code 1, status 503.
    Busy,
    /// A file or the machine failed. Exit code 2, status 500.
    Broken,
}

/// The form of an error in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorForm {
    /// Stable, for scripts.
    pub code: String,
    /// Malformed, impossible, busy or broken.
    pub kind: ErrorKind,
    /// For people.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

impl From<Bad> for EngineError {
    fn from(e: Bad) -> Self {
        EngineError::BadRequest { code: e.code, message: e.message }
    }
}

impl EngineError {
    /// A request that cannot be read.
    pub(crate) fn bad(message: impl std::fmt::Display) -> Self {
        Bad::new("bad_request", message).into()
    }

    /// Stable code for scripts.
    pub fn code(&self) -> &'static str {
        match self {
            EngineError::BadRequest { code, .. } => code,
            EngineError::Refused(e) => e.code(),
            EngineError::State(e) => state_code(e),
            EngineError::Store(e) => store_code(e),
            EngineError::Fit(_) => "cannot_fit",
            EngineError::Missing("model") => "no_model",
            EngineError::Missing("state") => "no_state",
            EngineError::Missing(_) => "no_store",
            EngineError::OtherModel { .. } => "other_cluster",
            EngineError::NotACandidate { .. } => "not_a_candidate",
            EngineError::OneGpu { .. } => "one_gpu",
            EngineError::NotHeld { .. } => "unknown_job",
            EngineError::Impossible { .. } => "impossible_reading",
            EngineError::Conflict { .. } => "conflict",
            EngineError::ModelNotKept(_) => "model_not_saved",
            EngineError::KeptAnswer(_) => "kept_answer",
        }
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            EngineError::Refused(e) if e.is_malformed() => ErrorKind::Malformed,
            EngineError::Refused(_) | EngineError::Fit(_) => ErrorKind::Impossible,
            EngineError::State(StateError::Busy(_)) | EngineError::Store(StoreError::Busy(_)) => ErrorKind::Busy,
            EngineError::State(StateError::Io { .. } | StateError::Damaged { .. })
            | EngineError::Store(StoreError::Io { .. } | StoreError::Damaged { .. }) => ErrorKind::Broken,
            EngineError::State(e) if e.is_refusal() => ErrorKind::Impossible,
            EngineError::Store(StoreError::Withdrawn { .. }) => ErrorKind::Impossible,
            EngineError::Conflict { .. } => ErrorKind::Busy,
            EngineError::ModelNotKept(_) | EngineError::KeptAnswer(_) => ErrorKind::Broken,
            _ => ErrorKind::Malformed,
        }
    }

    /// What to do about it, in one sentence.
    pub fn remedy(&self) -> &'static str {
        match self {
            EngineError::Impossible { .. } => {
                "check the unit (GB/s, not Gbit/s) and the GPUs; --force stores it anyway"
            }
            EngineError::Conflict { .. } => "send the request again",
            EngineError::Missing("model") => "fit a model and name its file",
            EngineError::Missing("state") => "make a state with `linkwise cluster init` and name its file",
            EngineError::Missing(_) => "name a store of readings",
            EngineError::OtherModel { .. } => "fit a model for this cluster",
            EngineError::NotACandidate { .. } => "measure the allocations under `worth_measuring` of the answer",
            EngineError::OneGpu { .. } => "record only jobs of two or more GPUs",
            EngineError::NotHeld { .. } => "name the job's GPUs, or a job that holds some",
            EngineError::ModelNotKept(_) => {
                "make room or grant the right to write; then send the request again only if it has a key, else fit the model again"
            }
            EngineError::KeptAnswer(_) => "send the request under a new key",
            EngineError::State(StateError::JobExists { .. }) => "release the job first, or choose another id",
            EngineError::State(StateError::KeyReused(_)) | EngineError::Store(StoreError::KeyReused(_)) => {
                "give every request a key of its own"
            }
            _ => match self.kind() {
                ErrorKind::Malformed => "correct the request as the message says",
                ErrorKind::Impossible => "change the request as the message says, or wait until more is free",
                ErrorKind::Busy => "send the request again in a moment",
                ErrorKind::Broken => "repair the file or the disk that the message names",
            },
        }
    }

    /// The message and, where the remedy is of this error alone, the remedy.
    pub fn with_remedy(&self) -> String {
        match self {
            EngineError::Impossible { .. }
            | EngineError::Conflict { .. }
            | EngineError::ModelNotKept(_)
            | EngineError::KeptAnswer(_) => format!("{self}; {}", self.remedy()),
            _ => self.to_string(),
        }
    }

    /// Its form in JSON.
    pub fn form(&self) -> ErrorForm {
        ErrorForm {
            code: self.code().into(),
            kind: self.kind(),
            message: self.to_string(),
            remedy: self.remedy().into(),
        }
    }
}

impl Serialize for EngineError {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.form().serialize(s)
    }
}

fn state_code(e: &StateError) -> &'static str {
    match e {
        StateError::Missing(_) => "no_state",
        StateError::Exists { .. } => "state_exists",
        StateError::NotAState { .. } => "not_a_state",
        StateError::Damaged { .. } => "damaged",
        StateError::Newer { .. } => "newer_schema",
        StateError::OtherCluster { .. } => "other_cluster",
        StateError::HostsChanged { .. } => "hosts_changed",
        StateError::ClusterChanged(_) => "cluster_changed",
        StateError::HostsHeld { .. } => "hosts_held",
        StateError::Busy(_) => "busy",
        StateError::Io { .. } => "io",
        StateError::Invalid(_) => "bad_request",
        StateError::UnknownJob { .. } => "unknown_job",
        StateError::JobExists { .. } => "job_exists",
        StateError::Held { .. } => "gpu_held",
        StateError::Drained { .. } => "gpu_drained",
        StateError::KeyReused(_) => "key_reused",
        StateError::TooManyJobs { .. } => "too_many_jobs",
    }
}

fn store_code(e: &StoreError) -> &'static str {
    match e {
        StoreError::Missing(_) => "no_store",
        StoreError::NotAStore { .. } => "not_a_store",
        StoreError::Damaged { .. } => "damaged",
        StoreError::Newer { .. } => "newer_schema",
        StoreError::OtherCluster { .. } => "other_cluster",
        StoreError::Busy(_) => "busy",
        StoreError::Invalid(_) => "bad_reading",
        StoreError::UnknownReading { .. } => "unknown_reading",
        StoreError::Withdrawn { .. } => "reading_withdrawn",
        StoreError::KeyReused(_) => "key_reused",
        StoreError::Io { .. } => "io",
    }
}
