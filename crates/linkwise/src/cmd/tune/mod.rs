//! `linkwise tune`: measures every arm before a job, evaluates AUTO, and reports what the plugin did.

mod calls;
mod characterize;
mod inspector;
mod policy_table;
mod profile;
mod report;
mod tables;

use console::Failure;

/// Measure algorithms, protocols and channels before a job, and report what the plugin chose in one
#[derive(clap::Subcommand)]
pub enum Tune {
    /// Measure every arm at every size before a job, and write the best ones to a policy file
    Profile(Box<profile::Args>),
    /// Compare AUTO with the best arm, with and without computation at the same time
    Characterize(characterize::Args),
    /// Describe the communication of a job: collectives, sizes, counts per step and times, from what it left
    Calls(calls::Args),
    /// Report what the NCCL plugin saw and did in a job, from its traces
    Report(report::Args),
    /// Write what a run found as a table, for review and for later jobs
    Export(tables::ExportArgs),
    /// Write the NCCL plugin's traces in the forms of NCCL Inspector, for the programs and dashboards made for it
    Inspector(inspector::Args),
    /// Read a table of linkwise or of NVIDIA's example tuner, and write either
    Import(tables::ImportArgs),
}

pub fn run(command: Tune) -> Result<(), Failure> {
    match command {
        Tune::Profile(args) => profile::run(*args),
        Tune::Characterize(args) => characterize::run(args),
        Tune::Calls(args) => calls::run(&args),
        Tune::Report(args) => report::run(args),
        Tune::Export(args) => tables::export(args),
        Tune::Inspector(args) => inspector::run(&args),
        Tune::Import(args) => tables::import(args),
    }
}

/// Reads a policy file or a sweep.
pub fn read_text(path: &std::path::Path) -> Result<String, Failure> {
    Ok(files::read_text(path, autotune::policy_file::FILE_BYTES_MAX)?)
}
