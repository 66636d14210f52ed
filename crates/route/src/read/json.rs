//! A demand in JSON: rows, or single entries.

use super::{finish, json_error, too_large};
use crate::demand::{Demand, RANKS_MAX};
use serde::Deserialize;
use topology::ReadError;

const REMEDY: &str = r#"write {"bytes": [[0, 5], [7, 0]]} (row sends), the rows alone, or {"ranks": 2, "demands": [{"src": 0, "dst": 1, "bytes": 5}]}"#;

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "neither rows of bytes nor {bytes} nor {ranks, demands}, or a number is not whole, negative or too large"
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

/// Reads it. Entries of the same pair are added. O(text).
pub fn read(text: &str, file: &str) -> Result<Demand, ReadError> {
    if let Some(e) = too_large(file, text.len()) {
        return Err(e);
    }
    // Syntax first: its errors have a place, those of the untagged forms below have none.
    serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|e| json_error(file, text, &e, REMEDY))?;
    let form: Form = serde_json::from_str(text).map_err(|e| json_error(file, text, &e, REMEDY))?;
    let whole = |m: String| ReadError::in_file(file, m, REMEDY);
    match form {
        Form::Rows(rows) | Form::Matrix(Matrix { bytes: rows }) => {
            let ranks = rows.len();
            if let Some((i, r)) = rows.iter().enumerate().find(|(_, r)| r.len() != ranks) {
                return Err(whole(format!("row {i} has {} numbers, but there are {ranks} rows", r.len())));
            }
            finish(file, ranks, rows.into_iter().flatten().collect())
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
