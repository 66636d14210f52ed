//! `linkwise place`: which GPUs should a job get?

mod answer;
mod stream;

use crate::cmd::shared::{load_cluster, read_text};
use crate::failure::Failure;
use answer::Reply;
use place::Request;
use predict::Model;
use std::path::{Path, PathBuf};
use topology::{Allocation, Bytes, Cluster};

/// Largest model file, requests line or list of free GPUs that is read, bytes.
const LIST_BYTES_MAX: usize = 16 << 20;

/// Arguments of `linkwise place`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  linkwise place --cluster h100 --model model.json --gpus 8\n  \
    linkwise place --cluster h100 --model model.json --gpus 8 --free 'n0:0 n0:1 n0:2 n0:3 n0:4 n0:5 n1 n2'\n  \
    linkwise place --cluster h100 --model model.json --requests jobs.jsonl > answers.jsonl\n\n\
    A request line: {\"id\":1,\"gpus\":8,\"free\":[\"n0:0\",\"n0:1\",...]}; answers come one per line, in order. --requests - reads\n\
    standard input. Without `free` all GPUs that are not drained are free. One GPU gets the place where it leaves the least damage,\n\
    with a predicted bandwidth of 0, since it talks to nobody; no GPU, a GPU named twice and an unknown GPU are errors.")]
pub struct Args {
    /// Built-in cluster or cluster file; must be the one that the model was fitted on
    #[arg(long)]
    cluster: String,
    /// Model file of `linkwise fit`
    #[arg(long)]
    model: PathBuf,
    /// How to search
    #[arg(long, value_enum, default_value = "exact")]
    search: Search,
    /// How many GPUs
    #[arg(long, conflicts_with = "requests", required_unless_present = "requests")]
    gpus: Option<usize>,
    /// Free GPUs: `n0:0 n0:1 n1` (a host alone means all its GPUs), or a file with such a list
    #[arg(long, requires = "gpus")]
    free: Option<String>,
    /// Bandwidths measured of candidates (those under `worth_measuring` of --format json): a file with a JSON object per
    /// line, {"gpus":["n0:0",...],"busbw_gb_per_s":123.4}; the choice is decided again with them
    #[arg(long, requires = "gpus")]
    readings: Option<PathBuf>,
    /// Message size to optimise for (default: the largest that the model was fitted on)
    #[arg(long, value_parser = Bytes::parse)]
    size: Option<Bytes>,
    /// File of requests, a JSON object per line; `-` is standard input
    #[arg(long)]
    requests: Option<PathBuf>,
    /// Output format of --gpus
    #[arg(long, value_enum, default_value = "text")]
    format: PlaceFormat,
}

/// Searches by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Search {
    /// Every split over the hosts, with the GPUs that can matter on each
    Exact,
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

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    let cluster = load_cluster(&args.cluster)?;
    let model = load_model(&args.model, &cluster)?;
    let Search::Exact = args.search;
    if let Some(file) = &args.requests {
        return stream::run(&cluster, &model, file, args.size);
    }
    let free = match &args.free {
        None => cluster.usable(),
        Some(list) => parse_free(&cluster, &free_text(list)?)?,
    };
    let size = args.size.unwrap_or_else(|| default_size(&model));
    let request = Request::new(args.gpus.unwrap_or_default(), free, size);
    let start = std::time::Instant::now();
    let mut found = place::answer(&cluster, &model, &request).map_err(|e| match e {
        place::Refusal::NoGpus => Failure::input(e),
        e => Failure::impossible(e),
    })?;
    if let Some(file) = &args.readings {
        let readings = read_readings(&cluster, file)?;
        found = found.decided(&cluster, &model, &request, &readings).map_err(|a| {
            let gpus = cluster.gpu_names(&a).join(" ");
            Failure::input(format!("{}: {gpus} is not among the candidates of this request", file.display()))
        })?;
    }
    let reply = Reply { cluster: &cluster, model: &model, request: &request, answer: &found, elapsed: start.elapsed() };
    match args.format {
        PlaceFormat::Text => print!("{}", reply.text()),
        PlaceFormat::Json => println!("{}", reply.json(None)),
        PlaceFormat::Slurm => print!("{}", reply.slurm()),
        PlaceFormat::Hostfile => print!("{}", reply.hostfile()),
    }
    Ok(())
}

/// The largest size of a model: what a request without a size is placed for.
fn default_size(model: &Model) -> Bytes {
    model.sizes().last().copied().unwrap_or(Bytes::mib(16))
}

fn load_model(path: &Path, cluster: &Cluster) -> Result<Model, Failure> {
    let model = Model::load(&read_text(path, predict::file::FILE_BYTES_MAX)?)
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

/// A list given on the command line, or the content of the file that it names.
fn free_text(list: &str) -> Result<String, Failure> {
    let path = Path::new(list);
    if !list.contains([' ', ',']) && path.is_file() { read_text(path, LIST_BYTES_MAX) } else { Ok(list.to_owned()) }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadingLine {
    gpus: Vec<String>,
    busbw_gb_per_s: f64,
}

/// Most lines of a readings file.
const READINGS_MAX: usize = 1000;

/// Allocations and what was measured of them.
fn read_readings(cluster: &Cluster, file: &Path) -> Result<Vec<(Allocation, f64)>, Failure> {
    let text = read_text(file, LIST_BYTES_MAX)?;
    let lines = text.lines().enumerate().filter(|l| !l.1.trim().is_empty()).take(READINGS_MAX);
    lines
        .map(|(i, line)| {
            let bad = |e: String| Failure::input(format!("{}:{}: {e}", file.display(), i + 1));
            let r: ReadingLine = serde_json::from_str(line).map_err(|e| bad(e.to_string()))?;
            if !(r.busbw_gb_per_s > 0.0 && r.busbw_gb_per_s < 1e6) {
                return Err(bad(format!("`busbw_gb_per_s` is {}, a positive number was expected", r.busbw_gb_per_s)));
            }
            Ok((cluster.parse_gpus(r.gpus.iter().map(String::as_str)).map_err(bad)?, r.busbw_gb_per_s))
        })
        .collect()
}

/// Free GPUs in text; drained ones are not given out.
fn parse_free(cluster: &Cluster, text: &str) -> Result<Allocation, Failure> {
    cluster.parse_gpus([text]).map(|a| without_drained(cluster, &a)).map_err(|e| Failure::input(format!("--free: {e}")))
}

fn without_drained(cluster: &Cluster, a: &Allocation) -> Allocation {
    Allocation::new(a.parts().iter().map(|&(h, m)| (h, m.minus(cluster.host(h).drained))))
}
