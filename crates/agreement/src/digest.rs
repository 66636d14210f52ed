//! A running digest of the calls of one rank. Ranks of one communicator make the same calls in the same order, so their digests are equal at equal
//! numbers of calls. A difference means that the ranks count different calls: nothing may be agreed there.

use crate::epoch::Slot;

/// A rank keeps its digest at each multiple of this number of calls.
pub const CHECKPOINT_CALLS: u64 = 64;
/// Checkpoints that a rank keeps: the last 16,384 calls, 4 KiB.
pub const CHECKPOINTS_KEPT: usize = 256;

/// The number of calls made, and a 64-bit hash of them in order.
///
/// A loop of equal calls gives a rank that counts one call too many the same hash as the others. NCCL's own number of the last call does not: NCCL
/// counts what it launches, so the pair of the rank's count and NCCL's differs after any such error, whatever its cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallDigest {
    pub calls: u64,
    pub hash: u64,
    /// NCCL's own number of the last of these calls; 0 if it is not told.
    pub sequence: u64,
}

impl CallDigest {
    /// Before the first call.
    pub const START: CallDigest = CallDigest { calls: 0, hash: 0x9e37_79b9_7f4a_7c15, sequence: 0 };

    /// The digest after one more call. `sequence`: NCCL's own number of the call, 0 if it is not told. Two multiplications; no allocation.
    #[inline]
    #[must_use]
    pub fn next(self, slot: Slot, sequence: u64) -> CallDigest {
        let word = (slot.index() as u64) << 48 ^ sequence;
        // The finalizer of MurmurHash3: every bit of the word and of the earlier calls reaches every bit of the hash.
        let mut h = self.hash.rotate_left(29) ^ word;
        h = (h ^ h >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        h = (h ^ h >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        CallDigest { calls: self.calls + 1, hash: h ^ h >> 33, sequence: 0 }
    }

    /// Both ranks have made the same calls, as far as both know. Call it for equal numbers of calls.
    pub fn agrees(self, other: CallDigest) -> bool {
        let told = self.sequence != 0 && other.sequence != 0;
        self.hash == other.hash && (!told || self.sequence == other.sequence)
    }

    /// The digest belongs to a number of calls at which all ranks keep theirs.
    #[inline]
    pub fn is_checkpoint(self) -> bool {
        self.calls.is_multiple_of(CHECKPOINT_CALLS)
    }
}

/// The last checkpoint at or before this number of calls.
pub fn checkpoint_before(calls: u64) -> u64 {
    calls - calls % CHECKPOINT_CALLS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tune::Collective;

    fn after(calls: &[(u8, u64)]) -> CallDigest {
        calls.iter().fold(CallDigest::START, |d, (bucket, sequence)| {
            d.next(Slot { collective: Collective::AllReduce, bucket: *bucket }, *sequence)
        })
    }

    proptest! {
        #[test]
        fn equal_calls_have_equal_digests_and_a_changed_dropped_or_swapped_call_changes_them(
            calls in proptest::collection::vec((0u8..64, 0u64..1000), 2..200), at: prop::sample::Index, other in 0u8..64,
        ) {
            let d = after(&calls);
            prop_assert_eq!((d, d.calls), (after(&calls), calls.len() as u64));
            let i = at.index(calls.len() - 1);
            let mut changed = calls.clone();
            changed[i].0 = other;
            prop_assert_eq!(after(&changed) == d, changed == calls);
            let mut swapped = calls.clone();
            swapped.swap(i, i + 1);
            prop_assert_eq!(after(&swapped) == d, swapped == calls);
            let mut dropped = calls.clone();
            let call = dropped.remove(i);
            dropped.push(call);
            prop_assert_eq!(after(&dropped) == d, dropped == calls);
        }
    }

    #[test]
    fn one_equal_call_too_many_is_seen_by_nccls_own_number_and_by_nothing_else() {
        let calls = [(20u8, 0u64); 64];
        let of = |sequence| CallDigest { sequence, ..after(&calls) };
        assert!(of(64).agrees(of(64)));
        assert!(!of(64).agrees(of(63)), "one rank has counted a call that NCCL did not launch");
        assert!(of(64).agrees(of(0)), "not told: only the hash is compared");
    }

    #[test]
    fn checkpoints_are_the_multiples_of_64() {
        assert!(CallDigest::START.is_checkpoint());
        assert_eq!([0, 63, 64, 200].map(checkpoint_before), [0, 0, 64, 192]);
    }
}
