//! CSV with one measurement per row: `matrix_id`, `src_gpu`, `dst_gpu`, `GBps`, and optional columns on the system.

use super::{Cells, MATRICES_MAX, Matrices, Matrix};
use crate::allocation::GPUS_PER_HOST_MAX;
use crate::diagnose::ReadError;
use std::collections::HashMap;

/// Positions of the columns in the header.
struct Columns {
    id: usize,
    from: usize,
    to: usize,
    rate: usize,
    source: Option<usize>,
    system: Option<usize>,
    gpus: Option<usize>,
    kind: Option<usize>,
    p2p: Option<usize>,
}

impl Columns {
    fn of(headers: &csv::StringRecord, text: &str, file: &str) -> Result<Columns, ReadError> {
        let column = |name: &str| headers.iter().position(|h| h.eq_ignore_ascii_case(name));
        let need = |name: &str| {
            column(name).ok_or_else(|| {
                let remedy =
                    "needed: matrix_id, src_gpu, dst_gpu, GBps; used if there: source, system, gpus, kind, p2p";
                ReadError::at_line(file, text, 1, 1, 1, format!("the column `{name}` is missing"), remedy)
            })
        };
        Ok(Columns {
            id: need("matrix_id")?,
            from: need("src_gpu")?,
            to: need("dst_gpu")?,
            rate: need("GBps")?,
            source: column("source"),
            system: column("system"),
            gpus: column("gpus"),
            kind: column("kind"),
            p2p: column("p2p"),
        })
    }
}

/// The rows of one matrix.
struct RawMatrix {
    id: String,
    system: String,
    source: String,
    kind: String,
    peer_access: bool,
    gpus: Option<usize>,
    /// From, to, GB/s and line.
    values: Vec<(usize, usize, f64, usize)>,
    first_line: usize,
}

/// One row of the file.
struct RowReader<'a> {
    record: &'a csv::StringRecord,
    columns: &'a Columns,
    /// Line in the file, from 1.
    line: usize,
    text: &'a str,
    file: &'a str,
}

impl RowReader<'_> {
    fn cell(&self, column: usize) -> &str {
        self.record.get(column).unwrap_or("")
    }

    fn short_text(&self, column: Option<usize>) -> String {
        column.map_or(String::new(), |c| self.cell(c).chars().take(200).collect())
    }

    fn error(&self, name: &str, found: &str, wanted: &str) -> ReadError {
        let raw = self.text.split('\n').nth(self.line - 1).unwrap_or("");
        let at = if found.is_empty() { 0 } else { raw.find(found).unwrap_or(0) };
        let column = raw[..at].chars().count() + 1;
        let message = format!("`{found}` in column `{name}`; {wanted}");
        let width = found.chars().count();
        let remedy = "repair the row or remove its matrix";
        ReadError::at_line(self.file, self.text, self.line, column, width, message, remedy)
    }

    fn gpu(&self, column: usize, name: &str) -> Result<usize, ReadError> {
        let found = self.cell(column);
        let index = found.parse::<usize>().ok().filter(|&g| g < GPUS_PER_HOST_MAX);
        index.ok_or_else(|| self.error(name, found, "a GPU index from 0 to 15 was expected"))
    }

    fn rate(&self) -> Result<f64, ReadError> {
        let found = self.cell(self.columns.rate);
        found.parse::<f64>().map_err(|_| self.error("GBps", found, "a rate in GB/s was expected"))
    }

    /// The matrix of which this is the first row.
    fn first_of_matrix(&self) -> RawMatrix {
        let c = self.columns;
        RawMatrix {
            id: self.cell(c.id).chars().take(50).collect(),
            system: self.short_text(c.system),
            source: self.short_text(c.source),
            kind: self.short_text(c.kind),
            peer_access: !self.short_text(c.p2p).eq_ignore_ascii_case("disabled"),
            gpus: c.gpus.and_then(|c| self.cell(c).parse().ok()),
            values: Vec::new(),
            first_line: self.line,
        }
    }

    /// Adds the row's value to its matrix; a second value for a pair is an error.
    fn add_to(&self, matrix: &mut RawMatrix, from: usize, to: usize, rate: f64) -> Result<(), ReadError> {
        if matrix.values.iter().any(|&(a, b, ..)| (a, b) == (from, to)) {
            let message = format!("matrix {} has a second value from GPU{from} to GPU{to}", matrix.id);
            let remedy = "remove one of the two rows";
            return Err(ReadError::at_line(self.file, self.text, self.line, 1, 1, message, remedy));
        }
        matrix.values.push((from, to, rate, self.line - 1));
        Ok(())
    }
}

impl RawMatrix {
    fn finish(self, text: &str, file: &str) -> Result<Matrix, ReadError> {
        let seen = self.values.iter().map(|v| v.0.max(v.1) + 1).max().unwrap_or(1);
        let n = self.gpus.unwrap_or(seen).max(seen);
        let what = format!("matrix {}", self.id);
        if n > GPUS_PER_HOST_MAX {
            let message = format!("{what} is of {n} GPUs; at most {GPUS_PER_HOST_MAX} are supported");
            let remedy = "one matrix describes one host";
            return Err(ReadError::at_line(file, text, self.first_line, 1, 1, message, remedy));
        }
        let mut cells = Cells::new(n);
        let mut last = self.first_line - 1;
        for (i, j, v, line) in self.values {
            cells.values[i * n + j] = Some((v, line));
            last = line;
        }
        Ok(Matrix {
            id: self.id,
            system: self.system,
            source: self.source,
            bidirectional: self.kind.starts_with("Bidirectional"),
            reads: self.kind.contains("Reads"),
            peer_access: self.peer_access,
            gb_per_s: cells.finish(text, file, &what, last)?,
        })
    }
}

/// Reads one measurement per row. Rows with the same `matrix_id` form one matrix. O(text).
pub fn parse_long_csv(text: &str, file: &str) -> Result<Matrices, ReadError> {
    let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(text.as_bytes());
    let csv_error = |e: csv::Error| {
        let line = e.position().map_or(1, |p| p.line() as usize);
        ReadError::at_line(file, text, line, 1, 1, format!("not CSV: {e}"), "separate cells by commas, quote text")
    };
    let headers = reader.headers().map_err(csv_error)?.clone();
    let columns = Columns::of(&headers, text, file)?;
    let mut raw: Vec<RawMatrix> = Vec::new();
    let mut by_id: HashMap<String, usize> = HashMap::new();
    for record in reader.records() {
        let record = record.map_err(csv_error)?;
        let line = record.position().map_or(1, |p| p.line() as usize);
        let row = RowReader { record: &record, columns: &columns, line, text, file };
        let (from, to) = (row.gpu(columns.from, "src_gpu")?, row.gpu(columns.to, "dst_gpu")?);
        let rate = row.rate()?;
        let id = row.cell(columns.id);
        let at = match by_id.get(id) {
            Some(at) => *at,
            None if raw.len() >= MATRICES_MAX => return Err(row.error("matrix_id", id, "at most 1,000 matrices")),
            None => {
                by_id.insert(id.to_string(), raw.len());
                raw.push(row.first_of_matrix());
                raw.len() - 1
            }
        };
        row.add_to(&mut raw[at], from, to, rate)?;
    }
    Ok(raw.into_iter().map(|m| m.finish(text, file)).collect())
}
