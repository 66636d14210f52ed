//! `linkwise route evaluate`: planners beside the static rules, the published figures and the optimum, on models of testbeds.

use super::input;
use super::plan::failed;
use super::print::table;
use crate::failure::Failure;
use route::{Network, NetworkOptions, Planner, Rule, traffic};

/// Arguments of `linkwise route evaluate`.
#[derive(clap::Args)]
pub struct Args {}

/// Runs it.
pub fn run(_: Args) -> Result<(), Failure> {
    let net = Network::of(&input::cluster("rails2x4")?, &NetworkOptions::default()).map_err(Failure::input)?;
    let mut planner = Planner::default();
    let mut t = table(&["hotspot ratio", "destination-rail", "source-rail", "stripe", "linkwise", "gap"], 1);
    for ratio in [0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0] {
        let demand = traffic::hotspot(8, 256 << 20, ratio, 0);
        let plan = planner.plan(&net, &demand).map_err(failed)?;
        let mut over = |r: Rule| -> Result<String, Failure> {
            Ok(format!("{:.2}", planner.rule(&net, &demand, r).map_err(failed)?.congestion_s / plan.lower_bound_s))
        };
        t.add_row([
            format!("{ratio:.1}"),
            over(Rule::DestinationRail)?,
            over(Rule::SourceRail)?,
            over(Rule::Stripe)?,
            format!("{:.2}", plan.congestion_s / plan.lower_bound_s),
            format!("{:.2} %", 100.0 * plan.gap()),
        ]);
    }
    println!("{t}");
    Ok(())
}
