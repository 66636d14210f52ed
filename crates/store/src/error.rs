//! [`StoreError`]: the errors of a store, one sentence each.

use crate::db::SqlError;
use std::path::PathBuf;

/// The reason for a failed operation of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file does not exist.
    #[error("there is no store at {}; `linkwise measure --store` creates one", .0.display())]
    Missing(PathBuf),
    /// The file is not a store.
    #[error("{} is not a linkwise store: {why}. Name another file, or move this one away", .path.display())]
    NotAStore {
        /// The file.
        path: PathBuf,
        /// The actual content of the file.
        why: String,
    },
    /// SQLite found the file damaged.
    #[error("the store {} is damaged: {why}. Restore a copy, or save what is readable with `sqlite3 FILE .recover`", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// SQLite's message.
        why: String,
    },
    /// A newer linkwise wrote the file.
    #[error("the store {} has schema version {found}; this linkwise knows up to {known}. Use the newer linkwise that wrote it", .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// The file's version.
        found: i64,
        /// The latest known version.
        known: i64,
    },
    /// The store belongs to another cluster.
    #[error("the store {} belongs to another cluster{}: {difference}. Use another --store, or name the cluster it was made for", .path.display(), two_names(.stored, .given))]
    OtherCluster {
        /// The file.
        path: PathBuf,
        /// Name of the store's cluster.
        stored: String,
        /// Name of the cluster given.
        given: String,
        /// The first difference as text.
        difference: String,
    },
    /// Another process locked the store for longer than the time limit.
    #[error("the store {} is locked by another process; wait until it ends", .0.display())]
    Busy(PathBuf),
    /// The measurement breaks a rule of every store.
    #[error("a measurement cannot be stored: {0}")]
    Invalid(String),
    /// Hosts cannot be renamed; the sentence says why.
    #[error("{0}")]
    Rename(String),
    /// There is no reading with this number.
    #[error("the store {} has no reading {id}; `linkwise readings list` shows the readings", .path.display())]
    UnknownReading {
        /// The file.
        path: PathBuf,
        /// The number.
        id: i64,
    },
    /// The reading was withdrawn before.
    #[error("reading {id} was already withdrawn by {who} ({why})")]
    Withdrawn {
        /// The number.
        id: i64,
        /// Author of the withdrawal.
        who: String,
        /// The reason of the withdrawal.
        why: String,
    },
    /// An idempotency key was used for another request.
    #[error("the idempotency key `{0}` was used for another request; give every request a different key")]
    KeyReused(String),
    /// The server of the database cannot be reached; nothing was changed.
    #[error("the store {} cannot be reached: {why}; nothing was changed, so the request can be sent again", .path.display())]
    Unreachable {
        /// The database.
        path: PathBuf,
        /// What the system or the server says.
        why: String,
    },
    /// The connection broke during the commit: the change happened or not.
    #[error("the connection to the store {} broke at the end of the change ({why}), which happened or not; send the same request again under its idempotency key, or look", .path.display())]
    OutcomeUnknown {
        /// The database.
        path: PathBuf,
        /// What the system or the server says.
        why: String,
    },
    /// An error of SQLite or of the file system.
    #[error("cannot {doing} the store {}: {why}", .path.display())]
    Io {
        /// The operation: a verb such as `open`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The message of SQLite or of the system.
        why: String,
    },
}

/// The names of two clusters where they differ; where they do not, the difference that follows tells the two apart.
pub(crate) fn two_names(stored: &str, given: &str) -> String {
    if stored == given { format!(" of the same name (`{given}`)") } else { format!(" (`{stored}`, given: `{given}`)") }
}

impl StoreError {
    /// The error for a failure of idempotency keys.
    pub(crate) fn of_key(path: &std::path::Path, e: crate::once::KeyError) -> Self {
        match e {
            crate::once::KeyError::Reused(key) => StoreError::KeyReused(key),
            crate::once::KeyError::Damaged(why) => StoreError::Damaged { path: path.into(), why },
            crate::once::KeyError::Sql(e) => StoreError::of("write to", path, &e),
        }
    }

    /// Maps an error of the database to a store error.
    pub(crate) fn of(doing: &'static str, path: &std::path::Path, e: &SqlError) -> Self {
        use rusqlite::ErrorCode as C;
        let path = path.to_path_buf();
        let why = e.to_string();
        match (e, sqlite_code(e)) {
            (SqlError::Lost(_), _) => StoreError::Unreachable { path, why },
            (SqlError::Unknown(_), _) => StoreError::OutcomeUnknown { path, why },
            (_, Some(C::NotADatabase)) => StoreError::NotAStore { path, why: "it is not a SQLite database".into() },
            (_, Some(C::DatabaseCorrupt)) => StoreError::Damaged { path, why },
            (SqlError::Busy, _) | (_, Some(C::DatabaseBusy | C::DatabaseLocked)) => StoreError::Busy(path),
            _ => StoreError::Io { doing, path, why: why_of(e) },
        }
    }

    /// True if another process or the network is the reason, and the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, StoreError::Busy(_) | StoreError::Unreachable { .. } | StoreError::OutcomeUnknown { .. })
    }
}

/// SQLite's code of an error.
pub(crate) fn sqlite_code(e: &SqlError) -> Option<rusqlite::ErrorCode> {
    if let SqlError::Sqlite(e) = e { e.sqlite_error_code() } else { None }
}

/// The message of the database, and a remedy if one is known.
pub(crate) fn why_of(e: &SqlError) -> String {
    use rusqlite::ErrorCode as C;
    let remedy = match sqlite_code(e) {
        Some(C::DiskFull) => "; make room on the disk",
        Some(C::ReadOnly | C::CannotOpen | C::PermissionDenied) => {
            "; the file and its folder must be writable, because SQLite keeps its log next to the file"
        }
        Some(C::SystemIoFailure) => "; the disk is full, damaged, or not a local one",
        _ => "",
    };
    format!("{e}{remedy}")
}

/// Why a path cannot hold a database; none if it can, or if the file does not exist yet.
pub(crate) fn no_file(path: &std::path::Path) -> Option<&'static str> {
    let meta = std::fs::metadata(path).ok()?;
    if meta.is_dir() {
        return Some("it is a folder");
    }
    (!meta.is_file()).then_some("it is not a regular file")
}
