//! Reads published measurement tables: the format of a file, and its rows with the position of every field.

use console::Failure;
use std::path::Path;
use topology::Bytes;

/// Largest file read, bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of rows of one file.
const ROWS_MAX: usize = 500_000;
/// Longest field, bytes.
const FIELD_BYTES_MAX: usize = 4_096;
/// Largest operation, bytes.
const SIZE_BYTES_MAX: u64 = 1 << 50;

/// The formats that linkwise knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Published measurements, 17 columns.
    Measurements,
    /// Every GPU subset of a host.
    IntraTable,
    /// Splits across several hosts.
    MultiHostTable,
    /// Peer-to-peer matrices.
    P2pMatrix,
}

/// Columns of the 17-column format, in order.
pub const MEASUREMENT_COLUMNS: [&str; 17] = [
    "source",
    "system",
    "gpu",
    "gpus_per_node",
    "nodes",
    "allocation",
    "interconnect",
    "nic",
    "collective",
    "algo",
    "proto",
    "nccl_version",
    "size_bytes",
    "time_us",
    "algbw_GBps",
    "busbw_GBps",
    "note",
];
/// Columns of an intra table.
pub const INTRA_COLUMNS: [&str; 5] = ["host", "gpus", "size_bytes", "collective", "busbw_gb_per_s"];
/// Columns of a multi-host table.
pub const MULTI_HOST_COLUMNS: [&str; 5] = ["counts", "gpus", "size_bytes", "collective", "busbw_gb_per_s"];
/// Columns of a P2P matrix file.
pub const P2P_COLUMNS: [&str; 10] =
    ["source", "system", "gpus", "kind", "p2p", "matrix_id", "src_gpu", "dst_gpu", "GBps", "note"];

/// Other names under which published copies have a column.
const OTHER_NAMES: [(&str, &[&str]); 8] = [
    ("busbw_gb_per_s", &["busbw_gbps", "busbw", "busbw_gb/s", "bandwidth_gb_per_s"]),
    ("busbw_GBps", &["busbw_gbps", "busbw", "busbw_gb/s", "busbw(gb/s)"]),
    ("algbw_GBps", &["algbw_gbps", "algbw", "algbw_gb/s", "algbw(gb/s)"]),
    ("time_us", &["time", "time(us)", "latency_us"]),
    ("size_bytes", &["size", "size(b)", "bytes", "message_size"]),
    ("gpus", &["gpu_subset", "gpu_ids"]),
    ("collective", &["op", "operation"]),
    ("nccl_version", &["nccl"]),
];

/// Position of a column in a header, under its own name or another.
fn find(headers: &[String], column: &str) -> Option<usize> {
    headers.iter().position(|h| h == column).or_else(|| {
        let others = OTHER_NAMES.iter().find(|o| o.0 == column)?.1;
        headers.iter().position(|h| others.contains(&h.to_ascii_lowercase().as_str()))
    })
}

impl Kind {
    /// Its columns in their usual order.
    pub fn columns(self) -> &'static [&'static str] {
        match self {
            Kind::Measurements => &MEASUREMENT_COLUMNS,
            Kind::IntraTable => &INTRA_COLUMNS,
            Kind::MultiHostTable => &MULTI_HOST_COLUMNS,
            Kind::P2pMatrix => &P2P_COLUMNS,
        }
    }
    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Measurements => "measurements",
            Kind::IntraTable => "intra table",
            Kind::MultiHostTable => "multi-host table",
            Kind::P2pMatrix => "P2P matrices",
        }
    }
}

/// One row: its fields in the order of [`Kind::columns`], and the line where it starts.
#[derive(Clone, Debug)]
pub struct TableRow {
    /// Line in the file, from 1.
    pub line: u64,
    /// Fields.
    pub fields: Vec<String>,
}

/// A whole file.
#[derive(Clone, Debug)]
pub struct Table {
    /// File name for messages.
    pub name: String,
    /// Its format.
    pub kind: Kind,
    /// Its rows.
    pub rows: Vec<TableRow>,
    /// True if columns are in another order, or if there are more than the format has.
    pub reordered: bool,
    /// True if the file has carriage returns or a byte order mark.
    pub foreign_text: bool,
    /// Position of each known column in the file, for error messages.
    places: Vec<usize>,
    text: String,
}

fn utf8<'b>(name: &str, bytes: &'b [u8]) -> Result<&'b str, Failure> {
    std::str::from_utf8(bytes).map_err(|e| {
        let before = &bytes[..e.valid_up_to()];
        let line = before.iter().filter(|b| **b == b'\n').count() + 1;
        let column = before.iter().rev().take_while(|b| **b != b'\n').count() + 1;
        Failure::input(format!(
            "{name}, line {line}, column {column}: byte 0x{:02x} is not UTF-8; save the file as UTF-8",
            bytes[e.valid_up_to()]
        ))
    })
}

/// The format whose columns all appear in the header. An error if no format fits or if a column appears twice.
fn kind_of(name: &str, headers: &[String]) -> Result<Kind, Failure> {
    let kinds = [Kind::Measurements, Kind::IntraTable, Kind::MultiHostTable, Kind::P2pMatrix];
    let kind = kinds.into_iter().find(|k| k.columns().iter().all(|c| find(headers, c).is_some()));
    let Some(kind) = kind else {
        let found = headers.iter().take(20).map(String::as_str).collect::<Vec<_>>().join(",");
        let found: String = found.chars().take(200).collect();
        return Err(Failure::input(format!(
            "{name}, line 1, column 1: the header `{found}` is not a known format; expected one of\n  {}",
            kinds.map(|k| format!("{} ({})", k.columns().join(","), k.name())).join("\n  ")
        )));
    };
    match headers.iter().enumerate().find(|(i, h)| headers[..*i].contains(h)) {
        Some((i, h)) => Err(Failure::input(format!("{name}, line 1, field {}: column `{h}` appears twice", i + 1))),
        None => Ok(kind),
    }
}

/// Checks that a row has one field for every column, and that no field is too long.
fn check(record: &csv::StringRecord, headers: &[String]) -> Result<(), String> {
    if record.len() != headers.len() {
        return Err(format!(
            "column 1: {} fields, but the header names {}; quote fields that hold commas",
            record.len(),
            headers.len()
        ));
    }
    match record.iter().position(|f| f.len() > FIELD_BYTES_MAX) {
        Some(i) => Err(format!("field {} (`{}`): longer than {FIELD_BYTES_MAX} bytes", i + 1, headers[i])),
        None => Ok(()),
    }
}

impl Table {
    /// Reads a whole file, within limits.
    pub fn read(path: &Path) -> Result<Table, Failure> {
        let meta = std::fs::metadata(path).map_err(|e| Failure::file("read", path, e))?;
        if meta.is_dir() {
            return Err(Failure::input(format!("{} is a folder; name CSV files", path.display())));
        }
        if meta.len() > FILE_BYTES_MAX {
            return Err(Failure::input(format!(
                "{} has {} bytes; at most {FILE_BYTES_MAX} are read: split it",
                path.display(),
                meta.len()
            )));
        }
        let bytes = std::fs::read(path).map_err(|e| Failure::file("read", path, e))?;
        Self::parse(&path.display().to_string(), &bytes)
    }

    /// Reads the bytes of a file.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Table, Failure> {
        let text = utf8(name, bytes)?;
        let foreign_text = text.starts_with('\u{feff}') || text.contains('\r');
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut reader = csv::ReaderBuilder::new().has_headers(true).flexible(true).from_reader(text.as_bytes());
        let csv_error = |e: csv::Error| {
            let line = e.position().map_or(1, |p| p.line());
            Failure::input(format!("{name}, line {line}, column 1: {e}"))
        };
        let headers: Vec<String> = reader.headers().map_err(csv_error)?.iter().map(|h| h.trim().to_string()).collect();
        let kind = kind_of(name, &headers)?;
        let places: Vec<usize> = kind.columns().iter().map(|c| find(&headers, c).unwrap_or(0)).collect();
        let reordered = headers.iter().map(String::as_str).ne(kind.columns().iter().copied());
        let mut rows = Vec::new();
        for record in reader.records() {
            let record = record.map_err(csv_error)?;
            let line = record.position().map_or(1, |p| p.line());
            let error = |problem: String| Failure::input(format!("{name}, line {line}, {problem}"));
            if rows.len() >= ROWS_MAX {
                return Err(error(format!("column 1: more than {ROWS_MAX} rows; split the file")));
            }
            check(&record, &headers).map_err(error)?;
            let fields = places.iter().map(|&p| record.get(p).unwrap_or("").trim().to_string()).collect();
            rows.push(TableRow { line, fields });
        }
        Ok(Table { name: name.into(), kind, rows, reordered, foreign_text, places, text: text.into() })
    }

    /// A message about one field of one row: file, line, column, name of the field, the problem.
    pub fn at(&self, row: &TableRow, column: &str, problem: impl std::fmt::Display) -> Failure {
        Failure::input(self.place(row, column, problem))
    }

    /// The same as text.
    pub fn place(&self, row: &TableRow, column: &str, problem: impl std::fmt::Display) -> String {
        let index = self.kind.columns().iter().position(|c| *c == column).map_or(0, |i| self.places[i]);
        let line = self.text.lines().nth(row.line.saturating_sub(1) as usize).unwrap_or("");
        format!("{}, line {}, column {} (`{column}`): {problem}", self.name, row.line, column_of(line, index))
    }

    /// A field of a row.
    pub fn field<'r>(&self, row: &'r TableRow, column: &str) -> &'r str {
        self.kind.columns().iter().position(|c| *c == column).map_or("", |i| &row.fields[i])
    }

    /// A size in bytes, with or without a unit (`16MiB`); empty is `None`.
    pub fn size(&self, row: &TableRow, column: &str) -> Result<Option<Bytes>, Failure> {
        let text = self.field(row, column);
        if text.is_empty() {
            return Ok(None);
        }
        match Bytes::parse(text) {
            Ok(b) if (1..=SIZE_BYTES_MAX).contains(&b.0) => Ok(Some(b)),
            Ok(b) => Err(self.at(row, column, format!("{} bytes is outside 1 to {SIZE_BYTES_MAX}", b.0))),
            Err(e) => Err(self.at(row, column, shortened(&e))),
        }
    }

    /// A number within bounds; empty is `None`.
    pub fn number(&self, row: &TableRow, column: &str, low: f64, high: f64) -> Result<Option<f64>, Failure> {
        let text = self.field(row, column);
        if text.is_empty() {
            return Ok(None);
        }
        match text.parse::<f64>() {
            Ok(v) if v >= low && v <= high => Ok(Some(v)),
            Ok(v) => Err(self.at(row, column, format!("{v} is outside {low} to {high}"))),
            Err(_) => Err(self.at(row, column, format!("`{}` is not a number", shortened(text)))),
        }
    }
}

/// Start of a field in a line, counted in characters from 1; quotes are respected.
fn column_of(line: &str, index: usize) -> usize {
    let (mut field, mut quoted) = (0, false);
    if index == 0 {
        return 1;
    }
    for (i, c) in line.chars().enumerate() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => {
                field += 1;
                if field == index {
                    return i + 2;
                }
            }
            _ => {}
        }
    }
    1
}

/// At most 60 characters of a text.
pub fn shortened(text: &str) -> String {
    let mut s: String = text.chars().take(60).collect();
    if s.len() < text.len() {
        s.push('…');
    }
    s
}
