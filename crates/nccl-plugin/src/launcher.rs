//! What launchers (torchrun, mpirun, mpiexec, srun) tell the processes that they start.

use agreement::Meeting;
use agreement::roster::RANKS_MAX;

/// Which process of the job this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// Counted from 0.
    pub rank: u32,
    /// How many there are.
    pub processes: u32,
}

impl std::str::FromStr for Place {
    type Err = String;

    /// `RANK/PROCESSES`.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is no place in a job; write RANK/PROCESSES, 0/8 to 7/8 for instance");
        let (rank, processes) = text.split_once('/').ok_or_else(bad)?;
        Place::new(rank, processes).ok_or_else(bad)
    }
}

impl Place {
    fn new(rank: &str, processes: &str) -> Option<Self> {
        let (rank, processes) = (rank.trim().parse().ok()?, processes.trim().parse().ok()?);
        (rank < processes && processes as usize <= RANKS_MAX).then_some(Place { rank, processes })
    }
}

/// The launcher that started this very process comes first: torchrun's workers also see what srun told torchrun.
const PLACES: [(&str, &str); 5] = [
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
];

/// Which process of the job this is; `None` where no launcher says it.
pub fn place(env: &impl Fn(&str) -> Option<String>) -> Option<Place> {
    PLACES.iter().find_map(|(rank, processes)| Place::new(&env(rank)?, &env(processes)?))
}

/// Where the launcher's own processes meet, one port further; `None` without a launcher that says so.
pub fn meeting(env: &impl Fn(&str) -> Option<String>) -> Option<Meeting> {
    let host = env("MASTER_ADDR").filter(|h| !h.is_empty() && h.len() <= 255)?;
    let port = match env("LINKWISE_PORT") {
        Some(p) => p.parse().ok()?,
        None => env("MASTER_PORT")?.parse::<u16>().ok()?.checked_add(1717).unwrap_or(17_171),
    };
    Some(Meeting::Tcp { host, port })
}

/// What only processes of this job have in common. No secret: set LINKWISE_TOKEN where others can reach the hosts.
pub fn job(env: &impl Fn(&str) -> Option<String>) -> Option<String> {
    ["TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"].iter().find_map(|k| env(k))
}

/// Tells the attempts of one job apart, which have its token in common.
pub fn attempt(env: &impl Fn(&str) -> Option<String>) -> String {
    let words = ["TORCHELASTIC_RESTART_COUNT", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "OMPI_MCA_ess_base_jobid"];
    words.iter().map(|k| env(k).unwrap_or_default() + "/").collect()
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
        assert_eq!(place(&env(&slurm)), Some(Place { rank: 1, processes: 2 }));
        let both = [slurm[0], slurm[1], ("RANK", "9"), ("WORLD_SIZE", "16")];
        assert_eq!(place(&env(&both)), Some(Place { rank: 9, processes: 16 }));
        let mpi = [("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "4"), slurm[0], slurm[1]];
        assert_eq!(place(&env(&mpi)), Some(Place { rank: 3, processes: 4 }));
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
            assert_eq!(place(&env(vars)), None, "{vars:?}");
        }
        assert_eq!("3/8".parse(), Ok(Place { rank: 3, processes: 8 }));
        assert!("8/8".parse::<Place>().is_err() && "8".parse::<Place>().is_err());
    }
}
