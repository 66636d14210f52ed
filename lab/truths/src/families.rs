//! The kinds of hosts, and the prototype's assumptions for each kind (`placement-prototype.md`, section 1).

use topology::{Bandwidth, Cluster, HostType, Nic, PathKind};

/// NIC rate of a host without NICs in its cluster file: 10 Gbit/s, GB/s.
const NO_NIC_GB_PER_S: f64 = 1.25;

/// Kinds of hosts, by the links between their GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// NVSwitches that reduce and multicast: H100 and later.
    Multicast,
    /// NVSwitches: A800, A100, DGX-2.
    Switched,
    /// NVLinks between GPUs, rings through more than two: DGX-1.
    Mesh,
    /// NVLink bridges in pairs: A6000.
    Bridged,
    /// PCIe only: 4090, L40S.
    Pcie,
}

impl Family {
    pub(crate) fn of(t: &HostType) -> Family {
        let Some(nv) = &t.nvlink else { return Family::Pcie };
        if nv.switched {
            return if nv.multicast { Family::Multicast } else { Family::Switched };
        }
        let neighbours = |row: &Vec<PathKind>| row.iter().filter(|p| matches!(p, PathKind::NvLink(_))).count();
        if t.gpu_paths.iter().any(|r| neighbours(r) > 1) { Family::Mesh } else { Family::Bridged }
    }

    /// Share of the network's rate that hosts of this kind reach.
    pub(crate) fn efficiency(self) -> f64 {
        match self {
            Family::Multicast | Family::Switched => 1.0,
            Family::Mesh => 0.92,
            Family::Bridged => 0.88,
            Family::Pcie => 0.80,
        }
    }

    /// Standard deviation of the intra table relative to the requested irregularity: at 2 % the table varies by 3 %,
    /// behind switches by 1.5 %.
    pub(crate) fn table_irregularity(self) -> f64 {
        match self {
            Family::Multicast | Family::Switched => 0.75,
            _ => 1.5,
        }
    }

    /// For kinds with shared NICs: GPUs per NIC, and its rate relative to that of the host's NICs.
    fn sharing(self) -> Option<(usize, f64)> {
        match self {
            Family::Multicast => None,
            Family::Switched => Some((2, 2.0)),
            Family::Mesh => Some((2, 1.0)),
            Family::Bridged => Some((4, 2.0)),
            Family::Pcie => Some((8, 2.0)),
        }
    }
}

/// Line rate of a type's fastest NIC, GB/s.
pub(crate) fn nic_gb_per_s(t: &HostType) -> f64 {
    t.nics.iter().map(|n| n.line_rate.gb_per_s()).fold(0.0, f64::max).max(if t.nics.is_empty() {
        NO_NIC_GB_PER_S
    } else {
        0.0
    })
}

/// The same cluster with shared NICs, as in `nvidia-smi topo -m`: four NICs per A800 or V100 host, two per A6000 host,
/// one per 4090 host. Hosts with NVLink SHARP (H100) keep their NICs. Replaced NICs lose their health.
pub fn with_shared_nics(cluster: &Cluster) -> Cluster {
    with_nics(cluster, |t| {
        let (per_nic, faster) = Family::of(t).sharing()?;
        Some((per_nic, nic_gb_per_s(t) * faster))
    })
}

/// The same cluster with one NIC for every GPU, at the rate of the host type's fastest NIC or at `gb_per_s`. Truths
/// that count GPUs on the network side need it. Types that have as many NICs as GPUs keep theirs, unless a rate is
/// given.
pub fn with_own_nics(cluster: &Cluster, gb_per_s: Option<f64>) -> Cluster {
    with_nics(cluster, |t| match gb_per_s {
        Some(rate) => Some((1, rate)),
        None => (t.nics.len() != t.gpu_count()).then(|| (1, nic_gb_per_s(t))),
    })
}

/// The same cluster with one NIC for all GPUs of a host, at `gb_per_s`. It models a switch with one rate between hosts.
pub fn with_one_nic(cluster: &Cluster, gb_per_s: f64) -> Cluster {
    with_nics(cluster, |t| Some((t.gpu_count(), gb_per_s)))
}

/// Replaces NICs: `of` gives the number of GPUs per NIC and its rate in GB/s, or nothing for types that keep theirs.
fn with_nics(cluster: &Cluster, of: impl Fn(&HostType) -> Option<(usize, f64)>) -> Cluster {
    let mut c = cluster.clone();
    for (i, t) in c.types.iter_mut().enumerate() {
        let Some((per_nic, rate)) = of(t) else { continue };
        let n = t.gpu_count();
        t.nics = (0..n.div_ceil(per_nic))
            .map(|nic| {
                let socket = t.gpus[nic * per_nic].socket;
                let path = |g: usize| match () {
                    _ if g / per_nic == nic => PathKind::Pix,
                    _ if t.gpus[g].socket == socket => PathKind::Node,
                    _ => PathKind::Sys,
                };
                Nic {
                    name: format!("mlx5_{nic}"),
                    line_rate: Bandwidth::from_gb_per_s(rate),
                    socket: Some(socket),
                    gpu_paths: (0..n).map(path).collect(),
                }
            })
            .collect();
        for h in c.hosts.iter_mut().filter(|h| h.host_type == i) {
            h.nic_health.clear();
        }
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::{GpuMask, catalog};

    #[test]
    fn families_of_the_papers_hosts() {
        let family = |n: &str| Family::of(&catalog::host_type(n).unwrap());
        assert_eq!(family("hgx-h100"), Family::Multicast);
        assert_eq!(family("a800"), Family::Switched);
        assert_eq!(family("dgx1-v100"), Family::Mesh);
        assert_eq!(family("a6000"), Family::Bridged);
        assert_eq!(family("rtx4090"), Family::Pcie);
    }

    #[test]
    fn shared_nics_are_four_four_two_and_one() {
        let c = with_shared_nics(&catalog::cluster("het-4mix").unwrap());
        c.check().unwrap();
        let nics: Vec<usize> = c.host_ids().map(|h| c.type_of(h).nics.len()).collect();
        assert_eq!(nics, [1, 4, 2, 4]);
        let a800 = c.type_of(topology::HostId(3));
        assert_eq!(a800.nics_touched(GpuMask(0b11)).count_ones(), 1);
        assert_eq!(a800.nics_touched(GpuMask(0b101)).count_ones(), 2);
        let h100 = catalog::cluster("h100").unwrap();
        assert_eq!(with_shared_nics(&h100), h100);
    }
}
