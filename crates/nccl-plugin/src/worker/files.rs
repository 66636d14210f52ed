//! Files and NCCL's log, on a thread of their own. A file system that hangs, or a log that no process reads, must not delay the agreement: other
//! ranks wait for it. The queue is bounded; tasks that do not fit are dropped and counted.

use crate::abi::LOG;
use crate::status::StatusSnapshot;
use crate::trace::Trace;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Limit on queued tasks. A task of the trace has about 32 KiB, or what five milliseconds bring.
const QUEUE_MAX: usize = 256;
/// Interval between checks for the stop file.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// A task of the thread.
#[derive(Debug)]
enum Task {
    /// Lines of the trace.
    Lines(String),
    Warn(String),
    Info(String),
    StandardError(String),
    /// Writes the dump of a snapshot in which a call waits.
    Waiting(PathBuf, Box<StatusSnapshot>),
    /// Replaces the files of a snapshot in a folder.
    Status(PathBuf, Box<StatusSnapshot>),
    /// The sender learns that all earlier tasks are done.
    End(SyncSender<()>),
}

/// The results that the worker reads.
#[derive(Debug, Default)]
pub struct Told {
    pub stop_file_exists: AtomicBool,
    /// The trace is full, or cannot be written.
    pub trace_ended: AtomicBool,
    /// Lines of the trace, warnings and files that did not fit into the queue.
    pub dropped: AtomicU64,
}

/// The files of the thread.
#[derive(Debug, Default)]
pub struct Open {
    /// Folder, host and largest size of the trace.
    pub trace: Option<(PathBuf, u64, u64)>,
    pub stop_file: Option<PathBuf>,
}

/// The worker's end.
#[derive(Debug, Clone)]
pub struct Files {
    to: SyncSender<Task>,
    pub told: Arc<Told>,
}

impl Files {
    /// Starts the thread. `None` if the system refuses one; then nothing is written.
    pub fn start(open: Open) -> (Self, Option<JoinHandle<()>>) {
        let (to, tasks) = sync_channel(QUEUE_MAX);
        let told = Arc::new(Told::default());
        let (begins, has_begun) = channel();
        let shared = told.clone();
        let run = move || {
            let _ = begins.send(());
            let _ = catch_unwind(AssertUnwindSafe(|| run(&open, &tasks, &shared)));
            shared.trace_ended.store(true, Ordering::Relaxed);
        };
        let thread = plugin_base::threads::spawn("linkwise-files", run).ok();
        // From here on the running thread keeps the plugin's library from being unloaded, if it should hang for ever.
        if thread.is_some() {
            let _ = has_begun.recv();
        }
        (Files { to, told }, thread)
    }

    /// Without a thread: drops everything.
    pub fn ended() -> Self {
        Files { to: sync_channel(0).0, told: Arc::default() }
    }

    fn send(&self, task: Task) {
        let lines = match &task {
            Task::Lines(text) => text.bytes().filter(|b| *b == b'\n').count() as u64,
            _ => 1,
        };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.to.try_send(task) {
            self.told.dropped.fetch_add(lines, Ordering::Relaxed);
        }
    }

    pub fn lines(&self, text: String) {
        self.send(Task::Lines(text));
    }

    pub fn warn(&self, text: impl Into<String>) {
        self.send(Task::Warn(text.into()));
    }

    pub fn info(&self, text: impl Into<String>) {
        self.send(Task::Info(text.into()));
    }

    /// Writes a line to the standard error of the process.
    pub fn standard_error(&self, text: String) {
        self.send(Task::StandardError(text));
    }

    pub fn status(&self, folder: PathBuf, snapshot: StatusSnapshot) {
        self.send(Task::Status(folder, Box::new(snapshot)));
    }

    pub fn waiting(&self, folder: PathBuf, snapshot: StatusSnapshot) {
        self.send(Task::Waiting(folder, Box::new(snapshot)));
    }

    /// Waits, at most `most`, until all earlier tasks are done. True if they are.
    pub fn finish(&self, most: Duration) -> bool {
        let (done, is_done) = sync_channel(1);
        let until = Instant::now() + most;
        let mut task = Task::End(done);
        while let Err(TrySendError::Full(back)) = self.to.try_send(task) {
            if Instant::now() >= until {
                return false;
            }
            task = back;
            std::thread::sleep(Duration::from_millis(1));
        }
        is_done.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok()
    }
}

fn run(open: &Open, tasks: &Receiver<Task>, told: &Told) {
    let mut trace = Trace::default();
    if let Some((folder, host, most)) = &open.trace {
        match Trace::in_folder(folder, *host, *most) {
            Ok(t) => trace = t,
            Err(e) => LOG.warn(&format!("cannot write a trace to {}: {e}", folder.display())),
        }
    }
    let mut checked: Option<Instant> = None;
    let (mut dropped, mut said_no_status) = (0, false);
    loop {
        told.trace_ended.store(!trace.is_open(), Ordering::Relaxed);
        if let Some(file) = &open.stop_file
            && checked.is_none_or(|t| t.elapsed() >= STOP_CHECK_INTERVAL)
            && !told.stop_file_exists.load(Ordering::Relaxed)
        {
            told.stop_file_exists.store(file.exists(), Ordering::Relaxed);
            checked = Some(Instant::now());
        }
        match tasks.recv_timeout(STOP_CHECK_INTERVAL) {
            Ok(Task::Lines(text)) => {
                text.lines().for_each(|l| trace.line(format_args!("{l}")));
                let now = told.dropped.load(Ordering::Relaxed);
                if now > dropped {
                    dropped = now;
                    trace.line(format_args!("{{\"kind\":\"dropped\",\"lines\":{now}}}"));
                }
                trace.flush();
            }
            Ok(Task::Warn(text)) => LOG.warn(&text),
            Ok(Task::Info(text)) => LOG.info(&text),
            // `eprintln` panics where standard error is closed.
            Ok(Task::StandardError(text)) => _ = writeln!(std::io::stderr(), "{text}"),
            Ok(Task::Waiting(folder, snapshot)) => {
                if let Err(e) = snapshot.write_waiting(&folder) {
                    LOG.warn(&format!("cannot write the state to {}: {e}", folder.display()));
                }
            }
            Ok(Task::Status(folder, snapshot)) => {
                if let Err(e) = snapshot.write(&folder)
                    && !std::mem::replace(&mut said_no_status, true)
                {
                    LOG.warn(&format!("cannot write the status to {}: {e}", folder.display()));
                }
            }
            Ok(Task::End(done)) => _ = done.send(()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_hangs_delays_nothing_and_what_was_dropped_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(format!("trace-{:016x}-{}.jsonl", 7, std::process::id()));
        // Opening this pipe for reading and writing succeeds; after 64 KiB a write never returns.
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
        let open = Open { trace: Some((folder.path().into(), 7, u64::MAX)), stop_file: None };
        let (files, _thread) = Files::start(open);
        let mut trace = Trace::queued(files.clone());
        let begin = Instant::now();
        while files.told.dropped.load(Ordering::Relaxed) < 1000 && begin.elapsed() < Duration::from_secs(60) {
            (0..100).for_each(|i| trace.line(format_args!("{{\"i\":{i},\"text\":\"{}\"}}", "x".repeat(1000))));
            trace.flush();
        }
        assert!(files.told.dropped.load(Ordering::Relaxed) >= 1000);
        assert!(!files.finish(Duration::from_millis(100)), "it hangs still");
    }

    #[test]
    fn lines_warnings_and_files_are_written_and_the_stop_file_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let stop = folder.path().join("stop");
        let open = Open { trace: Some((folder.path().into(), 8, 1 << 20)), stop_file: Some(stop.clone()) };
        let (files, thread) = Files::start(open);
        let mut trace = Trace::queued(files.clone());
        assert!(trace.is_on());
        trace.line(format_args!("{{\"i\":1}}"));
        trace.flush();
        files.waiting(folder.path().into(), StatusSnapshot { pid: 7, ..StatusSnapshot::default() });
        assert!(files.finish(Duration::from_secs(60)));
        let state = std::fs::read_to_string(folder.path().join("waiting-0000000000000000-7.json")).unwrap();
        assert!(state.contains("\"pid\":7"), "{state}");
        let name = format!("trace-{:016x}-{}.jsonl", 8, std::process::id());
        assert_eq!(std::fs::read_to_string(folder.path().join(name)).unwrap(), "{\"i\":1}\n");
        assert!(!files.told.stop_file_exists.load(Ordering::Relaxed));
        std::fs::write(stop, "").unwrap();
        let begin = Instant::now();
        while !files.told.stop_file_exists.load(Ordering::Relaxed) && begin.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(files.told.stop_file_exists.load(Ordering::Relaxed));
        drop((trace, files));
        thread.unwrap().join().unwrap();
    }
}
