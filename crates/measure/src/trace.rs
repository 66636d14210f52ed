//! Reads a job's own trace of its collectives.
//!
//! Two forms are distinguished by content:
//!
//! * **JSON lines**, one operation per line: `{"collective":"all_reduce","size_bytes":16777216,"busbw_gb_per_s":41.3}`. Instead of the bandwidth a
//!   line may have `"time_us":790.5`, from which it is computed as nccl-tests does. `"at_unix_s":1.7e9` is optional. `size_bytes` is nccl-tests' size:
//!   the whole buffer.
//! * **PyTorch profiler** (Kineto, Chrome trace JSON, PyTorch 2.2 and later): events of category `kernel` whose names begin with `ncclDevKernel` or
//!   `ncclKernel` and whose `args` hold `Collective name`, `In msg nelems`, `Out msg nelems`, `Group size` and `dtype`; `dur` is in microseconds. The
//!   size is the larger element count times the size of the type, as in Meta's PARAM benchmarks. A kernel waits for the slowest rank, so its duration
//!   overestimates the transfer: the bandwidth of a size is the 90th percentile of its operations, not the median. A trace without kernels (no
//!   `ProfilerActivity.CUDA`) has the same fields on the host's events `record_param_comms`: counts and sizes, without times.
//!
//! Operations over another number of ranks than the job has GPUs (such as those of tensor-parallel groups) are left out
//! and counted.

use crate::kinds::{CallKind, CallTimes, TIME_US_MAX};
use crate::nccl_tests::ParseError;
use crate::scalar::{bytes_of, collective_of};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use topology::{Bandwidth, Bytes, Collective, Seconds};

/// Largest trace, bytes.
pub const FILE_BYTES_MAX: usize = 64 << 20;
/// Limit on operations.
pub const OPERATIONS_MAX: usize = 1_000_000;
/// Limit on (collective, size) pairs of a summary; the most frequent are kept.
pub const KINDS_MAX: usize = 64;
/// Limit on ranks of a group.
const MANY_RANKS: u64 = 1 << 20;

/// Form of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceForm {
    /// One operation per line.
    JsonLines,
    /// PyTorch profiler.
    Kineto,
}

/// Summary of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct JobTrace {
    pub form: TraceForm,
    /// One entry per collective and size, the most frequent first.
    pub kinds: Vec<OperationSummary>,
    /// Operations left out: another number of ranks, no size, or an unknown collective.
    pub left_out: usize,
}

/// All operations of one collective and size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OperationSummary {
    pub collective: Collective,
    /// The whole buffer.
    pub size: Bytes,
    /// Number of operations.
    pub operations: usize,
    /// Bus bandwidth: the median, or the 90th percentile for Kineto traces.
    pub busbw: Bandwidth,
    /// Time of one operation at that bandwidth.
    pub time: Seconds,
    /// End of the last operation, seconds since 1970, if reported.
    pub at_unix_s: Option<f64>,
}

/// Reads a trace of a job of `gpus` GPUs. O(bytes).
///
/// # Errors
/// Text of neither form, a line with a wrong or missing field, limits exceeded, a trace without any usable operation.
pub fn parse_trace(text: &str, gpus: usize) -> Result<JobTrace, ParseError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut operations = TraceOperations { bandwidths: BTreeMap::new(), count: 0, left_out: 0, gpus };
    let form = form_of(text)?;
    match form {
        TraceForm::JsonLines => lines(text, &mut operations)?,
        TraceForm::Kineto => kineto(text, &mut operations)?,
    }
    if operations.bandwidths.is_empty() {
        let of_others = if operations.left_out > 0 {
            format!("; {} operations were of other group sizes or not collectives with a size", operations.left_out)
        } else {
            String::new()
        };
        let message = format!("the trace has no collective over {gpus} ranks with size and time{of_others}");
        return Err(ParseError::at(1, 1, message));
    }
    Ok(operations.summary(form))
}

/// The form of a trace that is not too large.
fn form_of(text: &str) -> Result<TraceForm, ParseError> {
    if text.len() > FILE_BYTES_MAX {
        return Err(ParseError::at(1, 1, format!("the trace is larger than {} MiB", FILE_BYTES_MAX >> 20)));
    }
    let first = text.lines().find(|l| !l.trim().is_empty()).unwrap_or("").trim();
    // A profiler trace begins with an object that does not end on its line, or with one that holds the whole trace.
    let is_lines = serde_json::from_str::<Line>(first).is_ok() || !text.contains("\"traceEvents\"");
    Ok(if is_lines { TraceForm::JsonLines } else { TraceForm::Kineto })
}

/// One line of the JSON-lines form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    collective: String,
    size_bytes: u64,
    busbw_gb_per_s: Option<f64>,
    time_us: Option<f64>,
    at_unix_s: Option<f64>,
}

/// Bandwidths, GB/s, and latest time by collective and size.
struct TraceOperations {
    bandwidths: BTreeMap<(Collective, Bytes), (Vec<f64>, Option<f64>)>,
    count: usize,
    left_out: usize,
    gpus: usize,
}

impl TraceOperations {
    fn add(&mut self, collective: Collective, size: Bytes, gb_per_s: f64, at: Option<f64>) -> Result<(), String> {
        if self.count == OPERATIONS_MAX {
            return Err(format!("more than {OPERATIONS_MAX} operations; cut the trace"));
        }
        self.count += 1;
        let kind = self.bandwidths.entry((collective, size)).or_default();
        kind.0.push(gb_per_s);
        kind.1 = kind.1.into_iter().chain(at).reduce(f64::max);
        Ok(())
    }

    fn summary(self, form: TraceForm) -> JobTrace {
        let gpus = self.gpus;
        let kind = |((collective, size), (mut v, at_unix_s)): (_, (Vec<f64>, _))| {
            v.sort_by(f64::total_cmp);
            let at = match form {
                TraceForm::JsonLines => v.len() / 2,
                TraceForm::Kineto => v.len() * 9 / 10,
            };
            let busbw = Bandwidth::from_gb_per_s(v[at.min(v.len() - 1)]);
            let time = size_seconds(collective, size, gpus, busbw.gb_per_s());
            OperationSummary { collective, size, operations: v.len(), busbw, time, at_unix_s }
        };
        let mut kinds: Vec<OperationSummary> = self.bandwidths.into_iter().map(kind).collect();
        kinds.sort_by_key(|k| (std::cmp::Reverse(k.operations), k.collective, k.size));
        kinds.truncate(KINDS_MAX);
        JobTrace { form, kinds, left_out: self.left_out }
    }
}

fn size_seconds(c: Collective, size: Bytes, ranks: usize, gb_per_s: f64) -> Seconds {
    Seconds(size.as_f64() * c.bus_factor(ranks) / (gb_per_s * 1e9))
}

/// A line and its collective; `number` counts from 0.
fn json_line(number: usize, text: &str) -> Result<(Collective, Line), ParseError> {
    let bad = |message: String| ParseError::at(number + 1, 1, message);
    let line: Line = serde_json::from_str(text).map_err(|e| {
        let what = e.to_string();
        let what = what.split(" at line").next().unwrap_or("").chars().take(160).collect::<String>();
        ParseError::at(number + 1, e.column().max(1), format!("{what}; a line like {EXAMPLE} was expected"))
    })?;
    let collective: Collective = line
        .collective
        .parse()
        .map_err(|_| bad(format!("`{}` is not a collective", line.collective.chars().take(40).collect::<String>())))?;
    if !(1..=store::measurement::SIZE_BYTES_MAX).contains(&line.size_bytes) {
        return Err(bad(format!("`size_bytes` is {}; 1 to 2^50 was expected", line.size_bytes)));
    }
    if let Some(t) = line.time_us.filter(|t| !(*t > 0.0 && *t <= TIME_US_MAX)) {
        return Err(bad(format!("`time_us` is {t}; a time above 0, {TIME_US_MAX} at most, was expected")));
    }
    if line.time_us.is_some() == line.busbw_gb_per_s.is_some() {
        return Err(bad("one of `busbw_gb_per_s` and `time_us` was expected".into()));
    }
    if line.at_unix_s.is_some_and(|t| !(0.0..=1e11).contains(&t)) {
        return Err(bad("`at_unix_s` is not a time in seconds since 1970".into()));
    }
    Ok((collective, line))
}

fn lines(text: &str, operations: &mut TraceOperations) -> Result<(), ParseError> {
    for (i, text) in text.lines().enumerate().filter(|l| !l.1.trim().is_empty()) {
        let bad = |message: String| ParseError::at(i + 1, 1, message);
        let (collective, line) = json_line(i, text)?;
        let size = Bytes(line.size_bytes);
        let of_time = |t: f64| collective.busbw_gb_per_s(operations.gpus, size.as_f64(), t * 1e-6);
        let gb_per_s = line.busbw_gb_per_s.or(line.time_us.map(of_time)).unwrap_or(0.0);
        if !(gb_per_s > 0.0 && gb_per_s <= store::measurement::BUSBW_GB_PER_S_MAX) {
            return Err(bad(format!("the bus bandwidth is {gb_per_s} GB/s, which is impossible")));
        }
        operations.add(collective, size, gb_per_s, line.at_unix_s).map_err(bad)?;
    }
    Ok(())
}

const EXAMPLE: &str = r#"{"collective":"all_reduce","size_bytes":16777216,"time_us":790.5}"#;

/// The part of a Chrome trace that is read; the rest is skipped.
#[derive(Deserialize)]
struct Chrome {
    #[serde(rename = "traceEvents")]
    events: Vec<ChromeEvent>,
}

#[derive(Deserialize)]
struct ChromeEvent {
    #[serde(default)]
    cat: Value,
    #[serde(default)]
    name: Value,
    #[serde(default)]
    dur: Value,
    #[serde(default)]
    args: Option<Args>,
}

/// A trace has events of many producers, so values may have any type.
#[derive(Deserialize)]
struct Args {
    #[serde(rename = "Collective name", default)]
    collective: Value,
    #[serde(rename = "In msg nelems", default)]
    elements_in: Value,
    #[serde(rename = "Out msg nelems", default)]
    elements_out: Value,
    #[serde(rename = "Group size", default)]
    group: Value,
    #[serde(default)]
    dtype: Value,
}

/// The events of NCCL's kernels in a profiler trace, and those of the host that name the same collectives.
fn nccl_events(text: &str) -> Result<[Vec<ChromeEvent>; 2], ParseError> {
    let trace: Chrome = serde_json::from_str(text)
        .map_err(|e| ParseError::at(e.line().max(1), e.column().max(1), format!("not a profiler trace: {e}")))?;
    let (mut kernels, mut calls) = (Vec::new(), Vec::new());
    for e in trace.events {
        let name = e.name.as_str().unwrap_or("");
        let is_nccl = name.starts_with("ncclDevKernel") || name.starts_with("ncclKernel");
        match e.cat.as_str() {
            Some("kernel") if is_nccl => kernels.push(e),
            Some("cpu_op") if name == HOST_EVENT => calls.push(e),
            _ => {}
        }
    }
    Ok([kernels, calls])
}

/// The host's event of a collective.
const HOST_EVENT: &str = "record_param_comms";
/// The profiler's event of a step, with its number behind it.
const STEP: &str = "ProfilerStep#";

/// Steps in a profiler's trace: `profiler.step()` makes an event for each. 0 for other texts. O(bytes).
pub fn steps_of_trace(text: &str) -> u64 {
    let events = serde_json::from_str::<Chrome>(text).map(|t| t.events).unwrap_or_default();
    // On a GPU's track the profiler repeats them.
    let names: BTreeSet<&str> = events.iter().filter_map(|e| e.name.as_str()?.strip_prefix(STEP)).collect();
    names.len() as u64
}

fn kineto(text: &str, operations: &mut TraceOperations) -> Result<(), ParseError> {
    let [kernels, calls] = nccl_events(text)?;
    if kernels.is_empty() && !calls.is_empty() {
        let what = "the trace has no kernels, only the host's calls: profile with ProfilerActivity.CUDA for times";
        return Err(ParseError::at(1, 1, what));
    }
    for e in kernels {
        match operation(&e, operations.gpus) {
            Some((c, size, v)) => operations.add(c, size, v, None).map_err(|m| ParseError::at(1, 1, m))?,
            None => operations.left_out += 1,
        }
    }
    Ok(())
}

/// A kernel of a collective, or the host's event of one.
struct Kernel {
    collective: Collective,
    size: Bytes,
    ranks: u64,
    us: f64,
}

/// The collective of an event; `None` if a field is missing or impossible.
fn kernel(e: &ChromeEvent) -> Option<Kernel> {
    let args = e.args.as_ref()?;
    let collective = collective_of(args.collective.as_str()?)?;
    let elements = args.elements_in.as_u64()?.max(args.elements_out.as_u64()?);
    let bytes = elements.checked_mul(bytes_of(args.dtype.as_str()?)?)?;
    let us = e.dur.as_f64()?;
    let plausible = (1..=store::measurement::SIZE_BYTES_MAX).contains(&bytes) && us > 0.0 && us <= TIME_US_MAX;
    plausible.then_some(Kernel { collective, size: Bytes(bytes), ranks: args.group.as_u64()?, us })
}

/// Collective, size and bandwidth, GB/s, of a kernel. `None` if a field is missing or the operation does not span the whole job.
fn operation(e: &ChromeEvent, gpus: usize) -> Option<(Collective, Bytes, f64)> {
    let k = kernel(e).filter(|k| k.ranks == gpus as u64)?;
    let v = k.collective.busbw_gb_per_s(gpus, k.size.as_f64(), k.us * 1e-6);
    (v > 0.0 && v <= store::measurement::BUSBW_GB_PER_S_MAX).then_some((k.collective, k.size, v))
}

/// The collectives of all groups in a trace, the most frequent first, and the number of operations left out. JSON lines do not tell the number of
/// ranks: it is 0 there, and a line without a time has none. O(bytes).
///
/// # Errors
/// As [`parse_trace`], except that a trace may have no collective.
pub fn kinds_of_trace(text: &str) -> Result<(Vec<CallKind>, usize), ParseError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (mut kinds, mut left_out) = (CallTimes::default(), 0);
    match form_of(text)? {
        TraceForm::JsonLines => {
            for (number, line) in text.lines().enumerate().filter(|l| !l.1.trim().is_empty()) {
                let (collective, line) = json_line(number, line)?;
                kinds.add(collective, Bytes(line.size_bytes), 0, line.time_us, false);
            }
        }
        TraceForm::Kineto => {
            let [kernels, calls] = nccl_events(text)?;
            let timed = !kernels.is_empty();
            for e in if timed { kernels } else { calls } {
                match kernel(&e).filter(|k| (2..=MANY_RANKS).contains(&k.ranks)) {
                    Some(k) => kinds.add(k.collective, k.size, k.ranks as u32, timed.then_some(k.us), false),
                    None => left_out += 1,
                }
            }
        }
    }
    Ok((kinds.finish(), left_out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn without_kernels_the_hosts_calls_are_counted_and_steps_are_those_of_the_profiler() {
        let call = |name: &str| {
            format!(
                "{{\"ph\":\"X\",\"cat\":\"cpu_op\",\"name\":\"record_param_comms\",\"dur\":9.0,\"args\":{{\"Collective name\":\"{name}\",\
                 \"In msg nelems\":1024,\"Out msg nelems\":1024,\"Group size\":4,\"dtype\":\"Float\"}}}}"
            )
        };
        let step =
            |n: u32, cat: &str| format!("{{\"ph\":\"X\",\"cat\":\"{cat}\",\"name\":\"ProfilerStep#{n}\",\"dur\":1}}");
        let events = [
            step(7, "user_annotation"),
            step(7, "gpu_user_annotation"),
            step(8, "user_annotation"),
            call("allreduce"),
            call("allreduce"),
            call("wait"),
        ];
        let text = format!("{{\"traceEvents\":[{}]}}", events.join(","));
        let (kinds, left_out) = kinds_of_trace(&text).unwrap();
        assert_eq!((kinds.len(), kinds[0].calls, kinds[0].size, kinds[0].time_us), (1, 2, Bytes(4096), None));
        assert_eq!((left_out, steps_of_trace(&text), steps_of_trace("{}")), (1, 2, 0));
        assert!(
            parse_trace(&text, 4).unwrap_err().to_string().contains("ProfilerActivity.CUDA"),
            "no bandwidth without times"
        );
    }

    #[test]
    fn a_time_gives_the_bandwidth_that_nccl_tests_would_print() {
        let text = "{\"collective\":\"all_reduce\",\"size_bytes\":16000000,\"time_us\":1000}\n\n\
                    {\"collective\":\"all_reduce\",\"size_bytes\":16000000,\"busbw_gb_per_s\":30,\"at_unix_s\":5}\n\
                    {\"collective\":\"all_reduce\",\"size_bytes\":16000000,\"busbw_gb_per_s\":31}\n\
                    {\"collective\":\"all_gather\",\"size_bytes\":8,\"busbw_gb_per_s\":1}\n";
        let t = parse_trace(text, 16).unwrap();
        assert_eq!((t.form, t.kinds.len(), t.kinds[0].operations), (TraceForm::JsonLines, 2, 3));
        // 16 MB in 1 ms are 16 GB/s of algorithm bandwidth, times 2 * 15 / 16.
        assert!((t.kinds[0].busbw.gb_per_s() - 30.0).abs() < 1e-9, "{t:?}");
        assert_eq!(t.kinds[0].at_unix_s, Some(5.0));
    }

    #[test]
    fn calls_of_every_group_are_kinds_with_the_time_of_those_that_waited_least() {
        let mut events: Vec<String> =
            (0..10).map(|i| event("ncclDevKernel_AllReduce_x", 16, 1000.0 + 100.0 * f64::from(i))).collect();
        events.push(event("ncclDevKernel_AllReduce_x", 8, 10.0));
        events.push(event("ncclDevKernel_AllReduce_x", 1, 10.0));
        let text = format!(r#"{{"schemaVersion":1,"traceEvents":[{}]}}"#, events.join(","));
        let (kinds, left_out) = kinds_of_trace(&text).unwrap();
        let brief: Vec<_> = kinds.iter().map(|k| (k.ranks, k.size.0, k.calls, k.time_us)).collect();
        assert_eq!(brief, [(16, 16_000_000, 10, Some(1100.0)), (8, 16_000_000, 1, Some(10.0))]);
        assert_eq!(left_out, 1);
        let lines = "{\"collective\":\"reduce\",\"size_bytes\":9,\"busbw_gb_per_s\":1}\n".repeat(2);
        let (kinds, _) = kinds_of_trace(&lines).unwrap();
        assert_eq!((kinds[0].calls, kinds[0].ranks, kinds[0].time_us), (2, 0, None));
        assert!(kinds_of_trace("x").is_err());
    }

    fn event(name: &str, group: u64, us: f64) -> String {
        format!(
            r#"{{"ph":"X","cat":"kernel","name":"{name}","ts":1.0,"dur":{us},"args":{{"Collective name":"allreduce",
               "In msg nelems":4000000,"Out msg nelems":4000000,"Group size":{group},"dtype":"Float","stream":7}}}}"#
        )
    }

    #[test]
    fn nccl_kernels_of_the_whole_job_are_found_in_a_profiler_trace() {
        let mut events: Vec<String> = (0..10)
            .map(|i| event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", 16, 1000.0 + 100.0 * f64::from(i)))
            .collect();
        events.push(event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", 8, 10.0));
        events.push(event("gemm", 16, 1.0));
        events.push(r#"{"ph":"M","name":"process_name","pid":0,"args":{"name":"python"}}"#.into());
        events.push(r#"{"ph":"X","cat":"kernel","name":"ncclKernel_Broadcast","dur":"x","args":null}"#.into());
        let text =
            format!(r#"{{"schemaVersion":1,"distributedInfo":{{"rank":0}},"traceEvents":[{}]}}"#, events.join(","));
        let t = parse_trace(&text, 16).unwrap();
        assert_eq!((t.form, t.kinds.len(), t.left_out), (TraceForm::Kineto, 1, 2));
        // The fastest kernel waited least: 1000 us for 16 MB.
        assert!((t.kinds[0].busbw.gb_per_s() - 30.0).abs() < 1e-9, "{t:?}");
    }

    #[test]
    fn errors_point_at_the_line_and_say_what_was_expected() {
        let cases = [
            ("", "line 1, column 1: the trace has no collective over 4 ranks"),
            ("hello", "line 1, column 1: expected value"),
            ("\n{\"collective\":\"x\",\"size_bytes\":1,\"time_us\":1}", "line 2, column 1: `x` is not a collective"),
            ("{\"collective\":\"reduce\",\"size_bytes\":1}", "line 1, column 1: one of `busbw_gb_per_s` and `time_us`"),
            ("{\"collective\":\"reduce\",\"size_bytes\":0,\"time_us\":1}", "line 1, column 1: `size_bytes` is 0"),
            ("{\"collective\":\"reduce\",\"size_bytes\":9,\"time_us\":-1}", "line 1, column 1: `time_us` is -1"),
            (
                "{\"collective\":\"reduce\",\"size_bytes\":9,\"busbw_gb_per_s\":1e9}",
                "line 1, column 1: the bus bandwidth is",
            ),
            ("{\"collective\":\"reduce\",\"size\":9}", "line 1, column 29: unknown field `size`"),
            ("{\"traceEvents\":[]}", "line 1, column 1: the trace has no collective over 4 ranks"),
            ("{\"traceEvents\":3}", "line 1, column 16: not a profiler trace"),
        ];
        for (text, expected) in cases {
            let operations = parse_trace(text, 4).unwrap_err().to_string();
            assert!(operations.starts_with(expected), "{text}\n found    {operations}\n expected {expected}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "\\PC{0,200}", with in 0usize..3) {
            let text = match with {
                0 => text,
                1 => format!("{{\"traceEvents\":[{text}]}}"),
                _ => format!("{EXAMPLE}\n{text}"),
            };
            let _ = parse_trace(&text, 8);
        }
    }
}
