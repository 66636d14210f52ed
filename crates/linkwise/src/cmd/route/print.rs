//! A plan as text, as JSON and as a drawing.

use super::plan::Answer;
use ::report::{Axis, BarSeries, Place, Plot};
use comfy_table::Table;
use console::{Failure, text_of, wrap};
use route::plan::PlanReason;
use serde_json::json;
use std::io::Write;
use topology::Bytes;

/// Maximum number of links in one table or drawing: the busiest.
const LINKS_SHOWN_MAX: usize = 24;

/// A table whose columns from `numbers` on are right-aligned.
pub fn table(head: &[&str], numbers: usize) -> Table {
    console::table(head, numbers..)
}

/// Seconds in a suitable unit.
pub fn time(s: f64) -> String {
    match s {
        s if !s.is_finite() => "-".into(),
        s if s >= 1.0 => format!("{s:.3} s"),
        s if s >= 1e-3 => format!("{:.3} ms", s * 1e3),
        s => format!("{:.2} us", s * 1e6),
    }
}

fn rounded(v: f64, digits: f64) -> f64 {
    (v * digits).round() / digits
}

fn finite(v: f64) -> Option<f64> {
    v.is_finite().then_some(v)
}

fn reason(a: &Answer) -> String {
    let rule = a.plan.rule;
    match a.plan.reason {
        PlanReason::RuleIsEnough => {
            format!("the rule {rule} is provably near enough to the optimum; nothing to correct")
        }
        PlanReason::Corrected => {
            format!("{rule}, corrected for {} pairs in {} pivots", a.plan.exception_count(), a.plan.pivots)
        }
        PlanReason::SmallMessages => {
            format!("the rule {rule}: with messages this small, relays and pieces cost more than they save (model)")
        }
        PlanReason::AsAsked => "as asked".into(),
    }
}

/// Links by their load under the plan, busiest first.
fn busiest(a: &Answer) -> Vec<usize> {
    let mut order: Vec<usize> = (0..a.net.links.len()).filter(|&l| a.before[l] + a.after[l] > 0).collect();
    let most = |l: usize| a.seconds(l, &a.after).max(a.seconds(l, &a.before));
    order.sort_by(|&x, &y| most(y).total_cmp(&most(x)).then(x.cmp(&y)));
    order
}

pub fn text(a: &Answer) -> String {
    let plan = &a.plan;
    let bytes = a.demand.pairs().map(|p| p.2).sum::<u64>();
    let (ranks, cluster, planner) = (a.net.rank_count(), &a.cluster, a.planner.name);
    let mut out = format!("{ranks} ranks on {cluster}, {bytes} bytes to send: planner {planner}\n");
    let mut line = |text: String| out += &wrap(&text, 2);
    line(format!("plan: {}", reason(a)));
    line(format!(
        "congestion {}, at least {} for any plan: within {:.2} % of the optimum",
        time(a.congestion_s),
        time(plan.lower_bound_s),
        100.0 * a.gap()
    ));
    line(format!("proof: {}", plan.evidence.describe(&a.net)));
    if a.congestion_s > 0.0 {
        line(format!("busiest link: {}", a.net.link_name(a.bottleneck)));
    }
    line(format!("planned in {:.1} us; modelled completion {}", a.planning_us, time(plan.completion_s)));
    a.net.notes.iter().for_each(|note| line(format!("note: {note}")));
    if a.congestion_s > 0.0 {
        out += &tables(a);
    }
    out
}

/// Two tables: the static rules next to the plan, and the busiest links.
fn tables(a: &Answer) -> String {
    let mut t = table(&["rule", "congestion", "over the plan", "modelled completion"], 1);
    for (rule, p) in &a.baselines {
        t.add_row([
            rule.name().to_string(),
            time(p.congestion_s),
            format!("{:.3}x", p.congestion_s / a.congestion_s),
            time(p.completion_s),
        ]);
    }
    let mut out = text_of(&t);
    let mut t = table(&["link", "GB/s", "direct", "utilisation", "this plan", "utilisation"], 1);
    let order = busiest(a);
    let end = a.baselines[0].1.congestion_s;
    for &l in order.iter().take(LINKS_SHOWN_MAX) {
        let share =
            |bytes: &[u64], of: f64| format!("{:.0} %", 100.0 * a.seconds(l, bytes) / of.max(f64::MIN_POSITIVE));
        t.add_row([
            a.net.link_name(l),
            format!("{:.1}", a.net.links[l].capacity_gb_per_s),
            time(a.seconds(l, &a.before)),
            share(&a.before, end),
            time(a.seconds(l, &a.after)),
            share(&a.after, a.congestion_s),
        ]);
    }
    out += &text_of(&t);
    if order.len() > LINKS_SHOWN_MAX {
        out += &format!("{} more links carry less; --format json lists all\n", order.len() - LINKS_SHOWN_MAX);
    }
    out + "All times follow from capacities (a model); none is measured.\n"
}

/// The answer as JSON, with all data for an external check of plan and bound. Flows are written one by one.
pub fn json(a: &Answer, out: &mut impl Write) -> std::io::Result<()> {
    let plan = &a.plan;
    let baselines: serde_json::Map<String, serde_json::Value> =
        a.baselines.iter().map(|(r, p)| (r.name().into(), json!(finite(p.congestion_s)))).collect();
    let completion: serde_json::Map<String, serde_json::Value> =
        a.baselines.iter().map(|(r, p)| (r.name().into(), json!(finite(p.completion_s)))).collect();
    let head = json!({
        "cluster": a.cluster, "ranks": a.net.rank_count(), "planner": a.planner.name, "modelled": true,
        "congestion_s": a.congestion_s, "lower_bound_s": plan.lower_bound_s, "gap": a.gap(),
        "evidence": plan.evidence.describe(&a.net), "bottleneck": a.bottleneck, "bottleneck_name": a.net.link_name(a.bottleneck),
        "planning_us": rounded(a.planning_us, 1e3), "pivots": plan.pivots, "rule": plan.rule.name(),
        "exceptions": plan.exception_count(), "reason": reason(a), "completion_s": plan.completion_s,
        "baselines": baselines, "baselines_completion_s": completion, "notes": a.net.notes,
    });
    let head = head.to_string();
    out.write_all(&head.as_bytes()[..head.len() - 1])?;
    out.write_all(b",\"links\":[")?;
    for (l, link) in a.net.links.iter().enumerate() {
        let object = json!({
            "from": a.net.nodes[link.from as usize], "to": a.net.nodes[link.to as usize],
            "capacity_gb_per_s": link.capacity_gb_per_s, "bytes_direct": a.before[l], "bytes": a.after[l],
        });
        write!(out, "{}{object}", if l == 0 { "" } else { "," })?;
    }
    out.write_all(b"],\"flows\":[")?;
    let mut first = true;
    for f in plan.flows(&a.net, &a.demand) {
        write!(out, "{}{{\"src\":{},\"dst\":{},\"hops\":[", if first { "" } else { "," }, f.src, f.dst)?;
        for (i, l) in a.net.path(f.src, f.dst, f.path).enumerate() {
            write!(out, "{}{l}", if i == 0 { "" } else { "," })?;
        }
        write!(out, "],\"bytes\":{}}}", f.bytes)?;
        first = false;
    }
    out.write_all(b"]}\n")
}

/// A drawing of the busiest links before and after.
pub fn svg(a: &Answer) -> Result<String, Failure> {
    let order = busiest(a);
    let shown = &order[..order.len().min(LINKS_SHOWN_MAX)];
    let us = |bytes: &[u64]| shown.iter().map(|&l| a.seconds(l, bytes) * 1e6).collect();
    let plot = Plot::Bars {
        title: format!(
            "{}, {}: busy time of the {} busiest links (modelled)",
            a.cluster,
            Bytes(a.demand.total()),
            shown.len()
        ),
        value: Axis::linear("us"),
        categories: shown.iter().map(|&l| a.net.link_name(l)).collect(),
        series: vec![
            BarSeries { name: "direct".into(), values: us(&a.before) },
            BarSeries { name: a.planner.name.into(), values: us(&a.after) },
        ],
    };
    plot.svg(Place::File).map_err(Failure::impossible)
}
