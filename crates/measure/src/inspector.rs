//! Reads the dumps of NCCL Inspector, the profiler plugin that comes with NCCL 2.28.3 and later (and with RCCL): one JSON object per line, one file
//! per process, formats v4.0 to v4.2.
//!
//! * `coll_perf` is one collective on one rank. Its time is that of the rank's longest channel, waiting included: the rank that arrives last does
//!   not wait, so the time of a collective is the shortest one over its ranks.
//! * `coll_msg_size_bytes` of AllGather and ReduceScatter is one rank's share. Sizes here are those of nccl-tests: the whole buffer.
//! * Times from `collective_cpu` are those of the launch, not of the kernel; they are left out. So are sends and receives (`p2p_perf`), statistics
//!   (`dump_stats`), and collectives without a bus bandwidth of nccl-tests.
//! * The ring holds 1,024 collectives per communicator, and the files are written at the end by default: a job that was killed leaves none.
//!
//! Its other form, text for Prometheus, has its own reader: [`prometheus`]. [`write`] writes the plugin's trace in both forms.
//!
//! A dump is untrusted: lines, files and fields have limits. A cut-off last line is counted, not an error.

pub mod prometheus;
pub mod write;

use crate::kinds::{CallKind, CallTimes, TIME_US_MAX};
use crate::plugin_trace::{RANKS_MAX, SIZE_BYTES_MAX, TraceEnd, TraceError, read_lines};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::BufRead;
use topology::{Bandwidth, Bytes, Collective};

/// Limit on collectives of all communicators.
pub const OPERATIONS_MAX: usize = 2_000_000;
/// Limit on kinds of a summary; the most frequent are kept.
pub const KINDS_MAX: usize = 64;
/// Fewest operations of a kind: the first use of an algorithm sets up its connections.
pub const OPERATIONS_MIN: usize = 3;

#[derive(Debug, Deserialize)]
struct Line {
    header: Header,
    #[serde(default)]
    metadata: Metadata,
    coll_perf: Option<CollPerf>,
}

#[derive(Debug, Deserialize)]
struct Header {
    id: String,
    rank: i64,
    n_ranks: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    dump_timestamp_us: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct CollPerf {
    coll: String,
    coll_sn: u64,
    coll_msg_size_bytes: u64,
    coll_exec_time_us: f64,
    coll_timing_source: Option<String>,
    coll_algo: Option<String>,
    coll_proto: Option<String>,
}

/// A collective, by communicator, collective and NCCL's number of it.
type OperationId = (String, Collective, u64);

#[derive(Debug)]
struct Operation {
    size: u64,
    n_ranks: u32,
    /// The ranks whose dumps have it.
    ranks: Vec<u32>,
    least_us: f64,
    algorithm: Option<String>,
}

/// All operations of one collective, size, algorithm and protocol.
#[derive(Debug, Clone, PartialEq)]
pub struct InspectedKind {
    pub collective: Collective,
    /// The whole buffer.
    pub size: Bytes,
    /// 0 if the source does not tell ([`prometheus`]).
    pub operations: usize,
    /// Median time, microseconds; with [`prometheus`] a mean.
    pub time_us: f64,
    pub busbw: Bandwidth,
    /// Such as `RING/LL`, from format v4.2 on.
    pub algorithm: Option<(String, String)>,
}

/// What was read so far.
#[derive(Debug, Default)]
pub struct InspectorDump {
    operations: BTreeMap<OperationId, Operation>,
    /// Lines without a usable collective.
    left_out: usize,
    latest_us: f64,
    largest: u32,
}

/// The result over all ranks of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct InspectorSummary {
    /// The most frequent first.
    pub kinds: Vec<InspectedKind>,
    /// Operations left out: of other communicators, not on all ranks, without a time.
    pub left_out: usize,
    /// When the last dump was written, seconds since 1970, if told.
    pub at_unix_s: Option<f64>,
}

impl InspectorDump {
    /// Adds a file. O(bytes), memory of one line and the operations.
    ///
    /// # Errors
    /// A line that is no object of Inspector or exceeds a limit; more than [`OPERATIONS_MAX`] operations are left out and counted.
    pub fn read(&mut self, input: impl BufRead) -> Result<TraceEnd, TraceError> {
        read_lines(input, "not a line of NCCL Inspector: ", |line| self.take(line))
    }

    fn take(&mut self, line: Line) -> Result<(), String> {
        let h = line.header;
        if !(1..=i64::from(RANKS_MAX)).contains(&h.n_ranks) || !(0..h.n_ranks).contains(&h.rank) {
            return Err(format!("rank {} of {} ranks is impossible", h.rank, h.n_ranks));
        }
        if let Some(us) = line.metadata.dump_timestamp_us.filter(|us| (0.0..1e17).contains(us)) {
            self.latest_us = self.latest_us.max(us);
        }
        let Some(c) = line.coll_perf else { return Ok(()) };
        if c.coll_msg_size_bytes > SIZE_BYTES_MAX {
            return Err(format!("`coll_msg_size_bytes` is {}; at most 2^50 were expected", c.coll_msg_size_bytes));
        }
        if !(0.0..=TIME_US_MAX).contains(&c.coll_exec_time_us) {
            return Err(format!("`coll_exec_time_us` is {}; 0 to {TIME_US_MAX:e} were expected", c.coll_exec_time_us));
        }
        let collective: Option<Collective> = c.coll.parse().ok().filter(|c: &Collective| c.is_tuned());
        let launch_only = c.coll_timing_source.as_deref() == Some("collective_cpu");
        let (Some(collective), false, true) =
            (collective, launch_only, c.coll_exec_time_us > 0.0 && c.coll_msg_size_bytes > 0 && h.n_ranks > 1)
        else {
            self.left_out += 1;
            return Ok(());
        };
        let n_ranks = h.n_ranks as u32;
        let shares = matches!(collective, Collective::AllGather | Collective::ReduceScatter);
        let size =
            c.coll_msg_size_bytes.saturating_mul(if shares { u64::from(n_ranks) } else { 1 }).min(SIZE_BYTES_MAX);
        let id = (h.id.chars().take(64).collect(), collective, c.coll_sn);
        if self.operations.len() >= OPERATIONS_MAX && !self.operations.contains_key(&id) {
            self.left_out += 1;
            return Ok(());
        }
        let word = |w: Option<String>| w.filter(|w| w.len() <= 32 && !w.eq_ignore_ascii_case("unknown"));
        let algorithm = word(c.coll_algo).zip(word(c.coll_proto)).map(|(a, p)| format!("{a}/{p}"));
        let new = || Operation { size, n_ranks, ranks: Vec::new(), least_us: f64::INFINITY, algorithm };
        let operation = self.operations.entry(id).or_insert_with(new);
        let rank = h.rank as u32;
        // A rank twice, or another size: the number began anew (the communicator was made again with the same identifier).
        if operation.ranks.contains(&rank) || operation.size != size || operation.n_ranks != n_ranks {
            self.left_out += 1;
            return Ok(());
        }
        operation.ranks.push(rank);
        operation.least_us = operation.least_us.min(c.coll_exec_time_us);
        self.largest = self.largest.max(n_ranks);
        Ok(())
    }

    /// The collectives of all communicators, the most frequent first, and the number of lines left out. O(operations).
    pub fn kinds(&self) -> (Vec<CallKind>, usize) {
        let mut kinds = CallTimes::default();
        for ((_, collective, _), o) in &self.operations {
            let by_all = o.ranks.len() == o.n_ranks as usize;
            kinds.add(*collective, Bytes(o.size), o.n_ranks, Some(o.least_us), by_all);
        }
        (kinds.finish(), self.left_out)
    }

    /// The collectives over `gpus` ranks that all of them have in their dumps. O(operations).
    ///
    /// # Errors
    /// A sentence if there is none.
    pub fn summary(&self, gpus: usize) -> Result<InspectorSummary, String> {
        let mut left_out = self.left_out;
        let mut times: BTreeMap<(Collective, u64, Option<&str>), Vec<f64>> = BTreeMap::new();
        let mut partial = None;
        for ((_, collective, _), o) in &self.operations {
            if o.n_ranks as usize != gpus {
                left_out += 1;
            } else if o.ranks.len() < gpus {
                partial = Some(o.ranks.len());
                left_out += 1;
            } else {
                times.entry((*collective, o.size, o.algorithm.as_deref())).or_default().push(o.least_us);
            }
        }
        let mut kinds = Vec::new();
        for ((collective, size, algorithm), us) in times {
            if us.len() < OPERATIONS_MIN {
                left_out += us.len();
                continue;
            }
            let time_us = stats::upper_median(&us);
            let busbw = Bandwidth::from_gb_per_s(size as f64 / time_us / 1e3 * collective.bus_factor(gpus));
            let algorithm = algorithm.and_then(|a| a.split_once('/'));
            let algorithm = algorithm.map(|(a, p)| arm(a, p));
            kinds.push(InspectedKind {
                collective,
                size: Bytes(size),
                operations: us.len(),
                time_us,
                busbw,
                algorithm,
            });
        }
        kinds.sort_by_key(|k| (std::cmp::Reverse(k.operations), k.collective, k.size));
        left_out += kinds.iter().skip(KINDS_MAX).map(|k| k.operations).sum::<usize>();
        kinds.truncate(KINDS_MAX);
        if kinds.is_empty() {
            return Err(match partial {
                Some(n) => format!("its collectives have times of {n} of {gpus} ranks; give the dumps of all hosts"),
                None if self.operations.is_empty() => "no collective has a kernel time".into(),
                None if self.largest as usize != gpus => format!(
                    "no communicator has {gpus} ranks, one for each of the job's GPUs (the largest has {})",
                    self.largest
                ),
                None => format!("no collective has {OPERATIONS_MIN} times"),
            });
        }
        let at_unix_s = (self.latest_us > 0.0).then_some(self.latest_us / 1e6);
        Ok(InspectorSummary { kinds, left_out, at_unix_s })
    }
}

/// Algorithm and protocol as the plugin's traces write them: in capitals, without NCCL's underscores (`NVLS_TREE`).
fn arm(algorithm: &str, protocol: &str) -> (String, String) {
    let plain = |word: &str| word.to_ascii_uppercase().replace('_', "");
    (plain(algorithm), plain(protocol))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(rank: u32, coll: &str, sn: u64, bytes: u64, us: u64) -> String {
        format!(
            "{{\"header\":{{\"id\":\"0xab\",\"rank\":{rank},\"n_ranks\":4,\"nnodes\":1}},\"metadata\":{{\"inspector_output_format_version\":\"v4.2\",\
             \"git_rev\":\"\",\"rec_mechanism\":\"nccl_profiler_interface\",\"dump_timestamp_us\":1748030377748202,\"hostname\":\"n0\",\"pid\":1}},\
             \"coll_perf\":{{\"coll\":\"{coll}\",\"coll_algo\":\"Ring\",\"coll_proto\":\"LL128\",\"coll_sn\":{sn},\"coll_msg_size_bytes\":{bytes},\
             \"coll_exec_time_us\":{us},\"coll_timing_source\":\"kernel_gpu\",\"coll_algobw_gbs\":1.0,\"coll_busbw_gbs\":1.0}}}}\n"
        )
    }

    fn dump(text: &str) -> InspectorDump {
        let mut d = InspectorDump::default();
        d.read(text.as_bytes()).unwrap();
        d
    }

    #[test]
    fn the_time_is_that_of_the_rank_that_arrives_last_and_sizes_are_whole_buffers() {
        let text: String = (0..5)
            .flat_map(|sn| (0..4).map(move |r| line(r, "AllGather", sn, 1 << 20, 100 + 50 * u64::from(r))))
            .collect();
        let s = dump(&text).summary(4).unwrap();
        assert_eq!((s.kinds.len(), s.left_out, s.at_unix_s.map(|t| t as u64)), (1, 0, Some(1_748_030_377)));
        let k = &s.kinds[0];
        assert_eq!((k.collective, k.size, k.operations, k.time_us), (Collective::AllGather, Bytes(4 << 20), 5, 100.0));
        assert_eq!(k.algorithm, Some(("RING".into(), "LL128".into())));
        // 4 MiB in 100 us, by 3/4.
        assert!((k.busbw.gb_per_s() - 31.457).abs() < 0.01, "{}", k.busbw.gb_per_s());
    }

    #[test]
    fn a_collective_that_some_ranks_lack_is_no_reading() {
        let text: String = (0..5).flat_map(|sn| (0..3).map(move |r| line(r, "AllReduce", sn, 1 << 20, 100))).collect();
        let d = dump(&text);
        assert_eq!(
            d.summary(4).unwrap_err(),
            "its collectives have times of 3 of 4 ranks; give the dumps of all hosts"
        );
        assert!(d.summary(8).unwrap_err().contains("no communicator has 8 ranks"), "other jobs");
    }

    #[test]
    fn sends_statistics_launch_times_and_repeated_numbers_are_left_out() {
        let whole: String = (0..3).flat_map(|sn| (0..4).map(move |r| line(r, "AllReduce", sn, 8192, 50))).collect();
        let header = "{\"header\":{\"id\":\"0xab\",\"rank\":0,\"n_ranks\":4,\"nnodes\":1}";
        let others = format!(
            "{header},\"p2p_perf\":{{\"p2p\":\"Send\"}}}}\n{header},\"dump_stats\":{{\"coll_records\":3}}}}\n\n{}{}{}{}",
            line(0, "AllReduce", 9, 8192, 50).replace("kernel_gpu", "collective_cpu"),
            line(0, "AlltoAll", 9, 8192, 50),
            line(0, "AllReduce", 0, 8192, 1), // rank 0 has this number already
            line(0, "AllReduce", 10, 8192, 0),
        );
        let s = dump(&(whole + &others)).summary(4).unwrap();
        assert_eq!((s.kinds.len(), s.kinds[0].operations, s.kinds[0].time_us, s.left_out), (1, 3, 50.0, 4));
    }

    #[test]
    fn wrong_lines_are_named_and_a_cut_end_is_counted() {
        let good = line(0, "AllReduce", 0, 8192, 50);
        for (bad, what) in [
            (good.replace("\"rank\":0", "\"rank\":7"), "rank 7 of 4 ranks"),
            (good.replace("8192", "18446744073709551615"), "at most 2^50"),
            (good.replace("_time_us\":50", "_time_us\":-1"), "`coll_exec_time_us` is -1"),
            ("{\"kind\":\"process\"}\n".into(), "not a line of NCCL Inspector: missing field"),
            ("nonsense\n".into(), "not a line of NCCL Inspector"),
            ("\u{1f}\n".into(), "not a line"),
        ] {
            let e = InspectorDump::default().read(format!("{good}{bad}").as_bytes()).unwrap_err().to_string();
            assert!(e.starts_with("line 2: ") && e.contains(what), "{e}");
        }
        assert!(InspectorDump::default().read(&[0x1f, 0x8b, 8, 0][..]).unwrap_err().to_string().contains("gunzip"));
        let end = InspectorDump::default().read(format!("{good}{}", &good[..40]).as_bytes()).unwrap();
        assert_eq!(end, TraceEnd { lines: 1, cut_off: true });
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = InspectorDump::default().read(&bytes[..]);
        }

        #[test]
        fn a_dump_cut_anywhere_is_read(at in any::<proptest::sample::Index>()) {
            let text = line(0, "AllReduce", 0, 8192, 50).repeat(3);
            let mut d = InspectorDump::default();
            prop_assert!(d.read(&text.as_bytes()[..at.index(text.len())]).is_ok());
        }
    }
}
