//! From the file's structs to a checked [`Cluster`]; every error points at the entry that causes it.

use super::schema::{At, ClusterFile, DegradedFile, Drained, HostTypeFile, HostsFile, NicFile, NvLinkFile, Row};
use crate::allocation::{GPUS_PER_HOST_MAX, GpuMask, HOSTS_MAX, HostId};
use crate::catalog;
use crate::cluster::{Cluster, Host, HostLink, LinkHealth, Network, Tier};
use crate::diagnose::{ReadError, did_you_mean};
use crate::host::{Gpu, HostType, NICS_PER_HOST_MAX, Nic, NvLinkFabric, PathKind, Pcie};
use crate::layout::Layout;
use crate::names::hostlist;
use crate::quantity::Bandwidth;
use std::collections::HashMap;

/// Most host types of one file.
const TYPES_MAX: usize = 1_024;

struct Builder<'t> {
    text: &'t str,
    file: &'t str,
}

/// Builds and checks the cluster. O(hosts + types).
pub(super) fn cluster(parsed: ClusterFile, text: &str, file: &str) -> Result<Cluster, ReadError> {
    let b = Builder { text, file };
    let mut cluster = Cluster { name: parsed.name, ..Cluster::default() };
    if let Some(t) = parsed.host_types.get(TYPES_MAX) {
        return Err(b.error(t, format!("more than {TYPES_MAX} host types"), "hosts of one make share a type"));
    }
    for t in &parsed.host_types {
        let host_type = b.host_type(t, &cluster.types)?;
        cluster.types.push(host_type);
    }
    let mut next_number: HashMap<String, usize> = HashMap::new();
    let mut taken: HashMap<String, usize> = HashMap::new();
    for entry in &parsed.hosts {
        let names = b.names(entry, &mut next_number)?;
        if cluster.hosts.len() + names.len() > HOSTS_MAX {
            return Err(b.error(entry, format!("more than {HOSTS_MAX} hosts"), "split the cluster"));
        }
        let host_type = b.type_index(&entry.value.host_type, &mut cluster.types)?;
        let pattern = b.host(entry, &names, &cluster.types[host_type], host_type)?;
        for name in names {
            if let Some(line) = taken.insert(name.clone(), entry.line) {
                let at = entry.value.name.as_ref();
                let message = format!("host `{name}` is there twice, first in the entry of line {line}");
                let remedy = "give each host a name of its own";
                return Err(match at {
                    Some(at) => b.error(at, message, remedy),
                    None => b.error(entry, message, remedy),
                });
            }
            cluster.hosts.push(Host { name, ..pattern.clone() });
        }
    }
    if cluster.hosts.is_empty() {
        return Err(ReadError::in_file(file, "the list `hosts` is empty", "add `hosts: [{type: hgx-h100, count: 4}]`"));
    }
    cluster.network = b.network(&parsed.network, &cluster)?;
    cluster.check().map_err(|e| ReadError::in_file(file, e, "repair the entry named"))?;
    Ok(cluster)
}

impl Builder<'_> {
    fn error<T>(&self, at: &At<T>, message: impl std::fmt::Display, remedy: impl std::fmt::Display) -> ReadError {
        ReadError::at_line(self.file, self.text, at.line.max(1), at.column.max(1), 1, message, remedy)
    }

    fn type_index(&self, name: &At<String>, types: &mut Vec<HostType>) -> Result<usize, ReadError> {
        if let Some(i) = types.iter().position(|t| t.name == name.value) {
            return Ok(i);
        }
        types.push(self.known_type(name, &[])?);
        Ok(types.len() - 1)
    }

    fn known_type(&self, name: &At<String>, of_file: &[HostType]) -> Result<HostType, ReadError> {
        if let Some(t) = of_file.iter().find(|t| t.name == name.value) {
            return Ok(t.clone());
        }
        catalog::host_type(&name.value).ok_or_else(|| {
            let known: Vec<String> = of_file
                .iter()
                .map(|t| t.name.clone())
                .chain(catalog::host_types().into_iter().map(|t| t.name))
                .collect();
            let near = did_you_mean(&name.value, known.iter().map(String::as_str));
            let hint = near.map_or(String::new(), |n| format!("; did you mean `{n}`?"));
            self.error(
                name,
                format!("unknown host type `{}`{hint}", name.value),
                format!("known: {}; or describe it under `host_types`", known.join(", ")),
            )
        })
    }

    fn names(&self, entry: &At<HostsFile>, next: &mut HashMap<String, usize>) -> Result<Vec<String>, ReadError> {
        let h = &entry.value;
        match (&h.count, &h.name) {
            (Some(count), name) => {
                if count.value == 0 || count.value > HOSTS_MAX {
                    let message = format!("a count of {}; 1 to {HOSTS_MAX} hosts are possible", count.value);
                    return Err(self.error(count, message, "leave the entry out if there are none"));
                }
                let prefix = name.as_ref().map_or("n", |n| &n.value);
                let from = next.entry(prefix.to_string()).or_insert(0);
                let names = (*from..*from + count.value).map(|i| format!("{prefix}{i}")).collect();
                *from += count.value;
                Ok(names)
            }
            (None, Some(name)) => hostlist::expand(&name.value, HOSTS_MAX)
                .map_err(|e| self.error(name, e, "write one name, or names as Slurm does: n[0-3,7]")),
            (None, None) => Err(self.error(entry, "a host entry without a name", "add `name: n[0-3]` or `count: 4`")),
        }
    }

    fn host(&self, entry: &At<HostsFile>, names: &[String], t: &HostType, index: usize) -> Result<Host, ReadError> {
        let h = &entry.value;
        let n = t.gpu_count();
        let single = |what: &str| match names.len() {
            1 => Ok(()),
            k => Err(self.error(
                entry,
                format!("`{what}` names things of one host, but the entry stands for {k} hosts"),
                "write an entry of its own for each host",
            )),
        };
        let drained = match h.drained.as_ref().map(|d| (d, &d.value)) {
            None | Some((_, Drained::All(false))) => GpuMask::EMPTY,
            Some((_, Drained::All(true))) => t.all_gpus(),
            Some((at, Drained::Gpus(list))) => {
                if let Some(g) = list.0.iter().find(|&&g| g >= n) {
                    let message = format!("GPU {g} is drained, but `{}` has GPUs 0 to {}", t.name, n - 1);
                    return Err(self.error(at, message, "name GPUs by their index of nvidia-smi"));
                }
                GpuMask::from_indices(list.0.iter().copied())
            }
        };
        let mut host = Host { host_type: index, drained, ..Host::default() };
        if let Some(d) = &h.degraded {
            self.degraded(d, t, &mut host)?;
        }
        if let Some(uuids) = &h.gpu_uuids {
            single("gpu_uuids")?;
            if uuids.value.len() != n {
                let message = format!("{} UUIDs for the {n} GPUs of `{}`", uuids.value.len(), t.name);
                return Err(self.error(uuids, message, "list them in the order of nvidia-smi -L; \"\" where unknown"));
            }
            host.gpu_uuids.clone_from(&uuids.value);
        }
        if let Some(minors) = &h.gpu_minors {
            if minors.value.0.len() != n {
                let message = format!("{} minor numbers for the {n} GPUs of `{}`", minors.value.0.len(), t.name);
                return Err(self.error(minors, message, "list them in the order of nvidia-smi"));
            }
            host.gpu_minors.clone_from(&minors.value.0);
        }
        if h.slurm_name.is_some() {
            single("slurm_name")?;
        }
        if h.kubernetes_name.is_some() {
            single("kubernetes_name")?;
        }
        host.slurm_name.clone_from(&h.slurm_name);
        host.kubernetes_name.clone_from(&h.kubernetes_name);
        let named = Host { name: names[0].clone(), ..host.clone() };
        crate::cluster::check_host_name(&names[0])
            .and_then(|()| named.check(t))
            .map_err(|e| self.error(entry, e, "repair this entry"))?;
        Ok(host)
    }

    fn degraded(&self, at: &At<DegradedFile>, t: &HostType, host: &mut Host) -> Result<(), ReadError> {
        let d = &at.value;
        let nic = |name: &str| {
            t.nics.iter().position(|n| n.name == name).ok_or_else(|| {
                let known: Vec<&str> = t.nics.iter().map(|n| n.name.as_str()).collect();
                let remedy = format!("its NICs: {}", known.join(", "));
                self.error(at, format!("`{}` has no NIC `{name}`", t.name), remedy)
            })
        };
        let whole = d.host.unwrap_or(1.0);
        let mut nics = vec![whole; t.nics.len()];
        for (name, factor) in &d.nics {
            nics[nic(name)?] *= factor;
        }
        for (name, gbit) in &d.nic_rates_gbit_per_s {
            let i = nic(name)?;
            let line = t.nics[i].line_rate.gbit_per_s();
            if !(*gbit >= 0.0 && *gbit <= line) {
                let message = format!("NIC `{name}` at {gbit} Gbit/s, but its line rate is {line}");
                return Err(self.error(
                    at,
                    message,
                    "a host with faster NICs is a type of its own: `like:` and `nics:`",
                ));
            }
            nics[i] *= gbit / line;
        }
        let mut gpus = vec![whole; t.gpu_count()];
        for (gpu, factor) in &d.gpus {
            match gpu.parse::<usize>() {
                Ok(g) if g < gpus.len() => gpus[g] *= factor,
                _ => {
                    let message = format!("no GPU `{gpu}`: `{}` has GPUs 0 to {}", t.name, gpus.len() - 1);
                    return Err(self.error(at, message, "name GPUs by their index of nvidia-smi"));
                }
            }
        }
        for l in &d.links {
            let [a, b] = l.between.0[..] else {
                return Err(self.error(at, "a link is between two GPUs", "write between: [0, 1]"));
            };
            host.link_health.push(LinkHealth { a, b, factor: l.factor });
        }
        if nics.iter().any(|f| *f != 1.0) {
            host.nic_health = nics;
        }
        if gpus.iter().any(|f| *f != 1.0) {
            host.gpu_health = gpus;
        }
        Ok(())
    }

    fn network(&self, n: &super::schema::NetworkFile, cluster: &Cluster) -> Result<Network, ReadError> {
        let mut network = Network { class: n.class, ..Network::default() };
        let hosts = cluster.hosts.len();
        for t in &n.tiers {
            network.tiers.push(Tier {
                name: t.value.name.clone(),
                hosts_per_switch: t.value.hosts_per_switch,
                oversubscription: t.value.oversubscription,
            });
            network.check(hosts).map_err(|e| self.error(t, e, "repair this tier"))?;
        }
        let index = cluster.host_index();
        for l in &n.host_links {
            let [a, b] = &l.value.between.0[..] else {
                return Err(self.error(l, "a host link is between two hosts", "write between: [n0, n1]"));
            };
            let id = |name: &String| -> Result<HostId, ReadError> {
                index.get(name.as_str()).copied().ok_or_else(|| {
                    let near = did_you_mean(name, index.keys().copied().take(1_000));
                    let hint = near.map_or(String::new(), |n| format!("; did you mean `{n}`?"));
                    self.error(l, format!("no host is named `{name}`{hint}"), "name two hosts of the list `hosts`")
                })
            };
            network.host_links.push(HostLink {
                a: id(a)?,
                b: id(b)?,
                rate: Bandwidth::from_gbit_per_s(l.value.rate_gbit_per_s),
            });
            let last =
                Network { host_links: network.host_links.last().cloned().into_iter().collect(), ..Network::default() };
            last.check(hosts).map_err(|e| self.error(l, e, "repair this link"))?;
        }
        Ok(network)
    }

    fn host_type(&self, at: &At<HostTypeFile>, earlier: &[HostType]) -> Result<HostType, ReadError> {
        let f = &at.value;
        if earlier.iter().any(|t| t.name == f.name) {
            return Err(self.error(at, format!("two host types are named `{}`", f.name), "rename one of them"));
        }
        let base = f.like.as_ref().map(|l| self.known_type(l, earlier)).transpose()?;
        let n = self.gpu_count(at, base.as_ref())?;
        if base.as_ref().is_some_and(|b| b.gpu_count() != n) && f.gpu_matrix.is_none() && !has_layout(f) {
            let message = format!("`like` has {} GPUs, this type {n}", base.map_or(0, |b| b.gpu_count()));
            return Err(self.error(at, message, "give the layout of this type: sockets, pcie_switches, nvlink"));
        }
        let base = base.filter(|b| b.gpu_count() == n);
        let layout = self.layout(f, n)?;
        let nvlink = match &f.nvlink {
            Some(nv) => Some(NvLinkFabric {
                link_rate: Bandwidth::from_gb_per_s(nv.value.link_rate_gb_per_s),
                switched: nv.value.switched,
                multicast: nv.value.multicast,
            }),
            None => base.as_ref().and_then(|b| b.nvlink),
        };
        let gpu_paths = match (&f.gpu_matrix, &base) {
            (Some(m), _) => self.matrix(f, m, n)?,
            (None, Some(b)) if !has_layout(f) && f.nvlink.as_ref().is_none_or(|v| v.value.links.is_none()) => {
                b.gpu_paths.clone()
            }
            _ => self.linked(layout.paths(n), f.nvlink.as_ref(), n)?,
        };
        let mut gpus: Vec<Gpu> = match &base {
            Some(b) => b.gpus.clone(),
            None => vec![Gpu::default(); n],
        };
        if let Some(s) = &f.gpu_sockets {
            if s.value.0.len() != n {
                return Err(self.error(s, format!("{} sockets for {n} GPUs", s.value.0.len()), "one number per GPU"));
            }
            gpus.iter_mut().zip(&s.value.0).for_each(|(g, s)| g.socket = *s);
        } else if f.sockets.is_some() {
            gpus.iter_mut().enumerate().for_each(|(i, g)| g.socket = layout.socket_of(i));
        }
        if let Some(ids) = &f.gpu_pci_bus_ids {
            if ids.value.len() != n {
                return Err(self.error(
                    ids,
                    format!("{} bus ids for {n} GPUs", ids.value.len()),
                    "one per GPU, or null",
                ));
            }
            gpus.iter_mut().zip(&ids.value).for_each(|(g, id)| g.pci_bus_id.clone_from(id));
        }
        let nics = match (&f.nics, &base) {
            (Some(list), _) => self.nics(list, &gpus)?,
            (None, Some(b)) => b.nics.clone(),
            (None, None) => Vec::new(),
        };
        let p2p = match (&f.p2p_gb_per_s, &base) {
            (Some(m), _) => {
                let to_rate = |r: &Row<f64>| r.0.iter().map(|&v| Bandwidth::from_gb_per_s(v)).collect();
                Some(m.value.iter().map(to_rate).collect())
            }
            (None, Some(b)) => b.p2p.clone(),
            (None, None) => None,
        };
        let text = |given: &Option<String>, base: Option<&String>, otherwise: &str| {
            given.clone().or_else(|| base.cloned()).unwrap_or_else(|| otherwise.to_string())
        };
        let pcie = f.pcie.map(|p| Pcie { generation: p.generation, lanes: p.lanes });
        let host_type = HostType {
            name: f.name.clone(),
            description: text(&f.description, base.as_ref().map(|b| &b.description), ""),
            source: text(&f.source, base.as_ref().map(|b| &b.source), ""),
            gpu_model: text(&f.gpu_model, base.as_ref().map(|b| &b.gpu_model), "unknown"),
            gpus,
            gpu_paths,
            nvlink,
            pcie: pcie.or(base.as_ref().map(|b| b.pcie)).unwrap_or(Pcie { generation: 4, lanes: 16 }),
            nics,
            p2p,
        };
        host_type.check().map_err(|e| self.error(at, e, "repair this host type"))?;
        Ok(host_type)
    }

    fn gpu_count(&self, at: &At<HostTypeFile>, base: Option<&HostType>) -> Result<usize, ReadError> {
        let f = &at.value;
        let rows = f.gpu_matrix.as_ref().map(|m| m.value.len());
        let n = f.gpus.as_ref().map(|g| g.value).or(rows).or(base.map(HostType::gpu_count));
        let Some(n) = n else {
            let message = format!("host type `{}` does not say how many GPUs it has", f.name);
            return Err(self.error(at, message, "add `gpus: 8`, `gpu_matrix:` or `like: hgx-h100`"));
        };
        if n == 0 || n > GPUS_PER_HOST_MAX {
            let message = format!("{n} GPUs; 1 to {GPUS_PER_HOST_MAX} per host are supported");
            return Err(match &f.gpus {
                Some(g) => self.error(g, message, "describe a larger machine as several hosts"),
                None => self.error(at, message, "describe a larger machine as several hosts"),
            });
        }
        if let (Some(m), Some(rows)) = (&f.gpu_matrix, rows)
            && rows != n
        {
            return Err(self.error(m, format!("{rows} rows for {n} GPUs"), "one row per GPU"));
        }
        Ok(n)
    }

    /// The groups of GPUs; each GPU at most once per kind.
    fn layout(&self, f: &HostTypeFile, n: usize) -> Result<Layout, ReadError> {
        let groups = |what: &str, at: &Option<At<Vec<Row<usize>>>>| {
            let Some(at) = at else { return Ok(Vec::new()) };
            let mut seen = 0u32;
            for group in &at.value {
                for &g in &group.0 {
                    if g >= n {
                        let message = format!("`{what}` names GPU {g}, but the host has GPUs 0 to {}", n - 1);
                        return Err(self.error(at, message, "count from 0"));
                    }
                    if seen >> g & 1 == 1 {
                        let message = format!("`{what}` names GPU {g} twice");
                        return Err(self.error(at, message, "each GPU stands in one group"));
                    }
                    seen |= 1 << g;
                }
            }
            if what == "sockets" && seen.count_ones() as usize != n {
                let message = format!("`sockets` names {} of {n} GPUs", seen.count_ones());
                return Err(self.error(at, message, "every GPU is on one socket"));
            }
            Ok(at.value.iter().map(|r| r.0.clone()).collect())
        };
        let mut layout = Layout {
            sockets: groups("sockets", &f.sockets)?,
            host_bridges: groups("host_bridges", &f.host_bridges)?,
            pcie_switch_trees: groups("pcie_switch_trees", &f.pcie_switch_trees)?,
            pcie_switches: groups("pcie_switches", &f.pcie_switches)?,
        };
        if let (true, Some(s)) = (layout.sockets.is_empty(), &f.gpu_sockets) {
            let mut by_socket: std::collections::BTreeMap<u8, Vec<usize>> = Default::default();
            for (g, s) in s.value.0.iter().take(n).enumerate() {
                by_socket.entry(*s).or_default().push(g);
            }
            layout.sockets = by_socket.into_values().collect();
        }
        Ok(layout)
    }

    /// NVLinks over the paths of the layout.
    fn linked(
        &self,
        mut paths: Vec<Vec<PathKind>>,
        nvlink: Option<&At<NvLinkFile>>,
        n: usize,
    ) -> Result<Vec<Vec<PathKind>>, ReadError> {
        let Some(at) = nvlink else { return Ok(paths) };
        let nv = &at.value;
        let label = |links: usize| match links {
            1..=64 => Ok(PathKind::NvLink(links as u8)),
            _ => Err(self.error(
                at,
                format!("{links} NVLinks; 1 to 64 are possible"),
                "links of one pair, or of one GPU",
            )),
        };
        match (&nv.pairs, nv.links) {
            (Some(pairs), links) => {
                for pair in pairs {
                    let (a, b, k) = match (&pair.0[..], links) {
                        ([a, b], Some(k)) => (*a, *b, usize::from(k)),
                        ([a, b, k], _) => (*a, *b, *k),
                        ([_, _], None) => {
                            return Err(self.error(
                                at,
                                "pairs without a number of links",
                                "add `links: 4`, or write [0, 1, 4]",
                            ));
                        }
                        _ => return Err(self.error(at, "a pair is two GPUs", "write [0, 1] or [0, 1, 4]")),
                    };
                    if a >= n || b >= n || a == b {
                        let message = format!("no NVLink joins GPU {a} and GPU {b} of a host with {n} GPUs");
                        return Err(self.error(at, message, "count GPUs from 0"));
                    }
                    paths[a][b] = label(k)?;
                    paths[b][a] = paths[a][b];
                }
            }
            (None, Some(k)) => {
                let label = label(usize::from(k))?;
                for (i, row) in paths.iter_mut().enumerate() {
                    for (j, p) in row.iter_mut().enumerate() {
                        if i != j {
                            *p = label;
                        }
                    }
                }
            }
            (None, None) => {
                let remedy = "add `links:` (all pairs), `pairs:`, or a `gpu_matrix:` with NV labels";
                return Err(self.error(at, "`nvlink` does not say which GPUs are linked", remedy));
            }
        }
        Ok(paths)
    }

    fn matrix(&self, f: &HostTypeFile, at: &At<Vec<At<String>>>, n: usize) -> Result<Vec<Vec<PathKind>>, ReadError> {
        if let Some(nv) = f.nvlink.as_ref().filter(|v| v.value.links.is_some() || v.value.pairs.is_some()) {
            let message = "`gpu_matrix` and `nvlink` with links or pairs say the same thing twice";
            return Err(self.error(nv, message, "keep one of them; the rate stays under `nvlink`"));
        }
        if has_layout(f) {
            let message = "`gpu_matrix` and PCIe groups say the same thing twice";
            return Err(self.error(at, message, "keep one of them; `gpu_sockets` may stay"));
        }
        let mut rows = Vec::with_capacity(n);
        for (i, row) in at.value.iter().enumerate() {
            let labels = self.labels(row, n, &format!("the row of GPU{i}"))?;
            for (j, label) in labels.iter().enumerate() {
                let earlier: Option<&PathKind> = rows.get(j).map(|r: &Vec<PathKind>| &r[i]);
                if earlier.is_some_and(|e| e != label) {
                    let message = format!(
                        "GPU{i} to GPU{j} is {label}, but GPU{j} to GPU{i} is {}: the matrix must be symmetric",
                        earlier.unwrap_or(label)
                    );
                    return Err(self.error(row, message, "repair the wrong one of the two"));
                }
            }
            rows.push(labels);
        }
        Ok(rows)
    }

    fn labels(&self, row: &At<String>, n: usize, what: &str) -> Result<Vec<PathKind>, ReadError> {
        let words: Vec<&str> = row.value.split([' ', ',', '\t']).filter(|w| !w.is_empty()).collect();
        if words.len() != n {
            return Err(self.error(
                row,
                format!("{what} has {} labels for {n} GPUs", words.len()),
                "one label per GPU",
            ));
        }
        let label = |w: &&str| {
            w.parse().map_err(|e: String| {
                self.error(row, format!("{what}: {e}"), "write labels as nvidia-smi topo -m prints them")
            })
        };
        words.iter().map(label).collect()
    }

    fn nics(&self, list: &[At<NicFile>], gpus: &[Gpu]) -> Result<Vec<Nic>, ReadError> {
        let n = gpus.len();
        let mut nics = Vec::new();
        for at in list {
            let f = &at.value;
            let line_rate = Bandwidth::from_gbit_per_s(f.line_rate_gbit_per_s);
            let by_distance = |near: &[usize], socket: Option<u8>| {
                let path = |g: usize| match () {
                    _ if near.contains(&g) => PathKind::Pix,
                    _ if socket.is_none_or(|s| s == gpus[g].socket) => PathKind::Node,
                    _ => PathKind::Sys,
                };
                (0..n).map(path).collect::<Vec<_>>()
            };
            if f.one_per_gpu {
                if f.near.is_some() || f.gpu_paths.is_some() || f.socket.is_some() {
                    let message = "`one_per_gpu` says where the NICs are; `near`, `gpu_paths` and `socket` cannot stand beside it";
                    return Err(self.error(at, message, "write the NICs one by one"));
                }
                for (g, gpu) in gpus.iter().enumerate() {
                    let name = format!("{}{g}", f.name);
                    let socket = Some(gpu.socket);
                    nics.push(Nic { name, line_rate, socket, gpu_paths: by_distance(&[g], socket) });
                }
                continue;
            }
            let (socket, gpu_paths) = match (&f.gpu_paths, &f.near) {
                (Some(p), Some(_)) => {
                    return Err(self.error(p, "`gpu_paths` and `near` say the same thing twice", "keep one"));
                }
                (Some(p), None) => (f.socket, self.labels(p, n, &format!("NIC `{}`", f.name))?),
                (None, Some(near)) => {
                    if let Some(g) = near.value.0.iter().find(|&&g| g >= n) {
                        let message = format!("NIC `{}` is near GPU {g}, but the host has GPUs 0 to {}", f.name, n - 1);
                        return Err(self.error(near, message, "count from 0"));
                    }
                    let socket = f.socket.or_else(|| near.value.0.first().map(|&g| gpus[g].socket));
                    (socket, by_distance(&near.value.0, socket))
                }
                (None, None) => (f.socket, by_distance(&[], f.socket)),
            };
            nics.push(Nic { name: f.name.clone(), line_rate, socket, gpu_paths });
        }
        if nics.len() > NICS_PER_HOST_MAX {
            let message = format!("{} NICs; at most {NICS_PER_HOST_MAX} per host", nics.len());
            return Err(self.error(&list[0], message, "list those that carry GPU traffic"));
        }
        Ok(nics)
    }
}

fn has_layout(f: &HostTypeFile) -> bool {
    f.sockets.is_some() || f.host_bridges.is_some() || f.pcie_switch_trees.is_some() || f.pcie_switches.is_some()
}
