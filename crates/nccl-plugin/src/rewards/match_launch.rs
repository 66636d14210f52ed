//! Matches launches with decisions. They share no number in NCCL, so collective, size and order decide.

use crate::comm::CallDecision;
use crate::events::Enqueued;
use std::collections::VecDeque;

/// Removes and returns the oldest decision that the launch may belong to: of the same size and, if it was possible, with the launched algorithm and
/// protocol. Older decisions of that size are dropped: their launches were not reported or ran otherwise, and later launches must not be matched with
/// them. `None` if no decision fits. `recent` is in the order of calls. O(recent).
pub fn match_launch(recent: &mut VecDeque<CallDecision>, w: &Enqueued, ranks: u32) -> Option<CallDecision> {
    let bytes = w.count.saturating_mul(u64::from(w.element_bytes));
    let of_all = bytes.saturating_mul(u64::from(ranks));
    let same_size = |d: &CallDecision| d.collective == w.collective && (d.bytes == bytes || d.bytes == of_all);
    let same_arm = |d: &CallDecision| match d.arm.forced.filter(|_| d.taken) {
        Some((a, p)) => w.algorithm.is_none_or(|x| x == a) && w.protocol.is_none_or(|x| x == p),
        None => true,
    };
    let at = recent.iter().position(|d| same_size(d) && same_arm(d))?;
    let matched = recent.remove(at);
    let mut before = at;
    recent.retain(|d| {
        let is_older = before > 0;
        before = before.saturating_sub(1);
        !(is_older && same_size(d))
    });
    matched
}

#[cfg(test)]
mod tests {
    use super::*;
    use tune::{Algorithm, Arm, Collective, Protocol};

    const RING: Arm = Arm::new(Algorithm::Ring, Protocol::Ll);
    const TREE: Arm = Arm::new(Algorithm::Tree, Protocol::Ll);

    fn launch(bytes: u64, arm: Arm) -> Enqueued {
        let (algorithm, protocol) = arm.forced.unzip();
        let collective = Collective::AllReduce;
        Enqueued {
            owner: 1,
            sequence: 0,
            collective,
            count: bytes / 4,
            element_bytes: 4,
            algorithm,
            protocol,
            channels: 1,
        }
    }

    fn match_all(decisions: &[CallDecision], launches: &[Enqueued]) -> Vec<Option<u64>> {
        let mut recent: VecDeque<CallDecision> = decisions.iter().copied().collect();
        launches.iter().map(|w| match_launch(&mut recent, w, 8).map(|d| d.call)).collect()
    }

    #[test]
    fn launches_go_to_their_decisions_in_order_and_by_size() {
        let decisions = [
            CallDecision::for_test(0, 64, RING),
            CallDecision::for_test(1, 4096, TREE),
            CallDecision::for_test(2, 64, RING),
        ];
        let launches = [launch(64, RING), launch(64, RING), launch(4096, TREE), launch(64, RING)];
        assert_eq!(match_all(&decisions, &launches), [Some(0), Some(2), Some(1), None]);
    }

    #[test]
    fn a_lost_launch_leaves_only_its_own_call_without_a_time() {
        let decisions = [
            CallDecision::for_test(0, 64, RING),
            CallDecision::for_test(1, 64, TREE),
            CallDecision::for_test(2, 64, RING),
            CallDecision::for_test(3, 64, TREE),
        ];
        let launches = [launch(64, TREE), launch(64, RING), launch(64, TREE)]; // the first was lost
        assert_eq!(match_all(&decisions, &launches), [Some(1), Some(2), Some(3)]);
    }

    #[test]
    fn a_launch_that_fits_no_decision_is_unmatched() {
        let not_taken = CallDecision { taken: false, ..CallDecision::for_test(1, 64, TREE) };
        let decisions = [CallDecision::for_test(0, 64, TREE), not_taken, CallDecision::for_test(2, 64, Arm::AUTO)];
        let launches = [launch(64, RING), launch(64, RING)];
        assert_eq!(match_all(&decisions, &launches), [Some(1), Some(2)]);
    }

    #[test]
    fn impossible_sizes_match_no_decision() {
        let w = Enqueued { count: u64::MAX, element_bytes: 8, ..launch(64, RING) };
        assert_eq!(match_all(&[CallDecision::for_test(0, 64, RING)], &[w]), [None]);
    }
}
