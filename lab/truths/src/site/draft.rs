//! [`Draft`]: a site under construction. The kind sets its differences from a flat site, and the seed determines the rest.

use super::kinds::Kind;
use super::network::{Network, Node, Port, Switch};
use super::{Drawn, Form, Site};
use crate::intra::{Flavour, Intra};
use crate::randomness::Keyed;
use crate::truth::About;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use topology::cluster::Host;
use topology::switches::{NamedSwitch, NamedSwitches, Switches, Tier};
use topology::{Bandwidth, Bytes, Cluster, Collective, HostId, HostType, Nic, PathKind, catalog};

/// Share of a healthy port's line rate that a collective gets.
const EFFICIENCY: f64 = 0.93;
/// Standard deviation of the rates of ports and of hosts.
const PORT_SPREAD: f64 = 0.005;
const HOST_SPREAD: f64 = 0.01;
/// Irregularity of the tables inside hosts.
pub(super) const INSIDE: f64 = 0.02;
/// Share of a leaf's uplinks that other traffic uses, if the leaf is oversubscribed.
const BACKGROUND: Range<f64> = 0.15..0.30;
/// Standard deviation of a reading over several hosts, unless the kind has another one.
const NOISE: f64 = 0.02;

/// The NICs in the cluster file.
pub(super) enum Nics {
    True,
    Times(f64),
    Absent,
}

/// A state of the network.
#[derive(Clone, Copy, PartialEq)]
enum State {
    /// All that is drawn has its mean, and nothing is slow.
    Typical,
    Measured,
    Drifted,
}

/// The change between measuring and placing.
enum After {
    Nothing,
    Drift,
    Hosts { measured: Vec<usize>, placed: Vec<usize> },
}

/// A site under construction.
pub(super) struct Draft {
    key: Keyed,
    types: Vec<HostType>,
    /// Type of every host.
    hosts: Vec<usize>,
    /// Leaf (with rails: unit) of every host.
    leaf_of: Vec<u16>,
    /// Number of hosts in a pod.
    pod_hosts: usize,
    rails: bool,
    leaf_loss: Range<f64>,
    pod_loss: Range<f64>,
    /// Oversubscription of leaves and of pods.
    oversubscription: [f64; 2],
    /// Host, port and the remaining share of its rate.
    slow: Vec<(usize, usize, f64)>,
    /// True if the file names the tiers.
    told: bool,
    file_nics: Nics,
    noise: f64,
    outliers: f64,
    size: Bytes,
    after: After,
    contended: bool,
}

impl Draft {
    pub(super) fn new(key: Keyed) -> Self {
        Draft {
            key,
            types: Vec::new(),
            hosts: Vec::new(),
            leaf_of: Vec::new(),
            pod_hosts: 0,
            rails: false,
            leaf_loss: 0.0..0.0,
            pod_loss: 0.0..0.0,
            oversubscription: [1.0, 1.0],
            slow: Vec::new(),
            told: true,
            file_nics: Nics::True,
            noise: NOISE,
            outliers: 0.0,
            size: Bytes::mib(256),
            after: After::Nothing,
            contended: false,
        }
    }

    /// Hosts of these types behind one switch. `hosts`: for each host, the index of its type.
    pub(super) fn of(self, types: Vec<HostType>, hosts: Vec<usize>) -> Self {
        Draft { leaf_of: vec![0; hosts.len()], pod_hosts: hosts.len(), types, hosts, ..self }
    }

    /// H100 hosts behind one switch.
    pub(super) fn flat(self, hosts: usize) -> Self {
        self.of(vec![h100()], vec![0; hosts])
    }

    /// 16 A100 hosts, then 16 H100 hosts, behind one switch.
    pub(super) fn a100_and_h100(self) -> Self {
        self.of(vec![type_of("dgx-a100"), h100()], (0..32).map(|h| h / 16).collect())
    }

    /// H100 hosts behind leaves of `per_leaf` hosts. A flow between leaves loses a share of its rate drawn from `loss`.
    pub(super) fn leaves(self, hosts: usize, per_leaf: usize, loss: Range<f64>) -> Self {
        self.flat(hosts).leaf_of((0..hosts).map(|h| (h / per_leaf) as u16), loss)
    }

    /// Sets the leaf of every host.
    pub(super) fn leaf_of(self, leaf_of: impl Iterator<Item = u16>, loss: Range<f64>) -> Self {
        Draft { leaf_of: leaf_of.collect(), leaf_loss: loss, ..self }
    }

    /// Adds pods of `hosts` hosts above the leaves.
    pub(super) fn pods(self, hosts: usize, loss: Range<f64>) -> Self {
        Draft { pod_hosts: hosts, pod_loss: loss, ..self }
    }

    /// Replaces every leaf by a unit with one switch for each rail.
    pub(super) fn rails(self) -> Self {
        Draft { rails: true, ..self }
    }

    /// Sets the ratio of the total rate below to the total rate above, for leaves and for pods.
    pub(super) fn oversubscribed(self, leaves: f64, pods: f64) -> Self {
        Draft { oversubscription: [leaves, pods], ..self }
    }

    /// Reduces the rate of these ports to the share `left`.
    pub(super) fn slow_ports(mut self, hosts: Range<usize>, ports: Range<usize>, left: f64) -> Self {
        self.slow.extend(hosts.flat_map(|h| ports.clone().map(move |p| (h, p, left))));
        self
    }

    /// Omits the tiers from the cluster file.
    pub(super) fn untold(self) -> Self {
        Draft { told: false, ..self }
    }

    /// Sets the NICs in the cluster file.
    pub(super) fn in_the_file(self, file_nics: Nics) -> Self {
        Draft { file_nics, ..self }
    }

    /// Sets the relative noise of a reading over several hosts, and the share of interrupted readings.
    pub(super) fn readings(self, noise: f64, outliers: f64) -> Self {
        Draft { noise, outliers, ..self }
    }

    /// Sets the size of the collective.
    pub(super) fn size(self, size: Bytes) -> Self {
        Draft { size, ..self }
    }

    /// Changes rates and losses between measuring and placing.
    pub(super) fn drifts(self) -> Self {
        Draft { after: After::Drift, ..self }
    }

    /// Sets the hosts that exist during measuring and during placing.
    pub(super) fn with_hosts(self, measured: Vec<usize>, placed: Vec<usize>) -> Self {
        Draft { after: After::Hosts { measured, placed }, ..self }
    }

    /// Runs other jobs on the GPUs that are not free.
    pub(super) fn contended(self) -> Self {
        Draft { contended: true, ..self }
    }

    /// Draws a number in `range`. Different values of `purpose` give independent numbers.
    pub(super) fn between(&self, purpose: u64, range: Range<f64>) -> f64 {
        range.start + (range.end - range.start) * self.key.with(purpose).uniform()
    }

    /// Draws a number below `below`.
    pub(super) fn lot(&self, purpose: u64, below: usize) -> usize {
        (self.key.with(1000 + purpose).uniform() * below as f64) as usize
    }

    /// Draws `count` different numbers, ascending.
    pub(super) fn lots(&self, below: usize, count: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..below).collect();
        all.sort_by_key(|i| self.key.with(2000 + *i as u64).uniform().to_bits());
        all.truncate(count);
        all.sort_unstable();
        all
    }

    fn healthy(&self) -> Cluster {
        let host = |(i, t): (usize, &usize)| Host { name: format!("n{i}"), host_type: *t, ..Host::default() };
        Cluster {
            name: "site".into(),
            types: self.types.clone(),
            hosts: self.hosts.iter().enumerate().map(host).collect(),
            ..Cluster::default()
        }
    }

    /// Number of sets of hosts below one leaf (with rails: below one set of leaves).
    fn units(&self) -> usize {
        self.leaf_of.iter().max().map_or(1, |m| usize::from(*m) + 1)
    }

    fn network(&self, state: State) -> Network {
        let (drift, typical) = (state == State::Drifted, state == State::Typical);
        let normal = |key: Keyed| if typical { 0.0 } else { key.normal() };
        let between = |purpose: u64, r: Range<f64>| match typical {
            true => 0.5 * (r.start + r.end),
            false => self.between(purpose, r),
        };
        let rails = if self.rails { self.types.iter().map(|t| t.nics.len()).max().unwrap_or(1) } else { 1 };
        let (hosts, units) = (self.hosts.len(), self.units());
        let pod_of = |h: usize| (h / self.pod_hosts.max(1)) as u16;
        let pods = usize::from(pod_of(hosts - 1)) + 1;
        let drifted = |purpose: u64, sd: f64| if drift { (sd * self.key.with(purpose).normal()).exp() } else { 1.0 };
        let fallen = drift.then(|| self.lot(7, hosts));
        let mut below = (vec![0.0; units * rails], vec![0.0; pods]);
        let mut above = vec![0u16; units * rails];
        let mut nodes = Vec::new();
        for h in 0..hosts {
            let t = &self.types[self.hosts[h]];
            let luck = (HOST_SPREAD * normal(self.key.with(3000 + h as u64))).exp() * drifted(60_000 + h as u64, 0.04);
            let luck = if fallen == Some(h) { 0.6 * luck } else { luck };
            let port = |(p, nic): (usize, &Nic)| {
                let own = (PORT_SPREAD * normal(self.key.with((4000 + h as u64) << 8 | p as u64))).exp();
                let left: f64 = self.slow.iter().filter(|s| !typical && (s.0, s.1) == (h, p)).map(|s| s.2).product();
                let leaf =
                    if self.rails { usize::from(self.leaf_of[h]) * rails + p } else { usize::from(self.leaf_of[h]) };
                below.0[leaf] += nic.line_rate.gb_per_s();
                below.1[usize::from(pod_of(h))] += nic.line_rate.gb_per_s();
                above[leaf] = pod_of(h);
                Port { gb_per_s: nic.line_rate.gb_per_s() * EFFICIENCY * luck * own * left, leaf: leaf as u16 }
            };
            let ports = t.nics.iter().enumerate().map(port).collect();
            nodes.push(Node {
                make: self.hosts[h] as u64,
                ports,
                port_of_gpu: (0..t.gpu_count()).map(|g| port_of(t, g)).collect(),
            });
        }
        let switch = |of: u64, i: usize, above: u16, below: f64, loss: &Range<f64>, over: f64| {
            let id = of + i as u64;
            let lost = between(id, loss.clone()) * drifted(id + 61_000, 0.25);
            let traffic = over * between(id + 500, BACKGROUND);
            Switch { above, up_gb_per_s: below / over, keeps: (1.0 - lost) * (1.0 / traffic).min(1.0) }
        };
        let leaves = (0..units * rails).map(|i| {
            // The rails of one unit meet in one spine and have the same loss.
            let loss = i / rails;
            switch(5000, loss, above[i], below.0[i], &self.leaf_loss, self.oversubscription[0])
        });
        let pods = (0..pods).map(|i| switch(6000, i, 0, below.1[i], &self.pod_loss, self.oversubscription[1]));
        Network::new(nodes, leaves.collect(), pods.collect())
    }

    /// What is known of the site without a reading, if nothing is slow and nothing changes.
    fn form(&self) -> Option<Form> {
        if !self.slow.is_empty() || !matches!(self.after, After::Nothing) {
            return None;
        }
        let typical = self.network(State::Typical);
        let kept = |lost: f64, traffic: f64| (1.0 - lost) * (1.0 / traffic).min(1.0);
        // Deviation of the logarithm of a uniform number.
        let sd = |loss: &Range<f64>, over: f64| {
            let (most, least) = (kept(loss.start, over * BACKGROUND.start), kept(loss.end, over * BACKGROUND.end));
            (most / least).ln() / 12f64.sqrt()
        };
        let [leaves, pods] = self.oversubscription;
        Some(Form {
            typical,
            host_sd: HOST_SPREAD,
            leaf_sd: sd(&self.leaf_loss, leaves),
            pod_sd: sd(&self.pod_loss, pods),
        })
    }

    /// By level, the switch above every host; only levels with more than one switch.
    fn switches(&self) -> Vec<Vec<u32>> {
        let leaves: Vec<u32> = self.leaf_of.iter().map(|l| u32::from(*l)).collect();
        let pods = (0..self.hosts.len()).map(|h| (h / self.pod_hosts.max(1)) as u32).collect();
        [leaves, pods].into_iter().filter(|l: &Vec<u32>| l.iter().any(|s| *s != l[0])).collect()
    }

    /// The hosts of the cluster file.
    fn file(&self) -> Cluster {
        let mut c = self.healthy();
        for t in &mut c.types {
            match self.file_nics {
                Nics::True => {}
                Nics::Absent => t.nics.clear(),
                Nics::Times(f) => {
                    t.nics.iter_mut().for_each(|n| n.line_rate = Bandwidth::from_gb_per_s(n.line_rate.gb_per_s() * f));
                }
            }
        }
        c
    }

    /// The tiers in the cluster file, for some of the hosts.
    fn tiers(&self, hosts: &[usize]) -> Result<Vec<Tier>, String> {
        if !self.told {
            return Ok(Vec::new());
        }
        let tier = |(i, level): (usize, Vec<u32>)| {
            let name = ["leaf", "pod"][i.min(1)];
            let mut below: BTreeMap<u32, Vec<HostId>> = BTreeMap::new();
            for (at, h) in hosts.iter().enumerate() {
                below.entry(level[*h]).or_default().push(HostId(at as u32));
            }
            let named = |(s, hosts)| NamedSwitch { name: format!("{name}-{s}"), hosts };
            let switches = NamedSwitches::new(below.into_iter().map(named)).map_err(|e| e.to_string())?;
            let oversubscription = self.oversubscription[i.min(1)];
            Ok(Tier { name: name.into(), switches: Switches::Named(switches), oversubscription })
        };
        self.switches().into_iter().enumerate().map(tier).collect()
    }

    pub(super) fn draw(self, kind: &Kind, seed: u64) -> Result<Drawn, String> {
        let there = self.healthy();
        let intra = Arc::new(Intra::new(&there, Flavour::AllReduce, self.key.with(1).uniform().to_bits(), INSIDE)?);
        let file = self.file();
        let all: Vec<usize> = (0..self.hosts.len()).collect();
        let form = Arc::new(self.form());
        let site = |network: &Network, hosts: &[usize]| -> Result<Site, String> {
            let mut cluster = file.clone();
            cluster.hosts = hosts.iter().map(|h| file.hosts[*h].clone()).collect();
            cluster.network.tiers = self.tiers(hosts)?;
            cluster.check()?;
            Ok(Site {
                about: About {
                    name: kind.name.into(),
                    description: format!("{}; simulated, seed {seed}", kind.about),
                    cluster,
                    size: self.size,
                    collective: Collective::AllReduce,
                    simulated: true,
                },
                intra: Arc::new(intra.of_hosts(hosts)),
                network: network.of_hosts(hosts),
                drawn: hosts.iter().map(|h| *h as u32).collect(),
                seed: self.key.with(2).uniform().to_bits(),
                noise: self.noise,
                outliers: self.outliers,
                form: form.clone(),
                switches: self.switches().iter().map(|l| hosts.iter().map(|h| l[*h]).collect()).collect(),
            })
        };
        let network = self.network(State::Measured);
        let (measured, placed) = match &self.after {
            After::Nothing => (site(&network, &all)?, site(&network, &all)?),
            After::Drift => (site(&network, &all)?, site(&self.network(State::Drifted), &all)?),
            After::Hosts { measured, placed } => (site(&network, measured)?, site(&network, placed)?),
        };
        Ok(Drawn { measured, placed, contended: self.contended })
    }
}

pub(super) fn type_of(name: &str) -> HostType {
    let known = catalog::host_types().into_iter().find(|t| t.name == name);
    known.unwrap_or_else(|| unreachable!("the catalog has {name}"))
}

pub(super) fn h100() -> HostType {
    type_of("hgx-h100")
}

/// The NIC that a GPU uses: its own if every GPU has one, else the nearest.
fn port_of(t: &HostType, gpu: usize) -> u8 {
    if t.nics.len() == t.gpu_count() { gpu as u8 } else { t.nearest_nics(gpu).trailing_zeros().min(31) as u8 }
}

/// The same host with a NIC for every `per_nic` GPUs.
pub(super) fn with_nics(mut t: HostType, per_nic: usize, gbit_per_s: f64) -> HostType {
    let gpus = t.gpu_count();
    t.nics = (0..gpus / per_nic)
        .map(|i| {
            let socket = t.gpus[i * per_nic].socket;
            let path = |g: usize| match () {
                () if g / per_nic == i => PathKind::Pix,
                () if t.gpus[g].socket == socket => PathKind::Node,
                () => PathKind::Sys,
            };
            Nic {
                name: format!("mlx5_{i}"),
                line_rate: Bandwidth::from_gbit_per_s(gbit_per_s),
                socket: Some(socket),
                gpu_paths: (0..gpus).map(path).collect(),
            }
        })
        .collect();
    t
}

/// A host with only the first GPUs and their NICs.
pub(super) fn first_gpus(t: &HostType, n: usize) -> HostType {
    let mut t = t.clone();
    t.name = format!("{}-{n}", t.name);
    t.gpus.truncate(n);
    t.gpu_paths.truncate(n);
    t.gpu_paths.iter_mut().for_each(|row| row.truncate(n));
    t.nics.truncate(n);
    t.nics.iter_mut().for_each(|nic| nic.gpu_paths.truncate(n));
    t
}
