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
    /// The call at which the epoch in force lapses: the next arms are AUTO there, unless an epoch of `due` begins before or at it.
    lapse: Option<u64>,
    /// Proposals up to this number have a final answer: refused, void or committed.
    settled: u64,
    /// The last committed epoch.
    committed: u64,
}

impl Member {
    /// The next call at which the arms may change: from this call on, the caller must ask
    /// [`action_at`](Member::action_at). `u64::MAX` if there is none.
    pub fn boundary(&self) -> u64 {
        let next = self.due.front().or(self.bound.as_ref()).map_or(u64::MAX, |e| e.from_call);
        next.min(self.lapse.unwrap_or(u64::MAX))
    }

    /// The call at which the last agreed epoch lapses.
    fn last_lapse(&self) -> Option<u64> {
        self.due.back().map_or(self.lapse, |e| lapse_of(e))
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
        let (ack, refuse) =
            (ToLeader::Ack { epoch: e.number, begun, digest: None }, ToLeader::Refuse { epoch: e.number, begun });
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
        // A renewal continues exactly where the last epoch lapses; any epoch ends after it begins.
        let fits = e.from_call < e.until_call && (!e.renews || self.last_lapse() == Some(e.from_call));
        if begun > e.from_call || !after_due || !fits || !can_run(e) {
            self.settled = e.number;
            return Some(refuse);
        }
        self.bound = Some(e.clone());
        Some(ack)
    }

    /// The action at a call that is counted as begun. Call this function again after [`CallAction::Switch`]: several
    /// epochs may begin between two calls of a slow rank.
    pub fn action_at(&mut self, call: u64) -> CallAction {
        loop {
            let lapse = self.lapse.filter(|l| call >= *l);
            let begins = |e: &Arc<Epoch>| call >= e.from_call && lapse.is_none_or(|l| e.from_call <= l);
            if self.due.front().is_some_and(begins)
                && let Some(epoch) = self.due.pop_front()
            {
                self.lapse = lapse_of(&epoch);
                if epoch.renews {
                    continue; // the arms and the counts of their runs stay
                }
                return CallAction::Switch(epoch);
            }
            let bound = self.bound.as_ref().map(|e| e.from_call).filter(|from| call >= *from);
            return match (lapse, bound) {
                // The proposal may replace or renew what would lapse.
                (Some(l), None) => self.lapse_at(l),
                (Some(l), Some(from)) if l < from => self.lapse_at(l),
                (_, Some(_)) => CallAction::Wait,
                (None, None) => CallAction::Proceed,
            };
        }
    }

    fn lapse_at(&mut self, call: u64) -> CallAction {
        self.lapse = None;
        CallAction::Switch(Arc::new(Epoch::new(0, call, Vec::new())))
    }

    /// The acknowledged epoch that waits for its verdict.
    pub fn bound_to(&self) -> Option<&Arc<Epoch>> {
        self.bound.as_ref()
    }
}

/// The call at which an epoch lapses, if it does.
fn lapse_of(e: &Epoch) -> Option<u64> {
    Some(e.until_call).filter(|until| *until < u64::MAX)
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
            Some(ToLeader::Ack { epoch: 1, begun: 10, digest: None })
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

    /// A member that has acknowledged this epoch and knows that it is committed.
    fn committed(m: &mut Member, e: &Arc<Epoch>) {
        let ack = m.on_message(&ToMember::Propose(e.clone()), 0, |_| true);
        assert_eq!(ack, Some(ToLeader::Ack { epoch: e.number, begun: 0, digest: None }));
        m.on_message(&ToMember::Commit(e.number), 0, |_| true);
    }

    fn lapsing(number: u64, from_call: u64, until_call: u64, renews: bool) -> Arc<Epoch> {
        Arc::new(Epoch { until_call, renews, ..Epoch::new(number, from_call, Vec::new()) })
    }

    #[test]
    fn an_epoch_lapses_to_auto_unless_it_was_renewed() {
        let auto = |call| CallAction::Switch(Arc::new(Epoch::new(0, call, Vec::new())));
        let mut m = Member::default();
        let e = lapsing(1, 10, 20, false);
        committed(&mut m, &e);
        assert_eq!(
            (m.action_at(10), m.action_at(19), m.boundary()),
            (CallAction::Switch(e.clone()), CallAction::Proceed, 20)
        );
        let mut renewed = m.clone();
        assert_eq!((m.action_at(20), m.action_at(20), m.boundary()), (auto(20), CallAction::Proceed, u64::MAX));
        committed(&mut renewed, &lapsing(2, 20, 30, true));
        assert_eq!((renewed.action_at(20), renewed.boundary()), (CallAction::Proceed, 30));
        assert_eq!(renewed.action_at(31), auto(30), "a rank that asks late lapses at the same call");
        // A member that knows no verdict on the renewal does not guess.
        let mut bound = Member::default();
        committed(&mut bound, &e);
        bound.on_message(&ToMember::Propose(lapsing(2, 20, 30, true)), 5, |_| true);
        assert_eq!(bound.action_at(20), CallAction::Switch(e));
        assert_eq!(bound.action_at(20), CallAction::Wait);
        bound.on_message(&ToMember::Abort(2), 20, |_| true);
        assert_eq!(bound.action_at(20), auto(20));
    }

    #[test]
    fn a_renewal_of_anything_but_the_last_epoch_is_refused() {
        let mut m = Member::default();
        committed(&mut m, &lapsing(1, 10, 20, false));
        for (number, from, until) in [(2, 19, 30), (3, 21, 30), (4, 20, 20)] {
            let answer = m.on_message(&ToMember::Propose(lapsing(number, from, until, true)), 0, |_| true);
            assert_eq!(answer, Some(ToLeader::Refuse { epoch: number, begun: 0 }), "{from} {until}");
        }
    }

    #[test]
    fn a_question_binds_to_nothing() {
        let mut m = Member::default();
        let e = epoch(1, u64::MAX);
        let ready = Some(ToLeader::Ready { epoch: 1, begun: 3, digest: None, slots: Vec::new() });
        assert_eq!(m.on_message(&ToMember::Ask(e.clone()), 3, |_| true), ready);
        assert_eq!(m, Member::default());
        assert_eq!(m.on_message(&ToMember::Ask(e), 3, |_| false), Some(ToLeader::Refuse { epoch: 1, begun: 3 }));
    }
}
