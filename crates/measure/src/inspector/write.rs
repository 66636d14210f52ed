//! Writes the plugin's trace in the forms of NCCL Inspector, so that the programs and dashboards made for it show a job that ran with linkwise: JSON, one
//! line per collective, and metrics for Prometheus. Algorithm, protocol and channels are told, too.
//!
//! A collective counts if the trace has its GPU time (`linkwise run --kernel-times`). Its sizes are Inspector's: one rank's share for AllGather and
//! ReduceScatter. `metadata.written_by` names linkwise, and `simulated` marks times that a test gave.

use crate::kinds::TIME_US_MAX;
use crate::plugin_trace::{self, TraceEnd, TraceError, TraceLine};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use topology::Collective;

/// The format that the lines have.
const FORMAT: &str = "v4.2";
/// The version that the metrics have.
const METRICS_FORMAT: &str = "v5.1";
/// Limit on communicators of a process.
const COMMUNICATORS_MAX: usize = 100_000;
/// Limit on series of a process.
const SERIES_MAX: usize = 10_000;
/// Longest names of hosts, algorithms and protocols.
pub(super) const NAME_CHARS_MAX: usize = 255;

/// What Inspector writes for a name that it does not know.
const UNKNOWN: &str = "unknown";

/// A process of the job, as its trace tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TracedProcess {
    /// The host's name, or the hash that the plugin gives it.
    pub host: String,
    pub pid: u64,
    /// The process's number on its host.
    pub local_rank: Option<u32>,
    /// A test gave the times.
    pub is_simulated: bool,
}

impl TracedProcess {
    /// The process's GPU as Inspector names it: `GPU0`; by the process's number if the trace does not tell.
    pub fn gpu(&self) -> String {
        self.local_rank.map_or_else(|| format!("pid{}", self.pid), |n| format!("GPU{n}"))
    }
}

/// What was written of one trace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Written {
    pub process: TracedProcess,
    /// Collectives written.
    pub lines: usize,
    /// Collectives without a GPU time, or of a kind that Inspector does not have.
    pub left_out: usize,
    pub end: TraceEnd,
    /// The sums of the process's metrics.
    pub metrics: Metrics,
}

/// One collective as Inspector tells it.
struct Perf {
    collective: Collective,
    sequence: u64,
    /// One rank's share for AllGather and ReduceScatter.
    size: u64,
    us: f64,
    algbw: f64,
    busbw: f64,
    algorithm: &'static str,
    protocol: &'static str,
}

/// The values of a metric's labels that differ within a process: nodes, ranks, collective, lower end of the range of sizes, algorithm and protocol.
type Labels = (u32, u32, &'static str, u64, String);

/// Sums of a series.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sums {
    calls: usize,
    us: f64,
    log_busbw: f64,
}

/// The metrics of one GPU, as sums: a GPU may have had several processes (a restart), and Prometheus refuses a file that has a series twice.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metrics(BTreeMap<Labels, Sums>);

impl Metrics {
    fn sums(&mut self, labels: Labels) -> Option<&mut Sums> {
        let has_room = self.0.len() < SERIES_MAX || self.0.contains_key(&labels);
        has_room.then(|| self.0.entry(labels).or_default())
    }

    fn add(&mut self, p: &Perf, ranks: u32, nodes: u32) {
        let algorithm = format!("{}_{}", p.algorithm, p.protocol);
        if let Some(sums) = self.sums((nodes.max(1), ranks, nccls_name(p.collective), range(p.size).0, algorithm)) {
            sums.calls += 1;
            sums.us += p.us;
            sums.log_busbw += p.busbw.ln();
        }
    }

    /// Adds another process of the same GPU.
    pub fn merge(&mut self, other: &Metrics) {
        for (labels, more) in &other.0 {
            if let Some(sums) = self.sums(labels.clone()) {
                sums.calls += more.calls;
                sums.us += more.us;
                sums.log_busbw += more.log_busbw;
            }
        }
    }

    /// Text for Prometheus: two lines per series. `slurm_job` is `unknown` if none is given, as Inspector writes it.
    pub fn text(&self, process: &TracedProcess, slurm_job: Option<&str>) -> String {
        let mut out = String::new();
        let of = format!(
            "version=\"{METRICS_FORMAT}\",slurm_job_id=\"{}\",node=\"{}\",gpu=\"{}\",comm_name=\"unknown\"",
            escaped(slurm_job.unwrap_or(UNKNOWN)),
            escaped(&process.host),
            process.gpu()
        );
        for ((nodes, ranks, collective, size, algorithm), m) in &self.0 {
            let labels = format!(
                "{of},n_nodes=\"{nodes}\",nranks=\"{ranks}\",collective=\"{collective}\",message_size=\"{}\",algo_proto=\"{algorithm}\"",
                range(*size).1
            );
            let (busbw, us) = ((m.log_busbw / m.calls as f64).exp(), m.us / m.calls as f64);
            out += &format!(
                "nccl_bus_bandwidth_gbs{{{labels}}} {busbw}\nnccl_collective_exec_time_microseconds{{{labels}}} {us}\n"
            );
        }
        out
    }

    /// True without a series.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Writes one process's trace as Inspector's JSON lines to `out`, and returns its metrics. `dumped_unix_us`: when the trace was written, microseconds
/// since 1970. O(bytes), memory of one line and the communicators.
///
/// # Errors
/// As [`plugin_trace::read`]; `out` cannot be written.
pub fn write(input: impl BufRead, dumped_unix_us: u64, by: &str, out: &mut impl Write) -> Result<Written, TraceError> {
    let mut written = Written::default();
    let mut comms: BTreeMap<String, (u32, u32)> = BTreeMap::new();
    let mut failed = None;
    let end = plugin_trace::read(input, |line| {
        match line.kind.as_str() {
            "process" => {
                let host = line.host_name.clone().filter(|h| !h.is_empty()).unwrap_or_else(|| line.host.clone());
                let host = host.chars().take(NAME_CHARS_MAX).collect();
                let is_simulated = line.scripted || written.process.is_simulated;
                written.process = TracedProcess { host, pid: line.pid, local_rank: line.local_rank, is_simulated };
            }
            "comm" if comms.len() < COMMUNICATORS_MAX && line.comm.len() <= 64 => {
                comms.insert(line.comm.clone(), (line.ranks, line.nodes));
            }
            "launched" => {
                let shape = comms.get(&line.comm).copied().filter(|(ranks, _)| *ranks > 1);
                match shape.and_then(|(ranks, nodes)| Some((ranks, nodes, perf(&line, ranks)?))) {
                    None => written.left_out += 1,
                    Some((ranks, nodes, p)) => {
                        let text = json_line(&line, &written.process, &p, (ranks, nodes), dumped_unix_us, by);
                        if failed.is_none() {
                            failed = writeln!(out, "{text}").err();
                        }
                        written.lines += 1;
                        written.metrics.add(&p, ranks, nodes);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    if let Some(e) = failed {
        return Err(TraceError::Io(e));
    }
    written.end = end;
    Ok(written)
}

/// The collective of a `launched` line; `None` without a time or for kinds that Inspector has no bandwidth for.
fn perf(line: &TraceLine, ranks: u32) -> Option<Perf> {
    let collective: Collective = line.collective.parse().ok().filter(|c: &Collective| c.is_tuned())?;
    let us = line.kernel_us.filter(|us| *us > 0.0 && *us <= TIME_US_MAX)?;
    let (sequence, whole) = (line.sequence.or(line.call)?, line.size_bytes);
    if whole == 0 || line.rank < 0 || line.rank >= i64::from(ranks) || line.arm.len() > NAME_CHARS_MAX {
        return None;
    }
    let is_share = matches!(collective, Collective::AllGather | Collective::ReduceScatter);
    let size = if is_share { whole / u64::from(ranks) } else { whole };
    let algbw = whole as f64 / us / 1e3;
    let busbw = algbw * collective.bus_factor(ranks as usize);
    if size == 0 || !(busbw > 0.0 && busbw <= store::measurement::BUSBW_GB_PER_S_MAX) {
        return None;
    }
    let (algorithm, protocol) = line.arm.split_once('/').unwrap_or_default();
    let (algorithm, protocol) = (nccls_algorithm(algorithm), nccls_protocol(protocol.split('@').next().unwrap_or("")));
    Some(Perf { collective, sequence, size, us, algbw, busbw, algorithm, protocol })
}

/// The collective as NCCL and Inspector write it (`ncclFuncToString`). NVIDIA's exporter and dashboard compare these words as they are.
fn nccls_name(collective: Collective) -> &'static str {
    match collective {
        Collective::AllReduce => "AllReduce",
        Collective::AllGather => "AllGather",
        Collective::ReduceScatter => "ReduceScatter",
        Collective::Broadcast => "Broadcast",
        Collective::Reduce => "Reduce",
        Collective::AllToAll => "All2All",
        Collective::SendRecv => "SendRecv",
    }
}

/// An algorithm of the trace as NCCL tells it to a profiler (`ncclAlgoToString`): the trace has no underscores.
fn nccls_algorithm(word: &str) -> &'static str {
    match word {
        "TREE" => "TREE",
        "RING" => "RING",
        "COLLNETDIRECT" => "COLLNET_DIRECT",
        "COLLNETCHAIN" => "COLLNET_CHAIN",
        "NVLS" => "NVLS",
        "NVLSTREE" => "NVLS_TREE",
        "PAT" => "PAT",
        _ => UNKNOWN,
    }
}

/// A protocol as NCCL tells it to a profiler (`ncclProtoToString`).
fn nccls_protocol(word: &str) -> &'static str {
    match word {
        "LL" => "LL",
        "LL128" => "LL128",
        "SIMPLE" => "SIMPLE",
        _ => UNKNOWN,
    }
}

fn json_line(
    line: &TraceLine,
    process: &TracedProcess,
    p: &Perf,
    (ranks, nodes): (u32, u32),
    dumped_unix_us: u64,
    by: &str,
) -> String {
    json!({
        "header": {"id": format!("0x{}", line.comm), "comm_name": UNKNOWN, "rank": line.rank, "n_ranks": ranks, "nnodes": nodes.max(1)},
        "metadata": {
            "inspector_output_format_version": FORMAT,
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": dumped_unix_us,
            "hostname": process.host,
            "pid": process.pid,
            "written_by": by,
            "simulated": process.is_simulated,
        },
        "coll_perf": {
            "coll": nccls_name(p.collective),
            "coll_algo": p.algorithm,
            "coll_proto": p.protocol,
            "coll_channels": line.channels,
            "coll_sn": p.sequence,
            "coll_msg_size_bytes": p.size,
            "coll_exec_time_us": p.us.round().max(1.0) as u64,
            "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": p.algbw,
            "coll_busbw_gbs": p.busbw,
        },
    })
    .to_string()
}

/// The range of a size: its lower end, bytes, and the words that Inspector writes: `4-5MB`.
fn range(size: u64) -> (u64, String) {
    let unit = (63 - size.max(1).leading_zeros()).min(49) / 10;
    let low = size >> (10 * unit);
    (low << (10 * unit), format!("{low}-{}{}", low + 1, ["B", "KB", "MB", "GB", "TB"][unit as usize]))
}

/// A label's value in Prometheus' text.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::{InspectorDump, prometheus};
    use super::*;
    use topology::Bytes;

    /// A trace of one rank of four: 3 AllReduce of 4 MiB and 3 AllGather of 16 MiB; this rank waits.
    fn trace(rank: u32) -> String {
        let mut out = format!(
            "{{\"kind\":\"process\",\"host\":\"00ab\",\"host_name\":\"n0\",\"pid\":{},\"local_rank\":{rank}}}\n\
             {{\"kind\":\"comm\",\"comm\":\"0a\",\"rank\":{rank},\"ranks\":4,\"nodes\":1}}\n",
            100 + rank
        );
        for i in 0..3 {
            for (n, collective, bytes, us) in [(0, "AllReduce", 4 << 20, 100.0), (10, "AllGather", 16 << 20, 300.0)] {
                let us = us + 50.0 * f64::from(rank);
                out += &format!(
                    "{{\"kind\":\"launched\",\"comm\":\"0a\",\"rank\":{rank},\"collective\":\"{collective}\",\"size_bytes\":{bytes},\
                     \"call\":{i},\"sequence\":{},\"arm\":\"RING/LL128\",\"channels\":8,\"kernel_us\":{us}}}\n",
                    n + i
                );
            }
        }
        out + "{\"kind\":\"launched\",\"comm\":\"0a\",\"rank\":0,\"collective\":\"AllReduce\",\"size_bytes\":8,\"call\":9,\"kernel_us\":null}\n"
    }

    /// What is written is read back, in both forms, as what the trace had.
    #[test]
    fn what_is_written_is_what_inspectors_readers_read() {
        let (mut dump, mut metrics) = (InspectorDump::default(), prometheus::InspectorMetrics::default());
        for rank in 0..4 {
            let mut out = Vec::new();
            let w = write(trace(rank).as_bytes(), 1_748_030_377_748_202, "linkwise 0", &mut out).unwrap();
            assert_eq!(
                (w.lines, w.left_out, w.process.host.as_str(), w.process.pid),
                (6, 1, "n0", 100 + u64::from(rank))
            );
            dump.read(&out[..]).unwrap();
            metrics.read(w.metrics.text(&w.process, None).as_bytes()).unwrap();
        }
        for summary in [dump.summary(4).unwrap(), metrics.summary(4).unwrap()] {
            let mut brief: Vec<_> = summary.kinds.iter().map(|k| (k.size, k.collective, k.time_us)).collect();
            brief.sort_by_key(|k| k.0);
            let expected =
                [(Bytes(4 << 20), Collective::AllReduce, 100.0), (Bytes(16 << 20), Collective::AllGather, 300.0)];
            assert_eq!(brief, expected);
            assert!(summary.kinds.iter().all(|k| k.algorithm == Some(("RING".into(), "LL128".into()))));
        }
    }

    #[test]
    fn sizes_have_the_ranges_of_inspector() {
        for (size, text) in [
            (1, "1-2B"),
            (1023, "1023-1024B"),
            (1024, "1-2KB"),
            (4 << 20, "4-5MB"),
            ((5 << 20) - 1, "4-5MB"),
            (1 << 30, "1-2GB"),
            (3 << 40, "3-4TB"),
            (1 << 50, "1024-1025TB"),
        ] {
            assert_eq!(range(size).1, text);
        }
    }

    /// Facts of NVIDIA/nccl at 5067397, plugins/profiler/inspector: `coll_types` of exporter/example/perf_summary_exporter.py, `collective=` of
    /// grafana/nccl-inspector-job-performance-template.json, the labels of inspector_prom.cc in their order; src/collectives.cc, `ncclAlgoToString`
    /// and `ncclProtoToString`.
    const EXPORTERS_COLLECTIVES: [&str; 4] = ["AllReduce", "AllGather", "ReduceScatter", "Broadcast"];
    const DASHBOARDS_COLLECTIVES: [&str; 3] = ["AllGather", "AllReduce", "ReduceScatter"];
    const LABELS: [&str; 10] = [
        "version",
        "slurm_job_id",
        "node",
        "gpu",
        "comm_name",
        "n_nodes",
        "nranks",
        "collective",
        "message_size",
        "algo_proto",
    ];
    const ALGORITHMS: [&str; 7] = ["TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"];
    const PROTOCOLS: [&str; 3] = ["LL", "LL128", "SIMPLE"];

    fn one_call(collective: &str, arm: &str) -> String {
        format!(
            "{{\"kind\":\"process\",\"host\":\"00ab\",\"host_name\":\"n0\",\"pid\":1,\"local_rank\":0}}\n\
             {{\"kind\":\"comm\",\"comm\":\"0a\",\"rank\":0,\"ranks\":4,\"nodes\":2}}\n\
             {{\"kind\":\"launched\",\"comm\":\"0a\",\"rank\":0,\"collective\":\"{collective}\",\"size_bytes\":4194304,\"call\":1,\"arm\":\"{arm}\",\
             \"kernel_us\":100}}\n"
        )
    }

    #[test]
    fn names_are_those_that_nvidias_exporter_and_dashboard_ask_for() {
        let of = |collective: &str, arm: &str| {
            let mut out = Vec::new();
            let w = write(one_call(collective, arm).as_bytes(), 1, "linkwise 0", &mut out).unwrap();
            let line: serde_json::Value = serde_json::from_slice(&out).unwrap();
            (line, w.metrics.text(&w.process, Some("4711")))
        };
        // The trace has the words in capitals.
        for name in EXPORTERS_COLLECTIVES {
            let (line, metrics) = of(&name.to_uppercase(), "RING/LL128");
            assert_eq!(line["coll_perf"]["coll"], name);
            assert!(metrics.contains(&format!(",collective=\"{name}\",")), "{metrics}");
        }
        assert!(DASHBOARDS_COLLECTIVES.iter().all(|name| EXPORTERS_COLLECTIVES.contains(name)));
        for (algorithm, protocol) in ALGORITHMS.iter().flat_map(|a| PROTOCOLS.map(|p| (*a, p))) {
            let (line, metrics) = of("ALLREDUCE", &format!("{}/{protocol}@8", algorithm.replace('_', "")));
            assert_eq!(
                (&line["coll_perf"]["coll_algo"], &line["coll_perf"]["coll_proto"]),
                (&json!(algorithm), &json!(protocol))
            );
            assert!(metrics.contains(&format!("algo_proto=\"{algorithm}_{protocol}\"}}")), "{metrics}");
        }
        let (line, metrics) = of("ALLREDUCE", "?/?");
        assert_eq!(line["coll_perf"]["coll_algo"], "unknown");
        assert!(metrics.contains("slurm_job_id=\"4711\"") && metrics.contains("algo_proto=\"unknown_unknown\""));
        for line in metrics.lines() {
            let labels = line.split_once('{').unwrap().1.split_once('}').unwrap().0;
            let names: Vec<_> = labels.split(',').map(|l| l.split_once('=').unwrap().0).collect();
            assert_eq!(names, LABELS);
        }
    }

    #[test]
    fn two_processes_of_a_gpu_are_one_series_with_the_mean_of_all_calls() {
        let of = |us: u32| {
            let text = one_call("ALLREDUCE", "RING/LL").replace("\"kernel_us\":100", &format!("\"kernel_us\":{us}"));
            write(text.as_bytes(), 1, "linkwise 0", &mut Vec::new()).unwrap()
        };
        let (mut before, after) = (of(100), of(300));
        before.metrics.merge(&after.metrics);
        before.metrics.merge(&after.metrics);
        let text = before.metrics.text(&before.process, None);
        assert_eq!(text.lines().count(), 2, "{text}");
        let value = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap();
        let [busbw, us] = [0, 1].map(|n| value(text.lines().nth(n).unwrap()));
        assert!((us - 700.0 / 3.0).abs() < 1e-9, "{text}");
        // The geometric mean, as Inspector's: 4 MiB by 3/2 in 100, 300 and 300 us.
        let geometric = f64::from(4 << 20) * 1.5 / 1e3 / (100.0f64 * 300.0 * 300.0).cbrt();
        assert!((busbw - geometric).abs() < 1e-9, "{text}");
    }
}
