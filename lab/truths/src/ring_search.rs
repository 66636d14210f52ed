//! A ring search over switches, similar to NCCL's: the bandwidth is the result of a search, not of a formula.
//!
//! Every host is a set of directed resources: NVLinks (pairs, or ports of a switch), PCIe links of GPUs, uplinks of
//! PCIe switches and trees, the link between sockets, NICs. For falling speeds a depth-first search lays rings through
//! the chosen GPUs (over hosts: paths that enter by one NIC and leave by one) until no more fit. Each ring takes its
//! speed from every resource on its way. The speed with the largest speed x rings is chosen. Every host has its own
//! search. As in NCCL's agreement on graphs, an allocation gets the fewest rings and the lowest speed of its hosts: `B
//! = rings x speed`, times 0.9 x 2(n-1)/n for two hosts of n GPUs (a tree uses each NIC once), and at most the
//! bandwidth of its slowest host without the others. A host that is fast with many slow rings and a host that is fast
//! with few fast rings are therefore slow together. No minimum of two bandwidths reproduces that.
//!
//! Tiers of switches and links between single hosts are not modelled.

use crate::form::Form;
use crate::randomness::Keyed;
use crate::truth::Parts;
use std::collections::HashMap;
use std::sync::OnceLock;
use topology::{Cluster, GpuMask, HostId, HostType, Nic, PathKind};

/// Maximum number of GPUs of a host: every subset has a separate search.
pub(crate) const GPUS_MAX: usize = 8;
/// Maximum number of rings, like NCCL's channels.
const RINGS_MAX: usize = 16;
/// Steps after which a search for one more ring gives up.
const STEPS_MAX: usize = 300;
/// Speeds that the search tries, GB/s.
const SPEEDS: [f64; 26] = [
    50.0, 48.0, 45.0, 40.0, 36.0, 30.0, 24.0, 22.0, 20.0, 18.0, 15.0, 12.5, 12.0, 11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0,
    4.0, 3.0, 2.0, 1.2, 1.0, 0.6,
];
/// Shares of nominal rates that carry payload.
const NVLINK_SHARE: f64 = 0.88;
const PCIE_SHARE: f64 = 0.80;
const NIC_SHARE: f64 = 0.97;
/// Peer traffic between two sockets, one direction, GB/s.
const SOCKET_LINK_GB_PER_S: f64 = 18.0;
/// Bandwidth of a tree over two hosts relative to twice a ring.
const TREE_SHARE: f64 = 0.9;

/// The result of the search for some GPUs of a host.
#[derive(Clone, Copy, Debug, PartialEq)]
struct FoundRings {
    rings: f64,
    speed: f64,
}

/// One kind of host: its resources and the searches so far.
struct Make {
    capacity: Vec<f64>,
    /// `hop[a][b]`: resources between two GPUs.
    hop: Vec<Vec<Vec<usize>>>,
    /// Per GPU: ways in from the network and out to it, over the nearest NICs only.
    enter: Vec<Vec<Vec<usize>>>,
    leave: Vec<Vec<Vec<usize>>>,
    inside: Vec<OnceLock<FoundRings>>,
    across: Vec<OnceLock<FoundRings>>,
}

/// The truth on one cluster.
pub(crate) struct RingSearch {
    makes: Vec<Make>,
    /// Kind of every host.
    of_host: Vec<usize>,
    seed: u64,
    irregularity: f64,
}

impl RingSearch {
    pub(crate) fn new(cluster: &Cluster, seed: u64, irregularity: f64) -> Result<Self, String> {
        if let Some(t) = cluster.types.iter().find(|t| t.gpu_count() > GPUS_MAX) {
            return Err(format!(
                "ring-search takes hosts of up to {GPUS_MAX} GPUs; `{}` has {}",
                t.name,
                t.gpu_count()
            ));
        }
        let mut makes = Vec::new();
        let mut known: HashMap<String, usize> = HashMap::new();
        let of_host = cluster.host_ids().map(|h| {
            let host = cluster.host(h);
            let key = format!("{} {:?} {:?} {:?}", host.host_type, host.nic_health, host.gpu_health, host.link_health);
            *known.entry(key).or_insert_with(|| {
                makes.push(Make::new(cluster, h));
                makes.len() - 1
            })
        });
        Ok(RingSearch { of_host: of_host.collect(), makes, seed, irregularity })
    }

    fn found(&self, host: HostId, mask: GpuMask, across: bool) -> FoundRings {
        let make = &self.makes[self.of_host[host.index()]];
        let table = if across { &make.across } else { &make.inside };
        *table[mask.0 as usize].get_or_init(|| make.search(mask, across))
    }

    /// Bandwidth of the slowest host without the others. No multi-host job is faster.
    fn inside(&self, parts: Parts) -> f64 {
        let several = parts.iter().filter(|p| p.1.count() > 1);
        several.map(|&(h, m)| self.found(h, m, false)).map(|f| f.rings * f.speed).fold(f64::INFINITY, f64::min)
    }

    fn agreed(&self, parts: Parts) -> FoundRings {
        let all = parts.iter().map(|&(h, m)| self.found(h, m, true));
        all.fold(FoundRings { rings: f64::INFINITY, speed: f64::INFINITY }, |a, b| FoundRings {
            rings: a.rings.min(b.rings),
            speed: a.speed.min(b.speed),
        })
    }
}

/// Groups of GPUs that are connected by links of this label or a closer one.
fn groups(paths: &[Vec<PathKind>], farthest: PathKind) -> Vec<usize> {
    let near = |p: PathKind| matches!(p, PathKind::Pix | PathKind::Pxb) && p <= farthest;
    let mut group: Vec<usize> = (0..paths.len()).collect();
    for a in 0..paths.len() {
        for b in 0..a {
            if near(paths[a][b]) && group[a] != group[b] {
                let (from, to) = (group[a], group[b]);
                group.iter_mut().filter(|g| **g == from).for_each(|g| *g = to);
            }
        }
    }
    group
}

/// Resources of a host by number, with the capacity of each in GB/s.
#[derive(Default)]
struct Resources(Vec<f64>);

impl Resources {
    fn add(&mut self, gb_per_s: f64) -> usize {
        self.0.push(gb_per_s);
        self.0.len() - 1
    }

    fn add_many(&mut self, count: usize, gb_per_s: impl Fn(usize) -> f64) -> Vec<usize> {
        (0..count).map(|i| self.add(gb_per_s(i))).collect()
    }
}

/// One direction of a host's PCIe links: those of GPUs, by GPU, and those of switches and of trees, by their group.
struct Direction {
    gpu: Vec<usize>,
    switch: Vec<usize>,
    tree: Vec<usize>,
}

/// The parts of the PCIe tree that a path between two devices passes upwards from one device.
#[derive(Clone, Copy)]
struct Leaves {
    switch: bool,
    tree: bool,
}

/// A host's PCIe: GPUs below switches, switches below trees, trees below sockets.
struct PcieTree<'a> {
    of: &'a HostType,
    /// Group of every GPU: the GPUs below one switch, and those of one tree.
    switch: Vec<usize>,
    tree: Vec<usize>,
    /// The direction away from the GPUs, and the direction to the GPUs.
    up: Direction,
    down: Direction,
    /// Links between sockets, at index `from * sockets + to`.
    between_sockets: Vec<usize>,
    sockets: usize,
}

impl<'a> PcieTree<'a> {
    fn new(of: &'a HostType, health: impl Fn(usize) -> f64, resources: &mut Resources) -> Self {
        let n = of.gpu_count();
        let rate = of.pcie.rate().gb_per_s() * PCIE_SHARE;
        let mut direction = || Direction {
            gpu: resources.add_many(n, |g| rate * health(g)),
            switch: resources.add_many(n, |_| rate),
            tree: resources.add_many(n, |_| rate),
        };
        let (up, down) = (direction(), direction());
        let sockets = usize::from(of.gpus.iter().map(|g| g.socket).max().unwrap_or(0)) + 1;
        PcieTree {
            of,
            switch: groups(&of.gpu_paths, PathKind::Pix),
            tree: groups(&of.gpu_paths, PathKind::Pxb),
            up,
            down,
            between_sockets: resources.add_many(sockets * sockets, |_| SOCKET_LINK_GB_PER_S),
            sockets,
        }
    }

    /// The links of a GPU in one direction, up to the last part that the path passes. A switch or tree with only one GPU has no
    /// separate link.
    fn links(&self, direction: &Direction, gpu: usize, leaves: Leaves) -> Vec<usize> {
        let shared = |group: &[usize]| group.iter().filter(|x| **x == group[gpu]).count() > 1;
        let mut r = vec![direction.gpu[gpu]];
        if leaves.switch && shared(&self.switch) {
            r.push(direction.switch[self.switch[gpu]]);
        }
        if leaves.tree && shared(&self.tree) {
            r.push(direction.tree[self.tree[gpu]]);
        }
        r
    }

    fn socket_link(&self, from: u8, to: u8) -> Option<usize> {
        (from != to).then(|| self.between_sockets[usize::from(from) * self.sockets + usize::from(to)])
    }

    /// The links from one GPU to another.
    fn between(&self, a: usize, b: usize) -> Vec<usize> {
        let leaves = Leaves { switch: self.switch[a] != self.switch[b], tree: self.tree[a] != self.tree[b] };
        let mut r = self.links(&self.up, a, leaves);
        r.extend(self.links(&self.down, b, leaves));
        if self.of.gpu_paths[a][b] == PathKind::Sys {
            r.extend(self.socket_link(self.of.gpus[a].socket, self.of.gpus[b].socket));
        }
        r
    }

    /// The links from a NIC to a GPU, and from the GPU to the NIC.
    fn nic_ways(&self, nic: &Nic, gpu: usize) -> (Vec<usize>, Vec<usize>) {
        let label = nic.gpu_paths[gpu];
        let leaves = Leaves { switch: label > PathKind::Pix, tree: label > PathKind::Pxb };
        let (mut enter, mut leave) = (self.links(&self.down, gpu, leaves), self.links(&self.up, gpu, leaves));
        if let (PathKind::Sys, Some(socket)) = (label, nic.socket) {
            enter.extend(self.socket_link(socket, self.of.gpus[gpu].socket));
            leave.extend(self.socket_link(self.of.gpus[gpu].socket, socket));
        }
        (enter, leave)
    }
}

impl Make {
    fn new(cluster: &Cluster, host: HostId) -> Make {
        let t = cluster.type_of(host);
        let n = t.gpu_count();
        let mut resources = Resources::default();
        let health = |g: usize| cluster.host(host).gpu_health.get(g).copied().unwrap_or(1.0);
        let pcie = PcieTree::new(t, health, &mut resources);
        let hop = Make::hops(cluster, host, &pcie, &mut resources);
        let (mut enter, mut leave) = (vec![Vec::new(); n], vec![Vec::new(); n]);
        for (i, nic) in t.nics.iter().enumerate() {
            let rate = cluster.nic_rate(host, i).gb_per_s() * NIC_SHARE;
            let (nic_in, nic_out) = (resources.add(rate), resources.add(rate));
            for g in (0..n).filter(|g| t.nearest_nics(*g) >> i & 1 == 1) {
                let (mut way_in, mut way_out) = pcie.nic_ways(nic, g);
                way_in.push(nic_in);
                way_out.push(nic_out);
                enter[g].push(way_in);
                leave[g].push(way_out);
            }
        }
        let empty = || (0..1usize << n).map(|_| OnceLock::new()).collect();
        Make { capacity: resources.0, hop, enter, leave, inside: empty(), across: empty() }
    }

    /// The resources between any two GPUs: the NVLinks of the pair, the ports of an NVLink switch, or PCIe.
    fn hops(cluster: &Cluster, host: HostId, pcie: &PcieTree, resources: &mut Resources) -> Vec<Vec<Vec<usize>>> {
        let t = cluster.type_of(host);
        let n = t.gpu_count();
        let link = t.nvlink.map_or(0.0, |nv| nv.link_rate.gb_per_s() * NVLINK_SHARE);
        let switched = t.nvlink.is_some_and(|nv| nv.switched);
        let links = |a: usize, b: usize| if let PathKind::NvLink(n) = t.gpu_paths[a][b] { f64::from(n) } else { 0.0 };
        let health = |g: usize| cluster.host(host).gpu_health.get(g).copied().unwrap_or(1.0);
        let port = |g: usize| (0..n).map(|b| links(g, b)).fold(0.0, f64::max) * link * health(g);
        let (port_out, port_in) = (resources.add_many(n, port), resources.add_many(n, port));
        let mut hop = vec![vec![Vec::new(); n]; n];
        for a in 0..n {
            for b in (0..n).filter(|b| *b != a) {
                hop[a][b] = match t.gpu_paths[a][b] {
                    PathKind::NvLink(_) if switched => vec![port_out[a], port_in[b]],
                    PathKind::NvLink(_) => vec![resources.add(links(a, b) * link * cluster.link_health(host, a, b))],
                    _ => pcie.between(a, b),
                };
            }
        }
        hop
    }

    /// The best speed and its rings; one ring of almost no bandwidth if none fits.
    fn search(&self, mask: GpuMask, across: bool) -> FoundRings {
        let gpus: Vec<usize> = mask.iter().collect();
        let mut best = FoundRings { rings: 1.0, speed: SPEEDS[SPEEDS.len() - 1] / 2.0 };
        for speed in SPEEDS {
            if speed * RINGS_MAX as f64 <= best.rings * best.speed {
                break;
            }
            let mut left = self.capacity.clone();
            let mut rings = 0;
            while rings < RINGS_MAX && self.ring(&gpus, across, speed, rings, &mut left) {
                rings += 1;
            }
            if rings as f64 * speed > best.rings * best.speed {
                best = FoundRings { rings: rings as f64, speed };
            }
        }
        best
    }

    /// Lays one more ring, if one fits. `turn` rotates the start of the search, so that NICs are used in turn.
    fn ring(&self, gpus: &[usize], across: bool, speed: f64, turn: usize, left: &mut [f64]) -> bool {
        let n = gpus.len();
        let mut steps = STEPS_MAX;
        for i in 0..if across { n } else { 1 } {
            let first = (turn + i) % n;
            let ways: &[Vec<usize>] = if across { &self.enter[gpus[first]] } else { &[Vec::new()] };
            for j in 0..ways.len() {
                let way = &ways[(turn + j) % ways.len()];
                if take(left, way, speed) {
                    if self.extend(gpus, across, speed, first, first, 1 << first, left, &mut steps) {
                        return true;
                    }
                    give(left, way, speed);
                }
            }
        }
        false
    }

    #[allow(clippy::too_many_arguments)] // the state of one depth-first search
    fn extend(
        &self,
        gpus: &[usize],
        across: bool,
        speed: f64,
        first: usize,
        last: usize,
        seen: u32,
        left: &mut [f64],
        steps: &mut usize,
    ) -> bool {
        if *steps == 0 {
            return false;
        }
        *steps -= 1;
        if seen.count_ones() as usize == gpus.len() {
            let closing = std::slice::from_ref(&self.hop[gpus[last]][gpus[first]]);
            let ways: &[Vec<usize>] = if across { &self.leave[gpus[last]] } else { closing };
            return ways.iter().any(|w| take(left, w, speed));
        }
        for i in 1..gpus.len() {
            let next = (last + i) % gpus.len();
            if seen >> next & 1 == 1 {
                continue;
            }
            let way = &self.hop[gpus[last]][gpus[next]];
            if take(left, way, speed) {
                if self.extend(gpus, across, speed, first, next, seen | 1 << next, left, steps) {
                    return true;
                }
                give(left, way, speed);
            }
        }
        false
    }
}

/// Takes a speed from all resources of a way, or from none of them.
fn take(left: &mut [f64], way: &[usize], speed: f64) -> bool {
    let fits = way.iter().all(|r| left[*r] >= speed - 1e-9);
    if fits {
        way.iter().for_each(|r| left[*r] -= speed);
    }
    fits
}

fn give(left: &mut [f64], way: &[usize], speed: f64) {
    way.iter().for_each(|r| left[*r] += speed);
}

impl Form for RingSearch {
    fn one_host(&self, host: HostId, mask: GpuMask) -> f64 {
        let f = self.found(host, mask, false);
        let key = Keyed::new(self.seed, 0x1e7a).parts(&[(host, mask)]);
        f.rings * f.speed * (self.irregularity * key.normal()).exp()
    }
    fn hosts(&self, parts: Parts) -> f64 {
        let n: f64 = parts.iter().map(|p| p.1.count() as f64).sum();
        let f = self.agreed(parts);
        (f.rings * f.speed * tree_gain(parts.len() == 2, n)).min(self.inside(parts))
    }
    fn merits(&self, host: HostId, mask: GpuMask) -> [f64; 3] {
        let f = self.found(host, mask, true);
        [f.rings, f.speed, self.inside(&[(host, mask)])]
    }
    fn at_most(&self, chosen: Parts, gpus: usize) -> f64 {
        let f = self.agreed(chosen);
        (f.rings * f.speed * tree_gain(chosen.len() < 2, gpus as f64)).min(self.inside(chosen))
    }
}

/// The gain of a tree over two hosts compared with rings.
fn tree_gain(two_hosts: bool, gpus: f64) -> f64 {
    if two_hosts { (TREE_SHARE * 2.0 * (gpus - 1.0) / gpus).max(1.0) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::catalog;

    fn search(cluster: &str) -> RingSearch {
        RingSearch::new(&catalog::cluster(cluster).unwrap(), 0, 0.0).unwrap()
    }
    fn found(host: u32, gpus: &[usize], across: bool) -> f64 {
        let f = search("het-4mix").found(HostId(host), GpuMask::from_indices(gpus.iter().copied()), across);
        f.rings * f.speed
    }

    #[test]
    fn rings_inside_hosts_follow_their_links() {
        // 4090: PCIe Gen4 x16 at 80 % is 25 GB/s; across sockets 18.
        assert!(found(0, &[0, 1], false) > found(0, &[0, 4], false));
        // V100: two links, one link, none.
        assert!((found(1, &[0, 2], false) - 44.0).abs() < 1.0 && (found(1, &[0, 1], false) - 22.0).abs() < 1.0);
        assert!(found(1, &[0, 4], false) < 13.0);
        assert!(found(1, &[0, 1, 2, 3, 4, 5, 6, 7], false) >= 88.0, "several rings through all eight");
        // A6000: a bridge beats the switch, which beats the sockets.
        assert!(
            found(2, &[0, 1], false) > found(2, &[0, 2], false) && found(2, &[0, 2], false) > found(2, &[0, 4], false)
        );
        assert!((found(3, &[0, 1, 2, 3, 4, 5, 6, 7], false) - 176.0).abs() < 16.0);
    }

    #[test]
    fn over_hosts_rings_need_nics() {
        let s = search("h100");
        let f = |c: usize| s.hosts(&[0, 1, 2].map(|h| (HostId(h), GpuMask::first(c))));
        assert!((f(8) - 384.0).abs() < 16.0, "{}", f(8));
        assert!((f(1) / f(8) - 1.0 / 8.0).abs() < 0.02, "one NIC per GPU");
        // An A6000 host has one NIC for any number of GPUs.
        assert!((found(2, &[0], true) - found(2, &[0, 1, 2, 3], true)).abs() < 1.0);
    }

    #[test]
    fn a_dead_nic_costs_its_rings() {
        let mut cluster = catalog::cluster("h100").unwrap();
        cluster.hosts[1].nic_health = vec![1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0];
        let s = RingSearch::new(&cluster, 0, 0.0).unwrap();
        let f = |h: u32| {
            s.hosts(&[(HostId(0), GpuMask::first(8)), (HostId(h), GpuMask::first(8)), (HostId(3), GpuMask::first(8))])
        };
        assert!(f(1) < 0.9 * f(2));
    }
}
