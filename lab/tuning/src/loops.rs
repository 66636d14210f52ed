//! `linkwise-lab tune evaluate --loops`: what the plugin does in training loops.

use super::print::pretty;
use crate::trials::Settings;
use ::trial::training::{FOUND_STEPS, LoopOutcome, LoopSpec, Scheme, loops, oracle, train};
use console::{Failure, Format, Progress};
use lab_kit::output::table;
use rayon::prelude::*;
use serde_json::json;

struct Row {
    spec: LoopSpec,
    about: String,
    outcomes: Vec<LoopOutcome>,
    /// The same runs with arms that change call by call.
    by_call: Vec<LoopOutcome>,
}

impl Row {
    fn has_better(&self) -> bool {
        self.spec.slots.iter().any(|s| s.levels.iter().any(|l| *l < 1.0))
    }

    fn percent(all: &[LoopOutcome], f: impl Fn(&LoopOutcome) -> bool) -> f64 {
        100.0 * all.iter().filter(|o| f(o)).count() as f64 / all.len() as f64
    }

    fn found(all: &[LoopOutcome]) -> f64 {
        Row::percent(all, |o| o.found_after.is_some_and(|f| f <= FOUND_STEPS))
    }

    /// Share of the possible gain at step [`FOUND_STEPS`], and of what the best possible test gains, percent.
    fn gained(&self) -> Option<(f64, f64)> {
        let all: Vec<f64> = self.outcomes.iter().filter_map(|o| o.gained).collect();
        (!all.is_empty()).then(|| 100.0 * stats::mean(&all)).zip(oracle(&self.spec))
    }

    fn longer(all: &[LoopOutcome]) -> f64 {
        100.0 * stats::mean(&all.iter().map(|o| o.longer).collect::<Vec<_>>())
    }

    fn worst(&self) -> f64 {
        100.0 * self.outcomes.iter().map(|o| o.longer).fold(f64::NEG_INFINITY, f64::max)
    }

    /// Mean of the stated gain and of the true one, percent.
    fn gains(&self) -> Option<(f64, f64)> {
        let all: Vec<(f64, f64)> = self.outcomes.iter().filter_map(|o| o.gain).collect();
        let mean = |f: fn(&(f64, f64)) -> f64| 100.0 * stats::mean(&all.iter().map(f).collect::<Vec<_>>());
        (!all.is_empty()).then(|| (mean(|g| g.0), mean(|g| g.1)))
    }
}

/// Plays and prints the loops whose name contains `words`.
pub fn run(words: &str, settings: &Settings, format: Format) -> Result<(), Failure> {
    let chosen: Vec<(LoopSpec, String)> = loops().into_iter().filter(|l| l.0.name.contains(words)).collect();
    if chosen.is_empty() {
        let names: Vec<String> = loops().into_iter().map(|l| l.0.name).collect();
        return Err(Failure::input(format!("no loop is named *{words}*; known are {}", names.join(", "))));
    }
    let bar = Progress::new("loops (runs)", chosen.len() * settings.runs as usize);
    let rows: Vec<Row> = chosen
        .into_iter()
        .map(|(spec, about)| {
            let seeds = 0..settings.runs;
            let both: Vec<(LoopOutcome, LoopOutcome)> = seeds
                .into_par_iter()
                .map(|n| {
                    let seed = settings.seed.wrapping_add(n);
                    bar.advance(1);
                    (train(&spec, Scheme::WholeSteps, seed), train(&spec, Scheme::CallByCall, seed))
                })
                .collect();
            let (outcomes, by_call) = both.into_iter().unzip();
            Row { spec, about, outcomes, by_call }
        })
        .collect();
    drop(bar);
    if format == Format::Json {
        let rows: Vec<_> = rows
            .iter()
            .map(|r| {
                json!({"loop": r.spec.name, "about": r.about, "found_percent": r.has_better().then(|| Row::found(&r.outcomes)),
                       "wrong_percent": Row::percent(&r.outcomes, |o| o.is_fooled), "longer_percent": Row::longer(&r.outcomes),
                       "longer_worst_percent": r.worst(), "gain_stated_percent": r.gains().map(|g| g.0), "gain_true_percent": r.gains().map(|g| g.1),
                       "gained_percent": r.gained().map(|g| g.0), "gained_oracle_percent": r.gained().map(|g| g.1),
                       "cannot_learn_percent": Row::percent(&r.outcomes, |o| o.never.is_some()),
                       "by_call_found_percent": r.has_better().then(|| Row::found(&r.by_call)), "by_call_longer_percent": Row::longer(&r.by_call)})
            })
            .collect();
        return pretty(&json!({"simulated": true, "runs": settings.runs, "seed": settings.seed, "loops": rows}));
    }
    let or_none = |v: Option<String>| v.unwrap_or_else(|| "-".into());
    let lines = rows.iter().map(|r| {
        let mut after: Vec<f64> = r.outcomes.iter().filter_map(|o| o.found_after).map(|f| f as f64).collect();
        after.sort_by(f64::total_cmp);
        let median = (2 * after.len() > r.outcomes.len()).then(|| after[r.outcomes.len() / 2]);
        vec![
            r.spec.name.clone(),
            or_none(r.has_better().then(|| format!("{:.1}", Row::found(&r.outcomes)))),
            or_none(median.map(|m| format!("{m:.0}"))),
            or_none(r.gained().map(|g| format!("{:.0} / {:.0}", g.0, g.1))),
            format!("{:.1}", Row::percent(&r.outcomes, |o| o.is_fooled)),
            format!("{:+.2}", Row::longer(&r.outcomes)),
            format!("{:+.2}", r.worst()),
            or_none(r.gains().map(|g| format!("{:.1} / {:.1}", g.0, g.1))),
            format!("{:.0}", Row::percent(&r.outcomes, |o| o.never.is_some())),
            or_none(r.has_better().then(|| format!("{:.1}", Row::found(&r.by_call)))),
            format!("{:+.2}", Row::longer(&r.by_call)),
        ]
    });
    let head = [
        "loop",
        "found %",
        "after",
        "gained / oracle %",
        "wrong %",
        "steps %",
        "worst",
        "gain: stated / true",
        "says no %",
        "by call: found %",
        "steps %",
    ];
    print!("{}", table(&head, 1, lines));
    let legend = format!(
        "{} simulated runs of {} steps each. found: the best arm of the first size is in use from step {FOUND_STEPS} on; after: median step; gained: share \
         of the possible gain of all sizes at step {FOUND_STEPS}, and what a test that knows the best arms and the noise gains; wrong: an arm no better than \
         AUTO was chosen; steps: expected time of all steps over that with AUTO, mean and worst run (below 0: shorter); gain: of the arm in use, \
         as the report states it, and true; says no: the tuner says that it cannot learn; by call: a policy that changes arms call by call.",
        settings.runs,
        rows.first().map_or(0, |r| r.spec.steps)
    );
    print!("{}", console::wrap(&legend, 0));
    Ok(())
}
