//! `linkwise tune export` and `linkwise tune import`: what a run found as a table, and tables of others.

use crate::job_report::{ModelArgs, read};
use autotune::arm_table::{ArmLine, ArmTable, FILE_BYTES_MAX, TableForm};
use console::{Failure, print, say};
use job::report::{CallRow, JobReport};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tune::{Arm, Collective};

/// NCCL's limit on channels.
const CHANNELS_MAX: u8 = 64;

/// Form of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// For `linkwise run --profile`
    Linkwise,
    /// The CSV of NVIDIA's example tuner plugin (NCCL_TUNER_CONFIG_FILE)
    Csv,
}

/// Arguments of `linkwise tune export`.
#[derive(clap::Args)]
#[command(after_help = "\
The table has the arm in use at the end of the run for every collective, size and communicator shape whose arm is not AUTO. Review it, then \
run jobs with `linkwise run --profile FILE`: nothing is explored any more. Its first line names NCCL's release, the GPU, the ranks per node \
and the hosts; the plugin refuses it elsewhere.

--format csv writes the file that NVIDIA's example tuner plugin reads. That plugin asks for ONE channel for every call that no line matches, \
so the CSV also has AUTO's own choices for the sizes that the run had, with the channels that ran.")]
pub struct ExportArgs {
    /// Trace files of the run, or folders of them
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    #[arg(long, value_enum, default_value = "linkwise")]
    format: Form,
    /// File to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Arguments of `linkwise tune import`.
#[derive(clap::Args)]
#[command(after_help = "\
Reads a table of linkwise or the CSV of NVIDIA's example tuner plugin, told by its first rule, and writes either. What the other form cannot \
say is named: linkwise's sizes are powers of two, and its rules do not depend on numPipeOps and regBuff.")]
pub struct ImportArgs {
    /// The table
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[arg(long, value_enum, default_value = "linkwise")]
    format: Form,
    /// File to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn export(args: ExportArgs) -> Result<(), Failure> {
    let report = read(&args.traces, &ModelArgs::default())?;
    if report.processes.is_empty() {
        return Err(Failure::impossible(
            "these files hold no trace of the plugin; give the folder that LINKWISE_TRACE named",
        ));
    }
    if report.is_scripted() {
        say(&"note: SIMULATED: the times were given by a test (LINKWISE_TEST); nothing here was measured");
    }
    let (table, notes) = table_of(&report, args.format);
    notes.iter().for_each(|n| say(&format!("note: {n}")));
    if table.lines.is_empty() {
        return Err(Failure::impossible(
            "no arm other than AUTO is in use in these traces: there is nothing to export; `linkwise tune report` says why",
        ));
    }
    write(&table, args.format, args.output.as_deref())
}

pub fn import(args: ImportArgs) -> Result<(), Failure> {
    let text = files::read_text(&args.file, FILE_BYTES_MAX)?;
    let (read, form) = ArmTable::read(&text).map_err(|e| Failure::input(format!("{}: {e}", args.file.display())))?;
    read.notes.iter().for_each(|n| say(&format!("note: {}: {n}", args.file.display())));
    if read.table.lines.is_empty() {
        return Err(Failure::input(format!("{} has no rule that can be used", args.file.display())));
    }
    if form == TableForm::Csv && read.table.made_on.is_empty() {
        say(
            &"note: the table does not say where it was found, so it is used anywhere; a line `# linkwise: nccl=2.28.9 hosts=4` limits it",
        );
    }
    write(&read.table, args.format, args.output.as_deref())
}

fn write(table: &ArmTable, form: Form, output: Option<&Path>) -> Result<(), Failure> {
    let text = match form {
        Form::Linkwise => table.text(),
        Form::Csv => {
            let (text, notes) = table.csv();
            notes.iter().for_each(|n| say(&format!("note: {n}")));
            text
        }
    };
    match output {
        Some(path) => Ok(files::write_atomic(path, text)?),
        None => {
            print(&text);
            Ok(())
        }
    }
}

/// The table of a run, and sentences about rows that it cannot have.
fn table_of(report: &JobReport, form: Form) -> (ArmTable, Vec<String>) {
    let (mut table, mut notes) = (ArmTable { made_on: made_on(report), lines: Vec::new() }, Vec::new());
    let mut known = BTreeSet::new();
    // The rows with most traffic come first, and the first rule counts.
    for row in &report.rows {
        let (Some(line), true) = (line_of(row, form), row.ranks > 1) else { continue };
        let key = (line.collective.capitals(), line.from, line.ranks, line.nodes);
        if known.insert(key) {
            table.lines.push(line);
        } else if !table.lines.contains(&line) {
            notes.push(format!(
                "{} of {} in several communicators of {} ranks: they found different arms; the one with most traffic counts",
                row.collective, topology::Bytes(row.size_bytes), row.ranks
            ));
        }
    }
    if table.made_on.iter().all(|w| !w.starts_with("nccl=")) {
        notes.push("the traces do not name NCCL's release, so the table does not either".into());
    }
    if table.made_on.iter().all(|w| !w.starts_with("gpu=")) {
        notes.push("the traces do not name one GPU model, so the table does not either".into());
    }
    notes.sort();
    notes.dedup();
    table.lines.sort_by_key(|l| (l.collective.capitals(), l.ranks, l.nodes, l.from));
    merge(&mut table.lines);
    (table, notes)
}

/// Joins neighbouring sizes with the same arm.
fn merge(lines: &mut Vec<ArmLine>) {
    lines.dedup_by(|next, line| {
        let same = ArmLine { from: line.from, to: next.to, ..*next } == ArmLine { to: next.to, ..*line };
        let joins = same && line.to == next.from;
        if joins {
            line.to = next.to;
        }
        joins
    });
}

fn line_of(row: &CallRow, form: Form) -> Option<ArmLine> {
    let collective: Collective = row.collective.parse().ok()?;
    let mut arm: Arm = row.arm.parse().ok()?;
    let channels = |n: Option<u32>| n.and_then(|n| u8::try_from(n).ok()).filter(|n| (1..=CHANNELS_MAX).contains(n));
    match form {
        Form::Linkwise if arm.is_auto() => return None,
        Form::Linkwise => {}
        Form::Csv => {
            if arm.forced.is_none() {
                arm.forced = row.auto.parse::<Arm>().ok()?.forced;
            }
            arm.forced?;
            arm.channels = arm.channels.or(channels(row.arm_channels));
        }
    }
    let class = tune::bucket::bucket(row.size_bytes);
    Some(ArmLine {
        collective,
        from: class,
        to: class + 1,
        arm,
        ranks: Some(row.ranks),
        nodes: Some(row.nodes.max(1)),
        of_rank: false,
    })
}

/// Where the run was made, as far as its traces agree.
fn made_on(report: &JobReport) -> Vec<String> {
    let one = |of: &dyn Fn(&job::report::PluginProcess) -> Option<&String>| -> Option<String> {
        let first = of(report.processes.first()?)?;
        report.processes.iter().all(|p| of(p) == Some(first)).then(|| first.clone())
    };
    let mut words = Vec::new();
    words.extend(one(&|p| p.nccl.as_ref()).map(|v| format!("nccl={v}")));
    let model = one(&|p| p.gpu.as_ref()).filter(|g| !g.contains('+'));
    let plain = |g: String| g.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect::<String>();
    words.extend(model.map(|g| format!("gpu={}", plain(g))));
    if let Some(largest) = report.rows.iter().max_by_key(|r| (r.ranks, r.nodes)).filter(|r| r.ranks > 1) {
        let hosts = largest.nodes.max(1);
        words.push(format!("ranks_per_node={}", largest.ranks.div_ceil(hosts)));
        words.push(format!("hosts={hosts}"));
    }
    words
}
