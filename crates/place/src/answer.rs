//! The answer to a request, with its reasons.

use crate::baselines::packed;
use crate::cost::Cost;
use crate::decide::{ProbeReading, decide, expected};
use crate::exact::{CAUTION_SDS, Scored, SearchResult, TIE, promote_by_lower_confidence_bound};
use crate::groups::{self, GroupBandwidth};
use crate::levels::Level;
use crate::means::{self, Means};
use crate::objective::{Effect, Objective};
use crate::pods::{packed_pods, place_pods};
use crate::policy::{Field, Price, deviation};
use crate::rails;
use crate::ranks;
use crate::request::{Refusal, Request, Split};
use crate::rule::Rule;
use crate::search::{Search, scored};
use crate::threshold::Auto;
use predict::bound::Limit;
use predict::{BandwidthModel, Candidates, HostShare};
use rustc_hash::FxHashMap;
use std::rc::Rc;
use topology::{Allocation, Cluster, GpuId, GpuMask, HostId};

/// The link that limits a choice.
#[derive(Clone, Debug, PartialEq)]
pub enum Bottleneck {
    /// The links inside a host.
    Host {
        /// The host.
        host: HostId,
    },
    /// The NICs next to the chosen GPUs of a host.
    Nic {
        /// The host.
        host: HostId,
        /// Names of the NICs.
        nics: Vec<String>,
        /// Sum of their rates, GB/s.
        gb_per_s: f64,
    },
    /// A link between hosts, or a tier of switches.
    Network {
        /// Name of the link or tier.
        name: String,
    },
    /// The message is too small to fill any link.
    Latency,
    /// A single GPU, which has no collective traffic.
    None,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The choice.
    pub choice: Scored,
    /// The link that limits it.
    pub bottleneck: Bottleneck,
    /// The choice of a packing scheduler with the model's prediction; None if that choice breaks the limits on hosts.
    pub packed: Option<Scored>,
    /// The next best splits.
    pub runner_ups: Vec<Scored>,
    /// The choice of the simple rule ([`crate::rule`]); None for one GPU, and if no choice of the rule satisfies the
    /// request.
    pub rule: Option<Scored>,
    /// Cost of the choice, and its gain over the rule's choice.
    pub price: Price,
    /// The best choice with equal counts per host; set only if the answer has unequal counts because equal ones would
    /// waste hosts or bandwidth.
    pub equal_counts: Option<Scored>,
    /// The choice with any counts per host; set only if the answer keeps equal counts that need more hosts and are predicted to be slower.
    pub uneven_counts: Option<Scored>,
    /// The best choice that spans more than the preferred level; set only if it is faster than the answer.
    pub beyond_level: Option<Scored>,
    /// The choice below the preferred level; set only if the level gave way to an answer of more than [`LEVEL_WORTH`]
    /// times its bandwidth.
    pub given_way: Option<Scored>,
    /// Number of candidates judged.
    pub evaluations: u64,
    /// The effect of the choice on the new job and on the running jobs.
    pub effect: Effect,
    /// The GPUs of every pod, in the request's order; empty without pods.
    pub pods: Vec<(HostId, GpuMask)>,
    /// The groups of ranks, as the request names them.
    pub groups: Vec<GroupBandwidth>,
    /// The chosen GPUs in the recommended rank order (see [`crate::ranks`]).
    pub rank_order: Vec<GpuId>,
    /// The chosen hosts in rank order.
    pub host_order: Vec<(HostId, GpuMask)>,
    /// Name of the search.
    pub search: &'static str,
}

impl Answer {
    /// This answer below a preferred level, or the one above the level where that is [`LEVEL_WORTH`] times as fast.
    fn or_beyond(mut self, above: Answer) -> Answer {
        let evaluations = self.evaluations + above.evaluations;
        let beyond = |a: &Answer| a.beyond_level.as_ref().map_or(0.0, |b| b.score_gb_per_s);
        if above.choice.score_gb_per_s > LEVEL_WORTH * self.choice.score_gb_per_s {
            return Answer { evaluations, given_way: Some(self.choice), ..above };
        }
        if above.choice.score_gb_per_s > self.choice.score_gb_per_s.max(beyond(&self)) {
            self.beyond_level = Some(above.choice);
        }
        Answer { evaluations, ..self }
    }

    /// The same answer, decided again with measurements of its candidates (see [`decide`]). The winner becomes the
    /// choice; its prediction becomes the expectation after the measurements. `Err` holds a measured allocation that is
    /// not among the candidates.
    pub fn decided(
        mut self,
        cluster: &Cluster,
        model: &dyn BandwidthModel,
        request: &Request,
        readings: &[(Allocation, f64)],
    ) -> Result<Answer, Allocation> {
        let mut all: Vec<Scored> = std::iter::once(self.choice).chain(self.runner_ups).collect();
        let of_candidates = readings
            .iter()
            .map(|(a, v)| match all.iter().position(|c| c.allocation == *a) {
                Some(candidate) => Ok(ProbeReading { candidate, busbw_gb_per_s: *v }),
                None => Err(a.clone()),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let field = Field {
            cluster,
            free: &request.free,
            slack: request.slack,
            hosts_measured_max: model.hosts_measured_max(),
        };
        if let Some(d) = decide(&all, &of_candidates, model.repeat_noise()) {
            let after = expected(&all, &of_candidates, model.repeat_noise());
            let of_rule = |r: &Scored| all.iter().position(|c| c.allocation == r.allocation);
            let rule = self.rule.as_ref().and_then(of_rule);
            let chosen = field.choose(&after, d.candidate, rule);
            self.rule = rule.map(|r| after[r].clone()).or(self.rule);
            self.price = field.price(&after[chosen], self.rule.as_ref());
            crate::exact::promote(&mut all, chosen);
            all[0].prediction = after[chosen].prediction;
            self.effect = Objective::new(cluster, model, request).effect(&parts_of(model, request, &all[0].allocation));
        }
        self.choice = all.remove(0);
        self.runner_ups = all;
        self.bottleneck = bottleneck(cluster, model, request, &self.choice.allocation);
        let mut request = request.clone();
        let of_groups = request.pods_of_groups();
        let named = of_groups.is_none();
        request.pods = of_groups.unwrap_or(request.pods);
        let Layout { hosts, pods, ranks } = Layout::of(cluster, model, &request, &self.choice.allocation);
        self.groups = groups::bandwidths(&Objective::new(cluster, model, &request), &ranks);
        (self.host_order, self.rank_order) = (hosts, ranks);
        self.pods = if named { pods } else { Vec::new() };
        Ok(self)
    }
}

/// A preferred level gives way to an answer with more than this many times the bandwidth.
pub const LEVEL_WORTH: f64 = 2.0;
/// Cheaper allocations below this share of the best score are not compared: no usual slack allows for so large a loss.
const CHEAP_SHARE: f64 = 0.5;
/// Number of runner-ups in an answer.
pub const RUNNER_UPS: usize = 7;

/// Answers a request by exact search, or by threshold search where exact search would take too long.
/// [`promote_by_lower_confidence_bound`] picks the best candidate; [`crate::policy`] compares it with the simple rule's
/// choice.
pub fn answer(cluster: &Cluster, model: &dyn BandwidthModel, request: &Request) -> Result<Answer, Refusal> {
    answer_with(&Auto, cluster, model, request)
}

/// Relative gain in bandwidth for which an answer gives up equal counts per host, which most launchers ask for.
const UNEVEN_GAIN: f64 = 0.25;
/// An answer also gives up equal counts if they need this many times the hosts and bring at most [`UNEVEN_LOSS`] more
/// bandwidth.
const UNEVEN_HOSTS: usize = 2;
/// See [`UNEVEN_HOSTS`].
const UNEVEN_LOSS: f64 = 0.05;
/// Nor does an answer keep equal counts where other counts are at least as fast on less than this share of the hosts.
const UNEVEN_HOSTS_SHARE: f64 = 0.75;

/// Answers a request by any search.
///
/// If equal counts are only preferred and need more hosts than necessary, the request is also searched with any counts,
/// and the better answer wins. Switches that the readings show count as if the cluster file had them.
pub fn answer_with(
    search: &dyn Search,
    cluster: &Cluster,
    model: &dyn BandwidthModel,
    request: &Request,
) -> Result<Answer, Refusal> {
    if let Some(found) = model.with_found_switches().filter(|_| cluster.network.tiers.is_empty()) {
        let mut with = cluster.clone();
        with.network.tiers.clone_from(&found.network.tiers);
        return answer_on(search, &with, model, request);
    }
    answer_on(search, cluster, model, request)
}

fn answer_on(
    search: &dyn Search,
    cluster: &Cluster,
    model: &dyn BandwidthModel,
    request: &Request,
) -> Result<Answer, Refusal> {
    let means = means::of(model, request.size);
    let equal = answer_once(search, cluster, model, request, &means)?;
    let hosts = equal.choice.allocation.host_count();
    let prefers = request.constraints.split == Split::EqualIfFeasible && request.groups.is_empty();
    let even = equal.choice.allocation.counts().windows(2).all(|c| c[0] == c[1]);
    if !(prefers && even && hosts > 1) {
        return Ok(equal);
    }
    let free = request.usable(cluster)?;
    let usable = Request { free, ..request.clone() };
    if usable.fewest_hosts().is_none_or(|n| n >= hosts) {
        return Ok(equal);
    }
    let mut any = request.clone();
    any.constraints.split = Split::Any;
    let Ok(mut uneven) = answer_once(search, cluster, model, &any, &means) else { return Ok(equal) };
    let (a, b) = (uneven.choice.score_gb_per_s, equal.choice.score_gb_per_s);
    let needs = uneven.choice.allocation.host_count();
    let half = UNEVEN_HOSTS * needs <= hosts && a > (1.0 - UNEVEN_LOSS) * b;
    let clearly_fewer = (needs as f64) < UNEVEN_HOSTS_SHARE * hosts as f64 && a >= b;
    if a > (1.0 + UNEVEN_GAIN) * b || half || clearly_fewer {
        uneven.evaluations += equal.evaluations;
        uneven.equal_counts = Some(equal.choice);
        return Ok(uneven);
    }
    let uneven_counts = (needs < hosts && a > b).then_some(uneven.choice);
    Ok(Answer { evaluations: equal.evaluations + uneven.evaluations, uneven_counts, ..equal })
}

fn answer_once<'m>(
    search: &dyn Search,
    cluster: &'m Cluster,
    model: &'m dyn BandwidthModel,
    request: &Request,
    means: &Rc<dyn Means + 'm>,
) -> Result<Answer, Refusal> {
    // Searches see only usable GPUs. Constraints on the whole choice stay in the request.
    let mut base = Request { free: request.usable(cluster)?, ..request.clone() };
    if let Some(pods) = base.pods_of_groups() {
        base.pods = pods;
    }
    let mut refused = None;
    let prefers = base.constraints.prefer_level.is_some();
    let mut preferred: Option<Answer> = None;
    for attempt in base.attempts(cluster)? {
        let found =
            base.regions(cluster, &attempt).and_then(|r| answer_in(search, cluster, model, request, &base, &r, means));
        match found {
            Ok(answer) if !prefers => return Ok(answer),
            Ok(answer) => preferred = Some(preferred.take().map_or(answer.clone(), |p| p.or_beyond(answer))),
            Err(e) => refused = Some(e),
        }
    }
    preferred.ok_or_else(|| refused.unwrap_or_else(|| base.no_split()))
}

/// Answers a request within regions. `base`: the request with its usable GPUs.
fn answer_in<'m>(
    search: &dyn Search,
    cluster: &'m Cluster,
    model: &'m dyn BandwidthModel,
    request: &Request,
    base: &Request,
    regions: &[Request],
    means: &Rc<dyn Means + 'm>,
) -> Result<Answer, Refusal> {
    let spread = base.constraints.levels(cluster)?.spread;
    let objectives: Vec<Objective> =
        regions.iter().map(|r| Objective::with(cluster, model, r, means.clone())).collect();
    let (mut found, refused) = Found::in_regions(search, &objectives, base, spread);
    let Some(objective) = objectives.first() else { return Err(base.no_split()) };
    found.best.retain(|s| base.accepts(cluster, &s.allocation));
    if let Some(Level::Tier(tier)) = spread {
        // The rule spreads within each region; the regions in which it spreads furthest count.
        let fullest = |s: &Scored| {
            let mut below: FxHashMap<usize, usize> = FxHashMap::default();
            let gpus = s.allocation.parts().iter().map(|&(h, m)| (cluster.switch_of(tier, h), m.count()));
            gpus.for_each(|(switch, n)| *below.entry(switch).or_default() += n);
            below.into_values().max().unwrap_or(0)
        };
        let least = found.best.iter().map(fullest).min().unwrap_or(0);
        found.best.retain(|s| fullest(s) == least);
        found.cheap.retain(|s| fullest(s) == least);
        found.rule = found.rule.filter(|s| fullest(s) == least);
    }
    if found.best.is_empty() {
        return Err(refused.unwrap_or_else(|| match search.name() {
            "exact" => base.no_split(),
            search => Refusal::SearchBreaksLimits { search },
        }));
    }
    found.rank(objective, base, regions.len() > 1);
    let Found { best, cheap, rule, evaluations } = found;
    let field =
        Field { cluster, free: &request.free, slack: request.slack, hosts_measured_max: model.hosts_measured_max() };
    let Against { choice, runner_ups, rule, price } = against_rule(&field, best, cheap, rule);
    base.connected(cluster, &choice)?;
    let packed = match base.pods.iter().any(|p| *p > 1) {
        true => packed_pods(cluster, &base.free, &base.pods),
        false => packed(cluster, &base.free, base.gpus),
    };
    let packed = packed.filter(|a| base.accepts(cluster, a)).map(|a| scored(objective, a));
    let bottleneck = bottleneck(cluster, model, base, &choice.allocation);
    let effect = objective.effect(&parts_of(model, base, &choice.allocation));
    let Layout { hosts, mut pods, ranks } = Layout::of(cluster, model, base, &choice.allocation);
    if request.pods.is_empty() {
        pods.clear(); // the pods were derived from the groups
    }
    Ok(Answer {
        groups: groups::bandwidths(objective, &ranks),
        choice,
        bottleneck,
        packed,
        runner_ups,
        rule,
        price,
        equal_counts: None,
        uneven_counts: None,
        beyond_level: None,
        given_way: None,
        evaluations,
        effect,
        pods,
        rank_order: ranks,
        host_order: hosts,
        search: search.name(),
    })
}

impl Request {
    /// Refuses a choice over several hosts that cannot communicate.
    fn connected(&self, cluster: &Cluster, choice: &Scored) -> Result<(), Refusal> {
        let a = &choice.allocation;
        if a.host_count() < 2 {
            return Ok(());
        }
        let has_nic = |h: HostId, gpus: GpuMask| {
            let nics = cluster.type_of(h).nics_touched(gpus);
            (0..cluster.type_of(h).nics.len()).any(|n| nics >> n & 1 == 1 && cluster.nic_rate(h, n).gb_per_s() > 0.0)
        };
        let without: Vec<HostId> = a.parts().iter().filter(|p| !has_nic(p.0, p.1)).map(|p| p.0).collect();
        // If the cluster file names no NIC at all, readings may show a network that it does not know.
        let network_known = || cluster.host_ids().any(|h| has_nic(h, cluster.type_of(h).all_gpus()));
        let unconnected = !without.is_empty() && network_known();
        if !unconnected && choice.prediction.busbw_gb_per_s > NO_NETWORK_GB_PER_S {
            return Ok(());
        }
        let without = cluster.host_list(without);
        Err(Refusal::NoNetwork { gpus: self.gpus, hosts: a.host_count(), without })
    }
}

/// A prediction over hosts at or below this means that they have no network.
const NO_NETWORK_GB_PER_S: f64 = 1e-3;

/// The score of a candidate becomes the bandwidth of the job's groups on it, reduced by the running jobs.
fn score_by_groups(objective: &Objective, request: &Request, s: &mut Scored) {
    let ranks = Layout::of(objective.cluster, objective.model, request, &s.allocation).ranks;
    if let Some(v) = groups::weighted(&groups::bandwidths(objective, &ranks)) {
        let left = s.score_gb_per_s / s.prediction.busbw_gb_per_s.max(1e-9);
        s.score_gb_per_s = v * left.min(1.0);
    }
}

/// Candidates found in one or more regions.
struct Found {
    /// The search's candidates, best first.
    best: Vec<Scored>,
    /// Allocations of low cost, including the rule's choice.
    cheap: Vec<Scored>,
    rule: Option<Scored>,
    evaluations: u64,
}

impl Found {
    /// Candidates of all regions, and the first refusal.
    fn in_regions(
        search: &dyn Search,
        objectives: &[Objective],
        base: &Request,
        spread: Option<Level>,
    ) -> (Found, Option<Refusal>) {
        let mut found = Found { best: Vec::new(), cheap: Vec::new(), rule: None, evaluations: 0 };
        let mut refused = None;
        for objective in objectives {
            let of_region = match spread {
                Some(Level::Tier(tier)) => Ok(found_spread(objective, tier)),
                _ => found_by(search, objective, base.constraints.split == Split::EqualIfFeasible),
            };
            match of_region {
                Ok(more) => found.take(more, objective.cluster),
                Err(e) => refused = refused.or(Some(e)),
            }
        }
        (found, refused)
    }

    /// Sorts the best candidates of all regions, by the bandwidth of the job's groups if the job has groups.
    fn rank(&mut self, objective: &Objective, base: &Request, several_regions: bool) {
        let Found { best, cheap, rule, .. } = self;
        if !base.groups.is_empty() {
            best.iter_mut().chain(cheap).chain(rule).for_each(|s| score_by_groups(objective, base, s));
        }
        if several_regions || !base.groups.is_empty() {
            best.sort_by(|a, b| b.score_gb_per_s.total_cmp(&a.score_gb_per_s));
            best.iter_mut().for_each(|s| s.same_split_other_hosts = false);
            best.truncate(1 + RUNNER_UPS);
        }
        promote_by_lower_confidence_bound(best);
    }

    /// Adds the candidates of another region.
    fn take(&mut self, more: Found, cluster: &Cluster) {
        self.best.extend(more.best);
        self.cheap.extend(more.cheap);
        self.evaluations += more.evaluations;
        let key = |s: &Scored| {
            let a = &s.allocation;
            let switches: Vec<usize> =
                (0..cluster.network.tiers.len()).rev().map(|t| cluster.switches_spanned(t, a)).collect();
            (switches, a.host_count())
        };
        self.rule = match (self.rule.take(), more.rule) {
            (Some(a), Some(b)) => Some(if key(&b) < key(&a) { b } else { a }),
            (a, b) => a.or(b),
        };
    }
}

/// Runs the search and the simple rule in one region. `relax`: equal counts are only preferred.
fn found_by(search: &dyn Search, objective: &Objective, relax: bool) -> Result<Found, Refusal> {
    let (request, keep) = (objective.request, 1 + RUNNER_UPS);
    let align = |a: &Allocation| rails::aligned(objective.cluster, &request.free, a);
    let SearchResult { mut best, mut evaluations } = match search.search(objective, keep) {
        Err(Refusal::Unsupported { .. }) if relax && request.constraints.split == Split::Equal => {
            let mut any = request.clone();
            any.constraints.split = Split::Any;
            let means = objective.means().clone();
            search.search(&Objective::with(objective.cluster, objective.model, &any, means), keep)?
        }
        found => found?,
    };
    let moved: Vec<Allocation> = best.iter().filter_map(|s| align(&s.allocation)).collect();
    if !moved.is_empty() {
        evaluations += moved.len() as u64;
        best.extend(moved.into_iter().map(|a| scored(objective, a)));
        best.sort_by(|a, b| b.score_gb_per_s.total_cmp(&a.score_gb_per_s));
        best.dedup_by(|a, b| a.allocation == b.allocation);
    }
    best.truncate(keep);
    if !search.keeps_to_rule() || request.gpus < 2 {
        return Ok(Found { best, cheap: Vec::new(), rule: None, evaluations });
    }
    let Some(first) = best.first() else { return Ok(Found { best, cheap: Vec::new(), rule: None, evaluations }) };
    let mut rule = Rule::new(objective);
    let mut choices = rule.choices(first.allocation.host_count());
    for from in choices.first().cloned().into_iter().chain([first.allocation.clone()]) {
        let (better, judged) = rule.rearranged(&from);
        evaluations += judged;
        choices.extend(better);
    }
    for free in rails::windows(objective.cluster, &request.free, request.gpus) {
        let within = Request { free, ..request.clone() };
        let objective = Objective::with(objective.cluster, objective.model, &within, objective.means().clone());
        choices.extend(Rule::new(&objective).choices(first.allocation.host_count()));
    }
    choices.iter_mut().for_each(|a| *a = align(a).unwrap_or_else(|| a.clone()));
    let mut values = Vec::new();
    objective.scores(&Candidates::of(objective.table(), &choices), &mut values);
    evaluations += choices.len() as u64;
    let cost = |a: &Allocation| Cost::of(objective.cluster, &request.free, a);
    let of_first = cost(&first.allocation);
    // The policy can choose only a better or a cheaper candidate.
    let matters = |(i, (a, v)): &(usize, (Allocation, f64))| {
        *i == 0 || *v > first.score_gb_per_s || (*v >= CHEAP_SHARE * first.score_gb_per_s && cost(a) <= of_first)
    };
    let kept = choices.into_iter().zip(values).enumerate().filter(matters);
    let cheap: Vec<Scored> = kept.map(|(_, (a, _))| scored(objective, a)).collect();
    Ok(Found { evaluations, rule: cheap.first().cloned(), best, cheap })
}

/// As few GPUs as possible below any one switch of a tier: the simple rule decides.
fn found_spread(objective: &Objective, tier: usize) -> Found {
    let best: Vec<Scored> = Rule::new(objective).spread(tier).into_iter().map(|a| scored(objective, a)).collect();
    Found { evaluations: best.len() as u64, rule: best.first().cloned(), best, cheap: Vec::new() }
}

/// The outcome of comparing a search's candidates with the simple rule.
struct Against {
    choice: Scored,
    runner_ups: Vec<Scored>,
    rule: Option<Scored>,
    price: Price,
}

/// The policy chooses between a search's candidates (best first) and the cheap allocations of the simple rule.
fn against_rule(field: &Field, mut best: Vec<Scored>, cheap: Vec<Scored>, rule: Option<Scored>) -> Against {
    let mut all = best.clone();
    let new = |c: &Scored, all: &[Scored]| all.iter().all(|s| s.allocation != c.allocation);
    for c in cheap.into_iter().chain(rule.clone()) {
        if new(&c, &all) {
            all.push(c);
        }
    }
    let rule = rule.and_then(|r| all.iter().position(|s| s.allocation == r.allocation));
    // Threshold search may have missed a cheap allocation that is better than all its candidates.
    let top = (1..all.len()).fold(0, |top, i| {
        let value = |s: &Scored| s.score_gb_per_s - CAUTION_SDS * deviation(s);
        let better = i >= best.len() && value(&all[i]) > value(&all[top]) * (1.0 + TIE);
        if better { i } else { top }
    });
    let chosen = field.choose(&all, top, rule);
    let (choice, rule) = (all[chosen].clone(), rule.map(|r| all[r].clone()));
    // The rule's choice stays among the candidates, so that it can be measured.
    let mut missing: Vec<Scored> = rule.iter().chain([&choice]).cloned().collect();
    missing.retain(|o| best.iter().all(|s| s.allocation != o.allocation));
    missing.dedup_by(|a, b| a.allocation == b.allocation);
    best.truncate(1 + RUNNER_UPS - missing.len());
    best.append(&mut missing);
    if let Some(at) = best.iter().position(|s| s.allocation == choice.allocation) {
        crate::exact::promote(&mut best, at);
    }
    let runner_ups = best.split_off(1);
    Against { price: field.price(&choice, rule.as_ref()), choice, runner_ups, rule }
}

/// A choice with its pods, groups and rank order.
struct Layout {
    hosts: Vec<(HostId, GpuMask)>,
    pods: Vec<(HostId, GpuMask)>,
    ranks: Vec<GpuId>,
}

impl Layout {
    fn of(cluster: &Cluster, model: &dyn BandwidthModel, request: &Request, choice: &Allocation) -> Layout {
        let hosts = ranks::host_order(cluster, choice.parts());
        let table = model.share_table(request.size);
        let pods = if request.pods.is_empty() { None } else { place_pods(table, &request.pods, &hosts) };
        let pods = pods.unwrap_or_default();
        let ranks = ranks::rank_order(&hosts, &pods);
        Layout { hosts, pods, ranks }
    }
}

fn parts_of(model: &dyn BandwidthModel, request: &Request, allocation: &Allocation) -> Vec<HostShare> {
    let table = model.share_table(request.size);
    allocation.parts().iter().map(|&(h, m)| table.part(h, m)).collect()
}

/// The link that limits an allocation, by the physical bound.
pub fn bottleneck(cluster: &Cluster, model: &dyn BandwidthModel, request: &Request, a: &Allocation) -> Bottleneck {
    if a.gpu_count() < 2 {
        return Bottleneck::None;
    }
    let parts = parts_of(model, request, a);
    match model.limit(request.size, &parts) {
        Limit::Intra { host } => Bottleneck::Host { host },
        Limit::Network { name } => Bottleneck::Network { name },
        Limit::Latency => Bottleneck::Latency,
        Limit::Nic { host } => {
            let ty = cluster.type_of(host);
            let touched = ty.nics_touched(a.mask(host));
            let of_it = |i: &usize| touched >> i & 1 == 1;
            Bottleneck::Nic {
                host,
                nics: (0..ty.nics.len()).filter(of_it).map(|i| ty.nics[i].name.clone()).collect(),
                gb_per_s: (0..ty.nics.len()).filter(of_it).map(|i| cluster.nic_rate(host, i).gb_per_s()).sum(),
            }
        }
    }
}
