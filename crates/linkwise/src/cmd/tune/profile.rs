//! `linkwise tune profile`: the offline run of [`autotune::profile`], with its progress and its tables.

use super::policy_table::policy_table;
use crate::cmd::nccl::{collective, communicator_of};
use autotune::ProfileError;
use autotune::policy_file::Coverage;
use autotune::profile::{self, ProfileEvent, ProfileOptions, ProfileResult};
use console::{Failure, Format, say};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;
use topology::nccl::Version;
use topology::{Bytes, Collective, number};

/// Arguments of `linkwise tune profile`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  linkwise tune profile -o policy.json -- ./build/all_reduce_perf -g 8\n  \
    linkwise tune profile --cluster h100 --gpus 'n0 n1' --channels 8,16 --minutes 10 -o policy.json -- mpirun -np 16 ./build/all_gather_perf\n  \
    linkwise tune profile --overlap --sizes 64M -o policy.json -- python train.py\n\n\
    The program is one of nccl-tests 2.14 or newer (it gets -b -e -f -w -n 1 -N, and -c 0 once an arm was right; in a shell line write \
    $LINKWISE_NCCL_TESTS where they belong), or any program that prints `linkwise_step_time_us=123.4` for every step, warm-up first. It is \
    started once per arm and turn with NCCL_ALGO, NCCL_PROTO and NCCL_MIN/MAX_NCHANNELS set (unset for AUTO), and LINKWISE_ARM, \
    LINKWISE_SIZE_BYTES, LINKWISE_ITERATIONS, LINKWISE_WARMUP and LINKWISE_OVERLAP. With mpirun, pass them on: -x NCCL_ALGO -x NCCL_PROTO.")]
pub struct Args {
    /// The arms, for example AUTO,TREE/SIMPLE,RING/LL128@8; `available`: all that NCCL has for the collective
    #[arg(long, default_value = "available")]
    arms: String,
    /// Channel counts to try each arm with as well, for example 8,16,32, or auto
    #[arg(long, value_name = "COUNTS")]
    channels: Option<String>,
    /// The collective [default: the one of nccl-tests' name, else all_reduce]
    #[arg(long, value_parser = collective)]
    collective: Option<Collective>,
    /// Built-in cluster or cluster file: arms that NCCL's model knows not to be available there are left out
    #[arg(long)]
    cluster: Option<String>,
    /// The job's GPUs on it (`n0 n1:0`); default: all usable ones
    #[arg(long, requires = "cluster")]
    gpus: Option<String>,
    /// NCCL release of the model
    #[arg(long, default_value = "2.28", requires = "cluster")]
    nccl: Version,
    /// Sizes of the whole buffer
    #[arg(long, value_delimiter = ',', value_parser = Bytes::parse, default_value = "256K,1M,4M,16M,64M,256M")]
    sizes: Vec<Bytes>,
    /// Time for all of it: what does not fit is left out, and said
    #[arg(long, default_value_t = 2.0, value_parser = number::real)]
    minutes: f64,
    /// Samples of each arm at each size
    #[arg(long, default_value_t = 50, value_parser = |s: &str| number::whole_within::<u32>(s, 1..=100_000))]
    iterations: u32,
    /// Samples thrown away at the start of each launch
    #[arg(long, default_value_t = 10, value_parser = |s: &str| number::whole_within::<u32>(s, 0..=100_000))]
    warmup: u32,
    /// Turns that the samples are spread over, at most
    #[arg(long, default_value_t = 5, value_parser = |s: &str| number::whole_within::<u32>(s, 1..=1_000))]
    rounds: u32,
    /// Measure calls during computation as well (LINKWISE_OVERLAP=1); nccl-tests need --background for that
    #[arg(long)]
    overlap: bool,
    /// Shell command that computes; runs during the overlapped launches
    #[arg(long, alias = "beside", requires = "overlap", value_name = "COMMAND")]
    background: Option<String>,
    /// Longest time of one launch; ten times the expected time is a limit, too
    #[arg(long, default_value_t = 300.0, value_name = "SECONDS", value_parser = number::real)]
    timeout: f64,
    /// The policy file; samples go to a file next to it, from which an interrupted run continues
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
    profile::check_command(&args.command).map_err(failure)?;
    let of_command = || profile::collective_of_command(&args.command);
    let collective = args.collective.or_else(of_command).unwrap_or(Collective::AllReduce);
    let sizes: Vec<u64> = args.sizes.iter().map(|s| s.0).collect();
    let communicator =
        args.cluster.as_deref().map(|c| communicator_of(c, args.gpus.as_deref(), args.nccl)).transpose()?;
    let arms = profile::arms_of(&args.arms, args.channels.as_deref(), collective, &sizes, communicator.as_ref());
    let options = ProfileOptions {
        arms: arms.map_err(failure)?,
        collective,
        sizes: args.sizes.clone(),
        minutes: args.minutes,
        iterations: args.iterations,
        warmup: args.warmup,
        rounds: args.rounds,
        overlap: args.overlap,
        background_command: args.background.clone(),
        timeout_s: args.timeout,
        output: args.output.clone(),
        restart: args.restart,
        command: args.command.clone(),
        now_unix_s: console::now_unix_s() as u64,
        written_by: env!("CARGO_PKG_VERSION").into(),
    };
    let bar = bar(args.format);
    let profiled = profile::run(&options, &mut |event| show(&bar, &event));
    bar.finish_and_clear();
    report(&args, &profiled.map_err(failure)?)
}

/// A profile's error as the command's failure.
fn failure(e: ProfileError) -> Failure {
    if e.is_malformed() { Failure::input(e) } else { Failure::impossible(e) }
}

fn show(bar: &ProgressBar, event: &ProfileEvent) {
    match event {
        ProfileEvent::Resumed { launches, began_s_ago, journal } => bar.suspend(|| {
            say(&format!(
                "{launches} launch{} of a run that began {} ago taken over from {}; --restart measures again",
                if *launches == 1 { "" } else { "es" },
                time(*began_s_ago as f64),
                journal.display()
            ));
        }),
        ProfileEvent::Planned { .. } => bar.suspend(|| say_plan(event)),
        ProfileEvent::Launching { arm, done, left, seconds_left } => {
            bar.set_length((done + left) as u64);
            bar.set_position(*done as u64);
            bar.set_message(match seconds_left {
                None => "a first launch of AUTO".to_owned(),
                Some(s) => format!("{arm}, about {} left", time(*s)),
            });
        }
    }
}

fn say_plan(event: &ProfileEvent) {
    let ProfileEvent::Planned {
        turns,
        launches_per_turn,
        iterations,
        sizes,
        launches_left,
        seconds_left,
        start_s,
        seconds_of_all,
    } = event
    else {
        return;
    };
    let plural = |n: usize| if n == 1 { "" } else { "s" };
    say(&format!(
        "plan: {} turn{} of {launches_per_turn} launches, {iterations} samples each of {} size{}; {launches_left} launches are left, about {}. \
         A launch starts in {}.",
        turns.0,
        plural(turns.0 as usize),
        sizes.0,
        plural(sizes.0),
        time(*seconds_left),
        time(*start_s),
    ));
    if turns.0 < turns.1 || sizes.0 < sizes.1 {
        let minutes = (seconds_of_all / 60.0).ceil();
        say(&format!(
            "plan: {} turns of everything would take {}: --restart --minutes {minutes}",
            turns.1,
            time(*seconds_of_all)
        ));
    }
}

/// `1.5 s`, `85 s`, `12 min`, `5 h` or `3 days`.
fn time(seconds: f64) -> String {
    match seconds {
        s if s < 9.95 => format!("{s:.1} s"),
        s if s < 600.0 => format!("{s:.0} s"),
        s if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3_600.0),
        s => format!("{:.0} days", s / 86_400.0),
    }
}

fn bar(format: Format) -> ProgressBar {
    let bar = if format == Format::Json { ProgressBar::hidden() } else { ProgressBar::new(1) };
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} launches: {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn report(args: &Args, profiled: &ProfileResult) -> Result<(), Failure> {
    let ProfileResult { file, tables, journal } = profiled;
    if args.format == Format::Json {
        return console::print_json(&serde_json::to_value(file).map_err(Failure::impossible)?);
    }
    for (name, lines) in [("calls alone", &file.isolated), ("during computation", &file.overlapped)] {
        if lines.is_empty() {
            continue;
        }
        println!("{name}");
        println!("{}", policy_table(file, lines));
    }
    let kept = &file.provenance.kept;
    let turns = if kept.turns == 1 { "turn" } else { "turns" };
    println!("{} {turns} in {}.{}", kept.turns, time(kept.took_s), what_is_missing(kept));
    file.provenance.warnings.iter().for_each(|w| println!("Warning: {w}."));
    println!("Policy in {}, samples in {}; sha256 {}", args.output.display(), journal.display(), file.sha256);
    println!("Next: linkwise tune characterize {}", args.output.display());
    for (table, when) in tables.iter().zip(["", "   (if its calls run during computation)"]) {
        println!("      linkwise run --profile {} -- JOB{when}", table.display());
    }
    Ok(())
}

fn what_is_missing(kept: &Coverage) -> String {
    let more = "the same command with more --minutes goes on from there";
    let stopped = kept.stopped.as_ref().map(|why| format!(" It ended early: {why}; {more}."));
    let names: Vec<String> = kept.sizes_left_out.iter().map(|s| Bytes(*s).to_string()).collect();
    let sizes = (!names.is_empty())
        .then(|| format!(" Left out for want of time: {} (--restart and more --minutes).", names.join(", ")));
    format!("{}{}", stopped.unwrap_or_default(), sizes.unwrap_or_default())
}
