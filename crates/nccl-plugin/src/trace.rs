//! The trace of a process: one JSON object per line, appended to one file of limited size. A full disk ends the trace without an error to the job.

use crate::comm::{CallDecision, Comm};
use crate::coordinator::auto_arm;
use crate::events::Enqueued;
use crate::worker::files::Files;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes buffered before a write.
const BUFFER_BYTES: usize = 32 << 10;

/// Bytes that lines of findings, epochs and ends may use after the trace is full.
const RESERVE_BYTES: u64 = 1 << 20;

#[derive(Debug, Default)]
pub struct Trace {
    file: Option<File>,
    /// Instead of a file: the thread that writes it.
    queue: Option<Files>,
    buffer: String,
    left: u64,
    /// No more lines of calls: only lines that are kept.
    full: bool,
    reserve: u64,
}

impl Trace {
    /// Opens `trace-<host>-<pid>.jsonl` in a folder, for at most `most` bytes.
    pub fn in_folder(folder: &Path, host: u64, most: u64) -> std::io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(format!("trace-{host:016x}-{}.jsonl", std::process::id()));
        refuse_link(&path)?;
        let no_link = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
        let mut file = File::options().create(true).append(true).read(true).custom_flags(no_link).open(path)?;
        // The process may have made communicators before: existing bytes count, and a full disk may have cut the last line.
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
        let reserve = RESERVE_BYTES.saturating_sub(there.saturating_sub(most));
        let file = (left > 0 || reserve > 0).then_some(file);
        Ok(Trace { file, queue: None, buffer, left, full: left == 0, reserve })
    }

    /// Lines go to the thread that writes files.
    pub fn queued(files: Files) -> Self {
        Trace { queue: Some(files), ..Trace::default() }
    }

    /// Lines of calls are written.
    pub fn is_on(&self) -> bool {
        self.is_open() && !self.full
    }

    /// Some lines are written: all, or those that are kept when the trace is full.
    pub fn is_open(&self) -> bool {
        let ended = |files: &Files| files.told.trace_ended.load(Ordering::Relaxed);
        self.file.is_some() || self.queue.as_ref().is_some_and(|files| !ended(files))
    }

    /// Appends a line. A full trace has the line `{"kind":"full"}`, after which only [lines that are kept](is_kept) follow, from a reserve of
    /// [`RESERVE_BYTES`].
    pub fn line(&mut self, line: std::fmt::Arguments<'_>) {
        if !self.is_open() {
            return;
        }
        let before = self.buffer.len();
        let _ = std::fmt::Write::write_fmt(&mut self.buffer, line);
        self.buffer.push('\n');
        let bytes = (self.buffer.len() - before) as u64;
        if self.queue.is_some() {
            // The thread that has the file counts.
        } else if !self.full && bytes <= self.left {
            self.left -= bytes;
        } else {
            self.line_of_full(before, bytes);
        }
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush();
        }
    }

    /// The line that begins at `before` is beyond the trace's size.
    fn line_of_full(&mut self, before: usize, bytes: u64) {
        let line = self.buffer.split_off(before);
        if !self.full {
            self.full = true;
            self.buffer.push_str("{\"kind\":\"full\"}\n");
        }
        if !is_kept(&line) {
            return;
        }
        match self.reserve.checked_sub(bytes) {
            Some(left) => {
                self.reserve = left;
                self.buffer.push_str(&line);
            }
            None => {
                self.flush();
                self.file = None;
            }
        }
    }

    /// Writes the buffered lines.
    pub fn flush(&mut self) {
        if let Some(files) = &self.queue {
            if !self.buffer.is_empty() {
                files.lines(std::mem::take(&mut self.buffer));
            }
            return;
        }
        if let Some(file) = &mut self.file
            && !self.buffer.is_empty()
            && file.write_all(self.buffer.as_bytes()).is_err()
        {
            self.file = None;
        }
        self.buffer.clear();
    }
}

/// A full trace takes the line as well: it says what was decided, not what each call did.
fn is_kept(line: &str) -> bool {
    ["finding", "epoch", "never", "end", "difference", "dropped"].iter().any(|kind| {
        line.strip_prefix("{\"kind\":\"").and_then(|l| l.strip_prefix(kind)).is_some_and(|l| l.starts_with('"'))
    })
}

/// Longest name or list from the environment that is written, bytes.
const NAME_BYTES_MAX: usize = 1024;

/// Fields about this process: the site's plugins that are asked as well, and its place: host name, visible GPUs (`CUDA_VISIBLE_DEVICES`) and the
/// launcher's local rank. NCCL gives a plugin none of the latter.
pub fn process_fields(env: impl Fn(&str) -> Option<String>) -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let text = |t: Option<String>| t.filter(|t| t.len() <= NAME_BYTES_MAX).map_or("null".into(), |t| quoted(&t));
    let local = agreement::launcher::local_rank(&env);
    let (site_tuner, site_profiler) = crate::site::names();
    let nccl = crate::abi::nccl::version().map(crate::made_on::release_text);
    let gpus = crate::made_on::gpus_here();
    let gpu = (!gpus.is_empty()).then(|| gpus.join("+"));
    format!(
        "\"nccl\":{},\"gpu\":{},\"site_tuner\":{},\"site_profiler\":{},\"host_name\":{},\"visible_gpus\":{},\"local_rank\":{}",
        text(nccl),
        text(gpu),
        text(site_tuner),
        text(site_profiler),
        text(Some(name)),
        text(env("CUDA_VISIBLE_DEVICES")),
        local.map_or("null".into(), |n| n.to_string())
    )
}

/// Writes a decision.
pub fn call(to: &mut Trace, comm: &Comm, d: &CallDecision) {
    to.line(format_args!(
        "{{\"kind\":\"call\",\"comm\":\"{:016x}\",\"rank\":{},\"call\":{},\"collective\":\"{}\",\"size_bytes\":{},\"auto\":\"{}\",\"arm\":\"{}\",\"taken\":{},\"captured\":{},\"epoch\":{},\"group\":{},\"at_us\":{}}}",
        comm.id,
        comm.rank,
        d.call,
        d.collective.capitals(),
        d.bytes,
        auto_arm(d.auto),
        d.arm,
        d.taken,
        d.captured,
        d.epoch,
        d.group,
        d.at_ns / 1000
    ));
}

/// Writes a collective that NCCL launched, and its GPU time if known.
pub fn launched(to: &mut Trace, comm: &Comm, w: &Enqueued, matched: Option<&CallDecision>, kernel_us: Option<f64>) {
    to.line(format_args!(
        "{{\"kind\":\"launched\",\"comm\":\"{:016x}\",\"rank\":{},\"collective\":\"{}\",\"count\":{},\"size_bytes\":{},\"bucket\":{},\"call\":{},\"sequence\":{},\"arm\":\"{}/{}\",\"channels\":{},\"kernel_us\":{}}}",
        comm.id,
        comm.rank,
        w.collective.capitals(),
        w.count,
        matched.map_or(w.count.saturating_mul(u64::from(w.element_bytes)), |d| d.bytes),
        matched.map_or(0, |d| d.slot().bucket),
        matched.map_or("null".into(), |d| d.call.to_string()),
        w.sequence,
        w.algorithm.map_or("?", |a| a.capitals()),
        w.protocol.map_or("?", |p| p.capitals()),
        w.channels,
        kernel_us.map_or("null".into(), |us| format!("{us:.3}"))
    ));
}

/// An error if a file is a link: in a folder that others can write to, another user may have made it to a file of this user.
pub fn refuse_link(path: &Path) -> std::io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(there) if there.is_symlink() => Err(std::io::Error::new(
            std::io::ErrorKind::PermissionDenied,
            format!("{} is a link; remove it, or choose a folder that only this user can write to", path.display()),
        )),
        _ => Ok(()),
    }
}

/// Writes the steps that the program reported.
pub fn steps(to: &mut Trace, steps: &[crate::step::Step]) {
    for s in steps {
        let us = s.end.saturating_duration_since(s.begin).as_nanos() as f64 / 1e3;
        to.line(format_args!("{{\"kind\":\"step\",\"time_us\":{us:.3}}}"));
    }
}

/// Writes the plugin's overhead from time to time, since a job may end without finalize.
#[derive(Debug, Default)]
pub struct CostReporter {
    due: Duration,
}

impl CostReporter {
    /// `running`: time since the worker began. Must be called on the worker's thread.
    pub fn write_if_due(&mut self, to: &mut Trace, running: Duration, last: bool) {
        if !to.is_on() || (running < self.due && !last) {
            return;
        }
        self.due = (running + running / 4).max(Duration::from_secs(1));
        let (c, us) = (crate::overhead::so_far(), |ns: u64| ns / 1000);
        to.line(format_args!(
            "{{\"kind\":\"cost\",\"run_us\":{},\"decisions\":{},\"decide_us\":{},\"events\":{},\"event_us\":{},\"setup_us\":{},\"border_us\":{},\"worker_us\":{}}}",
            running.as_micros(),
            c.decisions,
            us(c.decide_ns),
            c.events,
            us(c.event_ns),
            us(c.setup_ns),
            us(c.boundary_ns),
            us(crate::overhead::of_this_thread_ns())
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
    fn findings_are_kept_after_the_trace_is_full_up_to_their_reserve() {
        let folder = tempfile::tempdir().unwrap();
        let mut t = Trace::in_folder(folder.path(), 1, 100).unwrap();
        for i in 0..100 {
            t.line(format_args!("{{\"i\":{i}}}"));
        }
        t.line(format_args!("{{\"kind\":\"finding\",\"n\":1}}"));
        t.line(format_args!("{{\"i\":0}}"));
        t.flush();
        // The process ends its communicators and makes others: the reserve is not renewed.
        let mut t = Trace::in_folder(folder.path(), 1, 100).unwrap();
        for _ in 0..100_000 {
            t.line(format_args!("{{\"kind\":\"finding\",\"n\":2}}"));
        }
        t.flush();
        let name = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let text = std::fs::read_to_string(name).unwrap();
        let after = text.split("{\"kind\":\"full\"}\n").nth(1).unwrap();
        assert!(after.starts_with("{\"kind\":\"finding\",\"n\":1}\n{\"kind\":\"finding\",\"n\":2}\n"), "{after:.200}");
        assert!(text.len() as u64 <= 130 + RESERVE_BYTES && text.ends_with('\n'), "{} bytes", text.len());
    }

    #[test]
    fn a_reopened_trace_continues_below_a_cut_line_and_keeps_its_size_limit() {
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
    fn a_link_in_the_place_of_a_trace_or_a_status_file_is_refused_and_its_target_stays() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let precious = folder.path().join("precious");
        std::fs::write(&precious, "precious").unwrap();
        let snapshot = crate::status::StatusSnapshot { pid: 7, ..Default::default() };
        let trace = format!("trace-{:016x}-{}.jsonl", 1, std::process::id());
        for name in [trace.as_str(), "status-0000000000000000-7.json", &snapshot.waiting_file()] {
            symlink(&precious, folder.path().join(name)).unwrap();
        }
        let refused = [
            Trace::in_folder(folder.path(), 1, 100).map(|_| ()),
            snapshot.write(folder.path()),
            snapshot.write_waiting(folder.path()),
        ];
        for e in refused.map(|r| r.unwrap_err().to_string()) {
            assert!(e.contains("is a link") && e.lines().count() == 1, "{e}");
        }
        // The temporary file of an earlier version had a name that could be guessed.
        std::fs::remove_file(folder.path().join("status-0000000000000000-7.json")).unwrap();
        symlink(&precious, folder.path().join(".status-0000000000000000-7.json.new")).unwrap();
        std::fs::remove_file(folder.path().join(snapshot.waiting_file())).unwrap();
        snapshot.write(folder.path()).unwrap();
        assert!(folder.path().join("status-0000000000000000-7.json").symlink_metadata().unwrap().is_file());
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
    }

    #[test]
    fn a_full_disk_is_not_an_error() {
        let mut t =
            Trace { file: File::options().write(true).open("/dev/full").ok(), left: 1 << 30, ..Trace::default() };
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
