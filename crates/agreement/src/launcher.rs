//! What launchers tell the processes that they start: one table of environment variables for torchrun, Open MPI, MPICH (Hydra and other
//! PMI launchers) and Slurm.
//!
//! Every function is pure: the environment is an argument, `Fn(&str) -> Option<String>`. A variable that is not set, or that does not hold
//! what it should, counts as absent.

use crate::roster::RANKS_MAX;

/// The variables of one launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launcher {
    /// Its name in messages.
    pub name: &'static str,
    /// The process's number in the job, from 0.
    pub rank: &'static str,
    /// How many processes the job has.
    pub processes: &'static str,
    /// The same where [`Launcher::processes`] is not set. Slurm's is set in a batch script, too, which is one process.
    pub processes_of_allocation: Option<&'static str>,
    /// The process's number on its host, from 0.
    pub local_rank: &'static str,
    /// How many of the job's processes are on this host. Slurm writes `4` on one host, `4(x2)` on two.
    pub processes_on_host: &'static str,
    /// What the job's processes have in common and other jobs have not; the first that is set.
    pub job: &'static [&'static str],
    /// What tells the steps of one job apart.
    pub step: Option<&'static str>,
}

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

/// Open MPI's mpirun and prun. Version 5 sets the second name of the job only.
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

/// All launchers, innermost first: torchrun's workers also see what srun told torchrun, and mpirun's what srun told mpirun.
pub const LAUNCHERS: [Launcher; 4] = [TORCHRUN, OPEN_MPI, MPICH, SLURM];

/// The number of hosts of a Slurm step, or else of the job.
const SLURM_HOSTS: [&str; 3] = ["SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"];
/// Their names, as Slurm lists them.
const SLURM_HOST_LIST: [&str; 2] = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"];
/// What tells the attempts of one job apart.
const ATTEMPT: [&str; 4] =
    ["TORCHELASTIC_RESTART_COUNT", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "OMPI_MCA_ess_base_jobid"];

/// Which process of a job this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct JobProcess {
    /// Counted from 0.
    pub rank: u32,
    /// How many there are, at most [`RANKS_MAX`].
    pub processes: u32,
}

impl std::str::FromStr for JobProcess {
    type Err = String;

    /// `RANK/PROCESSES`.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is no place in a job; write RANK/PROCESSES, 0/8 to 7/8 for instance");
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
    /// Which process of its job this is, where this launcher started it.
    pub fn process(&self, env: impl Fn(&str) -> Option<String>) -> Option<JobProcess> {
        JobProcess::new(&env(self.rank)?, &env(self.processes)?)
    }

    /// How many of the job's processes are on this host; `None` where that is not one number.
    pub fn on_host(&self, env: impl Fn(&str) -> Option<String>) -> Option<u32> {
        env(self.processes_on_host)?.trim().parse().ok()
    }

    /// The job, and the step where there are steps: `77.2`.
    pub fn job_and_step(&self, env: impl Fn(&str) -> Option<String>) -> Option<String> {
        let job = self.job.iter().find_map(|k| env(k))?;
        let step = self.step.and_then(env).map(|s| format!(".{s}"));
        Some(job + &step.unwrap_or_default())
    }
}

/// Which process of the job this is, by the innermost launcher that says it.
pub fn process(env: &impl Fn(&str) -> Option<String>) -> Option<JobProcess> {
    LAUNCHERS
        .iter()
        .find_map(|l| l.process(env).or_else(|| JobProcess::new(&env(l.rank)?, &env(l.processes_of_allocation?)?)))
}

/// The process's number on its host.
pub fn local_rank(env: &impl Fn(&str) -> Option<String>) -> Option<u32> {
    LAUNCHERS.iter().find_map(|l| env(l.local_rank)?.trim().parse().ok())
}

/// What only processes of this job have in common. No secret. A Slurm job's number comes before that of an mpirun inside it.
pub fn job(env: &impl Fn(&str) -> Option<String>) -> Option<String> {
    [TORCHRUN, SLURM, OPEN_MPI, MPICH].iter().flat_map(|l| l.job).find_map(|k| env(k))
}

/// Tells the attempts of one job apart, which have [`job`] in common.
pub fn attempt(env: &impl Fn(&str) -> Option<String>) -> String {
    ATTEMPT.iter().map(|k| env(k).unwrap_or_default() + "/").collect()
}

/// torchrun says that all processes of the job are on this host.
pub fn is_on_one_host(env: &impl Fn(&str) -> Option<String>) -> bool {
    let here = env(TORCHRUN.processes_on_host);
    here.is_some() && here == env(TORCHRUN.processes)
}

/// How many hosts the Slurm step, or else the job, has.
pub fn slurm_hosts(env: &impl Fn(&str) -> Option<String>) -> Option<u32> {
    SLURM_HOSTS.iter().find_map(|k| env(k)?.trim().parse().ok())
}

/// Slurm's list of them: `node[03-05,9],other`.
pub fn slurm_host_list(env: &impl Fn(&str) -> Option<String>) -> Option<String> {
    SLURM_HOST_LIST.iter().find_map(|k| env(k))
}

/// The first of Slurm's list of hosts: `node03` of `node[03-05,9],other`.
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
    fn the_innermost_launcher_says_which_process_this_is() {
        let slurm = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2")];
        assert_eq!(process(&env(&slurm)), Some(JobProcess { rank: 1, processes: 2 }));
        let both = [slurm[0], slurm[1], ("RANK", "9"), ("WORLD_SIZE", "16")];
        assert_eq!(process(&env(&both)), Some(JobProcess { rank: 9, processes: 16 }));
        let mpi = [("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "4"), slurm[0], slurm[1]];
        assert_eq!(process(&env(&mpi)), Some(JobProcess { rank: 3, processes: 4 }));
        let step = [slurm[0], slurm[1], ("SLURM_STEP_NUM_TASKS", "8")];
        assert_eq!(process(&env(&step)), Some(JobProcess { rank: 1, processes: 8 }), "the step, not the allocation");
    }

    #[test]
    fn every_launcher_says_place_local_rank_and_job() {
        for l in LAUNCHERS {
            let vars = [(l.rank, "3"), (l.processes, "8"), (l.local_rank, "1"), (l.processes_on_host, "2")];
            let vars = [&vars[..], &[(l.job[0], "j")]].concat();
            let e = env(&vars);
            assert_eq!(process(&e), Some(JobProcess { rank: 3, processes: 8 }), "{}", l.name);
            assert_eq!((local_rank(&e), l.on_host(&e), job(&e)), (Some(1), Some(2), Some("j".into())), "{}", l.name);
        }
    }

    #[test]
    fn what_cannot_be_a_place_is_none() {
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
