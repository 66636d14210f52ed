//! `linkwise slurm`: exact GPUs for Slurm's jobs.

mod agent;
mod queue;

use crate::cmd::open;
use crate::slurm_programs::{self, PROGRAM_TIME_MAX};
use crate::slurm_sync;
use console::{Failure, Format, now_unix_s, table, text_of};
use engine::{Engine, ExplainRequest, PlaceRequest};
use serde_json::json;
use slurm::books;
use std::path::{Path, PathBuf};
use topology::{Allocation, GpuMask, HostId, names};

/// The commands.
#[derive(clap::Subcommand)]
#[command(after_help = "\
Example:
  linkwise slurm sync --host-type hgx-h100 --topology /etc/slurm/topology.conf -o site.yaml
  linkwise slurm advise --cluster site.yaml --model model.json
  linkwise slurm check
  linkwise slurm agent --cluster site.yaml --model model.json
  linkwise slurm squeue --cluster site.yaml --model model.json

The agent answers the plugin burst_buffer/linkwise of slurmctld (docs/slurm.md). If the agent stops, Slurm places jobs itself.")]
pub enum Commands {
    /// Answer the controller's plugin: which GPUs a job gets when it starts
    Agent(agent::AgentArgs),
    /// Check that the plugin is built for the installed controller, before a restart
    Check(Check),
    /// Compare the GPUs of running jobs with linkwise's choice; changes nothing
    Advise(Advise),
    /// Show waiting and running jobs with their predicted bandwidth
    Squeue(queue::Squeue),
    /// Show the plugin, the GPUs that are kept out, and the nodes that are out of service
    Status(queue::Status),
    /// Write a cluster file from Slurm's nodes, topology.conf or topology.yaml, gres.conf and nvidia-smi, or bring one up to date
    Sync(slurm_sync::Sync),
}

/// The files that decide.
#[derive(clap::Args)]
pub struct Site {
    /// Cluster file
    #[arg(long)]
    cluster: String,
    /// Model file
    #[arg(long)]
    model: PathBuf,
    /// State file: its drains and suspected components
    #[arg(long)]
    state: Option<PathBuf>,
}

/// Arguments of `linkwise slurm check`.
#[derive(clap::Args)]
pub struct Check {
    /// The plugin [default: burst_buffer_linkwise.so in the folders of PluginDir]
    #[arg(long)]
    plugin: Option<PathBuf>,
}

/// Arguments of `linkwise slurm advise`.
#[derive(clap::Args)]
pub struct Advise {
    #[command(flatten)]
    site: Site,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// Runs one.
pub fn run(command: Commands) -> Result<(), Failure> {
    match command {
        Commands::Agent(a) => agent::run(&a),
        Commands::Check(a) => check(&a),
        Commands::Advise(a) => advise(&a),
        Commands::Squeue(a) => queue::squeue(&a),
        Commands::Status(a) => queue::status(&a),
        Commands::Sync(a) => slurm_sync::run(&a),
    }
}

/// Maximum size of a plugin, bytes.
const PLUGIN_BYTES_MAX: usize = 64 << 20;

fn config() -> Result<String, Failure> {
    slurm_programs::output("scontrol", &["show", "config"], PROGRAM_TIME_MAX).map_err(Failure::input)
}

impl Site {
    fn engine(&self) -> Result<Engine, Failure> {
        let builder = open::with_state(Some(&self.cluster), self.state.as_deref())?;
        open::build(builder.model_file(open::model(&self.model)?), &self.model)
    }

    /// The engine without the state: the books of Slurm say who holds what.
    fn engine_of_books(&self) -> Result<Engine, Failure> {
        let builder = open::with_state(Some(&self.cluster), None)?;
        open::build(builder.model_file(open::model(&self.model)?), &self.model)
    }
}

fn check(a: &Check) -> Result<(), Failure> {
    let path = match &a.plugin {
        Some(p) => p.clone(),
        None => {
            let config = config()?;
            let folders = books::setting(&config, "PluginDir").unwrap_or_default();
            let file = |f: &str| Path::new(f).join("burst_buffer_linkwise.so");
            folders.split(':').map(file).find(|p| p.is_file()).ok_or_else(|| {
                Failure::impossible(format!(
                    "no burst_buffer_linkwise.so in {folders}; `scripts/build-slurm.sh` makes it"
                ))
            })?
        }
    };
    let bytes = files::read_limited(&path, PLUGIN_BYTES_MAX)?;
    const MARK: &[u8] = b"linkwise-built-for-slurm=";
    let at = bytes.windows(MARK.len()).position(|w| w == MARK);
    let version = at.map(|i| &bytes[i + MARK.len()..]).and_then(|rest| rest.split(|b| *b == 0).next());
    let built = version.map(|v| String::from_utf8_lossy(&v[..v.len().min(32)]).into_owned());
    let built = built.ok_or_else(|| Failure::input(format!("{} is no plugin of linkwise", path.display())))?;
    let text = slurm_programs::output("slurmctld", &["-V"], PROGRAM_TIME_MAX).map_err(Failure::input)?;
    let installed = text.split_whitespace().last().unwrap_or_default();
    if built != installed {
        return Err(Failure::impossible(format!(
            "{} is built for Slurm {built}, and slurmctld is {installed}: slurmctld would not start. Build the plugin again \
             (scripts/build-slurm.sh), or take BurstBufferType=burst_buffer/linkwise out of slurm.conf before the restart",
            path.display()
        )));
    }
    console::print(&format!("{} fits: plugin and slurmctld are Slurm {installed}\n", path.display()));
    Ok(())
}

/// A running job: what it has, and what it could have.
struct Compared {
    job: u32,
    has: String,
    has_gb_per_s: f64,
    best: String,
    best_gb_per_s: f64,
}

fn advise(a: &Advise) -> Result<(), Failure> {
    let engine = a.site.engine_of_books()?;
    let cluster = engine.cluster();
    let nodes = slurm_programs::nodes(PROGRAM_TIME_MAX).map_err(Failure::input)?;
    let text = slurm_programs::jobs(PROGRAM_TIME_MAX).map_err(Failure::input)?;
    let jobs: Vec<(u32, Allocation)> = books::jobs(&text)
        .iter()
        .filter(|j| j.state.starts_with("RUNNING"))
        .filter_map(|j| Some((j.id, books::held(cluster, j)?)))
        .collect();
    let up =
        nodes.iter().filter(|n| !slurm::mirror::is_out(&n.state)).filter_map(|n| names::slurm::host(cluster, &n.name));
    let suspected = slurm::suspected(&a.site.engine()?, now_unix_s()).unwrap_or_default();
    let taken = |except: u32| -> Vec<(HostId, GpuMask)> {
        let held = jobs.iter().filter(|j| j.0 != except).flat_map(|j| j.1.parts().to_vec());
        held.chain(suspected.parts().to_vec()).collect()
    };
    let up: Vec<HostId> = up.collect();
    let mut rows = Vec::new();
    for (id, has) in jobs.iter().filter(|j| j.1.gpu_count() > 1) {
        let out = Allocation::new(taken(*id));
        let free = |h: &HostId| (*h, GpuMask(cluster.type_of(*h).all_gpus().0 & !out.mask(*h).0));
        let free = Allocation::new(up.iter().map(free));
        let request = PlaceRequest {
            gpus: Some(has.gpu_count() as u64),
            free: Some(cluster.gpu_names(&free)),
            ..PlaceRequest::default()
        };
        let explain = ExplainRequest { gpus: Some(cluster.gpu_names(has)), ..ExplainRequest::default() };
        let (Ok(now), Ok(best)) = (engine.explain(&explain), engine.place_request(&request, now_unix_s())) else {
            continue;
        };
        rows.push(Compared {
            job: *id,
            has: cluster.gpu_list(has),
            has_gb_per_s: now.expected.predicted_busbw_gb_per_s,
            best: cluster.gpu_list(&best.gpus.allocation(cluster)),
            best_gb_per_s: best.predicted_busbw_gb_per_s,
        });
    }
    match a.format {
        Format::Json => {
            let row = |r: &Compared| json!({"job": r.job, "gpus": r.has, "busbw_gb_per_s": r.has_gb_per_s, "choice": r.best, "choice_gb_per_s": r.best_gb_per_s});
            console::print_json(&json!({"jobs": rows.iter().map(row).collect::<Vec<_>>()}))?;
        }
        Format::Text if rows.is_empty() => console::print("no running job has two or more GPUs of this cluster\n"),
        Format::Text => {
            let mut t = table(&["job", "Slurm's GPUs", "GB/s", "linkwise's choice", "GB/s"], 2..3);
            for r in &rows {
                t.add_row([
                    r.job.to_string(),
                    r.has.clone(),
                    format!("{:.1}", r.has_gb_per_s),
                    r.best.clone(),
                    format!("{:.1}", r.best_gb_per_s),
                ]);
            }
            console::print(&text_of(&t));
        }
    }
    Ok(())
}
