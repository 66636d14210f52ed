//! Which decision a launch belongs to. NCCL gives events no number that decisions have, too: they are told by collective, size and order.

use crate::comm::Decision;
use crate::events::Enqueued;
use std::collections::VecDeque;

/// Takes the oldest decision that a launch may have come from: of the same size, and with what it asked for, where that was possible. Older
/// ones of that size are given up: their launches were never told, or ran something else, and must not get the times of later ones. `None`
/// where no decision fits. `recent`: in the order of calls. Cost: one pass.
pub fn asked_for(recent: &mut VecDeque<Decision>, w: &Enqueued, ranks: u32) -> Option<Decision> {
    let bytes = w.count.saturating_mul(u64::from(w.element_bytes));
    let of_all = bytes.saturating_mul(u64::from(ranks));
    let same_size = |d: &Decision| d.collective == w.collective && (d.bytes == bytes || d.bytes == of_all);
    let same_arm = |d: &Decision| match d.arm.forced.filter(|_| d.taken) {
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

    fn match_all(decisions: &[Decision], launches: &[Enqueued]) -> Vec<Option<u64>> {
        let mut recent: VecDeque<Decision> = decisions.iter().copied().collect();
        launches.iter().map(|w| asked_for(&mut recent, w, 8).map(|d| d.call)).collect()
    }

    #[test]
    fn launches_go_to_their_decisions_in_order_and_by_size() {
        let decisions =
            [Decision::of_test(0, 64, RING), Decision::of_test(1, 4096, TREE), Decision::of_test(2, 64, RING)];
        let launches = [launch(64, RING), launch(64, RING), launch(4096, TREE), launch(64, RING)];
        assert_eq!(match_all(&decisions, &launches), [Some(0), Some(2), Some(1), None]);
    }

    #[test]
    fn a_lost_launch_costs_its_own_time_and_no_other() {
        let decisions = [
            Decision::of_test(0, 64, RING),
            Decision::of_test(1, 64, TREE),
            Decision::of_test(2, 64, RING),
            Decision::of_test(3, 64, TREE),
        ];
        let launches = [launch(64, TREE), launch(64, RING), launch(64, TREE)]; // the first was lost
        assert_eq!(match_all(&decisions, &launches), [Some(1), Some(2), Some(3)]);
    }

    #[test]
    fn what_ran_otherwise_than_asked_is_nobodys() {
        let not_taken = Decision { taken: false, ..Decision::of_test(1, 64, TREE) };
        let decisions = [Decision::of_test(0, 64, TREE), not_taken, Decision::of_test(2, 64, Arm::AUTO)];
        let launches = [launch(64, RING), launch(64, RING)];
        assert_eq!(match_all(&decisions, &launches), [Some(1), Some(2)]);
    }

    #[test]
    fn sizes_that_cannot_be_fit_nothing() {
        let w = Enqueued { count: u64::MAX, element_bytes: 8, ..launch(64, RING) };
        assert_eq!(match_all(&[Decision::of_test(0, 64, RING)], &[w]), [None]);
    }
}
