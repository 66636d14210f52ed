//! LiteGD: tables 1 and 2, figures 1, 3 and 9 to 12.
//!
//! | the paper | here |
//! |---|---|
//! | seven clusters of 64 GPUs (table 1) | `litegd-64*` of the catalog; three types as 3, 3 and 2 hosts, which the paper leaves open |
//! | intra-host bandwidth measured, 16 MB all-gather | the published tables of the same hosts (BandPilot's repository) |
//! | switch of 20, 40, 60 GB/s or random 20 to 40 | [`Switch`]: random per pair of hosts |
//! | minimum of hosts and path | [`crate::ground_truth::composed`] |
//! | "dynamic workload": a random subset of GPUs is unavailable | the number of free GPUs is uniform between k and all, then a random subset of that size |
//! | around 1,000 training samples, random | the same |
//! | optimum by a pruned search | exact |
//! | topology-aware: greedy from the best pair by scores of link types | `topo-greedy` |
//! | H100: four real hosts | the measured 16 MiB table |
//!
//! The paper prints curves without numbers; numbers from its text are printed next to linkwise's.

mod replay;

use crate::evaluation::summary;
use crate::ground_truth::{self, Options, Switch};
use console::Failure;
use lab_kit::output::table;
use rayon::prelude::*;
use replay::{Guides, METHODS, Method, Run};
use std::fmt::Write;
use topology::{Allocation, catalog};
use truths::Truth;

/// The items and their descriptions.
pub const ITEMS: [(&str, &str); 8] = [
    ("table-1", "mean GBE in seven clusters of 64 GPUs, random switch, dynamic workload"),
    ("table-2", "time to measure the subsets of one host"),
    ("figure-1", "default dispatcher, 2 of 32 GPUs, one to four host types"),
    ("figure-3", "dispatchers inside one host, on 32 A6000, and on 32 mixed GPUs, all idle"),
    ("figure-9", "tree search with true and with predicted bandwidths, by k"),
    ("figure-10", "GBE by k behind four switches"),
    ("figure-11", "the real H100 cluster"),
    ("figure-12", "decision time by k"),
];

/// The size of the experiments.
#[derive(Clone, Debug)]
pub struct Effort {
    /// Availabilities per number of GPUs.
    pub per_k: usize,
    /// Independent repetitions.
    pub seeds: Vec<u64>,
    /// Readings that LiteGD's network learns from.
    pub samples: usize,
    /// Leave out the network (minutes of training and inference).
    pub quick: bool,
}

impl Default for Effort {
    fn default() -> Self {
        Effort { per_k: 5, seeds: vec![1], samples: 1000, quick: false }
    }
}

/// Mean GBE as published: cluster, LiteGD, Topo, Default, Random.
const TABLE_1: [(&str, [f64; 4]); 7] = [
    ("litegd-64-4090", [97.97, 58.0, 57.3, 66.8]),
    ("litegd-64-v100", [90.45, 70.4, 54.9, 50.5]),
    ("litegd-64-a6000", [83.77, 74.4, 71.7, 71.2]),
    ("litegd-64-a800", [89.12, 89.8, 90.6, 85.3]),
    ("litegd-64-4090-v100-a6000", [93.3, 45.8, 48.2, 49.0]),
    ("litegd-64-v100-a6000-a800", [88.9, 68.9, 57.80, 54.0]),
    ("litegd-64", [90.3, 43.5, 47.3, 44.2]),
];

/// Seconds to measure one host, as published (256 data).
const TABLE_2: [(&str, f64); 5] =
    [("rtx4090", 503.0), ("dgx1-v100", 534.0), ("a6000", 866.0), ("a800", 1512.0), ("hgx-h100", 1288.0)];

/// Draws of the random dispatcher if all GPUs are idle.
const DRAWS: u64 = 200;

/// One item of [`ITEMS`] as text. `dir` holds the published tables.
pub fn reproduce(item: &str, dir: &str, effort: &Effort) -> Result<String, Failure> {
    match item {
        "table-1" => table_1(dir, effort),
        "table-2" => Ok(table_2()),
        "figure-1" => figure_1(dir),
        "figure-3" => figure_3(dir),
        "figure-9" => figure_9(dir, effort),
        "figure-10" => figure_10(dir, effort),
        "figure-11" => figure_11(dir, effort),
        "figure-12" => figure_12(dir, effort),
        other => {
            let known: Vec<&str> = ITEMS.iter().map(|i| i.0).collect();
            Err(Failure::input(format!("LiteGD has no `{other}`; known: {}", known.join(", "))))
        }
    }
}

fn truth_of(dir: &str, cluster: &str, switch: Option<Switch>, seed: u64) -> Result<Box<dyn Truth>, Failure> {
    let c = catalog::cluster(cluster).ok_or_else(|| Failure::input(format!("no cluster `{cluster}`")))?;
    let all = ground_truth::load(dir, &c, &Options { switch, seed, ..Options::default() })?;
    // The paper measures 16 MiB, the smallest of the H100 tables.
    all.into_iter().next().ok_or_else(|| Failure::input(format!("no truth of `{cluster}`")))
}

/// Replays all seeds; one run per method.
fn all_seeds(dir: &str, cluster: &str, switch: Option<Switch>, effort: &Effort) -> Result<Vec<Run>, Failure> {
    let mut all: Vec<Run> = Vec::new();
    for &seed in &effort.seeds {
        let runs = replay::replay(&*truth_of(dir, cluster, switch, seed)?, effort, seed)?;
        if all.is_empty() {
            all = runs;
            continue;
        }
        for (sum, one) in all.iter_mut().zip(runs) {
            sum.k.extend(one.k);
            sum.gbe_pct.extend(one.gbe_pct);
            sum.decide_ms.extend(one.decide_ms);
            sum.predict_ms.extend(one.predict_ms);
        }
    }
    Ok(all)
}

fn mean(v: impl IntoIterator<Item = f64>) -> f64 {
    summary(v).map_or(f64::NAN, |s| s.mean)
}

fn protocol(effort: &Effort, switch: &str) -> String {
    format!(
        "k = 2 to all GPUs, {} availabilities per k, seeds {:?}, {switch}; simulated from measured intra tables, optimum exact; \
         LiteGD learns from {} random samples, linkwise from 100; no contention\n",
        effort.per_k, effort.seeds, effort.samples
    )
}

/// A row of a table: its name and its cells.
fn row(name: impl ToString, cells: impl IntoIterator<Item = String>) -> Vec<String> {
    std::iter::once(name.to_string()).chain(cells).collect()
}

fn table_1(dir: &str, effort: &Effort) -> Result<String, Failure> {
    let results: Vec<Vec<Run>> = TABLE_1
        .par_iter()
        .map(|(cluster, _)| all_seeds(dir, cluster, Some(Switch::Random), effort))
        .collect::<Result<_, _>>()?;
    let mut out =
        format!("LiteGD, table 1: mean GBE in percent, ours (published)\n{}", protocol(effort, "random switch"));
    let head: Vec<&str> = std::iter::once("cluster").chain(results[0].iter().map(|r| r.name)).collect();
    let means = TABLE_1.iter().zip(&results).map(|((cluster, published), runs)| {
        let cells = runs.iter().map(|r| {
            let ours = mean(r.gbe_pct.iter().copied());
            let column = ["LiteGD", "Topo", "Default", "Random"].iter().position(|c| *c == r.name);
            match column {
                Some(c) => format!("{ours:.1} ({:.1})", published[c]),
                None => format!("{ours:.1}"),
            }
        });
        row(cluster, cells)
    });
    out += &table(&head, 1, means);
    let _ = writeln!(out, "5th percentile, worst:");
    let tails = TABLE_1.iter().zip(&results).map(|((cluster, _), runs)| {
        let cells = runs
            .iter()
            .map(|r| summary(r.gbe_pct.iter().copied()).map_or("-".into(), |s| format!("{:.1}, {:.1}", s.p5, s.worst)));
        row(cluster, cells)
    });
    out += &table(&head, 1, tails);
    Ok(out)
}

fn table_2() -> String {
    let mut out = String::from(
        "LiteGD, table 2: seconds to measure all subsets of one host with nccl-tests (published; needs the hosts themselves)\n",
    );
    let rows = TABLE_2.map(|(name, seconds)| {
        let subsets = catalog::host_type(name).map_or(0, |t| measure::intra::table(t.all_gpus(), 0).len());
        let cells = [format!("{seconds:.0}"), "256".into(), format!("{:.1}", seconds / 256.0), subsets.to_string()];
        row(name, cells)
    });
    out += &table(&["host", "published", "data", "s per run", "subsets of 2+"], 1, rows);
    out += "linkwise measures the 247 subsets of two or more GPUs; hosts of a type are measured once and spot-checked (8 subsets) elsewhere.\n";
    out
}

/// A method by its name in the paper.
fn method(name: &str) -> &'static Method {
    METHODS.iter().find(|m| m.name == name).unwrap_or(&METHODS[0])
}

/// GBE of Default, Topo and Random (mean of many draws) with all GPUs idle, as cells.
fn idle(truth: &dyn Truth, guides: &Guides, k: usize) -> [String; 3] {
    let free: Allocation = truth.cluster().usable();
    let one = |name: &str| guides.gbe_pct(method(name), &free, k, 1).unwrap_or(f64::NAN);
    let random = mean((0..DRAWS).filter_map(|seed| guides.gbe_pct(method("Random"), &free, k, seed)));
    [one("Default"), one("Topo"), random].map(|v| format!("{v:.1}"))
}

fn figure_1(dir: &str) -> Result<String, Failure> {
    // The paper does not name the types. Here they are added in the order of the paper's tables.
    const CLUSTERS: [(usize, &str); 4] =
        [(1, "4x4090"), (2, "2x4090+2xv100"), (3, "2x4090+1xv100+1xa6000"), (4, "1x4090+1xv100+1xa6000+1xa800")];
    let mut out = String::from(
        "LiteGD, figure 1: GBE in percent of the default dispatcher, 2 of 32 idle GPUs, by number of host types (switch 20 GB/s)\n\
         The figure's values are not in the text; it falls from left to right.\n",
    );
    let mut rows = Vec::new();
    for (types, name) in CLUSTERS {
        let truth = truth_of(dir, name, Some(Switch::Uniform(20.0)), 1)?;
        let cells = idle(&*truth, &Guides::new(&*truth, None, 1)?, 2);
        rows.push(row(name, [types.to_string()].into_iter().chain(cells)));
    }
    out += &table(&["cluster", "types", "Default", "Topo", "Random"], 1, rows);
    Ok(out)
}

fn figure_3(dir: &str) -> Result<String, Failure> {
    let mut out = String::from(
        "LiteGD, figure 3: GBE in percent, all GPUs idle. The figure's values are not in the text.\n(a) 2 of the 8 GPUs of one host\n",
    );
    let mut rows = Vec::new();
    for name in ["1xa800", "1xa6000", "1xv100", "1x4090"] {
        let truth = truth_of(dir, name, Some(Switch::Uniform(20.0)), 1)?;
        let cells = idle(&*truth, &Guides::new(&*truth, None, 1)?, 2);
        rows.push(row(name, cells));
    }
    out += &table(&["host", "Default", "Topo", "Random"], 1, rows);
    for (panel, name) in [("(b)", "4xa6000"), ("(c, d)", "het-4mix")] {
        let _ = writeln!(out, "{panel} k of the 32 GPUs of {name}, switch 20 GB/s");
        let truth = truth_of(dir, name, Some(Switch::Uniform(20.0)), 1)?;
        let guides = Guides::new(&*truth, None, 1)?;
        let rows = (2..=32).step_by(2).map(|k| row(k, idle(&*truth, &guides, k)));
        out += &table(&["k", "Default", "Topo", "Random"], 1, rows);
    }
    Ok(out)
}

/// Bands of k in the table of a curve.
fn bands(most: usize) -> Vec<(usize, usize)> {
    let all = [(2, 4), (5, 8), (9, 16), (17, 24), (25, 32), (33, 48), (49, 64)];
    all.into_iter().filter(|b| b.0 <= most).map(|b| (b.0, b.1.min(most))).collect()
}

/// A curve of every run: the mean of a quantity in bands of k, and over all k.
fn curves(runs: &[Run], of: impl Fn(&Run) -> &[f64], digits: usize) -> String {
    let most = runs.iter().flat_map(|r| r.k.iter().copied()).max().unwrap_or(0);
    let head: Vec<&str> = std::iter::once("k").chain(runs.iter().map(|r| r.name)).collect();
    let rows = bands(most).into_iter().chain([(2, most)]).map(|(from, to)| {
        let cells = runs.iter().map(|r| {
            let inside = r.k.iter().zip(of(r)).filter(|(k, _)| (from..=to).contains(*k)).map(|x| *x.1);
            format!("{:.digits$}", mean(inside))
        });
        row(format!("{from} to {to}"), cells)
    });
    table(&head, 1, rows)
}

fn figure_9(dir: &str, effort: &Effort) -> Result<String, Failure> {
    let runs = all_seeds(dir, "litegd-64", Some(Switch::Random), effort)?;
    let both: Vec<Run> = runs.into_iter().filter(|r| ["UpperLiteGD", "LiteGD", "linkwise"].contains(&r.name)).collect();
    Ok(format!(
        "LiteGD, figure 9: mean GBE in percent by k, litegd-64\n{}Published: UpperLiteGD above 90 at every k; LiteGD close to it, \
         farther at small k.\n{}",
        protocol(effort, "random switch"),
        curves(&both, |r| &r.gbe_pct, 1)
    ))
}

fn figure_10(dir: &str, effort: &Effort) -> Result<String, Failure> {
    let switches = [Switch::Uniform(20.0), Switch::Uniform(40.0), Switch::Uniform(60.0), Switch::Random];
    let results: Vec<Vec<Run>> =
        switches.par_iter().map(|s| all_seeds(dir, "litegd-64", Some(*s), effort)).collect::<Result<_, _>>()?;
    let mut out = format!(
        "LiteGD, figure 10: mean GBE in percent by k, litegd-64\n{}Published: LiteGD about 90 behind every switch; Topo better below k = 5 \
         at most.\n",
        protocol(effort, "four switches")
    );
    for ((switch, runs), panel) in switches.iter().zip(&results).zip(["(a)", "(b)", "(c)", "(d)"]) {
        let _ = write!(out, "{panel} {switch}\n{}", curves(runs, |r| &r.gbe_pct, 1));
    }
    Ok(out)
}

fn figure_11(dir: &str, effort: &Effort) -> Result<String, Failure> {
    let runs = all_seeds(dir, "h100", None, effort)?;
    Ok(format!(
        "LiteGD, figure 11: mean GBE in percent by k on the measured H100 cluster (16 MiB all-reduce), {} availabilities per k, seeds {:?}\n\
         Published means: UpperLiteGD 92, LiteGD 80, Default about 75, Topo about 80 and below 90 beyond k = 8.\n{}",
        effort.per_k,
        effort.seeds,
        curves(&runs, |r| &r.gbe_pct, 1)
    ))
}

fn figure_12(dir: &str, effort: &Effort) -> Result<String, Failure> {
    let runs = all_seeds(dir, "litegd-64", Some(Switch::Random), effort)?;
    Ok(format!(
        "LiteGD, figure 12: mean milliseconds per decision by k, litegd-64\n{}Published: no numbers in the text; LiteGD slower than Default and \
         Random, Topo linear in k and at times slower than LiteGD.\n{}of which prediction\n{}",
        protocol(effort, "random switch"),
        curves(&runs, |r| &r.decide_ms, 3),
        curves(&runs, |r| &r.predict_ms, 3)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(test: &str) -> Option<String> {
        Some(lab_kit::published::published_tables(test)?.display().to_string())
    }

    #[test]
    fn table_2_shows_the_published_seconds_per_run() {
        let t = table_2();
        assert!(t.contains("1512") && t.contains("247"), "{t}");
        assert!(reproduce("figure-99", ".", &Effort::default()).unwrap_err().to_string().contains("figure-12"));
    }

    #[test]
    fn every_cluster_of_table_1_has_64_gpus() {
        for (name, _) in TABLE_1 {
            assert_eq!(catalog::cluster(name).unwrap().gpu_count(), 64);
        }
    }

    #[test]
    fn proximity_serves_a800_and_a6000_hosts_and_fails_v100_and_4090() {
        // The finding of figure 3a, on the published tables.
        let Some(dir) = data("proximity_serves_a800_and_a6000_hosts_and_fails_v100_and_4090") else { return };
        let gbe = |name: &str| {
            let truth = truth_of(&dir, name, Some(Switch::Uniform(20.0)), 1).unwrap();
            let guides = Guides::new(&*truth, None, 1).unwrap();
            guides.gbe_pct(method("Default"), &truth.cluster().usable(), 2, 1).unwrap()
        };
        let (a800, a6000, v100, rtx4090) = (gbe("1xa800"), gbe("1xa6000"), gbe("1xv100"), gbe("1x4090"));
        assert!(a800 > 90.0 && a6000 > 90.0 && v100 < 90.0 && rtx4090 < 90.0, "{a800} {a6000} {v100} {rtx4090}");
    }

    #[test]
    fn on_the_mixed_cluster_bandwidth_decides_and_labels_do_not() {
        let Some(dir) = data("on_the_mixed_cluster_bandwidth_decides_and_labels_do_not") else { return };
        let effort = Effort { per_k: 1, quick: true, ..Effort::default() };
        let runs = all_seeds(&dir, "litegd-64", Some(Switch::Random), &effort).unwrap();
        let of = |name: &str| mean(runs.iter().find(|r| r.name == name).unwrap().gbe_pct.iter().copied());
        assert!(of("UpperLiteGD") > of("Topo") + 10.0 && of("linkwise") > of("Topo") + 10.0);
        for r in &runs {
            assert_eq!(r.k.len(), 63, "{} answers every request", r.name);
            assert!(r.gbe_pct.iter().all(|g| *g <= 100.0 + 1e-9), "{} beats the optimum", r.name);
        }
    }
}
