//! Why a job could not be started or its traces not be read.

use std::path::PathBuf;

/// Why a job could not be started or its traces not be read. All of them are errors of the input or of the host.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// A trace file or folder cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file is no trace; `why` names the line.
    #[error("{}: {why}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        why: String,
    },
    /// More trace files than a report holds.
    #[error("more than {max} trace files; give fewer")]
    TooManyTraces {
        /// The limit.
        max: usize,
    },
    /// The traces do not say which release of NCCL ran.
    #[error("--nccl: the traces do not tell which release ran; name it")]
    UnknownRelease,
    /// Signals cannot be passed on.
    #[error("cannot pass signals on: {0}")]
    Signals(std::io::Error),
}
