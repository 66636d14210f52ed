//! What can go wrong, and whose turn it is.

use std::path::PathBuf;
use topology::nccl::Version;

/// Why a run gave no report.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The specification asks for something that cannot be.
    #[error("{0}")]
    Spec(String),
    /// This machine cannot run the bench at all: no C compiler, another architecture.
    #[error("the NCCL bench cannot run here: {what}; {remedy}")]
    Machine {
        /// What is missing.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// The library could not be fetched.
    #[error(
        "NCCL {version} cannot be fetched: {reason}; connect to a package index that has nvidia-nccl-cu12, or put the library at {place}"
    )]
    Fetch {
        /// Which release.
        version: Version,
        /// What the download said.
        reason: String,
        /// Where a library of one's own is looked for.
        place: PathBuf,
    },
    /// A cached library is not what it was.
    #[error("{path} is not the library that was put there ({reason}); remove the folder and try again")]
    Cache {
        /// The file.
        path: PathBuf,
        /// What differs.
        reason: String,
    },
    /// A file or process of the bench itself failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A node ended with an error of NCCL or of the emulation.
    #[error("simulated host {host} (NCCL {version}): {reason}{}", .warnings.iter().map(|w| format!("\n  {w}")).collect::<String>())]
    Node {
        /// The host.
        host: String,
        /// The release that ran.
        version: Version,
        /// How it ended.
        reason: String,
        /// NCCL's last warnings.
        warnings: Vec<String>,
    },
    /// NCCL called a CUDA or NVML function that the emulation does not have.
    #[error(
        "NCCL {version} calls functions that the emulation does not have: {}; its decisions cannot be trusted. Add them to crates/nccl-bench/emulation",
        .calls.join(", ")
    )]
    NotEmulated {
        /// The release that ran.
        version: Version,
        /// The functions.
        calls: Vec<String>,
    },
    /// Not done in time.
    #[error("NCCL {version} was not done after {seconds:.0} s ({state}); its processes were ended")]
    Deadline {
        /// The release that ran.
        version: Version,
        /// The deadline.
        seconds: f64,
        /// How far it was.
        state: String,
    },
    /// The log does not say what it should.
    #[error("the log of NCCL {version} cannot be read: {reason}")]
    Log {
        /// The release that ran.
        version: Version,
        /// What is missing or wrong.
        reason: String,
    },
}

impl BenchError {
    /// True where another machine (with a network, a C compiler) would get further: tests skip then.
    pub fn is_about_this_machine(&self) -> bool {
        matches!(self, BenchError::Machine { .. } | BenchError::Fetch { .. })
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> BenchError {
        let what = what.into();
        move |source| BenchError::Io { what, source }
    }
}
