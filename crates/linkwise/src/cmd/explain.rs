//! `linkwise explain`: the bandwidth that a model predicts for given GPUs, and the parts that limit it.

use crate::brief::{gb, gb_with_std};
use crate::cmd::open;
use crate::store_errors::OrFailure;
use console::{Failure, Format, wrap};
use engine::{ExplainAnswer, ExplainRequest};
use std::path::PathBuf;
use topology::{Bytes, Cluster};

/// Arguments of `linkwise explain`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  linkwise explain --cluster site.yaml --model model.json --gpus 'n[0-3]:[0-7]'\n  \
    linkwise explain --state site.state --model model.json --job train-7 --size 256MiB --format json\n\n\
    The bandwidth is that of the GPUs alone; with --state the probable defects of the state are taken into account. What NCCL chooses on \
    the GPUs, and why: `linkwise nccl explain`."
)]
pub struct Args {
    /// Model file
    #[arg(long)]
    model: PathBuf,
    /// The GPUs, such as 'n[0-3]:[0-7]'
    #[arg(long, required_unless_present = "job")]
    gpus: Option<String>,
    /// A job of the state, in place of --gpus
    #[arg(long, requires = "state", conflicts_with = "gpus")]
    job: Option<String>,
    /// Message size [default: the largest that the model was fitted on]
    #[arg(long, value_parser = Bytes::parse)]
    size: Option<Bytes>,
    /// Built-in cluster or cluster file [default: that of the state, else of the model]
    #[arg(long)]
    cluster: Option<String>,
    /// State file: its jobs, and the components that are suspected
    #[arg(long)]
    state: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let model = open::model(&args.model)?;
    let builder = match (&args.cluster, &args.state) {
        (None, None) => open::new(model.model.cluster().clone()),
        (cluster, state) => open::with_state(cluster.as_deref(), state.as_deref())?,
    };
    let engine = open::build(builder.model_file(model), &args.model)?;
    let gpus = args.gpus.as_ref().map(|list| engine.cluster().parse_gpus([list.as_str()])).transpose();
    let gpus = gpus.map_err(|e| Failure::input(format!("--gpus: {e}")))?;
    if gpus.as_ref().is_some_and(|a| a.is_empty()) {
        return Err(Failure::input("--gpus: the list names no GPU; such as 'n[0-3]:[0-7]' was expected"));
    }
    let request = ExplainRequest {
        gpus: gpus.map(|a| engine.cluster().gpu_names(&a)),
        job: args.job,
        size_bytes: args.size.map(|s| s.0),
    };
    let answer = engine.explain(&request).or_failure()?;
    let text = match args.format {
        Format::Text => text(engine.cluster(), &answer),
        Format::Json => format!("{}\n", serde_json::to_string(&answer).map_err(Failure::input)?),
    };
    console::print(&text);
    Ok(())
}

fn text(cluster: &Cluster, a: &ExplainAnswer) -> String {
    let expected = &a.expected;
    let mut out = wrap(
        &format!(
            "{}: {} GB/s expected in {} of {} ({} model)",
            cluster.gpu_list(&expected.gpus.allocation(cluster)),
            gb_with_std(expected.predicted_busbw_gb_per_s, expected.std_gb_per_s),
            a.collective,
            Bytes(a.size_bytes),
            a.model
        ),
        2,
    );
    if let Some(limit) = a.bottleneck.text() {
        out += &wrap(&limit, 2);
    }
    if let Some(note) = engine::extrapolation_note(&a.outside_validated) {
        out += &wrap(&note, 2);
    }
    let suspects: Vec<String> =
        a.suspects_touched.iter().map(|s| format!("{} ({:.1} %)", s.component, 100.0 * s.probability)).collect();
    if !suspects.is_empty() {
        let left = a.expected_with_suspects_gb_per_s;
        out += &wrap(&format!("{} GB/s with suspected defects: {}", gb(left), suspects.join(", ")), 2);
    }
    out
}
