//! The calls that were decided and have no reading yet. The ledger drops late, duplicate and impossible readings.

use crate::policy::Reading;

/// Number of calls that are remembered; a reading of an older call counts as lost.
pub const PENDING_MAX: usize = 4096;
/// The most arms that a policy chooses between.
pub const ARMS_MAX: usize = 64;
/// The longest accepted time, microseconds (about 11 days).
pub const TIME_US_MAX: f64 = 1e12;

const ANSWERED: u8 = 0x80;

/// The last [`PENDING_MAX`] calls of one policy. The memory is allocated once.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// The arm of call c, at index c modulo the length, with a mark once its reading has arrived.
    slots: Box<[u8]>,
    next: u64,
}

impl Default for Ledger {
    fn default() -> Self {
        Ledger { slots: vec![ANSWERED; PENDING_MAX].into_boxed_slice(), next: 0 }
    }
}

impl Ledger {
    /// The number of the next call.
    pub fn next_call(&self) -> u64 {
        self.next
    }

    /// Records that the next call runs with `arm` (below [`ARMS_MAX`]) and returns the call's number.
    pub fn decided(&mut self, arm: usize) -> u64 {
        let call = self.next;
        self.slots[(call % PENDING_MAX as u64) as usize] = (arm.min(ARMS_MAX - 1)) as u8;
        self.next += 1;
        call
    }

    /// The arm and time of the first valid reading of a call; `None` for every other reading. A reading without a
    /// time closes its call too.
    pub fn accept(&mut self, reading: &Reading) -> Option<(usize, f64)> {
        let is_pending = reading.call < self.next && self.next - reading.call <= PENDING_MAX as u64;
        let slot = self.slots.get_mut((reading.call % PENDING_MAX as u64) as usize)?;
        if !is_pending || *slot & ANSWERED != 0 || usize::from(*slot) != reading.arm {
            return None;
        }
        *slot |= ANSWERED;
        let time = reading.time_us.filter(|t| t.is_finite() && *t > 0.0 && *t <= TIME_US_MAX)?;
        Some((reading.arm, time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(call: u64, arm: usize, time_us: Option<f64>) -> Reading {
        Reading { call, arm, time_us, channels: None }
    }

    #[test]
    fn only_the_first_valid_reading_of_a_decided_call_counts() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.accept(&reading(0, 0, Some(1.0))), None, "never decided");
        assert_eq!((ledger.decided(3), ledger.decided(1), ledger.decided(2)), (0, 1, 2));
        assert_eq!(ledger.accept(&reading(0, 1, Some(1.0))), None, "another arm");
        assert_eq!(ledger.accept(&reading(0, 3, Some(5.0))), Some((3, 5.0)));
        assert_eq!(ledger.accept(&reading(0, 3, Some(5.0))), None, "twice");
        assert_eq!(ledger.accept(&reading(2, 2, Some(7.0))), Some((2, 7.0)), "out of order");
        for nonsense in [f64::NAN, f64::INFINITY, 0.0, -1.0, 1e300] {
            let mut one = ledger.clone();
            assert_eq!(one.accept(&reading(1, 1, Some(nonsense))), None);
            assert_eq!(one.accept(&reading(1, 1, Some(1.0))), None, "a lost reading stays lost");
        }
    }

    #[test]
    fn a_reading_of_a_forgotten_call_is_lost_and_not_counted_for_another_call() {
        let mut ledger = Ledger::default();
        for _ in 0..=PENDING_MAX {
            ledger.decided(0);
        }
        assert_eq!(ledger.accept(&reading(0, 0, Some(1.0))), None);
        assert_eq!(ledger.accept(&reading(1, 0, Some(1.0))), Some((0, 1.0)));
        assert_eq!(ledger.accept(&reading(u64::MAX, 0, Some(1.0))), None);
    }
}
