//! A switch graph, and the bandwidth that simulated rings and trees get on it.
//!
//! Hosts have ports (NICs) at leaf switches, leaves are below pods, pods below one core. A collective runs as channels:
//! channel `c` uses on every host the port of its `c`-th chosen GPU (in turn if there are fewer GPUs). For every
//! channel a ring over the hosts by id and a double binary tree are laid, and their loads on every port and uplink are
//! added up. The time per byte is a p-norm of all loads over rates, so that no single link decides alone: `(sum over
//! hosts (port^6 + inside^6)^(24/6) + sum over uplinks load^24)^(1/24)`.
//!
//! Time of a message: a ring pays a minimum time per step, which overlaps with the bytes; a tree pays per level. Two
//! hosts use the tree. More hosts use the algorithm that is faster at the nominal rate of their ports, because NCCL
//! decides without knowledge of the switches. O(hosts x channels) per allocation, about 3 microseconds for 40 hosts.

use crate::intra::Intra;
use crate::truth::Parts;
use topology::{GpuMask, HostId};

/// Number of channels if hosts give different numbers of GPUs; otherwise the number of GPUs per host.
const CHANNELS: usize = 48;
/// Maximum number of ports, and of GPUs, of a host.
pub(crate) const PORTS_MAX: usize = 8;
/// Loss for every further GPU on one port.
const CROWDING: f64 = 0.03;
/// Share of the links' bandwidth that a tree over three and more hosts gets, relative to a ring.
const TREE_SHARE: f64 = 0.80;
/// The same over two hosts.
const TREE_SHARE_OF_TWO: f64 = 0.95;
/// One step of a ring, seconds.
const RING_STEP_S: f64 = 5e-6;
/// One level of a tree, seconds, and the share of the whole message that is in flight on it.
const TREE_LEVEL_S: f64 = 10e-6;
const TREE_LEVEL_SHARE: f64 = 0.012;
/// Nominal rate of one GPU's port by which the algorithm is chosen, GB/s.
const NOMINAL_PORT_GB_PER_S: f64 = 45.0;
/// Start of any collective, seconds.
const START_S: f64 = 20e-6;

/// A NIC at its switch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    /// Its rate in one direction, GB/s.
    pub gb_per_s: f64,
    /// Its leaf switch.
    pub leaf: u16,
}

/// A host.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The index of its type.
    pub make: u64,
    pub ports: Vec<Port>,
    /// The port of every GPU.
    pub port_of_gpu: Vec<u8>,
}

/// A switch with links upwards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Switch {
    /// The switch above it.
    pub above: u16,
    /// Total rate of its uplinks in one direction, GB/s.
    pub up_gb_per_s: f64,
    /// Share of its rate that a flow keeps on its way through the switch above (collisions of hashed flows, other traffic).
    pub keeps: f64,
}

/// The graph.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    pub nodes: Vec<Node>,
    pub leaves: Vec<Switch>,
    pub pods: Vec<Switch>,
    /// Edges (parent, child) of both trees by number of hosts.
    trees: Vec<Vec<(u16, u16)>>,
}

/// Loads on one graph: shares of the message, in and out of every port of the hosts that take part, and up and down of every switch.
struct Loads {
    out: Vec<[f64; PORTS_MAX]>,
    into: Vec<[f64; PORTS_MAX]>,
    leaf: Vec<[f64; 2]>,
    pod: Vec<[f64; 2]>,
}

impl Network {
    pub(crate) fn new(nodes: Vec<Node>, leaves: Vec<Switch>, pods: Vec<Switch>) -> Self {
        let trees = (0..=nodes.len()).map(double_tree).collect();
        Network { nodes, leaves, pods, trees }
    }

    /// The network of these hosts only, in this order.
    pub(crate) fn of_hosts(&self, hosts: &[usize]) -> Self {
        let nodes = hosts.iter().map(|h| self.nodes[*h].clone()).collect();
        Network::new(nodes, self.leaves.clone(), self.pods.clone())
    }

    /// Share of its rate that a flow keeps from one port to another.
    #[inline]
    fn keeps(&self, a: u16, b: u16) -> f64 {
        if a == b {
            return 1.0;
        }
        let (x, y) = (&self.leaves[a as usize], &self.leaves[b as usize]);
        let leaf = (x.keeps * y.keeps).sqrt();
        if x.above == y.above {
            return leaf;
        }
        leaf * (self.pods[x.above as usize].keeps * self.pods[y.above as usize].keeps).sqrt()
    }

    /// Adds a flow of `share` of the message from port to port.
    #[inline]
    fn flow(&self, l: &mut Loads, share: f64, (i, a): (usize, (usize, u16)), (j, b): (usize, (usize, u16))) {
        let (from, to) = (a.1, b.1);
        if from == to {
            l.out[i][a.0] += share;
            l.into[j][b.0] += share;
            return;
        }
        let slowed = share / self.keeps(from, to);
        l.out[i][a.0] += slowed;
        l.into[j][b.0] += slowed;
        l.leaf[from as usize][0] += share;
        l.leaf[to as usize][1] += share;
        let (p, q) = (self.leaves[from as usize].above, self.leaves[to as usize].above);
        if p != q {
            l.pod[p as usize][0] += share;
            l.pod[q as usize][1] += share;
        }
    }

    /// Ports by channel of every host that takes part.
    fn channels(&self, parts: Parts) -> (usize, Vec<(usize, u16)>) {
        let first = parts[0].1.count();
        let channels = if parts.iter().all(|p| p.1.count() == first) { first } else { CHANNELS };
        let mut out = Vec::with_capacity(channels * parts.len());
        for (h, m) in parts {
            let node = &self.nodes[h.index()];
            let mut of_gpu = [(0usize, 0u16); PORTS_MAX];
            let mut n = 0;
            for g in m.iter() {
                let p = node.port_of_gpu[g] as usize;
                of_gpu[n] = (p, node.ports[p].leaf);
                n += 1;
            }
            out.extend((0..channels).map(|c| of_gpu[c % n]));
        }
        (channels, out)
    }

    fn empty(&self, hosts: usize) -> Loads {
        Loads {
            out: vec![[0.0; PORTS_MAX]; hosts],
            into: vec![[0.0; PORTS_MAX]; hosts],
            leaf: vec![[0.0; 2]; self.leaves.len()],
            pod: vec![[0.0; 2]; self.pods.len()],
        }
    }

    fn ring(&self, parts: Parts, channels: usize, port: &[(usize, u16)]) -> Loads {
        let n = parts.len();
        let mut l = self.empty(n);
        let share = 1.0 / channels as f64;
        for i in 0..n {
            let j = if i + 1 == n { 0 } else { i + 1 };
            for c in 0..channels {
                self.flow(&mut l, share, (i, port[i * channels + c]), (j, port[j * channels + c]));
            }
        }
        l
    }

    fn tree(&self, parts: Parts, channels: usize, port: &[(usize, u16)]) -> Loads {
        let mut l = self.empty(parts.len());
        let share = 0.5 / channels as f64;
        for &(p, c) in &self.trees[parts.len()] {
            let (p, q) = (usize::from(p), usize::from(c));
            for c in 0..channels {
                // Flows are symmetric: the loads out of a port equal the loads into it.
                let (a, b) = (port[p * channels + c], port[q * channels + c]);
                if a.1 == b.1 {
                    l.out[p][a.0] += share;
                    l.out[q][b.0] += share;
                } else {
                    self.flow(&mut l, share, (q, b), (p, a));
                    self.flow(&mut l, share, (p, a), (q, b));
                }
            }
        }
        l
    }

    /// Soft maximum of the seconds per GB over the links. `inside_of` is the weight of the links inside hosts.
    fn slowness(&self, parts: Parts, l: &Loads, intra: &Intra, inside_of: f64) -> f64 {
        let mut sum = 0.0;
        for (i, (h, m)) in parts.iter().enumerate() {
            let node = &self.nodes[h.index()];
            let mut users = [0u8; PORTS_MAX];
            m.iter().for_each(|g| users[node.port_of_gpu[g] as usize] += 1);
            let mut port = 0f64;
            for (p, at) in node.ports.iter().enumerate().filter(|p| users[p.0] > 0) {
                let rate = at.gb_per_s / (1.0 + CROWDING * f64::from(users[p] - 1));
                port = port.max(l.out[i][p].max(l.into[i][p]) / rate);
            }
            let inside = inside_of / intra.limit(*h, *m);
            sum += (port.powi(6) + inside.powi(6)).powi(4);
        }
        for (switch, load) in self.leaves.iter().zip(&l.leaf).chain(self.pods.iter().zip(&l.pod)) {
            let load = load[0].max(load[1]);
            if load > 0.0 {
                sum += (load / switch.up_gb_per_s).powi(24);
            }
        }
        sum.powf(1.0 / 24.0)
    }

    /// Bus bandwidth over two hosts or more, GB/s.
    pub(crate) fn busbw(&self, parts: Parts, intra: &Intra, size_bytes: f64) -> f64 {
        let (channels, port) = self.channels(parts);
        let n = parts.len();
        let ranks: usize = parts.iter().map(|p| p.1.count()).sum();
        let factor = 2.0 * (ranks as f64 - 1.0) / ranks as f64;
        let gb = size_bytes / 1e9;
        let steps = 2.0 * (ranks as f64 - 1.0);
        let ring_s = |bytes: f64| START_S + ((steps * RING_STEP_S).powi(4) + bytes.powi(4)).powf(0.25);
        let levels = 2.0 * f64::from(usize::BITS - (n - 1).leading_zeros());
        let share = if n == 2 { TREE_SHARE_OF_TWO } else { TREE_SHARE };
        let tree_s = |body: f64| START_S + body / share + levels * (TREE_LEVEL_S + TREE_LEVEL_SHARE * body / share);
        let nominal = gb * factor * n as f64 / (NOMINAL_PORT_GB_PER_S * ranks as f64);
        let seconds = if n == 2 || tree_s(nominal) < ring_s(nominal) {
            tree_s(gb * self.slowness(parts, &self.tree(parts, channels, &port), intra, factor))
        } else {
            ring_s(gb * factor * self.slowness(parts, &self.ring(parts, channels, &port), intra, 1.0))
        };
        gb * factor / seconds
    }

    /// Bus bandwidth inside one host, GB/s.
    pub(crate) fn busbw_inside((h, m): (HostId, GpuMask), intra: &Intra, size_bytes: f64) -> f64 {
        let ranks = m.count() as f64;
        let bytes = size_bytes / 1e9 * 2.0 * (ranks - 1.0) / ranks;
        bytes / (START_S + bytes / intra.alone(h, m))
    }

    /// The rate of every port and uplink that running jobs leave. Each job uses the links of its rings at its own
    /// bandwidth (GB/s). What is left is the rest of the rate, and at least a fair share.
    pub(crate) fn among(&self, jobs: &[(Parts, f64)]) -> Network {
        let mut left = self.clone();
        let mut ports: Vec<Vec<(f64, f64)>> = self.nodes.iter().map(|n| vec![(0.0, 0.0); n.ports.len()]).collect();
        let mut ups = vec![(0.0, 0.0); self.leaves.len() + self.pods.len()];
        for (parts, gb_per_s) in jobs.iter().filter(|j| j.0.len() > 1) {
            let (channels, port) = self.channels(parts);
            let l = self.ring(parts, channels, &port);
            for (i, (h, _)) in parts.iter().enumerate() {
                for (p, used) in ports[h.index()].iter_mut().enumerate() {
                    let load = l.out[i][p].max(l.into[i][p]) * gb_per_s;
                    *used = (used.0 + load, used.1 + f64::from(u8::from(load > 0.0)));
                }
            }
            for (used, load) in ups.iter_mut().zip(l.leaf.iter().chain(&l.pod)) {
                let load = load[0].max(load[1]) * gb_per_s;
                *used = (used.0 + load, used.1 + f64::from(u8::from(load > 0.0)));
            }
        }
        let rest = |rate: f64, (load, users): (f64, f64)| (rate - load).max(rate / (1.0 + users));
        for (node, used) in left.nodes.iter_mut().zip(&ports) {
            node.ports.iter_mut().zip(used).for_each(|(p, u)| p.gb_per_s = rest(p.gb_per_s, *u));
        }
        let switches = left.leaves.iter_mut().chain(left.pods.iter_mut());
        switches.zip(ups).for_each(|(s, u)| s.up_gb_per_s = rest(s.up_gb_per_s, u));
        left
    }
}

/// Edges (parent, child) of NCCL's double binary tree: a balanced tree in which odd places are leaves, and its mirror
/// image (even numbers) or the same tree moved by one (odd numbers), so that a host is a leaf in one of the two.
fn double_tree(n: usize) -> Vec<(u16, u16)> {
    if n < 2 {
        return Vec::new();
    }
    let mut edges = Vec::new();
    for at in 1..n {
        // The lowest set bit of a place gives its level. The parent has the next higher bit set, if there is such a
        // place.
        let bit = 1usize << at.trailing_zeros();
        let up = (at ^ bit) | (bit << 1);
        let parent = if up >= n { at ^ bit } else { up };
        edges.push((parent, at));
    }
    let second = |i: usize| if n.is_multiple_of(2) { n - 1 - i } else { (i + 1) % n };
    let both = edges.iter().map(|e| (second(e.0), second(e.1))).collect::<Vec<_>>();
    edges.into_iter().chain(both).map(|(p, c)| (p as u16, c as u16)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_trees_span_all_hosts_without_a_circle() {
        for n in 2..70 {
            let edges = double_tree(n);
            assert_eq!(edges.len(), 2 * (n - 1), "{n}");
            for tree in edges.chunks(n - 1) {
                let mut parent = vec![None; n];
                for (p, c) in tree {
                    assert!(parent[*c as usize].replace(*p as usize).is_none(), "{n}: {c} has two parents");
                }
                for start in 0..n {
                    let (mut at, mut steps) = (start, 0);
                    while let Some(p) = parent[at] {
                        (at, steps) = (p, steps + 1);
                        assert!(steps <= 16, "{n}: a circle or a chain at {start}");
                    }
                }
            }
        }
    }
}
