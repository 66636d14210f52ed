//! `linkwise tune characterize`: how good is AUTO, and what does computation beside it change? The paper's Tables 1 and 2.

use super::print::{pretty, table};
use super::read_text;
use crate::cmd::shared::Format;
use crate::failure::Failure;
use crate::tuning::data::{self, RewardLog, Sweep, size_name, sweep_arm};
use crate::tuning::paper::{AUTO_RUN, TABLE_1, TABLE_2};
use crate::tuning::policy_file::{self, PolicyFile};
use ::tune::Arm;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use topology::Bytes;

/// Arguments of `linkwise tune characterize`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  linkwise tune characterize                    (the published data)\n  \
    linkwise tune characterize one-host.json two-hosts.json\n\n\
    A file is a policy file of `linkwise tune profile`, or a sweep in the form of the published a100_1x8_overlap.json. With several, the \
    first is what the others' gaps are held against.")]
pub struct Args {
    /// Policy files or sweeps; none: the published data
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// Times of one kind of execution: size in bytes, then milliseconds by arm.
type Times = BTreeMap<u64, BTreeMap<String, f64>>;

/// One topology.
pub struct Topology {
    name: String,
    alone: Times,
    overlapped: Times,
    /// The arms that passed all gates against AUTO, by size, alone and overlapped; none where only medians are known.
    proven: Option<[BTreeMap<u64, Vec<String>>; 2]>,
}

/// The best arm at one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Best {
    /// The arm with the lowest median; AUTO if it ties.
    pub arm: String,
    /// Its median, ms.
    pub ms: f64,
    /// AUTO above it, %.
    pub auto_gap_percent: f64,
    /// Whether the arm passed all gates against AUTO; unknown where only medians are.
    pub is_proven: Option<bool>,
}

/// One line of Table 1 or 2.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Whole buffer, bytes.
    pub size_bytes: u64,
    /// Alone.
    pub alone: Option<Best>,
    /// Beside computation.
    pub overlapped: Option<Best>,
    /// Whether computation changes the arm with the lowest median; unknown where one of both is. May be chance.
    pub is_flip: Option<bool>,
    /// Whether it changes the arm that passed all gates (AUTO where none did); unknown where only medians are.
    pub is_proven_flip: Option<bool>,
}

/// The best of some times; `None` without AUTO among them.
pub fn best(times: &BTreeMap<String, f64>) -> Option<Best> {
    let auto = *times.get("AUTO")?;
    let lowest = times.iter().min_by(|a, b| a.1.total_cmp(b.1).then_with(|| (b.0 == "AUTO").cmp(&(a.0 == "AUTO"))))?;
    let auto_gap_percent = 100.0 * (auto / lowest.1 - 1.0);
    Some(Best { arm: lowest.0.clone(), ms: *lowest.1, auto_gap_percent, is_proven: None })
}

impl Topology {
    fn rows(&self) -> Vec<Row> {
        let mut sizes: Vec<u64> = self.alone.keys().chain(self.overlapped.keys()).copied().collect();
        sizes.sort_unstable();
        sizes.dedup();
        let row = |size: u64| {
            let of = |times: &Times, kind: usize| {
                let best = times.get(&size).and_then(best)?;
                let passed = self.proven.as_ref().map(|p| p[kind].get(&size).is_some_and(|a| a.contains(&best.arm)));
                Some(Best { is_proven: passed, ..best })
            };
            let (alone, overlapped) = (of(&self.alone, 0), of(&self.overlapped, 1));
            let is_flip = alone.as_ref().zip(overlapped.as_ref()).map(|(a, o)| a.arm != o.arm);
            let proven = |kind| self.proven_arm(size, kind);
            let is_proven_flip = is_flip.and(proven(0)).zip(proven(1)).map(|(a, o)| a != o);
            Row { size_bytes: size, alone, overlapped, is_flip, is_proven_flip }
        };
        sizes.into_iter().map(row).collect()
    }

    /// The fastest arm that passed all gates, alone (0) or overlapped (1); AUTO if none did; nothing where that is not known.
    fn proven_arm(&self, size: u64, kind: usize) -> Option<&str> {
        let passed = self.proven.as_ref()?[kind].get(&size)?;
        let times = [&self.alone, &self.overlapped][kind].get(&size)?;
        let known = passed.iter().filter_map(|arm| Some((arm, times.get(arm)?)));
        Some(known.min_by(|a, b| a.1.total_cmp(b.1)).map_or("AUTO", |(arm, _)| arm))
    }

    fn of_sweep(name: String, sweep: Sweep) -> Topology {
        let named = |times: BTreeMap<String, f64>| {
            times.into_iter().map(|(word, ms)| (sweep_arm(&word).map_or(word, |a: Arm| a.to_string()), ms)).collect()
        };
        let mut kinds: BTreeMap<String, Times> = sweep
            .into_iter()
            .map(|(kind, sizes)| (kind, sizes.into_iter().map(|(size, times)| (size, named(times))).collect()))
            .collect();
        let mut take = |kind: &str| kinds.remove(kind).unwrap_or_default();
        Topology { name, alone: take("sequential"), overlapped: take("overlap"), proven: None }
    }

    fn of_policy(name: String, file: &PolicyFile) -> Topology {
        let times = |lines: &[policy_file::SizeLine]| -> Times {
            let of_line = |l: &policy_file::SizeLine| {
                let arms = file.arms.iter().zip(&l.arms);
                (l.size_bytes, arms.filter_map(|(a, t)| Some((a.clone(), t.median_us? / 1e3))).collect())
            };
            lines.iter().map(of_line).collect()
        };
        let passed = |lines: &[policy_file::SizeLine]| -> BTreeMap<u64, Vec<String>> {
            let of_line = |l: &policy_file::SizeLine| {
                let arms = file.arms.iter().zip(&l.arms);
                let passed = arms.filter(|(_, found)| found.verdict.is_some() && found.failed_gate.is_none());
                (l.size_bytes, passed.map(|(a, _)| a.clone()).collect())
            };
            lines.iter().map(of_line).collect()
        };
        Topology {
            name,
            alone: times(&file.isolated),
            overlapped: times(&file.overlapped),
            proven: Some([passed(&file.isolated), passed(&file.overlapped)]),
        }
    }

    /// Table 2 as the paper prints it: only the best arm and AUTO are known.
    fn of_table_2() -> Topology {
        // A gap that is printed as 0.0 beside another arm is below 0.05 and not a tie.
        let times = |(arm, ms, gap): (&str, f64, f64)| {
            let gap = if arm != "AUTO" && gap == 0.0 { 0.01 } else { gap };
            BTreeMap::from([("AUTO".to_owned(), ms * (1.0 + gap / 100.0)), (arm.to_owned(), ms)])
        };
        let kind = |f: fn(&crate::tuning::paper::Table2) -> (&'static str, f64, f64)| {
            TABLE_2.iter().map(|l| (l.size_bytes, times(f(l)))).collect()
        };
        Topology {
            name: "2x4 A100 (the paper's Table 2)".into(),
            alone: kind(|l| l.alone),
            overlapped: kind(|l| l.overlapped),
            proven: None,
        }
    }

    fn read(path: &Path) -> Result<Topology, Failure> {
        let text = read_text(path)?;
        let name = path.display().to_string();
        if text.contains("\"linkwise_tune_profile\"") {
            let file = PolicyFile::read(&text).map_err(|e| Failure::file("read", path, e))?;
            return Ok(Topology::of_policy(name, &file));
        }
        let sweep = data::parse_sweep(&text)
            .map_err(|e| Failure::file("read", path, format!("neither a policy file nor a sweep ({e})")))?;
        let topology = Topology::of_sweep(name, sweep);
        if topology.rows().iter().all(|r| r.alone.is_none() && r.overlapped.is_none()) {
            let what = "no size has a time of AUTO under `sequential` or `overlap`, so nothing can be compared";
            return Err(Failure::file("read", path, what));
        }
        Ok(topology)
    }
}

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    let is_published = args.files.is_empty();
    let topologies = if is_published {
        published()?
    } else {
        args.files.iter().map(|f| Topology::read(f)).collect::<Result<_, _>>()?
    };
    if args.format == Format::Json {
        let all: Vec<_> =
            topologies.iter().map(|t| serde_json::json!({"topology": t.name, "rows": t.rows()})).collect();
        return pretty(&serde_json::json!({"topologies": all, "amplification": amplifications(&topologies)}));
    }
    for t in &topologies {
        print_topology(t);
    }
    if topologies.len() > 1 {
        print_amplification(&topologies);
    }
    if is_published {
        compare_with_table_1(&topologies[0]);
        if let Some(log) = data::reward_log()? {
            print_rewards(&log);
        }
    }
    Ok(())
}

fn published() -> Result<Vec<Topology>, Failure> {
    let sweep = data::a100_sweep()?.ok_or_else(|| {
        Failure::input(
            "the published data were not found: set LINKWISE_DATA to their folder, or name files (docs/data.md)",
        )
    })?;
    let mut out = vec![Topology::of_sweep("1x8 A100 (published medians)".into(), sweep), Topology::of_table_2()];
    if let Some(table) = data::l40s()? {
        let times = |compute: &str| -> Times {
            let mut out = Times::new();
            for (arm, algorithm) in [("TREE", "TREE"), ("RING", "RING"), ("AUTO", "")] {
                let key = (algorithm.to_owned(), String::new(), compute.to_owned());
                for (size, us) in table.get(&key).into_iter().flatten() {
                    out.entry(*size).or_default().insert(arm.into(), ::stats::mean(us) / 1e3);
                }
            }
            out
        };
        out.push(Topology {
            name: "1x4 L40S (published)".into(),
            alone: times("none"),
            overlapped: times("high"),
            proven: None,
        });
    }
    Ok(out)
}

fn print_topology(t: &Topology) {
    let rows = t.rows();
    let cells = |b: &Option<Best>| match b {
        None => vec!["-".into(), "-".into(), "-".into()],
        Some(b) => {
            let mark = if b.is_proven == Some(true) { "*" } else { "" };
            vec![b.arm.clone(), crate::report::significant(b.ms), format!("{:.1}{mark}", b.auto_gap_percent)]
        }
    };
    let lines = rows.iter().map(|r| {
        let mut line = vec![Bytes(r.size_bytes).to_string()];
        line.extend(cells(&r.alone));
        line.extend(cells(&r.overlapped));
        line.push(match (r.is_flip, r.is_proven_flip) {
            (_, Some(true)) => "flip*".into(),
            (Some(true), _) => "flip".into(),
            (Some(false), _) => String::new(),
            (None, _) => "-".into(),
        });
        line
    });
    println!("{}", t.name);
    let head = ["size", "alone: best", "ms", "AUTO +%", "overlapped: best", "ms", "AUTO +%", "flip"];
    println!("{}", table(&head, 1, lines.collect()));
    let mean = |f: fn(&Row) -> &Option<Best>| {
        let gaps: Vec<f64> = rows.iter().filter_map(|r| f(r).as_ref().map(|b| b.auto_gap_percent)).collect();
        if gaps.is_empty() { "-".to_owned() } else { format!("{:.1} %", ::stats::mean(&gaps)) }
    };
    let known = rows.iter().filter(|r| r.is_flip.is_some()).count();
    let flips = rows.iter().filter(|r| r.is_flip == Some(true)).count();
    let proven = rows.iter().filter(|r| r.is_proven_flip == Some(true)).count();
    println!(
        "AUTO's mean gap: {} alone, {} overlapped; {flips} of {known} sizes flip by their lowest medians, {}\n",
        mean(|r| &r.alone),
        mean(|r| &r.overlapped),
        match t.proven {
            Some(_) => format!("{proven} by the gates. *: passed all gates; other gaps and flips may be chance."),
            None => "which may be chance: no samples are known that gates could judge.".to_owned(),
        }
    );
}

/// AUTO's gap at one size, in the first topology and another.
#[derive(Debug, Serialize)]
struct Amplification {
    topology: String,
    /// Calls beside computation; otherwise alone.
    is_overlapped: bool,
    size_bytes: u64,
    gap_percent_of_first: f64,
    gap_percent: f64,
    /// One over the other; none where the first is 0.
    factor: Option<f64>,
}

fn amplifications(topologies: &[Topology]) -> Vec<Amplification> {
    let Some((first, others)) = topologies.split_first() else { return Vec::new() };
    let base = first.rows();
    let mut out = Vec::new();
    for other in others {
        for row in other.rows() {
            let Some(of_first) = base.iter().find(|b| b.size_bytes == row.size_bytes) else { continue };
            let kinds = [(false, &of_first.alone, &row.alone), (true, &of_first.overlapped, &row.overlapped)];
            for (is_overlapped, of_first, of_other) in kinds {
                let (Some(of_first), Some(of_other)) = (of_first, of_other) else { continue };
                let (a, b) = (of_first.auto_gap_percent, of_other.auto_gap_percent);
                out.push(Amplification {
                    topology: other.name.clone(),
                    is_overlapped,
                    size_bytes: row.size_bytes,
                    gap_percent_of_first: a,
                    gap_percent: b,
                    factor: (a > 0.0).then(|| b / a),
                });
            }
        }
    }
    out
}

fn print_amplification(topologies: &[Topology]) {
    let lines = amplifications(topologies).into_iter().map(|a| {
        let factor = a.factor.map_or("-".into(), |f| format!("{f:.1}x"));
        vec![
            a.topology,
            if a.is_overlapped { "overlapped" } else { "alone" }.into(),
            Bytes(a.size_bytes).to_string(),
            format!("{:.1}", a.gap_percent_of_first),
            format!("{:.1}", a.gap_percent),
            factor,
        ]
    });
    println!("Amplification: AUTO's gap held against {}", topologies[0].name);
    println!("{}", table(&["topology", "calls", "size", "first %", "gap %", "factor"], 3, lines.collect()));
}

fn compare_with_table_1(ours: &Topology) {
    let differences = differences_from_table_1(&ours.rows());
    match differences.is_empty() {
        true => println!("The paper's Table 1 follows from its published medians, line by line."),
        false => println!("The paper's Table 1 against its published medians:\n{}", differences.join("\n")),
    }
}

fn differences_from_table_1(rows: &[Row]) -> Vec<String> {
    let mut differences = Vec::new();
    for printed in &TABLE_1 {
        let Some(row) = rows.iter().find(|r| r.size_bytes == printed.size_bytes) else {
            differences.push(format!("  {}: the medians have no such size", size_name(printed.size_bytes)));
            continue;
        };
        if row.is_flip != Some(printed.is_flip) {
            differences.push(format!("  {}: the flip differs", size_name(printed.size_bytes)));
        }
        for (kind, found, said) in
            [("alone", &row.alone, printed.alone), ("overlapped", &row.overlapped, printed.overlapped)]
        {
            let Some(found) = found else {
                differences.push(format!("  {} {kind}: the medians have no AUTO", size_name(printed.size_bytes)));
                continue;
            };
            let is_same = found.arm == said.0 && (found.auto_gap_percent - said.2).abs() < 0.06;
            if !is_same {
                differences.push(format!(
                    "  {} {kind}: the paper says {} and {:.1} %, its medians say {} and {:.1} %",
                    size_name(printed.size_bytes),
                    said.0,
                    said.2,
                    found.arm,
                    found.auto_gap_percent
                ));
            }
        }
    }
    differences
}

/// What the bandit's public reward log says beside the paper's Table 3 and Figure 5 for that run.
fn print_rewards(log: &RewardLog) {
    use ::stats;
    println!("\nThe bandit's reward log, 2x4, 64 MiB: ten exploration samples of each arm, ms");
    let row = |(arm, ms): &(Arm, Vec<f64>)| {
        let n = |v: f64| format!("{v:.1}");
        let trimmed = n(stats::iqr_trimmed_mean(ms));
        vec![arm.to_string(), trimmed, n(stats::mean(ms)), n(stats::median(ms)), n(stats::standard_deviation(ms))]
    };
    let rows = log.explored.iter().map(row).collect();
    println!("{}", table(&["arm", "trimmed mean", "mean", "median", "SD"], 1, rows));
    let lowest =
        log.explored.iter().min_by(|a, b| stats::iqr_trimmed_mean(&a.1).total_cmp(&stats::iqr_trimmed_mean(&b.1)));
    let chosen = lowest.map_or("nothing".to_owned(), |l| l.0.to_string());
    let after = &log.exploited;
    let medians: Vec<String> = after.chunks(40).map(|c| format!("{:.0}", stats::median(c))).collect();
    let (auto_calls, auto_median, auto_mean, auto_sd) = AUTO_RUN;
    let explored_ms: f64 = log.explored.iter().flat_map(|e| &e.1).sum();
    let explored_calls = log.explored.iter().map(|e| e.1.len()).sum::<usize>();
    println!("The published rule (lowest trimmed mean, no gate) chooses {chosen}; the paper reports TREE/SIMPLE.");
    println!(
        "{} calls after the choice: median {:.1} (by forty: {}), mean {:.1}, SD {:.1} ms. AUTO's own run of {auto_calls} calls: median \
         {auto_median}, mean {auto_mean}, SD {auto_sd} ms.",
        after.len(),
        stats::median(after),
        medians.join(", "),
        stats::mean(after),
        stats::standard_deviation(after)
    );
    println!(
        "Gain over that other run: {:.1} % in the median (the paper: 42.0), {:.1} % in the mean; SD {:+.1} % (the paper: -19.4).",
        100.0 * (1.0 - stats::median(after) / auto_median),
        100.0 * (1.0 - stats::mean(after) / auto_mean),
        100.0 * (stats::standard_deviation(after) / auto_sd - 1.0),
    );
    let of_auto = log.explored.iter().find(|e| e.0.is_auto()).map_or(&[][..], |e| &e.1);
    println!(
        "Gain over AUTO's {} samples in the same run: {:.1} % in the median, {:.1} % in the mean; p that the calls after the choice are \
         faster by chance: {:.2}.",
        of_auto.len(),
        100.0 * (1.0 - stats::median(after) / stats::median(of_auto)),
        100.0 * (1.0 - stats::mean(after) / stats::mean(of_auto)),
        stats::mann_whitney_below(after, of_auto)
    );
    println!(
        "The {explored_calls} exploration calls took {:+.2} s against as many at the mean of AUTO's other run, {:+.2} s against AUTO in the \
         same run.",
        (explored_ms - explored_calls as f64 * auto_mean) / 1e3,
        (explored_ms - explored_calls as f64 * stats::mean(of_auto)) / 1e3,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tie_goes_to_auto_and_the_gap_is_over_the_best() {
        let times = |list: &[(&str, f64)]| list.iter().map(|(a, t)| ((*a).to_owned(), *t)).collect::<BTreeMap<_, _>>();
        let tie = best(&times(&[("AUTO", 2.0), ("TREE/LL", 2.0)])).unwrap();
        assert_eq!((tie.arm.as_str(), tie.auto_gap_percent), ("AUTO", 0.0));
        let tree = best(&times(&[("AUTO", 3.0), ("TREE/LL", 2.0)])).unwrap();
        assert_eq!((tree.arm.as_str(), tree.auto_gap_percent), ("TREE/LL", 50.0));
        assert_eq!(best(&times(&[("TREE/LL", 2.0)])), None, "without AUTO there is no gap");
    }

    #[test]
    fn the_papers_table_1_follows_from_its_published_medians() {
        let Ok(Some(sweep)) = data::a100_sweep() else {
            eprintln!("SKIP the_papers_table_1_follows_from_its_published_medians: no data folder (set LINKWISE_DATA)");
            return;
        };
        let rows = Topology::of_sweep("x".into(), sweep).rows();
        assert_eq!(rows.iter().filter(|r| r.is_flip == Some(true)).count(), 6);
        for (row, printed) in rows.iter().zip(&TABLE_1) {
            assert_eq!(row.size_bytes, printed.size_bytes);
            assert_eq!(
                (&row.alone.as_ref().unwrap().arm[..], &row.overlapped.as_ref().unwrap().arm[..]),
                (printed.alone.0, printed.overlapped.0)
            );
        }
    }

    #[test]
    fn a_flip_of_medians_is_proven_only_where_the_gates_change_the_arm() {
        let times = |tree: f64| Times::from([(64, BTreeMap::from([("AUTO".into(), 1.0), ("TREE/LL".into(), tree)]))]);
        let passed = |arms: &[&str]| BTreeMap::from([(64, arms.iter().map(|a| (*a).to_owned()).collect())]);
        let flips = |proven: Option<[&[&str]; 2]>| {
            let proven = proven.map(|p| p.map(passed));
            let row = Topology { name: "x".into(), alone: times(0.9), overlapped: times(1.1), proven }.rows().remove(0);
            (row.is_flip, row.is_proven_flip)
        };
        assert_eq!(flips(None), (Some(true), None));
        assert_eq!(flips(Some([&[], &[]])), (Some(true), Some(false)), "AUTO is used in both");
        assert_eq!(flips(Some([&["TREE/LL"], &[]])), (Some(true), Some(true)));
    }

    #[test]
    fn what_the_medians_lack_is_a_difference_from_table_1() {
        assert_eq!(differences_from_table_1(&[]).len(), TABLE_1.len());
        let size_bytes = TABLE_1[0].size_bytes;
        let empty = Row { size_bytes, alone: None, overlapped: None, is_flip: None, is_proven_flip: None };
        let differences = differences_from_table_1(&[empty]);
        assert!(differences.iter().any(|d| d.contains("alone: the medians have no AUTO")), "{differences:?}");
    }

    #[test]
    fn amplification_is_the_ratio_of_gaps_at_the_same_size() {
        let t = |auto: f64| Topology {
            name: "x".into(),
            alone: BTreeMap::from([(64, BTreeMap::from([("AUTO".into(), auto), ("TREE/LL".into(), 1.0)]))]),
            overlapped: Times::new(),
            proven: None,
        };
        let a = amplifications(&[t(1.1), t(1.5)]);
        assert!((a[0].factor.unwrap() - 5.0).abs() < 1e-9);
        assert_eq!(amplifications(&[t(1.0), t(1.5)])[0].factor, None);
    }
}
