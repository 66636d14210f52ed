//! The report as an HTML page.

use super::JobReport;
use super::text::{notes, summary, tables};
use ::report;
use console::Failure;

pub fn html(report: &JobReport) -> Result<String, Failure> {
    let mut sections: Vec<report::Section> = tables(report)
        .into_iter()
        .map(|cells| report::Section {
            heading: cells.caption.split(['.', ',']).next().unwrap_or_default().to_string(),
            table: Some(report::Table {
                caption: cells.caption.clone(),
                head: cells.head.iter().map(|h| h.0.to_string()).collect(),
                rows: cells.rows,
            }),
            ..report::Section::default()
        })
        .collect();
    let paragraphs: Vec<String> = report.never.iter().cloned().chain(notes(report)).collect();
    if !paragraphs.is_empty() {
        sections.push(report::Section { heading: "Notes".into(), paragraphs, ..report::Section::default() });
    }
    let page = report::Report {
        title: "NCCL tuning".into(),
        subtitle: summary(report),
        generated_from: format!("linkwise {}", env!("CARGO_PKG_VERSION")),
        sections,
    };
    page.html().map_err(Failure::impossible)
}
