//! The text output of CUDA's `p2pBandwidthLatencyTest`.

use super::{Cells, MATRICES_MAX, Matrices, Matrix, RERUN};
use crate::allocation::GPUS_PER_HOST_MAX;
use crate::diagnose::ReadError;
use crate::read::topo_m::plain;

/// True if this is a heading of the test's text output.
pub fn is_text_heading(line: &str) -> bool {
    heading(line).is_some()
        || line.contains("P2P (Peer-to-Peer) GPU Bandwidth Latency Test")
        || line.trim_start().starts_with("P2P Connectivity Matrix")
}

/// The kind of matrix below a heading: (bidirectional, peer access, reads), or `None` for latency and connectivity.
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
