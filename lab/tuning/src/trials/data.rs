//! Published measurements as environments.
//!
//! If a table has one median or mean per arm, that value is the arm's true mean; the noise around it is assumed, and
//! the output says so. If a table has raw readings of an arm, the readings are drawn with replacement.

use super::catalog::Entry;
use ::trial::{Noise, Overlap, Spec};
use ::tune::Arm;
pub use autotune::sweep::{Sweep, parse_sweep, size_name, sweep_arm};
use console::Failure;
use lab_kit::published::{data_folder, data_folder_of_tests};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Maximum number of rows read from one table.
const ROWS_MAX: usize = 100_000;
/// Largest accepted file, bytes.
const FILE_BYTES_MAX: usize = 16 << 20;
/// Assumed noise around published means, coefficient of variation.
pub const ASSUMED_CV: f64 = 0.05;
/// Calls of one phase of overlap.
const PHASE_CALLS: u64 = 50;

/// The reward log of the paper's bandit, milliseconds.
pub struct RewardLog {
    /// The ten exploration readings of each arm, in the order of first appearance.
    pub explored: Vec<(Arm, Vec<f64>)>,
    /// The readings after the choice, all of the same arm.
    pub exploited: Vec<f64>,
}

fn folder(name: &str) -> Option<PathBuf> {
    let data = if cfg!(test) { data_folder_of_tests() } else { data_folder() };
    data.map(|d| d.join(name)).filter(|d| d.exists())
}

/// Reads the reward log; `None` if the file does not exist.
pub fn reward_log() -> Result<Option<RewardLog>, Failure> {
    let Some(path) = folder("bandit/rewards_2x4_64MB.csv") else { return Ok(None) };
    let mut out = RewardLog { explored: Vec::new(), exploited: Vec::new() };
    for (i, row) in rows(&path)?.into_iter().enumerate() {
        let bad = |what: &str| Failure::input(format!("{}:{}: {what}", path.display(), i + 2));
        let get = |name: &str| row.get(name).map(String::as_str).ok_or_else(|| bad(&format!("no column `{name}`")));
        let time = get("time_ms")?.parse::<f64>().ok().filter(|t| t.is_finite() && *t > 0.0);
        let time = time.ok_or_else(|| bad("time_ms is not a number above 0"))?;
        if get("phase")? == "exploit" {
            out.exploited.push(time);
            continue;
        }
        let arm: Arm = get("arm")?.parse().map_err(|e: String| bad(&e))?;
        match out.explored.iter_mut().find(|e| e.0 == arm) {
            Some(e) => e.1.push(time),
            None => out.explored.push((arm, vec![time])),
        }
    }
    if out.exploited.is_empty() || out.explored.is_empty() {
        return Err(Failure::input(format!("{}: explore and exploit rows were expected", path.display())));
    }
    Ok(Some(out))
}

/// The shape of the exploitation readings; `None` if there is no log.
pub fn bandit_log() -> Result<Option<Noise>, Failure> {
    Ok(reward_log()?.map(|log| Noise::Resampled(log.exploited.into())))
}

/// Reads the A100 sweep; `None` if the file does not exist.
pub fn a100_sweep() -> Result<Option<Sweep>, Failure> {
    let Some(path) = folder("bandit/a100_1x8_overlap.json") else { return Ok(None) };
    let text = files::read_text(&path, FILE_BYTES_MAX)?;
    parse_sweep(&text).map(Some).map_err(|e| Failure::file("read", &path, e))
}

fn rows(path: &Path) -> Result<Vec<BTreeMap<String, String>>, Failure> {
    let fail = |e: &dyn std::fmt::Display| Failure::file("read", path, e);
    let bytes = files::read_limited(path, FILE_BYTES_MAX)?;
    let mut reader = csv::Reader::from_reader(bytes.as_slice());
    let head = reader.headers().map_err(|e| fail(&e))?.clone();
    let row = |r: Result<csv::StringRecord, csv::Error>| -> Result<BTreeMap<String, String>, Failure> {
        let r = r.map_err(|e| fail(&e))?;
        Ok(head.iter().zip(r.iter()).map(|(h, v)| (h.to_owned(), v.to_owned())).collect())
    };
    reader.records().take(ROWS_MAX).map(row).collect()
}

/// L40S all-reduce times, microseconds: (forced algorithm, forced protocol, compute during it) to size to readings.
type L40s = BTreeMap<(String, String, String), BTreeMap<u64, Vec<f64>>>;

/// The L40S tables: four GPUs of one host.
pub fn l40s() -> Result<Option<L40s>, Failure> {
    let mut out = L40s::new();
    for file in ["measurements/cs244c_l40s_forced.csv", "measurements/cs244c_l40s_contention.csv"] {
        let Some(path) = folder(file) else { return Ok(None) };
        for row in rows(&path)? {
            let get = |name: &str| row.get(name).map_or("", String::as_str);
            let forced = |name: &str| get(name).trim_end_matches("(forced)").to_ascii_uppercase();
            let numbers = (get("size_bytes").parse::<u64>(), get("time_us").parse::<f64>());
            if let (Ok(size), Ok(time)) = numbers
                && get("allocation") == "4 of 4"
                && time > 0.0
            {
                let compute = get("note").split(';').next().unwrap_or("").trim_start_matches("concurrent compute: ");
                let compute = compute.replace("idle GPUs", "none");
                let key = (forced("algo"), forced("proto"), compute);
                out.entry(key).or_default().entry(size).or_default().push(time);
            }
        }
    }
    Ok(Some(out))
}

/// One mean per arm; `None` if an arm has no reading at that size.
fn l40s_means(table: &L40s, arms: &[(&str, &str, &str)], compute: &str, size: u64) -> Option<(Vec<Arm>, Vec<f64>)> {
    let mean = |a: &str, p: &str| {
        let readings = table.get(&(a.into(), p.into(), compute.into()))?.get(&size)?;
        Some(::stats::mean(readings))
    };
    let means = arms.iter().map(|(_, a, p)| mean(a, p)).collect::<Option<Vec<_>>>()?;
    let names = arms.iter().map(|(name, _, _)| name.parse().ok()).collect::<Option<Vec<_>>>()?;
    Some((names, means))
}

fn entry(name: String, about: String, arms: Vec<Arm>, means_us: Vec<f64>, noise: Noise) -> Entry {
    let base = Spec::new(name, 1.0, &[], noise);
    let spec = Spec { arms, means_us, is_shuffled: false, ..base };
    Entry { about, spec, is_made_up: false }
}

/// All environments from the data folder; none if there is no folder.
pub fn environments() -> Result<Vec<Entry>, Failure> {
    let mut out = Vec::new();
    if let Some(log) = reward_log()? {
        out.extend(log_environments(&log));
    }
    if let Some(table) = l40s()? {
        out.extend(l40s_environments(&table));
    }
    if let Some(sweep) = a100_sweep()? {
        out.extend(a100_environments(&sweep));
    }
    Ok(out)
}

fn log_environments(log: &RewardLog) -> Vec<Entry> {
    let us = |v: &[f64]| v.iter().map(|t| t * 1e3).collect::<Vec<f64>>();
    let per_arm: Vec<Vec<f64>> = log.explored.iter().map(|(_, v)| us(v)).collect();
    let means: Vec<f64> = per_arm.iter().map(|v| ::stats::mean(v)).collect();
    let arms: Vec<Arm> = log.explored.iter().map(|(a, _)| *a).collect();
    let about = "the bandit's reward log: each arm's 10 exploration readings, resampled";
    let explored = entry("log-explored".into(), about.into(), arms.clone(), means, Noise::PerArm(per_arm.into()));
    let shape = Noise::Resampled(log.exploited.clone().into());
    let auto_us = 1e3 * ::stats::mean(&log.exploited);
    let level = |name: &str, about: &str, levels: [f64; 3]| {
        let means = levels.iter().chain([&1.0]).map(|l| l * auto_us).collect();
        let mut e = entry(name.into(), about.into(), arms.clone(), means, shape.clone());
        e.spec.is_shuffled = true;
        e.is_made_up = true; // the shape is published, the levels are not
        e
    };
    vec![
        explored,
        level("log-null", "shape of the log's 200 exploitation readings; all arms equal", [1.0; 3]),
        level(
            "log-better",
            "shape of the log's 200 exploitation readings; one arm 30 % better (levels made up)",
            [0.7, 1.0, 1.1],
        ),
    ]
}

fn l40s_environments(table: &L40s) -> Vec<Entry> {
    let noise = Noise::LogNormal { cv: ASSUMED_CV };
    let protocols =
        [("RING/LL", "", "LL"), ("RING/LL128", "", "LL128"), ("RING/SIMPLE", "", "SIMPLE"), ("AUTO", "", "")];
    let algorithms = [("TREE/SIMPLE", "TREE", ""), ("RING/SIMPLE", "RING", ""), ("AUTO", "", "")];
    let mut out = Vec::new();
    for size in (12..=26).step_by(2).map(|k| 1u64 << k) {
        let name = size_name(size);
        let cv = format!("means measured, CV {:.0} % assumed", 100.0 * ASSUMED_CV);
        if let Some((arms, means)) = l40s_means(table, &protocols, "none", size) {
            let about = format!("4 L40S, protocol forced, the algorithm left to NCCL (named RING here); {cv}");
            out.push(entry(format!("l40s-protocol-{name}"), about, arms, means, noise.clone()));
        }
        let Some((arms, means)) = l40s_means(table, &algorithms, "none", size) else { continue };
        let about = format!("4 L40S, algorithm forced, the protocol left to NCCL (named SIMPLE here); {cv}");
        out.push(entry(format!("l40s-algorithm-{name}"), about.clone(), arms.clone(), means.clone(), noise.clone()));
        if let Some((_, overlapped)) = l40s_means(table, &algorithms, "high", size) {
            let about = format!("as l40s-algorithm-{name}, 50 calls alone, 50 during heavy computation; {cv}");
            let mut e = entry(format!("l40s-contention-{name}"), about, arms, means, noise.clone());
            e.spec.overlap = Some(Overlap { means_us: overlapped, phase_calls: PHASE_CALLS, is_told: true });
            out.push(e);
        }
    }
    out
}

fn a100_environments(sweep: &Sweep) -> Vec<Entry> {
    let noise = Noise::LogNormal { cv: ASSUMED_CV };
    let cv = format!("medians measured, CV {:.0} % assumed", 100.0 * ASSUMED_CV);
    let levels = |times: &BTreeMap<String, f64>| -> (Vec<Arm>, Vec<f64>) {
        times.iter().filter_map(|(word, ms)| Some((sweep_arm(word)?, ms * 1e3))).unzip()
    };
    let empty = BTreeMap::new();
    let kind = |name: &str| sweep.get(name).unwrap_or(&empty);
    let mut out = Vec::new();
    for (size, times) in kind("sequential") {
        let (arms, means) = levels(times);
        let Some((overlapped_arms, overlapped)) = kind("overlap").get(size).map(levels) else { continue };
        if overlapped_arms == arms {
            let about = format!("8 A100, 50 calls alone, 50 during a matrix product; {cv}");
            let mut e = entry(format!("a100-{}", size_name(*size)), about, arms, means, noise.clone());
            e.spec.overlap = Some(Overlap { means_us: overlapped, phase_calls: PHASE_CALLS, is_told: true });
            out.push(e);
        }
    }
    for (size, times) in kind("light_compute") {
        let (arms, means) = levels(times);
        let about = format!("8 A100, light computation during the calls; {cv}");
        out.push(entry(format!("a100-light-{}", size_name(*size)), about, arms, means, noise.clone()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_rule_chooses_auto_on_the_log_that_it_was_published_with() {
        let Ok(Some(log)) = reward_log() else {
            eprintln!(
                "SKIP the_published_rule_chooses_auto_on_the_log_that_it_was_published_with: no data folder (set LINKWISE_DATA)"
            );
            return;
        };
        // The arithmetic of the published code: quartiles are the sorted values at n/4 and 3n/4.
        let trimmed: Vec<f64> = log.explored.iter().map(|(_, v)| ::stats::iqr_trimmed_mean(v)).collect();
        for (ours, published) in trimmed.iter().zip([297.3, 244.1, 207.3, 169.7]) {
            assert!((ours - published).abs() < 0.05, "{ours} {published}");
        }
        let arms: Vec<Arm> = log.explored.iter().map(|e| e.0).collect();
        let mut policy =
            ::trial::policies::build("round-robin-ungated", &arms, &::tune::PolicyOptions::default()).unwrap();
        for call in 0..40 {
            let arm = policy.decide(::tune::Context::default()).arm;
            let time_us = Some(1e3 * log.explored[arm].1[call as usize / 4]);
            policy.learn(::tune::Reading { call, arm, time_us, channels: None });
        }
        assert_eq!(arms[policy.decide(::tune::Context::default()).arm], Arm::AUTO);
    }

    #[test]
    fn published_tuning_data_give_valid_environments() {
        if data_folder_of_tests().is_none_or(|d| !d.join("bandit").is_dir()) {
            eprintln!("SKIP published_tuning_data_give_valid_environments: no data folder (set LINKWISE_DATA)");
            return;
        }
        let all = environments().unwrap();
        for e in &all {
            let auto = ::tune::registry::check_arms(&e.spec.arms);
            assert!(auto.is_ok() && e.spec.means_us.len() == e.spec.arms.len(), "{}", e.spec.name);
        }
        let named = |n: &str| all.iter().any(|e| e.spec.name == n);
        assert!(
            named("log-explored")
                && named("l40s-protocol-64KB")
                && named("l40s-contention-64MB")
                && named("a100-256MB")
        );
        let log = reward_log().unwrap().unwrap();
        assert_eq!((log.explored.len(), log.exploited.len()), (4, 200));
        assert!(log.explored.iter().all(|e| e.1.len() == 10), "exploration and exploitation readings are not pooled");
    }
}
