//! Finds the idle GPUs from answers of the hosts and of Slurm.
//!
//! A measurement on a GPU that runs a job slows the job, and measures only the bandwidth that the job leaves.
//! [`Hosts::left_out`] reads the processes of each host (`nvidia-smi --query-compute-apps`); [`slurm::ask`] reads the
//! nodes and the running jobs. Both return a list of [`LeftOut`]: GPUs that are not idle, with the reason. [`whole_hosts`]
//! then drops the other GPUs of a host that is partly in use, because they share NVSwitches, PCIe and NICs with the job.
//! [`Guarded`] queries the hosts again after each run, and drops the reading if another job uses them.

mod guarded;
mod hosts;
pub mod nvidia_smi;
pub mod slurm;

pub use guarded::Guarded;
pub use hosts::{AskWith, Hosts, InUse};

use topology::{Allocation, Cluster, GpuMask, HostId};

/// GPUs that are in use, or whose use is unknown.
#[derive(Clone, Debug, PartialEq)]
pub struct LeftOut {
    pub gpus: Allocation,
    /// The reason in a few words: `process 4711 (python3)`, `Slurm job 12`.
    pub why: String,
}

impl LeftOut {
    /// All GPUs of a host.
    pub fn host(cluster: &Cluster, host: HostId, why: impl Into<String>) -> Self {
        LeftOut { gpus: Allocation::new([(host, cluster.type_of(host).all_gpus())]), why: why.into() }
    }
}

/// `idle` without the GPUs that are left out. O(GPUs).
pub fn minus(idle: &Allocation, out: &[LeftOut]) -> Allocation {
    let taken = Allocation::new(out.iter().flat_map(|o| o.gpus.parts().iter().copied()));
    Allocation::new(idle.parts().iter().map(|&(h, m)| (h, m.minus(taken.mask(h)))))
}

/// The hosts whose usable GPUs are all in `idle`, and the GPUs of the other hosts, which are left out. O(hosts).
pub fn whole_hosts(cluster: &Cluster, idle: &Allocation) -> (Allocation, Vec<LeftOut>) {
    let usable = cluster.usable();
    let (whole, part): (Vec<_>, Vec<_>) = idle.parts().iter().copied().partition(|(h, m)| *m == usable.mask(*h));
    let why = "other GPUs of the host are in use and share its links and NICs".to_owned();
    let out = match part.is_empty() {
        true => Vec::new(),
        false => vec![LeftOut { gpus: Allocation::new(part), why }],
    };
    (Allocation::new(whole), out)
}

/// The first entry of `out` that contains GPUs of `named`, with these GPUs.
pub fn first_conflict<'a>(named: &Allocation, out: &'a [LeftOut]) -> Option<(Allocation, &'a LeftOut)> {
    out.iter().find_map(|o| {
        let both = o.gpus.parts().iter().map(|&(h, m)| (h, GpuMask(m.0 & named.mask(h).0)));
        let both = Allocation::new(both);
        (both.gpu_count() > 0).then_some((both, o))
    })
}
