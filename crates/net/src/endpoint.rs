//! What a program uses: listen, connect, accept, send, receive, close. No call blocks, but `close` until the I/O thread has let go of the buffers.

use crate::buffer::Buffer;
use crate::handle::{HANDLE_BYTES, Handle, SECRET_BYTES, STATE_AT};
use crate::io::Io;
use crate::limits::{ANNOUNCED_MAX, CHUNK_BYTES_DEFAULT, GROUPED_MAX, RAILS_MAX, SENDS_MAX};
use crate::regions::{Regions, Registration};
use crate::request::Request;
use crate::sender::RequestId;
use crate::share::Boards;
use crate::shared::{Clock, Common, Counts, Job, Listening, PANICKED, Post, Shared, Status, Thread, lock};
use crate::sockets::Listener;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use verbs::{Library, Nic};

/// Receive groups that a connection has at once.
pub(crate) const RECEIVES_MAX: usize = ANNOUNCED_MAX;
/// Connections that are being set up at once.
const PENDING_MAX: usize = 65_536;
/// Time that `close` waits for the I/O thread, which never blocks.
const DETACH_TIME_MAX: Duration = Duration::from_secs(10);
/// Cores of a host per I/O thread of each process, if the number of threads is not set.
const CORES_PER_THREAD: usize = 8;
/// I/O threads of a process at most.
pub const THREADS_MAX: usize = 8;

/// A NIC.
#[derive(Debug, Clone, PartialEq)]
pub struct Rail {
    pub name: String,
    pub ip: IpAddr,
    /// Bits of the subnet.
    pub prefix: u8,
    /// Bytes per second; 0 if unknown.
    pub rate: u64,
}

#[derive(Debug, Clone)]
pub struct Settings {
    /// At least one and at most [`RAILS_MAX`].
    pub rails: Vec<Rail>,
    /// Shared by the processes of a job; may be empty.
    pub token: Vec<u8>,
    /// Size of chunks, bytes.
    pub chunk: u32,
    /// I/O threads.
    pub threads: usize,
    /// Whether the processes of this host share a board.
    pub share: bool,
    /// Whether this process lends its links to other hosts of the job, and uses theirs. Needs a token. A rail then reaches its own subnet only.
    pub relay: bool,
    pub plan: crate::plan::Source,
    /// Paths between rails with RDMA devices have queue pairs; without a library or a device they have TCP alone.
    pub verbs: Option<Verbs>,
    /// Takes lines for the program's log. Called on I/O threads.
    pub log: fn(&str),
    /// Called to start a thread.
    pub spawn: fn(Box<dyn FnOnce() + Send>) -> io::Result<()>,
}

/// The library of RDMA devices.
#[derive(Debug, Clone, Default)]
pub struct Verbs {
    /// Its path; `None`: the system's libibverbs.
    pub library: Option<String>,
}

/// The RDMA device of every rail.
fn nics(settings: &Settings) -> Vec<Option<Arc<Nic>>> {
    let Some(verbs) = &settings.verbs else { return Vec::new() };
    match Library::open(verbs.library.as_deref()) {
        Ok(library) => settings.rails.iter().map(|r| Nic::with_address(library, r.ip)).collect(),
        Err(e) => {
            (settings.log)(&format!("no RDMA: {e}; all bytes go over TCP"));
            Vec::new()
        }
    }
}

fn spawn(f: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    std::thread::Builder::new().name("linkwise-net".into()).spawn(f).map(drop)
}

impl Settings {
    /// Defaults for these rails.
    pub fn new(rails: Vec<Rail>) -> Self {
        // On a small host a second thread only adds wake-ups.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = rails.len().div_ceil(2).min(cores / CORES_PER_THREAD).clamp(1, 2);
        Settings {
            rails,
            token: Vec::new(),
            chunk: CHUNK_BYTES_DEFAULT,
            threads,
            share: true,
            relay: false,
            plan: crate::plan::Source::Common,
            verbs: None,
            log: |_| {},
            spawn,
        }
    }
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetError {
    /// The handle is not one of ours.
    Handle(&'static str),
    /// The connection has failed.
    Remote(String),
    /// More than this process may have.
    Limit,
    /// This process was forked from the one that owns the connection.
    Forked,
}

impl std::fmt::Display for NetError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NetError::Handle(why) => write!(f, "{why}"),
            NetError::Remote(why) => write!(f, "{why}"),
            NetError::Limit => write!(f, "too many connections are being set up"),
            NetError::Forked => write!(f, "a forked process cannot use its parent's connections"),
        }
    }
}

impl std::error::Error for NetError {}

/// The process's end of the network.
#[derive(Debug)]
pub struct Endpoint {
    common: Arc<Common>,
    pending: Mutex<HashMap<u64, Arc<Shared>>>,
}

fn random() -> io::Result<u64> {
    let nonce = wire::auth::nonce()?;
    Ok(nonce.first_chunk().map_or(1, |b| u64::from_ne_bytes(*b)).max(1))
}

/// The same on all processes that see the same rails.
fn host_id(rails: &[Rail]) -> u64 {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    wire::bytes::hash(format!("{boot} {}", rails_text(rails)).as_bytes())
}

fn rails_text(rails: &[Rail]) -> String {
    rails.iter().map(|r| format!("{} {};", r.name, r.ip)).collect()
}

impl Endpoint {
    /// Listens on every rail and starts the I/O threads.
    ///
    /// # Errors
    /// A rail's address cannot be bound, or the system has no descriptors or threads left.
    pub fn start(settings: Settings) -> io::Result<Self> {
        if settings.relay && settings.token.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "links are lent only to a job with a token"));
        }
        if settings.rails.is_empty() || settings.rails.len() > RAILS_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the number of rails must be 1 to 16"));
        }
        let listeners =
            settings.rails.iter().map(|r| Listener::bind(r.ip, r.prefix)).collect::<io::Result<Vec<_>>>()?;
        let addresses = listeners.iter().map(|l| l.address).collect();
        let clock = Clock::new();
        let mut nominal = [0; RAILS_MAX];
        nominal.iter_mut().zip(&settings.rails).for_each(|(n, r)| *n = r.rate);
        let host = host_id(&settings.rails);
        let name = settings.share.then(|| format!("linkwise-net-{}-{host:x}", rustix::process::geteuid().as_raw()));
        let owner = random()?;
        let board = Boards::open(name.as_deref(), owner, nominal, clock.now());
        let board = board.ok_or_else(|| io::Error::other("no board"))?;
        if settings.share && !board.is_shared {
            (settings.log)("the processes of this host do not share the load of its rails: each counts its own");
        }
        let count = settings.threads.clamp(1, THREADS_MAX);
        let threads = (0..count).map(|_| Thread::new().map(Arc::new)).collect::<io::Result<Vec<_>>>()?;
        let nics = nics(&settings);
        for (rail, _) in settings.rails.iter().zip(&nics).filter(|(_, nic)| nic.is_none()) {
            (settings.log)(&format!("no RDMA device has the address {} of rail {}: it uses TCP", rail.ip, rail.name));
        }
        let common = Arc::new(Common {
            nics,
            regions: Regions::default(),
            refused: AtomicBool::new(false),
            settings,
            clock,
            threads,
            listeners: Mutex::default(),
            addresses,
            counts: Counts::default(),
            host,
            next_key: AtomicU64::new(1),
            board,
            map: Mutex::default(),
            sent: Mutex::default(),
            plan: Mutex::default(),
            owner,
            lingering: AtomicU64::new(0),
            process: std::process::id(),
            lost_logged: Default::default(),
        });
        let mut listeners = Some(listeners);
        for (i, thread) in common.threads.iter().enumerate() {
            let own = listeners.take().unwrap_or_default();
            let io = Io::new(common.clone(), thread.clone(), own, i == 0)?;
            let (thread, epoll, clock) = (thread.clone(), io.epoll(), common.clock);
            *lock(&thread.io) = Some(io);
            (common.settings.spawn)(Box::new(move || {
                let run = || crate::io::run(&thread, &epoll, clock);
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err() {
                    let io = lock(&thread.io).take();
                    io.into_iter().for_each(Io::abandon);
                }
            }))?;
        }
        Ok(Endpoint { common, pending: Mutex::default() })
    }

    pub fn counts(&self) -> &Counts {
        &self.common.counts
    }

    /// Registers memory with the RDMA devices of the rails, so that they may read and write it. Without such devices, or if all refuse, the number is 0 and
    /// the memory's bytes go over TCP.
    pub fn register(&self, buffer: &Buffer) -> Registration {
        if self.is_forked() {
            return Registration::default();
        }
        let r = self.common.regions.register(&self.common.nics, buffer);
        let has_device = self.common.nics.iter().any(Option::is_some);
        if has_device && r == Registration::default() && !self.common.refused.swap(true, Ordering::Relaxed) {
            self.common
                .log("no RDMA device takes the program's memory (is `ulimit -l` too small?): its bytes go over TCP");
        }
        r
    }

    /// Ends a registration. No request with this memory is open.
    pub fn deregister(&self, r: Registration) {
        if !self.is_forked() {
            self.common.regions.deregister(r);
        }
    }

    /// Names of the RDMA devices by rail.
    pub fn devices(&self) -> Vec<Option<String>> {
        self.common.nics.iter().map(|n| n.as_ref().map(|n| n.name().to_owned())).collect()
    }

    /// True if the processes of this host share a board.
    pub fn shares_board(&self) -> bool {
        self.common.board.is_shared
    }

    fn is_forked(&self) -> bool {
        std::process::id() != self.common.process
    }

    fn secret(&self, secret: &[u8]) -> Vec<u8> {
        [&self.common.settings.token[..], secret].concat()
    }

    /// Makes a listener for the device of a rail.
    ///
    /// # Errors
    /// In a forked process, and without random numbers.
    pub fn listen(&self, rail: usize) -> Result<(Listen, [u8; HANDLE_BYTES]), NetError> {
        if self.is_forked() {
            return Err(NetError::Forked);
        }
        if self.common.thread().is_none() {
            return Err(NetError::Remote(PANICKED.into()));
        }
        let nonce = wire::auth::nonce().map_err(|e| NetError::Remote(e.to_string()))?;
        let (mut secret, mut id) = ([0; SECRET_BYTES], [0; 8]);
        secret.iter_mut().chain(&mut id).zip(nonce).for_each(|(to, b)| *to = b);
        let listener = u64::from_ne_bytes(id);
        let rails = self.common.addresses.len() as u8;
        let handle = Handle {
            listener,
            secret,
            host: self.common.host,
            rail: rail.min(usize::from(rails) - 1) as u8,
            rails,
            addresses: self.common.addresses.clone(),
        };
        let listening = Listening {
            secret: self.secret(&secret),
            open: true,
            ready: VecDeque::new(),
            known: HashMap::new(),
            over: VecDeque::new(),
        };
        lock(&self.common.listeners).insert(listener, listening);
        Ok((Listen { common: self.common.clone(), id: listener }, handle.write()))
    }

    /// Connects to a handle. `None`: not yet, call again with the same bytes.
    ///
    /// # Errors
    /// The handle is wrong, or no rail reaches the peer.
    pub fn connect(&self, rail: usize, bytes: &mut [u8; HANDLE_BYTES]) -> Result<Option<SendEnd>, NetError> {
        if self.is_forked() {
            return Err(NetError::Forked);
        }
        let mut state = [0; 8];
        state.iter_mut().zip(bytes.iter().skip(STATE_AT)).for_each(|(to, b)| *to = *b);
        let mut pending = lock(&self.pending);
        let key = u64::from_le_bytes(state);
        if let Some(shared) = pending.get(&key).cloned() {
            return match shared.status() {
                Status::Connecting => {
                    shared.thread.polled();
                    Ok(None)
                }
                Status::Ready => {
                    pending.remove(&key);
                    Ok(Some(SendEnd { common: self.common.clone(), shared }))
                }
                Status::Failed => {
                    pending.remove(&key);
                    shared.thread.hand_over(Job::Close(shared.key));
                    Err(NetError::Remote(lock(&shared.reason).clone()))
                }
            };
        }
        let handle = Handle::read(bytes).map_err(|e| NetError::Handle(e.0))?;
        if pending.len() >= PENDING_MAX {
            return Err(NetError::Limit);
        }
        let thread = self.common.thread().ok_or(NetError::Remote(PANICKED.into()))?;
        let key = random().map_err(|e| NetError::Remote(e.to_string()))?;
        let shared = thread.connection(self.common.key(), SENDS_MAX);
        let secret = self.secret(&handle.secret);
        shared.thread.hand_over(Job::Connect { shared: shared.clone(), handle, secret, connection: key, home: rail });
        pending.insert(key, shared);
        bytes.iter_mut().skip(STATE_AT).zip(key.to_le_bytes()).for_each(|(to, b)| *to = b);
        Ok(None)
    }

    /// Waits until closed connections have sent their last bytes, at most `limit`.
    pub fn drain(&self, limit: Duration) {
        let until = Instant::now() + limit;
        while !self.is_forked() && self.common.lingering.load(Ordering::Relaxed) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if !self.is_forked() {
            for t in &self.common.threads {
                t.stop.store(true, Ordering::SeqCst);
                t.wake();
            }
            self.common.board.host.leave();
        }
    }
}

/// A listener.
#[derive(Debug)]
pub struct Listen {
    common: Arc<Common>,
    id: u64,
}

impl Listen {
    /// The next connection; `None`: not yet.
    pub fn accept(&self) -> Option<ReceiveEnd> {
        // Before the lock, which an introduction takes, too.
        self.common.threads.iter().for_each(|t| t.polled());
        let mut listeners = lock(&self.common.listeners);
        let ready = &mut listeners.get_mut(&self.id)?.ready;
        let at = ready.iter().position(|s| s.status() != Status::Connecting)?;
        let shared = ready.remove(at)?;
        Some(ReceiveEnd { common: self.common.clone(), shared })
    }
}

impl Drop for Listen {
    fn drop(&mut self) {
        if std::process::id() != self.common.process {
            return;
        }
        let mut listeners = lock(&self.common.listeners);
        let Some(l) = listeners.get_mut(&self.id) else { return };
        l.open = false;
        let unused: Vec<Arc<Shared>> = l.ready.drain(..).collect();
        if l.known.is_empty() {
            listeners.remove(&self.id);
        }
        drop(listeners);
        unused.into_iter().for_each(|s| s.thread.hand_over(Job::Close(s.key)));
    }
}

fn close(common: &Common, shared: &Shared) {
    if std::process::id() != common.process {
        return;
    }
    shared.thread.hand_over_and_help(Job::Close(shared.key));
    if !shared.wait_detached(DETACH_TIME_MAX) {
        common.log("a connection's I/O thread does not answer");
    }
}

/// The sending end of a connection. Dropping it closes the connection.
#[derive(Debug)]
pub struct SendEnd {
    common: Arc<Common>,
    shared: Arc<Shared>,
}

impl SendEnd {
    /// Begins a send. `None`: not now, call again. On a connection that has failed, the request fails.
    ///
    /// # Errors
    /// The connection has failed, and no request is free to say so.
    pub fn send(&self, buffer: Buffer, tag: i32) -> Result<Option<RequestId>, NetError> {
        let Some(request) = self.shared.pool.take(1) else { return self.shared.no_request() };
        self.shared.post(Post::Send { request, buffer, tag });
        Ok(Some(request))
    }

    pub fn request(&self, id: RequestId) -> Option<&Request> {
        self.shared.pool.get(id)
    }
}

impl Drop for SendEnd {
    fn drop(&mut self) {
        close(&self.common, &self.shared);
    }
}

/// The receiving end of a connection. Dropping it closes the connection.
#[derive(Debug)]
pub struct ReceiveEnd {
    common: Arc<Common>,
    shared: Arc<Shared>,
}

impl ReceiveEnd {
    /// Posts a group of at most [`GROUPED_MAX`] receives. `None`: not now, call again. On a connection that has failed, the request fails.
    ///
    /// # Errors
    /// There is no receive or too many; or the connection has failed, and no request is free to say so.
    pub fn receive(&self, list: &[(Buffer, i32)]) -> Result<Option<RequestId>, NetError> {
        if list.is_empty() || list.len() > GROUPED_MAX {
            return Err(NetError::Handle("a group has 1 to 8 receives"));
        }
        let Some(request) = self.shared.pool.take(list.len()) else { return self.shared.no_request() };
        let (mut buffers, mut tags) = ([None; GROUPED_MAX], [0; GROUPED_MAX]);
        for ((to, tag), (b, t)) in buffers.iter_mut().zip(&mut tags).zip(list) {
            (*to, *tag) = (Some(*b), *t);
        }
        self.shared.post(Post::Receive { request, count: list.len(), buffers, tags });
        Ok(Some(request))
    }

    pub fn request(&self, id: RequestId) -> Option<&Request> {
        self.shared.pool.get(id)
    }
}

impl Drop for ReceiveEnd {
    fn drop(&mut self) {
        close(&self.common, &self.shared);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Progress;

    fn endpoint(threads: usize) -> Endpoint {
        let rail = Rail { name: "lo".into(), ip: "127.0.0.1".parse().unwrap(), prefix: 8, rate: 0 };
        let mut s = Settings::new(vec![rail]);
        (s.share, s.threads) = (false, threads);
        Endpoint::start(s).unwrap()
    }

    fn until<T>(mut f: impl FnMut() -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            if let Some(t) = f() {
                return t;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "it hangs");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn connect(a: &Endpoint, b: &Endpoint) -> (SendEnd, ReceiveEnd) {
        let (listen, mut handle) = b.listen(0).unwrap();
        let send = until(|| a.connect(0, &mut handle).unwrap());
        (send, until(|| listen.accept()))
    }

    fn buffer(v: &mut [u8]) -> Buffer {
        // SAFETY: the vectors live until their connection is closed.
        #[allow(unsafe_code)]
        unsafe {
            Buffer::new(v.as_mut_ptr(), v.len())
        }
    }

    #[test]
    fn bytes_move_while_the_io_threads_wait_for_a_core() {
        let start = || {
            let rail =
                |i| Rail { name: format!("r{i}"), ip: format!("127.0.0.{i}").parse().unwrap(), prefix: 8, rate: 0 };
            let mut s = Settings::new((1..=3).map(rail).collect());
            (s.share, s.threads) = (false, 2);
            // The I/O threads never get a core.
            s.spawn = |f| {
                drop(f);
                Ok(())
            };
            Endpoint::start(s).unwrap()
        };
        let (a, b) = (start(), start());
        let (listen, mut handle) = b.listen(0).unwrap();
        let (mut send, mut receive) = (None, None);
        until(|| {
            send = send.take().or_else(|| a.connect(0, &mut handle).unwrap());
            receive = receive.take().or_else(|| listen.accept());
            (send.is_some() && receive.is_some()).then_some(())
        });
        let (s, r) = (send.unwrap(), receive.unwrap());
        for n in [0, 1, 4096, 700_000] {
            let (mut from, mut to) = (vec![n as u8 + 1; n], vec![0; n]);
            let got = r.receive(&[(buffer(&mut to), 0)]).unwrap().unwrap();
            let sent = s.send(buffer(&mut from), 0).unwrap().unwrap();
            let mut done = [false; 2];
            until(|| {
                done[0] = done[0] || matches!(s.request(sent).unwrap().poll(), Progress::Done(_));
                done[1] = done[1] || matches!(r.request(got).unwrap().poll(), Progress::Done(_));
                (done == [true; 2]).then_some(())
            });
            assert!(from == to, "{n} bytes");
        }
    }

    #[test]
    fn a_panic_of_an_io_thread_fails_its_connections_and_refuses_new_ones() {
        let (a, b) = (endpoint(1), endpoint(2));
        let (mut from, mut to) = (vec![1; 100], vec![0; 100]);
        let ends: Vec<_> = (0..4).map(|_| connect(&a, &b)).collect();
        let broken = ends[0].1.shared.thread.clone();
        let open: Vec<_> = ends.iter().map(|(_, r)| r.receive(&[(buffer(&mut to), 7)]).unwrap().unwrap()).collect();
        broken.hand_over(Job::Panic);
        for ((_, r), open) in ends.iter().zip(open) {
            let is_broken = Arc::ptr_eq(&r.shared.thread, &broken);
            if is_broken {
                until(|| (r.request(open).unwrap().poll() == Progress::Failed).then_some(()));
                let later = r.receive(&[(buffer(&mut to), 7)]).unwrap().unwrap();
                until(|| (r.request(later).unwrap().poll() == Progress::Failed).then_some(()));
            } else {
                assert_eq!(r.request(open).unwrap().poll(), Progress::Pending, "the other thread lives");
            }
            assert_eq!(r.shared.wait_detached(Duration::from_millis(1)), is_broken, "a close must not wait");
        }
        assert_eq!(b.listen(0).unwrap_err(), NetError::Remote(PANICKED.into()));
        let (_listen, mut handle) = a.listen(0).unwrap();
        assert_eq!(b.connect(0, &mut handle).unwrap_err(), NetError::Remote(PANICKED.into()));
        // The other thread's connections go on.
        let (s, r) = ends.iter().find(|(_, r)| !Arc::ptr_eq(&r.shared.thread, &broken)).unwrap();
        let sent = s.send(buffer(&mut from), 7).unwrap().unwrap();
        until(|| matches!(s.request(sent).unwrap().poll(), Progress::Done(_)).then_some(()));
        assert_eq!(r.shared.status(), Status::Ready);
    }
}
