//! What the NCCL plugin wrote: one JSON object a line, one file a process ([`crate::trace`] reads what other programs write).
//!
//! A trace may come from anybody. Lines, files and fields have limits; what does not fit them is refused with its line. A last line that is
//! cut off is no error, for the job may have been killed while it was written; it is counted.

mod places;

pub use places::{Gpu, Places};

use serde::Deserialize;
use std::io::{BufRead, Read};

/// Longest line, bytes. The plugin's own have some hundred.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Largest file, bytes; the plugin's own limit is 64 MiB unless told otherwise.
pub const FILE_BYTES_MAX: u64 = 1 << 30;
/// Longest time that is believed, microseconds: 11 days.
pub const TIME_US_MAX: f64 = 1e12;
/// Most ranks of a communicator that is believed.
pub const RANKS_MAX: u32 = 1 << 20;
/// Largest call that is believed, bytes.
pub const SIZE_BYTES_MAX: u64 = 1 << 50;

/// A line of a trace. Fields that a kind does not have are absent; fields of newer plugins are passed over.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Line {
    /// `process`, `comm`, `call`, `launched`, `sample`, `finding`, `epoch`, `never`, `step`, `cost`, `end`, `full`.
    pub kind: String,
    /// The communicator, hexadecimal.
    pub comm: String,
    /// A rank, or -1 where NCCL does not say.
    pub rank: i64,
    /// Counts the communicator's ranks in this process.
    pub ordinal: u32,
    /// Ranks of the communicator.
    pub ranks: u32,
    /// Its nodes.
    pub nodes: u32,
    /// The collective, in capitals.
    pub collective: String,
    /// Bytes as NCCL counts them.
    pub size_bytes: u64,
    /// log2 of the size, rounded.
    pub bucket: u8,
    /// What AUTO would have been.
    pub auto: String,
    /// What was asked for, or (`launched`) what ran.
    pub arm: String,
    /// Channels of what ran.
    pub channels: u32,
    /// Number of the call.
    pub call: Option<u64>,
    /// Number of the outermost group of a call; 0 where NCCL does not say.
    pub group: u64,
    /// Number of the epoch.
    pub epoch: u64,
    /// What a time is: step, interval, calls, kernel, scripted.
    pub source: String,
    /// Microseconds.
    pub time_us: f64,
    /// GPU time, microseconds.
    pub kernel_us: Option<f64>,
    /// Why an arm is in use.
    pub because: String,
    /// Why a communicator stays at AUTO.
    pub why: String,
    /// Mode of the plugin.
    pub mode: String,
    /// Policy of the plugin.
    pub policy: String,
    /// Number of the process.
    pub pid: u64,
    /// Hash of the host.
    pub host: String,
    /// Name of the host.
    pub host_name: Option<String>,
    /// `CUDA_VISIBLE_DEVICES`.
    pub visible_gpus: Option<String>,
    /// Number of the process on its host.
    pub local_rank: Option<u32>,
    /// Times were given by a test.
    pub scripted: bool,
    /// Interfaces that NCCL uses; 0: none.
    pub tuner_api: u32,
    /// The same of the profiler.
    pub profiler_api: u32,
    /// Waits for a verdict, and the longest.
    pub waits: u64,
    /// Microseconds.
    pub longest_wait_us: u64,
    /// Calls whose record was lost.
    pub lost: u64,
    /// `cost`: microseconds since the plugin's thread began.
    pub run_us: u64,
    /// Decisions, about.
    pub decisions: u64,
    /// Microseconds in them.
    pub decide_us: u64,
    /// Events, about.
    pub events: u64,
    /// Microseconds in them.
    pub event_us: u64,
    /// Microseconds in inits and finalizes.
    pub setup_us: u64,
    /// Microseconds at borders between epochs, waits included.
    pub border_us: u64,
    /// Microseconds that the plugin's thread computed.
    pub worker_us: u64,
}

impl Line {
    /// The first field that cannot be. Names are not looked at: whoever uses one does.
    fn check(&self) -> Result<(), String> {
        if self.kind.is_empty() {
            return Err("`kind` is missing: no line of a plugin's trace".into());
        }
        let times = [("time_us", Some(self.time_us)), ("kernel_us", self.kernel_us)];
        for (name, value) in times {
            if let Some(v) = value.filter(|v| !(0.0..=TIME_US_MAX).contains(v)) {
                return Err(format!("`{name}` is {v}; 0 to {TIME_US_MAX:e} us were expected"));
            }
        }
        if self.ranks > RANKS_MAX || self.nodes > self.ranks.max(1) || self.rank >= i64::from(RANKS_MAX) {
            return Err(format!("rank {} of {} ranks on {} nodes cannot be", self.rank, self.ranks, self.nodes));
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

/// What is wrong with a trace, and where.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It cannot be read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A line is wrong.
    #[error(
        "line {line}: {what}; this is no whole trace of the plugin: leave the file out, or cut it before this line"
    )]
    Line {
        /// Counted from 1.
        line: u64,
        /// What was found.
        what: String,
    },
    /// It is too long.
    #[error("more than {} MiB; the plugin itself ends at LINKWISE_TRACE_BYTES_MAX", FILE_BYTES_MAX >> 20)]
    Long,
}

/// How a trace ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct End {
    /// Whole lines.
    pub lines: u64,
    /// The last line is cut off: the process was killed while it wrote.
    pub cut_off: bool,
}

/// Gives every line to `each`, which may refuse it in words. O(bytes), memory of one line.
///
/// # Errors
/// A line that is longer than [`LINE_BYTES_MAX`], no JSON object, or has a field that cannot be; a file above [`FILE_BYTES_MAX`].
pub fn read(mut input: impl BufRead, mut each: impl FnMut(Line) -> Result<(), String>) -> Result<End, TraceError> {
    let (mut end, mut bytes, mut all) = (End::default(), Vec::new(), 0u64);
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
        if bytes.trim_ascii().is_empty() {
            end.lines += u64::from(whole);
            continue;
        }
        match serde_json::from_slice::<Line>(&bytes) {
            Err(_) if !whole => {
                end.cut_off = true;
                return Ok(end);
            }
            Err(e) => return Err(wrong(in_short(&e))),
            Ok(line) => line.check().and_then(|()| each(line)).map_err(wrong)?,
        }
        end.lines += 1;
    }
}

/// serde's words without its own count of lines, and not all of a text that somebody made long.
fn in_short(e: &serde_json::Error) -> String {
    let text = e.to_string();
    let text = text.split(" at line").next().unwrap_or("");
    text.chars().filter(|c| !c.is_control()).take(160).collect()
}

/// Does this look like the beginning of a plugin's trace?
pub fn is_one(beginning: &str) -> bool {
    let first = beginning.lines().next().unwrap_or("");
    first.starts_with('{') && first.contains("\"kind\":\"process\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(text: &[u8]) -> Result<(Vec<Line>, End), String> {
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
        assert_eq!((lines.len(), end), (1, End { lines: 2, cut_off: true }));
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
            ("{\"kind\":\"comm\",\"ranks\":4000000000}", "cannot be"),
            ("{\"kind\":\"call\",\"size_bytes\":18446744073709551615}", "`size_bytes`"),
            ("{\"kind\":\"sample\",\"bucket\":200}", "`bucket` is 200"),
            ("{\"kind\":7}", "expected a string"),
        ] {
            let said = all(format!("{{\"kind\":\"x\",\"rank\":-1}}\n{line}\n").as_bytes());
            let said = said.map_err(|e| e.replace("rank 0 of", "rank -1 of")).unwrap_err();
            assert!(said.starts_with("line 2: ") && said.contains(what), "{line}: {said}");
        }
    }

    /// A line of a gigabyte is given up after 64 KiB: the reader never holds more.
    #[test]
    fn an_endless_line_is_refused_early() {
        struct Endless(u64);
        impl Read for Endless {
            fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
                to.fill(b'x');
                self.0 += to.len() as u64;
                assert!(self.0 < 1 << 20, "the reader goes on");
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
            // The last one may be whole but for its end.
            let whole = at / line.len() + usize::from((at + 1) % line.len() == 0);
            prop_assert_eq!(lines.len(), whole);
            prop_assert_eq!(end.cut_off, at % line.len() != 0 && (at + 1) % line.len() != 0);
        }
    }
}
