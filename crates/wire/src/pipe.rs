//! Bytes both ways through words that two processes share: one bounded ring per direction, one writer and one reader each.
//!
//! ```text
//! words    0..64     counts and flags, one cache line each:
//!                    0 written A→B   8 read A→B   16 written B→A   24 read B→A   32 A sleeps   40 B sleeps
//! words   64..       ring A→B, then ring B→A
//! a chunk  1 word    how many bytes, then the bytes in as many words as they take
//! ```
//!
//! The other side is hostile. What it writes is loaded once and checked; what this side has written and read so far it knows from its own memory
//! and never from the shared one. The worst that a wrong word does is [`Corrupt`], or wrong bytes, as any connection may carry them.
//!
//! Waiting is elsewhere (a socket): a side says with [`Pipe::may_sleep`] that it is about to wait, and who changes something for it learns from
//! [`Pipe::must_ring_for_bytes`] or [`Pipe::must_ring_for_room`] that it has to be woken. No wake-up gets lost: `tests/loom.rs`, every interleaving.
//!
//! All words are atomics: sound wherever they lie, and the same code runs on loom's atomics and under Miri.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Words in front of the rings.
pub const HEAD_WORDS: usize = 64;
/// Words of a cache line.
const LINE_WORDS: usize = 8;
/// Bytes of a word.
const WORD_BYTES: usize = 8;

/// What a side says of itself: it waits for bytes; or, with bytes that found no room, for room, too.
const ASLEEP: u64 = 1;
const ASLEEP_OVER_UNSENT: u64 = 2;

/// One word that two sides share. `std`'s atomics, or a model checker's.
pub trait Cell {
    /// As of an atomic.
    fn load(&self, order: Ordering) -> u64;
    /// As of an atomic.
    fn store(&self, value: u64, order: Ordering);
    /// As of an atomic.
    fn swap(&self, value: u64, order: Ordering) -> u64;
    /// A sequentially consistent fence.
    fn fence();
}

impl Cell for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, order)
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// Words that two sides share: heap memory, or a mapped file.
pub trait Words {
    /// What they are.
    type Cell: Cell;
    /// All of them.
    fn words(&self) -> &[Self::Cell];
}

impl Words for std::sync::Arc<[AtomicU64]> {
    type Cell = AtomicU64;

    fn words(&self) -> &[AtomicU64] {
        self
    }
}

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// Who made the memory.
    A,
    /// Who got it.
    B,
}

/// The shared words say what cannot be: of no use any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt(pub &'static str);

impl std::fmt::Display for Corrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "corrupt shared memory: {}", self.0)
    }
}

impl std::error::Error for Corrupt {}

const FEWER: Corrupt = Corrupt("fewer words than there were");

/// Where one direction's counts and ring lie.
#[derive(Debug, Clone, Copy)]
struct Way {
    written: usize,
    read: usize,
    ring: usize,
}

/// A stretch of a ring: up to its end, and on from its beginning.
type Parts<'a, C> = (&'a [C], &'a [C]);

/// One side of the shared words. See the module.
#[derive(Debug)]
pub struct Pipe<W> {
    words: W,
    capacity: u64,
    out: Way,
    inn: Way,
    /// Where this side, and the other, says that it sleeps.
    sleeps: usize,
    other_sleeps: usize,
    /// Words written and read by this side, ever; they wrap.
    written: u64,
    read: u64,
}

impl<W: Words> Pipe<W> {
    /// Words that rings of `capacity` words (a power of two) take with what is in front of them.
    pub const fn words_of(capacity: usize) -> usize {
        HEAD_WORDS + 2 * capacity
    }

    /// A side of zeroed words. `capacity`, in words and a power of two, is the same on both sides. `None` where there are fewer words than that takes.
    pub fn new(words: W, side: Side, capacity: usize) -> Option<Self> {
        if !capacity.is_power_of_two() || capacity < 2 || words.words().len() < Self::words_of(capacity) {
            return None;
        }
        let ab = Way { written: 0, read: LINE_WORDS, ring: HEAD_WORDS };
        let ba = Way { written: 2 * LINE_WORDS, read: 3 * LINE_WORDS, ring: HEAD_WORDS + capacity };
        let (out, inn, sleeps, other_sleeps) = match side {
            Side::A => (ab, ba, 4 * LINE_WORDS, 5 * LINE_WORDS),
            Side::B => (ba, ab, 5 * LINE_WORDS, 4 * LINE_WORDS),
        };
        Some(Pipe { words, capacity: capacity as u64, out, inn, sleeps, other_sleeps, written: 0, read: 0 })
    }

    #[inline]
    fn cell(&self, at: usize) -> Result<&W::Cell, Corrupt> {
        self.words.words().get(at).ok_or(FEWER)
    }

    /// `n` words of a ring, at most all, from a count on.
    fn in_ring(&self, way: Way, at: u64, n: u64) -> Result<Parts<'_, W::Cell>, Corrupt> {
        let (capacity, n) = (self.capacity as usize, n as usize);
        let ring = self.words.words().get(way.ring..way.ring + capacity).ok_or(FEWER)?;
        let (begin, end) = ring.split_at_checked((at & (self.capacity - 1)) as usize).ok_or(FEWER)?;
        let first = end.get(..n).unwrap_or(end);
        Ok((first, begin.get(..n - first.len()).ok_or(FEWER)?))
    }

    /// Words that can be written now.
    fn room(&self) -> Result<u64, Corrupt> {
        // Acquire: the reader is done with the words before we write them again.
        let read = self.cell(self.out.read)?.load(Ordering::Acquire);
        let used = self.written.wrapping_sub(read);
        self.capacity.checked_sub(used).ok_or(Corrupt("more was read than was written"))
    }

    /// Words that can be read now.
    fn there(&self) -> Result<u64, Corrupt> {
        // Acquire: the words that the count stands for are there.
        let there = self.cell(self.inn.written)?.load(Ordering::Acquire).wrapping_sub(self.read);
        if there > self.capacity { Err(Corrupt("more was written than fits")) } else { Ok(there) }
    }

    /// Appends as many of the bytes as there is room for, and says how many. Then ask [`must_ring_for_bytes`](Pipe::must_ring_for_bytes).
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, Corrupt> {
        let room = self.room()? as usize;
        let fits = room.saturating_sub(1).saturating_mul(WORD_BYTES);
        let chunk = bytes.get(..fits).unwrap_or(bytes);
        if chunk.is_empty() {
            return Ok(0);
        }
        let words = chunk.len().div_ceil(WORD_BYTES) as u64;
        let (head, _) = self.in_ring(self.out, self.written, 1)?;
        head.iter().for_each(|cell| cell.store(chunk.len() as u64, Ordering::Relaxed));
        let (first, rest) = self.in_ring(self.out, self.written.wrapping_add(1), words)?;
        let (to_first, to_rest) = chunk.split_at(chunk.len().min(first.len() * WORD_BYTES));
        store(first, to_first);
        store(rest, to_rest);
        self.written = self.written.wrapping_add(1 + words);
        self.cell(self.out.written)?.store(self.written, Ordering::Release);
        Ok(chunk.len())
    }

    /// Appends all bytes that are there to `into`, at most what the ring holds, and says how many. Then ask
    /// [`must_ring_for_room`](Pipe::must_ring_for_room).
    pub fn read(&mut self, into: &mut Vec<u8>) -> Result<usize, Corrupt> {
        let mut left = self.there()?;
        let before = into.len();
        while left > 0 {
            let (head, _) = self.in_ring(self.inn, self.read, 1)?;
            let bytes = head.first().ok_or(FEWER)?.load(Ordering::Relaxed);
            let words = bytes.div_ceil(WORD_BYTES as u64);
            if bytes == 0 || words >= left {
                return Err(Corrupt("a chunk is longer than what was written"));
            }
            let begin = into.len();
            into.resize(begin + words as usize * WORD_BYTES, 0);
            let (first, rest) = self.in_ring(self.inn, self.read.wrapping_add(1), words)?;
            let to = into.get_mut(begin..).unwrap_or_default();
            let (from_first, from_rest) = to.split_at_mut(first.len() * WORD_BYTES);
            load(first, from_first);
            load(rest, from_rest);
            into.truncate(begin + bytes as usize);
            self.read = self.read.wrapping_add(1 + words);
            left -= 1 + words;
        }
        self.cell(self.inn.read)?.store(self.read, Ordering::Release);
        Ok(into.len() - before)
    }

    /// Whether the other side sleeps and must be woken, after something was written. True once for each sleep.
    pub fn must_ring_for_bytes(&self) -> bool {
        self.must_ring(|asleep| asleep != 0)
    }

    /// The same after something was read: who has nothing unsent does not care for room.
    pub fn must_ring_for_room(&self) -> bool {
        self.must_ring(|asleep| asleep == ASLEEP_OVER_UNSENT)
    }

    fn must_ring(&self, cares: impl Fn(u64) -> bool) -> bool {
        // Either the other side sees what we did before it sleeps, or we see that it sleeps.
        W::Cell::fence();
        let Ok(sleeps) = self.cell(self.other_sleeps) else { return false };
        cares(sleeps.load(Ordering::Relaxed)) && sleeps.swap(0, Ordering::Relaxed) != 0
    }

    /// Says that this side is about to sleep. `false` where there is something to do first: bytes to read or, where some are unsent, room to write.
    pub fn may_sleep(&self, unsent: bool) -> bool {
        let Ok(sleeps) = self.cell(self.sleeps) else { return true };
        sleeps.store(if unsent { ASLEEP_OVER_UNSENT } else { ASLEEP }, Ordering::Relaxed);
        W::Cell::fence();
        let nothing = self.there() == Ok(0) && !(unsent && self.room() != Ok(0) && self.room() != Ok(1));
        if !nothing {
            self.awake();
        }
        nothing
    }

    /// Says that this side does not sleep.
    pub fn awake(&self) {
        if let Ok(sleeps) = self.cell(self.sleeps) {
            sleeps.store(0, Ordering::Relaxed);
        }
    }
}

/// Bytes into as many words as they take.
fn store(cells: &[impl Cell], bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<WORD_BYTES>();
    for (cell, word) in cells.iter().zip(whole) {
        cell.store(u64::from_le_bytes(*word), Ordering::Relaxed);
    }
    if let (Some(cell), false) = (cells.get(whole.len()), rest.is_empty()) {
        let mut word = [0; WORD_BYTES];
        word.iter_mut().zip(rest).for_each(|(w, b)| *w = *b);
        cell.store(u64::from_le_bytes(word), Ordering::Relaxed);
    }
}

/// Words into bytes, eight each.
fn load(cells: &[impl Cell], bytes: &mut [u8]) {
    for (cell, word) in cells.iter().zip(bytes.as_chunks_mut::<WORD_BYTES>().0) {
        *word = cell.load(Ordering::Relaxed).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::sync::Arc;

    type Heap = Arc<[AtomicU64]>;

    fn words(capacity: usize) -> Heap {
        (0..Pipe::<Heap>::words_of(capacity)).map(|_| AtomicU64::new(0)).collect()
    }

    fn pair(capacity: usize) -> (Pipe<Heap>, Pipe<Heap>) {
        let shared = words(capacity);
        let side = |s| Pipe::new(shared.clone(), s, capacity).unwrap();
        (side(Side::A), side(Side::B))
    }

    fn steps() -> ProptestConfig {
        ProptestConfig::with_cases(if cfg!(miri) { 5 } else { 256 })
    }

    proptest! {
        #![proptest_config(steps())]

        #[test]
        fn a_pipe_is_two_bounded_queues_of_bytes(steps in proptest::collection::vec((0u8..4, 0usize..40), 0..80)) {
            let (mut a, mut b) = pair(8);
            let (mut ab, mut ba, mut next) = (VecDeque::new(), VecDeque::new(), 0u8);
            for (what, n) in steps {
                let (pipe, queue) = match what { 0 | 3 => (&mut a, &mut ab), _ => (&mut b, &mut ba) };
                if what < 2 {
                    let bytes: Vec<u8> = (0..n).map(|i| next.wrapping_add(i as u8)).collect();
                    let wrote = pipe.write(&bytes).unwrap();
                    prop_assert!(wrote == n || wrote <= 56);
                    queue.extend(&bytes[..wrote]);
                    next = next.wrapping_add(wrote as u8);
                } else {
                    let (pipe, queue) = match what { 2 => (&mut b, &mut ab), _ => (&mut a, &mut ba) };
                    let mut got = Vec::new();
                    pipe.read(&mut got).unwrap();
                    prop_assert_eq!(got, queue.drain(..).collect::<Vec<u8>>());
                }
            }
        }

        #[test]
        fn no_shared_words_make_a_side_panic_or_read_more_than_the_ring_holds(
            values in proptest::collection::vec(prop_oneof![any::<u64>(), 0u64..80], HEAD_WORDS + 16),
            again in proptest::collection::vec((0usize..HEAD_WORDS + 16, any::<u64>()), 0..20),
        ) {
            let shared = words(8);
            for (cell, v) in shared.iter().zip(values) {
                cell.store(v, Ordering::Relaxed);
            }
            let mut pipe = Pipe::new(shared.clone(), Side::B, 8).unwrap();
            for (at, v) in again {
                let mut got = Vec::new();
                let _ = (pipe.read(&mut got), pipe.write(&[7; 100]), pipe.may_sleep(true), pipe.must_ring_for_bytes());
                prop_assert!(got.len() <= 56);
                shared[at].store(v, Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn a_full_ring_takes_nothing_and_an_empty_one_gives_nothing() {
        let (mut a, mut b) = pair(4);
        assert_eq!(a.write(&[1; 100]), Ok(24));
        assert_eq!(a.write(&[1; 100]), Ok(0));
        let mut got = Vec::new();
        assert_eq!((b.read(&mut got), b.read(&mut got)), (Ok(24), Ok(0)));
    }

    #[test]
    fn counts_that_cannot_be_are_named() {
        let (mut a, mut b) = pair(4);
        a.write(b"abc").unwrap();
        b.words[HEAD_WORDS].store(1 << 40, Ordering::Relaxed);
        assert_eq!(b.read(&mut Vec::new()), Err(Corrupt("a chunk is longer than what was written")));
        b.words[0].store(1000, Ordering::Relaxed);
        assert_eq!(b.read(&mut Vec::new()), Err(Corrupt("more was written than fits")));
        b.words[LINE_WORDS].store(77, Ordering::Relaxed);
        assert_eq!(a.write(b"abc"), Err(Corrupt("more was read than was written")));
    }

    #[test]
    fn a_sleeper_is_rung_once_and_does_not_sleep_over_bytes_or_room() {
        let (mut a, mut b) = pair(4);
        assert!(b.may_sleep(false));
        a.write(b"x").unwrap();
        assert!(a.must_ring_for_bytes() && !a.must_ring_for_bytes());
        assert!(!b.may_sleep(false), "there is something to read");
        a.write(&[0; 100]).unwrap();
        assert!(a.may_sleep(true), "full: nothing to do");
        b.read(&mut Vec::new()).unwrap();
        assert!(b.must_ring_for_room(), "there is room again");
        assert!(!a.may_sleep(true));
        assert!(a.may_sleep(false) && !b.must_ring_for_room(), "it has nothing to send");
    }

    #[test]
    fn bytes_cross_threads_whole_and_in_order() {
        let many = if cfg!(miri) { 300 } else { 300_000 };
        let (mut a, mut b) = pair(64);
        std::thread::scope(|s| {
            s.spawn(move || {
                let bytes: Vec<u8> = (0..many).map(|i| (i % 251) as u8).collect();
                let mut at = 0;
                while at < many {
                    let n = a.write(&bytes[at..(at + 1 + at % 100).min(many)]).unwrap();
                    at += n;
                    if n == 0 {
                        std::thread::yield_now();
                    }
                }
            });
            let mut got = Vec::new();
            while got.len() < many {
                if b.read(&mut got).unwrap() == 0 {
                    std::thread::yield_now();
                }
            }
            assert!(got.iter().enumerate().all(|(i, v)| *v == (i % 251) as u8));
        });
    }
}
