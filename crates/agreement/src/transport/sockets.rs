//! Transport over sockets. One process also keeps the register: the first one that can listen at the rendezvous. All
//! processes announce their ranks to it and get rosters and leaders' addresses from it. All other messages go directly
//! between a member's process and its leader's process.
//!
//! If the register's process ends, complete communicators do not need it. For new communicators the next process that can listen at the rendezvous
//! becomes the register, and all processes announce again.
//!
//! If the rendezvous is a host name, its own host may resolve the name to other addresses than the rest, perhaps only to loopback. Processes on that
//! host therefore listen at all addresses of the host (unless `bind` names one) and announce the unspecified address with a port; the receiver
//! substitutes the address at which it reaches the register.
//!
//! Peers are untrusted until they send the token. After that each connection may speak only for its own process. A peer that breaks this or sends an
//! impossible value is dropped, with a note.

use super::connections::{ClosedConnection, Connections, Peer, Via};
use super::packet::{ADDRESSES_MAX, Packet};
use super::register::{Register, RosterAnswer};
use super::rendezvous::{RendezvousAddresses, any, is_here};
use super::{Endpoint, NOTES_MAX, Rendezvous, TransportEvent};
use crate::roster::{Announcement, ProcessId};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use wire::{Address, IntraNodeTransport, Link, Listener, Malformed};

/// Interval of attempts to connect to the rendezvous and to leaders.
const RETRY: Duration = Duration::from_millis(100);
/// Limit on processes whose addresses are kept.
const KNOWN_MAX: usize = 65_536;

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
    /// Announcements of this process that are not withdrawn.
    announced: Vec<Announcement>,
    /// Host and addresses of other processes.
    addresses_of: BTreeMap<ProcessId, (u64, Vec<Address>)>,
    /// Leader's process by communicator. Members keep a connection to their leader open.
    leaders: BTreeMap<u64, ProcessId>,
    next_leader_try: Instant,
    notes: Vec<String>,
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
            connections: Connections::new(token, listener),
            register_address: None,
            register: None,
            next_register_try: now,
            announced: Vec::new(),
            addresses_of: BTreeMap::new(),
            leaders: BTreeMap::new(),
            next_leader_try: now,
            notes: Vec::new(),
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

    /// Connects to the register, or becomes it.
    fn connect_to_register(&mut self) {
        let met = self.register.is_some() || self.connections.register_link.is_some();
        if met || self.announced.is_empty() || Instant::now() < self.next_register_try {
            return;
        }
        let rendezvous = self.rendezvous.now();
        if rendezvous.is_empty() {
            return;
        }
        self.next_register_try = Instant::now() + RETRY;
        for address in rendezvous {
            if let Ok(link) = self.connections.connect_register(&address) {
                let ip = link.local_ip();
                self.rendezvous.tried();
                self.listen_at(&address, ip);
                self.register_address = Some(address);
                for a in self.announced.clone() {
                    self.send_to_register(Packet::Announce(a, self.listen_addresses.clone()));
                }
                return;
            }
            if self.become_register(&address) {
                return;
            }
        }
    }

    /// Listens at the rendezvous. Succeeds only on its host, and there for one process.
    fn become_register(&mut self, address: &Address) -> bool {
        let at = match address {
            // If several addresses are local, all processes choose the same one, so that there is one register.
            Address::Tcp(a) if self.rendezvous.listen_address() != Some(*a) => return false,
            Address::Tcp(a) if self.bind.is_none() && self.rendezvous.is_name() => {
                Address::Tcp(SocketAddr::new(any(a.ip()), a.port()))
            }
            at => at.clone(),
        };
        let Ok(listener) = Listener::bind(&at) else { return false };
        self.connections.listen(listener);
        if let Address::Tcp(a) = address {
            self.listen_at(address, Some(a.ip()));
        }
        let mut register = Register::default();
        self.announced.iter().for_each(|a| register.announce(a.clone()));
        self.register = Some(register);
        true
    }

    /// Listens at an address that other hosts can reach. `ip`: the address from which this host reaches the rendezvous.
    fn listen_at(&mut self, address: &Address, ip: Option<IpAddr>) {
        let (Address::Tcp(address), Some(ip)) = (address, ip) else { return };
        let ip = match self.bind {
            Some(ip) => ip,
            None if self.rendezvous.is_name() && is_here(*address) => any(ip),
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
        {
            self.listen_addresses.insert(1, Address::Tcp(SocketAddr::new(ip, port)));
            self.connections.listen(listener);
        }
    }

    fn send_to_register(&mut self, packet: Packet) {
        if let Some(up) = &mut self.connections.register_link {
            up.link.send(&packet.bytes());
        }
    }

    fn claim_process(&mut self, via: Via, process: ProcessId) -> Result<(), Malformed> {
        self.connections.get(via).map_or(Ok(()), |p| p.claim_process(process))
    }

    fn on_packet(&mut self, via: Via, packet: Packet, events: &mut Vec<TransportEvent>) -> Result<(), Malformed> {
        match (packet, via) {
            (Packet::Hello(process), _) => self.claim_process(via, process)?,
            (Packet::Message { from, body }, _) => {
                self.claim_process(via, from)?;
                events.push(TransportEvent::Message { from, body });
            }
            (Packet::Announce(a, addresses), Via::Peer(_)) => {
                self.claim_process(via, a.process)?;
                if let Some(peer) = self.connections.get(via) {
                    peer.announces = true;
                    peer.link.send(&Packet::Hello(self.process).bytes());
                }
                if self.addresses_of.len() < KNOWN_MAX || self.addresses_of.contains_key(&a.process) {
                    self.addresses_of.insert(a.process, (a.host, addresses));
                }
                if let Some(register) = &mut self.register {
                    register.announce(a);
                }
            }
            (Packet::Forget { comm, process }, Via::Peer(_)) => {
                self.claim_process(via, process)?;
                if let Some(register) = &mut self.register {
                    register.leave(comm, process);
                }
            }
            (Packet::Complete { roster, host, addresses }, Via::Register) => {
                // The communicator may have been forgotten meanwhile, or may have no rank in this process.
                let ours =
                    |a: &Announcement| a.comm == roster.comm && roster.members.iter().any(|p| p.process == a.process);
                if self.announced.iter().any(ours) {
                    if let Some(leader) = roster.members.first() {
                        let addresses = addresses
                            .into_iter()
                            .map(|a| resolve_unspecified(a, self.register_address.as_ref()))
                            .collect();
                        self.addresses_of.insert(leader.process, (host, addresses));
                    }
                    events.push(TransportEvent::Complete(roster));
                }
            }
            (Packet::Disagreed { comm, reason }, Via::Register) => {
                if self.announced.iter().any(|a| a.comm == comm) {
                    events.push(TransportEvent::Disagreed { comm, reason });
                }
            }
            _ => return Err(Malformed("this process does not accept packets of that kind")),
        }
        Ok(())
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
            let asks = |p: &&mut Peer| p.announces && p.process.is_some_and(|p| recipients.binary_search(&p).is_ok());
            for peer in self.connections.peers().iter_mut().filter(asks) {
                peer.link.send(&bytes);
            }
        }
    }

    fn on_closed(&mut self, closed: ClosedConnection) {
        if let Some(note) = closed.note.filter(|_| self.notes.len() < NOTES_MAX) {
            self.notes.push(note);
        }
        if closed.was_register {
            if let Some(address) = self.register_address.take().filter(|_| !closed.was_ready) {
                self.become_register(&address); // no process listens there
            }
        } else if let (Some(process), Some(register)) = (closed.process, &mut self.register)
            && self.connections.find(process).is_none()
        {
            register.process_gone(process);
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
    fn link_to(&mut self, to: ProcessId) -> Option<&mut Link> {
        if self.connections.find(to).is_none() {
            let (host, addresses) = self.addresses_of.get(&to)?;
            // Within a host over a local socket. If that fails (another network namespace), over the network.
            let near = addresses.iter().filter(|a| matches!(a, Address::Local(_)) && *host == self.host);
            let far = addresses.iter().filter(|a| matches!(a, Address::Tcp(_)));
            let link = self.connections.connect_to(to, near.chain(far))?;
            link.send(&Packet::Hello(self.process).bytes());
        }
        self.connections.find(to)
    }
}

impl Endpoint for Sockets {
    fn announce(&mut self, announcement: Announcement) {
        self.announced.push(announcement.clone());
        match &mut self.register {
            Some(register) => register.announce(announcement),
            None => self.send_to_register(Packet::Announce(announcement, self.listen_addresses.clone())),
        }
    }

    fn forget(&mut self, comm: u64) {
        self.leaders.remove(&comm);
        self.announced.retain(|a| a.comm != comm);
        match &mut self.register {
            Some(register) => register.leave(comm, self.process),
            None => self.send_to_register(Packet::Forget { comm, process: self.process }),
        }
    }

    fn send(&mut self, to: ProcessId, body: &[u8]) {
        let message = Packet::Message { from: self.process, body: body.to_vec() };
        if let Some(link) = self.link_to(to) {
            link.send(&message.bytes());
        }
    }

    fn poll(&mut self, timeout: Duration, events: &mut Vec<TransportEvent>) {
        self.connect_to_register();
        for (via, frame) in self.connections.poll_frames(timeout) {
            if let Err(e) = Packet::read(&frame).and_then(|packet| self.on_packet(via, packet, events))
                && let Some(peer) = self.connections.get(via)
            {
                peer.link.close_with_reason(e.0);
            }
        }
        self.send_answers(events);
        for broken in self.connections.remove_closed() {
            self.on_closed(broken);
        }
        self.connect_to_leaders(events);
        self.notes.extend(self.connections.take_limit_note());
    }

    fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    fn close(&mut self, deadline: Duration) {
        self.connections.close(deadline);
    }
}

/// Substitutes the register's address for the unspecified address.
fn resolve_unspecified(address: Address, register: Option<&Address>) -> Address {
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
