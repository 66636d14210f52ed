//! Paths of other hosts that go through this one.

use super::greetings::Greeting;
use super::{GREETING_US, Io, Target};
use crate::limits::RELAYED_MAX;
use crate::rails::View;
use crate::relay::{Relay, Side};
use crate::sender::Micros;
use crate::sockets::Socket;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::sync::atomic::Ordering;

/// A path of other hosts whose next link is being dialled.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) from: Socket,
    pub(super) from_rail: usize,
    pub(super) to: Socket,
    pub(super) to_rail: usize,
    pub(super) yes: Vec<u8>,
    pub(super) no: Vec<u8>,
    pub(super) until: Micros,
}

impl Io {
    /// Dials the next link of a path that is to go through this host: to a subnet of its rails only.
    pub(super) fn ask(&mut self, g: Greeting, to: std::net::SocketAddr, yes: Vec<u8>, no: Vec<u8>, now: Micros) {
        let rail = self.common.addresses.iter().position(|a| a.ip != to.ip() && a.shares_subnet(to.ip()));
        let free = self.relays.len() + self.asked.len() < RELAYED_MAX;
        let own = rail.filter(|_| free).and_then(|r| Some((r, self.common.addresses.get(r)?.ip)));
        let dialled = own.and_then(|(rail, from)| Some((rail, Socket::dial(from, to).ok()?)));
        let Some((to_rail, to)) = dialled else {
            let _ = crate::buffer::send(&g.socket, &no, &[]);
            return;
        };
        let key = self.target(Target::Asked);
        if epoll::add(&self.epoll, &to, EventData::new_u64(key), EventFlags::OUT).is_ok() {
            let until = now + GREETING_US;
            self.asked.insert(key, Asked { from: g.socket, from_rail: g.rail, to, to_rail, yes, no, until });
        } else {
            self.targets.remove(&key);
        }
    }

    /// The next link of a path has answered: from now on its bytes pass.
    pub(super) fn go_on(&mut self, key: u64) {
        self.targets.remove(&key);
        let Some(a) = self.asked.remove(&key) else { return };
        let _ = epoll::delete(&self.epoll, &a.to);
        if a.to.error().is_some() {
            let _ = crate::buffer::send(&a.from, &a.no, &[]);
            return;
        }
        if !crate::buffer::send(&a.from, &a.yes, &[]).is_ok_and(|n| n == a.yes.len()) {
            return;
        }
        let relay = self.common.key();
        let keys = [(); 2].map(|()| self.target(Target::Relay { relay }));
        let [from, to] = keys;
        let sides = [Side::new(a.from, a.from_rail, from), Side::new(a.to, a.to_rail, to)];
        let mut r = Relay { sides };
        let added = r.wishes().into_iter().zip(&r.sides).all(|(flags, s)| {
            let flags = flags.unwrap_or(EventFlags::IN);
            epoll::add(&self.epoll, &s.socket, EventData::new_u64(s.key), flags).is_ok()
        });
        if added {
            self.relays.insert(relay, r);
        } else {
            keys.iter().for_each(|k| _ = self.targets.remove(k));
        }
    }

    pub(super) fn relay(&mut self, key: u64, flags: EventFlags, now: Micros) {
        let view = View { board: &self.common.board.host, others: &self.host_others };
        let Some(r) = self.relays.get_mut(&key) else { return };
        let passed = r.pass(now, &view);
        self.common.counts.relayed.fetch_add(*passed.as_ref().unwrap_or(&0), Ordering::Relaxed);
        if passed.is_err() || flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            r.forget(&view);
            for s in &r.sides {
                let _ = epoll::delete(&self.epoll, &s.socket);
                self.targets.remove(&s.key);
            }
            self.relays.remove(&key);
            return;
        }
        for (flags, s) in r.wishes().into_iter().zip(&r.sides) {
            if let Some(flags) = flags {
                let _ = epoll::modify(&self.epoll, &s.socket, EventData::new_u64(s.key), flags);
            }
        }
    }
}
