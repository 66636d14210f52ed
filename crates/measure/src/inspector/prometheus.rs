//! Reads NCCL Inspector's metrics (`NCCL_INSPECTOR_PROM_DUMP=1`): text for Prometheus, one file `nccl_inspector_metrics_UUID.prom` per GPU, the means of
//! the last interval by collective, range of sizes, communicator and algorithm.
//!
//! * A range of sizes is `4-5MB` (powers of 1024), of one rank's share for AllGather and ReduceScatter. The size itself is bandwidth times time; where
//!   that is within [`SNAP`] of the lower end, as sizes that are powers of two are, it is the lower end.
//! * A GPU's mean time includes waiting. The GPU with the shortest one waited least; its bandwidth is the reading, and it may still be too low.
//! * The communicator's name is `unknown` unless the program names it: communicators of as many ranks and the same name are one here.
//!
//! A file is untrusted: lines, labels and values have limits. Metrics of other names are ignored.

use super::write::NAME_CHARS_MAX;
use super::{InspectedKind, InspectorSummary};
use crate::kinds::{CallKind, TIME_US_MAX};
use crate::plugin_trace::{LINE_BYTES_MAX, RANKS_MAX, SIZE_BYTES_MAX, TraceError};
use std::collections::BTreeMap;
use std::io::{BufRead, Read};
use topology::{Bandwidth, Bytes, Collective};

/// Largest file, bytes. One has some kilobytes.
pub const FILE_BYTES_MAX: u64 = 16 << 20;
/// Limit on series of all files.
pub const SERIES_MAX: usize = 200_000;
/// Largest distance of a computed size to its range's lower end that is taken for rounding.
const SNAP: f64 = 0.01;

const BANDWIDTH: &str = "nccl_bus_bandwidth_gbs";
const TIME: &str = "nccl_collective_exec_time_microseconds";

/// What one series is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Series {
    collective: Collective,
    ranks: u32,
    communicator: String,
    /// Lower and upper end, bytes of one rank's share for AllGather and ReduceScatter.
    range: (u64, u64),
    algorithm: String,
}

/// Means of one GPU.
#[derive(Clone, Copy, Debug, Default)]
struct Means {
    busbw: Option<f64>,
    us: Option<f64>,
}

/// What was read so far.
#[derive(Debug, Default)]
pub struct InspectorMetrics {
    /// By series, then by node and GPU.
    series: BTreeMap<Series, BTreeMap<(String, String), Means>>,
    count: usize,
    left_out: usize,
}

/// True if a text begins as Inspector's metrics do.
pub fn is_metrics(beginning: &str) -> bool {
    beginning.lines().find(|l| !l.trim().is_empty() && !l.starts_with('#')).is_some_and(|l| l.starts_with("nccl_"))
}

impl InspectorMetrics {
    /// Adds the file of one GPU. O(bytes), memory of one line and the series.
    ///
    /// # Errors
    /// A line of Inspector's metrics that cannot be read, or exceeds a limit.
    pub fn read(&mut self, mut input: impl BufRead) -> Result<(), TraceError> {
        let (mut bytes, mut number, mut all) = (Vec::new(), 0u64, 0u64);
        loop {
            bytes.clear();
            let n = input.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut bytes)?;
            number += 1;
            all += n as u64;
            let wrong = |what: String| TraceError::Line { line: number, what };
            match n {
                0 => return Ok(()),
                _ if all > FILE_BYTES_MAX => return Err(wrong(format!("more than {} MiB", FILE_BYTES_MAX >> 20))),
                _ if bytes.last() != Some(&b'\n') && n > LINE_BYTES_MAX => {
                    return Err(wrong(format!("longer than {LINE_BYTES_MAX} bytes")));
                }
                _ => {}
            }
            let text = String::from_utf8_lossy(&bytes);
            let text = text.trim();
            if !text.is_empty() && !text.starts_with('#') {
                // The last line may be cut off: the file is written while it is read.
                let whole = bytes.last() == Some(&b'\n');
                match self.take(text) {
                    Err(_) if !whole => self.left_out += 1,
                    taken => taken.map_err(wrong)?,
                }
            }
        }
    }

    fn take(&mut self, line: &str) -> Result<(), String> {
        let Some((name, rest)) = line.split_once('{') else { return Ok(()) };
        if name != BANDWIDTH && name != TIME {
            self.left_out += usize::from(name.starts_with("nccl_p2p"));
            return Ok(());
        }
        let (labels, value) = labels(rest)?;
        let value = value.split_whitespace().next().unwrap_or("");
        let most = if name == TIME { TIME_US_MAX } else { store::measurement::BUSBW_GB_PER_S_MAX };
        let value: f64 = value.parse().ok().filter(|v| (0.0..=most).contains(v)).ok_or_else(|| {
            format!("`{name}` is `{}`; 0 to {most:e} was expected", value.chars().take(40).collect::<String>())
        })?;
        let label =
            |name: &str| labels.get(name).map(String::as_str).ok_or_else(|| format!("label `{name}` is missing"));
        let ranks: u32 = label("nranks")?
            .parse()
            .ok()
            .filter(|n| (1..=RANKS_MAX).contains(n))
            .ok_or("`nranks` is no number of ranks")?;
        let collective: Option<Collective> = label("collective")?.parse().ok().filter(|c: &Collective| c.is_tuned());
        let size = label("message_size")?;
        let range =
            range(size).ok_or_else(|| format!("`message_size` is `{size}`; a range such as 4-5MB was expected"))?;
        let Some(collective) = collective.filter(|_| ranks > 1 && range.1 > 0) else {
            self.left_out += 1;
            return Ok(());
        };
        let short = |name: &str| label(name).unwrap_or("").chars().take(NAME_CHARS_MAX).collect::<String>();
        let (communicator, algorithm) = (short("comm_name"), short("algo_proto"));
        let gpu = (short("node"), short("gpu"));
        let gpus = self.series.entry(Series { collective, ranks, communicator, range, algorithm }).or_default();
        if !gpus.contains_key(&gpu) {
            if self.count >= SERIES_MAX {
                self.left_out += 1;
                return Ok(());
            }
            self.count += 1;
        }
        let means = gpus.entry(gpu).or_default();
        match name == TIME {
            true => means.us = Some(value),
            false => means.busbw = Some(value),
        }
        Ok(())
    }

    /// The collectives over `gpus` ranks whose metrics all of the ranks' GPUs have. O(series).
    ///
    /// # Errors
    /// A sentence if there is none.
    pub fn summary(&self, gpus: usize) -> Result<InspectorSummary, String> {
        let (mut kinds, mut left_out, mut partial) = (Vec::new(), self.left_out, None);
        for (series, of_gpus) in &self.series {
            match fastest(series, of_gpus) {
                Some((us, busbw, size)) if series.ranks as usize == gpus && of_gpus.len() == gpus => {
                    kinds.push(InspectedKind {
                        collective: series.collective,
                        size,
                        operations: 0,
                        time_us: us,
                        busbw: Bandwidth::from_gb_per_s(busbw),
                        algorithm: algorithm(&series.algorithm),
                    });
                }
                _ => {
                    if series.ranks as usize == gpus && of_gpus.len() < gpus {
                        partial = Some(of_gpus.len());
                    }
                    left_out += 1;
                }
            }
        }
        kinds.sort_by_key(|k| (k.collective, k.size));
        left_out += kinds.len().saturating_sub(super::KINDS_MAX);
        kinds.truncate(super::KINDS_MAX);
        if kinds.is_empty() {
            let largest = self.series.keys().map(|s| s.ranks).max().unwrap_or(0);
            return Err(match partial {
                Some(n) => format!("its metrics are of {n} of {gpus} GPUs; give the files of all hosts"),
                None if largest == 0 => "no collective has a bandwidth and a time".into(),
                None if largest as usize == gpus => "no collective has a time and a size that agree".into(),
                None => format!(
                    "no communicator has {gpus} ranks, one for each of the job's GPUs (the largest has {largest})"
                ),
            });
        }
        Ok(InspectorSummary { kinds, left_out, at_unix_s: None })
    }

    /// The collectives of all communicators; the metrics do not tell the number of calls: each range counts as one. O(series).
    pub fn kinds(&self) -> Vec<CallKind> {
        let kind = |(series, of_gpus): (&Series, &BTreeMap<(String, String), Means>)| {
            let (us, _, size) = fastest(series, of_gpus)?;
            let (collective, ranks) = (series.collective, series.ranks);
            let by_all_ranks = of_gpus.len() == ranks as usize;
            Some(CallKind { collective, size, ranks, calls: 1, time_us: Some(us), by_all_ranks })
        };
        self.series.iter().filter_map(kind).collect()
    }
}

/// Time, bandwidth and whole size by the GPU that waited least. `None` without both means, or if they are far from the range of sizes.
fn fastest(series: &Series, gpus: &BTreeMap<(String, String), Means>) -> Option<(f64, f64, Bytes)> {
    let both = gpus.values().filter_map(|m| Some((m.us.filter(|v| *v > 0.0)?, m.busbw.filter(|v| *v > 0.0)?)));
    let (us, busbw) = both.min_by(|a, b| a.0.total_cmp(&b.0))?;
    let is_share = matches!(series.collective, Collective::AllGather | Collective::ReduceScatter);
    let ranks = if is_share { f64::from(series.ranks) } else { 1.0 };
    let (lower, upper) = (series.range.0 as f64 * ranks, series.range.1 as f64 * ranks);
    // busbw is a geometric mean and time an arithmetic one: with sizes or times that differ much, the product lies outside.
    let size = busbw / series.collective.bus_factor(series.ranks as usize) * us * 1e3;
    let near = |a: f64, b: f64| (a - b).abs() <= SNAP * b;
    let size = match size {
        s if near(s, lower) => lower,
        s if (lower..upper).contains(&s) => s.round(),
        _ => return None,
    };
    (size >= 1.0 && size <= SIZE_BYTES_MAX as f64).then_some((us, busbw, Bytes(size as u64)))
}

/// `Ring_ll128` as algorithm and protocol.
fn algorithm(text: &str) -> Option<(String, String)> {
    let (a, p) = text.rsplit_once('_')?;
    let known = |w: &str| !w.is_empty() && w.len() <= 32 && !w.eq_ignore_ascii_case("unknown");
    (known(a) && known(p)).then(|| super::arm(a, p))
}

/// The ends of a range of sizes, bytes: `4-5MB`, `0B`.
fn range(text: &str) -> Option<(u64, u64)> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "B" => 0,
        "KB" => 10,
        "MB" => 20,
        "GB" => 30,
        "TB" => 40,
        _ => return None,
    };
    let bytes = |n: &str| n.parse::<u64>().ok().filter(|n| *n <= SIZE_BYTES_MAX >> unit).map(|n| n << unit);
    match digits.split_once('-') {
        Some((low, high)) => bytes(low).zip(bytes(high)).filter(|(l, h)| l < h),
        None => bytes(digits).filter(|n| *n == 0).map(|_| (0, 0)),
    }
}

/// The labels of a line after its `{`, and what follows the `}`.
fn labels(text: &str) -> Result<(BTreeMap<&str, String>, &str), String> {
    let mut labels = BTreeMap::new();
    let mut rest = text.trim_start();
    loop {
        if let Some(value) = rest.strip_prefix('}') {
            return Ok((labels, value.trim()));
        }
        let (name, after) = rest.split_once("=\"").ok_or("the labels do not end with `}`")?;
        let (value, after) = quoted(after).ok_or("a label's value has no closing quote")?;
        labels.insert(name.trim(), value);
        rest = after.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
}

/// The text up to the closing quote, without escapes, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    loop {
        match chars.next()? {
            (i, '"') => return Some((value, &text[i + 1..])),
            (_, '\\') => value.push(match chars.next()?.1 {
                'n' => '\n',
                c => c,
            }),
            (_, c) => value.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two series' lines of one GPU.
    pub fn lines(gpu: u32, collective: &str, ranks: u32, size: &str, us: f64, busbw: f64) -> String {
        let labels = format!(
            "version=\"v5.1\",slurm_job_id=\"7\",node=\"n0\",gpu=\"GPU{gpu}\",comm_name=\"a\\\"b,}}\",n_nodes=\"1\",nranks=\"{ranks}\",\
             collective=\"{collective}\",message_size=\"{size}\",algo_proto=\"Ring_ll128\""
        );
        format!("{BANDWIDTH}{{{labels}}} {busbw:.6}\n{TIME}{{{labels}}} {us:.6} 1748030377748\n")
    }

    fn read(text: &str) -> InspectorMetrics {
        let mut m = InspectorMetrics::default();
        m.read(text.as_bytes()).unwrap();
        m
    }

    #[test]
    fn the_gpu_that_waited_least_gives_the_reading_and_the_size_is_bandwidth_times_time() {
        // 4 MiB by 3/2 in 100 us.
        let (size, us) = (4u64 << 20, 100.0);
        let text: String = (0..4)
            .map(|g| {
                let us = us + 20.0 * f64::from(g);
                lines(g, "AllReduce", 4, "4-5MB", us, size as f64 * 1.5 / us / 1e3)
            })
            .collect();
        let s = read(&format!("# HELP x\n{text}other_metric{{a=\"b\"}} 1\nnccl_p2p_bus_bandwidth_gbs{{}} 1\n"))
            .summary(4)
            .unwrap();
        assert_eq!((s.kinds.len(), s.left_out), (1, 1));
        let k = &s.kinds[0];
        assert_eq!((k.collective, k.size, k.time_us), (Collective::AllReduce, Bytes(size), 100.0));
        assert_eq!(k.algorithm, Some(("RING".into(), "LL128".into())));
        assert!((k.busbw.gb_per_s() - 62.9).abs() < 0.1, "{k:?}");
    }

    #[test]
    fn an_algorithm_of_two_words_is_read_as_the_plugins_traces_write_it() {
        for (text, expected) in [("Ring_ll128", ("RING", "LL128")), ("NVLS_TREE_SIMPLE", ("NVLSTREE", "SIMPLE"))] {
            assert_eq!(algorithm(text), Some((expected.0.into(), expected.1.into())));
        }
        assert_eq!(algorithm("unknown_unknown"), None);
    }

    #[test]
    fn the_share_of_one_rank_becomes_the_whole_buffer() {
        // A share of 3.3 MiB per rank, 4 ranks.
        let whole = 4.0 * 3.3 * f64::from(1 << 20);
        let text: String =
            (0..4).map(|g| lines(g, "AllGather", 4, "3-4MB", 200.0, whole * 0.75 / 200.0 / 1e3)).collect();
        let k = read(&text).summary(4).unwrap().kinds.remove(0);
        assert!((k.size.as_f64() - whole).abs() / whole < 1e-5, "{k:?}");
    }

    #[test]
    fn some_gpus_or_other_communicators_are_no_reading() {
        let of = |n: u32| (0..n).map(|g| lines(g, "AllReduce", 4, "4-5MB", 100.0, 62.91456)).collect::<String>();
        let e = |text: &str, gpus| read(text).summary(gpus).unwrap_err();
        assert_eq!(e(&of(3), 4), "its metrics are of 3 of 4 GPUs; give the files of all hosts");
        assert!(e(&of(4), 8).contains("no communicator has 8 ranks"));
        assert_eq!(e("", 4), "no collective has a bandwidth and a time");
        // Means of sizes or times that differ: no size fits.
        let mixed: String = (0..4).map(|g| lines(g, "AllReduce", 4, "4-5MB", 100.0, 500.0)).collect();
        assert_eq!(e(&mixed, 4), "no collective has a time and a size that agree");
        assert_eq!(read(&of(3)).kinds().len(), 1);
    }

    #[test]
    fn wrong_lines_are_named_and_a_cut_end_is_left_out() {
        let good = lines(0, "AllReduce", 4, "4-5MB", 100.0, 62.9);
        for (from, to, what) in [
            ("nranks=\"4\"", "nranks=\"-4\"", "`nranks` is no number"),
            ("nranks=\"4\",", "", "label `nranks` is missing"),
            ("4-5MB", "5-4MB", "a range such as 4-5MB was expected"),
            ("4-5MB", "999999999999-9999999999999TB", "a range such as"),
            ("} 62.900000", "} NaN", "is `NaN`; 0 to"),
            ("} 62.9", "} -1", "is `-1"),
            ("ll128\"}", "ll128}", "no closing quote"),
        ] {
            let e = InspectorMetrics::default().read(good.replacen(from, to, 1).as_bytes()).unwrap_err().to_string();
            assert!(e.starts_with("line 1: ") && e.contains(what), "{to}: {e}");
        }
        let cut = &good[..good.len() - 40];
        assert!(read(cut).summary(4).is_err());
        assert!(is_metrics(&good) && is_metrics(&format!("# TYPE\n{good}")) && !is_metrics("{\"header\":1}"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "\\PC{0,200}", with in 0usize..2) {
            let text = if with == 0 { text } else { format!("{BANDWIDTH}{{{text}") };
            let _ = InspectorMetrics::default().read(text.as_bytes());
        }

        #[test]
        fn a_file_cut_anywhere_is_read(at in any::<proptest::sample::Index>()) {
            let text = lines(0, "AllReduce", 4, "4-5MB", 100.0, 62.9);
            prop_assert!(InspectorMetrics::default().read(&text.as_bytes()[..at.index(text.len())]).is_ok());
        }
    }
}
