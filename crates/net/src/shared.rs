//! What the program's threads and the I/O threads share.

use crate::buffer::Buffer;
use crate::endpoint::NetError;
use crate::handle::{Handle, RailAddress};
use crate::io::Io;
use crate::limits::GROUPED_MAX;
use crate::request::Pool;
use crate::sender::{Micros, RequestId};
use crate::sockets::Socket;
use rustix::event::EventfdFlags;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Locks; a thread that panicked leaves data that is still valid.
pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}

/// A clock in microseconds that never goes back and is about the same in all processes of a host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    begin: Instant,
    offset: Micros,
}

impl Clock {
    pub fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { begin: Instant::now(), offset: since.as_micros() as u64 }
    }

    pub fn now(&self) -> Micros {
        self.offset + self.begin.elapsed().as_micros() as u64
    }
}

/// State of a connection as the program sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    Connecting = 0,
    Ready = 1,
    Failed = 2,
}

/// Work that the program hands over.
#[allow(clippy::large_enum_variant, reason = "one list per connection, of a few hundred entries")]
#[derive(Debug)]
pub(crate) enum Post {
    Send { request: RequestId, buffer: Buffer, tag: i32 },
    Receive { request: RequestId, count: usize, buffers: [Option<Buffer>; GROUPED_MAX], tags: [i32; GROUPED_MAX] },
}

/// Counts of one connection or of the process.
#[derive(Debug, Default)]
pub struct Counts {
    /// Messages sent.
    pub messages: AtomicU64,
    /// Payload bytes received, and the chunks that they came in.
    pub received: AtomicU64,
    /// See `received`.
    pub chunks: AtomicU64,
    /// Chunks that went out again.
    pub repeated: AtomicU64,
    /// Chunks that arrived again.
    pub copies: AtomicU64,
    /// Paths that were taken out.
    pub lost_paths: AtomicU64,
    /// Paths that came back.
    pub returned_paths: AtomicU64,
    /// Bytes of other hosts' paths that went through this process.
    pub relayed: AtomicU64,
    /// Payload bytes that devices wrote into the peer's memory.
    pub rdma: AtomicU64,
    /// Payload bytes that left on each rail.
    pub bytes: [AtomicU64; crate::limits::RAILS_MAX],
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Shared {
    pub key: u64,
    pub pool: Pool,
    pub posts: Mutex<Vec<Post>>,
    /// The I/O thread has been told of posts.
    pub queued: AtomicBool,
    status: AtomicU8,
    detached: Mutex<bool>,
    detached_changed: Condvar,
    pub thread: Arc<Thread>,
    /// Why it failed, once known.
    pub reason: Mutex<String>,
}

impl Shared {
    pub fn new(key: u64, requests: usize, thread: Arc<Thread>, status: Status) -> Self {
        Shared {
            key,
            pool: Pool::new(requests, Some(thread.clone())),
            posts: Mutex::default(),
            queued: AtomicBool::new(false),
            status: AtomicU8::new(status as u8),
            detached: Mutex::new(false),
            detached_changed: Condvar::new(),
            thread,
            reason: Mutex::default(),
        }
    }

    pub fn status(&self) -> Status {
        match self.status.load(Ordering::Acquire) {
            0 => Status::Connecting,
            1 => Status::Ready,
            _ => Status::Failed,
        }
    }

    pub fn set_ready(&self) {
        let _ = self.status.compare_exchange(0, Status::Ready as u8, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Fails the connection and all requests that are not done.
    pub fn fail(&self, why: &str) {
        let mut reason = lock(&self.reason);
        if reason.is_empty() {
            reason.push_str(why);
        }
        drop(reason);
        self.status.store(Status::Failed as u8, Ordering::Release);
        self.pool.fail_all();
    }

    pub fn post(&self, post: Post) {
        lock(&self.posts).push(post);
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.thread.hand_over_and_help(Job::Post(self.key));
        }
        // A panic fails all requests after it is flagged: this request, too, or the flag shows here.
        if self.thread.is_abandoned() {
            self.pool.fail_all();
        }
    }

    /// The I/O thread has panicked.
    fn abandon(&self) {
        self.fail(PANICKED);
        self.set_detached();
    }

    /// All requests are in use.
    pub fn no_request(&self) -> Result<Option<RequestId>, NetError> {
        match self.status() {
            Status::Failed => Err(NetError::Remote(lock(&self.reason).clone())),
            _ => Ok(None),
        }
    }

    /// The I/O thread no longer touches any buffer of the program.
    pub fn set_detached(&self) {
        *lock(&self.detached) = true;
        self.detached_changed.notify_all();
    }

    /// Waits until [`set_detached`](Shared::set_detached), at most `limit`. False: it has not happened.
    pub fn wait_detached(&self, limit: Duration) -> bool {
        let guard = lock(&self.detached);
        let waited = self.detached_changed.wait_timeout_while(guard, limit, |d| !*d);
        *waited.unwrap_or_else(|e| e.into_inner()).0
    }
}

/// Work for an I/O thread.
#[derive(Debug)]
pub(crate) enum Job {
    /// The connection has posts.
    Post(u64),
    /// A new sending connection.
    Connect {
        shared: Arc<Shared>,
        handle: Handle,
        secret: Vec<u8>,
        connection: u64,
        home: usize,
    },
    /// A new receiving connection.
    Accept {
        shared: Arc<Shared>,
        chunk: u32,
        connection: u64,
        listener: u64,
    },
    /// A path of a receiving connection.
    Adopt {
        key: u64,
        path: usize,
        rail: usize,
        socket: Socket,
        dial: u32,
        rdma: Option<crate::rdma::Rdma>,
    },
    Close(u64),
    /// A path does not move: other connections on the same pair of rails need not find out by themselves.
    Suspect(Link),
    /// The ways to other hosts may have changed.
    Ways,
    #[cfg(test)]
    Panic,
}

/// A pair of rails between this host and another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    pub host: u64,
    pub local: usize,
    pub remote: usize,
}

/// The mailbox of an I/O thread.
#[derive(Debug)]
pub(crate) struct Thread {
    jobs: Mutex<Vec<Job>>,
    /// True while the thread waits for events: only then a wake-up costs a system call.
    asleep: AtomicBool,
    event: OwnedFd,
    /// Connections that live on the thread.
    pub connections: AtomicU64,
    pub stop: AtomicBool,
    /// The thread's connections, so that a panic fails them all, also those whose job it had just taken.
    members: Mutex<HashMap<u64, Weak<Shared>>>,
    /// The thread has panicked.
    abandoned: AtomicBool,
    /// State of the thread. A program's thread that polls takes it for a moment: with more processes than cores, a wake-up of the I/O thread takes
    /// longer than the work.
    pub io: Mutex<Option<Io>>,
    /// When a program's thread helped last, microseconds after `begin`.
    helped: AtomicU64,
    /// So many bytes move that the I/O thread is busy anyway, and the program's thread stays out, unless no work was done for [`STARVED_US`].
    loaded: AtomicBool,
    worked: AtomicU64,
    begin: Instant,
}

/// Microseconds between two looks at the sockets by polls of unfinished requests. A look takes about a microsecond, a poll without it 50 ns, so that
/// less than one poll in a hundred looks. After a thread had to wait for a core, its first poll looks.
const HELP_US: Micros = 10;
/// A busy I/O thread that did nothing for this time waits for a core.
const STARVED_US: Micros = 3_000;

/// What the requests of a connection fail with whose I/O thread has panicked.
pub(crate) const PANICKED: &str = "an I/O thread has panicked";

impl Thread {
    pub fn new() -> io::Result<Self> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Thread {
            jobs: Mutex::default(),
            asleep: AtomicBool::new(false),
            event,
            connections: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            members: Mutex::default(),
            abandoned: AtomicBool::new(false),
            io: Mutex::new(None),
            helped: AtomicU64::new(0),
            loaded: AtomicBool::new(false),
            worked: AtomicU64::new(0),
            begin: Instant::now(),
        })
    }

    /// A new connection of this thread. After a panic of the thread it has failed already.
    pub fn connection(self: &Arc<Self>, key: u64, requests: usize) -> Arc<Shared> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::new(Shared::new(key, requests, self.clone(), Status::Connecting));
        let mut members = lock(&self.members);
        if self.is_abandoned() {
            shared.abandon();
        } else {
            members.insert(key, Arc::downgrade(&shared));
        }
        drop(members);
        shared
    }

    /// The connection is over.
    pub fn forget(&self, key: u64) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
        lock(&self.members).remove(&key);
    }

    /// The thread has panicked and touches no buffer any more: fails its connections, and refuses jobs from now on.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
        lock(&self.jobs).clear();
        let all = std::mem::take(&mut *lock(&self.members));
        all.into_values().filter_map(|s| s.upgrade()).for_each(|s| s.abandon());
    }

    /// A program's thread has polled an unfinished request: it looks at the sockets itself if [`HELP_US`] have passed.
    pub fn polled(&self) {
        if self.since_help() >= HELP_US {
            self.help();
        }
    }

    fn elapsed(&self) -> Micros {
        self.begin.elapsed().as_micros() as u64
    }

    /// Microseconds since a program's thread helped.
    pub fn since_help(&self) -> Micros {
        self.elapsed().saturating_sub(self.helped.load(Ordering::Relaxed))
    }

    /// A program's thread helps now.
    pub fn helps(&self) {
        self.helped.store(self.elapsed(), Ordering::Relaxed);
    }

    /// Work is being done; `loaded`: so much that it is for the I/O thread.
    pub fn works(&self, loaded: bool) {
        self.loaded.store(loaded, Ordering::Relaxed);
        self.worked.store(self.elapsed(), Ordering::Relaxed);
    }

    /// Does the I/O thread's work once, without waiting. False: another thread is at it, or so much is to do that the I/O thread shall do it.
    pub fn help(&self) -> bool {
        if self.loaded.load(Ordering::Relaxed) && self.elapsed() < self.worked.load(Ordering::Relaxed) + STARVED_US {
            return false;
        }
        let Ok(mut guard) = self.io.try_lock() else { return false };
        let Some(io) = guard.as_mut() else { return false };
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| io.help())) {
            Ok(helped) => helped,
            Err(_) => {
                let io = guard.take();
                drop(guard);
                io.into_iter().for_each(Io::abandon);
                true
            }
        }
    }

    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst)
    }

    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// A thread that has panicked ignores jobs: its connections have failed.
    pub fn hand_over(&self, job: Job) {
        self.push(job);
        self.wake();
    }

    /// Hands a job over and does it, if no other thread is at work.
    pub fn hand_over_and_help(&self, job: Job) {
        self.push(job);
        if !self.help() {
            self.wake();
        }
    }

    fn push(&self, job: Job) {
        let mut jobs = lock(&self.jobs);
        if !self.is_abandoned() {
            jobs.push(job);
        }
    }

    pub fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Announces that the thread is about to wait; false if there is work.
    pub fn falls_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        let idle = lock(&self.jobs).is_empty() && !self.stop.load(Ordering::SeqCst);
        if !idle {
            self.asleep.store(false, Ordering::SeqCst);
        }
        idle
    }

    pub fn wakes_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    pub fn clear_event(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count);
    }

    pub fn take_jobs(&self, into: &mut Vec<Job>) {
        std::mem::swap(&mut *lock(&self.jobs), into);
    }
}

/// A listener's state in the process.
#[derive(Debug)]
pub(crate) struct Listening {
    pub secret: Vec<u8>,
    /// False once closed: known connections may still add paths.
    pub open: bool,
    /// Connections with a path that the program has not accepted yet.
    pub ready: std::collections::VecDeque<Arc<Shared>>,
    /// By the random number of the connection.
    pub known: HashMap<u64, Arc<Shared>>,
    /// Connections that are over, the last [`OVER_MAX`]: a late path of one must not begin it anew.
    pub over: std::collections::VecDeque<u64>,
}

/// See [`Listening::over`].
pub(crate) const OVER_MAX: usize = 4096;

/// The shares that connections follow.
#[derive(Debug, Default)]
pub(crate) struct CommonPlan {
    /// Grows with every plan; 0 before the first.
    pub number: u64,
    /// By peer, the share of every rail; without an entry a connection chooses alone.
    pub of: HashMap<u64, [u32; crate::limits::RAILS_MAX]>,
}

/// Everything that threads of the process share.
#[derive(Debug)]
pub(crate) struct Common {
    pub settings: crate::endpoint::Settings,
    pub clock: Clock,
    pub threads: Vec<Arc<Thread>>,
    pub listeners: Mutex<HashMap<u64, Listening>>,
    /// Where this process listens, one address per rail.
    pub addresses: Vec<RailAddress>,
    pub counts: Counts,
    /// The same on all processes of the host.
    pub host: u64,
    pub next_key: AtomicU64,
    pub board: crate::share::Boards,
    /// Lending processes of other hosts.
    pub map: Mutex<crate::reach::Map>,
    /// Bytes that the program has sent to each host since the last record.
    pub sent: Mutex<HashMap<u64, u64>>,
    pub plan: Mutex<CommonPlan>,
    /// The RDMA device of every rail, if it has one that is to be used.
    pub nics: Vec<Option<Arc<verbs::Nic>>>,
    /// Memory that is registered with them.
    pub regions: crate::regions::Regions,
    /// A refused registration was logged.
    pub refused: AtomicBool,
    /// Random number of the process.
    pub owner: u64,
    /// Closed connections whose last bytes are on their way.
    pub lingering: AtomicU64,
    pub process: u32,
    /// When the loss of each rail was logged.
    pub lost_logged: [AtomicU64; crate::limits::RAILS_MAX],
}

/// See [`Common::log_lost`].
const LOST_LOG_US: Micros = 10_000_000;

impl Common {
    pub fn key(&self) -> u64 {
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }

    /// The thread with the fewest connections; `None` once an I/O thread has panicked.
    pub fn thread(&self) -> Option<Arc<Thread>> {
        if self.threads.iter().any(|t| t.is_abandoned()) {
            return None;
        }
        self.threads.iter().min_by_key(|t| t.connections.load(Ordering::Relaxed)).cloned()
    }

    /// Logs that a rail is lost, at most once in [`LOST_LOG_US`] per rail.
    pub fn log_lost(&self, rail: usize, now: Micros) {
        let Some(last) = self.lost_logged.get(rail) else { return };
        if now >= last.load(Ordering::Relaxed) + LOST_LOG_US {
            last.store(now, Ordering::Relaxed);
            let name = self.settings.rails.get(rail).map_or("", |r| r.name.as_str());
            self.log(&format!("rail {rail} ({name}) does not move: its bytes go over other rails until it does"));
        }
    }

    pub fn log(&self, line: &str) {
        (self.settings.log)(line);
    }
}
