//! Converts a [`Cluster`] to the file's structs and text.

use super::schema::{
    At, ClusterFile, DegradedFile, DegradedLinkFile, Drained, HostLinkFile, HostTypeFile, HostsFile, MatrixRow,
    NetworkFile, NicFile, NvLinkFile, PcieFile, SwitchFile, TierFile,
};
use crate::allocation::HostId;
use crate::catalog;
use crate::cluster::{Cluster, Host, Network};
use crate::host::{HostType, PathKind};
use crate::switches::{NamedSwitch, Switches, Tier};

const HEAD: &str = "# linkwise cluster file. `linkwise topology schema` describes every field.\n";

pub(super) fn yaml(cluster: &Cluster) -> String {
    let file = cluster_file(cluster, names_suffice(cluster));
    let body = serde_saphyr::to_string(&file).expect("YAML can hold every value of the file's structs");
    format!("{HEAD}{body}")
}

pub(super) fn json(cluster: &Cluster) -> String {
    let mut text = serde_json::to_string_pretty(&cluster_file(cluster, false)).expect("plain structs");
    text.push('\n');
    text
}

/// True if all types are catalog types, in the order of their first use by hosts. The file then needs only their names.
fn names_suffice(cluster: &Cluster) -> bool {
    let mut first_use = Vec::new();
    for h in &cluster.hosts {
        if !first_use.contains(&h.host_type) {
            first_use.push(h.host_type);
        }
    }
    first_use.into_iter().eq(0..cluster.types.len())
        && cluster.types.iter().all(|t| catalog::host_type(&t.name).as_ref() == Some(t))
}

fn cluster_file(c: &Cluster, by_name: bool) -> ClusterFile {
    let types = if by_name { &[][..] } else { &c.types[..] };
    ClusterFile {
        name: c.name.clone(),
        network: network(&c.network, c),
        host_types: types.iter().map(|t| At::from(host_type(t))).collect(),
        hosts: hosts(c),
    }
}

fn network(n: &Network, c: &Cluster) -> NetworkFile {
    let list =
        |hosts: &[HostId]| At::from(crate::names::hostlist::compress(hosts.iter().map(|h| c.host(*h).name.as_str())));
    let tier = |t: &Tier| {
        let (hosts_per_switch, switches) = match &t.switches {
            Switches::Regular { hosts_per_switch } => (Some(*hosts_per_switch), None),
            Switches::Named(named) => {
                let switch = |s: &NamedSwitch| At::from(SwitchFile { name: s.name.clone(), hosts: list(&s.hosts) });
                (None, Some(At::from(named.list().iter().map(switch).collect::<Vec<_>>())))
            }
        };
        At::from(TierFile { name: t.name.clone(), hosts_per_switch, switches, oversubscription: t.oversubscription })
    };
    let link = |l: &crate::cluster::HostLink| {
        At::from(HostLinkFile {
            between: MatrixRow(vec![c.host(l.a).name.clone(), c.host(l.b).name.clone()]),
            rate_gbit_per_s: l.rate.gbit_per_s(),
        })
    };
    NetworkFile {
        class: n.class,
        tiers: n.tiers.iter().map(tier).collect(),
        rails: n.rails,
        host_links: n.host_links.iter().map(link).collect(),
    }
}

fn host_type(t: &HostType) -> HostTypeFile {
    let row = |labels: &[PathKind]| {
        labels.iter().map(|p| format!("{p:<4}")).collect::<Vec<_>>().join(" ").trim_end().to_string()
    };
    HostTypeFile {
        name: t.name.clone(),
        description: Some(t.description.clone()),
        source: Some(t.source.clone()),
        gpu_model: Some(t.gpu_model.clone()),
        gpus: Some(At::from(t.gpu_count())),
        gpu_sockets: Some(At::from(MatrixRow(t.gpus.iter().map(|g| g.socket).collect()))),
        pcie: Some(PcieFile { generation: t.pcie.generation, lanes: t.pcie.lanes }),
        nvlink: t.nvlink.map(|nv| {
            At::from(NvLinkFile {
                link_rate_gb_per_s: nv.link_rate.gb_per_s(),
                switched: nv.switched,
                multicast: nv.multicast,
                links: None,
                pairs: None,
            })
        }),
        gpu_matrix: Some(At::from(t.gpu_paths.iter().map(|r| At::from(row(r))).collect::<Vec<_>>())),
        nics: Some(
            t.nics
                .iter()
                .map(|n| {
                    At::from(NicFile {
                        name: n.name.clone(),
                        line_rate_gbit_per_s: n.line_rate.gbit_per_s(),
                        socket: n.socket,
                        gpu_paths: Some(At::from(row(&n.gpu_paths))),
                        ..NicFile::default()
                    })
                })
                .collect(),
        ),
        gpu_pci_bus_ids: t
            .gpus
            .iter()
            .any(|g| g.pci_bus_id.is_some())
            .then(|| At::from(t.gpus.iter().map(|g| g.pci_bus_id.clone()).collect::<Vec<_>>())),
        p2p_gb_per_s: t.p2p.as_ref().map(|m| {
            At::from(m.iter().map(|r| MatrixRow(r.iter().map(|b| b.gb_per_s()).collect())).collect::<Vec<_>>())
        }),
        ..HostTypeFile::default()
    }
}

/// The entries of the hosts. Consecutive hosts that differ only in their name share one entry.
fn hosts(c: &Cluster) -> Vec<At<HostsFile>> {
    let mut entries: Vec<(Vec<String>, HostsFile)> = Vec::new();
    for h in &c.hosts {
        let plain = host(h, &c.types[h.host_type]);
        let own = !h.gpu_uuids.is_empty() || h.slurm_name.is_some() || h.kubernetes_name.is_some();
        match entries.last_mut() {
            Some((names, e)) if *e == plain && !own => names.push(h.name.clone()),
            _ => entries.push((vec![h.name.clone()], plain)),
        }
    }
    let finish = |(names, mut e): (Vec<String>, HostsFile)| {
        e.name = Some(At::from(crate::names::hostlist::compress(names.iter().map(String::as_str))));
        At::from(e)
    };
    entries.into_iter().map(finish).collect()
}

fn host(h: &Host, t: &HostType) -> HostsFile {
    let drained = match h.drained {
        m if m.is_empty() => None,
        m if m == t.all_gpus() => Some(Drained::All(true)),
        m => Some(Drained::Gpus(MatrixRow(m.iter().collect()))),
    };
    let degraded = DegradedFile {
        nics: t.nics.iter().zip(&h.nic_health).filter(|(_, f)| **f != 1.0).map(|(n, f)| (n.name.clone(), *f)).collect(),
        gpus: h.gpu_health.iter().enumerate().filter(|(_, f)| **f != 1.0).map(|(g, f)| (g.to_string(), *f)).collect(),
        links: h
            .link_health
            .iter()
            .map(|l| DegradedLinkFile { between: MatrixRow(vec![l.a, l.b]), factor: l.factor })
            .collect(),
        ..DegradedFile::default()
    };
    HostsFile {
        host_type: At::from(t.name.clone()),
        drained: drained.map(At::from),
        degraded: (degraded != DegradedFile::default()).then(|| At::from(degraded)),
        gpu_uuids: (!h.gpu_uuids.is_empty()).then(|| At::from(h.gpu_uuids.clone())),
        gpu_minors: (!h.gpu_minors.is_empty()).then(|| At::from(MatrixRow(h.gpu_minors.clone()))),
        slurm_name: h.slurm_name.clone(),
        kubernetes_name: h.kubernetes_name.clone(),
        ..HostsFile::default()
    }
}
