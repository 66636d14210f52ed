//! Peer-to-peer bandwidth matrices: the text of CUDA's `p2pBandwidthLatencyTest`, a square of numbers as CSV, or one
//! measurement per row (`matrix_id`, `src_gpu`, `dst_gpu`, `GBps`, and what is known beside).

use super::{Kind, Reading, infer, topo_m::plain, type_name};
use crate::allocation::GPUS_PER_HOST_MAX;
use crate::diagnose::ReadError;
use crate::host::{HostType, PathKind};
use crate::quantity::Bandwidth;
use std::collections::HashMap;

/// Most matrices in one file.
const MATRICES_MAX: usize = 1_000;
/// Fastest believable rate, GB/s: local copies reach some 8,000.
const RATE_MAX: f64 = 100_000.0;
const RERUN: &str = "run p2pBandwidthLatencyTest again and keep its whole output";

/// One matrix of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Its number or heading in the file.
    pub id: String,
    /// The system measured, if the file says.
    pub system: String,
    /// Where the numbers come from, if the file says.
    pub source: String,
    /// Both directions at once (the value is the sum)?
    pub bidirectional: bool,
    /// Peer-to-peer access on (direct) or off (through host memory).
    pub peer_access: bool,
    /// Reads instead of writes?
    pub reads: bool,
    /// `rate[from][to]`, GB/s; the diagonal is local copy speed, or 0 where it was not measured.
    pub gb_per_s: Vec<Vec<f64>>,
}

impl Matrix {
    /// GPUs.
    pub fn gpu_count(&self) -> usize {
        self.gb_per_s.len()
    }

    /// Rate in one direction; a bidirectional value counts half.
    fn one_way(&self) -> Vec<Vec<Bandwidth>> {
        let share = if self.bidirectional { 0.5 } else { 1.0 };
        let cell = |i: usize, j: usize, v: f64| Bandwidth::from_gb_per_s(if i == j { v } else { v * share });
        let row = |(i, r): (usize, &Vec<f64>)| r.iter().enumerate().map(|(j, &v)| cell(i, j, v)).collect();
        self.gb_per_s.iter().enumerate().map(row).collect()
    }

    /// Which of several matrices of one system says best what a collective gets: direct, one way, writes.
    fn rank(&self) -> u8 {
        u8::from(!self.peer_access) * 4 + u8::from(self.bidirectional) * 2 + u8::from(self.reads)
    }

    fn words(&self) -> String {
        format!(
            "{}{}, P2P {}",
            if self.bidirectional { "bidirectional" } else { "unidirectional" },
            if self.reads { " reads" } else { "" },
            if self.peer_access { "enabled" } else { "disabled" }
        )
    }
}

/// All matrices of a file; a partial or impossible matrix is an error of its own, the others stand.
pub type Matrices = Vec<Result<Matrix, ReadError>>;

/// Is this a heading of the test's text output?
pub fn is_text_heading(line: &str) -> bool {
    heading(line).is_some()
        || line.contains("P2P (Peer-to-Peer) GPU Bandwidth Latency Test")
        || line.trim_start().starts_with("P2P Connectivity Matrix")
}

/// Is this the first line of a CSV of either form?
pub fn is_csv_heading(line: &str) -> bool {
    let cells: Vec<&str> = line.split([',', ';']).map(|c| c.trim().trim_matches('"')).collect();
    let long = ["matrix_id", "src_gpu", "dst_gpu"].iter().filter(|k| cells.contains(k)).count() >= 2;
    let names = cells.len() > 1 && cells[0].is_empty() && cells[1..].iter().all(|c| column_index(c).is_some());
    long || names
        || (cells.len() > 1 && cells.iter().all(|c| c.parse::<f64>().is_ok()))
        || (cells.len() > 1 && cells.iter().enumerate().all(|(i, c)| column_index(c) == Some(i)))
}

/// `3`, `GPU3`, `D3`.
fn column_index(cell: &str) -> Option<usize> {
    let digits = cell.strip_prefix("GPU").or_else(|| cell.strip_prefix("D")).unwrap_or(cell);
    digits.trim().parse().ok().filter(|&n: &usize| n < 1_000)
}

/// What a heading says: (bidirectional, peer access, reads), or `None` for latency and connectivity.
fn heading(line: &str) -> Option<Option<(bool, bool, bool)>> {
    let l = line.trim();
    let is = l.ends_with("Matrix (GB/s)") || l.ends_with("Matrix (us)") || l == "P2P Connectivity Matrix";
    if !is {
        return None;
    }
    let bandwidth = l.contains("Bandwidth") && l.ends_with("(GB/s)");
    let enabled = l.contains("P2P=Enabled");
    Some(bandwidth.then(|| (l.starts_with("Bidirectional"), enabled, l.contains("Reads"))))
}

/// Reads the text output of the test. O(text).
pub fn read_text(text: &str, file: &str) -> Result<Reading, ReadError> {
    reading(Kind::P2pText, parse_text(text, file)?, text, file)
}

/// Reads a CSV of either form. O(text).
pub fn read_csv(text: &str, file: &str) -> Result<Reading, ReadError> {
    let first = text.lines().find(|l| !l.trim().is_empty() && !l.starts_with('#')).unwrap_or("");
    let matrices = match first.contains("src_gpu") || first.contains("dst_gpu") || first.contains("matrix_id") {
        true => parse_long_csv(text, file)?,
        false => vec![parse_square(text, file)],
    };
    reading(Kind::P2pCsv, matrices, text, file)
}

/// One type per system, from its most telling matrix.
fn reading(kind: Kind, matrices: Matrices, text: &str, file: &str) -> Result<Reading, ReadError> {
    let mut systems: Vec<Vec<Matrix>> = Vec::new();
    let mut refused = Vec::new();
    for m in matrices {
        match m {
            Ok(m) => {
                let same = |s: &&mut Vec<Matrix>| {
                    s[0].system == m.system && s[0].source == m.source && s[0].gpu_count() == m.gpu_count()
                };
                match systems.iter_mut().find(same) {
                    Some(s) => s.push(m),
                    None => systems.push(vec![m]),
                }
            }
            Err(e) => refused.push(e),
        }
    }
    if systems.is_empty() {
        return Err(match refused.into_iter().next() {
            Some(e) => e,
            None => ReadError::at(file, text, 0, 1, "no bandwidth matrix in GB/s", RERUN),
        });
    }
    let mut reading = Reading { kind, types: Vec::new(), notes: Vec::new(), refused };
    let several = systems.len() > 1;
    for system in systems {
        let best = system.iter().min_by_key(|m| m.rank()).unwrap_or(&system[0]);
        let stem = if several && !best.system.is_empty() { &best.system } else { file };
        let mut name = type_name(&stem.replace(['/', '\\', '.'], "-"));
        if !several {
            name = type_name(file);
        }
        while reading.types.iter().any(|t: &HostType| t.name == name) {
            name.push_str("-b");
        }
        reading.notes.push(format!("{name}: P2P rates from matrix {} ({})", best.id, best.words()));
        reading.types.push(host_type(name, best, file));
    }
    reading.notes.push(
        "a P2P matrix does not name links: every path is taken as SYS until `nvidia-smi topo -m` or NCCL XML of the same \
         host is imported with it"
            .into(),
    );
    Ok(reading)
}

fn host_type(name: String, m: &Matrix, file: &str) -> HostType {
    let n = m.gpu_count();
    let paths: Vec<Vec<PathKind>> =
        (0..n).map(|i| (0..n).map(|j| if i == j { PathKind::Same } else { PathKind::Sys }).collect()).collect();
    let model = infer::model_by_name(&m.system);
    HostType {
        name,
        description: format!("{n} GPUs, P2P rates measured ({})", m.words()),
        source: if m.source.is_empty() { super::base_name(file).to_string() } else { m.source.clone() },
        gpu_model: model.map_or("unknown", |m| m.name).to_string(),
        gpus: vec![Default::default(); n],
        pcie: infer::pcie(&paths, model).0,
        gpu_paths: paths,
        nvlink: None,
        nics: Vec::new(),
        p2p: Some(m.one_way()),
    }
}

/// A matrix in the making: cells with the line each came from.
struct Cells {
    n: usize,
    values: Vec<Option<(f64, usize)>>,
}

impl Cells {
    fn new(n: usize) -> Self {
        Cells { n, values: vec![None; n * n] }
    }

    /// The finished square, or the first missing or impossible cell. `lines` counts from 0.
    fn finish(self, text: &str, file: &str, what: &str, last: usize) -> Result<Vec<Vec<f64>>, ReadError> {
        let n = self.n;
        let missing = (0..n).filter(|i| self.values[i * n..(i + 1) * n].iter().all(Option::is_none)).count();
        let mut rows = vec![vec![0.0; n]; n];
        for (i, row) in rows.iter_mut().enumerate() {
            for (j, cell) in row.iter_mut().enumerate() {
                match self.values[i * n + j] {
                    None => {
                        let message = match missing {
                            0 => format!("{what}: the value from GPU{i} to GPU{j} is missing"),
                            _ => format!("{what}: {missing} of {n} rows are missing, the first is that of GPU{i}"),
                        };
                        let remedy = "a partial matrix cannot stand for the host; measure all pairs";
                        return Err(ReadError::at_line(file, text, last + 1, 1, 1, message, remedy));
                    }
                    Some((v, line)) => {
                        let least = if i == j { 0.0 } else { f64::MIN_POSITIVE };
                        if !(v >= least && v <= RATE_MAX) {
                            let message = format!("{what}: {v} GB/s from GPU{i} to GPU{j}");
                            let remedy = "a rate is above 0 (0 only on the diagonal) and below 100,000 GB/s";
                            return Err(ReadError::at_line(file, text, line + 1, 1, 1, message, remedy));
                        }
                        *cell = v;
                    }
                }
            }
        }
        Ok(rows)
    }
}

/// Every bandwidth matrix of the test's text output, in order. O(text).
pub fn parse_text(text: &str, file: &str) -> Result<Matrices, ReadError> {
    let lines: Vec<_> = text.split('\n').map(plain).collect();
    let mut out = Matrices::new();
    let mut i = 0;
    while i < lines.len() {
        let Some(what) = heading(&lines[i]) else {
            i += 1;
            continue;
        };
        let at = i;
        i += 1;
        let Some((bidirectional, peer_access, reads)) = what else { continue };
        if out.len() >= MATRICES_MAX {
            let message = format!("more than {MATRICES_MAX} matrices");
            return Err(ReadError::at_line(file, text, at + 1, 1, 1, message, "split the file"));
        }
        let id = lines[at].trim().to_string();
        let square = square_below(&lines, &mut i, at, text, file);
        out.push(square.map(|gb_per_s| Matrix {
            id,
            system: String::new(),
            source: file.to_string(),
            bidirectional,
            peer_access,
            reads,
            gb_per_s,
        }));
    }
    Ok(out)
}

/// The `D\D 0 1 ...` square below a heading.
fn square_below(
    lines: &[std::borrow::Cow<'_, str>],
    i: &mut usize,
    heading: usize,
    text: &str,
    file: &str,
) -> Result<Vec<Vec<f64>>, ReadError> {
    let what = lines[heading].trim();
    let fail = |line: usize, message: String| ReadError::at_line(file, text, line + 1, 1, 1, message, RERUN);
    let header = loop {
        match lines.get(*i) {
            Some(l) if l.trim().is_empty() => *i += 1,
            Some(l) if l.trim_start().starts_with("D\\D") => break l,
            _ => return Err(fail(heading, format!("`{what}` is not followed by a line `D\\D 0 1 ...`"))),
        }
    };
    let columns = header.split_whitespace().skip(1).count();
    if columns == 0 || columns > GPUS_PER_HOST_MAX {
        return Err(fail(*i, format!("{columns} columns; 1 to {GPUS_PER_HOST_MAX} GPUs are supported")));
    }
    let mut cells = Cells::new(columns);
    let mut last = *i;
    *i += 1;
    for row in 0..columns {
        let Some(line) = lines.get(*i) else { break };
        let mut words = line.split_whitespace();
        let index = words.next().and_then(|w| w.parse::<usize>().ok());
        if index != Some(row) {
            break;
        }
        let mut found = 0;
        for (j, word) in words.enumerate() {
            let value = word.parse::<f64>().map_err(|_| fail(*i, format!("`{word}` is not a rate")))?;
            if j >= columns {
                return Err(fail(*i, format!("the row of GPU{row} has more than {columns} values")));
            }
            cells.values[row * columns + j] = Some((value, *i));
            found += 1;
        }
        if found < columns {
            return Err(fail(*i, format!("the row of GPU{row} ends after {found} of {columns} values")));
        }
        last = *i;
        *i += 1;
    }
    cells.finish(text, file, what, last)
}

/// One square of numbers, with or without names of rows and columns. Taken as one-way rates, P2P enabled. O(text).
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

/// One measurement per row, several matrices told apart by `matrix_id`. O(text).
pub fn parse_long_csv(text: &str, file: &str) -> Result<Matrices, ReadError> {
    let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(text.as_bytes());
    let csv_error = |e: csv::Error| {
        let line = e.position().map_or(1, |p| p.line() as usize);
        ReadError::at_line(file, text, line, 1, 1, format!("not CSV: {e}"), "separate cells by commas, quote text")
    };
    let headers = reader.headers().map_err(csv_error)?.clone();
    let column = |name: &str| headers.iter().position(|h| h.eq_ignore_ascii_case(name));
    let need = |name: &str| {
        column(name).ok_or_else(|| {
            let remedy = "needed: matrix_id, src_gpu, dst_gpu, GBps; used if there: source, system, gpus, kind, p2p";
            ReadError::at_line(file, text, 1, 1, 1, format!("the column `{name}` is missing"), remedy)
        })
    };
    let (id, from, to, rate) = (need("matrix_id")?, need("src_gpu")?, need("dst_gpu")?, need("GBps")?);
    let (source, system, gpus) = (column("source"), column("system"), column("gpus"));
    let (kind, p2p) = (column("kind"), column("p2p"));

    struct Raw {
        id: String,
        system: String,
        source: String,
        kind: String,
        peer_access: bool,
        gpus: Option<usize>,
        values: Vec<(usize, usize, f64, usize)>,
        first_line: usize,
    }
    let mut raw: Vec<Raw> = Vec::new();
    let mut by_id: HashMap<String, usize> = HashMap::new();
    for record in reader.records() {
        let record = record.map_err(csv_error)?;
        let line = record.position().map_or(1, |p| p.line() as usize);
        let cell = |c: usize| record.get(c).unwrap_or("");
        let text_of = |c: Option<usize>| c.map_or(String::new(), |c| cell(c).chars().take(200).collect());
        let fail = |name: &str, found: &str, wanted: &str| {
            let raw = text.split('\n').nth(line - 1).unwrap_or("");
            let at = if found.is_empty() { 0 } else { raw.find(found).unwrap_or(0) };
            let at = raw[..at].chars().count() + 1;
            let message = format!("`{found}` in column `{name}`; {wanted}");
            ReadError::at_line(
                file,
                text,
                line,
                at,
                found.chars().count(),
                message,
                "repair the row or remove its matrix",
            )
        };
        let gpu = |c: usize, name: &str| {
            cell(c)
                .parse::<usize>()
                .ok()
                .filter(|&g| g < GPUS_PER_HOST_MAX)
                .ok_or_else(|| fail(name, cell(c), "a GPU index from 0 to 15 was expected"))
        };
        let (i, j) = (gpu(from, "src_gpu")?, gpu(to, "dst_gpu")?);
        let value = cell(rate).parse::<f64>().map_err(|_| fail("GBps", cell(rate), "a rate in GB/s was expected"))?;
        let known = by_id.get(cell(id)).copied();
        let at = match known {
            Some(at) => at,
            None if raw.len() >= MATRICES_MAX => return Err(fail("matrix_id", cell(id), "at most 1,000 matrices")),
            None => {
                by_id.insert(cell(id).to_string(), raw.len());
                raw.push(Raw {
                    id: cell(id).chars().take(50).collect(),
                    system: text_of(system),
                    source: text_of(source),
                    kind: text_of(kind),
                    peer_access: !text_of(p2p).eq_ignore_ascii_case("disabled"),
                    gpus: gpus.and_then(|c| cell(c).parse().ok()),
                    values: Vec::new(),
                    first_line: line,
                });
                raw.len() - 1
            }
        };
        if raw[at].values.iter().any(|&(a, b, ..)| (a, b) == (i, j)) {
            let message = format!("matrix {} has a second value from GPU{i} to GPU{j}", raw[at].id);
            return Err(ReadError::at_line(file, text, line, 1, 1, message, "remove one of the two rows"));
        }
        raw[at].values.push((i, j, value, line - 1));
    }
    let finish = |m: Raw| {
        let seen = m.values.iter().map(|v| v.0.max(v.1) + 1).max().unwrap_or(1);
        let n = m.gpus.unwrap_or(seen).max(seen);
        let what = format!("matrix {}", m.id);
        if n > GPUS_PER_HOST_MAX {
            let message = format!("{what} is of {n} GPUs; at most {GPUS_PER_HOST_MAX} are supported");
            return Err(ReadError::at_line(file, text, m.first_line, 1, 1, message, "one matrix describes one host"));
        }
        let mut cells = Cells::new(n);
        let mut last = m.first_line - 1;
        for (i, j, v, line) in m.values {
            cells.values[i * n + j] = Some((v, line));
            last = line;
        }
        Ok(Matrix {
            id: m.id,
            system: m.system,
            source: m.source,
            bidirectional: m.kind.starts_with("Bidirectional"),
            reads: m.kind.contains("Reads"),
            peer_access: m.peer_access,
            gb_per_s: cells.finish(text, file, &what, last)?,
        })
    };
    Ok(raw.into_iter().map(finish).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\n\
        Device: 0, NVIDIA H100, pciBusID: 4, pciDeviceID: 0, pciDomainID:0\n\
        P2P Connectivity Matrix\n     D\\D     0     1\n     0\t     1     1\n     1\t     1     1\n\
        Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)\n   D\\D     0      1\n     0 2400.1  37.2\n     1  37.0 2410.5\n\
        Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n   D\\D     0      1\n     0 2400.1 380.2\n     1 381.0 2410.5\n\
        Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n   D\\D     0      1\n     0 2400.1 760.0\n     1 762.0 2410.5\n\
        P2P=Enabled Latency (P2P Writes) Matrix (us)\n   GPU     0      1\n     0   2.1   2.5\n     1   2.4   2.1\n";

    #[test]
    fn the_one_way_matrix_with_peer_access_is_chosen() {
        let matrices = parse_text(TEXT, "f").unwrap();
        assert_eq!(matrices.len(), 3, "latency and connectivity are no bandwidth");
        let r = read_text(TEXT, "f").unwrap();
        let p2p = r.single().unwrap().p2p.clone().unwrap();
        assert_eq!(p2p[0][1].gb_per_s(), 380.2);
        assert_eq!(p2p[1][0].gb_per_s(), 381.0);
    }

    #[test]
    fn a_bidirectional_value_counts_half_in_each_direction() {
        let text = &TEXT[TEXT.find("Bidirectional").unwrap()..];
        let p2p = read_text(text, "f").unwrap().types[0].p2p.clone().unwrap();
        assert_eq!((p2p[0][1].gb_per_s(), p2p[0][0].gb_per_s()), (380.0, 2400.1));
    }

    #[test]
    fn a_square_may_have_names_of_rows_and_columns() {
        for text in ["0,5\n6,0\n", ",GPU0,GPU1\nGPU0,0,5\nGPU1,6,0\n", "0,1\n0,5\n6,0\n", "0;5\n6;0"] {
            assert_eq!(parse_square(text, "f").unwrap().gb_per_s, [[0.0, 5.0], [6.0, 0.0]], "{text}");
        }
        for bad in ["0,5\n6\n", "0,x\n6,0\n", "0,-1\n6,0\n", "0,NaN\n6,0\n", "0,0\n6,0\n"] {
            assert!(parse_square(bad, "f").is_err(), "{bad}");
        }
    }
}
