//! Published measurements as environments.

use crate::truth::data_folder;
use ::tune::trial::Noise;

/// Rows that are read of the reward log, at most.
const LOG_ROWS_MAX: usize = 100_000;

/// The exploitation samples of the published reward log: one arm, so their shape is noise. `None` where the file is not there.
pub fn bandit_log() -> Option<Noise> {
    let path = data_folder()?.join("bandit/rewards_2x4_64MB.csv");
    let mut reader = csv::Reader::from_path(path).ok()?;
    let rows = reader.records().take(LOG_ROWS_MAX).filter_map(Result::ok);
    let times: Vec<f64> = rows
        .filter(|r| r.get(1) == Some("exploit"))
        .filter_map(|r| r.get(3)?.parse::<f64>().ok())
        .filter(|t| t.is_finite() && *t > 0.0)
        .collect();
    (!times.is_empty()).then(|| Noise::Resampled(times.into()))
}
