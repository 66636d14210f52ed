//! Starts the processes of a run, one per rank, waits for them and reads their answers.

use super::{BytesCall, BytesReport, BytesResult, BytesSpec, Player, Traffic};
use crate::emulation::Emulation;
use crate::layout::Layout;
use crate::read::{LOG_BYTES_MAX, log};
use crate::run::{AFTER_FAILURE, Bench, ChildProcesses, POLL, assemble, new_folder};
use crate::{BenchError, Library, TopologyFile};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use topology::nccl::Version;

/// NCCL settings of every run, before those of the caller: algorithms that are not played, and services that a simulated host lacks.
const DEFAULTS: [(&str, &str); 7] = [
    ("NCCL_NVLS_ENABLE", "0"),
    ("NCCL_PAT_ENABLE", "0"),
    ("NCCL_ALLGATHERV_ENABLE", "0"),
    ("NCCL_IB_DISABLE", "1"),
    ("NCCL_RAS_ENABLE", "0"), // otherwise all jobs of a machine use the same port
    ("NCCL_DEBUG", "INFO"),
    ("NCCL_DEBUG_SUBSYS", "INIT,GRAPH,TUNING"),
];
/// Exit statuses of `fiber.c`.
const EXIT_REFUSED: i32 = 68;
const EXIT_STUCK: i32 = 69;
/// Time in which other ranks may report where they are stuck, after the first has.
const AFTER_STUCK: Duration = Duration::from_secs(2);

impl Bench {
    /// Runs a specification in which bytes move, and returns every rank's result. Wrong bytes are in the report; a stuck rank and a kernel that
    /// is not played are errors. On return, also with an error, no process and no shared memory of the run remains.
    pub fn run_bytes(&self, spec: &BytesSpec) -> Result<BytesReport, BenchError> {
        spec.check()?;
        let emulation = Emulation::get_or_compile(self.cache())?;
        let library = Library::get_or_fetch(self.cache(), spec.version)?;
        let layout = match &spec.layout {
            Some(path) => Layout { path: path.clone() },
            None => Layout::get_or_read(&library)?,
        };
        let topologies = spec.nodes.iter().map(|node| TopologyFile::of(spec.cluster.type_of(node.host), false));
        let topologies = topologies.collect::<Result<Vec<_>, _>>().map_err(BenchError::Spec)?;
        let run = BytesRun { spec, emulation, library, layout, topologies, folder: new_folder()? };
        run.execute()
    }
}

struct BytesRun<'a> {
    spec: &'a BytesSpec,
    emulation: Emulation,
    library: Library,
    layout: Layout,
    topologies: Vec<TopologyFile>,
    /// Removed with its files on drop.
    folder: tempfile::TempDir,
}

impl BytesRun<'_> {
    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf, BenchError> {
        let path = self.file(name);
        fs::write(&path, text).map_err(BenchError::io(format!("cannot write {}", path.display())))?;
        Ok(path)
    }

    /// The node and the local rank of every rank.
    fn ranks(&self) -> Vec<(usize, usize)> {
        let of_node = |(node, n): (usize, &crate::SimulatedNode)| (0..n.gpus.len()).map(move |local| (node, local));
        self.spec.nodes.iter().enumerate().flat_map(of_node).collect()
    }

    fn execute(&self) -> Result<BytesReport, BenchError> {
        self.write_plan()?;
        let shared = self.file("shm");
        fs::create_dir_all(&shared).map_err(BenchError::io(format!("cannot create {}", shared.display())))?;
        for (node, topology) in self.topologies.iter().enumerate() {
            self.write(&format!("{node}.topology.xml"), &topology.xml)?;
        }
        let begin = Instant::now();
        let ranks = self.ranks();
        let mut children = ChildProcesses(Vec::new());
        for (rank, &(node, local)) in ranks.iter().enumerate() {
            children.0.push(self.spawn(rank, node, local)?);
        }
        self.wait(&mut children, begin)?;
        drop(children);
        self.report(ranks.len())
    }

    /// The plan in the form of `emulation/mover.c`.
    fn write_plan(&self) -> Result<(), BenchError> {
        let mut plan = String::new();
        for (i, call) in self.spec.calls.iter().enumerate() {
            plan.push_str(&self.plan_line(i, call)?);
        }
        self.write("plan", &plan).map(drop)
    }

    fn plan_line(&self, index: usize, c: &BytesCall) -> Result<String, BenchError> {
        let (name, bytes, matrix) = match &c.traffic {
            Traffic::AllReduce(n) => ("all_reduce", *n, None),
            Traffic::AllGather(n) => ("all_gather", *n, None),
            Traffic::ReduceScatter(n) => ("reduce_scatter", *n, None),
            Traffic::Broadcast(n) => ("broadcast", *n, None),
            Traffic::Reduce(n) => ("reduce", *n, None),
            Traffic::SendRecv(rows) => {
                let row = |r: &Vec<u64>| r.iter().map(u64::to_string).collect::<Vec<_>>().join(" ") + "\n";
                (
                    "sendrecv",
                    0,
                    Some(self.write(&format!("matrix.{index}"), &rows.iter().map(row).collect::<String>())?),
                )
            }
        };
        let flags = [(c.captured, 'g'), (c.in_place, 'i'), (c.registered, 'u'), (c.keep_output, 'o')];
        let flags: String = flags.iter().filter(|f| f.0).map(|f| f.1).collect();
        Ok(format!(
            "{name} {bytes} {} {} {} {} {} {} {}\n",
            c.element.word(),
            c.reduction.word(),
            c.root,
            c.repetitions,
            c.step_calls,
            if flags.is_empty() { "-" } else { &flags },
            matrix.map_or("-".into(), |m| m.to_string_lossy().into_owned())
        ))
    }

    fn spawn(&self, rank: usize, node: usize, local: usize) -> Result<Child, BenchError> {
        let spec = self.spec;
        let place = spec.places.get(node);
        let prefix = place.map_or(&[][..], |p| &p.prefix[..]);
        // The preload library goes to the process alone, not to the commands of the prefix.
        let mut words: Vec<OsString> = prefix.iter().map(OsString::from).collect();
        words.push("env".into());
        let mut preload = OsString::from("LD_PRELOAD=");
        preload.push(&self.emulation.preload);
        if let Some(own) = place.and_then(|p| p.preload.as_ref()) {
            preload.push(":");
            preload.push(own);
        }
        words.push(preload);
        words.push(self.emulation.mover.clone().into());
        words.push(self.library.path.clone().into());
        words.push(if prefix.is_empty() { std::process::id() } else { 0 }.to_string().into());
        for number in [rank, spec.rank_count(), local] {
            words.push(number.to_string().into());
        }
        words.push(self.file("meeting").into());
        words.push(self.file("plan").into());
        let create = |name: String| {
            let path = self.file(&name);
            File::create(&path).map_err(BenchError::io(format!("cannot write {}", path.display())))
        };
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(create(format!("{rank}.log"))?)
            .stderr(create(format!("{rank}.err"))?)
            .env_clear()
            .env("HOME", self.folder.path());
        for name in ["PATH", "LD_LIBRARY_PATH", "TMPDIR"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        self.configure_nccl(&mut command, node);
        self.describe_host(&mut command, node);
        if let Some(rates) = place.and_then(|p| self.rates_to_peers(&p.pair_mbit_per_s, rank, node, local)) {
            command.env("LINKWISE_EMU_PEER_MBIT", rates);
        }
        let own = place.map_or(&[][..], |p| &p.env[..]);
        command.envs(spec.env.iter().chain(own).map(|(name, value)| (name, value)));
        command
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", spec.rank_count().to_string())
            .env("LOCAL_RANK", local.to_string());
        command.spawn().map_err(BenchError::io(format!("cannot start {}", words[0].to_string_lossy())))
    }

    fn configure_nccl(&self, command: &mut Command, node: usize) {
        let spec = self.spec;
        command
            .envs(DEFAULTS)
            .env("NCCL_HOSTID", format!("linkwise-{}-{node}", std::process::id()))
            .env("NCCL_TOPO_FILE", self.file(&format!("{node}.topology.xml")))
            .env("NCCL_SOCKET_IFNAME", &spec.interfaces);
        match &spec.net_plugin {
            Some(plugin) => command.env("NCCL_NET_PLUGIN", plugin),
            None => command.env("NCCL_NET_PLUGIN", "none").env("NCCL_NET", "Socket"),
        };
        for (name, plugin) in
            [("NCCL_TUNER_PLUGIN", &spec.tuner_plugin), ("NCCL_PROFILER_PLUGIN", &spec.profiler_plugin)]
        {
            if let Some(plugin) = plugin {
                command.env(name, plugin);
            }
        }
    }

    /// The variables from which the emulation takes the host and its player.
    fn describe_host(&self, command: &mut Command, node: usize) {
        let topology = &self.topologies[node];
        let visible: Vec<String> = self.spec.nodes[node].gpus.iter().map(u8::to_string).collect();
        let place = self.spec.places.get(node).and_then(|p| p.player);
        let play = match place.unwrap_or(self.spec.player) {
            Player::Plays => "bytes",
            Player::Nothing => "nothing",
            Player::WrongParts => "wrong-parts",
        };
        command
            .env("CUDA_VISIBLE_DEVICES", visible.join(","))
            .envs(topology.gpu_variables())
            .env("LINKWISE_EMU_SHARED_MEMORY", self.file("shm"))
            .env("LINKWISE_EMU_PLAY", play)
            .env("LINKWISE_EMU_LAYOUT", &self.layout.path)
            .env("LINKWISE_EMU_STALL_S", self.spec.stall.as_secs().max(1).to_string());
    }

    /// The rates from a rank to the other ranks of its host, in the form of `emulation/pace.c`; `None` without rates.
    fn rates_to_peers(&self, pairs: &[(u8, u8, u32)], rank: usize, node: usize, local: usize) -> Option<String> {
        let gpus = &self.spec.nodes[node].gpus;
        let rate = |(peer, gpu): (usize, &u8)| {
            let pair = pairs.iter().find(|(from, to, _)| (from, to) == (&gpus[local], gpu))?;
            Some(format!("{}:{}", rank - local + peer, pair.2))
        };
        let rates: Vec<String> = gpus.iter().enumerate().filter_map(rate).collect();
        if rates.is_empty() { None } else { Some(rates.join(",")) }
    }

    /// Waits until all ranks succeed, one fails, or the deadline passes.
    fn wait(&self, children: &mut ChildProcesses, begin: Instant) -> Result<(), BenchError> {
        let mut running: Vec<usize> = (0..children.0.len()).collect();
        let (mut failed, mut give_up): (Vec<(usize, ExitStatus)>, Option<Instant>) = (Vec::new(), None);
        while !running.is_empty() && give_up.is_none_or(|t| Instant::now() < t) {
            let mut still = Vec::new();
            for rank in running {
                match children.0[rank].try_wait().map_err(BenchError::io("waiting for a rank"))? {
                    None => still.push(rank),
                    Some(status) if status.success() => {}
                    Some(status) => {
                        failed.push((rank, status));
                        // The other ranks wait for this one; a stuck rank's peers report soon after it.
                        let rest = if status.code() == Some(EXIT_STUCK) { AFTER_STUCK } else { AFTER_FAILURE };
                        give_up.get_or_insert(Instant::now() + rest);
                    }
                }
            }
            running = still;
            if begin.elapsed() > self.spec.deadline {
                let ready = (0..children.0.len()).filter(|r| self.has_line(*r, "@linkwise initialised")).count();
                return Err(BenchError::Deadline {
                    version: self.library.version,
                    seconds: self.spec.deadline.as_secs_f64(),
                    state: format!("{ready} of {} ranks were initialised", children.0.len()),
                });
            }
            std::thread::sleep(POLL);
        }
        failed.first().map_or(Ok(()), |_| Err(self.failure(&failed)))
    }

    fn text(&self, name: &str) -> String {
        let mut bytes = Vec::new();
        let _ = File::open(self.file(name)).and_then(|f| f.take(LOG_BYTES_MAX).read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn has_line(&self, rank: usize, begin: &str) -> bool {
        self.text(&format!("{rank}.log")).lines().any(|l| l.starts_with(begin))
    }

    /// What the emulation said after `key`, of every failed rank, without duplicates.
    fn said(&self, failed: &[(usize, ExitStatus)], key: &str) -> Vec<String> {
        let mut lines = Vec::new();
        for (rank, _) in failed {
            for line in self.text(&format!("{rank}.err")).lines() {
                let Some(what) = line.strip_prefix("linkwise-emulation: ").and_then(|l| l.strip_prefix(key)) else {
                    continue;
                };
                let of_rank = format!("rank {rank}: {}", what.trim());
                let line = if key == "stuck: " { of_rank } else { what.trim().to_string() };
                if !lines.contains(&line) {
                    lines.push(line);
                }
            }
        }
        lines
    }

    fn host(&self, rank: usize) -> String {
        let node = self.ranks()[rank].0;
        self.spec.cluster.host(self.spec.nodes[node].host).name.clone()
    }

    fn failure(&self, failed: &[(usize, ExitStatus)]) -> BenchError {
        let version: Version = self.library.version;
        let calls = self.said(failed, "not emulated: ");
        if !calls.is_empty() {
            return BenchError::NotEmulated { version, calls };
        }
        if let Some(what) = self.said(failed, "not played: ").into_iter().next() {
            return BenchError::NotPlayed { version, what };
        }
        let (rank, status) = failed[0];
        let waits = self.said(failed, "stuck: ");
        if !waits.is_empty() {
            return BenchError::Stuck { version, host: self.host(rank), waits };
        }
        let log = log::read(&self.text(&format!("{rank}.log")));
        let said = self.text(&format!("{rank}.err"));
        let reason = match (log.errors.first(), said.lines().last(), status.code()) {
            (Some(e), _, _) => format!("rank {rank}: {e}"),
            (None, Some(line), Some(code)) => format!("rank {rank}: {line} (exit code {code})"),
            (None, None, Some(EXIT_REFUSED)) => format!("rank {rank} refused without a reason"),
            (None, None, Some(code)) => format!("rank {rank} ended with exit code {code}"),
            (None, _, None) => format!("rank {rank} was killed by {status}"),
        };
        let mut warnings = log.warnings;
        let last = warnings.len().saturating_sub(5);
        BenchError::Node { host: self.host(rank), version, reason, warnings: warnings.split_off(last) }
    }

    fn report(&self, ranks: usize) -> Result<BytesReport, BenchError> {
        let broken = |reason: String| BenchError::Log { version: self.library.version, reason };
        let (mut results, mut outputs) = (Vec::new(), Vec::new());
        for rank in 0..ranks {
            for line in self.text(&format!("{rank}.log")).lines() {
                if let Some(json) = line.strip_prefix("@linkwise bytes ") {
                    let result: BytesResult =
                        serde_json::from_str(json).map_err(|e| broken(format!("rank {rank}: {e}")))?;
                    results.push(result);
                }
            }
        }
        let expected = ranks * self.spec.calls.iter().map(|c| c.repetitions as usize).sum::<usize>();
        if results.len() != expected {
            return Err(broken(format!("{} results of {expected}", results.len())));
        }
        results.sort_by_key(|r| (r.call, r.repetition, r.rank));
        for (call, _) in self.spec.calls.iter().enumerate().filter(|(_, c)| c.keep_output) {
            for rank in 0..ranks {
                let path = self.file(&format!("plan.out.{call}.{rank}"));
                let bytes = fs::read(&path).map_err(BenchError::io(format!("cannot read {}", path.display())))?;
                outputs.push((call as u32, rank as u32, bytes));
            }
        }
        let logs: Vec<_> = (0..ranks).map(|rank| log::read(&self.text(&format!("{rank}.log")))).collect();
        let rings = if ranks > 1 { assemble::rings(&logs, ranks as u32).map_err(broken)? } else { Vec::new() };
        Ok(BytesReport {
            version: self.library.version,
            ranks: ranks as u32,
            results,
            outputs,
            rings,
            trees: assemble::trees(&logs),
            log: self.text("0.log"),
        })
    }
}
