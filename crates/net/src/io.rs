//! The I/O threads. Each owns connections; the first also listens. A thread waits for events (epoll) and for the mailbox of [`Thread`].

use crate::connection::{After, Connection, Core, Dialer, NewPath};
use crate::discovery::Discovery;
use crate::greeting::{self, ANSWER_BYTES, CALL_BYTES, HELLO_BYTES, Hello, ONWARD_BYTES, RELAY, THROUGH_BYTES};
use crate::greeting::{WELCOME_BYTES, Welcome};
use crate::limits::{PATHS_MAX, RAILS_MAX, RELAYED_MAX};
use crate::rails::{Rails, View};
use crate::receiver::Receiver;
use crate::relay::{Relay, Side};
use crate::sender::{Micros, Sender};
use crate::share::BoardWords;
use crate::shared::{Common, Job, OVER_MAX, Shared, Status, Thread, lock};
use crate::sockets::{Listener, Socket};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::auth::{self, Nonce};

/// Greetings of strangers under way on the listening thread.
const STRANGERS_MAX: usize = 512;
/// Time limit of a greeting that a peer began, and of one that this side began.
const STRANGER_US: Micros = 5_000_000;
/// See [`STRANGER_US`].
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
/// If the messages of the last [`LOADED_US`] were larger than this on average, programs' threads leave the work to the I/O thread: it sleeps between its
/// events, so the system runs it before threads that poll without a pause. With smaller ones, its wake-ups would take longer than the work.
const LARGE_BYTES: u64 = 16 << 10;
const LOADED_US: Micros = 10_000;
/// Time over which the work on a rail is averaged for other hosts.
const MEAN_US: Micros = 65_536;

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

#[derive(Debug)]
enum Stage {
    /// This side dials: waits for the connection, the answer, the welcome.
    Dialling,
    Called,
    /// A relay was asked to go on.
    Asked {
        b: Nonce,
    },
    Introduced {
        b: Nonce,
    },
    /// The peer dials.
    Accepted,
    Challenged {
        listener: u64,
        a: Nonce,
        b: Nonce,
    },
}

/// A socket whose peer has not proved anything yet.
#[derive(Debug)]
struct Greeting {
    socket: Socket,
    stage: Stage,
    nonce: Nonce,
    /// For a side that dials: its connection and path.
    dials: Option<(u64, usize)>,
    /// Relays that have gone on already.
    hop: usize,
    /// For a side that accepts: the rail.
    rail: usize,
    got: Vec<u8>,
    need: usize,
    until: Micros,
}

/// [`STRANGERS_MAX`], or an eighth of the descriptors that this process may have.
fn strangers_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(STRANGERS_MAX, |n| usize::try_from(n / 8).unwrap_or(STRANGERS_MAX).clamp(8, STRANGERS_MAX))
}

/// A path of other hosts whose next link is being dialled.
#[derive(Debug)]
struct Asked {
    from: Socket,
    from_rail: usize,
    to: Socket,
    to_rail: usize,
    yes: Vec<u8>,
    no: Vec<u8>,
    until: Micros,
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
        self.step(now);
        true
    }

    /// Counts the other processes' bytes anew if a millisecond has passed.
    fn count(&mut self, now: Micros) {
        if now >= self.counted + HUNGRY_US {
            let passed = (now - std::mem::replace(&mut self.counted, now)).min(MEAN_US);
            self.host_others = self.common.board.host.tick(now);
            self.near_others = self.common.board.near.tick(now);
            if now >= self.moved_at + LOADED_US {
                let counts = &self.common.counts;
                let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
                let bytes = counts.bytes.iter().map(get).sum::<u64>() + get(&counts.received) + get(&counts.relayed);
                let parts = get(&counts.messages) + get(&counts.chunks);
                let (bytes_before, parts_before) = std::mem::replace(&mut self.moved, (bytes, parts));
                self.moved_at = now;
                self.loaded = bytes - bytes_before > LARGE_BYTES * (parts - parts_before);
            }
            self.thread.works(self.loaded);
            if self.discovery.is_some() {
                let view = View { board: &self.common.board.host, others: &self.host_others };
                for (rail, mean) in self.work_ns.iter_mut().enumerate().take(self.common.addresses.len()) {
                    let work = view.backlog(rail).saturating_mul(1_000_000_000) / view.rate(rail).max(1);
                    *mean = (*mean * (MEAN_US - passed) + work.min(1 << 40) * passed) / MEAN_US;
                }
            }
        }
    }

    /// Tells other hosts of this process's rails, if it lends them. Returns the time until the next word.
    fn tell(&mut self, now: Micros) -> Micros {
        let Some(d) = &mut self.discovery else { return IDLE_US };
        let next = d.tick(now, |rail| self.work_ns.get(rail).copied().unwrap_or(0) / 1_000);
        if lock(&self.common.map).expire(now) {
            self.common.threads.iter().for_each(|t| t.hand_over(Job::Ways));
        }
        next.saturating_sub(now).max(1_000)
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
            Job::Adopt { key, path, rail, socket } => self.adopt(key, path, rail, socket, now),
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

    fn adopt(&mut self, connection: u64, path: usize, rail: usize, socket: Socket, now: Micros) {
        if self.connections.get(&connection).is_none_or(|c| c.is_closing()) {
            return;
        }
        let key = self.target(Target::Path { connection, path });
        if epoll::add(&self.epoll, &socket, EventData::new_u64(key), EventFlags::IN).is_err() {
            self.targets.remove(&key);
            return;
        }
        self.with(connection, |c, rails, _, after| c.attach(NewPath { path, rail, socket, key }, now, rails, after));
        self.hungry.push(connection);
    }

    /// Dials the paths of a connection that are due.
    fn dial(&mut self, key: u64, now: Micros) {
        let Some(c) = self.connections.get_mut(&key).filter(|c| !c.is_closing()) else { return };
        let Some(d) = &mut c.dialer else { return };
        let mut all = Vec::new();
        for (path, pair) in d.due(now) {
            let from = self.common.addresses.get(pair.local).map(|a| a.ip);
            let peer = d.remote.get(pair.remote).map(|a| a.socket());
            let to = pair.relays.first().copied().or(peer);
            let (Some(from), Some(to)) = (from, to) else { continue };
            match Socket::dial(from, to).and_then(|s| Ok((s, auth::nonce()?))) {
                Ok((socket, nonce)) => all.push((path, socket, nonce)),
                Err(_) => d.again(path, now),
            }
        }
        for (path, socket, nonce) in all {
            let greeting = Greeting {
                socket,
                stage: Stage::Dialling,
                nonce,
                dials: Some((key, path)),
                hop: 0,
                rail: 0,
                got: Vec::new(),
                need: 0,
                until: now + GREETING_US,
            };
            self.begin_greeting(greeting, EventFlags::OUT);
        }
    }

    fn begin_greeting(&mut self, greeting: Greeting, flags: EventFlags) {
        let key = self.target(Target::Greeting);
        if epoll::add(&self.epoll, &greeting.socket, EventData::new_u64(key), flags).is_ok() {
            self.greetings.insert(key, greeting);
        } else {
            self.targets.remove(&key);
        }
    }

    fn accept(&mut self, i: usize, now: Micros) {
        for _ in 0..64 {
            let Some(l) = self.listeners.get(i) else { return };
            let socket = match l.accept() {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(_) => return self.pause(i),
            };
            let strangers = self.greetings.values().filter(|g| g.dials.is_none()).count();
            let Some(nonce) = auth::nonce().ok().filter(|_| strangers < self.strangers_max) else { continue };
            let greeting = Greeting {
                socket,
                stage: Stage::Accepted,
                nonce,
                dials: None,
                hop: 0,
                rail: i,
                got: Vec::new(),
                need: CALL_BYTES,
                until: now + STRANGER_US,
            };
            self.begin_greeting(greeting, EventFlags::IN);
            self.watching = true;
        }
    }

    /// A connection that cannot be accepted stays in the queue, and epoll would report it again and again.
    fn pause(&mut self, i: usize) {
        let key = self.targets.iter().find(|(_, t)| matches!(t, Target::Listener(l) if *l == i)).map(|(key, _)| *key);
        let (Some(key), Some(l)) = (key, self.listeners.get(i)) else { return };
        if epoll::modify(&self.epoll, l, EventData::new_u64(key), EventFlags::empty()).is_ok() {
            self.paused.push((i, key));
            self.watching = true;
        }
    }

    fn resume(&mut self) {
        for (i, key) in std::mem::take(&mut self.paused) {
            if let Some(l) = self.listeners.get(i) {
                let _ = epoll::modify(&self.epoll, l, EventData::new_u64(key), EventFlags::IN);
            }
        }
    }

    fn end_greeting(&mut self, key: u64) -> Option<Greeting> {
        self.targets.remove(&key);
        let g = self.greetings.remove(&key)?;
        let _ = epoll::delete(&self.epoll, &g.socket);
        Some(g)
    }

    /// A socket of a greeting is ready.
    fn greet(&mut self, key: u64, now: Micros) {
        let step = match self.greetings.get_mut(&key) {
            None => return,
            Some(g) => g.advance(&self.common, &self.connections),
        };
        match step {
            Ok(Step::Wait) => {}
            Ok(Step::Read) => {
                if let Some(g) = self.greetings.get(&key) {
                    let _ = epoll::modify(&self.epoll, &g.socket, EventData::new_u64(key), EventFlags::IN);
                }
            }
            Ok(Step::Dialled(welcome)) => {
                let Some(g) = self.end_greeting(key) else { return };
                let Some((connection, path)) = g.dials else { return };
                let Some(c) = self.connections.get_mut(&connection) else { return };
                let Some(d) = &mut c.dialer else { return };
                let Welcome::Accepted(rails) = welcome else {
                    self.with(connection, |c, rails, common, after| {
                        c.fail("the listener of the peer is closed", common, after);
                        c.lose(path, now, rails, after);
                    });
                    return;
                };
                d.learn(&self.common.addresses, rails);
                d.find_ways(&self.common, now);
                let rail = d.ways.get(path).map_or(0, |p| p.local);
                let established = c.shared.status() == Status::Ready;
                if established {
                    self.common.counts.returned_paths.fetch_add(1, Ordering::Relaxed);
                }
                self.adopt(connection, path, rail, g.socket, now);
                self.dial(connection, now);
            }
            Ok(Step::Onward { to, yes, no }) => {
                let Some(g) = self.end_greeting(key) else { return };
                self.ask(g, to, yes, no, now);
            }
            Ok(Step::Introduced { listener, hello, reply }) => {
                let Some(g) = self.end_greeting(key) else { return };
                let (common, rail) = (self.common.clone(), g.rail);
                if let Some(shared) = introduce(&common, listener, &hello) {
                    if crate::buffer::send(&g.socket, &reply, &[]).is_ok_and(|n| n == reply.len()) {
                        let path = usize::from(hello.path);
                        shared.thread.hand_over(Job::Adopt { key: shared.key, path, rail, socket: g.socket });
                    }
                } else if let Some(refusal) = g.refusal(&common) {
                    let _ = crate::buffer::send(&g.socket, &refusal, &[]);
                }
            }
            Err(_) => self.give_up(key, now),
        }
    }

    /// Dials the next link of a path that is to go through this host: to a subnet of its rails only.
    fn ask(&mut self, g: Greeting, to: std::net::SocketAddr, yes: Vec<u8>, no: Vec<u8>, now: Micros) {
        let rail = self.common.addresses.iter().position(|a| a.ip != to.ip() && a.shares_subnet(to.ip()));
        let free = self.relays.len() + self.asked.len() < RELAYED_MAX;
        let own = rail.filter(|_| free).and_then(|r| Some((r, self.common.addresses.get(r)?.ip)));
        let dialled = own.and_then(|(rail, from)| Some((rail, Socket::dial(from, to).ok()?)));
        let Some((to_rail, to)) = dialled else {
            let _ = crate::buffer::send(&g.socket, &no, &[]);
            return;
        };
        let key = self.target(Target::Asked);
        if epoll::add(&self.epoll, &to, EventData::new_u64(key), EventFlags::OUT).is_ok() {
            let until = now + GREETING_US;
            self.asked.insert(key, Asked { from: g.socket, from_rail: g.rail, to, to_rail, yes, no, until });
        } else {
            self.targets.remove(&key);
        }
    }

    /// The next link of a path has answered: from now on its bytes pass.
    fn go_on(&mut self, key: u64) {
        self.targets.remove(&key);
        let Some(a) = self.asked.remove(&key) else { return };
        let _ = epoll::delete(&self.epoll, &a.to);
        if a.to.error().is_some() {
            let _ = crate::buffer::send(&a.from, &a.no, &[]);
            return;
        }
        if !crate::buffer::send(&a.from, &a.yes, &[]).is_ok_and(|n| n == a.yes.len()) {
            return;
        }
        let relay = self.common.key();
        let keys = [(); 2].map(|()| self.target(Target::Relay { relay }));
        let [from, to] = keys;
        let sides = [Side::new(a.from, a.from_rail, from), Side::new(a.to, a.to_rail, to)];
        let mut r = Relay { sides };
        let added = r.wishes().into_iter().zip(&r.sides).all(|(flags, s)| {
            let flags = flags.unwrap_or(EventFlags::IN);
            epoll::add(&self.epoll, &s.socket, EventData::new_u64(s.key), flags).is_ok()
        });
        if added {
            self.relays.insert(relay, r);
        } else {
            keys.iter().for_each(|k| _ = self.targets.remove(k));
        }
    }

    fn relay(&mut self, key: u64, flags: EventFlags, now: Micros) {
        let view = View { board: &self.common.board.host, others: &self.host_others };
        let Some(r) = self.relays.get_mut(&key) else { return };
        let passed = r.pass(now, &view);
        self.common.counts.relayed.fetch_add(*passed.as_ref().unwrap_or(&0), Ordering::Relaxed);
        if passed.is_err() || flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            r.forget(&view);
            for s in &r.sides {
                let _ = epoll::delete(&self.epoll, &s.socket);
                self.targets.remove(&s.key);
            }
            self.relays.remove(&key);
            return;
        }
        for (flags, s) in r.wishes().into_iter().zip(&r.sides) {
            if let Some(flags) = flags {
                let _ = epoll::modify(&self.epoll, &s.socket, EventData::new_u64(s.key), flags);
            }
        }
    }

    fn give_up(&mut self, key: u64, now: Micros) {
        let Some(g) = self.end_greeting(key) else { return };
        let Some((connection, path)) = g.dials else { return };
        if let Some(d) = self.connections.get_mut(&connection).and_then(|c| c.dialer.as_mut()) {
            d.again(path, now);
        }
        self.watching = true;
    }

    fn tick(&mut self, now: Micros) {
        self.ticked = now;
        self.resume();
        let late: Vec<u64> = self.greetings.iter().filter(|(_, g)| now >= g.until).map(|(k, _)| *k).collect();
        late.into_iter().for_each(|key| self.give_up(key, now));
        let late: Vec<u64> = self.asked.iter().filter(|(_, a)| now >= a.until).map(|(k, _)| *k).collect();
        for key in late {
            self.targets.remove(&key);
            // The other side finds its socket closed.
            if let Some(a) = self.asked.remove(&key) {
                let _ = epoll::delete(&self.epoll, &a.to);
            }
        }
        self.watching = !self.greetings.is_empty() || !self.asked.is_empty();
        let keys: Vec<u64> = self.connections.iter().filter(|(_, c)| c.needs_ticks()).map(|(k, _)| *k).collect();
        self.watching |= !keys.is_empty();
        for key in keys {
            let lives = self.with(key, |c, rails, common, after| {
                let lives = c.tick(now, rails, common, after);
                if lives {
                    c.flush(now, rails, after);
                }
                lives
            });
            if lives == Some(false) {
                self.remove(key);
            } else {
                self.dial(key, now);
                self.hungry.push(key);
            }
        }
    }

    fn remove(&mut self, key: u64) {
        self.with(key, |c, rails, _, after| c.drop_all(rails, after));
        let Some(c) = self.connections.remove(&key) else { return };
        if let Some((listener, connection)) = c.origin {
            let mut listeners = lock(&self.common.listeners);
            if let Some(l) = listeners.get_mut(&listener) {
                l.known.remove(&connection);
                l.over.push_back(connection);
                if l.over.len() > OVER_MAX {
                    l.over.pop_front();
                }
                if !l.open && l.known.is_empty() {
                    listeners.remove(&listener);
                }
            }
        }
        self.thread.forget(key);
        self.common.lingering.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The connection of an introduced path; a new one if the listener is open.
fn introduce(common: &Arc<Common>, listener: u64, hello: &Hello) -> Option<Arc<Shared>> {
    let mut listeners = lock(&common.listeners);
    let l = listeners.get_mut(&listener)?;
    if let Some(known) = l.known.get(&hello.connection) {
        return Some(known.clone());
    }
    if !l.open || usize::from(hello.path) >= PATHS_MAX || l.over.contains(&hello.connection) {
        return None;
    }
    let thread = common.thread()?;
    let shared = thread.connection(common.key(), crate::endpoint::RECEIVES_MAX);
    let job = Job::Accept { shared: shared.clone(), chunk: hello.chunk, connection: hello.connection, listener };
    shared.thread.hand_over(job);
    l.known.insert(hello.connection, shared.clone());
    l.ready.push_back(shared.clone());
    Some(shared)
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

enum Step {
    Wait,
    /// The side that dials waits for bytes from now on.
    Read,
    Dialled(Welcome),
    /// The peer asks to go on through this host.
    Onward {
        to: std::net::SocketAddr,
        yes: Vec<u8>,
        no: Vec<u8>,
    },
    Introduced {
        listener: u64,
        hello: Hello,
        reply: Vec<u8>,
    },
}

impl Greeting {
    fn advance(&mut self, common: &Common, connections: &HashMap<u64, Connection>) -> io::Result<Step> {
        let invalid = |e: wire::Malformed| io::Error::new(ErrorKind::InvalidData, e);
        let dials = self.dials;
        let dialer = || {
            let (key, path) = dials?;
            let d = connections.get(&key)?.dialer.as_ref()?;
            Some((d, path))
        };
        if let Stage::Dialling = self.stage {
            if let Some(e) = self.socket.error() {
                return Err(e);
            }
            let (d, path) = dialer().ok_or(ErrorKind::NotFound)?;
            let relays = d.ways.get(path).map_or(0, |w| w.relays.len());
            let listener = if relays > 0 { RELAY } else { d.handle.listener };
            send_all(&self.socket, &greeting::call(listener, &self.nonce))?;
            (self.stage, self.need) = (Stage::Called, ANSWER_BYTES);
            return Ok(Step::Read);
        }
        if !self.read()? {
            return Ok(Step::Wait);
        }
        let got = std::mem::take(&mut self.got);
        match &self.stage {
            Stage::Dialling => Ok(Step::Wait),
            Stage::Called => {
                let (d, path) = dialer().ok_or(ErrorKind::NotFound)?;
                let way = d.ways.get(path).ok_or(ErrorKind::NotFound)?;
                if self.hop < way.relays.len() {
                    let key = greeting::relay_key(&common.settings.token);
                    let b = greeting::read_answer(&got, &key, &self.nonce).map_err(invalid)?;
                    let peer = d.remote.get(way.remote).map(|a| a.socket());
                    let to = way.relays.get(self.hop + 1).copied().or(peer).ok_or(ErrorKind::NotFound)?;
                    send_all(&self.socket, &greeting::onward(&key, &self.nonce, &b, to))?;
                    (self.stage, self.need) = (Stage::Asked { b }, THROUGH_BYTES);
                    return Ok(Step::Wait);
                }
                let b = greeting::read_answer(&got, &d.secret, &self.nonce).map_err(invalid)?;
                let rail = way.remote as u8;
                let hello = Hello { connection: d.connection, path: path as u8, chunk: common.settings.chunk, rail };
                send_all(&self.socket, &greeting::hello(&d.secret, &self.nonce, &b, &hello))?;
                (self.stage, self.need) = (Stage::Introduced { b }, WELCOME_BYTES);
                Ok(Step::Wait)
            }
            Stage::Asked { b } => {
                let (d, path) = dialer().ok_or(ErrorKind::NotFound)?;
                let way = d.ways.get(path).ok_or(ErrorKind::NotFound)?;
                let key = greeting::relay_key(&common.settings.token);
                if !greeting::read_through(&got, &key, &self.nonce, b).map_err(invalid)? {
                    return Err(ErrorKind::HostUnreachable.into());
                }
                self.hop += 1;
                self.nonce = auth::nonce()?;
                let listener = if self.hop < way.relays.len() { RELAY } else { d.handle.listener };
                send_all(&self.socket, &greeting::call(listener, &self.nonce))?;
                (self.stage, self.need) = (Stage::Called, ANSWER_BYTES);
                Ok(Step::Wait)
            }
            Stage::Introduced { b } => {
                let (d, _) = dialer().ok_or(ErrorKind::NotFound)?;
                let welcome = greeting::read_welcome(&got, &d.secret, &self.nonce, b).map_err(invalid)?;
                Ok(Step::Dialled(welcome))
            }
            Stage::Accepted => {
                let (listener, a) = greeting::read_call(&got).map_err(invalid)?;
                let key = secret(common, listener).ok_or(ErrorKind::NotFound)?;
                let b = self.nonce;
                send_all(&self.socket, &greeting::answer(&key, &a, &b))?;
                let need = if listener == RELAY { ONWARD_BYTES } else { HELLO_BYTES };
                (self.stage, self.need) = (Stage::Challenged { listener, a, b }, need);
                Ok(Step::Wait)
            }
            Stage::Challenged { listener: RELAY, a, b } => {
                let key = secret(common, RELAY).ok_or(ErrorKind::NotFound)?;
                let to = greeting::read_onward(&got, &key, a, b).map_err(invalid)?;
                let [yes, no] = [true, false].map(|open| greeting::through(&key, a, b, open));
                Ok(Step::Onward { to, yes, no })
            }
            Stage::Challenged { listener, a, b } => {
                let key = secret(common, *listener).ok_or(ErrorKind::NotFound)?;
                let hello = greeting::read_hello(&got, &key, a, b).map_err(invalid)?;
                if usize::from(hello.rail) != self.rail {
                    return Err(io::Error::new(
                        ErrorKind::InvalidData,
                        "a path ends at another rail than it was meant for",
                    ));
                }
                let reply = greeting::welcome(&key, a, b, &Welcome::Accepted(common.addresses.clone()));
                Ok(Step::Introduced { listener: *listener, hello, reply })
            }
        }
    }

    fn refusal(&self, common: &Common) -> Option<Vec<u8>> {
        let Stage::Challenged { listener, a, b } = &self.stage else { return None };
        Some(greeting::welcome(&secret(common, *listener)?, a, b, &Welcome::Refused))
    }

    /// Reads up to `need` bytes and no byte more; true if they are there.
    fn read(&mut self) -> io::Result<bool> {
        while self.got.len() < self.need {
            let before = self.got.len();
            self.got.resize(self.need, 0);
            let got = crate::buffer::receive(&self.socket, self.got.get_mut(before..).unwrap_or_default(), &mut []);
            self.got.truncate(before + *got.as_ref().unwrap_or(&0));
            match got {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }
}

fn secret(common: &Common, listener: u64) -> Option<Vec<u8>> {
    if listener == RELAY {
        return common.settings.relay.then(|| greeting::relay_key(&common.settings.token));
    }
    lock(&common.listeners).get(&listener).map(|l| l.secret.clone())
}

/// Greetings are a few hundred bytes: they fit a new socket's buffer.
fn send_all(socket: &Socket, bytes: &[u8]) -> io::Result<()> {
    match crate::buffer::send(socket.as_fd(), bytes, &[])? {
        n if n == bytes.len() => Ok(()),
        _ => Err(ErrorKind::WriteZero.into()),
    }
}
