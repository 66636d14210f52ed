//! Measurements: one schema, kept in SQLite, in and out as CSV.

pub mod measurement;

pub use measurement::{Measurement, Quality, Source};
