//! `linkwise cluster`: who holds which GPU.

mod show;

use crate::store_errors::OrFailure;
use console::Failure;
use console::now_unix_s;
use console::{Format, load_cluster, wrap};
use serde_json::{Value, json};
use std::path::PathBuf;
use store::State;
use store::state::{Allocated, JobHeld, NewJob};
use topology::{Allocation, Cluster, number};

/// The commands.
#[derive(clap::Subcommand)]
#[command(after_help = "\
Example: a day with a state file
  linkwise cluster init --cluster site.yaml --state site.state
  linkwise place --state site.state --model model.json --gpus 16 --commit train-7
  linkwise cluster show --state site.state
  linkwise cluster drain n3 --reason 'NIC 4 flaps' --state site.state
  linkwise cluster release train-7 --state site.state

The file is SQLite on a local disk. Commands may run at the same time: they take turns, and no GPU is ever given out twice.
Exit codes: 0 done, 1 not possible as things stand (held, drained, exists already), 2 bad input.")]
pub enum Commands {
    /// Make the state file of a cluster
    Init(Init),
    /// Show jobs, free GPUs and drained ones
    Show(Common),
    /// Give GPUs to a job
    Allocate(Allocate),
    /// Take back what jobs hold
    Release(Release),
    /// Give no more work to hosts or GPUs; jobs that run there go on
    Drain(Drain),
}

/// What every command needs.
#[derive(clap::Args)]
pub struct Common {
    /// State file
    #[arg(long)]
    state: PathBuf,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// `cluster init`.
#[derive(clap::Args)]
pub struct Init {
    /// Built-in cluster or cluster file
    #[arg(long)]
    cluster: String,
    #[command(flatten)]
    common: Common,
}

/// `cluster allocate`.
#[derive(clap::Args)]
pub struct Allocate {
    /// Its id: letters, digits and ._-/@+:=
    job: String,
    /// GPUs: 'n[0-3]:[0-7]' n5:2 n6 (a host alone means all its GPUs)
    #[arg(required = true)]
    gpus: Vec<String>,
    /// Bus bandwidth that it uses, GB/s; without it decisions take what the model expects of the job
    #[arg(long, value_name = "GB_PER_S", value_parser = number::real)]
    demand: Option<f64>,
    #[command(flatten)]
    common: Common,
}

/// `cluster release`.
#[derive(clap::Args)]
pub struct Release {
    /// Jobs; all of them are released, or none if one is unknown
    #[arg(required = true)]
    jobs: Vec<String>,
    #[command(flatten)]
    common: Common,
}

/// `cluster drain`.
#[derive(clap::Args)]
pub struct Drain {
    /// Hosts or GPUs: n3, n0:5, 'n[20-21]', 'n0:[4-7]'
    #[arg(required = true)]
    gpus: Vec<String>,
    /// Why, one line
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
    /// Give them back
    #[arg(long, conflicts_with = "reason")]
    undo: bool,
    #[command(flatten)]
    common: Common,
}

/// Runs it.
pub fn run(command: Commands) -> Result<(), Failure> {
    match command {
        Commands::Init(a) => init(&a),
        Commands::Show(a) => show(&a),
        Commands::Allocate(a) => allocate(&a),
        Commands::Release(a) => release(&a),
        Commands::Drain(a) => drain(&a),
    }
}

/// One answer in the form asked for.
fn print(format: Format, text: impl FnOnce() -> String, json: impl FnOnce() -> Value) {
    match format {
        Format::Text => console::print(&text()),
        Format::Json => console::print(&format!("{}\n", json())),
    }
}

fn init(a: &Init) -> Result<(), Failure> {
    let cluster = load_cluster(&a.cluster)?;
    let state = State::init(&a.common.state, &cluster, now_unix_s()).or_failure()?;
    let free = cluster.usable().gpu_count();
    print(
        a.common.format,
        || format!("{}: state of cluster {}, {free} GPUs free\n", state.path().display(), cluster.name),
        || json!({"state": state.path(), "cluster": cluster.name, "gpus": cluster.gpu_count(), "free": free}),
    );
    Ok(())
}

fn show(a: &Common) -> Result<(), Failure> {
    let state = State::open(&a.state).or_failure()?;
    let now = state.snapshot().or_failure()?;
    print(a.format, || show::text(state.cluster(), &now, now_unix_s()), || show::json(state.cluster(), &now));
    Ok(())
}

fn parse(cluster: &Cluster, gpus: &[String]) -> Result<Allocation, Failure> {
    cluster.parse_gpus(gpus.iter().map(String::as_str)).map_err(Failure::input)
}

fn allocate(a: &Allocate) -> Result<(), Failure> {
    let mut state = State::open(&a.common.state).or_failure()?;
    let gpus = parse(state.cluster(), &a.gpus)?;
    let job = NewJob { id: a.job.clone(), gpus, demand_gb_per_s: a.demand, predicted_gb_per_s: None, size: None };
    let done = state.allocate(&job, now_unix_s()).or_failure()?;
    let free = state.snapshot().or_failure()?.free.gpu_count();
    let names = state.cluster().gpu_names(&job.gpus);
    let already = done == Allocated::Already;
    print(
        a.common.format,
        || {
            let verb = if already { "held these before" } else { "holds" };
            let list = state.cluster().gpu_list(&job.gpus);
            wrap(&format!("job {} {verb}: {list} ({} GPUs); {free} GPUs are free", job.id, names.len()), 2)
        },
        || json!({"job": job.id, "gpus": names, "already": already, "free": free}),
    );
    Ok(())
}

fn release(a: &Release) -> Result<(), Failure> {
    let mut state = State::open(&a.common.state).or_failure()?;
    let mut ids = a.jobs.clone();
    ids.sort();
    if let Some(twice) = ids.windows(2).find(|w| w[0] == w[1]) {
        return Err(Failure::input(format!("job `{}` is named twice", twice[0])));
    }
    let released = state.release(&a.jobs).or_failure()?;
    let free = state.snapshot().or_failure()?.free.gpu_count();
    let cluster = state.cluster();
    print(
        a.common.format,
        || {
            let line = |j: &JobHeld| format!("job {} released {} GPUs\n", j.id, j.gpus.gpu_count());
            released.iter().map(line).collect::<String>() + &format!("{free} GPUs are free\n")
        },
        || {
            let job = |j: &JobHeld| json!({"job": j.id, "gpus": cluster.gpu_names(&j.gpus)});
            json!({"released": released.iter().map(job).collect::<Vec<_>>(), "free": free})
        },
    );
    Ok(())
}

fn drain(a: &Drain) -> Result<(), Failure> {
    let mut state = State::open(&a.common.state).or_failure()?;
    let gpus = parse(state.cluster(), &a.gpus)?;
    let n = gpus.gpu_count();
    if a.undo {
        let back = state.undrain(&gpus).or_failure()?;
        let of_file = state.cluster().usable();
        let stay = gpus.gpus().filter(|g| !of_file.mask(g.host).contains(g.gpu.into())).count();
        let free = state.snapshot().or_failure()?.free.gpu_count();
        print(
            a.common.format,
            || {
                let file = match stay {
                    0 => String::new(),
                    n => format!("; {n} stay drained by the cluster file"),
                };
                format!("{back} of {n} GPUs were drained and are not any more{file}; {free} GPUs are free\n")
            },
            || json!({"undrained": back, "drained_by_cluster_file": stay, "free": free}),
        );
        return Ok(());
    }
    let running = state.drain(&gpus, &a.reason, now_unix_s()).or_failure()?;
    let free = state.snapshot().or_failure()?.free.gpu_count();
    let names: Vec<&str> = running.iter().map(|j| j.id.as_str()).collect();
    print(
        a.common.format,
        || {
            let go_on = match names.as_slice() {
                [] => String::new(),
                some => format!("; jobs that hold some of them go on: {}", some.join(", ")),
            };
            wrap(&format!("{n} GPUs are drained{go_on}; {free} GPUs are free"), 2)
        },
        || json!({"drained": state.cluster().gpu_names(&gpus), "jobs_going_on": names, "free": free}),
    );
    Ok(())
}
