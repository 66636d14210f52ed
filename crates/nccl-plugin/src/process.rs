//! The plugin in one process: settings, read once; the communicators that are alive; and the worker, which lives as long as one of them does.

use crate::abi;
use crate::comm::{Comm, Identity, Role};
use crate::config::{self, Config, Mode, Reward};
use crate::events::Events;
use crate::job;
use crate::worker::{Change, Worker};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;

/// The events of the profiler.
pub static EVENTS: Events = Events::new();

/// What the entries and the worker share.
#[derive(Debug, Default)]
pub struct Shared {
    /// Communicators that came and went since the worker looked.
    pub changes: Mutex<Vec<Change>>,
    /// The worker shall end.
    pub stop: AtomicBool,
}

/// While a communicator is alive.
#[derive(Debug, Default)]
pub struct Running {
    /// Contexts that NCCL has: what it gives back and is not here is not believed.
    alive: Vec<Arc<Comm>>,
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
    /// The next ordinal of a member of a communicator in this process.
    ordinals: BTreeMap<u64, u32>,
    /// The job has been announced, by this worker.
    pub job_announced: bool,
}

impl Running {
    /// Says something to the worker.
    pub fn tell(&self, change: Change) {
        self.shared.changes.lock().unwrap_or_else(|e| e.into_inner()).push(change);
    }
}

static RUNNING: Mutex<Option<Running>> = Mutex::new(None);
static CONFIG: OnceLock<Arc<Config>> = OnceLock::new();
/// Communicators follow the job, for the first of them had no identifier. One way for all of a process: ranks of one communicator must not go
/// different ways, and a process that goes one takes no part in the other, so nobody goes it with this process's ranks.
static BY_JOB: OnceLock<bool> = OnceLock::new();
static NEXT_OWNER: AtomicU64 = AtomicU64::new(1);
/// Loaded through these versions of the interfaces; 0 while not.
static TUNER_API: AtomicU32 = AtomicU32::new(0);
static PROFILER_API: AtomicU32 = AtomicU32::new(0);

/// The process that the plugin runs in; 0 while it does not. A forked child has another number, and none of the threads.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// This is the child of a process in which the plugin ran: its locks may be held by threads that are not here. It stays off.
fn is_forked() -> bool {
    let now = std::process::id();
    PROCESS.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed).is_err_and(|p| p != now)
}

fn running() -> MutexGuard<'static, Option<Running>> {
    RUNNING.lock().unwrap_or_else(|e| e.into_inner())
}

/// The settings. Read once; what is wrong with them is said once and means off.
pub fn settings() -> &'static Arc<Config> {
    CONFIG.get_or_init(|| {
        let loaded = Config::load(|k| std::env::var(k).ok(), config::read_file);
        Arc::new(loaded.unwrap_or_else(|e| {
            abi::log::warn(&format!("{e}; the plugin stays off"));
            let off = Config::load(|_| None, |_| Err(String::new()));
            off.unwrap_or_else(|_| unreachable!("no settings are right settings"))
        }))
    })
}

/// What a profiler's init says.
#[derive(Debug)]
pub struct Profiled {
    /// The number under which events come.
    pub owner: u64,
    /// The communicator, once the tuner's init has come, too.
    pub comm: OnceLock<Arc<Comm>>,
}

thread_local! {
    /// The profiler context that was made last on this thread: NCCL makes the tuner's on the same thread, later, without saying the rank.
    static LAST: Cell<Option<(u64, i32, u64)>> = const { Cell::new(None) };
}
/// Profiler contexts that wait for their tuner's init.
static WAITING: Mutex<Vec<Arc<Profiled>>> = Mutex::new(Vec::new());
/// Most of them; a job without a tuner must not fill the memory.
const WAITING_MAX: usize = 4096;

/// A profiler's init. `None`: not wanted.
pub fn profiled(api: u32, id: u64, rank: i32) -> Option<Arc<Profiled>> {
    PROFILER_API.store(api, Ordering::Relaxed);
    if settings().mode == Mode::Off || is_forked() {
        return None;
    }
    let owner = NEXT_OWNER.fetch_add(1, Ordering::Relaxed);
    let p = Arc::new(Profiled { owner, comm: OnceLock::new() });
    LAST.set(Some((id, rank, owner)));
    let mut waiting = WAITING.lock().unwrap_or_else(|e| e.into_inner());
    if waiting.len() < WAITING_MAX {
        waiting.push(p.clone());
    }
    Some(p)
}

/// The profiler's context waits for no tuner any more: that has come, or its communicator has ended.
pub fn stop_waiting(owner: u64) -> Option<Arc<Profiled>> {
    let mut waiting = WAITING.lock().unwrap_or_else(|e| e.into_inner());
    let at = waiting.iter().position(|p| p.owner == owner)?;
    Some(waiting.swap_remove(at))
}

/// Why mode adaptive only looks.
pub const UNTOLD: &str = "this NCCL does not say which calls are captured into CUDA graphs (2.28 and later do, with the profiler loaded), \
                          where trying arms would do lasting harm: AUTO; set LINKWISE_GRAPHS=none if the program captures none";

/// A tuner's init. `id`: `None` where NCCL does not say it. Gives `None` where nothing is to be done.
pub fn tuned(api: u32, id: Option<u64>, ranks: usize, nodes: usize) -> Option<Arc<Comm>> {
    TUNER_API.store(api, Ordering::Relaxed);
    let config = settings();
    if config.mode == Mode::Off || is_forked() {
        return None;
    }
    let last = LAST.take().filter(|l| id.is_none_or(|i| i == l.0));
    let profiled = last.and_then(|(_, _, owner)| stop_waiting(owner));
    if ranks < 2 {
        return None;
    }
    let id = id.or(last.map(|l| l.0));
    let mut guard = running();
    let run = guard.get_or_insert_default();
    let tells_captures = profiled.is_some() && PROFILER_API.load(Ordering::Relaxed) >= 5;
    let role = match id {
        _ if config.mode == Mode::Observe => Role::Observe,
        Some(_) if config.mode == Mode::Adaptive && !tells_captures && !config.no_graphs => {
            static SAID: AtomicBool = AtomicBool::new(false);
            abi::log::once(&SAID, UNTOLD);
            Role::Observe
        }
        Some(_) if !*BY_JOB.get_or_init(|| false) => Role::Tune,
        _ if *BY_JOB.get_or_init(|| true) => job::admit(config, run, ranks as u32)?,
        _ => return None, // the others have identifiers: this one's ranks may not all be without
    };
    // Without an identifier only a name for the trace: communicators of one shape, one after the other.
    let id = id.unwrap_or_else(|| wire::bytes::hash(format!("{ranks} {nodes}").as_bytes()));
    let next = run.ordinals.entry(id).or_default();
    let ordinal = *next;
    *next += 1;
    let rank = last.map_or(-1, |l| l.1);
    let who = Identity { id, ordinal, rank, ranks: ranks as u32, nodes: nodes as u32 };
    let table = match (role, &config.profile) {
        (Role::Follow, Some(p)) => p.plans(ranks as u32, nodes as u32),
        _ => Vec::new(),
    };
    let records = if config.trace.is_some() { crate::comm::RECORDS_TRACED } else { crate::comm::RECORDS };
    let comm = Arc::new(Comm::new(who, role, records).with_table(table));
    // Steps and intervals need the times of calls; the GPU's times and a script do not.
    if config.trace.is_some()
        || (config.reward != Reward::Kernel && !config.test.rewards.as_ref().is_some_and(|s| s.decides()))
    {
        comm.set_timed();
    }
    if let Some(p) = &profiled {
        let _ = p.comm.set(comm.clone());
    }
    let owner = profiled.map_or(0, |p| p.owner);
    if role == Role::Follow {
        job::follow(&comm);
    }
    run.tell(Change::Came { comm: comm.clone(), owner });
    run.alive.push(comm.clone());
    if run.worker.is_none() {
        run.shared.stop.store(false, Ordering::Relaxed);
        let worker = Worker::new(config.clone(), run.shared.clone());
        let thread = std::thread::Builder::new().name("linkwise".into());
        // The job's signals are for the job's threads; and a full disk's (SIGXFSZ) would end it.
        run.worker = abi::without_signals(|| thread.spawn(move || worker.run())).ok(); // without a thread nobody announces: AUTO
    }
    Some(comm)
}

/// A tuner's finalize. What is no context of a living communicator is passed over: one that is given back twice, or in a forked child.
pub fn finished(context: *const Comm) {
    if is_forked() {
        return;
    }
    let mut guard = running();
    let Some(run) = guard.as_mut() else { return };
    let Some(at) = run.alive.iter().position(|c| Arc::as_ptr(c) == context) else { return };
    let comm = run.alive.swap_remove(at);
    if comm.end() {
        std::mem::forget(comm.clone()); // the thread that waited still looks at it
    }
    if comm.role() == Role::Follow {
        job::release(&comm);
    }
    run.tell(Change::Went(comm));
    if run.alive.is_empty() {
        if let Some(job) = job::member().filter(|_| run.job_announced) {
            run.tell(Change::Went(job.clone()));
        }
        // Nothing outlives finalize: the library may be unmapped after it.
        run.shared.stop.store(true, Ordering::Release);
        if let Some(worker) = run.worker.take() {
            let _ = worker.join();
        }
        *guard = None;
        WAITING.lock().unwrap_or_else(|e| e.into_inner()).clear();
    }
}

/// Versions of the tuner and profiler interfaces that NCCL uses.
pub fn interfaces() -> (u32, u32) {
    (TUNER_API.load(Ordering::Relaxed), PROFILER_API.load(Ordering::Relaxed))
}
