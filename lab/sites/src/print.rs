//! Tables of `linkwise-lab sites`.

use crate::evaluate::{Cell, LeftRule, Settings};
use console::{Failure, Format};
use lab_kit::output::table;
use serde_json::{Value, json};
use stats::quantile;
use truths::site::KINDS;

/// A model that is more than this below the even split is listed, percent.
const BELOW_EVEN_MAX: f64 = 0.7;

/// GBE of one method on one kind, percent.
#[derive(Clone, Copy)]
struct Gbe {
    mean: f64,
    p5: f64,
    worst: f64,
    unanswered: usize,
}

/// One number of a [`Gbe`].
type Figure = fn(&Gbe) -> f64;

/// Prints the kinds with the hidden fact of each.
pub fn kinds() {
    let rows = KINDS.iter().map(|k| vec![k.name.to_owned(), k.about.to_owned()]);
    console::print(&table(&["kind", "hidden fact (simulated)"], 2, rows));
}

fn gbe(cells: &[&Cell], method: &str) -> Option<Gbe> {
    let choices = || cells.iter().flat_map(|c| &c.requests).filter_map(|r| r.choices.get(method));
    let values: Vec<f64> = choices().flatten().map(|c| 100.0 * c.gbe).collect();
    let unanswered = choices().filter(|c| c.is_none()).count();
    if values.is_empty() {
        return None;
    }
    let worst = values.iter().copied().fold(f64::INFINITY, f64::min);
    Some(Gbe { mean: stats::mean(&values), p5: quantile(&values, 0.05), worst, unanswered })
}

/// Prints all tables.
pub fn all(kinds: &[&str], cells: &[Cell], settings: &Settings, format: Format) -> Result<(), Failure> {
    let of = |kind: &str| cells.iter().filter(|c| c.kind == kind).collect::<Vec<&Cell>>();
    if format == Format::Json {
        return console::print_json(&as_json(kinds, cells, settings));
    }
    let seeds: std::collections::BTreeSet<u64> = cells.iter().map(|c| c.seed).collect();
    let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
    let head = format!(
        "SIMULATED sites, not measured. GBE: bandwidth of the choice over the best that a search with the truth finds, percent. {} \
         requests on each site, seeds {}; models learn from {} readings over hosts ({}) and the hosts' own tables. even: no data, lowest \
         switch, fewest hosts, even split. smooth: knows everything except the irregularity of single splits. gain: gp minus even.",
        settings.requests,
        seeds.join(", "),
        settings.samples,
        settings.design.name()
    );
    console::print(&console::wrap(&head, 0));
    let has = |m: &str| settings.methods.iter().any(|x| x == m);
    let gain = has("even") && has("gp");
    let pick: [(&str, Figure); 3] = [("mean GBE %", |g| g.mean), ("5th percentile", |g| g.p5), ("worst", |g| g.worst)];
    for (i, (what, pick)) in pick.into_iter().enumerate() {
        let methods = || settings.methods.iter().filter(move |m| i == 0 || *m != "random");
        let mut head = vec![what.to_owned()];
        head.extend(methods().cloned());
        if gain && i == 0 {
            head.push("gain".into());
        }
        let row = |kind: &&str| {
            let cells = of(kind);
            let mut row = vec![(*kind).to_owned()];
            row.extend(methods().map(|m| gbe(&cells, m).map_or("-".into(), |g| format!("{:.1}", pick(&g)))));
            if gain && i == 0 {
                let both = gbe(&cells, "gp").zip(gbe(&cells, "even"));
                row.push(both.map_or("-".into(), |(g, e)| format!("{:+.1}", g.mean - e.mean)));
            }
            row
        };
        console::print(&format!("\n{}", table(&head, 1, kinds.iter().map(row))));
    }
    left_rule(kinds, cells);
    notes(kinds, cells, settings);
    Ok(())
}

/// What `gp` gains where it leaves the simple rule: as predicted and in truth. The best of many predictions is rarely as
/// good as predicted.
fn left_rule(kinds: &[&str], cells: &[Cell]) {
    let of = |kind: &str| -> Vec<LeftRule> {
        let requests = cells.iter().filter(|c| kind.is_empty() || c.kind == kind).flat_map(|c| &c.requests);
        requests.filter_map(|r| r.choices.get("gp")?.as_ref()?.left_rule).collect()
    };
    let row = |kind: &str| {
        let own = of(kind);
        let mean = |f: fn(&LeftRule) -> f64| {
            if own.is_empty() {
                "-".into()
            } else {
                format!("{:+.1}", 100.0 * own.iter().map(f).sum::<f64>() / own.len() as f64)
            }
        };
        let worse = own.iter().filter(|l| l.real < 0.0).count();
        let name = if kind.is_empty() { "all" } else { kind };
        vec![
            name.to_owned(),
            own.len().to_string(),
            mean(|l| l.required),
            mean(|l| l.predicted),
            mean(|l| l.real),
            worse.to_string(),
        ]
    };
    if of("").is_empty() {
        return;
    }
    let head = ["gp leaves the rule", "requests", "required %", "predicted %", "true %", "slower than the rule"];
    let rows = kinds.iter().copied().filter(|k| !of(k).is_empty()).chain([""]).map(row);
    console::print(&format!("\n{}", table(&head, 1, rows)));
}

/// Notes on kinds with models below the even split, and on refusals of the product.
fn notes(kinds: &[&str], cells: &[Cell], settings: &Settings) {
    let of = |kind: &str| cells.iter().filter(|c| c.kind == kind).collect::<Vec<&Cell>>();
    let mut lines = Vec::new();
    for method in settings.methods.iter().filter(|m| cells.iter().any(|c| c.models.contains_key(*m))) {
        let below: Vec<String> = kinds
            .iter()
            .filter_map(|k| {
                let less = gbe(&of(k), "even")?.mean - gbe(&of(k), method)?.mean;
                (less > BELOW_EVEN_MAX).then(|| format!("{k} ({:+.1})", -less))
            })
            .collect();
        if !below.is_empty() {
            lines.push(format!("{method} is more than {BELOW_EVEN_MAX} below even on: {}.", below.join(", ")));
        }
        // All sites of one kind are refused for the same reason.
        let mut refused: Vec<&str> = Vec::new();
        for c in cells.iter().filter(|c| c.models.contains_key(method)) {
            if let Some(why) = &c.models[method].refused
                && !refused.contains(&c.kind.as_str())
            {
                refused.push(&c.kind);
                lines.push(format!("{method} has no answer on {}: {why}.", c.kind));
            }
        }
        let open: usize = kinds.iter().filter_map(|k| gbe(&of(k), method)).map(|g| g.unanswered).sum();
        if open > 0 {
            lines.push(format!("{method} left {open} more requests without an answer."));
        }
    }
    if !lines.is_empty() {
        console::print("\n");
    }
    lines.iter().for_each(|l| console::print(&console::wrap(l, 2)));
}

fn as_json(kinds: &[&str], cells: &[Cell], settings: &Settings) -> Value {
    let kind = |kind: &&str| {
        let own: Vec<&Cell> = cells.iter().filter(|c| c.kind == *kind).collect();
        let about = KINDS.iter().find(|k| k.name == *kind).map(|k| k.about);
        let methods: Vec<Value> = settings
            .methods
            .iter()
            .filter_map(|m| {
                let g = gbe(&own, m)?;
                Some(json!({
                    "method": m, "mean_pct": g.mean, "p5_pct": g.p5, "worst_pct": g.worst, "unanswered": g.unanswered,
                }))
            })
            .collect();
        json!({ "kind": kind, "about": about, "simulated": true, "methods": methods, "sites": own })
    };
    json!({
        "simulated": true, "requests_per_site": settings.requests, "samples": settings.samples,
        "design": settings.design.name(), "kinds": kinds.iter().map(kind).collect::<Vec<_>>(),
    })
}
