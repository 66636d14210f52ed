//! [`NcclTests`]: runs nccl-tests and reads their output.

use super::launch::{CommandLine, LaunchOptions, Launcher, command_line};
use super::text::parse_text;
use crate::backend::{Backend, BackendError, Point, Reading};
use rustix::process::{Pid, Signal};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};
use store::Source;
use topology::{Bandwidth, Cluster, Seconds};
use wait_timeout::ChildExt;

/// Bytes of output kept; more ends the run.
const OUTPUT_BYTES_MAX: u64 = 16 << 20;
/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(3);
/// Limit on concurrent runs on different hosts.
const RUNS_AT_A_TIME_MAX: usize = 64;

/// The nccl-tests backend.
pub struct NcclTests<'c> {
    cluster: &'c Cluster,
    options: LaunchOptions,
    timeout: Duration,
    /// Host files: created with the first one, removed at the end.
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
    fn expected(&self, _: &Point) -> Seconds {
        Seconds(crate::simulated::NOMINAL_SECONDS)
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

/// Runs a command to its end and returns its standard output. Reads standard output and error on threads, so a full pipe never blocks the
/// run; a run over the time limit is asked to end, then killed.
fn execute(line: &CommandLine, timeout: Duration) -> Result<String, BackendError> {
    let mut command = Command::new(&line.program);
    command.args(&line.args).envs(line.env.iter().cloned());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| {
        let hint = if Path::new(&line.program).components().count() > 1 {
            ""
        } else {
            " (is it on PATH? --nccl-tests names the folder)"
        };
        BackendError::Fatal(format!("cannot start `{}`: {e}{hint}", line.program))
    })?;
    let out = drain(child.stdout.take());
    let err = drain(child.stderr.take());
    let status = match child.wait_timeout(timeout) {
        Ok(Some(status)) => status,
        Ok(None) => {
            terminate(&mut child);
            return Err(BackendError::Point(format!("still running after {} s", timeout.as_secs_f64())));
        }
        Err(e) => {
            terminate(&mut child);
            return Err(BackendError::Fatal(format!("cannot wait for `{}`: {e}", line.program)));
        }
    };
    // Do not wait for the pipe: a remaining process may hold it open.
    let text = |r: &mpsc::Receiver<Vec<u8>>| {
        let bytes = r.recv_timeout(GRACE).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (stdout, stderr) = (text(&out), text(&err));
    if !status.success() && parse_text(&stdout).is_err() {
        let last: Vec<&str> = stderr.lines().chain(stdout.lines()).filter(|l| !l.trim().is_empty()).collect();
        let tail = last.iter().rev().take(3).rev().copied().collect::<Vec<_>>().join(" | ");
        return Err(BackendError::Point(format!(
            "`{}` ended with {status}: {}",
            line.program,
            super::report::shorten(&tail)
        )));
    }
    Ok(stdout)
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            let _ = pipe.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
        }
        let _ = send.send(bytes);
    });
    receive
}

/// Terminates a launcher, which then ends its remote processes; kills it if it does not exit; reaps it.
fn terminate(child: &mut Child) {
    let asked = rustix::process::kill_process(Pid::from_child(child), Signal::TERM);
    if !(asked.is_ok() && matches!(child.wait_timeout(GRACE), Ok(Some(_)))) {
        let _ = child.kill();
    }
    let _ = child.wait();
}
