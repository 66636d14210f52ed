//! The exchange of [`Record`]s: broadcasts of one datagram on every rail, sealed with the job's token. What is new is passed on over all rails.

use crate::handle::RailAddress;
use crate::limits::RAILS_MAX;
use crate::reach::{Map, RECORD_BYTES_MAX, Record};
use crate::sender::Micros;
use crate::sockets::Socket;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use wire::auth::{GroupKey, TAG_BYTES};

/// UDP port of the records, the same on all hosts. Jobs share it: records of other jobs have other seals.
const PORT: u16 = 29_417;
/// Interval of a process's own records, microseconds.
const INTERVAL_US: Micros = 100_000;
/// Records read at once.
const READS_MAX: usize = 64;

/// The sockets of a lending process. They live on its first I/O thread.
#[derive(Debug)]
pub(crate) struct Discovery {
    key: GroupKey,
    hears: Socket,
    /// One per rail with an IPv4 address.
    says: Vec<Socket>,
    own: Record,
    due: Micros,
}

impl Discovery {
    pub fn start(token: &[u8], host: u64, process: u64, rails: &[RailAddress]) -> io::Result<Self> {
        let open = |ip: IpAddr, port: u16| {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = Socket::new(rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?);
            sockopt::set_socket_reuseaddr(&socket, true)?;
            sockopt::set_socket_broadcast(&socket, true)?;
            rustix::net::bind(&socket, &SocketAddr::new(ip, port))?;
            Ok::<_, io::Error>(socket)
        };
        let hears = open(Ipv4Addr::UNSPECIFIED.into(), PORT)?;
        let says = rails.iter().filter(|r| r.ip.is_ipv4()).map(|r| open(r.ip, 0)).collect::<io::Result<_>>()?;
        let rails = rails.iter().take(RAILS_MAX).map(|r| (*r, 0)).collect();
        let own = Record { host, process, rails, ..Record::default() };
        Ok(Discovery { key: GroupKey::new(token, b"relay"), hears, says, own, due: 0 })
    }

    pub fn waits_for(&self) -> BorrowedFd<'_> {
        self.hears.as_fd()
    }

    /// A datagram that cannot be sent now is lost: the next one says the same.
    fn say(&self, record: &Record) {
        let sealed = self.key.seal(0, 0, &record.write());
        let to = SocketAddr::new(Ipv4Addr::BROADCAST.into(), PORT);
        for socket in &self.says {
            let _ = rustix::net::sendto(socket, &sealed, SendFlags::NOSIGNAL | SendFlags::DONTWAIT, &to);
        }
    }

    /// When [`tell`](Discovery::tell) is due.
    pub fn due(&self) -> Micros {
        self.due
    }

    /// The record that this process has told last.
    pub fn own(&self) -> &Record {
        &self.own
    }

    /// Tells the own rails: microseconds of work and KiB per second of each, and what went to other hosts, KiB.
    pub fn tell(&mut self, now: Micros, work: impl Fn(usize) -> u64, rates: Vec<u32>, sent: Vec<(u64, u32)>) {
        // The clock makes records of a process that starts again newer than those before.
        self.own.sequence = now.max(self.own.sequence + 1);
        for (i, r) in self.own.rails.iter_mut().enumerate() {
            r.1 = u32::try_from(work(i)).unwrap_or(u32::MAX);
        }
        (self.own.rates, self.own.sent) = (rates, sent);
        self.say(&self.own);
        self.due = now + INTERVAL_US;
    }

    /// Reads records. True if ways may have changed.
    pub fn hear(&mut self, map: &mut Map, now: Micros) -> bool {
        let mut changed = false;
        for _ in 0..READS_MAX {
            let mut bytes = [0; RECORD_BYTES_MAX + TAG_BYTES + 1];
            let Ok((_, n)) = rustix::net::recv(&self.hears, &mut bytes[..], RecvFlags::DONTWAIT) else { break };
            let Some(body) = bytes.get(..n).and_then(|b| self.key.open(0, 0, b)) else { continue };
            let Ok(record) = Record::read(body) else { continue };
            if (record.host, record.process) == (self.own.host, self.own.process) {
                continue;
            }
            if let Some(new) = map.learn(record.clone(), now) {
                changed |= new;
                self.say(&record);
            }
        }
        changed
    }
}
