//! A bounded ring of fixed-size records from one writer thread to one reader thread, for code that may not allocate, lock or wait. A record that
//! finds the ring full is dropped and counted.
//!
//! All memory is atomics: no `unsafe`, and Miri checks every access (`scripts/miri.sh`). Writer and reader trust each other; [`pipe`](crate::pipe) is
//! for untrusted peers.

use std::sync::atomic::{AtomicU64, Ordering};

pub const RECORD_WORDS: usize = 6;

pub type Record = [u64; RECORD_WORDS];

/// The ring.
///
/// At any time one thread may [`push`](Ring::push) and one may [`pop`](Ring::pop). A role may move to another thread if the move is synchronized
/// otherwise (a lock, a join). Two threads that push at once lose or mix records; memory stays sound.
#[derive(Debug)]
pub struct Ring {
    written: AtomicU64,
    /// Records after `written` that the reader does not see yet. Only the writer uses it.
    staged: AtomicU64,
    dropped: AtomicU64,
    read: AtomicU64,
    words: Box<[AtomicU64]>,
    mask: u64,
}

impl Ring {
    /// A ring of `capacity` records, rounded up to a power of two between 2 and 2^20.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(2, 1 << 20).next_power_of_two();
        let words = (0..capacity * RECORD_WORDS).map(|_| AtomicU64::new(0)).collect();
        Ring {
            written: AtomicU64::new(0),
            staged: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            read: AtomicU64::new(0),
            words,
            mask: capacity as u64 - 1,
        }
    }

    /// Appends a record, and publishes all staged ones. If the ring is full, counts the record as dropped and returns `false`.
    #[inline]
    pub fn push(&self, record: &Record) -> bool {
        let fits = self.stage(record);
        self.publish();
        fits
    }

    /// Appends a record that the reader sees after [`publish`](Ring::publish). If the ring is full, counts it as dropped and returns `false`.
    #[inline]
    pub fn stage(&self, record: &Record) -> bool {
        let staged = self.staged.load(Ordering::Relaxed);
        let at = self.written.load(Ordering::Relaxed).wrapping_add(staged);
        // Acquire: the reader has finished with the slot before it is overwritten.
        if at.wrapping_sub(self.read.load(Ordering::Acquire)) > self.mask {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        let slot = ((at & self.mask) as usize) * RECORD_WORDS;
        for (cell, word) in self.words.iter().skip(slot).zip(record) {
            cell.store(*word, Ordering::Relaxed);
        }
        self.staged.store(staged + 1, Ordering::Relaxed);
        true
    }

    /// Shows the staged records to the reader.
    #[inline]
    pub fn publish(&self) {
        let staged = self.staged.load(Ordering::Relaxed);
        if staged > 0 {
            self.staged.store(0, Ordering::Relaxed);
            let written = self.written.load(Ordering::Relaxed);
            self.written.store(written.wrapping_add(staged), Ordering::Release);
        }
    }

    /// Drops the staged records.
    pub fn discard(&self) {
        self.staged.store(0, Ordering::Relaxed);
    }

    /// Removes the oldest record.
    pub fn pop(&self) -> Option<Record> {
        let at = self.read.load(Ordering::Relaxed);
        // Acquire: the words that the count covers are visible.
        if at == self.written.load(Ordering::Acquire) {
            return None;
        }
        let slot = ((at & self.mask) as usize) * RECORD_WORDS;
        let mut record = [0; RECORD_WORDS];
        for (word, cell) in record.iter_mut().zip(self.words.iter().skip(slot)) {
            *word = cell.load(Ordering::Relaxed);
        }
        self.read.store(at.wrapping_add(1), Ordering::Release);
        Some(record)
    }

    /// Records dropped so far because the ring was full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        // Miri is about a thousand times slower.
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 5 } else { 256 }))]

        #[test]
        fn a_ring_is_a_bounded_queue(steps in proptest::collection::vec(any::<bool>(), 0..200)) {
            let (ring, mut model, mut lost) = (Ring::new(8), VecDeque::new(), 0);
            for (i, push) in steps.into_iter().enumerate() {
                if push {
                    let fits = model.len() < 8;
                    prop_assert_eq!(ring.push(&[i as u64; RECORD_WORDS]), fits);
                    if fits { model.push_back(i as u64) } else { lost += 1 }
                } else {
                    prop_assert_eq!(ring.pop(), model.pop_front().map(|v| [v; RECORD_WORDS]));
                }
            }
            prop_assert_eq!(ring.dropped(), lost);
        }
    }

    #[test]
    fn staged_records_are_published_together_or_never_seen() {
        let ring = Ring::new(4);
        assert!(ring.stage(&[1; RECORD_WORDS]) && ring.stage(&[2; RECORD_WORDS]));
        assert_eq!(ring.pop(), None);
        ring.discard();
        assert!(ring.stage(&[3; RECORD_WORDS]) && ring.stage(&[4; RECORD_WORDS]));
        ring.publish();
        assert_eq!((ring.pop(), ring.pop(), ring.pop()), (Some([3; RECORD_WORDS]), Some([4; RECORD_WORDS]), None));
        let fits = (0..6).filter(|i| ring.stage(&[*i; RECORD_WORDS])).count();
        assert_eq!((fits, ring.dropped(), ring.pop()), (4, 2, None), "staged records take room");
    }

    #[test]
    fn records_cross_threads_complete_and_in_order() {
        let many = if cfg!(miri) { 200 } else { 200_000 };
        let ring = Ring::new(16);
        std::thread::scope(|s| {
            s.spawn(|| {
                for i in 0..many {
                    while !ring.push(&[i; RECORD_WORDS]) {
                        std::thread::yield_now();
                    }
                }
            });
            for i in 0..many {
                let got = loop {
                    if let Some(r) = ring.pop() {
                        break r;
                    }
                    std::thread::yield_now();
                };
                assert_eq!(got, [i; RECORD_WORDS]);
            }
        });
    }
}
