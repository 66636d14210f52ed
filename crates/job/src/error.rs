//! Errors of starting a job and of reading its traces.

use std::path::PathBuf;

/// A job cannot be started or its traces cannot be read. Every case is an error of the input or of the host.
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
    /// A file cannot be opened, or is too large.
    #[error(transparent)]
    File(files::FileError),
    /// A file is not a trace; `why` names the line.
    #[error("{}: {why}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// The fault and its line.
        why: String,
    },
    /// More trace files than a report holds.
    #[error("more than {max} trace files; give fewer")]
    TooManyTraces {
        /// The limit.
        max: usize,
    },
    /// The traces do not name the release of NCCL.
    #[error("the traces do not name the NCCL release; give it with --nccl")]
    UnknownRelease,
    /// Signals cannot be forwarded.
    #[error("cannot forward signals: {0}")]
    Signals(std::io::Error),
    /// LINKWISE_PLUGIN names no file.
    #[error("LINKWISE_PLUGIN: there is no {}", .0.display())]
    PluginNotThere(PathBuf),
    /// The plugin is not installed.
    #[error(
        "the plugin ({library}) is neither next to the command nor in ../lib or ../lib/linkwise; build it with `cargo build -p nccl-plugin` and copy \
         target/debug/{library} there, name it in LINKWISE_PLUGIN, or install the command with `cargo install --features bundled`"
    )]
    PluginNotInstalled {
        /// Its file name.
        library: &'static str,
    },
    /// The plugins that the command carries cannot be unpacked.
    #[error(
        "the plugins that this command carries cannot be unpacked: {0}; set XDG_CACHE_HOME to a folder that you can write"
    )]
    Unpack(String),
    /// The program that loads the plugin is not installed.
    #[error(
        "linkwise-plugin-check is neither next to the command nor in ../libexec; install the package again, or build it with \
         `cargo build -p nccl-plugin`"
    )]
    CheckNotInstalled,
    /// That program cannot be run.
    #[error("{}: {why}", program.display())]
    CheckProgram {
        /// The program.
        program: PathBuf,
        /// The reason.
        why: String,
    },
    /// A library cannot be loaded, or is no plugin.
    #[error("{} cannot be used: {why} ({status})", library.display())]
    Unusable {
        /// The library.
        library: PathBuf,
        /// The loader's reason.
        why: String,
        /// How the program that loaded it ended.
        status: std::process::ExitStatus,
    },
}
