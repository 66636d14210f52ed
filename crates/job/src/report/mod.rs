//! A report of a job from the plugin's traces.

mod gather;
mod predict;
mod row;

pub use gather::files;
pub use predict::{CallPrediction, Hardware};
pub use row::{CallRow, median};

use crate::JobError;
use predict::CallModel;
use serde::Serialize;
use std::path::PathBuf;

/// A process that loaded the plugin.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PluginProcess {
    /// The host, as a hash.
    pub host: String,
    /// The host's name, if the trace holds it.
    pub host_name: Option<String>,
    /// NCCL's release, if the trace holds it.
    pub nccl: Option<String>,
    /// The models of the host's GPUs, if the trace holds them.
    pub gpu: Option<String>,
    /// The site's tuner, whose answer is AUTO.
    pub site_tuner: Option<String>,
    /// The process id.
    pub pid: u64,
    /// Its mode.
    pub mode: String,
    /// Its policy.
    pub policy: String,
    /// The tuner interface that NCCL used.
    pub tuner_api: u32,
    /// The profiler interface, or 0.
    pub profiler_api: u32,
    /// True if the times were set by a test.
    pub scripted: bool,
}

/// Steps that the program reported, for the process with the most steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct StepTimes {
    /// Number of steps.
    pub count: usize,
    /// Their sum, milliseconds.
    pub total_ms: f64,
    /// Median, milliseconds.
    pub median_ms: f64,
}

/// The cost of the plugin, for the process with the largest share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct PluginCost {
    /// Time from the first communicator on, seconds.
    pub run_s: f64,
    /// Time in all of the plugin's entry points over the time of the run.
    pub share: f64,
    /// Approximate number of decisions.
    pub decisions: u64,
    /// Nanoseconds per decision.
    pub decision_ns: f64,
    /// Approximate number of events of NCCL's profiler.
    pub events: u64,
    /// Nanoseconds per event.
    pub event_ns: f64,
    /// Time at borders between epochs including waits for other ranks, milliseconds.
    pub borders_ms: f64,
    /// Time in inits and finalizes, milliseconds.
    pub setup_ms: f64,
    /// CPU time of the plugin's own thread over the time of the run.
    pub thread_share: f64,
}

/// Counts of data beyond the limits of a report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct OmittedCounts {
    /// Calls of (communicator, collective, size) beyond the limit of a report.
    pub calls: u64,
    /// Communicators whose ranks and nodes are unknown because of the limit.
    pub communicators: u64,
    /// Times beyond those that are kept.
    pub times: u64,
    /// Sentences about communicators that stay at AUTO.
    pub sentences: u64,
}

/// The content of a job's traces.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct JobReport {
    /// Processes that loaded the plugin.
    pub processes: Vec<PluginProcess>,
    /// Their calls, by collective, size and communicator.
    pub rows: Vec<CallRow>,
    /// Communicators that stayed at AUTO, and why; and what was found about the steps of others.
    pub never: Vec<String>,
    /// Number of times that ranks waited for a verdict.
    pub waits: u64,
    /// The longest wait, milliseconds.
    pub longest_wait_ms: f64,
    /// Calls whose record was lost.
    pub lost: u64,
    /// Epochs that came into force.
    pub epochs: u64,
    /// Processes whose trace ended at its limit of bytes.
    pub full: u64,
    /// Traces whose last line is cut off.
    pub cut_off: u64,
    /// Data beyond the limits.
    pub left_out: OmittedCounts,
    /// Steps, if the program reported any.
    pub steps: Option<StepTimes>,
    /// The cost of the plugin, if the traces hold it.
    pub cost: Option<PluginCost>,
}

impl JobReport {
    /// Reads a report from files and folders. NCCL's model adds predictions if the hardware is known. O(bytes of the
    /// traces).
    ///
    /// # Errors
    /// A file that is not a trace, too many files, or an unknown release.
    pub fn read(paths: &[PathBuf], hardware: Option<&Hardware>) -> Result<Self, JobError> {
        let gathered = gather::read(&files(paths)?)?;
        let mut report = gathered.report;
        let model = CallModel::new(hardware, &report)?;
        // Kernel times are compared with the steps, or else with the run.
        let total_ms = report.steps.map(|s| s.total_ms).or(report.cost.map(|c| c.run_s * 1e3));
        report.rows = row::rows(gathered.keys, total_ms, |key, comm, auto, arm| {
            model.predict(key, comm, auto, arm, &gathered.places)
        });
        Ok(report)
    }

    /// True if some times were set by a test.
    pub fn is_scripted(&self) -> bool {
        self.processes.iter().any(|p| p.scripted)
    }
}
