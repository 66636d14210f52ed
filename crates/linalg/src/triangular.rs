//! Linear algebra for Gaussian processes of up to a few thousand points.
//!
//! This is own code because the cost of a prediction is the cost of a decision. Rows are contiguous. Every inner loop
//! is a dot product with eight accumulators, so that the compiler can use vector units while results stay equal on all
//! machines. The prediction path does not allocate.
//!
//! Cost of a factorisation: n³/6 multiply-adds, about 2 ms at n = 250.

/// Dot product of two slices of equal length, in a fixed order of additions.
#[inline]
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    let mut acc = [0.0f64; 8];
    let mut ca = a.chunks_exact(8);
    let mut cb = b.chunks_exact(8);
    for (x, y) in (&mut ca).zip(&mut cb) {
        for i in 0..8 {
            acc[i] += x[i] * y[i];
        }
    }
    let mut tail = 0.0;
    for (x, y) in ca.remainder().iter().zip(cb.remainder()) {
        tail += x * y;
    }
    ((acc[0] + acc[4]) + (acc[1] + acc[5])) + ((acc[2] + acc[6]) + (acc[3] + acc[7])) + tail
}

/// A lower triangle, packed by rows: row `i` has `i + 1` entries.
#[derive(Clone, Debug, Default)]
pub struct LowerTriangular {
    n: usize,
    data: Vec<f64>,
}

impl LowerTriangular {
    /// An `n` x `n` triangle of zeros.
    pub fn zeros(n: usize) -> Self {
        LowerTriangular { n, data: vec![0.0; n * (n + 1) / 2] }
    }
    /// Number of rows.
    pub fn n(&self) -> usize {
        self.n
    }
    fn at(i: usize) -> usize {
        i * (i + 1) / 2
    }
    /// Row `i`, `i + 1` entries.
    pub fn row(&self, i: usize) -> &[f64] {
        &self.data[Self::at(i)..Self::at(i + 1)]
    }
    /// Row `i`, mutable.
    pub fn row_mut(&mut self, i: usize) -> &mut [f64] {
        &mut self.data[Self::at(i)..Self::at(i + 1)]
    }

    /// The Cholesky factor of the symmetric matrix whose lower triangle this is; `None` if it is not positive definite.
    pub fn cholesky(mut self) -> Option<LowerTriangular> {
        for i in 0..self.n {
            if !self.factor_row(i) {
                return None;
            }
        }
        Some(self)
    }

    /// Replaces row `i` of the matrix by row `i` of the factor; the rows above must be factored.
    fn factor_row(&mut self, i: usize) -> bool {
        let (above, rest) = self.data.split_at_mut(Self::at(i));
        let row = &mut rest[..=i];
        for j in 0..i {
            let lj = &above[Self::at(j)..Self::at(j + 1)];
            row[j] = (row[j] - dot(&row[..j], &lj[..j])) / lj[j];
        }
        let d = row[i] - dot(&row[..i], &row[..i]);
        row[i] = d.sqrt();
        d > 0.0 && d.is_finite()
    }

    /// Appends one row of the matrix to a factor: O(n²). Returns `false` and changes nothing if the result is not
    /// positive definite.
    pub fn append(&mut self, row: &[f64]) -> bool {
        debug_assert_eq!(row.len(), self.n + 1);
        self.data.extend_from_slice(row);
        self.n += 1;
        let ok = self.factor_row(self.n - 1);
        if !ok {
            self.n -= 1;
            self.data.truncate(Self::at(self.n));
        }
        ok
    }

    /// Changes the factor to that of the matrix without row and column `k`, by a rank-one update of the rows below:
    /// O((n - k)²). Panics if there is no row `k`.
    pub fn remove(&mut self, k: usize) {
        let n = self.n;
        assert!(k < n, "row {k} of {n}");
        let mut data = Vec::with_capacity(Self::at(n - 1));
        data.extend_from_slice(&self.data[..Self::at(k)]);
        // Rotations (c, s) by column; each row below applies the rotations of the columns before its diagonal.
        let mut rotations: Vec<(f64, f64)> = Vec::with_capacity(n - 1 - k);
        for i in k + 1..n {
            let row = self.row(i);
            let mut v = row[k];
            data.extend_from_slice(&row[..k]);
            for (l, &(c, s)) in row[k + 1..i].iter().zip(&rotations) {
                let l = (l + s * v) / c;
                v = c * v - s * l;
                data.push(l);
            }
            let d = row[i];
            let r = d.hypot(v);
            rotations.push((r / d, v / d));
            data.push(r);
        }
        self.data = data;
        self.n = n - 1;
    }

    /// Solves `L x = b` in place, where `L` is this factor.
    pub fn solve_lower(&self, b: &mut [f64]) {
        for i in 0..self.n {
            let r = self.row(i);
            b[i] = (b[i] - dot(&r[..i], &b[..i])) / r[i];
        }
    }
    /// Solves `Lᵀ x = b` in place.
    pub fn solve_upper(&self, b: &mut [f64]) {
        for i in (0..self.n).rev() {
            let r = self.row(i);
            let x = b[i] / r[i];
            b[i] = x;
            for (bj, rj) in b[..i].iter_mut().zip(&r[..i]) {
                *bj -= rj * x;
            }
        }
    }
    /// Solves `L Lᵀ x = b` in place.
    pub fn solve(&self, b: &mut [f64]) {
        self.solve_lower(b);
        self.solve_upper(b);
    }
    /// Sum of the logarithms of the diagonal: half of the log-determinant.
    pub fn half_log_det(&self) -> f64 {
        (0..self.n).map(|i| self.row(i)[i].ln()).sum()
    }

    /// The diagonal of the inverse of `L Lᵀ`. n³/6 multiply-adds.
    pub fn inverse_diagonal(&self) -> Vec<f64> {
        let mut column = Vec::with_capacity(self.n);
        (0..self.n)
            .map(|j| {
                // Column j of L⁻¹, from its diagonal down.
                column.clear();
                column.push(1.0 / self.row(j)[j]);
                for i in j + 1..self.n {
                    let r = self.row(i);
                    column.push(-dot(&r[j..i], &column) / r[i]);
                }
                dot(&column, &column)
            })
            .collect()
    }

    /// The lower triangle of the inverse of `L Lᵀ`. n³/3 multiply-adds.
    pub fn inverse(&self) -> LowerTriangular {
        let n = self.n;
        // Rows of M = (L⁻¹)ᵀ: M[j][i - j] = (L⁻¹)[i][j], so that every inner loop runs over contiguous memory.
        let mut m: Vec<Vec<f64>> = Vec::with_capacity(n);
        for j in 0..n {
            let mut col = vec![0.0; n - j];
            col[0] = 1.0 / self.row(j)[j];
            for i in j + 1..n {
                let r = self.row(i);
                col[i - j] = -dot(&r[j..i], &col[..i - j]) / r[i];
            }
            m.push(col);
        }
        let mut out = LowerTriangular::zeros(n);
        for i in 0..n {
            for j in 0..=i {
                // Σ over k >= i of (L⁻¹)[k][i] (L⁻¹)[k][j]
                let v = dot(&m[i], &m[j][i - j..]);
                out.row_mut(i)[j] = v;
            }
        }
        out
    }
}

/// e^x for x <= 0 with a relative error of 1e-15, without a library call, so that loops over it can use vector units.
#[inline(always)]
pub fn exp_neg(x: f64) -> f64 {
    let x = x.max(-700.0);
    // x = k ln 2 + r, |r| <= ln 2 / 2; adding 1.5 * 2^52 rounds to the nearest whole number.
    const SHIFT: f64 = 6_755_399_441_055_744.0;
    let t = x * std::f64::consts::LOG2_E + SHIFT;
    let k = t - SHIFT;
    let r = (x - k * 0.693_147_180_369_123_8) - k * 1.908_214_929_270_587_7e-10;
    // Taylor series to r^12: |r| <= 0.347 leaves 2e-16.
    let mut p = 1.0 / 479_001_600.0;
    p = p * r + 1.0 / 39_916_800.0;
    p = p * r + 1.0 / 3_628_800.0;
    p = p * r + 1.0 / 362_880.0;
    p = p * r + 1.0 / 40_320.0;
    p = p * r + 1.0 / 5_040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    f64::from_bits((((t.to_bits() as i64) << 52) as u64).wrapping_add(p.to_bits()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spd(n: usize, seed: u64) -> (Vec<Vec<f64>>, LowerTriangular) {
        let mut s = seed;
        let mut next = || {
            s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (s >> 33) as f64 / (1u64 << 31) as f64 - 0.5
        };
        let b: Vec<Vec<f64>> = (0..n).map(|_| (0..n).map(|_| next()).collect()).collect();
        let a: Vec<Vec<f64>> =
            (0..n).map(|i| (0..n).map(|j| dot(&b[i], &b[j]) + if i == j { 0.1 } else { 0.0 }).collect()).collect();
        let mut l = LowerTriangular::zeros(n);
        for i in 0..n {
            l.row_mut(i).copy_from_slice(&a[i][..=i]);
        }
        (a, l)
    }

    proptest! {
        #[test]
        fn the_factor_solves_and_inverts(n in 1usize..40, seed: u64) {
            let (a, l) = spd(n, seed);
            let f = l.cholesky().unwrap();
            let b: Vec<f64> = (0..n).map(|i| i as f64 - 3.0).collect();
            let mut x = b.clone();
            f.solve(&mut x);
            let inv = f.inverse();
            for i in 0..n {
                prop_assert!((dot(&a[i], &x) - b[i]).abs() < 1e-8 * (n as f64 + 1.0) * 100.0);
                let e: f64 = (0..n).map(|k| a[i][k] * if k >= i { inv.row(k)[i] } else { inv.row(i)[k] }).sum();
                prop_assert!((e - 1.0).abs() < 1e-7);
                prop_assert!((inv.row(i)[i] / f.inverse_diagonal()[i] - 1.0).abs() < 1e-9);
            }
        }

        #[test]
        fn appending_rows_one_by_one_gives_the_same_factor(n in 1usize..20, seed: u64) {
            let (a, l) = spd(n, seed);
            let whole = l.cholesky().unwrap();
            let mut grown = LowerTriangular::zeros(0);
            for (i, row) in a.iter().enumerate() {
                prop_assert!(grown.append(&row[..=i]));
            }
            for i in 0..n {
                prop_assert_eq!(whole.row(i), grown.row(i));
            }
        }

        #[test]
        fn the_own_exponential_is_the_library_s(x in -600.0f64..0.0) {
            let (a, b) = (exp_neg(x), x.exp());
            prop_assert!((a / b - 1.0).abs() < 1e-13, "{x}: {a} {b}");
        }
    }

    #[test]
    fn a_matrix_that_is_not_positive_definite_is_refused() {
        let mut l = LowerTriangular::zeros(2);
        l.row_mut(0)[0] = 1.0;
        l.row_mut(1).copy_from_slice(&[2.0, 1.0]);
        assert!(l.cholesky().is_none());
    }
}
