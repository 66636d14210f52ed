//! Errors by family and over families.

use super::cases::{Case, Cases};
use fabric::Fabric;
use serde::Serialize;
use std::collections::BTreeMap;
use topology::nccl::Algorithm;

/// Number of listed worst rows.
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
    /// Algorithm of the prediction; `None` for sends from rank to rank.
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
    /// Number of scored rows.
    pub rows: usize,
    /// Median of the absolute errors; null without rows.
    pub median_abs_error_pct: Option<f64>,
    /// 90th percentile of the absolute errors.
    pub p90_abs_error_pct: Option<f64>,
    /// Median of the signed errors.
    pub median_signed_error_pct: Option<f64>,
}

/// Errors of the rows of one family, or medians over the families (then `rows` is the sum).
#[derive(Clone, Debug, Serialize)]
pub struct Errors {
    /// All rows.
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
}

/// The result of one family.
#[derive(Clone, Debug, Serialize)]
pub struct Family {
    /// Repository, paper or thread.
    pub source: String,
    /// System.
    pub system: String,
    /// Collective.
    pub collective: String,
    /// The errors of its rows.
    #[serde(flatten)]
    pub errors: Errors,
    /// Description of the error if the median is above 15 %.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The figures over all families.
#[derive(Clone, Debug, Serialize)]
pub struct Overall {
    /// Families with scored rows.
    pub families: usize,
    /// Medians over the families.
    #[serde(flatten)]
    pub errors: Errors,
    /// The rows with the largest absolute error.
    pub worst: Vec<RowError>,
}

/// The report of `linkwise-lab validate`.
#[derive(Clone, Debug, Serialize)]
pub struct ValidationReport {
    /// By family.
    pub families: Vec<Family>,
    /// The figures over all families.
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

/// Medians over the families, and the sums of counts.
fn over_families(families: &[Family]) -> Errors {
    let median_of = |of: fn(&Errors) -> &Stats| {
        let with: Vec<&Stats> = families.iter().map(|f| of(&f.errors)).filter(|s| s.rows > 0).collect();
        let median = |figure: fn(&Stats) -> Option<f64>| {
            quantile(&mut with.iter().filter_map(|s| figure(s)).collect::<Vec<_>>(), 0.5)
        };
        Stats {
            rows: with.iter().map(|s| s.rows).sum(),
            median_abs_error_pct: median(|s| s.median_abs_error_pct),
            p90_abs_error_pct: median(|s| s.p90_abs_error_pct),
            median_signed_error_pct: median(|s| s.median_signed_error_pct),
        }
    };
    let mut left_out_reasons: BTreeMap<String, usize> = BTreeMap::new();
    for (reason, n) in families.iter().flat_map(|f| &f.errors.left_out_reasons) {
        *left_out_reasons.entry(reason.clone()).or_default() += n;
    }
    Errors {
        all: median_of(|e| &e.all),
        left_out: families.iter().map(|f| f.errors.left_out).sum(),
        left_out_reasons,
        plateau: median_of(|e| &e.plateau),
        sweep: median_of(|e| &e.sweep),
    }
}

/// Predicted bus bandwidth and algorithm of one case.
pub fn predict(case: &Case, fabrics: &[Fabric]) -> (f64, Option<Algorithm>) {
    let e = fabrics[case.cluster].estimate_run(&case.allocation, case.collective, case.size, case.run);
    (e.busbw.gb_per_s(), e.algorithm)
}

/// The error of a case, its family, and whether the case belongs to the plateau.
struct Scored {
    family: usize,
    plateau: bool,
    error: RowError,
}

fn scored(case: &Case, fabrics: &[Fabric]) -> Scored {
    let (predicted, algorithm) = predict(case, fabrics);
    let error = RowError {
        row: case.place.clone(),
        allocation: case.words.clone(),
        size_bytes: case.size.0,
        algorithm,
        predicted_busbw_gb_per_s: predicted,
        measured_busbw_gb_per_s: case.measured_gb_per_s,
        signed_error_pct: (predicted / case.measured_gb_per_s - 1.0) * 100.0,
    };
    Scored { family: case.family, plateau: case.plateau, error }
}

/// The errors of the rows of family `i` in `all_rows`.
fn family(i: usize, cases: &Cases, all_rows: &[Scored]) -> Family {
    let rows: Vec<&Scored> = all_rows.iter().filter(|r| r.family == i).collect();
    let stats_of = |wanted: &dyn Fn(&Scored) -> bool| {
        let errors = rows.iter().filter(|r| wanted(r)).map(|r| r.error.signed_error_pct);
        stats(&errors.collect::<Vec<_>>())
    };
    let left_out_reasons = cases.left_out.get(&i).cloned().unwrap_or_default();
    let errors = Errors {
        all: stats_of(&|_| true),
        left_out: left_out_reasons.values().sum(),
        left_out_reasons,
        plateau: stats_of(&|r| r.plateau),
        sweep: stats_of(&|r| !r.plateau),
    };
    let name = &cases.families[i];
    Family {
        source: name.source.clone(),
        system: name.system.clone(),
        collective: name.collective.clone(),
        why: errors.all.median_abs_error_pct.filter(|m| *m > 15.0).map(|_| why(&rows)),
        errors,
    }
}

/// Scores all cases.
pub fn score(cases: &Cases, fabrics: &[Fabric]) -> ValidationReport {
    let mut rows: Vec<Scored> = cases.cases.iter().map(|c| scored(c, fabrics)).collect();
    let families: Vec<Family> = (0..cases.families.len()).map(|i| family(i, cases, &rows)).collect();
    rows.sort_by(|a, b| {
        let (a, b) = (&a.error, &b.error);
        b.signed_error_pct.abs().total_cmp(&a.signed_error_pct.abs()).then_with(|| a.row.cmp(&b.row))
    });
    let overall = Overall {
        families: families.iter().filter(|f| f.errors.all.rows > 0).count(),
        errors: over_families(&families),
        worst: rows.into_iter().take(WORST).map(|r| r.error).collect(),
    };
    ValidationReport { families, overall }
}

/// The form of a family's error, from its rows: small messages, the ramp, or the plateau.
fn why(rows: &[&Scored]) -> String {
    let part = |low: u64, high: u64| {
        let of_size = rows.iter().map(|r| &r.error).filter(|e| (low..high).contains(&e.size_bytes));
        let mut e: Vec<f64> = of_size.map(|e| e.signed_error_pct).collect();
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
