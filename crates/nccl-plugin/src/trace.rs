//! What a process writes: one JSON object a line, to one file that is only appended to and ends at a size. A full disk ends it, too, without
//! a word to the job.

use crate::comm::{Comm, Decision};
use crate::events::Enqueued;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

/// Bytes collected before they are written.
const BUFFER_BYTES: usize = 32 << 10;

/// See the module.
#[derive(Debug, Default)]
pub struct Trace {
    file: Option<File>,
    buffer: String,
    left: u64,
}

impl Trace {
    /// Writes to `trace-<host>-<pid>.jsonl` in a folder, at most so many bytes.
    pub fn in_folder(folder: &Path, host: u64, most: u64) -> std::io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(format!("trace-{host:016x}-{}.jsonl", std::process::id()));
        let mut file = File::options().create(true).append(true).read(true).open(path)?;
        // All communicators may have ended and others come: what is there counts, and a full disk may have cut its last line.
        let mut left = most;
        let mut buffer = String::new();
        let there = file.metadata()?.len();
        if there > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != [b'\n'] {
                buffer.push('\n');
            }
            left = left.saturating_sub(there);
        }
        Ok(Trace { file: (left > 0).then_some(file), buffer, left })
    }

    /// Is anything written?
    pub fn is_on(&self) -> bool {
        self.file.is_some()
    }

    /// Appends a line.
    pub fn line(&mut self, line: std::fmt::Arguments<'_>) {
        if self.file.is_none() {
            return;
        }
        let before = self.buffer.len();
        let _ = std::fmt::Write::write_fmt(&mut self.buffer, line);
        self.buffer.push('\n');
        let bytes = (self.buffer.len() - before) as u64;
        if bytes > self.left {
            self.buffer.truncate(before);
            self.buffer.push_str("{\"kind\":\"full\"}\n");
            self.flush();
            self.file = None;
            return;
        }
        self.left -= bytes;
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush();
        }
    }

    /// Writes what is collected.
    pub fn flush(&mut self) {
        if let Some(file) = &mut self.file
            && !self.buffer.is_empty()
            && file.write_all(self.buffer.as_bytes()).is_err()
        {
            self.file = None;
        }
        self.buffer.clear();
    }
}

/// Longest name or list from the environment that is written down, bytes.
const NAME_BYTES_MAX: usize = 1024;

/// Where this process runs, as members of an object: the host's name, the GPUs that it sees (`CUDA_VISIBLE_DEVICES`) and its number on the
/// host as launchers say it. NCCL tells a plugin none of this.
pub fn here(env: impl Fn(&str) -> Option<String>) -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let text = |t: Option<String>| t.filter(|t| t.len() <= NAME_BYTES_MAX).map_or("null".into(), |t| quoted(&t));
    let local = agreement::launcher::local_rank(&env);
    format!(
        "\"host_name\":{},\"visible_gpus\":{},\"local_rank\":{}",
        text(Some(name)),
        text(env("CUDA_VISIBLE_DEVICES")),
        local.map_or("null".into(), |n| n.to_string())
    )
}

/// What NCCL says it launched, and how long it took, where that is known.
pub fn launched(to: &mut Trace, comm: &Comm, w: &Enqueued, matched: Option<&Decision>, kernel_us: Option<f64>) {
    to.line(format_args!(
        "{{\"kind\":\"launched\",\"comm\":\"{:016x}\",\"rank\":{},\"collective\":\"{}\",\"count\":{},\"size_bytes\":{},\"bucket\":{},\"call\":{},\"arm\":\"{}/{}\",\"channels\":{},\"kernel_us\":{}}}",
        comm.id,
        comm.rank,
        w.collective.capitals(),
        w.count,
        matched.map_or(w.count.saturating_mul(u64::from(w.element_bytes)), |d| d.bytes),
        matched.map_or(0, |d| d.slot().bucket),
        matched.map_or("null".into(), |d| d.call.to_string()),
        w.algorithm.map_or("?", |a| a.capitals()),
        w.protocol.map_or("?", |p| p.capitals()),
        w.channels,
        kernel_us.map_or("null".into(), |us| format!("{us:.3}"))
    ));
}

/// Steps that the program said.
pub fn steps(to: &mut Trace, steps: &[crate::step::Step]) {
    for s in steps {
        let us = s.end.saturating_duration_since(s.begin).as_nanos() as f64 / 1e3;
        to.line(format_args!("{{\"kind\":\"step\",\"time_us\":{us:.3}}}"));
    }
}

/// Tells from time to time what the plugin has cost so far: a job may end without a word.
#[derive(Debug, Default)]
pub struct Costs {
    due: Duration,
}

impl Costs {
    /// `running`: since the worker began. From the thread of the worker.
    pub fn tell(&mut self, to: &mut Trace, running: Duration, last: bool) {
        if !to.is_on() || (running < self.due && !last) {
            return;
        }
        self.due = (running + running / 4).max(Duration::from_secs(1));
        let (c, us) = (crate::cost::so_far(), |ns: u64| ns / 1000);
        to.line(format_args!(
            "{{\"kind\":\"cost\",\"run_us\":{},\"decisions\":{},\"decide_us\":{},\"events\":{},\"event_us\":{},\"setup_us\":{},\"border_us\":{},\"worker_us\":{}}}",
            running.as_micros(),
            c.decisions,
            us(c.decide_ns),
            c.events,
            us(c.event_ns),
            us(c.setup_ns),
            us(c.border_ns),
            us(crate::cost::of_this_thread_ns())
        ));
    }
}

/// A text as a JSON string.
pub fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_ends_at_its_size_with_whole_lines() {
        let folder = tempfile::tempdir().unwrap();
        let mut t = Trace::in_folder(folder.path(), 1, 100).unwrap();
        for i in 0..100 {
            t.line(format_args!("{{\"i\":{i}}}"));
        }
        t.flush();
        let name = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let text = std::fs::read_to_string(name).unwrap();
        assert!(text.len() < 130 && text.ends_with("{\"kind\":\"full\"}\n"), "{text}");
        assert!(text.lines().all(|l| serde_json::from_str::<serde_json::Value>(l).is_ok()));
    }

    #[test]
    fn a_trace_that_is_opened_again_goes_on_below_a_cut_line_and_ends_at_the_same_size() {
        let folder = tempfile::tempdir().unwrap();
        let again = || Trace::in_folder(folder.path(), 1, 100).unwrap();
        let mut t = again();
        t.line(format_args!("{{\"i\":1}}"));
        t.flush();
        let path = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        File::options().append(true).open(&path).unwrap().write_all(b"{\"i\":").unwrap();
        for _ in 0..20 {
            let mut t = again();
            t.line(format_args!("{{\"i\":2}}"));
            t.flush();
        }
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.len() < 130, "{} bytes", text.len());
        let broken = text.lines().filter(|l| serde_json::from_str::<serde_json::Value>(l).is_err()).count();
        assert!(broken == 1 && text.contains("{\"i\":2}"), "{text}");
    }

    #[test]
    fn a_full_disk_is_no_failure() {
        let mut t =
            Trace { file: File::options().write(true).open("/dev/full").ok(), buffer: String::new(), left: 1 << 30 };
        for _ in 0..10_000 {
            t.line(format_args!("{{\"x\":1}}"));
        }
        t.flush();
        assert!(!t.is_on());
    }

    #[test]
    fn texts_are_quoted_for_json() {
        for text in ["plain", "a\"b\\c", "line\nbreak\u{1}"] {
            assert_eq!(serde_json::from_str::<String>(&quoted(text)).unwrap(), text);
        }
    }
}
