//! A real Slurm on this machine for tests: nodes of eight fake GPUs, the plugin built for the installed slurmctld, and
//! `linkwise slurm agent`.
#![allow(dead_code)] // every test binary uses its own part

use crate::common::{Folder, linkwise, said};
use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// GPUs per node.
pub const GPUS: usize = 8;

/// Time that the plugin waits for an answer, seconds.
pub const SILENCE_S: u64 = 2;
/// Deadline of everything that is waited for.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// GPUs by node.
pub type Gpus = BTreeMap<String, BTreeSet<u32>>;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}

fn has(program: &str) -> bool {
    let found = |d: PathBuf| d.join(program).is_file();
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/bin".into()]).any(found)
}

/// Makes sure that Slurm's programs and the plugin are there. Err: why they are not.
fn prepared(out: &Path) -> Result<(), String> {
    const PROGRAMS: [&str; 5] = ["slurmctld", "slurmd", "munged", "sbatch", "scontrol"];
    if !PROGRAMS.iter().all(|p| has(p)) {
        let root = Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout == b"0\n");
        if !root || !has("apt-get") {
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
    let built = Command::new(repository().join("scripts/build-slurm.sh")).arg(out).stdin(Stdio::null()).output();
    let built = built.map_err(|e| e.to_string())?;
    if built.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&built.stderr).into_owned();
    // A plugin that does not compile is a failure; a missing compiler or source package is a reason to skip.
    assert!(!text.contains("linkwise.c"), "{text}");
    Err(text.lines().last().unwrap_or("the plugin cannot be built").into())
}

/// Size and settings of a cluster.
#[derive(Clone)]
pub struct Setup {
    /// Number of nodes.
    pub nodes: usize,
    /// Nodes below one leaf switch; 0: no topology.conf.
    pub leaf: usize,
    /// Further lines of slurm.conf; `AT` stands for the folder of the lab.
    pub config: String,
}

/// A cluster; dropping it stops every process.
pub struct Lab {
    pub folder: Folder,
    pub setup: Setup,
    pub daemons: Mutex<Vec<(String, Child)>>,
}

impl Lab {
    pub fn start(setup: Setup) -> Result<Lab, String> {
        let folder = Folder::new();
        let lab = Lab { folder, setup, daemons: Mutex::default() };
        prepared(Path::new(&lab.at("plugin")))?;
        for f in ["etc", "log", "run", "dev", "state", "spool"] {
            std::fs::create_dir_all(lab.at(f)).unwrap();
        }
        for i in 0..GPUS {
            // A fake GPU has to be a character device.
            symlink("/dev/null", lab.at(&format!("dev/gpu{i}"))).unwrap();
        }
        lab.write_config();
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

    fn write_config(&self) {
        let nodes = self.setup.nodes;
        let ports: Vec<TcpListener> = (0..=nodes).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let port = |i: usize| ports[i].local_addr().unwrap().port();
        let user = String::from_utf8(Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
        let (user, at) = (user.trim(), self.folder.0.path().display());
        let mut text = format!(
            "ClusterName=lab\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort={}\nSlurmUser={user}\nSlurmdUser={user}\nAuthType=auth/munge\n\
             CredType=cred/munge\nAuthInfo=socket={at}/run/munge.sock\nStateSaveLocation={at}/state\nSlurmdSpoolDir={at}/spool/%n\n\
             SlurmctldPidFile={at}/run/ctld.pid\nSlurmdPidFile={at}/run/%n.pid\nSlurmctldLogFile={at}/log/ctld.log\n\
             SlurmdLogFile={at}/log/%n.log\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\nReturnToService=2\n\
             SchedulerParameters=sched_interval=5,bf_interval=5,batch_sched_delay=0,sched_min_interval=0\nSelectType=select/cons_tres\n\
             SelectTypeParameters=CR_Core\nSlurmdParameters=config_overrides\nGresTypes=gpu\nKillWait=2\n\
             BurstBufferType=burst_buffer/linkwise\nPluginDir=/usr/lib/x86_64-linux-gnu/slurm-wlm:{at}/plugin\n\
             SlurmctldParameters=linkwise_socket={at}/run/linkwise.sock,linkwise_silence={SILENCE_S}\n",
            port(0)
        );
        for i in 1..=nodes {
            text += &format!(
                "NodeName=n{i} NodeHostname=localhost NodeAddr=127.0.0.1 Port={} CPUs=16 RealMemory=1000 Gres=gpu:a100:{GPUS} State=UNKNOWN\n",
                port(i)
            );
        }
        text += &format!("PartitionName=main Nodes=n[1-{nodes}] Default=YES State=UP OverSubscribe=NO\n");
        text += &self.setup.config.replace("AT", &at.to_string());
        if self.setup.leaf > 0 {
            text += "TopologyPlugin=topology/tree\n";
            let leaves = nodes.div_ceil(self.setup.leaf);
            let mut switches = String::new();
            for l in 0..leaves {
                let (first, last) = (l * self.setup.leaf + 1, ((l + 1) * self.setup.leaf).min(nodes));
                switches += &format!("SwitchName=leaf{l} Nodes=n[{first}-{last}]\n");
            }
            switches += &format!("SwitchName=spine Switches=leaf[0-{}]\n", leaves - 1);
            std::fs::write(self.at("etc/topology.conf"), switches).unwrap();
        }
        std::fs::write(self.at("etc/slurm.conf"), text).unwrap();
        let gres = format!("NodeName=n[1-{nodes}] Name=gpu Type=a100 File={at}/dev/gpu[0-{}]\n", GPUS - 1);
        std::fs::write(self.at("etc/gres.conf"), gres).unwrap();
    }

    /// Starts the daemon of node `i`, from 1.
    pub fn node(&self, i: usize) {
        self.daemon("slurmd", &["-D", "-N", &format!("n{i}")]);
    }

    /// Kills a daemon at once. Its name: `slurmctld`, or `slurmd n3`.
    pub fn kill(&self, name: &str) {
        let mut daemons = self.daemons.lock().unwrap();
        let at = daemons.iter().position(|d| d.0 == name).unwrap();
        let (_, mut child) = daemons.remove(at);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn daemon(&self, program: &str, args: &[&str]) {
        let name = args.get(2).filter(|_| program == "slurmd").map_or(program.into(), |n| format!("{program} {n}"));
        let log = std::fs::File::create(self.at(&format!("log/{name}.out"))).unwrap();
        let path = format!("/usr/sbin:/sbin:{}", std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new(program);
        command.args(args).env("SLURM_CONF", self.at("etc/slurm.conf")).env("PATH", path);
        let child = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        self.daemons.lock().unwrap().push((name, child));
    }

    pub fn controller(&self) {
        self.daemon("slurmctld", &["-D"]);
        self.until("slurmctld answers", || self.client("scontrol", &["ping"]).contains("UP"));
    }

    /// What a client of Slurm prints; empty on failure. It ends within 30 s.
    pub fn client(&self, program: &str, args: &[&str]) -> String {
        let out = Command::new("timeout")
            .arg("30")
            .arg(program)
            .args(args)
            .env("SLURM_CONF", self.at("etc/slurm.conf"))
            .output();
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
        let jobs = slurm_books(&text);
        jobs.into_iter().filter(|(_, g)| !g.is_empty()).collect()
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
            self.client("scancel", &["-u", "root"]);
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

/// `Nodes=n[1-2] ... GRES=gpu:a100:2(IDX:0,5-6)` of every running job.
pub fn slurm_books(text: &str) -> BTreeMap<u32, Gpus> {
    let mut all = BTreeMap::new();
    for line in text.lines().filter(|l| l.contains("JobState=RUNNING")) {
        let word = |w: &str, key: &str| w.strip_prefix(key).map(str::to_owned);
        let job = line.split(' ').find_map(|w| word(w, "JobId=")).and_then(|n| n.parse().ok());
        let (mut nodes, mut gpus) = (Vec::new(), Gpus::new());
        for w in line.split(' ') {
            if let Some(list) = word(w, "Nodes=") {
                nodes = numbers(list.trim_start_matches('n').trim_matches(['[', ']']));
            } else if let Some((_, list)) = word(w, "GRES=").unwrap_or_default().split_once("IDX:") {
                let indices = numbers(list.trim_end_matches(')'));
                nodes.iter().for_each(|n| drop(gpus.insert(format!("n{n}"), indices.iter().copied().collect())));
            }
        }
        all.extend(job.map(|j| (j, gpus)));
    }
    all
}

pub fn numbers(list: &str) -> Vec<u32> {
    let range = |r: &str| {
        let (a, b) = r.split_once('-').unwrap_or((r, r));
        a.parse().ok().zip(b.parse().ok()).map(|(a, b): (u32, u32)| a..=b)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// `linkwise slurm agent`, and its log.
pub struct Agent {
    pub child: Child,
    pub log: String,
}

impl Agent {
    pub fn start(lab: &Lab, cluster: &str, model: &str, more: &[&str]) -> Agent {
        let log = lab.at("log/agent");
        let file = std::fs::OpenOptions::new().append(true).create(true).open(&log).unwrap();
        let seen = Agent::count(&log, "connected to Slurm");
        let child = Command::new(env!("CARGO_BIN_EXE_linkwise"))
            .args(["slurm", "agent", "--cluster", cluster, "--model", model])
            .args(more)
            .env("SLURM_CONF", lab.at("etc/slurm.conf"))
            .stdin(Stdio::null())
            .stderr(file)
            .spawn()
            .unwrap();
        let agent = Agent { child, log };
        lab.until("the agent is connected", || Agent::count(&agent.log, "connected to Slurm") > seen);
        agent
    }

    pub fn count(log: &str, text: &str) -> usize {
        std::fs::read_to_string(log).unwrap_or_default().matches(text).count()
    }

    pub fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// What the agent wrote about one job.
    pub fn about(log: &str, job: u32) -> String {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        text.lines().filter(|l| l.starts_with(&format!("job {job}"))).collect::<Vec<_>>().join("\n")
    }

    /// The orders that Slurm followed.
    pub fn orders(log: &str) -> BTreeMap<u32, Gpus> {
        let (mut last, mut taken) = (BTreeMap::new(), BTreeMap::new());
        for line in std::fs::read_to_string(log).unwrap().lines() {
            if let Some(rest) = line.split_once(": take ").map(|(_, r)| r) {
                let words: Vec<&str> = rest.split(' ').collect();
                let node = |n: &str| {
                    let (name, list) = n.split_once(':').unwrap();
                    (name.to_owned(), list.split('.').map(|g| g.parse().unwrap()).collect())
                };
                last.insert(words[0].parse::<u32>().unwrap(), words[2].split(',').map(node).collect::<Gpus>());
            } else if let Some(job) = line.strip_suffix(" runs on these GPUs").and_then(|l| l.strip_prefix("job ")) {
                let job: u32 = job.parse().unwrap();
                taken.insert(job, last[&job].clone());
            }
        }
        taken
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
