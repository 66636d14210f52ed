//! The page of an evaluation.

use super::{Protocol, TruthResult, print};
use ::report::{Axis, Plot, Report, Section, Series, Table};
use console::Failure;
use files::write_atomic;
use std::path::Path;

pub fn write(file: &Path, protocol: &Protocol, results: &[TruthResult]) -> Result<(), Failure> {
    let report = Report {
        title: format!("linkwise-lab evaluate: {}", protocol.cluster),
        subtitle: "How much of the best possible bandwidth each method's choice gets".into(),
        generated_from: format!(
            "linkwise {}; {}",
            env!("CARGO_PKG_VERSION"),
            std::env::args().skip(1).collect::<Vec<_>>().join(" ")
        ),
        sections: results.iter().map(|g| section(protocol, g)).collect(),
    };
    Ok(write_atomic(file, report.html().map_err(Failure::impossible)?)?)
}

fn section(protocol: &Protocol, g: &TruthResult) -> Section {
    let lines = print::lines(g);
    let series = |f: fn(&(usize, f64, f64)) -> f64| -> Vec<Series> {
        lines
            .iter()
            .map(|l| Series {
                name: l.name.clone(),
                points: l.by_k.iter().map(|b| (b.0 as f64, f(b))).filter(|p| p.1.is_finite()).collect(),
            })
            .filter(|s| !s.points.is_empty())
            .collect()
    };
    let plot = |title: &str, y: &str, series: Vec<Series>| Plot::Lines {
        title: title.into(),
        x: Axis::linear("GPUs of the request"),
        y: Axis::linear(y),
        series,
    };
    let rows = lines.iter().map(|l| {
        vec![
            l.name.clone(),
            format!("{:.2}", l.gbe.mean),
            format!("{:.1}", l.gbe.p5),
            format!("{:.1}", l.gbe.worst),
            if l.loss_gb_per_s.is_finite() { format!("{:.2}", l.loss_gb_per_s) } else { String::new() },
            l.decide_us.map_or(String::new(), |d| format!("{:.0}", d.0)),
        ]
    });
    let head = ["method", "mean GBE %", "5th percentile", "worst", "mean loss GB/s", "median us"];
    Section {
        heading: format!("{}, {}{}", g.name, g.size, if g.simulated { " (simulated)" } else { "" }),
        paragraphs: print::protocol(protocol, g).lines().map(str::to_owned).collect(),
        table: Some(Table { caption: String::new(), head: head.map(str::to_owned).to_vec(), rows: rows.collect() }),
        plots: vec![
            plot("Mean GBE by size of the request", "GBE %", series(|b| b.1)),
            plot("Mean bandwidth lost by size of the request", "GB/s", series(|b| b.2)),
        ],
        ..Section::default()
    }
}
