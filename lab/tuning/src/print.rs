//! The output of `linkwise-lab tune`.

use super::evaluate::PolicyScore;
use super::targets::TargetResult;
use crate::trials::Settings;
use crate::trials::catalog::Entry;
use ::trial::Score;
use console::Failure;
use console::{Format, wrap};
use lab_kit::output::table;
use serde_json::{Value, json};

/// JSON for scripts.
pub fn pretty(value: &Value) -> Result<(), Failure> {
    println!("{}", serde_json::to_string_pretty(value).map_err(Failure::input)?);
    Ok(())
}

/// The environments by name.
pub fn list(all: &[Entry], format: Format) -> Result<(), Failure> {
    if format == Format::Json {
        let rows: Vec<_> =
            all.iter().map(|e| json!({"name": e.spec.name, "about": e.about, "levels": e.levels()})).collect();
        return pretty(&json!(rows));
    }
    let rows = all.iter().map(|e| vec![e.spec.name.clone(), e.levels().into(), e.about.clone()]);
    print!("{}", table(&["environment", "levels", "what it is"], 3, rows));
    Ok(())
}

/// The targets.
pub fn targets(
    rows: &[TargetResult],
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
            &json!({"simulated": true, "runs": settings.runs, "seed": settings.seed, "reward_log": has_log, "met": met, "targets": rows}),
        );
    }
    let mut head = vec!["target (simulated; the worst of its environments)", "limit"];
    head.extend(policies.iter().map(String::as_str));
    let digits = |unit: &str| if unit == "looks" { 0 } else { 1 };
    let lines = rows.iter().map(|r| {
        let sign = match r.bound {
            "at least" => "≥",
            "above" => ">",
            "below" => "<",
            _ => "≤",
        };
        let cell = |m: &super::targets::Measured| {
            format!(
                "{:.*} {}",
                if r.limit <= 4.0 { digits(r.unit).max(usize::from(r.unit == "%") * 2) } else { 1 },
                m.value,
                if m.is_met { "met" } else { "NOT" }
            )
        };
        let mut line = vec![r.target.clone(), format!("{sign} {} {}", r.limit, r.unit)];
        line.extend(r.measured.iter().map(cell));
        line
    });
    print!("{}", table(&head, 1, lines));
    for (i, policy) in policies.iter().enumerate() {
        println!("{policy}: {} of {} targets met", met(i), rows.len());
    }
    let protocol = format!(
        "{} runs of each environment, seeds from {}; environments in docs/research/tuning.md.",
        settings.runs, settings.seed
    );
    print!("{}", wrap(&protocol, 0));
    if !has_log {
        let note = "The published reward log was not found: targets on its rewards are left out (set LINKWISE_DATA to the data folder).";
        print!("{}", wrap(note, 0));
    }
    Ok(())
}

fn count(value: Option<f64>) -> String {
    value.map_or("never".into(), |v| format!("{v:.0}"))
}

fn score_json(policy: &str, s: &Score, entry: &Entry) -> Value {
    let names = entry.spec.arms.iter().map(ToString::to_string);
    let ends: serde_json::Map<String, Value> = match entry.spec.is_shuffled {
        true => Default::default(), // for shuffled arms a name means another arm in every run
        false => names.zip(s.ends_with(entry.spec.arms.len()).into_iter().map(Value::from)).collect(),
    };
    json!({
        "policy": policy,
        "in_use_at_the_end": ends,
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
        "looking_cost_mean": s.looking_cost(),
        "looks_at_slow_max": has_settled(entry).then(|| s.max(|o| o.looks_at_slow_max as f64)),
        "recovered_after_p50": s.recovery_quantile(0.5),
        "recovered_after_p90": s.recovery_quantile(0.9),
        "iqr_ms_auto": s.median(|o| o.iqr_us.0) / 1e3,
        "iqr_ms": s.median(|o| o.iqr_us.1) / 1e3,
        "sd_ms_auto": s.median(|o| o.sd_us.0) / 1e3,
        "sd_ms": s.median(|o| o.sd_us.1) / 1e3,
        "differing_calls_mean": s.mean(|o| o.differing_calls as f64),
    })
}

/// True if a part of the run remains after it counts as settled. Only that part has explorations to count.
fn has_settled(entry: &Entry) -> bool {
    entry.spec.calls.min(entry.spec.change.map_or(u64::MAX, |c| c.0)) > entry.spec.settled_at
}

const LEGEND: &str = "\
right@N: % of runs that use the right arm after N readings
decided@, even@: median call of the decision, of break-even
wrong: % of runs that chose an arm no better than AUTO
slower: % of runs that took longer than AUTO in all
back: calls from the change until the right arm was in use again
gain, regret: expected time against AUTO, against the best arm
late: median of the second half against AUTO in the same calls
cost: time of calls off the arm in use, beyond the faster of that arm and AUTO
look: cost of looking once settled (from call 400 on, up to a change)
looks: most looks in these calls (2,000 at most) at one arm over 1.5 times slower
IQR, SD: AUTO's > the policy's, second half
-: the run was too short for the figure";

/// Scores by environment.
pub fn scores(
    entries: &[Entry],
    results: &[Vec<PolicyScore>],
    settings: &Settings,
    format: Format,
) -> Result<(), Failure> {
    if format == Format::Json {
        let environments: Vec<_> = entries
            .iter()
            .zip(results)
            .map(|(e, lines)| {
                let policies: Vec<_> = lines.iter().map(|l| score_json(&l.policy, &l.score, e)).collect();
                json!({"environment": e.spec.name, "about": e.about, "levels": e.levels(), "calls": e.spec.calls,
                       "arms": e.spec.arms.iter().map(ToString::to_string).collect::<Vec<_>>(), "policies": policies})
            })
            .collect();
        return pretty(
            &json!({"simulated": true, "runs": settings.runs, "seed": settings.seed, "ranks": settings.ranks, "environments": environments}),
        );
    }
    for (entry, lines) in entries.iter().zip(results) {
        let about = format!("{} ({}): {}; {} calls", entry.spec.name, source(entry), entry.about, entry.spec.calls);
        print!("{}", wrap(&about, 2));
        print!("{}", decisions(lines));
        if !entry.spec.is_shuffled {
            let ends =
                |l: &PolicyScore| wrap(&format!("{}: in use at the end: {}", l.policy, ends(entry, &l.score)), 2);
            lines.iter().for_each(|l| print!("{}", ends(l)));
        }
        println!("\n{}", costs(entry, lines));
    }
    if let ::tune::Objective::TimeAndChannels { price_per_channel } = settings.objective {
        println!("Expected times include the price of channels: {} % for each.", 100.0 * price_per_channel);
    }
    println!("{} runs each, seeds from {}. Columns:", settings.runs, settings.seed);
    LEGEND.lines().for_each(|l| print!("{}", wrap(l, 2)));
    Ok(())
}

/// `AUTO 60 %, TREE/SIMPLE 40 %`: the arms by the share of runs that end with them.
fn ends(entry: &Entry, score: &Score) -> String {
    let shares = score.ends_with(entry.spec.arms.len());
    let mut arms: Vec<_> = entry.spec.arms.iter().zip(shares).filter(|a| a.1 > 0.0).collect();
    arms.sort_by(|a, b| b.1.total_cmp(&a.1));
    arms.iter().map(|(arm, share)| format!("{arm} {:.1} %", 100.0 * share)).collect::<Vec<_>>().join(", ")
}

fn percent(v: f64) -> String {
    if v.is_nan() { "-".into() } else { format!("{:.1}", 100.0 * v) }
}

/// The origin of an environment's levels.
pub fn source(entry: &Entry) -> &'static str {
    if entry.is_made_up { "simulated, levels made up" } else { "published levels, simulated calls" }
}

fn decisions(lines: &[PolicyScore]) -> String {
    let (head, rows) = decision_rows(lines);
    table(&head, 1, rows)
}

/// Head and rows of the table of decisions, without columns that have no meaning for these runs (no change, one rank).
pub fn decision_rows(lines: &[PolicyScore]) -> (Vec<String>, Vec<Vec<String>>) {
    let has_change = lines.iter().any(|l| l.score.outcomes.iter().any(|o| o.recovered_after.is_some()));
    let do_ranks_differ = lines.iter().any(|l| l.score.mean(|o| o.differing_calls as f64) > 0.0);
    let mut head = vec!["policy", "right@20", "@40", "@200", "decided@", "wrong %", "slower %"];
    head.extend(if has_change { &["back p50", "back p90"][..] } else { &[] });
    head.extend(do_ranks_differ.then_some("ranks differ"));
    let row = |PolicyScore { policy, score: s }: &PolicyScore| {
        let mut row = vec![
            policy.clone(),
            percent(s.right_after(20)),
            percent(s.right_after(40)),
            percent(s.right_after(200)),
            count(s.median_decided_after()),
            percent(s.wrong_runs()),
            percent(s.regressed_runs()),
        ];
        if has_change {
            row.extend([0.5, 0.9].map(|q| count(s.recovery_quantile(q))));
        }
        row.extend(do_ranks_differ.then(|| format!("{:.0}", s.mean(|o| o.differing_calls as f64))));
        row
    };
    (head.into_iter().map(str::to_owned).collect(), lines.iter().map(row).collect())
}

fn costs(entry: &Entry, lines: &[PolicyScore]) -> String {
    let head = ["policy", "gain %", "late %", "regret %", "cost ms", "even@", "look %", "looks", "IQR ms", "SD ms"];
    let rows = lines.iter().map(|PolicyScore { policy, score: s }| {
        let pair = |f: fn(&::trial::Outcome) -> (f64, f64)| {
            let number = |us: f64| match us / 1e3 {
                ms if ms >= 10.0 => format!("{ms:.0}"),
                ms => format!("{ms:.3}"),
            };
            format!("{}>{}", number(s.median(|o| f(o).0)), number(s.median(|o| f(o).1)))
        };
        vec![
            policy.clone(),
            percent(s.mean(|o| o.improvement_expected)),
            percent(s.median(|o| o.improvement_late_median)),
            percent(s.mean(|o| o.regret)),
            format!("{:.1}", s.mean(|o| o.explore_cost_us) / 1e3),
            count(s.median_break_even()),
            if has_settled(entry) { format!("{:.2}", 100.0 * s.looking_cost()) } else { "-".into() },
            if has_settled(entry) { format!("{:.0}", s.max(|o| o.looks_at_slow_max as f64)) } else { "-".into() },
            pair(|o| o.iqr_us),
            pair(|o| o.sd_us),
        ]
    });
    table(&head, 1, rows)
}
