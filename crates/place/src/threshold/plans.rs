//! Plans: a level of bandwidth, a number of hosts, a set of host types.

use super::Rules;
use super::candidates::mix;
use super::capacity::HostsByCountAndLevel;
use super::levels::{Above, KINDS_MAX, Levels};
use predict::bound::network_at_most_gb_per_s;
use std::rc::Rc;

/// Even splits are tried on every number of hosts up to this number.
const EVEN_HOSTS_MAX: usize = 8;

/// A plan from which a candidate is built.
pub(super) struct Plan {
    /// Bandwidth that the candidate should reach, by the bound. Plans with a higher value are built first.
    pub promise_gb_per_s: f64,
    pub table: Rc<Table>,
    pub kinds: u32,
    pub level: usize,
    pub hosts: usize,
    /// Bit `n`: a host may give `n` GPUs.
    pub counts: u32,
    /// Plans with equal signatures differ only in the floor; the plan with the best prospect represents them.
    pub signature: u64,
}

/// The hosts of a list above one floor.
pub(super) struct Table {
    /// Index of the list of hosts.
    pub id: usize,
    pub list: Rc<Vec<u32>>,
    pub above: Rc<Above>,
}

/// The plans of all lists of hosts, list by list. O(floors x options + lists x floors x (hosts x counts + levels)).
pub(super) fn plan(levels: &Levels, lists: Vec<Vec<u32>>, k: usize, rules: Rules) -> Vec<Plan> {
    let mut plans = Vec::new();
    let floors = levels.floors(rules.count_min, k / 2);
    let above: Vec<Rc<Above>> = floors.into_iter().map(|floor| Rc::new(levels.above(floor, rules.counts))).collect();
    let mut capacity = HostsByCountAndLevel::empty(levels);
    for (id, list) in lists.into_iter().map(Rc::new).enumerate() {
        for above in &above {
            capacity.count(levels, &list, &above.levels);
            let table = Rc::new(Table { id, list: list.clone(), above: above.clone() });
            for kinds in kind_sets(levels.kinds) {
                let nic_gb_per_s = thinnest_nic(&above.thinnest, kinds);
                let plans = &mut plans;
                PlanMaker { levels, capacity: &capacity, table: &table, nic_gb_per_s, kinds, k, rules, plans }.run();
            }
        }
    }
    plans
}

/// Sets of host types to plan with: every set up to four types, otherwise single types, pairs and all types.
fn kind_sets(kinds: usize) -> Vec<u32> {
    let all = (1u32 << kinds) - 1;
    (1..=all).filter(|s| kinds <= 4 || s.count_ones() <= 2 || *s == all).collect()
}

/// The lowest NIC rate of hosts of these kinds, GB/s.
fn thinnest_nic(by_kind: &[f64; KINDS_MAX], kinds: u32) -> f64 {
    (0..KINDS_MAX).filter(|t| kinds >> t & 1 == 1).map(|t| by_kind[t]).fold(f64::INFINITY, f64::min)
}

/// The largest level from 1 to `levels` that suffices; None if 1 does not. A level that suffices implies that all lower
/// levels do.
fn highest(levels: usize, suffices: impl Fn(usize) -> bool) -> Option<usize> {
    if !suffices(1) {
        return None;
    }
    let (mut low, mut high) = (1, levels);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if suffices(middle) { low = middle } else { high = middle - 1 }
    }
    Some(low)
}

/// Makes the plans of one list of hosts above one floor, with hosts of some kinds.
struct PlanMaker<'a> {
    levels: &'a Levels<'a>,
    capacity: &'a HostsByCountAndLevel,
    table: &'a Rc<Table>,
    /// The lowest NIC rate of the hosts.
    nic_gb_per_s: f64,
    kinds: u32,
    k: usize,
    rules: Rules,
    plans: &'a mut Vec<Plan>,
}

/// The highest level at which a number of hosts suffices.
struct Highest {
    level: usize,
    /// The smallest number of hosts that suffices at this level.
    fewest: usize,
    /// Number of hosts that can give any GPUs at this level.
    all: usize,
}

impl PlanMaker<'_> {
    fn run(&mut self) {
        if self.rules.equal {
            return self.equal_splits();
        }
        let Some(top) = self.highest(self.rules.hosts_max) else { return };
        let most = (self.k / usize::from(self.table.above.floor.count)).min(top.all);
        self.few_hosts(&top, most);
        self.even_splits(most);
        self.fewer_hosts(top.fewest);
    }

    /// The highest level at which `hosts` hosts suffice.
    fn highest(&self, hosts_max: usize) -> Option<Highest> {
        let fewest = |level: usize| self.capacity.fewest(level, self.kinds, self.k).filter(|f| f.0 <= hosts_max);
        let level = highest(self.levels.count(), |level| fewest(level).is_some())?;
        fewest(level).map(|(fewest, all)| Highest { level, fewest, all })
    }

    /// A plan, if its number of hosts is allowed. `counts`: bit `n` if a host may give `n` GPUs.
    fn add(&mut self, level: usize, hosts: usize, counts: u32) {
        if hosts < 2 || hosts > self.rules.hosts_max {
            return;
        }
        let network = network_at_most_gb_per_s(self.nic_gb_per_s, hosts, self.k);
        let from = mix(self.table.id as u64, hosts as u64);
        let at = mix(from, (level as u64) << 32 | u64::from(counts));
        self.plans.push(Plan {
            promise_gb_per_s: self.levels.edge_gb_per_s(level).min(network),
            table: self.table.clone(),
            kinds: self.kinds,
            level,
            hosts,
            counts,
            signature: mix(at, self.capacity.signature(level, self.kinds)),
        });
    }

    /// Plans with the smallest number of hosts at the highest level, with a few more, and with as many as possible.
    fn few_hosts(&mut self, top: &Highest, most: usize) {
        self.add(top.level, top.fewest, u32::MAX);
        for hosts in [top.fewest + 1, top.fewest + 2, most] {
            if hosts > top.fewest && hosts <= most {
                self.add(top.level, hosts, u32::MAX);
            }
        }
    }

    /// Plans with equal counts, or as equal as possible: on every small number of hosts, and on the fewest hosts for
    /// every count.
    fn even_splits(&mut self, most: usize) {
        let most_full = (self.capacity.stride - 1).min(self.k);
        let small = 2..=EVEN_HOSTS_MAX.min(most);
        let k = self.k;
        let fewest_for = (usize::from(self.table.above.floor.count)..=most_full).rev().map(|full| k.div_ceil(full));
        let mut tried = 0;
        for hosts in small.chain(fewest_for) {
            // Two ascending series: the second starts where the first ends.
            if hosts <= tried || hosts < 2 || hosts > self.rules.hosts_max.min(most) {
                continue;
            }
            tried = hosts;
            let full = k.div_ceil(hosts);
            if full > most_full {
                continue;
            }
            if let Some(level) = self.highest_even(hosts, full) {
                self.add(level, hosts, 1 << full | 1 << (full - 1));
            }
        }
    }

    /// Plans with every number of hosts that divides the job, each at the highest level at which that many hosts can
    /// give their share.
    fn equal_splits(&mut self) {
        for each in 1..self.capacity.stride {
            if self.rules.counts >> each & 1 == 0 || !self.k.is_multiple_of(each) {
                continue;
            }
            let hosts = self.k / each;
            if let Some(level) = self.highest_even(hosts, each) {
                self.add(level, hosts, 1 << each);
            }
        }
    }

    /// The highest level at which `hosts` hosts can give `full` GPUs each, some of them one fewer.
    fn highest_even(&self, hosts: usize, full: usize) -> Option<usize> {
        let fewer = hosts * full - self.k;
        highest(self.levels.count(), |level| {
            let of = |count| self.capacity.exactly(level, self.kinds, count);
            let (a, b) = (of(full), of(full - 1));
            a >= hosts - fewer && b >= fewer && a + b >= hosts
        })
    }

    /// Plans with fewer hosts than the highest level needs, at a lower level.
    fn fewer_hosts(&mut self, fewest: usize) {
        let mut last = fewest;
        for target in [fewest - 1, fewest - fewest / 8, fewest - fewest / 4, fewest / 2, 4, 3, 2] {
            if target >= 2 && target < last {
                let Some(lower) = self.highest(target) else { return };
                self.add(lower.level, lower.fewest, u32::MAX);
                last = lower.fewest;
            }
        }
    }
}
