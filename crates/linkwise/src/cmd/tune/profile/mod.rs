//! `linkwise tune profile`: the offline run. Arms take turns, so that what changes on the machine meanwhile hits all alike.

mod journal;
mod launch;
mod samples;

use super::{arms, print};
use crate::cmd::shared::{Format, write_atomically};
use crate::failure::Failure;
use crate::tuning::policy_file::{PolicyFile, Provenance, SizeLine};
use ::tune::Arm;
use indicatif::{ProgressBar, ProgressStyle};
use journal::{Entry, Head, Journal};
use launch::Launch;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use topology::Bytes;

/// The most launches of one run.
const LAUNCHES_MAX: usize = 100_000;
/// Launches of an arm that may fail before it is given up.
const FAILURES_MAX: usize = 2;

/// Arguments of `linkwise tune profile`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  linkwise tune profile -o policy.json -- ./build/all_reduce_perf -g 8\n  \
    linkwise tune profile --overlap -o policy.json -- python train.py\n\n\
    The program is one of nccl-tests (a word of the command holds `_perf`; it gets -b -e -f -w -n 1 -N, so take 2.14 or newer), or any \
    program that prints `linkwise_step_time_us=123.4` for every step, warm-up first. It is started once per arm and turn with NCCL_ALGO, \
    NCCL_PROTO and NCCL_MIN/MAX_NCHANNELS set (unset for AUTO), and LINKWISE_ARM, LINKWISE_SIZE_BYTES, LINKWISE_ITERATIONS, \
    LINKWISE_WARMUP and LINKWISE_OVERLAP. With mpirun, pass them on: -x NCCL_ALGO -x NCCL_PROTO.")]
pub struct Args {
    /// The arms
    #[arg(long, default_value = "AUTO,TREE/SIMPLE,TREE/LL128,RING/SIMPLE,RING/LL128")]
    arms: String,
    /// Sizes of the whole buffer
    #[arg(long, value_delimiter = ',', value_parser = Bytes::parse, default_value = "256K,1M,4M,16M,64M,256M")]
    sizes: Vec<Bytes>,
    /// Samples of each arm at each size
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    iterations: u32,
    /// Samples thrown away at the start of each launch
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    warmup: u32,
    /// Turns that the samples are spread over
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Measure beside computation as well (LINKWISE_OVERLAP=1); nccl-tests need --beside for that
    #[arg(long)]
    overlap: bool,
    /// Shell command that computes; runs beside the overlapped launches
    #[arg(long, requires = "overlap", value_name = "COMMAND")]
    beside: Option<String>,
    /// Longest time of one launch
    #[arg(long, default_value_t = 300.0, value_name = "SECONDS")]
    timeout: f64,
    /// The policy file; samples go to a file beside it, from which a run that was cut off goes on
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Begin anew even if there are samples
    #[arg(long)]
    restart: bool,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    let arms = arms(&args.arms)?;
    let sizes = sizes(&args.sizes)?;
    let timeout = Duration::try_from_secs_f64(args.timeout).ok().filter(|t| !t.is_zero());
    let timeout = timeout.ok_or_else(|| Failure::input(format!("--timeout {}: seconds above 0", args.timeout)))?;
    if args.overlap && args.beside.is_none() && launch::is_nccl_tests(&args.command) {
        return Err(Failure::input(
            "nccl-tests do not compute: with --overlap, name a program that does with --beside 'COMMAND'",
        ));
    }
    let plan = plan(&args, &arms, &sizes)?;
    let head = head(&args, &arms, &sizes);
    let (mut journal, head, mut entries) = Journal::open(&journal::path_of(&args.output), &head, args.restart)?;
    let bar = bar(plan.len() as u64, args.format);
    for (i, launch) in plan.iter().enumerate() {
        bar.set_position(i as u64);
        bar.set_message(launch.arm.to_string());
        if entries.iter().any(|e| e.launch == i) {
            continue;
        }
        let entry = match is_given_up(&plan, &entries, launch) {
            Some(why) => Entry { launch: i, times_us: Default::default(), failure: Some(why), nccl_version: None },
            None => one(&args, launch, i, timeout),
        };
        journal.add(&entry)?;
        entries.push(entry);
    }
    bar.finish_and_clear();
    let file = evaluate(&args, &head, &arms, &sizes, &plan, &entries)?;
    write_atomically(&args.output, &file.text().map_err(Failure::impossible)?)?;
    report(&args, &file)
}

fn sizes(asked: &[Bytes]) -> Result<Vec<u64>, Failure> {
    let mut sizes: Vec<u64> = asked.iter().map(|b| b.0).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let limit = ::tune::profile::SIZES_MAX;
    if sizes.is_empty() || sizes.len() > limit || sizes[0] == 0 {
        return Err(Failure::input(format!("--sizes: 1 to {limit} sizes above 0 were expected")));
    }
    Ok(sizes)
}

/// Every launch in order: in each turn every kind of execution, arm and group of sizes; the first arm changes from turn to turn.
fn plan(args: &Args, arms: &[Arm], sizes: &[u64]) -> Result<Vec<Launch>, Failure> {
    let in_one_go = launch::is_nccl_tests(&args.command) && launch::factor(sizes).is_some();
    let groups: Vec<Vec<u64>> = if in_one_go { vec![sizes.to_vec()] } else { sizes.iter().map(|s| vec![*s]).collect() };
    let rounds = args.rounds.min(args.iterations);
    let mut out = Vec::new();
    for round in 0..rounds {
        let iterations = args.iterations / rounds + u32::from(round < args.iterations % rounds);
        for is_overlapped in if args.overlap { vec![false, true] } else { vec![false] } {
            for group in &groups {
                for i in 0..arms.len() {
                    let arm = arms[(i + round as usize) % arms.len()];
                    out.push(Launch { arm, sizes: group.clone(), is_overlapped, iterations, warmup: args.warmup });
                }
            }
        }
    }
    if out.len() > LAUNCHES_MAX {
        let n = out.len();
        return Err(Failure::input(format!("{n} launches; at most {LAUNCHES_MAX}: fewer arms, sizes or --rounds")));
    }
    Ok(out)
}

fn head(args: &Args, arms: &[Arm], sizes: &[u64]) -> Head {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    Head {
        linkwise_tune_samples: 1,
        command: args.command.clone(),
        beside: args.beside.clone(),
        arms: arms.iter().map(ToString::to_string).collect(),
        sizes: sizes.to_vec(),
        overlap: args.overlap,
        iterations: args.iterations,
        warmup: args.warmup,
        rounds: args.rounds,
        started_unix_s: now,
    }
}

/// An arm whose launches of this kind failed so often, with nothing in between, is not to be had here.
fn is_given_up(plan: &[Launch], entries: &[Entry], launch: &Launch) -> Option<String> {
    let same = |e: &&Entry| {
        plan.get(e.launch)
            .is_some_and(|l| l.arm == launch.arm && l.is_overlapped == launch.is_overlapped && l.sizes == launch.sizes)
    };
    let of_arm: Vec<&Entry> = entries.iter().filter(same).collect();
    let failed = of_arm.iter().filter(|e| e.failure.is_some()).count();
    (failed >= FAILURES_MAX && failed == of_arm.len()).then(|| of_arm.last().and_then(|e| e.failure.clone()))?
}

fn one(args: &Args, launch: &Launch, index: usize, timeout: Duration) -> Entry {
    let said = launch::run(&args.command, launch, args.beside.as_deref(), timeout)
        .and_then(|output| samples::read(&output, &launch.sizes, launch.warmup));
    match said {
        Ok(s) => Entry { launch: index, times_us: s.times_us, failure: None, nccl_version: s.nccl_version },
        Err(why) => Entry { launch: index, times_us: Default::default(), failure: Some(why), nccl_version: None },
    }
}

fn evaluate(
    args: &Args,
    head: &Head,
    arms: &[Arm],
    sizes: &[u64],
    plan: &[Launch],
    entries: &[Entry],
) -> Result<PolicyFile, Failure> {
    let lines = |is_overlapped: bool| -> Vec<SizeLine> {
        let line = |size: &u64| {
            let mut times: Vec<Vec<f64>> = vec![Vec::new(); arms.len()];
            let mut failures: Vec<Option<String>> = vec![None; arms.len()];
            for entry in entries {
                let Some(launch) = plan.get(entry.launch).filter(|l| l.is_overlapped == is_overlapped) else {
                    continue;
                };
                let Some(arm) = arms.iter().position(|a| *a == launch.arm) else { continue };
                if launch.sizes.contains(size) {
                    times[arm].extend(entry.times_us.get(size).into_iter().flatten());
                    failures[arm] = entry.failure.clone().or(failures[arm].take());
                }
            }
            SizeLine::new(arms, &times, &failures, *size)
        };
        sizes.iter().map(line).collect()
    };
    let isolated = lines(false);
    let auto = arms.iter().position(|a| a.is_auto()).unwrap_or(0);
    if isolated.iter().all(|l| l.arms[auto].samples == 0) {
        let why = isolated.iter().find_map(|l| l.arms[auto].failure.clone()).unwrap_or("no samples".into());
        return Err(Failure::impossible(format!("AUTO could not be measured, so nothing can be compared: {why}")));
    }
    let provenance = Provenance {
        command: args.command.join(" "),
        beside: args.beside.clone(),
        linkwise: env!("CARGO_PKG_VERSION").into(),
        nccl_version: entries.iter().find_map(|e| e.nccl_version.clone()),
        started_unix_s: head.started_unix_s,
        iterations: args.iterations,
        warmup: args.warmup,
        rounds: args.rounds,
    };
    let overlapped = if args.overlap { lines(true) } else { Vec::new() };
    Ok(PolicyFile::new(provenance, arms, isolated, overlapped))
}

fn bar(length: u64, format: Format) -> ProgressBar {
    let bar = if format == Format::Json { ProgressBar::hidden() } else { ProgressBar::new(length) };
    let style = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} launches, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn report(args: &Args, file: &PolicyFile) -> Result<(), Failure> {
    if args.format == Format::Json {
        return print::pretty(&serde_json::to_value(file).map_err(Failure::impossible)?);
    }
    for (name, lines) in [("calls alone", &file.isolated), ("beside computation", &file.overlapped)] {
        if lines.is_empty() {
            continue;
        }
        println!("{name}");
        println!("{}", print::policy_table(file, lines));
    }
    let samples = journal::path_of(&args.output);
    println!("Policy in {}, samples in {}; sha256 {}", args.output.display(), samples.display(), file.sha256);
    println!("Next: linkwise tune characterize {}", args.output.display());
    Ok(())
}
