//! The connections of one process, and the process at the other end of each.

use crate::roster::{ProcessId, RANKS_MAX};
use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};
use wire::{Address, IntraNodeTransport, Link, Listener, Malformed};

/// Time limit for a TCP connection attempt. No thread blocks on it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause of accepting while too many connections or files are open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Limit on connections of one process. A leader has one to each other process.
const CONNECTIONS_MAX: usize = RANKS_MAX + 64;
/// Connections use at most the process's limit on open files divided by this; the rest is for the job.
const OPEN_FILES_DIVISOR: usize = 2;
/// Limit on connections without a token. The oldest is closed for a new one.
pub const UNAUTHENTICATED_MAX: usize = 64;
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
}

impl Peer {
    fn new(link: Link, process: Option<ProcessId>) -> Self {
        Peer { link, process, announces: false }
    }

    /// Records the process at the other end. An error if the connection named another process before.
    pub fn claim_process(&mut self, process: ProcessId) -> Result<(), Malformed> {
        if self.process.is_some_and(|other| other != process) {
            return Err(Malformed("a connection names two processes"));
        }
        self.process = Some(process);
        Ok(())
    }

    fn is_unauthenticated(&self) -> bool {
        self.process.is_none() && !self.link.is_ready()
    }
}

/// Identifies a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Via {
    /// The connection to the register.
    Register,
    /// Index of another connection.
    Peer(usize),
}

/// A connection that was closed.
#[derive(Debug)]
pub(super) struct ClosedConnection {
    /// It was the connection to the register.
    pub was_register: bool,
    pub process: Option<ProcessId>,
    /// It had been established.
    pub was_ready: bool,
    /// A line for the log, unless the peer closed normally.
    pub note: Option<String>,
}

/// All connections of a process.
#[derive(Debug)]
pub(super) struct Connections {
    token: Vec<u8>,
    pub intra_node: IntraNodeTransport,
    listeners: Vec<Listener>,
    next_accept: Instant,
    peers: Vec<Peer>,
    pub register_link: Option<Peer>,
    /// Processes whose shared memory failed: the next connection to them uses the socket only. `None` stands for the register.
    without_memory: BTreeSet<Option<ProcessId>>,
    /// A wrong token has been reported.
    wrong_token_noted: bool,
    /// Limit on connections.
    pub limit: usize,
    limit_note: LimitNote,
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
    pub fn new(token: &[u8], listener: Listener) -> Self {
        Connections {
            token: token.to_vec(),
            intra_node: IntraNodeTransport::default(),
            listeners: vec![listener],
            next_accept: Instant::now(),
            peers: Vec::new(),
            register_link: None,
            without_memory: BTreeSet::new(),
            wrong_token_noted: false,
            limit: connection_limit(wire::socket::open_files_max()),
            limit_note: LimitNote::NotReached,
        }
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
            "{limit} connections are open, the most that this process allows ({why}); ranks without a connection stay at AUTO"
        ))
    }

    pub fn listen(&mut self, listener: Listener) {
        self.listeners.push(listener);
    }

    /// All connections except that to the register.
    pub fn peers(&mut self) -> &mut [Peer] {
        &mut self.peers
    }

    pub fn get(&mut self, via: Via) -> Option<&mut Peer> {
        match via {
            Via::Register => self.register_link.as_mut(),
            Via::Peer(i) => self.peers.get_mut(i),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Link> {
        self.peers.iter().chain(&self.register_link).map(|p| &p.link)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Link> {
        self.peers.iter_mut().chain(&mut self.register_link).map(|p| &mut p.link)
    }

    fn connect(&self, at: &Address, to: Option<ProcessId>) -> io::Result<Link> {
        let intra_node = if self.without_memory.contains(&to) { IntraNodeTransport::Socket } else { self.intra_node };
        Link::connect(at, &self.token, CONNECT_TIMEOUT, intra_node)
    }

    /// Starts a connection to the register; it may still fail later.
    pub fn connect_register(&mut self, at: &Address) -> io::Result<&mut Link> {
        let link = self.connect(at, None)?;
        Ok(&mut self.register_link.insert(Peer::new(link, None)).link)
    }

    /// The working connection to a process.
    pub fn find(&mut self, process: ProcessId) -> Option<&mut Link> {
        let found = |p: &&mut Peer| p.process == Some(process) && !p.link.is_broken();
        self.register_link.iter_mut().chain(&mut self.peers).find(found).map(|p| &mut p.link)
    }

    /// Starts a connection to a process, at the first address that does not fail at once.
    pub fn connect_to<'a>(
        &mut self,
        process: ProcessId,
        at: impl IntoIterator<Item = &'a Address>,
    ) -> Option<&mut Link> {
        if self.peers.len() >= self.limit {
            if self.limit_note == LimitNote::NotReached {
                self.limit_note = LimitNote::Pending;
            }
            return None;
        }
        let link = at.into_iter().find_map(|a| self.connect(a, Some(process)).ok())?;
        self.peers.push(Peer::new(link, Some(process)));
        self.peers.last_mut().map(|p| &mut p.link)
    }

    /// Waits at most `timeout` for activity, accepts connections, and returns all received frames.
    pub fn poll_frames(&mut self, timeout: Duration) -> Vec<(Via, Vec<u8>)> {
        let may_accept = Instant::now() >= self.next_accept;
        wire::link::wait(self.listeners.iter().filter(|_| may_accept), self.iter(), timeout);
        if may_accept && self.accept().is_err() {
            self.next_accept = Instant::now() + ACCEPT_PAUSE;
        }
        let mut frames = Vec::new();
        let peers = self.peers.iter_mut().enumerate().map(|(i, p)| (Via::Peer(i), p));
        for (via, peer) in peers.chain(self.register_link.iter_mut().map(|p| (Via::Register, p))) {
            peer.link.flush();
            peer.link.receive(|f| frames.push((via, f)));
        }
        frames
    }

    /// Accepts pending connections. The oldest unauthenticated ones are closed for new ones; one accepted in this call stays, since its token may be
    /// unread.
    fn accept(&mut self) -> io::Result<()> {
        let mut unauthenticated = self.peers.iter().filter(|p| p.is_unauthenticated()).count();
        let mut old = unauthenticated;
        let unauthenticated_max = UNAUTHENTICATED_MAX.min(self.limit / 4).max(1);
        let memory_connections = self.peers.iter().filter(|p| p.link.has_memory()).count();
        for listener in &self.listeners {
            while unauthenticated < unauthenticated_max || old > 0 {
                if self.peers.len() >= self.limit {
                    // Accepts one and drops it, to learn whether there is one; the others stay pending.
                    let refused = Link::accept(listener, &self.token, IntraNodeTransport::Socket)?.is_some();
                    if refused && self.limit_note == LimitNote::NotReached {
                        self.limit_note = LimitNote::Pending;
                    }
                    if refused { return Err(io::ErrorKind::OutOfMemory.into()) } else { break }
                }
                let intra_node = if memory_connections + unauthenticated < MEMORIES_MAX {
                    self.intra_node
                } else {
                    IntraNodeTransport::Socket
                };
                let Some(link) = Link::accept(listener, &self.token, intra_node)? else { break };
                self.peers.push(Peer::new(link, None));
                unauthenticated += 1;
                if unauthenticated > unauthenticated_max
                    && let Some(oldest) = self.peers.iter().position(Peer::is_unauthenticated)
                {
                    self.peers.remove(oldest);
                    (unauthenticated, old) = (unauthenticated - 1, old - 1);
                }
            }
        }
        Ok(())
    }

    /// Removes and returns the broken connections.
    pub fn remove_closed(&mut self) -> Vec<ClosedConnection> {
        let gone: Vec<Peer> = self.peers.extract_if(.., |p| p.link.is_broken()).collect();
        let mut all: Vec<ClosedConnection> = gone.into_iter().map(|p| self.describe_closed(p, false)).collect();
        if let Some(register_link) = self.register_link.take_if(|u| u.link.is_broken()) {
            all.push(self.describe_closed(register_link, true));
        }
        all
    }

    fn describe_closed(&mut self, peer: Peer, was_register: bool) -> ClosedConnection {
        let process = if was_register { None } else { peer.process };
        let why = peer.link.broken_reason().unwrap_or_default();
        if peer.is_unauthenticated() {
            // Reported once: many such peers must not fill the log.
            let new = (why == wire::link::WRONG_TOKEN) && !std::mem::replace(&mut self.wrong_token_noted, true);
            let note = new.then(|| "a process with another token tried to connect; give every process of the job the same LINKWISE_TOKEN".into());
            return ClosedConnection { was_register, process, was_ready: false, note };
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
        ClosedConnection { was_register, process: peer.process, was_ready: peer.link.is_ready(), note }
    }

    /// Closes the sending direction of all connections and reads what peers still send, since closing a socket with unread bytes discards the bytes
    /// sent on it.
    pub fn close(&mut self, deadline: Duration) {
        let until = Instant::now() + deadline;
        self.iter_mut().for_each(Link::finish);
        while Instant::now() < until && self.iter().next().is_some() {
            wire::link::wait(std::iter::empty(), self.iter(), Duration::from_millis(10));
            for l in self.iter_mut() {
                l.flush();
                l.receive(drop);
            }
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
