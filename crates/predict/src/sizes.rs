//! Tables at sizes that were not measured.
//!
//! Between and beyond the measured sizes, a table is the physics at that size times the ratio of measured to physical
//! values in the nearest measured tables. The tables are computed on first use, at sizes (rungs) a factor of √2 apart.

use crate::intra::IntraTables;
use crate::model::{Model, SizeTables};
use crate::shares::HostShareTable;
use std::sync::OnceLock;
use topology::Bytes;

/// `ln` of the first rung, 1 KiB. The rungs end at 1 TiB.
const FIRST_LN: f64 = 10.0 * std::f64::consts::LN_2;
const RUNGS: usize = 61;
const STEP_LN: f64 = 0.5 * std::f64::consts::LN_2;
/// Relative standard deviation of a prediction per factor of `e` between its size and the nearest measured size.
const SD_PER_LN: f64 = 0.06;

/// The rungs of a model.
#[derive(Clone, Debug)]
pub(crate) struct Ladder {
    rungs: Vec<OnceLock<SizeTables>>,
}

impl Default for Ladder {
    fn default() -> Ladder {
        Ladder { rungs: vec![OnceLock::new(); RUNGS] }
    }
}

fn ln(size: Bytes) -> f64 {
    size.as_f64().max(1.0).ln()
}

/// Of the measured tables, those nearest to a size, and the distance between the logarithms of the two sizes.
pub(crate) fn nearest_measured(tables: &[SizeTables], size: Bytes) -> (&SizeTables, f64) {
    let off = |t: &SizeTables| (ln(t.size) - ln(size)).abs();
    let nearest = tables.iter().min_by(|a, b| off(a).total_cmp(&off(b)));
    let nearest = nearest.expect("a model has at least one size");
    (nearest, off(nearest))
}

impl Model {
    /// The measured tables nearest to a size.
    pub(crate) fn measured_tables(&self, size: Bytes) -> &SizeTables {
        nearest_measured(&self.tables, size).0
    }

    /// The tables for a size: measured if available, otherwise those of the nearest rung. O(1), except for the first
    /// request of a rung.
    pub fn tables(&self, size: Bytes) -> &SizeTables {
        let (nearest, off) = nearest_measured(&self.tables, size);
        if off <= 0.5 * STEP_LN {
            return nearest;
        }
        let rung = ((ln(size) - FIRST_LN) / STEP_LN).round().clamp(0.0, RUNGS as f64 - 1.0);
        self.ladder.rungs[rung as usize].get_or_init(|| self.rung(FIRST_LN + rung * STEP_LN))
    }

    /// Additional relative standard deviation of a prediction at a size that was not measured.
    pub(crate) fn size_sd(&self, size: Bytes) -> f64 {
        SD_PER_LN * nearest_measured(&self.tables, size).1
    }

    fn rung(&self, at_ln: f64) -> SizeTables {
        let size = Bytes(at_ln.exp().round() as u64);
        let below = self.tables.iter().rev().find(|t| ln(t.size) <= at_ln);
        let above = self.tables.iter().find(|t| ln(t.size) > at_ln);
        let near: Vec<(&SizeTables, f64)> = match (below, above) {
            (Some(a), Some(b)) => {
                let weight = (at_ln - ln(a.size)) / (ln(b.size) - ln(a.size));
                vec![(a, 1.0 - weight), (b, weight)]
            }
            (one, other) => one.or(other).map(|t| (t, 1.0)).into_iter().collect(),
        };
        let physics = self.fabric.on(&self.cluster);
        let intra = IntraTables::at_size(
            &self.cluster,
            &near.iter().map(|(t, w)| (&t.intra, *w, t.size)).collect::<Vec<_>>(),
            size,
            &|h, m, s| physics.intra_busbw(h, m, self.collective, s).gb_per_s(),
        );
        let parts = HostShareTable::new(&self.site.cluster, &intra, &self.fabric);
        let own_sd: f64 = near.iter().map(|(t, w)| w * t.intra_sd).sum();
        SizeTables { size, intra, parts, intra_sd: own_sd.hypot(self.size_sd(size)) }
    }
}
