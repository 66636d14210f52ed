//! [`EngineError`]: the errors of the engine, with stable codes.

use place::Refusal;
use place::read::Bad;
use predict::FitError;
use serde::{Deserialize, Serialize, Serializer};
use store::{StateError, StoreError};

/// The reason why a request was not answered.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The request cannot be read.
    #[error("{message}")]
    BadRequest {
        /// Stable code for scripts.
        code: &'static str,
        /// The mistake and its position.
        message: String,
    },
    /// No placement satisfies the request.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The state refused the request or failed.
    #[error(transparent)]
    State(#[from] StateError),
    /// The store refused the request or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No model could be fitted.
    #[error(transparent)]
    Fit(FitError),
    /// The engine was built without a part that the request needs.
    #[error("this request needs a {0}, and none is loaded")]
    Missing(&'static str),
    /// The model was fitted on other hosts.
    #[error("the model was fitted on {}", other_cluster(fitted, given))]
    OtherModel {
        /// Cluster of the model.
        fitted: String,
        /// Cluster of the engine.
        given: String,
    },
    /// The request has measurements of GPUs that are not a candidate.
    #[error("{gpus} is not among the candidates of this request")]
    NotACandidate {
        /// The GPUs.
        gpus: String,
    },
    /// The job has one GPU, so it has no collective bandwidth.
    #[error("job `{job}` has one GPU: it has no collective bandwidth to record")]
    OneGpu {
        /// The job.
        job: String,
    },
    /// The request names no GPUs, and the job holds none.
    #[error("no job `{job}` holds GPUs; {known}. For a job that has ended, name its GPUs with --gpus")]
    NotHeld {
        /// The job.
        job: String,
        /// Jobs that hold GPUs, as text.
        known: String,
    },
    /// The readings are of GPUs that the job does not have.
    #[error("{why} job `{job}`")]
    NotItsGpus {
        /// The job.
        job: String,
        /// What is wrong with the GPUs.
        why: &'static str,
    },
    /// A reading is above the bandwidth that the links allow.
    #[error(
        "{} GB/s on {gpus} is impossible: the links allow {bound_gb_per_s:.1} GB/s, and {} times that is the limit",
        short(*busbw_gb_per_s), crate::IMPOSSIBLE_FACTOR
    )]
    Impossible {
        /// The GPUs.
        gpus: String,
        /// The reading, GB/s.
        busbw_gb_per_s: f64,
        /// The bound of the physics, GB/s.
        bound_gb_per_s: f64,
    },
    /// Other clients took the chosen GPUs each time.
    #[error("the state changed during each of {attempts} decisions: other clients took the chosen GPUs")]
    Conflict {
        /// Number of decisions.
        attempts: u32,
    },
    /// The model could not be saved.
    #[error("the readings are stored, but the model with these readings could not be saved: {0}")]
    ModelNotKept(String),
    /// No kept version of the model has this number.
    #[error("{}", no_version(*.0))]
    UnknownVersion(Option<u64>),
    /// The work was cancelled before its end.
    #[error("the work was cancelled; the model and the suspects are as before")]
    Cancelled,
    /// A model in the state cannot be read or written.
    #[error("the model in the state cannot be used: {0}")]
    KeptModel(String),
    /// A stored answer cannot be read.
    #[error("the stored answer to this request cannot be read: {0}")]
    KeptAnswer(String),
}

/// The kind of an error, from which a door makes an exit code or a status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The request is wrong in every state and must be corrected. Exit code 2, status 400.
    Malformed,
    /// The request is valid, but the present state does not allow it. Exit code 1, status 409 or 422.
    Impossible,
    /// Another client interfered: the same request may succeed immediately. Exit code 1, status 503.
    Busy,
    /// A file or the machine failed. Exit code 2, status 500.
    Broken,
}

/// The form of an error in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ErrorForm {
    /// Stable code for scripts.
    pub code: String,
    /// The kind: malformed, impossible, busy or broken.
    pub kind: ErrorKind,
    /// The message in a sentence.
    pub message: String,
    /// The remedy.
    pub remedy: String,
}

impl From<FitError> for EngineError {
    fn from(e: FitError) -> Self {
        match e {
            FitError::Cancelled => EngineError::Cancelled,
            e => EngineError::Fit(e),
        }
    }
}

impl From<Bad> for EngineError {
    fn from(e: Bad) -> Self {
        EngineError::BadRequest { code: e.code, message: e.message }
    }
}

impl EngineError {
    /// An error for a request that cannot be read.
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
            EngineError::NotItsGpus { .. } => "not_its_gpus",
            EngineError::Impossible { .. } => "impossible_reading",
            EngineError::Conflict { .. } => "conflict",
            EngineError::ModelNotKept(_) => "model_not_saved",
            EngineError::UnknownVersion(_) => "unknown_version",
            EngineError::Cancelled => "cancelled",
            EngineError::KeptModel(_) => "kept_model",
            EngineError::KeptAnswer(_) => "kept_answer",
        }
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            EngineError::Refused(e) if e.is_malformed() => ErrorKind::Malformed,
            EngineError::Refused(_) | EngineError::Fit(_) => ErrorKind::Impossible,
            EngineError::State(e) if e.is_transient() => ErrorKind::Busy,
            EngineError::Store(e) if e.is_transient() => ErrorKind::Busy,
            EngineError::State(StateError::Io { .. } | StateError::Damaged { .. })
            | EngineError::Store(StoreError::Io { .. } | StoreError::Damaged { .. }) => ErrorKind::Broken,
            EngineError::State(e) if e.is_refusal() => ErrorKind::Impossible,
            EngineError::Store(StoreError::Withdrawn { .. }) => ErrorKind::Impossible,
            EngineError::Conflict { .. } => ErrorKind::Busy,
            EngineError::Cancelled => ErrorKind::Impossible,
            EngineError::ModelNotKept(_) | EngineError::KeptModel(_) | EngineError::KeptAnswer(_) => ErrorKind::Broken,
            _ => ErrorKind::Malformed,
        }
    }

    /// The remedy, in one sentence.
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
            EngineError::KeptModel(_) => "promote another version, fit again, or start the server with --model FILE",
            EngineError::KeptAnswer(_) => "send the request under a new key",
            EngineError::NotItsGpus { .. } => "name GPUs of the job, or use a token with the scope `operate`",
            EngineError::Fit(_) => "add the readings or correct the setting that the message names",
            EngineError::State(StateError::NotYours { .. }) => {
                "use the token of its author, or one with the scope `operate`"
            }
            EngineError::State(StateError::JobExists { .. }) => "release the job first, or choose another id",
            EngineError::State(StateError::KeyReused(_)) | EngineError::Store(StoreError::KeyReused(_)) => {
                "give every request a different key"
            }
            _ => match self.kind() {
                ErrorKind::Malformed => "correct the request",
                ErrorKind::Impossible => "change the request as the message says, or wait until more is free",
                ErrorKind::Busy => "send the request again in a moment",
                ErrorKind::Broken => "repair the file or the disk that the message names",
            },
        }
    }

    /// The message and, if this error has a specific remedy, the remedy.
    pub fn with_remedy(&self) -> String {
        match self {
            EngineError::Impossible { .. }
            | EngineError::Conflict { .. }
            | EngineError::ModelNotKept(_)
            | EngineError::KeptModel(_)
            | EngineError::KeptAnswer(_) => format!("{self}; {}", self.remedy()),
            _ => self.to_string(),
        }
    }

    /// The error as a value for JSON.
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

fn no_version(number: Option<u64>) -> String {
    let kept = crate::MODELS_KEPT_MAX;
    match number {
        Some(n) => format!("there is no version {n} of the model; the newest {kept} are kept"),
        None => "no version of the model was used before the present one".into(),
    }
}

/// A number without the hundreds of zeros of one that is far out of range.
fn short(v: f64) -> String {
    if v.abs() < 1e9 { v.to_string() } else { format!("{v:e}") }
}

fn other_cluster(fitted: &str, given: &str) -> String {
    match fitted == given {
        true => format!("a cluster `{fitted}` whose hosts are not those of the cluster given"),
        false => format!("cluster `{fitted}`, whose hosts are not those of `{given}`"),
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
        StateError::Unreachable { .. } => "unreachable",
        StateError::OutcomeUnknown { .. } => "outcome_unknown",
        StateError::Io { .. } => "io",
        StateError::Invalid(_) => "bad_request",
        StateError::UnknownJob { .. } => "unknown_job",
        StateError::JobExists { .. } => "job_exists",
        StateError::Held { .. } => "gpu_held",
        StateError::Drained { .. } => "gpu_drained",
        StateError::KeyReused(_) => "key_reused",
        StateError::TooManyJobs { .. } => "too_many_jobs",
        StateError::TooManyTasks { .. } => "too_many_tasks",
        StateError::NotYours { .. } => "not_yours",
        StateError::TokenExists(_) => "token_exists",
        StateError::UnknownToken(_) => "unknown_token",
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
        StoreError::Unreachable { .. } => "unreachable",
        StoreError::OutcomeUnknown { .. } => "outcome_unknown",
        StoreError::Invalid(_) => "bad_reading",
        StoreError::UnknownReading { .. } => "unknown_reading",
        StoreError::Withdrawn { .. } => "reading_withdrawn",
        StoreError::KeyReused(_) => "key_reused",
        StoreError::Rename(_) => "rename",
        StoreError::Io { .. } => "io",
    }
}
