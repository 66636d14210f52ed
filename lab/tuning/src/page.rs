//! The page of a trial: tables and learning curves.

use super::evaluate::PolicyScore;
use super::print;
use crate::trials::Settings;
use crate::trials::catalog::Entry;
use ::report::{Axis, Place, Plot, Report, Section, Series, Table};
use console::Failure;
use files::write_atomic;
use std::path::Path;

/// Curves are smoothed by the mean over this share of the call's number.
const SMOOTH_SHARE: f64 = 0.05;

fn is_drawing(file: &Path) -> bool {
    file.extension().is_some_and(|e| e == "svg")
}

/// Refuses files that cannot be written, before anything is run.
pub fn check(file: &Path, environments: usize) -> Result<(), Failure> {
    let folder = file.parent().filter(|f| !f.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|f| !f.is_dir()) {
        return Err(Failure::file("write", file, format!("{} is no folder", folder.display())));
    }
    if is_drawing(file) && environments != 1 {
        return Err(Failure::input(format!("--report to .svg draws one environment, not {environments}; use .html")));
    }
    Ok(())
}

/// Writes the page as HTML, or for a name that ends in `.svg` the learning curves of the one environment.
pub fn write(file: &Path, entries: &[Entry], results: &[Vec<PolicyScore>], settings: &Settings) -> Result<(), Failure> {
    check(file, entries.len())?;
    if is_drawing(file) {
        let plot = over_best(&entries[0], &results[0]);
        return Ok(write_atomic(file, plot.svg(Place::File).map_err(Failure::impossible)?)?);
    }
    let report = Report {
        title: "linkwise-lab tune evaluate".into(),
        subtitle: format!(
            "Simulated: policies in environments whose true times are known; {} runs each",
            settings.runs
        ),
        generated_from: format!(
            "linkwise {}; {}",
            env!("CARGO_PKG_VERSION"),
            std::env::args().skip(1).collect::<Vec<_>>().join(" ")
        ),
        sections: entries.iter().zip(results).map(|(e, lines)| section(e, lines)).collect(),
    };
    Ok(write_atomic(file, report.html().map_err(Failure::impossible)?)?)
}

fn section(entry: &Entry, lines: &[PolicyScore]) -> Section {
    let (head, rows) = print::decision_rows(lines);
    Section {
        heading: format!("{} ({})", entry.spec.name, print::source(entry)),
        paragraphs: vec![entry.about.clone()],
        table: Some(Table { caption: String::new(), head, rows }),
        plots: vec![right(entry, lines), over_best(entry, lines)],
        ..Section::default()
    }
}

/// Means over windows that grow with the call's number, so that a logarithmic axis shows the beginning call by call.
fn smooth(values: impl Fn(usize) -> f64, calls: usize) -> Vec<(f64, f64)> {
    let mut out = Vec::new();
    let mut from = 0;
    while from < calls {
        let to = (from + 1 + (from as f64 * SMOOTH_SHARE) as usize).min(calls);
        let mean = (from..to).map(&values).sum::<f64>() / (to - from) as f64;
        out.push(((from + to + 1) as f64 / 2.0, mean));
        from = to;
    }
    out
}

fn curves(title: String, y: &str, lines: &[PolicyScore], value: impl Fn(&PolicyScore, usize) -> f64) -> Plot {
    let series = lines
        .iter()
        .map(|l| Series { name: l.policy.clone(), points: smooth(|i| value(l, i), l.score.curve.right.len()) });
    Plot::Lines { title, x: Axis::log("call"), y: Axis::linear(y), series: series.collect() }
}

fn right(entry: &Entry, lines: &[PolicyScore]) -> Plot {
    curves(format!("{} (simulated): right arm in use", entry.spec.name), "% of runs", lines, |l, i| {
        100.0 * l.score.curve.right[i] as f64 / l.score.curve.runs as f64
    })
}

fn over_best(entry: &Entry, lines: &[PolicyScore]) -> Plot {
    curves(
        format!("{} (simulated): expected time over the best arm's", entry.spec.name),
        "ratio, mean over runs",
        lines,
        |l, i| l.score.curve.over_best[i] / l.score.curve.runs as f64,
    )
}
