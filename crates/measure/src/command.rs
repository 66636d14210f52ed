//! The command backend: the user's own benchmark, started once, with one JSON object per line in both directions.
//!
//! linkwise writes `{"id":1,"gpus":["n0:0","n1:3"],"collective":"all_reduce","size_bytes":16777216}`. The command answers
//! `{"id":1,"busbw_gb_per_s":123.4}` (optionally with `time_us`, `algorithm`, `protocol`, `channels`, `nccl_version`) or `{"id":1,"error":"..."}`. It
//! must exit when its standard input closes.
//!
//! ```text
//! stopped ──start──► idle ──request──► waiting ──answer with this id──► idle
//!    ▲                                    │ error answer: idle, next attempt
//!    └──── kill, reap ◄── timeout, crash, flood of garbage ──► start again (limited), next attempt
//! ```
//!
//! Three threads move bytes (standard input, output and error), so a command that neither reads nor writes costs only
//! the time limit.

use crate::backend::{Backend, BackendError, Point, Reading};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use store::Source;
use topology::{Bandwidth, Cluster, Seconds};
use wait_timeout::ChildExt;

/// Longest answer line, bytes. A longer line is dropped and counts as invalid.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Lines without the requested answer after which the command counts as broken.
pub const GARBAGE_LINES_MAX: usize = 10_000;
/// Bytes of the command's standard error kept for messages.
pub const STDERR_BYTES_KEPT: usize = 2_000;
/// Lines read ahead.
const LINES_AHEAD: usize = 64;
/// Time that the command gets to exit after its standard input has closed.
const GRACE: Duration = Duration::from_secs(2);

/// The command and its limits.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandOptions {
    /// Run by `sh -c`.
    pub command: String,
    /// Time limit per attempt.
    pub timeout: Duration,
    /// Attempts per point.
    pub attempts: u32,
    /// Limit on consecutive starts without an answer.
    pub starts_max: u32,
}

impl CommandOptions {
    /// 120 s and 3 attempts per point, 5 starts.
    pub fn new(command: impl Into<String>) -> Self {
        CommandOptions { command: command.into(), timeout: Duration::from_secs(120), attempts: 3, starts_max: 5 }
    }
}

/// The user's benchmark as a backend.
pub struct CommandBackend<'c> {
    cluster: &'c Cluster,
    options: CommandOptions,
    running: Option<CommandProcess>,
    next_id: u64,
    fruitless_starts: u32,
    took: Option<f64>,
}

impl<'c> CommandBackend<'c> {
    /// Does not start the command yet.
    pub fn new(cluster: &'c Cluster, options: CommandOptions) -> Self {
        CommandBackend { cluster, options, running: None, next_id: 1, fruitless_starts: 0, took: None }
    }

    /// Process id of the command while it runs.
    pub fn process_id(&self) -> Option<u32> {
        self.running.as_ref().map(|r| r.child.id())
    }

    fn attempt(&mut self, point: &Point) -> Result<Reading, AttemptError> {
        if self.running.is_none() {
            if self.fruitless_starts >= self.options.starts_max {
                let n = self.fruitless_starts;
                return Err(AttemptError::GiveUp(format!(
                    "`{}` was started {n} times in a row without an answer",
                    self.options.command
                )));
            }
            self.fruitless_starts += 1;
            let started = CommandProcess::start(&self.options.command);
            self.running = Some(
                started.map_err(|e| AttemptError::GiveUp(format!("cannot start `{}`: {e}", self.options.command)))?,
            );
        }
        let Some(running) = &self.running else { return Err(AttemptError::Failed("it is not running".into())) };
        let id = self.next_id;
        self.next_id += 1;
        let request = json!({
            "id": id,
            "gpus": self.cluster.gpu_names(&point.allocation),
            "collective": point.collective.name(),
            "size_bytes": point.size.0,
        });
        let start = Instant::now();
        let _ = running.requests.send(format!("{request}\n")); // if the writer has ended, the closed output shows it below
        let answer = running.wait_for(id, start + self.options.timeout);
        match answer {
            Ok(answer) => {
                self.fruitless_starts = 0;
                let took = start.elapsed().as_secs_f64();
                self.took = Some(took);
                reading_of(&answer, Seconds(took)).map_err(AttemptError::Failed)
            }
            Err(why) => {
                let stderr_tail = self.running.take().map(CommandProcess::stop).unwrap_or_default();
                let stderr_tail = if stderr_tail.is_empty() {
                    stderr_tail
                } else {
                    format!("; its standard error ends with: {stderr_tail}")
                };
                Err(AttemptError::Failed(format!("{}{stderr_tail}", why.message(self.options.timeout))))
            }
        }
    }
}

enum AttemptError {
    Failed(String),
    GiveUp(String),
}

impl Backend for CommandBackend<'_> {
    fn source(&self) -> Source {
        Source::Command
    }
    fn provenance(&self) -> String {
        self.options.command.chars().take(1000).collect()
    }
    fn expected(&self, point: &Point) -> Seconds {
        self.took.map_or_else(|| crate::simulated::nominal_seconds(point.allocation.gpu_count()), Seconds)
    }
    fn measure(&mut self, point: &Point) -> Result<Reading, BackendError> {
        let mut last = String::new();
        for _ in 0..self.options.attempts.max(1) {
            match self.attempt(point) {
                Ok(reading) => return Ok(reading),
                Err(AttemptError::Failed(why)) => last = why,
                Err(AttemptError::GiveUp(why)) => {
                    let because = if last.is_empty() { last } else { format!(" (last: {last})") };
                    return Err(BackendError::Fatal(format!("{why}{because}")));
                }
            }
        }
        Err(BackendError::Point(last))
    }
}

/// The reading in an answer with the right id.
fn reading_of(answer: &Value, took: Seconds) -> Result<Reading, String> {
    if let Some(e) = answer.get("error").filter(|e| !e.is_null()) {
        let text = e.as_str().map_or_else(|| e.to_string(), str::to_owned);
        return Err(format!("the command reports: {}", text.chars().take(300).collect::<String>()));
    }
    let busbw = answer
        .get("busbw_gb_per_s")
        .and_then(Value::as_f64)
        .filter(|b| (0.0..=store::measurement::BUSBW_GB_PER_S_MAX).contains(b));
    let busbw = busbw.ok_or("the answer has no valid `busbw_gb_per_s`; a number of GB/s was expected")?;
    let text = |name: &str| answer.get(name).and_then(Value::as_str).map(|t| t.chars().take(100).collect::<String>());
    let mut reading = Reading::new(Bandwidth::from_gb_per_s(busbw), took);
    reading.time =
        answer.get("time_us").and_then(Value::as_f64).filter(|t| (0.0..=1e12).contains(t)).map(|us| Seconds(us / 1e6));
    reading.algorithm = text("algorithm");
    reading.protocol = text("protocol");
    reading.nccl_version = text("nccl_version");
    reading.channels = answer.get("channels").and_then(Value::as_u64).and_then(|c| u32::try_from(c).ok());
    Ok(reading)
}

/// Why there is no answer.
enum NoAnswer {
    Timeout,
    Ended,
    Garbage,
}

impl NoAnswer {
    fn message(&self, timeout: Duration) -> String {
        match self {
            NoAnswer::Timeout => format!("no answer within {} s", timeout.as_secs_f64()),
            NoAnswer::Ended => "the command ended without an answer".into(),
            NoAnswer::Garbage => format!("{GARBAGE_LINES_MAX} lines and none is the answer"),
        }
    }
}

/// The running command and its three threads.
struct CommandProcess {
    child: Child,
    requests: Sender<String>,
    /// Lines of standard output; `None` for a line over the limit.
    lines: Receiver<Option<String>>,
    stderr_tail: Arc<Mutex<Vec<u8>>>,
    /// Disconnected once all of standard error is in `stderr_tail`.
    stderr_read: Receiver<()>,
}

impl CommandProcess {
    fn start(command: &str) -> std::io::Result<CommandProcess> {
        // In its own process group, so that processes started by the shell end with it.
        let mut child = Command::new("sh")
            .args(["-c", command])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (requests, to_write) = mpsc::channel::<String>();
        let (to_read, lines) = mpsc::sync_channel(LINES_AHEAD);
        let stderr_tail = Arc::new(Mutex::new(Vec::new()));
        if let Some(mut stdin) = child.stdin.take() {
            std::thread::spawn(move || {
                for line in to_write {
                    if stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()).is_err() {
                        return;
                    }
                }
            });
        }
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || read_lines(BufReader::new(stdout), &to_read));
        }
        let (reading, stderr_read) = mpsc::channel();
        if let Some(stderr) = child.stderr.take() {
            let stderr_tail = Arc::clone(&stderr_tail);
            std::thread::spawn(move || {
                let _reading = reading;
                keep_tail(stderr, &stderr_tail);
            });
        }
        Ok(CommandProcess { child, requests, lines, stderr_tail, stderr_read })
    }

    /// Waits for the answer with this id. Skips invalid lines and answers to older requests.
    fn wait_for(&self, id: u64, deadline: Instant) -> Result<Value, NoAnswer> {
        for _ in 0..GARBAGE_LINES_MAX {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Some(line)) => {
                    let value = serde_json::from_str::<Value>(&line).unwrap_or_default();
                    if value.get("id").and_then(Value::as_u64) == Some(id) {
                        return Ok(value);
                    }
                }
                Ok(None) => {}
                Err(RecvTimeoutError::Timeout) => return Err(NoAnswer::Timeout),
                Err(RecvTimeoutError::Disconnected) => return Err(NoAnswer::Ended),
            }
        }
        Err(NoAnswer::Garbage)
    }

    /// Kills the command and its children, and returns the end of its standard error.
    fn stop(mut self) -> String {
        self.kill();
        // The pipe ends with the last process of the group; one that left the group may keep it open.
        let _ = self.stderr_read.recv_timeout(GRACE);
        self.stderr_tail
            .lock()
            .map_or_else(|_| String::new(), |s| String::from_utf8_lossy(&s).trim().replace('\n', " | "))
    }

    fn kill(&mut self) {
        // The group has the child's number (`process_group(0)`), which its remaining members keep in use.
        let _ = rustix::process::kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for CommandProcess {
    /// Closes its standard input, waits up to [`GRACE`], then kills and reaps it.
    fn drop(&mut self) {
        self.requests = mpsc::channel().0;
        let _ = self.child.wait_timeout(GRACE);
        self.kill();
    }
}

fn read_lines(mut from: impl BufRead, to: &SyncSender<Option<String>>) {
    let mut line = Vec::new();
    loop {
        line.clear();
        match from.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let whole = line.len() <= LINE_BYTES_MAX;
        if !whole && line.last() != Some(&b'\n') && from.skip_until(b'\n').is_err() {
            return;
        }
        let text = whole.then(|| String::from_utf8_lossy(&line).into_owned());
        if to.send(text).is_err() {
            return;
        }
    }
}

fn keep_tail(mut from: impl Read, stderr_tail: &Mutex<Vec<u8>>) {
    let mut block = [0u8; 4096];
    while let Ok(n @ 1..) = from.read(&mut block) {
        let Ok(mut stderr_tail) = stderr_tail.lock() else { return };
        stderr_tail.extend_from_slice(&block[..n]);
        let over = stderr_tail.len().saturating_sub(STDERR_BYTES_KEPT);
        stderr_tail.drain(..over);
    }
}
