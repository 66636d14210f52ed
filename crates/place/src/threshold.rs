//! Threshold search: hundreds of candidates instead of all combinations, for clusters of any size.
//!
//! What limits an allocation is its weakest part: the slowest inside of any host and the thinnest NIC side. So a good allocation is
//! the best that one can do *above a threshold*: every host gives the largest number of GPUs whose inside is at least `t` and whose
//! NICs are at least `u`, the fewest hosts are taken that suffice, and their counts are levelled like water. For every floor on NICs or
//! counts and every set of host types, the highest `t` that suffices is found by bisection, for the fewest hosts and for fewer still.
//! All are judged in one batch; then the best few exchange single GPUs and hosts (see [`exchange`]), in another.
//!
//! Cost: floors x (hosts x counts + levels x types) to plan, candidates x hosts to judge; the number of candidates shrinks as they grow
//! ([`PARTS_MAX`]), so that 10,000 GPUs take milliseconds.

mod exchange;
mod fill;
mod levels;

use crate::exact::{self, Found, best_of};
use crate::objective::Objective;
use crate::options::{HostOptions, host_options};
use crate::request::{Refusal, Request};
use crate::search::Search;
use crate::shape::Shape;
use levels::{Floor, KINDS_MAX, Levels, Sides};
use predict::bound::network_at_most_gb_per_s;
use predict::{Candidates, Part};
use rustc_hash::FxHasher;
use std::collections::HashSet;
use std::hash::Hasher;
use topology::GPUS_PER_HOST_MAX;

/// Most parts of all candidates of one batch together.
const PARTS_MAX: usize = 60_000;
/// Most candidates of one batch, however small.
const CANDIDATES_MAX: usize = 600;
/// Candidates that are judged whatever their size.
const CANDIDATES_MIN: usize = 64;
/// Levels below a plan's that are tried one after another where counts do not add up.
const DOWN: [usize; 11] = [0, 1, 2, 3, 4, 6, 12, 24, 48, 96, 192];
/// Even splits are tried on every number of hosts up to this.
const EVEN_HOSTS_MAX: usize = 8;
/// Two-host candidates.
const PAIRS_MAX: usize = 64;
/// Single-host candidates.
const SINGLES_MAX: usize = 16;

/// The best `keep` allocations above thresholds.
pub fn search(objective: &Objective, keep: usize) -> Result<Found, Refusal> {
    let request = objective.request;
    let k = request.gpus;
    let free = request.usable(objective.cluster)?;
    let before = objective.evaluations();
    let options = host_options(objective.table(), &free, k);
    if request.asks_shape() {
        can_be_met(request, &options)?;
    }
    let cluster = objective.cluster;
    let levels = Levels::new(free.parts(), &options, objective.model, &|h| cluster.host(h).host_type);
    let rules = Rules::of(request);
    let mut pool = Pool { request, shaped: request.asks_shape(), seen: HashSet::new(), candidates: Candidates::new() };
    singles(&options, k, rules, &mut pool);
    pairs(&levels, k, rules, &mut pool);
    let mut plans = Vec::new();
    for (id, list) in lists(objective, &levels).into_iter().enumerate() {
        plan(&levels, id, list, k, rules, &mut plans);
    }
    draw_up(&levels, &mut plans, k, &mut pool);
    if pool.candidates.is_empty() {
        let what = if request.pods.is_empty() { "limits this tight" } else { "pods of these sizes" };
        return Err(Refusal::Unsupported { search: "threshold", what });
    }
    let mut candidates = pool.candidates;
    let mut scores = Vec::new();
    objective.scores(&candidates, &mut scores);
    exchange::improve(objective, &free, &options, &mut candidates, &mut scores);
    Ok(Found {
        best: best_of(objective, &candidates, &scores, keep.max(1)),
        evaluations: objective.evaluations() - before,
    })
}

/// Refuses pods that no host can hold and, where there are few enough hosts to tell, limits that leave no split.
fn can_be_met(request: &Request, options: &[HostOptions]) -> Result<(), Refusal> {
    let largest = options.iter().map(|o| o.by_count.len()).max().unwrap_or(0);
    if let Some(pod) = request.pods.iter().copied().filter(|p| *p > largest).max() {
        return Err(Refusal::PodTooLarge { pod, largest });
    }
    if options.len() > AUTO_HOSTS_MAX {
        return Ok(());
    }
    match Shape::new(request, options) {
        Err(e @ (Refusal::NoSplit { .. } | Refusal::PodsDoNotFit { .. })) => Err(e),
        _ => Ok(()),
    }
}

/// What the request asks of every host and of their number.
#[derive(Clone, Copy)]
struct Rules {
    /// Bit `n`: a host may give `n` GPUs.
    counts: u32,
    count_min: u8,
    hosts_max: usize,
}

impl Rules {
    fn of(request: &Request) -> Rules {
        let counts = request.counts_allowed();
        Rules {
            counts,
            count_min: counts.trailing_zeros().clamp(1, 31) as u8,
            hosts_max: request.constraints.hosts_max.unwrap_or(usize::MAX),
        }
    }
}

/// Candidates that differ and keep the request.
struct Pool<'a> {
    request: &'a Request,
    /// Does the request ask more of the counts than their sum?
    shaped: bool,
    seen: HashSet<u64>,
    candidates: Candidates,
}

impl Pool<'_> {
    /// `false` if it is known already or breaks the request.
    fn add(&mut self, parts: &[Part]) -> bool {
        let fits = !self.shaped || accepts(self.request, parts);
        let new = fits && self.seen.insert(signature(parts));
        if new {
            self.candidates.push(parts);
        }
        new
    }
}

/// Do the counts of a candidate keep pods and limits?
fn accepts(request: &Request, parts: &[Part]) -> bool {
    let counts: Vec<usize> = parts.iter().map(|p| usize::from(p.count)).collect();
    request.accepts_counts(&counts)
}

/// The best hosts that can hold the job alone.
fn singles(options: &[HostOptions], k: usize, rules: Rules, pool: &mut Pool) {
    if k > GPUS_PER_HOST_MAX || rules.counts >> k & 1 == 0 {
        return;
    }
    let mut best: Vec<&Part> =
        options.iter().filter_map(|o| o.by_count.get(k - 1)).filter_map(|parts| inside(parts)).collect();
    best.sort_by(|a, b| b.intra_gb_per_s.total_cmp(&a.intra_gb_per_s));
    // One GPU talks to nobody: all are equal but for what they leave behind, so all are offered.
    let most = if k == 1 { best.len() } else { SINGLES_MAX };
    for p in best.into_iter().take(most) {
        pool.add(&[*p]);
    }
}

fn inside(parts: &[Part]) -> Option<&Part> {
    parts.iter().max_by(|a, b| a.intra_gb_per_s.total_cmp(&b.intra_gb_per_s))
}

/// Two hosts, whatever their counts: of every type, count and NIC rate the two hosts with the best insides, combined in every way; of
/// these the most promising.
fn pairs(levels: &Levels, k: usize, rules: Rules, pool: &mut Pool) {
    if k > 2 * (levels.stride - 1) || rules.hosts_max < 2 {
        return;
    }
    let champions = levels.champions(rules.counts);
    let mut found: Vec<(f64, &Part, &Part)> = Vec::new();
    for (i, a) in champions.iter().enumerate() {
        for b in &champions[..i] {
            if usize::from(a.count) + usize::from(b.count) == k && a.host != b.host {
                let nic = network_at_most_gb_per_s(a.nic_gb_per_s.min(b.nic_gb_per_s), 2, k);
                found.push((a.intra_gb_per_s.min(b.intra_gb_per_s).min(nic), a, b));
            }
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (_, a, b) in found.into_iter().take(PAIRS_MAX) {
        pool.add(&if a.host < b.host { [*a, *b] } else { [*b, *a] });
    }
}

/// Hosts to plan with, as rows in order of preference: all of them, those without a job that contends, those below one switch, those
/// whose own effect is not among the worst.
fn lists(objective: &Objective, levels: &Levels) -> Vec<Vec<u32>> {
    let mut all: Vec<u32> = (0..levels.rows.len() as u32).collect();
    let row = |i: &u32| &levels.rows[*i as usize];
    all.sort_by(|a, b| {
        row(b).effect.total_cmp(&row(a).effect).then(row(a).free.cmp(&row(b).free)).then(row(a).host.cmp(&row(b).host))
    });
    let mut lists = Vec::new();
    if objective.contended() {
        let busy: HashSet<_> = objective.request.jobs.iter().flat_map(|j| j.gpus.parts()).map(|p| p.0).collect();
        lists.push(all.iter().copied().filter(|i| !busy.contains(&row(i).host)).collect());
    }
    let spread = all.first().map_or(0.0, |i| row(i).effect) - all.last().map_or(0.0, |i| row(i).effect);
    if spread > 1e-3 {
        let kept = |share: usize| all[..all.len() * share / 4].to_vec();
        lists.extend([kept(3), kept(2)]);
    }
    lists.extend(switches(objective, levels, &all));
    lists.push(all);
    lists
}

/// Most switches of one tier that are looked at.
const SWITCHES_MAX: usize = 6;

/// The hosts below single switches that have enough free GPUs: of every tier those with the least to spare and those with the most.
fn switches(objective: &Objective, levels: &Levels, all: &[u32]) -> Vec<Vec<u32>> {
    let mut out = Vec::new();
    for tier in &objective.cluster.network.tiers {
        let below = tier.hosts_per_switch.max(1);
        let mut by_switch: std::collections::BTreeMap<usize, (usize, Vec<u32>)> = Default::default();
        for &i in all {
            let r = &levels.rows[i as usize];
            let s = by_switch.entry(r.host.index() / below).or_default();
            s.0 += usize::from(r.free);
            s.1.push(i);
        }
        let mut enough: Vec<(usize, Vec<u32>)> =
            by_switch.into_values().filter(|s| s.0 >= objective.request.gpus && s.1.len() < all.len()).collect();
        enough.sort_by_key(|s| s.0);
        while enough.len() > SWITCHES_MAX {
            enough.remove(SWITCHES_MAX / 2);
        }
        out.extend(enough.into_iter().map(|s| s.1));
    }
    out
}

/// Something to draw up as a candidate.
struct Plan {
    /// What it should reach, by the bound: the order in which plans are drawn up.
    promise_gb_per_s: f64,
    table: std::rc::Rc<Table>,
    kinds: u32,
    level: usize,
    hosts: usize,
    /// Bit `n`: a host may give `n` GPUs.
    counts: u32,
    /// Plans with equal signatures differ in the floor only: the one that promises most stands for them.
    signature: u64,
}

/// The hosts of a list above one floor.
struct Table {
    /// Which list of hosts.
    id: usize,
    floor: Floor,
    list: std::rc::Rc<Vec<u32>>,
    /// `above[row * stride + count]`: the best level.
    above: Vec<u16>,
    /// The best level of a row at any count.
    tops: Vec<u16>,
}

/// For one floor: how many hosts of a kind can give how many GPUs at every level.
struct Caps {
    stride: usize,
    kinds: usize,
    /// `[level][kind][cap]`: hosts whose largest count it is.
    hosts: Vec<u32>,
    /// `[level][kind][count]`: hosts that can give it, whatever else they can.
    exactly: Vec<u32>,
}

impl Caps {
    fn new(levels: &Levels, list: &[u32], above: &[u16]) -> Caps {
        let (stride, kinds) = (levels.stride, levels.kinds);
        let mut hosts = vec![0u32; (levels.count() + 2) * kinds * stride];
        let mut exactly = hosts.clone();
        let at = |level: usize, kind: u8, cap: usize| (level * kinds + usize::from(kind)) * stride + cap;
        for &i in list {
            let i = i as usize;
            let kind = levels.rows[i].kind;
            let row = &above[i * stride..(i + 1) * stride];
            // Downwards in counts, the level at which this cap is reached must rise to matter.
            let mut reached = 0;
            for cap in (1..stride).rev() {
                let level = usize::from(row[cap]);
                exactly[at(level, kind, cap)] += 1; // level 0 is never looked at
                if level > reached {
                    // From `level` down to `reached + 1` the cap is this.
                    hosts[at(level, kind, cap)] = hosts[at(level, kind, cap)].wrapping_add(1);
                    hosts[at(reached, kind, cap)] = hosts[at(reached, kind, cap)].wrapping_sub(1);
                    reached = level;
                }
            }
        }
        // From changes to totals, downwards from the highest level.
        let width = kinds * stride;
        for level in (1..=levels.count()).rev() {
            for j in 0..width {
                hosts[level * width + j] = hosts[level * width + j].wrapping_add(hosts[(level + 1) * width + j]);
                exactly[level * width + j] += exactly[(level + 1) * width + j];
            }
        }
        Caps { stride, kinds, hosts, exactly }
    }

    /// Tells apart what hosts of these kinds can give at a level.
    fn signature(&self, level: usize, kinds: u32) -> u64 {
        let from = level * self.kinds * self.stride;
        (0..self.kinds * self.stride)
            .filter(|j| kinds >> (j / self.stride) & 1 == 1 && self.hosts[from + j] > 0)
            .fold(0, |h, j| mix(h, (j as u64) << 32 | u64::from(self.hosts[from + j])))
    }

    /// How many hosts of these kinds can give so many GPUs at a level.
    fn exactly(&self, level: usize, kinds: u32, count: usize) -> usize {
        let of_kind = |t: usize| self.exactly[(level * self.kinds + t) * self.stride + count] as usize;
        (0..self.kinds).filter(|t| kinds >> t & 1 == 1).map(of_kind).sum()
    }

    /// The fewest hosts of these kinds that give `k` GPUs at a level, and how many there are.
    fn fewest(&self, level: usize, kinds: u32, k: usize) -> Option<(usize, usize)> {
        let (mut left, mut hosts, mut all) = (k, 0, 0);
        for cap in (1..self.stride).rev() {
            let n: usize = (0..self.kinds)
                .filter(|t| kinds >> t & 1 == 1)
                .map(|t| self.hosts[(level * self.kinds + t) * self.stride + cap] as usize)
                .sum();
            all += n;
            if left > 0 {
                let take = n.min(left.div_ceil(cap));
                hosts += take;
                left = left.saturating_sub(take * cap);
            }
        }
        (left == 0).then_some((hosts, all))
    }
}

/// Adds the plans of one list of hosts.
fn plan(levels: &Levels, id: usize, list: Vec<u32>, k: usize, rules: Rules, plans: &mut Vec<Plan>) {
    let list = std::rc::Rc::new(list);
    for floor in levels.floors(rules.count_min, k / 2) {
        let above = levels.above(floor, rules.counts);
        let caps = Caps::new(levels, &list, &above);
        let tops = above.chunks_exact(levels.stride).map(|r| r.iter().copied().max().unwrap_or(0)).collect();
        let table = std::rc::Rc::new(Table { id, floor, list: list.clone(), above, tops });
        let thinnest = levels.thinnest(floor);
        for kinds in kind_sets(levels.kinds) {
            plan_for(levels, &caps, &table, floor, &thinnest, kinds, k, rules, plans);
        }
    }
}

/// Sets of host types worth telling apart: all of them up to four types, else single ones, pairs and everything.
fn kind_sets(kinds: usize) -> Vec<u32> {
    let all = (1u32 << kinds) - 1;
    (1..=all).filter(|s| kinds <= 4 || s.count_ones() <= 2 || *s == all).collect()
}

#[allow(clippy::too_many_arguments)] // the arguments of one closed step
fn plan_for(
    levels: &Levels,
    caps: &Caps,
    table: &std::rc::Rc<Table>,
    floor: Floor,
    thinnest: &[f64; KINDS_MAX],
    kinds: u32,
    k: usize,
    rules: Rules,
    plans: &mut Vec<Plan>,
) {
    let nic = (0..KINDS_MAX).filter(|t| kinds >> t & 1 == 1).map(|t| thinnest[t]).fold(f64::INFINITY, f64::min);
    // The highest level at which so many hosts suffice: caps only grow downwards.
    let highest = |hosts_max: usize| -> Option<(usize, usize, usize)> {
        let suffices = |level: usize| caps.fewest(level, kinds, k).filter(|f| f.0 <= hosts_max);
        let (mut low, mut high) = (1, levels.count());
        suffices(low)?;
        while low < high {
            let middle = (low + high).div_ceil(2);
            if suffices(middle).is_some() {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        suffices(low).map(|(fewest, all)| (low, fewest, all))
    };
    let mut add = |level: usize, hosts: usize, counts: u32| {
        if hosts >= 2 && hosts <= rules.hosts_max {
            let promise = levels.edge_gb_per_s(level).min(network_at_most_gb_per_s(nic, hosts, k));
            let from = mix(table.id as u64, hosts as u64);
            let signature = mix(mix(from, (level as u64) << 32 | u64::from(counts)), caps.signature(level, kinds));
            plans.push(Plan {
                promise_gb_per_s: promise,
                table: table.clone(),
                kinds,
                level,
                hosts,
                counts,
                signature,
            });
        }
    };
    let Some((level, fewest, all)) = highest(rules.hosts_max) else { return };
    let most = (k / usize::from(floor.count)).min(all);
    add(level, fewest, u32::MAX);
    for hosts in [fewest + 1, fewest + 2, most] {
        if hosts > fewest && hosts <= most {
            add(level, hosts, u32::MAX);
        }
    }
    // Equal counts, or as equal as they can be: on every small number of hosts, and on the fewest for every count.
    let most_full = (caps.stride - 1).min(k);
    let small = 2..=EVEN_HOSTS_MAX.min(most);
    let fewest_for = (usize::from(floor.count)..=most_full).rev().map(|full| k.div_ceil(full));
    let mut tried = 0;
    for hosts in small.chain(fewest_for) {
        // Ascending twice over: the second series starts where the first ends.
        if hosts <= tried || hosts < 2 || hosts > rules.hosts_max.min(most) {
            continue;
        }
        tried = hosts;
        let full = k.div_ceil(hosts);
        if full > most_full {
            continue;
        }
        let fewer = hosts * full - k;
        let suffices = |level: usize| {
            let (a, b) = (caps.exactly(level, kinds, full), caps.exactly(level, kinds, full - 1));
            a >= hosts - fewer && b >= fewer && a + b >= hosts
        };
        if suffices(1) {
            let (mut low, mut high) = (1, levels.count());
            while low < high {
                let middle = (low + high).div_ceil(2);
                if suffices(middle) { low = middle } else { high = middle - 1 }
            }
            add(low, hosts, 1 << full | 1 << (full - 1));
        }
    }
    // Fewer hosts at a lower level.
    let mut last = fewest;
    for target in [fewest - 1, fewest - fewest / 8, fewest - fewest / 4, fewest / 2, 4, 3, 2] {
        if target >= 2 && target < last {
            let Some((level, fewest, _)) = highest(target) else { return };
            add(level, fewest, u32::MAX);
            last = fewest;
        }
    }
}

/// Makes candidates of the most promising plans.
fn draw_up(levels: &Levels, plans: &mut [Plan], k: usize, pool: &mut Pool) {
    // Stable, so that equal promises keep the order of lists, floors and types.
    plans.sort_by(|a, b| b.promise_gb_per_s.total_cmp(&a.promise_gb_per_s));
    let mut known: HashSet<u64> = HashSet::new();
    let mut pen = Pen::new(levels);
    let (mut drawn, mut work) = (0, 0);
    for plan in plans.iter() {
        if drawn >= CANDIDATES_MIN && (work >= PARTS_MAX || drawn >= CANDIDATES_MAX) {
            break;
        }
        if !known.insert(plan.signature) {
            continue;
        }
        // Caps that suffice may not add up to exactly `k`: then a lower level, where hosts may give other counts too.
        for down in DOWN {
            let Some(level) = plan.level.checked_sub(down).filter(|l| *l > 0) else { break };
            work += plan.hosts + plan.table.list.len() / 4;
            if pen.draw(plan, level, k) {
                for sides in [Sides::Fattest, Sides::Thinnest] {
                    if pen.choose(plan, level, sides) && pool.add(&pen.parts) {
                        drawn += 1;
                        work += plan.hosts;
                    }
                }
                break;
            }
        }
    }
}

/// Draws candidates, with its memory kept between them.
struct Pen<'l, 'o> {
    levels: &'l Levels<'o>,
    by_cap: Vec<Vec<u32>>,
    rows: Vec<u32>,
    allowed: Vec<u32>,
    counts: Vec<u8>,
    parts: Vec<Part>,
}

impl<'l, 'o> Pen<'l, 'o> {
    fn new(levels: &'l Levels<'o>) -> Self {
        let by_cap = vec![Vec::new(); levels.stride];
        Pen { levels, by_cap, rows: Vec::new(), allowed: Vec::new(), counts: Vec::new(), parts: Vec::new() }
    }

    /// Chooses hosts and counts of a plan at a level; `false` if no counts add up. O(hosts x counts).
    fn draw(&mut self, plan: &Plan, level: usize, k: usize) -> bool {
        let stride = self.levels.stride;
        let allowed = |i: u32| {
            let row = &plan.table.above[i as usize * stride..][..stride];
            (1..stride).filter(|c| usize::from(row[*c]) >= level).fold(0u32, |m, c| m | 1 << c) & plan.counts
        };
        self.by_cap.iter_mut().for_each(Vec::clear);
        for &i in plan.table.list.iter() {
            if usize::from(plan.table.tops[i as usize]) >= level
                && plan.kinds >> self.levels.rows[i as usize].kind & 1 == 1
            {
                let counts = allowed(i);
                if counts != 0 {
                    self.by_cap[31 - counts.leading_zeros() as usize].push(i);
                }
            }
        }
        self.rows.clear();
        self.rows.extend(self.by_cap.iter().rev().flatten().copied().take(plan.hosts));
        self.allowed.clear();
        self.allowed.extend(self.rows.iter().map(|i| allowed(*i)));
        fill::water_fill(&self.allowed, k, &mut self.counts)
    }

    /// Makes `parts` of the chosen hosts and counts. O(hosts log hosts).
    fn choose(&mut self, plan: &Plan, level: usize, sides: Sides) -> bool {
        let floor = plan.table.floor;
        self.parts.clear();
        let chosen = self.rows.iter().zip(&self.counts);
        self.parts.extend(
            chosen.filter_map(|(i, c)| self.levels.part(*i as usize, usize::from(*c), level, floor, sides).copied()),
        );
        self.parts.sort_unstable_by_key(|p| p.host);
        self.parts.len() == self.rows.len()
    }
}

fn mix(h: u64, v: u64) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write_u64(h);
    hasher.write_u64(v);
    hasher.finish()
}

/// Tells candidates apart.
fn signature(parts: &[Part]) -> u64 {
    parts.iter().fold(0, |h, p| mix(h, u64::from(p.host.0) << 32 | u64::from(p.mask.0)))
}

/// Threshold search at any size.
pub struct Threshold;

impl Search for Threshold {
    fn name(&self) -> &'static str {
        "threshold"
    }
    fn search(&self, objective: &Objective, keep: usize) -> Result<Found, Refusal> {
        search(objective, keep)
    }
}

/// Exact search where it is quick, threshold search beyond.
pub struct Auto;

/// Most hosts with free GPUs that [`Auto`] searches exactly.
pub const AUTO_HOSTS_MAX: usize = 16;
/// Most combinations that [`Auto`] judges one by one: about 50 ms.
pub const AUTO_COMBINATIONS_MAX: u64 = 50_000;
/// Most nodes of [`Auto`]'s branch and bound.
pub const AUTO_NODES_MAX: u64 = 100_000;

impl Search for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }
    fn search(&self, objective: &Objective, keep: usize) -> Result<Found, Refusal> {
        if objective.request.usable(objective.cluster)?.host_count() > AUTO_HOSTS_MAX {
            return search(objective, keep);
        }
        match exact::within(objective, keep, AUTO_COMBINATIONS_MAX, AUTO_NODES_MAX) {
            Err(Refusal::TooLarge { .. } | Refusal::PodsTooMixed { .. }) => search(objective, keep),
            found => found,
        }
    }
}
