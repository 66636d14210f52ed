//! A synthetic trace of jobs, replayed through the real slurmctld at compressed time.
//!
//! Its figures are chosen here and come from no site: sizes of 1 to 32 GPUs with the shares of [`SIZES`] (mean 3.5), log-normal durations with a long
//! tail (median [`MEDIAN_S`], mean [`MEAN_S`]), independent of the size, and Poisson arrivals at [`LOAD`] of the capacity.

use super::{Agent, GPUS, Lab, draw};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use topology::{Allocation, Bytes, Cluster, Collective};

/// GPUs of a job, and the share of such jobs in percent.
const SIZES: [(usize, u64); 6] = [(1, 58), (2, 12), (4, 12), (8, 12), (16, 4), (32, 2)];
/// Median and mean of the durations, seconds.
const MEDIAN_S: f64 = 206.0;
const MEAN_S: f64 = 6652.0;
/// Durations after the compression, seconds: shorter ones are lost in the launch, longer ones hold up the end.
const SECONDS: (f64, f64) = (0.7, 20.0);
/// Work offered over the capacity.
const LOAD: f64 = 0.9;
/// Interval between two readings of Slurm's books.
const INTERVAL: Duration = Duration::from_millis(400);

/// A job of the trace.
pub struct Planned {
    /// Moment of its submission, seconds from the beginning.
    pub at_s: f64,
    pub gpus: usize,
    pub seconds: f64,
}

/// `n` jobs for `capacity` GPUs. The same seed gives the same jobs.
pub fn trace(seed: u64, n: usize, capacity: usize, compression: f64) -> Vec<Planned> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d;
    let uniform = |state: &mut u64| (draw(state, 1 << 30) as f64 + 0.5) / (1u64 << 30) as f64;
    let sigma = (2.0 * (MEAN_S / MEDIAN_S).ln()).sqrt();
    let mut jobs = Vec::new();
    for _ in 0..n {
        let mut at = draw(&mut state, 100);
        let size = |at: &mut u64, share: u64| {
            let hit = *at < share;
            *at = at.saturating_sub(share);
            hit
        };
        let gpus = SIZES.iter().find(|s| size(&mut at, s.1)).map_or(1, |s| s.0);
        let (u, v) = (uniform(&mut state), uniform(&mut state));
        let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
        let seconds = (MEDIAN_S * (sigma * normal).exp() / compression).clamp(SECONDS.0, SECONDS.1);
        jobs.push(Planned { at_s: -uniform(&mut state).ln(), gpus: gpus.min(capacity), seconds });
    }
    let work: f64 = jobs.iter().map(|j| j.gpus as f64 * j.seconds).sum();
    let unit = work / (LOAD * capacity as f64) / jobs.iter().map(|j| j.at_s).sum::<f64>();
    let mut at = 0.0;
    for j in &mut jobs {
        at += j.at_s * unit;
        j.at_s = at;
    }
    jobs
}

/// A job as Slurm's books had it.
#[derive(Clone, Default)]
struct Seen {
    state: String,
    submit_s: f64,
    start_s: f64,
    end_s: f64,
    gpus: Option<Allocation>,
}

/// What the books said during a replay.
#[derive(Default)]
pub struct Books {
    jobs: BTreeMap<u32, Seen>,
    /// Share of held GPUs and share of the free GPUs that are on partly used nodes, for every reading while jobs were submitted.
    used: Vec<f64>,
    scattered: Vec<f64>,
    /// GPUs that two running jobs held at once, by the books.
    pub held_twice: Vec<String>,
    pub readings: usize,
}

/// `2026-11-23T05:52:52` as seconds since an arbitrary day; 0 for `Unknown`.
fn seconds_of(text: &str) -> f64 {
    let n: Vec<i64> = text.split(['-', 'T', ':']).filter_map(|p| p.parse().ok()).collect();
    let [y, m, d, hour, minute, second] = n[..] else { return 0.0 };
    let (y, m) = if m > 2 { (y, m - 3) } else { (y - 1, m + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + d;
    (((days * 24 + hour) * 60 + minute) * 60 + second) as f64
}

/// The present time as [`seconds_of`] counts: Slurm writes local time.
pub fn now_s() -> f64 {
    let out = std::process::Command::new("date").arg("+%Y-%m-%dT%H:%M:%S").output().unwrap();
    seconds_of(String::from_utf8_lossy(&out.stdout).trim())
}

impl Books {
    /// The last state of a job, and its start as [`now_s`] counts.
    pub fn last(&self, job: u32) -> (&str, f64) {
        self.jobs.get(&job).map_or(("LOST", 0.0), |s| (s.state.as_str(), s.start_s))
    }

    fn read(&mut self, lab: &Lab, cluster: &Cluster, submitting: bool) {
        let text = lab.client("scontrol", &["show", "job", "-d", "-o"]);
        if text.is_empty() {
            return;
        }
        self.readings += 1;
        let mut held: BTreeMap<String, u32> = BTreeMap::new();
        let parsed: BTreeMap<u32, slurm::books::Job> =
            slurm::books::jobs(&text).into_iter().map(|j| (j.id, j)).collect();
        for line in text.lines() {
            let word = |key: &str| {
                line.split(' ').find_map(|w| w.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default().to_owned()
            };
            let Some(id) = word("JobId").parse::<u32>().ok() else { continue };
            let seen = self.jobs.entry(id).or_default();
            seen.state = word("JobState");
            (seen.submit_s, seen.start_s) = (seconds_of(&word("SubmitTime")), seconds_of(&word("StartTime")));
            seen.end_s = seconds_of(&word("EndTime"));
            if seen.state != "RUNNING" {
                continue;
            }
            let Some(gpus) = parsed.get(&id).and_then(|j| slurm::books::held(cluster, j)) else { continue };
            for g in cluster.gpu_names(&gpus) {
                if let Some(other) = held.insert(g.clone(), id) {
                    self.held_twice.push(format!("{g}: jobs {other} and {id}"));
                }
            }
            seen.gpus = Some(gpus);
        }
        if submitting {
            let capacity = cluster.gpu_count();
            let mut free: BTreeMap<&str, usize> = cluster.hosts.iter().map(|h| (h.name.as_str(), GPUS)).collect();
            for g in held.keys() {
                if let Some(n) = free.get_mut(g.split(':').next().unwrap_or_default()) {
                    *n -= 1;
                }
            }
            let all: usize = free.values().sum();
            let scattered: usize = free.values().filter(|n| **n < GPUS).sum();
            self.used.push(held.len() as f64 / capacity as f64);
            if all > 0 {
                self.scattered.push(scattered as f64 / all as f64);
            }
        }
    }

    fn open(&self, jobs: &BTreeSet<u32>) -> usize {
        jobs.iter().filter(|j| self.jobs.get(j).is_none_or(|s| !ended(&s.state))).count()
    }

    /// Jobs by their last state.
    pub fn states(&self, jobs: &BTreeSet<u32>) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::new();
        for j in jobs {
            *all.entry(self.jobs.get(j).map_or("LOST".to_owned(), |s| s.state.clone())).or_default() += 1;
        }
        all
    }
}

fn ended(state: &str) -> bool {
    ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"].contains(&state)
}

fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get((values.len() as f64 * q) as usize).copied().unwrap_or_default()
}

fn round(v: f64) -> f64 {
    (v * 1000.0).round() / 1000.0
}

/// Processor time of a process, milliseconds.
fn cpu_ms(pid: Option<u32>) -> f64 {
    let text = pid.and_then(|p| std::fs::read_to_string(format!("/proc/{p}/stat")).ok()).unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or_default();
    // Ticks of 10 ms on Linux.
    (ticks(11) + ticks(12)) * 10.0
}

/// A figure of `sdiag`: the number behind the first `key` from `section` on.
fn figure(text: &str, section: &str, key: &str) -> f64 {
    let rest = text.split_once(section).map_or("", |t| t.1);
    let value = rest.split_once(key).map_or("", |t| t.1).trim_start_matches([':', ' ', '\t']);
    value.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).unwrap_or_default()
}

/// What a replay does besides submitting. It runs between two readings; it may kill daemons.
pub type Meanwhile<'a> = dyn FnMut(&Lab, f64) + 'a;

/// Submits the jobs at their moments and waits until all have ended. `gate` is held during every submission.
pub fn replay(
    lab: &Lab,
    cluster: &Cluster,
    jobs: &[Planned],
    gate: &Mutex<()>,
    meanwhile: &mut Meanwhile,
) -> (BTreeSet<u32>, Books) {
    let begin = Instant::now();
    let submitted = Mutex::new(BTreeSet::new());
    let mut books = Books::default();
    std::thread::scope(|s| {
        let submitter = s.spawn(|| {
            for j in jobs {
                let early = j.at_s - begin.elapsed().as_secs_f64();
                std::thread::sleep(Duration::from_secs_f64(early.max(0.0)));
                let _open = gate.lock().unwrap();
                let (gpus, wrap) = (format!("--gpus={}", j.gpus), format!("exec sleep {:.2}", j.seconds));
                let args = ["--parsable", "-t", "2", "-o", "/dev/null", &gpus, "--wrap", &wrap];
                let id = lab.client("sbatch", &args);
                let id = id.trim().parse().unwrap_or_else(|_| panic!("sbatch {args:?}: `{id}`\n{}", lab.log()));
                submitted.lock().unwrap().insert(id);
            }
        });
        loop {
            let submitting = !submitter.is_finished();
            books.read(lab, cluster, submitting);
            meanwhile(lab, begin.elapsed().as_secs_f64());
            let known = submitted.lock().unwrap().clone();
            if !submitting && books.open(&known) == 0 {
                break;
            }
            let patience = jobs.last().map_or(0.0, |j| 4.0 * j.at_s) + 600.0;
            let states = books.states(&known);
            assert!(begin.elapsed().as_secs_f64() < patience, "jobs are stuck: {states:?}\n{}", lab.log());
            std::thread::sleep(INTERVAL);
        }
        submitter.join().unwrap();
    });
    (submitted.into_inner().unwrap(), books)
}

/// One replay without faults, and its figures. `agent`: linkwise answers during it.
pub fn measured(lab: &Lab, cluster: &Cluster, files: (&str, &str), jobs: &[Planned], with: bool) -> Value {
    let agent = with.then(|| Agent::start(lab, files.0, files.1, &[]));
    lab.client("sdiag", &["--reset"]);
    let (cpu, begin) = (cpu_ms(lab.pid("slurmctld")), Instant::now());
    let before = counters(lab);
    let (ids, books) = replay(lab, cluster, jobs, &Mutex::default(), &mut |_, _| {});
    let (took_s, cpu) = (begin.elapsed().as_secs_f64(), cpu_ms(lab.pid("slurmctld")) - cpu);
    let diag = lab.client("sdiag", &[]);
    let after = counters(lab);
    drop(agent);
    let n = jobs.len() as f64;
    let fabric = fabric::Fabric::new(cluster);
    let busbw = |a: &Allocation| fabric.estimate(a, Collective::AllReduce, Bytes::mib(256)).busbw.gb_per_s();
    let (mut work, mut weight, mut spread, mut unseen) = (0.0, 0.0, 0, 0);
    let mut by_size: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    let mut waits = Vec::new();
    for id in &ids {
        let seen = &books.jobs[id];
        waits.push((seen.start_s - seen.submit_s).max(0.0));
        let Some(gpus) = &seen.gpus else {
            unseen += 1;
            continue;
        };
        let k = gpus.gpu_count();
        if k > 1 {
            let (b, w) = (busbw(gpus), k as f64 * (seen.end_s - seen.start_s).max(1.0));
            (work, weight) = (work + b * w, weight + w);
            by_size.entry(k).or_default().push(b);
            spread += usize::from(gpus.parts().len() > k.div_ceil(GPUS));
        }
    }
    let several: usize = by_size.values().map(Vec::len).sum();
    let by_size: BTreeMap<String, f64> = by_size.iter().map(|(k, v)| (k.to_string(), round(mean(v)))).collect();
    json!({
        "linkwise": with,
        "jobs": ids.len(),
        "states": books.states(&ids),
        "took_s": round(took_s),
        "readings": books.readings,
        "simulated_busbw_gb_per_s": round(work / f64::max(weight, 1.0)),
        "simulated_busbw_by_gpus": by_size,
        "jobs_on_more_nodes_than_needed": round(spread as f64 / several.max(1) as f64),
        "jobs_too_short_to_be_seen": unseen,
        "wait_mean_s": round(mean(&waits)),
        "wait_p90_s": round(quantile(&mut waits, 0.9)),
        "gpus_used": round(mean(&books.used)),
        "free_gpus_on_partly_used_nodes": round(mean(&books.scattered)),
        "held_twice": books.held_twice.len(),
        "controller_cpu_ms_per_job": round(cpu / n),
        "submit_rpc_us": figure(&diag, "REQUEST_SUBMIT_BATCH_JOB", "ave_time"),
        "schedule_cycle_us": figure(&diag, "Main schedule statistics", "Mean cycle"),
        "asked": after[0] - before[0],
        "taken": after[1] - before[1],
        "refused": after[2] - before[2],
        "misplaced": after[3] - before[3],
        "load_1min": std::fs::read_to_string("/proc/loadavg").unwrap_or_default().split(' ').next().unwrap_or_default(),
    })
}

/// The plugin's counters: asked, taken, refused, misplaced.
fn counters(lab: &Lab) -> [u64; 4] {
    let text = lab.client("scontrol", &["show", "bbstat"]);
    ["asked=", "taken=", "refused=", "misplaced="]
        .map(|key| text.split_whitespace().find_map(|w| w.strip_prefix(key)?.parse().ok()).unwrap_or_default())
}
