//! `linkwise-lab characterize`: the published data of the tuning paper, its Tables 1 and 2, and its reward log.

use super::print::pretty;
use crate::trials::data::{self, RewardLog, size_name};
use crate::trials::paper::{AUTO_RUN, TABLE_1, TABLE_2, Table2};
use ::tune::Arm;
use autotune::characterize::{Amplification, Characterization, SizeRow, Times, amplifications};
use console::{Failure, Format};
use lab_kit::output::table;
use std::collections::BTreeMap;

/// Arguments of `linkwise-lab characterize`.
#[derive(clap::Args)]
pub struct Args {
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// Runs the command.
pub fn run(args: Args) -> Result<(), Failure> {
    let all = published()?;
    if args.format == Format::Json {
        let rows: Vec<_> = all.iter().map(|t| serde_json::json!({"topology": t.name, "rows": t.rows()})).collect();
        return pretty(&serde_json::json!({"topologies": rows, "amplification": amplifications(&all)}));
    }
    for t in &all {
        println!("{}\n{}{}", t.name, table(&Characterization::HEAD, 1, t.cells()), console::wrap(&t.summary(), 0));
    }
    println!("Amplification: AUTO's gap held against {}", all[0].name);
    print!("{}", table(&Amplification::HEAD, 3, amplifications(&all).iter().map(Amplification::cells)));
    compare_with_table_1(&all[0]);
    if let Some(log) = data::reward_log()? {
        print_rewards(&log);
    }
    Ok(())
}

fn published() -> Result<Vec<Characterization>, Failure> {
    let sweep = data::a100_sweep()?.ok_or_else(|| {
        Failure::input(
            "the published data were not found: set LINKWISE_DATA to their folder, or name files (docs/data.md)",
        )
    })?;
    let mut out = vec![Characterization::of_sweep("1x8 A100 (published medians)".into(), sweep), of_table_2()];
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
        out.push(Characterization {
            name: "1x4 L40S (published)".into(),
            alone: times("none"),
            overlapped: times("high"),
            proven: None,
        });
    }
    Ok(out)
}

/// Table 2 as printed: only the best arm and AUTO are known.
fn of_table_2() -> Characterization {
    // A gap that is printed as 0.0 for another arm than AUTO is below 0.05 and not a tie.
    let times = |(arm, ms, gap): (&str, f64, f64)| {
        let gap = if arm != "AUTO" && gap == 0.0 { 0.01 } else { gap };
        BTreeMap::from([("AUTO".to_owned(), ms * (1.0 + gap / 100.0)), (arm.to_owned(), ms)])
    };
    let kind =
        |f: fn(&Table2) -> (&'static str, f64, f64)| TABLE_2.iter().map(|l| (l.size_bytes, times(f(l)))).collect();
    Characterization {
        name: "2x4 A100 (the paper's Table 2)".into(),
        alone: kind(|l| l.alone),
        overlapped: kind(|l| l.overlapped),
        proven: None,
    }
}

fn paragraph(text: &str) {
    print!("{}", console::wrap(text, 2));
}

fn compare_with_table_1(ours: &Characterization) {
    let differences = differences_from_table_1(&ours.rows());
    match differences.is_empty() {
        true => paragraph("The paper's Table 1 follows from its published medians, line by line."),
        false => {
            paragraph("The paper's Table 1 against its published medians:");
            differences.iter().for_each(|d| paragraph(d));
        }
    }
}

fn differences_from_table_1(rows: &[SizeRow]) -> Vec<String> {
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

/// The bandit's public reward log, compared with the paper's Table 3 and Figure 5 for that run.
fn print_rewards(log: &RewardLog) {
    use ::stats;
    println!("\nThe bandit's reward log, 2x4, 64 MiB: ten exploration readings of each arm, ms");
    let row = |(arm, ms): &(Arm, Vec<f64>)| {
        let n = |v: f64| format!("{v:.1}");
        let trimmed = n(stats::iqr_trimmed_mean(ms));
        vec![arm.to_string(), trimmed, n(stats::mean(ms)), n(stats::median(ms)), n(stats::standard_deviation(ms))]
    };
    let rows = log.explored.iter().map(row);
    print!("{}", table(&["arm", "trimmed mean", "mean", "median", "SD"], 1, rows));
    let lowest =
        log.explored.iter().min_by(|a, b| stats::iqr_trimmed_mean(&a.1).total_cmp(&stats::iqr_trimmed_mean(&b.1)));
    let chosen = lowest.map_or("nothing".to_owned(), |l| l.0.to_string());
    let after = &log.exploited;
    let medians: Vec<String> = after.chunks(40).map(|c| format!("{:.0}", stats::median(c))).collect();
    let (auto_calls, auto_median, auto_mean, auto_sd) = AUTO_RUN;
    let explored_ms: f64 = log.explored.iter().flat_map(|e| &e.1).sum();
    let explored_calls = log.explored.iter().map(|e| e.1.len()).sum::<usize>();
    paragraph(&format!(
        "The published rule (lowest trimmed mean, no gate) chooses {chosen}; the paper reports TREE/SIMPLE."
    ));
    paragraph(&format!(
        "{} calls after the choice: median {:.1} (by forty: {}), mean {:.1}, SD {:.1} ms. AUTO's own run of {auto_calls} calls: median \
         {auto_median}, mean {auto_mean}, SD {auto_sd} ms.",
        after.len(),
        stats::median(after),
        medians.join(", "),
        stats::mean(after),
        stats::standard_deviation(after)
    ));
    paragraph(&format!(
        "Gain over that other run: {:.1} % in the median (the paper: 42.0), {:.1} % in the mean; SD {:+.1} % (the paper: -19.4).",
        100.0 * (1.0 - stats::median(after) / auto_median),
        100.0 * (1.0 - stats::mean(after) / auto_mean),
        100.0 * (stats::standard_deviation(after) / auto_sd - 1.0),
    ));
    let of_auto = log.explored.iter().find(|e| e.0.is_auto()).map_or(&[][..], |e| &e.1);
    paragraph(&format!(
        "Gain over AUTO's {} readings in the same run: {:.1} % in the median, {:.1} % in the mean; p that the calls after the choice are \
         faster by chance: {:.2}.",
        of_auto.len(),
        100.0 * (1.0 - stats::median(after) / stats::median(of_auto)),
        100.0 * (1.0 - stats::mean(after) / stats::mean(of_auto)),
        stats::mann_whitney_below(after, of_auto)
    ));
    paragraph(&format!(
        "The {explored_calls} exploration calls took {:+.2} s against as many at the mean of AUTO's other run, {:+.2} s against AUTO in the \
         same run.",
        (explored_ms - explored_calls as f64 * auto_mean) / 1e3,
        (explored_ms - explored_calls as f64 * stats::mean(of_auto)) / 1e3,
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_table_1_follows_from_its_published_medians() {
        let Ok(Some(sweep)) = data::a100_sweep() else {
            eprintln!("SKIP the_papers_table_1_follows_from_its_published_medians: no data folder (set LINKWISE_DATA)");
            return;
        };
        let rows = Characterization::of_sweep("x".into(), sweep).rows();
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
    fn a_missing_median_is_a_difference_from_table_1() {
        assert_eq!(differences_from_table_1(&[]).len(), TABLE_1.len());
        let size_bytes = TABLE_1[0].size_bytes;
        let empty = SizeRow { size_bytes, alone: None, overlapped: None, is_flip: None, is_proven_flip: None };
        let differences = differences_from_table_1(&[empty]);
        assert!(differences.iter().any(|d| d.contains("alone: the medians have no AUTO")), "{differences:?}");
    }
}
