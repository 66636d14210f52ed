//! A real Slurm on this machine for tests: nodes of eight fake GPUs, the plugin built for the installed slurmctld, and
//! `linkwise slurm agent`.
#![allow(dead_code)] // every test binary uses its own part

pub mod accounts;
mod agent;
mod books;
mod config;
pub mod trace;

use crate::common::{Folder, linkwise, said};
pub use agent::Agent;
pub use books::Gpus;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// GPUs per node.
pub const GPUS: usize = 8;
/// Cores per node.
pub const CPUS: usize = 16;

/// Time that the plugin waits for an answer, seconds.
pub const SILENCE_S: u64 = 2;
/// Deadline of everything that is waited for: long, because a machine that does other work as well is slow.
pub const PATIENCE: Duration = Duration::from_secs(300);

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}

/// PATH with the folders of daemons. A Slurm of one's own, not Debian's, is the one whose `sbin` and `bin` stand first in PATH; then
/// `LINKWISE_TEST_SLURM_SOURCE` names the configured source tree that it was built from.
fn path() -> String {
    format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", std::env::var("PATH").unwrap_or_default())
}

fn found(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&path()).map(|d| d.join(program)).find(|p| p.is_file())
}

pub fn has(program: &str) -> bool {
    found(program).is_some()
}

/// Folder of Slurm's own plugins.
fn plugins() -> PathBuf {
    let slurmctld = found("slurmctld").unwrap_or_default();
    let prefix = slurmctld.ancestors().nth(2).filter(|p| !["/usr", "/"].map(Path::new).contains(p));
    prefix.map_or("/usr/lib/x86_64-linux-gnu/slurm-wlm".into(), |p| p.join("lib/slurm"))
}

/// True if this process is root's.
fn root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout == b"0\n")
}

/// Makes sure that Slurm's programs and the plugin are there. Err: why they are not.
fn prepared(out: &Path) -> Result<(), String> {
    const PROGRAMS: [&str; 5] = ["slurmctld", "slurmd", "munged", "sbatch", "scontrol"];
    if !PROGRAMS.iter().all(|p| has(p)) {
        if !root() || !has("apt-get") {
            return Err("Slurm is not installed, and installing it needs root and apt-get".into());
        }
        let packages = ["slurmctld", "slurmd", "slurm-client", "munge", "slurm-wlm-basic-plugins"];
        let done = Command::new("apt-get")
            .args(["install", "-y", "-q", "--no-install-recommends"])
            .args(packages)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .output();
        if !done.is_ok_and(|o| o.status.success()) || !PROGRAMS.iter().all(|p| has(p)) {
            return Err("apt-get cannot install Slurm".into());
        }
    }
    let mut build = Command::new(repository().join("scripts/build-slurm.sh"));
    if std::env::var_os("LINKWISE_TEST_SLURM_ASAN").is_some() {
        build.env("CFLAGS", "-fsanitize=address -fno-omit-frame-pointer");
    }
    let built = build.arg(out).args(std::env::var_os("LINKWISE_TEST_SLURM_SOURCE")).stdin(Stdio::null()).output();
    let built = built.map_err(|e| e.to_string())?;
    if built.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&built.stderr).into_owned();
    // A plugin that does not compile is a failure; a missing compiler or source package is a reason to skip.
    assert!(!text.contains("linkwise.c") && !text.contains("spank.c"), "{text}");
    Err(text.lines().last().unwrap_or("the plugin cannot be built").into())
}

/// A host of its own for a node, such as a network namespace.
#[derive(Clone)]
pub struct Host {
    pub name: String,
    pub address: String,
    /// What stands before a command that runs there.
    pub inside: Vec<String>,
}

impl Host {
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(&self.inside[0]);
        command.args(&self.inside[1..]).arg(program);
        command
    }
}

/// Size and settings of a cluster.
#[derive(Clone, Default)]
pub struct Setup {
    /// Hosts of the nodes, one each, and the nodes' names; the controller and the clients are on the first. Empty: all nodes are on this host.
    pub hosts: Vec<Host>,
    /// Number of nodes.
    pub nodes: usize,
    /// Nodes below one leaf switch; 0: no topology.conf.
    pub leaf: usize,
    /// The leaves are blocks of topology/block, which releases from 23.11 on have.
    pub blocks: bool,
    /// Shards on the last node, a feature on nodes 1 and 2, the partitions `small`, `urgent` and `whole`, preemption.
    pub mixed: bool,
    /// The GPUs of the second half of the nodes are of the type h100, and the last node has a GRES `mig` besides.
    pub types: bool,
    /// Accounting by slurmdbd, on a MariaDB of the lab.
    pub accounts: bool,
    /// Seconds for which a job is ending on its nodes.
    pub ending_s: usize,
    /// Further lines of slurm.conf; `AT` stands for the folder of the lab.
    pub config: String,
}

/// A cluster; dropping it stops every process.
pub struct Lab {
    pub folder: Folder,
    pub setup: Setup,
    pub daemons: Mutex<Vec<(String, Child)>>,
    ports: Vec<u16>,
}

impl Lab {
    pub fn start(setup: Setup) -> Result<Lab, String> {
        let folder = Folder::new();
        let lab = Lab { folder, daemons: Mutex::default(), ports: free_ports(3 + setup.nodes), setup };
        prepared(Path::new(&lab.at("plugin")))?;
        if lab.setup.accounts {
            accounts::prepared()?;
        }
        for f in ["etc", "log", "run", "dev", "state", "spool"] {
            std::fs::create_dir_all(lab.at(f)).unwrap();
        }
        for i in 0..GPUS {
            // A fake GPU has to be a character device.
            symlink("/dev/null", lab.at(&format!("dev/gpu{i}"))).unwrap();
        }
        lab.write_config(true);
        let key = lab.at("etc/munge.key");
        std::fs::write(&key, (0..128u32).map(|i| (i * 37 + std::process::id()) as u8).collect::<Vec<_>>()).unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::set_permissions(lab.folder.0.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let (socket, pid, log, seed) =
            (lab.at("run/munge.sock"), lab.at("run/munged.pid"), lab.at("log/munged.log"), lab.at("run/seed"));
        lab.daemon(
            "munged",
            &[
                "-F",
                "--force",
                "--key-file",
                &key,
                "--socket",
                &socket,
                "--pid-file",
                &pid,
                "--log-file",
                &log,
                "--seed-file",
                &seed,
            ],
        );
        lab.until("munged answers", || Path::new(&socket).exists());
        if lab.setup.accounts {
            accounts::start(&lab, [lab.ports[1], lab.ports[2]])?;
        }
        lab.controller();
        for i in 1..=lab.setup.nodes {
            lab.node(i);
        }
        lab.until("all nodes are idle", || {
            lab.client("sinfo", &["-h", "-N", "-p", "main", "-t", "idle", "-o", "%N"]).lines().count()
                == lab.setup.nodes
        });
        Ok(lab)
    }

    pub fn at(&self, name: &str) -> String {
        self.folder.at(name)
    }

    /// Name of the user of every daemon.
    pub fn user(&self) -> String {
        let name = Command::new("id").arg("-un").output().unwrap().stdout;
        String::from_utf8(name).unwrap().trim().to_owned()
    }

    /// Starts the daemon of node `i`, from 1.
    pub fn node(&self, i: usize) {
        self.daemon("slurmd", &["-D", "-N", &self.name_of(i)]);
    }

    /// Name of node `i`, from 1.
    fn name_of(&self, i: usize) -> String {
        self.setup.hosts.get(i - 1).map_or(format!("n{i}"), |h| h.name.clone())
    }

    /// A command where it belongs: a node's on its host, all others on the first.
    fn on(&self, node: Option<&str>, program: &str) -> Command {
        let host = self.setup.hosts.iter().find(|h| node.is_none_or(|n| h.name == n));
        host.map_or_else(|| Command::new(program), |h| h.command(program))
    }

    /// Kills a daemon at once. Its name: `slurmctld`, or `slurmd n3`.
    pub fn kill(&self, name: &str) {
        let mut child = self.taken_out(name);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Ends the controller and starts it again, with or without the plugin.
    pub fn restart(&self, plugin: bool) {
        self.end("slurmctld");
        self.write_config(plugin);
        self.controller();
    }

    /// Asks a daemon to end, and waits for it.
    pub fn end(&self, name: &str) {
        let mut child = self.taken_out(name);
        assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
        child.wait().unwrap();
    }

    fn taken_out(&self, name: &str) -> Child {
        let mut daemons = self.daemons.lock().unwrap();
        let at = daemons.iter().position(|d| d.0 == name).unwrap_or_else(|| panic!("{name} does not run"));
        daemons.remove(at).1
    }

    /// Starts a daemon with the lab's configuration. Its name: the program, and of a slurmd also its node.
    pub fn daemon(&self, program: &str, args: &[&str]) {
        let name = args.get(2).filter(|_| program == "slurmd").map_or(program.into(), |n| format!("{program} {n}"));
        let log = self.at(&format!("log/{name}.out"));
        let log = std::fs::OpenOptions::new().append(true).create(true).open(log).unwrap();
        let mut command = self.on(args.get(2).copied().filter(|_| program == "slurmd"), program);
        command.args(args).env("SLURM_CONF", self.at("etc/slurm.conf")).env("PATH", path());
        if program == "slurmctld" && std::env::var_os("LINKWISE_TEST_SLURM_ASAN").is_some() {
            let out = Command::new("gcc").arg("-print-file-name=libasan.so").output().unwrap();
            command.env("LD_PRELOAD", String::from_utf8_lossy(&out.stdout).trim());
            command.env("ASAN_OPTIONS", format!("detect_leaks=0:log_path={}", self.at("log/asan")));
        }
        let child = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        self.daemons.lock().unwrap().push((name, child));
    }

    pub fn controller(&self) {
        self.daemon("slurmctld", &["-D"]);
        // Under the address sanitizer a fault ends the controller, and with it the test.
        self.until("slurmctld answers", || self.client("scontrol", &["ping"]).contains("UP"));
    }

    /// What a client of Slurm prints; empty on failure. It ends within two minutes.
    pub fn client(&self, program: &str, args: &[&str]) -> String {
        let mut command = self.on(None, "timeout");
        let out = command.arg("120").arg(program).args(args).env("SLURM_CONF", self.at("etc/slurm.conf")).output();
        String::from_utf8_lossy(&out.unwrap().stdout).into_owned()
    }

    pub fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !done() {
            assert!(begin.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub fn log(&self) -> String {
        let log = std::fs::read_to_string(self.at("log/ctld.log")).unwrap_or_default();
        log.lines().rev().take(30).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Submits a job that shows its GPUs and then sleeps.
    pub fn submit(&self, seconds: &str, args: &[&str]) -> u32 {
        let script = format!("srun bash -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'; sleep {seconds}");
        let out = self.at("log/job-%j");
        let text = self.client("sbatch", &[&["--parsable", "-o", &out, "--wrap", &script], args].concat());
        text.trim().parse().unwrap_or_else(|_| panic!("sbatch {args:?}: `{text}`\n{}", self.log()))
    }

    pub fn state(&self, job: u32) -> String {
        self.client("squeue", &["-h", "-t", "all", "-j", &job.to_string(), "-o", "%T"]).trim().to_owned()
    }

    pub fn field(&self, job: u32, key: &str) -> String {
        let text = self.client("scontrol", &["show", "job", "-d", "-o", &job.to_string()]);
        text.split(' ').find_map(|w| w.strip_prefix(&format!("{key}="))).unwrap_or_default().to_owned()
    }

    /// The GPUs of every running job, by Slurm's books.
    pub fn books(&self) -> BTreeMap<u32, Gpus> {
        let text = self.client("scontrol", &["show", "job", "-d", "-o"]);
        let jobs = books::slurm_books(&text);
        jobs.into_iter().filter(|(_, g)| !g.is_empty()).collect()
    }

    /// Nodes with GPUs that are marked as taken, and the marks: `n1 gpu:a100:2(IDX:0-1)`.
    pub fn marked(&self) -> Vec<String> {
        let text = self.client("scontrol", &["show", "node", "-d", "-o"]);
        assert!(!text.is_empty(), "scontrol show node does not answer\n{}", self.log());
        let word = |l: &str, key: &str| l.split(' ').find_map(|w| w.strip_prefix(key)).unwrap_or_default().to_owned();
        let of = |l: &str| (word(l, "NodeName="), word(l, "GresUsed="));
        let taken = |used: &str| used.split(',').any(|g| g.starts_with("gpu:a100:") && !g.starts_with("gpu:a100:0"));
        text.lines().map(of).filter(|(_, used)| taken(used)).map(|(name, used)| format!("{name} {used}")).collect()
    }

    /// Waits until Slurm has written its jobs to disk: Slurm itself loses a job that it accepted just before its controller is killed.
    pub fn saved(&self) {
        let file = self.at("state/job_state");
        let written = || std::fs::metadata(&file).and_then(|m| m.modified()).ok();
        let (before, begin) = (written(), Instant::now());
        while written() == before && begin.elapsed() < Duration::from_secs(12) {
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// What an operator does for nodes that Slurm drained because a controller that was killed before it wrote the start of a job started it again, while
    /// its first run was still there.
    fn resume_duplicates(&self) {
        let drained = self.client("sinfo", &["-h", "-N", "-p", "main", "-t", "drained", "-o", "%N %E"]);
        for node in drained.lines().filter_map(|l| l.strip_suffix(" Duplicate jobid")) {
            self.client("scontrol", &["update", &format!("NodeName={node}"), "State=resume"]);
        }
    }

    /// What an operator does for jobs that Slurm put back: they start before Slurm's two minutes, and those held because their slurmd died at their
    /// launch are released. Not before the first run is gone from its node: a slurmd that still ends the first run ends the second with it, with and
    /// without the plugin. Call it again and again.
    pub fn hurry(&self, since: &mut BTreeMap<String, Instant>) {
        self.resume_duplicates();
        let waiting = self.client("squeue", &["-h", "-t", "pending", "-o", "%i %r"]);
        let of = |l: &str| {
            let (id, why) = l.split_once(' ')?;
            let held = why.contains("launch") && why.contains("held");
            (held || why == "BeginTime").then(|| (id.to_owned(), held))
        };
        let waiting: BTreeMap<String, bool> = waiting.lines().filter_map(of).collect();
        since.retain(|id, _| waiting.contains_key(id));
        for (id, held) in waiting {
            if since.entry(id.clone()).or_insert_with(Instant::now).elapsed() > Duration::from_secs(3) {
                if held {
                    self.client("scontrol", &["release", &id]);
                }
                self.client("scontrol", &["update", &format!("jobid={id}"), "StartTime=now"]);
            }
        }
    }

    /// Resident memory of the controller, kB.
    pub fn controller_kb(&self) -> u64 {
        let Some(pid) = self.pid("slurmctld") else { return 0 };
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"));
        line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or_default()
    }

    /// Process id of a daemon.
    pub fn pid(&self, name: &str) -> Option<u32> {
        self.daemons.lock().unwrap().iter().find(|d| d.0 == name).map(|d| d.1.id())
    }

    /// GPUs that the job itself saw.
    pub fn inside(&self, job: u32) -> Gpus {
        let mut gpus = Gpus::new();
        for line in std::fs::read_to_string(self.at(&format!("log/job-{job}"))).unwrap_or_default().lines() {
            if let Some((node, list)) = line.split_once(' ') {
                gpus.entry(node.into()).or_default().extend(list.split(',').filter_map(|g| g.parse::<u32>().ok()));
            }
        }
        gpus
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let mut daemons = std::mem::take(&mut *self.daemons.lock().unwrap());
        if daemons.len() > 1 {
            self.client("scancel", &["-u", &self.user()]);
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(15) && !self.client("squeue", &["-h"]).is_empty() {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        for (program, child) in daemons.iter_mut().rev() {
            let _ = Command::new("kill").arg(child.id().to_string()).status();
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(5) && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(50));
            }
            if matches!(child.try_wait(), Ok(None)) {
                eprintln!("{program} did not end; killed");
                let _ = child.kill();
            }
            let _ = child.wait();
        }
    }
}

/// Ports that are free now. None of those that Linux gives to outgoing connections (from 32768 on): one of them could be taken before the daemon has it.
pub fn free_ports(n: usize) -> Vec<u16> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let mut state = now ^ (u64::from(std::process::id()) << 40);
    let mut bound: Vec<TcpListener> = Vec::new();
    while bound.len() < n {
        bound.extend(TcpListener::bind(("0.0.0.0", 10_000 + draw(&mut state, 22_000) as u16)));
    }
    bound.iter().map(|l| l.local_addr().unwrap().port()).collect()
}

/// Major and minor release of the installed slurmctld.
pub fn release() -> (u32, u32) {
    let out = Command::new("slurmctld").arg("-V").env("PATH", path()).output().map(|o| o.stdout);
    let text = String::from_utf8_lossy(&out.unwrap_or_default()).into_owned();
    let mut numbers = text.split(' ').nth(1).unwrap_or_default().split('.').map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Cluster file and model of the lab. The bandwidths are simulated.
pub fn site(lab: &Lab) -> (String, String) {
    let (cluster, store, model) = (lab.at("site.yaml"), lab.at("s.db"), lab.at("model.json"));
    let mut args = vec!["sync", "--host-type", "hgx-h100", "-o", &cluster];
    let switches = lab.at("etc/topology.conf");
    if lab.setup.leaf > 0 {
        args.extend(["--topology", &switches]);
    }
    let mut sync = linkwise("slurm", &args);
    sync.env("SLURM_CONF", lab.at("etc/slurm.conf"));
    let (code, _, error) = said(sync);
    assert_eq!(code, 0, "{error}");
    let (code, _, error) = said(linkwise(
        "measure",
        &["--cluster", &cluster, "--backend", "simulated", "--samples", "20", "--store", &store],
    ));
    assert_eq!(code, 0, "{error}");
    let (code, _, error) = said(linkwise("fit", &["--store", &store, "--cluster", &cluster, "-o", &model]));
    assert_eq!(code, 0, "{error}");
    (cluster, model)
}

/// The next number of a sequence that is the same in every run.
pub fn draw(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*state >> 33) % below
}
