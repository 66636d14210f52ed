//! Times out of what a program printed.
//!
//! Two kinds of programs: nccl-tests (each row's out-of-place time is a sample of its size), and any other program that prints a
//! line per step: `linkwise_step_time_us=123.4`, or JSON with that field. Other lines are passed over.

use std::collections::BTreeMap;

/// The word that a step's line starts with.
pub const STEP: &str = "linkwise_step_time_us";
/// Most samples of one launch.
const SAMPLES_MAX: usize = 1_000_000;

/// What one launch said.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Said {
    /// Microseconds by size in bytes.
    pub times_us: BTreeMap<u64, Vec<f64>>,
    /// NCCL's version, if said.
    pub nccl_version: Option<String>,
    /// Ranks and hosts, if said.
    pub ranks_and_hosts: Option<(u32, u32)>,
}

/// Reads the output of one launch that was asked for `sizes` (one, for programs that print steps). The first `warmup` steps are
/// thrown away; nccl-tests warm up by themselves. Pure.
///
/// # Errors
/// In words: no times, times that make no sense, or wrong results.
pub fn read(output: &str, sizes: &[u64], warmup: u32) -> Result<Said, String> {
    let steps = steps(output)?;
    if !steps.is_empty() {
        let times: Vec<f64> = steps.into_iter().skip(warmup as usize).collect();
        if times.is_empty() {
            return Err(format!("no step is left after {warmup} of warm-up; print more of them, or lower --warmup"));
        }
        let size = sizes.first().copied().unwrap_or(0);
        return Ok(Said { times_us: BTreeMap::from([(size, times)]), ..Said::default() });
    }
    let report = measure::nccl_tests::parse_text(output)
        .map_err(|e| format!("neither `{STEP}=` lines nor nccl-tests rows: {e}"))?;
    let mut hosts: Vec<&str> = report.ranks.iter().map(|r| r.host.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let ranks_and_hosts = (!hosts.is_empty()).then_some((report.ranks.len() as u32, hosts.len() as u32));
    let mut said = Said { nccl_version: report.nccl_version.clone(), ranks_and_hosts, ..Said::default() };
    let kind = |r: &measure::nccl_tests::Row| (r.dtype.clone(), r.redop.clone(), r.root);
    for row in &report.rows {
        if kind(row) != kind(&report.rows[0]) {
            return Err(
                "rows of several datatypes, operations or roots: profile one of them at a time (-d, -o, -r)".into()
            );
        }
        if let Some(n) = row.out_of_place.wrong.filter(|n| *n > 0) {
            return Err(format!("{n} wrong elements at {} bytes: this arm computes wrong results", row.size_bytes));
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
        true => Err("nccl-tests printed no row of a size that was asked for".into()),
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
            let found = crate::report::one_line(line, 80);
            format!("output line {}: `{found}`; `{STEP}=` and microseconds above 0 were expected", i + 1)
        })?);
        if out.len() > SAMPLES_MAX {
            return Err(format!("more than {SAMPLES_MAX} steps in one launch"));
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
    fn rows_of_nccl_tests_are_samples_of_their_sizes() {
        let said = read(NCCL_TESTS, &[1 << 20, 4 << 20], 10).unwrap();
        assert_eq!(said.times_us, BTreeMap::from([(1 << 20, vec![41.52, 42.52]), (4 << 20, vec![90.0])]));
        assert!(read(NCCL_TESTS, &[1 << 30], 0).unwrap_err().contains("no row of a size"));
        let wrong = NCCL_TESTS.replace("44.19      0", "44.19      7");
        assert!(read(&wrong, &[1 << 20], 0).unwrap_err().contains("7 wrong elements"));
    }

    #[test]
    fn ranks_and_hosts_are_counted_and_several_datatypes_are_refused() {
        let ranks = "#  Rank  0 Group  0 Pid  7 on   node1 device  0 [0000:07:00] X\n#  Rank  1 Group  0 Pid  8 on   node2 device  0 [0000:07:00] X\n";
        let said = read(&format!("{ranks}{NCCL_TESTS}"), &[1 << 20, 4 << 20], 0).unwrap();
        assert_eq!(said.ranks_and_hosts, Some((2, 2)));
        let mixed = NCCL_TESTS.replace("1048576     float", "1048576      half");
        assert!(read(&mixed, &[1 << 20, 4 << 20], 0).unwrap_err().contains("several datatypes"));
    }

    #[test]
    fn steps_are_read_in_both_forms_and_warm_up_is_thrown_away() {
        let output = "epoch 1\nlinkwise_step_time_us=900\n linkwise_step_time_us = 100.5\n{\"linkwise_step_time_us\": 101}\nend\n";
        assert_eq!(read(output, &[64], 1).unwrap().times_us, BTreeMap::from([(64, vec![100.5, 101.0])]));
        assert!(read(output, &[64], 3).unwrap_err().contains("warm-up"));
        assert!(read("linkwise_step_time_us=fast\n", &[64], 0).unwrap_err().contains("line 1"));
        assert!(read("", &[64], 0).unwrap_err().contains("neither"));
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
