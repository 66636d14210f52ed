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
    checkpoints: Box<[AtomicU64]>,
}

impl Default for Digest {
    fn default() -> Self {
        let start = CallDigest::START.hash;
        Digest {
            hash: AtomicU64::new(start),
            hash_before: AtomicU64::new(start),
            confirmed: AtomicU64::new(0),
            sequence: AtomicU64::new(0),
            checkpoints: (0..CHECKPOINTS_KEPT).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl Digest {
    /// One more question, with this number; a call unless it is `provisional`.
    #[inline]
    pub(super) fn add(&self, number: u64, slot: Slot, provisional: bool) {
        let before = CallDigest { calls: number, hash: self.hash.load(Ordering::Relaxed) };
        let after = before.next(slot, self.sequence.load(Ordering::Relaxed));
        self.hash.store(after.hash, Ordering::Relaxed);
        if after.is_checkpoint()
            && let Some(at) = self.checkpoints.get((after.calls / CHECKPOINT_CALLS) as usize % CHECKPOINTS_KEPT)
        {
            at.store(after.hash, Ordering::Release);
        }
        if !provisional {
            self.confirm(after.calls);
        }
    }

    #[inline]
    pub(super) fn begin_group(&self) {
        self.hash_before.store(self.hash.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(super) fn take_group_back(&self) {
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
        let hash =
            self.checkpoints.get((calls / CHECKPOINT_CALLS) as usize % CHECKPOINTS_KEPT)?.load(Ordering::Acquire);
        // Not overwritten meanwhile: the call that overwrites it has not begun.
        let kept = CHECKPOINT_CALLS * (CHECKPOINTS_KEPT as u64 - 1);
        (made() < calls + kept).then_some(CallDigest { calls, hash })
    }
}
