//! linkwise's planner.
//!
//! 1. One pass over the demand gives the loads of every static rule and the closed-form bounds.
//! 2. Where a rule is within the wanted gap of a bound, that is the plan: the simplest such rule. It needs no coordination, and on balanced
//!    traffic it is the direct path.
//! 3. Else the best rule is corrected by pivots ([`crate::pivot`]), whose multipliers also prove a bound.
//! 4. Relays cost time to start. Where the messages are so small that a simpler rule finishes sooner by the completion model, it wins.
//!
//! The result is never worse than the best static rule: the rules are candidates.

use crate::bound::{Evidence, closed_form};
use crate::demand::Demand;
use crate::model::{Costs, Shape};
use crate::network::{LinkKind, Network};
use crate::pivot::{Outcome, Pivots, Start};
use crate::plan::{Plan, Reason};
use crate::rules::{Rule, Shares};
use crate::sums::{Sums, busiest};

/// Most work of one plan, whatever the number of ranks: some ten milliseconds.
const WORK_MAX: u64 = 16_000_000;
/// A port is hot from this share of the busiest link's seconds.
const HOT_PORT_MIN: f64 = 0.9;
/// With more ranks than this the correction moves the traffic of whole hosts first.
const COARSE_RANKS_MIN: usize = 16;

/// How hard to try, and what relays cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Stop when the plan is provably within this share of the optimum.
    pub gap: f64,
    /// Most work of the correction for each rank, in multiply-adds, roughly.
    pub work_per_rank: u64,
    /// What forwarding and pieces cost in time.
    pub costs: Costs,
}

impl Default for Settings {
    /// The one setting of every quality and speed figure in the documents.
    fn default() -> Self {
        Settings { gap: 0.005, work_per_rank: 64_000, costs: Costs::default() }
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// Demand of another size.
    #[error("the demand is of {demand} ranks, but the cluster has {network}")]
    Ranks {
        /// Ranks of the demand.
        demand: usize,
        /// Ranks of the network.
        network: usize,
    },
    /// Bytes that cannot get there.
    #[error("{src} has bytes for {dst}, but no path without a dead link leads there")]
    NoPath {
        /// Sender, by name.
        src: String,
        /// Receiver, by name.
        dst: String,
    },
    /// The reference solver gave up.
    #[error("the reference solver failed: {0}")]
    Solver(String),
}

/// Plans demand after demand with one workspace: after the first plan of a size, only the plan itself is allocated.
#[derive(Clone, Debug, Default)]
pub struct Planner {
    /// How hard to try.
    pub settings: Settings,
    sums: Sums,
    pivots: Pivots,
    loads: Vec<f64>,
    best_loads: Vec<f64>,
    shares: Shares,
}

/// One candidate.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    rule: Rule,
    congestion_s: f64,
    bottleneck: usize,
    completion_s: f64,
}

impl Planner {
    /// With these settings.
    pub fn new(settings: Settings) -> Self {
        Planner { settings, ..Planner::default() }
    }

    /// Reads the demand, or says why it cannot be planned.
    fn read(&mut self, net: &Network, demand: &Demand) -> Result<(), PlanError> {
        check(net, demand)?;
        self.sums.read(net, demand).map_err(|(i, j)| no_path(net, i, j))
    }

    fn candidate(&mut self, net: &Network, demand: &Demand, shape: &Shape, rule: Rule) -> Candidate {
        self.sums.loads(net, demand, rule, &net.weights, &mut self.loads);
        let (bottleneck, congestion_s) = busiest(net, &self.loads);
        let completion_s = congestion_s + self.settings.costs.of_rule(net, shape, rule);
        Candidate { rule, congestion_s, bottleneck, completion_s }
    }

    /// A plan with its proof.
    pub fn plan(&mut self, net: &Network, demand: &Demand) -> Result<Plan, PlanError> {
        self.read(net, demand)?;
        let (bound, evidence) = closed_form(net, demand, &self.sums);
        let shape = Shape::of(net, demand);
        let coarse = net.slots > 1 && net.rank_count() > COARSE_RANKS_MIN;
        let mut best: Option<Candidate> = None; // least congestion, simplest first
        let mut soonest: Option<Candidate> = None;
        let mut start: Option<Candidate> = None; // of those that pivots can begin with
        for rule in Rule::ALL {
            if rule == Rule::DestinationRail || (net.slots == 0 && !matches!(rule, Rule::Direct | Rule::Weighted)) {
                continue; // the same loads as the direct path
            }
            let c = self.candidate(net, demand, &shape, rule);
            let less = |a: f64, b: f64| a < b * (1.0 - 1e-9);
            if best.is_none_or(|b| less(c.congestion_s, b.congestion_s)) {
                best = Some(c);
            }
            if soonest.is_none_or(|b| less(c.completion_s, b.completion_s)) {
                soonest = Some(c);
            }
            let begins = if coarse { rule == Rule::Weighted } else { !matches!(rule, Rule::Stripe | Rule::TwoRails) };
            if begins && start.is_none_or(|b| less(c.congestion_s, b.congestion_s)) {
                start = Some(c);
                std::mem::swap(&mut self.loads, &mut self.best_loads);
            }
        }
        let (Some(best), Some(soonest), Some(start)) = (best, soonest, start) else {
            return Ok(Plan::of_rule(Rule::Direct));
        };
        let mut plan = Plan::of_rule(best.rule);
        (plan.congestion_s, plan.bottleneck, plan.completion_s) =
            (best.congestion_s, best.bottleneck, best.completion_s);
        (plan.lower_bound_s, plan.evidence) = (bound.min(best.congestion_s), evidence);
        plan.reason = Reason::RuleIsEnough;
        if best.congestion_s > bound * (1.0 + self.settings.gap) {
            self.correct(net, demand, &shape, start, coarse, bound, &mut plan);
        }
        // A plan with more relays has to earn their cost.
        if soonest.completion_s * self.settings.costs.margin < plan.completion_s {
            let (lower_bound_s, evidence, pivots) = (plan.lower_bound_s, plan.evidence, plan.pivots);
            plan =
                Plan { lower_bound_s, evidence, pivots, reason: Reason::SmallMessages, ..Plan::of_rule(soonest.rule) };
            (plan.congestion_s, plan.bottleneck, plan.completion_s) =
                (soonest.congestion_s, soonest.bottleneck, soonest.completion_s);
        }
        plan.quantum_bytes = quantum(net, plan.lower_bound_s);
        Ok(plan)
    }

    /// Corrects `rule`, whose loads are in `best_loads`; `plan` becomes the result if that is better.
    #[allow(clippy::too_many_arguments)]
    fn correct(
        &mut self,
        net: &Network,
        demand: &Demand,
        shape: &Shape,
        start: Candidate,
        coarse: bool,
        bound: f64,
        plan: &mut Plan,
    ) {
        let Settings { gap, work_per_rank, costs } = self.settings;
        let work_max = (work_per_rank * net.rank_count() as u64).min(WORK_MAX);
        let rule = start.rule;
        let mut corrected = Plan { reason: Reason::Corrected, ..Plan::of_rule(rule) };
        self.pivots.weights.clone_from(&net.weights);
        let relief = if coarse { self.relieve(net, demand, start) } else { None };
        let from = relief.as_ref();
        let mut problem =
            Start { demand, sums: &self.sums, rule, loads: &self.best_loads, coarse, from, bound, gap, work_max };
        let mut outcome = Outcome { bound, ..Outcome::default() };
        if coarse {
            problem.work_max = work_max / 2;
            outcome = self.pivots.run(net, &problem);
            outcome.bound = bound.max(self.pivots.bound(net, demand));
            // The largest demands first: their splits refer to the weights as they were.
            self.pivots.exceptions(net, rule, |src, dst, shares| corrected.except(src, dst, shares));
            self.pivots.absorb(net, |a, b, weights| corrected.except_hosts(a, b, weights));
            corrected.weights(net, &mut self.pivots.weights);
            self.sums.loads(net, demand, rule, &self.pivots.weights, &mut self.best_loads);
            add_exceptions(net, demand, &corrected, &mut self.best_loads, &mut self.shares);
        }
        let (_, reached) = busiest(net, &self.best_loads);
        if !coarse || reached > outcome.bound * (1.0 + gap) {
            let from = coarse.then_some(&corrected);
            let work_max = work_max - outcome.work.min(work_max / 2);
            let bound = outcome.bound;
            let problem = Start {
                demand,
                sums: &self.sums,
                rule,
                loads: &self.best_loads,
                coarse: false,
                from,
                bound,
                gap,
                work_max,
            };
            let fine = self.pivots.run(net, &problem);
            outcome =
                Outcome { bound: fine.bound, pivots: outcome.pivots + fine.pivots, work: outcome.work + fine.work };
            // The loads anew, from the shares: nothing that the pivots rounded survives.
            corrected.clear_exceptions();
            self.pivots.exceptions(net, rule, |src, dst, shares| corrected.except(src, dst, shares));
            self.sums.loads(net, demand, rule, &self.pivots.weights, &mut self.best_loads);
            add_exceptions(net, demand, &corrected, &mut self.best_loads, &mut self.shares);
        }
        if outcome.bound > bound {
            plan.lower_bound_s = outcome.bound.min(plan.congestion_s);
            plan.evidence = Evidence::Weights;
        }
        plan.pivots = outcome.pivots;
        (corrected.bottleneck, corrected.congestion_s) = busiest(net, &self.best_loads);
        corrected.completion_s = corrected.congestion_s + costs.of_split(net, shape);
        if corrected.congestion_s < plan.congestion_s {
            (corrected.lower_bound_s, corrected.evidence, corrected.pivots) =
                (plan.lower_bound_s.min(corrected.congestion_s), plan.evidence, plan.pivots);
            *plan = corrected;
        }
    }

    /// Where the busiest links are ports of GPUs to their switch that carry traffic of the host itself, which has no other way: nothing else
    /// should cross them. Such a GPU sends and receives by its own rail, which needs no port, and the bytes of others avoid that rail.
    /// A better start, if it is one.
    fn relieve(&mut self, net: &Network, demand: &Demand, start: Candidate) -> Option<Plan> {
        let (hosts, ranks) = (net.host_count(), net.rank_count());
        let mut hot = vec![false; ranks];
        for (l, link) in net.links.iter().enumerate() {
            let busy = self.best_loads[l] * net.inverse[l] >= HOT_PORT_MIN * start.congestion_s;
            if link.kind != LinkKind::NvLink || !busy {
                continue;
            }
            let (from, to) = (link.from as usize, link.to as usize);
            let (rank, inside) = match (from < ranks, to < ranks) {
                (true, false) => (from, self.sums.row_host[from * hosts + net.host(from)]),
                (false, true) => (to, self.sums.host_col[net.host(to) * ranks + to]),
                _ => continue, // a link of a mesh has ways around it
            };
            hot[rank] |= inside >= 0.5 * self.best_loads[l];
        }
        for rank in (0..ranks).filter(|&r| hot[r]) {
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
        if !hot.contains(&true) {
            return None;
        }
        let mut relief = Plan::of_rule(start.rule);
        for (src, dst, _) in demand.pairs() {
            let (a, b) = (net.host(src), net.host(dst));
            let slot = net.home[if hot[src] { src } else { dst }];
            if a != b && (hot[src] || hot[dst]) && net.slots_between(a, b) >> slot & 1 == 1 {
                relief.except(src, dst, &[(u16::from(slot), 1.0)]);
            }
        }
        // As a plan with these weights, to have its loads.
        let mut whole = relief.clone();
        for p in (0..hosts * hosts).filter(|p| p / hosts != p % hosts) {
            whole.except_hosts(p / hosts, p % hosts, &self.pivots.weights[p * net.slots..(p + 1) * net.slots]);
        }
        self.sums.loads(net, demand, start.rule, &self.pivots.weights, &mut self.loads);
        add_exceptions(net, demand, &whole, &mut self.loads, &mut self.shares);
        if busiest(net, &self.loads).1 >= start.congestion_s {
            self.pivots.weights.clone_from(&net.weights);
            return None;
        }
        std::mem::swap(&mut self.loads, &mut self.best_loads);
        Some(relief)
    }

    /// An earlier plan's shares under another demand: its congestion beside the closed-form bound. O(ranks² + exceptions).
    pub fn reuse(&mut self, net: &Network, demand: &Demand, old: &Plan) -> Result<Plan, PlanError> {
        self.read(net, demand)?;
        let (bound, evidence) = closed_form(net, demand, &self.sums);
        old.weights(net, &mut self.pivots.weights);
        self.sums.loads(net, demand, old.rule, &self.pivots.weights, &mut self.loads);
        add_exceptions(net, demand, old, &mut self.loads, &mut self.shares);
        let mut plan = old.clone();
        (plan.bottleneck, plan.congestion_s) = busiest(net, &self.loads);
        (plan.lower_bound_s, plan.evidence) = (bound.min(plan.congestion_s), evidence);
        plan.completion_s = plan.congestion_s + self.settings.costs.of_split(net, &Shape::of(net, demand));
        Ok(plan)
    }

    /// What a static rule gives, beside the closed-form bound.
    pub fn rule(&mut self, net: &Network, demand: &Demand, rule: Rule) -> Result<Plan, PlanError> {
        self.read(net, demand)?;
        let (bound, evidence) = closed_form(net, demand, &self.sums);
        let c = self.candidate(net, demand, &Shape::of(net, demand), rule);
        let mut plan = Plan::of_rule(rule);
        (plan.congestion_s, plan.bottleneck, plan.completion_s) = (c.congestion_s, c.bottleneck, c.completion_s);
        (plan.lower_bound_s, plan.evidence) = (bound.min(c.congestion_s), evidence);
        plan.quantum_bytes = quantum(net, bound);
        Ok(plan)
    }
}

/// Moves the pairs that a plan splits otherwise than its rule from the rule's paths to theirs.
fn add_exceptions(net: &Network, demand: &Demand, plan: &Plan, loads: &mut [f64], scratch: &mut Shares) {
    plan.each_exception(|src, dst, shares| {
        let bytes = demand.get(src, dst) as f64;
        plan.base_shares(net, src, dst, scratch);
        for (list, sign) in [(&*scratch, -1.0), (shares, 1.0)] {
            for &(p, s) in list.as_slice() {
                net.path(src, dst, usize::from(p)).for_each(|l| loads[l as usize] += sign * s * bytes);
            }
        }
    });
}

/// Is the demand of this network's size?
pub(crate) fn check(net: &Network, demand: &Demand) -> Result<(), PlanError> {
    match demand.ranks() == net.rank_count() {
        true => Ok(()),
        false => Err(PlanError::Ranks { demand: demand.ranks(), network: net.rank_count() }),
    }
}

pub(crate) fn no_path(net: &Network, src: usize, dst: usize) -> PlanError {
    PlanError::NoPath { src: net.nodes[src].clone(), dst: net.nodes[dst].clone() }
}

/// Pieces are cut at multiples of a power of two, so that they stay aligned, but never so coarse that the rounding of all pieces on a link
/// is felt: at most a hundred-thousandth of what the slowest link carries in the time of the plan.
pub(crate) fn quantum(net: &Network, seconds: f64) -> u64 {
    let slowest =
        net.links.iter().map(|l| l.capacity_gb_per_s).filter(|c| *c > 0.0).fold(f64::INFINITY, f64::min) * 1e9;
    let share = (seconds * slowest * 1e-5 / net.rank_count() as f64).min(65536.0);
    if share >= 2.0 { 1 << (share as u64).ilog2() } else { 1 }
}
