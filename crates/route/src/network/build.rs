//! Builds the links and paths of a cluster.

use super::{
    CAPACITY_MAX_GB_PER_S, Leg, Link, LinkKind, LinkRate, OVERRIDES_MAX, RoutingNetwork, RoutingNetworkError,
    RoutingOptions,
};
use crate::demand::RANKS_MAX;
use crate::rules::PATHS_MAX;
use std::collections::HashMap;
use topology::{Cluster, GpuId, HostId, HostType, PathKind};

/// One host's ranks and the NVLinks between them.
struct HostBuild<'a> {
    id: HostId,
    name: &'a str,
    kind: &'a HostType,
    gpus: Vec<usize>,
    /// NVLink legs between two ranks (indices in `gpus`): one link, or two over a switch; empty if there is none.
    nvlink: Vec<Vec<Leg>>,
}

pub(super) struct Builder<'a> {
    cluster: &'a Cluster,
    options: &'a RoutingOptions,
    net: RoutingNetwork,
    node_ids: HashMap<String, u32>,
    link_ids: HashMap<(u32, u32), u32>,
    rates: HashMap<(String, String), LinkRate>,
    relay_loop: Vec<Option<u32>>,
}

/// Checks the limits on ranks, overrides and rates.
fn check(ranks: usize, options: &RoutingOptions) -> Result<(), RoutingNetworkError> {
    if ranks == 0 {
        return Err(RoutingNetworkError::Empty);
    }
    if ranks > RANKS_MAX {
        return Err(RoutingNetworkError::TooManyRanks(ranks));
    }
    if options.overrides.len() > OVERRIDES_MAX {
        return Err(RoutingNetworkError::TooManyOverrides(options.overrides.len()));
    }
    for (what, rate) in
        [("the relay read limit", options.relay_read_gb_per_s), ("the relay write limit", options.relay_write_gb_per_s)]
    {
        if let Some(gb_per_s) = rate.filter(|r| !(0.0..=CAPACITY_MAX_GB_PER_S).contains(r)) {
            return Err(RoutingNetworkError::Rate { what, gb_per_s });
        }
    }
    Ok(())
}

/// Lists the properties of a cluster that the model ignores.
fn notes(cluster: &Cluster) -> Vec<String> {
    let mut notes = Vec::new();
    if !cluster.network.host_links.is_empty() {
        notes.push("the routing model ignores the rates of single pairs of hosts".to_string());
    }
    if cluster.network.tiers.iter().any(|t| t.oversubscription > 1.0) {
        notes.push("the routing model ignores oversubscribed switch tiers".to_string());
    }
    notes
}

impl<'a> Builder<'a> {
    pub(super) fn new(cluster: &'a Cluster, options: &'a RoutingOptions) -> Result<Self, RoutingNetworkError> {
        let usable = options.gpus.clone().unwrap_or_else(|| cluster.usable());
        let ranks: Vec<GpuId> = usable.gpus().collect();
        check(ranks.len(), options)?;
        let mut first = Vec::new();
        let mut host_of = Vec::new();
        for (h, &(_, mask)) in usable.parts().iter().enumerate() {
            first.push(host_of.len() as u32);
            host_of.extend(std::iter::repeat_n(h as u16, mask.count()));
        }
        first.push(host_of.len() as u32);
        let net = RoutingNetwork {
            name: cluster.name.clone(),
            nodes: Vec::new(),
            links: Vec::new(),
            notes: notes(cluster),
            inverse: Vec::new(),
            host_of,
            first,
            slots: 0,
            host_nics: Vec::new(),
            out_alive: Vec::new(),
            in_alive: Vec::new(),
            out_legs: Vec::new(),
            in_legs: Vec::new(),
            home: vec![0; ranks.len()],
            intra: Vec::new(),
            intra_share: Vec::new(),
            intra_at: vec![0],
            intra_row: Vec::new(),
            direct: Vec::new(),
            masks: Vec::new(),
            weights: Vec::new(),
            rank_rates: Vec::new(),
            host_rates: Vec::new(),
            ranks,
        };
        let rates = options.overrides.iter().map(|o| ((o.from.clone(), o.to.clone()), o.rate)).collect();
        Ok(Builder {
            cluster,
            options,
            net,
            node_ids: HashMap::new(),
            link_ids: HashMap::new(),
            rates,
            relay_loop: Vec::new(),
        })
    }

    fn node_id(&mut self, name: String) -> u32 {
        let next = self.net.nodes.len() as u32;
        *self.node_ids.entry(name.clone()).or_insert_with(|| {
            self.net.nodes.push(name);
            next
        })
    }

    /// The link between two nodes. Creates it on the first call.
    fn link_id(&mut self, from: u32, to: u32, gb_per_s: f64, kind: LinkKind) -> u32 {
        if let Some(&l) = self.link_ids.get(&(from, to)) {
            return l;
        }
        let ends = (self.net.nodes[from as usize].clone(), self.net.nodes[to as usize].clone());
        let capacity_gb_per_s = match self.rates.remove(&ends) {
            Some(LinkRate::GbPerS(v)) => v,
            Some(LinkRate::Share(s)) => gb_per_s * s,
            None => gb_per_s,
        };
        let id = self.net.links.len() as u32;
        self.net.links.push(Link { from, to, capacity_gb_per_s, kind });
        self.link_ids.insert((from, to), id);
        id
    }

    fn gpu_node(&mut self, local: &HostBuild, g: usize) -> u32 {
        self.node_id(format!("{}:{}", local.name, local.gpus[g]))
    }

    fn is_alive(&self, leg: &Leg) -> bool {
        leg.links().iter().all(|&l| self.net.links[l as usize].capacity_gb_per_s > 0.0)
    }

    pub(super) fn build(mut self) -> Result<RoutingNetwork, RoutingNetworkError> {
        for r in 0..self.net.ranks.len() {
            let GpuId { host, gpu } = self.net.ranks[r];
            self.node_id(format!("{}:{gpu}", self.cluster.host(host).name));
        }
        let usable = self.options.gpus.clone().unwrap_or_else(|| self.cluster.usable());
        let mut locals = Vec::new();
        for &(id, mask) in usable.parts() {
            let mut local = HostBuild {
                id,
                name: &self.cluster.host(id).name,
                kind: self.cluster.type_of(id),
                gpus: mask.iter().collect(),
                nvlink: Vec::new(),
            };
            self.add_nvlinks(&mut local);
            locals.push(local);
        }
        self.add_relay_limits();
        for local in &locals {
            self.add_intra_host_paths(local);
        }
        self.add_inter_host_paths(&locals);
        if let Some((from, to)) = self.rates.keys().min().cloned() {
            let known = |n: &str| self.node_ids.contains_key(n);
            let hint = match (known(&from), known(&to)) {
                (true, true) => format!("; links from `{from}` go to {}", self.name_neighbours(&from)),
                (false, _) => format!("; there is no node `{from}`. Nodes are {} and so on", self.name_some_nodes()),
                _ => format!("; there is no node `{to}`. Links from `{from}` go to {}", self.name_neighbours(&from)),
            };
            return Err(RoutingNetworkError::NoSuchLink { from, to, hint });
        }
        let mut net = self.net;
        let hosts = net.host_count();
        net.masks = (0..hosts * hosts)
            .map(|p| if p / hosts == p % hosts { 0 } else { net.find_slots(p / hosts, p % hosts) })
            .collect();
        net.compute_rates();
        Ok(net)
    }

    fn name_neighbours(&self, from: &str) -> String {
        let id = self.node_ids[from];
        let to = self.net.links.iter().filter(|l| l.from == id).map(|l| self.net.nodes[l.to as usize].as_str());
        to.take(8).collect::<Vec<_>>().join(", ")
    }

    fn name_some_nodes(&self) -> String {
        let n = &self.net.nodes;
        n.iter().take(4).chain(n.iter().skip(4).rev().take(2)).map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    /// Rate of the link between two GPUs as a share of the nominal rate.
    fn link_health(&self, local: &HostBuild, i: usize, j: usize) -> f64 {
        let h = self.cluster.host(local.id);
        let gpu = |g: usize| h.gpu_health.get(g).copied().unwrap_or(1.0);
        let pair = h.link_health.iter().filter(|l| {
            (usize::from(l.a), usize::from(l.b)) == (i, j) || (usize::from(l.b), usize::from(l.a)) == (i, j)
        });
        pair.map(|l| l.factor).fold(gpu(i).min(gpu(j)), f64::min)
    }

    fn add_nvlinks(&mut self, local: &mut HostBuild) {
        let n = local.gpus.len();
        local.nvlink = vec![vec![Leg::default(); n]; n];
        let Some(fabric) = local.kind.nvlink else { return };
        let rate = |i: usize, j: usize| match (local.kind.gpu_paths[i][j], &local.kind.p2p) {
            (PathKind::NvLink(_), Some(p2p)) => p2p[i][j].gb_per_s(),
            (PathKind::NvLink(links), None) => f64::from(links) * fabric.link_rate.gb_per_s(),
            _ => 0.0,
        };
        let linked = |i: usize, j: usize| matches!(local.kind.gpu_paths[i][j], PathKind::NvLink(_));
        let mut legs = local.nvlink.clone();
        if fabric.switched {
            let switch = self.node_id(format!("{}:switch", local.name));
            let all = 0..local.kind.gpu_count();
            let gpu_health = |g: usize| self.cluster.host(local.id).gpu_health.get(g).copied().unwrap_or(1.0);
            let ports: Vec<(f64, f64)> = local
                .gpus
                .iter()
                .map(|&g| {
                    let best = |f: &dyn Fn(usize) -> f64| all.clone().map(f).fold(0.0, f64::max) * gpu_health(g);
                    (best(&|j| rate(g, j)), best(&|j| rate(j, g)))
                })
                .collect();
            let mut up = Vec::new();
            let mut down = Vec::new();
            for (g, &(out_rate, in_rate)) in ports.iter().enumerate() {
                let gpu = self.gpu_node(local, g);
                up.push(self.link_id(gpu, switch, out_rate, LinkKind::NvLink));
                down.push(self.link_id(switch, gpu, in_rate, LinkKind::NvLink));
            }
            for (i, row) in legs.iter_mut().enumerate() {
                for (j, leg) in row.iter_mut().enumerate() {
                    if i != j && linked(local.gpus[i], local.gpus[j]) {
                        *leg = Leg::of(&[up[i], down[j]]);
                    }
                }
            }
        } else {
            for (i, row) in legs.iter_mut().enumerate() {
                for (j, leg) in row.iter_mut().enumerate() {
                    let (gi, gj) = (local.gpus[i], local.gpus[j]);
                    if i != j && linked(gi, gj) {
                        let (from, to) = (self.gpu_node(local, i), self.gpu_node(local, j));
                        let rate = rate(gi, gj) * self.link_health(local, gi, gj);
                        *leg = Leg::of(&[self.link_id(from, to, rate, LinkKind::NvLink)]);
                    }
                }
            }
        }
        local.nvlink = legs;
    }

    /// Highest rate at which a GPU forwards bytes of others, GB/s; infinite without a limit.
    fn relay_limit_gb_per_s(&self) -> f64 {
        let o = self.options;
        [o.relay_read_gb_per_s, o.relay_write_gb_per_s].into_iter().flatten().fold(f64::INFINITY, f64::min)
    }

    /// Adds a link from every GPU to itself if relays have limits.
    fn add_relay_limits(&mut self) {
        let limit = self.relay_limit_gb_per_s();
        let ranks = self.net.ranks.len() as u32; // nodes 0 to ranks - 1 are the ranks
        self.relay_loop =
            (0..ranks).map(|r| limit.is_finite().then(|| self.link_id(r, r, limit, LinkKind::Relay))).collect();
    }

    /// The NVLink path between two GPUs of a host over a relay; `None` if a link is missing or dead.
    fn relay_leg(&self, local: &HostBuild, i: usize, relay: usize, j: usize) -> Option<Leg> {
        let (a, b) = (&local.nvlink[i][relay], &local.nvlink[relay][j]);
        if a.len == 0 || b.len == 0 {
            return None;
        }
        let mut leg = *a;
        self.relay_loop[self.first_rank(local) + relay].into_iter().for_each(|l| leg.push(l));
        b.links().iter().for_each(|&l| leg.push(l));
        self.is_alive(&leg).then_some(leg)
    }

    /// Whether some pairs of GPUs have faster links than others. Only then can a second relay help (`linkwise route evaluate relays`).
    fn is_uneven(&self, local: &HostBuild) -> bool {
        let n = local.gpus.len();
        let legs = (0..n * n).filter(|p| p / n != p % n).map(|p| &local.nvlink[p / n][p % n]);
        let slow = |l: &Leg| if l.len == 0 { f64::INFINITY } else { self.slowness(l) };
        let (least, most) = legs.map(slow).fold((f64::INFINITY, 0.0), |(a, b): (f64, f64), s| (a.min(s), b.max(s)));
        least.is_finite() && most > least * (1.0 + 1e-9)
    }

    /// The NVLink paths between two GPUs over two relays, the fastest first.
    fn two_relay_legs(&self, local: &HostBuild, i: usize, j: usize) -> Vec<Leg> {
        let n = local.gpus.len();
        let mut found = Vec::new();
        for r in (0..n).filter(|&r| r != i && r != j) {
            for s in (0..n).filter(|&s| s != i && s != j && s != r) {
                let (first, rest) = (&local.nvlink[i][r], self.relay_leg(local, r, s, j));
                let Some(rest) = rest.filter(|_| first.len > 0) else { continue };
                let mut leg = *first;
                self.relay_loop[self.first_rank(local) + r].into_iter().for_each(|l| leg.push(l));
                rest.links().iter().for_each(|&l| leg.push(l));
                if self.is_alive(&leg) {
                    found.push(leg);
                }
            }
        }
        found.sort_by(|a, b| self.slowness(a).total_cmp(&self.slowness(b)));
        found
    }

    fn first_rank(&self, local: &HostBuild) -> usize {
        let gpu = GpuId { host: local.id, gpu: local.gpus[0] as u8 };
        self.net.ranks.binary_search(&gpu).unwrap_or(0)
    }

    /// Seconds per GB of a leg without other traffic.
    fn slowness(&self, leg: &Leg) -> f64 {
        leg.links().iter().map(|&l| 1.0 / self.net.links[l as usize].capacity_gb_per_s).fold(0.0, f64::max)
    }

    fn pcie_leg(&mut self, local: &HostBuild, i: usize, j: usize) -> Leg {
        let bus = self.node_id(format!("{}:pcie", local.name));
        let (gi, gj) = (local.gpus[i], local.gpus[j]);
        let port = |me: usize, out: bool| match &local.kind.p2p {
            Some(p2p) => (0..local.kind.gpu_count())
                .filter(|&o| o != me && !matches!(local.kind.gpu_paths[me][o], PathKind::NvLink(_)))
                .map(|o| if out { p2p[me][o] } else { p2p[o][me] }.gb_per_s())
                .fold(0.0, f64::max),
            None => local.kind.pcie.rate().gb_per_s(),
        };
        let (from, to) = (self.gpu_node(local, i), self.gpu_node(local, j));
        let up = self.link_id(from, bus, port(gi, true) * self.link_health(local, gi, gi), LinkKind::Pcie);
        let down = self.link_id(bus, to, port(gj, false) * self.link_health(local, gj, gj), LinkKind::Pcie);
        Leg::of(&[up, down])
    }

    fn add_intra_host_paths(&mut self, local: &HostBuild) {
        let n = local.gpus.len();
        let switched = local.kind.nvlink.is_some_and(|f| f.switched);
        let uneven = !switched && !self.options.one_relay && self.is_uneven(local);
        for i in 0..n {
            self.net.intra_row.push(self.net.intra_at.len() as u32 - 1);
            for j in 0..n {
                let from = self.net.intra.len();
                let direct = local.nvlink[i][j];
                let has_direct = i != j && direct.len > 0 && self.is_alive(&direct);
                if has_direct {
                    self.net.intra.push(direct);
                }
                // Behind a switch a relay path uses the ports of the direct path and two more, so it cannot help.
                if i != j && !(switched && has_direct) {
                    let relays = (0..n).filter(|&r| r != i && r != j).filter_map(|r| self.relay_leg(local, i, r, j));
                    let mut relays: Vec<Leg> = relays.collect();
                    if !has_direct {
                        // The best two-hop path replaces the direct path.
                        relays.sort_by(|a, b| self.slowness(a).total_cmp(&self.slowness(b)));
                    }
                    if uneven {
                        relays.extend(self.two_relay_legs(local, i, j));
                    }
                    let most = self.options.relays_max.unwrap_or(PATHS_MAX).max(usize::from(!has_direct));
                    relays.truncate(most.min(PATHS_MAX - 1));
                    self.net.intra.extend(relays);
                }
                let mut over_pcie = false;
                if i != j && self.net.intra.len() == from {
                    let leg = self.pcie_leg(local, i, j);
                    if self.is_alive(&leg) {
                        self.net.intra.push(leg);
                        over_pcie = true;
                    }
                }
                self.net.direct.push(has_direct || over_pcie);
                self.net.intra_at.push(self.net.intra.len() as u32);
            }
        }
    }

    fn add_inter_host_paths(&mut self, locals: &[HostBuild]) {
        let nics = |l: &HostBuild| l.kind.nics.len().min(self.options.rails_max.unwrap_or(usize::MAX));
        let counts: Vec<usize> = locals.iter().map(nics).collect();
        let slots = counts.iter().copied().max().unwrap_or(0);
        if locals.len() < 2 || slots == 0 {
            self.net.host_nics = vec![0; locals.len()];
            return;
        }
        let rails = counts.iter().all(|&c| c == slots);
        self.net.slots = slots;
        self.net.host_nics = counts.iter().map(|&c| c as u16).collect();
        for (h, local) in locals.iter().enumerate() {
            let mut out_legs = vec![Leg::default(); local.gpus.len() * slots];
            let mut in_legs = out_legs.clone();
            for k in 0..slots {
                let nic = if counts[h] == 0 { None } else { Some(k % counts[h]) };
                let mut out_ok = nic.is_some();
                let mut in_ok = nic.is_some();
                for g in 0..local.gpus.len() {
                    let Some(nic) = nic else { continue };
                    let up = if rails { format!("rail{nic}") } else { "network".into() };
                    let (out, back) = self.nic_legs(local, g, nic, up);
                    (out_legs[g * slots + k], in_legs[g * slots + k]) = (out, back);
                    out_ok &= self.is_alive(&out);
                    in_ok &= self.is_alive(&back);
                }
                self.net.out_alive.push(out_ok);
                self.net.in_alive.push(in_ok);
            }
            for (g, &gpu) in local.gpus.iter().enumerate() {
                let near = (local.kind.nearest_nics(gpu) as usize) & ((1 << counts[h]) - 1);
                // GPUs take equally near NICs in turn.
                let list: Vec<usize> = (0..counts[h]).filter(|k| near >> k & 1 == 1).collect();
                let r = self.net.first[h] as usize + g;
                self.net.home[r] = match list.len() {
                    0 => (g % slots) as u8,
                    n => list[g % n] as u8,
                };
            }
            self.net.out_legs.extend(out_legs);
            self.net.in_legs.extend(in_legs);
        }
    }

    /// The legs of a GPU to and from the rail of one NIC of its host.
    fn nic_legs(&mut self, local: &HostBuild, g: usize, nic: usize, rail: String) -> (Leg, Leg) {
        let n = &local.kind.nics[nic];
        let health = self.cluster.host(local.id).nic_health.get(nic).copied().unwrap_or(1.0);
        let rate = n.line_rate.gb_per_s() * health;
        let nearest = local.gpus.iter().map(|&x| n.gpu_paths[x]).min().unwrap_or(PathKind::Sys);
        let near: Vec<usize> = (0..local.gpus.len()).filter(|&x| n.gpu_paths[local.gpus[x]] == nearest).collect();
        // The GPU next to the NIC: this one, or the one that it reaches fastest over NVLink.
        // If GPUs forward more slowly than PCIe carries, a GPU reaches the NICs of others over PCIe.
        let forwards = self.relay_limit_gb_per_s() > local.kind.pcie.rate().gb_per_s();
        let gate = match near.contains(&g) {
            true => Some((g, Leg::default(), Leg::default())),
            false if forwards => self.nearest_gpu_to_nic(local, g, &near),
            false => None,
        };
        let own = near.len() == 1
            && forwards
            && (0..local.gpus.len()).all(|x| near.contains(&x) || self.nearest_gpu_to_nic(local, x, &near).is_some());
        let rail = self.node_id(rail);
        let (gate, to_gate, from_gate) = gate.unwrap_or((g, Leg::default(), Leg::default()));
        let gpu = self.gpu_node(local, gate);
        let (mut out, mut back) = (to_gate, Leg::default());
        let relay = self.relay_loop[self.first_rank(local) + gate].filter(|_| gate != g);
        relay.into_iter().for_each(|l| out.push(l));
        if own {
            out.push(self.link_id(gpu, rail, rate, LinkKind::NicSend));
            back.push(self.link_id(rail, gpu, rate, LinkKind::NicReceive));
        } else {
            let port = self.node_id(format!("{}:nic{nic}", local.name));
            let pcie = local.kind.pcie.rate().gb_per_s();
            out.push(self.link_id(gpu, port, pcie, LinkKind::Pcie));
            out.push(self.link_id(port, rail, rate, LinkKind::NicSend));
            back.push(self.link_id(rail, port, rate, LinkKind::NicReceive));
            back.push(self.link_id(port, gpu, pcie, LinkKind::Pcie));
        }
        relay.into_iter().for_each(|l| back.push(l));
        from_gate.links().iter().for_each(|&l| back.push(l));
        (out, back)
    }

    /// The GPU next to a NIC that GPU `g` reaches fastest over NVLink, with the paths in both directions.
    fn nearest_gpu_to_nic(&self, local: &HostBuild, g: usize, near: &[usize]) -> Option<(usize, Leg, Leg)> {
        let count = local.gpus.len();
        let way = |i: usize, j: usize| {
            let direct = local.nvlink[i][j];
            if direct.len > 0 && self.is_alive(&direct) {
                return Some(direct);
            }
            let relays = (0..count).filter(|&r| r != i && r != j).filter_map(|r| self.relay_leg(local, i, r, j));
            relays.min_by(|a, b| self.slowness(a).total_cmp(&self.slowness(b)))
        };
        let ways = (0..near.len()).filter_map(|x| {
            let gate = near[(x + g) % near.len()];
            Some((gate, way(g, gate)?, way(gate, g)?))
        });
        let hops = |l: &Leg| l.len;
        ways.min_by(|a, b| hops(&a.1).cmp(&hops(&b.1)).then(self.slowness(&a.1).total_cmp(&self.slowness(&b.1))))
    }
}
