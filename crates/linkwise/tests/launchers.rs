//! `linkwise run` under real launchers, packaged ones: Open MPI's and MPICH's mpirun, on one host and on two "hosts", network namespaces with names of their
//! own; srun of a real Slurm and torchrun likewise; each before and inside of the launcher. What runs is a stand-in for NCCL that loads the real plugin;
//! the launchers, the network and the traces are real. torchrun needs a Python with PyTorch: `LINKWISE_TEST_PYTHON`, else that of scripts/test-torch.sh.

mod common;
#[path = "common/slurm/mod.rs"]
mod lab;
#[path = "launchers/two_hosts.rs"]
mod two_hosts;

use lab::{Lab, Setup};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use two_hosts::{NAMES, TwoHosts};

const LINKWISE: &str = env!("CARGO_BIN_EXE_linkwise");
/// Ranks of a job: two on each host.
const RANKS: usize = 4;
/// Entry of the cost table that the table of arms asks for, and the one that AUTO would take.
const TREE_LL: u32 = 0;
const RING_SIMPLE: u32 = 5;

fn told(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// A real launcher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Launcher {
    OpenMpi,
    Mpich,
}

impl Launcher {
    /// The program; `None`, with a line, if it is not installed.
    fn program(self, test: &str) -> Option<&'static str> {
        let program = if self == Launcher::OpenMpi { "mpirun.openmpi" } else { "mpiexec.mpich" };
        let found = Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
        if !found {
            eprintln!("SKIP {test}: no {program}; apt-get install openmpi-bin mpich");
        }
        found.then_some(program)
    }

    /// Its arguments for four ranks on one host.
    fn here(self) -> Vec<String> {
        let words = match self {
            Launcher::OpenMpi => "--allow-run-as-root --oversubscribe -np 4",
            Launcher::Mpich => "-n 4",
        };
        words.split(' ').map(str::to_owned).collect()
    }

    /// Its arguments for two ranks on each of two hosts, which `agent` reaches.
    fn on(self, hosts: [&str; 2], agent: &Path) -> Vec<String> {
        let (hosts, agent) = (format!("{}:2,{}:2", hosts[0], hosts[1]), agent.to_str().unwrap());
        let subnet = hosts.split(':').next().unwrap().rsplit_once('.').unwrap().0.to_owned() + ".0/24";
        let words: Vec<&str> = match self {
            Launcher::OpenMpi => {
                vec![
                    "--allow-run-as-root",
                    "--oversubscribe",
                    "--mca",
                    "plm_rsh_agent",
                    agent,
                    "--mca",
                    "oob_tcp_if_include",
                    &subnet,
                ]
            }
            Launcher::Mpich => vec!["-launcher", "ssh", "-launcher-exec", agent],
        };
        let name = if self == Launcher::OpenMpi { "--host" } else { "-hosts" };
        let mut all: Vec<String> = words.into_iter().map(str::to_owned).collect();
        all.extend([name.into(), hosts, "-n".into(), "4".into()]);
        all
    }
}

/// The job's program, and a table that replaces AUTO's choice once all ranks hold it.
struct Job {
    folder: tempfile::TempDir,
}

impl Job {
    fn new(test: &str) -> Option<Job> {
        let folder = tempfile::tempdir().unwrap();
        let home = Path::new(env!("CARGO_MANIFEST_DIR"));
        let built = Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
            .arg(folder.path().join("job"))
            .arg(home.join("tests/launchers/job.c"))
            .arg("-I")
            .arg(home.join("../nccl-plugin/tests/program"))
            .arg("-ldl")
            .output();
        match built {
            Err(e) => {
                eprintln!("SKIP {test}: no C compiler: {e}");
                return None;
            }
            Ok(out) => assert!(out.status.success(), "{}", told(&out)),
        }
        std::fs::write(folder.path().join("arms"), "AllReduce 1KiB max TREE/LL\n").unwrap();
        Some(Job { folder })
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// `linkwise run` with these options, up to the command.
    fn run(&self, options: &[&str]) -> Vec<String> {
        self.run_in("traces", options)
    }

    /// The same with another folder of traces.
    fn run_in(&self, traces: &str, options: &[&str]) -> Vec<String> {
        let begin = [LINKWISE, "run", "--profile", &self.at("arms"), "--trace", &self.at(traces)];
        begin.iter().chain(options).chain(&["--"]).map(|w| (*w).to_owned()).collect()
    }

    /// The ranks' program: 3 s of calls.
    fn program(&self, hosts: usize) -> Vec<String> {
        vec![self.at("job"), hosts.to_string(), "600".into(), "5000".into()]
    }

    /// Asserts that all ranks ran with the plugin and met, and that the report has all of them.
    fn check(&self, out: &Output, hosts: &[&str], reports_all: bool) {
        let of_all = format!("{RANKS} processes with the plugin");
        self.check_reports(out, hosts, if reports_all { &of_all } else { "This is task 0 of 4" });
        assert_eq!(told(out).contains(&of_all), reports_all, "{}", told(out));
    }

    /// The same, with a report that says `says`.
    fn check_reports(&self, out: &Output, hosts: &[&str], says: &str) {
        let said = told(out);
        assert_eq!(out.status.code(), Some(0), "{said}");
        let last = |rank: usize| format!("rank {rank} of {RANKS}: last arm {TREE_LL}");
        (0..RANKS).for_each(|r| assert!(said.contains(&last(r)), "{}; AUTO is {RING_SIMPLE}: {said}", last(r)));
        let report =
            Command::new(LINKWISE).args(["tune", "report", &self.at("traces"), "--format", "json"]).output().unwrap();
        let read: Value = serde_json::from_slice(&report.stdout).unwrap_or_else(|e| panic!("{e}: {}", told(&report)));
        assert_eq!(read["processes"].as_array().map(Vec::len), Some(RANKS), "{read:#}");
        for host in hosts {
            assert!(traces(self.folder.path()).iter().any(|l| l["host_name"] == *host), "no trace of {host}: {said}");
        }
        assert!(said.contains(says), "{says}: {said}");
    }
}

/// The lines about processes in all traces below a folder.
fn traces(folder: &Path) -> Vec<Value> {
    let (mut lines, mut folders) = (Vec::new(), vec![folder.join("traces")]);
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()) {
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let text = std::fs::read_to_string(&path).unwrap_or_default();
                    lines.extend(text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok()));
                }
            }
        }
    }
    lines.retain(|l| l["kind"] == "process");
    lines
}

/// The plugin that the tests built, and nothing of an outer launcher.
fn environment(command: &mut Command) {
    for (name, _) in std::env::vars()
        .filter(|(n, _)| ["SLURM_", "OMPI_", "PMI", "NCCL_", "LINKWISE_", "MASTER_"].iter().any(|p| n.starts_with(p)))
    {
        command.env_remove(name);
    }
    command.env("LINKWISE_LEAD", "0").env("LINKWISE_TOKEN", "launchers-test");
}

fn has_plugin(test: &str) -> bool {
    let found = Path::new(LINKWISE).with_file_name("deps").join("liblinkwise_nccl.so").exists()
        || Path::new(LINKWISE).with_file_name("liblinkwise_nccl.so").exists();
    if !found {
        eprintln!("SKIP {test}: liblinkwise_nccl.so is not built (cargo test --workspace builds it)");
    }
    found
}

/// On one host: `linkwise run` starts the launcher, and the launcher starts `linkwise run` for each rank.
fn on_one_host(test: &str, launcher: Launcher) {
    let Some(program) = launcher.program(test).filter(|_| has_plugin(test)) else { return };
    for before in [true, false] {
        let Some(job) = Job::new(test) else { return };
        let start = [vec![program.to_owned()], launcher.here()].concat();
        let words = match before {
            true => [job.run(&[]), start, job.program(1)].concat(),
            false => [start, job.run(&[]), job.program(1)].concat(),
        };
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        environment(&mut command);
        job.check(&command.output().unwrap(), &[], before);
    }
}

#[test]
fn ranks_of_open_mpi_on_one_host_meet_and_are_reported() {
    on_one_host("ranks_of_open_mpi_on_one_host_meet_and_are_reported", Launcher::OpenMpi);
}

#[test]
fn ranks_of_mpich_on_one_host_meet_and_are_reported() {
    on_one_host("ranks_of_mpich_on_one_host_meet_and_are_reported", Launcher::Mpich);
}

/// On two hosts. Inside of the launcher every task is told where to meet; before it, what `linkwise run` sets must reach the other host.
fn on_two_hosts(test: &str, launcher: Launcher) {
    let Some(program) = launcher.program(test).filter(|_| has_plugin(test)) else { return };
    for (port, before) in [(47_001, true), (47_002, false)] {
        let Some(job) = Job::new(test) else { return };
        let Some(hosts) = TwoHosts::new(test, job.folder.path()) else { return };
        let place = format!("tcp:{}:{port}", hosts.hosts[0].address);
        let start = launcher.on(hosts.addresses(), &hosts.agent);
        let start = [vec![program.to_owned()], start].concat();
        let run = job.run(&["--rendezvous", &place]);
        let words = match before {
            true => [run, start, job.program(2)].concat(),
            // What a user gives each task: the settings of the environment do not cross ssh.
            false => [
                start,
                vec!["env".into(), "LINKWISE_LEAD=0".into(), "LINKWISE_TOKEN=launchers-test".into()],
                run,
                job.program(2),
            ]
            .concat(),
        };
        let mut command = hosts.command(0, &words);
        if before && launcher == Launcher::OpenMpi {
            // linkwise passes its own settings on; LINKWISE_LEAD and LINKWISE_TOKEN are the user's.
            let at = words.iter().position(|w| w == "--host").unwrap();
            let more = ["-x", "LINKWISE_LEAD", "-x", "LINKWISE_TOKEN"].map(str::to_owned);
            command = hosts.command(0, &[&words[..at], &more, &words[at..]].concat());
        }
        job.check(&command.output().unwrap(), &NAMES, before);
    }
}

#[test]
fn ranks_of_open_mpi_on_two_hosts_meet_and_are_reported() {
    on_two_hosts("ranks_of_open_mpi_on_two_hosts_meet_and_are_reported", Launcher::OpenMpi);
}

#[test]
fn ranks_of_mpich_on_two_hosts_meet_and_are_reported() {
    on_two_hosts("ranks_of_mpich_on_two_hosts_meet_and_are_reported", Launcher::Mpich);
}

/// Without a rendezvous nothing is tried, nothing fails, and the remedy is said.
#[test]
fn two_hosts_without_a_rendezvous_stay_at_auto_and_are_told() {
    let test = "two_hosts_without_a_rendezvous_stay_at_auto_and_are_told";
    let launcher = Launcher::OpenMpi;
    let Some(program) = launcher.program(test).filter(|_| has_plugin(test)) else { return };
    let Some(job) = Job::new(test) else { return };
    let Some(hosts) = TwoHosts::new(test, job.folder.path()) else { return };
    let start = launcher.on(hosts.addresses(), &hosts.agent);
    let words = [job.run(&[]), vec![program.to_owned()], start, job.program(2)].concat();
    let out = hosts.command(0, &words).output().unwrap();
    let said = told(&out);
    assert_eq!(out.status.code(), Some(0), "{said}");
    assert!(said.contains("give --rendezvous tcp:HOST:PORT"), "{said}");
    assert_eq!(said.matches(&format!("last arm {RING_SIMPLE}")).count(), RANKS, "{said}");
}

/// srun tells its tasks the job and the step, by which the ranks of a host meet.
#[test]
fn ranks_of_srun_on_one_node_meet_and_are_reported() {
    let test = "ranks_of_srun_on_one_node_meet_and_are_reported";
    if !has_plugin(test) {
        return;
    }
    let lab = match Lab::start(Setup { nodes: 1, ..Setup::default() }) {
        Ok(lab) => lab,
        Err(why) => return eprintln!("SKIP {test}: {why}"),
    };
    for before in [true, false] {
        let Some(job) = Job::new(test) else { return };
        let start = ["srun", "-n", "4"].map(str::to_owned).to_vec();
        let words = match before {
            true => [job.run(&[]), start, job.program(1)].concat(),
            false => [start, job.run(&[]), job.program(1)].concat(),
        };
        let mut command = Command::new("timeout");
        command.arg("120").args(&words);
        environment(&mut command);
        command.env("SLURM_CONF", lab.at("etc/slurm.conf"));
        job.check(&command.output().unwrap(), &[], before);
    }
}

/// Nothing but `srun`: the ranks of both hosts meet at the first host of Slurm's list.
#[test]
fn ranks_of_srun_on_two_hosts_meet_and_are_reported() {
    let test = "ranks_of_srun_on_two_hosts_meet_and_are_reported";
    if !has_plugin(test) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(hosts) = TwoHosts::new(test, folder.path()) else { return };
    let lab = match Lab::start(Setup { nodes: 2, hosts: hosts.hosts.to_vec(), ..Setup::default() }) {
        Ok(lab) => lab,
        Err(why) => return eprintln!("SKIP {test}: {why}"),
    };
    for before in [true, false] {
        let Some(job) = Job::new(test) else { return };
        let start = ["srun", "-N", "2", "-n", "4", "--ntasks-per-node", "2"].map(str::to_owned).to_vec();
        let words = match before {
            true => [job.run(&[]), start, job.program(2)].concat(),
            false => [start, job.run(&[]), job.program(2)].concat(),
        };
        let mut command = hosts.command(0, &[vec!["timeout".into(), "120".into()], words].concat());
        command.env("SLURM_CONF", lab.at("etc/slurm.conf"));
        job.check(&command.output().unwrap(), &NAMES, before);
    }
}

/// A Python with PyTorch; `None`, with a line, if there is none.
fn pytorch(test: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("LINKWISE_CACHE").map(PathBuf::from).or_else(|| {
        let user = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        user.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache"))).map(|c| c.join("linkwise"))
    });
    let named = std::env::var_os("LINKWISE_TEST_PYTHON").map(PathBuf::from);
    let python = named.or_else(|| Some(cache?.join("python/bin/python")))?;
    let has = Command::new(&python).args(["-c", "import torch.distributed.run"]).output();
    let found = has.is_ok_and(|o| o.status.success());
    if !found {
        eprintln!("SKIP {test}: {} has no PyTorch; scripts/test-torch.sh fetches it", python.display());
    }
    found.then_some(python)
}

/// One agent of torchrun on each host. Each `linkwise run` before an agent has the traces of its host; inside, each has those of one rank.
#[test]
fn ranks_of_torchrun_on_two_hosts_meet_and_are_reported() {
    let test = "ranks_of_torchrun_on_two_hosts_meet_and_are_reported";
    let Some(python) = pytorch(test).filter(|_| has_plugin(test)) else { return };
    for (port, before) in [(27_003, true), (27_004, false)] {
        let Some(job) = Job::new(test) else { return };
        let Some(hosts) = TwoHosts::new(test, job.folder.path()) else { return };
        let endpoint = format!("{}:{port}", hosts.hosts[0].address);
        let begin = [python.to_str().unwrap(), "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"];
        let meet = ["--rdzv-backend", "c10d", "--rdzv-id", "launchers", "--rdzv-endpoint", &endpoint, "--no-python"];
        let agent: Vec<String> = begin.iter().chain(&meet).map(|w| (*w).to_owned()).collect();
        let start = |host: usize| {
            let words = match before {
                true => [job.run_in(&format!("traces/{}", NAMES[host]), &[]), agent.clone(), job.program(2)].concat(),
                false => [agent.clone(), job.run(&[]), job.program(2)].concat(),
            };
            let mut command = hosts.command(host, &[vec!["timeout".into(), "300".into()], words].concat());
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let [first, second] =
            [start(0), start(1)].map(|agent| std::thread::spawn(|| agent.wait_with_output().unwrap()));
        let (mut both, second) = (first.join().unwrap(), second.join().unwrap());
        assert_eq!(second.status.code(), Some(0), "{}{}", told(&both), told(&second));
        both.stdout.extend(second.stdout);
        both.stderr.extend(second.stderr);
        job.check_reports(&both, &NAMES, if before { "2 processes with the plugin" } else { "This is task 0 of 4" });
    }
}
