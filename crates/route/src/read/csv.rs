//! Reads a demand as a square CSV of bytes: the row is the sender, the column the receiver.

use super::{build_demand, size_error};
use crate::demand::{Demand, RANKS_MAX};
use topology::ReadError;

const REMEDY: &str = "a demand is a square of whole numbers of bytes: one line per sending rank, numbers separated by commas; lines that start with # are skipped";

/// Reads a demand. Skips empty lines and lines that start with `#`. Errors give line and column. O(text).
pub fn read(text: &str, file: &str) -> Result<Demand, ReadError> {
    if let Some(e) = size_error(file, text.len()) {
        return Err(e);
    }
    let mut bytes = Vec::new();
    let mut ranks = 0;
    let mut rows = 0;
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let start = offset;
        offset += line.len();
        let content = line.trim_end_matches(['\n', '\r']);
        if content.trim().is_empty() || content.trim_start().starts_with('#') {
            continue;
        }
        let mut at = start;
        let mut cells = 0;
        for cell in content.split(',') {
            let fail = |m: String| ReadError::at(file, text, at, cell.len().max(1), m, REMEDY);
            cells += 1;
            if cells > RANKS_MAX {
                return Err(fail(format!("more than {RANKS_MAX} columns")));
            }
            let value = cell.trim();
            if value.is_empty() {
                return Err(fail("an empty cell".into()));
            }
            let value = value.parse::<u64>().map_err(|_| fail(format!("`{value}` is not a whole number of bytes")))?;
            bytes.push(value);
            at += cell.len() + 1;
        }
        if rows == 0 {
            ranks = cells;
        } else if cells != ranks {
            let message = format!("this line has {cells} numbers, the first has {ranks}");
            return Err(ReadError::at(file, text, start, content.len(), message, REMEDY));
        }
        rows += 1;
        if rows > ranks {
            let message = format!("this line is number {rows}, but there are {ranks} columns");
            return Err(ReadError::at(file, text, start, content.len(), message, REMEDY));
        }
    }
    if rows != ranks || ranks == 0 {
        let message = format!("the file has {rows} lines of {ranks} numbers, which is not a square");
        return Err(ReadError::at(file, text, text.trim_end().len(), 1, message, REMEDY));
    }
    build_demand(file, ranks, bytes)
}
