//! The connections of one process, and the process at the other end of each.

use super::packet::Packet;
use crate::roster::{ProcessId, RANKS_MAX};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};
use wire::{Address, IntraNodeTransport, Link, Listener, Malformed, Poller};

/// Time limit for a TCP connection attempt. No thread blocks on it. Short, so that a connection is there soon after a cut of the network.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause of accepting while too many connections or files are open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Limit on connections of one process. A leader has one to each other process. The register closes those over which processes only announced ranks
/// for new ones ([`Packet::ComeBack`]), so a job may have more processes.
const CONNECTIONS_MAX: usize = RANKS_MAX + 64;
/// Connections use at most the process's limit on open files divided by this; the rest is for the job.
const OPEN_FILES_DIVISOR: usize = 2;
/// Limit on connections that have sent nothing. The oldest is closed for a new one.
pub const UNAUTHENTICATED_MAX: usize = 64;
/// Limit on connections that have said hello and not proved that they know the token: all processes of a large job at once. The same holds for them.
const UNPROVED_MAX: usize = 1024;
/// Limit on connections with shared memory, 128 KiB each. A host usually has eight ranks.
const MEMORIES_MAX: usize = 64;
/// Limit on remembered processes whose shared memory failed.
const WITHOUT_MEMORY_MAX: usize = 65_536;

#[derive(Debug)]
pub(super) struct Peer {
    pub link: Link,
    /// The process at the other end, once it has identified itself.
    pub process: Option<ProcessId>,
    /// It has announced ranks to this process's register.
    pub announces: bool,
    /// Messages between ranks have passed over it.
    pub carries: bool,
    /// This side connected.
    dialled: bool,
    /// The poller reports when the socket is writable.
    writable_wanted: bool,
}

/// Identifies a connection. Numbers are not used twice, so they order connections by age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Via(u64);

/// The connection to the register.
pub(super) const REGISTER: Via = Via(0);
/// Keys of listeners in the poller.
const LISTENERS: u64 = 1 << 63;

/// A connection that was closed.
#[derive(Debug)]
pub(super) struct ClosedConnection {
    /// It was the connection to the register.
    pub was_register: bool,
    pub process: Option<ProcessId>,
    /// Both sides had proved that they know the token.
    pub was_ready: bool,
    /// The address had answered.
    pub was_established: bool,
    /// This side had connected.
    pub was_dialled: bool,
    pub why: String,
    /// A line for the log, unless the peer closed normally.
    pub note: Option<String>,
}

/// All connections of a process. A turn costs what is ready, not what is open: epoll reports it, and links with shared memory, links that have not
/// proved themselves and broken links are kept in sets.
#[derive(Debug)]
pub(super) struct Connections {
    token: Vec<u8>,
    pub intra_node: IntraNodeTransport,
    poller: Poller,
    listeners: Vec<Listener>,
    /// Accepting pauses until then: too many connections or files are open.
    pause_until: Option<Instant>,
    all: BTreeMap<Via, Peer>,
    last: u64,
    by_process: BTreeMap<ProcessId, Via>,
    unproved: BTreeSet<Via>,
    with_memory: BTreeSet<Via>,
    broken: BTreeSet<Via>,
    /// Processes whose shared memory failed: the next connection to them uses the socket only. `None` stands for the register.
    without_memory: BTreeSet<Option<ProcessId>>,
    /// A wrong token, or another user's process, has been reported.
    wrong_token_noted: bool,
    other_user_noted: bool,
    /// Limit on connections.
    pub limit: usize,
    limit_note: LimitNote,
    /// Processes whose connection was closed for another one.
    sent_away: Vec<ProcessId>,
}

/// Report that the limit on connections was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LimitNote {
    NotReached,
    /// Reached, and not yet reported.
    Pending,
    Taken,
}

/// Limit on connections of a process with this limit on open files.
fn connection_limit(files: Option<usize>) -> usize {
    files.map_or(CONNECTIONS_MAX, |n| (n / OPEN_FILES_DIVISOR).min(CONNECTIONS_MAX))
}

impl Connections {
    pub fn new(token: &[u8], listener: Listener) -> io::Result<Self> {
        let mut all = Connections {
            token: token.to_vec(),
            intra_node: IntraNodeTransport::default(),
            poller: Poller::new()?,
            listeners: Vec::new(),
            pause_until: None,
            all: BTreeMap::new(),
            last: 0,
            by_process: BTreeMap::new(),
            unproved: BTreeSet::new(),
            with_memory: BTreeSet::new(),
            broken: BTreeSet::new(),
            without_memory: BTreeSet::new(),
            wrong_token_noted: false,
            other_user_noted: false,
            limit: connection_limit(wire::socket::open_files_max()),
            limit_note: LimitNote::NotReached,
            sent_away: Vec::new(),
        };
        all.listen(listener)?;
        Ok(all)
    }

    /// A line for the log, once, after the limit on connections was reached.
    pub fn take_limit_note(&mut self) -> Option<String> {
        if self.limit_note != LimitNote::Pending {
            return None;
        }
        self.limit_note = LimitNote::Taken;
        let limit = self.limit;
        let why = match limit < CONNECTIONS_MAX {
            true => format!("1/{OPEN_FILES_DIVISOR} of its limit on open files, `ulimit -n`; raise that limit"),
            false => format!("communicators have at most {RANKS_MAX} ranks"),
        };
        Some(format!(
            "{limit} connections to leaders and members are open, the most that this process allows ({why}); communicators of processes without a \
             connection stay at AUTO while that is so"
        ))
    }

    pub fn listen(&mut self, listener: Listener) -> io::Result<()> {
        self.poller.add_listener(&listener, LISTENERS | self.listeners.len() as u64)?;
        self.listeners.push(listener);
        Ok(())
    }

    pub fn get(&mut self, via: Via) -> Option<&mut Peer> {
        self.all.get_mut(&via)
    }

    /// The link of a connection.
    #[cfg(test)]
    pub fn link(&self, via: Via) -> Option<&Link> {
        self.all.get(&via).map(|p| &p.link)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Link> {
        self.all.values().map(|p| &p.link)
    }

    /// Connections except that to the register.
    fn peers(&self) -> usize {
        self.all.len() - usize::from(self.has_register())
    }

    pub fn has_register(&self) -> bool {
        self.all.contains_key(&REGISTER)
    }

    /// The connections over which these processes announced ranks. `recipients` ascend.
    pub fn announcers(&self, recipients: &[ProcessId]) -> Vec<Via> {
        let asks = |p: &Peer| p.announces && p.process.is_some_and(|p| recipients.binary_search(&p).is_ok());
        self.all.iter().filter(|(_, p)| asks(p)).map(|(via, _)| *via).collect()
    }

    /// Records the process at the other end. An error if the connection named another process before.
    pub fn claim_process(&mut self, via: Via, process: ProcessId) -> Result<(), Malformed> {
        let Some(peer) = self.all.get_mut(&via) else { return Ok(()) };
        match peer.process {
            Some(named) if named == process => return Ok(()),
            Some(_) => return Err(Malformed("a connection names two processes")),
            None => peer.process = Some(process),
        }
        // The newest connection is the one that works, if the other end has just connected again.
        self.by_process.insert(process, via);
        Ok(())
    }

    /// Queues a frame.
    pub fn send(&mut self, via: Via, body: &[u8]) {
        if let Some(peer) = self.all.get_mut(&via) {
            peer.link.send(body);
            self.keep_up(via);
        }
    }

    /// Ends a connection with a reason.
    pub fn fail(&mut self, via: Via, reason: &'static str) {
        if let Some(peer) = self.all.get_mut(&via) {
            peer.link.close_with_reason(reason);
            self.broken.insert(via);
        }
    }

    /// After anything that may have changed a link: brings the sets and the poller up to date.
    fn keep_up(&mut self, via: Via) {
        let Some(peer) = self.all.get_mut(&via) else { return };
        if peer.link.is_broken() {
            self.broken.insert(via);
        }
        if peer.link.is_ready() {
            self.unproved.remove(&via);
        }
        if peer.link.has_memory() {
            self.with_memory.insert(via);
        }
        let wanted = peer.link.wants_writable();
        if std::mem::replace(&mut peer.writable_wanted, wanted) != wanted {
            self.poller.set_writable_wanted(&peer.link, via.0, wanted);
        }
    }

    fn connect(&self, at: &Address, to: Option<ProcessId>) -> io::Result<Link> {
        let intra_node = if self.without_memory.contains(&to) { IntraNodeTransport::Socket } else { self.intra_node };
        Link::connect(at, &self.token, CONNECT_TIMEOUT, intra_node)
    }

    fn add(&mut self, via: Via, link: Link, process: Option<ProcessId>, dialled: bool) -> io::Result<()> {
        let writable_wanted = link.wants_writable();
        self.poller.add_link(&link, via.0, writable_wanted)?;
        self.all.insert(via, Peer { link, process, announces: false, carries: false, dialled, writable_wanted });
        self.unproved.insert(via);
        self.keep_up(via);
        Ok(())
    }

    fn next_via(&mut self) -> Via {
        self.last += 1;
        Via(self.last)
    }

    /// Starts a connection to the register; it may still fail later.
    pub fn connect_register(&mut self, at: &Address) -> io::Result<&mut Link> {
        let link = self.connect(at, None)?;
        self.add(REGISTER, link, None, true)?;
        self.all.get_mut(&REGISTER).map(|p| &mut p.link).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The working connection to a process.
    pub fn find(&self, process: ProcessId) -> Option<Via> {
        let via = self.by_process.get(&process)?;
        self.all.get(via).filter(|p| !p.link.is_broken()).map(|_| *via)
    }

    /// Starts a connection to a process, at the first address that does not fail at once.
    pub fn connect_to<'a>(&mut self, process: ProcessId, at: impl IntoIterator<Item = &'a Address>) -> Option<Via> {
        if self.peers() >= self.limit {
            self.reach_limit();
            return None;
        }
        let link = at.into_iter().find_map(|a| self.connect(a, Some(process)).ok())?;
        let via = self.next_via();
        self.add(via, link, Some(process), true).ok()?;
        self.by_process.insert(process, via);
        Some(via)
    }

    fn reach_limit(&mut self) {
        if self.limit_note == LimitNote::NotReached {
            self.limit_note = LimitNote::Pending;
        }
    }

    /// Waits at most `timeout` for activity, accepts connections, and returns all received frames.
    pub fn poll_frames(&mut self, timeout: Duration) -> Vec<(Via, Vec<u8>)> {
        let link = |via: &Via| self.all.get(via).map(|p| &p.link);
        let sleeps = self.with_memory.iter().filter_map(link).all(|l| l.prepare_to_sleep());
        let mut ready = Vec::new();
        self.poller.wait(if sleeps && self.broken.is_empty() { timeout } else { Duration::ZERO }, &mut ready);
        self.with_memory.iter().filter_map(link).for_each(Link::cancel_sleep);
        if self.pause_until.is_some_and(|until| Instant::now() >= until) {
            self.pause_until = None;
            for (i, listener) in self.listeners.iter().enumerate() {
                let _ = self.poller.add_listener(listener, LISTENERS | i as u64);
            }
        }
        let mut turn: BTreeSet<Via> = self.with_memory.iter().chain(&self.unproved).copied().collect();
        turn.extend(ready.iter().filter(|key| **key < LISTENERS).map(|key| Via(*key)));
        let mut frames = Vec::new();
        if ready.iter().any(|key| *key >= LISTENERS) {
            match self.accept() {
                Ok(new) => turn.extend(new),
                Err(_) => {
                    // A listener stays readable meanwhile, so it must not be reported.
                    self.pause_until = Some(Instant::now() + ACCEPT_PAUSE);
                    self.listeners.iter().for_each(|l| self.poller.remove_listener(l));
                }
            }
        }
        for via in turn {
            let Some(peer) = self.all.get_mut(&via) else { continue };
            peer.link.flush();
            peer.link.receive(|f| frames.push((via, f)));
            self.keep_up(via);
        }
        frames
    }

    /// Accepts pending connections and returns them. The oldest silent ones are closed for new ones; one accepted in this call stays, since its hello
    /// may be unread.
    fn accept(&mut self) -> io::Result<Vec<Via>> {
        let mut new = Vec::new();
        let silent = |all: &BTreeMap<Via, Peer>, via: &&Via| all.get(via).is_some_and(|p| p.link.is_silent());
        let mut old: Vec<Via> = self.unproved.iter().filter(|via| silent(&self.all, via)).copied().rev().collect();
        let most = UNAUTHENTICATED_MAX.min(self.limit / 4).max(1);
        for i in 0..self.listeners.len() {
            while old.len() + new.len() < most || !old.is_empty() {
                let Some(listener) = self.listeners.get(i) else { break };
                if self.peers() >= self.limit
                    && let Some(oldest) = self.oldest_that_only_announced()
                {
                    let Some(link) = Link::accept(listener, &self.token, IntraNodeTransport::Socket)? else { break };
                    self.send_away(oldest);
                    let via = self.next_via();
                    self.add(via, link, None, false)?;
                    new.push(via);
                    continue;
                }
                if self.peers() >= self.limit {
                    // Accepts one and drops it, to learn whether there is one; the others stay pending.
                    let refused = Link::accept(listener, &self.token, IntraNodeTransport::Socket)?.is_some();
                    if refused {
                        self.reach_limit();
                        return Err(io::ErrorKind::OutOfMemory.into());
                    }
                    break;
                }
                let intra_node = match self.with_memory.len() + self.unproved.len() < MEMORIES_MAX {
                    true => self.intra_node,
                    false => IntraNodeTransport::Socket,
                };
                let Some(link) = Link::accept(listener, &self.token, intra_node)? else { break };
                let via = self.next_via();
                self.add(via, link, None, false)?;
                new.push(via);
                if old.len() + new.len() > most
                    && let Some(oldest) = old.pop()
                {
                    self.remove(oldest);
                }
            }
        }
        while self.unproved.len() > UNPROVED_MAX
            && let Some(oldest) = self.unproved.iter().find(|v| self.all.get(v).is_some_and(|p| !p.dialled)).copied()
        {
            self.remove(oldest);
        }
        Ok(new)
    }

    /// The oldest connection that this process needs only as the register. O(connections).
    fn oldest_that_only_announced(&self) -> Option<Via> {
        let only_announced = |p: &Peer| p.announces && !p.carries && !p.dialled && p.link.is_ready();
        self.all.iter().find(|(_, p)| only_announced(p)).map(|(via, _)| *via)
    }

    /// Closes a connection for another one. If the notice is lost, the process comes back at once.
    fn send_away(&mut self, via: Via) {
        self.send(via, &Packet::ComeBack.bytes());
        if let Some(mut peer) = self.remove(via) {
            peer.link.flush();
            self.sent_away.extend(peer.process);
        }
    }

    /// Processes whose connection was closed for another one, once. Their announcements stay.
    pub fn take_sent_away(&mut self) -> Vec<ProcessId> {
        std::mem::take(&mut self.sent_away)
    }

    fn remove(&mut self, via: Via) -> Option<Peer> {
        let peer = self.all.remove(&via)?;
        self.poller.remove_link(&peer.link);
        for set in [&mut self.unproved, &mut self.with_memory, &mut self.broken] {
            set.remove(&via);
        }
        if let Some(process) = peer.process
            && self.by_process.get(&process) == Some(&via)
        {
            self.by_process.remove(&process);
        }
        Some(peer)
    }

    /// Removes and returns the broken connections.
    pub fn remove_closed(&mut self) -> Vec<ClosedConnection> {
        let broken = std::mem::take(&mut self.broken);
        broken
            .into_iter()
            .filter_map(|via| self.remove(via).map(|p| self.describe_closed(p, via == REGISTER)))
            .collect()
    }

    fn describe_closed(&mut self, peer: Peer, was_register: bool) -> ClosedConnection {
        let process = if was_register { None } else { peer.process };
        let why = peer.link.broken_reason().unwrap_or_default().to_owned();
        let closed = |note| ClosedConnection {
            was_register,
            process: peer.process,
            was_ready: peer.link.is_ready(),
            was_established: peer.link.is_established(),
            was_dialled: peer.dialled,
            why: why.clone(),
            note,
        };
        if !peer.link.is_ready() {
            // Reported once: many such peers must not fill the log.
            let wrong = why == wire::link::WRONG_TOKEN && !std::mem::replace(&mut self.wrong_token_noted, true);
            let other = why == wire::link::OTHER_USER && !std::mem::replace(&mut self.other_user_noted, true);
            let note = match (wrong, other) {
                (true, _) if peer.dialled => Some(
                    "the process that listens at the rendezvous has another token; give every process of the job the same LINKWISE_TOKEN".into(),
                ),
                (true, _) => Some(
                    "a process with another token tried to connect; give every process of the job the same LINKWISE_TOKEN".into(),
                ),
                (_, true) => Some("a process of another user tried to connect; it was refused".into()),
                _ => None,
            };
            return closed(note);
        }
        let without_memory = peer.link.has_memory()
            && self.without_memory.len() < WITHOUT_MEMORY_MAX
            && self.without_memory.insert(process);
        let note = (why != wire::link::PEER_CLOSED).then(|| {
            let name = match process {
                Some(p) => format!("process {p:016x}"),
                None if was_register => "the register".into(),
                None => "an unidentified process".into(),
            };
            let then = if without_memory { "; new connections use no shared memory" } else { "" };
            format!("the connection to {name} ended: {why}{then}")
        });
        closed(note)
    }

    /// Closes the sending direction of all connections and reads what peers still send, since closing a socket with unread bytes discards the bytes
    /// sent on it.
    pub fn close(&mut self, deadline: Duration) {
        let until = Instant::now() + deadline;
        self.all.values_mut().for_each(|p| p.link.finish());
        while Instant::now() < until && !self.all.is_empty() {
            drop(self.poll_frames(Duration::from_millis(10)));
            self.remove_closed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_use_at_most_half_of_the_open_files() {
        let limit = [Some(1024), Some(1 << 20), None].map(connection_limit);
        assert_eq!(limit, [512, CONNECTIONS_MAX, CONNECTIONS_MAX]);
        assert_eq!(connection_limit(Some(usize::MAX)), CONNECTIONS_MAX);
    }
}
