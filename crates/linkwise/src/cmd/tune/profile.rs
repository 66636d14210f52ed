//! `linkwise tune profile`: the offline run of [`autotune::profile`], with progress and tables.

use super::policy_table::policy_table;
use crate::interrupt;
use autotune::ProfileError;
use autotune::policy_file::Coverage;
use autotune::profile::{self, ProfileEvent, ProfileOptions, ProfileResult};
use console::number;
use console::{Failure, Format, Progress, duration, load_cluster, print, wrap};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use topology::nccl::Version;
use topology::{Bytes, Collective};

/// Sizes without --sizes and --job-trace, bytes.
const DEFAULT_SIZES: [u64; 6] = [256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20];
/// Least share of another collective that is named.
const OTHER_SHARE_MIN: f64 = 0.05;

/// Arguments of `linkwise tune profile`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  linkwise tune profile -o policy.json -- ./build/all_reduce_perf -g 8
  linkwise tune profile --cluster h100 --gpus 'n[0-1]' --channels 8,16 --minutes 10 -o policy.json -- \
mpirun -np 16 ./build/all_gather_perf
  linkwise tune profile --job-trace traces/ -o policy.json -- ./build/all_reduce_perf -g 8
  linkwise tune profile --overlap --sizes 64M -o policy.json -- python train.py

The program is one of nccl-tests (2.14 or newer), or any program that prints `linkwise_step_time_us=123.4` for each step, warm-up \
first. It starts once per arm and turn with NCCL_ALGO, NCCL_PROTO, NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS set (unset for AUTO), and \
with LINKWISE_ARM, LINKWISE_SIZE_BYTES, LINKWISE_ITERATIONS, LINKWISE_WARMUP and LINKWISE_OVERLAP. mpirun must pass them on: \
-x NCCL_ALGO -x NCCL_PROTO.

nccl-tests also get -b -e -f -w -n 1 -N, and -c 0 once an arm gave right results. In a shell line, write $LINKWISE_NCCL_TESTS where these \
options belong.")]
pub struct Args {
    /// Arms, such as AUTO,TREE/SIMPLE,RING/LL128@8; `available`: all that NCCL has for the collective
    #[arg(long, default_value = "available")]
    arms: String,
    /// Channel counts to try with each arm, such as 8,16,32, or auto
    #[arg(long, value_name = "COUNTS")]
    channels: Option<String>,
    /// Collective [default: the one in the nccl-tests program's name, else all_reduce]
    #[arg(long, value_parser = nccl_model::collective_by_name)]
    collective: Option<Collective>,
    /// Built-in cluster or cluster file: skips arms that NCCL does not have there, by a model
    #[arg(long)]
    cluster: Option<String>,
    /// The job's GPUs in the cluster, such as 'n[0-1]:[0-7]' [default: all usable ones]
    #[arg(long, requires = "cluster")]
    gpus: Option<String>,
    /// NCCL release of the model
    #[arg(long, default_value = "2.28", requires = "cluster")]
    nccl: Version,
    /// Buffer sizes, all ranks together [default: 256K,1M,4M,16M,64M,256M, or the sizes of --job-trace]
    #[arg(long, value_delimiter = ',', value_parser = Bytes::parse)]
    sizes: Vec<Bytes>,
    /// What a job left: collective and sizes are those that cost it most. Traces of the NCCL plugin, dumps or metrics of NCCL Inspector, JSON of
    /// PyTorch's flight recorder, a profiler's trace of one rank, or JSON lines: a file, or the folder of all ranks
    #[arg(long, value_name = "PATH")]
    job_trace: Option<PathBuf>,
    /// Time limit of the whole run, minutes; sizes and turns that do not fit are skipped and listed
    #[arg(long, default_value_t = 2.0, value_parser = number::real)]
    minutes: f64,
    /// Readings per arm and size
    #[arg(long, default_value_t = 50, value_parser = |s: &str| number::whole_within::<u32>(s, 1..=100_000))]
    iterations: u32,
    /// Readings discarded at the start of each launch
    #[arg(long, default_value_t = 10, value_parser = |s: &str| number::whole_within::<u32>(s, 0..=100_000))]
    warmup: u32,
    /// Most turns that the readings are spread over
    #[arg(long, default_value_t = 5, value_parser = |s: &str| number::whole_within::<u32>(s, 1..=1_000))]
    rounds: u32,
    /// Also measure while computation runs (LINKWISE_OVERLAP=1); nccl-tests need --background for this
    #[arg(long)]
    overlap: bool,
    /// Shell command that computes while the overlapped launches run
    #[arg(long, alias = "beside", requires = "overlap", value_name = "COMMAND")]
    background: Option<String>,
    /// Time limit of one launch; a launch that takes ten times as long as the first predicts also ends
    #[arg(long, default_value_t = 300.0, value_name = "SECONDS", value_parser = number::real)]
    timeout: f64,
    /// Policy file to write; a file next to it keeps the readings, so that a stopped run can resume
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Ignore stored readings and begin again
    #[arg(long)]
    restart: bool,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

pub fn run(args: Args) -> Result<(), Failure> {
    profile::check_command(&args.command).map_err(failure)?;
    let of_command = || profile::collective_of_command(&args.command);
    let job = args.job_trace.as_deref().map(|path| of_job(path, args.collective.or_else(of_command))).transpose()?;
    let of_job = job.as_ref().map(|j| j.collective);
    let collective = args.collective.or(of_job).or_else(of_command).unwrap_or(Collective::AllReduce);
    let wanted = match (&job, args.sizes.is_empty()) {
        (Some(job), true) => job.sizes.clone(),
        (None, true) => DEFAULT_SIZES.map(Bytes).to_vec(),
        (_, false) => args.sizes.clone(),
    };
    let sizes: Vec<u64> = wanted.iter().map(|s| s.0).collect();
    let communicator = args
        .cluster
        .as_deref()
        .map(|name| profile::communicator(&load_cluster(name)?, args.gpus.as_deref(), args.nccl).map_err(failure));
    let communicator = communicator.transpose()?;
    let arms = profile::arms_of(&args.arms, args.channels.as_deref(), collective, &sizes, communicator.as_ref());
    let options = ProfileOptions {
        arms: arms.map_err(failure)?,
        collective,
        sizes: wanted,
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
    let launches = Arc::new(AtomicUsize::new(0));
    let (so_far, output) = (Arc::clone(&launches), args.output.clone());
    interrupt::say_what_is_kept(move || stopped(so_far.load(Ordering::Relaxed), &output))?;
    let progress = Progress::new("launches", 1);
    let profiled = profile::run(&options, &mut |event| {
        if let ProfileEvent::Launching { done, .. } = &event {
            launches.store(*done, Ordering::Relaxed);
        }
        show(&progress, &event);
    });
    drop(progress);
    report(&args, &profiled.map_err(failure)?)
}

/// Collective and sizes of a job, with a line about them. `of_command`: the collective of the command or of --collective, which is the one measured.
fn of_job(path: &Path, of_command: Option<Collective>) -> Result<profile::JobSizes, Failure> {
    let calls = job::calls::read(path).map_err(Failure::input)?;
    let job = profile::sizes_of_job(&calls.kinds, of_command).ok_or_else(|| {
        let has: BTreeSet<&str> = calls.kinds.iter().map(|k| k.collective.name()).collect();
        let has = has.into_iter().collect::<Vec<_>>().join(", ");
        let what = of_command.map_or("collective", |c| c.name());
        Failure::input(format!("{}: the job has no {what}, it has {has}; --collective names another", path.display()))
    })?;
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let unit = if job.by_time {
        "of the time of its collectives"
    } else {
        "of the bytes of its collectives (the files have no times)"
    };
    let sizes: Vec<String> = job.sizes.iter().map(Bytes::to_string).collect();
    let (name, n) = (job.collective.name(), topology::count(job.calls, "call"));
    let mut line =
        format!("job: {n} of {name} in {}; {} are {} {unit}", calls.form.name(), sizes.join(", "), percent(job.share));
    for (other, share) in job.others.iter().filter(|o| o.1 >= OTHER_SHARE_MIN) {
        line += &format!("; {} is {}: profile it on its own", other.name(), percent(*share));
    }
    console::say(&line);
    Ok(job)
}

/// An error of the profile as a failure of the command.
fn failure(e: ProfileError) -> Failure {
    if e.is_malformed() { Failure::input(e) } else { Failure::impossible(e) }
}

/// The message at Ctrl-C.
fn stopped(launches: usize, output: &Path) -> String {
    format!(
        "stopped: the readings of {launches} launches are stored next to {}; the same command goes on from there, --restart begins anew",
        output.display()
    )
}

fn show(progress: &Progress, event: &ProfileEvent) {
    match event {
        ProfileEvent::Resumed { launches, began_s_ago, journal } => progress.say(&format!(
            "resumed: {launches} launch{} from {}, begun {} ago; --restart measures again",
            if *launches == 1 { "" } else { "es" },
            journal.display(),
            duration(*began_s_ago as f64),
        )),
        ProfileEvent::Planned { .. } => say_plan(progress, event),
        ProfileEvent::Launching { arm, done, left, seconds_left } => {
            let arm = if seconds_left.is_some() { arm } else { "AUTO, for the first time" };
            progress.set(*done, done + left, arm, *seconds_left);
        }
    }
}

fn say_plan(progress: &Progress, event: &ProfileEvent) {
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
    progress.say(&format!(
        "plan: {} turn{} of {launches_per_turn} launches, {iterations} readings each of {} size{}; {launches_left} launches left, about {}. \
         A launch starts in {}.",
        turns.0,
        plural(turns.0 as usize),
        sizes.0,
        plural(sizes.0),
        duration(*seconds_left),
        duration(*start_s),
    ));
    if turns.0 < turns.1 || sizes.0 < sizes.1 {
        let minutes = (seconds_of_all / 60.0).ceil();
        progress.say(&format!(
            "plan: {} turns of everything would take {}: --restart --minutes {minutes}",
            turns.1,
            duration(*seconds_of_all)
        ));
    }
}

fn report(args: &Args, profiled: &ProfileResult) -> Result<(), Failure> {
    if args.format == Format::Json {
        return console::print_json(&serde_json::to_value(&profiled.file).map_err(Failure::impossible)?);
    }
    print(&text(args, profiled));
    Ok(())
}

fn text(args: &Args, profiled: &ProfileResult) -> String {
    let ProfileResult { file, tables, journal } = profiled;
    let mut out = String::new();
    for (name, lines) in [("calls alone", &file.isolated), ("during computation", &file.overlapped)] {
        if !lines.is_empty() {
            out += &format!("{name}\n{}\n", policy_table(file, lines));
        }
    }
    let kept = &file.provenance.kept;
    let turns = if kept.turns == 1 { "turn" } else { "turns" };
    out += &wrap(&format!("{} {turns} in {}.{}", kept.turns, duration(kept.took_s), what_is_missing(kept)), 2);
    for warning in &file.provenance.warnings {
        out += &wrap(&format!("Warning: {warning}."), 2);
    }
    out += &wrap(
        &format!("Policy in {}, readings in {}; sha256 {}", args.output.display(), journal.display(), file.sha256),
        2,
    );
    out += &format!("Next: linkwise tune characterize {}\n", args.output.display());
    for (table, when) in tables.iter().zip(["", "   (if its calls run during computation)"]) {
        out += &format!("      linkwise run --profile {} -- JOB{when}\n", table.display());
    }
    out
}

fn what_is_missing(kept: &Coverage) -> String {
    let more = "the same command with more --minutes goes on from there";
    let stopped = kept.stopped.as_ref().map(|why| format!(" It ended early: {why}; {more}."));
    let names: Vec<String> = kept.sizes_left_out.iter().map(|s| Bytes(*s).to_string()).collect();
    let sizes = (!names.is_empty())
        .then(|| format!(" Left out for want of time: {} (--restart and more --minutes).", names.join(", ")));
    format!("{}{}", stopped.unwrap_or_default(), sizes.unwrap_or_default())
}
