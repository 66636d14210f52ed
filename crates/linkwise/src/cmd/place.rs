//! `linkwise place`: chooses GPUs for a job.
//!
//! Three steps: [`ask`] builds a request from the flags (or [`stream`] from input lines), the engine answers it,
//! [`reply`] prints the answer.

mod ask;
mod launch;
mod reply;
mod stream;
mod text;

use crate::cmd::open;
use crate::store_errors::OrFailure;
use console::{Failure, now_unix_s, wrap};
use engine::PlaceQuery;
use place::read::{Defaults, Reader};
use place::{Contention, Slack};
use reply::Reply;
use std::path::PathBuf;
use topology::Bytes;
use topology::nccl::Version;

/// Maximum size of a list of free GPUs or of readings, bytes.
const LIST_BYTES_MAX: usize = 16 << 20;

/// Arguments of `linkwise place`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  linkwise place --cluster h100 --model model.json --gpus 8\n  \
    linkwise place --cluster h100 --model model.json --gpus 8 --free 'n0:[0-5] n[1-2]'\n  \
    linkwise place --cluster h100 --model model.json --pods 4,4 --exclude-hosts n3 --jobs running.json\n  \
    linkwise place --cluster h100 --model model.json --requests jobs.jsonl > answers.jsonl\n\n\
    A split of 64x4 is 64 hosts of 4 GPUs each. GPUs print as n[0-63]:[0-3]; every option reads that form, too.\n\n\
    --requests reads a request per line, and answers one per line in the same order; - is standard input:\n  \
      {\"id\":1,\"gpus\":8,\"free\":[\"n0:[0-3]\",\"n[1-3]\"]}\n\n\
    All other fields are optional (docs/requests.md explains them):\n  \
      \"pods\":[4,4]\n  \
      \"jobs\":[{\"id\":\"a\",\"gpus\":[\"n3:0\",\"n3:1\"],\"demand_gb_per_s\":40}]\n  \
      \"constraints\":{\"only_hosts\":[\"n0\"],\"excluded_hosts\":[\"n3\"],\"gpu_type\":\"H100\",\n  \
      \"gpus_per_host_min\":2,\"hosts_max\":2,\"exclusive_nics\":true,\"uneven\":true,\n  \
      \"per_host\":4,\"switches_max\":1,\"require_level\":\"leaf\"}\n  \
      \"groups\":[{\"kind\":\"tensor\",\"size\":4}], \"slack\":\"5%\", \"size_bytes\":16777216\n  \
      \"contention\":\"merge\", \"loss_weight\":1.0, \"search\":\"auto\"\n\n\
    Without `free` all GPUs are free that are neither drained nor held by `jobs`. A pod lies on one host; several pods may share one. \
    A job without demand takes the bandwidth that the model expects of it alone. A request for one GPU gets the GPU whose loss costs \
    the remaining GPUs least, and a predicted bandwidth of 0. No GPU, a GPU named twice and an unknown GPU are errors.")]
pub struct Args {
    /// Built-in cluster or cluster file; must be the one that the model was fitted on
    #[arg(long, required_unless_present = "state")]
    cluster: Option<String>,
    /// Model file of `linkwise fit`
    #[arg(long)]
    model: PathBuf,
    /// How to search (a wrong name lists them); a request line may name another
    #[arg(long, default_value = "auto")]
    search: String,
    /// Random seed (randomized searches only)
    #[arg(long, default_value_t = 0, value_parser = console::number::whole::<u64>)]
    seed: u64,
    /// The job to place
    #[command(flatten)]
    ask: ask::Ask,
    /// State file of `linkwise cluster`: gives the free GPUs, the running jobs and the cluster
    #[arg(long, conflicts_with = "jobs")]
    state: Option<PathBuf>,
    /// Take the chosen GPUs for this job, in one step with choosing them. The same request for the same job gets the same answer again
    #[arg(long, value_name = "JOB", requires = "state", conflicts_with = "requests")]
    commit: Option<String>,
    /// Idempotency key of --commit: under the same key the same request gets the same answer for a week or 10,000 requests, even after the job was released
    #[arg(long, requires = "commit")]
    key: Option<String>,
    /// Bandwidths measured of candidates (those under `worth_measuring` of --format json): a file with a JSON object per
    /// line, {"gpus":["n0:0",...],"busbw_gb_per_s":123.4}; the choice is decided again with them
    #[arg(long, conflicts_with = "requests")]
    readings: Option<PathBuf>,
    /// Message size to optimise for (default: the largest that the model was fitted on)
    #[arg(long, value_parser = Bytes::parse)]
    size: Option<Bytes>,
    /// How running jobs and the new one share: `merge` (BandPilot's virtual merge), `merge-counts` (the same by counts, as its code
    /// does) or `physical` (flows, max-min fair) (default: `physical` where the cluster has switches, else `merge`)
    #[arg(long, value_parser = contention)]
    contention: Option<Contention>,
    /// Weight of bandwidth lost by running jobs (0: ignore; 1: as important as the new job's)
    #[arg(long, default_value_t = 0.0, value_parser = console::number::real)]
    loss_weight: f64,
    /// Bandwidth that is given up for fewer hosts, fewer switches, an even split and whole hosts: `5%`, or `1sd` (deviations of the difference
    /// of two predictions). The simple rule (one host, else the lowest switch, the fewest hosts, an even split) is left only for more
    #[arg(long, default_value = "1sd", value_parser = slack)]
    slack: Slack,
    /// NCCL release, such as 2.28: says which of its settings are worth trying on the choice (by the model; `linkwise nccl advise` checks
    /// them in the library)
    #[arg(long, value_name = "RELEASE", value_parser = release)]
    nccl: Option<Version>,
    /// File of requests, a JSON object per line; `-` is standard input
    #[arg(long)]
    requests: Option<PathBuf>,
    /// Output format of --gpus
    #[arg(long, value_enum, default_value = "text")]
    format: PlaceFormat,
}

/// Forms of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum PlaceFormat {
    /// Sentences and a table
    Text,
    /// One JSON object
    Json,
    /// Options for srun and salloc
    Slurm,
    /// Open MPI hostfile, with the GPUs of every host
    Hostfile,
}

fn contention(name: &str) -> Result<Contention, String> {
    let known = ::papers::searches();
    known.contention(name).ok_or_else(|| format!("{} was expected", known.contention_names()))
}

fn slack(text: &str) -> Result<Slack, String> {
    text.parse()
}

fn release(text: &str) -> Result<Version, String> {
    text.parse()
}

pub fn run(args: Args) -> Result<(), Failure> {
    if let Some(id) = &args.commit {
        store::state::check_job_id(id).map_err(|e| Failure::input(format!("--commit: {e}")))?;
    }
    let builder = open::with_state(args.cluster.as_deref(), args.state.as_deref())?;
    let engine = open::build(builder.model_file(open::model(&args.model)?), &args.model)?;
    engine.check_search(&args.search).map_err(|e| Failure::input(format!("--search: {e}")))?;
    let size = args.size.unwrap_or_else(|| engine.default_size());
    let contention = args.contention.unwrap_or_else(|| Contention::of(engine.cluster()));
    let defaults = Defaults { size, contention, loss_weight: args.loss_weight, slack: args.slack };
    let reader = Reader::new(engine.cluster(), defaults, ::papers::searches());
    if let Some(file) = &args.requests {
        let (search, seed, nccl) = (&args.search, args.seed, args.nccl);
        return stream::Stream { engine: &engine, reader, search, seed, nccl }.run(file);
    }
    let query = PlaceQuery {
        search: args.search.clone(),
        seed: args.seed,
        measured: args.readings.as_deref().map_or(Ok(Vec::new()), |file| ask::read_readings(&reader, file))?,
        commit: args.commit.clone(),
        key: args.key.clone(),
        ..PlaceQuery::new(args.ask.request(&reader)?)
    };
    let start = std::time::Instant::now();
    let answer = engine.place(&query, now_unix_s()).map_err(|e| match (&e, &args.readings) {
        (engine::EngineError::NotACandidate { .. }, Some(file)) => Failure::input(format!("{}: {e}", file.display())),
        _ => Err::<(), _>(e).or_failure().unwrap_err(),
    })?;
    let reply = Reply { cluster: engine.cluster(), answer: &answer, elapsed: start.elapsed(), nccl: args.nccl };
    for note in reply.notes() {
        console::say(&wrap(&format!("note: {note}"), 2).trim_end());
    }
    match args.format {
        PlaceFormat::Text => console::print(&reply.text()),
        PlaceFormat::Json => console::print(&format!("{}\n", reply.json(None))),
        PlaceFormat::Slurm => console::print(&reply.slurm()),
        PlaceFormat::Hostfile => console::print(&reply.hostfile()),
    }
    Ok(())
}
