//! The engine as a Python module: `linkwise._native`.
//!
//! This crate translates. A request arrives as JSON (one [`engine::Request`]) or as arrays, the engine answers it without the interpreter's
//! lock, and the answer leaves as JSON or as arrays. The package `linkwise` in `python/` makes Python's own types of both, and is what
//! programs import; nothing here is for them to call.
//!
//! Arrays: bytes from rank to rank are copied once, into the planner's own memory, because another thread may change a NumPy array while the
//! interpreter's lock is released. Arrays in answers are not copied: NumPy takes the memory.

mod class;
mod error;
mod open;
mod plan;

/// The module `linkwise._native`.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::class::Engine;
    #[pymodule_export]
    use crate::class::{clusters, version};
    #[pymodule_export]
    use crate::plan::Plan;
}
