//! Draws a cluster as text for the terminal and as SVG.

#![forbid(unsafe_code)]

mod svg;
mod text;

pub use svg::svg;
pub use text::{text, text_within};
