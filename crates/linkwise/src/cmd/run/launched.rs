//! `linkwise run` that a launcher started several times for one job: after srun or mpirun, one per task.

/// One of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Counted from 0.
    pub number: u32,
    /// How many there are; two or more.
    pub count: u32,
    /// How many of them are on this host, where the launcher says it.
    pub on_host: Option<u32>,
    /// What the tasks of this job have in common and others have not.
    pub job: Option<String>,
}

/// Number, count, count on a host, job.
const LAUNCHERS: [[&str; 4]; 3] = [
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "PMI_JOBID"],
    ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_JOB_ID"],
];

impl Task {
    /// From the environment; `None` where there is one `linkwise run` for the job, or none that says otherwise.
    pub fn of(env: impl Fn(&str) -> Option<String>) -> Option<Task> {
        let number = |k: &str| env(k)?.trim().parse::<u32>().ok();
        LAUNCHERS.iter().find_map(|[rank, size, local, job]| {
            let (number_, count) = (number(rank)?, number(size)?);
            // Slurm: "4" on one host, "4(x2)" on two.
            let on_host = env(local).and_then(|t| t.trim().parse().ok());
            let step = if *job == "SLURM_JOB_ID" { env("SLURM_STEP_ID") } else { None };
            let job = env(job).map(|j| format!("{j}{}", step.map(|s| format!(".{s}")).unwrap_or_default()));
            let task = Task { number: number_, count, on_host, job };
            (count > 1 && number_ < count).then_some(task)
        })
    }

    /// Where the tasks meet if nothing else says it: all on one host by the job's name. The error says what is missing.
    pub fn meeting(&self) -> Result<String, String> {
        match (&self.job, self.on_host) {
            (Some(job), Some(n)) if n == self.count => {
                let word = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
                Ok(format!("local:{}", job.chars().take(80).map(word).collect::<String>()))
            }
            _ => Err(format!(
                "{} tasks on several hosts do not know where to meet; give --meeting tcp:HOST:PORT (any of the hosts), or set MASTER_ADDR and \
                 MASTER_PORT",
                self.count
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(vars: &[(&str, &str)]) -> Option<Task> {
        Task::of(|k| vars.iter().find(|v| v.0 == k).map(|v| v.1.to_string()))
    }

    #[test]
    fn tasks_of_one_host_meet_by_the_name_of_the_job() {
        let slurm = [
            ("SLURM_PROCID", "3"),
            ("SLURM_STEP_NUM_TASKS", "8"),
            ("SLURM_STEP_TASKS_PER_NODE", "8"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_ID", "2"),
        ];
        let task = of(&slurm).unwrap();
        assert_eq!((task.number, task.count, task.meeting().as_deref()), (3, 8, Ok("local:77.2")));
        let mpi = [
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_NAMESPACE", "a/b c@1"),
        ];
        assert_eq!(of(&mpi).unwrap().meeting().as_deref(), Ok("local:a-b-c-1"));
    }

    #[test]
    fn tasks_of_several_hosts_are_told_what_is_missing() {
        let slurm = [
            ("SLURM_PROCID", "3"),
            ("SLURM_STEP_NUM_TASKS", "8"),
            ("SLURM_STEP_TASKS_PER_NODE", "4(x2)"),
            ("SLURM_JOB_ID", "77"),
        ];
        assert!(of(&slurm).unwrap().meeting().unwrap_err().contains("--meeting tcp:HOST:PORT"));
    }

    #[test]
    fn one_task_or_nonsense_is_no_launcher() {
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
}
