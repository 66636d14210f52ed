//! The connections of one process, and for whom they speak.

use crate::roster::{ProcessId, RANKS_MAX};
use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};
use wire::{Address, Inside, Link, Listener, Malformed};

/// How long a connection over TCP may take. Nobody waits for it.
const CONNECT: Duration = Duration::from_secs(2);
/// How long nothing is accepted where too many connections, or files, are open.
const PAUSE: Duration = Duration::from_millis(100);
/// Most connections of one process: a leader has one to every other process.
const LINKS_MAX: usize = RANKS_MAX + 64;
/// Of the files that the process may have open, one in so many: they are the job's, which must not run out of them.
const FILES_SHARE: usize = 2;
/// Most connections that have not said the token; the oldest goes when another comes.
pub const STRANGERS_MAX: usize = 64;
/// Most connections through shared memory, 128 KiB each: eight ranks on a host are usual.
const MEMORIES_MAX: usize = 64;
/// Most processes with which shared memory is not tried again.
const SPOILT_MAX: usize = 65_536;

/// One connection.
#[derive(Debug)]
pub(super) struct Peer {
    pub link: Link,
    /// For whom it speaks, once that is said.
    pub process: Option<ProcessId>,
    /// It asks this process's register.
    pub announces: bool,
}

impl Peer {
    fn new(link: Link, process: Option<ProcessId>) -> Self {
        Peer { link, process, announces: false }
    }

    /// A connection speaks for one process.
    pub fn speaks_for(&mut self, process: ProcessId) -> Result<(), Malformed> {
        if self.process.is_some_and(|other| other != process) {
            return Err(Malformed("a process that speaks for another one"));
        }
        self.process = Some(process);
        Ok(())
    }

    fn is_stranger(&self) -> bool {
        self.process.is_none() && !self.link.is_known()
    }
}

/// Which connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Via {
    /// The one to the register.
    Up,
    /// Another one.
    Peer(usize),
}

/// A connection that is no more.
#[derive(Debug)]
pub(super) struct Broken {
    /// It was the one to the register.
    pub up: bool,
    pub process: Option<ProcessId>,
    /// It had been established.
    pub known: bool,
    /// Where it did not just end.
    pub note: Option<String>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Links {
    token: Vec<u8>,
    pub inside: Inside,
    listeners: Vec<Listener>,
    next_accept: Instant,
    peers: Vec<Peer>,
    /// The connection to the register.
    pub up: Option<Peer>,
    /// Connections to them broke that had shared memory: the next one has none. `None`: the register's.
    spoilt: BTreeSet<Option<ProcessId>>,
    /// Somebody knew another token, which was noted.
    other_token: bool,
    /// Most connections.
    pub most: usize,
    /// There were as many, which was or is to be noted.
    full: Full,
}

/// Whether all connections that may be are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Full {
    Never,
    /// And nobody was told.
    Now,
    Noted,
}

/// Most connections of a process that may have so many files open.
fn links_of(files: Option<usize>) -> usize {
    files.map_or(LINKS_MAX, |n| (n / FILES_SHARE).min(LINKS_MAX))
}

impl Links {
    pub fn new(token: &[u8], listener: Listener) -> Self {
        Links {
            token: token.to_vec(),
            inside: Inside::default(),
            listeners: vec![listener],
            next_accept: Instant::now(),
            peers: Vec::new(),
            up: None,
            spoilt: BTreeSet::new(),
            other_token: false,
            most: links_of(wire::socket::files_max()),
            full: Full::Never,
        }
    }

    /// Said once, when there are as many connections as may be.
    pub fn note(&mut self) -> Option<String> {
        if self.full != Full::Now {
            return None;
        }
        self.full = Full::Noted;
        let most = self.most;
        let why = match most < LINKS_MAX {
            true => format!(
                "one in {FILES_SHARE} of the files that this process may have open (ulimit -n); raise that limit"
            ),
            false => format!("the ranks of a communicator are at most {RANKS_MAX}"),
        };
        Some(format!(
            "{most} connections are open, and no more are made, {why}: ranks that are not connected stay at AUTO"
        ))
    }

    pub fn listen(&mut self, listener: Listener) {
        self.listeners.push(listener);
    }

    /// All but the one to the register.
    pub fn peers(&mut self) -> &mut [Peer] {
        &mut self.peers
    }

    pub fn get(&mut self, via: Via) -> Option<&mut Peer> {
        match via {
            Via::Up => self.up.as_mut(),
            Via::Peer(i) => self.peers.get_mut(i),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Link> {
        self.peers.iter().chain(&self.up).map(|p| &p.link)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Link> {
        self.peers.iter_mut().chain(&mut self.up).map(|p| &mut p.link)
    }

    fn connect(&self, at: &Address, to: Option<ProcessId>) -> io::Result<Link> {
        let inside = if self.spoilt.contains(&to) { Inside::Socket } else { self.inside };
        Link::connect(at, &self.token, CONNECT, inside)
    }

    /// To the register. The link may turn out not to come about.
    pub fn connect_up(&mut self, at: &Address) -> io::Result<&mut Link> {
        let link = self.connect(at, None)?;
        Ok(&mut self.up.insert(Peer::new(link, None)).link)
    }

    /// An unbroken connection to a process.
    pub fn to(&mut self, process: ProcessId) -> Option<&mut Link> {
        let found = |p: &&mut Peer| p.process == Some(process) && !p.link.is_broken();
        self.up.iter_mut().chain(&mut self.peers).find(found).map(|p| &mut p.link)
    }

    /// A new connection to a process, at the first address that does not fail at once.
    pub fn connect_to<'a>(
        &mut self,
        process: ProcessId,
        at: impl IntoIterator<Item = &'a Address>,
    ) -> Option<&mut Link> {
        if self.peers.len() >= self.most {
            if self.full == Full::Never {
                self.full = Full::Now;
            }
            return None;
        }
        let link = at.into_iter().find_map(|a| self.connect(a, Some(process)).ok())?;
        self.peers.push(Peer::new(link, Some(process)));
        self.peers.last_mut().map(|p| &mut p.link)
    }

    /// Waits for something to happen, takes new connections, and gives what was said on all of them.
    pub fn listen_and_hear(&mut self, most: Duration) -> Vec<(Via, Vec<u8>)> {
        let may_accept = Instant::now() >= self.next_accept;
        wire::link::wait(self.listeners.iter().filter(|_| may_accept), self.iter(), most);
        if may_accept && self.accept().is_err() {
            self.next_accept = Instant::now() + PAUSE;
        }
        let mut frames = Vec::new();
        let peers = self.peers.iter_mut().enumerate().map(|(i, p)| (Via::Peer(i), p));
        for (via, peer) in peers.chain(self.up.iter_mut().map(|p| (Via::Up, p))) {
            peer.link.flush();
            peer.link.receive(|f| frames.push((via, f)));
        }
        frames
    }

    /// Those that do not say the token are in nobody's way: the oldest go. One that came in this turn stays, for its token may be there unread.
    fn accept(&mut self) -> io::Result<()> {
        let mut strangers = self.peers.iter().filter(|p| p.is_stranger()).count();
        let mut old = strangers;
        let most = STRANGERS_MAX.min(self.most / 4).max(1);
        let memories = self.peers.iter().filter(|p| p.link.has_memory()).count();
        for listener in &self.listeners {
            while strangers < most || old > 0 {
                if self.peers.len() >= self.most {
                    // One is taken and let go, to know that there is one; the others wait.
                    let refused = Link::accept(listener, &self.token, Inside::Socket)?.is_some();
                    if refused && self.full == Full::Never {
                        self.full = Full::Now;
                    }
                    if refused { return Err(io::ErrorKind::OutOfMemory.into()) } else { break }
                }
                let inside = if memories + strangers < MEMORIES_MAX { self.inside } else { Inside::Socket };
                let Some(link) = Link::accept(listener, &self.token, inside)? else { break };
                self.peers.push(Peer::new(link, None));
                strangers += 1;
                if strangers > most
                    && let Some(oldest) = self.peers.iter().position(Peer::is_stranger)
                {
                    self.peers.remove(oldest);
                    (strangers, old) = (strangers - 1, old - 1);
                }
            }
        }
        Ok(())
    }

    /// Lets go of what is broken.
    pub fn remove_broken(&mut self) -> Vec<Broken> {
        let gone: Vec<Peer> = self.peers.extract_if(.., |p| p.link.is_broken()).collect();
        let mut all: Vec<Broken> = gone.into_iter().map(|p| self.broke(p, false)).collect();
        if let Some(up) = self.up.take_if(|u| u.link.is_broken()) {
            all.push(self.broke(up, true));
        }
        all
    }

    fn broke(&mut self, peer: Peer, up: bool) -> Broken {
        let process = if up { None } else { peer.process };
        let why = peer.link.why().unwrap_or_default();
        if peer.is_stranger() {
            // A crowd of them must not fill the log.
            let new = why.contains("another token") && !std::mem::replace(&mut self.other_token, true);
            let note = new.then(|| "somebody with another token wants to take part; give every process of the job the same LINKWISE_TOKEN".into());
            return Broken { up, process, known: false, note };
        }
        let spoilt = peer.link.has_memory() && self.spoilt.len() < SPOILT_MAX && self.spoilt.insert(process);
        let note = (!why.ends_with("is gone")).then(|| {
            let name = match process {
                Some(p) => format!("process {p:016x}"),
                None if up => "the register".into(),
                None => "a process that did not say who it is".into(),
            };
            let then = if spoilt { "; from now on without shared memory" } else { "" };
            format!("the connection to {name} ended: {why}{then}")
        });
        Broken { up, process: peer.process, known: peer.link.is_known(), note }
    }

    /// Says that nothing more will come, and reads what others still say: a connection closed over unread bytes takes with it what was sent.
    pub fn close(&mut self, deadline: Duration) {
        let until = Instant::now() + deadline;
        self.iter_mut().for_each(Link::finish);
        while Instant::now() < until && self.iter().next().is_some() {
            wire::link::wait(std::iter::empty(), self.iter(), Duration::from_millis(10));
            for l in self.iter_mut() {
                l.flush();
                l.receive(drop);
            }
            self.remove_broken();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_take_half_of_the_files_at_most() {
        let most = [Some(1024), Some(1 << 20), None].map(links_of);
        assert_eq!(most, [512, LINKS_MAX, LINKS_MAX]);
        assert_eq!(links_of(Some(usize::MAX)), LINKS_MAX);
    }
}
