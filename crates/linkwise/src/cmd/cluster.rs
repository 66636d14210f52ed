//! `linkwise cluster`: shows and changes which job holds which GPUs.

mod show;

use crate::cmd::open::{self, OfState};
use crate::store_errors::OrFailure;
use console::number;
use console::{Failure, Format, load_cluster, now_unix_s, wrap};
use engine::{AllocateRequest, DrainRequest, ReleaseRequest, UndrainRequest};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::path::PathBuf;
use store::identity::HostChanges;
use store::{Renames, State, Store, StoreError};
use topology::{Cluster, count};

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
    Show(OfState),
    /// Take over a cluster file with other or renamed hosts, or another network, than before
    Update(Update),
    /// Give GPUs to a job
    Allocate(Allocate),
    /// Release the GPUs of jobs
    Release(Release),
    /// Take hosts or GPUs out of service; jobs that run there continue
    Drain(Drain),
    /// Copy a state or a store of readings in a file while it is in use
    Backup(Backup),
    /// Bring a cluster file up to what Slurm and the nodes say; the same as `linkwise slurm sync`
    Sync(FromSlurm),
}

/// Arguments of `linkwise cluster backup`.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  linkwise cluster backup --state site.db --to site.backup.db
  linkwise cluster backup --state site.readings.db --to readings.backup.db

The copy is the file at one moment; servers and commands go on meanwhile. To restore, stop the server and move the copy to the place of the \
file, without the old -wal and -shm files beside it. A state in PostgreSQL is copied by pg_dump.")]
pub struct Backup {
    /// State or store of readings, a file
    #[arg(long)]
    state: PathBuf,
    /// The copy; must not exist
    #[arg(long)]
    to: PathBuf,
}

/// `cluster sync`.
#[derive(clap::Args)]
pub struct FromSlurm {
    /// From Slurm
    #[arg(long, required = true)]
    slurm: bool,
    #[command(flatten)]
    of_slurm: crate::slurm_sync::Sync,
}

/// What every change takes.
#[derive(clap::Args)]
pub struct Once {
    /// Idempotency key: under the same key the change is done once (for a week, or 10,000 requests)
    #[arg(long)]
    key: Option<String>,
}

/// `cluster update`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  linkwise cluster update --cluster new.yaml --state site.state
  linkwise cluster update --cluster new.yaml --state site.state --rename n7=n7b --store site.db --model model.json
  linkwise cluster update --cluster new.yaml --state site.state --rename 'n[0-63]=gpu-[0-63]' --store site.db

A host with another name counts as one removed and one added unless --rename says that it is the same hardware. Then jobs, drains
and, with --store and --model, readings and what the model learned go on under the new name. The state changes with the store, or
neither does; the same command again changes nothing, and completes one that was stopped.")]
pub struct Update {
    /// Hosts with a new name: OLD=NEW, or lists 'n[0-3]=gpu-[0-3]'; repeatable
    #[arg(long, value_name = "OLD=NEW")]
    rename: Vec<String>,
    /// Store whose readings get the new names; repeatable
    #[arg(long, value_name = "FILE", requires = "rename")]
    store: Vec<PathBuf>,
    /// Model file that gets the new names; repeatable
    #[arg(long, value_name = "FILE", requires = "rename")]
    model: Vec<PathBuf>,
    #[command(flatten)]
    init: Init,
}

/// `cluster init`, and what `cluster update` shares with it.
#[derive(clap::Args)]
pub struct Init {
    /// Built-in cluster or cluster file
    #[arg(long)]
    cluster: String,
    #[command(flatten)]
    common: OfState,
}

/// `cluster allocate`.
#[derive(clap::Args)]
pub struct Allocate {
    /// Job id: letters, digits and ._-/@+:=
    job: String,
    /// GPUs: 'n[0-3]:[0-7]' n5:2 n6 (a host alone means all its GPUs)
    #[arg(required = true)]
    gpus: Vec<String>,
    /// Bus bandwidth that the job uses, GB/s [default: what the model predicts for it]
    #[arg(long, value_name = "GB_PER_S", value_parser = number::real)]
    demand: Option<f64>,
    #[command(flatten)]
    once: Once,
    #[command(flatten)]
    common: OfState,
}

/// `cluster release`.
#[derive(clap::Args)]
pub struct Release {
    /// Jobs; all of them are released, or none if one is unknown
    #[arg(required = true)]
    jobs: Vec<String>,
    #[command(flatten)]
    once: Once,
    #[command(flatten)]
    common: OfState,
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
    /// Put them back into service
    #[arg(long, conflicts_with = "reason")]
    undo: bool,
    #[command(flatten)]
    once: Once,
    #[command(flatten)]
    common: OfState,
}

pub fn run(command: Commands) -> Result<(), Failure> {
    match command {
        Commands::Init(a) => init(&a),
        Commands::Show(a) => show(&a),
        Commands::Update(a) => update(&a),
        Commands::Allocate(a) => allocate(&a),
        Commands::Release(a) => release(&a),
        Commands::Drain(a) => drain(&a),
        Commands::Backup(a) => backup(&a),
        Commands::Sync(a) => sync(&a),
    }
}

fn backup(a: &Backup) -> Result<(), Failure> {
    store::db::backup(&a.state, &a.to).or_failure()?;
    console::print(&format!("{} is a copy of {}\n", a.to.display(), a.state.display()));
    Ok(())
}

/// `--slurm` is the only source as yet; clap requires it.
fn sync(a: &FromSlurm) -> Result<(), Failure> {
    debug_assert!(a.slurm);
    crate::slurm_sync::run(&a.of_slurm)
}

/// Prints one answer in the requested format.
fn print(format: Format, text: impl FnOnce() -> String, json: impl FnOnce() -> Value) {
    match format {
        Format::Text => console::print(&text()),
        Format::Json => console::print(&format!("{}\n", json())),
    }
}

/// `1 GPU is`, `2 GPUs are`.
fn are(gpus: usize) -> String {
    format!("{} {}", count(gpus, "GPU"), if gpus == 1 { "is" } else { "are" })
}

fn free(gpus: usize) -> String {
    format!("{} free", are(gpus))
}

/// Prefix of the answer to a change that was made earlier under the same key.
fn before(repeated: bool) -> &'static str {
    if repeated { "done before under this key: " } else { "" }
}

fn init(a: &Init) -> Result<(), Failure> {
    let cluster = load_cluster(&a.cluster)?;
    let state = State::init(&a.common.state, &cluster, now_unix_s()).or_failure()?;
    let free = cluster.usable().gpu_count();
    print(
        a.common.format,
        || format!("{}: state of cluster {}, {} free\n", state.path().display(), cluster.name, count(free, "GPU")),
        || json!({"state": state.path(), "cluster": cluster.name, "gpus": cluster.gpu_count(), "free": free}),
    );
    Ok(())
}

fn update(a: &Update) -> Result<(), Failure> {
    let cluster = load_cluster(&a.init.cluster)?;
    let renames = a.rename.iter().map(String::as_str);
    let renames = Renames::parse(renames).map_err(|e| Failure::input(format!("--rename: {e}")))?;
    twice("--store", &a.store)?;
    twice("--model", &a.model)?;
    let mut state = State::open(&a.init.common.state).or_failure()?;
    // The models are read before anything changes, and written last: a rename of theirs cannot fail for their content.
    a.model.iter().try_for_each(|m| open::model(m).map(|_| ()))?;
    let network = engine::network_changes(&renames.apply(state.cluster()), &cluster);
    let changes = update_all(&mut state, &cluster, &renames, &a.store)?;
    engine::rename_kept_models(&mut state, renames.names(), papers::models()).or_failure()?;
    for m in &a.model {
        open::rename_in_model(m, &renames).inspect_err(|_| {
            console::say(
                &"note: the state and the stores have the new names; the same command again renames the models",
            );
        })?;
    }
    let renamed = renames.names().len();
    print(
        a.init.common.format,
        || {
            let what = match (changes.is_empty(), renamed) {
                (true, 0) => "the hosts are as they were".into(),
                (true, n) => renamed_text(n),
                (false, 0) => changes.text(),
                (false, n) => format!("{}, {}", renamed_text(n), changes.text()),
            };
            let taken = wrap(&format!("{}: cluster {} taken over; {what}", state.path().display(), cluster.name), 2);
            match network.is_empty() {
                true => taken,
                false => taken + &wrap(&format!("{}.", open::network_note(&network)), 2),
            }
        },
        || {
            json!({"state": state.path(), "cluster": cluster.name, "changes": changes, "renamed": renames.names(),
                "network_changes": network})
        },
    );
    Ok(())
}

/// Refuses a file that is given twice.
fn twice(flag: &str, files: &[PathBuf]) -> Result<(), Failure> {
    let mut seen = HashSet::new();
    for f in files {
        if !seen.insert(f.canonicalize().unwrap_or_else(|_| f.clone())) {
            return Err(Failure::input(format!("{flag}: {} is given twice", store::db::shown(f).display())));
        }
    }
    Ok(())
}

fn renamed_text(n: usize) -> String {
    format!("{n} host{} renamed", if n == 1 { "" } else { "s" })
}

/// Updates the state inside the transactions of the stores, so that either all change or none.
fn update_all(
    state: &mut State,
    cluster: &Cluster,
    renames: &Renames,
    stores: &[PathBuf],
) -> Result<HostChanges, Failure> {
    let Some((first, rest)) = stores.split_first() else {
        return state.update_cluster_renamed(cluster, renames).or_failure();
    };
    let mut inner = None;
    let opened = Store::open_renamed(first, cluster, renames, || {
        let done = update_all(state, cluster, renames, rest);
        let failed = done.is_err();
        inner = Some(done);
        if failed { Err(StoreError::Rename(String::new())) } else { Ok(()) }
    });
    match inner {
        Some(Err(e)) => Err(e),
        Some(Ok(changes)) => opened.or_failure().map(|_| changes),
        None => Err(opened.map(|_| ()).or_failure().expect_err("the closure ran if the store was opened")),
    }
}

fn show(a: &OfState) -> Result<(), Failure> {
    let engine = open::state(&a.state)?;
    let now = engine.status().or_failure()?;
    print(a.format, || show::text(engine.cluster(), &now, now_unix_s()), || json!(now));
    Ok(())
}

fn allocate(a: &Allocate) -> Result<(), Failure> {
    let engine = open::state(&a.common.state)?;
    let (job, gpus) = (a.job.clone(), a.gpus.clone());
    let request = AllocateRequest { job, gpus, demand_gb_per_s: a.demand, lease_s: None, key: a.once.key.clone() };
    let done = engine.allocate(&request, now_unix_s()).or_failure()?;
    print(
        a.common.format,
        || {
            let verb = if done.already { "held these before" } else { "holds" };
            let n = done.gpus.gpu_count();
            let list = engine.cluster().gpu_list(&done.gpus.allocation(engine.cluster()));
            let before = before(done.repeated);
            wrap(&format!("{before}job {} {verb}: {list} ({}); {}", done.job, count(n, "GPU"), free(done.free)), 2)
        },
        || json!(done),
    );
    Ok(())
}

fn release(a: &Release) -> Result<(), Failure> {
    let engine = open::state(&a.common.state)?;
    let request = ReleaseRequest { jobs: a.jobs.clone(), key: a.once.key.clone() };
    let done = engine.release(&request, now_unix_s()).or_failure()?;
    print(
        a.common.format,
        || {
            let before = before(done.repeated);
            let line = |j: &engine::ReleasedJob| {
                format!("{before}job {} released {}\n", j.job, count(j.gpus.gpu_count(), "GPU"))
            };
            done.released.iter().map(line).collect::<String>() + &format!("{}\n", free(done.free))
        },
        || json!(done),
    );
    Ok(())
}

fn drain(a: &Drain) -> Result<(), Failure> {
    let engine = open::state(&a.common.state)?;
    let (gpus, key) = (a.gpus.clone(), a.once.key.clone());
    if a.undo {
        let done = engine.undrain(&UndrainRequest { gpus, key }, now_unix_s()).or_failure()?;
        print(
            a.common.format,
            || {
                let file = match done.drained_by_cluster_file {
                    0 => String::new(),
                    n => format!("; {n} stay drained by the cluster file"),
                };
                let (before, n) = (before(done.repeated), done.undrained);
                format!("{before}undrained {n} of {}{file}; {}\n", count(done.named, "GPU"), free(done.free))
            },
            || json!(done),
        );
        return Ok(());
    }
    let request = DrainRequest { gpus, reason: a.reason.clone(), key };
    let done = engine.drain(&request, now_unix_s()).or_failure()?;
    print(
        a.common.format,
        || {
            let go_on = match done.jobs_going_on.as_slice() {
                [] => String::new(),
                some => format!("; jobs that hold some of them go on: {}", some.join(", ")),
            };
            let (before, n) = (before(done.repeated), done.drained.gpu_count());
            wrap(&format!("{before}{} drained{go_on}; {}", are(n), free(done.free)), 2)
        },
        || json!(done),
    );
    Ok(())
}
