//! Errors by family and over families.

use super::cases::{Case, Cases};
use fabric::Fabric;
use serde::Serialize;
use std::collections::BTreeMap;
use topology::nccl::Algorithm;

/// Rows listed as the worst.
const WORST: usize = 10;

/// One row's error.
#[derive(Clone, Debug, Serialize)]
pub struct RowError {
    /// `file:line`.
    pub row: String,
    /// The allocation as the row has it.
    pub allocation: String,
    /// Size, bytes.
    pub size_bytes: u64,
    /// Algorithm that the rule took; `None` for sends from rank to rank.
    pub algorithm: Option<Algorithm>,
    /// Predicted bus bandwidth.
    pub predicted_busbw_gb_per_s: f64,
    /// Measured bus bandwidth.
    pub measured_busbw_gb_per_s: f64,
    /// Predicted over measured, minus one.
    pub signed_error_pct: f64,
}

/// Errors of some rows.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stats {
    /// Rows that count.
    pub rows: usize,
    /// Median of the absolute errors; null without rows.
    pub median_abs_error_pct: Option<f64>,
    /// 90th percentile of the absolute errors.
    pub p90_abs_error_pct: Option<f64>,
    /// Median of the signed errors.
    pub median_signed_error_pct: Option<f64>,
}

/// One family.
#[derive(Clone, Debug, Serialize)]
pub struct Family {
    /// Repository, paper or thread.
    pub source: String,
    /// System.
    pub system: String,
    /// Collective.
    pub collective: String,
    /// All its rows.
    #[serde(flatten)]
    pub all: Stats,
    /// Rows left out.
    pub left_out: usize,
    /// Rows left out, by reason.
    pub left_out_reasons: BTreeMap<String, usize>,
    /// Rows of 64 MiB and above, and peaks.
    pub plateau: Stats,
    /// Smaller rows.
    pub sweep: Stats,
    /// Description of the error where the median is above 15 %.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Over families: medians of the families' figures.
#[derive(Clone, Debug, Serialize)]
pub struct Overall {
    /// Families with rows that count.
    pub families: usize,
    /// Median over families of every figure; `rows` is the sum.
    #[serde(flatten)]
    pub all: Stats,
    /// Rows left out.
    pub left_out: usize,
    /// Rows left out, by reason.
    pub left_out_reasons: BTreeMap<String, usize>,
    /// The same for plateau rows.
    pub plateau: Stats,
    /// The same for the rows below.
    pub sweep: Stats,
    /// The rows with the largest absolute error.
    pub worst: Vec<RowError>,
}

/// The report of `linkwise-lab validate`.
#[derive(Clone, Debug, Serialize)]
pub struct ValidationReport {
    /// By family.
    pub families: Vec<Family>,
    /// Over families.
    pub overall: Overall,
}

/// A quantile by linear interpolation; `None` without values.
pub fn quantile(values: &mut [f64], q: f64) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    Some(::stats::quantile(values, q))
}

fn stats(signed: &[f64]) -> Stats {
    let mut abs: Vec<f64> = signed.iter().map(|e| e.abs()).collect();
    Stats {
        rows: signed.len(),
        median_abs_error_pct: quantile(&mut abs, 0.5),
        p90_abs_error_pct: quantile(&mut abs, 0.9),
        median_signed_error_pct: quantile(&mut signed.to_vec(), 0.5),
    }
}

fn over_families<'a>(of: impl Iterator<Item = &'a Stats>) -> Stats {
    let with: Vec<&Stats> = of.filter(|s| s.rows > 0).collect();
    let median =
        |f: &dyn Fn(&Stats) -> Option<f64>| quantile(&mut with.iter().filter_map(|s| f(s)).collect::<Vec<_>>(), 0.5);
    Stats {
        rows: with.iter().map(|s| s.rows).sum(),
        median_abs_error_pct: median(&|s| s.median_abs_error_pct),
        p90_abs_error_pct: median(&|s| s.p90_abs_error_pct),
        median_signed_error_pct: median(&|s| s.median_signed_error_pct),
    }
}

/// Predicted bus bandwidth and algorithm of one case.
pub fn predict(case: &Case, fabrics: &[Fabric]) -> (f64, Option<Algorithm>) {
    let e = fabrics[case.cluster].estimate_run(&case.allocation, case.collective, case.size, case.run);
    (e.busbw.gb_per_s(), e.algorithm)
}

/// Scores all cases.
pub fn score(cases: &Cases, fabrics: &[Fabric]) -> ValidationReport {
    let mut rows: Vec<(usize, bool, RowError)> = cases
        .cases
        .iter()
        .map(|c| {
            let (p, algorithm) = predict(c, fabrics);
            let error = RowError {
                row: c.place.clone(),
                allocation: c.words.clone(),
                size_bytes: c.size.0,
                algorithm,
                predicted_busbw_gb_per_s: p,
                measured_busbw_gb_per_s: c.measured_gb_per_s,
                signed_error_pct: (p / c.measured_gb_per_s - 1.0) * 100.0,
            };
            (c.family, c.plateau, error)
        })
        .collect();
    let mut all_reasons: BTreeMap<String, usize> = BTreeMap::new();
    let families: Vec<Family> = cases
        .families
        .iter()
        .enumerate()
        .map(|(i, name)| {
            let errors = |wanted: Option<bool>| -> Vec<f64> {
                let mine = rows.iter().filter(|r| r.0 == i && wanted.is_none_or(|w| w == r.1));
                mine.map(|r| r.2.signed_error_pct).collect()
            };
            let reasons = cases.left_out.get(&i).cloned().unwrap_or_default();
            for (r, n) in &reasons {
                *all_reasons.entry(r.clone()).or_default() += n;
            }
            let all = stats(&errors(None));
            let mine: Vec<&RowError> = rows.iter().filter(|r| r.0 == i).map(|r| &r.2).collect();
            let why = all.median_abs_error_pct.filter(|m| *m > 15.0).map(|_| why(&mine));
            Family {
                source: name.source.clone(),
                system: name.system.clone(),
                collective: name.collective.clone(),
                all,
                left_out: reasons.values().sum(),
                left_out_reasons: reasons,
                plateau: stats(&errors(Some(true))),
                sweep: stats(&errors(Some(false))),
                why,
            }
        })
        .collect();
    rows.sort_by(|a, b| {
        b.2.signed_error_pct.abs().total_cmp(&a.2.signed_error_pct.abs()).then_with(|| a.2.row.cmp(&b.2.row))
    });
    let overall = Overall {
        families: families.iter().filter(|f| f.all.rows > 0).count(),
        all: over_families(families.iter().map(|f| &f.all)),
        left_out: families.iter().map(|f| f.left_out).sum(),
        left_out_reasons: all_reasons,
        plateau: over_families(families.iter().map(|f| &f.plateau)),
        sweep: over_families(families.iter().map(|f| &f.sweep)),
        worst: rows.into_iter().take(WORST).map(|r| r.2).collect(),
    };
    ValidationReport { families, overall }
}

/// What the error of a family looks like, from its rows: small messages, the ramp, or the plateau.
fn why(rows: &[&RowError]) -> String {
    let part = |low: u64, high: u64| {
        let mut e: Vec<f64> =
            rows.iter().filter(|r| (low..high).contains(&r.size_bytes)).map(|r| r.signed_error_pct).collect();
        quantile(&mut e, 0.5)
    };
    let mut words = Vec::new();
    for (name, low, high) in [
        ("up to 256 KiB", 0, (256 << 10) + 1),
        ("up to 64 MiB", (256 << 10) + 1, 64 << 20),
        ("from 64 MiB or peak", 64 << 20, u64::MAX),
    ] {
        if let Some(e) = part(low, high) {
            let cause = match (low, e > 0.0) {
                (0, true) => "this system starts a collective more slowly than its class",
                (0, false) => "this system starts a collective faster than its class",
                (1..=300_000, true) => "a slower ramp than its class",
                (1..=300_000, false) => "a faster ramp than its class",
                (_, true) => "the links carry less than their class does elsewhere",
                (_, false) => "the links carry more than their class does elsewhere",
            };
            if e.abs() > 15.0 {
                words.push(format!("{name} {e:+.0} % ({cause})"));
            }
        }
    }
    if words.is_empty() { "errors of both signs around zero".into() } else { words.join("; ") }
}
