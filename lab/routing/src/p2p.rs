//! One pair of GPUs, and neighbours.

use super::sheet::{Cell, Sheet, ratio};
use super::{compare, network};
use console::Failure;
use route::{Demand, Planner, RoutingNetwork, RoutingOptions, Rule};

const MIB: u64 = 1 << 20;
/// Measured by NIMBLE on hardware (figure 6a): paths, GB/s.
const PATHS_PUBLISHED: [(usize, f64); 3] = [(1, 120.0), (2, 213.1), (3, 278.2)];
/// Figure 6b: rails, GB/s; only the first and last value are published.
const RAILS_PUBLISHED: [(usize, Option<f64>); 4] = [(1, Some(45.1)), (2, None), (3, None), (4, Some(170.0))];

fn one_pair(net: &RoutingNetwork, src: usize, dst: usize, bytes: u64) -> Result<Demand, Failure> {
    let mut d = Demand::new(net.rank_count()).map_err(Failure::input)?;
    d.set(src, dst, bytes).map_err(Failure::input)?;
    Ok(d)
}

/// GB/s of one message: by congestion, and with the model's relays and pieces at two sizes.
fn rates(net: &RoutingNetwork, src: usize, dst: usize) -> Result<(f64, f64, [f64; 3]), Failure> {
    let mut planner = Planner::default();
    let large = one_pair(net, src, dst, 256 * MIB)?;
    let c = compare(&mut planner, net, &large)?;
    let rate = |s: f64, bytes: u64| bytes as f64 / s * 1e-9;
    let optimum = rate(c.optimum_s, 256 * MIB);
    let mut modelled = [0.0; 3];
    for (m, mib) in modelled.iter_mut().zip([1, 16, 256]) {
        let plan = planner.plan(net, &one_pair(net, src, dst, mib * MIB)?).map_err(super::failed)?;
        *m = rate(plan.completion_s, mib * MIB);
    }
    Ok((optimum, optimum / c.linkwise, modelled))
}

/// Figure 6a.
pub fn paths() -> Result<Sheet, Failure> {
    let columns = ["paths", "static rules", "optimum", "linkwise", "1 MiB*", "16 MiB*", "256 MiB*", "NIMBLE, measured"];
    let mut sheet = Sheet::new("paths", "One pair inside a host (mesh4), GB/s", &columns);
    for (paths, published) in PATHS_PUBLISHED {
        let net = network("mesh4", &RoutingOptions { relays_max: Some(paths - 1), ..RoutingOptions::default() })?;
        let (optimum, linkwise, modelled) = rates(&net, 0, 1)?;
        let direct = 120.0;
        let mut row = vec![
            Cell::Number(paths as f64, 0),
            Cell::Number(direct, 1),
            Cell::Number(optimum, 1),
            Cell::Number(linkwise, 1),
        ];
        row.extend(modelled.map(|m| Cell::Number(m, 1)));
        row.push(Cell::Number(published, 1));
        sheet.row(row);
    }
    let costs = route::model::RelayCosts::default();
    sheet.note(format!(
        "* with the model of relays and pieces, direct where that is sooner. In this model a second path helps from {:.1} MiB, three paths from {:.1} MiB; NIMBLE \
         uses one path up to 1 MB.",
        costs.crossover_bytes(2, 120.0) as f64 / MIB as f64,
        costs.crossover_bytes(3, 120.0) as f64 / MIB as f64
    ));
    sheet.note("No static rule uses a second path inside a host. On NVSwitch hosts no second path helps: a relay needs the ports that the direct path needs.");
    Ok(sheet)
}

/// Figure 6b.
pub fn rails() -> Result<Sheet, Failure> {
    let columns =
        ["rails", "one rail", "two-rails", "stripe", "optimum", "linkwise", "16 MiB*", "256 MiB*", "NIMBLE, measured"];
    let mut sheet = Sheet::new("rails", "One pair between hosts (rails2x4), GB/s", &columns);
    for (rails, published) in RAILS_PUBLISHED {
        let net = network("rails2x4", &RoutingOptions { rails_max: Some(rails), ..RoutingOptions::default() })?;
        let (optimum, linkwise, modelled) = rates(&net, 0, 4)?;
        let mut planner = Planner::default();
        let demand = one_pair(&net, 0, 4, 256 * MIB)?;
        let mut rule = |r: Rule| -> Result<Cell, Failure> {
            let s = planner.plan_rule(&net, &demand, r).map_err(super::failed)?.congestion_s;
            Ok(Cell::Number(256.0 * MIB as f64 / s * 1e-9, 1))
        };
        let mut row =
            vec![Cell::Number(rails as f64, 0), rule(Rule::SourceRail)?, rule(Rule::TwoRails)?, rule(Rule::Stripe)?];
        row.extend([
            Cell::Number(optimum, 1),
            Cell::Number(linkwise, 1),
            Cell::Number(modelled[1], 1),
            Cell::Number(modelled[2], 1),
        ]);
        row.push(Cell::Number(published.unwrap_or(f64::NAN), 1));
        sheet.row(row);
    }
    sheet.note("The static rule `stripe` is already optimal here, at any number of rails. * with the model of relays and pieces.");
    Ok(sheet)
}

/// Skewed send/recv.
pub fn skew() -> Result<Sheet, Failure> {
    let columns = ["neighbours", "skew", "direct", "source-rail", "stripe", "two-rails", "mwu", "linkwise", "gap %"];
    let mut sheet = Sheet::new(
        "skew",
        "Every rank sends 16 MiB to the next, rank 0 sends a multiple of that: time over the optimum",
        &columns,
    );
    for (name, label) in [("mesh4", "4 on a host"), ("rails2x4", "8 on two hosts")] {
        let net = network(name, &RoutingOptions::default())?;
        let n = net.rank_count();
        let mut planner = Planner::default();
        for factor in [1, 2, 4, 8, 16] {
            let mut d = Demand::new(n).map_err(Failure::input)?;
            for i in 0..n {
                d.set(i, (i + 1) % n, 16 * MIB * if i == 0 { factor } else { 1 }).map_err(Failure::input)?;
            }
            let c = compare(&mut planner, &net, &d)?;
            let mut row = vec![Cell::from(label), Cell::Number(factor as f64, 0)];
            row.extend([Rule::Direct, Rule::SourceRail, Rule::Stripe, Rule::TwoRails].map(|r| ratio(c.rule(r))));
            row.extend([ratio(c.mwu), ratio(c.linkwise), Cell::Number(100.0 * c.reported_gap, 2)]);
            sheet.row(row);
        }
    }
    sheet.note("Published: NIMBLE 1.15 to 2.3 times as fast as NCCL on skewed send/recv (measured; its shapes of traffic are not public).");
    Ok(sheet)
}
