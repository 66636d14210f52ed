//! A two-way byte channel in words that two processes share: one bounded ring per direction, each with one writer and one reader.
//!
//! ```text
//! words    0..64     counts and flags, one cache line each:
//!                    0 written A→B   8 read A→B   16 written B→A   24 read B→A   32 A sleeps   40 B sleeps
//! words   64..       ring A→B, then ring B→A
//! a chunk  1 word    the number of bytes, then the bytes packed into words
//! ```
//!
//! The peer is untrusted. Each of its words is loaded once and checked. The counts of what this side has written and read are kept in its own memory
//! and never read back from the shared words. The worst effect of a wrong word is [`Corrupt`] or wrong bytes, as on any connection.
//!
//! This module does not wait; a socket does. A side announces with [`Pipe::prepare_to_sleep`] that it is about to wait. The other side asks
//! [`Pipe::must_wake_reader`] after each write and [`Pipe::must_wake_writer`] after each read whether to wake it. No wake-up is lost in any
//! interleaving: `tests/loom.rs`.
//!
//! All words are atomics, so the code is sound on heap memory and on a mapped file, and runs unchanged on loom's atomics and under Miri.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Words in front of the rings.
pub const HEAD_WORDS: usize = 64;
const LINE_WORDS: usize = 8;
const WORD_BYTES: usize = 8;

/// Values of a sleep flag: the side waits for bytes; the side waits for bytes, or for room for its unsent bytes.
const ASLEEP: u64 = 1;
const ASLEEP_WITH_UNSENT: u64 = 2;

/// One shared word: `std`'s atomic or a model checker's.
pub trait Cell {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
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

/// Words shared by two sides: heap memory or a mapped file.
pub trait Words {
    type Cell: Cell;
    /// All words, in order.
    fn words(&self) -> &[Self::Cell];
}

impl Words for std::sync::Arc<[AtomicU64]> {
    type Cell = AtomicU64;

    fn words(&self) -> &[AtomicU64] {
        self
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The side that made the memory.
    A,
    /// The side that received it.
    B,
}

/// The shared words contain impossible values: the pipe cannot be used further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt(pub &'static str);

impl std::fmt::Display for Corrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "corrupt shared memory: {}", self.0)
    }
}

impl std::error::Error for Corrupt {}

const TOO_FEW_WORDS: Corrupt = Corrupt("the memory is too short");

/// Indices of one direction's counts and ring.
#[derive(Debug, Clone, Copy)]
struct Direction {
    written: usize,
    read: usize,
    ring: usize,
}

/// A range of a ring: the part up to the ring's end, and the rest from its beginning.
type RingSpan<'a, C> = (&'a [C], &'a [C]);

/// One side of the channel. See the module documentation.
#[derive(Debug)]
pub struct Pipe<W> {
    words: W,
    capacity: u64,
    output: Direction,
    input: Direction,
    /// Indices of this side's and the other side's sleep flag.
    sleep_flag: usize,
    other_sleep_flag: usize,
    /// Words that this side has written and read since the start; both counts wrap around.
    written: u64,
    read: u64,
}

impl<W: Words> Pipe<W> {
    /// Words needed for two rings of `capacity` words each (a power of two) and their head.
    pub const fn words_needed(capacity: usize) -> usize {
        HEAD_WORDS + 2 * capacity
    }

    /// One side of a channel over zeroed words. `capacity`, in words, is a power of two and the same on both sides. `None` if `words` is too short.
    pub fn new(words: W, side: Side, capacity: usize) -> Option<Self> {
        if !capacity.is_power_of_two() || capacity < 2 || words.words().len() < Self::words_needed(capacity) {
            return None;
        }
        let ab = Direction { written: 0, read: LINE_WORDS, ring: HEAD_WORDS };
        let ba = Direction { written: 2 * LINE_WORDS, read: 3 * LINE_WORDS, ring: HEAD_WORDS + capacity };
        let (output, input, sleep_flag, other_sleep_flag) = match side {
            Side::A => (ab, ba, 4 * LINE_WORDS, 5 * LINE_WORDS),
            Side::B => (ba, ab, 5 * LINE_WORDS, 4 * LINE_WORDS),
        };
        Some(Pipe {
            words,
            capacity: capacity as u64,
            output,
            input,
            sleep_flag,
            other_sleep_flag,
            written: 0,
            read: 0,
        })
    }

    #[inline]
    fn cell(&self, at: usize) -> Result<&W::Cell, Corrupt> {
        self.words.words().get(at).ok_or(TOO_FEW_WORDS)
    }

    /// `n` words of a ring, at most its capacity, starting at count `at`.
    fn in_ring(&self, way: Direction, at: u64, n: u64) -> Result<RingSpan<'_, W::Cell>, Corrupt> {
        let (capacity, n) = (self.capacity as usize, n as usize);
        let ring = self.words.words().get(way.ring..way.ring + capacity).ok_or(TOO_FEW_WORDS)?;
        let (begin, end) = ring.split_at_checked((at & (self.capacity - 1)) as usize).ok_or(TOO_FEW_WORDS)?;
        let first = end.get(..n).unwrap_or(end);
        Ok((first, begin.get(..n - first.len()).ok_or(TOO_FEW_WORDS)?))
    }

    /// Words that can be written now.
    fn writable(&self) -> Result<u64, Corrupt> {
        // Acquire: the reader has finished with the words before they are overwritten.
        let read = self.cell(self.output.read)?.load(Ordering::Acquire);
        let used = self.written.wrapping_sub(read);
        self.capacity.checked_sub(used).ok_or(Corrupt("the peer claims to have read more than was written"))
    }

    /// Words that can be read now.
    fn readable(&self) -> Result<u64, Corrupt> {
        // Acquire: the words that the count covers are visible.
        let available = self.cell(self.input.written)?.load(Ordering::Acquire).wrapping_sub(self.read);
        if available > self.capacity {
            Err(Corrupt("the peer claims to have written more than fits"))
        } else {
            Ok(available)
        }
    }

    /// Writes as many bytes as fit and returns their number. The caller then asks [`must_wake_reader`](Pipe::must_wake_reader).
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, Corrupt> {
        let free = self.writable()? as usize;
        let fits = free.saturating_sub(1).saturating_mul(WORD_BYTES);
        let chunk = bytes.get(..fits).unwrap_or(bytes);
        if chunk.is_empty() {
            return Ok(0);
        }
        let words = chunk.len().div_ceil(WORD_BYTES) as u64;
        let (head, _) = self.in_ring(self.output, self.written, 1)?;
        head.iter().for_each(|cell| cell.store(chunk.len() as u64, Ordering::Relaxed));
        let (first, rest) = self.in_ring(self.output, self.written.wrapping_add(1), words)?;
        let (to_first, to_rest) = chunk.split_at(chunk.len().min(first.len() * WORD_BYTES));
        store(first, to_first);
        store(rest, to_rest);
        self.written = self.written.wrapping_add(1 + words);
        self.cell(self.output.written)?.store(self.written, Ordering::Release);
        Ok(chunk.len())
    }

    /// Appends all available bytes to `into`, at most one ring, and returns their number. The caller then asks
    /// [`must_wake_writer`](Pipe::must_wake_writer).
    pub fn read(&mut self, into: &mut Vec<u8>) -> Result<usize, Corrupt> {
        let mut left = self.readable()?;
        let before = into.len();
        while left > 0 {
            let (head, _) = self.in_ring(self.input, self.read, 1)?;
            let bytes = head.first().ok_or(TOO_FEW_WORDS)?.load(Ordering::Relaxed);
            let words = bytes.div_ceil(WORD_BYTES as u64);
            if bytes == 0 || words >= left {
                return Err(Corrupt("a chunk is longer than the bytes written"));
            }
            let begin = into.len();
            into.resize(begin + words as usize * WORD_BYTES, 0);
            let (first, rest) = self.in_ring(self.input, self.read.wrapping_add(1), words)?;
            let to = into.get_mut(begin..).unwrap_or_default();
            let (from_first, from_rest) = to.split_at_mut(first.len() * WORD_BYTES);
            load(first, from_first);
            load(rest, from_rest);
            into.truncate(begin + bytes as usize);
            self.read = self.read.wrapping_add(1 + words);
            left -= 1 + words;
        }
        self.cell(self.input.read)?.store(self.read, Ordering::Release);
        Ok(into.len() - before)
    }

    /// Whether the peer sleeps and must be woken after a write. True once per sleep.
    pub fn must_wake_reader(&self) -> bool {
        self.must_wake(|asleep| asleep != 0)
    }

    /// Whether the peer sleeps over unsent bytes and must be woken after a read. True once per sleep.
    pub fn must_wake_writer(&self) -> bool {
        self.must_wake(|asleep| asleep == ASLEEP_WITH_UNSENT)
    }

    fn must_wake(&self, is_concerned: impl Fn(u64) -> bool) -> bool {
        // Either the peer sees the change before it sleeps, or this side sees that the peer sleeps.
        W::Cell::fence();
        let Ok(sleep_flag) = self.cell(self.other_sleep_flag) else { return false };
        is_concerned(sleep_flag.load(Ordering::Relaxed)) && sleep_flag.swap(0, Ordering::Relaxed) != 0
    }

    /// Announces that this side is about to sleep. `false` if there is work first: bytes to read or, with `unsent`, room to write.
    pub fn prepare_to_sleep(&self, unsent: bool) -> bool {
        let Ok(sleep_flag) = self.cell(self.sleep_flag) else { return true };
        sleep_flag.store(if unsent { ASLEEP_WITH_UNSENT } else { ASLEEP }, Ordering::Relaxed);
        W::Cell::fence();
        let nothing = self.readable() == Ok(0) && !(unsent && self.writable() != Ok(0) && self.writable() != Ok(1));
        if !nothing {
            self.cancel_sleep();
        }
        nothing
    }

    /// Withdraws the announcement of [`prepare_to_sleep`](Pipe::prepare_to_sleep).
    pub fn cancel_sleep(&self) {
        if let Ok(sleep_flag) = self.cell(self.sleep_flag) {
            sleep_flag.store(0, Ordering::Relaxed);
        }
    }
}

/// Packs bytes into words, the last one padded with zeros.
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

/// Unpacks words into bytes, eight each.
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
        (0..Pipe::<Heap>::words_needed(capacity)).map(|_| AtomicU64::new(0)).collect()
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
                let _ = (pipe.read(&mut got), pipe.write(&[7; 100]), pipe.prepare_to_sleep(true), pipe.must_wake_reader());
                prop_assert!(got.len() <= 56);
                shared[at].store(v, Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn a_full_ring_accepts_no_bytes_and_an_empty_ring_yields_none() {
        let (mut a, mut b) = pair(4);
        assert_eq!(a.write(&[1; 100]), Ok(24));
        assert_eq!(a.write(&[1; 100]), Ok(0));
        let mut got = Vec::new();
        assert_eq!((b.read(&mut got), b.read(&mut got)), (Ok(24), Ok(0)));
    }

    #[test]
    fn impossible_counts_are_reported() {
        let (mut a, mut b) = pair(4);
        a.write(b"abc").unwrap();
        b.words[HEAD_WORDS].store(1 << 40, Ordering::Relaxed);
        assert_eq!(b.read(&mut Vec::new()), Err(Corrupt("a chunk is longer than the bytes written")));
        b.words[0].store(1000, Ordering::Relaxed);
        assert_eq!(b.read(&mut Vec::new()), Err(Corrupt("the peer claims to have written more than fits")));
        b.words[LINE_WORDS].store(77, Ordering::Relaxed);
        assert_eq!(a.write(b"abc"), Err(Corrupt("the peer claims to have read more than was written")));
    }

    #[test]
    fn a_sleeping_side_is_woken_once_and_never_sleeps_while_there_are_bytes_or_room() {
        let (mut a, mut b) = pair(4);
        assert!(b.prepare_to_sleep(false));
        a.write(b"x").unwrap();
        assert!(a.must_wake_reader() && !a.must_wake_reader());
        assert!(!b.prepare_to_sleep(false), "bytes to read");
        a.write(&[0; 100]).unwrap();
        assert!(a.prepare_to_sleep(true), "full: no work");
        b.read(&mut Vec::new()).unwrap();
        assert!(b.must_wake_writer(), "room to write");
        assert!(!a.prepare_to_sleep(true));
        assert!(a.prepare_to_sleep(false) && !b.must_wake_writer(), "no unsent bytes");
    }

    #[test]
    fn bytes_cross_threads_complete_and_in_order() {
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
