//! `linkwise-lab tune evaluate --detector`: the detection of overlap from times only, and its limit.

use super::print::pretty;
use crate::trials::Settings;
use crate::trials::catalog::Entry;
use ::trial::{Detection, Noise, Overlap, Spec, detect};
use console::Failure;
use console::Format;
use lab_kit::output::table;
use rayon::prelude::*;
use serde_json::json;

/// Coefficients of variation of every case.
const CVS: [f64; 4] = [0.03, 0.05, 0.10, 0.20];
/// Steps of the made-up cases: how much longer calls take during computation.
const STEPS: [f64; 5] = [0.0, 0.05, 0.10, 0.20, 0.50];

struct Case {
    name: String,
    is_made_up: bool,
    step: f64,
    spec: Spec,
}

/// Evaluates and prints. Cases: made-up steps, and every environment with phases of overlap, where AUTO is the arm that
/// runs.
pub fn run(entries: &[Entry], settings: &Settings, format: Format) -> Result<(), Failure> {
    let cases = cases(entries);
    let rows: Vec<(usize, String, [Detection; 2])> = (0..cases.len())
        .flat_map(|i| CVS.map(|cv| (i, Noise::LogNormal { cv }, format!("CV {:.0}%", 100.0 * cv))))
        .chain((0..STEPS.len()).map(|i| (i, Noise::BANDIT_LOG, "two modes".to_owned())))
        .collect::<Vec<_>>()
        .into_par_iter()
        .map(|(i, noise, name)| {
            let spec = Spec { noise, ..cases[i].spec.clone() };
            let auto = spec.arms.iter().position(|a| a.is_auto()).unwrap_or(0);
            let mut all = [Detection::default(), Detection::default()];
            for n in 0..settings.runs {
                let run = detect(&spec, auto, settings.seed.wrapping_add(n));
                all.iter_mut().zip(&run).for_each(|(sum, one)| sum.add(one));
            }
            (i, name, all)
        })
        .collect();
    if format == Format::Json {
        let rows: Vec<_> = rows
            .iter()
            .map(|(i, noise, [d, limit])| {
                let c = &cases[*i];
                json!({"case": c.name, "levels": if c.is_made_up { "made up" } else { "published" }, "step": c.step, "noise": noise, "precision": d.precision(),
                       "recall": d.recall(), "false_alarm_rate": d.false_alarm_rate(), "accuracy": d.accuracy(), "area": d.area(),
                       "accuracy_limit": limit.accuracy(), "area_limit": limit.area()})
            })
            .collect();
        return pretty(&json!({"simulated": true, "runs": settings.runs, "seed": settings.seed, "detector": rows}));
    }
    let share = |v: Option<f64>| v.map_or("-".into(), |v| format!("{:.1}", 100.0 * v));
    let area = |d: &Detection| d.area().map_or("-".into(), |v| format!("{v:.3}"));
    let lines = rows.iter().map(|(i, noise, [d, limit])| {
        vec![
            cases[*i].name.clone(),
            format!("{:+.1}", 100.0 * cases[*i].step),
            noise.clone(),
            share(d.accuracy()),
            share(limit.accuracy()),
            share(d.precision()),
            share(d.recall()),
            share(d.false_alarm_rate()),
            area(d),
            area(limit),
        ]
    });
    let head =
        ["case", "step %", "noise", "right %", "at best", "precision %", "recall %", "false %", "ROC area", "at best"];
    print!("{}", table(&head, 1, lines));
    let legend = format!(
        "{} runs each of 2,000 calls in phases of 50; computation runs during half of them; noise is simulated. right: of all calls; \
         false: of the calls alone, taken for overlapped. At best: a Bayes filter that knows both levels and the noise, but not when \
         phases end: the limit of what the times tell.",
        settings.runs
    );
    print!("{}", console::wrap(&legend, 0));
    Ok(())
}

fn cases(entries: &[Entry]) -> Vec<Case> {
    let made_up = STEPS.map(|step| {
        let base = Spec::new(format!("step {:.0} %", 100.0 * step), 1_000.0, &[], Noise::BANDIT_LOG);
        let overlap = Some(Overlap { means_us: vec![1_000.0 * (1.0 + step)], phase_calls: 50, is_told: false });
        Case { name: base.name.clone(), is_made_up: true, step, spec: Spec { overlap, ..base } }
    });
    let published = entries.iter().filter(|e| !e.is_made_up).filter_map(|e| {
        let overlap = e.spec.overlap.as_ref()?;
        let auto = e.spec.arms.iter().position(|a| a.is_auto())?;
        let step = overlap.means_us.get(auto)? / e.spec.means_us[auto] - 1.0;
        Some(Case { name: e.spec.name.clone(), is_made_up: false, step, spec: e.spec.clone() })
    });
    made_up.into_iter().chain(published).collect()
}
