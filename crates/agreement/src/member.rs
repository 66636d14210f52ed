//! One rank of a communicator: what it may do at each call.

use crate::{Epoch, ToLeader, ToMember};
use std::collections::VecDeque;
use std::sync::Arc;

/// Most epochs that are in force from a call which a slow rank has not begun; it refuses more.
pub const DUE_MAX: usize = 8;

/// What to do at a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum At {
    /// On with the arms in force.
    Go,
    /// This epoch is in force from here on.
    Switch(Arc<Epoch>),
    /// Its verdict is not known yet: wait, then ask again.
    Wait,
}

/// One rank's part of the agreement. See the crate's drawing.
///
/// Whoever uses it from two threads orders three things: a call is counted as begun *before* [`border`](Member::border) is looked at for it; the
/// count that [`on`](Member::on) gets is read *after* the border of the proposal is visible; and [`at`](Member::at) is not asked between that and
/// the answer, nor the border set to an older value. Then an acknowledged first call cannot have begun, and none passes it unseen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Member {
    /// In force from first calls that have not come, in their order.
    due: VecDeque<Arc<Epoch>>,
    /// Acknowledged; the verdict decides. Its first call is after those of `due`.
    bound: Option<Arc<Epoch>>,
    /// Proposals up to this number are answered for good: refused, void or in force.
    settled: u64,
    /// The last one of them that was committed.
    committed: u64,
}

impl Member {
    /// The call at which something may change: [`at`](Member::at) must be asked for it and all after it. `u64::MAX`: none.
    pub fn border(&self) -> u64 {
        self.due.front().or(self.bound.as_ref()).map_or(u64::MAX, |e| e.from_call)
    }

    /// Takes a message of the leader. `begun` is how many calls have begun; `can` says whether the arms of an epoch are all possible here.
    pub fn on(&mut self, message: &ToMember, begun: u64, can: impl FnOnce(&Epoch) -> bool) -> Option<ToLeader> {
        match message {
            ToMember::Propose(e) => self.proposed(e, begun, can),
            ToMember::Commit(n) => {
                if let Some(e) = self.bound.take_if(|e| e.number == *n) {
                    self.committed = *n;
                    self.settled = *n;
                    self.due.push_back(e);
                }
                // A verdict on what was never held is not confirmed: no leader of ours says that.
                (self.committed >= *n).then_some(ToLeader::Confirm { epoch: *n, begun })
            }
            ToMember::Abort(n) => {
                self.bound.take_if(|e| e.number == *n);
                self.settled = self.settled.max(*n);
                Some(ToLeader::Confirm { epoch: *n, begun })
            }
        }
    }

    fn proposed(&mut self, e: &Arc<Epoch>, begun: u64, can: impl FnOnce(&Epoch) -> bool) -> Option<ToLeader> {
        let (ack, refuse) = (ToLeader::Ack { epoch: e.number, begun }, ToLeader::Refuse { epoch: e.number, begun });
        if e.number <= self.settled {
            // Late or doubled. What was committed needs no answer; the rest was refused or is void.
            return (e.number > self.committed).then_some(refuse);
        }
        if let Some(held) = &self.bound {
            // A leader has one proposal at a time: another one is not held, and not refused for good either.
            return Some(if held.number == e.number { ack } else { refuse });
        }
        let after_due = self.due.back().is_none_or(|d| d.from_call < e.from_call) && self.due.len() < DUE_MAX;
        // Begun calls are 0 to begun - 1.
        if begun > e.from_call || !after_due || !can(e) {
            self.settled = e.number;
            return Some(refuse);
        }
        self.bound = Some(e.clone());
        Some(ack)
    }

    /// What to do at a call, which counts as begun. Ask again after [`At::Switch`]: more than one epoch may begin at a call that was long
    /// in coming.
    pub fn at(&mut self, call: u64) -> At {
        if self.due.front().is_some_and(|e| call >= e.from_call)
            && let Some(epoch) = self.due.pop_front()
        {
            return At::Switch(epoch);
        }
        match &self.bound {
            Some(e) if call >= e.from_call => At::Wait,
            _ => At::Go,
        }
    }

    /// The epoch that waits for its verdict.
    pub fn bound_to(&self) -> Option<&Arc<Epoch>> {
        self.bound.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(number: u64, from_call: u64) -> Arc<Epoch> {
        Arc::new(Epoch { number, from_call, plans: Vec::new() })
    }

    #[test]
    fn a_bound_member_waits_at_the_first_call_and_switches_on_the_verdict() {
        let mut m = Member::default();
        assert_eq!(m.border(), u64::MAX);
        let e = epoch(1, 10);
        assert_eq!(m.on(&ToMember::Propose(e.clone()), 10, |_| true), Some(ToLeader::Ack { epoch: 1, begun: 10 }));
        assert_eq!((m.border(), m.at(9), m.at(10)), (10, At::Go, At::Wait));
        assert_eq!(m.on(&ToMember::Commit(1), 11, |_| true), Some(ToLeader::Confirm { epoch: 1, begun: 11 }));
        assert_eq!((m.at(9), m.at(10), m.at(10)), (At::Go, At::Switch(e), At::Go));
    }

    #[test]
    fn a_member_that_has_begun_the_first_call_refuses_for_ever() {
        let mut m = Member::default();
        let refused = Some(ToLeader::Refuse { epoch: 1, begun: 11 });
        assert_eq!(m.on(&ToMember::Propose(epoch(1, 10)), 11, |_| true), refused);
        assert_eq!(m.on(&ToMember::Propose(epoch(1, 10)), 11, |_| true), refused);
        assert_eq!(m.on(&ToMember::Commit(1), 11, |_| true), None, "a verdict that cannot be");
        assert_eq!((m.border(), m.at(12)), (u64::MAX, At::Go));
    }

    #[test]
    fn a_void_epoch_frees_the_member_and_a_late_proposal_of_it_is_refused() {
        let mut m = Member::default();
        m.on(&ToMember::Propose(epoch(1, 10)), 0, |_| true);
        m.on(&ToMember::Abort(1), 0, |_| true);
        assert_eq!(m.at(10), At::Go);
        assert_eq!(m.on(&ToMember::Propose(epoch(1, 10)), 0, |_| true), Some(ToLeader::Refuse { epoch: 1, begun: 0 }));
    }

    #[test]
    fn arms_that_are_not_possible_here_are_refused() {
        let answer = Member::default().on(&ToMember::Propose(epoch(1, 10)), 0, |_| false);
        assert_eq!(answer, Some(ToLeader::Refuse { epoch: 1, begun: 0 }));
    }
}
