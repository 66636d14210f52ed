//! The running digest of a rank's calls, kept at checkpoints for the leader to compare with those of the other ranks.

use agreement::digest::{CHECKPOINT_CALLS, CHECKPOINTS_KEPT, checkpoint_before};
use agreement::{CallDigest, Slot};
use std::sync::atomic::{AtomicU64, Ordering};

/// Only the thread that makes the communicator's calls writes; the worker reads checkpoints.
#[derive(Debug)]
pub(super) struct Digest {
    hash: AtomicU64,
    /// `hash` before the group of the last questions.
    hash_before: AtomicU64,
    /// Calls that are launched, as far as NCCL tells.
    confirmed: AtomicU64,
    /// NCCL's number of the last collective, plus 1, where it is told at once; else 0.
    sequence: AtomicU64,
    checkpoints: Box<[Checkpoint]>,
    /// Checkpoints made, and those whose group's collectives NCCL has reported, or never will.
    made: AtomicU64,
    told: AtomicU64,
}

/// A checkpoint: the hash, the group of its last call, and NCCL's own number of that group's first collective; 0 if it is not told.
#[derive(Debug, Default)]
struct Checkpoint {
    hash: AtomicU64,
    group: AtomicU64,
    sequence: AtomicU64,
}

impl Default for Digest {
    fn default() -> Self {
        let start = CallDigest::START.hash;
        Digest {
            hash: AtomicU64::new(start),
            hash_before: AtomicU64::new(start),
            confirmed: AtomicU64::new(0),
            sequence: AtomicU64::new(0),
            checkpoints: (0..CHECKPOINTS_KEPT).map(|_| Checkpoint::default()).collect(),
            made: AtomicU64::new(0),
            told: AtomicU64::new(0),
        }
    }
}

impl Digest {
    fn checkpoint(&self, number: u64) -> Option<&Checkpoint> {
        self.checkpoints.get(number as usize % CHECKPOINTS_KEPT)
    }

    /// One more question, with this number. `group`: its group, if it is a call only once that is launched; else 0.
    #[inline]
    pub(super) fn add(&self, number: u64, slot: Slot, group: u64) {
        let before = CallDigest { calls: number, hash: self.hash.load(Ordering::Relaxed), sequence: 0 };
        let after = before.next(slot, self.sequence.load(Ordering::Relaxed));
        self.hash.store(after.hash, Ordering::Relaxed);
        if after.is_checkpoint() {
            self.make_checkpoint(after, group);
        }
        if group == 0 {
            self.confirm(after.calls);
        }
    }

    #[cold]
    fn make_checkpoint(&self, after: CallDigest, group: u64) {
        let index = after.calls / CHECKPOINT_CALLS;
        if let Some(at) = self.checkpoint(index) {
            at.sequence.store(0, Ordering::Relaxed);
            at.group.store(group, Ordering::Relaxed);
            at.hash.store(after.hash, Ordering::Release);
            self.made.store(index, Ordering::Release);
        }
    }

    /// NCCL has launched a collective of this group and gives it this number. Groups are reported in ascending order. The first collective of a
    /// group counts: it is the same one on all ranks.
    #[inline]
    pub(super) fn on_collective_of(&self, group: u64, sequence: u64) {
        while self.told.load(Ordering::Relaxed) < self.made.load(Ordering::Acquire) {
            let told = self
                .told
                .load(Ordering::Relaxed)
                .max(self.made.load(Ordering::Relaxed).saturating_sub(CHECKPOINTS_KEPT as u64 - 1));
            let Some(at) = self.checkpoint(told + 1) else { return };
            let of = at.group.load(Ordering::Relaxed);
            if of > group {
                return;
            }
            if of == group {
                at.sequence.store(sequence, Ordering::Release);
            }
            self.told.store(told + 1, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn begin_group(&self) {
        self.hash_before.store(self.hash.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The last questions were no calls: `calls` are left.
    pub(super) fn take_group_back(&self, calls: u64) {
        let made = calls / CHECKPOINT_CALLS;
        self.made.store(made, Ordering::Release);
        self.told.fetch_min(made, Ordering::Relaxed);
        self.hash.store(self.hash_before.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// So many calls are launched.
    #[inline]
    pub(super) fn confirm(&self, calls: u64) {
        self.confirmed.store(calls, Ordering::Release);
    }

    pub(super) fn set_sequence(&self, sequence: u64) {
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
    }

    /// The digest after so many calls, if that is a checkpoint which is kept.
    pub(super) fn at(&self, calls: u64) -> Option<CallDigest> {
        let made = || self.confirmed.load(Ordering::Acquire);
        if calls == 0 {
            return Some(CallDigest::START);
        }
        if checkpoint_before(calls) != calls || calls > made() {
            return None;
        }
        let at = self.checkpoint(calls / CHECKPOINT_CALLS)?;
        let (hash, sequence) = (at.hash.load(Ordering::Acquire), at.sequence.load(Ordering::Acquire));
        // Not overwritten meanwhile: the call that overwrites it has not begun.
        let kept = CHECKPOINT_CALLS * (CHECKPOINTS_KEPT as u64 - 1);
        (made() < calls + kept).then_some(CallDigest { calls, hash, sequence })
    }
}
