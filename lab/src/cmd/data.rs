//! `linkwise-lab data`: verifies a downloaded copy of the public data sets and normalises its CSV files.
//!
//! Conversion is limited to CSV: column names and order, line endings, byte order marks, sizes with units. Logs of nccl-tests are
//! read by `linkwise measure`'s backend, topology files by `linkwise topology import`.

use console::Failure;
use console::Format;
use lab_kit::output::table;
use lab_validation::table::{Kind, Table, TableRow, shortened};
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use topology::{Bytes, Collective};

/// Maximum number of files that one check reads.
const FILES_MAX: usize = 10_000;
/// Maximum depth of folders that are searched.
const DEPTH_MAX: usize = 8;
/// Number of problems listed per file; further ones are only counted.
const PROBLEMS_SHOWN: usize = 5;
/// Subsets of 2 to 8 GPUs of a host of 8.
const SUBSETS: usize = 247;
/// Rows of the published copies, by file name (docs/data.md).
const KNOWN_ROWS: [(&str, usize); 37] = [
    ("abci2_inter.csv", 96),
    ("abci2_intra.csv", 72),
    ("aiconfigurator_a100_sxm.csv", 252),
    ("aiconfigurator_b200_sxm.csv", 1008),
    ("aiconfigurator_gb200.csv", 336),
    ("aiconfigurator_gb300.csv", 336),
    ("aiconfigurator_h100_sxm.csv", 675),
    ("aiconfigurator_l40s.csv", 252),
    ("aiconfigurator_rtx_pro_6000_server.csv", 252),
    ("aws_efa.csv", 132),
    ("azure_nd.csv", 72),
    ("bandpilot.csv", 4),
    ("coreweave.csv", 22),
    ("cs244c_a100_40g.csv", 100),
    ("cs244c_l40s_contention.csv", 475),
    ("cs244c_l40s_forced.csv", 200),
    ("galvatron.csv", 90),
    ("github_issues.csv", 58),
    ("moc_roce.csv", 39),
    ("p2p_matrices.csv", 815),
    ("stas00_nvls_subsets.csv", 54),
    ("vidur_a100_dgx.csv", 432),
    ("vidur_a40_pairwise_nvlink.csv", 96),
    ("vidur_h100_pairwise_nvlink.csv", 96),
    ("voipmonitor_pcie5.csv", 16),
    ("intra_4090_16mib.csv", SUBSETS),
    ("intra_a6000_16mib.csv", SUBSETS),
    ("intra_a800_16mib.csv", SUBSETS),
    ("intra_v100_16mib.csv", SUBSETS),
    ("intra_h100_26_16mib.csv", SUBSETS),
    ("intra_h100_26_2gib.csv", SUBSETS),
    ("intra_h100_27_16mib.csv", SUBSETS),
    ("intra_h100_27_2gib.csv", SUBSETS),
    ("intra_h100_28_16mib.csv", SUBSETS),
    ("intra_h100_29_16mib.csv", SUBSETS),
    ("multihost_h100_16mib.csv", 493),
    ("multihost_h100_2gib_half.csv", 246),
];

/// Sub-commands of `linkwise-lab data`.
#[derive(clap::Subcommand)]
pub enum Data {
    /// Verify a folder of public data sets: format, rows, ranges, consistency (docs/data.md says where they come from)
    Check {
        /// The folder; its sub-folders are searched, too
        dir: PathBuf,
        /// Write every readable CSV file here in its usual column order, with plain line endings and sizes in bytes
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Output format
        #[arg(long, value_enum, default_value = "text")]
        format: Format,
    },
}

/// The findings in one file.
#[derive(Debug, Serialize)]
struct Checked {
    file: String,
    kind: String,
    rows: usize,
    problems: Vec<String>,
    problems_more: usize,
    notes: Vec<String>,
}

/// Runs the command. Exit code 1 if a file has problems.
pub fn run(args: Data) -> Result<(), Failure> {
    let Data::Check { dir, out, format } = args;
    let mut files = Vec::new();
    walk(&dir, 0, &mut files)?;
    files.sort();
    if let Some(out) = &out {
        std::fs::create_dir_all(out).map_err(|e| Failure::file("create", out, e))?;
    }
    let mut report = Vec::new();
    let mut taken = HashSet::new();
    for path in &files {
        let (checked, table) = check(path, &dir);
        if let (Some(out), Some(table)) = (&out, table) {
            let name = path.file_name().unwrap_or_default();
            if !taken.insert(name.to_owned()) {
                return Err(Failure::input(format!(
                    "two files are named {}; convert their folders apart",
                    path.display()
                )));
            }
            write(&out.join(name), &table)?;
        }
        report.push(checked);
    }
    match format {
        Format::Json => {
            let value = serde_json::json!({ "files": report });
            println!("{}", serde_json::to_string_pretty(&value).map_err(Failure::input)?);
        }
        Format::Text => print(&report),
    }
    let bad = report.iter().filter(|c| !c.problems.is_empty()).count();
    if report.iter().all(|c| c.rows == 0) {
        return Err(Failure::impossible(format!(
            "{} holds no data set that linkwise knows (docs/data.md)",
            dir.display()
        )));
    }
    if bad > 0 {
        return Err(Failure::impossible(format!("{bad} of {} files have problems", report.len())));
    }
    Ok(())
}

fn walk(dir: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let entries = std::fs::read_dir(dir).map_err(|e| Failure::file("read", dir, e))?;
    for entry in entries {
        let entry = entry.map_err(|e| Failure::file("read", dir, e))?;
        let kind = entry.file_type().map_err(|e| Failure::file("read", &entry.path(), e))?;
        if kind.is_dir() && depth < DEPTH_MAX {
            walk(&entry.path(), depth + 1, files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
        if files.len() > FILES_MAX {
            return Err(Failure::input(format!("more than {FILES_MAX} files below {}", dir.display())));
        }
    }
    Ok(())
}

fn check(path: &Path, root: &Path) -> (Checked, Option<Table>) {
    let file = path.strip_prefix(root).unwrap_or(path).display().to_string();
    let mut checked =
        Checked { file, kind: String::new(), rows: 0, problems: Vec::new(), problems_more: 0, notes: Vec::new() };
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("").to_ascii_lowercase();
    if extension != "csv" {
        checked.kind = match extension.as_str() {
            "xml" => "topology XML",
            "txt" if checked.file.ends_with(".topo.txt") => "topology matrix",
            "jsonl" | "json" => "JSON",
            "md" => "description",
            _ => "other",
        }
        .into();
        checked.notes.push(match checked.kind.as_str() {
            "topology XML" | "topology matrix" => "not checked here: `linkwise topology import` reads it".into(),
            _ => "not checked".into(),
        });
        return (checked, None);
    }
    let table = match Table::read(path) {
        Ok(t) => t,
        Err(e) => {
            checked.kind = "CSV".into();
            // Files of other data sets have their own columns.
            let text = e.to_string();
            if text.contains("is not a known format") {
                checked.notes.push("not checked: columns of another data set".into());
            } else {
                checked.problems.push(text);
            }
            return (checked, None);
        }
    };
    checked.kind = table.kind.name().into();
    checked.rows = table.rows.len();
    if table.reordered {
        checked.notes.push("columns in another order, under other names, or more of them".into());
    }
    if table.foreign_text {
        checked.notes.push("carriage returns or a byte order mark".into());
    }
    let mut problems = Vec::new();
    for row in &table.rows {
        check_row(&table, row, &mut problems);
    }
    check_whole(&table, &mut problems);
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
    if let Some((_, rows)) = KNOWN_ROWS.iter().find(|k| k.0 == name)
        && *rows != table.rows.len()
    {
        problems.push(format!("{} rows; the published copy has {rows}", table.rows.len()));
    }
    checked.problems_more = problems.len().saturating_sub(PROBLEMS_SHOWN);
    problems.truncate(PROBLEMS_SHOWN);
    checked.problems = problems;
    (checked, Some(table))
}

/// A number of a row; a number that cannot be read is a problem.
fn number(table: &Table, row: &TableRow, column: &str, high: f64, problems: &mut Vec<String>) -> Option<f64> {
    table.number(row, column, 0.0, high).unwrap_or_else(|e| {
        problems.push(e.to_string());
        None
    })
}

fn check_row(table: &Table, row: &TableRow, problems: &mut Vec<String>) {
    if table.kind == Kind::P2pMatrix {
        number(table, row, "GBps", 1e6, problems);
        number(table, row, "src_gpu", 127.0, problems);
        number(table, row, "dst_gpu", 127.0, problems);
        return;
    }
    if let Err(e) = table.field(row, "collective").parse::<Collective>() {
        problems.push(table.place(row, "collective", &e));
    }
    let size = table.size(row, "size_bytes").unwrap_or_else(|e| {
        problems.push(e.to_string());
        None
    });
    if table.kind == Kind::Measurements {
        check_measurement(table, row, size, problems);
    } else if number(table, row, "busbw_gb_per_s", 1e5, problems).is_none_or(|b| b <= 0.0) {
        problems.push(table.place(row, "busbw_gb_per_s", "no bandwidth above zero"));
    }
}

fn check_measurement(table: &Table, row: &TableRow, size: Option<Bytes>, problems: &mut Vec<String>) {
    for column in ["source", "system", "gpu", "allocation"] {
        if table.field(row, column).is_empty() {
            problems.push(table.place(row, column, "empty"));
        }
    }
    let time = number(table, row, "time_us", 1e12, problems);
    let algbw = number(table, row, "algbw_GBps", 1e6, problems);
    let busbw = number(table, row, "busbw_GBps", 1e6, problems);
    if time.is_none() && busbw.is_none() {
        problems.push(table.place(row, "busbw_GBps", "neither a time nor a bandwidth"));
    }
    let algbw = algbw.filter(|alg| *alg > 0.1);
    // algbw = size / time, within rounding and torch's spread between the two columns.
    if let (Some(us), Some(alg), Some(size)) = (time.filter(|us| *us > 0.0), algbw, size) {
        let from_time = size.as_f64() / us * 1e-3;
        if (from_time / alg - 1.0).abs() > 0.10 {
            problems.push(table.place(row, "algbw_GBps", format!("{alg} GB/s, but size over time is {from_time:.3}")));
        }
    }
    if let (Some(alg), Some(bus)) = (algbw, busbw)
        && bus / alg > 2.05
    {
        let what = format!("{bus} GB/s is more than twice the algorithm bandwidth {alg}");
        problems.push(table.place(row, "busbw_GBps", what));
    }
}

fn check_whole(table: &Table, problems: &mut Vec<String>) {
    if table.kind == Kind::IntraTable {
        let mut hosts: BTreeMap<(&str, &str), HashSet<&str>> = BTreeMap::new();
        for row in &table.rows {
            let gpus = table.field(row, "gpus");
            let key = (table.field(row, "host"), table.field(row, "size_bytes"));
            if !hosts.entry(key).or_default().insert(gpus) {
                problems.push(table.place(row, "gpus", format!("`{}` is there twice", shortened(gpus))));
            }
        }
        for ((host, size), sets) in hosts {
            if sets.len() != SUBSETS {
                problems.push(format!(
                    "host {host} at {size} bytes: {} subsets, a host of 8 GPUs has {SUBSETS}",
                    sets.len()
                ));
            }
        }
    }
    if table.kind == Kind::MultiHostTable {
        let mut seen = HashSet::new();
        for row in &table.rows {
            let key = (table.field(row, "counts"), table.field(row, "size_bytes"));
            if !seen.insert(key) {
                problems.push(table.place(row, "counts", format!("`{}` is there twice", shortened(key.0))));
            }
        }
    }
}

/// Writes a table in its usual form.
fn write(path: &Path, table: &Table) -> Result<(), Failure> {
    let fail = |e: &dyn std::fmt::Display| Failure::file("write", path, e);
    let mut writer = csv::Writer::from_path(path).map_err(|e| fail(&e))?;
    let columns = table.kind.columns();
    writer.write_record(columns).map_err(|e| fail(&e))?;
    let size_at = columns.iter().position(|c| *c == "size_bytes");
    for row in &table.rows {
        let mut fields = row.fields.clone();
        if let (Some(i), Ok(Some(Bytes(n)))) = (size_at, table.size(row, "size_bytes")) {
            fields[i] = n.to_string();
        }
        writer.write_record(&fields).map_err(|e| fail(&e))?;
    }
    writer.flush().map_err(|e| fail(&e))
}

fn print(report: &[Checked]) {
    let row = |c: &Checked| {
        let n = c.problems.len() + c.problems_more;
        let problems = if n == 0 { "-".to_string() } else { n.to_string() };
        vec![c.file.clone(), c.kind.clone(), c.notes.join("; "), c.rows.to_string(), problems]
    };
    print!("{}", table(&["file", "kind", "notes", "rows", "problems"], 3, report.iter().map(row)));
    for c in report.iter().filter(|c| !c.problems.is_empty()) {
        println!("\n{}", c.file);
        c.problems.iter().for_each(|p| print!("{}", console::wrap(&format!("  {p}"), 4)));
        if c.problems_more > 0 {
            println!("  and {} more", c.problems_more);
        }
    }
}
