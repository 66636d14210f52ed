//! `linkwise slurm`: exact GPUs for Slurm's jobs.

use crate::cmd::open;
use console::{Failure, Format, now_unix_s, table, text_of};
use engine::{Engine, ExplainRequest, PlaceRequest};
use serde_json::json;
use slurm::{Agent, books};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use topology::{Allocation, Cluster, GpuMask, Host, HostId, Network, NetworkClass, catalog, count, file, names};
use wait_timeout::ChildExt;

/// The commands.
#[derive(clap::Subcommand)]
#[command(after_help = "\
Example:
  linkwise slurm sync --host-type hgx-h100 --topology /etc/slurm/topology.conf -o site.yaml
  linkwise slurm advise --cluster site.yaml --model model.json
  linkwise slurm check
  linkwise slurm agent --cluster site.yaml --model model.json

The agent answers the plugin burst_buffer/linkwise of slurmctld (docs/slurm.md). If the agent stops, Slurm places jobs itself.")]
pub enum Commands {
    /// Answer the controller's plugin: which GPUs a job gets when it starts
    Agent(AgentArgs),
    /// Check that the plugin is built for the installed controller, before a restart
    Check(Check),
    /// Compare the GPUs of running jobs with linkwise's choice; changes nothing
    Advise(Advise),
    /// Write a cluster file from Slurm's nodes and topology.conf
    Sync(Sync),
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

/// Arguments of `linkwise slurm agent`.
#[derive(clap::Args)]
pub struct AgentArgs {
    #[command(flatten)]
    site: Site,
    /// Socket of the plugin [default: what `scontrol show config` says]
    #[arg(long)]
    socket: Option<PathBuf>,
    /// End when the connection ends, instead of connecting again
    #[arg(long)]
    once: bool,
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

/// Arguments of `linkwise slurm sync`.
#[derive(clap::Args)]
pub struct Sync {
    /// Host type of the catalog for all nodes with GPUs, or one per GPU type of gres.conf: h100=hgx-h100,a100=dgx-a100
    #[arg(long, value_name = "[GPU=]TYPE", value_delimiter = ',', required = true)]
    host_type: Vec<String>,
    /// topology.conf
    #[arg(long)]
    topology: Option<PathBuf>,
    /// Name of the cluster
    #[arg(long, default_value = "slurm")]
    name: String,
    /// Write the cluster file here instead of standard output
    #[arg(short, long)]
    output: Option<PathBuf>,
}

/// Runs one.
pub fn run(command: Commands) -> Result<(), Failure> {
    match command {
        Commands::Agent(a) => agent(&a),
        Commands::Check(a) => check(&a),
        Commands::Advise(a) => advise(&a),
        Commands::Sync(a) => sync(&a),
    }
}

/// Time for a program of Slurm; its clients wait for the controller.
const PROGRAM_TIME_MAX: Duration = Duration::from_secs(10);
/// Time for the running jobs while a job waits for its answer.
const BOOKS_TIME_MAX: Duration = Duration::from_secs(2);
/// Pause before the next attempt to connect.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum size of a plugin, bytes.
const PLUGIN_BYTES_MAX: usize = 64 << 20;

/// What a program of Slurm prints.
fn slurm(program: &str, args: &[&str], time_max: Duration) -> Result<String, String> {
    let said = |e: &dyn std::fmt::Display| format!("`{program} {}`: {e}", args.join(" "));
    let command = &mut Command::new(program);
    let started = command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = started.map_err(|e| said(&e))?;
    let out = child.stdout.take().ok_or_else(|| said(&"no output"))?;
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        out.take(books::TEXT_BYTES_MAX as u64).read_to_end(&mut bytes).map(|_| bytes)
    });
    let status = child.wait_timeout(time_max).map_err(|e| said(&e))?;
    let Some(status) = status else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(said(&format!("no answer within {} s", time_max.as_secs())));
    };
    let bytes = reader.join().map_err(|_| said(&"cannot be read"))?.map_err(|e| said(&e))?;
    if !status.success() {
        return Err(said(&"failed; does the controller answer (`scontrol ping`)?"));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn config() -> Result<String, Failure> {
    slurm("scontrol", &["show", "config"], PROGRAM_TIME_MAX).map_err(Failure::input)
}

impl Site {
    fn engine(&self) -> Result<Engine, Failure> {
        let builder = open::with_state(Some(&self.cluster), self.state.as_deref())?;
        open::build(builder.model_file(open::model(&self.model)?), &self.model)
    }
}

fn agent(a: &AgentArgs) -> Result<(), Failure> {
    let engine = a.site.engine()?;
    let mut running = || slurm("scontrol", &["show", "job", "-d", "-o"], BOOKS_TIME_MAX);
    let mut agent = Agent::new(&engine, &mut running);
    let mut told = String::new();
    loop {
        let ended = match socket(a).and_then(|p| connect(&p)) {
            Ok((input, output)) => {
                told.clear();
                agent.serve(input, output, &now_unix_s, &mut |line| console::say(&line)).to_string()
            }
            Err(e) => e.to_string(),
        };
        if a.once {
            return Err(Failure::impossible(ended));
        }
        if ended != told {
            console::say(&format!("{ended}; connecting again"));
            told = ended;
        }
        std::thread::sleep(PAUSE);
    }
}

fn socket(a: &AgentArgs) -> Result<PathBuf, Failure> {
    let none = || Failure::input("`scontrol show config` names no StateSaveLocation; name the socket with --socket");
    match &a.socket {
        Some(path) => Ok(path.clone()),
        None => books::socket(&config()?).map(PathBuf::from).ok_or_else(none),
    }
}

fn connect(path: &Path) -> Result<(UnixStream, UnixStream), Failure> {
    let failed = |e| Failure::file("connect to the plugin at", path, e);
    let stream = UnixStream::connect(path).map_err(failed)?;
    Ok((stream.try_clone().map_err(failed)?, stream))
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
    let text = slurm("slurmctld", &["-V"], PROGRAM_TIME_MAX).map_err(Failure::input)?;
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
    let engine = a.site.engine()?;
    let cluster = engine.cluster();
    let nodes = slurm("scontrol", &["show", "nodes", "-o"], PROGRAM_TIME_MAX).map_err(Failure::input)?;
    let nodes = books::nodes(&nodes).map_err(Failure::input)?;
    let text = slurm("scontrol", &["show", "job", "-d", "-o"], PROGRAM_TIME_MAX).map_err(Failure::input)?;
    let jobs: Vec<(u32, Allocation)> = books::jobs(&text)
        .iter()
        .filter(|j| j.state.starts_with("RUNNING"))
        .filter_map(|j| Some((j.id, books::held(cluster, j)?)))
        .collect();
    let down = |s: &str| {
        ["DOWN", "DRAIN", "FAIL", "MAINT", "NOT_RESPONDING"].iter().any(|w| s.contains(w)) || s.ends_with('*')
    };
    let up = nodes.iter().filter(|n| !down(&n.state)).filter_map(|n| names::slurm::host(cluster, &n.name));
    let suspected = slurm::suspected(&engine).unwrap_or_default();
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

fn sync(a: &Sync) -> Result<(), Failure> {
    let text = slurm("scontrol", &["show", "nodes", "-o"], PROGRAM_TIME_MAX).map_err(Failure::input)?;
    let nodes = books::nodes(&text).map_err(Failure::input)?;
    if nodes.is_empty() {
        return Err(Failure::impossible("no node of Slurm has GPUs (Gres=gpu:...)"));
    }
    let cluster = cluster_of(a, &nodes)?;
    cluster.check().map_err(Failure::input)?;
    crate::put::put(&file::write(&cluster), a.output.as_deref())?;
    if let Some(path) = &a.output {
        let (hosts, gpus) = (count(cluster.hosts.len(), "host"), count(cluster.gpu_count(), "GPU"));
        console::say(&format!("wrote {}: {hosts}, {gpus}", path.display()));
    }
    Ok(())
}

fn cluster_of(a: &Sync, nodes: &[books::Node]) -> Result<Cluster, Failure> {
    let mut cluster = Cluster { name: a.name.clone(), ..Cluster::default() };
    for node in nodes {
        let named =
            a.host_type.iter().find_map(|t| t.split_once('=').filter(|(g, _)| *g == node.gpu_type).map(|(_, t)| t));
        let name = named.or_else(|| a.host_type.iter().find(|t| !t.contains('=')).map(String::as_str));
        let name = name.ok_or_else(|| {
            Failure::input(format!(
                "--host-type: no host type for the GPUs `{}` of {}; write {}=TYPE",
                node.gpu_type, node.name, node.gpu_type
            ))
        })?;
        let host_type = match cluster.types.iter().position(|t| t.name == name) {
            Some(i) => i,
            None => {
                let unknown = || {
                    Failure::input(format!("--host-type: no host type `{name}`; `linkwise topology types` lists them"))
                };
                cluster.types.push(catalog::host_type(name).ok_or_else(unknown)?);
                cluster.types.len() - 1
            }
        };
        let has = cluster.types[host_type].gpu_count();
        if has != node.gpus {
            return Err(Failure::impossible(format!(
                "{} has {} GPUs in Slurm, and a host of type {name} has {has}",
                node.name, node.gpus
            )));
        }
        cluster.hosts.push(Host { name: node.name.clone(), host_type, ..Host::default() });
    }
    let class = NetworkClass::Infiniband;
    cluster.network = match &a.topology {
        Some(path) => {
            let (text, name) = (files::read_text(path, import::switches::FILE_BYTES_MAX)?, path.display().to_string());
            let wiring = import::switches::read_slurm_conf(&text, &name)?;
            let made = wiring.network(&cluster.hosts, class, &import::switches::NetworkOptions::default(), &name);
            let (network, notes) = made.map_err(|e| Failure::input(format!("{name}: {e}")))?;
            notes.iter().for_each(|n| console::say(&format!("note: {n}")));
            network
        }
        None => Network { class, ..Network::default() },
    };
    console::say(&"note: network taken as InfiniBand with GPUDirect RDMA; edit network.class where it is another one");
    Ok(cluster)
}
