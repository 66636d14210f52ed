//! What a job's own trace says of its collectives.
//!
//! Two forms are read, told apart by their content:
//!
//! * **JSON lines**, one operation a line: `{"collective":"all_reduce","size_bytes":16777216,"busbw_gb_per_s":41.3}` or, instead of the
//!   bandwidth, `"time_us":790.5`, from which it follows as nccl-tests defines it. `"at_unix_s":1.7e9` is optional. `size_bytes` is
//!   nccl-tests' size: the whole buffer.
//! * **PyTorch profiler** (Kineto, Chrome trace JSON, PyTorch 2.2 and later): events of category `kernel` whose names begin with
//!   `ncclDevKernel` or `ncclKernel` and whose `args` hold `Collective name`, `In msg nelems`, `Out msg nelems`, `Group size` and `dtype`; `dur`
//!   is in microseconds. The size is the larger of both element counts times the size of the type, as Meta's PARAM benchmarks take it.
//!   A kernel waits for the slowest rank, so that its duration is an upper estimate of the transfer: of each size the
//!   bandwidth that a tenth of the operations exceed is taken, not the middle one.
//!
//! Operations over other numbers of ranks than the job has GPUs (tensor-parallel groups and the like) are left out and counted.

use crate::nccl_tests::ParseError;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use topology::{Bandwidth, Bytes, Collective, Seconds};

/// Largest trace that is read.
pub const FILE_BYTES_MAX: usize = 64 << 20;
/// Most operations.
pub const OPERATIONS_MAX: usize = 1_000_000;
/// Most different (collective, size) pairs that a summary has; the most frequent are kept.
pub const KINDS_MAX: usize = 64;
/// Longest operation that is believed, microseconds.
const TIME_US_MAX: f64 = 1e9;

/// Which form a trace has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// An operation a line.
    JsonLines,
    /// PyTorch profiler.
    Kineto,
}

/// What a trace says.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Its form.
    pub form: Form,
    /// One entry for every collective and size, the most frequent first.
    pub kinds: Vec<Kind>,
    /// Operations that were left out: of other numbers of ranks, without size, or not collectives known here.
    pub left_out: usize,
}

/// All operations of one collective and size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kind {
    /// The collective.
    pub collective: Collective,
    /// Whole buffer.
    pub size: Bytes,
    /// How many operations.
    pub operations: usize,
    /// Bus bandwidth: the median, or the 90th percentile of Kineto traces.
    pub busbw: Bandwidth,
    /// Time of one operation at that bandwidth.
    pub time: Seconds,
    /// When the last one ended, seconds since 1970, if said.
    pub at_unix_s: Option<f64>,
}

/// Reads a trace of a job of `gpus` GPUs. O(bytes).
///
/// # Errors
/// Text of neither form, a line with a wrong or missing field, limits exceeded, a trace without any usable operation.
pub fn parse_trace(text: &str, gpus: usize) -> Result<Trace, ParseError> {
    if text.len() > FILE_BYTES_MAX {
        return Err(ParseError::at(1, 1, format!("the trace is larger than {} MiB", FILE_BYTES_MAX >> 20)));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut found = Found { operations: BTreeMap::new(), count: 0, left_out: 0, gpus };
    let first = text.lines().find(|l| !l.trim().is_empty()).unwrap_or("").trim();
    // A trace file of the profiler begins with an object that is not closed on its line, or that holds everything.
    let form = if serde_json::from_str::<Line>(first).is_ok() || !text.contains("\"traceEvents\"") {
        Form::JsonLines
    } else {
        Form::Kineto
    };
    match form {
        Form::JsonLines => lines(text, &mut found)?,
        Form::Kineto => kineto(text, &mut found)?,
    }
    if found.operations.is_empty() {
        let of_others = if found.left_out > 0 {
            format!("; {} operations were of other group sizes or not collectives with a size", found.left_out)
        } else {
            String::new()
        };
        let message = format!("no collective over {gpus} ranks with its size and time is in the trace{of_others}");
        return Err(ParseError::at(1, 1, message));
    }
    Ok(found.summary(form))
}

/// One line of the simple form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    collective: String,
    size_bytes: u64,
    busbw_gb_per_s: Option<f64>,
    time_us: Option<f64>,
    at_unix_s: Option<f64>,
}

/// Readings by kind: bandwidths and the latest time.
struct Found {
    operations: BTreeMap<(Collective, Bytes), (Vec<f64>, Option<f64>)>,
    count: usize,
    left_out: usize,
    gpus: usize,
}

impl Found {
    fn add(&mut self, collective: Collective, size: Bytes, gb_per_s: f64, at: Option<f64>) -> Result<(), String> {
        if self.count == OPERATIONS_MAX {
            return Err(format!("more than {OPERATIONS_MAX} operations; cut the trace"));
        }
        self.count += 1;
        let kind = self.operations.entry((collective, size)).or_default();
        kind.0.push(gb_per_s);
        kind.1 = kind.1.into_iter().chain(at).reduce(f64::max);
        Ok(())
    }

    fn summary(self, form: Form) -> Trace {
        let gpus = self.gpus;
        let kind = |((collective, size), (mut v, at_unix_s)): (_, (Vec<f64>, _))| {
            v.sort_by(f64::total_cmp);
            let at = match form {
                Form::JsonLines => v.len() / 2,
                Form::Kineto => v.len() * 9 / 10,
            };
            let busbw = Bandwidth::from_gb_per_s(v[at.min(v.len() - 1)]);
            let time = size_seconds(collective, size, gpus, busbw.gb_per_s());
            Kind { collective, size, operations: v.len(), busbw, time, at_unix_s }
        };
        let mut kinds: Vec<Kind> = self.operations.into_iter().map(kind).collect();
        kinds.sort_by_key(|k| (std::cmp::Reverse(k.operations), k.collective, k.size));
        kinds.truncate(KINDS_MAX);
        Trace { form, kinds, left_out: self.left_out }
    }
}

fn size_seconds(c: Collective, size: Bytes, ranks: usize, gb_per_s: f64) -> Seconds {
    Seconds(size.as_f64() * c.bus_factor(ranks) / (gb_per_s * 1e9))
}

fn lines(text: &str, found: &mut Found) -> Result<(), ParseError> {
    for (i, text) in text.lines().enumerate().filter(|l| !l.1.trim().is_empty()) {
        let bad = |message: String| ParseError::at(i + 1, 1, message);
        let line: Line = serde_json::from_str(text).map_err(|e| {
            let what = e.to_string();
            let what = what.split(" at line").next().unwrap_or("").chars().take(160).collect::<String>();
            ParseError::at(i + 1, e.column().max(1), format!("{what}; a line like {EXAMPLE} was expected"))
        })?;
        let collective: Collective = line.collective.parse().map_err(|_| {
            bad(format!("`{}` is not a collective", line.collective.chars().take(40).collect::<String>()))
        })?;
        if !(1..=store::measurement::SIZE_BYTES_MAX).contains(&line.size_bytes) {
            return Err(bad(format!("`size_bytes` is {}; 1 to 2^50 was expected", line.size_bytes)));
        }
        let size = Bytes(line.size_bytes);
        let gb_per_s = match (line.busbw_gb_per_s, line.time_us) {
            (Some(v), None) => v,
            (None, Some(t)) if t > 0.0 && t <= TIME_US_MAX => {
                collective.busbw_gb_per_s(found.gpus, size.as_f64(), t * 1e-6)
            }
            (None, Some(t)) => return Err(bad(format!("`time_us` is {t}; 0 to {TIME_US_MAX} was expected"))),
            _ => return Err(bad("one of `busbw_gb_per_s` and `time_us` was expected".into())),
        };
        if !(gb_per_s > 0.0 && gb_per_s <= store::measurement::BUSBW_GB_PER_S_MAX) {
            return Err(bad(format!("the bus bandwidth is {gb_per_s} GB/s, which cannot be")));
        }
        if line.at_unix_s.is_some_and(|t| !(0.0..=1e11).contains(&t)) {
            return Err(bad("`at_unix_s` is no time in seconds since 1970".into()));
        }
        found.add(collective, size, gb_per_s, line.at_unix_s).map_err(bad)?;
    }
    Ok(())
}

const EXAMPLE: &str = r#"{"collective":"all_reduce","size_bytes":16777216,"time_us":790.5}"#;

/// The part of a Chrome trace that matters here; everything else is skipped while it is read.
#[derive(Deserialize)]
struct Chrome {
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    cat: Value,
    #[serde(default)]
    name: Value,
    #[serde(default)]
    dur: Value,
    #[serde(default)]
    args: Option<Args>,
}

/// Values may be of any type: a trace has events of many makers.
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

fn kineto(text: &str, found: &mut Found) -> Result<(), ParseError> {
    let trace: Chrome = serde_json::from_str(text)
        .map_err(|e| ParseError::at(e.line().max(1), e.column().max(1), format!("not a profiler trace: {e}")))?;
    for e in trace.events {
        let name = e.name.as_str().unwrap_or("");
        let is_nccl = name.starts_with("ncclDevKernel") || name.starts_with("ncclKernel");
        if e.cat.as_str() != Some("kernel") || !is_nccl {
            continue;
        }
        match operation(&e, found.gpus) {
            Some((c, size, v)) => found.add(c, size, v, None).map_err(|m| ParseError::at(1, 1, m))?,
            None => found.left_out += 1,
        }
    }
    Ok(())
}

/// Collective, size and bandwidth of a kernel; none if it does not tell them or is not the whole job's.
fn operation(e: &Event, gpus: usize) -> Option<(Collective, Bytes, f64)> {
    let args = e.args.as_ref()?;
    let collective = match args.collective.as_str()? {
        "allreduce" | "all_reduce" | "allreduce_coalesced" => Collective::AllReduce,
        "_allgather_base"
        | "allgather"
        | "all_gather"
        | "all_gather_into_tensor"
        | "allgather_into_tensor_coalesced" => Collective::AllGather,
        "_reduce_scatter_base" | "reduce_scatter" | "reduce_scatter_tensor" | "reduce_scatter_tensor_coalesced" => {
            Collective::ReduceScatter
        }
        "broadcast" => Collective::Broadcast,
        "reduce" => Collective::Reduce,
        // All-to-all is left out: its shares may be uneven.
        _ => return None,
    };
    if args.group.as_u64()? != gpus as u64 {
        return None;
    }
    let elements = args.elements_in.as_u64()?.max(args.elements_out.as_u64()?);
    let bytes = elements.checked_mul(bytes_of(args.dtype.as_str()?)?)?;
    let us = e.dur.as_f64()?;
    let plausible = (1..=store::measurement::SIZE_BYTES_MAX).contains(&bytes) && us > 0.0 && us <= TIME_US_MAX;
    if !plausible {
        return None;
    }
    let v = collective.busbw_gb_per_s(gpus, bytes as f64, us * 1e-6);
    (v > 0.0 && v <= store::measurement::BUSBW_GB_PER_S_MAX).then_some((collective, Bytes(bytes), v))
}

/// Bytes of PyTorch's scalar types, by their names in traces.
fn bytes_of(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "Byte" | "Char" | "Bool" | "Float8_e5m2" | "Float8_e4m3fn" | "Float8_e5m2fnuz" | "Float8_e4m3fnuz" => 1,
        "Short" | "Half" | "BFloat16" | "UInt16" => 2,
        "Int" | "Float" | "UInt32" => 4,
        "Long" | "Double" | "UInt64" | "ComplexFloat" => 8,
        "ComplexDouble" => 16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_time_gives_the_bandwidth_that_nccl_tests_would_print() {
        let text = "{\"collective\":\"all_reduce\",\"size_bytes\":16000000,\"time_us\":1000}\n\n\
                    {\"collective\":\"all_reduce\",\"size_bytes\":16000000,\"busbw_gb_per_s\":30,\"at_unix_s\":5}\n\
                    {\"collective\":\"all_reduce\",\"size_bytes\":16000000,\"busbw_gb_per_s\":31}\n\
                    {\"collective\":\"all_gather\",\"size_bytes\":8,\"busbw_gb_per_s\":1}\n";
        let t = parse_trace(text, 16).unwrap();
        assert_eq!((t.form, t.kinds.len(), t.kinds[0].operations), (Form::JsonLines, 2, 3));
        // 16 MB in 1 ms are 16 GB/s of algorithm bandwidth, times 2 * 15 / 16.
        assert!((t.kinds[0].busbw.gb_per_s() - 30.0).abs() < 1e-9, "{t:?}");
        assert_eq!(t.kinds[0].at_unix_s, Some(5.0));
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
        assert_eq!((t.form, t.kinds.len(), t.left_out), (Form::Kineto, 1, 2));
        // The fastest kernel waited least: 1000 us of 16 MB.
        assert!((t.kinds[0].busbw.gb_per_s() - 30.0).abs() < 1e-9, "{t:?}");
    }

    #[test]
    fn errors_point_at_the_line_and_say_what_was_expected() {
        let cases = [
            ("", "line 1, column 1: no collective over 4 ranks"),
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
            ("{\"traceEvents\":[]}", "line 1, column 1: no collective over 4 ranks"),
            ("{\"traceEvents\":3}", "line 1, column 16: not a profiler trace"),
        ];
        for (text, expected) in cases {
            let found = parse_trace(text, 4).unwrap_err().to_string();
            assert!(found.starts_with(expected), "{text}\n found    {found}\n expected {expected}");
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
