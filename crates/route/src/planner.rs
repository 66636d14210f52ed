//! linkwise's planner.
//!
//! 1. One pass over the demand gives the loads of every static rule and the closed-form bounds.
//! 2. If the best rule is within `gap` of a bound, the plan is that rule: it needs no coordination. On balanced traffic it is the direct path.
//! 3. Otherwise pivots ([`crate::pivot`]) correct a rule. Their multipliers also prove a lower bound.
//! 4. Relays take time to start. If messages are so small that a simpler rule completes sooner in the time model, that rule is the plan.
//!
//! The result is never worse than the best static rule, because every rule is a candidate.

use crate::bound::{Evidence, closed_form_bound};
use crate::demand::Demand;
use crate::model::{MessageStats, RelayCosts};
use crate::network::{LinkKind, RoutingNetwork};
use crate::pivot::{PivotOutcome, PivotProblem, Pivots};
use crate::plan::{PlanReason, RoutePlan};
use crate::rules::{Rule, Shares};
use crate::sums::{DemandSums, busiest_link};

/// Work limit of one plan for any number of ranks, in multiply-adds: about ten milliseconds.
const WORK_MAX: u64 = 16_000_000;
/// A port is hot if it needs at least this share of the busiest link's seconds.
const HOT_PORT_MIN: f64 = 0.9;
/// With more ranks than this, the correction first moves the traffic of whole hosts.
const COARSE_RANKS_MIN: usize = 16;

/// Limits of the search, and the time model's costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannerSettings {
    /// Stop when the plan is proven to be within this share of the optimum.
    pub gap: f64,
    /// Work limit of the correction per rank, roughly in multiply-adds.
    pub work_per_rank: u64,
    /// Time that forwarding and pieces cost.
    pub costs: RelayCosts,
}

impl Default for PlannerSettings {
    /// The settings of every quality and speed figure in the documents.
    fn default() -> Self {
        PlannerSettings { gap: 0.005, work_per_rank: 64_000, costs: RelayCosts::default() }
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// Demand and network differ in the number of ranks.
    #[error("the demand has {demand} ranks, but the cluster has {network}")]
    Ranks {
        /// Ranks of the demand.
        demand: usize,
        /// Ranks of the network.
        network: usize,
    },
    /// No path of working links connects two ranks.
    #[error("{src} sends bytes to {dst}, but no path of working links connects them")]
    NoPath {
        /// Sender, by name.
        src: String,
        /// Receiver, by name.
        dst: String,
    },
    /// The reference solver found no solution.
    #[error("the reference solver failed: {0}")]
    Solver(String),
}

/// Plans one demand after another in one workspace: after the first plan of a size, only the plan itself is allocated.
#[derive(Clone, Debug, Default)]
pub struct Planner {
    /// Limits of the search, and the time model's costs.
    pub settings: PlannerSettings,
    sums: DemandSums,
    pivots: Pivots,
    loads: Vec<f64>,
    best_loads: Vec<f64>,
    shares: Shares,
}

/// A static rule with its modelled times.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    rule: Rule,
    congestion_s: f64,
    bottleneck: usize,
    completion_s: f64,
}

/// The best static rules of one demand. `Planner::best_loads` holds the loads of `start`.
struct BestRules {
    /// Least congestion; of equal rules the simplest.
    congestion: Candidate,
    /// Least completion time.
    completion: Candidate,
    /// Least congestion among the rules that pivots can start from.
    start: Candidate,
}

/// The inputs of one correction.
struct Correction<'a> {
    net: &'a RoutingNetwork,
    demand: &'a Demand,
    /// The rule to correct.
    start: Candidate,
    /// Move the traffic of whole hosts first.
    coarse: bool,
    /// The closed-form bound, seconds.
    bound: f64,
    /// Work limit of all stages, roughly in multiply-adds.
    work_max: u64,
}

impl Planner {
    /// A planner with these settings.
    pub fn new(settings: PlannerSettings) -> Self {
        Planner { settings, ..Planner::default() }
    }

    /// Sums the demand. Fails if its size differs from the network's or a pair has no path.
    fn sum_demand(&mut self, net: &RoutingNetwork, demand: &Demand) -> Result<(), PlanError> {
        check_rank_count(net, demand)?;
        self.sums.read(net, demand).map_err(|(i, j)| no_path_error(net, i, j))
    }

    fn evaluate_rule(&mut self, net: &RoutingNetwork, demand: &Demand, stats: &MessageStats, rule: Rule) -> Candidate {
        self.sums.loads(net, demand, rule, &net.weights, &mut self.loads);
        let (bottleneck, congestion_s) = busiest_link(net, &self.loads);
        let completion_s = congestion_s + self.settings.costs.rule_overhead_s(net, stats, rule);
        Candidate { rule, congestion_s, bottleneck, completion_s }
    }

    /// A plan with its proven lower bound. O(ranks²) for a static rule; a correction is limited by
    /// [`PlannerSettings::work_per_rank`].
    ///
    /// # Errors
    /// The demand's size differs from the network's, or a pair with bytes has no path.
    pub fn plan(&mut self, net: &RoutingNetwork, demand: &Demand) -> Result<RoutePlan, PlanError> {
        self.sum_demand(net, demand)?;
        let (bound, evidence) = closed_form_bound(net, demand, &self.sums);
        let stats = MessageStats::of(net, demand);
        let coarse = net.slots > 1 && net.rank_count() > COARSE_RANKS_MIN;
        let Some(best) = self.evaluate_rules(net, demand, &stats, coarse) else {
            return Ok(RoutePlan::of_rule(Rule::Direct));
        };
        let mut plan = plan_of_candidate(best.congestion);
        (plan.lower_bound_s, plan.evidence) = (bound.min(best.congestion.congestion_s), evidence);
        plan.reason = PlanReason::RuleIsEnough;
        if plan.congestion_s > bound * (1.0 + self.settings.gap) {
            let work_max = (self.settings.work_per_rank * net.rank_count() as u64).min(WORK_MAX);
            let correction = Correction { net, demand, start: best.start, coarse, bound, work_max };
            self.correct(&correction, &stats, &mut plan);
        }
        // More relays must save more time than they cost.
        if best.completion.completion_s * self.settings.costs.margin < plan.completion_s {
            let (lower_bound_s, evidence, pivots) = (plan.lower_bound_s, plan.evidence, plan.pivots);
            let reason = PlanReason::SmallMessages;
            plan = RoutePlan { lower_bound_s, evidence, pivots, reason, ..plan_of_candidate(best.completion) };
        }
        plan.quantum_bytes = quantum_bytes(net, plan.lower_bound_s);
        Ok(plan)
    }

    /// Evaluates every static rule. `None` if none can start the correction.
    fn evaluate_rules(
        &mut self,
        net: &RoutingNetwork,
        demand: &Demand,
        stats: &MessageStats,
        coarse: bool,
    ) -> Option<BestRules> {
        let mut congestion: Option<Candidate> = None;
        let mut completion: Option<Candidate> = None;
        let mut start: Option<Candidate> = None;
        for rule in Rule::ALL {
            if rule == Rule::DestinationRail || (net.slots == 0 && !matches!(rule, Rule::Direct | Rule::Weighted)) {
                continue; // the same loads as the direct path
            }
            let c = self.evaluate_rule(net, demand, stats, rule);
            let less = |a: f64, b: f64| a < b * (1.0 - 1e-9);
            if congestion.is_none_or(|b| less(c.congestion_s, b.congestion_s)) {
                congestion = Some(c);
            }
            if completion.is_none_or(|b| less(c.completion_s, b.completion_s)) {
                completion = Some(c);
            }
            let can_start =
                if coarse { rule == Rule::Weighted } else { !matches!(rule, Rule::Stripe | Rule::TwoRails) };
            if can_start && start.is_none_or(|b| less(c.congestion_s, b.congestion_s)) {
                start = Some(c);
                std::mem::swap(&mut self.loads, &mut self.best_loads);
            }
        }
        Some(BestRules { congestion: congestion?, completion: completion?, start: start? })
    }

    /// Corrects the starting rule, whose loads are in `best_loads`. Replaces `plan` if the corrected plan has less congestion.
    fn correct(&mut self, c: &Correction, stats: &MessageStats, plan: &mut RoutePlan) {
        let mut corrected = RoutePlan { reason: PlanReason::Corrected, ..RoutePlan::of_rule(c.start.rule) };
        self.pivots.weights.clone_from(&c.net.weights);
        let mut outcome = PivotOutcome { bound: c.bound, ..PivotOutcome::default() };
        if c.coarse {
            outcome = self.correct_whole_hosts(c, &mut corrected);
        }
        let (_, reached) = busiest_link(c.net, &self.best_loads);
        if !c.coarse || reached > outcome.bound * (1.0 + self.settings.gap) {
            outcome = self.correct_single_pairs(c, outcome, &mut corrected);
        }
        if outcome.bound > c.bound {
            plan.lower_bound_s = outcome.bound.min(plan.congestion_s);
            plan.evidence = Evidence::Weights;
        }
        plan.pivots = outcome.pivots;
        (corrected.bottleneck, corrected.congestion_s) = busiest_link(c.net, &self.best_loads);
        corrected.completion_s = corrected.congestion_s + self.settings.costs.split_overhead_s(c.net, stats);
        if corrected.congestion_s < plan.congestion_s {
            (corrected.lower_bound_s, corrected.evidence, corrected.pivots) =
                (plan.lower_bound_s.min(corrected.congestion_s), plan.evidence, plan.pivots);
            *plan = corrected;
        }
    }

    /// Coarse stage: moves all bytes between two hosts together, and the largest demands alone. It may use half of the work.
    fn correct_whole_hosts(&mut self, c: &Correction, corrected: &mut RoutePlan) -> PivotOutcome {
        let (net, rule) = (c.net, c.start.rule);
        let relief = self.relieve_hot_ports(net, c.demand, c.start);
        let problem = PivotProblem {
            demand: c.demand,
            sums: &self.sums,
            rule,
            loads: &self.best_loads,
            coarse: true,
            from: relief.as_ref(),
            bound: c.bound,
            gap: self.settings.gap,
            work_max: c.work_max / 2,
        };
        let mut outcome = self.pivots.run(net, &problem);
        outcome.bound = c.bound.max(self.pivots.lower_bound(net, c.demand));
        // First the largest demands, because their splits refer to the weights before `absorb_host_weights`.
        self.pivots.for_each_exception(net, rule, |src, dst, shares| corrected.add_exception(src, dst, shares));
        self.pivots.absorb_host_weights(net, |a, b, weights| corrected.add_host_exception(a, b, weights));
        corrected.weights(net, &mut self.pivots.weights);
        self.sums.loads(net, c.demand, rule, &self.pivots.weights, &mut self.best_loads);
        add_exceptions(net, c.demand, corrected, &mut self.best_loads, &mut self.shares);
        outcome
    }

    /// Fine stage: moves every demand alone, starting from the coarse stage's result if there is one.
    fn correct_single_pairs(
        &mut self,
        c: &Correction,
        coarse: PivotOutcome,
        corrected: &mut RoutePlan,
    ) -> PivotOutcome {
        let (net, rule) = (c.net, c.start.rule);
        let problem = PivotProblem {
            demand: c.demand,
            sums: &self.sums,
            rule,
            loads: &self.best_loads,
            coarse: false,
            from: c.coarse.then_some(&*corrected),
            bound: coarse.bound,
            gap: self.settings.gap,
            work_max: c.work_max - coarse.work.min(c.work_max / 2),
        };
        let fine = self.pivots.run(net, &problem);
        // Compute the loads from the shares again, so that no rounding error of the pivots remains.
        corrected.clear_exceptions();
        self.pivots.for_each_exception(net, rule, |src, dst, shares| corrected.add_exception(src, dst, shares));
        self.sums.loads(net, c.demand, rule, &self.pivots.weights, &mut self.best_loads);
        add_exceptions(net, c.demand, corrected, &mut self.best_loads, &mut self.shares);
        PivotOutcome { bound: fine.bound, pivots: coarse.pivots + fine.pivots, work: coarse.work + fine.work }
    }

    /// Takes traffic between hosts off the hot ports: GPU ports to the host's switch that are the busiest links and carry mostly traffic of
    /// their own host, which has no other path. Such a GPU then sends and receives over its own rail, which needs no port, and the bytes of
    /// other GPUs avoid that rail. `None` if that does not reduce congestion.
    fn relieve_hot_ports(&mut self, net: &RoutingNetwork, demand: &Demand, start: Candidate) -> Option<RoutePlan> {
        let hot = self.hot_ports(net, start.congestion_s);
        if !hot.contains(&true) {
            return None;
        }
        self.avoid_hot_rails(net, &hot);
        let mut relief = RoutePlan::of_rule(start.rule);
        for (src, dst, _) in demand.pairs() {
            let (a, b) = (net.host(src), net.host(dst));
            let slot = net.home[if hot[src] { src } else { dst }];
            if a != b && (hot[src] || hot[dst]) && net.slots_between(a, b) >> slot & 1 == 1 {
                relief.add_exception(src, dst, &[(u16::from(slot), 1.0)]);
            }
        }
        // The loads need a plan that also holds the changed weights.
        let hosts = net.host_count();
        let mut whole = relief.clone();
        for p in (0..hosts * hosts).filter(|p| p / hosts != p % hosts) {
            whole.add_host_exception(p / hosts, p % hosts, &self.pivots.weights[p * net.slots..(p + 1) * net.slots]);
        }
        self.sums.loads(net, demand, start.rule, &self.pivots.weights, &mut self.loads);
        add_exceptions(net, demand, &whole, &mut self.loads, &mut self.shares);
        if busiest_link(net, &self.loads).1 >= start.congestion_s {
            self.pivots.weights.clone_from(&net.weights);
            return None;
        }
        std::mem::swap(&mut self.loads, &mut self.best_loads);
        Some(relief)
    }

    /// The ranks whose port to the host's switch is hot, by rank.
    fn hot_ports(&self, net: &RoutingNetwork, congestion_s: f64) -> Vec<bool> {
        let (hosts, ranks) = (net.host_count(), net.rank_count());
        let mut hot = vec![false; ranks];
        for (l, link) in net.links.iter().enumerate() {
            let busy = self.best_loads[l] * net.inverse[l] >= HOT_PORT_MIN * congestion_s;
            if link.kind != LinkKind::NvLink || !busy {
                continue;
            }
            let (from, to) = (link.from as usize, link.to as usize);
            let (rank, inside) = match (from < ranks, to < ranks) {
                (true, false) => (from, self.sums.row_host[from * hosts + net.host(from)]),
                (false, true) => (to, self.sums.host_col[net.host(to) * ranks + to]),
                _ => continue, // a link of a mesh: traffic can take other paths
            };
            hot[rank] |= inside >= 0.5 * self.best_loads[l];
        }
        hot
    }

    /// Sets the weights of the hot ranks' rails to 0 and scales the others up.
    fn avoid_hot_rails(&mut self, net: &RoutingNetwork, hot: &[bool]) {
        let hosts = net.host_count();
        for rank in (0..net.rank_count()).filter(|&r| hot[r]) {
            let (h, slot) = (net.host(rank), usize::from(net.home[rank]));
            for other in (0..hosts).filter(|&o| o != h) {
                for (a, b) in [(other, h), (h, other)] {
                    let at = (a * hosts + b) * net.slots;
                    let weights = &mut self.pivots.weights[at..at + net.slots];
                    let rest = 1.0 - weights[slot];
                    if rest > 1e-9 {
                        weights[slot] = 0.0;
                        weights.iter_mut().for_each(|w| *w /= rest);
                    }
                }
            }
        }
    }

    /// The plan of a static rule with the closed-form bound. O(ranks²).
    pub fn plan_rule(&mut self, net: &RoutingNetwork, demand: &Demand, rule: Rule) -> Result<RoutePlan, PlanError> {
        self.sum_demand(net, demand)?;
        let (bound, evidence) = closed_form_bound(net, demand, &self.sums);
        let candidate = self.evaluate_rule(net, demand, &MessageStats::of(net, demand), rule);
        let mut plan = plan_of_candidate(candidate);
        (plan.lower_bound_s, plan.evidence) = (bound.min(plan.congestion_s), evidence);
        plan.quantum_bytes = quantum_bytes(net, bound);
        Ok(plan)
    }
}

/// The candidate's rule with its times; bound and evidence are not set.
fn plan_of_candidate(c: Candidate) -> RoutePlan {
    let mut plan = RoutePlan::of_rule(c.rule);
    (plan.congestion_s, plan.bottleneck, plan.completion_s) = (c.congestion_s, c.bottleneck, c.completion_s);
    plan
}

/// Moves the bytes of the plan's exceptions from the rule's paths to their own paths.
fn add_exceptions(net: &RoutingNetwork, demand: &Demand, plan: &RoutePlan, loads: &mut [f64], scratch: &mut Shares) {
    plan.for_each_exception(|src, dst, shares| {
        let bytes = demand.get(src, dst) as f64;
        plan.base_shares(net, src, dst, scratch);
        for (list, sign) in [(&*scratch, -1.0), (shares, 1.0)] {
            for &(p, s) in list.as_slice() {
                net.path(src, dst, usize::from(p)).for_each(|l| loads[l as usize] += sign * s * bytes);
            }
        }
    });
}

/// Fails if the demand's size differs from the network's.
pub(crate) fn check_rank_count(net: &RoutingNetwork, demand: &Demand) -> Result<(), PlanError> {
    match demand.ranks() == net.rank_count() {
        true => Ok(()),
        false => Err(PlanError::Ranks { demand: demand.ranks(), network: net.rank_count() }),
    }
}

pub(crate) fn no_path_error(net: &RoutingNetwork, src: usize, dst: usize) -> PlanError {
    PlanError::NoPath { src: net.nodes[src].clone(), dst: net.nodes[dst].clone() }
}

/// Size that pieces are rounded to. It is a power of two, so that pieces stay aligned. The rounding of all pieces on a link moves at most
/// 1e-5 of the bytes that the slowest link carries in `seconds`.
pub(crate) fn quantum_bytes(net: &RoutingNetwork, seconds: f64) -> u64 {
    let slowest =
        net.links.iter().map(|l| l.capacity_gb_per_s).filter(|c| *c > 0.0).fold(f64::INFINITY, f64::min) * 1e9;
    let share = (seconds * slowest * 1e-5 / net.rank_count() as f64).min(65536.0);
    if share >= 2.0 { 1 << (share as u64).ilog2() } else { 1 }
}
