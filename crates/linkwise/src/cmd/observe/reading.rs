//! Readings from the flags and files of `linkwise observe`.

use console::Failure;
use engine::{ObservedJob, ReadingIn};
use files::read_text;
use measure::inspector::{InspectedKind, InspectorDump};
use measure::nccl_tests::{NcclTestsReport, parse_json, parse_text};
use measure::trace::{FILE_BYTES_MAX, parse_trace};
use std::path::{Path, PathBuf};
use topology::{Bytes, Cluster, Collective};

/// Maximum size of an nccl-tests output, bytes.
const OUTPUT_BYTES_MAX: usize = 16 << 20;

/// `--nccl-tests FILE`: one reading per size of the output, from the out-of-place columns.
pub fn of_nccl_tests(
    cluster: &Cluster,
    job: &ObservedJob,
    collective: Collective,
    file: &Path,
) -> Result<Vec<ReadingIn>, Failure> {
    let text = read_text(file, OUTPUT_BYTES_MAX)?;
    let json = text.trim_start().starts_with('{');
    let report: NcclTestsReport = if json { parse_json(&text) } else { parse_text(&text) }
        .map_err(|e| Failure::input(format!("{}: {e}", file.display())))?;
    let ranks = job.gpus.gpu_count();
    if let Some(found) = report.rank_count.filter(|n| *n != ranks) {
        let gpus = cluster.gpu_list(&job.gpus);
        return Err(Failure::input(format!(
            "{} is of {found} ranks, job `{}` has {ranks} GPUs ({gpus})",
            file.display(),
            job.job
        )));
    }
    if let Some(first) = report.left_out.first() {
        let (file, n) = (file.display(), report.left_out.len());
        console::say(&format!("note: {file}: {n} rows without a bandwidth are left out; the first: {first}"));
    }
    let collective = report.collective.unwrap_or(collective);
    let rows = report.rows.iter().filter(|r| r.size_bytes > 0 && r.out_of_place.busbw_gb_per_s > 0.0);
    let out: Vec<ReadingIn> = rows
        .map(|r| ReadingIn {
            time_s: Some(r.out_of_place.time_us * 1e-6),
            nccl_version: report.nccl_version.clone(),
            provenance: provenance("nccl-tests", file),
            ..ReadingIn::new(collective, Some(Bytes(r.size_bytes)), r.out_of_place.busbw_gb_per_s)
        })
        .collect();
    if let Some(r) = report.rows.iter().find(|r| r.out_of_place.wrong.is_some_and(|n| n > 0)) {
        return Err(Failure::input(format!(
            "{}: wrong results at {} bytes; nothing is recorded",
            file.display(),
            r.size_bytes
        )));
    }
    if out.is_empty() {
        return Err(Failure::input(format!("{} holds no row with a size and a bandwidth", file.display())));
    }
    Ok(out)
}

/// `--trace FILE`: one reading per collective and size, and the number of operations left out.
pub fn of_trace(gpus: usize, file: &Path) -> Result<(Vec<ReadingIn>, usize), Failure> {
    let text = read_text(file, FILE_BYTES_MAX)?;
    let trace = parse_trace(&text, gpus).map_err(|e| Failure::input(format!("{}: {e}", file.display())))?;
    let out = trace
        .kinds
        .iter()
        .map(|k| ReadingIn {
            time_s: Some(k.time.0),
            taken_at_unix_s: k.at_unix_s,
            provenance: provenance(&format!("{:?} trace, {} operations", trace.form, k.operations), file),
            ..ReadingIn::new(k.collective, Some(k.size), k.busbw.gb_per_s())
        })
        .collect();
    Ok((out, trace.left_out))
}

/// Maximum number of dumps of NCCL Inspector in a folder: one per process of the job.
const DUMPS_MAX: usize = 8192;

/// `--inspector FOLDER`: one reading per collective, size and algorithm, and the number of operations left out.
pub fn of_inspector(gpus: usize, path: &Path) -> Result<(Vec<ReadingIn>, usize), Failure> {
    let (mut dump, mut cut_off) = (InspectorDump::default(), 0);
    let files = dumps(path)?;
    for file in &files {
        let open = std::fs::File::open(file).map_err(|e| Failure::file("read", file, e))?;
        let end = dump.read(std::io::BufReader::new(open));
        cut_off += usize::from(end.map_err(|e| Failure::input(format!("{}: {e}", file.display())))?.cut_off);
    }
    if cut_off > 0 {
        console::say(&format!(
            "note: {cut_off} of {} dumps end in the middle of a line, which is left out",
            files.len()
        ));
    }
    let summary =
        dump.summary(gpus).map_err(|why| Failure::input(format!("{}: nothing to record: {why}", path.display())))?;
    let reading = |k: &InspectedKind| {
        let (algorithm, protocol) = k.algorithm.clone().unzip();
        ReadingIn {
            time_s: Some(k.time_us * 1e-6),
            taken_at_unix_s: summary.at_unix_s,
            algorithm,
            protocol,
            provenance: provenance(&format!("NCCL Inspector, median of {} operations", k.operations), path),
            ..ReadingIn::new(k.collective, Some(k.size), k.busbw.gb_per_s())
        }
    };
    Ok((summary.kinds.iter().map(reading).collect(), summary.left_out))
}

/// The file, or the `.log` and `.jsonl` files of the folder.
fn dumps(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !path.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let entries = std::fs::read_dir(path).map_err(|e| Failure::file("read", path, e))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "log" || e == "jsonl") && f.is_file());
    files.sort();
    match files.len() {
        0 => Err(Failure::input(format!(
            "{} has no dump of NCCL Inspector (HOST-pidPID.log); Inspector writes JSON unless NCCL_INSPECTOR_PROM_DUMP is set, and by default \
             only when the job ends",
            path.display()
        ))),
        n if n > DUMPS_MAX => Err(Failure::input(format!("{}: more than {DUMPS_MAX} dumps", path.display()))),
        _ => Ok(files),
    }
}

/// The origin of a reading, as text.
pub fn provenance(what: &str, file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    format!("linkwise observe, {what}, {}", name.chars().take(200).collect::<String>())
}
