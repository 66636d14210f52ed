//! Linear algebra and minimisation for small problems.
#![forbid(unsafe_code)]

mod lbfgs;
mod triangular;

pub use lbfgs::{Effort, minimise};
pub use triangular::{LowerTriangular, dot, exp_neg};
