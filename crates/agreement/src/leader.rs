//! The rank that proposes epochs and decides on them.

use crate::{Epoch, SlotPlan, ToLeader, ToMember};
use std::sync::Arc;

/// Least distance, in calls, from the farthest rank to the first call of a proposal.
pub const AHEAD_MIN: u64 = 4;
/// Largest such distance, in calls.
pub const AHEAD_MAX: u64 = 1 << 20;

/// Interval at which unanswered messages are repeated, microseconds. An open connection loses nothing; repeats replace messages lost with a
/// connection.
pub const REPEAT_US: u64 = 100_000;
/// Age at which a proposal without all acknowledgements is aborted, microseconds.
pub const GIVE_UP_US: u64 = 2_000_000;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Stage {
    Idle,
    Proposed { epoch: Arc<Epoch>, since_us: u64 },
    Decided { epoch: Arc<Epoch>, commit: bool },
}

/// The outcome of a proposal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EndedProposal {
    pub epoch: Arc<Epoch>,
    /// True if the epoch was committed, false if it is void.
    pub committed: bool,
}

/// The leader's part of the agreement, as drawn in the crate documentation.
///
/// The owner calls [`propose`](Leader::propose), passes every member's message to [`on_message`](Leader::on_message) and calls [`tick`](Leader::tick)
/// regularly. Times are microseconds of any one clock. They decide when messages are repeated and when a proposal is aborted; safety does not depend
/// on them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leader {
    stage: Stage,
    /// By position in the roster: whether this member has answered the message of the current stage.
    answered: Vec<bool>,
    missing: usize,
    last_number: u64,
    /// The largest number of begun calls that any member has reported.
    farthest: u64,
    /// Calls from the farthest rank to a proposal's first call. A refusal doubles it, a commit shrinks it by one eighth.
    ahead: u64,
    ahead_min: u64,
    repeat_us: u64,
    give_up_us: u64,
    sent_us: u64,
    /// A call with which a training step begins, and the calls of a step: proposals begin with a step.
    align: Option<(u64, u64)>,
    ended: Option<EndedProposal>,
}

impl Leader {
    /// A leader of `members` ranks, itself included. It repeats unanswered messages after `repeat_us` and aborts a proposal after `give_up_us`.
    pub fn new(members: usize, repeat_us: u64, give_up_us: u64) -> Self {
        Leader {
            stage: Stage::Idle,
            answered: vec![true; members],
            missing: 0,
            last_number: 0,
            farthest: 0,
            ahead: 4 * AHEAD_MIN,
            ahead_min: AHEAD_MIN,
            repeat_us,
            give_up_us,
            sent_us: 0,
            align: None,
            ended: None,
        }
    }

    /// Sets the distance, in calls, from the farthest rank to the first proposal's first call.
    pub fn ahead(mut self, calls: u64) -> Self {
        self.ahead = calls.min(AHEAD_MAX);
        self.ahead_min = self.ahead_min.min(self.ahead);
        self
    }

    /// Later proposals begin with a training step: one begins with this call, and every step has this many calls.
    pub fn align(&mut self, step: Option<(u64, u64)>) {
        self.align = step.filter(|s| s.1 > 0);
    }

    /// The first call from `call` on with which a step begins, if steps are known.
    fn aligned(&self, call: u64) -> u64 {
        let Some((begin, calls)) = self.align else { return call };
        let begin = begin % calls;
        call.checked_sub(begin).map_or(begin, |c| begin + c.next_multiple_of(calls))
    }

    /// No proposal or verdict is in progress.
    pub fn is_idle(&self) -> bool {
        self.stage == Stage::Idle
    }

    /// The largest number of begun calls that any member has reported.
    pub fn farthest(&self) -> u64 {
        self.farthest
    }

    /// Proposes plans that apply from a call which, by the leader's knowledge, no member has begun. `send` gets (position in the roster, message).
    /// Returns `None` while another proposal is in progress.
    pub fn propose(
        &mut self,
        plans: Vec<SlotPlan>,
        begun_here: u64,
        now_us: u64,
        mut send: impl FnMut(usize, ToMember),
    ) -> Option<Arc<Epoch>> {
        if !self.is_idle() {
            return None;
        }
        self.farthest = self.farthest.max(begun_here);
        self.last_number += 1;
        let epoch = Arc::new(Epoch::new(self.last_number, self.aligned(self.farthest + self.ahead), plans));
        self.stage = Stage::Proposed { epoch: epoch.clone(), since_us: now_us };
        self.begin_stage(now_us, &mut send);
        Some(epoch)
    }

    fn begin_stage(&mut self, now_us: u64, send: &mut impl FnMut(usize, ToMember)) {
        self.answered.fill(false);
        self.missing = self.answered.len();
        self.send_pending(now_us, send);
    }

    /// Sends the message of the current stage to every member that has not answered it.
    fn send_pending(&mut self, now_us: u64, send: &mut impl FnMut(usize, ToMember)) {
        let message = match &self.stage {
            Stage::Idle => return,
            Stage::Proposed { epoch, .. } => ToMember::Propose(epoch.clone()),
            Stage::Decided { epoch, commit: true } => ToMember::Commit(epoch.number),
            Stage::Decided { epoch, commit: false } => ToMember::Abort(epoch.number),
        };
        self.sent_us = now_us;
        for (i, _) in self.answered.iter().enumerate().filter(|(_, a)| !**a) {
            send(i, message.clone());
        }
    }

    fn decide(&mut self, commit: bool, now_us: u64, send: &mut impl FnMut(usize, ToMember)) {
        if let Stage::Proposed { epoch, .. } = &self.stage {
            let epoch = epoch.clone();
            self.ahead = match commit {
                true => (self.ahead - self.ahead / 8).max(self.ahead_min),
                false => (self.ahead * 2).min(AHEAD_MAX),
            };
            self.ended = Some(EndedProposal { epoch: epoch.clone(), committed: commit });
            self.stage = Stage::Decided { epoch, commit };
            self.begin_stage(now_us, send);
        }
    }

    /// Handles a message of the member at position `from`. O(members) when it completes a stage, else O(1).
    pub fn on_message(&mut self, from: usize, message: &ToLeader, now_us: u64, mut send: impl FnMut(usize, ToMember)) {
        let (epoch, begun) = match message {
            ToLeader::Ack { epoch, begun } | ToLeader::Refuse { epoch, begun } | ToLeader::Confirm { epoch, begun } => {
                (*epoch, *begun)
            }
            _ => return,
        };
        if from >= self.answered.len() {
            return;
        }
        self.farthest = self.farthest.max(begun);
        match (&self.stage, message) {
            (Stage::Proposed { epoch: e, .. }, ToLeader::Ack { .. }) if e.number == epoch => {
                self.answer(from);
                if self.missing == 0 {
                    self.decide(true, now_us, &mut send);
                }
            }
            (Stage::Proposed { epoch: e, .. }, ToLeader::Refuse { .. }) if e.number == epoch => {
                self.decide(false, now_us, &mut send);
            }
            (Stage::Decided { epoch: e, .. }, ToLeader::Confirm { .. }) if e.number == epoch => {
                self.answer(from);
                if self.missing == 0 {
                    self.stage = Stage::Idle;
                }
            }
            _ => {}
        }
    }

    fn answer(&mut self, from: usize) {
        if let Some(a) = self.answered.get_mut(from).filter(|a| !**a) {
            *a = true;
            self.missing -= 1;
        }
    }

    /// Call regularly. Repeats unanswered messages and aborts a proposal after its time limit.
    pub fn tick(&mut self, now_us: u64, mut send: impl FnMut(usize, ToMember)) {
        if let Stage::Proposed { since_us, .. } = self.stage
            && now_us.saturating_sub(since_us) >= self.give_up_us
        {
            self.decide(false, now_us, &mut send);
        } else if now_us.saturating_sub(self.sent_us) >= self.repeat_us {
            self.send_pending(now_us, &mut send);
        }
    }

    /// Aborts a proposal that is not decided, so that no member waits for a leader that leaves.
    pub fn abort_undecided(&mut self, now_us: u64, mut send: impl FnMut(usize, ToMember)) {
        self.decide(false, now_us, &mut send);
    }

    /// The outcome of the last proposal; each outcome is returned once.
    pub fn take_ended(&mut self) -> Option<EndedProposal> {
        self.ended.take()
    }

    /// Positions of the members that have not answered.
    pub fn unanswered(&self) -> impl Iterator<Item = usize> + '_ {
        self.answered.iter().enumerate().filter(|(_, a)| !**a).map(|(i, _)| i)
    }
}
