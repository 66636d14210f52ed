//! `linkwise slurm agent`: answers the plugin, and a second thread keeps comments and the state.

use super::{Site, config};
use crate::slurm_programs;
use console::{Failure, now_unix_s};
use engine::Engine;
use slurm::policy::{Policies, Policy, Wish};
use slurm::reason::Comments;
use slurm::{Agent, Controller, books, mirror};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time for the running jobs while a job waits for its answer.
const BOOKS_TIME_MAX: Duration = Duration::from_secs(2);
/// Time for the policy of a job while it waits for its answer.
const WISH_TIME_MAX: Duration = Duration::from_secs(1);
/// Pause before the next attempt to connect.
const PAUSE: Duration = Duration::from_secs(1);
/// Interval between two rounds of the second thread.
const ROUND: Duration = Duration::from_secs(2);

/// Arguments of `linkwise slurm agent`.
#[derive(clap::Args)]
#[command(after_help = "\
Policies: pack (fewest nodes), balance (bandwidth where the gain is certain), best (bandwidth), slack=5% or slack=1sd (bandwidth above
that gain), off (Slurm places the job). A job names its own: sbatch --comment linkwise=best. A wrong one is told in its AdminComment.")]
pub struct AgentArgs {
    #[command(flatten)]
    site: Site,
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

    fn wish(&mut self, job: u32) -> Result<Wish, String> {
        let arguments = Wish::arguments(job);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Ok(Wish::read(&slurm_programs::output("squeue", &arguments, WISH_TIME_MAX)?))
    }
}

/// Runs the command.
pub fn run(a: &AgentArgs) -> Result<(), Failure> {
    let mut policies = Policies { site: a.policy.clone(), ..Policies::default() };
    for p in &a.qos_policy {
        policies.add(p).map_err(|e| Failure::input(format!("--qos-policy {e}")))?;
    }
    let engine = a.site.engine()?;
    let (connected, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| clerk(a, &engine, &connected, &stop));
        let ended = answer(a, &engine, &policies, &connected);
        stop.store(true, Ordering::Relaxed);
        ended
    })
}

fn answer(a: &AgentArgs, engine: &Engine, policies: &Policies, connected: &AtomicBool) -> Result<(), Failure> {
    let mut controller = Programs;
    let mut agent = Agent::new(engine, &mut controller, policies);
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
fn clerk(a: &AgentArgs, engine: &Engine, connected: &AtomicBool, stop: &AtomicBool) {
    let mut comments = Comments::default();
    let mut told = String::new();
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        if last.elapsed() < ROUND {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        }
        let said = clerk_round(a, engine, &mut comments, connected.load(Ordering::Relaxed)).unwrap_or_else(|e| e);
        if !said.is_empty() && said != told {
            console::say(&said);
        }
        told = said;
        last = Instant::now();
    }
}

/// One round; the text is what the operator should know.
fn clerk_round(a: &AgentArgs, engine: &Engine, comments: &mut Comments, connected: bool) -> Result<String, String> {
    if a.no_comments && !engine.has_state() {
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
    if !engine.has_state() {
        return Ok(String::new());
    }
    let nodes = slurm_programs::nodes(BOOKS_TIME_MAX)?;
    let done = mirror::update(engine, &nodes, &books::jobs(&records), now_unix_s());
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
