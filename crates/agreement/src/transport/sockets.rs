//! Through sockets. One process (the first that can listen at the meeting place) also keeps the register: everybody announces to it and gets
//! the rosters from it, with the addresses of the leaders. All else goes directly between a member's process and its leader's.
//!
//! The register may go away with its process: communicators that are complete do not need it, and for new ones the next process that can
//! listen keeps a new one, to which everybody announces again.
//!
//! Others are hostile until they say the token, and even then only what concerns themselves is believed: a connection speaks for one process. Who
//! says what cannot be is dropped, with a note.

use super::packet::{ADDRESSES_MAX, Packet};
use super::register::{Answer, Register};
use super::{Endpoint, Event, Meeting, NOTES_MAX};
use crate::roster::{Announcement, ProcessId, RANKS_MAX};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};
use wire::{Address, Inside, Link, Listener, Malformed};

/// How long a connection over TCP may take. Nobody waits for it.
const CONNECT: Duration = Duration::from_secs(2);
/// How often the meeting place, and leaders, are tried again.
const RETRY: Duration = Duration::from_millis(100);
/// Most connections of one process: a leader has one to every other process.
const LINKS_MAX: usize = RANKS_MAX + 64;
/// Most connections that have not said the token; the oldest goes when another comes.
pub const STRANGERS_MAX: usize = 64;
/// Most connections through shared memory, 128 KiB each: eight ranks on a host are usual.
const MEMORIES_MAX: usize = 64;
/// Most processes whose addresses are kept.
const KNOWN_MAX: usize = 65_536;

/// See the module.
#[derive(Debug)]
pub struct Sockets {
    meeting: Meeting,
    token: Vec<u8>,
    bind: Option<IpAddr>,
    process: ProcessId,
    host: u64,
    inside: Inside,
    /// Where others reach this process.
    own: Vec<Address>,
    listeners: Vec<Listener>,
    /// Not before: too many connections, or open files.
    next_accept: Instant,
    links: Vec<Peer>,
    /// The connection to the register.
    up: Option<Up>,
    register: Option<Register>,
    next_try: Instant,
    /// Announced by this process, and not forgotten.
    announced: Vec<Announcement>,
    /// Where processes can be reached.
    known: BTreeMap<ProcessId, (u64, Vec<Address>)>,
    /// Who leads this process's communicators. Members connect to their leader, and again when that breaks.
    leaders: BTreeMap<u64, ProcessId>,
    next_reach: Instant,
    /// Connections to them broke while they used shared memory: the next one does not. `None`: the register's.
    spoilt: BTreeSet<Option<ProcessId>>,
    notes: Vec<String>,
}

#[derive(Debug)]
struct Peer {
    link: Link,
    process: Option<ProcessId>,
    /// It asks this process's register.
    announces: bool,
}

#[derive(Debug)]
struct Up {
    link: Link,
    place: Address,
    /// Who keeps the register.
    keeper: Option<ProcessId>,
}

/// Where a frame came from.
#[derive(Debug, Clone, Copy)]
enum Via {
    Up,
    Link(usize),
}

impl Sockets {
    /// Meets at `meeting`. `bind` is the address to listen at, by default the one that reaches the meeting place.
    pub fn new(
        meeting: Meeting,
        token: &[u8],
        bind: Option<IpAddr>,
        process: ProcessId,
        host: u64,
    ) -> io::Result<Self> {
        let local = Address::Local(format!("linkwise-{process:016x}"));
        let listener = Listener::bind(&local)?;
        let now = Instant::now();
        Ok(Sockets {
            meeting,
            token: token.to_vec(),
            bind,
            process,
            host,
            inside: Inside::default(),
            own: vec![local],
            listeners: vec![listener],
            next_accept: now,
            links: Vec::new(),
            up: None,
            register: None,
            next_try: now,
            announced: Vec::new(),
            known: BTreeMap::new(),
            leaders: BTreeMap::new(),
            next_reach: now,
            spoilt: BTreeSet::new(),
            notes: Vec::new(),
        })
    }

    /// How bytes travel between processes of one host; both sides must want shared memory. By default the socket.
    pub fn inside(mut self, inside: Inside) -> Self {
        self.inside = inside;
        self
    }

    /// True where this process keeps the register.
    pub fn keeps_register(&self) -> bool {
        self.register.is_some()
    }

    /// Connections that are open, of whatever kind.
    pub fn connections(&self) -> usize {
        self.links.len() + usize::from(self.up.is_some())
    }

    /// Connections that go through shared memory.
    pub fn memories(&self) -> usize {
        self.links.iter().map(|p| &p.link).chain(self.up.as_ref().map(|u| &u.link)).filter(|l| l.is_in_memory()).count()
    }

    fn note(&mut self, note: String) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(note);
        }
    }

    fn all_links(&mut self) -> impl Iterator<Item = &mut Link> {
        self.links.iter_mut().map(|p| &mut p.link).chain(self.up.as_mut().map(|u| &mut u.link))
    }

    fn places(&self) -> Vec<Address> {
        match &self.meeting {
            Meeting::Local(n) => vec![Address::Local(format!("linkwise-meeting-{n}"))],
            Meeting::Tcp { host, port } => (host.as_str(), *port)
                .to_socket_addrs()
                .map(|all| all.take(ADDRESSES_MAX).map(Address::Tcp).collect())
                .unwrap_or_default(),
            Meeting::Folder(_) => Vec::new(),
        }
    }

    /// Connects to the register, or becomes it.
    fn meet(&mut self) {
        if self.register.is_some() || self.up.is_some() || self.announced.is_empty() || Instant::now() < self.next_try {
            return;
        }
        self.next_try = Instant::now() + RETRY;
        let inside = if self.spoilt.contains(&None) { Inside::Socket } else { self.inside };
        for place in self.places() {
            if let Ok(link) = Link::connect(&place, &self.token, CONNECT, inside) {
                self.listen_at(link.own_ip());
                self.up = Some(Up { link, place, keeper: None });
                for a in self.announced.clone() {
                    self.say_up(Packet::Announce(a, self.own.clone()));
                }
                return;
            }
            if self.keep_register(&place) {
                return;
            }
        }
    }

    /// Fails on every host but the one of the meeting place, and there for all processes but one.
    fn keep_register(&mut self, place: &Address) -> bool {
        let Ok(listener) = Listener::bind(place) else { return false };
        self.listeners.push(listener);
        if let Address::Tcp(a) = place {
            self.listen_at(Some(a.ip()));
        }
        let mut register = Register::default();
        self.announced.iter().for_each(|a| register.enter(a.clone()));
        self.register = Some(register);
        true
    }

    /// Listens where other hosts reach this process.
    fn listen_at(&mut self, ip: Option<IpAddr>) {
        let Some(ip) = self.bind.or(ip) else { return };
        if self.own.len() > 1 {
            return;
        }
        let any_port = Address::Tcp(SocketAddr::new(ip, 0));
        if let Ok(listener) = Listener::bind(&any_port)
            && let Some(port) = listener.port()
        {
            self.own.push(Address::Tcp(SocketAddr::new(ip, port)));
            self.listeners.push(listener);
        }
    }

    fn say_up(&mut self, packet: Packet) {
        if let Some(up) = &mut self.up {
            up.link.send(&packet.bytes());
        }
    }

    /// Takes new connections. Those that do not say the token are in nobody's way: the oldest go. One that came in this turn stays, for its
    /// token may be there unread.
    fn accept(&mut self) {
        let is_stranger = |p: &Peer| p.process.is_none() && !p.link.is_known();
        let mut strangers = self.links.iter().filter(|p| is_stranger(p)).count();
        let mut old = strangers;
        let memories = self.links.iter().filter(|p| p.link.has_memory()).count();
        for listener in &self.listeners {
            while strangers < STRANGERS_MAX || old > 0 {
                let inside = if memories + strangers < MEMORIES_MAX { self.inside } else { Inside::Socket };
                let accepted = if self.links.len() < LINKS_MAX {
                    Link::accept(listener, &self.token, inside)
                } else {
                    Err(io::ErrorKind::OutOfMemory.into())
                };
                match accepted {
                    Ok(None) => break,
                    Ok(Some(link)) => self.links.push(Peer { link, process: None, announces: false }),
                    Err(_) => {
                        self.next_accept = Instant::now() + RETRY;
                        return;
                    }
                }
                strangers += 1;
                if strangers > STRANGERS_MAX
                    && let Some(oldest) = self.links.iter().position(is_stranger)
                {
                    self.links.remove(oldest);
                    (strangers, old) = (strangers - 1, old - 1);
                }
            }
        }
    }

    /// What others said since the last look.
    fn hear(&mut self, events: &mut Vec<Event>) {
        let mut frames = Vec::new();
        for (i, peer) in self.links.iter_mut().enumerate() {
            peer.link.flush();
            peer.link.receive(|f| frames.push((Via::Link(i), f)));
        }
        if let Some(up) = &mut self.up {
            up.link.flush();
            up.link.receive(|f| frames.push((Via::Up, f)));
        }
        for (via, frame) in frames {
            if let Err(e) = Packet::read(&frame).and_then(|packet| self.take(via, packet, events)) {
                match via {
                    Via::Link(i) => self.links.get_mut(i).map(|p| p.link.drop_because(e.0)),
                    Via::Up => self.up.as_mut().map(|u| u.link.drop_because(e.0)),
                };
            }
        }
    }

    /// A connection speaks for one process.
    fn is_said_by(&mut self, via: Via, process: ProcessId) -> Result<(), Malformed> {
        let said = match via {
            Via::Link(i) => self.links.get_mut(i).map(|p| &mut p.process),
            Via::Up => self.up.as_mut().map(|u| &mut u.keeper),
        };
        match said {
            Some(Some(other)) if *other != process => Err(Malformed("a process that speaks for another one")),
            Some(said) => {
                *said = Some(process);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn take(&mut self, via: Via, packet: Packet, events: &mut Vec<Event>) -> Result<(), Malformed> {
        match (packet, via) {
            (Packet::Hello(process), _) => self.is_said_by(via, process)?,
            (Packet::Message { from, body }, _) => {
                self.is_said_by(via, from)?;
                events.push(Event::Message { from, body });
            }
            (Packet::Announce(a, addresses), Via::Link(i)) => {
                self.is_said_by(via, a.process)?;
                if let Some(peer) = self.links.get_mut(i) {
                    peer.announces = true;
                    peer.link.send(&Packet::Hello(self.process).bytes());
                }
                if self.known.len() < KNOWN_MAX || self.known.contains_key(&a.process) {
                    self.known.insert(a.process, (a.host, addresses));
                }
                if let Some(register) = &mut self.register {
                    register.enter(a);
                }
            }
            (Packet::Forget { comm, process }, Via::Link(_)) => {
                self.is_said_by(via, process)?;
                if let Some(register) = &mut self.register {
                    register.leave(comm, process);
                }
            }
            (Packet::Complete { roster, host, addresses }, Via::Up) => {
                // Forgotten meanwhile, or never ours.
                let ours =
                    |a: &Announcement| a.comm == roster.comm && roster.places.iter().any(|p| p.process == a.process);
                if self.announced.iter().any(ours) {
                    if let Some(leader) = roster.places.first() {
                        self.known.insert(leader.process, (host, addresses));
                    }
                    events.push(Event::Complete(roster));
                }
            }
            (Packet::Never { comm, why }, Via::Up) => {
                if self.announced.iter().any(|a| a.comm == comm) {
                    events.push(Event::Never { comm, why });
                }
            }
            _ => return Err(Malformed("not for this process to hear")),
        }
        Ok(())
    }

    /// Answers communicators that are complete; events of this process's own members go to `events`.
    fn answer(&mut self, events: &mut Vec<Event>) {
        let answers = self.register.as_mut().map(|r| r.answers()).unwrap_or_default();
        for Answer { comm, result, told } in answers {
            let (event, packet) = match result {
                Ok(roster) => {
                    let leader = roster.places.first().map_or(0, |p| p.process);
                    let (host, addresses) = match leader == self.process {
                        true => (self.host, self.own.clone()),
                        false => self.known.get(&leader).cloned().unwrap_or_default(),
                    };
                    (Event::Complete(roster.clone()), Packet::Complete { roster, host, addresses })
                }
                Err(why) => (Event::Never { comm, why: why.clone() }, Packet::Never { comm, why }),
            };
            if told.contains(&self.process) {
                events.push(event);
            }
            let bytes = packet.bytes();
            let asks = |p: &&mut Peer| p.announces && p.process.is_some_and(|p| told.binary_search(&p).is_ok());
            for peer in self.links.iter_mut().filter(asks) {
                peer.link.send(&bytes);
            }
        }
    }

    /// Lets go of what is broken.
    fn remove_broken(&mut self) {
        let (broken, links) = std::mem::take(&mut self.links).into_iter().partition(|p| p.link.is_broken());
        self.links = links;
        for Peer { link, process, .. } in broken {
            let Some(p) = process else { continue };
            self.broke(&link, process, &format!("process {p:016x}"));
            if let Some(register) = self.register.as_mut().filter(|_| self.links.iter().all(|l| l.process != process)) {
                register.gone(p);
            }
        }
        if let Some(up) = self.up.take_if(|u| u.link.is_broken()) {
            self.broke(&up.link, None, "the register");
            if !up.link.is_known() {
                self.keep_register(&up.place); // nobody listens there
            }
        }
    }

    fn broke(&mut self, link: &Link, process: Option<ProcessId>, name: &str) {
        let why = link.why().unwrap_or_default();
        let gone = why.ends_with("is gone");
        if link.has_memory() && self.spoilt.len() < KNOWN_MAX && self.spoilt.insert(process) && !gone {
            self.note(format!("the connection to {name} ended: {why}; from now on without shared memory"));
        } else if !gone {
            self.note(format!("the connection to {name} ended: {why}"));
        }
    }

    fn reach_leaders(&mut self, events: &[Event]) {
        for event in events {
            if let Event::Complete(roster) = event
                && let Some(leader) = roster.places.first().filter(|p| p.process != self.process)
            {
                self.leaders.insert(roster.comm, leader.process);
                self.next_reach = Instant::now();
            }
        }
        if Instant::now() < self.next_reach {
            return;
        }
        self.next_reach = Instant::now() + RETRY;
        let leaders: BTreeSet<ProcessId> = self.leaders.values().copied().collect();
        for leader in leaders {
            self.link_to(leader);
        }
    }

    /// The connection to a process; made if need be.
    fn link_to(&mut self, to: ProcessId) -> Option<&mut Link> {
        if self.up.as_ref().is_some_and(|u| u.keeper == Some(to)) {
            return self.up.as_mut().map(|u| &mut u.link);
        }
        let at = match self.links.iter().position(|p| p.process == Some(to) && !p.link.is_broken()) {
            Some(i) => i,
            None => {
                let (host, addresses) = self.known.get(&to)?;
                let inside = if self.spoilt.contains(&Some(to)) { Inside::Socket } else { self.inside };
                // Inside a host through a local socket; where that fails (another network namespace) through the network.
                let near = addresses.iter().filter(|a| matches!(a, Address::Local(_)) && *host == self.host);
                let far = addresses.iter().filter(|a| matches!(a, Address::Tcp(_)));
                let mut all = near.chain(far);
                let mut link = all.find_map(|a| Link::connect(a, &self.token, CONNECT, inside).ok())?;
                link.send(&Packet::Hello(self.process).bytes());
                self.links.push(Peer { link, process: Some(to), announces: false });
                self.links.len() - 1
            }
        };
        self.links.get_mut(at).map(|p| &mut p.link)
    }
}

impl Endpoint for Sockets {
    fn announce(&mut self, announcement: Announcement) {
        self.announced.push(announcement.clone());
        match &mut self.register {
            Some(register) => register.enter(announcement),
            None => self.say_up(Packet::Announce(announcement, self.own.clone())),
        }
    }

    fn forget(&mut self, comm: u64) {
        self.leaders.remove(&comm);
        self.announced.retain(|a| a.comm != comm);
        match &mut self.register {
            Some(register) => register.leave(comm, self.process),
            None => self.say_up(Packet::Forget { comm, process: self.process }),
        }
    }

    fn send(&mut self, to: ProcessId, body: &[u8]) {
        let message = Packet::Message { from: self.process, body: body.to_vec() };
        if let Some(link) = self.link_to(to) {
            link.send(&message.bytes());
        }
    }

    fn poll(&mut self, most: Duration, events: &mut Vec<Event>) {
        self.meet();
        let may_accept = Instant::now() >= self.next_accept;
        let links = self.links.iter().map(|p| &p.link).chain(self.up.as_ref().map(|u| &u.link));
        wire::link::wait(self.listeners.iter().filter(|_| may_accept), links, most);
        if may_accept {
            self.accept();
        }
        self.hear(events);
        self.answer(events);
        self.remove_broken();
        self.reach_leaders(events);
    }

    fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    fn close(&mut self, deadline: Duration) {
        let until = Instant::now() + deadline;
        self.all_links().for_each(|l| l.finish());
        // Read what others still say: a connection closed over unread bytes takes with it what was sent.
        while Instant::now() < until && !(self.links.is_empty() && self.up.is_none()) {
            let links = self.links.iter().map(|p| &p.link).chain(self.up.as_ref().map(|u| &u.link));
            wire::link::wait(std::iter::empty(), links, Duration::from_millis(10));
            for l in self.all_links() {
                l.flush();
                l.receive(drop);
            }
            self.links.retain(|p| !p.link.is_broken());
            self.up.take_if(|u| u.link.is_broken());
        }
    }
}
