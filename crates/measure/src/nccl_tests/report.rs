//! What an nccl-tests run says, whichever way it was printed.

use topology::Collective;

/// Largest output that is read, bytes.
pub const OUTPUT_BYTES_MAX: usize = 64 << 20;
/// Most result rows.
pub const ROWS_MAX: usize = 1_000_000;
/// Most rank lines.
pub const RANKS_MAX: usize = 1 << 20;

/// One of the two halves of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Half {
    /// Time of one operation, microseconds.
    pub time_us: f64,
    /// Algorithm bandwidth, GB/s.
    pub algbw_gb_per_s: f64,
    /// Bus bandwidth, GB/s.
    pub busbw_gb_per_s: f64,
    /// Wrong elements; none = not checked, or a version that printed an error magnitude instead.
    pub wrong: Option<u64>,
}

/// One size.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Whole buffer, bytes.
    pub size_bytes: u64,
    /// Elements.
    pub count: u64,
    /// `float`, `half`, ...
    pub dtype: String,
    /// `sum`, ...; none = the collective has none.
    pub redop: Option<String>,
    /// Root rank; none = the collective has none, or the version does not print it.
    pub root: Option<i64>,
    /// Separate send and receive buffers.
    pub out_of_place: Half,
    /// One buffer for both, if it was run.
    pub in_place: Option<Half>,
}

/// One `#  Rank` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Rank.
    pub rank: u32,
    /// Host name.
    pub host: String,
    /// Index of the device among the visible ones.
    pub device: u32,
}

/// A whole run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Version of nccl-tests.
    pub version: Option<String>,
    /// Version of the NCCL library, `2.27.7`.
    pub nccl_version: Option<String>,
    /// What ran, if said.
    pub collective: Option<Collective>,
    /// The ranks, if listed.
    pub ranks: Vec<Rank>,
    /// The sizes.
    pub rows: Vec<Row>,
    /// Average bus bandwidth as printed, GB/s.
    pub average_busbw_gb_per_s: Option<f64>,
    /// Values out of bounds as printed.
    pub out_of_bounds: Option<u64>,
}

impl Report {
    /// The row of a size. nccl-tests rounds every rank's share down to 16 bytes, so up to 16 bytes a rank may be missing.
    pub fn row(&self, size_bytes: u64, ranks: usize) -> Option<&Row> {
        let slack = 16 * ranks as u64;
        self.rows
            .iter()
            .filter(|r| r.size_bytes.abs_diff(size_bytes) <= slack)
            .min_by_key(|r| r.size_bytes.abs_diff(size_bytes))
    }
}

/// What cannot be read, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: usize,
    /// Character of the line, from 1.
    pub column: usize,
    /// What was found and what was expected.
    pub message: String,
}

impl ParseError {
    pub(crate) fn at(line: usize, column: usize, message: impl Into<String>) -> Self {
        ParseError { line, column, message: message.into() }
    }
}

/// NCCL's version from its code: 22707 is 2.27.7, 2804 (before 2.9) is 2.8.4.
pub(crate) fn version_of_code(code: u64) -> String {
    if code < 10_000 {
        format!("{}.{}.{}", code / 1000, code / 100 % 10, code % 100)
    } else {
        format!("{}.{}.{}", code / 10_000, code / 100 % 100, code % 100)
    }
}

/// At most 60 characters of `text`, for messages.
pub(crate) fn shorten(text: &str) -> String {
    if text.chars().count() > 60 { text.chars().take(60).chain(std::iter::once('…')).collect() } else { text.into() }
}
