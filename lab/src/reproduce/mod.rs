//! The papers' tables and figures: published numbers and ours.

pub mod bandpilot;
pub mod litegd;

pub use litegd::Effort;
