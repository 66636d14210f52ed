//! Runs a specification: starts one process per simulated host, waits for all, then reads the logs.

mod assemble;

use crate::emulation::Emulation;
use crate::read::{LOG_BYTES_MAX, log};
use crate::report::BenchReport;
use crate::spec::{BenchSpec, CallMode};
use crate::{BenchError, Library, TopologyFile, library};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use topology::NetworkClass;

/// Prefix of the folders of runs; the process id and random letters follow.
const FOLDER: &str = "linkwise-nccl-";
/// Age from which a folder without its process is removed.
const STALE: Duration = Duration::from_secs(3600);
/// Time that the other hosts get to end after one has failed.
const AFTER_FAILURE: Duration = Duration::from_millis(300);
/// Interval between checks of the processes.
const POLL: Duration = Duration::from_millis(4);

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

    /// Runs a specification and returns the library's report. Downloads the library and compiles the emulation if they are missing. On return,
    /// also with an error, no process and no shared memory of the run is left. On two cores it takes 1 s for a host of eight GPUs and about 10 s
    /// for four hosts, with 85 MB of shared memory per rank.
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
    let mut parts = Vec::new();
    for (node, place) in spec.nodes.iter().enumerate() {
        let at_once = if spec.process_per_rank { 1 } else { place.gpus.len() };
        for gpus in place.gpus.chunks(at_once.max(1)) {
            parts.push(HostProcess { node, first_rank, gpus: gpus.to_vec() });
            first_rank += gpus.len() as u32;
        }
    }
    parts
}

struct BenchRun<'a> {
    spec: &'a BenchSpec,
    processes: Vec<HostProcess>,
    emulation: &'a Emulation,
    library: &'a Library,
    topologies: Vec<TopologyFile>,
    /// Whether NICs read and write GPU memory.
    gpudirect: bool,
    /// Removed with its files on drop.
    folder: tempfile::TempDir,
}

/// The processes of a run. Drop kills them. Their shared memory is in the folder of the run.
struct ChildProcesses(Vec<Child>);

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
        sweep();
        let folder = tempfile::Builder::new().prefix(&format!("{FOLDER}{}-", std::process::id())).tempdir();
        let folder = folder.map_err(BenchError::io("cannot create a temporary folder"))?;
        Ok(BenchRun { spec, processes: list_processes(spec), emulation, library, topologies, gpudirect, folder })
    }

    fn file(&self, part: usize, what: &str) -> PathBuf {
        self.folder.path().join(format!("{part}.{what}"))
    }

    fn first_rank(&self, node: usize) -> u32 {
        self.spec.nodes[..node].iter().map(|n| n.gpus.len() as u32).sum()
    }

    fn host(&self, part: usize) -> String {
        self.spec.cluster.host(self.spec.nodes[self.processes[part].node].host).name.clone()
    }

    /// Index of the process with a node's first rank.
    fn first_part(&self, node: usize) -> usize {
        self.processes.iter().position(|p| p.node == node).unwrap_or(0)
    }

    fn execute(&self) -> Result<BenchReport, BenchError> {
        let plan: String = self.spec.calls.iter().fold(String::new(), |text, c| {
            format!("{text}{}{} {}\n", if c.captured { "graph " } else { "" }, c.collective, c.size_bytes)
        });
        self.write(self.folder.path().join("plan"), &plan)?;
        let begin = Instant::now();
        let mut nodes = ChildProcesses(Vec::new());
        for part in 0..self.processes.len() {
            nodes.0.push(self.spawn(part)?);
        }
        self.wait(&mut nodes, begin)?;
        let total = begin.elapsed().as_secs_f64();
        drop(nodes);
        self.report(total)
    }

    fn write(&self, path: PathBuf, text: &str) -> Result<(), BenchError> {
        fs::write(&path, text).map_err(BenchError::io(format!("cannot write {}", path.display())))
    }

    fn spawn(&self, at: usize) -> Result<Child, BenchError> {
        let part = &self.processes[at];
        let node = part.node;
        let (spec, topology) = (self.spec, &self.topologies[node]);
        let place = &spec.nodes[node];
        let host_type = spec.cluster.type_of(place.host);
        self.write(self.file(at, "topology.xml"), &topology.xml)?;
        let out = |what: &str| {
            let path = self.file(at, what);
            File::create(&path).map_err(BenchError::io(format!("cannot write {}", path.display())))
        };
        let mode = match spec.mode {
            CallMode::Simulate => "simulate",
            CallMode::Launch => "launch",
            CallMode::Both => "both",
        };
        let shared = self.folder.path().join("shm");
        fs::create_dir_all(&shared).map_err(BenchError::io(format!("cannot create {}", shared.display())))?;
        let mut c = Command::new(&self.emulation.runner);
        c.arg(&self.library.path)
            .arg(std::process::id().to_string())
            .arg(part.first_rank.to_string())
            .arg(spec.rank_count().to_string())
            .arg(part.gpus.len().to_string())
            .arg(self.folder.path().join("id"))
            .arg(self.folder.path().join("plan"))
            .arg(mode)
            .stdin(Stdio::null())
            .stdout(out("log")?)
            .stderr(out("err")?);
        // Do not pass on the caller's environment: NCCL reads dozens of variables, and a file in HOME.
        c.env_clear().env("HOME", self.folder.path());
        for name in ["PATH", "LD_LIBRARY_PATH", "TMPDIR"] {
            if let Some(value) = std::env::var_os(name) {
                c.env(name, value);
            }
        }
        c.envs(spec.env.iter().map(|(k, v)| (k, v)));
        let multicast = host_type.nvlink.is_some_and(|n| n.switched && n.multicast);
        let nics: Vec<String> = topology.nics.iter().map(|(name, bus, mbit)| format!("{name},{bus},{mbit}")).collect();
        let visible: Vec<String> = part.gpus.iter().map(u8::to_string).collect();
        c.env("LD_PRELOAD", &self.emulation.preload)
            .env("CUDA_VISIBLE_DEVICES", visible.join(","))
            .env("LINKWISE_EMU_BUS_IDS", topology.gpu_bus_ids.join(","))
            .env("LINKWISE_EMU_NICS", nics.join(";"))
            .env("LINKWISE_EMU_GPUDIRECT", u8::from(self.gpudirect).to_string())
            .env("LINKWISE_EMU_SM", topology.gpu.compute_capability.to_string())
            .env("LINKWISE_EMU_SM_COUNT", topology.gpu.multiprocessors.to_string())
            .env("LINKWISE_EMU_MEMORY_GIB", topology.gpu.memory_gib.to_string())
            .env("LINKWISE_EMU_MULTICAST", u8::from(multicast).to_string())
            .env("LINKWISE_EMU_PEER_TO_PEER", u8::from(topology.gpu.peer_to_peer).to_string())
            .env("LINKWISE_EMU_SHARED_MEMORY", &shared)
            .env("NCCL_HOSTID", format!("linkwise-{}-{node}", std::process::id()))
            .env("NCCL_TOPO_FILE", self.file(at, "topology.xml"))
            .env("NCCL_GRAPH_DUMP_FILE", self.file(at, "graphs.xml"))
            .env("NCCL_GRAPH_DUMP_FILE_RANK", part.first_rank.to_string())
            .env("NCCL_NET_PLUGIN", &self.emulation.net_plugin)
            .env("NCCL_SOCKET_IFNAME", "lo")
            .env("NCCL_RAS_ENABLE", "0") // all jobs of a machine would use the same port
            .env("NCCL_DEBUG", "INFO")
            .env("NCCL_DEBUG_SUBSYS", "INIT,GRAPH,TUNING");
        if let Some(domain) = place.nvlink_domain {
            c.env("LINKWISE_EMU_FABRIC_CLIQUE", "1").env("LINKWISE_EMU_FABRIC_DOMAIN", domain.to_string());
        }
        if let Some(plugin) = &spec.tuner_plugin {
            c.env("NCCL_TUNER_PLUGIN", plugin);
        }
        if let Some(plugin) = &spec.profiler_plugin {
            c.env("NCCL_PROFILER_PLUGIN", plugin);
        }
        c.envs(spec.plugin_env.iter().map(|(k, v)| (k, v)));
        if spec.in_group > 1 {
            c.env("LINKWISE_EMU_IN_GROUP", spec.in_group.to_string());
        }
        if !spec.pause.is_zero() {
            c.env("LINKWISE_EMU_PAUSE_US", spec.pause.as_micros().to_string());
        }
        if spec.process_per_rank {
            let local = part.first_rank - self.first_rank(node);
            c.env("RANK", part.first_rank.to_string())
                .env("WORLD_SIZE", spec.rank_count().to_string())
                .env("LOCAL_RANK", local.to_string());
            let own = spec.plugin_env_of_rank.iter().filter(|(rank, _, _)| *rank == part.first_rank);
            c.envs(own.map(|(_, k, v)| (k, v)));
            if let Some((_, time)) = spec.late.filter(|(rank, _)| *rank == part.first_rank) {
                c.env("LINKWISE_EMU_LATE_MS", time.as_millis().to_string());
            }
            if spec.in_step_every > 0 {
                c.env("LINKWISE_EMU_IN_STEP_EVERY", spec.in_step_every.to_string());
            }
        }
        c.spawn().map_err(BenchError::io(format!("cannot start {}", self.emulation.runner.display())))
    }

    /// Waits until all processes succeed, one fails, or the deadline passes.
    fn wait(&self, nodes: &mut ChildProcesses, begin: Instant) -> Result<(), BenchError> {
        let mut ended = vec![false; nodes.0.len()];
        let mut looked_at_logs = begin;
        let (mut failed, mut give_up): (Vec<(usize, ExitStatus)>, Option<Instant>) = (Vec::new(), None);
        while ended.iter().any(|e| !e) {
            for (node, done) in ended.iter_mut().enumerate().filter(|(_, done)| !**done) {
                let status = nodes.0[node].try_wait().map_err(BenchError::io("waiting for a simulated host"))?;
                if let Some(status) = status {
                    *done = true;
                    if !status.success() {
                        failed.push((node, status));
                        // The others fail soon, because their peer is gone. A killed process is the cause.
                        give_up.get_or_insert(Instant::now() + AFTER_FAILURE);
                    }
                }
            }
            if give_up.is_some_and(|t| Instant::now() > t || failed.iter().any(|(_, s)| s.code().is_none())) {
                break;
            }
            if begin.elapsed() > self.spec.deadline {
                let ready = (0..ended.len()).filter(|n| self.log(*n).is_ok_and(|l| l.initialised_s.is_some())).count();
                return Err(BenchError::Deadline {
                    version: self.library.version,
                    seconds: self.spec.deadline.as_secs_f64(),
                    state: format!("{ready} of {} hosts were initialised", ended.len()),
                });
            }
            if looked_at_logs.elapsed() > Duration::from_millis(200) {
                looked_at_logs = Instant::now();
                for node in 0..ended.len() {
                    for what in ["log", "err"] {
                        if fs::metadata(self.file(node, what)).is_ok_and(|m| m.len() > LOG_BYTES_MAX) {
                            return Err(self
                                .log_error(format!("host {} wrote more than {LOG_BYTES_MAX} bytes", self.host(node))));
                        }
                    }
                }
            }
            std::thread::sleep(POLL);
        }
        let cause = failed.iter().find(|(_, s)| s.code().is_none()).or(failed.first());
        cause.map_or(Ok(()), |(node, status)| Err(self.failure(*node, *status)))
    }

    fn log_error(&self, reason: String) -> BenchError {
        BenchError::Log { version: self.library.version, reason }
    }

    fn text(&self, node: usize, what: &str, most: u64) -> Result<String, BenchError> {
        let path = self.file(node, what);
        let mut bytes = Vec::new();
        File::open(&path)
            .and_then(|f| f.take(most).read_to_end(&mut bytes))
            .map_err(BenchError::io(format!("cannot read {}", path.display())))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn log(&self, node: usize) -> Result<log::NodeLog, BenchError> {
        Ok(log::read(&self.text(node, "log", LOG_BYTES_MAX)?))
    }

    /// Function names after `key` in the emulation's lines, without repeats.
    fn emulation_lines(&self, key: &str) -> Result<Vec<String>, BenchError> {
        let mut found = Vec::new();
        for part in 0..self.processes.len() {
            let text = self.text(part, "err", LOG_BYTES_MAX)?;
            let names = text.lines().filter_map(|l| l.strip_prefix("linkwise-emulation: ")?.strip_prefix(key));
            found.extend(names.map(|n| n.trim().to_string()));
        }
        found.sort();
        found.dedup();
        Ok(found)
    }

    fn failure(&self, node: usize, status: ExitStatus) -> BenchError {
        let version = self.library.version;
        match self.emulation_lines("not emulated: ") {
            Ok(calls) if !calls.is_empty() => return BenchError::NotEmulated { version, calls },
            _ => {}
        }
        let log = self.log(node).unwrap_or_default();
        let said = self.text(node, "err", LOG_BYTES_MAX).unwrap_or_default();
        let reason = match (log.errors.first(), said.lines().last(), status.code()) {
            (Some(e), _, _) => e.clone(),
            (None, Some(line), Some(code)) => format!("{line} (exit code {code})"),
            (None, None, Some(code)) => format!("it ended with exit code {code}"),
            (None, _, None) => format!("it was killed by {status}"),
        };
        let mut warnings = log.warnings;
        let last = warnings.len().saturating_sub(5);
        BenchError::Node { host: self.host(node), version, reason, warnings: warnings.split_off(last) }
    }
}

/// Removes old folders of killed benches, whose process is gone. It keeps young folders, because the process may be in another container.
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
