//! `linkwise tune calls`: the communication of a job.

use console::{Failure, Format, number, print, say, table, text_of};
use job::calls::Form;
use measure::kinds::CallKind;
use serde_json::{Value, json};
use std::path::PathBuf;
use topology::count;

/// Arguments of `linkwise tune calls`.
#[derive(clap::Args)]
#[command(after_help = "\
Reads traces of linkwise's NCCL plugin, dumps and metrics of NCCL Inspector, PyTorch's flight recorder (JSON), PyTorch's profiler (one rank), and JSON lines. \
`observe --trace` and `--inspector` put the same files into a store, `tune profile --job-trace` measures what they call most.

Steps are those that the job reported to the plugin, or the profiler's ProfilerStep; the other forms have none: --steps tells them. A flight recorder \
and Inspector keep the last calls only, so their counts are not those of the whole job.")]
pub struct Args {
    /// What the job left: a file, or the folder of all ranks
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Steps of the job in these files, for calls per step [default: as the files say]
    #[arg(long, value_parser = |s: &str| number::whole_within::<u64>(s, 1..=1_000_000_000))]
    steps: Option<u64>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let job = job::calls::read(&args.path).map_err(Failure::input)?;
    let steps = args.steps.or(job.steps);
    let total_s: f64 = job.kinds.iter().map(CallKind::total_s).sum();
    // A metric is a mean over an unknown number of calls.
    let counted = job.form != Form::InspectorMetrics;
    let per_step = |calls: usize| steps.filter(|_| counted).map(|steps| calls as f64 / steps as f64);
    let share = |k: &CallKind| k.time_us.filter(|_| counted).map(|_| k.total_s() / total_s);
    if args.format == Format::Json {
        let of = |k: &CallKind| -> Value {
            json!({
                "collective": k.collective.name(), "size_bytes": k.size.0, "ranks": (k.ranks > 0).then_some(k.ranks), "calls": counted.then_some(k.calls),
                "calls_per_step": per_step(k.calls), "time_us": k.time_us, "time_share": share(k),
            })
        };
        return console::print_json(&json!({
            "form": job.form.name(), "steps": steps, "is_simulated": job.is_simulated, "left_out": job.left_out, "cut_off": job.cut_off,
            "calls": job.kinds.iter().map(of).collect::<Vec<_>>(),
        }));
    }
    if job.is_simulated {
        say(&"note: SIMULATED: the times were given by a test (LINKWISE_TEST); nothing here was measured");
    }
    let figure = |v: Option<f64>| v.map_or("-".into(), report::significant);
    let mut t = table(&["collective", "size", "ranks", "calls", "per step", "us", "% of time"], 1..);
    t.add_rows(job.kinds.iter().map(|k| {
        vec![
            k.collective.name().to_owned(),
            k.size.to_string(),
            if k.ranks > 0 { k.ranks.to_string() } else { "-".into() },
            if counted { k.calls.to_string() } else { "-".into() },
            figure(per_step(k.calls)),
            figure(k.time_us),
            share(k).map_or("-".into(), |s| format!("{:.0}", 100.0 * s)),
        ]
    }));
    let of_steps = steps.map_or("an unknown number of steps (--steps N)".into(), |n| count(n as usize, "step"));
    let left_out = match job.left_out {
        0 => String::new(),
        n => format!("; {n} entries are no collective with a size"),
    };
    let cut_off = match job.cut_off {
        0 => String::new(),
        n => format!("; cut off, as a killed rank leaves it: {}", count(n, "file")),
    };
    print(&format!("{}, {of_steps}{left_out}{cut_off}\n{}\n", job.form.name(), text_of(&t).trim_end()));
    Ok(())
}
