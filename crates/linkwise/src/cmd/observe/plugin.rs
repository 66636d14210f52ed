//! `--trace` with traces of the NCCL plugin: turns GPU times of kernels into readings of the job.

use super::reading::provenance;
use console::Failure;
use engine::ReadingIn;
use job::report::files;
use measure::plugin_trace::{self, RankGpus, TraceLine};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use topology::{Allocation, Bytes, Cluster, Collective};

/// Maximum number of calls of all communicators; later calls are left out and counted.
const CALLS_MAX: usize = 2_000_000;
/// Maximum number of readings; the most frequent kinds of calls are kept.
const KINDS_MAX: usize = 64;
/// Minimum number of calls of one kind for a reading: the first use of an algorithm sets up its connections.
const CALLS_MIN: usize = 3;

/// True if the file, or a file in the folder, is a trace of the plugin.
pub fn is_one(path: &Path) -> bool {
    let Ok(files) = files(&[path.to_path_buf()]) else { return false };
    files.first().is_some_and(|f| {
        let mut beginning = Vec::new();
        let read = File::open(f).and_then(|f| f.take(4096).read_to_end(&mut beginning));
        read.is_ok() && plugin_trace::is_plugin_trace(&String::from_utf8_lossy(&beginning))
    })
}

/// Kind of a call: collective, bytes, algorithm and protocol, channels.
type Kind = (Collective, u64, String, u32);

/// GPU times of one call.
#[derive(Default)]
struct Call {
    ranks: u32,
    least_us: f64,
}

/// The times of the calls that all ranks of a job timed.
#[derive(Default)]
struct Times<'t> {
    /// Times of all calls of each kind, microseconds.
    of_kind: BTreeMap<&'t Kind, Vec<f64>>,
    /// Number of calls of other communicators, and of calls that not all ranks timed.
    left_out: usize,
    /// For the last call that not all ranks timed: the number of ranks with a time, and of all ranks.
    partial: Option<(u32, u32)>,
}

/// Contents of the plugin's traces of a job.
#[derive(Default)]
pub struct Traces {
    places: RankGpus,
    /// Number of ranks of every communicator.
    comms: BTreeMap<String, u32>,
    calls: BTreeMap<(String, u64), (Kind, Call)>,
    left_out: usize,
    scripted: bool,
    profiler: bool,
    path: PathBuf,
}

impl Traces {
    /// Reads one file, or all traces of a folder.
    pub fn read(path: &Path) -> Result<Traces, Failure> {
        let mut t = Traces { path: path.to_path_buf(), ..Traces::default() };
        for path in files(&[path.to_path_buf()]).map_err(Failure::input)? {
            let file = File::open(&path).map_err(|e| Failure::file("read", &path, e))?;
            let read = plugin_trace::read(BufReader::new(file), |line| {
                t.take(line);
                Ok(())
            });
            read.map_err(|e| Failure::input(format!("{}: {e}", path.display())))?;
        }
        Ok(t)
    }

    fn take(&mut self, line: TraceLine) {
        self.places.add_line(&line);
        match line.kind.as_str() {
            "process" => {
                self.scripted |= line.scripted;
                self.profiler |= line.profiler_api > 0;
            }
            "comm" => _ = self.comms.insert(line.comm, line.ranks),
            "launched" => {
                let collective = line.collective.parse().ok();
                let us = line.kernel_us.filter(|us| *us > 0.0);
                let (Some(collective), Some(call), Some(us)) = (collective, line.call, us) else {
                    self.left_out += 1;
                    return;
                };
                let id = (line.comm, call);
                if self.calls.len() >= CALLS_MAX && !self.calls.contains_key(&id) {
                    self.left_out += 1;
                    return;
                }
                let kind = (collective, line.size_bytes, line.arm, line.channels);
                let entry = self.calls.entry(id).or_insert_with(|| (kind, Call { ranks: 0, least_us: f64::INFINITY }));
                entry.1.ranks += 1;
                entry.1.least_us = entry.1.least_us.min(us); // the last rank to start does not wait
            }
            _ => {}
        }
    }

    /// The GPUs of the largest communicator, from the places that its processes wrote.
    pub fn gpus(&self, cluster: &Cluster) -> Result<Allocation, Failure> {
        let path = self.path.display();
        let (comm, ranks) = self
            .comms
            .iter()
            .max_by_key(|c| c.1)
            .ok_or_else(|| Failure::input(format!("{path}: no communicator is in this trace")))?;
        let names = self.places.gpus(comm, *ranks).map_err(|e| {
            Failure::input(format!("{path} does not tell which GPUs the job has: {e}. --gpus names them, or --state"))
        })?;
        let names: Vec<String> = names.iter().map(|(host, gpu)| format!("{host}:{gpu}")).collect();
        cluster.parse_gpus(names.iter().map(String::as_str)).map_err(|e| {
            Failure::input(format!("{path}: {e}. --gpus names the job's GPUs as the cluster does, or --state"))
        })
    }

    /// One reading per kind of call over all GPUs of the job, and the number of calls left out.
    pub fn readings(self, gpus: usize, simulated: bool) -> Result<(Vec<ReadingIn>, usize), Failure> {
        let path = self.path.display();
        if self.scripted && !simulated {
            return Err(Failure::input(format!(
                "{path}: its times were given by a test (LINKWISE_TEST), not measured; --simulated takes them as a simulation"
            )));
        }
        let times = self.times(gpus);
        let mut left_out = times.left_out;
        let mut out: Vec<(usize, ReadingIn)> = Vec::new();
        for (kind, us) in &times.of_kind {
            if us.len() < CALLS_MIN || kind.1 == 0 {
                left_out += us.len();
            } else {
                out.push((us.len(), self.reading(kind, us, gpus)));
            }
        }
        out.sort_by_key(|(n, m)| (std::cmp::Reverse(*n), m.collective, m.size_bytes));
        left_out += out.iter().skip(KINDS_MAX).map(|o| o.0).sum::<usize>();
        out.truncate(KINDS_MAX);
        if out.is_empty() {
            let why = self.why_nothing(gpus, times.partial);
            return Err(Failure::input(format!("{path}: nothing to record: {why}")));
        }
        Ok((out.into_iter().map(|o| o.1).collect(), left_out))
    }

    /// The times of the communicators with `gpus` ranks.
    fn times(&self, gpus: usize) -> Times<'_> {
        let mut out = Times { left_out: self.left_out, ..Times::default() };
        for ((comm, _), (kind, call)) in &self.calls {
            let ranks = self.comms.get(comm).copied().unwrap_or(0);
            if ranks as usize != gpus {
                out.left_out += 1;
            } else if call.ranks != ranks {
                out.partial = Some((call.ranks, ranks));
                out.left_out += 1;
            } else {
                out.of_kind.entry(kind).or_default().push(call.least_us);
            }
        }
        out
    }

    /// The reading of one kind of call: the median of its times.
    fn reading(&self, (collective, size, arm, channels): &Kind, times: &[f64], gpus: usize) -> ReadingIn {
        let us = stats::upper_median(times);
        let busbw_gb_per_s = *size as f64 / us / 1e3 * collective.bus_factor(gpus);
        let what = format!("NCCL plugin, median of {} calls", times.len());
        let mut m = ReadingIn::new(*collective, Some(Bytes(*size)), busbw_gb_per_s);
        m.provenance = provenance(&what, &self.path);
        m.time_s = Some(us * 1e-6);
        if let Some((a, p)) = arm.split_once('/') {
            (m.algorithm, m.protocol) = (Some(a.to_string()), Some(p.to_string()));
        }
        m.channels = (*channels > 0).then_some(*channels);
        m
    }

    /// The reason why no call became a reading. `partial`: for a call that not all ranks timed, the number of ranks
    /// with a time and of all ranks.
    fn why_nothing(&self, gpus: usize, partial: Option<(u32, u32)>) -> String {
        match partial {
            Some((some, all)) => {
                format!(
                    "its calls have GPU times of {some} of {all} ranks; give the folder with the traces of all hosts"
                )
            }
            None if !self.comms.values().any(|r| *r as usize == gpus) => {
                let mut sizes: Vec<u32> = self.comms.values().copied().collect();
                sizes.dedup();
                format!(
                    "no communicator has {gpus} ranks, one for each of the job's GPUs (they have {sizes:?}); --gpus names the job's"
                )
            }
            None if !self.profiler => "NCCL did not load the plugin as its profiler; `linkwise run` asks for it".into(),
            None => format!(
                "no collective has its GPU time and {CALLS_MIN} calls; `linkwise run --kernel-times` asks NCCL for them (2.27.3 and later)"
            ),
        }
    }
}
