//! A mixture-of-experts block: dispatch, compute, combine.

use super::failed;
use super::network;
use super::sheet::{Cell, Sheet, ratio};
use console::Failure;
use route::{Demand, Planner, RoutePlan, RoutingNetwork, RoutingOptions, Rule, exact, traffic};

/// The experts of a model. NIMBLE does not name its model, so two models represent the range of common ones: in bf16,
/// one expert per token.
struct Experts {
    name: &'static str,
    hidden: u64,
    feed_forward: u64,
}

/// Few large experts (Mixtral 8x7B), many small ones (DeepSeek-V2-Lite, the model of ESFT).
const MODELS: [Experts; 2] = [
    Experts { name: "large experts", hidden: 4096, feed_forward: 14336 },
    Experts { name: "small experts", hidden: 2048, feed_forward: 1408 },
];
/// Assumed rate of an H100 on such products, FLOP/s.
const FLOP_PER_S: f64 = 400e12;

fn transposed(d: &Demand) -> Result<Demand, Failure> {
    let mut t = Demand::new(d.ranks()).map_err(Failure::input)?;
    for (i, j, b) in d.pairs() {
        t.set(j, i, b).map_err(Failure::input)?;
    }
    Ok(t)
}

impl Experts {
    /// Seconds that the hottest rank needs for its matrix products.
    fn compute_s(&self, tokens: f64) -> f64 {
        tokens * (6 * self.hidden * self.feed_forward) as f64 / FLOP_PER_S
    }
}

/// Seconds of dispatch and combine with one planner.
fn both_ways(
    net: &RoutingNetwork,
    dispatch: &Demand,
    mut plan: impl FnMut(&RoutingNetwork, &Demand) -> Result<RoutePlan, Failure>,
) -> Result<f64, Failure> {
    Ok(plan(net, dispatch)?.completion_s + plan(net, &transposed(dispatch)?)?.completion_s)
}

/// Time of a whole block for every routing method, seconds.
struct BlockTimes {
    destination_rail: f64,
    source_rail: f64,
    stripe: f64,
    two_rails: f64,
    linkwise: f64,
    optimum: f64,
    /// The part of this time for the matrix products of the hottest rank.
    compute: f64,
}

/// A block on eight ranks. One rank gets the share `hot` of the tokens.
fn block(
    planner: &mut Planner,
    net: &RoutingNetwork,
    model: &Experts,
    hot: f64,
    tokens: u64,
) -> Result<BlockTimes, Failure> {
    let token_bytes = model.hidden * 2;
    let dispatch = traffic::hotspot(8, tokens / 8 * token_bytes, hot, 0);
    let received: u64 = (1..8).map(|i| dispatch.get(i, 0)).sum();
    let compute = model.compute_s(received as f64 / token_bytes as f64);
    let mut rule = |r: Rule| {
        let moved = both_ways(net, &dispatch, |n, d| planner.plan_rule(n, d, r).map_err(failed))?;
        Ok::<f64, Failure>(compute + moved)
    };
    let least = |d: &Demand| Ok::<f64, Failure>(exact::plan(net, d).map_err(failed)?.congestion_s);
    Ok(BlockTimes {
        destination_rail: rule(Rule::DestinationRail)?,
        source_rail: rule(Rule::SourceRail)?,
        stripe: rule(Rule::Stripe)?,
        two_rails: rule(Rule::TwoRails)?,
        linkwise: compute + both_ways(net, &dispatch, |n, d| planner.plan(n, d).map_err(failed))?,
        optimum: compute + least(&dispatch)? + least(&transposed(&dispatch)?)?,
        compute,
    })
}

/// Figure 8.
pub fn moe() -> Result<Sheet, Failure> {
    let columns = [
        "model",
        "ratio",
        "tokens",
        "source-rail",
        "stripe",
        "two-rails",
        "linkwise",
        "optimum",
        "compute %",
        "NIMBLE, measured",
    ];
    let mut sheet = Sheet::new(
        "moe",
        "Mixture-of-experts block (dispatch, compute, combine) on rails2x4: times as fast as with the destination's rail",
        &columns,
    );
    let net = network("rails2x4", &RoutingOptions::default())?;
    let mut planner = Planner::default();
    let mut means = Vec::new();
    for model in &MODELS {
        for (share, published_mean) in [(0.4, 1.13), (0.9, 1.26)] {
            let mut gains = Vec::new();
            for thousands in [2u64, 4, 8, 16, 32, 64] {
                let s = block(&mut planner, &net, model, share, thousands << 10)?;
                let gain = |seconds: f64| s.destination_rail / seconds;
                gains.push(gain(s.linkwise));
                let mut row = vec![Cell::from(model.name), Cell::Number(share, 1), Cell::from(format!("{thousands}K"))];
                row.extend([s.source_rail, s.stripe, s.two_rails, s.linkwise, s.optimum].map(|s| ratio(gain(s))));
                row.push(Cell::Number(100.0 * s.compute / s.linkwise, 0));
                row.push(ratio(if (thousands, share) == (16, 0.9) { 1.35 } else { f64::NAN }));
                sheet.row(row);
            }
            means.push((model.name, share, gains.iter().sum::<f64>() / gains.len() as f64, published_mean));
        }
    }
    for (name, share, ours, published) in means {
        sheet.note(format!("Mean at ratio {share}, {name}: {ours:.2} modelled; published {published} (measured, one weak source, model not named)."));
    }
    sheet.note(format!(
        "Assumed: {}; bf16, one expert a token, {} TFLOP/s, the block waits for its hottest rank. Completion by the model of relays and pieces; the \
         optimum counts links only. The static rules get nearly all of the gain.",
        MODELS.iter().map(|m| format!("{} of hidden size {} and feed-forward {}", m.name, m.hidden, m.feed_forward)).collect::<Vec<_>>().join(", "),
        FLOP_PER_S / 1e12
    ));
    Ok(sheet)
}
