//! One rank of a communicator: its permitted actions at each call.

use crate::{Epoch, ToLeader, ToMember};
use std::collections::VecDeque;
use std::sync::Arc;

/// Limit on committed epochs whose first call this rank has not begun. A slow rank refuses further proposals.
pub const DUE_MAX: usize = 8;

/// The action at a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallAction {
    /// Use the current arms.
    Proceed,
    /// Install this epoch, which applies from this call on, then ask again.
    Switch(Arc<Epoch>),
    /// The verdict on the proposal is unknown: wait for a message, then ask again.
    Wait,
}

/// One rank's part of the agreement, as drawn in the crate documentation.
///
/// A user with two threads (calls on one, messages on the other) must ensure three orders. A call is counted as begun *before* its thread reads
/// [`boundary`](Member::boundary). The `begun` passed to [`on_message`](Member::on_message) is read *after* the proposal's boundary is visible to the
/// calling thread. Between that read and the answer, [`action_at`](Member::action_at) is not called and the boundary is not set to an older value.
/// With these three orders, an acknowledged first call cannot have begun, and no call crosses the boundary without a check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Member {
    /// Committed epochs whose first call has not been reached, ascending.
    due: VecDeque<Arc<Epoch>>,
    /// The acknowledged proposal that waits for its verdict. Its first call is after those of `due`.
    bound: Option<Arc<Epoch>>,
    /// Proposals up to this number have a final answer: refused, void or committed.
    settled: u64,
    /// The last committed epoch.
    committed: u64,
}

impl Member {
    /// The next call at which the arms may change: from this call on, the caller must ask
    /// [`action_at`](Member::action_at). `u64::MAX` if there is none.
    pub fn boundary(&self) -> u64 {
        self.due.front().or(self.bound.as_ref()).map_or(u64::MAX, |e| e.from_call)
    }

    /// Handles a message of the leader and returns the answer to send. `begun`: number of calls begun. `can_run`: whether this rank can run all arms
    /// of an epoch.
    pub fn on_message(
        &mut self,
        message: &ToMember,
        begun: u64,
        can_run: impl FnOnce(&Epoch) -> bool,
    ) -> Option<ToLeader> {
        match message {
            ToMember::Ask(e) => Some(match can_run(e) {
                true => ToLeader::Ready { epoch: e.number, begun, digest: None, slots: Vec::new() },
                false => ToLeader::Refuse { epoch: e.number, begun },
            }),
            ToMember::Check { .. } => Some(ToLeader::Status { begun, digest: None }),
            ToMember::Propose(e) => self.on_proposal(e, begun, can_run),
            ToMember::Commit(n) => {
                if let Some(e) = self.bound.take_if(|e| e.number == *n) {
                    self.committed = *n;
                    self.settled = *n;
                    self.due.push_back(e);
                }
                // A commit of a proposal that this rank never held is not confirmed: a correct leader never sends one.
                (self.committed >= *n).then_some(ToLeader::Confirm { epoch: *n, begun })
            }
            ToMember::Abort(n) => {
                self.bound.take_if(|e| e.number == *n);
                self.settled = self.settled.max(*n);
                Some(ToLeader::Confirm { epoch: *n, begun })
            }
        }
    }

    fn on_proposal(&mut self, e: &Arc<Epoch>, begun: u64, can_run: impl FnOnce(&Epoch) -> bool) -> Option<ToLeader> {
        let (ack, refuse) = (ToLeader::Ack { epoch: e.number, begun }, ToLeader::Refuse { epoch: e.number, begun });
        if e.number <= self.settled {
            // Late or duplicated. A committed proposal needs no answer; any other was refused or is void.
            return (e.number > self.committed).then_some(refuse);
        }
        if let Some(held) = &self.bound {
            // A leader has one proposal at a time, so another one is not held. The refusal is not final.
            return Some(if held.number == e.number { ack } else { refuse });
        }
        let after_due = self.due.back().is_none_or(|d| d.from_call < e.from_call) && self.due.len() < DUE_MAX;
        // Calls 0 to begun - 1 have begun.
        if begun > e.from_call || !after_due || !can_run(e) {
            self.settled = e.number;
            return Some(refuse);
        }
        self.bound = Some(e.clone());
        Some(ack)
    }

    /// The action at a call that is counted as begun. Call this function again after [`CallAction::Switch`]: several
    /// epochs may begin between two calls of a slow rank.
    pub fn action_at(&mut self, call: u64) -> CallAction {
        if self.due.front().is_some_and(|e| call >= e.from_call)
            && let Some(epoch) = self.due.pop_front()
        {
            return CallAction::Switch(epoch);
        }
        match &self.bound {
            Some(e) if call >= e.from_call => CallAction::Wait,
            _ => CallAction::Proceed,
        }
    }

    /// The acknowledged epoch that waits for its verdict.
    pub fn bound_to(&self) -> Option<&Arc<Epoch>> {
        self.bound.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(number: u64, from_call: u64) -> Arc<Epoch> {
        Arc::new(Epoch::new(number, from_call, Vec::new()))
    }

    #[test]
    fn a_bound_member_waits_at_the_first_call_and_switches_on_the_verdict() {
        let mut m = Member::default();
        assert_eq!(m.boundary(), u64::MAX);
        let e = epoch(1, 10);
        assert_eq!(
            m.on_message(&ToMember::Propose(e.clone()), 10, |_| true),
            Some(ToLeader::Ack { epoch: 1, begun: 10 })
        );
        assert_eq!((m.boundary(), m.action_at(9), m.action_at(10)), (10, CallAction::Proceed, CallAction::Wait));
        assert_eq!(m.on_message(&ToMember::Commit(1), 11, |_| true), Some(ToLeader::Confirm { epoch: 1, begun: 11 }));
        assert_eq!(
            (m.action_at(9), m.action_at(10), m.action_at(10)),
            (CallAction::Proceed, CallAction::Switch(e), CallAction::Proceed)
        );
    }

    #[test]
    fn a_member_that_has_begun_the_first_call_refuses_for_good() {
        let mut m = Member::default();
        let refused = Some(ToLeader::Refuse { epoch: 1, begun: 11 });
        assert_eq!(m.on_message(&ToMember::Propose(epoch(1, 10)), 11, |_| true), refused);
        assert_eq!(m.on_message(&ToMember::Propose(epoch(1, 10)), 11, |_| true), refused);
        assert_eq!(m.on_message(&ToMember::Commit(1), 11, |_| true), None, "a verdict that no correct leader sends");
        assert_eq!((m.boundary(), m.action_at(12)), (u64::MAX, CallAction::Proceed));
    }

    #[test]
    fn a_void_epoch_frees_the_member_and_a_late_proposal_of_it_is_refused() {
        let mut m = Member::default();
        m.on_message(&ToMember::Propose(epoch(1, 10)), 0, |_| true);
        m.on_message(&ToMember::Abort(1), 0, |_| true);
        assert_eq!(m.action_at(10), CallAction::Proceed);
        assert_eq!(
            m.on_message(&ToMember::Propose(epoch(1, 10)), 0, |_| true),
            Some(ToLeader::Refuse { epoch: 1, begun: 0 })
        );
    }

    #[test]
    fn arms_that_this_rank_cannot_run_are_refused() {
        let answer = Member::default().on_message(&ToMember::Propose(epoch(1, 10)), 0, |_| false);
        assert_eq!(answer, Some(ToLeader::Refuse { epoch: 1, begun: 0 }));
    }
}
