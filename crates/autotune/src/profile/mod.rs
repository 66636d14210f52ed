//! The offline run: measures every arm at every size before a job. The arms take turns and AUTO is one of them, so that
//! a change of the machine during the run affects all arms equally. [`plan`] chooses the measurements that fit into the
//! time from a first launch, [`schedule`] follows the plan, [`journal`] lets an interrupted run continue.

mod arms;
mod job;
mod journal;
mod launch;
mod nccl_tests;
mod plan;
mod readings;
mod schedule;
mod table;

pub use arms::{communicator, known, of as arms_of};
pub use job::{JobSizes, sizes_of_job};
pub use journal::{path_of as journal_of, sibling};
pub use nccl_tests::{check as check_command, collective as collective_of_command, is_one as is_nccl_tests};

use crate::ProfileError;
use crate::policy_file::{Coverage, PolicyFile, Provenance, SizeLine};
use ::tune::Arm;
use files::write_atomic;
use journal::{Journal, JournalHeader, JournalLine, JournaledPlan, LaunchRecord};
use launch::{Launch, LaunchError};
use plan::PlanRequest;
use readings::{LaunchSite, OutputError};
use schedule::{NextStep, Schedule};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use topology::{Bytes, Collective};

/// Largest value of `--minutes`: a week.
const MINUTES_MAX: f64 = 7.0 * 24.0 * 60.0;

/// The options of an offline run.
#[derive(Debug, Clone)]
pub struct ProfileOptions {
    /// The arms, including AUTO ([`arms_of`]).
    pub arms: Vec<Arm>,
    /// The collective that the program runs.
    pub collective: Collective,
    /// Sizes of the whole buffer.
    pub sizes: Vec<Bytes>,
    /// Time of the whole run, minutes.
    pub minutes: f64,
    /// Readings of each arm at each size.
    pub iterations: u32,
    /// Discarded readings at the start of each launch.
    pub warmup: u32,
    /// Largest number of turns that the readings are spread over.
    pub rounds: u32,
    /// Whether calls during computation are measured as well.
    pub overlap: bool,
    /// A shell command that computes during the overlapped launches.
    pub background_command: Option<String>,
    /// Longest time of one launch, seconds.
    pub timeout_s: f64,
    /// The policy file; the journal and the plugin's tables lie in the same folder.
    pub output: PathBuf,
    /// Whether to discard an existing journal.
    pub restart: bool,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Now, seconds since 1970.
    pub now_unix_s: u64,
    /// The program that writes the file, with its version.
    pub written_by: String,
}

/// Progress of a run.
#[derive(Debug)]
pub enum ProfileEvent<'a> {
    /// Launches of an earlier part of this run are used again.
    Resumed {
        /// Number of these launches.
        launches: usize,
        /// Seconds since that part began.
        began_s_ago: u64,
        /// The journal.
        journal: &'a Path,
    },
    /// The plan after the first launch.
    Planned {
        /// Planned turns, and requested turns.
        turns: (u32, u32),
        /// Launches of one turn.
        launches_per_turn: usize,
        /// Readings of each launch and size.
        iterations: u32,
        /// Planned sizes, and requested sizes.
        sizes: (usize, usize),
        /// Launches left.
        launches_left: usize,
        /// Seconds left.
        seconds_left: f64,
        /// Time to start the program, seconds.
        start_s: f64,
        /// Time of everything requested, seconds.
        seconds_of_all: f64,
    },
    /// A launch begins.
    Launching {
        /// Its arm.
        arm: &'a str,
        /// Launches done.
        done: usize,
        /// Launches left, this one included.
        left: usize,
        /// Seconds left; none before the plan.
        seconds_left: Option<f64>,
    },
}

/// The result of a run and its files.
#[derive(Debug)]
pub struct ProfileResult {
    /// The policy.
    pub file: PolicyFile,
    /// The plugin's tables: for calls alone, and for calls during computation if these were measured.
    pub tables: Vec<PathBuf>,
    /// The journal.
    pub journal: PathBuf,
}

/// Checks the options, resumes the journal, measures, and writes the policy file and the plugin's tables.
///
/// # Errors
/// [`ProfileError::Input`] for options or files that cannot be used, [`ProfileError::Impossible`] if nothing could be
/// compared.
pub fn run(
    options: &ProfileOptions,
    on_event: &mut dyn FnMut(ProfileEvent<'_>),
) -> Result<ProfileResult, ProfileError> {
    let timeout = check_options(options)?;
    let sizes = sizes(&options.sizes)?;
    let is_nccl_tests = nccl_tests::is_one(&options.command);
    let ask = PlanRequest {
        arms: options.arms.len(),
        kinds: if options.overlap { 2 } else { 1 },
        is_in_one_go: is_nccl_tests && nccl_tests::factor(&sizes).is_some(),
        sizes,
        iterations: options.iterations,
        turns: options.rounds,
    };
    let wanted = head(options, &ask);
    let schedule = Schedule::new(ask, &options.arms, options.warmup, is_nccl_tests, 60.0 * options.minutes);
    let path = journal::path_of(&options.output);
    let (journal, head, found) = Journal::open(&path, &wanted, options.restart)?;
    let mut run = Run { options, head, schedule, journal, is_planned: false, timeout };
    run.resume(&path, found)?;
    if !run.schedule.entries().is_empty() {
        let began_s_ago = options.now_unix_s.saturating_sub(run.head.started_unix_s);
        on_event(ProfileEvent::Resumed { launches: run.schedule.entries().len(), began_s_ago, journal: &path });
    }
    run.measure(on_event)?;
    let file = run.policy()?;
    let tables = write(options, &file)?;
    Ok(ProfileResult { file, tables, journal: path })
}

fn check_options(o: &ProfileOptions) -> Result<Duration, ProfileError> {
    nccl_tests::check(&o.command)?;
    let timeout = Duration::try_from_secs_f64(o.timeout_s).ok().filter(|t| !t.is_zero());
    let timeout =
        timeout.ok_or_else(|| ProfileError::input(format!("--timeout {:?}: seconds above 0", o.timeout_s)))?;
    if !(o.minutes > 0.0 && o.minutes <= MINUTES_MAX) {
        return Err(ProfileError::input(format!("--minutes {:?}: above 0 and at most {MINUTES_MAX}", o.minutes)));
    }
    if o.overlap && o.background_command.is_none() && nccl_tests::is_one(&o.command) {
        return Err(ProfileError::input(
            "nccl-tests do not compute: with --overlap, name a program that does with --background 'COMMAND'",
        ));
    }
    if o.output.is_dir() || o.output.file_name().is_none() {
        return Err(ProfileError::input(format!("--output {}: a file was expected", o.output.display())));
    }
    Ok(timeout)
}

/// Writes the policy file and the tables; a table of overlapped calls that this run did not measure is removed.
fn write(options: &ProfileOptions, file: &PolicyFile) -> Result<Vec<PathBuf>, ProfileError> {
    write_atomic(&options.output, file.text().map_err(ProfileError::impossible)?)?;
    let mut tables = vec![journal::sibling(&options.output, ".table")];
    write_atomic(&tables[0], table::text(file, false).map_err(ProfileError::impossible)?)?;
    let overlapped = journal::sibling(&options.output, ".overlapped.table");
    if options.overlap {
        write_atomic(&overlapped, table::text(file, true).map_err(ProfileError::impossible)?)?;
        tables.push(overlapped);
    } else if overlapped.exists() {
        std::fs::remove_file(&overlapped).map_err(|e| ProfileError::file("remove", &overlapped, e))?;
    }
    Ok(tables)
}

/// One run: its plan, its measurements and their journal.
struct Run<'o> {
    options: &'o ProfileOptions,
    head: JournalHeader,
    schedule: Schedule,
    journal: Journal,
    /// Whether the journal holds the plan.
    is_planned: bool,
    timeout: Duration,
}

impl Run<'_> {
    /// Restores the launches and the plan of a journal.
    fn resume(&mut self, path: &Path, found: journal::Numbered) -> Result<(), ProfileError> {
        for (number, line) in found {
            let done = match line {
                JournalLine::Launch(entry) => match self.schedule.put_again(*entry) {
                    true => Ok(()),
                    false => Err("this launch does not follow from the launches before it".to_owned()),
                },
                JournalLine::Plan(plan) => {
                    self.is_planned = true;
                    self.schedule.keep_to(&plan)
                }
            };
            done.map_err(|why| journal::bad_line(path, number, &why))?;
        }
        Ok(())
    }

    /// Launches until the schedule has enough.
    fn measure(&mut self, on_event: &mut dyn FnMut(ProfileEvent<'_>)) -> Result<(), ProfileError> {
        let mut is_said = false;
        loop {
            let launch = match self.schedule.next() {
                NextStep::Done => return Ok(()),
                NextStep::Launch(launch) => launch,
                NextStep::NoAuto(why) => return Err(no_auto(&why)),
                NextStep::TooShort(least) => {
                    return Err(ProfileError::TooShort {
                        minutes: self.options.minutes,
                        launches: least.launches,
                        iterations: least.iterations,
                        least_s: least.seconds,
                        all_s: self.schedule.seconds_of_all().unwrap_or(0.0),
                    });
                }
            };
            if !is_said && self.say_plan(on_event)? {
                is_said = true;
            }
            let (left, seconds) = self.schedule.left();
            on_event(ProfileEvent::Launching {
                arm: &launch.arm,
                done: self.schedule.entries().len(),
                left,
                seconds_left: self.schedule.plan().map(|_| seconds),
            });
            let limit = self.schedule.limit_s(&launch);
            let limit = limit.map_or(self.timeout, |s| self.timeout.min(Duration::from_secs_f64(s)));
            let entry = one(self.options, launch, limit)?;
            check_place(&self.schedule, &entry)?;
            // A first launch that failed is not recorded, so that the next run repeats it.
            if !(self.schedule.entries().is_empty() && entry.failure.is_some()) {
                self.journal.add(&entry)?;
            }
            self.schedule.put(entry);
        }
    }

    /// Announces the plan and writes it to the journal, as soon as there is one.
    fn say_plan(&mut self, on_event: &mut dyn FnMut(ProfileEvent<'_>)) -> Result<bool, ProfileError> {
        let Some((plan, cost)) = self.schedule.plan() else { return Ok(false) };
        let (launches_left, seconds_left) = self.schedule.left();
        on_event(ProfileEvent::Planned {
            turns: (plan.turns, self.options.rounds.min(self.options.iterations)),
            launches_per_turn: plan.launches,
            iterations: plan.iterations,
            sizes: (plan.sizes.len(), self.options.sizes.len()),
            launches_left,
            seconds_left,
            start_s: cost.start_s,
            seconds_of_all: self.schedule.seconds_of_all().unwrap_or(0.0),
        });
        if !self.is_planned && self.schedule.entries().len() == 1 {
            let sizes = plan.sizes.clone();
            self.journal.add_plan(&JournaledPlan { turns: plan.turns, iterations: plan.iterations, sizes })?;
        }
        Ok(true)
    }

    /// The policy from the measurements.
    fn policy(&self) -> Result<PolicyFile, ProfileError> {
        let (options, schedule) = (self.options, &self.schedule);
        let (plan, _) = schedule.plan().ok_or_else(|| ProfileError::impossible("nothing was measured"))?;
        let lines = |is_overlapped| plan.sizes.iter().map(|size| self.line(*size, is_overlapped)).collect::<Vec<_>>();
        let isolated = lines(false);
        let auto = options.arms.iter().position(|a| a.is_auto()).unwrap_or(0);
        if isolated.iter().all(|l| l.arms[auto].readings == 0) {
            let why = isolated.iter().find_map(|l| l.arms[auto].failure.clone()).unwrap_or("no readings".into());
            return Err(no_auto(&why));
        }
        // All launches ran at one site. Failed launches may not have printed the site.
        let place = schedule
            .entries()
            .iter()
            .map(|e| &e.place)
            .find(|p| **p != LaunchSite::default())
            .cloned()
            .unwrap_or_default();
        let overlapped = if options.overlap { lines(true) } else { Vec::new() };
        let provenance = Provenance {
            command: options.command.join(" "),
            beside: options.background_command.clone(),
            collective: options.collective.name().to_owned(),
            ranks: place.ranks,
            hosts: place.hosts,
            ranks_per_host: place.ranks_per_host,
            gpus: place.gpus,
            linkwise: options.written_by.clone(),
            nccl_version: place.nccl_version,
            started_unix_s: self.head.started_unix_s,
            iterations: options.iterations,
            warmup: options.warmup,
            rounds: options.rounds,
            kept: Coverage {
                minutes: options.minutes,
                took_s: schedule.used_s(),
                turns: schedule.turns_done(),
                iterations_per_launch: plan.iterations,
                sizes_left_out: self.head.sizes.iter().copied().filter(|s| !plan.sizes.contains(s)).collect(),
                stopped: schedule.stopped().map(str::to_owned),
            },
            warnings: warnings(schedule.turns_done(), &isolated, &overlapped),
        };
        Ok(PolicyFile::new(provenance, &options.arms, isolated, overlapped))
    }

    /// One line of the policy: every arm at one size, alone or during computation.
    fn line(&self, size: u64, is_overlapped: bool) -> SizeLine {
        let (arms, schedule) = (&self.options.arms, &self.schedule);
        let mut turns: Vec<Vec<Vec<f64>>> = vec![Vec::new(); arms.len()];
        let mut failures: Vec<Option<String>> = arms.iter().map(|a| schedule.hopeless(&a.to_string())).collect();
        for entry in schedule.counted().iter().filter(|e| e.launch.is_overlapped == is_overlapped) {
            let Some(arm) = arms.iter().position(|a| a.to_string() == entry.launch.arm) else { continue };
            if entry.launch.sizes.contains(&size) {
                // Every turn launches every arm once until the arm is given up: the n-th launch belongs to turn n.
                turns[arm].push(entry.times_us.get(&size).cloned().unwrap_or_default());
                failures[arm] = entry.failure.clone().or(failures[arm].take());
            }
        }
        for (i, arm) in arms.iter().enumerate() {
            if let Some(why) = schedule.untrusted(&arm.to_string(), size, is_overlapped) {
                (turns[i], failures[i]) = (Vec::new(), Some(why));
            }
        }
        SizeLine::of_turns(arms, &turns, &failures, size)
    }
}

fn no_auto(why: &str) -> ProfileError {
    ProfileError::impossible(format!("AUTO could not be measured, so nothing can be compared: {why}"))
}

fn head(o: &ProfileOptions, ask: &PlanRequest) -> JournalHeader {
    JournalHeader {
        linkwise_tune_samples: journal::VERSION,
        command: o.command.clone(),
        beside: o.background_command.clone(),
        collective: o.collective.name().to_owned(),
        arms: o.arms.iter().map(ToString::to_string).collect(),
        sizes: ask.sizes.clone(),
        overlap: o.overlap,
        iterations: o.iterations,
        warmup: o.warmup,
        rounds: o.rounds,
        started_unix_s: o.now_unix_s,
    }
}

fn sizes(asked: &[Bytes]) -> Result<Vec<u64>, ProfileError> {
    let mut sizes: Vec<u64> = asked.iter().map(|b| b.0).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let limit = ::tune::profile::SIZES_MAX;
    if sizes.is_empty() || sizes.len() > limit || sizes[0] == 0 {
        return Err(ProfileError::input(format!("--sizes: 1 to {limit} sizes above 0 were expected")));
    }
    Ok(sizes)
}

/// Runs one launch. If the background command has ended, the whole run ends: no overlapped launch could succeed.
fn one(options: &ProfileOptions, launch: Launch, timeout: Duration) -> Result<LaunchRecord, ProfileError> {
    let start = Instant::now();
    let said = launch::run(&options.command, &launch, options.background_command.as_deref(), timeout);
    let seconds = start.elapsed().as_secs_f64();
    let read = match said {
        Ok(output) => readings::read(&output, &launch.sizes, launch.warmup),
        Err(LaunchError::Program { why, output }) => {
            Err(readings::wrong(&output).map_or(OutputError::Unreadable(why), OutputError::Wrong))
        }
        Err(LaunchError::Background(why)) => return Err(ProfileError::input(why)),
    };
    let (times_us, place) = (Default::default(), LaunchSite::default());
    let empty = LaunchRecord { launch, seconds, times_us, is_checked: false, failure: None, is_wrong: false, place };
    Ok(match read {
        Ok(s) => LaunchRecord { times_us: s.times_us, is_checked: s.is_checked, place: s.place, ..empty },
        Err(OutputError::Unreadable(why)) => LaunchRecord { failure: Some(why), ..empty },
        Err(OutputError::Wrong(why)) => LaunchRecord { failure: Some(why), is_wrong: true, ..empty },
    })
}

/// Refuses a launch that ran at another site than an earlier launch of this run.
fn check_place(schedule: &Schedule, entry: &LaunchRecord) -> Result<(), ProfileError> {
    let difference = schedule.entries().iter().find_map(|e| entry.place.difference(&e.place));
    difference.map_or(Ok(()), |difference| {
        Err(ProfileError::impossible(format!(
            "{} ran on {difference}, unlike the earlier launches: the times cannot be compared; --restart measures all arms again",
            entry.launch.arm
        )))
    })
}

/// Warnings for users of the policy.
fn warnings(turns: u32, isolated: &[SizeLine], overlapped: &[SizeLine]) -> Vec<String> {
    let mut out = Vec::new();
    if turns < 2 {
        out.push(
            "one turn only: every arm's readings come from one launch, which is slow or fast as a whole, and no second launch confirms them; \
             give more --minutes or fewer --arms with --restart"
                .to_owned(),
        );
    }
    let lines = || isolated.iter().chain(overlapped);
    let wrong =
        lines().flat_map(|l| &l.arms).filter_map(|a| a.failure.as_deref()).find(|f| f.starts_with("ruled out: "));
    out.extend(
        wrong.map(|why| {
            format!("an arm was ruled out although it may be fast: {}", why.trim_start_matches("ruled out: "))
        }),
    );
    out
}
