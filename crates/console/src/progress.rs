//! Progress of long work on standard error: on a terminal a bar with the time left, elsewhere a line at intervals.

use crate::{duration, say};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two lines if standard error is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// The progress of one stage. The stage ends when the value is dropped.
pub struct Progress {
    shown: Shown,
}

enum Shown {
    Bar(ProgressBar),
    Lines { stage: Arc<Mutex<Stage>>, end: Option<Sender<()>>, thread: Option<JoinHandle<()>> },
}

/// The content of a line.
struct Stage {
    name: String,
    done: usize,
    total: usize,
    doing: String,
    begun: Instant,
    /// The caller's estimate of the time left, and its time; without it the estimate follows from the finished steps.
    left: Option<(f64, Instant)>,
}

impl Stage {
    fn line(&self) -> String {
        let left_s = match self.left {
            Some((s, at)) => Some((s - at.elapsed().as_secs_f64()).max(0.0)),
            None if self.done == 0 => None,
            None => {
                let steps = self.total.saturating_sub(self.done) as f64 / self.done as f64;
                Some(self.begun.elapsed().as_secs_f64() * steps)
            }
        };
        let doing = if self.doing.is_empty() { String::new() } else { format!(" ({})", self.doing) };
        let left = left_s.map_or(String::new(), |s| format!(", about {} left", duration(s)));
        format!("{}: {} of {}{doing}{left}", self.name, self.done, self.total)
    }
}

impl Progress {
    /// Starts a stage of `total` steps.
    pub fn new(name: &str, total: usize) -> Self {
        if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(total as u64);
            let style = ProgressStyle::with_template("{prefix} {bar:20} {pos}/{len} {wide_msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_prefix(name.to_owned());
            return Progress { shown: Shown::Bar(bar) };
        }
        Self::in_lines(name, total, LINE_EVERY, |line| say(&line))
    }

    fn in_lines(name: &str, total: usize, every: Duration, out: impl Fn(String) + Send + 'static) -> Self {
        let name = name.to_owned();
        let stage = Stage { name, done: 0, total, doing: String::new(), begun: Instant::now(), left: None };
        let stage = Arc::new(Mutex::new(stage));
        let (end, ended) = mpsc::channel();
        let seen = Arc::clone(&stage);
        let thread = std::thread::spawn(move || {
            while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                let line = seen.lock().unwrap_or_else(PoisonError::into_inner).line();
                out(line);
            }
        });
        Progress { shown: Shown::Lines { stage, end: Some(end), thread: Some(thread) } }
    }

    fn change(&self, bar: impl FnOnce(&ProgressBar), stage: impl FnOnce(&mut Stage)) {
        match &self.shown {
            Shown::Bar(b) => bar(b),
            Shown::Lines { stage: s, .. } => stage(&mut s.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Counts `n` more finished steps.
    pub fn advance(&self, n: usize) {
        self.change(
            |bar| {
                bar.inc(n as u64);
                let left = bar.eta().as_secs_f64();
                bar.set_message(if left > 0.0 { format!("about {} left", duration(left)) } else { String::new() });
            },
            |s| s.done += n,
        );
    }

    /// Sets the finished and total steps, the current step's name, and the time left if the caller knows it.
    pub fn set(&self, done: usize, total: usize, doing: &str, left_s: Option<f64>) {
        self.change(
            |bar| {
                bar.set_length(total as u64);
                bar.set_position(done as u64);
                let left = left_s.map_or(String::new(), |s| format!(", about {} left", duration(s)));
                bar.set_message(format!("{doing}{left}"));
            },
            |s| {
                (s.done, s.total, s.doing) = (done, total, doing.to_owned());
                s.left = left_s.map(|s| (s, Instant::now()));
            },
        );
    }

    /// Writes a line to standard error, above the bar.
    pub fn say(&self, line: &str) {
        match &self.shown {
            Shown::Bar(bar) => bar.suspend(|| say(&line)),
            Shown::Lines { .. } => say(&line),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        match &mut self.shown {
            Shown::Bar(bar) => bar.finish_and_clear(),
            Shown::Lines { end, thread, .. } => {
                drop(end.take());
                if let Some(thread) = thread.take() {
                    let _ = thread.join();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(done: usize, left: Option<f64>) -> Stage {
        let begun = Instant::now() - Duration::from_secs(60);
        let left = left.map(|s| (s, Instant::now()));
        Stage { name: "multi-host".into(), done, total: 90, doing: String::new(), begun, left }
    }

    #[test]
    fn a_line_gives_the_finished_share_and_the_time_left() {
        assert_eq!(stage(0, None).line(), "multi-host: 0 of 90");
        assert_eq!(stage(30, None).line(), "multi-host: 30 of 90, about 2 minutes left");
        let doing = Stage { doing: "RING/LL".into(), ..stage(30, Some(45.4)) };
        assert_eq!(doing.line(), "multi-host: 30 of 90 (RING/LL), about 45 seconds left");
    }

    #[test]
    fn lines_appear_during_a_long_step_and_end_with_the_stage() {
        let (out, lines) = mpsc::channel();
        let progress = Progress::in_lines("fit", 4, Duration::from_millis(1), move |line| {
            let _ = out.send(line);
        });
        progress.advance(1);
        progress.set(2, 5, "second", None);
        let long = Duration::from_secs(60);
        while !lines.recv_timeout(long).expect("a line").starts_with("fit: 2 of 5 (second)") {}
        drop(progress);
        while lines.try_recv().is_ok() {}
        assert!(lines.recv().is_err(), "the thread has ended");
    }
}
