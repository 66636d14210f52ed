//! Mode `adaptive` in a training loop whose all-reduces cross shaped links.

use crate::spec;
use nccl_bench::bytes::{BytesCall, BytesReport, Traffic};
use nccl_bench::{Bench, BenchError};
use netns::NetBox;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Arms that NCCL's kernels for all-reduce have here: algorithm and protocol, as NCCL's settings spell them.
pub const ARMS: [(&str, &str); 6] =
    [("Ring", "Simple"), ("Ring", "LL"), ("Ring", "LL128"), ("Tree", "Simple"), ("Tree", "LL"), ("Tree", "LL128")];

/// A training loop.
#[derive(Debug, Clone)]
pub struct Loop {
    /// Hosts of the job, and GPUs of each.
    pub hosts: usize,
    /// GPUs of each host.
    pub gpus: u8,
    /// Bytes of each all-reduce.
    pub size_bytes: u64,
    /// All-reduces of one step.
    pub step_calls: u32,
    /// Steps of a run.
    pub steps: u32,
    /// The release of NCCL.
    pub release: String,
}

/// What decides the arm of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chooser {
    /// NCCL alone.
    Nccl,
    /// One entry of [`ARMS`], by NCCL's own settings.
    Forced(usize),
    /// linkwise in mode `adaptive`, with this lead in milliseconds.
    Adaptive(u32),
}

/// A run.
#[derive(Debug, Clone)]
pub struct Run {
    /// Time of each step: that of its slowest rank, seconds.
    pub step_s: Vec<f64>,
    /// Wrong bytes of all ranks.
    pub wrong_bytes: u64,
    /// Launched arm of each all-reduce, where the tuner ran and NCCL reports launches.
    pub arms: Vec<String>,
    /// Calls that two ranks launched with different arms.
    pub differing: usize,
    /// Calls that waited for another rank's verdict.
    pub waits: u64,
}

impl Run {
    /// The arm of most of the last steps' calls: of a twentieth of all calls, at least 16.
    pub fn last_arm(&self) -> Option<&str> {
        let last = (self.arms.len() / 20).max(16).min(self.arms.len());
        let mut counts = BTreeMap::new();
        self.arms[self.arms.len() - last..].iter().for_each(|a| *counts.entry(a.as_str()).or_insert(0) += 1);
        counts.into_iter().max_by_key(|(_, n)| *n).map(|(arm, _)| arm)
    }
}

/// Runs the loop once. `during` runs beside it, for example to slow a link, and must end by itself.
///
/// # Errors
/// As [`Bench::run_bytes`].
pub fn run(
    bench: &Bench,
    netbox: &NetBox,
    l: &Loop,
    chooser: Chooser,
    plugin: &Path,
    during: impl FnOnce() + Send,
) -> Result<Run, BenchError> {
    let call = BytesCall {
        repetitions: l.steps,
        step_calls: l.step_calls,
        ..BytesCall::new(Traffic::AllReduce(l.size_bytes))
    };
    let hosts: Vec<(usize, u8)> = (0..l.hosts).map(|h| (h, l.gpus)).collect();
    let mut s = spec(netbox, &hosts, &l.release, vec![call])?;
    s.deadline = Duration::from_secs(600);
    let folder = tempfile::tempdir().map_err(|source| BenchError::Io { what: "no temporary folder".into(), source })?;
    let trace = folder.path().join("trace");
    let mut set = |name: &str, value: String| s.env.push((name.into(), value));
    match chooser {
        Chooser::Nccl => {}
        Chooser::Forced(arm) => {
            set("NCCL_ALGO", ARMS[arm].0.into());
            set("NCCL_PROTO", ARMS[arm].1.into());
        }
        Chooser::Adaptive(lead_ms) => {
            set("LINKWISE_MODE", "adaptive".into());
            set("LINKWISE_RENDEZVOUS", format!("tcp:{}:4711", netbox.address(0, 0)));
            set("LINKWISE_TOKEN", "a secret of this job".into());
            set("LINKWISE_LEAD", format!("{:.3}", f64::from(lead_ms) / 1e3));
            set("LINKWISE_EXPLORE", "all".into());
            set("LINKWISE_TRACE", trace.to_string_lossy().into_owned());
            s.tuner_plugin = Some(plugin.to_owned());
            s.profiler_plugin = Some(plugin.to_owned());
        }
    }
    let report = std::thread::scope(|scope| {
        scope.spawn(during);
        bench.run_bytes(&s)
    })?;
    Ok(read(&report, &trace))
}

fn read(report: &BytesReport, trace: &Path) -> Run {
    let mut step_s: Vec<f64> = Vec::new();
    for r in &report.results {
        let step = r.repetition as usize;
        step_s.resize(step_s.len().max(step + 1), 0.0);
        step_s[step] = step_s[step].max(r.seconds);
    }
    let Launches { arms, differing, waits } = launches(trace);
    Run { step_s, wrong_bytes: report.wrong_bytes(), arms, differing, waits }
}

/// What the ranks of a job launched, by their traces.
#[derive(Debug, Clone)]
pub struct Launches {
    /// Launched arm of each all-reduce, of the rank with the smallest number.
    pub arms: Vec<String>,
    /// Calls that two ranks launched with different arms.
    pub differing: usize,
    /// Calls that waited for another rank's verdict.
    pub waits: u64,
}

/// Reads the traces in a folder.
pub fn launches(trace: &Path) -> Launches {
    let lines = trace_lines(trace);
    let mut by_rank = BTreeMap::<i64, BTreeMap<u64, String>>::new();
    for l in lines.iter().filter(|l| l["kind"] == "launched") {
        let (Some(rank), Some(sequence), Some(arm)) = (l["rank"].as_i64(), l["sequence"].as_u64(), l["arm"].as_str())
        else {
            continue;
        };
        by_rank.entry(rank).or_default().insert(sequence, arm.to_owned());
    }
    let first = by_rank.values().next().cloned().unwrap_or_default();
    let differing = first.iter().filter(|(n, arm)| by_rank.values().any(|of| of.get(n) != Some(arm))).count();
    let waits = lines.iter().filter(|l| l["kind"] == "end").filter_map(|l| l["waits"].as_u64()).sum();
    Launches { arms: first.into_values().collect(), differing, waits }
}

fn trace_lines(folder: &Path) -> Vec<Value> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let texts = files.filter_map(|f| std::fs::read_to_string(f.path()).ok());
    texts.flat_map(|t| t.lines().filter_map(|l| serde_json::from_str(l).ok()).collect::<Vec<Value>>()).collect()
}
