//! Translates host and GPU names to and from other systems: Slurm (host lists, GRES indices), Kubernetes (node
//! names, device UUIDs).

use crate::allocation::{Allocation, GpuMask, HostId};
use crate::cluster::{Cluster, Host};
use crate::list;

/// Slurm's host lists: `n[0-3,7],login`.
pub mod hostlist {
    pub use crate::list::{compress, expand};
}

/// Slurm: node names and GRES indices.
pub mod slurm {
    use super::*;

    /// The Slurm node name of a host.
    pub fn node_name(host: &Host) -> &str {
        host.slurm_name.as_deref().unwrap_or(&host.name)
    }

    /// The host with this Slurm node name.
    pub fn host(cluster: &Cluster, node: &str) -> Option<HostId> {
        find(cluster, node, node_name)
    }

    /// Node list and GRES of an allocation, node by node: `[("n0", "gpu:2(IDX:0,3)")]`, as `scontrol show job -d`
    /// prints them. The indices are device minor numbers. O(GPUs).
    pub fn gres(cluster: &Cluster, allocation: &Allocation) -> Vec<(String, String)> {
        let part = |&(id, mask): &(HostId, GpuMask)| {
            let host = cluster.host(id);
            let mut minors: Vec<usize> = mask.iter().map(|g| minor(host, g)).collect();
            minors.sort_unstable();
            (node_name(host).to_string(), format!("gpu:{}(IDX:{})", minors.len(), list::runs(minors.iter().copied())))
        };
        allocation.parts().iter().map(part).collect()
    }

    /// The argument of `--nodelist` for an allocation.
    pub fn node_list(cluster: &Cluster, allocation: &Allocation) -> String {
        hostlist::compress(allocation.parts().iter().map(|p| node_name(cluster.host(p.0))))
    }

    /// GPUs of a node list and a GRES (`gpu:h100:2(IDX:0-1)`, `gpu(IDX:0,3)`) that applies to every node, from one line
    /// `Nodes=n[0-1] ... GRES=...` of `scontrol show job -d`. A GRES without an index list means all GPUs.
    pub fn parse(cluster: &Cluster, nodes: &str, gres: &str) -> Result<Allocation, String> {
        let names = hostlist::expand(nodes, cluster.hosts.len().max(1))?;
        let mut parts = Vec::new();
        for name in names {
            let id = host(cluster, &name)
                .ok_or_else(|| format!("no host of cluster `{}` is `{name}` in Slurm", cluster.name))?;
            parts.push((id, mask(cluster, id, gres)?));
        }
        Ok(Allocation::new(parts))
    }

    fn mask(cluster: &Cluster, id: HostId, gres: &str) -> Result<GpuMask, String> {
        let host = cluster.host(id);
        let all = cluster.type_of(id).all_gpus();
        let Some((_, list)) = gres.split_once("IDX:") else { return Ok(all) };
        let list = list.split(')').next().unwrap_or("");
        let mut mask = GpuMask::EMPTY;
        if list.trim().is_empty() || list.trim() == "N/A" {
            return Ok(mask);
        }
        for range in list.split(',') {
            let (a, b) = range.split_once('-').unwrap_or((range, range));
            let number = |s: &str| s.trim().parse::<usize>().map_err(|_| format!("`{gres}`: `{range}` is no index"));
            for m in number(a)?..=number(b)?.min(64) {
                let gpu = all.iter().find(|&g| minor(host, g) == m);
                let gpu =
                    gpu.ok_or_else(|| format!("`{gres}`: host `{}` has no GPU with minor number {m}", host.name))?;
                mask = mask.union(GpuMask(1 << gpu));
            }
        }
        Ok(mask)
    }

    fn minor(host: &Host, gpu: usize) -> usize {
        host.gpu_minors.get(gpu).map_or(gpu, |&m| usize::from(m))
    }
}

/// Kubernetes: node names and the device plugin's UUIDs.
pub mod kubernetes {
    use super::*;

    /// The Kubernetes node name of a host.
    pub fn node_name(host: &Host) -> &str {
        host.kubernetes_name.as_deref().unwrap_or(&host.name)
    }

    /// The host with this Kubernetes node name.
    pub fn host(cluster: &Cluster, node: &str) -> Option<HostId> {
        find(cluster, node, node_name)
    }

    /// Node and device UUIDs of an allocation. The error names the first host with unknown UUIDs.
    pub fn devices(cluster: &Cluster, allocation: &Allocation) -> Result<Vec<(String, Vec<String>)>, String> {
        let part = |&(id, mask): &(HostId, GpuMask)| {
            let host = cluster.host(id);
            Ok((node_name(host).to_string(), mask.iter().map(|g| uuid(host, g)).collect::<Result<_, String>>()?))
        };
        allocation.parts().iter().map(part).collect()
    }

    /// GPUs of a node's device UUIDs, as the device plugin's allocation lists them.
    pub fn parse<'a>(
        cluster: &Cluster,
        node: &str,
        uuids: impl IntoIterator<Item = &'a str>,
    ) -> Result<Allocation, String> {
        let id =
            host(cluster, node).ok_or_else(|| format!("no host of cluster `{}` is node `{node}`", cluster.name))?;
        let mut mask = GpuMask::EMPTY;
        for u in uuids {
            let at = by_uuid(cluster.host(id), u.trim())?;
            mask = mask.union(GpuMask(1 << at));
        }
        Ok(Allocation::new([(id, mask)]))
    }
}

fn find(cluster: &Cluster, name: &str, of: impl Fn(&Host) -> &str) -> Option<HostId> {
    cluster.hosts.iter().position(|h| of(h) == name).map(|i| HostId(i as u32))
}

fn uuid(host: &Host, gpu: usize) -> Result<String, String> {
    match host.gpu_uuids.get(gpu).filter(|u| !u.is_empty()) {
        Some(u) => Ok(u.clone()),
        None => Err(format!("the UUID of GPU {gpu} of host `{}` is not in the cluster file (`gpu_uuids`)", host.name)),
    }
}

/// Index of the GPU with this UUID or an unambiguous prefix of it, `GPU-8932f937`.
fn by_uuid(host: &Host, text: &str) -> Result<usize, String> {
    let mut fitting = host.gpu_uuids.iter().enumerate().filter(|(_, u)| !text.is_empty() && u.starts_with(text));
    match (fitting.next(), fitting.next()) {
        (Some((g, _)), None) => Ok(g),
        (Some(_), Some(_)) => Err(format!("`{text}` is the beginning of several UUIDs of host `{}`", host.name)),
        _ => Err(format!("host `{}` has no GPU `{text}`", host.name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    fn cluster() -> Cluster {
        let mut c = catalog::cluster("h100").unwrap();
        for (i, h) in c.hosts.iter_mut().enumerate() {
            h.gpu_uuids = (0..8).map(|g| format!("GPU-{i}{g}aa-bb")).collect();
            h.slurm_name = Some(format!("gpu{i:02}"));
            h.kubernetes_name = Some(format!("ip-10-0-0-{i}.internal"));
        }
        c.hosts[1].gpu_minors = vec![3, 2, 1, 0, 7, 6, 5, 4];
        c
    }

    #[test]
    fn host_lists_expand_and_compress_to_each_other() {
        let list = "gpu[08-11,20],login,n[1-3]";
        let names = hostlist::expand(list, 100).unwrap();
        assert_eq!(names[..5], ["gpu08", "gpu09", "gpu10", "gpu11", "gpu20"]);
        assert_eq!(hostlist::expand(&hostlist::compress(names.iter().map(String::as_str)), 100).unwrap(), names);
        for bad in ["n[0-", "n[0-1]]", "n[3-1]", "n[a]", "n]", "n[0-999999999]", "a,,b", "", "n[[0]]"] {
            assert!(hostlist::expand(bad, 1000).is_err(), "{bad}");
        }
    }

    #[test]
    fn slurm_gres_round_trips_through_minor_numbers() {
        let c = cluster();
        let a = c.parse_gpus(["n0:0", "n0:1", "n1:0", "n1:7"]).unwrap();
        let gres = slurm::gres(&c, &a);
        assert_eq!(gres, [("gpu00".into(), "gpu:2(IDX:0-1)".into()), ("gpu01".into(), "gpu:2(IDX:3-4)".into())]);
        assert_eq!(slurm::node_list(&c, &a), "gpu[00-01]");
        let back = gres.iter().flat_map(|(n, g)| slurm::parse(&c, n, g).unwrap().parts().to_vec());
        assert_eq!(Allocation::new(back.collect::<Vec<_>>()), a);
        assert!(slurm::parse(&c, "gpu00", "gpu:1(IDX:9)").is_err());
        assert!(slurm::parse(&c, "n0", "gpu:1(IDX:0)").is_err(), "n0 is not its Slurm name");
    }

    #[test]
    fn kubernetes_devices_round_trip() {
        let c = cluster();
        let a = c.parse_gpus(["n2:1", "n2:5"]).unwrap();
        let devices = kubernetes::devices(&c, &a).unwrap();
        assert_eq!(devices[0].0, "ip-10-0-0-2.internal");
        let back = kubernetes::parse(&c, &devices[0].0, devices[0].1.iter().map(String::as_str)).unwrap();
        assert_eq!(back, a);
        let unknown = catalog::cluster("h100").unwrap();
        assert!(kubernetes::devices(&unknown, &a).unwrap_err().contains("gpu_uuids"));
    }
}
