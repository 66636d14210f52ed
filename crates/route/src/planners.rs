//! Planners by name, and the constructor that other crates use to make a [`RoutePlan`].

use crate::bound::{Evidence, closed_form_bound};
use crate::demand::Demand;
use crate::network::RoutingNetwork;
use crate::plan::{PlanReason, RoutePlan};
use crate::planner::{PlanError, Planner, check_rank_count, no_path_error, quantum_bytes};
use crate::rules::{Rule, Shares};
use crate::sums::{DemandSums, busiest_link};

/// Plans one demand. `planner` is the caller's workspace, with its settings.
pub type PlanDemand = fn(planner: &mut Planner, net: &RoutingNetwork, demand: &Demand) -> Result<RoutePlan, PlanError>;

/// One planner of [`Planners`].
#[derive(Clone, Copy, Debug)]
pub struct PlannerEntry {
    /// The name on the command line.
    pub name: &'static str,
    /// One line of description.
    pub about: &'static str,
    /// The planner's function.
    pub plan: PlanDemand,
}

/// A name that is already taken in [`Planners`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the name `{0}` is registered already")]
pub struct NameTaken(pub &'static str);

/// Planners by name, in the order of their registration.
#[derive(Clone, Debug)]
pub struct Planners {
    entries: Vec<PlannerEntry>,
}

impl Planners {
    /// The planners that linkwise ships: its own, the static rules, and with the feature `exact` the reference planner.
    pub fn shipped() -> Planners {
        let mut entries = vec![PlannerEntry {
            name: "linkwise",
            about: "linkwise's planner",
            plan: |planner, net, demand| planner.plan(net, demand),
        }];
        #[cfg(feature = "exact")]
        entries.push(PlannerEntry {
            name: "exact",
            about: "the reference; slow",
            plan: |_, net, demand| crate::exact::plan(net, demand),
        });
        let plans: [PlanDemand; Rule::ALL.len()] = [
            |planner, net, demand| planner.plan_rule(net, demand, Rule::ALL[0]),
            |planner, net, demand| planner.plan_rule(net, demand, Rule::ALL[1]),
            |planner, net, demand| planner.plan_rule(net, demand, Rule::ALL[2]),
            |planner, net, demand| planner.plan_rule(net, demand, Rule::ALL[3]),
            |planner, net, demand| planner.plan_rule(net, demand, Rule::ALL[4]),
            |planner, net, demand| planner.plan_rule(net, demand, Rule::ALL[5]),
        ];
        let of_rule =
            |(rule, plan): (Rule, PlanDemand)| PlannerEntry { name: rule.name(), about: "a static rule", plan };
        entries.extend(Rule::ALL.into_iter().zip(plans).map(of_rule));
        Planners { entries }
    }

    /// Adds a planner.
    pub fn add(&mut self, entry: PlannerEntry) -> Result<(), NameTaken> {
        if self.by_name(entry.name).is_some() {
            return Err(NameTaken(entry.name));
        }
        self.entries.push(entry);
        Ok(())
    }

    /// Every planner.
    pub fn all(&self) -> &[PlannerEntry] {
        &self.entries
    }

    /// The planner of a name.
    pub fn by_name(&self, name: &str) -> Option<&PlannerEntry> {
        self.entries.iter().find(|e| e.name == name)
    }

    /// The names of all planners, for messages.
    pub fn names(&self) -> String {
        let names: Vec<&str> = self.entries.iter().map(|e| e.name).collect();
        names.join(", ")
    }
}

/// The closed-form lower bound of any plan's congestion, seconds, and what proves it. O(ranks² + links).
///
/// # Errors
/// Same as [`Planner::plan`].
pub fn lower_bound(net: &RoutingNetwork, demand: &Demand) -> Result<(f64, Evidence), PlanError> {
    check_rank_count(net, demand)?;
    let mut sums = DemandSums::default();
    sums.read(net, demand).map_err(|(i, j)| no_path_error(net, i, j))?;
    Ok(closed_form_bound(net, demand, &sums))
}

impl RoutePlan {
    /// A plan with separate shares for every pair. `splits`: sender, receiver and shares, in ascending order of both.
    /// `loads`: bytes on every link under these splits. `bound`: the result of [`lower_bound`]. The completion time
    /// equals the congestion: the costs of relays are not included.
    pub fn of_splits(
        net: &RoutingNetwork,
        splits: impl IntoIterator<Item = (usize, usize, Shares)>,
        loads: &[f64],
        bound: (f64, Evidence),
    ) -> RoutePlan {
        let mut plan = RoutePlan::of_rule(Rule::Direct);
        for (src, dst, shares) in splits {
            plan.add_exception(src, dst, shares.as_slice());
        }
        (plan.bottleneck, plan.congestion_s) = busiest_link(net, loads);
        (plan.lower_bound_s, plan.evidence) = (bound.0.min(plan.congestion_s), bound.1);
        plan.reason = PlanReason::AsAsked;
        plan.completion_s = plan.congestion_s;
        plan.quantum_bytes = quantum_bytes(net, bound.0);
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::RoutingOptions;

    #[test]
    fn every_rule_is_registered_under_its_own_name_and_plans_as_itself() {
        let planners = Planners::shipped();
        let net =
            RoutingNetwork::of(&crate::builtin::cluster("rails2x4").unwrap(), &RoutingOptions::default()).unwrap();
        let demand = crate::traffic::TrafficShape::Random.demand(net.rank_count(), 1 << 26, 1);
        for rule in Rule::ALL {
            let plan = (planners.by_name(rule.name()).unwrap().plan)(&mut Planner::default(), &net, &demand).unwrap();
            assert_eq!(plan.rule, rule);
        }
        assert!(planners.by_name("mwu").is_none(), "published planners are added by the program");
    }

    #[test]
    fn a_name_is_registered_once() {
        let mut planners = Planners::shipped();
        let taken = planners.all()[0];
        assert_eq!(planners.add(taken), Err(NameTaken("linkwise")));
    }
}
