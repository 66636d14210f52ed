//! The plugin's state in one process: settings, read once; the live communicators; and the worker, which runs while there are any.

use crate::abi::{self, LOG};
use crate::canary::Candidate;
use crate::comm::{Captured, Comm, Identity, RING_RECORDS, RING_RECORDS_TRACED, Role};
use crate::config::{Config, Graphs, Mode, Reward};
use crate::events::Events;
use crate::job;
use crate::made_on::{self, Here};
use crate::worker::{MembershipChange, Worker};
use plugin_base::threads;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;

pub static EVENTS: Events = Events::new();

/// State shared by the entry points and the worker.
#[derive(Debug, Default)]
pub struct Shared {
    /// Communicators that joined or left since the worker's last poll.
    pub changes: Mutex<Vec<MembershipChange>>,
    /// The worker must end.
    pub stop: AtomicBool,
}

/// Exists while a communicator is alive.
#[derive(Debug, Default)]
pub struct ProcessState {
    /// The contexts that NCCL holds; any other context it passes is ignored.
    alive: Vec<Arc<Comm>>,
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
    /// The next ordinal per communicator.
    ordinals: BTreeMap<u64, u32>,
    /// This worker has announced the job.
    pub job_announced: bool,
}

impl ProcessState {
    fn next_ordinal(&mut self, id: u64) -> u32 {
        let next = self.ordinals.entry(id).or_default();
        let ordinal = *next;
        *next += 1;
        ordinal
    }

    /// Starts the worker if it does not run. Without a thread no rank announces itself, so all stay at AUTO.
    fn ensure_worker(&mut self, config: &Arc<Config>) {
        if self.worker.is_some() {
            return;
        }
        self.shared.stop.store(false, Ordering::Relaxed);
        let worker = Worker::new(config.clone(), self.shared.clone());
        self.worker = threads::spawn("linkwise", move || worker.run()).ok();
    }

    pub fn notify_worker(&self, change: MembershipChange) {
        self.shared.changes.lock().unwrap_or_else(|e| e.into_inner()).push(change);
    }
}

static RUNNING: Mutex<Option<ProcessState>> = Mutex::new(None);
static CONFIG: OnceLock<Arc<Config>> = OnceLock::new();
/// True if communicators follow the job, because the first one had no identifier. Fixed once per process: ranks of one communicator must all use
/// the same mode.
static BY_JOB: OnceLock<bool> = OnceLock::new();
static NEXT_OWNER: AtomicU64 = AtomicU64::new(1);
/// Interface versions in use; 0 if not loaded.
static TUNER_API: AtomicU32 = AtomicU32::new(0);
static PROFILER_API: AtomicU32 = AtomicU32::new(0);

/// Number of the process in which the plugin runs, or 0. A forked child has another number and none of the threads.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// True in a forked child: its locks may be held by threads that do not exist there, so the plugin stays off.
fn is_forked() -> bool {
    let now = std::process::id();
    PROCESS.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed).is_err_and(|p| p != now)
}

fn running() -> MutexGuard<'static, Option<ProcessState>> {
    RUNNING.lock().unwrap_or_else(|e| e.into_inner())
}

/// The settings, read once. An error is logged once and means off.
pub fn settings() -> &'static Arc<Config> {
    CONFIG.get_or_init(|| {
        let loaded = Config::of_variables(std::env::vars_os().collect());
        Arc::new(loaded.unwrap_or_else(|e| {
            LOG.warn(&format!("{e}; the plugin stays off"));
            let off = Config::load(|_| None, |_| Err(String::new()));
            off.unwrap_or_else(|_| unreachable!("empty settings are valid"))
        }))
    })
}

/// NCCL 2.27 reports collectives as they are launched, not later from a thread of CUDA: so it is without CUDA graphs, unless CUDA waits for every
/// launch. Then the numbers that it gives them are part of the digest of calls.
pub fn collectives_are_reported_at_once() -> bool {
    static AT_ONCE: OnceLock<bool> = OnceLock::new();
    *AT_ONCE.get_or_init(|| {
        settings().graphs == Graphs::None
            && std::env::var_os("CUDA_LAUNCH_BLOCKING").is_none_or(|v| v.is_empty() || v == "0")
    })
}

/// The profiler's data of one rank and communicator.
#[derive(Debug)]
pub struct ProfilerContext {
    /// Identifies the rank in profiler events.
    pub owner: u64,
    /// Set by the tuner's init.
    pub comm: OnceLock<Arc<Comm>>,
}

thread_local! {
    /// The profiler context that this thread made last. NCCL makes the tuner's context later on the same thread,
    /// without the rank.
    static LAST_PROFILER: Cell<Option<(u64, i32, u64)>> = const { Cell::new(None) };
}
/// Profiler contexts that wait for their tuner's init.
static WAITING: Mutex<Vec<Arc<ProfilerContext>>> = Mutex::new(Vec::new());
/// Limit on waiting contexts, for jobs that load no tuner.
const WAITING_MAX: usize = 4096;

/// The profiler's init. `None` if the plugin needs no events.
pub fn profiler_init(api: u32, id: u64, rank: i32) -> Option<Arc<ProfilerContext>> {
    PROFILER_API.store(api, Ordering::Relaxed);
    if settings().mode == Mode::Off || is_forked() {
        return None;
    }
    let owner = NEXT_OWNER.fetch_add(1, Ordering::Relaxed);
    let p = Arc::new(ProfilerContext { owner, comm: OnceLock::new() });
    LAST_PROFILER.set(Some((id, rank, owner)));
    let mut waiting = WAITING.lock().unwrap_or_else(|e| e.into_inner());
    if waiting.len() < WAITING_MAX {
        waiting.push(p.clone());
    }
    Some(p)
}

/// Removes a waiting profiler context: its tuner's init has come, or its communicator has ended.
pub fn take_waiting(owner: u64) -> Option<Arc<ProfilerContext>> {
    let mut waiting = WAITING.lock().unwrap_or_else(|e| e.into_inner());
    let at = waiting.iter().position(|p| p.owner == owner)?;
    Some(waiting.swap_remove(at))
}

/// The first profiler interface that reports groups, launches and captures (NCCL 2.28).
const PROFILER_TELLS_GROUPS: u32 = 5;

/// Communicators of two or more ranks that this process has made, for [`crate::canary`].
static MADE: AtomicU32 = AtomicU32::new(0);

/// The tuner's init. `id` is `None` if this NCCL does not provide it. Returns `None` if there is nothing to do for the communicator.
pub fn tuner_init(api: u32, id: Option<u64>, ranks: usize, nodes: usize) -> Option<Arc<Comm>> {
    TUNER_API.store(api, Ordering::Relaxed);
    let config = settings();
    if config.mode == Mode::Off || is_forked() {
        return None;
    }
    let last = LAST_PROFILER.take().filter(|l| id.is_none_or(|i| i == l.0));
    let profiled = last.and_then(|(_, _, owner)| take_waiting(owner));
    if ranks < 2 {
        return None;
    }
    let id = id.or(last.map(|l| l.0));
    let mut guard = running();
    let run = guard.get_or_insert_default();
    let tells_groups = profiled.is_some() && PROFILER_API.load(Ordering::Relaxed) >= PROFILER_TELLS_GROUPS;
    let index = MADE.fetch_add(1, Ordering::Relaxed);
    let process = config.process.map(|p| p.rank);
    let candidate = Candidate { ranks: ranks as u32, nodes: nodes as u32, comm: id, index, process };
    let (role, why) = match observes_only(config, &candidate, tells_groups, api) {
        Some(why) => (Role::Observe, why),
        None => (role_of(config, run, &candidate)?, None),
    };
    // Without an identifier: a name for the trace, common to communicators of one shape.
    let id = id.unwrap_or_else(|| wire::bytes::hash(format!("{ranks} {nodes}").as_bytes()));
    let ordinal = run.next_ordinal(id);
    let rank = last.map_or(-1, |l| l.1);
    let identity = Identity { id, ordinal, rank, ranks: ranks as u32, nodes: nodes as u32 };
    let comm = new_comm(config, identity, role, why);
    if tells_groups {
        comm.set_tells_launches();
    }
    if let Some(p) = &profiled {
        let _ = p.comm.set(comm.clone());
    }
    if role == Role::Follow {
        job::follow(&comm);
    }
    run.notify_worker(MembershipChange::Joined { comm: comm.clone(), owner: profiled.map_or(0, |p| p.owner) });
    run.alive.push(comm.clone());
    run.ensure_worker(config);
    Some(comm)
}

/// Whether the rank only observes the communicator, and why if the mode would change arms. What all ranks find by themselves is logged once.
fn observes_only(config: &Config, c: &Candidate, tells_groups: bool, tuner_api: u32) -> Option<Option<String>> {
    if config.mode == Mode::Observe {
        return Some(None);
    }
    if let Some(why) = table_refuses(config, c) {
        return Some(Some(why));
    }
    // Without an identifier the ranks exchange nothing about the communicator, so each must find the same by itself.
    if let Some(canary) =
        config.canary.filter(|canary| !canary.includes(c) || (c.comm.is_none() && !canary.is_by_size_alone()))
    {
        static SAID: AtomicBool = AtomicBool::new(false);
        if !SAID.swap(true, Ordering::Relaxed) {
            let only_size = c.comm.is_none() && !canary.is_by_size_alone();
            let why = if only_size {
                ": this NCCL does not identify communicators, so only ranks=N can be a canary"
            } else {
                ""
            };
            LOG.info(&format!("communicators other than the canary stay at AUTO{why}"));
        }
        return Some(Some("not the canary".into()));
    }
    if c.comm.is_none() && config.mode == Mode::Adaptive {
        return None; // the job says why
    }
    let open_job = c.comm.is_none() && !config.closed_job;
    // 2.21 has no simulated groups and tuner interface v2.
    let simulations = !tells_groups && !config.no_simulated_groups && tuner_api > 2;
    let captures = !tells_groups && config.graphs != Graphs::None;
    if !simulations && !captures && !open_job {
        return None;
    }
    let mut why =
        String::from("without the reports of NCCL 2.28 or later to a loaded profiler all communicators stay at AUTO");
    if captures {
        why += ": calls that are captured into CUDA graphs are not told from others, and a rank that captures a graph which it never launches would change \
                arms at another call than the rest (LINKWISE_GRAPHS=none if the program captures none)";
    }
    if simulations {
        why += ": groups that are only simulated are not told from calls, and a rank that simulates would change arms at another call than the \
                rest (LINKWISE_SIMULATED_GROUPS=none if the program never calls ncclGroupSimulateEnd)";
    }
    if open_job {
        why += ": communicators are not identified, and one with a process outside of the job would hang, because that process launches other \
                algorithms (LINKWISE_JOB=closed if there is no such communicator)";
    }
    static WARNED: AtomicBool = AtomicBool::new(false);
    LOG.once(&WARNED, &why);
    Some(Some(why))
}

/// Why the table, which was found elsewhere, does not apply to the communicator; logged once.
fn table_refuses(config: &Config, c: &Candidate) -> Option<String> {
    let made_on = &config.profile.as_ref()?.made_on;
    let here = Here {
        nccl: abi::nccl::version(),
        gpus: made_on::gpus_here(),
        ranks: c.ranks,
        nodes: c.nodes,
        processes: config.process.map(|p| p.processes),
    };
    let why = format!("the table does not apply here, so communicators stay at AUTO: {}", made_on.refuses(&here)?);
    static WARNED: AtomicBool = AtomicBool::new(false);
    LOG.once(&WARNED, &why);
    Some(why)
}

/// The role of a communicator that may change arms. `None`: it stays at AUTO, and the reason has been logged.
fn role_of(config: &Config, run: &mut ProcessState, c: &Candidate) -> Option<Role> {
    match c.comm {
        Some(_) if !*BY_JOB.get_or_init(|| false) => Some(Role::Tune),
        _ if *BY_JOB.get_or_init(|| true) => job::role_in_job(config, run, c.ranks),
        _ => None, // this process tunes by identifier, and other ranks of the communicator may have none
    }
}

fn new_comm(config: &Config, who: Identity, role: Role, why: Option<String>) -> Arc<Comm> {
    let table = match (role, &config.profile) {
        (Role::Follow, Some(p)) => p.plans(who.ranks, who.nodes),
        _ => Vec::new(),
    };
    let records = if config.trace.is_some() { RING_RECORDS_TRACED } else { RING_RECORDS };
    let captured = if config.graphs == Graphs::Same { Captured::Settled } else { Captured::Auto };
    let comm = Comm::new(who, role, records).with_table(table).with_reason(why).with_captured(captured);
    // Steps and intervals need the times of calls; GPU times and a script do not.
    let scripted = config.test.rewards.as_ref().is_some_and(|s| s.decides());
    if config.trace.is_some() || (config.reward != Reward::Kernel && !scripted) {
        comm.set_timed();
    }
    Arc::new(comm)
}

/// The tuner's finalize. Ignores a context that is not alive: one passed twice, or in a forked child.
pub fn tuner_finalize(context: *const Comm) {
    if is_forked() {
        return;
    }
    let mut guard = running();
    let Some(run) = guard.as_mut() else { return };
    let Some(at) = run.alive.iter().position(|c| Arc::as_ptr(c) == context) else { return };
    let comm = run.alive.swap_remove(at);
    if comm.end() {
        std::mem::forget(comm.clone()); // the call that waited still reads it
    }
    if comm.role() == Role::Follow {
        job::release(&comm);
    }
    run.notify_worker(MembershipChange::Left(comm));
    if run.alive.is_empty() {
        if let Some(job) = job::member().filter(|_| run.job_announced) {
            run.notify_worker(MembershipChange::Left(job.clone()));
        }
        // Nothing may outlive finalize: the library may be unmapped afterwards.
        run.shared.stop.store(true, Ordering::Release);
        if let Some(worker) = run.worker.take() {
            let _ = worker.join();
        }
        *guard = None;
        WAITING.lock().unwrap_or_else(|e| e.into_inner()).clear();
    }
}

/// Versions of NCCL's tuner and profiler interface in use.
pub fn interfaces() -> (u32, u32) {
    (TUNER_API.load(Ordering::Relaxed), PROFILER_API.load(Ordering::Relaxed))
}
