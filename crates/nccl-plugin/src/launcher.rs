//! What launchers (torchrun, mpirun, mpiexec, srun) tell the processes that they start.

use crate::config::ConfigError;
use agreement::Rendezvous;
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

/// Where processes can meet by what launchers say: beside torchrun's own meeting place, 1,717 ports further; in a Slurm step of several hosts at
/// its first. `None` where nobody says it. The port is `LINKWISE_PORT`, where that is set.
pub fn rendezvous(env: &impl Fn(&str) -> Option<String>) -> Result<Option<Rendezvous>, ConfigError> {
    let port = match env("LINKWISE_PORT").filter(|p| !p.is_empty()) {
        None => None,
        Some(p) => Some(p.parse::<u16>().ok().filter(|p| *p > 0).ok_or_else(|| ConfigError {
            place: "LINKWISE_PORT".into(),
            what: format!("`{p}` is no port, 1 to 65535"),
        })?),
    };
    let is_name = |h: &String| !h.is_empty() && h.len() <= 255;
    if let Some(host) = env("MASTER_ADDR").filter(is_name) {
        let beside = || env("MASTER_PORT")?.parse::<u16>().ok().map(|p| p.checked_add(1717).unwrap_or(17_171));
        return Ok(port.or_else(beside).map(|port| Rendezvous::Tcp { host, port }));
    }
    let number = |k: &str| env(k)?.trim().parse::<u64>().ok();
    let hosts = number("SLURM_STEP_NUM_NODES").or_else(|| number("SLURM_NNODES")).unwrap_or(1);
    let first = || first_host(&env("SLURM_STEP_NODELIST").or_else(|| env("SLURM_JOB_NODELIST"))?).filter(is_name);
    if hosts > 1
        && let (Some(host), Some(job)) = (first(), number("SLURM_JOB_ID"))
    {
        // Below the ports that systems give away by themselves; steps of one job, and most jobs of one host, differ.
        let by_step = 18_000 + (job * 31 + number("SLURM_STEP_ID").unwrap_or(0)) % 12_000;
        return Ok(Some(Rendezvous::Tcp { host, port: port.unwrap_or(by_step as u16) }));
    }
    Ok(None)
}

/// torchrun says that all processes of the job are on this host.
pub fn is_on_one_host(env: &impl Fn(&str) -> Option<String>) -> bool {
    let here = env("LOCAL_WORLD_SIZE");
    here.is_some() && here == env("WORLD_SIZE")
}

/// The first of Slurm's list of hosts: `node03` of `node[03-05,9],other`.
fn first_host(list: &str) -> Option<String> {
    let (before, rest) = list.split_at(list.find(['[', ',']).unwrap_or(list.len()));
    let Some(inside) = rest.strip_prefix('[') else { return Some(before.to_string()) };
    let (numbers, after) = inside.split_once(']')?;
    let number = numbers.split(['-', ',']).next().filter(|n| !n.is_empty())?;
    let after = after.split(',').next().unwrap_or("");
    (!after.contains('[')).then(|| format!("{before}{number}{after}"))
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
    fn ranks_meet_beside_torchrun_or_at_the_first_host_of_a_slurm_step() {
        let at = |vars: &[(&str, &str)]| rendezvous(&env(vars)).unwrap().map(|m| m.to_string());
        let torch = [("MASTER_ADDR", "n7"), ("MASTER_PORT", "29500")];
        assert_eq!(at(&torch), Some("tcp:n7:31217".into()));
        let slurm = [
            ("SLURM_JOB_ID", "1000"),
            ("SLURM_STEP_ID", "2"),
            ("SLURM_NNODES", "9"),
            ("SLURM_STEP_NUM_NODES", "2"),
            ("SLURM_STEP_NODELIST", "gpu[07-08]"),
        ];
        assert_eq!(at(&slurm), Some("tcp:gpu07:25002".into()));
        assert_eq!(at(&[&slurm[..], &torch].concat()), Some("tcp:n7:31217".into()), "the innermost launcher");
        assert_eq!(
            at(&[slurm[0], slurm[1], slurm[4], ("SLURM_STEP_NUM_NODES", "1")]),
            None,
            "one host: no port needed"
        );
        assert_eq!(at(&[&slurm[..], &[("LINKWISE_PORT", "5")]].concat()), Some("tcp:gpu07:5".into()));
        let wrong = [&slurm[..], &[("LINKWISE_PORT", "x")]].concat();
        assert!(rendezvous(&env(&wrong)).unwrap_err().what.contains("no port"));
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
