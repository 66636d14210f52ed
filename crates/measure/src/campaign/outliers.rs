//! Outliers are repeated up to twice; the median of a point's readings counts.

use super::outcome::Stop;
use super::{Campaign, REPETITIONS_MAX, Stage};
use crate::backend::Point;
use crate::outlier;
use store::Quality;

impl Campaign<'_> {
    /// Readings of a point by repetition, with their run ids.
    fn readings(&self, p: &Point) -> Vec<(String, f64)> {
        (0..=REPETITIONS_MAX)
            .filter_map(|repetition| {
                let id = self.run_id(&Point { repetition, ..p.clone() });
                self.known.get(&id).map(|v| (id.clone(), *v))
            })
            .collect()
    }

    /// The value of a point: its only reading, or the median of several.
    pub(super) fn best_value(&self, p: &Point) -> Option<f64> {
        let readings: Vec<f64> = self.readings(p).into_iter().map(|r| r.1).collect();
        (!readings.is_empty()).then(|| outlier::resolve_readings(&readings).0)
    }

    /// Repeats outliers once, and a second time if the two readings disagree. Then grades the readings.
    pub(super) fn repeat_outliers(&mut self, stage: Stage, outliers: &[Point]) -> Result<(), Stop> {
        self.summary.stages[stage as usize].outliers += outliers.len();
        if outliers.is_empty() {
            return Ok(());
        }
        for repetition in 1..=REPETITIONS_MAX {
            let again: Vec<Point> = outliers
                .iter()
                .filter(|p| match self.readings(p)[..] {
                    [(_, a), (_, b)] if repetition == 2 => !outlier::agree(a, b),
                    _ => true,
                })
                .map(|p| Point { repetition, ..p.clone() })
                .collect();
            if !again.is_empty() {
                self.take(
                    stage,
                    &format!("{} again ({repetition} of {REPETITIONS_MAX})", topology::count(again.len(), "outlier")),
                    &again,
                )?;
            }
        }
        self.grade_readings(stage, outliers)
    }

    /// Marks each reading of repeated outliers as good or rejected, and the only reading of a point as suspect.
    fn grade_readings(&mut self, stage: Stage, outliers: &[Point]) -> Result<(), Stop> {
        let mut changes = Vec::new();
        for p in outliers {
            let readings = self.readings(p);
            let values: Vec<f64> = readings.iter().map(|r| r.1).collect();
            let (_, rejected) = outlier::resolve_readings(&values);
            let s = &mut self.summary.stages[stage as usize];
            if let [(only, _)] = &readings[..] {
                s.suspect += 1;
                changes.push((only.clone(), Quality::Suspect));
                continue;
            }
            for ((id, _), bad) in readings.into_iter().zip(rejected) {
                s.rejected += usize::from(bad);
                changes.push((id, if bad { Quality::Rejected } else { Quality::Good }));
            }
        }
        self.store.set_quality(changes.iter().map(|(id, q)| (id.as_str(), *q)))?;
        Ok(())
    }
}
