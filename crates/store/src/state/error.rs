//! [`StateError`]: the errors of a state, one sentence each.

use crate::db::SqlError;
use crate::once::KeyError;
use std::path::{Path, PathBuf};

/// The reason for a failed operation of the state.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file does not exist.
    #[error("there is no state at {}; `linkwise cluster init --cluster C --state FILE` creates one", .0.display())]
    Missing(PathBuf),
    /// The file exists and is a state.
    #[error(
        "{} is already the state of cluster `{cluster}`{}; `linkwise cluster show` prints it. To start again, move the file away",
        .path.display(), if *.same { ", with the same hosts" } else { "" }
    )]
    Exists {
        /// The file.
        path: PathBuf,
        /// The cluster of the state.
        cluster: String,
        /// True if this is the cluster of the request.
        same: bool,
    },
    /// The file is not a state.
    #[error("{} is not a state of linkwise: {why}. Name another file, or move this one away", .path.display())]
    NotAState {
        /// The file.
        path: PathBuf,
        /// The actual content of the file.
        why: String,
    },
    /// The content contradicts itself or is unreadable.
    #[error("the state {} is damaged: {why}. Restore a copy, or save what is readable with `sqlite3 FILE .recover`", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The contradiction or the message of SQLite.
        why: String,
    },
    /// A newer linkwise wrote the file.
    #[error("the state {} has schema version {found}; this linkwise knows up to {known}. Use the newer linkwise that wrote it", .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// The file's version.
        found: i64,
        /// The latest known version.
        known: i64,
    },
    /// The state belongs to another cluster.
    #[error("the state {} belongs to another cluster{}: {difference}", .path.display(), crate::error::two_names(.stored, .given))]
    OtherCluster {
        /// The file.
        path: PathBuf,
        /// The cluster of the state.
        stored: String,
        /// The given cluster.
        given: String,
        /// The first difference as text.
        difference: String,
    },
    /// The same cluster with added, removed or changed hosts.
    #[error("the state {} has other hosts of cluster `{cluster}` than those given: {changes}. `linkwise cluster update` applies the change", .path.display())]
    HostsChanged {
        /// The file.
        path: PathBuf,
        /// The cluster.
        cluster: String,
        /// Added, removed and changed hosts, as text.
        changes: String,
    },
    /// Another process changed the hosts of the state after it was opened.
    #[error("the cluster of the state {} has changed since it was opened; open it again", .0.display())]
    ClusterChanged(PathBuf),
    /// A host cannot be removed or changed while jobs hold its GPUs.
    #[error("job `{job}` holds GPUs of host {host}, which would be removed or changed{}; release it first", and_more(*.more))]
    HostsHeld {
        /// The first host.
        host: String,
        /// The first job on it.
        job: String,
        /// Number of further pairs of a host and a job.
        more: usize,
    },
    /// Another process locked the state for longer than the time limit.
    #[error("the state {} has been locked by another process for {} s; try again when that process ends", .0.display(), crate::db::lock_wait_s(.0))]
    Busy(PathBuf),
    /// The server of the database cannot be reached; nothing was changed.
    #[error("the state {} cannot be reached: {why}; nothing was changed, so the request can be sent again", .path.display())]
    Unreachable {
        /// The database.
        path: PathBuf,
        /// What the system or the server says.
        why: String,
    },
    /// The connection broke during the commit: the change happened or not.
    #[error("the connection to the state {} broke at the end of the change ({why}), which happened or not; send the same request again under its idempotency key, or look", .path.display())]
    OutcomeUnknown {
        /// The database.
        path: PathBuf,
        /// What the system or the server says.
        why: String,
    },
    /// The file or its folder is not writable, or the disk is full.
    #[error("cannot {doing} the state {}: {why}; nothing was changed", .path.display())]
    Io {
        /// The operation: a verb such as `write to`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The message of SQLite or of the system.
        why: String,
    },
    /// The request is malformed; the sentence says why.
    #[error("{0}")]
    Invalid(String),
    /// The job belongs to another author.
    #[error("job `{id}` was allocated by `{made_by}`: only its author and operators may change it or report on it")]
    NotYours {
        /// The job.
        id: String,
        /// Its author.
        made_by: String,
    },
    /// A token with this name exists.
    #[error("there is a token `{0}` already; revoked tokens keep their names")]
    TokenExists(String),
    /// No token has this name.
    #[error("there is no token `{0}`")]
    UnknownToken(String),
    /// No job with this id holds GPUs.
    #[error("no job `{id}` holds GPUs; {}", in_words(.known))]
    UnknownJob {
        /// The name.
        id: String,
        /// Jobs that hold GPUs, newest first, at most a few.
        known: Vec<String>,
    },
    /// The job holds other GPUs.
    #[error("job `{id}` already holds {held}; release it first, or choose another id")]
    JobExists {
        /// The job's id.
        id: String,
        /// The GPUs that it holds.
        held: String,
    },
    /// Another job holds a GPU of the request.
    #[error("{gpu} is held by job `{job}`; {free} GPUs are free")]
    Held {
        /// The first such GPU.
        gpu: String,
        /// The job that holds it.
        job: String,
        /// Number of free GPUs.
        free: usize,
    },
    /// A GPU of the request is drained.
    #[error("{gpu} is drained{}; `linkwise cluster drain {gpu} --undo` ends the drain", reason_in_words(.reason))]
    Drained {
        /// The first GPU of the request that is drained.
        gpu: String,
        /// The reason of the drain.
        reason: String,
    },
    /// An idempotency key was used for another request.
    #[error("the idempotency key `{0}` was used for another request; give every request a different key")]
    KeyReused(String),
    /// Too many tasks wait.
    #[error("{max} tasks wait already")]
    TooManyTasks {
        /// The limit.
        max: usize,
    },
    /// The number of jobs is at its limit.
    #[error("{max} jobs hold GPUs; that is the limit")]
    TooManyJobs {
        /// The limit.
        max: usize,
    },
}

fn in_words(known: &[String]) -> String {
    match known {
        [] => "no job does".into(),
        some => format!("jobs that do: {}", some.join(", ")),
    }
}

fn and_more(more: usize) -> String {
    if more == 0 { String::new() } else { format!(" (and {more} more)") }
}

fn reason_in_words(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(" ({reason})") }
}

impl StateError {
    /// Maps an error of the database to a state error.
    pub(super) fn of(doing: &'static str, path: &Path, e: &SqlError) -> Self {
        use crate::error::StoreError as S;
        match S::of(doing, path, e) {
            S::Unreachable { path, why } => StateError::Unreachable { path, why },
            S::OutcomeUnknown { path, why } => StateError::OutcomeUnknown { path, why },
            S::NotAStore { path, why } => StateError::NotAState { path, why },
            S::Damaged { path, why } => StateError::Damaged { path, why },
            S::Busy(path) => StateError::Busy(path),
            S::Io { doing, path, why } => StateError::Io { doing, path, why },
            e => StateError::Io { doing, path: path.into(), why: e.to_string() },
        }
    }

    /// True if another process or the network is the reason, and the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            StateError::Busy(_)
                | StateError::Unreachable { .. }
                | StateError::OutcomeUnknown { .. }
                | StateError::TooManyTasks { .. }
        )
    }

    /// The error for a failure of idempotency keys.
    pub(super) fn of_key(path: &Path, e: KeyError) -> Self {
        match e {
            KeyError::Reused(key) => StateError::KeyReused(key),
            KeyError::Damaged(why) => StateError::damaged(path, why),
            KeyError::Sql(e) => StateError::of("write to", path, &e),
        }
    }

    pub(super) fn damaged(path: &Path, why: String) -> Self {
        StateError::Damaged { path: path.into(), why }
    }

    /// True if the request is well-formed but the present state does not allow it; false for bad input.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            StateError::Exists { .. }
                | StateError::Busy(_)
                | StateError::JobExists { .. }
                | StateError::HostsHeld { .. }
                | StateError::ClusterChanged(_)
                | StateError::Held { .. }
                | StateError::Drained { .. }
                | StateError::TooManyJobs { .. }
                | StateError::NotYours { .. }
                | StateError::TokenExists(_)
        )
    }
}
