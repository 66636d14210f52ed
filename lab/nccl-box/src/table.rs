//! The cases of `make bench-nccl` and their table.

use crate::tuning::{ARMS, Chooser, Loop, Run, run};
use nccl_bench::{Bench, BenchError};
use netns::NetBox;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::{Duration, Instant};

/// Steps of the runs without linkwise.
const KNOWN_STEPS: u32 = 14;
/// First steps of a run without linkwise, which set up connections and do not count.
const WARM_STEPS: usize = 3;
/// Lead of the adaptive runs, milliseconds. The default of 5 s would make every row six times as long.
pub const LEAD_MS: u32 = 1000;

/// A case.
#[derive(Debug, Clone)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// The training loop.
    pub of: Loop,
    /// Rate of each rail, Mbit/s.
    pub mbit: u32,
    /// True if the rail of the last host falls to a quarter of its rate in the middle of the job.
    pub slowed: bool,
}

/// All cases.
pub fn cases(release: &str) -> Vec<Case> {
    let case = |name, hosts, gpus, kib: u64, step_calls, steps| Case {
        name,
        of: Loop { hosts, gpus, size_bytes: kib << 10, step_calls, steps, release: release.into() },
        mbit: 100,
        slowed: false,
    };
    vec![
        case("2x4, 256 KiB, 1 call a step", 2, 4, 256, 1, 600),
        case("2x4, 256 KiB, 4 calls a step", 2, 4, 256, 4, 350),
        case("2x4, 64 KiB, 16 calls a step", 2, 4, 64, 16, 200),
        case("2x4, 4 KiB, 1 call a step", 2, 4, 4, 1, 10_000),
        case("2x4, 2 MiB, 1 call a step", 2, 4, 2048, 1, 220),
        case("4x2, 256 KiB, 1 call a step", 4, 2, 256, 1, 400),
        case("4x2, 64 KiB, 4 calls a step", 4, 2, 64, 4, 400),
        Case { slowed: true, ..case("2x4, 256 KiB, 1 call, a rail at a quarter", 2, 4, 256, 1, 600) },
    ]
}

/// A row of the table. `auto` and `found` are of the same run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the case.
    pub name: String,
    /// Release of NCCL.
    pub release: String,
    /// Median step of NCCL alone, milliseconds.
    pub nccl_ms: f64,
    /// The arm with the shortest median step of those that NCCL's own settings can force.
    pub best_arm: String,
    /// Its median step, milliseconds.
    pub best_ms: f64,
    /// Median of the adaptive run's steps with AUTO, milliseconds; with a slowed rail, of those in the second half.
    pub auto_ms: f64,
    /// The arm of mode `adaptive` at the end.
    pub found: String,
    /// Median of the last tenth of the adaptive run's steps, milliseconds.
    pub found_ms: f64,
    /// Steps of the run.
    pub steps: usize,
    /// Steps before the arm at the end came into force for good.
    pub settled_after: usize,
    /// Time that arms slower than AUTO cost before, in steps of AUTO.
    pub looking_steps: f64,
    /// Time of the whole run over that of as many steps with AUTO; absent with a slowed rail.
    pub whole: Option<f64>,
    /// Calls that two ranks launched with different arms.
    pub differing: usize,
    /// Calls that waited for other ranks.
    pub waits: u64,
    /// Wrong bytes of all runs.
    pub wrong_bytes: u64,
}

fn median_ms(steps: &[f64]) -> f64 {
    1e3 * stats::upper_median(steps)
}

/// Measures a case: NCCL alone, every arm alone, then mode `adaptive`; NCCL alone again, so that a drift of this machine shows.
///
/// # Errors
/// As [`Bench::run_bytes`]. An arm that NCCL refuses here is left out.
pub fn measure(bench: &Bench, netbox: &NetBox, case: &Case, plugin: &Path) -> Result<Row, BenchError> {
    let last_host = case.of.hosts - 1;
    let rate = |divisor| drop(netbox.rate(last_host, 0, case.mbit / divisor));
    if case.slowed {
        rate(4); // what is best is asked of the state at the end
    }
    let short = Loop { steps: KNOWN_STEPS, ..case.of.clone() };
    let known = |chooser| run(bench, netbox, &short, chooser, plugin, || {});
    let first = known(Chooser::Nccl)?;
    let mut best: Option<(String, f64)> = None;
    let mut wrong_bytes = first.wrong_bytes;
    for (i, (algorithm, protocol)) in ARMS.iter().enumerate() {
        let Ok(of) = known(Chooser::Forced(i)) else { continue };
        wrong_bytes += of.wrong_bytes;
        let ms = median_ms(&of.step_s[WARM_STEPS..]);
        if best.as_ref().is_none_or(|(_, least)| ms < *least) {
            best = Some((format!("{algorithm}/{protocol}").to_uppercase(), ms));
        }
    }
    let again = known(Chooser::Nccl)?;
    if case.slowed {
        rate(1);
    }
    let alone: Vec<f64> = [&first, &again].iter().flat_map(|r| r.step_s[WARM_STEPS..].to_vec()).collect();
    let nccl_ms = median_ms(&alone);
    // NCCL's time was measured at the quarter.
    let half = Duration::from_secs_f64(f64::from(case.of.steps) / 2.0 * nccl_ms / 4e3);
    let begin = Instant::now();
    let found = run(bench, netbox, &case.of, Chooser::Adaptive(LEAD_MS), plugin, || {
        if case.slowed {
            std::thread::sleep(half.saturating_sub(begin.elapsed()));
            rate(4);
        }
    })?;
    wrong_bytes += again.wrong_bytes + found.wrong_bytes;
    let (best_arm, best_ms) = best.unwrap_or_default();
    let row = Row {
        name: case.name.into(),
        release: case.of.release.clone(),
        nccl_ms,
        best_arm,
        best_ms,
        auto_ms: f64::NAN,
        found: found.last_arm().unwrap_or_default().to_owned(),
        found_ms: median_ms(&found.step_s[found.step_s.len() - found.step_s.len().div_ceil(10)..]),
        steps: found.step_s.len(),
        settled_after: 0,
        looking_steps: 0.0,
        whole: None,
        differing: found.differing,
        waits: found.waits,
        wrong_bytes,
    };
    Ok(compared(row, &found, case))
}

/// Compares the steps of the arm at the end with those of AUTO, the arm of the first step.
fn compared(mut row: Row, run: &Run, case: &Case) -> Row {
    let arms: Vec<&String> = run.arms.iter().step_by(case.of.step_calls.max(1) as usize).collect();
    let Some(auto) = arms.first() else { return row };
    let begin = if case.slowed { arms.len() / 2 } else { WARM_STEPS };
    let steps = || arms.iter().zip(&run.step_s);
    let of_auto: Vec<f64> = steps().skip(begin).filter(|(a, _)| *a == auto).map(|(_, s)| *s).collect();
    row.auto_ms = median_ms(&of_auto);
    row.settled_after = settled(&arms.iter().map(|a| **a == row.found).collect::<Vec<_>>());
    let excess = |s: &f64| (1e3 * s / row.auto_ms - 1.0).max(0.0);
    row.looking_steps =
        steps().take(row.settled_after).skip(begin).filter(|(a, _)| *a != auto).map(|(_, s)| excess(s)).sum();
    let all = &run.step_s[begin.min(run.step_s.len())..];
    row.whole = (!case.slowed).then(|| 1e3 * all.iter().sum::<f64>() / (row.auto_ms * all.len() as f64));
    row
}

/// The first step from which on nine tenths of the steps, of all and of the next ones, run the arm: later checks run others for some steps.
fn settled(is_last: &[bool]) -> usize {
    let (mut first, mut count) = (is_last.len(), 0);
    for (k, is) in is_last.iter().enumerate().rev() {
        count += usize::from(*is);
        if *is && count * 10 >= (is_last.len() - k) * 9 {
            first = k;
        }
    }
    first
}

/// The rows of a state file; lines that are none are left out.
pub fn read(text: &str) -> Vec<Row> {
    text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect()
}

/// The table in Markdown.
pub fn markdown(rows: &[Row]) -> String {
    let mut out = String::from(
        "| case | NCCL alone | best arm alone | found | AUTO → found | settled after | lost by looking | whole run over AUTO | different arms, waits, wrong bytes |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for r in rows {
        let ratio = r.found_ms / r.auto_ms;
        out += &format!(
            "| {} | {:.1} ms | {} {:.1} ms | {} | {:.1} → {:.1} ms ({ratio:.2}) | {} of {} steps | {:.1} steps | {} | {}, {}, {} |\n",
            r.name,
            r.nccl_ms,
            r.best_arm,
            r.best_ms,
            r.found,
            r.auto_ms,
            r.found_ms,
            r.settled_after,
            r.steps,
            r.looking_steps,
            r.whole.map_or("–".into(), |w| format!("{w:.2}")),
            r.differing,
            r.waits,
            r.wrong_bytes
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arm_is_settled_when_nine_tenths_of_the_rest_run_it() {
        let run = |text: &str| settled(&text.chars().map(|c| c == 'x').collect::<Vec<_>>());
        assert_eq!(run("..x..x.xxxxxxxxxxx.xxxxxxxxxx"), 5);
        assert_eq!((run("xxxx"), run("....")), (0, 4));
        assert_eq!(run("x........."), 10);
    }

    #[test]
    fn rows_survive_a_file_with_a_broken_end() {
        let text = r#"{"name":"a","release":"2.28.9","nccl_ms":1.0,"best_arm":"RING/LL","best_ms":1.0,"auto_ms":1.0,"found":"RING/LL","found_ms":1.0,"steps":5,"settled_after":0,"looking_steps":0.0,"whole":1.0,"differing":0,"waits":0,"wrong_bytes":0}
{"name":"b","rel"#;
        let rows = read(text);
        assert_eq!(rows.len(), 1);
        assert!(markdown(&rows).contains("| a | 1.0 ms | RING/LL 1.0 ms | RING/LL | 1.0 → 1.0 ms (1.00) |"));
    }
}
