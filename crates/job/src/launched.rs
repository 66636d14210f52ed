//! Launchers: those that started `linkwise run` as several tasks of one job, and commands that start processes on other
//! hosts.

use agreement::launcher::{Launcher, MPICH, OPEN_MPI, SLURM, TORCHRUN, slurm_host_list, slurm_hosts};
use std::ffi::OsString;
use std::path::Path;

/// One `linkwise run` of several that a launcher started for one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchedTask {
    /// Number of this task, from 0.
    pub number: u32,
    /// Number of tasks; two or more.
    pub count: u32,
    /// Number of tasks on this host, if the launcher gives it.
    pub on_host: Option<u32>,
    /// An identity of the job that all its tasks share.
    pub job: Option<String>,
    /// True if Slurm lists the hosts: the plugin then uses the first as rendezvous.
    pub hosts_known: bool,
    /// How often torchrun has started the workers again, with the same arguments.
    pub restarts: u32,
}

/// torchrun's count of restarts.
const RESTARTS: &str = "TORCHELASTIC_RESTART_COUNT";

/// The launchers, innermost first. torchrun starts `linkwise run` with `--no-python`.
const LAUNCHERS: [Launcher; 4] = [TORCHRUN, OPEN_MPI, MPICH, SLURM];

/// True if this launcher started the process. RANK and WORLD_SIZE alone are no torchrun's: operators of Kubernetes number a job's pods with them.
fn started(launcher: &Launcher, env: impl Fn(&str) -> Option<String>) -> bool {
    *launcher != TORCHRUN || launcher.job.iter().any(|name| env(name).is_some())
}

impl LaunchedTask {
    /// Reads the task from the environment; `None` if one `linkwise run` serves the whole job, or if no launcher is
    /// recognised.
    pub fn of(env: impl Fn(&str) -> Option<String>) -> Option<LaunchedTask> {
        LAUNCHERS.iter().filter(|l| started(l, &env)).find_map(|launcher| {
            let place = launcher.process(&env)?;
            let listed = slurm_host_list(&env).is_some();
            let in_slurm = SLURM.job.iter().any(|k| env(k).is_some());
            let task = LaunchedTask {
                number: place.rank,
                count: place.processes,
                on_host: launcher.on_host(&env),
                job: launcher.job_and_step(&env),
                hosts_known: slurm_hosts(&env).is_some_and(|n| n > 1) && listed && in_slurm,
                restarts: env(RESTARTS).and_then(|n| n.parse().ok()).filter(|_| *launcher == TORCHRUN).unwrap_or(0),
            };
            (task.count > 1).then_some(task)
        })
    }

    /// As [`LaunchedTask::of`]. MPICH's mpiexec tells no job id: tasks of one host then know each other by the process of mpiexec above them.
    pub fn here(env: impl Fn(&str) -> Option<String>) -> Option<LaunchedTask> {
        let task = LaunchedTask::of(env)?;
        let job = task.job.or_else(|| ancestor(Path::new("/proc"), HYDRA_PROXY));
        Some(LaunchedTask { job, ..task })
    }

    /// The name of this task's folder of traces; another one after a restart.
    pub fn folder(&self) -> String {
        let attempt = if self.restarts > 0 { format!("-restart-{}", self.restarts) } else { String::new() };
        format!("task-{}{attempt}", self.number)
    }

    /// The default rendezvous of tasks that all run on one host, from the job's name. `None` on several hosts or if unknown.
    pub fn rendezvous(&self) -> Option<String> {
        let job = self.job.as_ref().filter(|_| self.on_host == Some(self.count))?;
        let word = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
        Some(format!("local:{}", job.chars().take(80).map(word).collect::<String>()))
    }
}

/// The process of MPICH's mpiexec that starts a job's tasks on one host.
const HYDRA_PROXY: &str = "hydra_pmi_proxy";
/// Processes between a task and the launcher's: shells and wrappers.
const ANCESTORS_MAX: usize = 16;

/// The process of this name above this one, by number and start; `None` if there is none.
fn ancestor(proc: &Path, name: &str) -> Option<String> {
    let mut at = "self".to_owned();
    for _ in 0..ANCESTORS_MAX {
        let stat = std::fs::read_to_string(proc.join(&at).join("stat")).ok()?;
        // `pid (name) state parent ...`; a name may hold blanks and parentheses.
        let (pid, rest) = stat.split_once(" (")?;
        let (called, rest) = rest.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        if called == name {
            return Some(format!("{name}-{pid}-{}", fields.get(19)?));
        }
        at = (*fields.get(1)?).to_owned();
    }
    None
}

/// True if `mpirun --version` answered with `version` and takes Open MPI's `-x`. Under another name than mpirun it says the name of its run-time system:
/// Debian's mpirun.openmpi is `OpenRTE`, prun of Open MPI 5 `PRRTE`.
pub fn is_open_mpi(version: &str) -> bool {
    ["Open MPI", "OpenRTE", "PRRTE"].iter().any(|name| version.contains(name))
}

/// What must stand before the arguments of Open MPI's mpirun so that processes on other hosts get these variables. It takes `-x` or a list of
/// its own (`mca_base_env_list`), not both.
///
/// # Errors
/// A sentence: the user gives that list.
pub fn passing_on(
    command: &[OsString],
    variables: &[OsString],
    env: impl Fn(&str) -> Option<String>,
) -> Result<Vec<OsString>, String> {
    const LIST: &str = "mca_base_env_list";
    if command.iter().any(|word| word == LIST) || env("OMPI_MCA_mca_base_env_list").is_some_and(|v| !v.is_empty()) {
        return Err(format!(
            "{LIST} is set, so linkwise adds no -x; it must name NCCL_* and LINKWISE_* for other hosts"
        ));
    }
    // `-x NAME` or `-x NAME=VALUE`.
    let names = |word: &OsString, name: &OsString| {
        let rest = word.as_encoded_bytes().strip_prefix(name.as_encoded_bytes());
        rest.is_some_and(|r| r.is_empty() || r[0] == b'=')
    };
    let given = |name: &OsString| command.windows(2).any(|w| w[0] == "-x" && names(&w[1], name));
    Ok(variables.iter().filter(|v| !given(v)).flat_map(|v| [OsString::from("-x"), v.clone()]).collect())
}

/// Options of mpirun and mpiexec that name hosts.
const HOST_OPTIONS: [&str; 10] = [
    "-H",
    "--host",
    "-host",
    "-hosts",
    "--hostfile",
    "-hostfile",
    "--machinefile",
    "-machinefile",
    "--default-hostfile",
    "-f",
];

/// The launcher that the command begins with, if it may start processes on other hosts.
pub fn reaches_other_hosts(command: &[OsString], env: impl Fn(&str) -> Option<String>) -> Option<&str> {
    let program = Path::new(command.first()?).file_name()?.to_str()?;
    let hosts = slurm_hosts(&env);
    // Debian has mpirun.openmpi and mpiexec.mpich.
    let reaches = match program.split('.').next()? {
        // Outside of an allocation srun creates one, possibly on other hosts.
        "srun" => hosts.is_none_or(|n| n > 1),
        "mpirun" | "mpiexec" | "orterun" | "prun" => {
            hosts.is_some_and(|n| n > 1)
                || ["PBS_NODEFILE", "LSB_HOSTS"].iter().any(|k| env(k).is_some())
                || command.iter().any(|word| HOST_OPTIONS.iter().any(|option| word == option))
        }
        _ => false,
    };
    reaches.then_some(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env<'a>(vars: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |k| vars.iter().find(|v| v.0 == k).map(|v| v.1.to_string())
    }

    fn of(vars: &[(&str, &str)]) -> Option<LaunchedTask> {
        LaunchedTask::of(env(vars))
    }

    #[test]
    fn tasks_of_one_host_use_the_name_of_the_job_as_rendezvous() {
        let slurm = [
            ("SLURM_PROCID", "3"),
            ("SLURM_STEP_NUM_TASKS", "8"),
            ("SLURM_STEP_TASKS_PER_NODE", "8"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_ID", "2"),
        ];
        let task = of(&slurm).unwrap();
        assert_eq!((task.number, task.count, task.rendezvous().as_deref()), (3, 8, Some("local:77.2")));
        let mpi = [
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_NAMESPACE", "a/b c@1"),
        ];
        assert_eq!(of(&mpi).unwrap().rendezvous().as_deref(), Some("local:a-b-c-1"));
    }

    #[test]
    fn tasks_of_several_hosts_have_no_default_rendezvous() {
        let slurm = [
            ("SLURM_PROCID", "3"),
            ("SLURM_STEP_NUM_TASKS", "8"),
            ("SLURM_STEP_TASKS_PER_NODE", "4(x2)"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_NUM_NODES", "2"),
            ("SLURM_STEP_NODELIST", "n[0-1]"),
        ];
        let task = of(&slurm).unwrap();
        assert_eq!((task.rendezvous(), task.hosts_known), (None, true));
        let mpi = [("PMI_RANK", "0"), ("PMI_SIZE", "8"), ("MPI_LOCALNRANKS", "4"), ("PMI_JOBID", "j")];
        let task = of(&mpi).unwrap();
        assert_eq!((task.rendezvous(), task.hosts_known), (None, false));
    }

    #[test]
    fn workers_of_torchrun_are_tasks_and_pods_with_its_variables_are_not() {
        let pod = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "pod-0"), ("MASTER_PORT", "23456")];
        assert_eq!(of(&pod), None, "RANK counts pods; one `linkwise run` serves a pod");
        let worker = [pod[0], pod[1], ("LOCAL_WORLD_SIZE", "1"), ("TORCHELASTIC_RUN_ID", "j")];
        let task = of(&worker).unwrap();
        assert_eq!((task.number, task.count, task.folder().as_str()), (1, 2, "task-1"));
        let again = [&worker[..], &[("TORCHELASTIC_RESTART_COUNT", "2")]].concat();
        assert_eq!(of(&again).unwrap().folder(), "task-1-restart-2");
    }

    #[test]
    fn one_task_or_invalid_variables_give_no_launched_task() {
        for vars in [
            &[][..],
            &[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")],
            &[("SLURM_PROCID", "9"), ("SLURM_STEP_NUM_TASKS", "8")],
            &[("OMPI_COMM_WORLD_RANK", "x"), ("OMPI_COMM_WORLD_SIZE", "2")],
            &[("SLURM_PROCID", "0")], // in an allocation, outside of a step
        ] {
            assert_eq!(of(vars), None, "{vars:?}");
        }
    }

    #[test]
    fn a_process_above_is_found_by_its_name_whatever_is_between() {
        let dir = tempfile::tempdir().unwrap();
        let stat = |at: &str, pid: u32, name: &str, parent: u32| {
            std::fs::create_dir_all(dir.path().join(at)).unwrap();
            let zeros = "0 ".repeat(17);
            std::fs::write(dir.path().join(at).join("stat"), format!("{pid} ({name}) S {parent} {zeros}777 0\n"))
                .unwrap();
        };
        stat("self", 30, "linkwise", 20);
        stat("20", 20, "sh (x) y", 10);
        stat("10", 10, "hydra_pmi_proxy", 1);
        assert_eq!(ancestor(dir.path(), HYDRA_PROXY).as_deref(), Some("hydra_pmi_proxy-10-777"));
        assert_eq!(ancestor(dir.path(), "slurmstepd"), None);
        stat("20", 20, "loop", 20);
        assert_eq!(ancestor(dir.path(), HYDRA_PROXY), None);
    }

    #[test]
    fn open_mpi_is_told_to_pass_on_what_the_user_has_not() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let added =
            |command: &[&str], vars: &[(&str, &str)]| passing_on(&words(command), &words(&["A", "B"]), env(vars));
        assert_eq!(added(&["mpirun", "--host", "a,b", "train"], &[]), Ok(words(&["-x", "A", "-x", "B"])));
        assert_eq!(added(&["mpirun", "-x", "A", "train"], &[]), Ok(words(&["-x", "B"])));
        assert_eq!(added(&["mpirun", "-x", "A=1", "-x", "BC=2", "train"], &[]), Ok(words(&["-x", "B"])));
        assert!(added(&["mpirun", "--mca", "mca_base_env_list", "A", "train"], &[]).is_err());
        assert!(added(&["mpirun", "train"], &[("OMPI_MCA_mca_base_env_list", "A")]).is_err());
    }

    #[test]
    fn commands_that_start_processes_on_other_hosts_are_known() {
        let (two, one) = ([("SLURM_JOB_NUM_NODES", "2")], [("SLURM_JOB_NUM_NODES", "1")]);
        for (command, vars, who) in [
            (&["srun", "train"][..], &[][..], Some("srun")),
            (&["/opt/bin/srun", "train"], &two, Some("srun")),
            (&["srun", "train"], &one, None),
            (&["mpirun", "-np", "4", "train"], &[], None),
            (&["mpirun", "--host", "a,b", "train"], &[], Some("mpirun")),
            (&["mpiexec", "train"], &two, Some("mpiexec")),
            (&["mpiexec.mpich", "-hosts", "a,b", "train"], &[], Some("mpiexec.mpich")),
            (&["python", "srun"], &two, None),
        ] {
            let words: Vec<OsString> = command.iter().map(OsString::from).collect();
            assert_eq!(reaches_other_hosts(&words, env(vars)), who, "{command:?} {vars:?}");
        }
    }
}
