//! A Slurm of four nodes with eight fake GPUs each on this machine, the plugin built for the installed slurmctld, and `linkwise slurm agent`.

use crate::common::{Folder, linkwise, said};
use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const NODES: usize = 4;
pub const GPUS: usize = 8;
/// Time that the plugin waits for an answer, seconds.
pub const SILENCE_S: u64 = 2;
/// Deadline of everything that is waited for.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// GPUs by node.
pub type Gpus = BTreeMap<String, BTreeSet<u32>>;

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}

pub fn has(program: &str) -> bool {
    let found = |d: PathBuf| d.join(program).is_file();
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/bin".into()]).any(found)
}

/// Makes sure that Slurm's programs and the plugin are there. Err: why they are not.
pub fn prepared(out: &Path) -> Result<(), String> {
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
    let mut build = Command::new(repository().join("scripts/build-slurm.sh"));
    if std::env::var_os("LINKWISE_TEST_SLURM_ASAN").is_some() {
        build.env("CFLAGS", "-fsanitize=address -fno-omit-frame-pointer");
    }
    let built = build.arg(out).stdin(Stdio::null()).output();
    let built = built.map_err(|e| e.to_string())?;
    if built.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&built.stderr).into_owned();
    // A plugin that does not compile is a failure; a missing compiler or source package is a reason to skip.
    assert!(!text.contains("linkwise.c") && !text.contains("spank.c"), "{text}");
    Err(text.lines().last().unwrap_or("the plugin cannot be built").into())
}

/// A cluster; dropping it stops every process.
pub struct Lab {
    pub folder: Folder,
    pub daemons: Vec<(&'static str, Child)>,
    ports: Vec<u16>,
}

impl Lab {
    pub fn start() -> Result<Lab, String> {
        let folder = Folder::new();
        let mut lab = Lab { folder, daemons: Vec::new(), ports: Vec::new() };
        prepared(Path::new(&lab.at("plugin")))?;
        for f in ["etc", "log", "run", "dev", "state", "spool"] {
            std::fs::create_dir_all(lab.at(f)).unwrap();
        }
        for i in 0..GPUS {
            // A fake GPU has to be a character device.
            symlink("/dev/null", lab.at(&format!("dev/gpu{i}"))).unwrap();
        }
        let ports: Vec<TcpListener> = (0..=NODES).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        lab.ports = ports.iter().map(|p| p.local_addr().unwrap().port()).collect();
        drop(ports);
        lab.write_config(true, &lab.ports);
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
        for i in 1..=NODES {
            lab.daemon("slurmd", &["-D", "-N", &format!("n{i}")]);
        }
        lab.until("all nodes are idle", || {
            lab.client("sinfo", &["-h", "-N", "-p", "main", "-t", "idle", "-o", "%N"]).lines().count() == NODES
        });
        Ok(lab)
    }

    pub fn at(&self, name: &str) -> String {
        self.folder.at(name)
    }

    pub fn write_config(&self, plugin: bool, ports: &[u16]) {
        let buffer = if plugin { "BurstBufferType=burst_buffer/linkwise\n" } else { "" };
        let port = |i: usize| ports[i];
        let user = String::from_utf8(Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
        let (user, at) = (user.trim(), self.folder.0.path().display());
        let mut text = format!(
            "ClusterName=lab\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort={}\nMaxJobCount=20000\nMinJobAge=60\nSlurmUser={user}\nSlurmdUser={user}\nAuthType=auth/munge\n\
             CredType=cred/munge\nAuthInfo=socket={at}/run/munge.sock\nStateSaveLocation={at}/state\nSlurmdSpoolDir={at}/spool/%n\n\
             SlurmctldPidFile={at}/run/ctld.pid\nSlurmdPidFile={at}/run/%n.pid\nSlurmctldLogFile={at}/log/ctld.log\n\
             SlurmdLogFile={at}/log/%n.log\nProctrackType=proctrack/linuxproc\nMpiDefault=none\nReturnToService=2\n\
             SchedulerParameters=sched_interval=5,bf_interval=5,batch_sched_delay=0,sched_min_interval=0\nSelectType=select/cons_tres\n\
             SelectTypeParameters=CR_Core\nSlurmdParameters=config_overrides\nGresTypes=gpu,shard\nKillWait=2\n\
             PreemptType=preempt/partition_prio\nPreemptMode=CANCEL\n{buffer}PluginDir=/usr/lib/x86_64-linux-gnu/slurm-wlm:{at}/plugin\n\
             SlurmctldParameters=linkwise_socket={at}/run/linkwise.sock,linkwise_silence={SILENCE_S}\n",
            port(0)
        );
        for i in 1..=NODES {
            // Node 4 has shards of its GPUs, nodes 1 and 2 a feature.
            let (shards, feature) =
                (if i == NODES { ",shard:16" } else { "" }, if i < 3 { "Feature=fast " } else { "" });
            text += &format!(
                "NodeName=n{i} NodeHostname=localhost NodeAddr=127.0.0.1 Port={} CPUs=16 RealMemory=1000 {feature}Gres=gpu:a100:{GPUS}{shards} State=UNKNOWN\n",
                port(i)
            );
        }
        for (name, more) in [("main", "Default=YES"), ("small", ""), ("urgent", "PriorityTier=10"), ("whole", "")] {
            let nodes = if name == "small" { "n4" } else { "n[1-4]" };
            let share = if name == "whole" { "EXCLUSIVE" } else { "NO" };
            text += &format!("PartitionName={name} Nodes={nodes} State=UP OverSubscribe={share} {more}\n");
        }
        std::fs::write(self.at("etc/slurm.conf"), text).unwrap();
        let gres = format!("NodeName=n[1-{NODES}] Name=gpu Type=a100 File={at}/dev/gpu[0-{}]\n", GPUS - 1);
        let gres = gres + &format!("NodeName=n{NODES} Name=shard Count=16 File={at}/dev/gpu[0-{}]\n", GPUS - 1);
        std::fs::write(self.at("etc/gres.conf"), gres).unwrap();
        std::fs::write(self.at("library.so"), "").unwrap();
        let spank = format!("optional {at}/plugin/spank_linkwise.so plugin={at}/library.so\n");
        std::fs::write(self.at("etc/plugstack.conf"), spank).unwrap();
        if release() >= (23, 11) {
            std::fs::write(self.at("etc/cgroup.conf"), "CgroupPlugin=disabled\n").unwrap();
        }
    }

    pub fn daemon(&mut self, program: &'static str, args: &[&str]) {
        let log = std::fs::File::create(self.at(&format!("log/{program}-{}.out", self.daemons.len()))).unwrap();
        let path = format!("/usr/sbin:/sbin:{}", std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new(program);
        command.args(args).env("SLURM_CONF", self.at("etc/slurm.conf")).env("PATH", path);
        if program == "slurmctld" && std::env::var_os("LINKWISE_TEST_SLURM_ASAN").is_some() {
            let out = Command::new("gcc").arg("-print-file-name=libasan.so").output().unwrap();
            command.env("LD_PRELOAD", String::from_utf8_lossy(&out.stdout).trim());
            command.env("ASAN_OPTIONS", format!("detect_leaks=0:log_path={}", self.at("log/asan")));
        }
        let child = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        self.daemons.push((program, child));
    }

    pub fn controller(&mut self) {
        self.daemon("slurmctld", &["-D"]);
        // Under the address sanitizer a fault ends the controller, and with it the test.
        self.until("slurmctld answers", || self.client("scontrol", &["ping"]).contains("UP"));
    }

    /// Ends the controller and starts it again, with or without the plugin.
    pub fn restart(&mut self, plugin: bool) {
        let at = self.daemons.iter().position(|d| d.0 == "slurmctld").unwrap();
        let (_, mut controller) = self.daemons.remove(at);
        assert!(Command::new("kill").arg(controller.id().to_string()).status().unwrap().success());
        controller.wait().unwrap();
        self.write_config(plugin, &self.ports);
        self.controller();
    }

    /// Resident memory of the controller, kB.
    pub fn controller_kb(&self) -> u64 {
        let pid = self.daemons.iter().find(|d| d.0 == "slurmctld").unwrap().1.id();
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"));
        line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or_default()
    }

    /// What a client of Slurm prints; empty on failure. It ends within 10 s.
    pub fn client(&self, program: &str, args: &[&str]) -> String {
        let out = Command::new("timeout")
            .arg("10")
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
        if self.daemons.len() > 1 {
            self.client("scancel", &["-u", "root"]);
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(15) && !self.client("squeue", &["-h"]).is_empty() {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        for (program, child) in self.daemons.iter_mut().rev() {
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

/// Major and minor release of the installed slurmctld.
pub fn release() -> (u32, u32) {
    let out = Command::new("slurmctld").arg("-V").env("PATH", "/usr/sbin:/usr/bin").output().map(|o| o.stdout);
    let text = String::from_utf8_lossy(&out.unwrap_or_default()).into_owned();
    let mut numbers = text.split(' ').nth(1).unwrap_or_default().split('.').map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
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
    pub fn start(lab: &Lab, cluster: &str, model: &str) -> Agent {
        let log = lab.at("log/agent");
        let file = std::fs::OpenOptions::new().append(true).create(true).open(&log).unwrap();
        let seen = Agent::count(&log, "connected to Slurm");
        let child = Command::new(env!("CARGO_BIN_EXE_linkwise"))
            .args(["slurm", "agent", "--cluster", cluster, "--model", model])
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
    let mut sync = linkwise("slurm", &["sync", "--host-type", "hgx-h100", "-o", &cluster]);
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
