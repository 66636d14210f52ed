//! An answer for launchers: Slurm options and Open MPI hostfile, with hosts and the GPUs of each host in rank order.

use super::reply::{Reply, mask_of};
use engine::HostGpus;
use std::fmt::Write;
use topology::{Allocation, HostId, names};

/// The indices of the chosen GPUs of a host in rank order: `0,1,5`.
pub fn devices(host: &HostGpus) -> String {
    host.gpus.iter().map(u8::to_string).collect::<Vec<_>>().join(",")
}

impl Reply<'_> {
    fn ids(&self) -> Vec<(HostId, &HostGpus)> {
        let index = self.cluster.host_index();
        self.hosts().iter().filter_map(|h| Some((*index.get(h.host.as_str())?, h))).collect()
    }

    /// Options for srun, salloc and sbatch: hosts with the same number of GPUs form one component of a heterogeneous job.
    pub fn slurm(&self) -> String {
        let ranked = self.ids();
        let mut components: Vec<String> = Vec::new();
        for group in ranked.chunk_by(|a, b| a.1.gpus.len() == b.1.gpus.len()) {
            let hosts = Allocation::new(group.iter().map(|(h, g)| (*h, mask_of(&g.gpus))));
            let list = names::slurm::node_list(self.cluster, &hosts);
            components.push(format!(
                "--nodes={} --nodelist={list} --gpus-per-node={}",
                group.len(),
                group[0].1.gpus.len()
            ));
        }
        let mut out = String::new();
        for (h, g) in ranked {
            let node = names::slurm::node_name(self.cluster.host(h));
            let _ = writeln!(out, "# {node} CUDA_VISIBLE_DEVICES={}", devices(g));
        }
        let _ = writeln!(out, "{}", components.join(" : "));
        out
    }

    /// Open MPI hostfile: one slot per GPU; a comment names the GPUs.
    pub fn hostfile(&self) -> String {
        let mut out = String::new();
        for h in self.hosts() {
            let _ = writeln!(out, "{} slots={} # CUDA_VISIBLE_DEVICES={}", h.host, h.gpus.len(), devices(h));
        }
        out
    }
}
