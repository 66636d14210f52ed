//! The report of a job from the traces of its plugin, as text and as a page. `linkwise tune report` prints it, and
//! `linkwise run` prints it at the end of the job.

mod page;
mod text;

pub use page::html;
pub use text::text;

use console::{Failure, load_cluster};
use job::report::{CallRow, Hardware, JobReport, PluginCost};
use std::path::PathBuf;
use topology::nccl::Version;

/// Which hardware a job ran on.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct ModelArgs {
    /// Built-in cluster or cluster file: shows a model's expectation next to each measurement
    #[arg(long, value_name = "CLUSTER")]
    pub cluster: Option<String>,
    /// The job's GPUs in it [default: by the host names in the traces]
    #[arg(long, value_name = "GPUS", requires = "cluster")]
    pub gpus: Option<String>,
    /// NCCL release to model [default: the one whose interfaces the traces name]
    #[arg(long, value_name = "RELEASE", requires = "cluster", value_parser = release)]
    pub nccl: Option<Version>,
}

fn release(text: &str) -> Result<Version, String> {
    text.parse()
}

impl ModelArgs {
    fn hardware(&self) -> Result<Option<Hardware>, Failure> {
        let Some(name) = &self.cluster else { return Ok(None) };
        let cluster = load_cluster(name)?;
        let gpus = self.gpus.as_deref().map(|list| cluster.parse_gpus([list])).transpose();
        let gpus = gpus.map_err(|e| Failure::input(format!("--gpus: {e}")))?;
        Ok(Some(Hardware { cluster, gpus, nccl: self.nccl }))
    }
}

/// Builds the report from traces.
pub fn read(traces: &[PathBuf], model: &ModelArgs) -> Result<JobReport, Failure> {
    JobReport::read(traces, model.hardware()?.as_ref()).map_err(Failure::input)
}

#[cfg(test)]
mod tests;
