//! The GPUs that `linkwise measure` may use.

use super::args::{Args, AskArg, BackendKind, LauncherKind};
use crate::store_errors::OrFailure;
use console::Failure;
use measure::idle::{AskWith, Hosts, LeftOut, first_conflict, minus, slurm, whole_hosts};
use measure::{CampaignPlan, Scale};
use std::path::Path;
use std::time::Duration;
use store::State;
use topology::{Allocation, Cluster};

/// Maximum size of a list of idle GPUs, bytes.
const IDLE_BYTES_MAX: usize = 16 << 20;
/// Time limit for the answer of one host or of Slurm.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Maximum number of printed reasons why GPUs are left out.
const REASONS_MAX: usize = 12;
const NAME_THEM: &str = "name the idle GPUs with --idle, or say --all-idle if you know that all are";

/// Sources that tell which GPUs are idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asks {
    pub hosts: bool,
    pub slurm: bool,
}

/// True if the measurements run on this machine: nccl-tests with the local launcher.
pub fn is_here(args: &Args) -> bool {
    args.backend == Some(BackendKind::NcclTests) && args.launcher == LauncherKind::Local
}

/// The sources to ask, by `--ask` or by default.
pub fn asks(args: &Args) -> Result<Asks, Failure> {
    let is_real = !matches!(args.backend, None | Some(BackendKind::Simulated));
    let has = |a| args.ask.contains(&a);
    if has(AskArg::None) {
        if args.ask.len() > 1 {
            return Err(Failure::input("--ask none stands alone"));
        }
        if is_real && args.idle.is_none() && args.state.is_none() {
            return Err(Failure::input(format!("--ask none: no GPU is known to be idle; {NAME_THEM}")));
        }
        return Ok(Asks::default());
    }
    if !is_real {
        if !args.ask.is_empty() {
            return Err(Failure::input("--ask is for real hosts: --backend nccl-tests or command"));
        }
        return Ok(Asks::default());
    }
    Ok(match (&args.ask[..], args.idle.is_some() || args.all_idle) {
        ([], true) => Asks::default(),
        ([], false) => Asks { hosts: true, slurm: args.launcher == LauncherKind::Srun },
        _ => Asks { hosts: has(AskArg::Hosts), slurm: has(AskArg::Slurm) },
    })
}

/// The GPUs of `--idle LIST|FILE`, or all usable GPUs without it. A drained GPU in the list is an error.
pub fn named(args: &Args, cluster: &Cluster) -> Result<Allocation, Failure> {
    let usable = cluster.usable();
    let Some(text) = &args.idle else { return Ok(usable) };
    let path = Path::new(text);
    let list = if path.is_file() { files::read_text(path, IDLE_BYTES_MAX)? } else { text.clone() };
    let idle = cluster.parse_gpus([list.as_str()]).map_err(|e| Failure::input(format!("--idle: {e}")))?;
    if !usable.contains_all(&idle) {
        let drained = idle.gpus().find(|g| !usable.mask(g.host).contains(usize::from(g.gpu)));
        let name = drained.map(|g| cluster.gpu_name(g)).unwrap_or_default();
        return Err(Failure::input(format!("--idle: `{name}` is drained in cluster `{}`", cluster.name)));
    }
    Ok(idle)
}

/// Refuses a plan with fewer than two GPUs.
pub fn check_count(idle: &Allocation) -> Result<(), Failure> {
    if idle.gpu_count() < 2 {
        return Err(Failure::impossible("fewer than two idle GPUs: there is nothing to measure between"));
    }
    Ok(())
}

fn hosts<'c>(args: &Args, cluster: &'c Cluster) -> Hosts<'c> {
    let with = if is_here(args) { AskWith::Here } else { AskWith::Command(args.ask_with.clone()) };
    Hosts::new(cluster, with, ANSWER_WITHIN)
}

/// The hosts to ask again after each run.
pub fn guard<'c>(args: &Args, cluster: &'c Cluster, asks: &Asks) -> Option<Hosts<'c>> {
    asks.hosts.then(|| hosts(args, cluster))
}

/// Restricts the plan to idle GPUs. A busy GPU named in `--idle` is an error; other busy GPUs are left out with a note.
pub fn keep_idle(args: &Args, cluster: &Cluster, plan: CampaignPlan, asks: &Asks) -> Result<CampaignPlan, Failure> {
    let candidates = &plan.idle;
    let mut out: Vec<LeftOut> = Vec::new();
    if let Some(path) = &args.state {
        out.extend(of_state(path, cluster)?);
    }
    if asks.slurm {
        let own = std::env::var("SLURM_JOB_ID").ok().filter(|j| !j.is_empty());
        let said = slurm::ask(cluster, own.as_deref(), ANSWER_WITHIN);
        out.extend(
            said.map_err(|e| {
                Failure::impossible(format!("Slurm does not tell which GPUs are idle: {e}; {NAME_THEM}"))
            })?,
        );
    }
    if asks.hosts {
        if args.ask_with.split_whitespace().next().is_none() {
            return Err(Failure::input("--ask-with: a command was expected, such as `ssh {host}`"));
        }
        // Hosts that the state or Slurm left out are not asked.
        out.extend(hosts(args, cluster).left_out(&minus(candidates, &out)));
    }
    if out.is_empty() {
        return Ok(plan);
    }
    if args.idle.is_some() {
        return match first_conflict(candidates, &out) {
            None => Ok(plan),
            Some((gpus, o)) => Err(Failure::impossible(format!(
                "--idle names {}, which is not idle: {}; leave it out, or measure when it is",
                cluster.gpu_list(&gpus),
                o.why
            ))),
        };
    }
    let (idle, shared) = whole_hosts(cluster, &minus(candidates, &out));
    out.extend(shared);
    say_left_out(cluster, candidates, &out);
    if idle.gpu_count() < 2 {
        let first = out.first().map_or(String::new(), |o| format!("; {}: {}", cluster.gpu_list(&o.gpus), o.why));
        return Err(Failure::impossible(format!("no host is idle{first}; {NAME_THEM}")));
    }
    let scale = Scale::of_site(cluster, &idle, args.max_hosts);
    Ok(CampaignPlan { idle, scale, ..plan })
}

fn of_state(path: &Path, cluster: &Cluster) -> Result<Vec<LeftOut>, Failure> {
    let state = State::open(path).or_failure()?;
    state.check_cluster(cluster).or_failure()?;
    let now = state.snapshot().or_failure()?;
    let jobs = now.jobs.iter().map(|j| LeftOut { gpus: j.gpus.clone(), why: format!("job {} holds it", j.id) });
    let mut out: Vec<LeftOut> = jobs.collect();
    let drained = now.drained_gpus();
    if drained.gpu_count() > 0 {
        out.push(LeftOut { gpus: drained, why: "drained in the state".into() });
    }
    Ok(out)
}

fn say_left_out(cluster: &Cluster, candidates: &Allocation, out: &[LeftOut]) {
    let mut said = 0;
    for o in out {
        let of_plan = o.gpus.parts().iter().map(|&(h, m)| (h, topology::GpuMask(m.0 & candidates.mask(h).0)));
        let of_plan = Allocation::new(of_plan);
        if of_plan.gpu_count() == 0 {
            continue;
        }
        said += 1;
        if said <= REASONS_MAX {
            console::say(&format!("note: not measured: {}: {}", cluster.gpu_list(&of_plan), o.why));
        }
    }
    if said > REASONS_MAX {
        console::say(&format!("note: not measured for {} more reasons", said - REASONS_MAX));
    }
}
