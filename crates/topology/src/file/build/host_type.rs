//! Host types of a cluster file: GPUs, paths, NVLinks and NICs. The type that `like` names supplies missing fields.

use super::Builder;
use crate::allocation::GPUS_PER_HOST_MAX;
use crate::diagnose::ReadError;
use crate::file::schema::{At, HostTypeFile, MatrixRow, NicFile, NvLinkFile};
use crate::host::{Gpu, HostType, NICS_PER_HOST_MAX, Nic, NvLinkFabric, PathKind, Pcie};
use crate::layout::Layout;
use crate::quantity::Bandwidth;

impl Builder<'_> {
    pub(super) fn host_type(&self, at: &At<HostTypeFile>, earlier: &[HostType]) -> Result<HostType, ReadError> {
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
        // If the number of GPUs differs from that of `like`, only the link rates and the GPU model come from `like`.
        let of_like = base.clone();
        let base = base.filter(|b| b.gpu_count() == n);
        let layout = self.layout(f, n)?;
        let gpu_paths = match (&f.gpu_matrix, &base) {
            (Some(m), _) => self.matrix(f, m, n)?,
            (None, Some(b)) if !has_layout(f) && f.nvlink.as_ref().is_none_or(|v| v.value.links.is_none()) => {
                b.gpu_paths.clone()
            }
            _ => self.linked(layout.paths(n), f.nvlink.as_ref(), n)?,
        };
        let gpus = self.gpus(f, base.as_ref(), &layout, n)?;
        let nics = match (&f.nics, &base) {
            (Some(list), _) => self.nics(list, &gpus)?,
            (None, Some(b)) => b.nics.clone(),
            (None, None) => Vec::new(),
        };
        let text = |given: &Option<String>, base: Option<&String>, otherwise: &str| {
            given.clone().or_else(|| base.cloned()).unwrap_or_else(|| otherwise.to_string())
        };
        let pcie = f.pcie.map(|p| Pcie { generation: p.generation, lanes: p.lanes });
        let links = gpu_paths.iter().flatten().any(|p| matches!(p, PathKind::NvLink(_)));
        let linked_base = base.as_ref().or(of_like.as_ref().filter(|_| links));
        let host_type = HostType {
            name: f.name.clone(),
            description: text(&f.description, base.as_ref().map(|b| &b.description), ""),
            source: text(&f.source, base.as_ref().map(|b| &b.source), ""),
            gpu_model: text(&f.gpu_model, base.as_ref().map(|b| &b.gpu_model), "unknown"),
            gpus,
            gpu_paths,
            nvlink: nvlink(f, linked_base),
            pcie: pcie.or(base.as_ref().map(|b| b.pcie)).unwrap_or(Pcie { generation: 4, lanes: 16 }),
            nics,
            p2p: p2p(f, base.as_ref()),
        };
        host_type.check().map_err(|e| self.error(at, e, "repair this host type"))?;
        Ok(host_type)
    }

    /// The GPUs with their sockets and bus ids. `base` supplies missing fields.
    fn gpus(
        &self,
        f: &HostTypeFile,
        base: Option<&HostType>,
        layout: &Layout,
        n: usize,
    ) -> Result<Vec<Gpu>, ReadError> {
        let mut gpus: Vec<Gpu> = match base {
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
        Ok(gpus)
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

    /// The groups of GPUs. A GPU is in at most one group of each kind.
    fn layout(&self, f: &HostTypeFile, n: usize) -> Result<Layout, ReadError> {
        let groups = |what: &str, at: &Option<At<Vec<MatrixRow<usize>>>>| {
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
                        return Err(self.error(at, message, "put each GPU into one group"));
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

    /// Replaces paths of the layout by NVLinks.
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
                    let (a, b, k) = self.pair(at, &pair.0, links, n)?;
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

    /// The two GPUs of an entry of `pairs` and their number of links: the entry's number, or `links` if the entry has
    /// none.
    fn pair(
        &self,
        at: &At<NvLinkFile>,
        pair: &[usize],
        links: Option<u8>,
        n: usize,
    ) -> Result<(usize, usize, usize), ReadError> {
        let (a, b, k) = match (pair, links) {
            ([a, b], Some(k)) => (*a, *b, usize::from(k)),
            ([a, b, k], _) => (*a, *b, *k),
            ([_, _], None) => {
                return Err(self.error(at, "pairs without a number of links", "add `links: 4`, or write [0, 1, 4]"));
            }
            _ => return Err(self.error(at, "a pair is two GPUs", "write [0, 1] or [0, 1, 4]")),
        };
        if a >= n || b >= n || a == b {
            let message = format!("no NVLink joins GPU {a} and GPU {b} of a host with {n} GPUs");
            return Err(self.error(at, message, "count GPUs from 0"));
        }
        Ok((a, b, k))
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
                    let message =
                        "`one_per_gpu` says where the NICs are; `near`, `gpu_paths` and `socket` contradict it";
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

/// The NVLinks of the file; without them, those of `base`.
fn nvlink(f: &HostTypeFile, base: Option<&HostType>) -> Option<NvLinkFabric> {
    let given = f.nvlink.as_ref().map(|nv| NvLinkFabric {
        link_rate: Bandwidth::from_gb_per_s(nv.value.link_rate_gb_per_s),
        switched: nv.value.switched,
        multicast: nv.value.multicast,
    });
    given.or_else(|| base.and_then(|b| b.nvlink))
}

/// The P2P rates of the file; without them, those of `base`.
fn p2p(f: &HostTypeFile, base: Option<&HostType>) -> Option<Vec<Vec<Bandwidth>>> {
    let to_rate = |r: &MatrixRow<f64>| r.0.iter().map(|&v| Bandwidth::from_gb_per_s(v)).collect();
    let given = f.p2p_gb_per_s.as_ref().map(|m| m.value.iter().map(to_rate).collect());
    given.or_else(|| base.and_then(|b| b.p2p.clone()))
}

fn has_layout(f: &HostTypeFile) -> bool {
    f.sockets.is_some() || f.host_bridges.is_some() || f.pcie_switch_trees.is_some() || f.pcie_switches.is_some()
}
