//! Transport over sockets. One process also keeps the register: the first one that can listen at the rendezvous. All
//! processes announce their ranks to it and get rosters and leaders' addresses from it. All other messages go directly
//! between a member's process and its leader's process.
//!
//! If the register's process ends, complete communicators do not need it. For new communicators the next process that can listen at the rendezvous
//! becomes the register, and all processes announce again.
//!
//! A process listens at single addresses, never at all of its host: the address from which it reaches the rendezvous. If the rendezvous is a host
//! name, its own host may resolve the name to loopback only (Debian's 127.0.1.1). Processes on that host therefore listen at the host's primary
//! address: the one of its default route. A host in several networks, of which the job uses another, needs `bind`.
//!
//! Peers are untrusted until they have proved that they know the token. After that each connection may speak only for its own process. A peer that
//! breaks this or sends an impossible value is dropped, with a note. What else listens at the rendezvous is asked ever less often, and named once.

use super::connections::{ClosedConnection, Connections, REGISTER, Via};
use super::packet::{ADDRESSES_MAX, Packet};
use super::register::{Register, RosterAnswer};
use super::rendezvous::{RendezvousAddresses, is_here};
use super::{Endpoint, NOTES_MAX, Rendezvous, TransportEvent};
use crate::roster::{Announcement, Disagreement, ProcessId, RANKS_MAX};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use wire::{Address, IntraNodeTransport, Listener, Malformed};

/// Interval of attempts to connect to the rendezvous and to leaders.
const RETRY: Duration = Duration::from_millis(100);
/// Longest such interval, while something else than this job answers at the rendezvous.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Connections in a row that the rendezvous closes without a word before this is reported. A register that ends closes one.
const CLOSED_SILENTLY_MAX: u32 = 3;
/// First pause after the register has sent this process away; it doubles up to [`RETRY_MAX`] until an answer arrives.
const AWAY: Duration = Duration::from_secs(1);
/// Limit on processes whose addresses are kept.
const KNOWN_MAX: usize = 65_536;

/// Limit on different notes of one process.
const SAID_MAX: usize = 64;

/// One process's end of the channel. See the module documentation.
#[derive(Debug)]
pub struct Sockets {
    rendezvous: RendezvousAddresses,
    bind: Option<IpAddr>,
    process: ProcessId,
    host: u64,
    /// Addresses at which this process can be reached.
    listen_addresses: Vec<Address>,
    connections: Connections,
    /// Address of the connection to the register.
    register_address: Option<Address>,
    register: Option<Register>,
    next_register_try: Instant,
    /// Interval to the next attempt after something else has answered at the rendezvous.
    register_pause: Duration,
    closed_silently: u32,
    /// Announcements of this process that are not withdrawn.
    announced: Vec<Announcement>,
    /// Communicators of this process that the register has answered.
    answered: BTreeSet<u64>,
    /// The register has closed the connection for another process, and keeps what was announced; the next pause.
    sent_away: bool,
    away_pause: Duration,
    /// Host and addresses of other processes. The next to try comes first.
    addresses_of: BTreeMap<ProcessId, (u64, Vec<Address>)>,
    /// Communicators of this process that are too large to agree, until reported.
    too_large: Vec<u64>,
    /// Leader's process by communicator. Members keep a connection to their leader open.
    leaders: BTreeMap<u64, ProcessId>,
    next_leader_try: Instant,
    notes: Vec<String>,
    /// All notes so far: each thing is said once.
    said: BTreeSet<String>,
}

impl Sockets {
    /// An end at `rendezvous`. `bind`: the address to listen at; by default the one from which this host reaches the rendezvous.
    ///
    /// # Errors
    /// The local socket cannot be opened.
    pub fn new(
        rendezvous: Rendezvous,
        token: &[u8],
        bind: Option<IpAddr>,
        process: ProcessId,
        host: u64,
    ) -> io::Result<Self> {
        let local = Address::Local(format!("linkwise-{process:016x}"));
        let listener = Listener::bind(&local)?;
        let now = Instant::now();
        Ok(Sockets {
            rendezvous: RendezvousAddresses::new(&rendezvous, bind),
            bind,
            process,
            host,
            listen_addresses: vec![local],
            connections: Connections::new(token, listener)?,
            register_address: None,
            register: None,
            next_register_try: now,
            register_pause: RETRY,
            closed_silently: 0,
            too_large: Vec::new(),
            announced: Vec::new(),
            answered: BTreeSet::new(),
            sent_away: false,
            away_pause: AWAY,
            addresses_of: BTreeMap::new(),
            leaders: BTreeMap::new(),
            next_leader_try: now,
            notes: Vec::new(),
            said: BTreeSet::new(),
        })
    }

    /// Selects how bytes travel between processes of one host. Shared memory needs both ends to select it. Default: the socket.
    pub fn intra_node_transport(mut self, intra_node: IntraNodeTransport) -> Self {
        self.connections.intra_node = intra_node;
        self
    }

    /// True if this process keeps the register.
    pub fn is_register(&self) -> bool {
        self.register.is_some()
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.connections.iter().count()
    }

    /// Number of connections that use shared memory.
    pub fn memory_connections(&self) -> usize {
        self.connections.iter().filter(|l| l.is_in_memory()).count()
    }

    fn say(&mut self, note: String) {
        if self.notes.len() < NOTES_MAX && self.said.len() < SAID_MAX && self.said.insert(note.clone()) {
            self.notes.push(note);
        }
    }

    /// Connects to the register, or becomes it.
    fn connect_to_register(&mut self) {
        let met = self.register.is_some() || self.connections.has_register();
        let lacks = |a: &Announcement| !self.sent_away || !self.answered.contains(&a.comm);
        if met || !self.announced.iter().any(lacks) || Instant::now() < self.next_register_try {
            return;
        }
        let rendezvous = self.rendezvous.now();
        if rendezvous.is_empty() {
            return;
        }
        self.next_register_try = Instant::now() + RETRY;
        for address in rendezvous {
            match self.connections.connect_register(&address).map(|link| link.local_ip()) {
                Ok(ip) => {
                    self.rendezvous.tried();
                    self.listen_at(&address, ip);
                    self.register_address = Some(address);
                    // A register that has sent this process away knows the rest. A new one is told everything.
                    let away = self.sent_away;
                    for a in self.announced.clone() {
                        if away && self.answered.contains(&a.comm) {
                            continue;
                        }
                        self.send_to_register(Packet::Announce(a, self.listen_addresses.clone()));
                    }
                    return;
                }
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                    self.say(format!(
                        "a process of another user listens at {address}: all communicators stay at AUTO while it does"
                    ));
                    return self.back_off();
                }
                Err(_) if self.become_register(&address) => return,
                Err(_) => {}
            }
        }
    }

    /// Something else than this job's register answers at the rendezvous.
    fn back_off(&mut self) {
        self.next_register_try = Instant::now() + self.register_pause;
        self.register_pause = (2 * self.register_pause).min(RETRY_MAX);
    }

    /// Listens at the rendezvous. Succeeds only on its host, and there for one process.
    fn become_register(&mut self, address: &Address) -> bool {
        // If several addresses are local, all processes choose the same one, so that there is one register.
        if let Address::Tcp(a) = address
            && self.rendezvous.listen_address() != Some(*a)
        {
            return false;
        }
        let Ok(listener) = Listener::bind(address) else { return false };
        if self.connections.listen(listener).is_err() {
            return false;
        }
        if let Address::Tcp(a) = address {
            if self.resolves_to_itself(*a) {
                // Other hosts cannot reach loopback. No other process can be there: it would hold the first address.
                let primary = self.rendezvous.primary_of(*a);
                let listener = primary.and_then(|ip| Listener::bind(&Address::Tcp(SocketAddr::new(ip, a.port()))).ok());
                if listener.is_none_or(|l| self.connections.listen(l).is_err()) {
                    self.say(format!(
                        "{a} is an address that other hosts cannot reach, and this host's primary address cannot be listened at; set LINKWISE_BIND \
                         on it if the job runs on several hosts"
                    ));
                }
            }
            self.listen_at(address, Some(a.ip()));
        }
        let mut register = Register::default();
        self.announced.iter().for_each(|a| register.announce(a.clone()));
        self.register = Some(register);
        true
    }

    /// The name of the rendezvous is this host's own, and means loopback here.
    fn resolves_to_itself(&self, at: SocketAddr) -> bool {
        self.bind.is_none() && self.rendezvous.is_name() && at.ip().is_loopback() && is_here(at)
    }

    /// Listens at an address that other hosts can reach. `ip`: the address from which this host reaches the rendezvous.
    fn listen_at(&mut self, address: &Address, ip: Option<IpAddr>) {
        let (Address::Tcp(address), Some(ip)) = (address, ip) else { return };
        let ip = match self.bind {
            Some(ip) => ip,
            None if self.resolves_to_itself(*address) => self.rendezvous.primary_of(*address).unwrap_or(ip),
            None => ip,
        };
        // Newest first: it belongs to the connection over which it is announced.
        let same = |a: &Address| matches!(a, Address::Tcp(a) if a.ip() == ip);
        if let Some(at) = self.listen_addresses.iter().position(same) {
            let address = self.listen_addresses.remove(at);
            self.listen_addresses.insert(1, address);
        } else if self.listen_addresses.len() < ADDRESSES_MAX
            && let Ok(listener) = Listener::bind(&Address::Tcp(SocketAddr::new(ip, 0)))
            && let Some(port) = listener.port()
            && self.connections.listen(listener).is_ok()
        {
            self.listen_addresses.insert(1, Address::Tcp(SocketAddr::new(ip, port)));
        }
    }

    fn send_to_register(&mut self, packet: Packet) {
        self.connections.send(REGISTER, &packet.bytes());
    }

    fn on_packet(&mut self, via: Via, packet: Packet, events: &mut Vec<TransportEvent>) -> Result<(), Malformed> {
        match (packet, via) {
            (Packet::Hello(process), _) => self.connections.claim_process(via, process)?,
            (Packet::Message { from, body }, _) => {
                self.connections.claim_process(via, from)?;
                self.connections.get(via).into_iter().for_each(|p| p.carries = true);
                events.push(TransportEvent::Message { from, body });
            }
            (Packet::Announce(a, addresses), via) if via != REGISTER => {
                self.connections.claim_process(via, a.process)?;
                if let Some(peer) = self.connections.get(via)
                    && !std::mem::replace(&mut peer.announces, true)
                {
                    self.connections.send(via, &Packet::Hello(self.process).bytes());
                }
                if self.addresses_of.len() < KNOWN_MAX || self.addresses_of.contains_key(&a.process) {
                    self.addresses_of.insert(a.process, (a.host, addresses));
                }
                if let Some(register) = &mut self.register {
                    register.announce(a);
                }
            }
            (Packet::Forget { comm, process }, via) if via != REGISTER => {
                self.connections.claim_process(via, process)?;
                if let Some(register) = &mut self.register {
                    register.leave(comm, process);
                }
            }
            (Packet::ComeBack, REGISTER) => {
                self.sent_away = true;
                // Not all at once: between one and two pauses, by the process.
                let share = self.process.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                self.next_register_try =
                    Instant::now() + self.away_pause + self.away_pause.mul_f64(share as f64 / (1u64 << 24) as f64);
                self.away_pause = (2 * self.away_pause).min(RETRY_MAX);
                self.connections.fail(REGISTER, wire::link::PEER_CLOSED);
            }
            (Packet::Complete { roster, host, addresses }, REGISTER) => {
                self.on_answer(roster.comm);
                // The communicator may have been forgotten meanwhile, or may have no rank in this process.
                let ours =
                    |a: &Announcement| a.comm == roster.comm && roster.members.iter().any(|p| p.process == a.process);
                if self.announced.iter().any(ours) {
                    if let Some(leader) = roster.members.first() {
                        self.addresses_of.insert(leader.process, (host, addresses));
                    }
                    events.push(TransportEvent::Complete(roster));
                }
            }
            (Packet::Disagreed { comm, reason }, REGISTER) => {
                self.on_answer(comm);
                if self.announced.iter().any(|a| a.comm == comm) {
                    events.push(TransportEvent::Disagreed { comm, reason });
                }
            }
            _ => return Err(Malformed("this process does not accept packets of that kind")),
        }
        Ok(())
    }

    fn on_answer(&mut self, comm: u64) {
        self.away_pause = AWAY;
        if self.announced.iter().any(|a| a.comm == comm) {
            self.answered.insert(comm);
        }
    }

    /// Sends rosters and disagreements to the processes concerned; those for this process go to `events`.
    fn send_answers(&mut self, events: &mut Vec<TransportEvent>) {
        let answers = self.register.as_mut().map(|r| r.answers()).unwrap_or_default();
        for RosterAnswer { comm, result, recipients } in answers {
            let (event, packet) = match result {
                Ok(roster) => {
                    let leader = roster.members.first().map_or(0, |p| p.process);
                    let (host, addresses) = match leader == self.process {
                        true => (self.host, self.listen_addresses.clone()),
                        false => self.addresses_of.get(&leader).cloned().unwrap_or_default(),
                    };
                    (TransportEvent::Complete(roster.clone()), Packet::Complete { roster, host, addresses })
                }
                Err(reason) => {
                    (TransportEvent::Disagreed { comm, reason: reason.clone() }, Packet::Disagreed { comm, reason })
                }
            };
            if recipients.contains(&self.process) {
                events.push(event);
            }
            let bytes = packet.bytes();
            let leads = matches!(&packet, Packet::Complete { roster, .. } if roster.members.first().is_some_and(|p| p.process == self.process));
            for via in self.connections.announcers(&recipients) {
                // Members reach this process's leader over it.
                self.connections.get(via).into_iter().for_each(|p| p.carries |= leads);
                self.connections.send(via, &bytes);
            }
        }
    }

    fn on_closed(&mut self, closed: ClosedConnection) {
        if let Some(note) = closed.note {
            self.say(note);
        }
        if closed.was_register {
            let address = self.register_address.take();
            if closed.was_ready {
                self.sent_away &= Instant::now() < self.next_register_try;
                (self.register_pause, self.closed_silently) = (RETRY, 0);
            } else if let Some(address) = address
                && !self.become_register(&address) // no process listens there
                && closed.was_established
            {
                self.closed_silently += 1;
                let silently = closed.why == wire::link::PEER_CLOSED;
                if closed.why == wire::link::WRONG_TOKEN {
                    // Said already, with the remedy.
                } else if !silently || self.closed_silently >= CLOSED_SILENTLY_MAX {
                    self.say(format!(
                        "what listens at {address} is no register of this job ({}); all communicators stay at AUTO while it does",
                        closed.why
                    ));
                }
                self.back_off();
            }
        } else if let Some(process) = closed.process {
            if closed.was_dialled
                && !closed.was_ready
                && let Some((_, addresses)) = self.addresses_of.get_mut(&process)
                && !addresses.is_empty()
            {
                addresses.rotate_left(1); // perhaps another address of the process answers
            }
            if let Some(register) = &mut self.register
                && self.connections.find(process).is_none()
            {
                register.process_gone(process);
            }
        }
    }

    fn connect_to_leaders(&mut self, events: &[TransportEvent]) {
        for event in events {
            if let TransportEvent::Complete(roster) = event
                && let Some(leader) = roster.members.first().filter(|p| p.process != self.process)
            {
                self.leaders.insert(roster.comm, leader.process);
                self.next_leader_try = Instant::now();
            }
        }
        if Instant::now() < self.next_leader_try {
            return;
        }
        self.next_leader_try = Instant::now() + RETRY;
        let leaders: BTreeSet<ProcessId> = self.leaders.values().copied().collect();
        for leader in leaders {
            self.link_to(leader);
        }
    }

    /// The connection to a process; starts one if there is none.
    fn link_to(&mut self, to: ProcessId) -> Option<Via> {
        if let Some(via) = self.connections.find(to) {
            return Some(via);
        }
        let (host, addresses) = self.addresses_of.get(&to)?;
        // Within a host over a local socket. If that fails (another network namespace), over the network.
        let near = addresses.iter().filter(|a| matches!(a, Address::Local(_)) && *host == self.host);
        let far = addresses.iter().filter(|a| matches!(a, Address::Tcp(_)));
        let via = self.connections.connect_to(to, near.chain(far))?;
        self.connections.send(via, &Packet::Hello(self.process).bytes());
        Some(via)
    }
}

impl Endpoint for Sockets {
    fn announce(&mut self, announcement: Announcement) {
        if announcement.size as usize > RANKS_MAX {
            self.too_large.push(announcement.comm);
            return;
        }
        self.announced.push(announcement.clone());
        self.answered.remove(&announcement.comm);
        match &mut self.register {
            Some(register) => register.announce(announcement),
            None => self.send_to_register(Packet::Announce(announcement, self.listen_addresses.clone())),
        }
    }

    fn forget(&mut self, comm: u64) {
        self.leaders.remove(&comm);
        self.announced.retain(|a| a.comm != comm);
        self.answered.remove(&comm);
        match &mut self.register {
            Some(register) => register.leave(comm, self.process),
            None => self.send_to_register(Packet::Forget { comm, process: self.process }),
        }
    }

    fn send(&mut self, to: ProcessId, body: &[u8]) {
        let message = Packet::Message { from: self.process, body: body.to_vec() };
        if let Some(via) = self.link_to(to) {
            self.connections.get(via).into_iter().for_each(|p| p.carries = true);
            self.connections.send(via, &message.bytes());
        }
    }

    fn poll(&mut self, timeout: Duration, events: &mut Vec<TransportEvent>) {
        self.connect_to_register();
        for (via, frame) in self.connections.poll_frames(timeout) {
            if let Err(e) = Packet::read(&frame).and_then(|packet| self.on_packet(via, packet, events)) {
                self.connections.fail(via, e.0);
            }
        }
        let reason = Disagreement::TooLarge;
        events.extend(self.too_large.drain(..).map(|comm| TransportEvent::Disagreed { comm, reason: reason.clone() }));
        for process in self.connections.take_sent_away() {
            self.register.iter_mut().for_each(|r| r.send_away(process));
        }
        self.send_answers(events);
        for broken in self.connections.remove_closed() {
            self.on_closed(broken);
        }
        self.connect_to_leaders(events);
        if let Some(note) = self.connections.take_limit_note() {
            self.say(note);
        }
    }

    fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    fn close(&mut self, deadline: Duration) {
        self.connections.close(deadline);
    }
}

#[cfg(test)]
mod tests;
