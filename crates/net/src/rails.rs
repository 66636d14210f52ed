//! The load of a host's rails (NICs): what the choice of a path reads. Shared by all processes of a host, one slot per process.
//!
//! The unacknowledged bytes must be the host's: room in one connection's socket says nothing about a rail that other processes fill. Rates are measured
//! while a rail is busy. An idle rail's rate drifts to the best one's: a rail that is never tried could not prove that it has recovered.
//!
//! A process writes only its own slot, stamps it at every change and every tick, and its bytes count only while the stamp is younger than
//! [`SILENT_US`]: the bytes of a process that died vanish. All words come from other processes of the same user: every value is taken as a number,
//! none as an index or a length.

use crate::limits::RAILS_MAX;
use crate::sender::Micros;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What the choice of a path needs to know and to change. Rails are numbers below [`RAILS_MAX`]; others are ignored.
pub trait Rails {
    /// Unacknowledged bytes of this host on the rail.
    fn backlog(&self, rail: usize) -> u64;
    /// Bytes per second; `None` if the rail has neither been measured nor claims a rate.
    fn rate(&self, rail: usize) -> Option<u64>;
    /// When bytes of any process were last acknowledged on the rail.
    fn last_moved(&self, rail: usize) -> Micros;
    /// A path has taken bytes for the rail.
    fn take(&self, rail: usize, bytes: u64);
    /// The bytes are acknowledged, or go elsewhere.
    fn give(&self, rail: usize, bytes: u64);
    /// The rail has delivered bytes.
    fn moved(&self, rail: usize, bytes: u64, now: Micros);
}

/// Processes of a host that share a board.
pub const PROCESSES_MAX: usize = 64;
/// A slot without a stamp for this time belongs to a dead or idle process; its bytes do not count. Microseconds.
pub const SILENT_US: u64 = 2_000_000;
/// A slot without a stamp for this time may be taken by another process. Microseconds.
const ABANDONED_US: u64 = 60_000_000;
/// Interval of measurements of rates, microseconds.
const MEASURE_US: u64 = 20_000;
/// Longer intervals measure nothing: no process was watching.
const MEASURE_US_MAX: u64 = 200_000;
/// A rail with fewer unacknowledged bytes is idle: its rate is not measured.
const BUSY_BYTES: u64 = 128 << 10;
/// Rate that the choice of a path supposes of a rail whose rate is not known, bytes per second.
pub const RATE_UNKNOWN: u64 = 1_000_000;
/// "lwrails", version 1.
const MAGIC: u64 = 0x0173_6c69_6172_776c;

const HEAD_WORDS: usize = 2;
/// Rate, bytes seen, last progress, busy at the last measurement.
const RAIL_WORDS: usize = 4;
/// Owner, stamp, then per rail unacknowledged and acknowledged bytes.
const SLOT_WORDS: usize = 2 + 2 * RAILS_MAX;
const SLOTS_AT: usize = HEAD_WORDS + RAIL_WORDS * RAILS_MAX;
/// Words of a board.
pub const BOARD_WORDS: usize = (SLOTS_AT + SLOT_WORDS * PROCESSES_MAX).next_multiple_of(512);

/// A board seen by one process. `W`: the words, shared or private.
#[derive(Debug)]
pub struct Board<W> {
    words: W,
    slot: usize,
    /// Rates of an idle host, bytes per second; 0 if unknown.
    nominal: [u64; RAILS_MAX],
}

/// A list of words.
pub trait Cells {
    fn cells(&self) -> &[AtomicU64];
}

impl Cells for Vec<AtomicU64> {
    fn cells(&self) -> &[AtomicU64] {
        self
    }
}

impl Cells for wire::memory::Memory {
    fn cells(&self) -> &[AtomicU64] {
        use wire::pipe::Words;
        self.words()
    }
}

/// Words of a board that this process shares with no other.
pub fn private_words() -> Vec<AtomicU64> {
    (0..BOARD_WORDS).map(|_| AtomicU64::new(0)).collect()
}

impl<W: Cells> Board<W> {
    /// Takes a slot. `owner`: a random number other than 0. `None` if the words are no board or all slots are taken.
    pub fn join(words: W, owner: u64, nominal: [u64; RAILS_MAX], now: Micros) -> Option<Self> {
        let cells = words.cells();
        let head = cells.first().filter(|_| cells.len() >= BOARD_WORDS)?;
        if let Err(found) = head.compare_exchange(0, MAGIC, Relaxed, Relaxed)
            && found != MAGIC
        {
            return None;
        }
        let slot = (0..PROCESSES_MAX).find(|s| {
            let at = SLOTS_AT + s * SLOT_WORDS;
            let (Some(own), Some(stamp)) = (cells.get(at), cells.get(at + 1)) else { return false };
            let before = own.load(Relaxed);
            let free = before == 0 || now.saturating_sub(stamp.load(Relaxed)) > ABANDONED_US;
            if !free || own.compare_exchange(before, owner, Relaxed, Relaxed).is_err() {
                return false;
            }
            stamp.store(now, Relaxed);
            true
        })?;
        let board = Board { words, slot, nominal };
        for rail in 0..RAILS_MAX {
            board.own(rail, 0).store(0, Relaxed); // of the former owner
        }
        Some(board)
    }

    /// Gives the slot back.
    pub fn leave(&self) {
        for rail in 0..RAILS_MAX {
            self.own(rail, 0).store(0, Relaxed);
        }
        self.cell(SLOTS_AT + self.slot * SLOT_WORDS).store(0, Relaxed);
    }

    fn cell(&self, i: usize) -> &AtomicU64 {
        static OUTSIDE: AtomicU64 = AtomicU64::new(0);
        self.words.cells().get(i).unwrap_or(&OUTSIDE)
    }

    fn rail(&self, rail: usize, word: usize) -> &AtomicU64 {
        self.cell(HEAD_WORDS + rail.min(RAILS_MAX - 1) * RAIL_WORDS + word)
    }

    fn of(&self, slot: usize, rail: usize, word: usize) -> &AtomicU64 {
        self.cell(SLOTS_AT + slot * SLOT_WORDS + 2 + rail.min(RAILS_MAX - 1) * 2 + word)
    }

    fn own(&self, rail: usize, word: usize) -> &AtomicU64 {
        self.of(self.slot, rail, word)
    }

    /// Sum over the processes that live.
    fn live_backlog(&self, rail: usize, now: Micros) -> u64 {
        let slots = 0..PROCESSES_MAX;
        let live = slots.filter(|s| {
            let at = SLOTS_AT + s * SLOT_WORDS;
            self.cell(at).load(Relaxed) != 0 && now.saturating_sub(self.cell(at + 1).load(Relaxed)) < SILENT_US
        });
        live.fold(0u64, |sum, s| sum.saturating_add(self.of(s, rail, 0).load(Relaxed)))
    }

    /// Stamps the slot, counts the other processes' bytes anew and measures rates if 20 ms have passed since any process did. Returns what
    /// [`View`] keeps. `now` must be common to all processes.
    pub fn tick(&self, now: Micros) -> [u64; RAILS_MAX] {
        self.cell(SLOTS_AT + self.slot * SLOT_WORDS + 1).store(now, Relaxed);
        let mut others = [0; RAILS_MAX];
        for (rail, other) in others.iter_mut().enumerate() {
            *other = self.live_backlog(rail, now).saturating_sub(self.own(rail, 0).load(Relaxed));
        }
        let measured = self.cell(1).load(Relaxed);
        let dt = now.saturating_sub(measured);
        if now < measured || dt >= MEASURE_US {
            let mine = self.cell(1).compare_exchange(measured, now, Relaxed, Relaxed).is_ok();
            if mine {
                self.measure(dt, &others);
            }
        }
        others
    }

    fn measure(&self, dt: u64, others: &[u64; RAILS_MAX]) {
        // Of the measured ones: the rate that a NIC claims may be a guess.
        let best = (0..RAILS_MAX).map(|r| self.measured(r)).max().unwrap_or(0);
        for (rail, others) in others.iter().enumerate() {
            let acked = (0..PROCESSES_MAX).fold(0u64, |sum, s| sum.wrapping_add(self.of(s, rail, 1).load(Relaxed)));
            let moved = acked.wrapping_sub(self.rail(rail, 1).swap(acked, Relaxed));
            let busy = others.saturating_add(self.own(rail, 0).load(Relaxed)) > BUSY_BYTES;
            let was_busy = self.rail(rail, 3).swap(u64::from(busy), Relaxed) == 1;
            let rate = self.rail(rail, 0);
            let before = rate.load(Relaxed);
            if busy && was_busy && (1..MEASURE_US_MAX).contains(&dt) {
                let new = moved.min(1 << 40) * 1_000_000 / dt;
                let mean = if before == 0 { new } else { (before.min(1 << 50) * 7 + new * 3) / 10 };
                rate.store(mean.max(1), Relaxed);
            } else if !busy && before != 0 && before < best {
                rate.store(before + (best - before) / 16, Relaxed);
            }
        }
    }

    /// Unacknowledged bytes of this process on the rail.
    pub fn own_backlog(&self, rail: usize) -> u64 {
        self.own(rail, 0).load(Relaxed)
    }

    /// The measured rate of a rail, bytes per second; 0 if it has not been measured.
    pub fn measured(&self, rail: usize) -> u64 {
        self.rail(rail, 0).load(Relaxed)
    }

    fn rate(&self, rail: usize) -> Option<u64> {
        let nominal = self.nominal.get(rail).copied().unwrap_or(0);
        [self.measured(rail), nominal].into_iter().find(|rate| *rate > 0)
    }
}

/// A board with the other processes' bytes of the last tick: reading a backlog costs two loads instead of 64.
#[derive(Debug)]
pub struct View<'a, W> {
    pub board: &'a Board<W>,
    /// From [`Board::tick`].
    pub others: &'a [u64; RAILS_MAX],
}

impl<W: Cells> Rails for View<'_, W> {
    fn backlog(&self, rail: usize) -> u64 {
        let others = self.others.get(rail).copied().unwrap_or(0);
        others.saturating_add(self.board.own(rail, 0).load(Relaxed))
    }

    fn rate(&self, rail: usize) -> Option<u64> {
        self.board.rate(rail)
    }

    fn last_moved(&self, rail: usize) -> Micros {
        self.board.rail(rail, 2).load(Relaxed)
    }

    fn take(&self, rail: usize, bytes: u64) {
        self.board.own(rail, 0).fetch_add(bytes, Relaxed);
    }

    fn give(&self, rail: usize, bytes: u64) {
        let _ = self.board.own(rail, 0).fetch_update(Relaxed, Relaxed, |b| Some(b.saturating_sub(bytes)));
    }

    fn moved(&self, rail: usize, bytes: u64, now: Micros) {
        self.board.own(rail, 1).fetch_add(bytes, Relaxed);
        self.board.rail(rail, 2).store(now, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    impl Cells for Arc<Vec<AtomicU64>> {
        fn cells(&self) -> &[AtomicU64] {
            self
        }
    }

    fn two() -> [Board<Arc<Vec<AtomicU64>>>; 2] {
        let words = Arc::new(private_words());
        [1, 2].map(|owner| Board::join(words.clone(), owner, [0; RAILS_MAX], 1_000_000).unwrap())
    }

    fn view<'a>(b: &'a Board<Arc<Vec<AtomicU64>>>, others: &'a [u64; RAILS_MAX]) -> View<'a, Arc<Vec<AtomicU64>>> {
        View { board: b, others }
    }

    #[test]
    fn processes_see_each_others_bytes_until_the_owner_falls_silent() {
        let [a, b] = two();
        let now = 1_000_000;
        view(&a, &[0; RAILS_MAX]).take(3, 500);
        let others = b.tick(now + 1);
        assert_eq!((others[3], view(&b, &others).backlog(3)), (500, 500));
        assert_eq!(b.tick(now + SILENT_US + 1)[3], 0, "a died");
        a.tick(now + SILENT_US + 2);
        assert_eq!(b.tick(now + SILENT_US + 3)[3], 500, "a was only asleep");
        a.leave();
        assert_eq!(b.tick(now + SILENT_US + 4)[3], 0);
    }

    #[test]
    fn rates_are_measured_while_busy_and_drift_to_the_best_when_idle() {
        let [a, b] = two();
        let mut now = 1_000_000;
        let none = [0; RAILS_MAX];
        for v in [view(&a, &none), view(&b, &none)] {
            v.take(0, 1 << 20);
            v.take(1, 1 << 20);
        }
        for _ in 0..60 {
            now += MEASURE_US;
            view(&a, &none).moved(0, 1_000_000, now);
            view(&b, &none).moved(0, 1_000_000, now);
            view(&b, &none).moved(1, 200_000, now);
            a.tick(now);
            b.tick(now);
        }
        let rate = |r| view(&a, &none).rate(r).unwrap();
        assert_eq!((rate(0) / 1_000_000, rate(1) / 1_000_000), (100, 10), "{} {}", rate(0), rate(1));
        for v in [view(&a, &none), view(&b, &none)] {
            v.give(1, 1 << 20);
        }
        for _ in 0..100 {
            now += MEASURE_US;
            a.tick(now);
            view(&a, &none).moved(0, 2_000_000, now);
        }
        assert!(rate(1) > rate(0) * 9 / 10, "{} {}", rate(0), rate(1));
    }

    #[test]
    fn a_board_holds_64_processes_and_takes_over_abandoned_slots() {
        let words = Arc::new(private_words());
        let join = |owner, now| Board::join(words.clone(), owner, [0; RAILS_MAX], now);
        let all: Vec<_> = (1..=64).map(|i| join(i, 5).unwrap()).collect();
        assert!(join(65, 6).is_none());
        all[7].leave();
        assert!(join(66, 7).is_some() && join(67, 8).is_none());
        assert!(join(68, 9 + ABANDONED_US).is_some());
        words[0].store(9, Relaxed);
        assert!(join(69, 10 + 2 * ABANDONED_US).is_none(), "words of another version");
    }
}
