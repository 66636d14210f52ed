//! Converts the file's structs to a checked [`Cluster`]. Every error names the position of the entry that causes it.
//! [`host_type`] builds the types; this file builds hosts and network.

mod host_type;

use super::schema::{At, ClusterFile, DegradedFile, Drained, HostsFile, TierFile};
use crate::allocation::{GpuMask, HOSTS_MAX, HostId};
use crate::catalog;
use crate::cluster::{Cluster, Host, HostLink, LinkHealth, Network};
use crate::diagnose::{ReadError, did_you_mean};
use crate::host::HostType;
use crate::names::hostlist;
use crate::quantity::Bandwidth;
use crate::switches::{NamedSwitch, NamedSwitches, SwitchError, Switches, Tier};
use std::collections::HashMap;

/// Maximum number of host types of one file.
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
                format!("`{what}` belongs to one host, but the entry describes {k} hosts"),
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
        let mut network = Network { class: n.class, rails: n.rails, ..Network::default() };
        let index = cluster.host_index();
        for t in &n.tiers {
            let tier = Tier {
                name: t.value.name.clone(),
                switches: self.switches(t, cluster, &index)?,
                oversubscription: t.value.oversubscription,
            };
            network.tiers.push(tier);
            network.check(&cluster.hosts).map_err(|e| self.error(t, e, "repair this tier"))?;
        }
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
            last.check(&cluster.hosts).map_err(|e| self.error(l, e, "repair this link"))?;
        }
        Ok(network)
    }

    /// The switches of a tier, regular or named.
    fn switches(
        &self,
        tier: &At<TierFile>,
        cluster: &Cluster,
        index: &HashMap<&str, HostId>,
    ) -> Result<Switches, ReadError> {
        let t = &tier.value;
        let entries = match (t.hosts_per_switch, &t.switches) {
            (Some(hosts_per_switch), None) => return Ok(Switches::Regular { hosts_per_switch }),
            (None, Some(entries)) => entries,
            (both, _) => {
                let which = if both.is_some() { "both" } else { "neither" };
                let message = format!("tier `{}` has {which} of `hosts_per_switch` and `switches`", t.name);
                let remedy = "write `hosts_per_switch: 8` where all switches have as many hosts, else \
                              `switches: [{name: leaf-0, hosts: 'n[0-7]'}]`";
                return Err(self.error(tier, message, remedy));
            }
        };
        let mut list = Vec::with_capacity(entries.value.len());
        for entry in &entries.value {
            let at = &entry.value.hosts;
            let names = hostlist::expand(&at.value, HOSTS_MAX)
                .map_err(|e| self.error(at, e, "write hosts as Slurm does: n[0-3,7]"))?;
            let mut hosts = Vec::with_capacity(names.len());
            for name in &names {
                let host = index.get(name.as_str()).copied();
                hosts.push(host.ok_or_else(|| self.unknown_host(at, name, cluster))?);
            }
            list.push(NamedSwitch { name: entry.value.name.clone(), hosts });
        }
        let name = |s: usize| &entries.value[s].value.name;
        NamedSwitches::new(list).map(Switches::Named).map_err(|e| match e {
            SwitchError::NoHosts { switch } => self.error(
                &entries.value[switch],
                format!("switch `{}` has no hosts", name(switch)),
                "name its hosts: `hosts: n[0-7]`, or leave the switch out",
            ),
            SwitchError::TwoSwitches { host, first, second } => {
                let host = &cluster.host(host).name;
                let (a, b) = (name(first), name(second));
                let message = match first == second {
                    true => format!("host `{host}` is twice below switch `{a}`"),
                    false => format!("host `{host}` is below two switches of tier `{}`: `{a}` and `{b}`", t.name),
                };
                self.error(&entries.value[second].value.hosts, message, "name each host once in a tier")
            }
            SwitchError::SameName { first, second } => self.error(
                &entries.value[first.max(second)],
                format!("two switches of tier `{}` are named `{}`", t.name, name(second)),
                "give each switch of a tier a name of its own",
            ),
            e @ SwitchError::UnknownHost { .. } => self.error(entries, e, "name hosts of the list `hosts`"),
        })
    }

    fn unknown_host<T>(&self, at: &At<T>, name: &str, cluster: &Cluster) -> ReadError {
        let near = did_you_mean(name, cluster.hosts.iter().map(|h| h.name.as_str()).take(1_000));
        let hint = near.map_or(String::new(), |n| format!("; did you mean `{n}`?"));
        self.error(at, format!("no host is named `{name}`{hint}"), "name hosts of the list `hosts`")
    }
}
