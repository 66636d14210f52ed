//! Planning time, measured on this machine.

use super::failed;
use super::network;
use super::sheet::{Cell, Sheet};
use console::Failure;
use route::network::LinkOverride;
use route::traffic::{LinkCondition, TrafficShape};
use route::{Demand, Planner, RoutingNetwork, RoutingOptions, exact};
use std::time::Instant;

/// Repetitions of one planning.
const REPEATS: usize = 31;

/// Median seconds of planning, workspace warm.
fn planning_s(planner: &mut Planner, net: &RoutingNetwork, demand: &Demand, repeats: usize) -> Result<f64, Failure> {
    planner.plan(net, demand).map_err(failed)?;
    let mut times = Vec::new();
    for _ in 0..repeats {
        let begin = Instant::now();
        planner.plan(net, demand).map_err(failed)?;
        times.push(begin.elapsed().as_secs_f64());
    }
    Ok(stats::upper_median(&times))
}

/// Table 1.
pub fn stencil() -> Result<Sheet, Failure> {
    let columns = ["size a neighbour", "cluster", "planner us", "gap %", "transfer us", "NIMBLE's planner us"];
    let mut sheet =
        Sheet::new("stencil", "Planner time on a 1-D stencil: every rank exchanges with both neighbours", &columns);
    let mut planner = Planner::default();
    for (mb, published) in [(16u64, [32.1, 37.4]), (256, [36.3, 48.0])] {
        for (name, published) in ["mesh4", "rails2x4"].into_iter().zip(published) {
            let net = network(name, &RoutingOptions::default())?;
            let n = net.rank_count();
            let mut d = Demand::new(n).map_err(Failure::input)?;
            for i in 0..n - 1 {
                d.set(i, i + 1, mb * 1_000_000).map_err(Failure::input)?;
                d.set(i + 1, i, mb * 1_000_000).map_err(Failure::input)?;
            }
            let plan = planner.plan(&net, &d).map_err(failed)?;
            let us = 1e6 * planning_s(&mut planner, &net, &d, REPEATS)?;
            sheet.row([
                Cell::from(format!("{mb} MB")),
                Cell::from(name),
                Cell::Number(us, 1),
                Cell::Number(100.0 * plan.gap(), 2),
                Cell::Number(1e6 * plan.congestion_s, 0),
                Cell::Number(published, 1),
            ]);
        }
    }
    sheet.note("Planner times are measured here, on one core, with the demand in memory; it is not published whether NIMBLE's times include gathering the demand. Transfers are modelled.");
    Ok(sheet)
}

/// Cluster, slow links (see [`overrides`]) and seeds of the traffic.
const CASES: [(&str, &str, u64); 12] = [
    ("mesh4", "none", 12),
    ("mesh4", "all differ", 12),
    ("cube8", "none", 12),
    ("rails2x4", "none", 12),
    ("rails2x4", "all differ", 12),
    ("rails4x8", "none", 4),
    ("rails8x8", "none", 4),
    ("rails8x8", "three", 4),
    ("rails8x8", "all differ", 4),
    ("rails64x8", "none", 1),
    ("rails64x8", "three", 1),
    ("rails64x8", "all differ", 1),
];

/// The link rates of a cluster: nominal, with three slow links, or different for every link.
fn overrides(name: &str, slow_links: &str) -> Result<Vec<LinkOverride>, Failure> {
    let three = ["n0:2>rail2=x0.5", "rail3>n1:3=x0.25", "n0:1>n0:switch=x0.5"];
    Ok(match slow_links {
        "none" => Vec::new(),
        "three" => three.iter().filter_map(|o| o.parse().ok()).collect(),
        _ => LinkCondition::Unequal.overrides(&network(name, &RoutingOptions::default())?, 1),
    })
}

/// Planning times of skewed traffic on one network.
struct PlanTimes {
    /// Times of the plans by rules, and of the corrected plans, microseconds.
    closed_us: Vec<f64>,
    corrected_us: Vec<f64>,
    worst_gap: f64,
    /// Time of the reference solver on one matrix; NaN above 32 ranks.
    reference_us: f64,
}

fn plan_times(planner: &mut Planner, net: &RoutingNetwork, seeds: u64) -> Result<PlanTimes, Failure> {
    let n = net.rank_count();
    let mut out = PlanTimes { closed_us: vec![], corrected_us: vec![], worst_gap: 0.0, reference_us: f64::NAN };
    for shape in TrafficShape::SKEWED {
        for seed in 0..seeds {
            let demand = shape.demand(n, n as u64 * (64 << 20), seed);
            let us = 1e6 * planning_s(planner, net, &demand, if n > 64 { 5 } else { REPEATS })?;
            let plan = planner.plan(net, &demand).map_err(failed)?;
            out.worst_gap = out.worst_gap.max(plan.gap());
            let of_kind = if plan.pivots == 0 { &mut out.closed_us } else { &mut out.corrected_us };
            of_kind.push(us);
            if n <= 32 && out.reference_us.is_nan() && shape == TrafficShape::HeavyTailed {
                let begin = Instant::now();
                exact::plan(net, &demand).map_err(failed)?;
                out.reference_us = 1e6 * begin.elapsed().as_secs_f64();
            }
        }
    }
    Ok(out)
}

/// From 4 to 512 ranks.
pub fn speed() -> Result<Sheet, Failure> {
    let columns = [
        "cluster",
        "ranks",
        "slow links",
        "closed form us",
        "corrected us",
        "worst us",
        "corrected",
        "worst gap %",
        "reference us",
    ];
    let mut sheet = Sheet::new(
        "speed",
        "Planning time on skewed traffic of six shapes, measured: median where a rule is enough, where it is corrected, and the worst",
        &columns,
    );
    let mut planner = Planner::default();
    for (name, slow_links, seeds) in CASES {
        let options = RoutingOptions { overrides: overrides(name, slow_links)?, ..RoutingOptions::default() };
        let net = network(name, &options)?;
        let times = plan_times(&mut planner, &net, seeds)?;
        let (closed, corrected) = (&times.closed_us, &times.corrected_us);
        let worst = closed.iter().chain(corrected).copied().fold(0.0, f64::max);
        sheet.row([
            Cell::from(name),
            Cell::Number(net.rank_count() as f64, 0),
            Cell::from(slow_links),
            Cell::Number(stats::upper_median(closed), 1),
            Cell::Number(stats::upper_median(corrected), 1),
            Cell::Number(worst, 1),
            Cell::from(format!("{} of {}", corrected.len(), corrected.len() + closed.len())),
            Cell::Number(100.0 * times.worst_gap, 2),
            Cell::Number(times.reference_us, 0),
        ]);
    }
    sheet.note("One core, workspace warm, medians of repetitions; the same setting as for `quality`. NIMBLE reports 30 to 50 us for 4 and 8 GPUs.");
    sheet.note("Not counted: sending the demand to every rank (8 bytes per pair; an allgather of 10 to 30 us on shared memory or InfiniBand, estimated). A rule needs no demand.");
    Ok(sheet)
}
