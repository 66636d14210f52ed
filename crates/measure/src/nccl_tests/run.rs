//! [`NcclTests`]: runs nccl-tests and reads their output.

use super::launch::{CommandLine, LaunchOptions, Launcher, command_line};
use super::text::parse_text;
use crate::backend::{Backend, BackendError, Point, Reading};
use crate::process;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use store::Source;
use topology::{Bandwidth, Cluster, Seconds};

/// Limit on concurrent runs on different hosts.
const RUNS_AT_A_TIME_MAX: usize = 64;

/// The nccl-tests backend.
pub struct NcclTests<'c> {
    cluster: &'c Cluster,
    options: LaunchOptions,
    timeout: Duration,
    /// Folder of host files: created with the first one, removed at the end.
    folder: OnceLock<tempfile::TempDir>,
}

impl<'c> NcclTests<'c> {
    /// `timeout`: limit per run.
    pub fn new(cluster: &'c Cluster, options: LaunchOptions, timeout: Duration) -> Self {
        NcclTests { cluster, options, timeout, folder: OnceLock::new() }
    }

    /// Path of the host file of `point`; only srun needs one.
    fn hostfile(&self, point: &Point) -> Result<PathBuf, BackendError> {
        if self.options.launcher != Launcher::Srun {
            return Ok(PathBuf::new());
        }
        if self.folder.get().is_none() {
            let folder = tempfile::Builder::new().prefix("linkwise-").tempdir();
            let folder = folder.map_err(|e| BackendError::Fatal(format!("cannot make a scratch folder: {e}")))?;
            let _ = self.folder.set(folder);
        }
        let digest = store::digest::fnv64(self.cluster.gpu_names(&point.allocation).iter().map(String::as_str));
        Ok(self.folder.get().map(|f| f.path().join(format!("{digest:016x}.hosts"))).unwrap_or_default())
    }

    fn run(&self, point: &Point) -> Result<Reading, BackendError> {
        let path = self.hostfile(point)?;
        let line = command_line(self.cluster, point, &self.options, &path).map_err(BackendError::Point)?;
        if let Some(content) = &line.hostfile {
            std::fs::write(&path, content)
                .map_err(|e| BackendError::Fatal(format!("cannot write the host file {}: {e}", path.display())))?;
        }
        let start = Instant::now();
        let output = execute(&line, self.timeout)?;
        let took = Seconds(start.elapsed().as_secs_f64());
        let report = parse_text(&output).map_err(|e| BackendError::Point(format!("{}: output, {e}", line.program)))?;
        let ranks = point.allocation.gpu_count();
        let row = report
            .row(point.size.0, ranks)
            .ok_or_else(|| BackendError::Point(format!("the output has no row of {} bytes", point.size.0)))?;
        if let Some(n) = row.out_of_place.wrong.filter(|n| *n > 0) {
            return Err(BackendError::Point(format!(
                "{n} elements are wrong: the collective gave an incorrect result"
            )));
        }
        let mut reading = Reading::new(Bandwidth::from_gb_per_s(row.out_of_place.busbw_gb_per_s), took);
        reading.time = Some(Seconds(row.out_of_place.time_us / 1e6));
        reading.nccl_version = report.nccl_version.clone();
        Ok(reading)
    }
}

impl Backend for NcclTests<'_> {
    fn source(&self) -> Source {
        Source::NcclTests
    }
    fn provenance(&self) -> String {
        let launcher = match self.options.launcher {
            Launcher::Local => "local",
            Launcher::Mpirun => "mpirun",
            Launcher::Srun => "srun",
        };
        format!("nccl-tests, {launcher}, -n {} -w {}, out-of-place", self.options.iterations, self.options.warmup)
    }
    fn width(&self) -> usize {
        if self.options.launcher == Launcher::Local { 1 } else { RUNS_AT_A_TIME_MAX }
    }
    fn expected(&self, point: &Point) -> Seconds {
        crate::simulated::nominal_seconds(point.allocation.gpu_count())
    }
    fn measure(&mut self, point: &Point) -> Result<Reading, BackendError> {
        self.run(point)
    }
    fn measure_batch(&mut self, points: &[Point]) -> Vec<Result<Reading, BackendError>> {
        let this = &*self;
        std::thread::scope(|s| {
            let runs: Vec<_> = points.iter().map(|p| s.spawn(move || this.run(p))).collect();
            let broken = || Err(BackendError::Fatal("a measuring thread broke".into()));
            runs.into_iter().map(|r| r.join().unwrap_or_else(|_| broken())).collect()
        })
    }
}

/// Runs a command to its end and returns its standard output.
fn execute(line: &CommandLine, timeout: Duration) -> Result<String, BackendError> {
    let ended = process::run(line, timeout, " (is it on PATH? --nccl-tests names the folder)")?;
    if !ended.status.success() && parse_text(&ended.stdout).is_err() {
        return Err(BackendError::Point(format!(
            "`{}` ended with {}: {}",
            line.program,
            ended.status,
            super::report::shorten(&ended.last_words())
        )));
    }
    Ok(ended.stdout)
}
