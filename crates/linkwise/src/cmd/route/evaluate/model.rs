//! A mixture-of-experts block: dispatch, compute, combine.

use super::network;
use super::sheet::{Cell, Sheet, ratio};
use crate::cmd::route::plan::failed;
use crate::failure::Failure;
use route::{Demand, Network, NetworkOptions, Plan, Planner, Rule, traffic};

/// NIMBLE does not name its model. Assumed: that of Mixtral's experts, in bf16, one expert a token.
const HIDDEN: u64 = 4096;
const FEED_FORWARD: u64 = 14336;
/// Assumed: what an H100 reaches on such products, FLOP/s.
const FLOP_PER_S: f64 = 400e12;

fn transposed(d: &Demand) -> Result<Demand, Failure> {
    let mut t = Demand::new(d.ranks()).map_err(Failure::input)?;
    for (i, j, b) in d.pairs() {
        t.set(j, i, b).map_err(Failure::input)?;
    }
    Ok(t)
}

/// Seconds of a block under a way of planning.
fn block(
    net: &Network,
    dispatch: &Demand,
    hot_tokens: f64,
    mut plan: impl FnMut(&Network, &Demand) -> Result<Plan, Failure>,
) -> Result<f64, Failure> {
    let compute = hot_tokens * (6 * HIDDEN * FEED_FORWARD) as f64 / FLOP_PER_S;
    Ok(plan(net, dispatch)?.completion_s + compute + plan(net, &transposed(dispatch)?)?.completion_s)
}

/// Figure 8.
pub fn moe() -> Result<Sheet, Failure> {
    let columns =
        ["tokens", "ratio", "source-rail", "stripe", "two-rails", "linkwise", "compute %", "NIMBLE, measured"];
    let mut sheet = Sheet::new(
        "moe",
        "Mixture-of-experts block on rails2x4: times as fast as with the destination's rail",
        &columns,
    );
    let net = network("rails2x4", &NetworkOptions::default())?;
    let mut planner = Planner::default();
    let mut means = Vec::new();
    for (share, published_mean) in [(0.4, 1.13), (0.9, 1.26)] {
        let mut gains = Vec::new();
        for thousands in [2u64, 4, 8, 16, 32, 64] {
            let tokens = thousands << 10;
            let dispatch = traffic::hotspot(8, tokens / 8 * HIDDEN * 2, share, 0);
            let received: u64 = (1..8).map(|i| dispatch.get(i, 0)).sum();
            let hot_tokens = received as f64 / (HIDDEN * 2) as f64;
            let mut rule = |r: Rule| block(&net, &dispatch, hot_tokens, |n, d| planner.rule(n, d, r).map_err(failed));
            let base = rule(Rule::DestinationRail)?;
            let others = [rule(Rule::SourceRail)?, rule(Rule::Stripe)?, rule(Rule::TwoRails)?];
            let ours = block(&net, &dispatch, hot_tokens, |n, d| planner.plan(n, d).map_err(failed))?;
            gains.push(base / ours);
            let mut row = vec![Cell::from(format!("{thousands}K")), Cell::Number(share, 1)];
            row.extend(others.map(|s| ratio(base / s)));
            let compute = hot_tokens * (6 * HIDDEN * FEED_FORWARD) as f64 / FLOP_PER_S / ours;
            row.extend([ratio(base / ours), Cell::Number(100.0 * compute, 0)]);
            row.push(if (thousands, share) == (16, 0.9) { Cell::Number(1.35, 2) } else { Cell::Number(f64::NAN, 2) });
            sheet.row(row);
        }
        means.push((share, gains.iter().sum::<f64>() / gains.len() as f64, published_mean));
    }
    for (share, ours, published) in means {
        sheet.note(format!(
            "Mean at ratio {share}: {ours:.2} modelled; published {published} (measured, one weak source)."
        ));
    }
    sheet.note(format!(
        "Assumed, as NIMBLE does not name its model: hidden size {HIDDEN}, feed-forward {FEED_FORWARD}, bf16, one expert a token, {} TFLOP/s, the block \
         waits for its hottest rank. Completion by the model of relays and pieces. `stripe` gets all of the gain.",
        FLOP_PER_S / 1e12
    ));
    Ok(sheet)
}
