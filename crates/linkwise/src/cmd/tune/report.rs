//! `linkwise tune report TRACE...`: reports what the plugin measured and chose, from the traces of its processes.

use crate::job_report::{ModelArgs, html, read, text};
use console::{Failure, PageFormat, print};
use std::path::PathBuf;

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
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: PageFormat,
}

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
