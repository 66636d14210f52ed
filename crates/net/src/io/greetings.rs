//! Sockets before they are paths: dialled, accepted, greeted.

use super::{GREETING_US, Io, Target};
use crate::connection::{Connection, NewPath};
use crate::greeting::{self, ANSWER_BYTES, CALL_BYTES, HELLO_BYTES, Hello, ONWARD_BYTES, RELAY, THROUGH_BYTES};
use crate::greeting::{WELCOME_BYTES, Welcome};
use crate::limits::PATHS_MAX;
use crate::rdma::Rdma;
use crate::sender::Micros;
use crate::shared::{Common, Job, Shared, Status, lock};
use crate::sockets::Socket;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use verbs::Pair;
use wire::auth::{self, Nonce};

/// Greetings of strangers under way on the listening thread.
const STRANGERS_MAX: usize = 512;

/// Time limit of a greeting that a peer began.
const STRANGER_US: Micros = 5_000_000;

#[derive(Debug)]
pub(super) enum Stage {
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
pub(super) struct Greeting {
    pub(super) socket: Socket,
    pub(super) stage: Stage,
    pub(super) nonce: Nonce,
    /// For a side that dials: its connection and path.
    pub(super) dials: Option<(u64, usize)>,
    /// Relays that have gone on already.
    pub(super) hop: usize,
    /// For a side that accepts: the rail.
    pub(super) rail: usize,
    pub(super) got: Vec<u8>,
    pub(super) need: usize,
    pub(super) until: Micros,
    /// Number of the dial.
    pub(super) dial: u32,
    /// The queue pair of this side.
    pub(super) pair: Option<Pair>,
}

/// [`STRANGERS_MAX`], or an eighth of the descriptors that this process may have.
pub(super) fn strangers_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(STRANGERS_MAX, |n| usize::try_from(n / 8).unwrap_or(STRANGERS_MAX).clamp(8, STRANGERS_MAX))
}

impl Io {
    /// Dials the paths of a connection that are due.
    pub(super) fn dial(&mut self, key: u64, now: Micros) {
        let Some(c) = self.connections.get_mut(&key).filter(|c| !c.is_closing()) else { return };
        let Some(d) = &mut c.dialer else { return };
        let (mut all, mut failed) = (Vec::new(), Vec::new());
        for (path, pair) in d.due(now) {
            let from = self.common.addresses.get(pair.local).map(|a| a.ip);
            let peer = d.remote.get(pair.remote).map(|a| a.socket());
            let to = pair.relays.first().copied().or(peer);
            let (Some(from), Some(to)) = (from, to) else { continue };
            match Socket::dial(from, to).and_then(|s| Ok((s, auth::nonce()?))) {
                Ok((socket, nonce)) => all.push((path, socket, nonce, d.number())),
                Err(e) => {
                    d.again(path, now);
                    failed.push((path, e));
                }
            }
        }
        failed.into_iter().for_each(|(path, e)| c.note(path, e));
        for (path, socket, nonce, dial) in all {
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
                dial,
                pair: None,
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

    pub(super) fn accept(&mut self, i: usize, now: Micros) {
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
                dial: 0,
                pair: None,
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

    pub(super) fn resume(&mut self) {
        for (i, key) in std::mem::take(&mut self.paused) {
            if let Some(l) = self.listeners.get(i) {
                let _ = epoll::modify(&self.epoll, l, EventData::new_u64(key), EventFlags::IN);
            }
        }
    }

    pub(super) fn end_greeting(&mut self, key: u64) -> Option<Greeting> {
        self.targets.remove(&key);
        let g = self.greetings.remove(&key)?;
        let _ = epoll::delete(&self.epoll, &g.socket);
        Some(g)
    }

    /// A socket of a greeting is ready.
    pub(super) fn greet(&mut self, key: u64, now: Micros) {
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
                let theirs = if let Welcome::Accepted(_, pair) = &welcome { *pair } else { None };
                let own = self.greetings.get_mut(&key).and_then(|g| g.pair.take());
                let connected = match (own, theirs) {
                    (Some(pair), Some(theirs)) => pair.connect(&theirs).map(|()| Some(pair)),
                    _ => Ok(None),
                };
                let pair = match connected {
                    Ok(pair) => pair,
                    Err(e) => return self.give_up(key, now, &e),
                };
                let Some(g) = self.end_greeting(key) else { return };
                let Some((connection, path)) = g.dials else { return };
                let Some(c) = self.connections.get_mut(&connection) else { return };
                let Some(d) = &mut c.dialer else { return };
                let Welcome::Accepted(rails, _) = welcome else {
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
                let rdma = pair.map(|p| Rdma::new(p, g.dial));
                self.adopt(connection, NewPath { path, rail, socket: g.socket, key: 0, dial: g.dial, rdma }, now);
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
                        let (key, dial) = (shared.key, hello.dial);
                        let rdma = g.pair.map(|p| Rdma::new(p, dial));
                        shared.thread.hand_over(Job::Adopt { key, path, rail, socket: g.socket, dial, rdma });
                    }
                } else if let Some(refusal) = g.refusal(&common) {
                    let _ = crate::buffer::send(&g.socket, &refusal, &[]);
                }
            }
            Err(e) => self.give_up(key, now, &e),
        }
    }

    pub(super) fn give_up(&mut self, key: u64, now: Micros, why: &io::Error) {
        let Some(g) = self.end_greeting(key) else { return };
        let Some((connection, path)) = g.dials else { return };
        if let Some(c) = self.connections.get_mut(&connection) {
            c.note(path, why);
            c.dialer.iter_mut().for_each(|d| d.again(path, now));
        }
        self.watching = true;
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
                let nic = common.nics.get(way.local).and_then(Option::as_ref).filter(|_| way.relays.is_empty());
                // A device without room means TCP.
                self.pair = nic.and_then(|nic| Pair::new(nic, psn().ok()?).ok());
                let hello = Hello {
                    connection: d.connection,
                    path: path as u8,
                    chunk: common.settings.chunk,
                    rail,
                    dial: self.dial,
                    pair: self.pair.as_ref().map(Pair::address),
                };
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
                let nic = common.nics.get(self.rail).and_then(Option::as_ref);
                let pair = hello.pair.zip(nic).and_then(|(theirs, nic)| {
                    let pair = Pair::new(nic, psn().ok()?).ok()?;
                    pair.connect(&theirs).ok().map(|()| pair)
                });
                let address = pair.as_ref().map(Pair::address);
                let reply = greeting::welcome(&key, a, b, &Welcome::Accepted(common.addresses.clone(), address));
                self.pair = pair;
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

/// A random first packet number.
fn psn() -> io::Result<u32> {
    Ok(auth::nonce()?.first_chunk().map_or(0, |b| u32::from_le_bytes(*b)))
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
