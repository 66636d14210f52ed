//! The report as text: the page shows the same sentences and tables.

use super::{CallRow, JobReport, PluginCost};
use ::report::TABLE_ROWS_MAX;
use comfy_table::CellAlignment;
use console::wrap;
use topology::Bytes;

/// Maximum numbers of sentences about rows whose times disagree, and about missing models.
const DISAGREEMENTS_MAX: usize = 20;
const REASONS_MAX: usize = 5;

/// Number of first columns that identify a row: collective, size, ranks.
const ABOUT: usize = 3;

/// Column names, each with true for a column of numbers.
type Head = &'static [(&'static str, bool)];

/// A table before its layout.
pub struct Cells {
    /// A sentence above the table.
    pub caption: String,
    /// The columns; numbers are right-aligned.
    pub head: Head,
    pub rows: Vec<Vec<String>>,
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("–".into(), |v| format!("{v:.digits$}"))
}

fn percent(share: Option<f64>) -> String {
    share.map_or("–".into(), |s| format!("{:.1} %", 100.0 * s))
}

/// Median and standard deviation as text.
fn spread(median: Option<f64>, variance: Option<f64>) -> String {
    match (median, variance) {
        (Some(m), Some(v)) => format!("{m:.1} ± {:.1}", v.sqrt()),
        (m, _) => number(m, 1),
    }
}

fn what(r: &CallRow) -> Vec<String> {
    vec![r.collective.to_lowercase(), Bytes(r.size_bytes).to_string(), format!("{} on {}", r.ranks, r.nodes)]
}

/// A table of all rows, largest traffic first; each row begins with collective, size and ranks.
fn cells(report: &JobReport, mut caption: String, head: Head, row: impl Fn(&CallRow) -> Vec<String>) -> Cells {
    let more = report.rows.len().saturating_sub(TABLE_ROWS_MAX);
    if more > 0 {
        caption += &format!(" {more} more rows are in --format json.");
    }
    let rows = report.rows.iter().take(TABLE_ROWS_MAX);
    Cells { caption, head, rows: rows.map(|r| [what(r), row(r)].concat()).collect() }
}

/// The collectives, their numbers, sizes and times.
pub fn seen(report: &JobReport) -> Cells {
    const HEAD: Head = &[
        ("collective", false),
        ("size", false),
        ("ranks", false),
        ("calls", true),
        ("bytes", true),
        ("AUTO chose", false),
        ("GPU us", true),
        ("all ms", true),
        ("busbw GB/s", true),
        ("share", true),
        ("headroom", true),
    ];
    let against = if report.steps.is_some() { "of the steps" } else { "of the run (the program said no steps)" };
    let caption = format!(
        "What was called, largest traffic first. GPU us: median kernel on the rank that arrives last; share: of these kernels, {against}; \
         headroom: how much shorter the best way is than AUTO's, by the model, at most."
    );
    cells(report, caption, HEAD, |r| {
        vec![
            r.calls.to_string(),
            Bytes(r.bytes).to_string(),
            r.auto.clone(),
            number(r.auto_kernel_us, 1),
            number(r.kernels_ms, 1),
            number(r.busbw_gb_per_s, 1),
            percent(r.share),
            percent(r.predicted.as_ref().ok().map(|p| p.headroom)),
        ]
    })
}

/// The arms chosen, the reasons and the savings.
pub fn choices(report: &JobReport) -> Cells {
    const HEAD: Head = &[
        ("collective", false),
        ("size", false),
        ("ranks", false),
        ("AUTO", false),
        ("in use", false),
        ("AUTO us", true),
        ("in use us", true),
        ("saved ms", true),
        ("even after", true),
        ("why", false),
    ];
    let caption = "What was chosen. Times are those that decide: median ± standard deviation, before (AUTO) and after (in use). Saved: of calls, \
                   or of the steps or intervals that they are in, by times after the choice; rows of the same steps do not add up.";
    cells(report, caption.into(), HEAD, |r| {
        vec![
            r.auto.clone(),
            r.arm.clone(),
            spread(r.auto_us, r.auto_variance_us2),
            spread(r.arm_us, r.arm_variance_us2),
            number(r.saved_ms, 1),
            r.break_even_calls.map_or("–".into(), |n| n.to_string()),
            r.because.clone(),
        ]
    })
}

/// Predicted and measured times.
pub fn times(report: &JobReport) -> Cells {
    const HEAD: Head = &[
        ("collective", false),
        ("size", false),
        ("ranks", false),
        ("decides", false),
        ("samples", true),
        ("AUTO GPU us", true),
        ("in use GPU us", true),
        ("predicted AUTO us", true),
        ("predicted in use us", true),
    ];
    let caption = "What decides (step; interval between outermost groups; calls: interval between calls, where NCCL reports no groups; kernel; \
                   scripted), and next to it GPU times of the rank that arrives last, measured and predicted by the model.";
    cells(report, caption.into(), HEAD, |r| {
        let predicted = r.predicted.as_ref().ok();
        let samples = match r.arm == "AUTO" {
            true => r.auto_samples.to_string(),
            false => format!("{} + {}", r.auto_samples, r.arm_samples),
        };
        vec![
            if r.source.is_empty() { "–".into() } else { r.source.clone() },
            samples,
            number(r.auto_kernel_us, 1),
            number(r.arm_kernel_us, 1),
            number(predicted.map(|p| p.auto_us), 1),
            number(predicted.and_then(|p| p.arm_us), 1),
        ]
    })
}

/// One sentence about the run: processes, mode, policy, epochs, steps and calls lost.
pub fn summary(report: &JobReport) -> String {
    let Some(p) = report.processes.first() else { return "no process with the plugin".into() };
    let mut s = format!(
        "{} process{} with the plugin, mode {}{}; tuner v{}, profiler {}",
        report.processes.len(),
        if report.processes.len() == 1 { "" } else { "es" },
        p.mode,
        if p.mode == "adaptive" { format!(", policy {}", p.policy) } else { String::new() },
        p.tuner_api,
        if p.profiler_api == 0 { "none".into() } else { format!("v{}", p.profiler_api) },
    );
    if let Some(tuner) = &p.site_tuner {
        s += &format!("; AUTO is the answer of the site's tuner {tuner}");
    }
    if report.epochs > 0 {
        s += &format!(
            "; {} epochs, {} waits for a verdict, the longest {:.1} ms",
            report.epochs, report.waits, report.longest_wait_ms
        );
    }
    if let Some(steps) = report.steps {
        s += &format!("; {} steps of {:.1} ms (median)", steps.count, steps.median_ms);
    }
    if report.lost > 0 {
        s += &format!("; {} calls were too fast to record", report.lost);
    }
    s
}

/// Sentences about the plugin's cost, doubtful figures, and missing data with the way to get them.
pub fn notes(report: &JobReport) -> Vec<String> {
    let mut notes = Vec::new();
    if report.is_scripted() {
        notes.push("SIMULATED: times were given by a test (LINKWISE_TEST); nothing here was measured.".into());
    }
    notes.extend(report.cost.as_ref().map(cost_note));
    notes.extend(left_out_note(report));
    notes.extend(disagreements(report));
    let without_gpu = report.rows.iter().filter(|r| r.auto_kernel_us.or(r.arm_kernel_us).is_none()).count();
    if without_gpu > 0 {
        notes.push(format!(
            "{without_gpu} of {} rows have no GPU time, so no bandwidth and no share: NCCL gives it from 2.27.3 on where \
             LINKWISE_KERNEL_TIMES=1 (linkwise run --kernel-times) asks for it.",
            report.rows.len()
        ));
    }
    notes.extend(without_model(report));
    if let Some(p) = report.rows.iter().find_map(|r| r.predicted.as_ref().ok()) {
        notes.push(format!("Predicted: {}, not measured.", p.model));
    }
    if report.cut_off + report.full > 0 {
        notes.push(format!(
            "{} traces end in the middle of a line (the process was killed), {} at their limit (LINKWISE_TRACE_BYTES_MAX): what came later is not \
             here.",
            report.cut_off, report.full
        ));
    }
    notes
}

fn cost_note(c: &PluginCost) -> String {
    format!(
        "The plugin cost {:.3} % of a run of {:.1} s: {} decisions of {:.0} ns and {} events of {:.0} ns, {:.1} ms at borders between epochs \
         (waits included), {:.1} ms to begin and end; its thread computed {:.2} % of the time of a core.",
        100.0 * c.share,
        c.run_s,
        c.decisions,
        c.decision_ns,
        c.events,
        c.event_ns,
        c.borders_ms,
        c.setup_ms,
        100.0 * c.thread_share
    )
}

fn left_out_note(report: &JobReport) -> Option<String> {
    let left_out = [
        (report.left_out.calls, "calls (too many communicators and sizes)"),
        (report.left_out.communicators, "communicators' ranks and nodes"),
        (report.left_out.times, "times"),
        (report.left_out.sentences, "sentences about communicators that stay at AUTO"),
    ];
    let left_out: Vec<String> =
        left_out.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    let note = || format!("More than a report holds, and not in it: {}; give fewer traces.", left_out.join(", "));
    (!left_out.is_empty()).then(note)
}

/// Sentences about rows whose deciding times and GPU times name different winners, at most [`DISAGREEMENTS_MAX`].
fn disagreements(report: &JobReport) -> Vec<String> {
    let disagreeing: Vec<&CallRow> = report.rows.iter().filter(|r| r.disagrees()).collect();
    let mut notes = Vec::new();
    if disagreeing.len() > DISAGREEMENTS_MAX {
        notes.push(format!(
            "In {} rows what decides and the GPU time disagree; {DISAGREEMENTS_MAX} of them:",
            disagreeing.len()
        ));
    }
    notes.extend(disagreeing.iter().take(DISAGREEMENTS_MAX).map(|r| {
        format!(
            "{} of {}: the {} and the GPU time disagree about {}; the first decides.",
            r.collective.to_lowercase(),
            Bytes(r.size_bytes),
            r.source,
            r.arm
        )
    }));
    notes
}

/// The reasons why rows have no prediction, each once.
fn without_model(report: &JobReport) -> Vec<String> {
    let mut reasons: Vec<(&str, usize)> = Vec::new();
    for why in report.rows.iter().filter_map(|r| r.predicted.as_ref().err()) {
        match reasons.iter_mut().find(|r| r.0 == why) {
            Some(r) => r.1 += 1,
            None => reasons.push((why, 1)),
        }
    }
    let other = reasons.len().saturating_sub(REASONS_MAX);
    let mut notes: Vec<String> = reasons.iter().take(REASONS_MAX).map(|(why, n)| format!("{n} rows: {why}.")).collect();
    notes.extend((other > 0).then(|| format!("{other} more reasons why there is no model are in --format json.")));
    notes
}

/// True if every process only observed.
pub fn only_looked(report: &JobReport) -> bool {
    report.processes.iter().all(|p| p.mode == "observe")
}

/// The tables for the mode of the job.
pub fn tables(report: &JobReport) -> Vec<Cells> {
    match only_looked(report) {
        true => vec![seen(report)],
        false => vec![choices(report), times(report), seen(report)],
    }
}

pub fn text(report: &JobReport) -> String {
    let mut out = wrap(&summary(report), 2);
    for n in &report.never {
        out += &wrap(n, 2);
    }
    if report.rows.is_empty() {
        return out + "No collective went through NCCL's tuner.\n";
    }
    for cells in tables(report) {
        out += &wrap(&cells.caption, 0);
        out += &if width(&cells) <= console::text_width() { as_table(cells) } else { as_records(&cells) };
    }
    for n in notes(report) {
        out += &wrap(&format!("- {n}"), 2);
    }
    out
}

/// Columns that a table needs without line breaks in cells.
fn width(cells: &Cells) -> usize {
    let chars = |s: &str| s.chars().count();
    let column = |i: usize| cells.rows.iter().map(|r| chars(&r[i])).chain([chars(cells.head[i].0)]).max().unwrap_or(0);
    (0..cells.head.len()).map(|i| column(i) + 2).sum()
}

fn as_table(cells: Cells) -> String {
    let head: Vec<&str> = cells.head.iter().map(|h| h.0).collect();
    let mut table = console::table(&head, ..0);
    table.add_rows(cells.rows);
    for (i, _) in cells.head.iter().enumerate().filter(|(_, (_, right))| *right) {
        if let Some(c) = table.column_mut(i) {
            c.set_cell_alignment(CellAlignment::Right);
        }
    }
    console::text_of(&table)
}

/// A table too wide for the terminal: each row becomes a line with collective, size and ranks, and below it name and
/// value of every other column. Lines break between columns only.
fn as_records(cells: &Cells) -> String {
    let mut out = String::new();
    for row in &cells.rows {
        out += &format!("{}\n", row[..ABOUT].join("  "));
        let mut line = String::new();
        for ((name, _), value) in cells.head[ABOUT..].iter().zip(&row[ABOUT..]) {
            let next = format!("{name}: {value}");
            if !line.is_empty() && line.chars().count() + next.chars().count() + 7 > console::text_width() {
                out += &format!("    {line},\n");
                line.clear();
            }
            line += &if line.is_empty() { next } else { format!(", {next}") };
        }
        out += &format!("    {line}\n");
    }
    out
}
