//! Classes of readings that share a level: a defect lowers the level of its class, so the class moves with it.

use super::{Given, Item, Search};
use crate::evidence::median;
use crate::infer::{EFFECT_SD, ln_density};

/// Minimum share of a class's readings that a component must touch for the class to move with the hypothesis. Below it,
/// the median of the class stays.
const CLASS_SHARE_MIN: f64 = 0.05;
/// Number of readings from which a class is large. A large class stays if its median moved by less than
/// [`SHIFT_MIN_SDS`] deviations.
const LARGE_CLASS: usize = 256;
/// See [`LARGE_CLASS`].
const SHIFT_MIN_SDS: f64 = 0.02;

impl Search {
    pub(super) fn classes(&self) -> Vec<Vec<u32>> {
        let mut out: Vec<Vec<u32>> = Vec::new();
        for (i, item) in self.items() {
            if let Some(c) = item.residual.and_then(|r| r.class) {
                out.resize(out.len().max(c + 1), Vec::new());
                out[c].push(i);
            }
        }
        out
    }

    /// Moves every class to the median of its readings' remaining residuals: a defect also lowers the level of its
    /// class. Without this step, a host that most allocations touch would appear normal.
    pub(super) fn settle(&self, given: &mut Given) {
        for c in 0..given.classes.len() {
            let members = std::mem::take(&mut given.classes[c]);
            let shift = median(&mut members.iter().map(|i| given.left[*i as usize]).collect::<Vec<_>>());
            let sd = members.first().map_or(0.0, |i| self.items[*i as usize].as_ref().map_or(0.0, Item::sd));
            let slight = members.len() >= LARGE_CLASS && shift.abs() < SHIFT_MIN_SDS * sd;
            if shift != 0.0 && !slight {
                members.iter().for_each(|i| self.change(*i, 0.0, shift, given));
            }
            given.classes[c] = members;
        }
    }

    /// Increases the explained part of a reading, and moves its class.
    pub(super) fn change(&self, i: u32, explained: f64, shift: f64, given: &mut Given) {
        let at = i as usize;
        let Some(item) = &self.items[at] else { return };
        given.explained[at] += explained;
        given.shift[at] += shift;
        given.left[at] = item.left() - given.explained[at] - given.shift[at];
        given.sd[at] = item.sd().hypot(EFFECT_SD * given.explained[at]);
        given.ln_density[at] = ln_density(given.left[at], given.sd[at], given.outliers[at]);
        given.rows.remove(&i);
        item.evidence.allocation.parts().iter().for_each(|p| given.changed[p.0.index()] = true);
    }

    /// The gain of effects (by item), including the shifts of all classes that they move.
    pub(super) fn gain_with_classes(&self, touched: &[(u32, f64)], given: &mut Given) -> f64 {
        let class = |i: u32| self.items[i as usize].as_ref().and_then(|x| x.residual?.class);
        let mut moved = vec![0usize; given.classes.len()];
        touched.iter().filter(|t| t.1 != 0.0).filter_map(|t| class(t.0)).for_each(|c| moved[c] += 1);
        let shifts = |c: usize| moved[c] as f64 >= CLASS_SHARE_MIN * given.classes[c].len() as f64;
        let stays = |i: u32| class(i).is_none_or(|c| !shifts(c));
        let mut gain: f64 =
            touched.iter().filter(|t| t.1 != 0.0 && stays(t.0)).map(|&(i, e)| given.gain(i, e, 0.0)).sum();
        let shifting: Vec<usize> = (0..moved.len()).filter(|c| moved[*c] > 0 && shifts(*c)).collect();
        if shifting.is_empty() {
            return gain;
        }
        touched.iter().for_each(|t| given.effects[t.0 as usize] = t.1);
        for c in shifting {
            let members = &given.classes[c];
            let left = |i: &u32| given.left[*i as usize] - given.effects[*i as usize];
            let shift = median(&mut members.iter().map(left).collect::<Vec<_>>());
            gain += members.iter().map(|i| given.gain(*i, given.effects[*i as usize], shift)).sum::<f64>();
        }
        touched.iter().for_each(|t| given.effects[t.0 as usize] = 0.0);
        gain
    }
}
