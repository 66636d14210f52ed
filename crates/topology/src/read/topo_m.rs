//! `nvidia-smi topo -m`: a matrix of labels between GPUs and NICs, then CPU and NUMA affinity.
//!
//! Drivers differ in columns (`CPU Affinity`; `NUMA Affinity` since 450; `GPU NUMA ID` since 535), in separators (tabs
//! or aligned spaces), in NIC names (`mlx5_0`, or `NIC0` with a legend below) and in blank cells. The header is printed
//! underlined with escape codes.

use super::{FileKind, TopologyFile, infer, type_name};
use crate::allocation::GPUS_PER_HOST_MAX;
use crate::diagnose::{ReadError, did_you_mean};
use crate::host::{Gpu, HostType, NICS_PER_HOST_MAX, Nic, PathKind};
use crate::quantity::Bandwidth;
use std::borrow::Cow;
use std::collections::HashMap;

/// The labels of the legend, for messages.
const LABELS: [&str; 7] = ["X", "NV4", "PIX", "PXB", "PHB", "NODE", "SYS"];
const RERUN: &str = "run `nvidia-smi topo -m` again and keep its whole output, one line per row";

/// A line with escape codes (`ESC [ ... letter`) and carriage return removed.
pub fn plain(line: &str) -> Cow<'_, str> {
    let line = line.trim_end_matches('\r');
    if !line.contains('\u{1b}') {
        return Cow::Borrowed(line);
    }
    let mut out = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c != '\u{1b}' {
            out.push(c);
        } else if chars.next() == Some('[') {
            // Parameters end with a byte from @ to ~.
            for c in chars.by_ref() {
                if ('@'..='~').contains(&c) {
                    break;
                }
            }
        }
    }
    Cow::Owned(out)
}

/// True for the line of column names: its first word is GPU0 and its second is not a label.
pub fn is_header(line: &str) -> bool {
    let mut words = line.split_whitespace();
    words.next() == Some("GPU0") && words.next().is_none_or(|w| gpu_index(w).is_some() || !is_label_like(w))
}

fn is_label_like(word: &str) -> bool {
    word.parse::<PathKind>().is_ok() || word == "N/A"
}

fn gpu_index(word: &str) -> Option<usize> {
    word.strip_prefix("GPU")?.parse().ok()
}

/// One matrix of the file, as printed.
struct Block<'t> {
    header_line: usize,
    gpus: usize,
    /// Column names of the NICs.
    nics: Vec<&'t str>,
    has_numa_column: bool,
    has_cpu_column: bool,
    has_gpu_numa_column: bool,
    /// Labels of each row read so far, by column.
    rows: Vec<Option<Vec<PathKind>>>,
    /// Line of each row.
    row_lines: Vec<usize>,
    /// Cells after the labels of a GPU row.
    affinity: Vec<Affinity>,
}

#[derive(Clone, Default)]
struct Affinity {
    numa: Option<u8>,
    cpus: String,
}

/// Reads the output. Each distinct matrix gives one host type. O(text).
pub fn read(text: &str, file: &str) -> Result<TopologyFile, ReadError> {
    let lines: Vec<Cow<'_, str>> = text.split('\n').map(plain).collect();
    let starts: Vec<usize> = (0..lines.len()).filter(|&i| is_header(&lines[i])).collect();
    let Some(&first) = starts.first() else {
        return Err(ReadError::at(file, text, 0, 1, "no line of column names (GPU0 GPU1 ...)", RERUN));
    };
    let mut reading =
        TopologyFile { kind: FileKind::TopoMatrix, types: Vec::new(), notes: Vec::new(), refused: Vec::new() };
    let _ = first;
    for (k, &start) in starts.iter().take(super::TYPES_PER_FILE_MAX).enumerate() {
        let end = starts.get(k + 1).copied().unwrap_or(lines.len());
        let block = Parser { file, text, lines: &lines[..end] }.block(start)?;
        let legend = legend(&lines[start..end]);
        let (mut host_type, notes) = block.host_type(file, text, &legend)?;
        if reading.types.iter().any(|t| t.gpu_paths == host_type.gpu_paths && t.nics == host_type.nics) {
            continue;
        }
        if k > 0 {
            host_type.name = format!("{}-{}", host_type.name, k + 1);
        }
        reading.types.push(host_type);
        reading.notes.extend(notes);
    }
    Ok(reading)
}

/// Device names from lines such as `NIC0: mlx5_0` below `NIC Legend:`.
fn legend(lines: &[Cow<'_, str>]) -> HashMap<String, String> {
    let mut names = HashMap::new();
    for line in lines {
        let Some((nic, name)) = line.split_once(':') else { continue };
        let (nic, name) = (nic.trim(), name.trim());
        let is_nic = nic.strip_prefix("NIC").is_some_and(|n| n.parse::<u16>().is_ok());
        if is_nic && !name.is_empty() && name.len() <= 64 && !name.contains(char::is_whitespace) {
            names.insert(nic.to_string(), name.to_string());
        }
    }
    names
}

struct Parser<'t> {
    file: &'t str,
    text: &'t str,
    lines: &'t [Cow<'t, str>],
}

impl<'t> Parser<'t> {
    fn error(&self, line: usize, word: &str, message: String, remedy: &str) -> ReadError {
        // Columns are counted in the raw line, escape codes included, as editors count them.
        let raw = self.text.split('\n').nth(line).unwrap_or("");
        let at = if word.is_empty() {
            raw.trim_end().chars().count()
        } else {
            // The offset of `word` is its offset in the plain line, which is correct unless escape codes precede it.
            let plain = &self.lines[line];
            let offset = (word.as_ptr() as usize).wrapping_sub(plain.as_ptr() as usize);
            match offset <= plain.len() && matches!(plain, Cow::Borrowed(_)) {
                true => raw[..offset].chars().count(),
                false => raw.find(word).map_or(0, |b| raw[..b].chars().count()),
            }
        };
        ReadError::at_line(self.file, self.text, line + 1, at + 1, word.chars().count().max(1), message, remedy)
    }

    fn block(&self, start: usize) -> Result<Block<'t>, ReadError> {
        let mut block = self.header(start)?;
        let columns = block.gpus + block.nics.len();
        for i in start + 1..self.lines.len() {
            let line: &'t str = &self.lines[i];
            let Some(name) = line.split_whitespace().next() else {
                if block.rows.iter().all(Option::is_some) {
                    break;
                }
                continue;
            };
            let row = match gpu_index(name) {
                Some(g) if g < block.gpus => g,
                Some(g) => {
                    let message = format!("a row of GPU{g}, but the header names GPU0 to GPU{}", block.gpus - 1);
                    return Err(self.error(i, name, message, RERUN));
                }
                None => match block.nics.iter().position(|n| *n == name) {
                    Some(p) => block.gpus + p,
                    // The legend or any other text ends the matrix.
                    None => break,
                },
            };
            if block.rows[row].is_some() {
                return Err(self.error(i, name, format!("{name} has a second row"), RERUN));
            }
            let (labels, rest) = self.labels(i, line, name, columns)?;
            if row < block.gpus {
                block.affinity[row] = self.affinity(&block, rest);
            } else if let Some(extra) = rest.first() {
                let message = format!("`{extra}` follows the {columns} labels of {name}");
                return Err(self.error(i, extra, message, RERUN));
            }
            block.rows[row] = Some(labels);
            block.row_lines[row] = i;
        }
        self.check(&block)?;
        Ok(block)
    }

    fn header(&self, start: usize) -> Result<Block<'t>, ReadError> {
        let line: &'t str = &self.lines[start];
        let words: Vec<&'t str> = line.split_whitespace().collect();
        let devices: Vec<&'t str> =
            words.iter().copied().take_while(|w| !matches!(*w, "CPU" | "NUMA" | "GPU" | "Affinity")).collect();
        let gpus = devices.iter().take_while(|w| gpu_index(w).is_some()).count();
        for (i, w) in devices.iter().enumerate() {
            match gpu_index(w) {
                Some(g) if i < gpus && g == i => {}
                Some(_) => {
                    let message = format!("column {} is {w}; expected GPU{i}", i + 1);
                    return Err(self.error(
                        start,
                        w,
                        message,
                        "GPUs are numbered from 0 without gaps; do not cut columns",
                    ));
                }
                None => {}
            }
        }
        if gpus > GPUS_PER_HOST_MAX {
            let message = format!("{gpus} GPUs; at most {GPUS_PER_HOST_MAX} per host are supported");
            return Err(self.error(start, devices[GPUS_PER_HOST_MAX], message, "one file describes one host"));
        }
        let nics = devices[gpus..].to_vec();
        if nics.len() > NICS_PER_HOST_MAX {
            let message = format!("{} NICs; at most {NICS_PER_HOST_MAX} per host are supported", nics.len());
            return Err(self.error(start, nics[NICS_PER_HOST_MAX], message, "one file describes one host"));
        }
        if let Some((_, n)) = nics.iter().enumerate().find(|(i, n)| nics[..*i].contains(n)) {
            return Err(self.error(start, n, format!("two columns are named {n}"), RERUN));
        }
        let rest = words[devices.len()..].join(" ");
        let columns = gpus + nics.len();
        Ok(Block {
            header_line: start,
            gpus,
            nics,
            has_cpu_column: rest.contains("CPU Affinity"),
            has_numa_column: rest.contains("NUMA Affinity"),
            has_gpu_numa_column: rest.contains("GPU NUMA ID"),
            rows: vec![None; columns],
            row_lines: vec![start; columns],
            affinity: vec![Affinity::default(); gpus],
        })
    }

    fn labels(
        &self,
        i: usize,
        line: &'t str,
        name: &str,
        columns: usize,
    ) -> Result<(Vec<PathKind>, Vec<&'t str>), ReadError> {
        let mut words = line.split_whitespace().skip(1);
        let mut labels = Vec::with_capacity(columns);
        for column in 0..columns {
            let Some(word) = words.next() else {
                let message = format!("the row of {name} ends after {column} of {columns} labels");
                return Err(self.error(i, "", message, RERUN));
            };
            match word.parse::<PathKind>() {
                Ok(label) => labels.push(label),
                Err(_) => {
                    let near = did_you_mean(word, LABELS).map_or(String::new(), |l| format!("; is it {l}?"));
                    let message = format!("`{word}` is not a link label{near}");
                    let remedy = "known labels: X, NV<n> (1 to 64), PIX, PXB, PHB, NODE, SYS";
                    return Err(self.error(i, word, message, remedy));
                }
            }
        }
        Ok((labels, words.collect()))
    }

    /// The cells after the labels, from the right: GPU NUMA ID, NUMA affinity, CPU affinity. Any cell may be blank.
    fn affinity(&self, block: &Block<'_>, mut rest: Vec<&str>) -> Affinity {
        let number = |w: &str| w.parse::<u8>().ok();
        if let [.., "NUMA", node] = rest[..] {
            return Affinity { numa: number(node), cpus: String::new() };
        }
        if block.has_gpu_numa_column && rest.len() > 1 {
            rest.pop();
        }
        let mut numa = None;
        if block.has_numa_column && (rest.len() > 1 || !block.has_cpu_column || rest.first() == Some(&"N/A")) {
            numa = rest.pop().and_then(number);
        } else if block.has_numa_column && block.has_gpu_numa_column && rest.len() == 1 {
            // If the CPU cell is blank, the remaining cell is the NUMA node.
            numa = rest.pop().and_then(number);
        }
        Affinity { numa, cpus: rest.join(" ") }
    }

    fn check(&self, block: &Block<'_>) -> Result<(), ReadError> {
        let name = |d: usize| if d < block.gpus { format!("GPU{d}") } else { block.nics[d - block.gpus].to_string() };
        let columns = block.rows.len();
        let nic_rows = block.rows[block.gpus..].iter().flatten().count();
        let last_needed = if nic_rows == 0 { block.gpus } else { columns };
        if let Some(missing) = (0..last_needed).find(|&d| block.rows[d].is_none()) {
            let last = block.row_lines.iter().copied().max().unwrap_or(block.header_line);
            let message = format!(
                "the matrix is cut short: the header names {} devices, the row of {} is missing",
                columns,
                name(missing)
            );
            return Err(self.error(last, "", message, RERUN));
        }
        for (i, row) in block.rows.iter().enumerate() {
            let Some(row) = row else { continue };
            for (j, &label) in row.iter().enumerate() {
                let fail = |message: String| {
                    let line: &str = &self.lines[block.row_lines[i]];
                    let word = line.split_whitespace().nth(j + 1).unwrap_or("");
                    self.error(block.row_lines[i], word, message, RERUN)
                };
                if (i == j) != (label == PathKind::Same) {
                    let wanted = if i == j { "X was expected" } else { "X is only for the diagonal" };
                    return Err(fail(format!("{} to {} is {label}; {wanted}", name(i), name(j))));
                }
                if let Some(Some(other)) = block.rows.get(j)
                    && other[i] != label
                    && j < i
                {
                    return Err(fail(format!(
                        "{} to {} is {label}, but {} to {} is {}: the matrix must be symmetric",
                        name(i),
                        name(j),
                        name(j),
                        name(i),
                        other[i]
                    )));
                }
            }
        }
        Ok(())
    }
}

impl Block<'_> {
    fn host_type(
        &self,
        file: &str,
        text: &str,
        legend: &HashMap<String, String>,
    ) -> Result<(HostType, Vec<String>), ReadError> {
        let rows: Vec<&Vec<PathKind>> = self.rows.iter().flatten().collect();
        let gpu_paths: Vec<Vec<PathKind>> = rows[..self.gpus].iter().map(|r| r[..self.gpus].to_vec()).collect();
        let mut notes = Vec::new();
        let gpus = self.sockets(&gpu_paths, &mut notes);
        let nvlink = infer::nvlink(&gpu_paths, None);
        if let Some((_, why)) = &nvlink {
            notes.push(why.clone());
        }
        let nvlink = nvlink.map(|(f, _)| f);
        let (pcie, why) = infer::pcie(&gpu_paths, None);
        notes.push(why);
        let gbit = infer::nic_gbit_per_s(nvlink, &gpu_paths);
        let nics: Vec<Nic> = self
            .nics
            .iter()
            .enumerate()
            .map(|(i, name)| {
                let paths: Vec<PathKind> = rows[..self.gpus].iter().map(|r| r[self.gpus + i]).collect();
                let near = paths.iter().position(|p| *p < PathKind::Sys);
                Nic {
                    name: legend.get(*name).cloned().unwrap_or_else(|| name.to_string()),
                    line_rate: Bandwidth::from_gbit_per_s(gbit),
                    socket: near.map(|g| gpus[g].socket),
                    gpu_paths: paths,
                }
            })
            .collect();
        if !nics.is_empty() {
            notes.push(format!("nvidia-smi does not print NIC rates: taken as {gbit} Gbit/s each (--nic-gbit-per-s)"));
            if self.rows[self.gpus..].iter().all(Option::is_none) {
                notes.push("the rows of the NICs are missing; the columns say enough".into());
            }
        } else {
            notes.push("no NIC is named: jobs over several hosts cannot be predicted until the file names some".into());
        }
        // A matrix does not identify the GPU: different GPUs have equal matrices, and the catalog does not contain all
        // of them.
        let twins: Vec<String> = crate::catalog::host_types()
            .into_iter()
            .filter(|t| t.gpu_paths == gpu_paths)
            .map(|t| format!("`{}`", t.name))
            .collect();
        notes.push(match twins.is_empty() {
            true => "nvidia-smi topo -m does not name the GPU (--gpu-model)".into(),
            false => format!(
                "nvidia-smi topo -m does not name the GPU (--gpu-model); in the catalog {} {} this matrix",
                twins.join(", "),
                if twins.len() == 1 { "has" } else { "have" }
            ),
        });
        let host_type = HostType {
            name: type_name(file),
            description: format!("{} GPUs, {} NICs, from nvidia-smi topo -m", self.gpus, nics.len()),
            source: super::base_name(file).to_string(),
            gpu_model: "unknown".into(),
            gpus,
            gpu_paths,
            nvlink,
            pcie,
            nics,
            p2p: None,
        };
        host_type.check().map_err(|e| ReadError::at_line(file, text, self.header_line + 1, 1, 1, e, RERUN))?;
        Ok((host_type, notes))
    }

    /// Sockets, from the first of these that is known: NUMA affinity, groups of equal CPU affinity, paths.
    fn sockets(&self, paths: &[Vec<PathKind>], notes: &mut Vec<String>) -> Vec<Gpu> {
        let gpu = |socket| Gpu { socket, pci_bus_id: None };
        if self.affinity.iter().all(|a| a.numa.is_some()) {
            return self.affinity.iter().map(|a| gpu(a.numa.unwrap_or(0))).collect();
        }
        if self.affinity.iter().all(|a| !a.cpus.is_empty() && a.cpus != "N/A") {
            let mut seen: Vec<&str> = Vec::new();
            let of = |cpus: &'_ str, seen: &Vec<&str>| seen.iter().position(|c| *c == cpus);
            for a in &self.affinity {
                if of(&a.cpus, &seen).is_none() {
                    seen.push(&a.cpus);
                }
            }
            notes.push(format!("sockets taken from the CPU affinity: {}", seen.len()));
            return self.affinity.iter().map(|a| gpu(of(&a.cpus, &seen).unwrap_or(0) as u8)).collect();
        }
        notes.push("sockets taken from the matrix: GPUs with SYS between them are on different ones".into());
        infer::sockets_from_paths(paths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_codes_legend_and_a_single_gpu_are_understood() {
        let text = "\u{1b}[4m\tGPU0\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\u{1b}[0m\n\
                    GPU0\t X \tPXB\t0-15\t1\t\tN/A\nNIC0\tPXB\t X \n\nLegend:\n\n  X    = Self\n\n\
                    NIC Legend:\n\n  NIC0: mlx5_bond_0\n";
        let r = read(text, "one.txt").unwrap();
        let t = r.single().unwrap();
        assert_eq!((t.gpu_count(), t.gpus[0].socket), (1, 1));
        assert_eq!(t.nics[0].name, "mlx5_bond_0");
        assert_eq!(t.nics[0].gpu_paths, [PathKind::Pxb]);
    }

    #[test]
    fn sockets_come_from_numa_then_cpus_then_paths() {
        let numa = "GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X SYS 0-3 4\nGPU1 SYS X 0-3 7\n";
        let cpus = "GPU0 GPU1 CPU Affinity\nGPU0 X SYS 0-3\nGPU1 SYS X 4-7\n";
        let none = "GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\n";
        let sockets = |t| read(t, "f").unwrap().types[0].gpus.iter().map(|g| g.socket).collect::<Vec<_>>();
        assert_eq!(sockets(numa), [4, 7]);
        assert_eq!(sockets(cpus), [0, 1]);
        assert_eq!(sockets(none), [0, 1]);
    }

    #[test]
    fn each_error_points_at_its_cause() {
        let place = |t: &str| {
            let e = read(t, "f").unwrap_err();
            (e.line(), e.column(), e.message().to_string())
        };
        let (l, c, m) = place("GPU0 GPU1\nGPU0 X SYS\nGPU1 PIX X\n");
        assert_eq!((l, c), (3, 6), "{m}");
        let (l, c, m) = place("GPU0 GPU1\nGPU0 X SIS\nGPU1 SYS X\n");
        assert_eq!((l, c), (2, 8), "{m}");
        assert!(m.contains("is it SYS"), "{m}");
        let (l, _, m) = place("GPU0 GPU1 GPU2\nGPU0 X SYS SYS\nGPU1 SYS X SYS\n");
        assert_eq!(l, 3, "{m}");
        let (l, _, m) = place("GPU0 GPU1\nGPU0 X\n");
        assert_eq!(l, 2, "{m}");
    }
}
