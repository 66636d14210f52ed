//! `linkwise slurm agent`: answers the plugin, and a second thread keeps comments and the state.

use super::{Site, config};
use crate::slurm_programs;
use crate::slurm_server::Server;
use console::{Failure, load_cluster, now_unix_s};
use engine::{Answer, ErrorKind, Request, StatusRequest};
use slurm::policy::{Policies, Policy};
use slurm::reason::Comments;
use slurm::{Agent, Controller, Decider, books, mirror};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time for the running jobs while a job waits for its answer.
const BOOKS_TIME_MAX: Duration = Duration::from_secs(2);
/// Pause before the next attempt to connect.
const PAUSE: Duration = Duration::from_secs(1);
/// Interval between two rounds of the second thread.
const ROUND: Duration = Duration::from_secs(2);

/// Arguments of `linkwise slurm agent`.
#[derive(clap::Args)]
#[command(after_help = "\
Policies: pack (fewest nodes), balance (bandwidth where the gain is certain), best (bandwidth), slack=5% or slack=1sd (bandwidth above
that gain), off (Slurm places the job). A job names its own: sbatch --comment linkwise=best. A wrong one is told in its AdminComment.

With --server, `linkwise serve` decides with its model and keeps Slurm's jobs and drains in its state; while it does not answer, Slurm \
places jobs itself.")]
pub struct AgentArgs {
    /// Cluster file
    #[arg(long)]
    cluster: String,
    /// Model file
    #[arg(long, required_unless_present = "server", conflicts_with = "server")]
    model: Option<PathBuf>,
    /// State file: its drains and suspected components
    #[arg(long, conflicts_with = "server")]
    state: Option<PathBuf>,
    /// `linkwise serve` that decides instead of this process, http://HOST:PORT or https://HOST:PORT
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// File with a token of --server, scope `operate`
    #[arg(long, value_name = "FILE", requires = "server")]
    token_file: Option<PathBuf>,
    /// Authorities of the certificate of --server, PEM [default: those of this machine]
    #[arg(long, value_name = "FILE", requires = "server")]
    server_ca: Option<PathBuf>,
    /// Socket of the plugin [default: what `scontrol show config` says]
    #[arg(long)]
    socket: Option<PathBuf>,
    /// Policy of jobs that name none
    #[arg(long, default_value = "balance", value_parser = Policy::read)]
    policy: Policy,
    /// Policy of the jobs of a QOS; repeatable
    #[arg(long, value_name = "QOS=POLICY")]
    qos_policy: Vec<String>,
    /// Write no AdminComment for jobs that Slurm placed without asking
    #[arg(long)]
    no_comments: bool,
    /// End when the connection ends, instead of connecting again
    #[arg(long)]
    once: bool,
}

/// The real controller.
struct Programs;

impl Controller for Programs {
    fn jobs(&mut self) -> Result<String, String> {
        slurm_programs::jobs(BOOKS_TIME_MAX)
    }
}

/// Runs the command.
pub fn run(a: &AgentArgs) -> Result<(), Failure> {
    let mut policies = Policies { site: a.policy.clone(), ..Policies::default() };
    for p in &a.qos_policy {
        policies.add(p).map_err(|e| Failure::input(format!("--qos-policy {e}")))?;
    }
    let decider = decider(a)?;
    let decider = decider.as_ref();
    let (connected, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| clerk(a, decider, &connected, &stop));
        let ended = answer(a, decider, &policies, &connected);
        stop.store(true, Ordering::Relaxed);
        ended
    })
}

/// Maximum size of a file with a token, bytes.
const TOKEN_BYTES_MAX: usize = 4096;

/// The engine of this process, or the server.
fn decider(a: &AgentArgs) -> Result<Box<dyn Decider>, Failure> {
    let Some(url) = &a.server else {
        let model = a.model.clone().ok_or_else(|| Failure::input("--model is missing"))?;
        return Ok(Box::new(Site { cluster: a.cluster.clone(), model, state: a.state.clone() }.engine()?));
    };
    let token = match &a.token_file {
        Some(file) => {
            let text = files::read_limited(file, TOKEN_BYTES_MAX)?;
            Some(String::from_utf8_lossy(&text).trim().to_owned())
        }
        None => None,
    };
    let cluster = load_cluster(&a.cluster)?;
    let server = Server::new(url, a.server_ca.as_deref(), token, cluster)
        .map_err(|e| Failure::input(format!("--server: {e}")))?;
    match server.decide(&Request::Status(StatusRequest {}), now_unix_s()) {
        Ok(Answer::Status(s)) if s.cluster != server.cluster().name || s.gpus != server.cluster().gpu_count() => {
            Err(Failure::input(format!(
                "--server: {url} serves the cluster {} of {} GPUs, and {} is {} of {} GPUs",
                s.cluster,
                s.gpus,
                a.cluster,
                server.cluster().name,
                server.cluster().gpu_count()
            )))
        }
        // A token that is wrong now is wrong later.
        Err(e) if e.kind == ErrorKind::Malformed => Err(Failure::input(format!("--server {url}: {e}"))),
        Err(e) => {
            console::say(&format!("{e}; Slurm places jobs until {url} answers"));
            Ok(Box::new(server))
        }
        Ok(_) => Ok(Box::new(server)),
    }
}

fn answer(a: &AgentArgs, decider: &dyn Decider, policies: &Policies, connected: &AtomicBool) -> Result<(), Failure> {
    let mut controller = Programs;
    let mut agent = Agent::new(decider, &mut controller, policies);
    let mut told = String::new();
    loop {
        let ended = match socket(a).and_then(|p| connect(&p)) {
            Ok((input, output)) => {
                told.clear();
                connected.store(true, Ordering::Relaxed);
                let ended = agent.serve(input, output, &now_unix_s, &mut |line| console::say(&line)).to_string();
                connected.store(false, Ordering::Relaxed);
                ended
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

/// Writes the reasons of jobs that Slurm placed without asking, and brings the state up to Slurm's books.
fn clerk(a: &AgentArgs, decider: &dyn Decider, connected: &AtomicBool, stop: &AtomicBool) {
    let mut comments = Comments::default();
    let mut told = String::new();
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        if last.elapsed() < ROUND {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        }
        let said = clerk_round(a, decider, &mut comments, connected.load(Ordering::Relaxed)).unwrap_or_else(|e| e);
        if !said.is_empty() && said != told {
            console::say(&said);
        }
        told = said;
        last = Instant::now();
    }
}

/// One round; the text is what the operator should know.
fn clerk_round(
    a: &AgentArgs,
    decider: &dyn Decider,
    comments: &mut Comments,
    connected: bool,
) -> Result<String, String> {
    if a.no_comments && !decider.has_state() {
        return Ok(String::new());
    }
    let records = slurm_programs::jobs(BOOKS_TIME_MAX)?;
    if !a.no_comments {
        for (job, text) in comments.due(&records, connected) {
            let (job, text) = (format!("JobId={job}"), format!("AdminComment={text}"));
            // A job that has ended since takes none.
            let _ = slurm_programs::output("scontrol", &["update", &job, &text], BOOKS_TIME_MAX);
        }
    }
    if !decider.has_state() {
        return Ok(String::new());
    }
    let nodes = slurm_programs::nodes(BOOKS_TIME_MAX)?;
    let done = mirror::update(decider, &nodes, &books::jobs(&records), now_unix_s());
    done.map(|c| c.refused.join("; ")).map_err(|e| format!("the state is not up to date: {e}"))
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
