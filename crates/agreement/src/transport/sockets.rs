//! Through sockets. One process (the first that can listen at the meeting place) also keeps the register: everybody announces to it and gets
//! the rosters from it, with the addresses of the leaders. All else goes directly between a member's process and its leader's.
//!
//! The register may go away with its process: communicators that are complete do not need it, and for new ones the next process that can
//! listen keeps a new one, to which everybody announces again.
//!
//! The host of a meeting place that is a name knows itself by other addresses than the others do, perhaps by its loopback alone. So processes there
//! listen at all of its addresses (unless `bind` names one), and announce "any address" and a port: whoever hears of that puts in the address at
//! which it reaches the register.
//!
//! Others are hostile until they say the token, and even then only what concerns themselves is believed: a connection speaks for one process. Who
//! says what cannot be is dropped, with a note.

use super::links::{Broken, Links, Peer, Via};
use super::packet::{ADDRESSES_MAX, Packet};
use super::places::{Places, any, is_here};
use super::register::{Answer, Register};
use super::{Endpoint, Event, Meeting, NOTES_MAX};
use crate::roster::{Announcement, ProcessId};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use wire::{Address, Inside, Link, Listener, Malformed};

/// How often the meeting place, and leaders, are tried again.
const RETRY: Duration = Duration::from_millis(100);
/// Most processes whose addresses are kept.
const KNOWN_MAX: usize = 65_536;

/// See the module.
#[derive(Debug)]
pub struct Sockets {
    places: Places,
    bind: Option<IpAddr>,
    process: ProcessId,
    host: u64,
    /// Where others reach this process.
    own: Vec<Address>,
    links: Links,
    /// Where the connection to the register leads.
    up_at: Option<Address>,
    register: Option<Register>,
    next_try: Instant,
    /// Announced by this process, and not forgotten.
    announced: Vec<Announcement>,
    /// Where processes can be reached.
    known: BTreeMap<ProcessId, (u64, Vec<Address>)>,
    /// Who leads this process's communicators. Members connect to their leader, and again when that breaks.
    leaders: BTreeMap<u64, ProcessId>,
    next_reach: Instant,
    notes: Vec<String>,
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
            places: Places::new(&meeting, bind),
            bind,
            process,
            host,
            own: vec![local],
            links: Links::new(token, listener),
            up_at: None,
            register: None,
            next_try: now,
            announced: Vec::new(),
            known: BTreeMap::new(),
            leaders: BTreeMap::new(),
            next_reach: now,
            notes: Vec::new(),
        })
    }

    /// How bytes travel between processes of one host; both sides must want shared memory. By default the socket.
    pub fn inside(mut self, inside: Inside) -> Self {
        self.links.inside = inside;
        self
    }

    /// True where this process keeps the register.
    pub fn keeps_register(&self) -> bool {
        self.register.is_some()
    }

    /// Connections that are open, of whatever kind.
    pub fn connections(&self) -> usize {
        self.links.iter().count()
    }

    /// Connections that go through shared memory.
    pub fn memories(&self) -> usize {
        self.links.iter().filter(|l| l.is_in_memory()).count()
    }

    /// Connects to the register, or becomes it.
    fn meet(&mut self) {
        let met = self.register.is_some() || self.links.up.is_some();
        if met || self.announced.is_empty() || Instant::now() < self.next_try {
            return;
        }
        let places = self.places.now();
        if places.is_empty() {
            return;
        }
        self.next_try = Instant::now() + RETRY;
        for place in places {
            if let Ok(link) = self.links.connect_up(&place) {
                let ip = link.own_ip();
                self.places.tried();
                self.listen_at(&place, ip);
                self.up_at = Some(place);
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
        let at = match place {
            // One of several that are here, and the same for all: there must not be two registers.
            Address::Tcp(a) if self.places.here() != Some(*a) => return false,
            Address::Tcp(a) if self.bind.is_none() && self.places.is_name() => {
                Address::Tcp(SocketAddr::new(any(a.ip()), a.port()))
            }
            at => at.clone(),
        };
        let Ok(listener) = Listener::bind(&at) else { return false };
        self.links.listen(listener);
        if let Address::Tcp(a) = place {
            self.listen_at(place, Some(a.ip()));
        }
        let mut register = Register::default();
        self.announced.iter().for_each(|a| register.enter(a.clone()));
        self.register = Some(register);
        true
    }

    /// Listens where other hosts reach this process. `ip` is what it reaches the meeting place from.
    fn listen_at(&mut self, place: &Address, ip: Option<IpAddr>) {
        let (Address::Tcp(place), Some(ip)) = (place, ip) else { return };
        let ip = match self.bind {
            Some(ip) => ip,
            None if self.places.is_name() && is_here(*place) => any(ip),
            None => ip,
        };
        // The newest first: it belongs to the connection over which it is announced.
        let same = |a: &Address| matches!(a, Address::Tcp(a) if a.ip() == ip);
        if let Some(at) = self.own.iter().position(same) {
            let address = self.own.remove(at);
            self.own.insert(1, address);
        } else if self.own.len() < ADDRESSES_MAX
            && let Ok(listener) = Listener::bind(&Address::Tcp(SocketAddr::new(ip, 0)))
            && let Some(port) = listener.port()
        {
            self.own.insert(1, Address::Tcp(SocketAddr::new(ip, port)));
            self.links.listen(listener);
        }
    }

    fn say_up(&mut self, packet: Packet) {
        if let Some(up) = &mut self.links.up {
            up.link.send(&packet.bytes());
        }
    }

    fn speaks_for(&mut self, via: Via, process: ProcessId) -> Result<(), Malformed> {
        self.links.get(via).map_or(Ok(()), |p| p.speaks_for(process))
    }

    fn take(&mut self, via: Via, packet: Packet, events: &mut Vec<Event>) -> Result<(), Malformed> {
        match (packet, via) {
            (Packet::Hello(process), _) => self.speaks_for(via, process)?,
            (Packet::Message { from, body }, _) => {
                self.speaks_for(via, from)?;
                events.push(Event::Message { from, body });
            }
            (Packet::Announce(a, addresses), Via::Peer(_)) => {
                self.speaks_for(via, a.process)?;
                if let Some(peer) = self.links.get(via) {
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
            (Packet::Forget { comm, process }, Via::Peer(_)) => {
                self.speaks_for(via, process)?;
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
                        let addresses = addresses.into_iter().map(|a| of_register(a, self.up_at.as_ref())).collect();
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
            for peer in self.links.peers().iter_mut().filter(asks) {
                peer.link.send(&bytes);
            }
        }
    }

    fn broke(&mut self, b: Broken) {
        if let Some(note) = b.note.filter(|_| self.notes.len() < NOTES_MAX) {
            self.notes.push(note);
        }
        if b.up {
            if let Some(place) = self.up_at.take().filter(|_| !b.known) {
                self.keep_register(&place); // nobody listens there
            }
        } else if let (Some(process), Some(register)) = (b.process, &mut self.register)
            && self.links.to(process).is_none()
        {
            register.gone(process);
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
        if self.links.to(to).is_none() {
            let (host, addresses) = self.known.get(&to)?;
            // Inside a host through a local socket; where that fails (another network namespace) through the network.
            let near = addresses.iter().filter(|a| matches!(a, Address::Local(_)) && *host == self.host);
            let far = addresses.iter().filter(|a| matches!(a, Address::Tcp(_)));
            let link = self.links.connect_to(to, near.chain(far))?;
            link.send(&Packet::Hello(self.process).bytes());
        }
        self.links.to(to)
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
        for (via, frame) in self.links.listen_and_hear(most) {
            if let Err(e) = Packet::read(&frame).and_then(|packet| self.take(via, packet, events))
                && let Some(peer) = self.links.get(via)
            {
                peer.link.drop_because(e.0);
            }
        }
        self.answer(events);
        for broken in self.links.remove_broken() {
            self.broke(broken);
        }
        self.reach_leaders(events);
        self.notes.extend(self.links.note());
    }

    fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    fn close(&mut self, deadline: Duration) {
        self.links.close(deadline);
    }
}

/// "Any address" is one of the register's host.
fn of_register(address: Address, register: Option<&Address>) -> Address {
    match (address, register) {
        (Address::Tcp(a), Some(Address::Tcp(register))) if a.ip().is_unspecified() => {
            let mut at = *register;
            at.set_port(a.port());
            Address::Tcp(at)
        }
        (address, _) => address,
    }
}

#[cfg(test)]
mod tests;
