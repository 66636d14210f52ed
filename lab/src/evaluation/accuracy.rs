//! Accuracy of models on allocations that they have not learned: random ones, and those that a decision compares.

use super::guides::{fit_kind, sample};
use super::replay::Settings;
use super::sampling::{by_counts, readings};
use measure::design::DesignKind;
use predict::accuracy::{accuracy, compared, random_subsets};
use predict::{BandwidthModel, Model};
use std::collections::HashSet;
use std::time::Instant;
use store::Measurement;
use topology::Allocation;
use truths::Truth;

/// Maximum number of allocations of a test set (the papers: five times 250).
pub const TEST_MAX: usize = 1250;

/// Errors on one test set.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Errors {
    /// Coefficient of determination.
    pub r2: f64,
    /// Mean absolute error, percent of the truth.
    pub mape_pct: f64,
    /// Mean absolute error, GB/s.
    pub mae_gb_per_s: f64,
    /// Allocations.
    pub rows: usize,
}

/// One point of a data-efficiency curve.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Point {
    /// Kind of the model.
    pub model: String,
    /// Design of its samples.
    pub design: String,
    /// Multi-host readings requested.
    pub samples: usize,
    /// Multi-host readings taken.
    pub taken: usize,
    pub seed: u64,
    /// Seconds to fit.
    pub fit_s: f64,
    /// On random multi-host subsets that the model has not learned.
    pub random: Errors,
    /// On multi-host allocations that decisions compare and that the model has not learned.
    pub decisions: Errors,
}

/// The key of a row of the truth. Readings of one row must not be in both training and test set.
fn row_key(truth: &dyn Truth, a: &Allocation) -> String {
    if by_counts(truth) {
        let mut c = a.counts();
        c.sort_unstable();
        format!("{c:?}")
    } else {
        format!("{a:?}")
    }
}

/// Errors on allocations outside the training sample; each row of the truth counts once.
fn errors(truth: &dyn Truth, model: &Model, seen: &[Allocation], test: Vec<Allocation>) -> Errors {
    let mut keys: HashSet<String> = seen.iter().map(|a| row_key(truth, a)).collect();
    let rows: Vec<(Allocation, f64)> = test
        .into_iter()
        .filter(|a| a.host_count() > 1 && keys.insert(row_key(truth, a)))
        .filter_map(|a| truth.busbw_gb_per_s(&a).map(|v| (a, v)))
        .collect();
    accuracy(model, truth.size(), &rows).map_or(Errors::default(), |a| Errors {
        r2: a.r2,
        mape_pct: a.mape_percent,
        mae_gb_per_s: a.mae_gb_per_s,
        rows: a.n,
    })
}

/// One point of a curve.
pub fn point(
    truth: &dyn Truth,
    model: &str,
    design: DesignKind,
    samples: usize,
    settings: &Settings,
    seed: u64,
) -> Result<Point, String> {
    let (cluster, constants) = (truth.cluster(), settings.constants());
    let intra = readings(truth, seed, |r| r.intra());
    let multi = sample(truth, samples, design, &constants, seed, &intra);
    let rows: Vec<Measurement> = intra.iter().chain(&multi).cloned().collect();
    let start = Instant::now();
    let fitted = fit_kind(model, truth, &rows, &constants, seed)?;
    let fit_s = start.elapsed().as_secs_f64();
    let seen: Vec<Allocation> = multi.into_iter().map(|m| m.allocation).collect();
    Ok(Point {
        model: model.to_owned(),
        design: design.name().to_owned(),
        samples,
        taken: seen.len(),
        seed,
        fit_s,
        random: errors(truth, &fitted, &seen, random_subsets(cluster, TEST_MAX, seed ^ 0x7e57)),
        decisions: errors(
            truth,
            &fitted,
            &seen,
            compared(cluster, fitted.share_table(truth.size()), TEST_MAX, seed ^ 0x7e57),
        ),
    })
}
