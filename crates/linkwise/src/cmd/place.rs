//! `linkwise place`: which GPUs should a job get?
//!
//! Three steps, each a function: [`ask`] makes a request of flags (or [`stream`] of lines), [`answered`] chooses, [`answer`] prints.

mod answer;
mod ask;
mod launch;
pub mod state;
mod stream;
mod text;
mod wary;

use answer::Reply;
use console::Failure;
use files::read_text;
use place::read::{Defaults, Reader};
use place::{Answer, Contention, Refusal, Request, Search};
use predict::Model;
use std::path::{Path, PathBuf};
use topology::nccl::Version;
use topology::{Bytes, Cluster};

/// Largest model file, requests line or list of free GPUs that is read, bytes.
const LIST_BYTES_MAX: usize = 16 << 20;

/// Arguments of `linkwise place`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  linkwise place --cluster h100 --model model.json --gpus 8\n  \
    linkwise place --cluster h100 --model model.json --gpus 8 --free 'n0:[0-5] n[1-2]'\n  \
    linkwise place --cluster h100 --model model.json --pods 4,4 --exclude-hosts n3 --jobs running.json\n  \
    linkwise place --cluster h100 --model model.json --requests jobs.jsonl > answers.jsonl\n\n\
    A split of 64x4 is 64 hosts of 4 GPUs each. GPUs print as n[0-63]:[0-3]; every option reads that form, too.\n\n\
    A request line: {\"id\":1,\"gpus\":8,\"free\":[\"n0:[0-3]\",\"n[1-3]\"]}; answers come one per line, in order. --requests - reads\n\
    standard input. Further fields, all optional: pods [4,4], jobs [{\"id\":\"a\",\"gpus\":[..],\"demand_gb_per_s\":40}], contention\n\
    \"merge\"|\"merge-counts\"|\"physical\", loss_weight 1.0, size_bytes, search, constraints {\"only_hosts\":[..],\"excluded_hosts\":[..],\n\
    \"gpu_type\":\"H100\",\"gpus_per_host_min\":2,\"hosts_max\":2,\"exclusive_nics\":true}.\n\n\
    Without `free` all GPUs are free that are neither drained nor held by `jobs`. A pod lies on one host, several may share one. A job\n\
    without demand takes what the model expects of it alone. One GPU gets the place where it leaves the least damage, with a predicted\n\
    bandwidth of 0, since it talks to nobody; no GPU, a GPU named twice and an unknown GPU are errors.")]
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
    /// Seed of the searches that draw lots
    #[arg(long, default_value_t = 0, value_parser = topology::number::whole::<u64>)]
    seed: u64,
    /// The job to place
    #[command(flatten)]
    ask: ask::Ask,
    #[command(flatten)]
    state: state::StateArgs,
    /// Bandwidths measured of candidates (those under `worth_measuring` of --format json): a file with a JSON object per
    /// line, {"gpus":["n0:0",...],"busbw_gb_per_s":123.4}; the choice is decided again with them
    #[arg(long, conflicts_with = "requests")]
    readings: Option<PathBuf>,
    /// Message size to optimise for (default: the largest that the model was fitted on)
    #[arg(long, value_parser = Bytes::parse)]
    size: Option<Bytes>,
    /// How running jobs and the new one share: `merge` (BandPilot's virtual merge), `merge-counts` (the same by counts, as its code
    /// does) or `physical` (flows, max-min fair)
    #[arg(long, default_value = "merge", value_parser = contention)]
    contention: Contention,
    /// What a GB/s that running jobs lose counts against one that the new job gets
    #[arg(long, default_value_t = 0.0, value_parser = topology::number::real)]
    loss_weight: f64,
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

fn release(text: &str) -> Result<Version, String> {
    text.parse()
}

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    let search = search(&args.search, args.seed).map_err(|e| Failure::input(format!("--search: {}", e.message)))?;
    let mut operator = args.state.open()?;
    let cluster = state::cluster(args.cluster.as_deref(), operator.as_ref())?;
    let model = load_model(&args.model, &cluster)?;
    let size = args.size.unwrap_or_else(|| default_size(&model));
    let defaults = Defaults { size, contention: args.contention, loss_weight: args.loss_weight };
    let reader = Reader::new(&cluster, defaults, ::papers::searches());
    if let Some(file) = &args.requests {
        return stream::Stream {
            cluster: &cluster,
            model: &model,
            reader,
            search,
            seed: args.seed,
            state: operator,
            nccl: args.nccl,
        }
        .run(file);
    }
    let request = args.ask.request(&reader)?;
    let start = std::time::Instant::now();
    let mut choose = |request: &Request| -> Result<Answer, Failure> {
        let found = answered(&cluster, &model, request, &*search).map_err(refused)?;
        match &args.readings {
            Some(file) => ask::decided(found, &cluster, &model, request, &reader, file),
            None => Ok(found),
        }
    };
    let (request, found, avoided) = match &mut operator {
        Some(s) => state::answer(s, &cluster, &model, &request, args.state.commit.as_deref(), &mut choose)?,
        None => {
            let found = choose(&request)?;
            (request, found, None)
        }
    };
    if let Some(a) = &avoided {
        eprintln!("note: {a}");
    }
    let elapsed = start.elapsed();
    let reply = Reply { cluster: &cluster, model: &model, request: &request, answer: &found, elapsed, nccl: args.nccl };
    match args.format {
        PlaceFormat::Text => print!("{}", reply.text()),
        PlaceFormat::Json => println!("{}", reply.json(None)),
        PlaceFormat::Slurm => print!("{}", reply.slurm()),
        PlaceFormat::Hostfile => print!("{}", reply.hostfile()),
    }
    Ok(())
}

/// The choice.
fn answered(cluster: &Cluster, model: &Model, request: &Request, search: &dyn Search) -> Result<Answer, Refusal> {
    place::answer_with(search, cluster, model, request)
}

/// A refusal as the command's failure: 2 where the request is wrong, 1 where it cannot be met.
fn refused(e: Refusal) -> Failure {
    if e.is_malformed() { Failure::input(e) } else { Failure::impossible(e) }
}

/// The search of a name.
fn search(name: &str, seed: u64) -> Result<Box<dyn Search>, place::read::Bad> {
    ::papers::searches().search(name, seed)
}

/// The largest size of a model: what a request without a size is placed for.
fn default_size(model: &Model) -> Bytes {
    model.sizes().last().copied().unwrap_or(Bytes::mib(16))
}

pub fn load_model(path: &Path, cluster: &Cluster) -> Result<Model, Failure> {
    let model = Model::load(&read_text(path, predict::FILE_BYTES_MAX)?, ::papers::models())
        .map_err(|e| Failure::input(format!("{}: {e}", path.display())))?;
    let shape = |c: &Cluster| -> Vec<(String, String, usize)> {
        let of = |h| (c.host(h).name.clone(), c.type_of(h).name.clone(), c.type_of(h).gpu_count());
        c.host_ids().map(of).collect()
    };
    if shape(model.cluster()) != shape(cluster) {
        return Err(Failure::input(format!(
            "{} was fitted on cluster `{}`, whose hosts are not those of `{}`; fit a model for this cluster",
            path.display(),
            model.cluster().name,
            cluster.name
        )));
    }
    Ok(model.on(cluster))
}
