//! Simulated intra tables, by kind of host (`placement-prototype.md`, section 1).
//!
//! The constants are those of the prototype for the papers' five hosts, scaled to other types by the rate of their
//! links.

use crate::families::Family;
use crate::packing::rings;
use crate::randomness::Keyed;
use topology::{Cluster, GpuMask, HostId, HostType, PathKind};

/// Maximum number of entries over all hosts (8 bytes each): 65,536 hosts of eight GPUs.
pub(crate) const ENTRIES_MAX: usize = 1 << 24;
/// Share of an NVLink's nominal rate that carries payload: 22 of 25 GB/s.
const NVLINK_SHARE: f64 = 0.88;
/// Usable bandwidth of PCIe Gen4 x16, on which the PCIe constants are based, GB/s.
const PCIE4_GB_PER_S: f64 = 31.5;
/// All-reduce and all-gather of an H100 host by GPUs, GB/s.
const H100_ALL_REDUCE: [f64; 9] = [0.0, 0.0, 400.0, 450.0, 480.0, 482.0, 482.0, 482.0, 484.0];
const H100_ALL_GATHER: [f64; 9] = [0.0, 0.0, 335.0, 340.0, 345.0, 348.0, 350.0, 352.0, 355.0];
/// Total rate of an H100's NVLinks, GB/s.
const H100_PORT_GB_PER_S: f64 = 450.0;

/// The collective of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    AllReduce,
    AllGather,
}

/// Bandwidth of every subset of every host.
pub(crate) struct Intra {
    by_host: Vec<Vec<f64>>,
}

impl Intra {
    /// Tables with a standard deviation of `irregularity` times the family's share for every (host, subset). Degraded
    /// GPUs and links count.
    pub(crate) fn new(cluster: &Cluster, flavour: Flavour, seed: u64, irregularity: f64) -> Result<Self, String> {
        let entries: usize = cluster.host_ids().map(|h| 1usize << cluster.type_of(h).gpu_count()).sum();
        if entries > ENTRIES_MAX {
            return Err(format!(
                "the intra tables of the cluster would have {entries} entries; simulated truths take {ENTRIES_MAX}"
            ));
        }
        let bases: Vec<Vec<f64>> = cluster
            .types
            .iter()
            .map(|t| (0..1u32 << t.gpu_count()).map(|m| base(t, GpuMask(m), flavour)).collect())
            .collect();
        let by_host = cluster
            .host_ids()
            .map(|h| {
                let host = cluster.host(h);
                let sd = irregularity * Family::of(cluster.type_of(h)).table_irregularity();
                let degraded = !host.gpu_health.is_empty() || !host.link_health.is_empty();
                let table = bases[host.host_type].iter().enumerate();
                table
                    .map(|(m, v)| {
                        let mask = GpuMask(m as u32);
                        let key = Keyed::new(seed, 0x1e7a).parts(&[(h, mask)]);
                        let health = if degraded { slowest_pair(cluster, h, mask) } else { 1.0 };
                        v * health * (sd * key.normal()).exp()
                    })
                    .collect()
            })
            .collect();
        Ok(Intra { by_host })
    }

    /// What readings of single subsets of hosts show of these tables, if they are those of the types. `readings`: host,
    /// GPUs, reading over the table, and the variance of the reading's noise. Each reading moves its own entry, by the
    /// share of its deviation that is not noise.
    pub(crate) fn with_readings(
        mut self,
        cluster: &Cluster,
        irregularity: f64,
        readings: impl Iterator<Item = (HostId, GpuMask, f64, f64)>,
    ) -> Self {
        for (h, m, over, noise2) in readings {
            let sd2 = (irregularity * Family::of(cluster.type_of(h)).table_irregularity()).powi(2);
            self.by_host[h.index()][m.0 as usize] *= over.powf(sd2 / (sd2 + noise2).max(f64::MIN_POSITIVE));
        }
        self
    }

    /// The tables of these hosts only, in this order.
    pub(crate) fn of_hosts(&self, hosts: &[usize]) -> Self {
        Intra { by_host: hosts.iter().map(|h| self.by_host[*h].clone()).collect() }
    }

    /// GB/s; infinite for one GPU, which does not limit the bandwidth.
    pub(crate) fn limit(&self, host: HostId, mask: GpuMask) -> f64 {
        if mask.count() < 2 { f64::INFINITY } else { self.by_host[host.index()][mask.0 as usize] }
    }
    /// GB/s; 0 for a single GPU, which has no collective traffic.
    pub(crate) fn alone(&self, host: HostId, mask: GpuMask) -> f64 {
        if mask.count() < 2 { 0.0 } else { self.by_host[host.index()][mask.0 as usize] }
    }
}

fn slowest_pair(cluster: &Cluster, host: HostId, mask: GpuMask) -> f64 {
    let pairs = mask.iter().flat_map(|a| mask.iter().filter(move |b| a < *b).map(move |b| (a, b)));
    pairs.map(|(a, b)| cluster.link_health(host, a, b)).fold(1.0, f64::min)
}

/// The table without irregularity, GB/s.
fn base(t: &HostType, mask: GpuMask, flavour: Flavour) -> f64 {
    let n = mask.count();
    if n < 2 {
        return 0.0;
    }
    let link = t.nvlink.map_or(0.0, |nv| nv.link_rate.gb_per_s());
    let pcie = t.pcie.rate().gb_per_s() / PCIE4_GB_PER_S;
    // Rate of one GPU's links to a switch.
    let port = || {
        let most = t.gpu_paths.iter().flatten().map(|p| if let PathKind::NvLink(n) = p { *n } else { 0 }).max();
        f64::from(most.unwrap_or(0)) * link
    };
    match Family::of(t) {
        Family::Multicast => {
            let table = if flavour == Flavour::AllReduce { H100_ALL_REDUCE } else { H100_ALL_GATHER };
            table[n.min(8)] * port() / H100_PORT_GB_PER_S
        }
        Family::Switched => (172.0 - 2.5 * (n.min(8) - 2) as f64) * port() / 200.0,
        Family::Mesh => match rings(t, mask) * NVLINK_SHARE * link {
            // There is no ring of NVLinks: the traffic uses the host's PCIe.
            0.0 => (10.0 - 0.25 * (n.min(16) - 2) as f64) * pcie * 2.0,
            v => v,
        },
        Family::Bridged => {
            let g: Vec<usize> = mask.iter().collect();
            if let (2, PathKind::NvLink(links)) = (n, t.gpu_paths[g[0]][g[1]]) {
                return f64::from(links) * link * 50.0 / 56.25;
            }
            let one_socket = g.iter().all(|i| t.gpus[*i].socket == t.gpus[g[0]].socket);
            let (pair, less) = if one_socket { (21.0, 0.4) } else { (13.0, 0.3) };
            (pair - less * (n.min(16) - 2) as f64) * pcie
        }
        Family::Pcie => {
            // The limit is the number of GPUs of a socket that share its root: spread GPUs are faster (anti-locality).
            let mut worst = f64::INFINITY;
            for socket in 0..=t.gpus.iter().map(|g| g.socket).max().unwrap_or(0) {
                let own: Vec<usize> = mask.iter().filter(|g| t.gpus[*g].socket == socket).collect();
                let cap = match own.len() {
                    0 => continue,
                    1 => 21.0,
                    2 => 16.0,
                    3 => 12.5,
                    n => 10.5 * 4.0 / n as f64,
                };
                let close = own.iter().any(|&a| own.iter().any(|&b| t.gpu_paths[a][b] == PathKind::Pix));
                worst = worst.min(cap * if close { 0.94 } else { 1.0 });
            }
            worst * pcie
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::catalog;

    fn of(name: &str, gpus: &[usize]) -> f64 {
        base(&catalog::host_type(name).unwrap(), GpuMask::from_indices(gpus.iter().copied()), Flavour::AllReduce)
    }

    #[test]
    fn the_papers_hosts_have_the_prototypes_values() {
        assert_eq!(of("hgx-h100", &[0, 1]), 400.0);
        assert_eq!(of("hgx-h100", &[0, 1, 2, 3, 4, 5, 6, 7]), 484.0);
        assert_eq!(of("a800", &[0, 1, 2]), 169.5);
        assert!((of("dgx1-v100", &[0, 2]) - 44.0).abs() < 1e-9 && (of("dgx1-v100", &[0, 1]) - 22.0).abs() < 1e-9);
        assert!((of("a6000", &[0, 1]) - 50.0).abs() < 1e-9);
        assert!(of("a6000", &[0, 2]) > of("a6000", &[0, 4]));
        assert!(of("rtx4090", &[0, 4]) > of("rtx4090", &[0, 1]), "anti-locality");
        assert!(of("rtx4090", &[2, 3]) < of("rtx4090", &[0, 1]));
    }

    #[test]
    fn every_catalog_type_has_a_positive_table() {
        for t in catalog::host_types().into_iter().filter(|t| t.gpu_count() <= 8) {
            for m in t.all_gpus().subsets().filter(|m| m.count() > 1) {
                let v = base(&t, m, Flavour::AllGather);
                assert!(v > 0.0 && v.is_finite(), "{} {m}: {v}", t.name);
            }
        }
    }
}
