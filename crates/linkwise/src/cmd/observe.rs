//! `linkwise observe`: what a job got, into the store, the model and the suspicions.

mod learn;
mod plugin;
mod reading;

pub use learn::suspects;
use learn::{Learned, learn};
use reading::{Whose, record};

use crate::cmd::place::state::cluster;
use crate::store_errors::OrFailure;
use console::Failure;
use console::{Format, wrap};
use serde_json::json;
use std::path::PathBuf;
use store::{Measurement, State, Store};
use topology::{Bytes, Cluster, Collective};

/// Arguments of `linkwise observe`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  linkwise observe --store S.db --state site.state --job train-7 --busbw 41.3 --model model.json\n  \
    linkwise observe --store S.db --cluster h100 --gpus 'n0 n1' --job train-7 --nccl-tests out.txt\n  \
    linkwise observe --store S.db --state site.state --job train-7 --trace trace.jsonl --model model.json\n  \
    linkwise observe --store S.db --cluster site.yaml --job train-7 --trace traces/\n\n\
    A trace is JSON lines, {\"collective\":\"all_reduce\",\"size_bytes\":16777216,\"time_us\":790.5} (or busbw_gb_per_s; at_unix_s if\n\
    known), a PyTorch profiler trace of one rank, not compressed, or what `linkwise run --kernel-times --trace FOLDER` kept: then the\n\
    folder; the job's GPUs follow from it where its host names are those of the cluster.\n\n\
    A reading over several hosts updates the model file at once (replaced in one step); a reading of one host counts at the next\n\
    `linkwise fit`. A job that shares a NIC with another one is recorded as contended: such a reading teaches the model nothing. With\n\
    --state and --model, what readings speak against is kept in the state, and `place --state` prefers other components."
)]
pub struct Args {
    /// Store for the reading; made if there is none
    #[arg(long)]
    store: PathBuf,
    /// The job
    #[arg(long)]
    job: String,
    #[command(flatten)]
    got: Got,
    /// Message size of --busbw [default: the one that the job was placed for, else 16 MiB]
    #[arg(long, value_parser = Bytes::parse, requires = "busbw")]
    size: Option<Bytes>,
    /// Collective of --busbw, or of an nccl-tests output that does not tell
    #[arg(long, value_parser = clap::value_parser!(Collective), default_value = "all_reduce")]
    collective: Collective,
    /// State file: the job's GPUs, its neighbours and the cluster come from there
    #[arg(long, required_unless_present = "cluster")]
    state: Option<PathBuf>,
    /// The job's GPUs, such as 'n[0-3]:[0-7]', where neither a state nor a trace of the NCCL plugin names them
    #[arg(long, requires = "cluster")]
    gpus: Option<String>,
    /// Built-in cluster or cluster file
    #[arg(long)]
    cluster: Option<String>,
    /// Model file that learns from it
    #[arg(long)]
    model: Option<PathBuf>,
    /// The readings are of a simulation
    #[arg(long)]
    simulated: bool,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// What the job got, in one of three forms.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Got {
    /// Bus bandwidth, GB/s
    #[arg(long, value_name = "GB_PER_S", value_parser = topology::number::real)]
    busbw: Option<f64>,
    /// Output of nccl-tests, text or JSON, run on the job's GPUs
    #[arg(long, value_name = "FILE")]
    nccl_tests: Option<PathBuf>,
    /// The job's own trace, or a trace of the NCCL plugin (a file, or the folder of all of them)
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    store::state::check_job_id(&args.job).map_err(|e| Failure::input(format!("--job: {e}")))?;
    let mut state = args.state.as_deref().map(State::open).transpose().or_failure()?;
    let cluster = cluster(args.cluster.as_deref(), state.as_ref())?;
    let traces = match &args.got.trace {
        Some(path) if plugin::is_one(path) => Some(plugin::Traces::read(path)?),
        _ => None,
    };
    let whose = match &traces {
        // The plugin's processes wrote where they ran.
        Some(t) if args.gpus.is_none() && state.is_none() => {
            Whose::with(&cluster, None, &args.job, Some(t.gpus(&cluster)?))?
        }
        _ => Whose::find(&cluster, state.as_ref(), &args.job, args.gpus.as_deref())?,
    };
    let (measurements, left_out) = match (&args.got.busbw, &args.got.nccl_tests, &args.got.trace) {
        (Some(v), ..) => (vec![reading::of_number(&whose, args.collective, args.size, *v)], 0),
        (_, Some(file), _) => (reading::of_nccl_tests(&cluster, &whose, args.collective, file)?, 0),
        (.., Some(file)) => match traces {
            Some(t) => t.readings(&whose, args.simulated)?,
            None => reading::of_trace(&whose, file)?,
        },
        _ => return Err(Failure::input("one of --busbw, --nccl-tests and --trace is needed")),
    };
    let mut measurements = measurements;
    if args.simulated {
        measurements.iter_mut().for_each(|m| m.source = store::Source::Simulated);
    }
    for m in &measurements {
        m.check().map_err(|e| Failure::input(format!("what the job got cannot be: {e}")))?;
    }
    // The model file is held locked from here on: two observations at a time learn one after the other.
    let mut model = args.model.as_deref().map(|p| learn::Locked::open(p, &cluster)).transpose()?;
    let mut store = Store::create(&args.store, &cluster).or_failure()?;
    record(&mut store, &measurements)?;
    let learned = match &mut model {
        Some(locked) => {
            let learned = learn(&mut locked.model, &store, &measurements, state.as_mut())?;
            locked.save()?;
            Some(learned)
        }
        None => None,
    };
    let text = match args.format {
        Format::Text => text(&args, &cluster, &measurements, left_out, learned.as_ref()),
        Format::Json => format!("{}\n", json_of(&args, &cluster, &measurements, left_out, learned.as_ref())),
    };
    console::print(&text);
    Ok(())
}

fn text(args: &Args, cluster: &Cluster, ms: &[Measurement], left_out: usize, learned: Option<&Learned>) -> String {
    let mut out = String::new();
    for (i, m) in ms.iter().enumerate() {
        let expected = match learned.and_then(|l| l.expected.get(i)).copied().flatten() {
            Some(p) => format!("; {:.1} ± {:.1} was expected", p.busbw_gb_per_s, p.std_gb_per_s),
            None => String::new(),
        };
        let line = format!(
            "job {} got {:.1} GB/s in {} of {} on {}{expected}",
            args.job,
            m.busbw.gb_per_s(),
            m.collective,
            m.size,
            cluster.gpu_list(&m.allocation)
        );
        out += &wrap(&line, 2);
    }
    if left_out > 0 {
        out += &format!(
            "{left_out} operations of the trace are left out: other group sizes, or no collective with a size\n"
        );
    }
    if let Some(c) = ms.first().and_then(|m| m.contention.as_deref()) {
        out += &format!("contended ({c}): recorded as such, the model learns nothing from it\n");
    }
    out += &format!("{} reading{} in {}\n", ms.len(), if ms.len() == 1 { "" } else { "s" }, args.store.display());
    if let (Some(l), Some(file)) = (learned, &args.model) {
        out += &match l.updates {
            0 => format!("{} has learned nothing: {}\n", file.display(), l.why_not),
            n => format!("{} has learned {n} reading{}\n", file.display(), if n == 1 { "" } else { "s" }),
        };
        for s in l.suspected.iter().take(4) {
            out += &format!("suspected: {s}\n");
        }
        if l.suspected.len() > 4 {
            out += &format!(
                "and {} more; `linkwise doctor` names the most informative next measurement\n",
                l.suspected.len() - 4
            );
        }
    }
    out
}

fn json_of(
    args: &Args,
    cluster: &Cluster,
    ms: &[Measurement],
    left_out: usize,
    learned: Option<&Learned>,
) -> serde_json::Value {
    let reading = |(i, m): (usize, &Measurement)| {
        let expected = learned.and_then(|l| l.expected.get(i)).copied().flatten();
        json!({
            "gpus": cluster.gpu_names(&m.allocation), "collective": m.collective, "size_bytes": m.size,
            "busbw_gb_per_s": m.busbw.gb_per_s(), "contention": m.contention,
            "expected_gb_per_s": expected.map(|p| p.busbw_gb_per_s), "std_gb_per_s": expected.map(|p| p.std_gb_per_s),
        })
    };
    json!({
        "job": args.job,
        "store": args.store,
        "readings": ms.iter().enumerate().map(reading).collect::<Vec<_>>(),
        "left_out": left_out,
        "learned": learned.map_or(0, |l| l.updates),
        "suspected": learned.map(|l| &l.suspected),
    })
}
