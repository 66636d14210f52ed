//! The plugin's trace: one JSON object per line, one file per process ([`crate::trace`] reads the traces of other programs).
//!
//! A trace is untrusted: lines, files and fields have limits, and a violation is an error with its line. A cut-off last
//! line is not an error, because the job may have been killed while writing it; such lines are counted.

mod rank_gpus;

pub use rank_gpus::{Gpu, RankGpus};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::io::{BufRead, Read};

/// Longest line, bytes. The plugin writes some hundred.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Largest file, bytes. The plugin's default limit is 64 MiB.
pub const FILE_BYTES_MAX: u64 = 1 << 30;
/// Largest plausible time, microseconds: 11 days.
pub const TIME_US_MAX: f64 = 1e12;
/// Largest plausible communicator, ranks.
pub const RANKS_MAX: u32 = 1 << 20;
/// Largest plausible call, bytes.
pub const SIZE_BYTES_MAX: u64 = 1 << 50;

/// A line of a trace. Fields that its kind lacks keep their default; unknown fields of newer plugins are ignored.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TraceLine {
    /// `process`, `comm`, `call`, `launched`, `sample`, `finding`, `epoch`, `never`, `step`, `cost`, `end`, `full`.
    pub kind: String,
    pub comm: String,
    /// -1 if NCCL does not provide it.
    pub rank: i64,
    /// Index of the rank among those that its process has in the communicator.
    pub ordinal: u32,
    pub ranks: u32,
    pub nodes: u32,
    /// Such as `AllReduce`.
    pub collective: String,
    /// Bytes as NCCL counts them.
    pub size_bytes: u64,
    /// log2 of the size, rounded.
    pub bucket: u8,
    /// The arm that AUTO would take.
    pub auto: String,
    /// The arm requested or, for `launched`, the arm that ran.
    pub arm: String,
    /// Channels that ran.
    pub channels: u32,
    pub call: Option<u64>,
    /// `launched`: NCCL's number of the collective in its communicator.
    pub sequence: Option<u64>,
    /// Number of the call's outermost group; 0 if NCCL does not report groups.
    pub group: u64,
    pub epoch: u64,
    /// The source of a time: step, interval, calls, kernel, scripted.
    pub source: String,
    pub time_us: f64,
    /// GPU time, microseconds.
    pub kernel_us: Option<f64>,
    /// `sample`: calls of the slot that the time covers; 0 if not said.
    pub calls: u64,
    /// `sample`: the time is the arm's alone, no earlier arm still shows in it.
    pub steady: Option<bool>,
    /// `sample`: measured after the arm in use was chosen.
    pub fresh: Option<bool>,
    /// Why an arm is in use.
    pub because: String,
    /// `finding`: what comparing arms has cost so far, in steps.
    pub spent_steps: Option<f64>,
    /// `finding`: the gain over AUTO as a share of AUTO's step, from times after the choice.
    pub gain: Option<f64>,
    /// Why a communicator stays at AUTO.
    pub why: String,
    pub mode: String,
    pub policy: String,
    pub pid: u64,
    /// Hash that identifies the host.
    pub host: String,
    pub host_name: Option<String>,
    /// NCCL's release, as 2.28.9.
    pub nccl: Option<String>,
    /// The models of the host's GPUs.
    pub gpu: Option<String>,
    /// The site's own tuner and profiler, if linkwise asks them as well.
    pub site_tuner: Option<String>,
    pub site_profiler: Option<String>,
    /// `CUDA_VISIBLE_DEVICES`.
    pub visible_gpus: Option<String>,
    /// Number of the process on its host.
    pub local_rank: Option<u32>,
    /// True if a test's script gave the times.
    pub scripted: bool,
    /// Version of the tuner interface in use; 0 if none.
    pub tuner_api: u32,
    /// Version of the profiler interface in use; 0 if none.
    pub profiler_api: u32,
    /// Waits for a verdict.
    pub waits: u64,
    pub longest_wait_us: u64,
    /// Dropped records.
    pub lost: u64,
    /// `cost`: microseconds since the plugin's thread began.
    pub run_us: u64,
    /// Decisions, estimated.
    pub decisions: u64,
    /// Microseconds in decisions.
    pub decide_us: u64,
    /// Events, estimated.
    pub events: u64,
    /// Microseconds in events.
    pub event_us: u64,
    /// Microseconds in inits and finalizes.
    pub setup_us: u64,
    /// Microseconds at boundaries between epochs, including waits.
    pub border_us: u64,
    /// CPU time of the plugin's thread, microseconds.
    pub worker_us: u64,
}

impl TraceLine {
    /// The first field out of range. Names are checked where they are used.
    fn check(&self) -> Result<(), String> {
        if self.kind.is_empty() {
            return Err("`kind` is missing: not a line of a plugin's trace".into());
        }
        let times = [("time_us", Some(self.time_us)), ("kernel_us", self.kernel_us)];
        for (name, value) in times {
            if let Some(v) = value.filter(|v| !(0.0..=TIME_US_MAX).contains(v)) {
                return Err(format!("`{name}` is {v}; 0 to {TIME_US_MAX:e} us were expected"));
            }
        }
        let shares = [("spent_steps", self.spent_steps, TIME_US_MAX), ("gain", self.gain, 1.0)];
        for (name, value, most) in shares {
            if let Some(v) = value.filter(|v| !(-TIME_US_MAX..=most).contains(v)) {
                return Err(format!("`{name}` is {v}; at most {most} was expected"));
            }
        }
        if self.ranks > RANKS_MAX || self.nodes > self.ranks.max(1) || self.rank >= i64::from(RANKS_MAX) {
            return Err(format!("rank {} of {} ranks on {} nodes is impossible", self.rank, self.ranks, self.nodes));
        }
        if self.size_bytes > SIZE_BYTES_MAX {
            return Err(format!("`size_bytes` is {}; at most 2^50 were expected", self.size_bytes));
        }
        if self.bucket >= 64 {
            return Err(format!("`bucket` is {}; 0 to 63 were expected", self.bucket));
        }
        Ok(())
    }
}

/// A trace that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("line {line}: {what}; the trace is damaged: leave the file out, or cut it before this line")]
    Line {
        /// From 1.
        line: u64,
        what: String,
    },
    /// The file exceeds [`FILE_BYTES_MAX`].
    #[error("more than {} MiB; leave the file out, or cut it after a line", FILE_BYTES_MAX >> 20)]
    Long,
}

/// The end of a trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TraceEnd {
    /// Complete lines.
    pub lines: u64,
    /// The last line is cut off: the process was killed while writing it.
    pub cut_off: bool,
}

/// Passes every line to `each`, which may refuse it with a message. O(bytes), memory of one line.
///
/// # Errors
/// A line that is longer than [`LINE_BYTES_MAX`], is not a JSON object, or has an impossible field; a file above
/// [`FILE_BYTES_MAX`].
pub fn read(
    input: impl BufRead,
    mut each: impl FnMut(TraceLine) -> Result<(), String>,
) -> Result<TraceEnd, TraceError> {
    read_lines(input, "", |line: TraceLine| line.check().and_then(|()| each(line)))
}

/// Passes every line of a file of JSON lines to `each`; `not_one` begins the message about a line that is none of `T`.
///
/// # Errors
/// As [`read`].
pub(crate) fn read_lines<T: DeserializeOwned>(
    mut input: impl BufRead,
    not_one: &str,
    mut each: impl FnMut(T) -> Result<(), String>,
) -> Result<TraceEnd, TraceError> {
    let (mut end, mut bytes, mut all) = (TraceEnd::default(), Vec::new(), 0u64);
    loop {
        bytes.clear();
        let n = input.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut bytes)?;
        let wrong = |what: String| TraceError::Line { line: end.lines + 1, what };
        all += n as u64;
        if n == 0 {
            return Ok(end);
        }
        if all > FILE_BYTES_MAX {
            return Err(TraceError::Long);
        }
        let whole = bytes.last() == Some(&b'\n');
        if !whole && n > LINE_BYTES_MAX {
            return Err(wrong(format!("longer than {LINE_BYTES_MAX} bytes")));
        }
        if bytes.starts_with(&[0x1f, 0x8b]) {
            return Err(wrong("the file is compressed; unpack it with gunzip".into()));
        }
        if bytes.trim_ascii().is_empty() {
            end.lines += u64::from(whole);
            continue;
        }
        match serde_json::from_slice::<T>(&bytes) {
            Err(_) if !whole => {
                end.cut_off = true;
                return Ok(end);
            }
            Err(e) => return Err(wrong(format!("{not_one}{}", short_message(&e)))),
            Ok(line) => each(line).map_err(wrong)?,
        }
        end.lines += 1;
    }
}

/// serde's message without its line number, shortened.
fn short_message(e: &serde_json::Error) -> String {
    let text = e.to_string();
    let text = text.split(" at line").next().unwrap_or("");
    text.chars().filter(|c| !c.is_control()).take(160).collect()
}

/// True if this is the beginning of a plugin's trace.
pub fn is_plugin_trace(beginning: &str) -> bool {
    let first = beginning.lines().next().unwrap_or("");
    first.starts_with('{') && first.contains("\"kind\":\"process\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(text: &[u8]) -> Result<(Vec<TraceLine>, TraceEnd), String> {
        let mut lines = Vec::new();
        let end = read(text, |l| {
            lines.push(l);
            Ok(())
        });
        end.map(|e| (lines, e)).map_err(|e| e.to_string())
    }

    #[test]
    fn a_line_that_is_cut_off_at_the_end_is_counted_and_one_in_the_middle_refused() {
        let whole = "{\"kind\":\"step\",\"time_us\":5.0}\n";
        let (lines, end) = all(format!("{whole}\n{{\"kind\":\"st").as_bytes()).unwrap();
        assert_eq!((lines.len(), end), (1, TraceEnd { lines: 2, cut_off: true }));
        let said = all(format!("{whole}{{\"kind\":\"st\n{whole}").as_bytes()).unwrap_err();
        assert!(said.starts_with("line 2: control character") && said.contains("cut it before this line"), "{said}");
    }

    #[test]
    fn wrong_fields_are_named_with_their_line() {
        for (line, what) in [
            ("{}", "`kind` is missing"),
            ("[1]", "invalid"),
            ("{\"kind\":\"step\",\"time_us\":-1}", "`time_us` is -1"),
            ("{\"kind\":\"step\",\"time_us\":NaN}", "expected value"),
            ("{\"kind\":\"step\",\"time_us\":1e400}", "number out of range"),
            ("{\"kind\":\"step\",\"time_us\":1e300}", "`time_us` is 1"),
            ("{\"kind\":\"launched\",\"kernel_us\":-0.5}", "`kernel_us` is -0.5"),
            ("{\"kind\":\"comm\",\"ranks\":-8}", "expected u32"),
            ("{\"kind\":\"comm\",\"ranks\":8,\"nodes\":9}", "rank -1 of 8 ranks on 9 nodes"),
            ("{\"kind\":\"comm\",\"ranks\":4000000000}", "is impossible"),
            ("{\"kind\":\"call\",\"size_bytes\":18446744073709551615}", "`size_bytes`"),
            ("{\"kind\":\"sample\",\"bucket\":200}", "`bucket` is 200"),
            ("{\"kind\":7}", "expected a string"),
        ] {
            let said = all(format!("{{\"kind\":\"x\",\"rank\":-1}}\n{line}\n").as_bytes());
            let said = said.map_err(|e| e.replace("rank 0 of", "rank -1 of")).unwrap_err();
            assert!(said.starts_with("line 2: ") && said.contains(what), "{line}: {said}");
        }
    }

    /// A line of 1 GB is rejected after 64 KiB: the reader never holds more.
    #[test]
    fn an_endless_line_is_refused_early() {
        struct Endless(u64);
        impl Read for Endless {
            fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
                to.fill(b'x');
                self.0 += to.len() as u64;
                assert!(self.0 < 1 << 20, "the reader reads on");
                Ok(to.len())
            }
        }
        let e = read(std::io::BufReader::new(Endless(0)), |_| Ok(())).unwrap_err();
        assert!(e.to_string().contains("longer than 65536 bytes"), "{e}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = all(&bytes);
        }

        #[test]
        fn however_a_trace_is_cut_its_whole_lines_are_read(n in 1usize..20, cut in any::<proptest::sample::Index>()) {
            let line = "{\"kind\":\"call\",\"comm\":\"0a\",\"rank\":0,\"call\":3,\"size_bytes\":8}\n";
            let text = line.repeat(n);
            let at = cut.index(text.len() + 1);
            let (lines, end) = all(&text.as_bytes()[..at]).unwrap();
            // The last line may be complete except for its newline.
            let whole = at / line.len() + usize::from((at + 1) % line.len() == 0);
            prop_assert_eq!(lines.len(), whole);
            prop_assert_eq!(end.cut_off, at % line.len() != 0 && (at + 1) % line.len() != 0);
        }
    }
}
