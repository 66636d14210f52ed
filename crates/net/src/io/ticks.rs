//! What the passing of time brings: counts, words to other hosts, deadlines.

use super::{HUNGRY_US, IDLE_US, Io};
use crate::limits::RAILS_MAX;
use crate::plan::HOSTS_MAX;
use crate::rails::{RATE_UNKNOWN, Rails, View};
use crate::reach::Network;
use crate::sender::Micros;
use crate::shared::{Common, Job, OVER_MAX, lock};
use rustix::event::epoll;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};

/// If the messages of the last [`LOADED_US`] were larger than this on average, programs' threads leave the work to the I/O thread: it sleeps between its
/// events, so the system runs it before threads that poll without a pause. With smaller ones, its wake-ups would take longer than the work.
const LARGE_BYTES: u64 = 16 << 10;

const LOADED_US: Micros = 10_000;

/// Time over which the work on a rail is averaged for other hosts.
const MEAN_US: Micros = 65_536;

/// Rates and demands of the recent past, which all hosts plan with.
#[derive(Debug, Default)]
pub(super) struct Lately {
    /// A rail that waits for a relay moves less than it could: the highest rate of about the last two seconds counts, bytes per second.
    peaks: [u64; RAILS_MAX],
    /// Bytes that went to each host, fading over about a second.
    sent: HashMap<u64, u64>,
    network: Network,
    /// The hosts have told each other news since the last plan.
    is_due: bool,
}

impl Lately {
    fn rates(&mut self, common: &Common) -> Vec<u32> {
        let board = &common.board.host;
        let peaks = self.peaks.iter_mut().enumerate().take(common.addresses.len());
        peaks
            .map(|(rail, peak)| {
                *peak = board.measured(rail).max(*peak - *peak / 32);
                u32::try_from(*peak >> 10).unwrap_or(u32::MAX)
            })
            .collect()
    }

    fn sent(&mut self, common: &Common) -> Vec<(u64, u32)> {
        self.sent.values_mut().for_each(|bytes| *bytes -= *bytes / 8);
        for (host, bytes) in lock(&common.sent).drain() {
            *self.sent.entry(host).or_default() += bytes;
        }
        self.sent.retain(|_, bytes| *bytes >= 1 << 10);
        let mut all: Vec<(u64, u32)> =
            self.sent.iter().map(|(host, b)| (*host, u32::try_from(b >> 10).unwrap_or(u32::MAX))).collect();
        all.sort_by_key(|(host, kib)| (std::cmp::Reverse(*kib), *host));
        all.truncate(HOSTS_MAX);
        all
    }
}

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
                    let work =
                        view.backlog(rail).saturating_mul(1_000_000_000) / view.rate(rail).unwrap_or(RATE_UNKNOWN);
                    *mean = (*mean * (MEAN_US - passed) + work.min(1 << 40) * passed) / MEAN_US;
                }
            }
        }
    }

    /// Tells other hosts of this process's rails, if it lends them. Returns the time until the next word.
    pub(super) fn tell(&mut self, now: Micros) -> Micros {
        let Some(d) = &mut self.discovery else { return IDLE_US };
        if now >= d.due() {
            let rates = self.lately.rates(&self.common);
            let sent = self.lately.sent(&self.common);
            d.tell(now, |rail| self.work_ns.get(rail).copied().unwrap_or(0) / 1_000, rates, sent);
            self.lately.is_due = true;
        }
        if self.lately.is_due && !self.helped {
            self.lately.is_due = false;
            let network = &mut self.lately.network;
            let rates = lock(&self.common.map).demands(d.own(), network, now);
            let of = rates.map_or_else(Default::default, |rates| network.shares(self.common.host, &rates));
            let mut plan = lock(&self.common.plan);
            (plan.of, plan.number) = (of, plan.number + 1);
        }
        let next = d.due();
        if lock(&self.common.map).expire(now) {
            self.common.threads.iter().for_each(|t| t.hand_over(Job::Ways));
        }
        next.saturating_sub(now).max(1_000)
    }

    pub(super) fn tick(&mut self, now: Micros) {
        self.ticked = now;
        self.resume();
        let late: Vec<u64> = self.greetings.iter().filter(|(_, g)| now >= g.until).map(|(k, _)| *k).collect();
        late.into_iter().for_each(|key| self.give_up(key, now, &ErrorKind::TimedOut.into()));
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
