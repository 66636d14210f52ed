//! The real Slurm on this machine: four nodes of eight fake GPUs, the plugin built for the installed slurmctld, and `linkwise slurm agent`.

mod common;

use common::{Folder, linkwise, said};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const NODES: usize = 4;
const GPUS: usize = 8;
/// Time that the plugin waits for an answer, seconds.
const SILENCE_S: u64 = 2;
/// Deadline of everything that is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// GPUs by node.
type Gpus = BTreeMap<String, BTreeSet<u32>>;

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

/// A cluster; dropping it stops every process.
struct Lab {
    folder: Folder,
    daemons: Vec<(&'static str, Child)>,
}

impl Lab {
    fn start() -> Result<Lab, String> {
        let folder = Folder::new();
        let mut lab = Lab { folder, daemons: Vec::new() };
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
        for i in 1..=NODES {
            lab.daemon("slurmd", &["-D", "-N", &format!("n{i}")]);
        }
        lab.until("all nodes are idle", || {
            lab.client("sinfo", &["-h", "-N", "-p", "main", "-t", "idle", "-o", "%N"]).lines().count() == NODES
        });
        Ok(lab)
    }

    fn at(&self, name: &str) -> String {
        self.folder.at(name)
    }

    fn write_config(&self) {
        let ports: Vec<TcpListener> = (0..=NODES).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
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
        for i in 1..=NODES {
            text += &format!(
                "NodeName=n{i} NodeHostname=localhost NodeAddr=127.0.0.1 Port={} CPUs=16 RealMemory=1000 Gres=gpu:a100:{GPUS} State=UNKNOWN\n",
                port(i)
            );
        }
        text += "PartitionName=main Nodes=n[1-4] Default=YES State=UP OverSubscribe=NO\nPartitionName=small Nodes=n4 State=UP OverSubscribe=NO\n";
        std::fs::write(self.at("etc/slurm.conf"), text).unwrap();
        let gres = format!("NodeName=n[1-{NODES}] Name=gpu Type=a100 File={at}/dev/gpu[0-{}]\n", GPUS - 1);
        std::fs::write(self.at("etc/gres.conf"), gres).unwrap();
    }

    fn daemon(&mut self, program: &'static str, args: &[&str]) {
        let log = std::fs::File::create(self.at(&format!("log/{program}-{}.out", self.daemons.len()))).unwrap();
        let path = format!("/usr/sbin:/sbin:{}", std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new(program);
        command.args(args).env("SLURM_CONF", self.at("etc/slurm.conf")).env("PATH", path);
        let child = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        self.daemons.push((program, child));
    }

    fn controller(&mut self) {
        self.daemon("slurmctld", &["-D"]);
        self.until("slurmctld answers", || self.client("scontrol", &["ping"]).contains("UP"));
    }

    /// What a client of Slurm prints; empty on failure. It ends within 10 s.
    fn client(&self, program: &str, args: &[&str]) -> String {
        let out = Command::new("timeout")
            .arg("10")
            .arg(program)
            .args(args)
            .env("SLURM_CONF", self.at("etc/slurm.conf"))
            .output();
        String::from_utf8_lossy(&out.unwrap().stdout).into_owned()
    }

    fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !done() {
            assert!(begin.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn log(&self) -> String {
        let log = std::fs::read_to_string(self.at("log/ctld.log")).unwrap_or_default();
        log.lines().rev().take(30).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Submits a job that shows its GPUs and then sleeps.
    fn submit(&self, seconds: &str, args: &[&str]) -> u32 {
        let script = format!("srun bash -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'; sleep {seconds}");
        let out = self.at("log/job-%j");
        let text = self.client("sbatch", &[&["--parsable", "-o", &out, "--wrap", &script], args].concat());
        text.trim().parse().unwrap_or_else(|_| panic!("sbatch {args:?}: `{text}`\n{}", self.log()))
    }

    fn state(&self, job: u32) -> String {
        self.client("squeue", &["-h", "-t", "all", "-j", &job.to_string(), "-o", "%T"]).trim().to_owned()
    }

    fn field(&self, job: u32, key: &str) -> String {
        let text = self.client("scontrol", &["show", "job", "-d", "-o", &job.to_string()]);
        text.split(' ').find_map(|w| w.strip_prefix(&format!("{key}="))).unwrap_or_default().to_owned()
    }

    /// The GPUs of every running job, by Slurm's books.
    fn books(&self) -> BTreeMap<u32, Gpus> {
        let text = self.client("scontrol", &["show", "job", "-d", "-o"]);
        let jobs = slurm_books(&text);
        jobs.into_iter().filter(|(_, g)| !g.is_empty()).collect()
    }

    /// GPUs that the job itself saw.
    fn inside(&self, job: u32) -> Gpus {
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

/// `Nodes=n[1-2] ... GRES=gpu:a100:2(IDX:0,5-6)` of every running job.
fn slurm_books(text: &str) -> BTreeMap<u32, Gpus> {
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

fn numbers(list: &str) -> Vec<u32> {
    let range = |r: &str| {
        let (a, b) = r.split_once('-').unwrap_or((r, r));
        a.parse().ok().zip(b.parse().ok()).map(|(a, b): (u32, u32)| a..=b)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// `linkwise slurm agent`, and its log.
struct Agent {
    child: Child,
    log: String,
}

impl Agent {
    fn start(lab: &Lab, cluster: &str, model: &str) -> Agent {
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

    fn count(log: &str, text: &str) -> usize {
        std::fs::read_to_string(log).unwrap_or_default().matches(text).count()
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// What the agent wrote about one job.
    fn about(log: &str, job: u32) -> String {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        text.lines().filter(|l| l.starts_with(&format!("job {job}"))).collect::<Vec<_>>().join("\n")
    }

    /// The orders that Slurm followed.
    fn orders(log: &str) -> BTreeMap<u32, Gpus> {
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
fn site(lab: &Lab) -> (String, String) {
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
fn draw(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*state >> 33) % below
}

#[test]
fn jobs_of_a_real_slurm_run_on_exactly_the_chosen_gpus() {
    let mut lab = match Lab::start() {
        Ok(lab) => lab,
        Err(why) => return eprintln!("SKIP jobs_of_a_real_slurm_run_on_exactly_the_chosen_gpus: {why}"),
    };
    let mut check = linkwise("slurm", &["check"]);
    check
        .env("SLURM_CONF", lab.at("etc/slurm.conf"))
        .env("PATH", format!("/usr/sbin:{}", std::env::var("PATH").unwrap()));
    let (code, out, error) = said(check);
    assert!(code == 0 && out.contains("fits"), "{out}{error}");
    let (cluster, model) = site(&lab);
    let agent = Agent::start(&lab, &cluster, &model);
    let log = agent.log.clone();
    forty_jobs(&lab, &log);
    obedience(&lab, &log);
    // What Slurm itself does not always do in time on a busy machine.
    if std::env::var_os("LINKWISE_TEST_SLURM_LONG").is_some() {
        a_requeued_job_is_placed_again(&lab, &log);
        running_jobs_keep_their_gpus_over_a_restart(&mut lab, &log);
    }
    jobs_start_without_a_sane_agent(&lab, agent, &cluster, &model);
    let status = lab.client("scontrol", &["show", "bbstat"]);
    assert!(status.contains("misplaced=0"), "{status}");
    let pids: Vec<u32> = lab.daemons.iter().map(|d| d.1.id()).collect();
    let folder = lab.at("");
    drop(lab);
    assert!(pids.iter().all(|p| !Path::new(&format!("/proc/{p}")).exists()), "a daemon is left");
    assert!(!Path::new(&folder).exists(), "{folder} is left");
}

/// Forty jobs of random shapes, several at once: every order that Slurm took is the truth of its books and inside of the job.
fn forty_jobs(lab: &Lab, log: &str) {
    let mut seed = 7;
    let mut jobs = Vec::new();
    let mut books: BTreeMap<u32, Gpus> = BTreeMap::new();
    for i in 0..40 {
        let k = [1, 2, 3, 4, 5, 8, 8, 11][draw(&mut seed, 8) as usize];
        let shape: Vec<String> = match i % 5 {
            0 | 1 => vec![format!("--gpus={k}")],
            2 => vec![format!("-n{k}"), "--gpus-per-task=1".into()],
            3 => vec!["-N2".into(), format!("--gpus-per-node={}", 1 + k / 3)],
            _ => vec!["-N2".into(), format!("--gpus={}", k.max(2))],
        };
        let shape: Vec<&str> = shape.iter().map(String::as_str).collect();
        jobs.push(lab.submit(["0.3", "1", "2"][draw(&mut seed, 3) as usize], &shape));
        books.extend(lab.books());
    }
    lab.until("the forty jobs have ended", || {
        books.extend(lab.books());
        lab.client("squeue", &["-h"]).is_empty()
    });
    books.extend(lab.books());
    let orders = Agent::orders(log);
    let states: Vec<String> = jobs.iter().map(|j| lab.state(*j)).collect();
    assert!(states.iter().all(|s| s == "COMPLETED"), "{states:?}\n{}", lab.log());
    let mut exact = 0;
    for (job, order) in &orders {
        assert_eq!(&lab.inside(*job), order, "job {job}, inside");
        if let Some(held) = books.get(job) {
            assert_eq!(held, order, "job {job}, books");
            exact += 1;
        }
    }
    for job in jobs.iter().filter(|j| !orders.contains_key(j)) {
        println!("not on a choice: {}", Agent::about(log, *job).lines().next_back().unwrap_or_default());
    }
    println!("{} of 40 jobs ran on linkwise's choice, {exact} of them seen in Slurm's books", orders.len());
    assert!(orders.len() >= 30 && exact >= 20, "{} orders, {exact} seen in the books", orders.len());
}

/// What users ask for is obeyed, and what linkwise does not serve goes the ordinary way.
fn obedience(lab: &Lab, log: &str) {
    let ended = |job: u32| {
        lab.until("the job has ended", || lab.state(job) == "COMPLETED");
        lab.inside(job)
    };
    let nodes = |g: &Gpus| g.keys().cloned().collect::<Vec<_>>();
    assert_eq!(nodes(&ended(lab.submit("0", &["--gpus=3", "-w", "n3"]))), ["n3"]);
    assert_eq!(nodes(&ended(lab.submit("0", &["--gpus=8", "-w", "n[2,4]", "-N2"]))), ["n2", "n4"]);
    assert_eq!(nodes(&ended(lab.submit("0", &["--gpus=12", "-x", "n[1-2]"]))), ["n3", "n4"]);
    assert_eq!(nodes(&ended(lab.submit("0", &["--gpus=4", "-p", "small"]))), ["n4"]);
    assert_eq!(nodes(&ended(lab.submit("0", &["--gpus=9", "-N3"]))).len(), 3);
    let five = ended(lab.submit("0", &["--gpus=5", "-N1"]));
    assert_eq!(five.values().map(BTreeSet::len).collect::<Vec<_>>(), [5]);
    let before = Agent::orders(log).len();
    let whole = lab.submit("0", &["--exclusive", "--gpus=2"]);
    ended(whole);
    assert_eq!(lab.field(whole, "NumCPUs"), "16", "a whole node");
    let off = ended(lab.submit("0", &["--gpus=2", "--comment", "linkwise=off"]));
    assert_eq!(off, Gpus::from([("n1".into(), BTreeSet::from([0, 1]))]));
    assert_eq!(Agent::orders(log).len(), before, "these jobs are not linkwise's");
    // No required nodes are left in the request.
    let array = lab.submit("0.5", &["--gpus=3", "--array=0-3"]);
    lab.until("the array has ended", || lab.client("squeue", &["-h"]).is_empty());
    assert_eq!(lab.field(array, "ReqNodeList"), "(null)");
}

/// A job that is put back while it runs is placed again.
fn a_requeued_job_is_placed_again(lab: &Lab, log: &str) {
    let again = lab.submit("2", &["--gpus=6"]);
    // A job that is put back while it is being launched fails in Slurm itself.
    lab.until("it runs", || lab.inside(again).values().map(BTreeSet::len).sum::<usize>() == 6);
    lab.client("scontrol", &["requeue", &again.to_string()]);
    lab.until("it is put back", || lab.field(again, "Restarts") == "1" && lab.state(again) == "PENDING");
    assert_eq!(lab.field(again, "ReqNodeList"), "(null)");
    lab.until("it has run again", || {
        // Slurm lets a requeued job wait for two minutes.
        lab.client("scontrol", &["update", &format!("jobid={again}"), "StartTime=now"]);
        lab.state(again) == "COMPLETED"
    });
    let six = lab.inside(again);
    assert_eq!(Some(&six), Agent::orders(log).get(&again), "{}\n{}", Agent::about(log, again), lab.log());
}

fn running_jobs_keep_their_gpus_over_a_restart(lab: &mut Lab, log: &str) {
    let job = lab.submit("600", &["--gpus=5"]);
    lab.until("it runs", || lab.books().contains_key(&job));
    let before = lab.books()[&job].clone();
    let at = lab.daemons.iter().position(|d| d.0 == "slurmctld").unwrap();
    let (_, mut controller) = lab.daemons.remove(at);
    assert!(Command::new("kill").arg(controller.id().to_string()).status().unwrap().success());
    controller.wait().unwrap();
    let connected = Agent::count(log, "connected to Slurm");
    lab.controller();
    lab.until("the agent is connected again", || Agent::count(log, "connected to Slurm") > connected);
    lab.until("the job holds its GPUs", || lab.books().get(&job) == Some(&before));
    let next = lab.submit("0", &["--gpus=20"]);
    lab.until("the next job has ended", || lab.state(next) == "COMPLETED");
    let overlap = |(node, gpus): (&String, &BTreeSet<u32>)| before.get(node).is_some_and(|b| !b.is_disjoint(gpus));
    assert!(!lab.inside(next).iter().any(overlap), "{before:?} is held");
    lab.client("scancel", &[&job.to_string()]);
}

/// Agents that hang, talk rubbish or are gone delay a job by the set time and a cycle at most; the comment says why.
fn jobs_start_without_a_sane_agent(lab: &Lab, agent: Agent, cluster: &str, model: &str) {
    let starts = |why: &[&str]| {
        let job = lab.submit("0", &["--gpus=3"]);
        lab.until(&format!("the job starts although: {why:?}"), || lab.state(job) == "COMPLETED");
        let text = lab.client("scontrol", &["show", "job", "-o", &job.to_string()]);
        assert!(why.iter().any(|w| text.contains(w)), "{why:?}: {text}");
        assert_eq!(lab.inside(job).values().map(BTreeSet::len).sum::<usize>(), 3);
    };
    agent.signal("-STOP");
    starts(&["no answer in time"]);
    // The next job does not wait for it, unless the pause is over.
    starts(&["agent was silent", "no answer in time"]);
    agent.signal("-CONT");
    let log = agent.log.clone();
    agent.kill();
    lab.until("the plugin knows that the agent is gone", || {
        lab.client("scontrol", &["show", "bbstat"]).contains("agent=none")
    });
    starts(&["no agent"]);
    for rubbish in [&b"take 1 1 n1:99999999999999\n"[..], b"\0\0\0\n", b"hello\n", &[b'x'; 70_000]] {
        let mut stream = UnixStream::connect(lab.at("run/linkwise.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // An order for a job without a question is refused; other lines end the connection.
        let _ = stream.write_all(rubbish).and_then(|()| stream.write_all(b"\nnonsense\n"));
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert!(String::from_utf8_lossy(&said).starts_with("hello 1 "), "{said:?}");
    }
    starts(&["no agent"]);
    let agent = Agent::start(lab, cluster, model);
    let job = lab.submit("0", &["--gpus=9"]);
    lab.until("the job has ended", || lab.state(job) == "COMPLETED");
    assert_eq!(Some(&lab.inside(job)), Agent::orders(&log).get(&job), "{}", Agent::about(&log, job));
    agent.kill();
}

#[test]
fn random_messages_do_not_harm_the_plugin() {
    let folder = Folder::new();
    let (source, program) = (repository().join("integrations/slurm/tests/fuzz.c"), folder.at("fuzz"));
    let flags = [
        "-std=gnu11",
        "-g",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ];
    let built = Command::new("cc").args(flags).arg("-o").arg(&program).arg(source).output();
    match built {
        Err(e) => return eprintln!("SKIP random_messages_do_not_harm_the_plugin: no C compiler: {e}"),
        Ok(o) => assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stderr)),
    }
    let out = Command::new(&program).args(["100000", "7"]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let number = |key: &str| -> u64 {
        text.split_once(key).and_then(|(_, t)| t.split_whitespace().next()?.parse().ok()).unwrap_or_default()
    };
    assert!(number("known ") > 1_000 && number("orders ") > 100, "{text}");
}
