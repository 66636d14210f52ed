//! `linkwise tune report TRACE...`: what the plugin saw and did, from the traces of its processes.

mod page;
mod text;

pub use page::html;
pub use text::text;

use console::{Failure, PageFormat, load_cluster, print};
use job::report::{CallRow, Hardware, JobReport};
use std::path::PathBuf;
use topology::nccl::Version;

/// Arguments of `linkwise tune report`.
#[derive(clap::Args)]
#[command(after_help = "\
For each collective, size and communicator shape the report shows AUTO's choice, the plugin's choice and its reason, the times that a model \
expects, the measured medians and their variance, the time saved, and the call from which the choice pays. Two times are shown: the one that \
decides (a step, or an interval between groups or calls) and the GPU time of the kernel on the last rank. If they disagree, the first counts.

Give the traces of all hosts. Expected times need the hardware: --cluster, and --gpus if the host names in the traces differ from those of \
the cluster.")]
pub struct Args {
    /// Trace files, or folders of them
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    /// How to print
    #[arg(long, value_enum, default_value = "text")]
    format: PageFormat,
}

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    let report = read(&args.traces, &args.model)?;
    if report.processes.is_empty() {
        return Err(Failure::impossible(
            "these files hold no trace of the plugin; give the folder that LINKWISE_TRACE named",
        ));
    }
    match args.format {
        PageFormat::Text => print(&text(&report)),
        PageFormat::Json => {
            console::print_json(&serde_json::to_value(&report).map_err(Failure::impossible)?)?;
        }
        PageFormat::Html => print(&format!("{}\n", html(&report)?)),
    }
    Ok(())
}

/// Which hardware a job ran on.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct ModelArgs {
    /// Built-in cluster or cluster file: what a model expects stands beside what was measured
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

/// The report of traces.
pub fn read(traces: &[PathBuf], model: &ModelArgs) -> Result<JobReport, Failure> {
    JobReport::read(traces, model.hardware()?.as_ref()).map_err(Failure::input)
}

#[cfg(test)]
mod tests;
