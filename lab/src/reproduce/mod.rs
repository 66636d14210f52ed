//! The papers' tables and figures, published numbers beside ours.

pub mod bandpilot;
pub mod litegd;

pub use litegd::Effort;
