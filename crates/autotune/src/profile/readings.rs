//! Reads times from a program's output.
//!
//! Two kinds of programs: nccl-tests (each row's out-of-place time is a reading of its size), and any other program
//! that prints a line per step: `linkwise_step_time_us=123.4`, or JSON with that field. Other lines are ignored.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The word that a step's line starts with.
pub const STEP: &str = "linkwise_step_time_us";
/// Maximum number of readings of one launch.
const READINGS_MAX: usize = 1_000_000;

/// The ranks, hosts and GPUs of a launch, if its output gives them. Readings of two different sites cannot be compared.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchSite {
    /// Ranks.
    pub ranks: Option<u32>,
    /// Their hosts.
    pub hosts: Option<u32>,
    /// Number of ranks of the host with the most.
    pub ranks_per_host: Option<u32>,
    /// NCCL's version.
    pub nccl_version: Option<String>,
    /// The kinds of GPUs (`NVIDIA H100 80GB HBM3`).
    pub gpus: Option<String>,
}

impl LaunchSite {
    /// The first known difference as text: this site's value, then the other's.
    pub fn difference(&self, other: &LaunchSite) -> Option<String> {
        fn of<T: PartialEq + std::fmt::Display>(a: &Option<T>, b: &Option<T>, name: &str) -> Option<String> {
            let (a, b) = (a.as_ref()?, b.as_ref()?);
            (a != b).then(|| format!("{name} {a}, not {b}"))
        }
        of(&self.nccl_version, &other.nccl_version, "NCCL")
            .or_else(|| of(&self.ranks, &other.ranks, "ranks:"))
            .or_else(|| of(&self.hosts, &other.hosts, "hosts:"))
            .or_else(|| of(&self.ranks_per_host, &other.ranks_per_host, "ranks on a host:"))
            .or_else(|| of(&self.gpus, &other.gpus, "GPUs:"))
    }

    fn of_report(output: &str, report: &measure::nccl_tests::NcclTestsReport) -> LaunchSite {
        let mut by_host = BTreeMap::<&str, u32>::new();
        report.ranks.iter().for_each(|r| *by_host.entry(&r.host).or_default() += 1);
        let is_said = !by_host.is_empty();
        // `#  Rank  0 Group  0 Pid 7 on node1 device  0 [0000:07:00] NVIDIA H100 80GB HBM3`
        let rank_lines = output.lines().filter(|l| l.trim_start_matches(['#', ' ']).starts_with("Rank "));
        let names: BTreeSet<&str> = rank_lines.filter_map(|l| Some(l.split_once(']')?.1.trim())).collect();
        let gpus = ::report::one_line(&names.into_iter().collect::<Vec<_>>().join(", "), 200);
        LaunchSite {
            ranks: is_said.then_some(report.ranks.len() as u32),
            hosts: is_said.then_some(by_host.len() as u32),
            ranks_per_host: by_host.values().copied().max(),
            nccl_version: report.nccl_version.clone(),
            gpus: (!gpus.is_empty()).then_some(gpus),
        }
    }
}

/// The times in the output of one launch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LaunchOutput {
    /// Microseconds by size in bytes.
    pub times_us: BTreeMap<u64, Vec<f64>>,
    /// True if the program compared its results and all were right.
    pub is_checked: bool,
    /// The site of the launch.
    pub place: LaunchSite,
}

/// Why an output gives no times.
#[derive(Debug, Clone, PartialEq)]
pub enum OutputError {
    /// The output cannot be read, or holds no times.
    Unreadable(String),
    /// The program compared results and found wrong ones. The arm must not be used, however fast it is.
    Wrong(String),
}

impl From<String> for OutputError {
    fn from(why: String) -> OutputError {
        OutputError::Unreadable(why)
    }
}

/// The wrong results that nccl-tests counted, as text: in either half of a row, or in total.
fn wrong_of(report: &measure::nccl_tests::NcclTestsReport) -> Option<String> {
    let of_row = |row: &measure::nccl_tests::NcclTestsRow| {
        let halves = [("", Some(&row.out_of_place)), (" in place", row.in_place.as_ref())];
        halves.into_iter().find_map(|(place, half)| {
            let n = half?.wrong.filter(|n| *n > 0)?;
            Some(format!("{n} wrong elements{place} at {} bytes", row.size_bytes))
        })
    };
    let of_rows = report.rows.iter().find_map(of_row);
    let found = of_rows.or_else(|| Some(format!("{} values out of bounds", report.out_of_bounds.filter(|n| *n > 0)?)));
    found.map(|found| format!("{found}: this arm computes wrong results"))
}

/// The wrong results in the output of a launch that failed because of them (nccl-tests then end with an error) or was
/// interrupted.
pub fn wrong(output: &str) -> Option<String> {
    let whole_lines = &output[..output.rfind('\n').map_or(0, |i| i + 1)];
    wrong_of(&measure::nccl_tests::parse_text(whole_lines).ok()?)
}

/// Reads the output of one launch with the sizes `sizes` (one size for programs that print steps). Discards the first
/// `warmup` steps; nccl-tests warm up by themselves. Pure.
///
/// # Errors
/// A message: no times, invalid times, or wrong results.
pub fn read(output: &str, sizes: &[u64], warmup: u32) -> Result<LaunchOutput, OutputError> {
    let steps = steps(output)?;
    if !steps.is_empty() {
        let times: Vec<f64> = steps.into_iter().skip(warmup as usize).collect();
        if times.is_empty() {
            let why = format!("no step is left after {warmup} of warm-up; print more steps, or lower --warmup");
            return Err(why.into());
        }
        let size = sizes.first().copied().unwrap_or(0);
        return Ok(LaunchOutput { times_us: BTreeMap::from([(size, times)]), ..LaunchOutput::default() });
    }
    let report = measure::nccl_tests::parse_text(output)
        .map_err(|e| format!("neither `{STEP}=` lines nor nccl-tests rows: {e}"))?;
    if let Some(why) = wrong_of(&report) {
        return Err(OutputError::Wrong(why));
    }
    let is_checked = report.rows.iter().all(|r| r.out_of_place.wrong.is_some());
    let mut said =
        LaunchOutput { times_us: BTreeMap::new(), is_checked, place: LaunchSite::of_report(output, &report) };
    let kind = |r: &measure::nccl_tests::NcclTestsRow| (r.dtype.clone(), r.redop.clone(), r.root);
    for row in &report.rows {
        if kind(row) != kind(&report.rows[0]) {
            let why = "rows of several datatypes, operations or roots: profile one at a time (-d, -o, -r)";
            return Err(why.to_owned().into());
        }
        // nccl-tests round sizes down to whole elements on every rank.
        let near = sizes.iter().copied().min_by_key(|s| s.abs_diff(row.size_bytes));
        let time = row.out_of_place.time_us;
        if let Some(size) = near.filter(|s| s.abs_diff(row.size_bytes) <= s / 16)
            && time.is_finite()
            && time > 0.0
        {
            said.times_us.entry(size).or_default().push(time);
        }
    }
    match said.times_us.is_empty() {
        true => Err("nccl-tests printed no row of a requested size".to_owned().into()),
        false => Ok(said),
    }
}

fn steps(output: &str) -> Result<Vec<f64>, String> {
    let mut out = Vec::new();
    for (i, line) in output.lines().enumerate() {
        let line = line.trim();
        let value = match line.strip_prefix(STEP).and_then(|rest| rest.trim_start().strip_prefix('=')) {
            Some(value) => value.trim().parse::<f64>().ok(),
            None if line.starts_with('{') && line.contains(STEP) => {
                serde_json::from_str::<serde_json::Value>(line).ok().and_then(|v| v.get(STEP)?.as_f64())
            }
            None => continue,
        };
        let usable = value.filter(|t| t.is_finite() && *t > 0.0 && *t <= ::tune::ledger::TIME_US_MAX);
        out.push(usable.ok_or_else(|| {
            let found = ::report::one_line(line, 80);
            format!("output line {}: `{found}`; `{STEP}=` and microseconds above 0 were expected", i + 1)
        })?);
        if out.len() > READINGS_MAX {
            return Err(format!("more than {READINGS_MAX} steps in one launch"));
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NCCL_TESTS: &str = "\
# nccl-tests version 2.17.1 nccl-headers=22706 nccl-library=22809
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    41.52   25.25   44.19      0    41.20   25.45   44.54      0
     1048576        262144     float     sum      -1    42.52   25.25   44.19      0    41.20   25.45   44.54      0
     4194304       1048576     float     sum      -1    90.00   46.60   81.55      0    89.10   47.07   82.38      0
# Avg bus bandwidth    : 60.0
";

    #[test]
    fn rows_of_nccl_tests_are_readings_of_their_sizes() {
        let said = read(NCCL_TESTS, &[1 << 20, 4 << 20], 10).unwrap();
        assert_eq!(said.times_us, BTreeMap::from([(1 << 20, vec![41.52, 42.52]), (4 << 20, vec![90.0])]));
        assert!(said.is_checked);
        assert!(
            !read(&NCCL_TESTS.replace("      0\n", "    N/A\n").replace("44.19      0", "44.19    N/A"), &[1 << 20], 0)
                .unwrap()
                .is_checked
        );
        assert!(why(read(NCCL_TESTS, &[1 << 30], 0)).contains("no row of a requested size"));
    }

    #[test]
    fn wrong_results_are_found_wherever_they_are_counted() {
        let bounds = |n: u32| NCCL_TESTS.replace("# Avg", &format!("# Out of bounds values : {n} FAILED\n# Avg"));
        for (text, words) in [
            (NCCL_TESTS.replace("44.19      0", "44.19      7"), "7 wrong elements at 1048576 bytes"),
            (NCCL_TESTS.replace("44.54      0", "44.54      8"), "8 wrong elements in place at 1048576 bytes"),
            (bounds(3), "3 values out of bounds"),
        ] {
            let Err(OutputError::Wrong(e)) = read(&text, &[1 << 20, 4 << 20], 0) else { panic!("{words}") };
            assert!(e.starts_with(words) && e.ends_with("computes wrong results"), "{e}");
            // nccl-tests then end with an error, and their output may be cut off.
            assert_eq!(wrong(&text), Some(e.clone()));
            assert_eq!(wrong(&format!("{text}     4194304       10")), Some(e));
        }
        assert_eq!((wrong(&bounds(0)), wrong(NCCL_TESTS), wrong("no GPU")), (None, None, None));
    }

    fn why(said: Result<LaunchOutput, OutputError>) -> String {
        match said {
            Err(OutputError::Unreadable(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ranks_and_hosts_are_counted_and_several_datatypes_are_refused() {
        let ranks = "#  Rank  0 Group  0 Pid  7 on   node1 device  0 [0000:07:00] X\n#  Rank  1 Group  0 Pid  8 on   node2 device  0 [0000:07:00] X\n";
        let said = read(&format!("{ranks}{NCCL_TESTS}"), &[1 << 20, 4 << 20], 0).unwrap();
        let place = LaunchSite {
            ranks: Some(2),
            hosts: Some(2),
            ranks_per_host: Some(1),
            nccl_version: Some("2.28.9".into()),
            gpus: Some("X".into()),
        };
        assert_eq!(said.place, place);
        let other = LaunchSite { nccl_version: Some("2.29.1".into()), ..place.clone() };
        assert_eq!(other.difference(&place).unwrap(), "NCCL 2.29.1, not 2.28.9");
        let unknown = LaunchSite::default();
        assert_eq!(
            (place.difference(&place), place.difference(&unknown), unknown.difference(&place)),
            (None, None, None)
        );
        let mixed = NCCL_TESTS.replace("1048576     float", "1048576      half");
        assert!(why(read(&mixed, &[1 << 20, 4 << 20], 0)).contains("several datatypes"));
    }

    #[test]
    fn steps_are_read_in_both_forms_and_warm_up_is_discarded() {
        let output = "epoch 1\nlinkwise_step_time_us=900\n linkwise_step_time_us = 100.5\n{\"linkwise_step_time_us\": 101}\nend\n";
        assert_eq!(read(output, &[64], 1).unwrap().times_us, BTreeMap::from([(64, vec![100.5, 101.0])]));
        assert!(why(read(output, &[64], 3)).contains("warm-up"));
        assert!(why(read("linkwise_step_time_us=fast\n", &[64], 0)).contains("line 1"));
        assert!(why(read("", &[64], 0)).contains("neither"));
    }

    proptest! {
        #[test]
        fn any_output_is_times_or_an_error(output in "(linkwise_step_time_us|=|[0-9.e-]{0,6}|\\{|\"|\n| |\\PC){0,60}") {
            if let Ok(said) = read(&output, &[8], 0) {
                prop_assert!(said.times_us.values().flatten().all(|t| t.is_finite() && *t > 0.0));
            }
        }
    }
}
