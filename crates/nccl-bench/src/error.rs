//! Errors of the bench.

use std::path::PathBuf;
use topology::nccl::Version;

/// Reason why a run gave no report.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The specification is not valid.
    #[error("{0}")]
    Spec(String),
    /// This machine cannot run the bench: it has no C compiler, or its architecture is not supported.
    #[error("the NCCL bench cannot run here: {what}; {remedy}")]
    Machine {
        /// The missing part.
        what: String,
        /// How to get it.
        remedy: String,
    },
    /// The download of the library failed.
    #[error(
        "cannot download NCCL {version}: {reason}; connect to a package index with nvidia-nccl-cu12, or copy the library to {place}"
    )]
    Fetch {
        /// The wanted release.
        version: Version,
        /// The message of the download.
        reason: String,
        /// Path at which the bench looks for a library.
        place: PathBuf,
    },
    /// A cached library has changed or belongs to another release.
    #[error("{path} is not the expected library ({reason}); remove its folder and try again")]
    Cache {
        /// The file.
        path: PathBuf,
        /// The difference.
        reason: String,
    },
    /// The offsets of NCCL's structures cannot be read from a library.
    #[error(
        "{path} {reason}; bytes move only on released wheels of nvidia-nccl-cu12, whose debug information gives the offsets of NCCL's structures"
    )]
    Layout {
        /// The library.
        path: PathBuf,
        /// The missing part.
        reason: String,
    },
    /// A kernel, a work or a buffer that the player does not play.
    #[error("NCCL {version} asked for something that is not played: {what}")]
    NotPlayed {
        /// The release that ran.
        version: Version,
        /// The name, with the setting that avoids it if there is one.
        what: String,
    },
    /// A kernel waited too long for another rank or a proxy.
    #[error("NCCL {version} on host {host} is stuck:{}", .waits.iter().map(|w| format!("\n  {w}")).collect::<String>())]
    Stuck {
        /// The release that ran.
        version: Version,
        /// The host of the first rank that was stuck.
        host: String,
        /// One line per waiting channel: channel, step, direction and peer.
        waits: Vec<String>,
    },
    /// An operation on a file or process of the bench failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A node ended with an error of NCCL or of the emulation.
    #[error("simulated host {host} (NCCL {version}): {reason}{}", .warnings.iter().map(|w| format!("\n  {w}")).collect::<String>())]
    Node {
        /// The host.
        host: String,
        /// The release that ran.
        version: Version,
        /// The cause.
        reason: String,
        /// NCCL's last warnings.
        warnings: Vec<String>,
    },
    /// NCCL called a CUDA or NVML function that the emulation does not have.
    #[error(
        "NCCL {version} calls functions that the emulation lacks: {}; its decisions are not reliable. Add the functions to crates/nccl-bench/emulation",
        .calls.join(", ")
    )]
    NotEmulated {
        /// The release that ran.
        version: Version,
        /// The functions.
        calls: Vec<String>,
    },
    /// The run exceeded its deadline.
    #[error("NCCL {version} did not finish within {seconds:.0} s ({state}); its processes were killed")]
    Deadline {
        /// The release that ran.
        version: Version,
        /// The deadline, seconds.
        seconds: f64,
        /// Number of initialised hosts, as text.
        state: String,
    },
    /// The log is incomplete or not valid.
    #[error("the log of NCCL {version} cannot be read: {reason}")]
    Log {
        /// The release that ran.
        version: Version,
        /// The missing or wrong part.
        reason: String,
    },
}

impl BenchError {
    /// True if the cause is this machine (no network, no C compiler). Tests are then skipped.
    pub fn is_about_this_machine(&self) -> bool {
        matches!(self, BenchError::Machine { .. } | BenchError::Fetch { .. })
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> BenchError {
        let what = what.into();
        move |source| BenchError::Io { what, source }
    }
}
