//! The result of an nccl-tests run, from its text or JSON output.

use topology::Collective;

/// Largest output, bytes.
pub const OUTPUT_BYTES_MAX: usize = 64 << 20;
/// Limit on result rows.
pub const ROWS_MAX: usize = 1_000_000;
/// Limit on rank lines.
pub const RANKS_MAX: usize = 1 << 20;

/// The out-of-place or in-place half of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NcclTestsTiming {
    /// Time of one operation, microseconds.
    pub time_us: f64,
    pub algbw_gb_per_s: f64,
    pub busbw_gb_per_s: f64,
    /// Wrong elements; `None` if not checked, or if the version printed an error magnitude.
    pub wrong: Option<u64>,
}

/// The result of one size.
#[derive(Clone, Debug, PartialEq)]
pub struct NcclTestsRow {
    /// The whole buffer.
    pub size_bytes: u64,
    /// Elements.
    pub count: u64,
    /// `float`, `half`, ...
    pub dtype: String,
    /// `sum`, ...; `None` if the collective has none.
    pub redop: Option<String>,
    /// Root rank; `None` if the collective has none or the version does not print it.
    pub root: Option<i64>,
    /// Separate send and receive buffers.
    pub out_of_place: NcclTestsTiming,
    /// One buffer for both, if run.
    pub in_place: Option<NcclTestsTiming>,
}

/// One `#  Rank` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NcclTestsRank {
    pub rank: u32,
    pub host: String,
    /// Index of the device among the visible ones.
    pub device: u32,
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NcclTestsReport {
    /// Version of nccl-tests.
    pub version: Option<String>,
    /// Version of the NCCL library, such as `2.27.7`.
    pub nccl_version: Option<String>,
    /// The collective, if reported.
    pub collective: Option<Collective>,
    /// The ranks, if listed. A JSON file lists only the first rank of each process.
    pub ranks: Vec<NcclTestsRank>,
    /// Number of ranks, if reported.
    pub rank_count: Option<usize>,
    pub rows: Vec<NcclTestsRow>,
    /// One message for each row that was left out because it has no bandwidth.
    pub left_out: Vec<String>,
    /// The average bus bandwidth, as printed.
    pub average_busbw_gb_per_s: Option<f64>,
    /// Out-of-bounds values, as printed.
    pub out_of_bounds: Option<u64>,
}

impl NcclTestsReport {
    /// The row of a size. nccl-tests rounds each rank's share down to 16 bytes, so up to 16 bytes per rank may be missing.
    pub fn row(&self, size_bytes: u64, ranks: usize) -> Option<&NcclTestsRow> {
        let slack = 16 * ranks as u64;
        self.rows
            .iter()
            .filter(|r| r.size_bytes.abs_diff(size_bytes) <= slack)
            .min_by_key(|r| r.size_bytes.abs_diff(size_bytes))
    }
}

/// An output that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ParseError {
    /// From 1.
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
