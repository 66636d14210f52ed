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

#[cfg(test)]
mod tests {
    use crate::comm::{Call, Comm, Identity, Role};
    use crate::config::Config;
    use crate::cost_table::CostTable;
    use crate::worker::Worker;
    use std::sync::Arc;

    /// Nanoseconds that this thread has run.
    fn cpu_ns() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    }

    /// Processor time of one poll with so many communicators, which this process leads; each makes so many calls between two polls.
    fn ns_per_poll(communicators: u64, calls: usize) -> u64 {
        let variables = [("LINKWISE_MODE", "adaptive"), ("LINKWISE_TEST", "1"), ("LINKWISE_TEST_ALONE", "1")];
        let env = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
        let config = Config::load(env, |_| Err(String::new())).unwrap();
        let mut worker = Worker::new(Arc::new(config), Arc::default());
        let comms: Vec<Arc<Comm>> = (0..communicators)
            .map(|id| Arc::new(Comm::new(Identity { id, ordinal: 0, rank: 0, ranks: 2, nodes: 1 }, Role::Tune, 64)))
            .collect();
        comms.iter().for_each(|comm| worker.on_joined(comm.clone(), comm.id + 1));
        worker.poll_once();
        const POLLS: u64 = 40;
        let mut total = 0;
        for _ in 0..POLLS {
            for comm in &comms {
                for _ in 0..calls {
                    let mut table = [-1.0f32; 21];
                    table[..6].copy_from_slice(&[60.0, 55.0, 70.0, 50.0, 65.0, 75.0]);
                    let mut costs = CostTable::new(&mut table, 7, 3).unwrap();
                    comm.call(Call { collective: 4, bytes: 1 << 20 }, &mut costs, &mut 0, |_| {}).unwrap();
                }
            }
            let before = cpu_ns();
            worker.poll_once();
            total += cpu_ns() - before;
        }
        assert_eq!((worker.led.len(), worker.index.led(communicators - 1)), (comms.len(), Some(comms.len() - 1)));
        total / POLLS
    }

    #[test]
    fn a_poll_with_ten_times_as_many_communicators_costs_about_ten_times_as_much() {
        for calls in [0, 1] {
            let (few, many) = (ns_per_poll(100, calls), ns_per_poll(1000, calls));
            let ratio = many as f64 / few as f64;
            println!(
                "{calls} calls per communicator: {few} ns with 100 communicators, {many} ns with 1,000: {ratio:.1} times"
            );
            assert!(ratio < 25.0, "{ratio:.1} times");
        }
    }
}
