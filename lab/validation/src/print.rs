//! The output of `linkwise-lab validate`.

use super::fit::Cross;
use super::score::{Family, RowError, Stats, ValidationReport};
use console::Failure;
use lab_kit::output::table;
use std::fmt::Write;

fn pct(v: Option<f64>) -> String {
    v.map_or("-".into(), |v| format!("{v:.1}"))
}

fn signed(v: Option<f64>) -> String {
    v.map_or("-".into(), |v| format!("{v:+.1}"))
}

fn families(out: &mut String, report: &ValidationReport) {
    let head =
        ["source", "system", "collective", "rows", "left out", "median %", "p90 %", "signed %", "plateau %", "sweep %"];
    let row = |f: &Family| {
        vec![
            f.source.trim_start_matches("github ").to_string(),
            f.system.clone(),
            f.collective.clone(),
            f.errors.all.rows.to_string(),
            f.errors.left_out.to_string(),
            pct(f.errors.all.median_abs_error_pct),
            pct(f.errors.all.p90_abs_error_pct),
            signed(f.errors.all.median_signed_error_pct),
            pct(f.errors.plateau.median_abs_error_pct),
            pct(f.errors.sweep.median_abs_error_pct),
        ]
    };
    *out += &table(&head, 3, report.families.iter().map(row));
}

fn overall(out: &mut String, title: &str, report: &ValidationReport) {
    let o = &report.overall;
    let _ =
        writeln!(out, "\n{title}: {} families, {} rows, {} left out", o.families, o.errors.all.rows, o.errors.left_out);
    let head = ["median over families", "rows", "median %", "p90 %", "signed %"];
    let row = |(name, s): (&str, &Stats)| {
        vec![
            name.to_string(),
            s.rows.to_string(),
            pct(s.median_abs_error_pct),
            pct(s.p90_abs_error_pct),
            signed(s.median_signed_error_pct),
        ]
    };
    let rows = [
        ("all rows", &o.errors.all),
        ("plateau (64 MiB and above, peaks)", &o.errors.plateau),
        ("size sweep (below)", &o.errors.sweep),
    ];
    *out += &table(&head, 1, rows.map(row));
}

/// The report as text.
pub fn text(report: &ValidationReport, cross: Option<&Cross>) -> String {
    let mut out = String::new();
    families(&mut out, report);
    overall(&mut out, "Overall", report);
    if !report.overall.errors.left_out_reasons.is_empty() {
        let _ = writeln!(out, "\nLeft out");
        for (reason, n) in &report.overall.errors.left_out_reasons {
            out += &console::wrap(&format!("{n:7}  {reason}"), 9);
        }
    }
    let far: Vec<_> = report.families.iter().filter(|f| f.why.is_some()).collect();
    if !far.is_empty() {
        let _ = writeln!(out, "\nFamilies over 15 %");
        for f in far {
            let why = f.why.as_deref().unwrap_or("");
            let median = pct(f.errors.all.median_abs_error_pct);
            let line = format!("  {} | {} | {}: {median} %: {why}", f.source, f.system, f.collective);
            out += &console::wrap(&line, 4);
        }
    }
    if !report.overall.worst.is_empty() {
        let _ = writeln!(out, "\nWorst rows");
        let head = ["row", "allocation", "algorithm", "bytes", "predicted", "measured", "error %"];
        let row = |w: &RowError| {
            vec![
                w.row.clone(),
                w.allocation.clone(),
                w.algorithm.map_or("sends", |a| a.word()).to_string(),
                w.size_bytes.to_string(),
                format!("{:.3}", w.predicted_busbw_gb_per_s),
                format!("{:.3}", w.measured_busbw_gb_per_s),
                format!("{:+.0}", w.signed_error_pct),
            ]
        };
        out += &table(&head, 3, report.overall.worst.iter().map(row));
    }
    if let Some(c) = cross {
        overall(&mut out, "Cross-fit: first half of the families, constants fitted on the second", &c.first_by_second);
        overall(&mut out, "Cross-fit: second half of the families, constants fitted on the first", &c.second_by_first);
    }
    out
}

/// The report as JSON.
pub fn json(report: &ValidationReport, cross: Option<&Cross>) -> Result<String, Failure> {
    let mut value = serde_json::to_value(report).map_err(Failure::input)?;
    if let (Some(c), Some(map)) = (cross, value.as_object_mut()) {
        map.insert("cross_fit".into(), serde_json::to_value(c).map_err(Failure::input)?);
    }
    serde_json::to_string_pretty(&value).map_err(Failure::input)
}
