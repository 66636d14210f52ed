//! A square of numbers as CSV, with or without names of rows and columns.

use super::{Cells, Matrix};
use crate::allocation::GPUS_PER_HOST_MAX;
use crate::diagnose::ReadError;

/// True if this is the first line of a CSV of either form.
pub fn is_csv_heading(line: &str) -> bool {
    let cells: Vec<&str> = line.split([',', ';']).map(|c| c.trim().trim_matches('"')).collect();
    let long = ["matrix_id", "src_gpu", "dst_gpu"].iter().filter(|k| cells.contains(k)).count() >= 2;
    let names = cells.len() > 1 && cells[0].is_empty() && cells[1..].iter().all(|c| column_index(c).is_some());
    long || names
        || (cells.len() > 1 && cells.iter().all(|c| c.parse::<f64>().is_ok()))
        || (cells.len() > 1 && cells.iter().enumerate().all(|(i, c)| column_index(c) == Some(i)))
}

/// The GPU index in a heading: `3`, `GPU3`, `D3`.
fn column_index(cell: &str) -> Option<usize> {
    let digits = cell.strip_prefix("GPU").or_else(|| cell.strip_prefix("D")).unwrap_or(cell);
    digits.trim().parse().ok().filter(|&n: &usize| n < 1_000)
}

/// One square of numbers, with or without names of rows and columns. The numbers are assumed to be one-way rates with
/// P2P enabled. O(text).
pub fn parse_square(text: &str, file: &str) -> Result<Matrix, ReadError> {
    let separator = if text.lines().take(50).any(|l| l.contains(';')) { ';' } else { ',' };
    let mut rows: Vec<(usize, Vec<&str>)> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        rows.push((i, line.split(separator).map(|c| c.trim().trim_matches('"')).collect()));
        if rows.len() > GPUS_PER_HOST_MAX + 1 {
            let message = format!("more than {GPUS_PER_HOST_MAX} rows; a host has 1 to {GPUS_PER_HOST_MAX} GPUs");
            return Err(ReadError::at_line(file, text, i + 1, 1, 1, message, "one square matrix per file"));
        }
    }
    let named_columns = rows.first().is_some_and(|(_, r)| {
        r.iter().any(|c| c.is_empty() || c.parse::<f64>().is_err())
            || r.iter().enumerate().all(|(i, c)| c.parse() == Ok(i)) && r.len() + 1 == rows.len()
    });
    if named_columns {
        rows.remove(0);
    }
    let n = rows.len();
    let named_rows =
        n > 0 && rows.iter().enumerate().all(|(i, (_, r))| r.len() == n + 1 && column_index(r[0]) == Some(i));
    let mut cells = Cells::new(n.max(1));
    let mut last = 0;
    for (i, (line, row)) in rows.iter().enumerate() {
        let values = &row[usize::from(named_rows)..];
        last = *line;
        if values.len() != n {
            let message = format!("row {} has {} values, but there are {n} rows", i + 1, values.len());
            let remedy = "a P2P matrix is square: as many values in each row as rows";
            return Err(ReadError::at_line(file, text, line + 1, 1, 1, message, remedy));
        }
        for (j, v) in values.iter().enumerate() {
            let Ok(rate) = v.parse::<f64>() else {
                let message = format!("`{v}` is not a rate in GB/s");
                let column = text.lines().nth(*line).and_then(|l| l.find(v)).unwrap_or(0) + 1;
                return Err(ReadError::at_line(file, text, line + 1, column, v.len(), message, "write a number, 48.5"));
            };
            cells.values[i * n + j] = Some((rate, *line));
        }
    }
    Ok(Matrix {
        id: "1".into(),
        system: String::new(),
        source: file.to_string(),
        bidirectional: false,
        peer_access: true,
        reads: false,
        gb_per_s: cells.finish(text, file, "the matrix", last)?,
    })
}
