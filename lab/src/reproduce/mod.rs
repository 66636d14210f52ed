//! The papers' tables and figures: published numbers and linkwise's.

pub mod bandpilot;
pub mod litegd;

pub use litegd::Effort;
