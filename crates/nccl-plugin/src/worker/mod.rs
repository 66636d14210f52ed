//! The plugin's only thread in a process. It processes recorded calls, exchanges messages with other ranks, coordinates the communicators that this
//! process leads, and writes the trace.
//!
//! The worker never touches a file or NCCL's log: other ranks wait for its answers. [`files`] does that on its own thread, and a rendezvous folder has
//! another one.
//!
//! [`crate::process`] starts the worker with the first communicator and joins it with the last. The worker polls every
//! [`TICK`]. A panic in a poll ends tuning, never the job.

mod allow;
mod drain;
pub mod files;
mod index;
mod members;
mod messages;
mod silence;
mod status;

use crate::comm::{CallDecision, Comm, Role};
use crate::config::{Config, Mode, Reward};
use crate::coordinator::{CoordinatorMode, EpochCoordinator};
use crate::envelope::Keys;
use crate::events::LaunchedCollective;
use crate::process::{EVENTS, Shared};
use crate::trace::{Trace, quoted};
use agreement::transport::{Background, Folder, Sockets};
use agreement::{Endpoint, ProcessId, RankReading, Rendezvous, Roster, Slot};
use files::{Files, Open};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time between two polls while calls are made or messages arrive.
const TICK: Duration = Duration::from_millis(5);
/// The same after a second without either. A message ends the wait, a call does not.
const TICK_IDLE: Duration = Duration::from_millis(50);
/// Time after which a worker without calls and messages polls less often.
const IDLE_AFTER: Duration = Duration::from_secs(1);
/// Time for the last lines of a trace. A file system that hangs longer is left alone.
const FILES_WAIT: Duration = Duration::from_millis(500);
/// Limit on ended communicators for which the worker still answers.
const ENDED_MAX: usize = 1024;
/// Time that the worker continues for other ranks after the last communicator has ended.
const LINGER: Duration = Duration::from_millis(500);
/// The same if a later communicator of the process would wait for a verdict. A leader gives up sooner.
const VERDICT_WAIT: Duration = Duration::from_secs(3);
const CLOSE_WAIT: Duration = Duration::from_millis(200);
/// Limit on decisions kept for matching with profiler events.
const RECENT_MAX: usize = 512;
/// Limit on calls of one communicator that wait for the end of their step; older ones get no time.
const STEP_CALLS_MAX: usize = 8192;
/// Time after which missing ranks are logged.
const ANNOUNCE_WARN: Duration = Duration::from_secs(30);
/// Time to wait for the channels of a kernel while no other event completes.
const KERNEL_WAIT: Duration = Duration::from_secs(5);
/// Panics of one process after which the worker stops tuning.
const PANICS_MAX: u32 = 3;

/// A communicator of this process was made or has ended.
#[derive(Debug)]
pub enum MembershipChange {
    Joined {
        comm: Arc<Comm>,
        /// See [`crate::process::ProfilerContext::owner`]; 0 without a profiler.
        owner: u64,
    },
    /// Finalize was called.
    Left(Arc<Comm>),
}

/// A rank of this process.
struct LocalRank {
    comm: Arc<Comm>,
    owner: u64,
    announced: Option<Instant>,
    /// The roster and this rank's position in it.
    roster: Option<(Arc<Roster>, usize)>,
    recent: VecDeque<CallDecision>,
    readings: Vec<RankReading>,
    /// Calls that wait for the end of their step.
    in_step: VecDeque<CallDecision>,
    intervals: crate::rewards::Intervals,
    /// A call could not take the arm in force: the leader must return the communicator to AUTO for good.
    doubt: Option<Doubt>,
    left: bool,
    /// The state was written once because a call waited; a second wait of the rank is like the first.
    dumped: bool,
}

/// Why a rank no longer trusts the agreement on its communicator.
struct Doubt {
    why: String,
    /// When the leader was last told; messages may be lost.
    told_at: Option<Instant>,
}

/// A communicator that this process leads.
struct LedCommunicator {
    roster: Arc<Roster>,
    /// Ordinal of the leading rank in this process.
    ordinal: u32,
    coordinator: EpochCoordinator,
    traced_epoch: u64,
    leaving: bool,
}

/// See the module documentation.
pub struct Worker {
    config: Arc<Config>,
    shared: Arc<Shared>,
    process: ProcessId,
    host: u64,
    endpoint: Option<Box<dyn Endpoint>>,
    local_ranks: Vec<LocalRank>,
    led: Vec<LedCommunicator>,
    index: index::Index,
    trace: Trace,
    files: Files,
    files_thread: Option<std::thread::JoinHandle<()>>,
    /// Members that have ended: their roster, position and ordinal. Newest last.
    ended: VecDeque<(Arc<Roster>, usize, u32)>,
    active: Instant,
    costs: crate::trace::CostReporter,
    begin: Instant,
    panics: u32,
    stopped: bool,
    stop_sent_at: Option<Instant>,
    /// Number of the oldest profiler event that is not taken, and when it became the oldest.
    oldest_event: (u64, Instant),
    warned_of_missing_ranks: bool,
    told: status::Told,
    keys: Keys,
}

impl Worker {
    /// Opens no socket yet; files on their own thread.
    pub fn new(config: Arc<Config>, shared: Arc<Shared>) -> Self {
        let host = host_id();
        let (files, files_thread) = Files::start(Open {
            trace: config.trace.clone().map(|folder| (folder, host, config.trace_bytes_max)),
            stop_file: config.stop_file.clone(),
        });
        let unique = format!("{host} {} {:?}", std::process::id(), std::time::SystemTime::now());
        Worker {
            shared,
            process: wire::bytes::hash(unique.as_bytes()),
            host,
            endpoint: None,
            local_ranks: Vec::new(),
            led: Vec::new(),
            index: index::Index::default(),
            trace: if config.trace.is_some() { Trace::queued(files.clone()) } else { Trace::default() },
            files,
            files_thread,
            ended: VecDeque::new(),
            active: Instant::now(),
            costs: crate::trace::CostReporter::default(),
            begin: Instant::now(),
            panics: 0,
            stopped: false,
            stop_sent_at: None,
            oldest_event: (0, Instant::now()),
            warned_of_missing_ranks: false,
            told: status::Told::default(),
            keys: Keys::default(),
            config,
        }
    }

    fn now_us(&self) -> u64 {
        self.begin.elapsed().as_micros() as u64
    }

    /// Runs until the last communicator has left.
    pub fn run(mut self) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.open()));
        let mut stopping: Option<Instant> = None;
        loop {
            // Read before the poll, which then sees everything that happened before the flag was set.
            let stop = self.shared.stop.load(Ordering::Acquire);
            // A panic must end tuning only, never the job.
            if catch_unwind(AssertUnwindSafe(|| self.poll_once())).is_err() {
                self.panics += 1;
                if self.panics >= PANICS_MAX {
                    self.stopped = true;
                }
                std::thread::sleep(TICK);
            }
            if stop {
                let since = *stopping.get_or_insert_with(Instant::now);
                let bound = crate::job::member().is_some_and(|j| j.is_bound());
                let idle = self.led.iter().all(|l| l.coordinator.is_idle());
                if (idle && !bound) || since.elapsed() > if bound { VERDICT_WAIT } else { LINGER } {
                    break;
                }
            }
        }
        let _ = catch_unwind(AssertUnwindSafe(|| {
            if let Some(e) = &mut self.endpoint {
                e.close(CLOSE_WAIT);
            }
            let rest: Vec<LaunchedCollective> = std::iter::from_fn(|| EVENTS.next(false)).collect();
            self.match_events(&rest);
            self.costs.write_if_due(&mut self.trace, self.begin.elapsed(), true);
            self.trace.flush();
            self.end_files();
        }));
    }

    /// Waits for the last lines, but not for a file system that hangs.
    fn end_files(&mut self) {
        let done = self.files.finish(FILES_WAIT);
        let thread = self.files_thread.take().filter(|_| done);
        // The thread ends with the last sender.
        self.trace = Trace::default();
        self.files = Files::ended();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    fn open(&mut self) {
        let (tuner, profiler) = crate::process::interfaces();
        self.trace.line(format_args!(
            "{{\"kind\":\"process\",{},\"scripted\":{},\"version\":{},\"pid\":{},\"host\":\"{:016x}\",\"mode\":{},\"policy\":{},\"tuner_api\":{tuner},\"profiler_api\":{profiler}}}",
            crate::trace::process_fields(|k| std::env::var(k).ok()),
            self.config.test.rewards.is_some(),
            quoted(env!("CARGO_PKG_VERSION")),
            std::process::id(),
            self.host,
            quoted(&format!("{:?}", self.config.mode).to_lowercase()),
            quoted(&self.config.policy),
        ));
        if !matches!(self.config.mode, Mode::Profile | Mode::Adaptive) || self.config.test.alone {
            return;
        }
        let made: std::io::Result<Box<dyn Endpoint>> = match &self.config.rendezvous {
            None => {
                self.files.warn(
                    "no rendezvous: set LINKWISE_RENDEZVOUS, or MASTER_ADDR and MASTER_PORT; all communicators stay at AUTO",
                );
                return;
            }
            Some(Rendezvous::Folder(path)) => {
                let (config, path, process) = (self.config.clone(), path.clone(), self.process);
                let open = move || Folder::for_job(&path, config.token.as_bytes(), process);
                Background::open(plugin_base::read::READ_TIME_MAX, open).map(|b| Box::new(b) as _)
            }
            Some(m) => Sockets::new(m.clone(), self.config.token.as_bytes(), self.config.bind, self.process, self.host)
                .map(|s| Box::new(s.intra_node_transport(self.config.intra_node_transport)) as _),
        };
        match made {
            Ok(e) => {
                self.endpoint = Some(e);
                if self.config.mode == Mode::Adaptive && self.config.explore_all {
                    self.files.info(
                        "explore = all: the first use of an algorithm opens its connections and allocates GPU memory for the rest of the job",
                    );
                }
            }
            Err(e) => {
                self.files.warn(format!("cannot communicate with other ranks: {e}; all communicators stay at AUTO"))
            }
        }
    }

    /// One poll of everything.
    fn poll_once(&mut self) {
        let mut events = Vec::new();
        let idle = self.active.elapsed() > IDLE_AFTER && !self.shared.stop.load(Ordering::Relaxed);
        let tick = if idle { TICK_IDLE } else { TICK };
        match &mut self.endpoint {
            Some(e) => {
                e.poll(tick, &mut events);
                e.notes().into_iter().for_each(|note| self.files.warn(note));
            }
            None => std::thread::sleep(tick),
        }
        if !events.is_empty() || self.led.iter().any(|l| !l.coordinator.is_idle()) {
            self.active = Instant::now();
        }
        // Joins and leaves first: the last decisions of a leaving rank are in its ring, and its verdicts must go out.
        let changes = std::mem::take(&mut *self.shared.changes.lock().unwrap_or_else(|e| e.into_inner()));
        for change in changes {
            match change {
                MembershipChange::Joined { comm, owner } => self.on_joined(comm, owner),
                MembershipChange::Left(comm) => self.on_left(&comm),
            }
        }
        for event in events {
            self.on_event(event);
        }
        self.check_stop_file();
        crate::abi::profiler::need_kernels(self.uses_gpu_times());
        self.watch_silence();
        self.warn_of_missing_ranks();
        // Before the decisions are drained: those of a finished step, and of a launched call, are in the rings by now.
        let steps = crate::step::drain();
        let launched = self.drain_launches();
        self.drain();
        self.tell_doubts();
        self.time_steps(&steps);
        self.send_readings();
        self.match_events(&launched);
        self.drive_coordinators();
        self.write_status_if_due(false);
        self.remove_left();
        self.costs.write_if_due(&mut self.trace, self.begin.elapsed(), false);
        self.trace.flush();
    }

    /// True if the trace takes GPU times, or if a communicator of this process, whose ranks have found each other, still compares arms.
    fn uses_gpu_times(&self) -> bool {
        let trace = self.trace.is_on() && !self.files.told.trace_ended.load(Ordering::Relaxed);
        let compares = |l: &LocalRank| {
            let is_over = self.config.freeze_after.is_some_and(|f| f.is_over(l.comm.begun(), self.now_us()));
            l.comm.role() == Role::Tune && l.roster.is_some() && !l.left && l.doubt.is_none() && !is_over
        };
        trace || (self.config.mode == Mode::Adaptive && !self.stopped && self.local_ranks.iter().any(compares))
    }

    /// The collectives that NCCL has launched. An event whose channels never all end blocks later ones only for [`KERNEL_WAIT`].
    fn drain_launches(&mut self) -> Vec<LaunchedCollective> {
        let kernels = crate::abi::profiler::kernels_wanted();
        let mut all: Vec<LaunchedCollective> = std::iter::from_fn(|| EVENTS.next(kernels)).collect();
        let (head, since) = self.oldest_event;
        if EVENTS.head() != head || !kernels {
            self.oldest_event = (EVENTS.head(), Instant::now());
        } else if since.elapsed() > KERNEL_WAIT {
            all.extend(EVENTS.next(false));
        }
        all
    }

    /// Traces that a communicator stays at AUTO.
    fn trace_stays_auto(&mut self, comm: u64, why: &str) {
        self.trace.line(format_args!("{{\"kind\":\"never\",\"comm\":\"{comm:016x}\",\"why\":{}}}", quoted(why)));
    }

    /// Logs once about the first communicator with missing ranks.
    fn warn_of_missing_ranks(&mut self) {
        let place = self.config.rendezvous.as_ref().map(ToString::to_string).unwrap_or_default();
        if self.warned_of_missing_ranks {
            return;
        }
        let late =
            |l: &&mut LocalRank| l.roster.is_none() && l.announced.is_some_and(|at| at.elapsed() >= ANNOUNCE_WARN);
        let Some(local) = self.local_ranks.iter_mut().find(late) else { return };
        self.warned_of_missing_ranks = true;
        self.files.warn(format!(
            "communicator {:016x} rank {}: {}",
            local.comm.id,
            local.comm.rank,
            missing_ranks_text(local.comm.ranks, &place)
        ));
    }

    fn lead(&mut self, led: LedCommunicator) {
        self.index.add_led(self.led.len(), &led);
        self.led.push(led);
    }

    fn coordinator(&self, members: usize, comm: &Comm) -> EpochCoordinator {
        // The job's communicators reach one call number at very different times, so its epochs do not lapse.
        let lapses = comm.role() != Role::Job;
        EpochCoordinator::new(members, self.coordinator_mode(comm))
            .with_lead(self.config.lead.as_micros() as u64, lapses)
            .freezing(self.config.freeze_after)
    }

    fn coordinator_mode(&self, comm: &Comm) -> CoordinatorMode {
        match &self.config.profile {
            Some(_) if comm.role() == Role::Job => CoordinatorMode::Fixed(crate::job::job_table_marker()),
            Some(p) => CoordinatorMode::Fixed(p.plans(comm.ranks, comm.nodes)),
            None => {
                let name = self.config.policy.clone();
                let build = move |arms: &[tune::Arm], slot: Slot| crate::policies::build(&name, arms, slot);
                let scripted = self.config.test.rewards.as_ref().is_some_and(|s| s.decides());
                CoordinatorMode::Learn {
                    build: Box::new(build),
                    explore_all: self.config.explore_all,
                    is_scripted: scripted,
                    by_kernel: !scripted && self.config.reward == Reward::Kernel,
                    has_kernel_times: !scripted
                        && self.config.reward == Reward::Auto
                        && crate::abi::profiler::kernels_allowed(),
                }
            }
        }
    }
}

/// The message for a communicator with missing ranks.
fn missing_ranks_text(ranks: u32, rendezvous: &str) -> String {
    format!(
        "not all of its {ranks} ranks have announced themselves at {rendezvous}; it stays at AUTO until they do (a rank may lack the plugin, use \
         another rendezvous, or be unable to reach the port)"
    )
}

/// Hash that identifies the host: two processes with the same one can communicate through a local socket.
fn host_id() -> u64 {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    wire::bytes::hash(format!("{boot}{}", network.display()).as_bytes())
}
