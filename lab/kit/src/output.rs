//! Tables and progress of the laboratory's commands.

use comfy_table::{ColumnConstraint, Table};
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A column that is no wider is never wrapped.
const NAME_WIDTH_MAX: usize = 24;
/// Without a terminal one line of progress per this time.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// The text of a table in the one style of the programs; the columns after the first `text_columns` are numbers. Names stay on one line.
pub fn table<S: AsRef<str>>(head: &[S], text_columns: usize, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    table_of(head, text_columns..head.len(), rows)
}

/// The same with text before and after the columns of `numbers`.
pub fn table_of<S: AsRef<str>>(
    head: &[S],
    numbers: Range<usize>,
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let mut table: Table = console::table(head, numbers.clone());
    let rows: Vec<Vec<String>> = rows.into_iter().collect();
    let widest = |i: usize| rows.iter().filter_map(|r| r.get(i)).map(|c| c.chars().count()).max().unwrap_or(0);
    for (i, column) in table.column_iter_mut().enumerate().filter(|(i, _)| !numbers.contains(i)) {
        if widest(i).max(head[i].as_ref().chars().count()) <= NAME_WIDTH_MAX {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table.add_rows(rows);
    console::text_of(&table)
}

/// Progress on standard error: a bar on a terminal, else a line every ten seconds.
pub struct Progress {
    bar: ProgressBar,
    what: String,
    total: u64,
    begun: Instant,
    /// How often [`LINE_EVERY`] had passed at the last line; none on a terminal.
    lines: Option<AtomicU64>,
}

impl Progress {
    /// Of `total` units, for example `requests`.
    pub fn new(what: &str, units: &str, total: u64) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(total), target).with_message(what.to_owned());
        let template = format!("{{msg}} {{bar:30}} {{pos}}/{{len}} {units}, {{eta}} left");
        bar.set_style(ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress {
            bar,
            what: format!("{what} ({units})"),
            total,
            begun: Instant::now(),
            lines: (!terminal).then(AtomicU64::default),
        }
    }

    /// So many units are done.
    pub fn inc(&self, units: u64) {
        self.bar.inc(units);
        let Some(lines) = &self.lines else { return };
        let elapsed = self.begun.elapsed();
        let (now, last) = (elapsed.as_secs() / LINE_EVERY.as_secs(), lines.load(Ordering::Relaxed));
        // Of the threads that come here at once one writes the line.
        if now > last && lines.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            console::say(&line(&self.what, self.bar.position(), self.total, elapsed));
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// `rule-r (requests): 250 of 930 done, 30 seconds so far, 82 seconds left`.
fn line(what: &str, done: u64, total: u64, elapsed: Duration) -> String {
    let left = elapsed.as_secs_f64() * total.saturating_sub(done) as f64 / done.max(1) as f64;
    let (elapsed, left) = (HumanDuration(elapsed), HumanDuration(Duration::from_secs_f64(left)));
    format!("{what}: {done} of {total} done, {elapsed} so far, {left} left")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_progress_tells_the_time_left_at_the_pace_so_far() {
        assert_eq!(
            line("rule-r (requests)", 250, 750, Duration::from_secs(30)),
            "rule-r (requests): 250 of 750 done, 30 seconds so far, 60 seconds left"
        );
        assert!(line("x", 0, 7, Duration::from_secs(10)).contains("0 of 7 done"), "nothing is divided by zero");
    }

    #[test]
    fn wide_tables_fit_80_columns_without_a_terminal_and_keep_names_whole() {
        let head =
            ["method", "mean %", "5th percentile", "worst %", "loss GB/s", "decision us", "p99 us", "judged", "fit s"];
        let row = |name: &str| std::iter::once(name.to_owned()).chain((1..9).map(|i| format!("{i}000.25"))).collect();
        let text = table(&head, 1, [row("ideal-bandpilot"), row("gp+3")]);
        assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
        assert!(text.contains("ideal-bandpilot "), "{text}");
    }
}
