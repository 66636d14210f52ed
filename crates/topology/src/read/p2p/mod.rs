//! Peer-to-peer bandwidth matrices: the text of CUDA's `p2pBandwidthLatencyTest`, a square of numbers as CSV, or one
//! measurement per row (`matrix_id`, `src_gpu`, `dst_gpu`, `GBps`, and optional columns on the system).

mod long;
mod square;
mod text;

pub use long::parse_long_csv;
pub use square::{is_csv_heading, parse_square};
pub use text::{is_text_heading, parse_text};

use super::{FileKind, TopologyFile, infer, type_name};
use crate::diagnose::ReadError;
use crate::host::{HostType, PathKind};
use crate::quantity::Bandwidth;

/// Maximum number of matrices in one file.
const MATRICES_MAX: usize = 1_000;
/// Maximum plausible rate, GB/s. Local copies reach about 8,000.
const RATE_MAX: f64 = 100_000.0;
const RERUN: &str = "run p2pBandwidthLatencyTest again and keep its whole output";

/// One matrix of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Its number or heading in the file.
    pub id: String,
    /// The measured system, if the file names it.
    pub system: String,
    /// Source of the numbers, if the file names it.
    pub source: String,
    /// True if both directions were measured at once; the value is their sum.
    pub bidirectional: bool,
    /// True if peer-to-peer access is on (direct), false if it is off (through host memory).
    pub peer_access: bool,
    /// True for reads, false for writes.
    pub reads: bool,
    /// `rate[from][to]`, GB/s; the diagonal is the rate of local copies, or 0 if it was not measured.
    pub gb_per_s: Vec<Vec<f64>>,
}

impl Matrix {
    /// Number of GPUs.
    pub fn gpu_count(&self) -> usize {
        self.gb_per_s.len()
    }

    /// Rate in one direction: half of a bidirectional value.
    fn one_way(&self) -> Vec<Vec<Bandwidth>> {
        let share = if self.bidirectional { 0.5 } else { 1.0 };
        let cell = |i: usize, j: usize, v: f64| Bandwidth::from_gb_per_s(if i == j { v } else { v * share });
        let row = |(i, r): (usize, &Vec<f64>)| r.iter().enumerate().map(|(j, &v)| cell(i, j, v)).collect();
        self.gb_per_s.iter().enumerate().map(row).collect()
    }

    /// Sort key of the matrices of one system, best first: direct one-way writes predict collectives best.
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

/// All matrices of a file. A partial or impossible matrix gives its own error and does not affect other matrices.
pub type Matrices = Vec<Result<Matrix, ReadError>>;

/// Reads the text output of the test. O(text).
pub fn read_text(text: &str, file: &str) -> Result<TopologyFile, ReadError> {
    reading(FileKind::P2pText, parse_text(text, file)?, text, file)
}

/// Reads a CSV of either form. O(text).
pub fn read_csv(text: &str, file: &str) -> Result<TopologyFile, ReadError> {
    let first = text.lines().find(|l| !l.trim().is_empty() && !l.starts_with('#')).unwrap_or("");
    let matrices = match first.contains("src_gpu") || first.contains("dst_gpu") || first.contains("matrix_id") {
        true => parse_long_csv(text, file)?,
        false => vec![parse_square(text, file)],
    };
    reading(FileKind::P2pCsv, matrices, text, file)
}

/// One host type per system, from the matrix that predicts collectives best ([`Matrix::rank`]).
fn reading(kind: FileKind, matrices: Matrices, text: &str, file: &str) -> Result<TopologyFile, ReadError> {
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
    let mut reading = TopologyFile { kind, types: Vec::new(), notes: Vec::new(), refused };
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

/// An unfinished matrix: every cell with its line.
struct Cells {
    n: usize,
    values: Vec<Option<(f64, usize)>>,
}

impl Cells {
    fn new(n: usize) -> Self {
        Cells { n, values: vec![None; n * n] }
    }

    /// The complete square, or an error for the first missing or impossible cell. `lines` counts from 0.
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
                        let remedy = "a partial matrix does not describe the host; measure all pairs";
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
