//! `linkwise tune inspector`: the plugin's traces in the forms of NCCL Inspector.

use console::{Failure, print, say, wrap};
use measure::inspector::write::{Metrics, TracedProcess, Written, write};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;
use topology::count;

/// Arguments of `linkwise tune inspector`.
#[derive(clap::Args)]
#[command(after_help = "\
Writes HOST-pidPID.log for each process, JSON lines of format v4.2, as NCCL Inspector's plugin does, and nccl_inspector_metrics_HOST-GPU.prom \
for each GPU, for Prometheus' node exporter, with the names that NVIDIA's exporter and Grafana dashboard ask for. The dashboard shows one job \
of Slurm, which --slurm-job names; it also asks for a label `cluster`, which Prometheus adds. Processes of one GPU (a restart) are one series. NCCL loads one profiler, so a job has linkwise's or Inspector's.

Needs GPU times: traces of `linkwise run --kernel-times --trace FOLDER`. Times that a test gave are marked \"simulated\".")]
pub struct Args {
    /// Trace files of a job, or folders of them
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Folder to write into; it must be empty or new
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
    /// Slurm's job id, for the label `slurm_job_id`, by which the dashboard chooses; without it "unknown"
    #[arg(long, value_name = "ID", value_parser = slurm_job)]
    slurm_job: Option<String>,
}

/// A job id of Slurm: digits, or those of an array's task or a part of a heterogeneous job (`12_3`, `12+1`).
fn slurm_job(text: &str) -> Result<String, String> {
    let is_id = text.len() <= 64 && text.starts_with(|c: char| c.is_ascii_digit());
    match is_id && text.chars().all(|c| c.is_ascii_digit() || "_+".contains(c)) {
        true => Ok(text.to_owned()),
        false => Err("Slurm's job id was expected, such as 4711".into()),
    }
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let files = job::report::files(&args.traces).map_err(Failure::input)?;
    if files.is_empty() {
        return Err(Failure::input("these folders hold no trace (*.jsonl) of the plugin"));
    }
    std::fs::create_dir_all(&args.output).map_err(|e| Failure::file("create", &args.output, e))?;
    if std::fs::read_dir(&args.output).map_err(|e| Failure::file("read", &args.output, e))?.next().is_some() {
        return Err(Failure::input(format!("{} is not empty; name a new folder", args.output.display())));
    }
    let (mut lines, mut left_out, mut logs, mut is_simulated) = (0, 0, 0, false);
    // By host and GPU. The series of one GPU's processes become one.
    let mut metrics: BTreeMap<(String, String), (TracedProcess, Metrics)> = BTreeMap::new();
    for file in &files {
        let written = one(file, &args.output)?;
        (lines, left_out) = (lines + written.lines, left_out + written.left_out);
        logs += usize::from(written.lines > 0);
        is_simulated |= written.process.is_simulated;
        if !written.metrics.is_empty() {
            let gpu = (written.process.host.clone(), written.process.gpu());
            metrics.entry(gpu).or_insert_with(|| (written.process, Metrics::default())).1.merge(&written.metrics);
        }
    }
    if lines == 0 {
        return Err(Failure::impossible(format!(
            "no collective of these traces has a GPU time ({left_out} without one); run the job with `linkwise run --kernel-times --trace FOLDER`"
        )));
    }
    if is_simulated {
        say(&"note: SIMULATED: the times were given by a test (LINKWISE_TEST); nothing here was measured");
    }
    // Two hosts whose names give one word share a file: their series differ by the label `node`.
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    for ((host, gpu), (process, of_gpu)) in &metrics {
        *texts.entry(format!("{}-{gpu}", word(host))).or_default() += &of_gpu.text(process, args.slurm_job.as_deref());
    }
    for (gpu, text) in &texts {
        files::write_atomic(&args.output.join(format!("nccl_inspector_metrics_{gpu}.prom")), text)?;
    }
    let (n, logs, gpus) = (count(lines, "collective"), count(logs, "process"), count(metrics.len(), "GPU"));
    let without = if left_out > 0 { format!("; {left_out} without a GPU time left out") } else { String::new() };
    print(&wrap(&format!("{}: {n} of {logs}, metrics of {gpus}{without}", args.output.display()), 2));
    Ok(())
}

/// Writes the lines of one trace.
fn one(trace: &Path, folder: &Path) -> Result<Written, Failure> {
    let input = files::open_regular(trace)?;
    let dumped = input.metadata().ok().and_then(|m| m.modified().ok()).and_then(|t| t.duration_since(UNIX_EPOCH).ok());
    let part = folder.join(".part");
    let mut out = BufWriter::new(File::create(&part).map_err(|e| Failure::file("write", &part, e))?);
    let by = concat!("linkwise ", env!("CARGO_PKG_VERSION"));
    let written = write(BufReader::new(input), dumped.map_or(0, |d| d.as_micros() as u64), by, &mut out);
    let written = written.map_err(|e| Failure::input(format!("{}: {e}", trace.display())))?;
    out.flush().map_err(|e| Failure::file("write", &part, e))?;
    let done = match written.lines {
        0 => std::fs::remove_file(&part),
        _ => {
            // Two traces of one process number: hosts in containers may have the same names.
            let stem = word(&trace.file_stem().unwrap_or_default().to_string_lossy());
            let first = format!("{}-pid{}.log", word(&written.process.host), written.process.pid);
            let names = std::iter::once(first).chain((0_usize..).map(|n| format!("{stem}-{n}.log")));
            match names.map(|n| folder.join(n)).find(|to| !to.exists()) {
                Some(to) => std::fs::rename(&part, to),
                None => Ok(()),
            }
        }
    };
    done.map_err(|e| Failure::file("write", &part, e))?;
    Ok(written)
}

/// A name from a trace as part of a file's name.
fn word(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let word: String = name.chars().take(100).map(plain).collect();
    let word = word.trim_start_matches('.').to_owned();
    if word.is_empty() { "unknown".into() } else { word }
}
