//! Through sockets. One process (the first that can listen at the meeting place) also keeps the register: everybody announces to it and gets
//! the rosters from it, with the addresses of the leaders. All else goes directly between a member's process and its leader's.
//!
//! The register may go away with its process: communicators that are complete do not need it, and for new ones the next process that can
//! listen keeps a new one, to which everybody announces again.

use super::{Endpoint, Event, Meeting};
use crate::roster::{Announcement, Disagreement, Place, ProcessId, RANKS_MAX, Roster, assemble};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};
use wire::{Address, Link, Listener, Malformed, Reader, Writer};

/// How long a connection over TCP may take; the process's other communicators wait meanwhile.
const CONNECT: Duration = Duration::from_millis(300);
/// How often the meeting place is tried again.
const RETRY: Duration = Duration::from_millis(100);
/// Most connections of one process: a leader has one to every other process.
const LINKS_MAX: usize = RANKS_MAX + 64;
/// Most communicators in a register.
const ROOMS_MAX: usize = 65_536;
/// Most addresses of one process.
const ADDRESSES_MAX: usize = 4;

const HELLO: u8 = 0;
const ANNOUNCE: u8 = 1;
const COMPLETE: u8 = 2;
const NEVER: u8 = 3;
const MESSAGE: u8 = 4;
const FORGET: u8 = 5;

/// See the module.
#[derive(Debug)]
pub struct Sockets {
    meeting: Meeting,
    token: Vec<u8>,
    bind: Option<IpAddr>,
    process: ProcessId,
    host: u64,
    /// Where others reach this process.
    own: Vec<Address>,
    listeners: Vec<Listener>,
    links: Vec<Peer>,
    /// The connection to the register.
    up: Option<Link>,
    /// Who keeps the register; reached over `up`.
    keeper: Option<ProcessId>,
    register: Option<Register>,
    next_try: Instant,
    /// Announced by this process, and not forgotten.
    announced: Vec<Announcement>,
    /// Where processes can be reached.
    known: BTreeMap<ProcessId, (u64, Vec<Address>)>,
    /// Who leads this process's communicators. Members connect to their leader, and again when that breaks.
    leaders: BTreeMap<u64, ProcessId>,
    next_reach: Instant,
}

#[derive(Debug)]
struct Peer {
    link: Link,
    process: Option<ProcessId>,
}

/// Who has announced.
#[derive(Debug, Default)]
struct Register {
    rooms: BTreeMap<u64, Room>,
}

#[derive(Debug, Default)]
struct Room {
    present: Vec<Announcement>,
    answered: bool,
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
        Ok(Sockets {
            meeting,
            token: token.to_vec(),
            bind,
            process,
            host,
            own: vec![local],
            listeners: vec![listener],
            links: Vec::new(),
            up: None,
            keeper: None,
            register: None,
            next_try: Instant::now(),
            announced: Vec::new(),
            known: BTreeMap::new(),
            leaders: BTreeMap::new(),
            next_reach: Instant::now(),
        })
    }

    /// True where this process keeps the register.
    pub fn keeps_register(&self) -> bool {
        self.register.is_some()
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
        for place in self.places() {
            if let Ok(link) = Link::connect(&place, &self.token, CONNECT) {
                self.listen_at(link.own_ip());
                self.up = Some(link);
                for a in self.announced.clone() {
                    self.say_up(&a);
                }
                return;
            }
            // Fails on every host but the one of the meeting place, and there for all processes but one.
            if let Ok(listener) = Listener::bind(&place) {
                self.listeners.push(listener);
                if let Address::Tcp(a) = place {
                    self.listen_at(Some(a.ip()));
                }
                self.register = Some(Register::default());
                for a in self.announced.clone() {
                    self.enter(a);
                }
                return;
            }
        }
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

    fn say_up(&mut self, a: &Announcement) {
        let mut w = Writer::default();
        a.write(w.u8(ANNOUNCE));
        write_addresses(&mut w, &self.own);
        if let Some(up) = &mut self.up {
            up.send(&w.0);
        }
    }

    /// An announcement reaches the register, which is here.
    fn enter(&mut self, a: Announcement) {
        let Some(register) = &mut self.register else { return };
        if register.rooms.len() >= ROOMS_MAX && !register.rooms.contains_key(&a.comm) {
            return;
        }
        let room = register.rooms.entry(a.comm).or_default();
        if !room.present.contains(&a) {
            if room.present.len() > RANKS_MAX {
                return;
            }
            room.present.push(a);
        }
    }

    /// Answers rooms that are complete; events of this process's own members go to `events`.
    fn answer_rooms(&mut self, events: &mut Vec<Event>) {
        let Some(register) = &mut self.register else { return };
        let mut out: Vec<(ProcessId, Vec<u8>)> = Vec::new();
        for (comm, room) in register.rooms.iter_mut().filter(|(_, r)| !r.answered) {
            let Some(result) = assemble(&room.present) else { continue };
            room.answered = true;
            let mut w = Writer::default();
            let event = match result {
                Ok(roster) => {
                    w.u8(COMPLETE).u64(*comm).len(roster.places.len());
                    for p in &roster.places {
                        w.i32(p.rank).u64(p.process).u32(p.ordinal);
                    }
                    let leader = roster.places.first().map_or(0, |p| p.process);
                    let (host, addresses) = match leader == self.process {
                        true => (self.host, self.own.clone()),
                        false => self.known.get(&leader).cloned().unwrap_or_default(),
                    };
                    w.u64(host);
                    write_addresses(&mut w, &addresses);
                    Event::Complete(roster)
                }
                Err(why) => {
                    w.u8(NEVER).u64(*comm).u8(why.clone() as u8);
                    Event::Never { comm: *comm, why }
                }
            };
            let mut told: Vec<ProcessId> = room.present.iter().map(|a| a.process).collect();
            told.sort();
            told.dedup();
            if told.contains(&self.process) {
                events.push(event);
            }
            out.extend(told.into_iter().filter(|p| *p != self.process).map(|p| (p, w.0.clone())));
        }
        for (to, body) in out {
            // Over the connection on which it announced itself.
            if let Some(peer) = self.links.iter_mut().find(|p| p.process == Some(to)) {
                peer.link.send(&body);
            }
        }
    }

    fn take(&mut self, at: Option<usize>, frame: &[u8], events: &mut Vec<Event>) -> Result<(), Malformed> {
        let mut r = Reader::new(frame);
        match r.u8()? {
            HELLO => {
                let process = r.u64()?;
                r.end()?;
                match at {
                    None => self.keeper = Some(process),
                    Some(i) => {
                        if let Some(peer) = self.links.get_mut(i) {
                            peer.process = Some(process);
                        }
                    }
                }
            }
            ANNOUNCE => {
                let a = Announcement::read(&mut r)?;
                let addresses = read_addresses(&mut r)?;
                r.end()?;
                if let Some(peer) = at.and_then(|i| self.links.get_mut(i)) {
                    peer.process = Some(a.process);
                    let mut w = Writer::default();
                    peer.link.send(&w.u8(HELLO).u64(self.process).0);
                }
                self.known.insert(a.process, (a.host, addresses));
                // Whoever announces again has not heard the answer.
                if let Some(room) = self.register.as_mut().and_then(|g| g.rooms.get_mut(&a.comm)) {
                    room.answered &= !room.present.contains(&a);
                }
                self.enter(a);
            }
            COMPLETE if at.is_none() => {
                let comm = r.u64()?;
                let n = r.len(RANKS_MAX, 16)?;
                let mut places = Vec::with_capacity(n);
                for _ in 0..n {
                    places.push(Place { rank: r.i32()?, process: r.u64()?, ordinal: r.u32()? });
                }
                let (host, addresses) = (r.u64()?, read_addresses(&mut r)?);
                r.end()?;
                let leader = places.first().ok_or(Malformed("an empty roster"))?.process;
                self.known.insert(leader, (host, addresses));
                events.push(Event::Complete(Roster { comm, places }));
            }
            NEVER if at.is_none() => {
                let comm = r.u64()?;
                let why = match r.u8()? {
                    0 => Disagreement::Settings,
                    1 => Disagreement::Size,
                    _ => Disagreement::Ranks,
                };
                events.push(Event::Never { comm, why });
            }
            MESSAGE => {
                let from = r.u64()?;
                if let Some(peer) = at.and_then(|i| self.links.get_mut(i)) {
                    peer.process = Some(from);
                }
                events.push(Event::Message { from, body: r.rest().to_vec() });
            }
            FORGET => {
                let (comm, process) = (r.u64()?, r.u64()?);
                self.leave_room(comm, process);
            }
            _ => return Err(Malformed("no such message between processes")),
        }
        Ok(())
    }

    fn leave_room(&mut self, comm: u64, process: ProcessId) {
        if let Some(register) = &mut self.register
            && let Some(room) = register.rooms.get_mut(&comm)
        {
            room.present.retain(|a| a.process != process);
            if room.present.is_empty() {
                register.rooms.remove(&comm);
            }
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
        let mut leaders: Vec<ProcessId> = self.leaders.values().copied().collect();
        leaders.sort();
        leaders.dedup();
        for leader in leaders {
            self.link_to(leader);
        }
    }

    /// The connection to a process; made if need be.
    fn link_to(&mut self, to: ProcessId) -> Option<&mut Link> {
        if self.keeper == Some(to) && self.up.is_some() {
            return self.up.as_mut();
        }
        let at = match self.links.iter().position(|p| p.process == Some(to) && !p.link.is_broken()) {
            Some(i) => i,
            None => {
                let (host, addresses) = self.known.get(&to)?;
                // Inside a host through a local socket; where that fails (another network namespace) through the network.
                let near = addresses.iter().filter(|a| matches!(a, Address::Local(_)) && *host == self.host);
                let far = addresses.iter().filter(|a| matches!(a, Address::Tcp(_)));
                let mut link = near.chain(far).find_map(|a| Link::connect(a, &self.token, CONNECT).ok())?;
                let mut w = Writer::default();
                link.send(&w.u8(HELLO).u64(self.process).0);
                self.links.push(Peer { link, process: Some(to) });
                self.links.len() - 1
            }
        };
        self.links.get_mut(at).map(|p| &mut p.link)
    }
}

fn write_addresses(w: &mut Writer, all: &[Address]) {
    w.len(all.len());
    for a in all {
        w.text(&a.to_string());
    }
}

fn read_addresses(r: &mut Reader<'_>) -> Result<Vec<Address>, Malformed> {
    let n = r.len(ADDRESSES_MAX, 4)?;
    (0..n).map(|_| r.text(200)?.parse().map_err(|_| Malformed("no such address"))).collect()
}

impl Endpoint for Sockets {
    fn announce(&mut self, announcement: Announcement) {
        self.announced.push(announcement.clone());
        if self.register.is_some() {
            self.enter(announcement);
        } else {
            self.say_up(&announcement);
        }
    }

    fn forget(&mut self, comm: u64) {
        self.leaders.remove(&comm);
        self.announced.retain(|a| a.comm != comm);
        self.leave_room(comm, self.process);
        let mut w = Writer::default();
        w.u8(FORGET).u64(comm).u64(self.process);
        if let Some(up) = &mut self.up {
            up.send(&w.0);
        }
    }

    fn send(&mut self, to: ProcessId, body: &[u8]) {
        let mut w = Writer::default();
        w.u8(MESSAGE).u64(self.process).raw(body);
        if let Some(link) = self.link_to(to) {
            link.send(&w.0);
        }
    }

    fn poll(&mut self, most: Duration, events: &mut Vec<Event>) {
        self.meet();
        let links = self.links.iter().map(|p| &p.link).chain(self.up.as_ref());
        wire::socket::wait(self.listeners.iter(), links, most);
        for listener in &self.listeners {
            while self.links.len() < LINKS_MAX {
                let Some(link) = listener.accept(&self.token) else { break };
                self.links.push(Peer { link, process: None });
            }
        }
        let mut frames = Vec::new();
        for (i, peer) in self.links.iter_mut().enumerate() {
            peer.link.flush();
            peer.link.receive(|f| frames.push((Some(i), f)));
        }
        if let Some(up) = &mut self.up {
            up.flush();
            up.receive(|f| frames.push((None, f)));
        }
        for (at, frame) in frames {
            if self.take(at, &frame, events).is_err()
                && let Some(peer) = at.and_then(|i| self.links.get_mut(i))
            {
                peer.link.finish();
                peer.process = None;
            }
        }
        self.answer_rooms(events);
        self.links.retain(|p| !p.link.is_broken());
        self.up.take_if(|up| up.is_broken());
        self.reach_leaders(events);
    }

    fn close(&mut self, deadline: Duration) {
        let until = Instant::now() + deadline;
        for l in self.links.iter_mut().map(|p| &mut p.link).chain(self.up.as_mut()) {
            l.finish();
        }
        // Read what others still say: a connection closed over unread bytes takes with it what was sent.
        let mut unheard = Vec::new();
        while Instant::now() < until && !(self.links.is_empty() && self.up.is_none()) {
            let links = self.links.iter().map(|p| &p.link).chain(self.up.as_ref());
            wire::socket::wait(std::iter::empty(), links, Duration::from_millis(10));
            for l in self.links.iter_mut().map(|p| &mut p.link).chain(self.up.as_mut()) {
                l.flush();
                l.receive(|f| unheard.push(f));
                unheard.clear();
            }
            self.links.retain(|p| !p.link.is_broken());
            self.up.take_if(|up| up.is_broken());
        }
    }
}
