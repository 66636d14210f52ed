//! Readers of demands: a square CSV of bytes, JSON, PARAM replays, Mixture-of-Experts routing.
//!
//! Text goes in, values come out; nothing here opens a file. All input is hostile: sizes, ranks and numbers have limits, and every error
//! has a line, a column and a remedy.

mod csv;
mod esft;
mod json;
mod param;

pub use csv::read as csv;
pub use esft::{Dispatch, Routing, read as esft};
pub use json::read as json;
pub use param::read as param;

use crate::demand::Demand;
use topology::ReadError;

/// Largest file.
pub const FILE_SIZE_MAX: usize = 64 << 20;

/// What a file seems to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A square of numbers.
    Csv,
    /// A demand in JSON.
    Json,
    /// A PARAM replay.
    Param,
    /// Tokens to experts.
    Esft,
}

/// Looks at the beginning.
pub fn detect(text: &str) -> Kind {
    let start = text.trim_start();
    let head: String = start.chars().take(4096).collect();
    match start.as_bytes().first() {
        Some(b'{') => Kind::Json,
        Some(b'[') if head.contains("\"comms\"") || head.contains("\"in_split\"") => Kind::Param,
        Some(b'[') => Kind::Json,
        _ if !head.contains(',') && head.contains('\t') => Kind::Esft,
        _ => Kind::Csv,
    }
}

/// The file as a demand, or an error at its first line.
fn finish(file: &str, ranks: usize, bytes: Vec<u64>) -> Result<Demand, ReadError> {
    Demand::from_rows(ranks, bytes).map_err(|e| ReadError::in_file(file, e, "give a smaller demand"))
}

fn too_large(file: &str, len: usize) -> Option<ReadError> {
    let message = format!("the file has {len} bytes; at most {FILE_SIZE_MAX} are read");
    (len > FILE_SIZE_MAX).then(|| ReadError::in_file(file, message, "give a part of it"))
}

/// An error of serde_json at its place.
fn json_error(file: &str, text: &str, e: &serde_json::Error, remedy: &str) -> ReadError {
    let whole = e.to_string();
    let message = whole.rsplit_once(" at line ").map_or(whole.as_str(), |(m, _)| m);
    ReadError::at_line(file, text, e.line().max(1), e.column().max(1), 1, message, remedy)
}
