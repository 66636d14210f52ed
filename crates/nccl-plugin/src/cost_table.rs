//! NCCL's cost table as a tuner receives it: one row per algorithm, one column per protocol, microseconds. A negative entry is unavailable.

use tune::{Algorithm, Arm, Protocol};

/// Entries that arms refer to: 7 algorithms x 3 protocols.
pub const ENTRIES: usize = 21;
/// Entries from this cost on count as unavailable: NCCL 2.29 and older ignore 3.6e9 and more; 2.31 marks options that need an opt-in with 1.7e38.
const FORBIDDEN_US: f32 = 1e9;
/// NCCL multiplies ring costs by 1024 where rings lose precision (FP8 sums over more than 8 ranks). A ring this many times above the best entry
/// counts as demoted.
const DEMOTION: f32 = 200.0;

/// The table of one call, with the strides that NCCL passes.
#[derive(Debug)]
pub struct CostTable<'a> {
    costs: &'a mut [f32],
    algorithms: usize,
    protocols: usize,
}

impl<'a> CostTable<'a> {
    /// `None` if the length is not the product of the strides.
    pub fn new(costs: &'a mut [f32], algorithms: usize, protocols: usize) -> Option<Self> {
        (algorithms.checked_mul(protocols) == Some(costs.len())).then_some(CostTable { costs, algorithms, protocols })
    }

    fn at(&self, algorithm: usize, protocol: usize) -> Option<f32> {
        if algorithm >= self.algorithms || protocol >= self.protocols {
            return None;
        }
        let cost = *self.costs.get(algorithm * self.protocols + protocol)?;
        (0.0..FORBIDDEN_US).contains(&cost).then_some(cost) // excludes NaN
    }

    /// The possible entries, as bits 3 x algorithm + protocol, and the cheapest one, which is AUTO.
    #[inline]
    pub fn survey(&self) -> Survey {
        let (mut mask, mut best, mut best_cost) = (0u32, u8::MAX, f32::INFINITY);
        for a in 0..Algorithm::ALL.len() {
            for p in 0..Protocol::ALL.len() {
                if let Some(cost) = self.at(a, p) {
                    let i = 3 * a + p;
                    mask |= 1 << i;
                    if cost < best_cost {
                        (best, best_cost) = (i as u8, cost);
                    }
                }
            }
        }
        // A ring that NCCL demotes is not an option.
        let rings = 0b111 << (3 * Algorithm::Ring as usize);
        if mask & !rings != 0 {
            for p in 0..Protocol::ALL.len() {
                let ring = self.at(Algorithm::Ring as usize, p).unwrap_or(0.0);
                if ring > DEMOTION * best_cost {
                    mask &= !(1 << (3 * Algorithm::Ring as usize + p));
                }
            }
        }
        Survey { mask, best, best_cost }
    }

    /// Makes an arm the cheapest entry if it is possible, and changes no other entry. Returns whether NCCL will use the arm.
    ///
    /// Never writes a negative value, never revives an entry, and never creates a tie: releases break ties differently.
    #[inline]
    pub fn prefer(&mut self, arm: Arm, survey: &Survey) -> bool {
        let Some((a, p)) = arm.forced else { return false };
        let i = 3 * a as usize + p as usize;
        if survey.mask >> i & 1 == 0 {
            return false;
        }
        if survey.best as usize == i {
            return true;
        }
        let below = survey.best_cost * 0.999;
        // No cost is below 0, and a denormal cost that cannot be lowered is not a cost.
        if !(below < survey.best_cost && below > 0.0) {
            return false;
        }
        match self.costs.get_mut(a as usize * self.protocols + p as usize) {
            Some(cost) => {
                *cost = below;
                true
            }
            None => false,
        }
    }
}

/// Summary of a table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Survey {
    /// Possible entries, bit 3 x algorithm + protocol.
    pub mask: u32,
    /// The cheapest entry, or 255 if none is possible.
    pub best: u8,
    /// Its cost, microseconds.
    pub best_cost: f32,
}

impl Survey {
    /// For a call without a table: every entry may be possible.
    pub const UNKNOWN: Survey = Survey { mask: (1 << ENTRIES) - 1, best: u8::MAX, best_cost: 0.0 };

    /// No entry is possible: the question concerns something else (symmetric kernels), not a call.
    pub fn is_empty(&self) -> bool {
        self.best == u8::MAX
    }
}

/// Algorithm and protocol of an entry.
pub fn entry(i: u8) -> Option<(Algorithm, Protocol)> {
    Some((Algorithm::of_number(usize::from(i) / 3)?, Protocol::of_number(usize::from(i) % 3)?))
}

/// The entry of an arm; `None` for AUTO.
pub fn entry_of(arm: Arm) -> Option<u8> {
    arm.forced.map(|(a, p)| 3 * a as u8 + p as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tables() -> impl Strategy<Value = (Vec<f32>, usize, usize)> {
        let cost = prop_oneof![
            6 => 0.1f32..1e6, 4 => Just(-1.0f32), 1 => Just(-1024.0), 1 => Just(f32::NAN), 1 => Just(3.6e9), 1 => Just(1.7e38),
            1 => Just(0.0), 1 => Just(f32::INFINITY), 1 => Just(f32::MIN_POSITIVE),
        ];
        (1usize..10, 1usize..6)
            .prop_flat_map(move |(a, p)| (proptest::collection::vec(cost.clone(), a * p), Just(a), Just(p)))
    }

    proptest! {
        #[test]
        fn preferring_changes_one_possible_entry_at_most_and_makes_it_the_strict_minimum(
            (before, algorithms, protocols) in tables(), a in 0usize..7, p in 0usize..3,
        ) {
            let arm = Arm::new(Algorithm::ALL[a], Protocol::ALL[p]);
            let mut after = before.clone();
            let mut costs = CostTable::new(&mut after, algorithms, protocols).unwrap();
            let survey = costs.survey();
            let taken = costs.prefer(arm, &survey);
            let target = a * protocols + p;
            for (i, (x, y)) in before.iter().zip(&after).enumerate() {
                if i != target || !taken {
                    prop_assert_eq!(x.to_bits(), y.to_bits());
                }
            }
            if taken {
                prop_assert!(a < algorithms && p < protocols);
                prop_assert!(before[target] >= 0.0 && before[target] < FORBIDDEN_US, "never revived");
                prop_assert!(after[target] >= 0.0, "never negative");
                if survey.best as usize != 3 * a + p {
                    prop_assert!(entry(survey.best).is_some());
                    let rest = after.iter().enumerate().filter(|(i, c)| *i != target && **c >= 0.0
                        && i % protocols < 3 && i / protocols < 7);
                    for (_, c) in rest {
                        prop_assert!(after[target] < *c);
                    }
                }
            }
        }

        #[test]
        fn auto_touches_nothing((before, algorithms, protocols) in tables()) {
            let mut after = before.clone();
            let mut costs = CostTable::new(&mut after, algorithms, protocols).unwrap();
            let survey = costs.survey();
            prop_assert!(!costs.prefer(Arm::AUTO, &survey));
            prop_assert!(before.iter().zip(&after).all(|(x, y)| x.to_bits() == y.to_bits()));
        }
    }

    #[test]
    fn a_demoted_ring_is_not_possible() {
        let mut table = vec![-1.0f32; ENTRIES];
        table[2] = 50.0; // tree
        table[5] = 40.0 * 1024.0; // ring, demoted
        let mut costs = CostTable::new(&mut table, 7, 3).unwrap();
        let survey = costs.survey();
        assert_eq!((survey.mask, survey.best), (1 << 2, 2));
        assert!(!costs.prefer(Arm::new(Algorithm::Ring, Protocol::Simple), &survey));
    }

    #[test]
    fn a_table_of_unavailable_entries_is_recognised() {
        let mut table = vec![-1.0f32; ENTRIES];
        assert!(CostTable::new(&mut table, 7, 3).unwrap().survey().is_empty());
        assert!(CostTable::new(&mut table, 7, 4).is_none());
    }
}
