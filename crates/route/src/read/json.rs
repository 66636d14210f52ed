//! Reads a demand from JSON: rows, or single entries.

use super::{build_demand, json_error, size_error};
use crate::demand::{Demand, RANKS_MAX};
use serde::Deserialize;
use topology::ReadError;

const REMEDY: &str = r#"write {"bytes": [[0, 5], [7, 0]]} (one row per sender), the rows alone, or {"ranks": 2, "demands": [{"src": 0, "dst": 1, "bytes": 5}]}"#;

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "not rows of bytes, {bytes} or {ranks, demands}; or a number is negative, not whole or too large"
)]
enum Form {
    Rows(Vec<Vec<u64>>),
    Matrix(Matrix),
    Sparse(Sparse),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Matrix {
    bytes: Vec<Vec<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sparse {
    ranks: usize,
    demands: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    src: usize,
    dst: usize,
    bytes: u64,
}

/// Reads a demand. Adds entries of the same pair. O(text).
pub fn read(text: &str, file: &str) -> Result<Demand, ReadError> {
    if let Some(e) = size_error(file, text.len()) {
        return Err(e);
    }
    // Check the syntax first: serde gives a position for syntax errors, but none for errors in untagged enums.
    serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|e| json_error(file, text, &e, REMEDY))?;
    let form: Form = serde_json::from_str(text).map_err(|e| json_error(file, text, &e, REMEDY))?;
    let whole = |m: String| ReadError::in_file(file, m, REMEDY);
    match form {
        Form::Rows(rows) | Form::Matrix(Matrix { bytes: rows }) => {
            let ranks = rows.len();
            if let Some((i, r)) = rows.iter().enumerate().find(|(_, r)| r.len() != ranks) {
                return Err(whole(format!("row {i} has {} numbers, but there are {ranks} rows", r.len())));
            }
            build_demand(file, ranks, rows.into_iter().flatten().collect())
        }
        Form::Sparse(s) => {
            let mut demand = Demand::new(s.ranks).map_err(|e| whole(e.to_string()))?;
            for (i, e) in s.demands.iter().enumerate() {
                if e.src.max(e.dst) >= s.ranks.min(RANKS_MAX) {
                    return Err(whole(format!(
                        "demand {i} goes from rank {} to {}, but there are {} ranks",
                        e.src, e.dst, s.ranks
                    )));
                }
                demand.add(e.src, e.dst, e.bytes).map_err(|e| whole(e.to_string()))?;
            }
            Ok(demand)
        }
    }
}
