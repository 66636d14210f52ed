//! Which collectives a job calls, how often and how large, from what the job left: the plugin's traces, NCCL Inspector's dumps or metrics, PyTorch's
//! flight recorder or profiler, or JSON lines. The form is told by the content of the first file.

use crate::JobError;
use crate::report::files as traces;
use measure::flight_recorder::{FlightRecords, is_flight_record};
use measure::inspector::InspectorDump;
use measure::inspector::prometheus::{InspectorMetrics, is_metrics};
use measure::kinds::{CallKind, CallTimes, nearly_all};
use measure::{plugin_trace, trace};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use topology::Bytes;

/// Maximum number of files in a folder: one per process of the job.
pub const FILES_MAX: usize = 8192;
/// Bytes that tell a file's form.
const BEGINNING_BYTES: u64 = 64 << 10;
/// Bytes from which on a file tells its form.
const TELLING_BYTES: u64 = 64;
/// Endings of files that tell their form, the more exact forms first.
const ENDINGS: [&str; 4] = ["jsonl", "log", "json", "prom"];
/// Maximum number of calls of the plugin's traces; later ones are left out and counted.
const CALLS_MAX: usize = 2_000_000;

/// The form of a job's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Traces of linkwise's NCCL plugin.
    Plugin,
    /// NCCL Inspector, JSON.
    Inspector,
    /// NCCL Inspector, metrics for Prometheus.
    InspectorMetrics,
    /// PyTorch's flight recorder, JSON.
    FlightRecorder,
    /// PyTorch's profiler, or JSON lines of the user's own.
    Trace,
}

impl Form {
    /// The form, as a sentence names it.
    pub fn name(self) -> &'static str {
        match self {
            Form::Plugin => "traces of the NCCL plugin",
            Form::Inspector => "dumps of NCCL Inspector",
            Form::InspectorMetrics => "metrics of NCCL Inspector",
            Form::FlightRecorder => "dumps of PyTorch's flight recorder",
            Form::Trace => "a trace",
        }
    }

    /// The form of a file that begins with this text.
    fn of(beginning: &str) -> Form {
        let first = beginning.lines().find(|l| !l.trim().is_empty()).unwrap_or("");
        if plugin_trace::is_plugin_trace(beginning) {
            Form::Plugin
        } else if first.starts_with("{\"header\"")
            || first.starts_with("{\"coll_perf\"")
            || first.starts_with("{\"metadata\"")
        {
            Form::Inspector
        } else if is_metrics(beginning) {
            Form::InspectorMetrics
        } else if is_flight_record(beginning) {
            Form::FlightRecorder
        } else {
            Form::Trace
        }
    }
}

/// The files of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFiles {
    /// Their form, that of the first.
    pub form: Form,
    /// In the order of their names; at least one.
    pub files: Vec<PathBuf>,
}

/// The calls of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobCalls {
    /// The form of its files.
    pub form: Form,
    /// The most frequent first.
    pub kinds: Vec<CallKind>,
    /// Entries that are no collective with a size, or beyond a limit.
    pub left_out: usize,
    /// Files that end in the middle, of a killed rank: what is cut off counts nothing.
    pub cut_off: usize,
    /// A test gave the times.
    pub is_simulated: bool,
    /// Steps of the job: those of the process that reported most, or of the profiler. `None` if the files have none.
    pub steps: Option<u64>,
}

/// The file, or the files of a folder with the form of the first one.
///
/// # Errors
/// A file or folder that cannot be read; a folder without files; more than [`FILES_MAX`].
pub fn files_of(path: &Path) -> Result<JobFiles, JobError> {
    let mut files = match path.is_dir() {
        false => vec![path.to_path_buf()],
        true => in_folder(path)?,
    };
    // Folders of `linkwise run` have a folder for each task.
    if files.is_empty() {
        files = traces(&[path.to_path_buf()])?;
    }
    let Some(first) = telling(&files) else {
        let why = "there is no file of a job in this folder".to_owned();
        return Err(JobError::Trace { path: path.into(), why });
    };
    let form = Form::of(&beginning(first)?);
    if form == Form::Plugin && path.is_dir() {
        files = traces(&[path.to_path_buf()])?;
    }
    if files.len() > FILES_MAX {
        return Err(JobError::TooManyTraces { max: FILES_MAX });
    }
    Ok(JobFiles { form, files })
}

/// The files that programs leave in a folder: those with one of [`ENDINGS`] whose first file has a form that is known, else those of JSON, else (the
/// flight recorder's names have no ending) all.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, JobError> {
    let io = |source| JobError::Io { path: folder.into(), source };
    let mut all: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let is_hidden = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
        if path.is_file() && !is_hidden {
            all.push(path);
        }
        if all.len() > 4 * FILES_MAX {
            return Err(JobError::TooManyTraces { max: FILES_MAX });
        }
    }
    all.sort();
    let with = |ending: &str| -> Vec<PathBuf> {
        all.iter().filter(|p| p.extension().is_some_and(|e| e == ending)).cloned().collect()
    };
    for ending in ENDINGS {
        let of = with(ending);
        // A folder may hold logs of other programs: the first file tells.
        if telling(&of).is_some_and(|f| beginning(f).is_ok_and(|text| Form::of(&text) != Form::Trace)) {
            return Ok(of);
        }
    }
    Ok(Some(with("json")).filter(|of| !of.is_empty()).unwrap_or(all))
}

/// The first file that is long enough to tell its form: a rank that was killed at once leaves some bytes or none.
fn telling(files: &[PathBuf]) -> Option<&PathBuf> {
    let is_long = |f: &&PathBuf| std::fs::metadata(f).is_ok_and(|m| m.len() >= TELLING_BYTES);
    files.iter().find(is_long).or(files.first())
}

fn beginning(path: &Path) -> Result<String, JobError> {
    let mut bytes = Vec::new();
    let read = open(path)?.take(BEGINNING_BYTES).read_to_end(&mut bytes);
    read.map_err(|source| JobError::Io { path: path.into(), source })?;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        return Err(JobError::Trace { path: path.into(), why: "the file is compressed; unpack it with gunzip".into() });
    }
    // Protocol 2 of Python's pickle, as the flight recorder writes to disk.
    if bytes.starts_with(&[0x80, 2]) || bytes.starts_with(b"PK") {
        let why = "a Python pickle, which is not read because it may hold a program; write JSON: \
                   open(FILE, 'w').write(torch._C._distributed_c10d._dump_nccl_trace_json().decode()), from PyTorch 2.15 on \
                   _dump_fr_trace_json(backend='nccl2')";
        return Err(JobError::Trace { path: path.into(), why: why.into() });
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn open(path: &Path) -> Result<File, JobError> {
    files::open_regular(path).map_err(JobError::File)
}

fn text(path: &Path, most: usize) -> Result<String, JobError> {
    files::read_regular_text(path, most).map_err(JobError::File)
}

/// Reads the dumps of PyTorch's flight recorder. Returns also the number of files that are cut off, which count nothing.
///
/// # Errors
/// A file that cannot be read, with its line; every file is cut off.
pub fn flight_records(files: &[PathBuf]) -> Result<(FlightRecords, usize), JobError> {
    let (mut records, mut cut_off) = (FlightRecords::default(), 0);
    for path in files {
        let text = text(path, measure::flight_recorder::FILE_BYTES_MAX)?;
        let whole = records.read(&text).map_err(|e| JobError::Trace { path: path.clone(), why: e.to_string() })?;
        cut_off += usize::from(!whole);
    }
    match files.first().filter(|_| cut_off == files.len()) {
        Some(path) => {
            let why = "the dump ends in the middle: its rank was killed while it wrote; give the folder with the dumps of all ranks";
            Err(JobError::Trace { path: path.clone(), why: why.into() })
        }
        None => Ok((records, cut_off)),
    }
}

/// Reads metrics of NCCL Inspector.
///
/// # Errors
/// A file that cannot be read, with its line.
pub fn inspector_metrics(files: &[PathBuf]) -> Result<InspectorMetrics, JobError> {
    let mut metrics = InspectorMetrics::default();
    for path in files {
        let read = metrics.read(BufReader::new(open(path)?));
        read.map_err(|e| JobError::Trace { path: path.clone(), why: e.to_string() })?;
    }
    Ok(metrics)
}

/// Reads dumps of NCCL Inspector. Returns also the number of files whose last line is cut off.
///
/// # Errors
/// A file that cannot be read, with its line.
pub fn inspector_dump(files: &[PathBuf]) -> Result<(InspectorDump, usize), JobError> {
    let (mut dump, mut cut_off) = (InspectorDump::default(), 0);
    for path in files {
        let end = dump.read(BufReader::new(open(path)?));
        let end = end.map_err(|e| JobError::Trace { path: path.clone(), why: e.to_string() })?;
        cut_off += usize::from(end.cut_off);
    }
    Ok((dump, cut_off))
}

/// Reads the calls of a job from its file or folder. O(bytes).
///
/// # Errors
/// Files that cannot be read, with their line; no collective with a size.
pub fn read(path: &Path) -> Result<JobCalls, JobError> {
    let JobFiles { form, files } = files_of(path)?;
    let (mut is_simulated, mut steps) = (false, 0);
    let mut cut_off = 0;
    let (kinds, left_out) = match form {
        Form::Plugin => plugin(&files, &mut is_simulated, &mut steps)?,
        Form::Inspector => {
            let (dump, n) = inspector_dump(&files)?;
            cut_off = n;
            dump.kinds()
        }
        Form::InspectorMetrics => (inspector_metrics(&files)?.kinds(), 0),
        Form::FlightRecorder => {
            let (records, n) = flight_records(&files)?;
            cut_off = n;
            records.kinds()
        }
        Form::Trace => {
            // Traces of several ranks would count each call several times: the first one tells what the job does.
            let text = text(&files[0], trace::FILE_BYTES_MAX)?;
            steps = trace::steps_of_trace(&text);
            trace::kinds_of_trace(&text).map_err(|e| JobError::Trace { path: files[0].clone(), why: e.to_string() })?
        }
    };
    if kinds.is_empty() {
        let why = format!("no collective with a size is in {} ({left_out} entries left out)", form.name());
        return Err(JobError::Trace { path: path.into(), why });
    }
    Ok(JobCalls { form, kinds, left_out, cut_off, is_simulated, steps: (steps > 0).then_some(steps) })
}

/// The calls of the plugin's traces: each once, by the ranks' shortest GPU time if they have some.
fn plugin(files: &[PathBuf], is_simulated: &mut bool, steps: &mut u64) -> Result<(Vec<CallKind>, usize), JobError> {
    let (mut comms, mut calls, mut left_out) = (BTreeMap::new(), BTreeMap::new(), 0);
    for path in files {
        let mut steps_here = 0;
        let read = plugin_trace::read(BufReader::new(open(path)?), |line| {
            match line.kind.as_str() {
                "process" => *is_simulated |= line.scripted,
                "step" => steps_here += 1,
                "comm" => _ = comms.insert(line.comm, line.ranks),
                "call" | "launched" => {
                    let collective = line.collective.parse::<topology::Collective>().ok().filter(|c| c.is_tuned());
                    let (Some(collective), Some(call), true) = (collective, line.call, line.size_bytes > 0) else {
                        left_out += 1;
                        return Ok(());
                    };
                    let id = (line.comm, call);
                    if calls.len() >= CALLS_MAX && !calls.contains_key(&id) {
                        left_out += 1;
                        return Ok(());
                    }
                    let (.., least, timed) =
                        calls.entry(id).or_insert((collective, line.size_bytes, f64::INFINITY, 0u32));
                    if let Some(us) = line.kernel_us.filter(|us| *us > 0.0) {
                        *least = least.min(us);
                        *timed += 1;
                    }
                }
                _ => {}
            }
            Ok(())
        });
        read.map_err(|e| JobError::Trace { path: path.clone(), why: e.to_string() })?;
        *steps = steps_here.max(*steps);
    }
    let mut kinds = CallTimes::default();
    for ((comm, _), (collective, size, least, timed)) in calls {
        let ranks = comms.get(&comm).copied().unwrap_or(0);
        kinds.add(collective, Bytes(size), ranks, (timed > 0).then_some(least), nearly_all(timed, ranks));
    }
    Ok((kinds.finish(), left_out))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINETO: &str = r#"{"schemaVersion":1,"traceEvents":[{"ph":"X","cat":"kernel","name":"ncclDevKernel_AllReduce","dur":100.0,
        "args":{"Collective name":"allreduce","In msg nelems":1024,"Out msg nelems":1024,"Group size":4,"dtype":"Float"}}]}"#;
    const FLIGHT: &str = r#"{"entries":[{"process_group":["0",""],"collective_seq_id":1,"op_id":1,"profiling_name":"nccl:all_reduce",
        "input_sizes":[[1024]],"input_dtypes":["Float"],"output_sizes":[[1024]],"output_dtypes":["Float"]}],
        "pg_config":{"0":{"ranks":"[0, 1, 2, 3]"}},"version":"2.10"}"#;
    const PLUGIN: &str = "{\"kind\":\"process\",\"pid\":1}\n{\"kind\":\"comm\",\"comm\":\"0a\",\"rank\":0,\"ranks\":4,\"nodes\":1}\n\
        {\"kind\":\"call\",\"comm\":\"0a\",\"rank\":0,\"call\":1,\"collective\":\"AllReduce\",\"size_bytes\":4096}\n\
        {\"kind\":\"launched\",\"comm\":\"0a\",\"rank\":0,\"call\":1,\"collective\":\"AllReduce\",\"size_bytes\":4096,\"kernel_us\":100}\n";
    const INSPECTOR: &str = "{\"header\":{\"id\":\"0xa\",\"rank\":0,\"n_ranks\":4},\"coll_perf\":{\"coll\":\"AllReduce\",\"coll_sn\":1,\
        \"coll_msg_size_bytes\":4096,\"coll_exec_time_us\":100}}\n";
    const METRICS: &str = "nccl_bus_bandwidth_gbs{nranks=\"4\",collective=\"AllReduce\",message_size=\"4-5KB\"} 0.06144\n\
        nccl_collective_exec_time_microseconds{nranks=\"4\",collective=\"AllReduce\",message_size=\"4-5KB\"} 100\n";

    #[test]
    fn every_form_gives_the_same_call_from_a_file_and_from_a_folder() {
        for (name, text, form, us) in [
            ("trace-0a-1.jsonl", PLUGIN, Form::Plugin, Some(100.0)),
            ("n0-pid1.log", INSPECTOR, Form::Inspector, Some(100.0)),
            ("nccl_inspector_metrics_GPU-1.prom", METRICS, Form::InspectorMetrics, Some(100.0)),
            ("nccl_trace_rank_0", FLIGHT, Form::FlightRecorder, None),
            ("trace.json", KINETO, Form::Trace, Some(100.0)),
        ] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join(name), text).unwrap();
            for path in [dir.path().join(name), dir.path().to_path_buf()] {
                let calls = read(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
                let k = &calls.kinds[0];
                assert_eq!((calls.form, k.size, k.ranks, k.calls, k.time_us), (form, Bytes(4096), 4, 1, us), "{name}");
            }
        }
    }

    #[test]
    fn the_dump_of_a_killed_rank_is_left_out_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        for rank in 0..4 {
            std::fs::write(dir.path().join(format!("nccl_trace_rank_{rank}")), FLIGHT).unwrap();
        }
        let cut = dir.path().join("nccl_trace_rank_2");
        std::fs::write(&cut, &FLIGHT[..200]).unwrap();
        let calls = read(dir.path()).unwrap();
        assert_eq!((calls.kinds.len(), calls.kinds[0].calls, calls.cut_off, calls.left_out), (1, 1, 1, 0));
        // What a rank leaves that was killed when it began to write, also the first one.
        for bytes in [0, 1, 30] {
            let first = dir.path().join("nccl_trace_rank_0");
            std::fs::write(&first, &FLIGHT[..bytes]).unwrap();
            let calls = read(dir.path()).unwrap();
            assert_eq!((calls.form, calls.kinds[0].calls, calls.cut_off), (Form::FlightRecorder, 1, 2), "{bytes}");
        }
        let alone = read(&cut).unwrap_err().to_string();
        assert!(alone.contains("nccl_trace_rank_2: the dump ends in the middle"), "{alone}");
        // What is damaged otherwise is an error.
        std::fs::write(&cut, FLIGHT.replacen(':', ";", 9)).unwrap();
        assert!(read(dir.path()).unwrap_err().to_string().contains("nccl_trace_rank_2: line 1"));
    }

    #[test]
    fn what_is_no_jobs_file_is_an_error_with_its_name_and_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        assert!(read(&path).unwrap_err().to_string().contains("/x: "));
        assert!(read(dir.path()).unwrap_err().to_string().contains("there is no file of a job in this folder"));
        for (bytes, what) in [
            (&b"\x80\x02}q\x00"[..], "a Python pickle, which is not read"),
            (b"\x1f\x8b\x08", "unpack it with gunzip"),
            (b"nonsense", "line 1, column "),
            (b"{\"header\":{\"id\":\"0xa\",\"rank\":9,\"n_ranks\":4}}\n", "line 1: rank 9 of 4"),
            (b"{\"traceEvents\":[]}", "no collective with a size is in a trace"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let e = read(&path).unwrap_err().to_string();
            assert!(e.contains(what) && e.contains("x: "), "{e}");
        }
    }
}
