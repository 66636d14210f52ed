//! What the passing of time brings: counts, words to other hosts, deadlines.

use super::{HUNGRY_US, IDLE_US, Io};
use crate::rails::{Rails, View};
use crate::sender::Micros;
use crate::shared::{Job, OVER_MAX, lock};
use rustix::event::epoll;
use std::sync::atomic::{AtomicU64, Ordering};

/// If the messages of the last [`LOADED_US`] were larger than this on average, programs' threads leave the work to the I/O thread: it sleeps between its
/// events, so the system runs it before threads that poll without a pause. With smaller ones, its wake-ups would take longer than the work.
const LARGE_BYTES: u64 = 16 << 10;

const LOADED_US: Micros = 10_000;

/// Time over which the work on a rail is averaged for other hosts.
const MEAN_US: Micros = 65_536;

impl Io {
    /// Counts the other processes' bytes anew if a millisecond has passed.
    pub(super) fn count(&mut self, now: Micros) {
        if now >= self.counted + HUNGRY_US {
            let passed = (now - std::mem::replace(&mut self.counted, now)).min(MEAN_US);
            self.host_others = self.common.board.host.tick(now);
            self.near_others = self.common.board.near.tick(now);
            if now >= self.moved_at + LOADED_US {
                let counts = &self.common.counts;
                let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
                let bytes = counts.bytes.iter().map(get).sum::<u64>() + get(&counts.received) + get(&counts.relayed);
                let parts = get(&counts.messages) + get(&counts.chunks);
                let (bytes_before, parts_before) = std::mem::replace(&mut self.moved, (bytes, parts));
                self.moved_at = now;
                self.loaded = bytes - bytes_before > LARGE_BYTES * (parts - parts_before);
            }
            self.thread.works(self.loaded);
            if self.discovery.is_some() {
                let view = View { board: &self.common.board.host, others: &self.host_others };
                for (rail, mean) in self.work_ns.iter_mut().enumerate().take(self.common.addresses.len()) {
                    let work = view.backlog(rail).saturating_mul(1_000_000_000) / view.rate(rail).max(1);
                    *mean = (*mean * (MEAN_US - passed) + work.min(1 << 40) * passed) / MEAN_US;
                }
            }
        }
    }

    /// Tells other hosts of this process's rails, if it lends them. Returns the time until the next word.
    pub(super) fn tell(&mut self, now: Micros) -> Micros {
        let Some(d) = &mut self.discovery else { return IDLE_US };
        let next = d.tick(now, |rail| self.work_ns.get(rail).copied().unwrap_or(0) / 1_000);
        if lock(&self.common.map).expire(now) {
            self.common.threads.iter().for_each(|t| t.hand_over(Job::Ways));
        }
        next.saturating_sub(now).max(1_000)
    }

    pub(super) fn tick(&mut self, now: Micros) {
        self.ticked = now;
        self.resume();
        let late: Vec<u64> = self.greetings.iter().filter(|(_, g)| now >= g.until).map(|(k, _)| *k).collect();
        late.into_iter().for_each(|key| self.give_up(key, now));
        let late: Vec<u64> = self.asked.iter().filter(|(_, a)| now >= a.until).map(|(k, _)| *k).collect();
        for key in late {
            self.targets.remove(&key);
            // The other side finds its socket closed.
            if let Some(a) = self.asked.remove(&key) {
                let _ = epoll::delete(&self.epoll, &a.to);
            }
        }
        self.watching = !self.greetings.is_empty() || !self.asked.is_empty();
        let keys: Vec<u64> = self.connections.iter().filter(|(_, c)| c.needs_ticks()).map(|(k, _)| *k).collect();
        self.watching |= !keys.is_empty();
        for key in keys {
            let lives = self.with(key, |c, rails, common, after| {
                let lives = c.tick(now, rails, common, after);
                if lives {
                    c.flush(now, rails, after);
                }
                lives
            });
            if lives == Some(false) {
                self.remove(key);
            } else {
                self.dial(key, now);
                self.hungry.push(key);
            }
        }
    }

    fn remove(&mut self, key: u64) {
        self.with(key, |c, rails, _, after| c.drop_all(rails, after));
        let Some(c) = self.connections.remove(&key) else { return };
        if let Some((listener, connection)) = c.origin {
            let mut listeners = lock(&self.common.listeners);
            if let Some(l) = listeners.get_mut(&listener) {
                l.known.remove(&connection);
                l.over.push_back(connection);
                if l.over.len() > OVER_MAX {
                    l.over.pop_front();
                }
                if !l.open && l.known.is_empty() {
                    listeners.remove(&listener);
                }
            }
        }
        self.thread.forget(key);
        self.common.lingering.fetch_sub(1, Ordering::Relaxed);
    }
}
