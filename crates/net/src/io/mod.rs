//! The I/O threads. Each owns connections; the first also listens. A thread waits for events (epoll) and for the mailbox of [`Thread`].

mod greetings;
mod relays;
mod ticks;

use crate::connection::{After, Connection, Core, NewPath};
use crate::dialer::Dialer;
use crate::discovery::Discovery;
use crate::limits::RAILS_MAX;
use crate::rails::View;
use crate::receiver::Receiver;
use crate::relay::Relay;
use crate::sender::{Micros, Sender};
use crate::share::BoardWords;
use crate::shared::{Common, Job, Thread, lock};
use crate::sockets::Listener;
use greetings::{Greeting, strangers_max};
use relays::Asked;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Time limit of a greeting that this side began.
const GREETING_US: Micros = 2_000_000;
/// Interval of ticks while there is something to watch, and otherwise.
const TICK_US: Micros = 20_000;
const IDLE_US: Micros = 10_000_000;
/// Interval at which chunks that wait for a rail are looked at: other processes may have freed it.
const HUNGRY_US: Micros = 1_000;
const EVENTS_MAX: usize = 256;
const HELP_EVENTS_MAX: usize = 32;
/// While programs' threads help, the I/O thread only looks after them at this interval.
const HELPED_US: Micros = 1_000;

#[derive(Debug, Clone, Copy)]
enum Target {
    Mailbox,
    Board,
    Listener(usize),
    Greeting,
    Discovery,
    Asked,
    Relay { relay: u64 },
    Path { connection: u64, path: usize },
}

pub(crate) struct Io {
    common: Arc<Common>,
    thread: Arc<Thread>,
    epoll: Arc<OwnedFd>,
    listeners: Vec<Listener>,
    serves_board: bool,
    targets: HashMap<u64, Target>,
    connections: HashMap<u64, Connection>,
    greetings: HashMap<u64, Greeting>,
    /// Greetings of strangers at once: their sockets are descriptors of the program.
    strangers_max: usize,
    /// Listeners that could not accept, for example because the process has no descriptor left, with their keys. They rest until the next tick.
    paused: Vec<(usize, u64)>,
    asked: HashMap<u64, Asked>,
    relays: HashMap<u64, Relay>,
    discovery: Option<Discovery>,
    /// Mean work on each rail over [`MEAN_US`], nanoseconds.
    work_ns: [u64; RAILS_MAX],
    /// A program's thread does the work now: it leaves the plan to the I/O thread.
    helped: bool,
    /// What the plan of all hosts needs.
    lately: ticks::Lately,
    hungry: Vec<u64>,
    host_others: [u64; RAILS_MAX],
    near_others: [u64; RAILS_MAX],
    counted: Micros,
    ticked: Micros,
    watching: bool,
    /// Bytes, and messages sent and chunks received, of the process at the last look at them.
    moved: (u64, u64),
    moved_at: Micros,
    loaded: bool,
}

impl std::fmt::Debug for Io {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Io({} connections)", self.connections.len())
    }
}

impl Io {
    pub fn new(common: Arc<Common>, thread: Arc<Thread>, listeners: Vec<Listener>, first: bool) -> io::Result<Self> {
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        let mut io = Io {
            common,
            thread,
            epoll,
            listeners,
            serves_board: first,
            targets: HashMap::new(),
            connections: HashMap::new(),
            greetings: HashMap::new(),
            strangers_max: strangers_max(),
            paused: Vec::new(),
            asked: HashMap::new(),
            relays: HashMap::new(),
            discovery: None,
            work_ns: [0; RAILS_MAX],
            helped: false,
            lately: ticks::Lately::default(),
            hungry: Vec::new(),
            host_others: [0; RAILS_MAX],
            near_others: [0; RAILS_MAX],
            counted: 0,
            ticked: 0,
            watching: true,
            moved: (0, 0),
            moved_at: 0,
            loaded: false,
        };
        let key = io.target(Target::Mailbox);
        epoll::add(&io.epoll, io.thread.event(), EventData::new_u64(key), EventFlags::IN)?;
        for i in 0..io.listeners.len() {
            let key = io.target(Target::Listener(i));
            if let Some(l) = io.listeners.get(i) {
                epoll::add(&io.epoll, l, EventData::new_u64(key), EventFlags::IN)?;
            }
        }
        io.watch_board();
        if first && io.common.settings.relay {
            let common = &io.common;
            let d = Discovery::start(&common.settings.token, common.host, common.owner, &common.addresses)?;
            let key = io.target(Target::Discovery);
            epoll::add(&io.epoll, d.waits_for(), EventData::new_u64(key), EventFlags::IN)?;
            io.discovery = Some(d);
        }
        Ok(io)
    }

    pub fn epoll(&self) -> Arc<OwnedFd> {
        self.epoll.clone()
    }

    /// Ends the thread's part of the process after a panic: every connection fails, and sockets close.
    pub fn abandon(self) {
        let (common, thread) = (self.common.clone(), self.thread.clone());
        common.log("an I/O thread has panicked: its connections have failed, and this process makes no new ones");
        let closing = self.connections.values().filter(|c| c.is_closing()).count() as u64;
        // The copies of the program's buffers go first.
        drop(self);
        common.lingering.fetch_sub(closing, Ordering::Relaxed);
        thread.abandon();
    }

    fn target(&mut self, target: Target) -> u64 {
        let key = self.common.key();
        self.targets.insert(key, target);
        key
    }

    fn watch_board(&mut self) {
        if self.serves_board {
            let key = self.target(Target::Board);
            let (common, epoll) = (self.common.clone(), &self.epoll);
            common.board.waits_for(|fd| _ = epoll::add(epoll, fd, EventData::new_u64(key), EventFlags::IN));
        }
    }

    /// Does what is to do now. Returns the time until there is more, if no event comes before.
    fn step(&mut self, now: Micros) -> Micros {
        let mut jobs = Vec::new();
        self.thread.take_jobs(&mut jobs);
        self.count(now);
        for job in jobs {
            self.work(job, now);
        }
        self.feed(now);
        if now >= self.ticked + TICK_US && self.watching || now >= self.ticked + IDLE_US {
            self.tick(now);
        }
        let told = self.tell(now);
        let wait = if !self.hungry.is_empty() {
            HUNGRY_US
        } else if self.watching {
            (self.ticked + TICK_US).saturating_sub(now).max(1_000)
        } else {
            IDLE_US
        };
        wait.min(told)
    }

    fn on_events(&mut self, events: &[epoll::Event]) {
        let now = self.common.clock.now();
        self.count(now);
        for e in events {
            self.event(e.data.u64(), e.flags, now);
        }
    }

    /// A program's thread does the work once. False: in a forked process, which must not touch its parent's sockets.
    pub fn help(&mut self) -> bool {
        if std::process::id() != self.common.process {
            return false;
        }
        let now = self.common.clock.now();
        self.thread.helps();
        let mut events = [const { MaybeUninit::uninit() }; HELP_EVENTS_MAX];
        if let Ok((events, _)) = epoll::wait(&self.epoll, &mut events[..], Some(&time(0))) {
            self.on_events(events);
        }
        self.helped = true;
        self.step(now);
        self.helped = false;
        true
    }

    /// Calls `f` with a connection and the rails that it loads, then does what it left to do.
    fn with<R>(
        &mut self,
        key: u64,
        f: impl FnOnce(&mut Connection, &View<'_, BoardWords>, &Common, &mut After) -> R,
    ) -> Option<R> {
        let connection = self.connections.get_mut(&key)?;
        let (board, others) = if connection.near {
            (&self.common.board.near, &self.near_others)
        } else {
            (&self.common.board.host, &self.host_others)
        };
        let mut after = After::default();
        let result = f(connection, &View { board, others }, &self.common, &mut after);
        for path in after.dropped {
            let _ = epoll::delete(&self.epoll, &path.socket);
            self.targets.remove(&path.key);
        }
        for path in after.changed {
            if let Some(Some(p)) = connection.paths.get(path) {
                let flags = if p.wants_room { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
                let _ = epoll::modify(&self.epoll, &p.socket, EventData::new_u64(p.key), flags);
            }
        }
        Some(result)
    }

    fn event(&mut self, key: u64, flags: EventFlags, now: Micros) {
        match self.targets.get(&key).copied() {
            None => {}
            Some(Target::Mailbox) => self.thread.clear_event(),
            Some(Target::Board) if self.common.board.on_event() => {
                self.targets.remove(&key);
                self.watch_board();
            }
            Some(Target::Board) => {}
            Some(Target::Listener(i)) => self.accept(i, now),
            Some(Target::Greeting) => self.greet(key, now),
            Some(Target::Discovery) => {
                let Some(d) = &mut self.discovery else { return };
                if d.hear(&mut lock(&self.common.map), now) {
                    self.common.threads.iter().for_each(|t| t.hand_over(Job::Ways));
                }
            }
            Some(Target::Asked) => self.go_on(key),
            Some(Target::Relay { relay }) => self.relay(relay, flags, now),
            Some(Target::Path { connection, path }) => {
                self.with(connection, |c, rails, common, after| {
                    if flags.contains(EventFlags::OUT) {
                        c.write(path, now, rails, after);
                    }
                    if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                        c.read(path, now, rails, common, after);
                    }
                });
                self.hungry.push(connection);
                self.watching = true;
            }
        }
    }

    /// Gives chunks to paths.
    fn feed(&mut self, now: Micros) {
        let mut hungry = std::mem::take(&mut self.hungry);
        hungry.sort_unstable();
        hungry.dedup();
        let n = hungry.len().max(1);
        // Each connection is first in turn.
        hungry.rotate_left((now / 64) as usize % n);
        hungry.retain(|key| {
            self.with(*key, |c, rails, common, after| c.push(now, rails, common, after)).unwrap_or(false)
        });
        self.hungry.append(&mut hungry);
    }

    fn work(&mut self, job: Job, now: Micros) {
        self.watching = true;
        match job {
            Job::Post(key) => {
                self.with(key, |c, _, common, _| c.take_posts(now, common));
                self.hungry.push(key);
            }
            Job::Connect { shared, handle, secret, connection, home } => {
                let near = handle.host == self.common.host;
                let dialer = Dialer::new(&self.common, handle, secret, connection, home);
                let core = Core::Send(Sender::new(self.common.settings.chunk, dialer.home()));
                let mut c = Connection::new(shared.clone(), core, now);
                (c.dialer, c.near) = (Some(dialer), near);
                self.connections.insert(shared.key, c);
                self.dial(shared.key, now);
            }
            Job::Accept { shared, chunk, connection, listener } => {
                let mut c = Connection::new(shared.clone(), Core::Receive(Receiver::new(chunk)), now);
                c.origin = Some((listener, connection));
                self.connections.insert(shared.key, c);
            }
            Job::Suspect(link) => {
                let keys: Vec<u64> = self.connections.keys().copied().collect();
                for key in keys {
                    self.with(key, |c, rails, _, after| c.suspect(link, now, rails, after));
                    self.hungry.push(key);
                }
            }
            Job::Ways => {
                let keys: Vec<u64> = self.connections.keys().copied().collect();
                for key in keys {
                    self.with(key, |c, _, common, _| c.dialer.iter_mut().for_each(|d| d.find_ways(common, now)));
                    self.dial(key, now);
                }
            }
            #[cfg(test)]
            Job::Panic => panic!("a test wants this thread to panic"),
            Job::Adopt { key, path, rail, socket, dial, rdma } => {
                self.adopt(key, NewPath { path, rail, socket, key: 0, dial, rdma }, now);
            }
            Job::Close(key) => {
                if self.with(key, |c, _, common, after| c.close(now, common, after)).is_some() {
                    self.hungry.push(key);
                }
                let dialled = self.greetings.iter().filter(|(_, g)| g.dials.is_some_and(|d| d.0 == key));
                let dialled: Vec<u64> = dialled.map(|(k, _)| *k).collect();
                dialled.into_iter().for_each(|k| _ = self.end_greeting(k));
            }
        }
    }

    fn adopt(&mut self, connection: u64, mut new: NewPath, now: Micros) {
        if self.connections.get(&connection).is_none_or(|c| c.is_closing()) {
            return;
        }
        let key = self.target(Target::Path { connection, path: new.path });
        new.key = key;
        let add = |fd: BorrowedFd<'_>| epoll::add(&self.epoll, fd, EventData::new_u64(key), EventFlags::IN).is_ok();
        if !add(new.socket.as_fd()) || !new.rdma.as_ref().is_none_or(|r| add(r.fd())) {
            self.targets.remove(&key);
            return;
        }
        self.with(connection, |c, rails, common, after| c.attach(new, now, rails, common, after));
        self.hungry.push(connection);
    }
}

fn time(us: Micros) -> Timespec {
    Timespec { tv_sec: (us / 1_000_000) as i64, tv_nsec: (us % 1_000_000 * 1_000) as i64 }
}

/// Runs an I/O thread until `stop` is set. `epoll`: that of its state.
pub(crate) fn run(thread: &Thread, epoll: &OwnedFd, clock: crate::shared::Clock) {
    let mut events = Vec::with_capacity(EVENTS_MAX);
    while !thread.stop.load(Ordering::Acquire) {
        let now = clock.now();
        let Some(wait) = lock(&thread.io).as_mut().map(|io| io.step(now)) else { return };
        let mut wait = if thread.falls_asleep() { wait } else { 0 };
        events.clear();
        if wait > 0 && thread.since_help() < HELPED_US {
            // Events of sockets would only wake this thread beside the program's.
            let mut mailbox = [PollFd::from_borrowed_fd(thread.event(), PollFlags::IN)];
            let _ = poll(&mut mailbox, Some(&time(wait.min(HELPED_US))));
            wait = 0;
        }
        let _ = epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), Some(&time(wait)));
        thread.wakes_up();
        if let Some(io) = lock(&thread.io).as_mut() {
            io.on_events(&events);
        }
    }
    drop(lock(&thread.io).take());
}
