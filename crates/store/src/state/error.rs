//! [`StateError`]: one clear sentence for everything that can go wrong with a state.

use crate::once::KeyError;
use std::path::{Path, PathBuf};

/// Why the state could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// There is no such file.
    #[error("there is no state at {}; `linkwise cluster init --cluster C --state FILE` makes one", .0.display())]
    Missing(PathBuf),
    /// There is one already.
    #[error(
        "{} is the state of cluster `{cluster}` already{}; `linkwise cluster show` tells what it holds. To start anew move the file away",
        .path.display(), if *.same { ", with the same hosts" } else { "" }
    )]
    Exists {
        /// The file.
        path: PathBuf,
        /// The cluster it is of.
        cluster: String,
        /// Is that the cluster it was to be made for?
        same: bool,
    },
    /// The file is something else.
    #[error("{} is not a state of linkwise: {why}. Name another file, or move this one away", .path.display())]
    NotAState {
        /// The file.
        path: PathBuf,
        /// What it seems to be.
        why: String,
    },
    /// What it says cannot be.
    #[error("the state {} is damaged: {why}. Restore a copy, or save what is readable with `sqlite3 FILE .recover`", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A later linkwise wrote it.
    #[error("the state {} has schema version {found}; this linkwise knows up to {known}. Use the newer linkwise that wrote it", .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The latest version known.
        known: i64,
    },
    /// It is the state of another cluster.
    #[error("the state {} is of another cluster (`{stored}`, given is `{given}`): {difference}", .path.display())]
    OtherCluster {
        /// The file.
        path: PathBuf,
        /// Its cluster.
        stored: String,
        /// The one that was given.
        given: String,
        /// The first difference.
        difference: String,
    },
    /// It is the same cluster with other hosts.
    #[error("the state {} has other hosts of cluster `{cluster}` than those given: {changes}. `linkwise cluster update` takes them over", .path.display())]
    HostsChanged {
        /// The file.
        path: PathBuf,
        /// The cluster.
        cluster: String,
        /// Hosts that came, went or changed, in words.
        changes: String,
    },
    /// Another process gave the state other hosts since it was opened.
    #[error("the cluster of the state {} has changed since it was opened; open it again", .0.display())]
    ClusterChanged(PathBuf),
    /// A host cannot go while jobs run on it.
    #[error("job `{job}` holds GPUs of host {host}, which is to go or to change{}; release it first", and_more(*.more))]
    HostsHeld {
        /// The first host.
        host: String,
        /// The first job on it.
        job: String,
        /// How many more pairs of a host and a job there are.
        more: usize,
    },
    /// Another process kept it locked for longer than the time limit.
    #[error("the state {} has been locked by another process for {} s; try again when it is done", .0.display(), super::BUSY_TIMEOUT.as_secs())]
    Busy(PathBuf),
    /// The file or its folder must not be written, or the disk is full.
    #[error("cannot {doing} the state {}: {why}; nothing was changed", .path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What was said.
        why: String,
    },
    /// What was asked for makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// No job of this name holds anything.
    #[error("no job `{id}` holds GPUs; {}", in_words(.known))]
    UnknownJob {
        /// The name.
        id: String,
        /// Jobs that do, the newest first, at most a few.
        known: Vec<String>,
    },
    /// The job holds other GPUs already.
    #[error("job `{id}` holds {held} already; release it first, or choose another id")]
    JobExists {
        /// Its name.
        id: String,
        /// What it holds.
        held: String,
    },
    /// A GPU is taken.
    #[error("{gpu} is held by job `{job}`; {free} GPUs are free")]
    Held {
        /// The first GPU that is.
        gpu: String,
        /// Who holds it.
        job: String,
        /// How many are free.
        free: usize,
    },
    /// A GPU gets no work.
    #[error("{gpu} is drained{}; `linkwise cluster drain {gpu} --undo` gives it back", reason_in_words(.reason))]
    Drained {
        /// The first GPU that is.
        gpu: String,
        /// Why.
        reason: String,
    },
    /// An idempotency key was used for another request.
    #[error("the idempotency key `{0}` was used for another request; give every request a key of its own")]
    KeyReused(String),
    /// Too many jobs.
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
    /// Turns an error of SQLite into the sentence that fits it.
    pub(super) fn of(doing: &'static str, path: &Path, e: &rusqlite::Error) -> Self {
        use rusqlite::ErrorCode as C;
        let path = path.to_path_buf();
        match e.sqlite_error_code() {
            Some(C::NotADatabase) => StateError::NotAState { path, why: "it is not a SQLite database".into() },
            Some(C::DatabaseCorrupt) => StateError::Damaged { path, why: e.to_string() },
            Some(C::DatabaseBusy | C::DatabaseLocked) => StateError::Busy(path),
            _ => StateError::Io { doing, path, why: crate::error::why(e) },
        }
    }

    /// An error of idempotency keys.
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

    /// Is the request well-formed, but cannot be met as things stand (rather than bad input)?
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
        )
    }
}
