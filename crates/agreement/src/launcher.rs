//! The environment variables that launchers set for the processes of a job: one table each for torchrun, Open MPI, MPICH (Hydra and other PMI
//! launchers) and Slurm.
//!
//! Every function is pure: the environment is an argument, `Fn(&str) -> Option<String>`. An invalid value counts as
//! absent.

use crate::roster::RANKS_MAX;

/// The variables of one launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launcher {
    /// The launcher's name in messages.
    pub name: &'static str,
    /// Variable with the process's rank in the job, from 0.
    pub rank: &'static str,
    /// Variable with the number of processes of the job.
    pub processes: &'static str,
    /// Used if [`Launcher::processes`] is not set. Slurm also sets this variable in a batch script, which is one process.
    pub processes_of_allocation: Option<&'static str>,
    /// Variable with the process's rank on its host, from 0.
    pub local_rank: &'static str,
    /// Variable with the number of the job's processes on this host. Slurm writes `4` on one host, `4(x2)` on two.
    pub processes_on_host: &'static str,
    /// Variables with the job's id; the first that is set counts.
    pub job: &'static [&'static str],
    /// Variable with the id of the step within the job.
    pub step: Option<&'static str>,
}

// One table per launcher, side by side, so that the rows can be compared with the launchers' manuals.

/// torchrun, one agent per host, one worker per GPU.
pub const TORCHRUN: Launcher = Launcher {
    name: "torchrun",
    rank: "RANK",
    processes: "WORLD_SIZE",
    processes_of_allocation: None,
    local_rank: "LOCAL_RANK",
    processes_on_host: "LOCAL_WORLD_SIZE",
    job: &["TORCHELASTIC_RUN_ID"],
    step: None,
};

/// Open MPI's mpirun and prun. Version 5 sets only the second variable of `job`.
pub const OPEN_MPI: Launcher = Launcher {
    name: "Open MPI",
    rank: "OMPI_COMM_WORLD_RANK",
    processes: "OMPI_COMM_WORLD_SIZE",
    processes_of_allocation: None,
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    processes_on_host: "OMPI_COMM_WORLD_LOCAL_SIZE",
    job: &["OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"],
    step: None,
};

/// MPICH's and Intel MPI's mpiexec.hydra, and other launchers that speak PMI.
pub const MPICH: Launcher = Launcher {
    name: "MPICH",
    rank: "PMI_RANK",
    processes: "PMI_SIZE",
    processes_of_allocation: None,
    local_rank: "MPI_LOCALRANKID",
    processes_on_host: "MPI_LOCALNRANKS",
    job: &["PMI_JOBID"],
    step: None,
};

/// Slurm's srun.
pub const SLURM: Launcher = Launcher {
    name: "Slurm",
    rank: "SLURM_PROCID",
    processes: "SLURM_STEP_NUM_TASKS",
    processes_of_allocation: Some("SLURM_NTASKS"),
    local_rank: "SLURM_LOCALID",
    processes_on_host: "SLURM_STEP_TASKS_PER_NODE",
    job: &["SLURM_JOB_ID"],
    step: Some("SLURM_STEP_ID"),
};

/// All launchers, innermost first: workers of torchrun and mpirun also inherit srun's variables.
pub const LAUNCHERS: [Launcher; 4] = [TORCHRUN, OPEN_MPI, MPICH, SLURM];

/// Variables with the number of hosts of a Slurm step, otherwise of the job.
const SLURM_HOSTS: [&str; 3] = ["SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"];
/// Variables with the names of these hosts.
const SLURM_HOST_LIST: [&str; 2] = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"];
/// Variables that differ between attempts of one job.
const ATTEMPT: [&str; 4] =
    ["TORCHELASTIC_RESTART_COUNT", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "OMPI_MCA_ess_base_jobid"];

/// The rank of a process in its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct JobProcess {
    /// Counted from 0.
    pub rank: u32,
    /// Number of processes, at most [`RANKS_MAX`].
    pub processes: u32,
}

impl std::str::FromStr for JobProcess {
    type Err = String;

    /// `RANK/PROCESSES`.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not a rank in a job; write RANK/PROCESSES, for example 0/8 to 7/8");
        let (rank, processes) = text.split_once('/').ok_or_else(bad)?;
        JobProcess::new(rank, processes).ok_or_else(bad)
    }
}

impl JobProcess {
    fn new(rank: &str, processes: &str) -> Option<Self> {
        let (rank, processes) = (rank.trim().parse().ok()?, processes.trim().parse().ok()?);
        (rank < processes && processes as usize <= RANKS_MAX).then_some(JobProcess { rank, processes })
    }
}

impl Launcher {
    /// The process's rank, if this launcher started the process.
    pub fn process(&self, env: impl Fn(&str) -> Option<String>) -> Option<JobProcess> {
        JobProcess::new(&env(self.rank)?, &env(self.processes)?)
    }

    /// Number of the job's processes on this host; `None` if the variable is not a single number.
    pub fn on_host(&self, env: impl Fn(&str) -> Option<String>) -> Option<u32> {
        env(self.processes_on_host)?.trim().parse().ok()
    }

    /// The ids of the job and of its step, if any: `77.2`.
    pub fn job_and_step(&self, env: impl Fn(&str) -> Option<String>) -> Option<String> {
        let job = self.job.iter().find_map(|k| env(k))?;
        let step = self.step.and_then(env).map(|s| format!(".{s}"));
        Some(job + &step.unwrap_or_default())
    }
}

/// The process's rank in the job, from the innermost launcher that sets it.
pub fn process(env: &impl Fn(&str) -> Option<String>) -> Option<JobProcess> {
    LAUNCHERS
        .iter()
        .find_map(|l| l.process(env).or_else(|| JobProcess::new(&env(l.rank)?, &env(l.processes_of_allocation?)?)))
}

/// The process's rank on its host.
pub fn local_rank(env: &impl Fn(&str) -> Option<String>) -> Option<u32> {
    LAUNCHERS.iter().find_map(|l| env(l.local_rank)?.trim().parse().ok())
}

/// The job's id, equal in all its processes. Not a secret. Slurm's id takes precedence over that of an mpirun inside the Slurm job.
pub fn job(env: &impl Fn(&str) -> Option<String>) -> Option<String> {
    [TORCHRUN, SLURM, OPEN_MPI, MPICH].iter().flat_map(|l| l.job).find_map(|k| env(k))
}

/// A text that differs between attempts of one job, which have the same [`job`].
pub fn attempt(env: &impl Fn(&str) -> Option<String>) -> String {
    ATTEMPT.iter().map(|k| env(k).unwrap_or_default() + "/").collect()
}

/// True if, by torchrun's variables, all processes of the job are on this host.
pub fn is_on_one_host(env: &impl Fn(&str) -> Option<String>) -> bool {
    let here = env(TORCHRUN.processes_on_host);
    here.is_some() && here == env(TORCHRUN.processes)
}

/// Number of hosts of the Slurm step, otherwise of the job.
pub fn slurm_hosts(env: &impl Fn(&str) -> Option<String>) -> Option<u32> {
    SLURM_HOSTS.iter().find_map(|k| env(k)?.trim().parse().ok())
}

/// Slurm's list of these hosts: `node[03-05,9],other`.
pub fn slurm_host_list(env: &impl Fn(&str) -> Option<String>) -> Option<String> {
    SLURM_HOST_LIST.iter().find_map(|k| env(k))
}

/// The first host of Slurm's list: `node03` of `node[03-05,9],other`.
pub fn first_host(list: &str) -> Option<String> {
    let (before, rest) = list.split_at(list.find(['[', ',']).unwrap_or(list.len()));
    let Some(inside) = rest.strip_prefix('[') else { return Some(before.to_string()) };
    let (numbers, after) = inside.split_once(']')?;
    let number = numbers.split(['-', ',']).next().filter(|n| !n.is_empty())?;
    let after = after.split(',').next().unwrap_or("");
    (!after.contains('[')).then(|| format!("{before}{number}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env<'a>(vars: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |k| vars.iter().find(|(n, _)| *n == k).map(|(_, v)| v.to_string())
    }

    #[test]
    fn the_rank_comes_from_the_innermost_launcher() {
        let slurm = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2")];
        assert_eq!(process(&env(&slurm)), Some(JobProcess { rank: 1, processes: 2 }));
        let both = [slurm[0], slurm[1], ("RANK", "9"), ("WORLD_SIZE", "16")];
        assert_eq!(process(&env(&both)), Some(JobProcess { rank: 9, processes: 16 }));
        let mpi = [("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "4"), slurm[0], slurm[1]];
        assert_eq!(process(&env(&mpi)), Some(JobProcess { rank: 3, processes: 4 }));
        let step = [slurm[0], slurm[1], ("SLURM_STEP_NUM_TASKS", "8")];
        assert_eq!(
            process(&env(&step)),
            Some(JobProcess { rank: 1, processes: 8 }),
            "the step's processes, not the allocation's"
        );
    }

    #[test]
    fn every_launcher_sets_rank_local_rank_and_job() {
        for l in LAUNCHERS {
            let vars = [(l.rank, "3"), (l.processes, "8"), (l.local_rank, "1"), (l.processes_on_host, "2")];
            let vars = [&vars[..], &[(l.job[0], "j")]].concat();
            let e = env(&vars);
            assert_eq!(process(&e), Some(JobProcess { rank: 3, processes: 8 }), "{}", l.name);
            assert_eq!((local_rank(&e), l.on_host(&e), job(&e)), (Some(1), Some(2), Some("j".into())), "{}", l.name);
        }
    }

    #[test]
    fn an_impossible_rank_is_none() {
        for vars in [
            &[][..],
            &[("RANK", "0")],
            &[("RANK", "4"), ("WORLD_SIZE", "4")],
            &[("RANK", "-1"), ("WORLD_SIZE", "4")],
            &[("RANK", "0"), ("WORLD_SIZE", "0")],
            &[("RANK", "0"), ("WORLD_SIZE", "99999999999")],
        ] {
            assert_eq!(process(&env(vars)), None, "{vars:?}");
        }
        assert_eq!("3/8".parse(), Ok(JobProcess { rank: 3, processes: 8 }));
        assert!("8/8".parse::<JobProcess>().is_err() && "8".parse::<JobProcess>().is_err());
    }

    #[test]
    fn the_first_host_of_a_list_is_found() {
        for (list, first) in [
            ("a", Some("a")),
            ("a,b[1-2]", Some("a")),
            ("n[003-007,9],m", Some("n003")),
            ("r1-n[12]-ib,x", Some("r1-n12-ib")),
            ("n[", None),
            ("n[]", None),
            ("r[1-2]n[3-4]", None),
        ] {
            assert_eq!(first_host(list).as_deref(), first, "{list}");
        }
    }
}
