//! Drawings of a cluster: text for the terminal, SVG for everything else.

#![forbid(unsafe_code)]

mod svg;
mod text;

pub use svg::svg;
pub use text::{text, text_within};
