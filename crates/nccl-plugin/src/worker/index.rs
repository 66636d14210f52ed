//! Positions of a process's ranks and of the communicators that it leads, so that a poll with n communicators costs O(n log n), not O(n^2).

use super::{LedCommunicator, LocalRank};
use agreement::Roster;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Positions in the worker's lists. Where several elements have one key, as in tests of a single process, the first one counts.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// By communicator and ordinal.
    local: BTreeMap<(u64, u32), usize>,
    /// By the profiler's context.
    owner: BTreeMap<u64, usize>,
    /// By communicator and ordinal of the leading rank.
    led: BTreeMap<(u64, u32), usize>,
}

impl Index {
    /// After elements were removed. O(n log n).
    pub fn rebuild(&mut self, local: &[LocalRank], led: &[LedCommunicator]) {
        *self = Index::default();
        local.iter().enumerate().for_each(|(at, l)| self.add_local(at, l));
        led.iter().enumerate().for_each(|(at, l)| self.add_led(at, l));
    }

    pub fn add_local(&mut self, at: usize, l: &LocalRank) {
        self.local.entry((l.comm.id, l.comm.ordinal)).or_insert(at);
        if l.owner != 0 {
            self.owner.entry(l.owner).or_insert(at);
        }
    }

    pub fn add_led(&mut self, at: usize, l: &LedCommunicator) {
        self.led.entry((l.roster.comm, l.ordinal)).or_insert(at);
    }

    pub fn local(&self, comm: u64, ordinal: u32) -> Option<usize> {
        self.local.get(&(comm, ordinal)).copied()
    }

    pub fn of_owner(&self, owner: u64) -> Option<usize> {
        self.owner.get(&owner).copied()
    }

    /// The communicator that this rank leads with this roster.
    pub fn led_by(&self, roster: &Roster, ordinal: u32) -> Option<usize> {
        self.led.get(&(roster.comm, ordinal)).copied()
    }

    /// The first communicator of this identifier that this process leads.
    pub fn led(&self, comm: u64) -> Option<usize> {
        self.led.range((comm, 0)..=(comm, u32::MAX)).next().map(|(_, at)| *at)
    }

    /// The communicator that this process leads with this very roster.
    pub fn led_with(&self, led: &[LedCommunicator], roster: &Arc<Roster>) -> Option<usize> {
        let mut all = self.led.range((roster.comm, 0)..=(roster.comm, u32::MAX)).map(|(_, at)| *at);
        all.find(|at| led.get(*at).is_some_and(|l| Arc::ptr_eq(&l.roster, roster)))
    }
}
