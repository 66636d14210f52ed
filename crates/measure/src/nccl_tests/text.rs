//! The text output of nccl-tests, old and new versions.
//!
//! Columns are identified by the header line (`size count type redop root time algbw busbw #wrong ...`), so that rows of 12 fields (no root), 13 or
//! 21 (`-I`), with `cputime` (`-C`), with `error` instead of `#wrong`, or with time stamps (`-S`, two more tokens) are all read. Without a header the
//! number of fields decides. Lines that are neither comments nor rows (NCCL's log, MPI's messages) are skipped.

use super::report::{
    NcclTestsRank, NcclTestsReport, NcclTestsRow, NcclTestsTiming, OUTPUT_BYTES_MAX, ParseError, RANKS_MAX, ROWS_MAX,
    shorten, version_of_code,
};

/// Longest line, bytes.
const LINE_BYTES_MAX: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Column {
    Size,
    Count,
    Type,
    Op,
    Root,
    Time,
    Algbw,
    Busbw,
    Wrong,
    Error,
    Other,
}

fn column(name: &str) -> Column {
    match name.trim_start_matches('#') {
        "size" | "bytes" => Column::Size,
        "count" | "N" => Column::Count,
        "type" => Column::Type,
        "redop" | "op" => Column::Op,
        "root" => Column::Root,
        "time" | "cputime" => Column::Time,
        "algbw" => Column::Algbw,
        "busbw" => Column::Busbw,
        "wrong" => Column::Wrong,
        "error" | "res" => Column::Error,
        _ => Column::Other,
    }
}

/// The columns without a header: 12, 13 or 21 fields.
fn columns_by_count(fields: usize) -> Option<Vec<Column>> {
    use Column::*;
    let mut columns = vec![Size, Count, Type, Op];
    if fields != 12 {
        columns.push(Root);
    }
    let half: &[Column] = match fields {
        12 | 13 => &[Time, Algbw, Busbw, Wrong],
        21 => &[Time, Algbw, Busbw, Wrong, Other, Other, Other, Other],
        _ => return None,
    };
    columns.extend(half.iter().chain(half));
    Some(columns)
}

/// Reads the output of one run. O(bytes).
///
/// # Errors
/// An error has its position in the text. An output without a result row is an error that quotes the failure that
/// nccl-tests reported, if any.
pub fn parse_text(text: &str) -> Result<NcclTestsReport, ParseError> {
    if text.len() > OUTPUT_BYTES_MAX {
        return Err(ParseError::at(1, 1, format!("the output is larger than {} MiB", OUTPUT_BYTES_MAX >> 20)));
    }
    let mut report = NcclTestsReport::default();
    let mut columns: Option<Vec<Column>> = None;
    let mut failure: Option<(usize, String)> = None;
    let mut lines = 0;
    for (i, raw) in text.lines().enumerate() {
        lines = i + 1;
        if raw.len() > LINE_BYTES_MAX {
            return Err(ParseError::at(lines, 1, format!("a line of {} bytes; at most {LINE_BYTES_MAX}", raw.len())));
        }
        let line = without_mpi_tag(raw);
        if let Some(comment) = line.trim_start().strip_prefix('#') {
            if let Some(header) = header_columns(comment) {
                columns = Some(header);
            } else {
                read_comment(comment, &mut report);
            }
            continue;
        }
        let tokens = without_time_stamp(tokens(line, raw.len() - line.len()));
        let Some(first) = tokens.first() else { continue };
        if !first.1.bytes().all(|b| b.is_ascii_digit()) || tokens.len() < 8 {
            if failure.is_none() && is_failure(line) {
                failure = Some((lines, shorten(line.trim())));
            }
            continue;
        }
        if report.rows.len() >= ROWS_MAX {
            return Err(ParseError::at(lines, 1, format!("more than {ROWS_MAX} result rows")));
        }
        report.rows.push(read_row(&tokens, columns.as_deref(), lines)?);
    }
    report.rank_count = (!report.ranks.is_empty()).then_some(report.ranks.len());
    if report.rows.is_empty() {
        return Err(match failure {
            Some((line, what)) => ParseError::at(line, 1, format!("the run failed: {what}")),
            None => ParseError::at(
                lines.max(1),
                1,
                "no result row; a line such as `16777216 4194304 float sum -1 ...` was expected",
            ),
        });
    }
    Ok(report)
}

fn is_failure(line: &str) -> bool {
    ["Test NCCL failure", "Test CUDA failure", "Test failure", "NCCL WARN", "error while loading shared libraries"]
        .iter()
        .any(|f| line.contains(f))
}

/// Removes `[1,0]<stdout>:`, which Open MPI's `--tag-output` puts before every line.
fn without_mpi_tag(line: &str) -> &str {
    match line.strip_prefix('[').and_then(|l| l.split_once("<stdout>:")) {
        Some((tag, rest)) if tag.len() < 40 => rest,
        _ => line,
    }
}

/// Tokens with their columns (characters, from 1).
fn tokens(line: &str, offset: usize) -> Vec<(usize, &str)> {
    let base = line.as_ptr() as usize;
    line.split_whitespace().map(|t| (offset + t.as_ptr() as usize - base + 1, t)).collect()
}

/// Removes a date and time at either end.
fn without_time_stamp(mut tokens: Vec<(usize, &str)>) -> Vec<(usize, &str)> {
    let digits = |t: &str, sep: char| {
        let parts: Vec<&str> = t.split(sep).collect();
        parts.len() == 3 && parts.iter().all(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit() || b == b'.'))
    };
    let stamp = |a: &str, b: &str| digits(a, '-') && digits(b, ':');
    let n = tokens.len();
    if n >= 2 && stamp(tokens[n - 2].1, tokens[n - 1].1) {
        tokens.truncate(n - 2);
    } else if n >= 2 && stamp(tokens[0].1, tokens[1].1) {
        tokens.drain(..2);
    }
    tokens
}

fn header_columns(comment: &str) -> Option<Vec<Column>> {
    let names: Vec<&str> = comment.split_whitespace().collect();
    let all: Vec<Column> = names.iter().filter(|n| !n.eq_ignore_ascii_case("timestamp")).map(|n| column(n)).collect();
    let has = |c| all.contains(&c);
    (has(Column::Size) && has(Column::Count) && has(Column::Busbw)).then_some(all)
}

fn read_comment(comment: &str, report: &mut NcclTestsReport) {
    let c = comment.trim();
    let after = |key: &str| c.split_once(key).map(|(_, rest)| rest.trim());
    let number = |key: &str| {
        after(key)
            .and_then(|r| r.trim_start_matches([':', '=']).split_whitespace().next())
            .and_then(|t| t.parse::<u64>().ok())
    };
    if let Some(rest) = c.strip_prefix("nccl-tests version") {
        report.version = rest.split_whitespace().next().map(shorten);
    }
    if let Some(code) = number("nccl-library") {
        report.nccl_version = Some(version_of_code(code));
    } else if let Some(v) = after("NCCL version").filter(|_| report.nccl_version.is_none()) {
        let v = v.split(['+', ' ']).next().unwrap_or("");
        report.nccl_version = (!v.is_empty()).then(|| shorten(v));
    }
    if let Some(name) = after("Collective test starting:") {
        report.collective = name.trim_end_matches("_perf").parse().ok();
    }
    if c.starts_with("Out of bounds values") {
        report.out_of_bounds = number("Out of bounds values");
    }
    if let Some(avg) = after("Avg bus bandwidth") {
        report.average_busbw_gb_per_s = avg.trim_start_matches(':').trim().parse().ok().filter(|v: &f64| v.is_finite());
    }
    if c.starts_with("Rank") && report.ranks.len() < RANKS_MAX {
        let tokens: Vec<&str> = c.split_whitespace().collect();
        let next = |key: &str| tokens.iter().position(|t| *t == key).and_then(|i| tokens.get(i + 1)).copied();
        if let (Some(Ok(rank)), Some(host), Some(Ok(device))) =
            (next("Rank").map(str::parse), next("on"), next("device").map(str::parse))
        {
            report.ranks.push(NcclTestsRank { rank, host: shorten(host), device });
        }
    }
}

/// The columns of a row: those of the header, or without a header by the number of fields.
fn columns_of_row(found: usize, header: Option<&[Column]>) -> Result<Vec<Column>, String> {
    match header {
        Some(h) if h.len() == found => Ok(h.to_vec()),
        // Old versions without `root` in the rows printed a wider header.
        Some(h) => Err(h.len().to_string()),
        None => columns_by_count(found).ok_or_else(|| "12, 13 or 21".to_owned()),
    }
}

/// A field of a row and its place in the text.
#[derive(Clone, Copy)]
struct Field<'a> {
    line: usize,
    column: usize,
    text: &'a str,
}

impl Field<'_> {
    fn error(self, what: impl Into<String>) -> ParseError {
        ParseError::at(self.line, self.column, what)
    }
    fn whole(self) -> Result<u64, ParseError> {
        self.text.parse().map_err(|_| self.error(format!("`{}` is not a whole number", shorten(self.text))))
    }
    fn number(self) -> Result<f64, ParseError> {
        self.text
            .parse::<f64>()
            .ok()
            .filter(|v| v.is_finite() && *v >= 0.0)
            .ok_or_else(|| self.error(format!("`{}` is not a number of microseconds or GB/s", shorten(self.text))))
    }
    /// `None` for the -1 of collectives without a root.
    fn root(self) -> Result<Option<i64>, ParseError> {
        let root: i64 =
            self.text.parse().map_err(|_| self.error(format!("root `{}` is not a rank", shorten(self.text))))?;
        Ok((root >= 0).then_some(root))
    }
}

const NO_TIMING: NcclTestsTiming =
    NcclTestsTiming { time_us: 0.0, algbw_gb_per_s: 0.0, busbw_gb_per_s: 0.0, wrong: None };

fn read_row(tokens: &[(usize, &str)], header: Option<&[Column]>, line: usize) -> Result<NcclTestsRow, ParseError> {
    let found = tokens.len();
    let columns = columns_of_row(found, header).map_err(|expected| {
        let end = tokens.last().map_or(1, |t| t.0);
        ParseError::at(line, end, format!("a row of {found} fields; {expected} were expected (cut off?)"))
    })?;
    let mut row = NcclTestsRow {
        size_bytes: 0,
        count: 0,
        dtype: String::new(),
        redop: None,
        root: None,
        out_of_place: NO_TIMING,
        in_place: None,
    };
    let mut halves: Vec<NcclTestsTiming> = Vec::new();
    for (column, &(at, text)) in columns.iter().zip(tokens) {
        let field = Field { line, column: at, text };
        match column {
            Column::Size => row.size_bytes = field.whole()?,
            Column::Count => row.count = field.whole()?,
            Column::Type => row.dtype = shorten(text),
            Column::Op => row.redop = (text != "none").then(|| shorten(text)),
            Column::Root => row.root = field.root()?,
            Column::Time => halves.push(NcclTestsTiming { time_us: field.number()?, ..NO_TIMING }),
            Column::Algbw | Column::Busbw | Column::Wrong => read_half(&mut halves, *column, field)?,
            Column::Error | Column::Other => {}
        }
    }
    let mut halves = halves.into_iter();
    row.out_of_place = halves.next().ok_or_else(|| ParseError::at(line, 1, "the row has no time"))?;
    row.in_place = halves.next();
    Ok(row)
}

/// Reads a column of the half (out of place, then in place) that the last time column began.
fn read_half(halves: &mut [NcclTestsTiming], column: Column, field: Field) -> Result<(), ParseError> {
    let half = halves.last_mut().ok_or_else(|| {
        field.error("a bandwidth column comes before any time column; the header is not from nccl-tests")
    })?;
    match column {
        Column::Algbw => half.algbw_gb_per_s = field.number()?,
        Column::Busbw => half.busbw_gb_per_s = field.number()?,
        _ if field.text == "N/A" => {}
        _ => half.wrong = Some(field.number()? as u64),
    }
    Ok(())
}
