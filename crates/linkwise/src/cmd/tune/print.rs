//! What `linkwise tune` prints.

use super::aims::Row;
use super::evaluate::Line;
use crate::cmd::shared::Format;
use crate::failure::Failure;
use crate::tuning::Settings;
use crate::tuning::catalog::Entry;
use ::tune::trial::Score;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde_json::{Value, json};

/// A table whose columns after the first `text_columns` are numbers.
pub fn table(head: &[&str], text_columns: usize, rows: Vec<Vec<String>>) -> Table {
    let mut t = Table::new();
    t.load_style(presets::UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    if t.width().is_none() {
        t.set_width(110);
    }
    t.set_header(head.iter().copied());
    rows.into_iter().for_each(|r| {
        t.add_row(r);
    });
    for column in t.column_iter_mut().skip(text_columns) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    t
}

fn pretty(value: &Value) -> Result<(), Failure> {
    println!("{}", serde_json::to_string_pretty(value).map_err(Failure::input)?);
    Ok(())
}

/// The environments by name.
pub fn list(all: &[Entry], format: Format) -> Result<(), Failure> {
    if format == Format::Json {
        let rows: Vec<_> =
            all.iter().map(|e| json!({"name": e.spec.name, "about": e.about, "simulated": e.is_simulated})).collect();
        return pretty(&json!(rows));
    }
    let rows = all.iter().map(|e| {
        let source = if e.is_simulated { "simulated" } else { "measured" };
        vec![e.spec.name.clone(), source.into(), e.about.clone()]
    });
    println!("{}", table(&["environment", "times are", "what it is"], 3, rows.collect()));
    Ok(())
}

/// The aims.
pub fn aims(
    rows: &[Row],
    policies: &[String],
    settings: &Settings,
    has_log: bool,
    format: Format,
) -> Result<(), Failure> {
    let met = |i: usize| rows.iter().filter(|r| r.measured[i].is_met).count();
    if format == Format::Json {
        let met: Vec<_> =
            policies.iter().enumerate().map(|(i, p)| json!({"policy": p, "met": met(i), "of": rows.len()})).collect();
        return pretty(
            &json!({"simulated": true, "runs": settings.runs, "seed": settings.seed, "reward_log": has_log, "met": met, "aims": rows}),
        );
    }
    let mut head = vec!["aim (simulated; the worst of its environments)", "limit"];
    head.extend(policies.iter().map(String::as_str));
    let digits = |unit: &str| if unit == "looks" { 0 } else { 1 };
    let lines = rows.iter().map(|r| {
        let sign = if r.bound == "at least" { "≥" } else { "≤" };
        let cell = |m: &super::aims::Measured| {
            format!(
                "{:.*} {}",
                if r.limit <= 4.0 { digits(r.unit).max(usize::from(r.unit == "%") * 2) } else { 1 },
                m.value,
                if m.is_met { "met" } else { "NOT" }
            )
        };
        let mut line = vec![r.aim.clone(), format!("{sign} {} {}", r.limit, r.unit)];
        line.extend(r.measured.iter().map(cell));
        line
    });
    println!("{}", table(&head, 1, lines.collect()));
    for (i, policy) in policies.iter().enumerate() {
        println!("{policy}: {} of {} aims met", met(i), rows.len());
    }
    println!("{} runs of each environment, seeds from {}; environments in docs/tune.md.", settings.runs, settings.seed);
    if !has_log {
        println!(
            "The published reward log was not found: aims on its rewards are left out (set LINKWISE_DATA to the data folder)."
        );
    }
    Ok(())
}

fn count(value: Option<f64>) -> String {
    value.map_or("never".into(), |v| format!("{v:.0}"))
}

fn score_json(policy: &str, s: &Score) -> Value {
    json!({
        "policy": policy,
        "right_after_20": s.right_after(20),
        "right_after_40": s.right_after(40),
        "right_after_200": s.right_after(200),
        "decided_after_median": s.median_decided_after(),
        "wrong_runs": s.wrong_runs(),
        "regressed_runs": s.regressed_runs(),
        "regret_mean": s.mean(|o| o.regret),
        "improvement_over_auto_mean": s.mean(|o| o.improvement_expected),
        "improvement_late_median": s.median(|o| o.improvement_late_median),
        "explore_cost_ms_mean": s.mean(|o| o.explore_cost_us) / 1e3,
        "break_even_call_median": s.median_break_even(),
        "looking_cost_mean": s.mean(|o| o.looking_cost),
        "looks_at_slow_max": s.max(|o| o.looks_at_slow_max as f64),
        "recovered_after_p50": s.recovery_quantile(0.5),
        "recovered_after_p90": s.recovery_quantile(0.9),
        "iqr_ms_auto": s.median(|o| o.iqr_us.0) / 1e3,
        "iqr_ms": s.median(|o| o.iqr_us.1) / 1e3,
        "sd_ms_auto": s.median(|o| o.sd_us.0) / 1e3,
        "sd_ms": s.median(|o| o.sd_us.1) / 1e3,
        "differing_calls_mean": s.mean(|o| o.differing_calls as f64),
    })
}

/// Scores by environment.
pub fn scores(entries: &[Entry], results: &[Vec<Line>], settings: &Settings, format: Format) -> Result<(), Failure> {
    if format == Format::Json {
        let environments: Vec<_> = entries
            .iter()
            .zip(results)
            .map(|(e, lines)| {
                let policies: Vec<_> = lines.iter().map(|l| score_json(&l.policy, &l.score)).collect();
                json!({"environment": e.spec.name, "about": e.about, "simulated": e.is_simulated, "calls": e.spec.calls,
                       "arms": e.spec.arms.iter().map(ToString::to_string).collect::<Vec<_>>(), "policies": policies})
            })
            .collect();
        return pretty(
            &json!({"runs": settings.runs, "seed": settings.seed, "ranks": settings.ranks, "environments": environments}),
        );
    }
    for (entry, lines) in entries.iter().zip(results) {
        let source = if entry.is_simulated { "simulated" } else { "measured, resampled" };
        println!("{} ({source}): {}; {} calls", entry.spec.name, entry.about, entry.spec.calls);
        println!("{}", decisions(lines));
        println!("{}", costs(lines));
    }
    println!(
        "{} runs each, seeds from {}. Means over runs unless a column says otherwise; columns in docs/tune.md.",
        settings.runs, settings.seed
    );
    Ok(())
}

fn percent(v: f64) -> String {
    format!("{:.1}", 100.0 * v)
}

fn decisions(lines: &[Line]) -> Table {
    let head = [
        "policy",
        "right@20 %",
        "right@40 %",
        "right@200 %",
        "decided after",
        "wrong runs %",
        "slower runs %",
        "recovered p50",
        "recovered p90",
        "ranks differ",
    ];
    let rows = lines.iter().map(|Line { policy, score: s }| {
        let has_change = s.outcomes.iter().any(|o| o.recovered_after.is_some());
        let recovery = |q| if has_change { count(s.recovery_quantile(q)) } else { "-".into() };
        vec![
            policy.clone(),
            percent(s.right_after(20)),
            percent(s.right_after(40)),
            percent(s.right_after(200)),
            count(s.median_decided_after()),
            percent(s.wrong_runs()),
            percent(s.regressed_runs()),
            recovery(0.5),
            recovery(0.9),
            format!("{:.0}", s.mean(|o| o.differing_calls as f64)),
        ]
    });
    table(&head, 1, rows.collect())
}

fn costs(lines: &[Line]) -> Table {
    let head = [
        "policy",
        "over AUTO %",
        "late median %",
        "regret %",
        "explore ms",
        "break-even",
        "looking %",
        "looks>1.5x",
        "IQR ms",
        "SD ms",
    ];
    let rows = lines.iter().map(|Line { policy, score: s }| {
        let pair = |f: fn(&::tune::trial::Outcome) -> (f64, f64)| {
            format!("{:.2}>{:.2}", s.median(|o| f(o).0) / 1e3, s.median(|o| f(o).1) / 1e3)
        };
        vec![
            policy.clone(),
            percent(s.mean(|o| o.improvement_expected)),
            percent(s.median(|o| o.improvement_late_median)),
            percent(s.mean(|o| o.regret)),
            format!("{:.1}", s.mean(|o| o.explore_cost_us) / 1e3),
            count(s.median_break_even()),
            format!("{:.2}", 100.0 * s.mean(|o| o.looking_cost)),
            format!("{:.0}", s.max(|o| o.looks_at_slow_max as f64)),
            pair(|o| o.iqr_us),
            pair(|o| o.sd_us),
        ]
    });
    table(&head, 1, rows.collect())
}
