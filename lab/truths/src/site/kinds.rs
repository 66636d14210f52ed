//! The kinds of sites, and how one is drawn from a seed.

use super::network::{Network, Node, Port, Switch};
use super::{Drawn, Site};
use crate::intra::{Flavour, Intra};
use crate::randomness::Keyed;
use crate::truth::About;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use topology::cluster::Host;
use topology::switches::{NamedSwitch, NamedSwitches, Switches, Tier};
use topology::{Bandwidth, Bytes, Cluster, Collective, HostId, HostType, Nic, PathKind, catalog};

/// Share of the line rate that a collective gets of a healthy port.
const EFFICIENCY: f64 = 0.93;
/// Deviation of ports and of hosts as they are built.
const PORT_SPREAD: f64 = 0.005;
const HOST_SPREAD: f64 = 0.01;
/// Irregularity of the tables inside of hosts.
const INSIDE: f64 = 0.02;
/// Share of a leaf's links upwards that other traffic holds, where they are fewer than those downwards.
const BACKGROUND: Range<f64> = 0.15..0.30;
/// Deviation of a reading over hosts, unless the kind says otherwise.
const NOISE: f64 = 0.02;

/// A kind of site.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// What is hidden, in a line.
    pub about: &'static str,
    make: fn(&mut Draft),
}

/// Every kind. The number in a name is that of hosts.
pub const KINDS: &[Kind] = &[
    Kind { name: "flat16", about: "8 H100 a host behind one switch, nothing odd", make: |d| d.hosts(16) },
    Kind {
        name: "flat64",
        about: "the same with leaf switches that cost nothing",
        make: |d| d.leaves(64, 8, 0.0..0.0),
    },
    Kind {
        name: "small64",
        about: "flat64 at 16 MiB, where latency counts",
        make: |d| {
            d.leaves(64, 8, 0.0..0.0);
            d.size = Bytes::mib(16);
        },
    },
    Kind {
        name: "noisy16-5",
        about: "flat16 with 5 % noise, 3 % of readings interrupted",
        make: |d| {
            d.hosts(16);
            (d.noise, d.outliers) = (0.05, 0.03);
        },
    },
    Kind {
        name: "noisy16-10",
        about: "flat16 with 10 % noise, 5 % of readings interrupted",
        make: |d| {
            d.hosts(16);
            (d.noise, d.outliers) = (0.10, 0.05);
        },
    },
    Kind {
        name: "leaf16",
        about: "4 leaves; flows over leaves lose 22 to 34 %; tiers in the file",
        make: |d| d.leaves(16, 4, 0.22..0.34),
    },
    Kind { name: "leaf64", about: "the same with 8 leaves", make: |d| d.leaves(64, 8, 0.22..0.34) },
    Kind {
        name: "leaf64-untold",
        about: "the same, the file names no tiers",
        make: |d| {
            d.leaves(64, 8, 0.22..0.34);
            d.told = false;
        },
    },
    Kind { name: "leaf64-mild", about: "flows over leaves lose 5 to 10 %", make: |d| d.leaves(64, 8, 0.05..0.10) },
    Kind {
        name: "leaf64-2to1",
        about: "leaves oversubscribed 2:1, told; collisions 8 to 16 %",
        make: |d| {
            d.leaves(64, 8, 0.08..0.16);
            d.oversubscription = [2.0, 1.0];
        },
    },
    Kind {
        name: "leaf64-4to1",
        about: "leaves oversubscribed 4:1, told; collisions 8 to 16 %",
        make: |d| {
            d.leaves(64, 8, 0.08..0.16);
            d.oversubscription = [4.0, 1.0];
        },
    },
    Kind {
        name: "leaf64-16to1",
        about: "leaves oversubscribed 16:1, told",
        make: |d| {
            d.leaves(64, 8, 0.0..0.05);
            d.oversubscription = [16.0, 1.0];
        },
    },
    Kind {
        name: "pods128",
        about: "leaves of 8, pods of 32 (4:1), told; losses 10 to 18 and 20 to 30 %",
        make: |d| {
            d.leaves(128, 8, 0.10..0.18);
            d.pods(32, 0.20..0.30);
            d.oversubscription = [1.0, 4.0];
        },
    },
    Kind {
        name: "unequal60",
        about: "leaves of 20, 16, 12, 8 and 4 hosts, named in the file; loss 22 to 34 %",
        make: |d| {
            d.hosts(60);
            let sizes = [20, 16, 12, 8, 4].into_iter().enumerate();
            d.leaf_of = sizes.flat_map(|(leaf, n)| std::iter::repeat_n(leaf as u16, n)).collect();
            d.leaf_loss = 0.22..0.34;
        },
    },
    Kind {
        name: "scattered64",
        about: "hosts cabled to 4 leaves in turn, named in the file; loss 22 to 34 %",
        make: |d| {
            d.hosts(64);
            d.leaf_of = (0..64).map(|h| h % 4).collect();
            d.leaf_loss = 0.22..0.34;
        },
    },
    Kind {
        name: "rails16",
        about: "a switch for every rail; other rails lie over the spine, 25 to 35 % less",
        make: |d| {
            d.hosts(16);
            (d.rails, d.leaf_loss) = (true, 0.25..0.35);
        },
    },
    Kind {
        name: "rails64",
        about: "two units of 32 hosts, each with a switch for every rail; the units are told",
        make: |d| {
            d.leaves(64, 32, 0.22..0.32);
            d.rails = true;
        },
    },
    Kind {
        name: "badrail16",
        about: "flat16 with rail 3 at half rate on all hosts",
        make: |d| {
            d.hosts(16);
            d.slow_ports(0..16, 3..4, 0.5);
        },
    },
    Kind {
        name: "badleaf64",
        about: "flat64 with all ports of one leaf at 70 %",
        make: |d| {
            d.leaves(64, 8, 0.0..0.0);
            let leaf = d.lot(0, 8);
            d.slow_ports(8 * leaf..8 * leaf + 8, 0..8, 0.7);
        },
    },
    Kind {
        name: "onenic16",
        about: "flat16 with one NIC at a quarter",
        make: |d| {
            d.hosts(16);
            let (h, p) = (d.lot(0, 16), d.lot(1, 8));
            d.slow_ports(h..h + 1, p..p + 1, 0.25);
        },
    },
    Kind {
        name: "slownic32",
        about: "flat, 5 of 32 hosts with a NIC at 25 to 60 %",
        make: |d| {
            d.hosts(32);
            for (i, h) in d.lots(32, 5).into_iter().enumerate() {
                let (p, left) = (d.lot(20 + i as u64, 8), d.between(40 + i as u64, 0.25..0.6));
                d.slow_ports(h..h + 1, p..p + 1, left);
            }
        },
    },
    Kind {
        name: "tcphost16",
        about: "flat16 with one host on TCP, 5 % of its rate",
        make: |d| {
            d.hosts(16);
            let h = d.lot(0, 16);
            d.slow_ports(h..h + 1, 0..8, 0.05);
        },
    },
    Kind {
        name: "sharednic16",
        about: "one NIC for two GPUs",
        make: |d| d.of(vec![with_nics(h100(), 2, 400.0)], vec![0; 16]),
    },
    Kind {
        name: "mixed32",
        about: "16 A100 and 16 H100 hosts behind one switch",
        make: |d| d.of(vec![type_of("dgx-a100"), h100()], (0..32).map(|h| h / 16).collect()),
    },
    Kind {
        name: "mixedleaf32",
        about: "the same behind leaves of 8, told; loss 22 to 34 %",
        make: |d| {
            d.of(vec![type_of("dgx-a100"), h100()], (0..32).map(|h| h / 16).collect());
            d.leaf_of = (0..32).map(|h| h / 8).collect();
            d.leaf_loss = 0.22..0.34;
        },
    },
    Kind {
        name: "uneven32",
        about: "hosts of 8, 4, 2 and 1 GPUs, 8 of each",
        make: |d| {
            let types = [8, 4, 2, 1].into_iter().map(|n| first_gpus(&h100(), n)).collect();
            d.of(types, (0..32).map(|h| h % 4).collect());
        },
    },
    Kind {
        name: "nic4x-over16",
        about: "the file says NICs of 400, they are of 100 Gbit/s",
        make: |d| {
            d.of(vec![with_nics(h100(), 1, 100.0)], vec![0; 16]);
            d.file_nics = FileNics::Times(4.0);
        },
    },
    Kind {
        name: "nic4x-under16",
        about: "the file says NICs of 100, they are of 400 Gbit/s",
        make: |d| {
            d.hosts(16);
            d.file_nics = FileNics::Times(0.25);
        },
    },
    Kind {
        name: "nonic16",
        about: "the file names no NICs",
        make: |d| {
            d.hosts(16);
            d.file_nics = FileNics::Absent;
        },
    },
    Kind {
        name: "drift32",
        about: "after measuring, hosts drift by 4 %, losses change, one host falls to 60 %",
        make: |d| {
            d.leaves(32, 8, 0.15..0.30);
            d.after = After::Drift;
        },
    },
    Kind {
        name: "grow32",
        about: "measured with 24 hosts, 8 more when jobs are placed",
        make: |d| {
            d.leaves(32, 8, 0.15..0.30);
            d.after = After::Hosts { measured: (0..24).collect(), placed: (0..32).collect() };
        },
    },
    Kind {
        name: "shrink32",
        about: "measured with 32 hosts, 4 of them gone when jobs are placed",
        make: |d| {
            d.leaves(32, 8, 0.15..0.30);
            let gone = d.lots(32, 4);
            let placed = (0..32).filter(|h| !gone.contains(h)).collect();
            d.after = After::Hosts { measured: (0..32).collect(), placed };
        },
    },
    Kind {
        name: "contention16",
        about: "one NIC for two GPUs, running jobs on GPUs that are not free",
        make: |d| {
            d.of(vec![with_nics(h100(), 2, 400.0)], vec![0; 16]);
            d.contended = true;
        },
    },
];

/// What the file says of NICs.
enum FileNics {
    True,
    Times(f64),
    Absent,
}

/// What changes between measuring and placing.
enum After {
    Nothing,
    Drift,
    Hosts { measured: Vec<usize>, placed: Vec<usize> },
}

/// A site under construction.
struct Draft {
    key: Keyed,
    types: Vec<HostType>,
    /// Type of every host.
    hosts: Vec<usize>,
    /// Leaf (with rails: unit) of every host.
    leaf_of: Vec<u16>,
    /// Hosts of a pod.
    pod_hosts: usize,
    rails: bool,
    leaf_loss: Range<f64>,
    pod_loss: Range<f64>,
    /// Of leaves and of pods.
    oversubscription: [f64; 2],
    /// Host, port and what is left of its rate.
    slow: Vec<(usize, usize, f64)>,
    /// Does the file name the tiers?
    told: bool,
    file_nics: FileNics,
    noise: f64,
    outliers: f64,
    size: Bytes,
    after: After,
    contended: bool,
}

impl Draft {
    fn new(key: Keyed) -> Self {
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
            file_nics: FileNics::True,
            noise: NOISE,
            outliers: 0.0,
            size: Bytes::mib(256),
            after: After::Nothing,
            contended: false,
        }
    }

    fn of(&mut self, types: Vec<HostType>, hosts: Vec<usize>) {
        self.leaf_of = vec![0; hosts.len()];
        self.pod_hosts = hosts.len();
        (self.types, self.hosts) = (types, hosts);
    }

    fn hosts(&mut self, n: usize) {
        self.of(vec![h100()], vec![0; n]);
    }

    fn leaves(&mut self, hosts: usize, per_leaf: usize, loss: Range<f64>) {
        self.hosts(hosts);
        self.leaf_of = (0..hosts).map(|h| (h / per_leaf) as u16).collect();
        self.leaf_loss = loss;
    }

    fn pods(&mut self, hosts: usize, loss: Range<f64>) {
        (self.pod_hosts, self.pod_loss) = (hosts, loss);
    }

    fn slow_ports(&mut self, hosts: Range<usize>, ports: Range<usize>, left: f64) {
        self.slow.extend(hosts.flat_map(|h| ports.clone().map(move |p| (h, p, left))));
    }

    fn between(&self, purpose: u64, range: Range<f64>) -> f64 {
        range.start + (range.end - range.start) * self.key.with(purpose).uniform()
    }

    fn lot(&self, purpose: u64, below: usize) -> usize {
        (self.key.with(1000 + purpose).uniform() * below as f64) as usize
    }

    /// `count` different numbers, ascending.
    fn lots(&self, below: usize, count: usize) -> Vec<usize> {
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

    /// Number of units of hosts below one leaf (with rails: one set of leaves).
    fn units(&self) -> usize {
        self.leaf_of.iter().max().map_or(1, |m| usize::from(*m) + 1)
    }

    fn network(&self, drift: bool) -> Network {
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
            let luck = (HOST_SPREAD * self.key.with(3000 + h as u64).normal()).exp() * drifted(60_000 + h as u64, 0.04);
            let luck = if fallen == Some(h) { 0.6 * luck } else { luck };
            let port = |(p, nic): (usize, &Nic)| {
                let own = (PORT_SPREAD * self.key.with((4000 + h as u64) << 8 | p as u64).normal()).exp();
                let left: f64 = self.slow.iter().filter(|s| (s.0, s.1) == (h, p)).map(|s| s.2).product();
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
            let lost = self.between(id, loss.clone()) * drifted(id + 61_000, 0.25);
            let traffic = over * self.between(id + 500, BACKGROUND);
            Switch { above, up_gb_per_s: below / over, keeps: (1.0 - lost) * (1.0 / traffic).min(1.0) }
        };
        let leaves = (0..units * rails).map(|i| {
            // The rails of one unit meet in one spine, and lose alike.
            let loss = i / rails;
            switch(5000, loss, above[i], below.0[i], &self.leaf_loss, self.oversubscription[0])
        });
        let pods = (0..pods).map(|i| switch(6000, i, 0, below.1[i], &self.pod_loss, self.oversubscription[1]));
        Network::new(nodes, leaves.collect(), pods.collect())
    }

    /// The switch above every host by level, where there is more than one on it.
    fn switches(&self) -> Vec<Vec<u32>> {
        let leaves: Vec<u32> = self.leaf_of.iter().map(|l| u32::from(*l)).collect();
        let pods = (0..self.hosts.len()).map(|h| (h / self.pod_hosts.max(1)) as u32).collect();
        [leaves, pods].into_iter().filter(|l: &Vec<u32>| l.iter().any(|s| *s != l[0])).collect()
    }

    /// What the cluster file says of the hosts.
    fn file(&self) -> Cluster {
        let mut c = self.healthy();
        for t in &mut c.types {
            match self.file_nics {
                FileNics::True => {}
                FileNics::Absent => t.nics.clear(),
                FileNics::Times(f) => {
                    t.nics.iter_mut().for_each(|n| n.line_rate = Bandwidth::from_gb_per_s(n.line_rate.gb_per_s() * f));
                }
            }
        }
        c
    }

    /// The tiers that the cluster file names, for some of the hosts.
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

    fn draw(self, kind: &Kind, seed: u64) -> Result<Drawn, String> {
        let there = self.healthy();
        let intra = Arc::new(Intra::new(&there, Flavour::AllReduce, self.key.with(1).uniform().to_bits(), INSIDE)?);
        let file = self.file();
        let all: Vec<usize> = (0..self.hosts.len()).collect();
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
                switches: self.switches().iter().map(|l| hosts.iter().map(|h| l[*h]).collect()).collect(),
            })
        };
        let network = self.network(false);
        let (measured, placed) = match &self.after {
            After::Nothing => (site(&network, &all)?, site(&network, &all)?),
            After::Drift => (site(&network, &all)?, site(&self.network(true), &all)?),
            After::Hosts { measured, placed } => (site(&network, measured)?, site(&network, placed)?),
        };
        Ok(Drawn { measured, placed, contended: self.contended })
    }
}

/// A site of a kind; the seed chooses all that is hidden.
///
/// # Errors
/// A name that no kind has.
pub fn draw(kind: &str, seed: u64) -> Result<Drawn, String> {
    let Some(kind) = KINDS.iter().find(|k| k.name == kind) else {
        let known: Vec<&str> = KINDS.iter().map(|k| k.name).collect();
        return Err(format!("`{kind}` is no kind of site; known: {}", known.join(", ")));
    };
    let name = kind.name.bytes().fold(0u64, |h, b| h.wrapping_mul(257).wrapping_add(b.into()));
    let mut draft = Draft::new(Keyed::new(seed, 0x517e).with(name));
    (kind.make)(&mut draft);
    draft.draw(kind, seed)
}

fn type_of(name: &str) -> HostType {
    let known = catalog::host_types().into_iter().find(|t| t.name == name);
    known.unwrap_or_else(|| unreachable!("the catalog has {name}"))
}

fn h100() -> HostType {
    type_of("hgx-h100")
}

/// The NIC that a GPU uses: its own where there is one for each, else the nearest.
fn port_of(t: &HostType, gpu: usize) -> u8 {
    if t.nics.len() == t.gpu_count() { gpu as u8 } else { t.nearest_nics(gpu).trailing_zeros().min(31) as u8 }
}

/// The same host with a NIC for every `per_nic` GPUs.
fn with_nics(mut t: HostType, per_nic: usize, gbit_per_s: f64) -> HostType {
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
fn first_gpus(t: &HostType, n: usize) -> HostType {
    let mut t = t.clone();
    t.name = format!("{}-{n}", t.name);
    t.gpus.truncate(n);
    t.gpu_paths.truncate(n);
    t.gpu_paths.iter_mut().for_each(|row| row.truncate(n));
    t.nics.truncate(n);
    t.nics.iter_mut().for_each(|nic| nic.gpu_paths.truncate(n));
    t
}
