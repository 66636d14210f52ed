//! `linkwise tune report TRACE...`: what the plugin saw and did, from the traces of its processes.

use crate::failure::Failure;
use crate::report;
use ::tune::{Arm, Collective};
use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Most trace files of one report: one per process of the job.
const FILES_MAX: usize = 8192;
/// Most bytes of one of them; the plugin's own limit is 64 MiB unless told otherwise.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Most communicators, and most (communicator, collective, bucket) of a report.
const KEYS_MAX: usize = 100_000;
/// Most times kept per arm of a key.
const TIMES_MAX: usize = 100_000;

/// Arguments of `linkwise tune report`.
#[derive(clap::Args)]
#[command(long_about = "What the plugin saw and did, from the traces of its processes.

Per collective, size and communicator shape: what AUTO would choose, what was chosen and why, the medians of both, and what that saved. Times \
are those that decided (a step, an interval, or the GPU time of the kernel: see the source column); kernel times stand beside them.")]
pub struct Args {
    /// Trace files, or folders of them
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// How to print
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Tables for people
    Text,
    /// One JSON object
    Json,
    /// A page
    Html,
}

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    let report = Report::read(&args.traces)?;
    if report.processes.is_empty() {
        return Err(Failure::impossible(
            "these files hold no trace of the plugin; give the folder that LINKWISE_TRACE named",
        ));
    }
    match args.format {
        Format::Text => print!("{}", text(&report)),
        Format::Json => println!("{}", serde_json::to_string_pretty(&report).map_err(Failure::impossible)?),
        Format::Html => println!("{}", html(&report)?),
    }
    Ok(())
}

/// A line of a trace. Fields that a kind does not have are absent.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Line {
    kind: String,
    comm: String,
    rank: i64,
    ranks: u32,
    nodes: u32,
    collective: String,
    size_bytes: u64,
    bucket: u8,
    auto: String,
    arm: String,
    call: Option<u64>,
    epoch: u64,
    source: String,
    time_us: f64,
    kernel_us: Option<f64>,
    because: String,
    why: String,
    mode: String,
    policy: String,
    pid: u64,
    host: String,
    tuner_api: u32,
    profiler_api: u32,
    waits: u64,
    longest_wait_us: u64,
    lost: u64,
}

/// A process that loaded the plugin.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Process {
    /// Its host, as a hash.
    pub host: String,
    /// Its number.
    pub pid: u64,
    /// Its mode.
    pub mode: String,
    /// Its policy.
    pub policy: String,
    /// The tuner interface that NCCL used.
    pub tuner_api: u32,
    /// The profiler interface, or 0.
    pub profiler_api: u32,
}

/// Calls of one collective and size in communicators of one shape.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The collective.
    pub collective: String,
    /// The middle of the size bucket.
    pub size_bytes: u64,
    /// Ranks of the communicator.
    pub ranks: u32,
    /// Its nodes.
    pub nodes: u32,
    /// Calls, counted on one rank of each communicator.
    pub calls: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// What AUTO chose most often.
    pub auto: String,
    /// The arm in use at the end, or AUTO.
    pub arm: String,
    /// Why.
    pub because: String,
    /// What the times are.
    pub source: String,
    /// Times that decided, of both arms together.
    pub samples: usize,
    /// Median time at AUTO, microseconds.
    pub auto_us: Option<f64>,
    /// Median time with the arm, microseconds.
    pub arm_us: Option<f64>,
    /// Relative spread (standard deviation over mean) of the arm's times.
    pub arm_spread: Option<f64>,
    /// Median GPU time of the kernels at AUTO, least of the ranks, microseconds.
    pub auto_kernel_us: Option<f64>,
    /// The same with the arm.
    pub arm_kernel_us: Option<f64>,
    /// Time saved (below 0: lost) over all calls against AUTO, exploration included, milliseconds.
    pub saved_ms: Option<f64>,
    /// Calls with the arm until what exploration cost is won back.
    pub break_even_calls: Option<u64>,
}

/// What traces say.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// Processes that loaded the plugin.
    pub processes: Vec<Process>,
    /// What they called.
    pub rows: Vec<Row>,
    /// Communicators that stayed at AUTO, and why.
    pub never: Vec<String>,
    /// How often ranks waited for a verdict.
    pub waits: u64,
    /// The longest wait, milliseconds.
    pub longest_wait_ms: f64,
    /// Calls whose record was lost.
    pub lost: u64,
    /// Epochs that came into force.
    pub epochs: u64,
    /// Lines that are not of a trace.
    pub unreadable_lines: u64,
}

#[derive(Default)]
struct Key {
    ranks: u32,
    nodes: u32,
    rank: i64,
    calls: u64,
    bytes: u64,
    autos: BTreeMap<String, u64>,
    arm_calls: BTreeMap<String, u64>,
    times: BTreeMap<String, Vec<f64>>,
    source: String,
    finding: Option<(u64, String, String)>,
    kernels: BTreeMap<u64, (String, f64)>,
}

type Keys = BTreeMap<(String, String, u8), Key>;

impl Report {
    /// From files and folders.
    pub fn read(paths: &[PathBuf]) -> Result<Self, Failure> {
        let mut report = Report::default();
        let mut keys = Keys::new();
        let mut comms: BTreeMap<String, (u32, u32)> = BTreeMap::new();
        for path in files(paths)? {
            let file = File::open(&path).map_err(|e| Failure::file("read", &path, e))?;
            let mut lines = BufReader::new(file.take(FILE_BYTES_MAX));
            let mut bytes = Vec::new();
            loop {
                bytes.clear();
                let n = lines.read_until(b'\n', &mut bytes).map_err(|e| Failure::file("read", &path, e))?;
                if n == 0 {
                    break;
                }
                match serde_json::from_slice::<Line>(&bytes) {
                    Ok(line) => report.take(line, &mut keys, &mut comms),
                    Err(_) => report.unreadable_lines += 1,
                }
            }
        }
        for ((comm, ..), key) in &mut keys {
            (key.ranks, key.nodes) = comms.get(comm).copied().unwrap_or_default();
        }
        report.rows = rows(keys);
        Ok(report)
    }

    fn take(&mut self, line: Line, keys: &mut Keys, comms: &mut BTreeMap<String, (u32, u32)>) {
        let collective = line.collective.clone();
        match line.kind.as_str() {
            "process" => self.processes.push(Process {
                host: report::one_line(&line.host, 32),
                pid: line.pid,
                mode: report::one_line(&line.mode, 32),
                policy: report::one_line(&line.policy, 64),
                tuner_api: line.tuner_api,
                profiler_api: line.profiler_api,
            }),
            "comm" if comms.len() < KEYS_MAX => {
                comms.insert(line.comm, (line.ranks, line.nodes));
            }
            "never" => self.never.push(report::one_line(&format!("communicator {}: {}", line.comm, line.why), 300)),
            "epoch" => self.epochs += 1,
            "end" => {
                self.waits += line.waits;
                self.longest_wait_ms = self.longest_wait_ms.max(line.longest_wait_us as f64 / 1e3);
                self.lost += line.lost;
            }
            "call" => {
                let bucket = ::tune::bucket::bucket(line.size_bytes);
                let Some(key) = entry(keys, &line.comm, &collective, bucket) else { return };
                // Every rank writes its calls; one of them counts.
                if line.rank < key.rank {
                    *key = Key { rank: line.rank, times: std::mem::take(&mut key.times), ..std::mem::take(key) };
                    (key.calls, key.bytes) = (0, 0);
                    key.autos.clear();
                    key.arm_calls.clear();
                }
                if line.rank == key.rank && line.arm.parse::<Arm>().is_ok() && line.auto.parse::<Arm>().is_ok() {
                    key.calls += 1;
                    key.bytes = key.bytes.saturating_add(line.size_bytes);
                    *key.autos.entry(line.auto).or_default() += 1;
                    *key.arm_calls.entry(line.arm).or_default() += 1;
                }
            }
            "sample" => {
                let (time, arm) = (line.time_us, line.arm.clone());
                let Some(key) = entry(keys, &line.comm, &collective, line.bucket)
                    .filter(|_| arm.parse::<Arm>().is_ok() && time.is_finite() && time > 0.0)
                else {
                    return;
                };
                key.source = report::one_line(&line.source, 16);
                let times = key.times.entry(arm).or_default();
                if times.len() < TIMES_MAX {
                    times.push(time);
                }
            }
            "finding" => {
                let found = (line.epoch, line.arm.clone(), report::one_line(&line.because, 200));
                let Some(key) =
                    entry(keys, &line.comm, &collective, line.bucket).filter(|_| found.1.parse::<Arm>().is_ok())
                else {
                    return;
                };
                if key.finding.as_ref().is_none_or(|f| f.0 <= found.0) {
                    key.finding = Some(found);
                }
            }
            "launched" => {
                let (Some(call), Some(us)) = (line.call, line.kernel_us.filter(|t| t.is_finite() && *t > 0.0)) else {
                    return;
                };
                let arm = line.arm.clone();
                let Some(key) = entry(keys, &line.comm, &collective, line.bucket)
                    .filter(|k| k.kernels.len() < TIMES_MAX && arm.parse::<Arm>().is_ok())
                else {
                    return;
                };
                // The last rank to arrive waits for nobody.
                let entry = key.kernels.entry(call).or_insert((arm, us));
                entry.1 = entry.1.min(us);
            }
            "" => self.unreadable_lines += 1,
            _ => {} // of a newer plugin
        }
    }
}

/// The place of a key, unless it is none or there are too many.
fn entry<'a>(keys: &'a mut Keys, comm: &str, collective: &str, bucket: u8) -> Option<&'a mut Key> {
    let id = (comm.to_string(), collective.to_string(), bucket);
    let known = collective.parse::<Collective>().is_ok() && (keys.len() < KEYS_MAX || keys.contains_key(&id));
    known.then(|| keys.entry(id).or_insert_with(|| Key { rank: i64::MAX, ..Key::default() }))
}

/// Files as they are; of folders what is called as traces are.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut all = Vec::new();
    for path in paths {
        if path.is_dir() {
            let entries = std::fs::read_dir(path).map_err(|e| Failure::file("read", path, e))?;
            let is_trace = |p: &Path| p.extension().is_some_and(|e| e == "jsonl");
            all.extend(entries.flatten().map(|e| e.path()).filter(|p| is_trace(p)));
        } else {
            all.push(path.clone());
        }
        if all.len() > FILES_MAX {
            return Err(Failure::input(format!("more than {FILES_MAX} trace files; give fewer")));
        }
    }
    all.sort();
    Ok(all)
}

fn median(times: &[f64]) -> Option<f64> {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

fn spread(times: &[f64]) -> Option<f64> {
    let n = times.len() as f64;
    let mean = times.iter().sum::<f64>() / n;
    let variance = times.iter().map(|t| (t - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (times.len() > 1).then(|| variance.sqrt() / mean)
}

fn rows(keys: Keys) -> Vec<Row> {
    let mut rows: Vec<Row> = keys.into_iter().map(|((_, collective, bucket), k)| row(collective, bucket, &k)).collect();
    rows.retain(|r| r.calls > 0);
    rows.sort_by(|a, b| {
        b.bytes.cmp(&a.bytes).then_with(|| (&a.collective, a.size_bytes).cmp(&(&b.collective, b.size_bytes)))
    });
    rows
}

fn row(collective: String, bucket: u8, k: &Key) -> Row {
    let most = |m: &BTreeMap<String, u64>| m.iter().max_by_key(|(_, n)| **n).map(|(a, _)| a.clone());
    let auto = most(&k.autos).unwrap_or_else(|| "AUTO".into());
    let (arm, because) = match &k.finding {
        Some((_, arm, because)) => (arm.clone(), because.clone()),
        None => (most(&k.arm_calls).unwrap_or_else(|| "AUTO".into()), String::new()),
    };
    let empty = Vec::new();
    let of = |arm: &str| k.times.get(arm).unwrap_or(&empty);
    let (auto_us, arm_us) = (median(of("AUTO")), median(of(&arm)));
    // What all calls took against what they would have taken at AUTO, each arm by its own median.
    let mut saved = 0.0;
    let mut spent = 0.0;
    for (a, n) in &k.arm_calls {
        if let (Some(base), Some(t)) = (auto_us, median(of(a))) {
            let gain = (base - t) * *n as f64;
            saved += gain;
            if *a != arm {
                spent -= gain.min(0.0);
            }
        }
    }
    let per_call = auto_us.zip(arm_us).map(|(a, b)| a - b).filter(|g| *g > 0.0);
    let kernels = |wanted: &dyn Fn(&str) -> bool| -> Option<f64> {
        median(&k.kernels.values().filter(|(a, _)| wanted(a)).map(|(_, t)| *t).collect::<Vec<_>>())
    };
    Row {
        collective,
        size_bytes: ::tune::bucket::middle(bucket),
        ranks: k.ranks,
        nodes: k.nodes,
        calls: k.calls,
        bytes: k.bytes,
        samples: of("AUTO").len() + if arm == "AUTO" { 0 } else { of(&arm).len() },
        auto_us,
        arm_us,
        arm_spread: spread(of(&arm)),
        auto_kernel_us: kernels(&|a| a == auto),
        arm_kernel_us: kernels(&|a| if arm == "AUTO" { a == auto } else { arm.starts_with(a) }),
        saved_ms: auto_us.map(|_| saved / 1e3),
        break_even_calls: per_call.map(|g| (spent / g).ceil() as u64),
        auto,
        arm,
        because,
        source: k.source.clone(),
    }
}

fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.iter().find(|(shift, _)| bytes >> shift > 0);
    unit.map_or(format!("{bytes} B"), |(shift, name)| format!("{} {name}", bytes >> shift))
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("–".into(), |v| format!("{v:.digits$}"))
}

const HEAD: [&str; 11] =
    ["collective", "size", "ranks", "calls", "AUTO", "in use", "AUTO us", "in use us", "saved ms", "even after", "why"];

fn cells(r: &Row) -> [String; 11] {
    [
        r.collective.to_lowercase(),
        size(r.size_bytes),
        format!("{} on {}", r.ranks, r.nodes),
        r.calls.to_string(),
        r.auto.clone(),
        r.arm.clone(),
        number(r.auto_us.or(r.auto_kernel_us), 1),
        number(r.arm_us.or(r.arm_kernel_us), 1),
        number(r.saved_ms, 1),
        r.break_even_calls.map_or("–".into(), |n| n.to_string()),
        r.because.clone(),
    ]
}

fn summary(report: &Report) -> String {
    let p = &report.processes[0];
    let mut s = format!(
        "{} process{} with the plugin, mode {}{}; tuner v{}, profiler {}",
        report.processes.len(),
        if report.processes.len() == 1 { "" } else { "es" },
        p.mode,
        if p.mode == "adaptive" { format!(", policy {}", p.policy) } else { String::new() },
        p.tuner_api,
        if p.profiler_api == 0 { "none".into() } else { format!("v{}", p.profiler_api) },
    );
    if report.epochs > 0 {
        s += &format!(
            "; {} epochs, {} waits for a verdict, the longest {:.1} ms",
            report.epochs, report.waits, report.longest_wait_ms
        );
    }
    if report.lost > 0 {
        s += &format!("; {} calls were too fast to record", report.lost);
    }
    s
}

/// For people.
pub fn text(report: &Report) -> String {
    let mut out = format!("{}\n", summary(report));
    for n in &report.never {
        out += &format!("{n}\n");
    }
    if report.rows.is_empty() {
        return out + "No collective went through NCCL's tuner.\n";
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(HEAD);
    for r in report.rows.iter().take(report::TABLE_ROWS_MAX) {
        table.add_row(cells(r));
    }
    for c in [3, 6, 7, 8, 9] {
        if let Some(c) = table.column_mut(c) {
            c.set_cell_alignment(CellAlignment::Right);
        }
    }
    out + &format!("{table}\n")
}

/// As a page.
pub fn html(report: &Report) -> Result<String, Failure> {
    let table = report::Table {
        caption: "By collective, size and shape of the communicator; largest traffic first.".into(),
        head: HEAD.map(String::from).to_vec(),
        rows: report.rows.iter().map(|r| cells(r).to_vec()).collect(),
    };
    let kernel = report::Table {
        caption: "GPU time of kernels (least of the ranks) beside the times that decided.".into(),
        head: ["collective", "size", "source", "samples", "spread", "AUTO kernel us", "in use kernel us"]
            .map(String::from)
            .to_vec(),
        rows: report
            .rows
            .iter()
            .map(|r| {
                vec![
                    r.collective.to_lowercase(),
                    size(r.size_bytes),
                    r.source.clone(),
                    r.samples.to_string(),
                    r.arm_spread.map_or("–".into(), |s| format!("{:.1} %", 100.0 * s)),
                    number(r.auto_kernel_us, 1),
                    number(r.arm_kernel_us, 1),
                ]
            })
            .collect(),
    };
    let page = report::Report {
        title: "NCCL tuning".into(),
        subtitle: summary(report),
        generated_from: format!("linkwise {}", env!("CARGO_PKG_VERSION")),
        sections: vec![
            report::Section {
                heading: "Choices".into(),
                paragraphs: report.never.clone(),
                table: Some(table),
                ..report::Section::default()
            },
            report::Section { heading: "Times".into(), table: Some(kernel), ..report::Section::default() },
        ],
    };
    page.html().map_err(Failure::impossible)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TRACE: &str = r#"{"kind":"process","version":"0.1.0","pid":1,"host":"00","mode":"adaptive","policy":"round-robin","tuner_api":5,"profiler_api":5}
{"kind":"comm","comm":"0a","rank":0,"ordinal":0,"ranks":8,"nodes":2}
{"kind":"call","comm":"0a","rank":0,"call":0,"collective":"ALLREDUCE","size_bytes":1048576,"auto":"TREE/LL128","arm":"AUTO","taken":true}
{"kind":"call","comm":"0a","rank":0,"call":1,"collective":"ALLREDUCE","size_bytes":1048576,"auto":"TREE/LL128","arm":"RING/LL","taken":true}
{"kind":"call","comm":"0a","rank":0,"call":2,"collective":"ALLREDUCE","size_bytes":1048576,"auto":"TREE/LL128","arm":"RING/SIMPLE","taken":true}
{"kind":"call","comm":"0a","rank":1,"call":0,"collective":"ALLREDUCE","size_bytes":1048576,"auto":"TREE/LL128","arm":"AUTO","taken":true}
{"kind":"sample","comm":"0a","collective":"ALLREDUCE","bucket":20,"arm":"AUTO","source":"step","time_us":100.0}
{"kind":"sample","comm":"0a","collective":"ALLREDUCE","bucket":20,"arm":"RING/LL","source":"step","time_us":150.0}
{"kind":"sample","comm":"0a","collective":"ALLREDUCE","bucket":20,"arm":"RING/SIMPLE","source":"step","time_us":80.0}
{"kind":"finding","comm":"0a","epoch":3,"collective":"ALLREDUCE","bucket":20,"arm":"RING/SIMPLE","because":"20 % less"}
not a line of ours
"#;

    fn read(text: &str) -> Report {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace-1.jsonl");
        std::fs::write(&path, text).unwrap();
        Report::read(&[path]).unwrap()
    }

    #[test]
    fn a_trace_says_what_was_chosen_and_what_it_saved() {
        let r = read(TRACE);
        assert_eq!((r.processes.len(), r.unreadable_lines, r.rows.len()), (1, 1, 1));
        let row = &r.rows[0];
        assert_eq!((row.calls, row.ranks, row.auto.as_str(), row.arm.as_str()), (3, 8, "TREE/LL128", "RING/SIMPLE"));
        assert_eq!((row.auto_us, row.arm_us), (Some(100.0), Some(80.0)));
        assert_eq!(row.saved_ms, Some((0.0 - 50.0 + 20.0) / 1e3));
        assert_eq!(row.break_even_calls, Some(3), "50 us lost while trying, 20 us won per call");
        assert!(text(&r).contains("20 % less"));
        assert!(html(&r).unwrap().contains("20 % less"), "a slash is escaped in a page");
    }

    proptest! {
        #[test]
        fn no_trace_makes_the_report_panic(lines in proptest::collection::vec(
            prop_oneof![proptest::sample::select(TRACE.lines().collect::<Vec<_>>()).prop_map(String::from), "\\PC{0,40}"], 0..30),
            cut in 0usize..200,
        ) {
            let mut all = lines.join("\n");
            let mut at = all.len().saturating_sub(cut);
            while !all.is_char_boundary(at) {
                at -= 1;
            }
            all.truncate(at);
            let r = read(&all);
            if !r.processes.is_empty() {
                text(&r);
                html(&r).unwrap();
            }
        }
    }
}
