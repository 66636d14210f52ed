//! The inverse of the small matrix of tight links and basic columns, and its updates. Each update takes O(tight links²).

use super::{NONE, Pivots};

/// Smaller pivot elements are rounding errors.
const PIVOT_MIN: f64 = 1e-13;

impl Pivots {
    /// Computes a link's coefficients times the inverse, into `dots`.
    pub(super) fn dot_rows(&mut self, e: u32) {
        let k = self.rows.len();
        self.coefficients[0] = -1.0;
        for c in 1..k {
            let entry = self.columns[c].entries.iter().find(|x| x.0 == e);
            self.coefficients[c] = entry.map_or(0.0, |x| x.1);
        }
        for r in 0..k {
            let row = &self.inverse[r * self.stride..r * self.stride + k];
            self.dots[r] = self.coefficients[..k].iter().zip(row).map(|(c, n)| c * n).sum();
        }
    }

    pub(super) fn grow(&mut self, e: u32, pivot: f64) {
        let k = self.rows.len();
        let stride = self.stride;
        for r in 0..k {
            let f = self.dots[r] / pivot;
            let row = &mut self.inverse[r * stride..r * stride + k + 1];
            row[..k].iter_mut().zip(&self.step[..k]).for_each(|(n, s)| *n += s * f);
            row[k] = -f;
        }
        let row = &mut self.inverse[k * stride..k * stride + k + 1];
        row[..k].iter_mut().zip(&self.step[..k]).for_each(|(n, s)| *n = -s / pivot);
        row[k] = 1.0 / pivot;
        self.row_of[e as usize] = k as u32;
        self.rows.push(e);
    }

    pub(super) fn replace_row(&mut self, row: usize, e: u32) -> bool {
        let k = self.rows.len();
        let stride = self.stride;
        let pivot = self.dots[row];
        if pivot.abs() < PIVOT_MIN {
            return false;
        }
        for r in (0..k).filter(|&r| r != row) {
            let f = self.dots[r] / pivot;
            for c in 0..k {
                self.inverse[r * stride + c] -= self.inverse[row * stride + c] * f;
            }
        }
        self.inverse[row * stride..row * stride + k].iter_mut().for_each(|n| *n /= pivot);
        self.row_of[self.rows[row] as usize] = NONE;
        self.rows[row] = e;
        self.row_of[e as usize] = row as u32;
        true
    }

    pub(super) fn replace_column(&mut self, c: usize) -> bool {
        let k = self.rows.len();
        let pivot = self.step[c];
        if pivot.abs() < PIVOT_MIN {
            return false;
        }
        for r in 0..k {
            let row = &mut self.inverse[r * self.stride..r * self.stride + k];
            let t = row[c] / pivot;
            row.iter_mut().zip(&self.step[..k]).for_each(|(n, s)| *n -= s * t);
            row[c] = t;
        }
        true
    }

    pub(super) fn shrink(&mut self, row: usize, column: usize) -> bool {
        let k = self.rows.len();
        let stride = self.stride;
        let pivot = self.inverse[row * stride + column];
        if pivot.abs() < PIVOT_MIN {
            return false;
        }
        for r in (0..k).filter(|&r| r != row) {
            let f = self.inverse[r * stride + column] / pivot;
            if f != 0.0 {
                for c in 0..k {
                    self.inverse[r * stride + c] -= f * self.inverse[row * stride + c];
                }
            }
        }
        // The last row and column move to the freed positions.
        let last = k - 1;
        self.row_of[self.rows[row] as usize] = NONE;
        if row != last {
            for c in 0..k {
                self.inverse[row * stride + c] = self.inverse[last * stride + c];
            }
            self.row_of[self.rows[last] as usize] = row as u32;
        }
        self.rows.swap_remove(row);
        if column != last {
            for r in 0..last {
                self.inverse[r * stride + column] = self.inverse[r * stride + last];
            }
        }
        self.columns.swap(column, last);
        true
    }
}
