//! Runs a specification: starts the processes of the simulated hosts (`spawn`), waits for the processes, then reads
//! their logs (`assemble`).

pub(crate) mod assemble;
mod spawn;

use crate::emulation::Emulation;
use crate::read::{LOG_BYTES_MAX, log};
use crate::report::BenchReport;
use crate::spec::BenchSpec;
use crate::{BenchError, Library, TopologyFile, library};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};
use topology::NetworkClass;

/// Prefix of the folders of runs; the process id and random letters follow.
const FOLDER: &str = "linkwise-nccl-";
/// Age at which a folder is removed if its process is gone.
const STALE: Duration = Duration::from_secs(3600);
/// Time limit for the other hosts to end after one host has failed.
pub(crate) const AFTER_FAILURE: Duration = Duration::from_millis(300);
/// Interval between checks of the processes.
pub(crate) const POLL: Duration = Duration::from_millis(4);

/// The bench, with its cache of libraries and the compiled emulation.
#[derive(Debug, Clone)]
pub struct Bench {
    cache: PathBuf,
}

impl Bench {
    /// A bench with the default cache ([`library::default_cache`]).
    pub fn new() -> Result<Self, BenchError> {
        Ok(Bench { cache: library::default_cache()? })
    }

    /// A bench with another cache folder.
    pub fn in_cache(cache: impl Into<PathBuf>) -> Self {
        Bench { cache: cache.into() }
    }

    pub(crate) fn cache(&self) -> &Path {
        &self.cache
    }

    /// Runs a specification and returns the library's report. Downloads the library and compiles the emulation if they
    /// are missing. On return, also with an error, no process and no shared memory of the run remains. A run on two
    /// cores takes 1 s for one host with eight GPUs and about 10 s for four hosts. Each rank needs 85 MB of shared
    /// memory.
    pub fn run(&self, spec: &BenchSpec) -> Result<BenchReport, BenchError> {
        spec.check()?;
        let emulation = Emulation::get_or_compile(&self.cache)?;
        let library = Library::get_or_fetch(&self.cache, spec.version)?;
        let run = BenchRun::new(spec, &emulation, &library)?;
        run.execute()
    }
}

/// One process: all ranks of a host, or one rank.
#[derive(Debug, Clone)]
struct HostProcess {
    node: usize,
    first_rank: u32,
    gpus: Vec<u8>,
}

fn list_processes(spec: &BenchSpec) -> Vec<HostProcess> {
    let mut first_rank = 0;
    let mut processes = Vec::new();
    for (node, place) in spec.nodes.iter().enumerate() {
        let at_once = if spec.process_per_rank { 1 } else { place.gpus.len() };
        for gpus in place.gpus.chunks(at_once.max(1)) {
            processes.push(HostProcess { node, first_rank, gpus: gpus.to_vec() });
            first_rank += gpus.len() as u32;
        }
    }
    processes
}

struct BenchRun<'a> {
    spec: &'a BenchSpec,
    processes: Vec<HostProcess>,
    emulation: &'a Emulation,
    library: &'a Library,
    topologies: Vec<TopologyFile>,
    /// True if NICs read and write GPU memory.
    gpudirect: bool,
    /// Removed with its files on drop.
    folder: tempfile::TempDir,
}

/// The processes of a run. Drop kills them. Their shared memory is in the folder of the run.
pub(crate) struct ChildProcesses(pub(crate) Vec<Child>);

impl Drop for ChildProcesses {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl<'a> BenchRun<'a> {
    fn new(spec: &'a BenchSpec, emulation: &'a Emulation, library: &'a Library) -> Result<Self, BenchError> {
        let gpudirect =
            matches!(spec.cluster.network.class, NetworkClass::Infiniband | NetworkClass::Roce | NetworkClass::Efa);
        let topologies = spec.nodes.iter().map(|n| TopologyFile::of(spec.cluster.type_of(n.host), gpudirect));
        let topologies = topologies.collect::<Result<_, _>>().map_err(BenchError::Spec)?;
        let preload = emulation.preload.to_string_lossy();
        if preload.contains([' ', ':']) {
            return Err(BenchError::Spec(format!("LD_PRELOAD takes no path with a space or colon: {preload}")));
        }
        let folder = new_folder()?;
        Ok(BenchRun { spec, processes: list_processes(spec), emulation, library, topologies, gpudirect, folder })
    }

    fn file(&self, process: usize, name: &str) -> PathBuf {
        self.folder.path().join(format!("{process}.{name}"))
    }

    fn first_rank(&self, node: usize) -> u32 {
        self.spec.nodes[..node].iter().map(|n| n.gpus.len() as u32).sum()
    }

    fn host(&self, process: usize) -> String {
        self.spec.cluster.host(self.spec.nodes[self.processes[process].node].host).name.clone()
    }

    /// Index of the process with a node's first rank.
    fn first_process(&self, node: usize) -> usize {
        self.processes.iter().position(|p| p.node == node).unwrap_or(0)
    }

    fn execute(&self) -> Result<BenchReport, BenchError> {
        let plan: String = self.spec.calls.iter().fold(String::new(), |text, c| {
            format!("{text}{}{} {}\n", if c.captured { "graph " } else { "" }, c.collective, c.size_bytes)
        });
        self.write(self.folder.path().join("plan"), &plan)?;
        let begin = Instant::now();
        let mut children = ChildProcesses(Vec::new());
        for process in 0..self.processes.len() {
            children.0.push(self.spawn(process)?);
        }
        self.wait(&mut children, begin)?;
        let total = begin.elapsed().as_secs_f64();
        drop(children);
        self.report(total)
    }

    fn write(&self, path: PathBuf, text: &str) -> Result<(), BenchError> {
        fs::write(&path, text).map_err(BenchError::io(format!("cannot write {}", path.display())))
    }

    /// Waits until all processes succeed, one fails, or the deadline passes.
    fn wait(&self, children: &mut ChildProcesses, begin: Instant) -> Result<(), BenchError> {
        let mut ended = vec![false; children.0.len()];
        let mut logs_checked = begin;
        let (mut failed, mut give_up): (Vec<(usize, ExitStatus)>, Option<Instant>) = (Vec::new(), None);
        while ended.iter().any(|e| !e) {
            for (process, done) in ended.iter_mut().enumerate().filter(|(_, done)| !**done) {
                let status = children.0[process].try_wait().map_err(BenchError::io("waiting for a simulated host"))?;
                if let Some(status) = status {
                    *done = true;
                    if !status.success() {
                        failed.push((process, status));
                        // The other processes fail soon after, because their peer is gone. A killed process is the
                        // cause.
                        give_up.get_or_insert(Instant::now() + AFTER_FAILURE);
                    }
                }
            }
            if give_up.is_some_and(|t| Instant::now() > t || failed.iter().any(|(_, s)| s.code().is_none())) {
                break;
            }
            if begin.elapsed() > self.spec.deadline {
                let ready = (0..ended.len()).filter(|p| self.log(*p).is_ok_and(|l| l.initialised_s.is_some())).count();
                return Err(BenchError::Deadline {
                    version: self.library.version,
                    seconds: self.spec.deadline.as_secs_f64(),
                    state: format!("{ready} of {} hosts were initialised", ended.len()),
                });
            }
            if logs_checked.elapsed() > Duration::from_millis(200) {
                logs_checked = Instant::now();
                for process in 0..ended.len() {
                    for name in ["log", "err"] {
                        if fs::metadata(self.file(process, name)).is_ok_and(|m| m.len() > LOG_BYTES_MAX) {
                            return Err(self.log_error(format!(
                                "host {} wrote more than {LOG_BYTES_MAX} bytes",
                                self.host(process)
                            )));
                        }
                    }
                }
            }
            std::thread::sleep(POLL);
        }
        let cause = failed.iter().find(|(_, s)| s.code().is_none()).or(failed.first());
        cause.map_or(Ok(()), |(process, status)| Err(self.failure(*process, *status)))
    }

    fn log_error(&self, reason: String) -> BenchError {
        BenchError::Log { version: self.library.version, reason }
    }

    fn text(&self, process: usize, name: &str, bytes_max: u64) -> Result<String, BenchError> {
        let path = self.file(process, name);
        let mut bytes = Vec::new();
        File::open(&path)
            .and_then(|f| f.take(bytes_max).read_to_end(&mut bytes))
            .map_err(BenchError::io(format!("cannot read {}", path.display())))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn log(&self, process: usize) -> Result<log::NodeLog, BenchError> {
        Ok(log::read(&self.text(process, "log", LOG_BYTES_MAX)?))
    }

    /// Function names after `key` in the emulation's lines, without duplicates.
    fn emulation_lines(&self, key: &str) -> Result<Vec<String>, BenchError> {
        let mut found = Vec::new();
        for process in 0..self.processes.len() {
            let text = self.text(process, "err", LOG_BYTES_MAX)?;
            let names = text.lines().filter_map(|l| l.strip_prefix("linkwise-emulation: ")?.strip_prefix(key));
            found.extend(names.map(|n| n.trim().to_string()));
        }
        found.sort();
        found.dedup();
        Ok(found)
    }

    fn failure(&self, process: usize, status: ExitStatus) -> BenchError {
        let version = self.library.version;
        match self.emulation_lines("not emulated: ") {
            Ok(calls) if !calls.is_empty() => return BenchError::NotEmulated { version, calls },
            _ => {}
        }
        let log = self.log(process).unwrap_or_default();
        let said = self.text(process, "err", LOG_BYTES_MAX).unwrap_or_default();
        let reason = match (log.errors.first(), said.lines().last(), status.code()) {
            (Some(e), _, _) => e.clone(),
            (None, Some(line), Some(code)) => format!("{line} (exit code {code})"),
            (None, None, Some(code)) => format!("it ended with exit code {code}"),
            (None, _, None) => format!("it was killed by {status}"),
        };
        let mut warnings = log.warnings;
        let last = warnings.len().saturating_sub(5);
        BenchError::Node { host: self.host(process), version, reason, warnings: warnings.split_off(last) }
    }
}

/// A folder for the files of one run. Removed with its files on drop.
pub(crate) fn new_folder() -> Result<tempfile::TempDir, BenchError> {
    sweep();
    let folder = tempfile::Builder::new().prefix(&format!("{FOLDER}{}-", std::process::id())).tempdir();
    folder.map_err(BenchError::io("cannot create a temporary folder"))
}

/// Removes old folders of killed benches, whose processes are gone. Keeps recent folders, because their processes may
/// run in another container.
fn sweep() {
    let old = |e: &fs::DirEntry| {
        let age = e.metadata().and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
        age.is_some_and(|a| a > STALE)
    };
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|n| n.strip_prefix(FOLDER)?.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|p| !Path::new(&format!("/proc/{p}")).exists()) && old(&entry) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
