//! The command backend: the user's own benchmark, started once, spoken to in lines of JSON.
//!
//! linkwise writes `{"id":1,"gpus":["n0:0","n1:3"],"collective":"all_reduce","size_bytes":16777216}`; the command answers
//! `{"id":1,"busbw_gb_per_s":123.4}` (also `time_us`, `algorithm`, `protocol`, `channels`, `nccl_version`) or
//! `{"id":1,"error":"..."}`. It ends when its standard input does.
//!
//! ```text
//! stopped ──start──► idle ──request──► waiting ──answer with this id──► idle
//!    ▲                                    │ error answer: idle, next attempt
//!    └──── kill, reap ◄── timeout, crash, flood of garbage ──► start again (limited), next attempt
//! ```
//!
//! Three threads move bytes (in, out, standard error), so a command that neither reads nor writes costs a time limit and nothing else.

use crate::backend::{Backend, BackendError, Point, Reading};
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

/// Longest answer line, bytes; the rest of a longer line is dropped and the line counts as garbage.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Lines that are no answer to this request before the command counts as broken.
pub const GARBAGE_LINES_MAX: usize = 10_000;
/// How much of the command's standard error is kept for messages, bytes.
pub const STDERR_BYTES_KEPT: usize = 2_000;
/// Lines read ahead.
const LINES_AHEAD: usize = 64;
/// How long the command may take to end after its standard input closed.
const GRACE: Duration = Duration::from_secs(2);

/// How patient linkwise is with the command.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandOptions {
    /// Run by `sh -c`.
    pub command: String,
    /// Per attempt of a point.
    pub timeout: Duration,
    /// Attempts of one point.
    pub attempts: u32,
    /// Starts in a row without an answer between them, before linkwise gives up.
    pub starts_max: u32,
}

impl CommandOptions {
    /// Two minutes and three attempts a point, five fruitless starts.
    pub fn new(command: impl Into<String>) -> Self {
        CommandOptions { command: command.into(), timeout: Duration::from_secs(120), attempts: 3, starts_max: 5 }
    }
}

/// The user's benchmark.
pub struct CommandBackend<'c> {
    cluster: &'c Cluster,
    options: CommandOptions,
    running: Option<Running>,
    next_id: u64,
    fruitless_starts: u32,
    took: Option<f64>,
}

impl<'c> CommandBackend<'c> {
    /// Starts nothing yet.
    pub fn new(cluster: &'c Cluster, options: CommandOptions) -> Self {
        CommandBackend { cluster, options, running: None, next_id: 1, fruitless_starts: 0, took: None }
    }

    /// Process id of the command, while it runs.
    pub fn process_id(&self) -> Option<u32> {
        self.running.as_ref().map(|r| r.child.id())
    }

    fn attempt(&mut self, point: &Point) -> Result<Reading, Attempt> {
        if self.running.is_none() {
            if self.fruitless_starts >= self.options.starts_max {
                let n = self.fruitless_starts;
                return Err(Attempt::GiveUp(format!(
                    "`{}` was started {n} times in a row without one answer",
                    self.options.command
                )));
            }
            self.fruitless_starts += 1;
            let started = Running::start(&self.options.command);
            self.running =
                Some(started.map_err(|e| Attempt::GiveUp(format!("cannot start `{}`: {e}", self.options.command)))?);
        }
        let Some(running) = &self.running else { return Err(Attempt::Failed("it is not running".into())) };
        let id = self.next_id;
        self.next_id += 1;
        let request = json!({
            "id": id,
            "gpus": self.cluster.gpu_names(&point.allocation),
            "collective": point.collective.name(),
            "size_bytes": point.size.0,
        });
        let start = Instant::now();
        let _ = running.requests.send(format!("{request}\n")); // a writer that is gone shows as a closed output below
        let answer = running.wait_for(id, start + self.options.timeout);
        match answer {
            Ok(answer) => {
                self.fruitless_starts = 0;
                let took = start.elapsed().as_secs_f64();
                self.took = Some(took);
                reading_of(&answer, Seconds(took)).map_err(Attempt::Failed)
            }
            Err(why) => {
                let said = self.running.take().map(Running::stop).unwrap_or_default();
                let said = if said.is_empty() { said } else { format!("; its standard error ends with: {said}") };
                Err(Attempt::Failed(format!("{}{said}", why.words(self.options.timeout))))
            }
        }
    }
}

enum Attempt {
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
    fn expected(&self, _: &Point) -> Seconds {
        Seconds(self.took.unwrap_or(crate::simulated::NOMINAL_SECONDS))
    }
    fn measure(&mut self, point: &Point) -> Result<Reading, BackendError> {
        let mut last = String::new();
        for _ in 0..self.options.attempts.max(1) {
            match self.attempt(point) {
                Ok(reading) => return Ok(reading),
                Err(Attempt::Failed(why)) => last = why,
                Err(Attempt::GiveUp(why)) => {
                    let because = if last.is_empty() { last } else { format!(" (last: {last})") };
                    return Err(BackendError::Fatal(format!("{why}{because}")));
                }
            }
        }
        Err(BackendError::Point(last))
    }
}

/// What an answer with the right id says.
fn reading_of(answer: &Value, took: Seconds) -> Result<Reading, String> {
    if let Some(e) = answer.get("error").filter(|e| !e.is_null()) {
        let text = e.as_str().map_or_else(|| e.to_string(), str::to_owned);
        return Err(format!("the command says: {}", text.chars().take(300).collect::<String>()));
    }
    let busbw = answer
        .get("busbw_gb_per_s")
        .and_then(Value::as_f64)
        .filter(|b| (0.0..=store::measurement::BUSBW_GB_PER_S_MAX).contains(b));
    let busbw = busbw.ok_or("the answer has no usable `busbw_gb_per_s`; a number of GB/s was expected")?;
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

/// Why no answer came.
enum NoAnswer {
    Timeout,
    Ended,
    Garbage,
}

impl NoAnswer {
    fn words(&self, timeout: Duration) -> String {
        match self {
            NoAnswer::Timeout => format!("no answer within {} s", timeout.as_secs_f64()),
            NoAnswer::Ended => "the command ended without an answer".into(),
            NoAnswer::Garbage => format!("{GARBAGE_LINES_MAX} lines without the answer"),
        }
    }
}

/// The started command and its three threads.
struct Running {
    child: Child,
    requests: Sender<String>,
    /// Lines of standard output; none for a line that was too long.
    lines: Receiver<Option<String>>,
    said: Arc<Mutex<Vec<u8>>>,
}

impl Running {
    fn start(command: &str) -> std::io::Result<Running> {
        // A process group of its own, so that what the shell started ends with it.
        let mut child = Command::new("sh")
            .args(["-c", command])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (requests, to_write) = mpsc::channel::<String>();
        let (to_read, lines) = mpsc::sync_channel(LINES_AHEAD);
        let said = Arc::new(Mutex::new(Vec::new()));
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
        if let Some(stderr) = child.stderr.take() {
            let said = Arc::clone(&said);
            std::thread::spawn(move || keep_tail(stderr, &said));
        }
        Ok(Running { child, requests, lines, said })
    }

    /// The answer with this id. Answers to older requests and garbage are passed over.
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

    /// Kills the command and everything it started, reaps it, and returns the end of its standard error.
    fn stop(mut self) -> String {
        self.kill();
        self.said.lock().map_or_else(|_| String::new(), |s| String::from_utf8_lossy(&s).trim().replace('\n', " | "))
    }

    fn kill(&mut self) {
        // The shell's own `kill` reaches the whole group; the standard library reaches only the child.
        let group = format!("kill -s KILL -- -{}", self.child.id());
        let _ = Command::new("sh")
            .args(["-c", &group])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    /// Closes its standard input, gives it a moment to end by itself, then kills and reaps it.
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

fn keep_tail(mut from: impl Read, said: &Mutex<Vec<u8>>) {
    let mut block = [0u8; 4096];
    while let Ok(n @ 1..) = from.read(&mut block) {
        let Ok(mut said) = said.lock() else { return };
        said.extend_from_slice(&block[..n]);
        let over = said.len().saturating_sub(STDERR_BYTES_KEPT);
        said.drain(..over);
    }
}
