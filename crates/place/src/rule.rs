//! The simple rule: the choice of a careful operator without measurements.
//!
//! One host if one fits. Otherwise the lowest switch that fits; below it the fewest hosts, an even split, the fewest
//! lower switches, and the same GPU indices where possible. A higher switch is preferred if it needs at most half as many hosts. Ties: healthy hosts
//! first, then hosts that leave the fewest entirely free hosts partly used and the fewest GPUs stranded.
//!
//! [`Rule::choices`] also returns the rule's choices under other preferences: hosts of one type, hosts without running
//! jobs, the hosts with the highest predictions, higher switches. These are cheap allocations. If the rule's own choice
//! is too slow, [`crate::policy`] can select one of them.

mod rearranged;
mod switches;

use crate::objective::Objective;
use crate::request::Split;
use crate::threshold::fill::water_fill;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use topology::{Allocation, GpuMask, HostId};

/// Maximum number of host kinds that get their own choice.
const KINDS_MAX: usize = 4;

/// A higher switch is preferred if it divides the number of hosts by at least this factor.
const HOSTS_WORTH_A_LEVEL: usize = 2;

/// A host with usable GPUs.
struct Slot {
    host: HostId,
    free: GpuMask,
    /// Number of GPUs that pods can fill.
    capacity: usize,
    whole: bool,
    /// Host type, and whether a GPU or NIC is degraded.
    kind: (usize, bool),
    busy: bool,
    effect: f64,
}

/// The order of hosts that can give the same count.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    /// Hosts that break the fewest free hosts and strand the fewest GPUs first.
    Tidy,
    /// Hosts without running jobs first, then hosts with the highest predictions.
    Liked,
}

/// Counts of hosts, given as indices of slots.
type Counts = Vec<(u32, usize)>;

/// The rule for one request.
pub(crate) struct Rule<'a> {
    objective: &'a Objective<'a>,
    slots: Vec<Slot>,
    /// Bit `n`: a host may give `n` GPUs.
    counts: u32,
    best_masks: FxHashMap<(u16, GpuMask, usize), GpuMask>,
}

impl<'a> Rule<'a> {
    /// The rule for a request whose free GPUs are usable. O(hosts + GPUs of jobs).
    pub fn new(objective: &'a Objective<'a>) -> Rule<'a> {
        let (cluster, request) = (objective.cluster, objective.request);
        let busy: FxHashSet<HostId> = if objective.contended() {
            let spanning = request.jobs.iter().filter(|j| j.gpus.host_count() > 1);
            spanning.flat_map(|j| j.gpus.parts()).map(|p| p.0).collect()
        } else {
            FxHashSet::default()
        };
        let counts = request.counts_allowed();
        let slot = |&(host, free): &(HostId, GpuMask)| {
            let h = cluster.host(host);
            let degraded = h.nic_health.iter().chain(&h.gpu_health).any(|f| *f < 1.0);
            let most = u32::MAX >> (31 - free.count().min(31)) & counts;
            Slot {
                host,
                free,
                capacity: if most == 0 { 0 } else { 31 - most.leading_zeros() as usize },
                whole: free == cluster.type_of(host).all_gpus(),
                kind: (h.host_type, degraded),
                busy: busy.contains(&host),
                effect: objective.model.host_effect(host),
            }
        };
        let slots = request.free.parts().iter().map(slot).filter(|s| s.capacity > 0).collect();
        Rule { objective, slots, counts, best_masks: FxHashMap::default() }
    }

    /// The rule's choice first, if one satisfies the request; then its choices under other preferences, without
    /// repeats. `hosts`: also the choices on that number of hosts, if it exceeds the minimum.
    pub fn choices(&mut self, hosts: usize) -> Vec<Allocation> {
        let request = self.objective.request;
        if request.pods.iter().any(|p| *p != request.pods[0]) {
            return self.mixed_pods().into_iter().collect();
        }
        let every: Vec<u32> = (0..self.slots.len() as u32).collect();
        let mut kinds: BTreeMap<(usize, bool), Vec<u32>> = BTreeMap::new();
        every.iter().for_each(|i| kinds.entry(self.slots[*i as usize].kind).or_default().push(*i));
        let mut sets = vec![every];
        if kinds.len() > 1 {
            let mut kinds: Vec<Vec<u32>> = kinds.into_values().collect();
            kinds.sort_by_key(|k| std::cmp::Reverse(k.len()));
            sets.extend(kinds.into_iter().take(KINDS_MAX));
        }
        let effects = || self.slots.iter().map(|s| s.effect);
        let spread = effects().fold(0.0, f64::max) - effects().fold(0.0, f64::min);
        let told_apart = spread > 1e-3 || self.slots.iter().any(|s| s.busy);
        let orders = if told_apart { &[Order::Tidy, Order::Liked][..] } else { &[Order::Tidy] };
        let mut found: Vec<Allocation> = Vec::new();
        // The rule's own choices: one for each level.
        let mut own = 0;
        for (which, set) in sets.iter().enumerate() {
            for order in orders {
                if which == 0 && *order == Order::Tidy {
                    own = usize::MAX;
                } else if own == usize::MAX {
                    own = found.len();
                }
                for level in 0..self.levels() {
                    for least in [1, hosts] {
                        let Some(counts) = self.at_level(set, level, *order, least) else { continue };
                        let a = self.gpus(&counts);
                        if request.accepts_counts(&a.counts()) && !found.contains(&a) {
                            found.push(a);
                        }
                        if level == 0 || counts.len() >= hosts {
                            break;
                        }
                    }
                }
            }
        }
        let by_level = &found[..own.min(found.len())];
        let fewer = |at: usize, i: usize| HOSTS_WORTH_A_LEVEL * by_level[i].host_count() <= by_level[at].host_count();
        let first = (1..by_level.len()).fold(0, |at, i| if fewer(at, i) { i } else { at });
        if first > 0 {
            found[..=first].rotate_right(1);
        }
        found
    }

    /// As few GPUs as possible below any one switch of a tier, on as few hosts as possible below each. Other limits, such
    /// as a maximum number of hosts, may need fewer switches.
    pub fn spread(&mut self, tier: usize) -> Vec<Allocation> {
        let (cluster, request) = (self.objective.cluster, self.objective.request);
        let every: Vec<u32> = (0..self.slots.len() as u32).collect();
        let mut below = self.below(&every, tier + 1);
        below.sort_by_key(|s| std::cmp::Reverse(self.capacity(s)));
        for switches in (1..=below.len()).rev() {
            let mut found = self.spread_below(&below[..switches], tier);
            found.retain(|a| request.accepts(cluster, a));
            if !found.is_empty() {
                return found;
            }
        }
        Vec::new()
    }

    fn spread_below(&mut self, below: &[Vec<u32>], tier: usize) -> Vec<Allocation> {
        let request = self.objective.request;
        if request.pods.iter().any(|p| *p > 1) {
            return self.spread_pods(below).into_iter().collect();
        }
        let mut found: Vec<(usize, usize, Counts)> = if request.constraints.split == Split::Any {
            self.spread_any(below).into_iter().collect()
        } else {
            let fits = |n: &usize| self.counts >> n & 1 == 1 && request.gpus.is_multiple_of(*n);
            (1..32).filter(fits).filter_map(|each| self.spread_equally(below, tier, each)).collect()
        };
        found.retain(|f| request.accepts_counts(&f.2.iter().map(|c| c.1).collect::<Vec<_>>()));
        found.sort_by_key(|f| (f.0, f.1));
        let least = found.first().map(|f| f.0);
        let reach: Vec<Counts> = found.into_iter().filter(|f| Some(f.0) == least).map(|f| f.2).collect();
        reach.iter().map(|c| self.gpus(c)).collect()
    }

    /// Spreads pods, the largest first, each below the switch with the fewest GPUs of the job.
    fn spread_pods(&self, below: &[Vec<u32>]) -> Option<Allocation> {
        let mut pods = self.objective.request.pods.clone();
        pods.sort_unstable_by(|a, b| b.cmp(a));
        let free = |s: &Vec<u32>| {
            let part = |i: &u32| (self.slots[*i as usize].host, self.slots[*i as usize].free);
            Allocation::new(s.iter().map(part))
        };
        let areas: Vec<Allocation> = below.iter().map(free).collect();
        let mut of_switch: Vec<Vec<usize>> = vec![Vec::new(); areas.len()];
        for pod in pods {
            let mut order: Vec<usize> = (0..areas.len()).collect();
            order.sort_by_key(|i| of_switch[*i].iter().sum::<usize>());
            let at = order.into_iter().find(|i| {
                of_switch[*i].push(pod);
                let fits = crate::pods::packed_pods(self.objective.cluster, &areas[*i], &of_switch[*i]).is_some();
                if !fits {
                    of_switch[*i].pop();
                }
                fits
            });
            at?;
        }
        let used = areas.iter().zip(&of_switch).filter(|a| !a.1.is_empty());
        let packed = used.map(|(area, pods)| crate::pods::packed_pods(self.objective.cluster, area, pods));
        let parts: Vec<Allocation> = packed.collect::<Option<_>>()?;
        Some(Allocation::new(parts.iter().flat_map(|a| a.parts().iter().copied())))
    }

    /// Spreads with `each` GPUs on every host. Returns the GPUs below the fullest switch, hosts, counts.
    fn spread_equally(&self, below: &[Vec<u32>], tier: usize, each: usize) -> Option<(usize, usize, Counts)> {
        let wanted = self.objective.request.gpus / each;
        let can = |s: &Vec<u32>| s.iter().copied().filter(|i| self.gives(*i, each)).collect::<Vec<u32>>();
        let groups: Vec<Vec<u32>> = below.iter().map(can).collect();
        let rooms: Vec<usize> = groups.iter().map(Vec::len).collect();
        let (cap, quotas) = level_quotas(&rooms, wanted)?;
        let mut counts = Counts::new();
        for (group, quota) in groups.into_iter().zip(quotas) {
            let hosts = self.pick(group, tier + 1, quota, each, Order::Tidy);
            counts.extend(hosts.into_iter().take(quota).map(|i| (i, each)));
        }
        Some((cap * each, counts.len(), counts))
    }

    /// Spreads with any counts: below each switch the hosts with the most free GPUs, with counts as even as possible.
    fn spread_any(&self, below: &[Vec<u32>]) -> Option<(usize, usize, Counts)> {
        let rooms: Vec<usize> = below.iter().map(|s| self.capacity(s)).collect();
        let (cap, quotas) = level_quotas(&rooms, self.objective.request.gpus)?;
        let mut counts = Counts::new();
        for (slots, quota) in below.iter().zip(quotas).filter(|g| g.1 > 0) {
            let mut hosts = slots.clone();
            hosts.sort_by_key(|i| (std::cmp::Reverse(self.slots[*i as usize].capacity), *i));
            let mut sum = 0;
            let fewest = hosts.iter().position(|i| {
                sum += self.slots[*i as usize].capacity;
                sum >= quota
            })?;
            hosts.truncate(fewest + 1);
            let mut out = Vec::new();
            let allowed: Vec<u32> = hosts.iter().map(|i| self.allowed(*i)).collect();
            water_fill(&allowed, quota, &mut out).then_some(())?;
            counts.extend(hosts.into_iter().zip(out.into_iter().map(usize::from)));
        }
        Some((cap, counts.len(), counts))
    }

    /// Bit `n`: the host has `n` free GPUs and is allowed to give that many.
    fn allowed(&self, slot: u32) -> u32 {
        u32::MAX >> (31 - self.slots[slot as usize].free.count().min(31)) & self.counts
    }

    /// Packs pods of several sizes, largest first; the whole choice is below the lowest switch that holds them.
    fn mixed_pods(&self) -> Option<Allocation> {
        let every: Vec<u32> = (0..self.slots.len() as u32).collect();
        let request = self.objective.request;
        (0..self.levels()).find_map(|level| {
            let mut below = self.below(&every, level);
            below.sort_by_key(|s| self.capacity(s));
            below.into_iter().filter(|s| self.capacity(s) >= request.gpus).find_map(|s| {
                let free =
                    Allocation::new(s.iter().map(|i| (self.slots[*i as usize].host, self.slots[*i as usize].free)));
                let packed = crate::pods::packed_pods(self.objective.cluster, &free, &request.pods);
                packed.filter(|a| request.accepts_counts(&a.counts()))
            })
        })
    }

    /// The levels: single hosts, every tier, the whole cluster.
    fn levels(&self) -> usize {
        self.objective.cluster.network.tiers.len() + 2
    }

    fn capacity(&self, slots: &[u32]) -> usize {
        slots.iter().map(|i| self.slots[*i as usize].capacity).sum()
    }

    /// The slots below each switch of a level.
    fn below(&self, slots: &[u32], level: usize) -> Vec<Vec<u32>> {
        let cluster = self.objective.cluster;
        if level + 1 == self.levels() {
            return vec![slots.to_vec()];
        }
        if level == 0 {
            return slots.iter().map(|i| vec![*i]).collect();
        }
        let mut by_switch: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for i in slots {
            by_switch.entry(cluster.switch_of(level - 1, self.slots[*i as usize].host)).or_default().push(*i);
        }
        by_switch.into_values().collect()
    }

    /// The best choice on at least the given number of hosts below one switch of a level.
    fn at_level(&self, slots: &[u32], level: usize, order: Order, least: usize) -> Option<Counts> {
        let k = self.objective.request.gpus;
        if level == 0 {
            let fits = |i: &&u32| {
                let s = &self.slots[**i as usize];
                s.free.count() >= k && k < 32 && self.counts >> k & 1 == 1
            };
            let one = slots.iter().filter(fits).min_by(|a, b| self.by_order(order, k, **a, **b))?;
            return Some(vec![(*one, k)]);
        }
        let below = self.below(slots, level);
        let choices = below.iter().filter(|s| self.capacity(s) >= k).filter_map(|s| {
            let counts = self.split(s, level, order, least)?;
            let (mut degraded, mut broken, mut stranded, mut busy) = (0, 0, 0, 0);
            for &(i, n) in &counts {
                let slot = &self.slots[i as usize];
                degraded += usize::from(slot.kind.1);
                broken += usize::from(slot.whole && n < slot.free.count());
                stranded += slot.free.count() - n;
                busy += usize::from(order == Order::Liked && slot.busy);
            }
            let least = counts.iter().map(|c| c.1).min().unwrap_or(0);
            let uneven = counts.iter().map(|c| c.1).max().unwrap_or(0) - least;
            let used: Vec<u32> = counts.iter().map(|c| c.0).collect();
            let switches: Vec<usize> = (1..level).map(|lower| self.below(&used, lower).len()).collect();
            Some(((busy, degraded, counts.len(), uneven, switches, broken, stranded, s.len()), counts))
        });
        choices.min_by(|a, b| a.0.cmp(&b.0)).map(|c| c.1)
    }

    /// The smallest number of hosts of a region that fits, at least `least`, and the most even counts on them.
    fn split(&self, slots: &[u32], level: usize, order: Order, least: usize) -> Option<Counts> {
        let request = self.objective.request;
        let k = request.gpus;
        let mut capacities: Vec<usize> = slots.iter().map(|i| self.slots[*i as usize].capacity).collect();
        capacities.sort_unstable_by(|a, b| b.cmp(a));
        let mut sum = 0;
        let fewest = capacities.iter().position(|c| {
            sum += c;
            sum >= k
        })? + 1;
        let fewest = fewest.max(least);
        let hosts_max = request.constraints.hosts_max.unwrap_or(usize::MAX).min(slots.len()).min(k);
        let even = |n: usize| {
            let each = k / n;
            let fits = k.is_multiple_of(n) && each < 32 && self.counts >> each & 1 == 1;
            let can: Vec<u32> = slots.iter().copied().filter(|i| fits && self.gives(*i, each)).collect();
            (can.len() >= n && fits)
                .then(|| self.pick(can, level, n, each, order).into_iter().map(|i| (i, each)).collect())
        };
        match request.constraints.split {
            Split::Any => {
                even(fewest).or_else(|| (fewest..=hosts_max).find_map(|n| self.levelled(slots, level, n, order)))
            }
            _ => (fewest..=hosts_max).find_map(even),
        }
    }

    fn gives(&self, slot: u32, count: usize) -> bool {
        self.slots[slot as usize].free.count() >= count
    }

    /// Counts as even as possible over `n` hosts.
    fn levelled(&self, slots: &[u32], level: usize, n: usize, order: Order) -> Option<Counts> {
        let k = self.objective.request.gpus;
        let full = k.div_ceil(n);
        let can: Vec<u32> = slots.iter().copied().filter(|i| self.gives(*i, full)).collect();
        let mut hosts = if can.len() >= n {
            self.pick(can, level, n, full, order)
        } else {
            let mut all = slots.to_vec();
            all.sort_by_key(|i| std::cmp::Reverse(self.slots[*i as usize].capacity));
            all.truncate(n);
            all
        };
        hosts.sort_by_key(|i| std::cmp::Reverse(self.slots[*i as usize].capacity));
        let allowed: Vec<u32> = hosts.iter().map(|i| self.allowed(*i)).collect();
        let mut out = Vec::new();
        water_fill(&allowed, k, &mut out).then(|| hosts.into_iter().zip(out.into_iter().map(usize::from)).collect())
    }

    fn by_order(&self, order: Order, count: usize, a: u32, b: u32) -> std::cmp::Ordering {
        let (a, b) = (&self.slots[a as usize], &self.slots[b as usize]);
        let tidy = |s: &Slot| {
            (s.kind.1, s.whole && s.free.count() > count, s.free.count() - count.min(s.free.count()), s.host)
        };
        match order {
            Order::Tidy => tidy(a).cmp(&tidy(b)),
            Order::Liked => a.busy.cmp(&b.busy).then(b.effect.total_cmp(&a.effect)).then(tidy(a).cmp(&tidy(b))),
        }
    }

    /// The GPUs for the counts: the same indices on hosts that give the same number, if these are free.
    fn gpus(&mut self, counts: &Counts) -> Allocation {
        let mut groups: BTreeMap<(usize, usize), Vec<u32>> = BTreeMap::new();
        for &(i, n) in counts {
            groups.entry((self.slots[i as usize].kind.0, n)).or_default().push(i);
        }
        let mut parts = Vec::with_capacity(counts.len());
        let alone = counts.len() == 1;
        for ((_, n), hosts) in groups {
            let common = hosts.iter().fold(u32::MAX, |m, i| m & self.slots[*i as usize].free.0);
            let common = GpuMask(common);
            let first = self.slots[hosts[0] as usize].host;
            let shared = (common.count() >= n).then(|| self.best_mask(first, common, n, alone));
            for i in hosts {
                let (host, free) = (self.slots[i as usize].host, self.slots[i as usize].free);
                let mask = shared.unwrap_or_else(|| self.best_mask(host, free, n, alone));
                parts.push((host, mask));
            }
        }
        Allocation::new(parts)
    }

    /// The `n` GPUs of a mask with the best links: by intra bandwidth if the job is on one host, otherwise by the
    /// smaller of intra and NIC bandwidth. Ties go to GPUs that leave the best-connected GPUs free, then to the lowest
    /// indices.
    fn best_mask(&mut self, host: HostId, free: GpuMask, n: usize, alone: bool) -> GpuMask {
        if free.count() == n {
            return free;
        }
        let table = self.objective.table();
        let key = (table.part(host, GpuMask::first(1)).host_type, free, n);
        let h = self.objective.cluster.host(host);
        let healthy = h.nic_health.is_empty() && h.gpu_health.is_empty() && !alone;
        if let Some(m) = self.best_masks.get(&key).filter(|_| healthy) {
            return *m;
        }
        let mut best: Option<([f64; 3], GpuMask)> = None;
        for m in free.subsets().filter(|m| m.count() == n) {
            let p = table.part(host, m);
            let nic = if alone { f64::INFINITY } else { p.nic_gb_per_s };
            let value = [p.intra_gb_per_s.min(nic), nic, table.intra_gb_per_s(host, free.minus(m))];
            let order = best.as_ref().map_or(Some(std::cmp::Ordering::Greater), |b| value.partial_cmp(&b.0));
            let lower = best.as_ref().is_none_or(|b| m.0 < b.1.0);
            if order.is_some_and(|o| o.is_gt() || (o.is_eq() && lower)) {
                best = Some((value, m));
            }
        }
        let m = best.map_or(free, |b| b.1);
        if healthy {
            self.best_masks.insert(key, m);
        }
        m
    }
}

/// The smallest cap at which the places together hold `wanted`, and the count of each place, as even as possible.
fn level_quotas(rooms: &[usize], wanted: usize) -> Option<(usize, Vec<usize>)> {
    let holds = |cap: usize| rooms.iter().map(|r| (*r).min(cap)).sum::<usize>();
    let cap = (1..=wanted).find(|cap| holds(*cap) >= wanted)?;
    let mut quotas: Vec<usize> = rooms.iter().map(|r| (*r).min(cap)).collect();
    let mut excess = holds(cap) - wanted;
    for q in quotas.iter_mut().rev().filter(|q| **q == cap) {
        let less = excess.min(1);
        *q -= less;
        excess -= less;
    }
    Some((cap, quotas))
}

/// The simple rule's choice for a request whose free GPUs are usable; None if no choice satisfies the request.
pub fn choose(objective: &Objective) -> Option<Allocation> {
    Rule::new(objective).choices(1).into_iter().next()
}
