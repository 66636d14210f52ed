//! `evaluate --curves`: accuracy by number of samples and by design.

use super::Protocol;
use crate::evaluation::accuracy::{Point, point};
use ::report::{Axis, Plot, Report, Section, Series};
use console::{Failure, Format, Progress};
use files::write_atomic;
use lab_kit::output::table;
use measure::design::DesignKind;
use rayon::prelude::*;
use std::path::Path;
use truths::Truth;

const SAMPLES: [usize; 6] = [25, 50, 100, 250, 500, 1000];
const DESIGNS: [DesignKind; 4] =
    [DesignKind::Random, DesignKind::Stratified, DesignKind::WorstCase, DesignKind::Adaptive];

pub fn run(
    truths: &[Box<dyn Truth>],
    p: &Protocol,
    models: &[String],
    format: Format,
    report: Option<&Path>,
) -> Result<(), Failure> {
    for m in models {
        if papers::models().by_name(m).is_none() {
            let known = papers::models().names();
            return Err(Failure::input(format!("--curves {m}: there is no such model (known: {known})")));
        }
    }
    let mut sections = Vec::new();
    let mut every = Vec::new();
    for t in truths {
        let tasks: Vec<(&str, DesignKind, usize, u64)> = models
            .iter()
            .flat_map(|m| DESIGNS.into_iter().map(move |d| (m.as_str(), d)))
            .flat_map(|(m, d)| SAMPLES.into_iter().map(move |n| (m, d, n)))
            .flat_map(|(m, d, n)| p.seeds.iter().map(move |s| (m, d, n, *s)))
            .collect();
        let bar = Progress::new(&format!("{} (points)", t.name()), tasks.len());
        let points = tasks
            .par_iter()
            .map(|(m, d, n, s)| {
                let r = point(t.as_ref(), m, *d, *n, &p.settings, *s);
                bar.advance(1);
                r
            })
            .collect::<Result<Vec<Point>, String>>()
            .map_err(Failure::impossible)?;
        drop(bar);
        if format == Format::Text {
            print(t.as_ref(), p, &points);
        }
        sections.push(section(t.as_ref(), &points));
        every.push(serde_json::json!({"truth": t.name(), "simulated": t.simulated(), "size_bytes": t.size().0, "points": points}));
    }
    if let Some(file) = report {
        let page = Report {
            title: format!("Accuracy by number of samples: {}", p.cluster),
            subtitle: "On random multi-host allocations, and on those that a decision compares".into(),
            generated_from: format!("linkwise {}", env!("CARGO_PKG_VERSION")),
            sections,
        };
        write_atomic(file, &page.html().map_err(Failure::impossible)?)?;
    }
    if format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&every).map_err(Failure::input)?);
    }
    Ok(())
}

/// Means over seeds, in the order of the tasks.
fn means(points: &[Point]) -> Vec<(Point, usize)> {
    let mut out: Vec<(Point, usize)> = Vec::new();
    for p in points {
        let found = out.iter_mut().find(|(q, _)| (&q.model, &q.design, q.samples) == (&p.model, &p.design, p.samples));
        match found {
            Some((q, n)) => {
                *n += 1;
                let w = 1.0 / *n as f64;
                let mix = |a: &mut f64, b: f64| *a += w * (b - *a);
                for (a, b) in [(&mut q.random, &p.random), (&mut q.decisions, &p.decisions)] {
                    mix(&mut a.r2, b.r2);
                    mix(&mut a.mape_pct, b.mape_pct);
                    mix(&mut a.mae_gb_per_s, b.mae_gb_per_s);
                }
                mix(&mut q.fit_s, p.fit_s);
                q.taken = q.taken.min(p.taken);
            }
            None => out.push((p.clone(), 1)),
        }
    }
    out
}

fn print(t: &dyn Truth, p: &Protocol, points: &[Point]) {
    let protocol = format!(
        "Protocol: cluster {}, {}, means; models learn from multi-host samples of a design and the intra tables; errors on rows that are \
         no samples: random multi-host allocations, and those that a decision compares.\n{}",
        p.cluster,
        p.seed_range(),
        super::truth_line(t),
    );
    protocol.lines().for_each(|l| print!("{}", console::wrap(l, 2)));
    let head = ["model", "design", "samples", "R2 random", "MAPE %", "R2 decisions", "MAPE %", "fit s"];
    let row = |(q, _): (Point, usize)| {
        vec![
            q.model.clone(),
            q.design.clone(),
            if q.taken == q.samples { q.samples.to_string() } else { format!("{} ({})", q.samples, q.taken) },
            format!("{:.3}", q.random.r2),
            format!("{:.1}", q.random.mape_pct),
            format!("{:.3}", q.decisions.r2),
            format!("{:.1}", q.decisions.mape_pct),
            format!("{:.2}", q.fit_s),
        ]
    };
    print!("{}", table(&head, 2, means(points).into_iter().map(row)));
    println!("(n): the truth has only n rows for the design");
}

fn section(t: &dyn Truth, points: &[Point]) -> Section {
    let all = means(points);
    let plot = |title: &str, f: fn(&Point) -> f64| {
        let mut series: Vec<Series> = Vec::new();
        for (q, _) in &all {
            let name = format!("{}, {}", q.model, q.design);
            let xy = (q.samples as f64, f(q));
            match series.iter_mut().find(|s| s.name == name) {
                Some(s) => s.points.push(xy),
                None => series.push(Series { name, points: vec![xy] }),
            }
        }
        Plot::Lines { title: title.into(), x: Axis::log("samples"), y: Axis::linear("mean error, percent"), series }
    };
    Section {
        heading: format!("{}, {}{}", t.name(), t.size(), if t.simulated() { " (simulated)" } else { "" }),
        paragraphs: vec![t.description().to_owned()],
        plots: vec![
            plot("Random allocations", |q| q.random.mape_pct),
            plot("Allocations that a decision compares", |q| q.decisions.mape_pct),
        ],
        ..Section::default()
    }
}
