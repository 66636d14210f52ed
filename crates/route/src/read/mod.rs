//! Readers of demands: a square CSV of bytes, JSON, PARAM replays, Mixture-of-Experts routing.
//!
//! The readers turn text into values and open no file. They accept hostile input: sizes, ranks and numbers have limits, and every error has
//! a line, a column and a remedy.

mod csv;
mod esft;
mod json;
mod param;

pub use csv::read as csv;
pub use esft::{DispatchLayout, ExpertRouting, read as esft};
pub use json::read as json;
pub use param::read as param;

use crate::demand::Demand;
use topology::ReadError;

/// Largest file, bytes.
pub const FILE_SIZE_MAX: usize = 64 << 20;

/// The format of a demand file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DemandFormat {
    /// A square of bytes.
    Csv,
    /// A demand in JSON.
    Json,
    /// A PARAM replay.
    Param,
    /// A routing file: tokens to experts.
    Esft,
}

/// Guesses the format from the first 4,096 characters.
pub fn detect_format(text: &str) -> DemandFormat {
    let start = text.trim_start();
    let head: String = start.chars().take(4096).collect();
    match start.as_bytes().first() {
        Some(b'{') => DemandFormat::Json,
        Some(b'[') if head.contains("\"comms\"") || head.contains("\"in_split\"") => DemandFormat::Param,
        Some(b'[') => DemandFormat::Json,
        _ if !head.contains(',') && head.contains('\t') => DemandFormat::Esft,
        _ => DemandFormat::Csv,
    }
}

/// Builds the demand, or an error at the first line of the file.
fn build_demand(file: &str, ranks: usize, bytes: Vec<u64>) -> Result<Demand, ReadError> {
    Demand::from_rows(ranks, bytes).map_err(|e| ReadError::in_file(file, e, "give a smaller demand"))
}

fn size_error(file: &str, len: usize) -> Option<ReadError> {
    let message = format!("the file has {len} bytes, but the limit is {FILE_SIZE_MAX}");
    (len > FILE_SIZE_MAX).then(|| ReadError::in_file(file, message, "give a part of the file"))
}

/// An error of serde_json with its line and column.
fn json_error(file: &str, text: &str, e: &serde_json::Error, remedy: &str) -> ReadError {
    let whole = e.to_string();
    let message = whole.rsplit_once(" at line ").map_or(whole.as_str(), |(m, _)| m);
    ReadError::at_line(file, text, e.line().max(1), e.column().max(1), 1, message, remedy)
}
