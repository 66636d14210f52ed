//! The gap to the optimum, and the error of the reported gap.

use super::failed;
use super::network;
use super::routing::files;
use super::sheet::{Cell, Sheet};
use console::{Failure, Progress};
use route::read::{DispatchLayout, ExpertRouting};
use route::traffic::{LinkCondition, TrafficShape};
use route::{Demand, Planner, RoutingNetwork, RoutingOptions, exact};
use std::path::Path;
use std::time::Instant;

/// Clusters, each with the share of the seeds that is evaluated: the reference is slow on 32 ranks.
const CLUSTERS: [(&str, f64); 4] = [("mesh4", 1.0), ("cube8", 1.0), ("rails2x4", 1.0), ("rails4x8", 0.4)];

struct Judged {
    gap: f64,
    reported: f64,
    plan_us: f64,
    reference_us: f64,
    pivots: u32,
}

fn judge(planner: &mut Planner, net: &RoutingNetwork, demand: &Demand, what: &str) -> Result<Judged, Failure> {
    let begin = Instant::now();
    let best = exact::plan(net, demand).map_err(failed)?;
    let reference_us = 1e6 * begin.elapsed().as_secs_f64();
    planner.plan(net, demand).map_err(failed)?;
    let begin = Instant::now();
    let plan = planner.plan(net, demand).map_err(failed)?;
    let plan_us = 1e6 * begin.elapsed().as_secs_f64();
    // Two independent solvers must agree.
    let gap = plan.congestion_s / best.congestion_s - 1.0;
    if gap < -1e-6 || plan.lower_bound_s > best.congestion_s * (1.0 + 1e-6) {
        return Err(Failure::impossible(format!(
            "{what}: the reference says {} s is the optimum, linkwise has {} s and proves {} s: one result is wrong",
            best.congestion_s, plan.congestion_s, plan.lower_bound_s
        )));
    }
    Ok(Judged { gap: gap.max(0.0), reported: plan.gap(), plan_us, reference_us, pivots: plan.pivots })
}

fn quantile(values: impl Iterator<Item = f64>, q: f64) -> f64 {
    stats::nearest_quantile_of_sorted(&stats::sorted(&values.collect::<Vec<_>>()), q)
}

/// Judges plans of one cluster in every link condition, on matrices of every shape and on real matrices. `share`: the
/// fraction of `seeds` to use.
fn judge_cluster(
    planner: &mut Planner,
    (name, share): (&str, f64),
    seeds: u64,
    real: &[(String, ExpertRouting)],
) -> Result<Vec<Judged>, Failure> {
    let cluster = super::cluster(name)?;
    let whole = network(name, &RoutingOptions::default())?;
    let n = whole.rank_count();
    let seeds = ((seeds as f64 * share).ceil() as u64).max(1);
    let bar = Progress::new(&format!("{name} (plans)"), 3 * seeds as usize * 6);
    let mut all: Vec<Judged> = Vec::new();
    for wear in LinkCondition::ALL {
        for seed in 0..seeds {
            let options = RoutingOptions { overrides: wear.overrides(&whole, seed), ..RoutingOptions::default() };
            let net = RoutingNetwork::of(&cluster, &options).map_err(Failure::input)?;
            for shape in TrafficShape::SKEWED {
                let demand = shape.demand(n, n as u64 * (32 << 20), seed);
                let what = format!("{name}, {} links, {}, seed {seed}", wear.name(), shape.name());
                all.push(judge(planner, &net, &demand, &what)?);
                bar.advance(1);
            }
            if let Some((file, routing)) = real.get(seed as usize % real.len().max(1)) {
                let d = DispatchLayout { ranks: n, bytes_per_token: 14336, tokens: Some(64 << 10) };
                let demand = routing.demand(&d).map_err(Failure::input)?;
                all.push(judge(planner, &net, &demand, &format!("{name}, {file}, seed {seed}"))?);
            }
        }
    }
    Ok(all)
}

/// Compares plans with the reference on thousands of matrices.
pub fn quality(seeds: u64, data: Option<&Path>) -> Result<Sheet, Failure> {
    let columns = [
        "cluster",
        "matrices",
        "gap median %",
        "95th %",
        "worst %",
        "reported - true, 95th",
        "plan us",
        "95th us",
        "worst us",
        "reference us",
    ];
    let mut sheet = Sheet::new(
        "quality",
        "Gap to the optimum (reference), at the one setting of all figures: random, heavy-tailed, hot row, hot column, hot pair, sparse and real \
         matrices; whole, unequal and degraded links",
        &columns,
    );
    let real = files(data)?.unwrap_or_else(|| {
        sheet.note("SKIP real matrices: no folder of public data with moe/esft (docs/data.md).");
        Vec::new()
    });
    let mut everything = Vec::new();
    let mut planner = Planner::default();
    for cluster in CLUSTERS {
        let all = judge_cluster(&mut planner, cluster, seeds, &real)?;
        sheet.row(row(cluster.0, &all));
        everything.extend(all);
    }
    sheet.row(row("all", &everything));
    let corrected = everything.iter().filter(|j| j.pivots > 0).count();
    sheet.note(format!(
        "A rule was enough in {} cases; {corrected} were corrected, with {:.0} pivots in the median and {:.0} at most. Planning times are measured on this \
         machine, one core, the second of two plannings.",
        everything.len() - corrected,
        quantile(everything.iter().filter(|j| j.pivots > 0).map(|j| f64::from(j.pivots)), 0.5),
        quantile(everything.iter().map(|j| f64::from(j.pivots)), 1.0),
    ));
    Ok(sheet)
}

fn row(name: &str, all: &[Judged]) -> Vec<Cell> {
    let gap = |q: f64| Cell::Number(100.0 * quantile(all.iter().map(|j| j.gap), q), 3);
    let us = |q: f64| Cell::Number(quantile(all.iter().map(|j| j.plan_us), q), 1);
    vec![
        Cell::from(name),
        Cell::Number(all.len() as f64, 0),
        gap(0.5),
        gap(0.95),
        gap(1.0),
        Cell::Number(100.0 * quantile(all.iter().map(|j| j.reported - j.gap), 0.95), 3),
        us(0.5),
        us(0.95),
        us(1.0),
        Cell::Number(quantile(all.iter().map(|j| j.reference_us), 0.5), 0),
    ]
}

/// The gain of longer relays.
pub fn relays() -> Result<Sheet, Failure> {
    let columns =
        ["cluster", "links", "matrices", "one relay: mean", "worst", "as planned: mean", "worst ", "relays in series"];
    let mut sheet = Sheet::new(
        "relays",
        "Loss against the optimum over all walks on the links, %: with at most one relay in a host, and with the paths of a plan",
        &columns,
    );
    for (name, seeds) in [("mesh4", 10u64), ("cube8", 6), ("rails2x4", 4)] {
        let cluster = super::cluster(name)?;
        let whole = network(name, &RoutingOptions::default())?;
        for wear in LinkCondition::ALL {
            let (mut one, mut planned, mut series) = (Vec::new(), Vec::new(), 0);
            for seed in 0..seeds {
                let mut options =
                    RoutingOptions { overrides: wear.overrides(&whole, seed), ..RoutingOptions::default() };
                let net = RoutingNetwork::of(&cluster, &options).map_err(Failure::input)?;
                options.one_relay = true;
                let short = RoutingNetwork::of(&cluster, &options).map_err(Failure::input)?;
                series = series.max(net.relays_in_series());
                for shape in TrafficShape::SKEWED {
                    let demand = shape.demand(net.rank_count(), 256 << 20, seed);
                    let any = exact::any_path_optimum_s(&net, &demand).map_err(failed)?;
                    let over = |n: &RoutingNetwork| -> Result<f64, Failure> {
                        Ok(100.0 * (exact::plan(n, &demand).map_err(failed)?.congestion_s / any - 1.0).max(0.0))
                    };
                    one.push(over(&short)?);
                    planned.push(over(&net)?);
                }
            }
            let mean = |v: &[f64]| Cell::Number(v.iter().sum::<f64>() / v.len() as f64, 2);
            let worst = |v: &[f64]| Cell::Number(v.iter().copied().fold(0.0, f64::max), 2);
            let count = Cell::Number(one.len() as f64, 0);
            let cells =
                [count, mean(&one), worst(&one), mean(&planned), worst(&planned), Cell::Number(series as f64, 0)];
            sheet.row([Cell::from(name), Cell::from(wear.name())].into_iter().chain(cells));
        }
    }
    sheet.note(
        "On an even mesh a second relay has no benefit. On a cube, and on a mesh with different links, it has a large benefit, so plans use two relays there. \
         The rest on rails2x4 comes from detours of a host's own traffic over the other host. All by the reference solver; bounds and gaps elsewhere refer to \
         the paths that a plan may use.",
    );
    Ok(sheet)
}
