//! The register of announcements, kept by one process of the job. No I/O.

use crate::roster::{Announcement, Disagreement, ProcessId, RANKS_MAX, Roster, assemble};
use std::collections::{BTreeMap, BTreeSet};

/// Limit on communicators.
const COMMS_MAX: usize = 65_536;
/// Limit on announcements: 256 communicators of 4,096 ranks, 64 MiB.
const ANNOUNCEMENTS_MAX: usize = 1 << 20;

/// Collects announcements by communicator and answers once a roster is complete.
#[derive(Debug, Default)]
pub(super) struct Register {
    comms: BTreeMap<u64, CommEntry>,
    announcements: usize,
}

#[derive(Debug, Default)]
struct CommEntry {
    present: Vec<Announcement>,
    /// A rank announced itself, for the first time or again.
    changed: bool,
    answered: bool,
    /// Processes that have the answer and cannot say that they leave: their connection was closed for another one.
    away: BTreeSet<ProcessId>,
}

/// An answer and the processes that must receive it.
#[derive(Debug, PartialEq)]
pub(super) struct RosterAnswer {
    pub comm: u64,
    pub result: Result<Roster, Disagreement>,
    pub recipients: Vec<ProcessId>,
}

impl CommEntry {
    fn is_over(&self) -> bool {
        self.present.iter().all(|a| self.away.contains(&a.process))
    }
}

impl Register {
    /// Adds an announcement. A repeated one means that its process has not received the answer.
    pub fn announce(&mut self, a: Announcement) {
        if self.comms.len() >= COMMS_MAX && !self.comms.contains_key(&a.comm) {
            return;
        }
        let entry = self.comms.entry(a.comm).or_default();
        let a = &a;
        if !entry.present.contains(a) {
            // One announcement more than possible is enough to detect that the ranks disagree.
            if entry.present.len() > RANKS_MAX || self.announcements >= ANNOUNCEMENTS_MAX {
                return;
            }
            self.announcements += 1;
            entry.present.push(a.clone());
        }
        entry.away.remove(&a.process);
        entry.changed = true;
    }

    /// A process has no member of this communicator any more.
    pub fn leave(&mut self, comm: u64, process: ProcessId) {
        if let Some(entry) = self.comms.get_mut(&comm) {
            let before = entry.present.len();
            entry.present.retain(|a| a.process != process);
            self.announcements -= before - entry.present.len();
            if entry.is_over() {
                self.comms.remove(&comm);
            }
        }
    }

    /// The connection to a process was closed for another one. What has been answered is forgotten once all its processes are away or have left.
    pub fn send_away(&mut self, process: ProcessId) {
        let mut over = Vec::new();
        for (comm, entry) in self.comms.iter_mut().filter(|(_, entry)| entry.answered) {
            if entry.present.iter().any(|a| a.process == process) {
                entry.away.insert(process);
                over.extend(entry.is_over().then_some(*comm));
            }
        }
        for comm in over {
            self.announcements -= self.comms.remove(&comm).map_or(0, |entry| entry.present.len());
        }
    }

    /// A process is unreachable. Incomplete communicators forget its ranks; if it is alive it announces them again.
    pub fn process_gone(&mut self, process: ProcessId) {
        let waits = |entry: &CommEntry| !entry.answered && entry.present.iter().any(|a| a.process == process);
        let comms: Vec<u64> = self.comms.iter().filter(|(_, r)| waits(r)).map(|(comm, _)| *comm).collect();
        comms.into_iter().for_each(|comm| self.leave(comm, process));
    }

    /// Answers for communicators that changed and are complete or cannot agree.
    pub fn answers(&mut self) -> Vec<RosterAnswer> {
        let mut all = Vec::new();
        for (comm, entry) in self.comms.iter_mut().filter(|(_, entry)| entry.changed) {
            entry.changed = false;
            let too_large = entry.present.iter().any(|a| a.size as usize > RANKS_MAX);
            let result = if too_large { Some(Err(Disagreement::TooLarge)) } else { assemble(&entry.present) };
            let Some(result) = result else { continue };
            entry.answered = true;
            let mut recipients: Vec<ProcessId> = entry.present.iter().map(|a| a.process).collect();
            recipients.sort();
            recipients.dedup();
            all.push(RosterAnswer { comm: *comm, result, recipients });
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(comm: u64, rank: i32, size: u32, process: ProcessId) -> Announcement {
        Announcement { comm, rank, size, host: 1, process, ordinal: 0, settings: 9 }
    }

    #[test]
    fn a_complete_roster_is_sent_once_and_again_to_a_repeated_announcement() {
        let mut r = Register::default();
        r.announce(of(1, 0, 2, 10));
        assert_eq!(r.answers(), []);
        r.announce(of(1, 1, 2, 11));
        let answers = r.answers();
        assert!(matches!(answers.as_slice(), [a] if a.result.is_ok() && a.recipients == [10, 11]), "{answers:?}");
        assert_eq!(r.answers(), []);
        r.announce(of(1, 1, 2, 11));
        assert_eq!(r.answers(), answers);
    }

    #[test]
    fn a_process_that_leaves_an_incomplete_roster_is_forgotten_and_may_return() {
        let mut r = Register::default();
        r.announce(of(1, 0, 2, 10));
        r.process_gone(10);
        r.announce(of(1, 1, 2, 11));
        assert_eq!(r.answers(), []);
        // The same rank in a new process is valid.
        r.announce(of(1, 0, 2, 12));
        assert!(r.answers().iter().all(|a| a.result.is_ok() && a.recipients == [11, 12]));
        // A complete roster does not change: the other processes hold it.
        r.process_gone(12);
        r.announce(of(1, 0, 2, 13));
        assert!(r.answers().iter().all(|a| a.result == Err(Disagreement::Size)));
    }

    #[test]
    fn a_false_rank_or_size_disables_tuning_only_for_its_communicator() {
        for (lie, why) in [(of(1, 0, 2, 11), Disagreement::Ranks), (of(1, 1, 3, 11), Disagreement::Size)] {
            let mut r = Register::default();
            r.announce(of(1, 0, 2, 10));
            r.announce(lie);
            r.announce(of(2, 0, 1, 10));
            let answers: Vec<_> = r.answers().into_iter().map(|a| (a.comm, a.result.err())).collect();
            assert_eq!(answers, [(1, Some(why)), (2, None)]);
        }
    }

    #[test]
    fn a_process_cannot_fill_the_memory_with_announcements() {
        let mut r = Register::default();
        for comm in 0..COMMS_MAX as u64 + 100 {
            r.announce(of(comm, 0, 2, 10));
        }
        assert_eq!((r.comms.len(), r.announcements), (COMMS_MAX, COMMS_MAX));
        for process in 0..RANKS_MAX as u64 + 100 {
            r.announce(of(5, 1, 4096, process));
        }
        assert!(r.comms[&5].present.len() <= RANKS_MAX + 1);
        for comm in 0..COMMS_MAX as u64 {
            r.leave(comm, 10);
        }
        assert_eq!(r.comms.len(), 1);
        assert_eq!(r.announcements, r.comms[&5].present.len());
    }
}
