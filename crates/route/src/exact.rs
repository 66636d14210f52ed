//! The reference planner: a library solves the path problem as a linear program.
//!
//! The variables are `T` and the share of every demand on every path. The shares of a demand sum to one, and a link of
//! capacity `c` carries at most `c T` bytes. The library is independent of linkwise's pivots. It does not guarantee a
//! correct answer: this module recomputes the congestion from the library's shares, and tests compare it with the
//! bounds that linkwise's multipliers prove.

use crate::bound::Evidence;
use crate::demand::Demand;
use crate::network::RoutingNetwork;
use crate::plan::{PlanReason, RoutePlan};
use crate::planner::{PlanError, check_rank_count, no_path_error, quantum_bytes};
use crate::rules::{Rule, Shares};
use microlp::{ComparisonOp, OptimizationDirection, Problem, Solution, Variable};

/// Maximum number of variables of one problem; larger problems take minutes.
pub const VARIABLES_MAX: usize = 60_000;
/// Smaller shares are rounding errors of the solver.
const SHARE_MIN: f64 = 1e-12;

/// The optimum over all paths of the network. Takes about 10 ms for 8 ranks, a second for 32 ranks and minutes beyond.
pub fn plan(net: &RoutingNetwork, demand: &Demand) -> Result<RoutePlan, PlanError> {
    check_rank_count(net, demand)?;
    let pairs: Vec<(usize, usize, u64)> = demand.pairs().collect();
    let count: usize = pairs.iter().map(|&(i, j, _)| net.path_count(i, j)).sum();
    if count > VARIABLES_MAX {
        return Err(PlanError::Solver(format!(
            "{count} variables; the reference solver takes at most {VARIABLES_MAX}. Use --planner linkwise"
        )));
    }
    let mut plan = RoutePlan::of_rule(Rule::Direct);
    if pairs.is_empty() {
        return Ok(plan);
    }
    let problem = PathProblem::of(net, &pairs)?;
    let solution = solve(&problem.lp)?;
    let loads = problem.add_shares(net, &pairs, &solution, &mut plan);
    (plan.bottleneck, plan.congestion_s) = crate::sums::busiest_link(net, &loads);
    plan.lower_bound_s = (solution.objective() * problem.unit_s).min(plan.congestion_s);
    plan.evidence = Evidence::Solver;
    plan.reason = PlanReason::AsAsked;
    plan.completion_s = plan.congestion_s;
    plan.quantum_bytes = quantum_bytes(net, plan.lower_bound_s);
    Ok(plan)
}

fn solve(lp: &Problem) -> Result<Solution, PlanError> {
    let failed = |e: &dyn std::fmt::Debug| PlanError::Solver(format!("{e:?}"));
    lp.solve().map_err(|e| failed(&e))?.into_solution().map_err(|e| failed(&e))
}

fn paths_of(net: &RoutingNetwork, i: usize, j: usize) -> Vec<usize> {
    match net.host(i) == net.host(j) {
        true => (0..net.intra_paths(i, j).len()).collect(),
        false => (0..net.slot_count()).filter(|k| net.slots_between(net.host(i), net.host(j)) >> k & 1 == 1).collect(),
    }
}

/// The path problem as a linear program.
struct PathProblem {
    lp: Problem,
    /// The variables of every pair: one per path, the share of the pair's bytes.
    shares: Vec<Vec<(u16, Variable)>>,
    /// The program's unit of time, seconds: the largest load of one demand on one link.
    unit_s: f64,
}

impl PathProblem {
    fn of(net: &RoutingNetwork, pairs: &[(usize, usize, u64)]) -> Result<PathProblem, PlanError> {
        let unit_s = pairs.iter().map(|p| p.2 as f64).fold(0.0, f64::max)
            * net.inverse.iter().copied().filter(|i| i.is_finite()).fold(0.0, f64::max);
        let mut lp = Problem::new(OptimizationDirection::Minimize);
        let t = lp.add_var(1.0, (0.0, f64::INFINITY));
        let mut rows: Vec<Vec<(Variable, f64)>> = vec![Vec::new(); net.links.len()];
        let mut shares: Vec<Vec<(u16, Variable)>> = Vec::new();
        for &(i, j, bytes) in pairs {
            let list: Vec<(u16, Variable)> =
                paths_of(net, i, j).into_iter().map(|p| (p as u16, lp.add_var(0.0, (0.0, f64::INFINITY)))).collect();
            if list.is_empty() {
                return Err(no_path_error(net, i, j));
            }
            for &(p, v) in &list {
                for l in net.path(i, j, usize::from(p)) {
                    let units = bytes as f64 * net.inverse[l as usize] / unit_s;
                    match rows[l as usize].iter_mut().find(|x| x.0 == v) {
                        Some(x) => x.1 += units,
                        None => rows[l as usize].push((v, units)),
                    }
                }
            }
            let ones: Vec<(Variable, f64)> = list.iter().map(|x| (x.1, 1.0)).collect();
            lp.add_constraint(&ones[..], ComparisonOp::Eq, 1.0);
            shares.push(list);
        }
        for mut row in rows.into_iter().filter(|r| !r.is_empty()) {
            row.push((t, -1.0));
            lp.add_constraint(&row[..], ComparisonOp::Le, 0.0);
        }
        Ok(PathProblem { lp, shares, unit_s })
    }

    /// Adds the solution's shares to a plan. Returns the bytes on every link.
    fn add_shares(
        &self,
        net: &RoutingNetwork,
        pairs: &[(usize, usize, u64)],
        solution: &Solution,
        plan: &mut RoutePlan,
    ) -> Vec<f64> {
        let mut loads = vec![0.0; net.links.len()];
        let mut shares = Shares::default();
        for (&(i, j, bytes), list) in pairs.iter().zip(&self.shares) {
            let raw: Vec<(u16, f64)> =
                list.iter().map(|&(p, v)| (p, solution.var_value(v))).filter(|x| x.1 > SHARE_MIN).collect();
            let total: f64 = raw.iter().map(|x| x.1).sum();
            shares.clear();
            raw.iter().for_each(|&(p, s)| shares.push(usize::from(p), s / total));
            for &(p, s) in shares.as_slice() {
                net.path(i, j, usize::from(p)).for_each(|l| loads[l as usize] += s * bytes as f64);
            }
            plan.add_exception(i, j, shares.as_slice());
        }
        loads
    }
}

/// The least congestion in seconds if bytes may take any walk over the links, with any number of relays: one flow per sender, conserved at
/// every node. Shows the gain of paths longer than the network's. O(ranks x links) variables.
pub fn any_path_optimum_s(net: &RoutingNetwork, demand: &Demand) -> Result<f64, PlanError> {
    check_rank_count(net, demand)?;
    let (nodes, links) = (net.nodes.len(), net.links.len());
    let senders: Vec<usize> =
        (0..net.rank_count()).filter(|&i| demand.row(i).iter().enumerate().any(|(j, &b)| j != i && b > 0)).collect();
    if senders.len() * links > VARIABLES_MAX {
        return Err(PlanError::Solver(format!("{} variables; at most {VARIABLES_MAX}", senders.len() * links)));
    }
    if senders.is_empty() {
        return Ok(0.0);
    }
    let unit = demand.pairs().map(|p| p.2).max().unwrap_or(1) as f64;
    let rate = net.links.iter().map(|l| l.capacity_gb_per_s).fold(0.0, f64::max);
    let mut lp = Problem::new(OptimizationDirection::Minimize);
    let t = lp.add_var(1.0, (0.0, f64::INFINITY));
    let flows: Vec<Vec<Variable>> =
        senders.iter().map(|_| (0..links).map(|_| lp.add_var(0.0, (0.0, f64::INFINITY))).collect()).collect();
    for (s, &src) in senders.iter().enumerate() {
        for node in (0..nodes).filter(|&n| n != src) {
            let mut row = Vec::new();
            for (l, link) in net.links.iter().enumerate() {
                match (link.from as usize == node, link.to as usize == node) {
                    (true, false) => row.push((flows[s][l], -1.0)),
                    (false, true) => row.push((flows[s][l], 1.0)),
                    _ => {}
                }
            }
            let arrives = if node < net.rank_count() { demand.get(src, node) as f64 / unit } else { 0.0 };
            lp.add_constraint(&row[..], ComparisonOp::Eq, arrives);
        }
    }
    for (l, link) in net.links.iter().enumerate() {
        let mut row: Vec<(Variable, f64)> = flows.iter().map(|f| (f[l], 1.0)).collect();
        row.push((t, -link.capacity_gb_per_s / rate));
        lp.add_constraint(&row[..], ComparisonOp::Le, 0.0);
    }
    Ok(solve(&lp)?.objective() * unit / (rate * 1e9))
}
