//! Readings from the flags and files of `linkwise observe`.

use console::Failure;
use engine::{ObservedJob, ReadingIn};
use files::read_text;
use job::calls::{self, Form, JobFiles};
use measure::inspector::InspectedKind;
use measure::nccl_tests::{NcclTestsReport, parse_json, parse_text};
use measure::trace::{FILE_BYTES_MAX, parse_trace};
use std::path::Path;
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

/// `--trace PATH`: one reading per collective and size, and the number of operations left out.
pub fn of_trace(gpus: usize, file: &Path) -> Result<(Vec<ReadingIn>, usize), Failure> {
    let JobFiles { form, files } = calls::files_of(file).map_err(Failure::input)?;
    match form {
        Form::FlightRecorder => return of_flight_recorder(gpus, file, &files),
        Form::Inspector | Form::InspectorMetrics => {
            let (file, form) = (file.display(), form.name());
            return Err(Failure::input(format!("{file} holds {form}; give it with --inspector")));
        }
        Form::Plugin | Form::Trace => {}
    }
    let [file] = files.as_slice() else {
        let n = files.len();
        return Err(Failure::input(format!(
            "{} holds {n} traces; give the one of rank 0: a profiler's trace is of one rank",
            file.display()
        )));
    };
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

/// Fewest calls of a kind for a reading: the first use of an algorithm sets up its connections.
const CALLS_MIN: usize = 3;

/// Dumps of PyTorch's flight recorder, one per rank.
fn of_flight_recorder(
    gpus: usize,
    path: &Path,
    files: &[std::path::PathBuf],
) -> Result<(Vec<ReadingIn>, usize), Failure> {
    let (records, cut_off) = calls::flight_records(files).map_err(Failure::input)?;
    if cut_off > 0 {
        console::say(&format!("note: {cut_off} of {} dumps end in the middle and are left out", files.len()));
    }
    let (kinds, mut left_out) = records.kinds();
    let mut out = Vec::new();
    for k in &kinds {
        match k.time_us.filter(|_| k.ranks as usize == gpus && k.calls >= CALLS_MIN) {
            None => left_out += k.calls,
            Some(us) => {
                let what = if k.by_all_ranks { "median" } else { "90th percentile, not of all ranks," };
                let busbw = k.collective.busbw_gb_per_s(gpus, k.size.as_f64(), us * 1e-6);
                out.push(ReadingIn {
                    time_s: Some(us * 1e-6),
                    provenance: provenance(&format!("flight recorder, {what} of {} calls", k.calls), path),
                    ..ReadingIn::new(k.collective, Some(k.size), busbw)
                });
            }
        }
    }
    if out.is_empty() {
        let why = match kinds.iter().any(|k| k.time_us.is_some()) {
            true => {
                format!("no group of {gpus} ranks, one for each of the job's GPUs, has {CALLS_MIN} calls of one size")
            }
            false => "its collectives have no times; run the job with TORCH_NCCL_ENABLE_TIMING=1".into(),
        };
        return Err(Failure::input(format!("{}: nothing to record: {why}", path.display())));
    }
    Ok((out, left_out))
}

/// `--inspector PATH`: one reading per collective, size and algorithm, and the number of operations left out.
pub fn of_inspector(gpus: usize, path: &Path) -> Result<(Vec<ReadingIn>, usize), Failure> {
    let JobFiles { form, files } = calls::files_of(path).map_err(|e| {
        Failure::input(format!("{e}; NCCL Inspector writes HOST-pidPID.log, by default only when the job ends"))
    })?;
    let summary = match form {
        Form::InspectorMetrics => calls::inspector_metrics(&files).map_err(Failure::input)?.summary(gpus),
        _ => {
            let (dump, cut_off) = calls::inspector_dump(&files).map_err(Failure::input)?;
            if cut_off > 0 {
                let n = files.len();
                console::say(&format!("note: {cut_off} of {n} dumps end in the middle of a line, which is left out"));
            }
            dump.summary(gpus)
        }
    };
    let summary = summary.map_err(|why| Failure::input(format!("{}: nothing to record: {why}", path.display())))?;
    let reading = |k: &InspectedKind| {
        let (algorithm, protocol) = k.algorithm.clone().unzip();
        let what = match k.operations {
            0 => format!("NCCL Inspector's metrics, the GPU of {gpus} that waited least"),
            n => format!("NCCL Inspector, median of {n} operations"),
        };
        ReadingIn {
            time_s: Some(k.time_us * 1e-6),
            taken_at_unix_s: summary.at_unix_s,
            algorithm,
            protocol,
            provenance: provenance(&what, path),
            ..ReadingIn::new(k.collective, Some(k.size), k.busbw.gb_per_s())
        }
    };
    Ok((summary.kinds.iter().map(reading).collect(), summary.left_out))
}

/// The origin of a reading, as text.
pub fn provenance(what: &str, file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    format!("linkwise observe, {what}, {}", name.chars().take(200).collect::<String>())
}
