//! The result of a replay, as text and as JSON.

use super::reader::{Load, Scenario};
use super::replay::{Replay, Settings};
use crate::evaluation::{self, Summary, summary};
use crate::ground_truth::PublicCode;
use lab_kit::output::table;
use topology::Allocation;
use truths::Truth;

/// Number of listed requests with the lowest GBE.
const LOWEST: usize = 10;

/// One method on one set of requests.
#[derive(Clone, Debug, serde::Serialize)]
pub struct MethodLine {
    /// The method.
    pub method: String,
    /// Over all loads.
    pub all: Summary,
    /// By load: idle, common, intensive; none without such requests.
    pub by_load: Vec<(Load, Option<Summary>)>,
    /// Median processor or wall time of a decision, milliseconds.
    pub decision_ms_median: Option<f64>,
}

/// The results on one cluster's requests.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ScenarioReport {
    pub cluster: String,
    /// Requests in the file.
    pub requests: usize,
    /// Seeds.
    pub seeds: Vec<u64>,
    /// Requested readings over several hosts, and those that the table had.
    pub samples: (usize, usize),
    /// Their sampling design.
    pub design: &'static str,
    /// Rows of the table, and rows recovered from the file (for judging only).
    pub rows: (usize, usize),
    /// Decisions that cannot be judged because a row is missing. Their requests are left out for every method.
    pub unresolved: usize,
    /// Requests that are left out because at least one seed's choice cannot be judged.
    pub requests_left_out: Vec<String>,
    /// Number of choices that are better than the file's optimum (in these cases the file and the tables disagree).
    pub beyond_optimum: usize,
    /// linkwise first, then the even split, then the methods of the file.
    pub methods: Vec<MethodLine>,
    /// Requests where linkwise's GBE is lowest: name, GBE in percent, the choice's counts.
    pub lowest: Vec<(String, f64, String)>,
    /// Microseconds per decision: median and 99th percentile.
    pub decision_us: (f64, f64),
    /// BandPilot's recorded processor time per decision over linkwise's time, by the medians.
    pub bandpilot_over_ours: Option<f64>,
    /// Seconds per fit, mean.
    pub fit_s: f64,
}

fn line(method: &str, gbe: &[(Load, f64)], ms: &mut [f64]) -> Option<MethodLine> {
    ms.sort_by(f64::total_cmp);
    Some(MethodLine {
        method: method.to_owned(),
        all: summary(gbe.iter().map(|g| g.1))?,
        by_load: Load::ALL.into_iter().map(|l| (l, summary(gbe.iter().filter(|g| g.0 == l).map(|g| g.1)))).collect(),
        decision_ms_median: (!ms.is_empty()).then(|| stats::nearest_quantile_of_sorted(ms, 0.5)),
    })
}

/// The reference of the comparison of choices.
struct Scale<'a> {
    scenarios: &'a [Scenario],
    /// Indices of the requests for which the choice of every seed can be judged.
    kept: Vec<usize>,
    /// Best known bandwidth of every request, GB/s. If a choice is better than the file's optimum, the best choice counts as
    /// the optimum.
    best_gb_per_s: Vec<f64>,
    /// Bandwidth of the even split over the fewest hosts, GB/s, where it can be judged.
    even_gb_per_s: Vec<Option<f64>>,
}

impl<'a> Scale<'a> {
    fn of(truth: &PublicCode, scenarios: &'a [Scenario], replays: &[Replay]) -> Self {
        let even = |s: &Scenario| truth.judge(s, &evaluation::even(truth.cluster(), &s.available, s.k)?);
        let even_gb_per_s: Vec<Option<f64>> = scenarios.iter().map(even).collect();
        let ours = |i: usize| replays.iter().map(move |r| r.decided[i].truth_gb_per_s);
        let judged = |i: &usize| scenarios[*i].optimum_gb_per_s > 0.0 && ours(*i).all(|v| v.is_some());
        let best = |(i, s): (usize, &Scenario)| {
            let theirs = s.peers.iter().map(|p| p.truth_gb_per_s);
            theirs.chain(ours(i).flatten()).chain(even_gb_per_s[i]).fold(s.optimum_gb_per_s, f64::max)
        };
        Scale {
            kept: (0..scenarios.len()).filter(judged).collect(),
            best_gb_per_s: scenarios.iter().enumerate().map(best).collect(),
            even_gb_per_s,
            scenarios,
        }
    }

    /// GBE of a choice, percent.
    fn gbe(&self, request: usize, gb_per_s: f64) -> f64 {
        100.0 * gb_per_s / self.best_gb_per_s[request]
    }

    /// The line of the even split, which sees no running job.
    fn even_line(&self) -> Option<MethodLine> {
        let gbe = |&i: &usize| Some((self.scenarios[i].load, self.gbe(i, self.even_gb_per_s[i]?)));
        line("even split", &self.kept.iter().filter_map(gbe).collect::<Vec<_>>(), &mut [])
    }

    /// One line for each method of the file, in the order of first appearance.
    fn peer_lines(&self) -> Vec<MethodLine> {
        let mut names: Vec<&str> = Vec::new();
        for p in self.scenarios.iter().flat_map(|s| &s.peers) {
            if !names.contains(&p.name.as_str()) {
                names.push(&p.name);
            }
        }
        let peer_line = |name: &str| {
            let of = |i: usize| self.scenarios[i].peers.iter().find(|p| p.name == name);
            let gbe = |&i: &usize| of(i).map(|p| (self.scenarios[i].load, self.gbe(i, p.truth_gb_per_s)));
            let gbe: Vec<(Load, f64)> = self.kept.iter().filter_map(gbe).collect();
            let mut ms: Vec<f64> = (0..self.scenarios.len()).filter_map(|i| of(i).and_then(|p| p.cpu_ms)).collect();
            line(name, &gbe, &mut ms)
        };
        names.into_iter().filter_map(peer_line).collect()
    }

    /// Every judged choice of linkwise: index of the request, allocation, bandwidth in GB/s.
    fn choices<'r>(&self, replays: &'r [Replay]) -> impl Iterator<Item = (usize, &'r Allocation, f64)> {
        replays.iter().flat_map(|r| {
            self.kept.iter().filter_map(|&i| Some((i, &r.decided[i].choice, r.decided[i].truth_gb_per_s?)))
        })
    }

    /// The requests with the lowest GBE of linkwise, each with its worst choice.
    fn lowest(&self, truth: &PublicCode, replays: &[Replay]) -> Vec<(String, f64, String)> {
        let counts = |choice: &Allocation| {
            let counts = truth.cluster().host_ids().map(|h| choice.mask(h).count().to_string());
            counts.collect::<Vec<_>>().join("+")
        };
        let all = self.choices(replays).map(|(i, a, v)| (self.scenarios[i].id.clone(), self.gbe(i, v), counts(a)));
        let mut lowest: Vec<_> = all.collect();
        lowest.sort_by(|a, b| a.1.total_cmp(&b.1));
        lowest.dedup_by(|a, b| a.0 == b.0);
        lowest.retain(|l| l.1 < 99.995);
        lowest.truncate(LOWEST);
        lowest
    }
}

/// Summarises a replay.
pub fn report(
    truth: &PublicCode,
    scenarios: &[Scenario],
    replays: &[Replay],
    settings: &Settings,
    seeds: &[u64],
    recovered: usize,
) -> ScenarioReport {
    let scale = Scale::of(truth, scenarios, replays);
    let ours: Vec<(Load, f64)> = scale.choices(replays).map(|(i, _, v)| (scenarios[i].load, scale.gbe(i, v))).collect();
    let beyond = |&(i, _, v): &(usize, &Allocation, f64)| v > 1.0001 * scenarios[i].optimum_gb_per_s;
    let us: Vec<f64> = replays.iter().flat_map(|r| r.decided.iter().map(|d| d.us)).collect();
    let us = stats::sorted(&us);
    let mut ms: Vec<f64> = us.iter().map(|u| u / 1e3).collect();
    let mut methods: Vec<MethodLine> = line("linkwise gp", &ours, &mut ms).into_iter().collect();
    methods.extend(scale.even_line());
    methods.extend(scale.peer_lines());
    let decision_us = (stats::nearest_quantile_of_sorted(&us, 0.5), stats::nearest_quantile_of_sorted(&us, 0.99));
    let theirs = methods.iter().find(|m| m.method == "BandPilot").and_then(|m| m.decision_ms_median);
    let left_out = (0..scenarios.len()).filter(|i| scale.kept.binary_search(i).is_err());
    ScenarioReport {
        cluster: truth.cluster().name.clone(),
        requests: scenarios.len(),
        seeds: seeds.to_vec(),
        samples: (settings.samples, replays.iter().map(|r| r.samples).min().unwrap_or(0)),
        design: settings.design.name(),
        rows: (truth.counts.by_counts.len(), recovered),
        unresolved: replays.iter().flat_map(|r| &r.decided).filter(|d| d.truth_gb_per_s.is_none()).count(),
        requests_left_out: left_out.map(|i| scenarios[i].id.clone()).collect(),
        beyond_optimum: scale.choices(replays).filter(beyond).count(),
        methods,
        lowest: scale.lowest(truth, replays),
        decision_us,
        bandpilot_over_ours: theirs.map(|ms| ms * 1e3 / decision_us.0),
        fit_s: replays.iter().map(|r| r.fit_s).sum::<f64>() / replays.len().max(1) as f64,
    }
}

/// Prints a report as text.
pub fn print(r: &ScenarioReport) {
    let paragraph = |text: &str| print!("{}", console::wrap(text, 2));
    paragraph(&format!(
        "Protocol: cluster {}, {} requests of the file, seeds {:?}; a model per seed learns from {} readings over several hosts ({}, the \
         table has {} of them) and the hosts' own tables. Truth: BandPilot's rule on the 2 GiB table ({} rows, and {} more that the file \
         gives away, for judging only), rates cut to integers, one background job on the GPUs that are not available. GBE = bandwidth \
         of the choice among the running jobs over the best possible one, percent: mean / 5th percentile / worst.",
        r.cluster, r.requests, r.seeds, r.samples.0, r.design, r.samples.1, r.rows.0, r.rows.1
    ));
    if r.unresolved > 0 {
        paragraph(&format!(
            "{} of {} decisions cannot be judged (no row); their {} requests are left out for every method.",
            r.unresolved,
            r.requests * r.seeds.len(),
            r.requests_left_out.len()
        ));
    }
    if r.beyond_optimum > 0 {
        paragraph(&format!(
            "{} choices beat the file's optimum (the tables and the file disagree); there the best choice counts as the optimum.",
            r.beyond_optimum
        ));
    }
    let cell =
        |s: Option<Summary>| s.map_or(String::new(), |s| format!("{:.2} / {:.1} / {:.1}", s.mean, s.p5, s.worst));
    let row = |m: &MethodLine| {
        let mut row = vec![m.method.clone(), cell(Some(m.all))];
        row.extend(m.by_load.iter().map(|l| cell(l.1)));
        row.push(m.all.requests.to_string());
        row.push(m.decision_ms_median.map_or(String::new(), |v| format!("{v:.2}")));
        row
    };
    let head = ["method", "all", "idle", "common", "intensive", "requests", "decision ms"];
    print!("{}", table(&head, 1, r.methods.iter().map(row)));
    paragraph(&format!(
        "decision {:.0} us median, {:.0} us p99 (wall, in process, least of three); fit {:.2} s{}",
        r.decision_us.0,
        r.decision_us.1,
        r.fit_s,
        r.bandpilot_over_ours
            .map_or(String::new(), |x| format!("; BandPilot's recorded processor time is {x:.0} times that"))
    ));
    if !r.lowest.is_empty() {
        let list: Vec<String> = r.lowest.iter().map(|l| format!("{} {:.1} ({})", l.0, l.1, l.2)).collect();
        paragraph(&format!("lowest: {}", list.join(", ")));
        println!();
    }
}
