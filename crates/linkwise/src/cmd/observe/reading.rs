//! From what the user gives to [`Measurement`]s.

use crate::store_errors::OrFailure;
use console::Failure;
use console::now_unix_s;
use files::read_text;
use measure::nccl_tests::{NcclTestsReport, parse_json, parse_text};
use measure::trace::{FILE_BYTES_MAX, parse_trace};
use std::path::Path;
use store::state::{JobHeld, Snapshot};
use store::{Measurement, Record, Source, State, Store};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, Seconds};

/// Size where nobody says one.
const SIZE_DEFAULT: Bytes = Bytes(16 << 20);
/// Largest nccl-tests output that is read, bytes.
const OUTPUT_BYTES_MAX: usize = 16 << 20;
/// Most jobs that a note on contention names.
const NAMED_MAX: usize = 16;

/// The job that was observed.
pub struct Whose {
    job: String,
    gpus: Allocation,
    placed_for: Option<Bytes>,
    contention: Option<String>,
    /// When, seconds since 1970.
    pub at_unix_s: f64,
}

impl Whose {
    /// The GPUs as given, else those that the state says; neighbours from the state.
    pub fn find(cluster: &Cluster, state: Option<&State>, job: &str, gpus: Option<&str>) -> Result<Whose, Failure> {
        let named = gpus.map(|list| cluster.parse_gpus([list])).transpose();
        Whose::with(cluster, state, job, named.map_err(|e| Failure::input(format!("--gpus: {e}")))?)
    }

    /// The same with GPUs that somebody else has read.
    pub fn with(
        cluster: &Cluster,
        state: Option<&State>,
        job: &str,
        gpus: Option<Allocation>,
    ) -> Result<Whose, Failure> {
        let now = state.map(State::snapshot).transpose().or_failure()?;
        let (gpus, placed_for) = match (gpus, &now) {
            (Some(gpus), _) => (gpus, None),
            (None, Some(now)) => {
                let held = now.job(job).ok_or_else(|| unknown(job, now))?;
                (held.gpus.clone(), held.size)
            }
            (None, None) => return Err(Failure::input("--gpus or --state is missing: which GPUs has the job?")),
        };
        if gpus.gpu_count() < 2 {
            return Err(Failure::input(format!("job `{job}` has one GPU, which talks to nobody: nothing to record")));
        }
        let contention = now.as_ref().and_then(|n| contention(cluster, n, job, &gpus));
        Ok(Whose { job: job.to_owned(), gpus, placed_for, contention, at_unix_s: now_unix_s() })
    }

    /// The job's GPUs.
    pub fn gpus(&self) -> &Allocation {
        &self.gpus
    }

    /// A reading of the job.
    pub fn measurement(
        &self,
        collective: Collective,
        size: Bytes,
        busbw: Bandwidth,
        provenance: String,
    ) -> Measurement {
        let mut m = Measurement::new(self.gpus.clone(), collective, size, busbw, Source::Job);
        m.job = Some(self.job.clone());
        m.taken_at_unix_s = Some(self.at_unix_s);
        m.contention = self.contention.clone();
        m.provenance = provenance;
        m
    }
}

fn unknown(job: &str, now: &Snapshot) -> Failure {
    let known: Vec<&str> = now.jobs.iter().rev().take(5).map(|j| j.id.as_str()).collect();
    let known = if known.is_empty() { "no job does".into() } else { format!("jobs that do: {}", known.join(", ")) };
    Failure::input(format!(
        "no job `{job}` holds GPUs; {known}. A job that has ended is named with --gpus and --cluster"
    ))
}

/// Jobs over several hosts that share a NIC with this one, in words; none if it has its NICs for itself.
fn contention(cluster: &Cluster, now: &Snapshot, job: &str, gpus: &Allocation) -> Option<String> {
    if gpus.host_count() < 2 {
        return None;
    }
    let nics = |a: &Allocation, h| cluster.type_of(h).nics_touched(a.mask(h));
    let meets = |j: &&JobHeld| {
        j.id != job
            && j.gpus.host_count() > 1
            && gpus.parts().iter().any(|&(h, _)| nics(gpus, h) & nics(&j.gpus, h) != 0)
    };
    let with: Vec<&str> = now.jobs.iter().filter(meets).map(|j| j.id.as_str()).take(NAMED_MAX).collect();
    (!with.is_empty()).then(|| format!("shares NICs with {}", with.join(", ")))
}

/// `--busbw`.
pub fn of_number(whose: &Whose, collective: Collective, size: Option<Bytes>, gb_per_s: f64) -> Measurement {
    let size = size.or(whose.placed_for).unwrap_or(SIZE_DEFAULT);
    whose.measurement(collective, size, Bandwidth::from_gb_per_s(gb_per_s), "linkwise observe --busbw".into())
}

/// `--nccl-tests FILE`: every size of the output, out of place.
pub fn of_nccl_tests(
    cluster: &Cluster,
    whose: &Whose,
    collective: Collective,
    file: &Path,
) -> Result<Vec<Measurement>, Failure> {
    let text = read_text(file, OUTPUT_BYTES_MAX)?;
    let json = text.trim_start().starts_with('{');
    let report: NcclTestsReport = if json { parse_json(&text) } else { parse_text(&text) }
        .map_err(|e| Failure::input(format!("{}: {e}", file.display())))?;
    let ranks = whose.gpus.gpu_count();
    if !report.ranks.is_empty() && report.ranks.len() != ranks {
        let gpus = cluster.gpu_list(&whose.gpus);
        return Err(Failure::input(format!(
            "{} is of {} ranks, job `{}` has {ranks} GPUs ({gpus})",
            file.display(),
            report.ranks.len(),
            whose.job
        )));
    }
    let collective = report.collective.unwrap_or(collective);
    let rows = report.rows.iter().filter(|r| r.size_bytes > 0 && r.out_of_place.busbw_gb_per_s > 0.0);
    let out: Vec<Measurement> = rows
        .map(|r| {
            let busbw = Bandwidth::from_gb_per_s(r.out_of_place.busbw_gb_per_s);
            let mut m = whose.measurement(collective, Bytes(r.size_bytes), busbw, provenance("nccl-tests", file));
            m.time = Some(Seconds(r.out_of_place.time_us * 1e-6));
            m.nccl_version = report.nccl_version.clone();
            m
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

/// `--trace FILE`: one reading for every collective and size, and how many operations were left out.
pub fn of_trace(whose: &Whose, file: &Path) -> Result<(Vec<Measurement>, usize), Failure> {
    let text = read_text(file, FILE_BYTES_MAX)?;
    let trace =
        parse_trace(&text, whose.gpus.gpu_count()).map_err(|e| Failure::input(format!("{}: {e}", file.display())))?;
    let out = trace
        .kinds
        .iter()
        .map(|k| {
            let what = format!("{:?} trace, {} operations", trace.form, k.operations);
            let mut m = whose.measurement(k.collective, k.size, k.busbw, provenance(&what, file));
            m.time = Some(k.time);
            m.taken_at_unix_s = k.at_unix_s.or(m.taken_at_unix_s);
            m
        })
        .collect();
    Ok((out, trace.left_out))
}

pub fn provenance(what: &str, file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    format!("linkwise observe, {what}, {}", name.chars().take(200).collect::<String>())
}

/// All of them, or none.
pub fn record(store: &mut Store, measurements: &[Measurement]) -> Result<(), Failure> {
    let records: Vec<Record> = measurements.iter().cloned().map(Record::from).collect();
    store.insert_batch(&records).or_failure()?;
    Ok(())
}
