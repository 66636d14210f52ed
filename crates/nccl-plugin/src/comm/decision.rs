//! A decision of the call path, and its packed form in the ring.

use agreement::Slot;
use agreement::epoch::{arm_code, arm_of_code};
use tune::{Arm, Collective};

/// Group numbers wrap at this value; 0 means unknown.
const GROUP_MAX: u32 = 0xff_ffff;

/// A group's number in a record.
#[inline]
pub(super) fn wrapped_group(number: u64) -> u32 {
    if number == 0 { 0 } else { ((number - 1) % u64::from(GROUP_MAX)) as u32 + 1 }
}

/// One decision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CallDecision {
    /// Number of the call.
    pub call: u64,
    pub bytes: u64,
    pub collective: Collective,
    /// The arm requested.
    pub arm: Arm,
    /// NCCL will use the arm: its entry was possible.
    pub taken: bool,
    /// The call is captured into a CUDA graph.
    pub captured: bool,
    /// The slot had runs in this epoch, so `k` is valid.
    pub counted: bool,
    /// Possible entries of the cost table, as bits.
    pub mask: u32,
    /// The entry that AUTO takes.
    pub auto: u8,
    pub epoch: u64,
    /// Number of the call among those of its slot in the epoch.
    pub k: u64,
    /// Start of the call's group, or else of the call, in nanoseconds since the communicator was made; 0 if not recorded.
    pub at_ns: u64,
    /// The outermost group, 24 bits; 0 if NCCL does not report groups.
    pub group: u32,
}

impl CallDecision {
    pub(super) fn pack(&self) -> wire::ring::Record {
        let flags = u64::from(self.taken) | u64::from(self.captured) << 1 | u64::from(self.counted) << 2;
        [
            self.call,
            self.bytes,
            u64::from(arm_code(self.arm)) | u64::from(self.collective.number()) << 32 | flags << 40,
            u64::from(self.mask) | u64::from(self.auto) << 32 | u64::from(self.group & GROUP_MAX) << 40,
            self.epoch << 40 | (self.k & 0xff_ffff_ffff),
            self.at_ns,
        ]
    }

    pub(super) fn unpack(r: &wire::ring::Record) -> Option<Self> {
        let [call, bytes, arm, mask, epoch, at_ns] = *r;
        Some(CallDecision {
            call,
            bytes,
            collective: Collective::tuned_of_number((arm >> 32 & 0xff) as usize)?,
            arm: arm_of_code(arm as u32).ok()?,
            taken: arm >> 40 & 1 != 0,
            captured: arm >> 41 & 1 != 0,
            counted: arm >> 42 & 1 != 0,
            mask: mask as u32,
            auto: (mask >> 32) as u8,
            epoch: epoch >> 40,
            k: epoch & 0xff_ffff_ffff,
            at_ns,
            group: (mask >> 40) as u32 & GROUP_MAX,
        })
    }

    pub fn slot(&self) -> Slot {
        Slot::of(self.collective, self.bytes)
    }

    /// For tests: a counted AllReduce call of epoch 1 whose arm was used.
    #[cfg(test)]
    pub fn for_test(call: u64, bytes: u64, arm: Arm) -> Self {
        CallDecision {
            call,
            bytes,
            collective: Collective::AllReduce,
            arm,
            taken: true,
            captured: false,
            counted: true,
            mask: u32::MAX,
            auto: 0,
            epoch: 1,
            k: call,
            at_ns: 0,
            group: 0,
        }
    }
}
