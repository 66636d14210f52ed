//! `linkwise tune profile`: the offline run. Arms take turns, AUTO among them, so that what changes on the machine meanwhile hits all
//! alike; what fits into the time is planned from a first launch ([`plan`]) and kept to ([`schedule`]).

mod arms;
mod journal;
mod launch;
mod nccl_tests;
mod plan;
mod samples;
mod schedule;
mod table;

use super::policy_table::policy_table;
use crate::cmd::nccl::collective;
use ::tune::Arm;
use autotune::policy_file::{Kept, PolicyFile, Provenance, SizeLine};
use console::Failure;
use console::Format;
use files::write_atomic;
use indicatif::{ProgressBar, ProgressStyle};
use journal::{Entry, Head, Journal, KeptPlan, Line};
use launch::{Failed, Launch};
use plan::Ask;
use samples::{Place, Refused};
use schedule::{Next, Schedule};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};
use topology::nccl::Version;
use topology::{Bytes, Collective};

/// Longest time that can be given, minutes: a week.
const MINUTES_MAX: f64 = 7.0 * 24.0 * 60.0;

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
    #[arg(long, default_value_t = 2.0)]
    minutes: f64,
    /// Samples of each arm at each size
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    iterations: u32,
    /// Samples thrown away at the start of each launch
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    warmup: u32,
    /// Turns that the samples are spread over, at most
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Measure beside computation as well (LINKWISE_OVERLAP=1); nccl-tests need --beside for that
    #[arg(long)]
    overlap: bool,
    /// Shell command that computes; runs beside the overlapped launches
    #[arg(long, requires = "overlap", value_name = "COMMAND")]
    beside: Option<String>,
    /// Longest time of one launch; ten times what the first lets expect is enough, too
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
    nccl_tests::check(&args.command)?;
    let is_nccl_tests = nccl_tests::is_one(&args.command);
    let collective = args.collective.or_else(|| nccl_tests::collective(&args.command)).unwrap_or(Collective::AllReduce);
    let sizes = sizes(&args.sizes)?;
    let machine =
        args.cluster.as_deref().map(|cluster| arms::Machine { cluster, gpus: args.gpus.as_deref(), nccl: args.nccl });
    let arms = arms::of(&args.arms, args.channels.as_deref(), collective, &sizes, machine.as_ref())?;
    let timeout = Duration::try_from_secs_f64(args.timeout).ok().filter(|t| !t.is_zero());
    let timeout = timeout.ok_or_else(|| Failure::input(format!("--timeout {:?}: seconds above 0", args.timeout)))?;
    if !(args.minutes > 0.0 && args.minutes <= MINUTES_MAX) {
        return Err(Failure::input(format!("--minutes {:?}: above 0 and at most {MINUTES_MAX}", args.minutes)));
    }
    if args.overlap && args.beside.is_none() && is_nccl_tests {
        return Err(Failure::input(
            "nccl-tests do not compute: with --overlap, name a program that does with --beside 'COMMAND'",
        ));
    }
    if args.output.is_dir() || args.output.file_name().is_none() {
        return Err(Failure::input(format!("--output {}: a file was expected", args.output.display())));
    }
    let ask = Ask {
        arms: arms.len(),
        kinds: if args.overlap { 2 } else { 1 },
        is_in_one_go: is_nccl_tests && nccl_tests::factor(&sizes).is_some(),
        sizes,
        iterations: args.iterations,
        turns: args.rounds,
    };
    let head = head(&args, &ask, &arms, collective);
    let mut schedule = Schedule::new(ask, &arms, args.warmup, is_nccl_tests, 60.0 * args.minutes);
    let path = journal::path_of(&args.output);
    let (mut journal, head, found) = Journal::open(&path, &head, args.restart)?;
    let mut is_planned = false;
    for (number, line) in found {
        let done = match line {
            Line::Launch(entry) => match schedule.put_again(*entry) {
                true => Ok(()),
                false => Err("this launch does not follow from those before it".to_owned()),
            },
            Line::Plan(plan) => {
                is_planned = true;
                schedule.keep_to(&plan)
            }
        };
        done.map_err(|why| journal::bad_line(&path, number, &why))?;
    }
    let taken_over = schedule.entries().len();
    if taken_over > 0 {
        eprintln!(
            "{taken_over} launch{} of a run that began {} ago taken over from {}; --restart measures again",
            if taken_over == 1 { "" } else { "es" },
            time(unix_s().saturating_sub(head.started_unix_s) as f64),
            path.display()
        );
    }
    measure(&args, &mut schedule, &mut journal, is_planned, timeout)?;
    let file = evaluate(&args, &head, &arms, collective, &schedule)?;
    write_atomic(&args.output, &file.text().map_err(Failure::impossible)?)?;
    let mut tables = vec![journal::beside(&args.output, ".table")];
    write_atomic(&tables[0], &table::text(&file, false).map_err(Failure::impossible)?)?;
    let overlapped = journal::beside(&args.output, ".overlapped.table");
    if args.overlap {
        write_atomic(&overlapped, &table::text(&file, true).map_err(Failure::impossible)?)?;
        tables.push(overlapped);
    } else if overlapped.exists() {
        // It belongs to a run before this one.
        std::fs::remove_file(&overlapped).map_err(|e| Failure::file("remove", &overlapped, e))?;
    }
    report(&args, &file, &tables)
}

/// Launches until the schedule has enough. `is_planned`: the journal has the plan already.
fn measure(
    args: &Args,
    schedule: &mut Schedule,
    journal: &mut Journal,
    is_planned: bool,
    timeout: Duration,
) -> Result<(), Failure> {
    let bar = bar(args.format);
    let mut is_said = false;
    loop {
        match schedule.next() {
            Next::Launch(launch) => {
                if let (false, Some((plan, cost))) = (is_said, schedule.plan()) {
                    bar.suspend(|| say_plan(args, schedule, plan, cost));
                    if !is_planned && schedule.entries().len() == 1 {
                        let sizes = plan.sizes.clone();
                        journal.add_plan(&KeptPlan { turns: plan.turns, iterations: plan.iterations, sizes })?;
                    }
                    is_said = true;
                }
                let (left, seconds) = schedule.left();
                bar.set_length((schedule.entries().len() + left) as u64);
                bar.set_position(schedule.entries().len() as u64);
                bar.set_message(match schedule.plan() {
                    None => "a first launch of AUTO".to_owned(),
                    Some(_) => format!("{}, about {} left", launch.arm, time(seconds)),
                });
                let limit = schedule.limit_s(&launch).map_or(timeout, |s| timeout.min(Duration::from_secs_f64(s)));
                let entry = one(args, launch, limit)?;
                check_place(schedule, &entry)?;
                // A pilot that failed is tried again next time.
                if !(schedule.entries().is_empty() && entry.failure.is_some()) {
                    journal.add(&entry)?;
                }
                schedule.put(entry);
            }
            Next::Done => {
                bar.finish_and_clear();
                return Ok(());
            }
            Next::NoAuto(why) => {
                bar.finish_and_clear();
                return Err(Failure::impossible(format!(
                    "AUTO could not be measured, so nothing can be compared: {why}"
                )));
            }
            Next::TooShort(least) => {
                bar.finish_and_clear();
                let all = schedule.seconds_of_all().unwrap_or(0.0);
                return Err(Failure::impossible(format!(
                    "--minutes {}: one turn of {} launches with {} samples takes about {}, all that was asked for {}; give --minutes {} or \
                     fewer --arms",
                    args.minutes,
                    least.launches,
                    least.iterations,
                    time(least.seconds),
                    time(all),
                    (all / 60.0).ceil(),
                )));
            }
        }
    }
}

fn say_plan(args: &Args, schedule: &Schedule, plan: &plan::Plan, cost: &plan::Cost) {
    let (launches, seconds) = schedule.left();
    eprintln!(
        "plan: {} turn{} of {} launches, {} samples each of {} size{}; {launches} launches are left, about {}. A launch starts in {}.",
        plan.turns,
        if plan.turns == 1 { "" } else { "s" },
        plan.launches,
        plan.iterations,
        plan.sizes.len(),
        if plan.sizes.len() == 1 { "" } else { "s" },
        time(seconds),
        time(cost.start_s),
    );
    let asked = args.rounds.min(args.iterations);
    if plan.turns < asked || plan.sizes.len() < args.sizes.len() {
        let all = schedule.seconds_of_all().unwrap_or(0.0);
        let minutes = (all / 60.0).ceil();
        eprintln!("plan: {asked} turns of everything would take {}: --restart --minutes {minutes}", time(all));
    }
}

/// Seconds since 1970, now.
fn unix_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs())
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

fn head(args: &Args, ask: &Ask, arms: &[Arm], collective: Collective) -> Head {
    Head {
        linkwise_tune_samples: journal::VERSION,
        command: args.command.clone(),
        beside: args.beside.clone(),
        collective: collective.name().to_owned(),
        arms: arms.iter().map(ToString::to_string).collect(),
        sizes: ask.sizes.clone(),
        overlap: args.overlap,
        iterations: args.iterations,
        warmup: args.warmup,
        rounds: args.rounds,
        started_unix_s: unix_s(),
    }
}

/// One launch. What should run beside it and does not ends the whole run: no launch beside computation could succeed.
fn one(args: &Args, launch: Launch, timeout: Duration) -> Result<Entry, Failure> {
    let start = Instant::now();
    let said = launch::run(&args.command, &launch, args.beside.as_deref(), timeout);
    let seconds = start.elapsed().as_secs_f64();
    let read = match said {
        Ok(output) => samples::read(&output, &launch.sizes, launch.warmup),
        Err(Failed::Program { why, output }) => {
            Err(samples::wrong(&output).map_or(Refused::Unreadable(why), Refused::Wrong))
        }
        Err(Failed::Beside(why)) => return Err(Failure::input(why)),
    };
    let (times_us, place) = (Default::default(), Place::default());
    let empty = Entry { launch, seconds, times_us, is_checked: false, failure: None, is_wrong: false, place };
    Ok(match read {
        Ok(s) => Entry { times_us: s.times_us, is_checked: s.is_checked, place: s.place, ..empty },
        Err(Refused::Unreadable(why)) => Entry { failure: Some(why), ..empty },
        Err(Refused::Wrong(why)) => Entry { failure: Some(why), is_wrong: true, ..empty },
    })
}

/// Refuses a launch that ran elsewhere than those before it, in this part of the run or an earlier one.
fn check_place(schedule: &Schedule, entry: &Entry) -> Result<(), Failure> {
    let difference = schedule.entries().iter().find_map(|e| entry.place.difference(&e.place));
    difference.map_or(Ok(()), |difference| {
        Err(Failure::impossible(format!(
            "{} now runs on {difference} as the launches before it: their times cannot be compared; --restart measures all again",
            entry.launch.arm
        )))
    })
}

fn evaluate(
    args: &Args,
    head: &Head,
    arms: &[Arm],
    collective: Collective,
    schedule: &Schedule,
) -> Result<PolicyFile, Failure> {
    let (plan, _) = schedule.plan().ok_or_else(|| Failure::impossible("nothing was measured"))?;
    let lines = |is_overlapped: bool| -> Vec<SizeLine> {
        let line = |size: &u64| {
            let mut turns: Vec<Vec<Vec<f64>>> = vec![Vec::new(); arms.len()];
            let mut failures: Vec<Option<String>> = arms.iter().map(|a| schedule.hopeless(&a.to_string())).collect();
            for entry in schedule.counted().iter().filter(|e| e.launch.is_overlapped == is_overlapped) {
                let Some(arm) = arms.iter().position(|a| a.to_string() == entry.launch.arm) else { continue };
                if entry.launch.sizes.contains(size) {
                    // Every turn launches every arm once, until it is given up: the n-th launch is that of turn n.
                    turns[arm].push(entry.times_us.get(size).cloned().unwrap_or_default());
                    failures[arm] = entry.failure.clone().or(failures[arm].take());
                }
            }
            for (i, arm) in arms.iter().enumerate() {
                if let Some(why) = schedule.untrusted(&arm.to_string(), *size, is_overlapped) {
                    (turns[i], failures[i]) = (Vec::new(), Some(why));
                }
            }
            SizeLine::of_turns(arms, &turns, &failures, *size)
        };
        plan.sizes.iter().map(line).collect()
    };
    let isolated = lines(false);
    let auto = arms.iter().position(|a| a.is_auto()).unwrap_or(0);
    if isolated.iter().all(|l| l.arms[auto].samples == 0) {
        let why = isolated.iter().find_map(|l| l.arms[auto].failure.clone()).unwrap_or("no samples".into());
        return Err(Failure::impossible(format!("AUTO could not be measured, so nothing can be compared: {why}")));
    }
    // All launches ran in one place; those that failed may not have said where.
    let place =
        schedule.entries().iter().map(|e| &e.place).find(|p| **p != Place::default()).cloned().unwrap_or_default();
    let overlapped = if args.overlap { lines(true) } else { Vec::new() };
    let provenance = Provenance {
        command: args.command.join(" "),
        beside: args.beside.clone(),
        collective: collective.name().to_owned(),
        ranks: place.ranks,
        hosts: place.hosts,
        ranks_per_host: place.ranks_per_host,
        gpus: place.gpus,
        linkwise: env!("CARGO_PKG_VERSION").into(),
        nccl_version: place.nccl_version,
        started_unix_s: head.started_unix_s,
        iterations: args.iterations,
        warmup: args.warmup,
        rounds: args.rounds,
        kept: Kept {
            minutes: args.minutes,
            took_s: schedule.used_s(),
            turns: schedule.turns_done(),
            iterations_per_launch: plan.iterations,
            sizes_left_out: head.sizes.iter().copied().filter(|s| !plan.sizes.contains(s)).collect(),
            stopped: schedule.stopped().map(str::to_owned),
        },
        warnings: warnings(schedule.turns_done(), &isolated, &overlapped),
    };
    Ok(PolicyFile::new(provenance, arms, isolated, overlapped))
}

/// What whoever uses the policy should know.
fn warnings(turns: u32, isolated: &[SizeLine], overlapped: &[SizeLine]) -> Vec<String> {
    let mut out = Vec::new();
    if turns < 2 {
        out.push(
            "one turn only: every arm's samples come from one launch, which is slow or fast as a whole, and no second launch was asked; give \
             it more --minutes or fewer --arms with --restart"
                .to_owned(),
        );
    }
    let lines = || isolated.iter().chain(overlapped);
    let wrong =
        lines().flat_map(|l| &l.arms).filter_map(|a| a.failure.as_deref()).find(|f| f.starts_with("ruled out: "));
    out.extend(
        wrong.map(|why| {
            format!("an arm was ruled out whatever time it takes: {}", why.trim_start_matches("ruled out: "))
        }),
    );
    out
}

fn bar(format: Format) -> ProgressBar {
    let bar = if format == Format::Json { ProgressBar::hidden() } else { ProgressBar::new(1) };
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} launches: {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn report(args: &Args, file: &PolicyFile, tables: &[PathBuf]) -> Result<(), Failure> {
    if args.format == Format::Json {
        return console::print_json(&serde_json::to_value(file).map_err(Failure::impossible)?);
    }
    for (name, lines) in [("calls alone", &file.isolated), ("beside computation", &file.overlapped)] {
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
    let samples = journal::path_of(&args.output);
    println!("Policy in {}, samples in {}; sha256 {}", args.output.display(), samples.display(), file.sha256);
    println!("Next: linkwise tune characterize {}", args.output.display());
    for (table, when) in tables.iter().zip(["", "   (if its calls run beside computation)"]) {
        println!("      linkwise run --profile {} -- JOB{when}", table.display());
    }
    Ok(())
}

fn what_is_missing(kept: &Kept) -> String {
    let more = "the same command with more --minutes goes on from there";
    let stopped = kept.stopped.as_ref().map(|why| format!(" It ended early: {why}; {more}."));
    let names: Vec<String> = kept.sizes_left_out.iter().map(|s| Bytes(*s).to_string()).collect();
    let sizes = (!names.is_empty())
        .then(|| format!(" Left out for want of time: {} (--restart and more --minutes).", names.join(", ")));
    format!("{}{}", stopped.unwrap_or_default(), sizes.unwrap_or_default())
}
