//! An answer for launchers: Slurm options, Open MPI hostfile. Hosts stand in rank order, and GPUs on each.

use super::answer::Reply;
use std::fmt::Write;
use topology::{Allocation, HostId, names};

impl Reply<'_> {
    /// The indices of the chosen GPUs of a host in rank order: `0,1,5`.
    pub fn devices(&self, host: HostId) -> String {
        let of_it = self.answer.rank_order.iter().filter(|g| g.host == host);
        of_it.map(|g| g.gpu.to_string()).collect::<Vec<_>>().join(",")
    }

    /// Options for srun, salloc and sbatch: hosts with the same number of GPUs form one component of a heterogeneous job.
    pub fn slurm(&self) -> String {
        let ranked = &self.answer.host_order;
        let mut components: Vec<String> = Vec::new();
        for group in ranked.chunk_by(|a, b| a.1.count() == b.1.count()) {
            let list = names::slurm::node_list(self.cluster, &Allocation::new(group.iter().copied()));
            components.push(format!(
                "--nodes={} --nodelist={list} --gpus-per-node={}",
                group.len(),
                group[0].1.count()
            ));
        }
        let mut out = String::new();
        for (h, _) in ranked {
            let node = names::slurm::node_name(self.cluster.host(*h));
            let _ = writeln!(out, "# {node} CUDA_VISIBLE_DEVICES={}", self.devices(*h));
        }
        let _ = writeln!(out, "{}", components.join(" : "));
        out
    }

    /// Open MPI hostfile; slots are GPUs, a comment names them.
    pub fn hostfile(&self) -> String {
        let mut out = String::new();
        for &(h, m) in &self.answer.host_order {
            let (name, devices) = (self.name(h), self.devices(h));
            let _ = writeln!(out, "{name} slots={} # CUDA_VISIBLE_DEVICES={devices}", m.count());
        }
        out
    }
}
