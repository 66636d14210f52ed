//! Who has announced, kept by one process of the job. No I/O.

use crate::roster::{Announcement, Disagreement, ProcessId, RANKS_MAX, Roster, assemble};
use std::collections::BTreeMap;

/// Most communicators.
const ROOMS_MAX: usize = 65_536;
/// Most announcements: 256 communicators of 4,096 ranks, 64 MiB.
const ANNOUNCEMENTS_MAX: usize = 1 << 20;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Register {
    rooms: BTreeMap<u64, Room>,
    announcements: usize,
}

#[derive(Debug, Default)]
struct Room {
    present: Vec<Announcement>,
    /// Somebody came, or asks again.
    changed: bool,
    answered: bool,
}

/// What processes must be told.
#[derive(Debug, PartialEq)]
pub(super) struct Answer {
    pub comm: u64,
    pub result: Result<Roster, Disagreement>,
    pub told: Vec<ProcessId>,
}

impl Register {
    /// Somebody announces, perhaps again: then it has not heard the answer.
    pub fn enter(&mut self, a: Announcement) {
        if self.rooms.len() >= ROOMS_MAX && !self.rooms.contains_key(&a.comm) {
            return;
        }
        let room = self.rooms.entry(a.comm).or_default();
        if !room.present.contains(&a) {
            // One more than can be is enough to know that they will never agree.
            if room.present.len() > RANKS_MAX || self.announcements >= ANNOUNCEMENTS_MAX {
                return;
            }
            self.announcements += 1;
            room.present.push(a);
        }
        room.changed = true;
    }

    /// A process has no member in this communicator any more.
    pub fn leave(&mut self, comm: u64, process: ProcessId) {
        if let Some(room) = self.rooms.get_mut(&comm) {
            let before = room.present.len();
            room.present.retain(|a| a.process != process);
            self.announcements -= before - room.present.len();
            if room.present.is_empty() {
                self.rooms.remove(&comm);
            }
        }
    }

    /// A process cannot be reached any more. What waits for others waits without it; if it lives it announces again.
    pub fn gone(&mut self, process: ProcessId) {
        let waits = |room: &Room| !room.answered && room.present.iter().any(|a| a.process == process);
        let rooms: Vec<u64> = self.rooms.iter().filter(|(_, r)| waits(r)).map(|(comm, _)| *comm).collect();
        rooms.into_iter().for_each(|comm| self.leave(comm, process));
    }

    /// Answers for communicators that are complete, or never will be.
    pub fn answers(&mut self) -> Vec<Answer> {
        let mut all = Vec::new();
        for (comm, room) in self.rooms.iter_mut().filter(|(_, room)| room.changed) {
            room.changed = false;
            let Some(result) = assemble(&room.present) else { continue };
            room.answered = true;
            let mut told: Vec<ProcessId> = room.present.iter().map(|a| a.process).collect();
            told.sort();
            told.dedup();
            all.push(Answer { comm: *comm, result, told });
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
    fn a_complete_room_is_answered_once_and_again_to_who_asks_again() {
        let mut r = Register::default();
        r.enter(of(1, 0, 2, 10));
        assert_eq!(r.answers(), []);
        r.enter(of(1, 1, 2, 11));
        let answers = r.answers();
        assert!(matches!(answers.as_slice(), [a] if a.result.is_ok() && a.told == [10, 11]), "{answers:?}");
        assert_eq!(r.answers(), []);
        r.enter(of(1, 1, 2, 11));
        assert_eq!(r.answers(), answers);
    }

    #[test]
    fn who_is_gone_before_all_are_there_does_not_count_and_may_come_back() {
        let mut r = Register::default();
        r.enter(of(1, 0, 2, 10));
        r.gone(10);
        r.enter(of(1, 1, 2, 11));
        assert_eq!(r.answers(), []);
        // The same rank in a new process: no contradiction.
        r.enter(of(1, 0, 2, 12));
        assert!(r.answers().iter().all(|a| a.result.is_ok() && a.told == [11, 12]));
        // An answered room is as it is: the others hold the roster.
        r.gone(12);
        r.enter(of(1, 0, 2, 13));
        assert!(r.answers().iter().all(|a| a.result == Err(Disagreement::Size)));
    }

    #[test]
    fn who_lies_about_rank_or_size_costs_the_tuning_and_nothing_else() {
        for (lie, why) in [(of(1, 0, 2, 11), Disagreement::Ranks), (of(1, 1, 3, 11), Disagreement::Size)] {
            let mut r = Register::default();
            r.enter(of(1, 0, 2, 10));
            r.enter(lie);
            r.enter(of(2, 0, 1, 10));
            let answers: Vec<_> = r.answers().into_iter().map(|a| (a.comm, a.result.err())).collect();
            assert_eq!(answers, [(1, Some(why)), (2, None)]);
        }
    }

    #[test]
    fn a_process_cannot_fill_the_memory_with_announcements() {
        let mut r = Register::default();
        for comm in 0..ROOMS_MAX as u64 + 100 {
            r.enter(of(comm, 0, 2, 10));
        }
        assert_eq!((r.rooms.len(), r.announcements), (ROOMS_MAX, ROOMS_MAX));
        for process in 0..RANKS_MAX as u64 + 100 {
            r.enter(of(5, 1, 4096, process));
        }
        assert!(r.rooms[&5].present.len() <= RANKS_MAX + 1);
        for comm in 0..ROOMS_MAX as u64 {
            r.leave(comm, 10);
        }
        assert_eq!(r.rooms.len(), 1);
        assert_eq!(r.announcements, r.rooms[&5].present.len());
    }
}
