//! The number types of the networks, and products of row-major matrices.
//!
//! Networks run in `f32`; the tests check every gradient in `f64` with the same code.

use ndarray::{ArrayView2, ArrayViewMut2, LinalgScalar, linalg::general_mat_mul};
use std::ops::{AddAssign, MulAssign, Neg, SubAssign};

/// `f32` or `f64`.
pub trait Real:
    LinalgScalar + PartialOrd + AddAssign + SubAssign + MulAssign + Neg<Output = Self> + Default + Send + Sync
{
    /// Converts from `f64`, to the nearest number of this type.
    fn of(v: f64) -> Self;
    /// Converts to `f64`.
    fn f64(self) -> f64;
    /// Exponential function.
    fn exp(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
}

macro_rules! real {
    ($t:ty) => {
        impl Real for $t {
            fn of(v: f64) -> Self {
                v as $t
            }
            fn f64(self) -> f64 {
                self as f64
            }
            fn exp(self) -> Self {
                <$t>::exp(self)
            }
            fn sqrt(self) -> Self {
                <$t>::sqrt(self)
            }
        }
    };
}
real!(f32);
real!(f64);

/// A row-major matrix in borrowed memory. Panics if the length is not `rows * columns`; the caller must prevent that.
fn view<R: Real>(data: &[R], rows: usize, columns: usize) -> ArrayView2<'_, R> {
    ArrayView2::from_shape((rows, columns), data).expect("the length is rows times columns")
}

fn view_mut<R: Real>(data: &mut [R], rows: usize, columns: usize) -> ArrayViewMut2<'_, R> {
    ArrayViewMut2::from_shape((rows, columns), data).expect("the length is rows times columns")
}

/// `c = a b + beta c` with `a` of `m x k`, `b` of `k x n`.
pub fn product<R: Real>(a: &[R], b: &[R], (m, k, n): (usize, usize, usize), beta: R, c: &mut [R]) {
    general_mat_mul(R::one(), &view(a, m, k), &view(b, k, n), beta, &mut view_mut(c, m, n));
}

/// `c += aᵀ b` with `a` of `t x m`, `b` of `t x n`: gradients of weights.
pub fn add_transposed_product<R: Real>(a: &[R], b: &[R], (t, m, n): (usize, usize, usize), c: &mut [R]) {
    general_mat_mul(R::one(), &view(a, t, m).t(), &view(b, t, n), R::one(), &mut view_mut(c, m, n));
}

/// `c = a bᵀ + beta c` with `a` of `m x n`, `b` of `k x n`: gradients of inputs.
pub fn product_transposed<R: Real>(a: &[R], b: &[R], (m, n, k): (usize, usize, usize), beta: R, c: &mut [R]) {
    general_mat_mul(R::one(), &view(a, m, n), &view(b, k, n).t(), beta, &mut view_mut(c, m, k));
}
