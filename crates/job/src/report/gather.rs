//! Reads traces and groups calls by communicator, collective and size.

use super::{JobReport, PluginCost, PluginProcess, StepTimes};
use crate::JobError;
use ::report::one_line;
use ::tune::{Arm, Collective};
use measure::plugin_trace::{self, RankGpus, TraceLine};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Maximum number of trace files of one report: one per process of the job.
const FILES_MAX: usize = 8192;
/// Maximum number of (communicator, collective, bucket) of a report, and of communicators.
const KEYS_MAX: usize = 100_000;
/// Maximum number of times per arm of a key, of calls with GPU times, and of steps.
const TIMES_MAX: usize = 100_000;
/// Maximum number of different arms of a group; all arms with every channel count are fewer.
const ARMS_MAX: usize = 2_000;
/// Maximum number of different counts of channels of an arm; NCCL has 64.
const CHANNEL_COUNTS_MAX: usize = 64;
/// Maximum number of sentences about communicators that stay at AUTO.
const NEVER_MAX: usize = 1000;

/// Calls of one collective and size bucket in one communicator.
#[derive(Debug, Default)]
pub struct CallGroup {
    /// Ranks of the communicator.
    pub ranks: u32,
    /// Its nodes.
    pub nodes: u32,
    /// The collective.
    pub collective: Option<Collective>,
    /// The bucket of its sizes.
    pub bucket: u8,
    /// The rank whose calls are counted.
    pub rank: i64,
    /// The process whose calls are counted if NCCL gives no ranks, and its first call that is not counted yet.
    process: (u64, u64),
    /// Number of its calls.
    pub calls: u64,
    /// Number of outermost groups with these calls, by arm. A call outside of any group counts as a group.
    pub arm_groups: BTreeMap<String, u64>,
    last_group: u64,
    /// Steps of the process whose calls are counted.
    pub steps: u64,
    /// Number of times beyond [`TIMES_MAX`].
    left_out: u64,
    /// Bytes of these calls.
    pub bytes: u64,
    /// Number of calls for which AUTO would have chosen each arm.
    pub autos: BTreeMap<String, u64>,
    /// Number of calls that requested each arm.
    pub arm_calls: BTreeMap<String, u64>,
    /// Times that the policy decides by, by arm.
    pub times: BTreeMap<String, Vec<f64>>,
    /// Those of them that were measured after the arm in use was chosen.
    pub fresh_times: BTreeMap<String, Vec<f64>>,
    /// Calls that one time covers, if the trace says so; else 0.
    calls_of_time: u64,
    /// What comparing arms has cost in steps, and the gain as a share of AUTO's step, if the trace says so.
    pub spent_steps: Option<f64>,
    pub gain: Option<f64>,
    /// The source of [`CallGroup::times`].
    pub source: String,
    /// GPU times that all ranks agreed on, by arm.
    pub agreed_kernels: BTreeMap<String, Vec<f64>>,
    /// Epoch, arm in use, and the reason.
    pub finding: Option<(u64, String, String)>,
    /// By arm that ran: number of launches with each count of channels.
    pub channels: BTreeMap<String, BTreeMap<u32, u64>>,
    /// GPU times by call: the arm that ran, and the shortest time among the ranks in these traces.
    pub kernels: BTreeMap<u64, (String, f64)>,
}

/// By communicator, collective and bucket.
pub type Keys = BTreeMap<(String, String, u8), CallGroup>;

/// The traces read so far.
#[derive(Debug, Default)]
pub struct GatheredTraces {
    /// The report without its rows.
    pub report: JobReport,
    /// By communicator, collective and bucket.
    pub keys: Keys,
    /// The hosts and GPUs of ranks.
    pub places: RankGpus,
    comms: BTreeMap<String, (u32, u32)>,
    /// Number of the current process, and the number of steps that each process reported, kept or not.
    process: u64,
    steps_of: BTreeMap<u64, u64>,
    /// Steps of the current process, milliseconds, and its last report of costs.
    steps: Vec<f64>,
    cost: Option<TraceLine>,
}

/// The given files, and the files named like traces in the given folders and in folders directly below them.
pub fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, JobError> {
    let mut all = Vec::new();
    for path in paths {
        match path.is_dir() {
            true => walk(path, 1, &mut all)?,
            false => all.push(path.clone()),
        }
        if all.len() > FILES_MAX {
            return Err(JobError::TooManyTraces { max: FILES_MAX });
        }
    }
    all.sort();
    all.dedup();
    Ok(all)
}

fn walk(folder: &Path, deeper: u32, all: &mut Vec<PathBuf>) -> Result<(), JobError> {
    let entries = std::fs::read_dir(folder).map_err(|source| JobError::Io { path: folder.into(), source })?;
    for path in entries.flatten().map(|e| e.path()) {
        if path.extension().is_some_and(|e| e == "jsonl") {
            if path.is_file() {
                all.push(path);
            }
        } else if deeper > 0 && path.is_dir() && !path.is_symlink() {
            walk(&path, deeper - 1, all)?;
        }
        if all.len() > FILES_MAX {
            return Ok(());
        }
    }
    Ok(())
}

/// Reads files. A file that is not a trace is an error that names its line.
pub fn read(files: &[PathBuf]) -> Result<GatheredTraces, JobError> {
    let mut g = GatheredTraces::default();
    for path in files {
        let file = File::open(path).map_err(|source| JobError::Io { path: path.clone(), source })?;
        let end = plugin_trace::read(BufReader::new(file), |line| {
            g.take(line);
            Ok(())
        });
        let end = end.map_err(|e| JobError::Trace { path: path.clone(), why: e.to_string() })?;
        g.report.cut_off += u64::from(end.cut_off);
        g.end_of_process();
    }
    for ((comm, ..), key) in &mut g.keys {
        (key.ranks, key.nodes) = g.comms.get(comm).copied().unwrap_or_default();
        key.steps = g.steps_of.get(&key.process.0).copied().unwrap_or(0);
        g.report.left_out.times += key.left_out;
    }
    Ok(g)
}

impl GatheredTraces {
    fn take(&mut self, line: TraceLine) {
        self.places.add_line(&line);
        match line.kind.as_str() {
            "process" => {
                self.end_of_process();
                let text = |t: &str, most: usize| one_line(t, most);
                self.report.processes.push(PluginProcess {
                    host: text(&line.host, 32),
                    host_name: line.host_name.as_deref().map(|n| text(n, 64)),
                    nccl: line.nccl.as_deref().map(|n| text(n, 16)),
                    gpu: line.gpu.as_deref().map(|n| text(n, 200)),
                    site_tuner: line.site_tuner.as_deref().map(|n| text(n, 64)),
                    pid: line.pid,
                    mode: text(&line.mode, 32),
                    policy: text(&line.policy, 64),
                    tuner_api: line.tuner_api,
                    profiler_api: line.profiler_api,
                    scripted: line.scripted,
                });
            }
            "comm" if self.comms.len() < KEYS_MAX => {
                self.comms.insert(line.comm, (line.ranks, line.nodes));
            }
            "comm" if !self.comms.contains_key(&line.comm) => self.report.left_out.communicators += 1,
            "never" | "loop" => {
                let stays = if line.kind == "never" { " stays at AUTO" } else { "" };
                let said = one_line(&format!("communicator {}{stays}: {}", line.comm, line.why), 300);
                // Every rank writes this line.
                if self.report.never.contains(&said) {
                } else if self.report.never.len() < NEVER_MAX {
                    self.report.never.push(said);
                } else {
                    self.report.left_out.sentences += 1;
                }
            }
            "epoch" => self.report.epochs += 1,
            "full" => self.report.full += 1,
            "step" => {
                *self.steps_of.entry(self.process).or_default() += 1;
                match self.steps.len() < TIMES_MAX {
                    true => self.steps.push(line.time_us / 1e3),
                    false => self.report.left_out.times += 1,
                }
            }
            "cost" => self.cost = Some(line),
            "end" => {
                self.report.waits += line.waits;
                self.report.longest_wait_ms = self.report.longest_wait_ms.max(line.longest_wait_us as f64 / 1e3);
                self.report.lost += line.lost;
            }
            "call" | "sample" | "finding" | "launched" => self.of_key(line),
            _ => {} // a line kind of a newer plugin
        }
    }

    fn of_key(&mut self, line: TraceLine) {
        let Ok(collective) = line.collective.parse::<Collective>() else { return };
        if line.arm.parse::<Arm>().is_err() {
            return; // NCCL ran a collective that a tuner cannot influence
        }
        let bucket = if line.kind == "call" { ::tune::bucket::bucket(line.size_bytes) } else { line.bucket };
        let id = (line.comm.clone(), collective.capitals().to_string(), bucket);
        if self.keys.len() >= KEYS_MAX && !self.keys.contains_key(&id) {
            self.report.left_out.calls += u64::from(line.kind == "call");
            return;
        }
        let process = self.process;
        let new = || CallGroup { rank: i64::MAX, collective: Some(collective), bucket, ..CallGroup::default() };
        let key = self.keys.entry(id).or_insert_with(new);
        match line.kind.as_str() {
            "call" => key.call(line, process),
            "sample" => key.sample(line),
            "launched" => key.launched(&line),
            _ => key.found(line),
        }
    }

    fn end_of_process(&mut self) {
        let (steps, cost) = (std::mem::take(&mut self.steps), self.cost.take());
        self.process += 1;
        if self.report.steps.is_none_or(|s| s.count < steps.len()) && !steps.is_empty() {
            self.report.steps = Some(StepTimes {
                count: steps.len(),
                total_ms: steps.iter().sum(),
                median_ms: super::row::median(&steps).unwrap_or(0.0),
            });
        }
        if let Some(cost) = cost.map(|c| of_cost(&c))
            && self.report.cost.is_none_or(|worst| cost.share > worst.share)
        {
            self.report.cost = Some(cost);
        }
    }
}

fn of_cost(c: &TraceLine) -> PluginCost {
    let run_us = (c.run_us as f64).max(1.0);
    let entries = c.decide_us as f64 + c.event_us as f64 + c.setup_us as f64 + c.border_us as f64;
    let each = |us: u64, n: u64| us as f64 * 1e3 / n.max(1) as f64;
    PluginCost {
        run_s: run_us / 1e6,
        share: entries / run_us,
        decisions: c.decisions,
        decision_ns: each(c.decide_us, c.decisions),
        events: c.events,
        event_ns: each(c.event_us, c.events),
        borders_ms: c.border_us as f64 / 1e3,
        setup_ms: c.setup_us as f64 / 1e3,
        thread_share: c.worker_us as f64 / run_us,
    }
}

impl CallGroup {
    fn call(&mut self, line: TraceLine, process: u64) {
        // Every rank writes its calls; only one rank is counted.
        if line.rank < self.rank {
            (self.rank, self.calls, self.bytes) = (line.rank, 0, 0);
            (self.process, self.last_group) = ((process, 0), 0);
            self.autos.clear();
            self.arm_calls.clear();
            self.arm_groups.clear();
        }
        if line.rank != self.rank || line.auto.parse::<Arm>().is_err() || self.arm_calls.len() > ARMS_MAX {
            return;
        }
        if line.rank < 0 {
            // If NCCL gives no ranks, all ranks are -1. The communicators of one process (one for each of its GPUs)
            // number the same calls equally, so every number of one process is counted once.
            let (first_process, next_call) = self.process;
            if process != first_process || line.call.is_some_and(|c| c < next_call) {
                return;
            }
            self.process.1 = line.call.map_or(next_call, |c| c.saturating_add(1));
        }
        if line.group == 0 || line.group != self.last_group {
            *self.arm_groups.entry(line.arm.clone()).or_default() += 1;
            self.last_group = line.group;
        }
        self.calls += 1;
        self.bytes = self.bytes.saturating_add(line.size_bytes);
        *self.autos.entry(line.auto).or_default() += 1;
        *self.arm_calls.entry(line.arm).or_default() += 1;
    }

    /// Number of calls with an arm that one time of the source covers: the time of a step or interval covers every call in it.
    pub fn calls_per_time(&self, arm: &str) -> f64 {
        if self.calls_of_time > 0 {
            return self.calls_of_time as f64;
        }
        let of_arm = self.arm_calls.get(arm).copied().unwrap_or(0) as f64;
        let times = match self.source.as_str() {
            // A collective may be called in some steps only. In such a step it is called at least once.
            "step" => return (self.calls as f64 / self.steps.max(1) as f64).max(1.0),
            "interval" => self.arm_groups.get(arm).copied().unwrap_or(0) as f64,
            _ => of_arm,
        };
        (of_arm / times.max(1.0)).max(1.0)
    }

    fn sample(&mut self, line: TraceLine) {
        if line.time_us <= 0.0 || line.steady == Some(false) {
            return;
        }
        if line.source == "kernel" {
            self.left_out += u64::from(!push(&mut self.agreed_kernels, &line.arm, line.time_us));
        }
        // The policy decided by the best source. A program may begin to report its steps late.
        if self.times.is_empty() || rank(&line.source) < rank(&self.source) {
            self.times.clear();
            self.fresh_times.clear();
            self.source = one_line(&line.source, 16);
        }
        if line.source == self.source {
            if line.source != "kernel" {
                self.calls_of_time = line.calls;
            }
            if line.fresh == Some(true) {
                self.left_out += u64::from(!push(&mut self.fresh_times, &line.arm, line.time_us));
            }
            self.left_out += u64::from(!push(&mut self.times, &line.arm, line.time_us));
        }
    }

    fn found(&mut self, line: TraceLine) {
        if self.finding.as_ref().is_none_or(|f| f.0 <= line.epoch) {
            // Times before the newest choice confirm nothing.
            if self.finding.as_ref().is_some_and(|f| f.1 != line.arm) {
                self.fresh_times.clear();
            }
            self.finding = Some((line.epoch, line.arm, one_line(&line.because, 200)));
            (self.spent_steps, self.gain) = (line.spent_steps, line.gain);
        }
    }

    fn launched(&mut self, line: &TraceLine) {
        if line.channels > 0 && (self.channels.len() < ARMS_MAX || self.channels.contains_key(&line.arm)) {
            let counts = self.channels.entry(line.arm.clone()).or_default();
            if counts.len() < CHANNEL_COUNTS_MAX || counts.contains_key(&line.channels) {
                *counts.entry(line.channels).or_default() += 1;
            }
        }
        let (Some(call), Some(us)) = (line.call, line.kernel_us.filter(|t| *t > 0.0)) else { return };
        if self.kernels.len() >= TIMES_MAX && !self.kernels.contains_key(&call) {
            self.left_out += 1;
            return;
        }
        // The last rank to arrive does not wait.
        let entry = self.kernels.entry(call).or_insert_with(|| (line.arm.clone(), us));
        entry.1 = entry.1.min(us);
    }
}

/// Sources of times, best first.
fn rank(source: &str) -> usize {
    let order = ["scripted", "step", "interval", "calls", "kernel"];
    order.iter().position(|s| *s == source).unwrap_or(order.len())
}

/// Returns false if the limit is reached.
fn push(to: &mut BTreeMap<String, Vec<f64>>, arm: &str, time_us: f64) -> bool {
    if to.len() >= ARMS_MAX && !to.contains_key(arm) {
        return false;
    }
    let times = to.entry(arm.to_string()).or_default();
    if times.len() < TIMES_MAX {
        times.push(time_us);
        return true;
    }
    false
}
