//! The rank that proposes epochs and decides on them.

mod rate;
#[cfg(test)]
mod tests;

pub use rate::{AHEAD_MAX, AHEAD_MIN, RECOVERY_US};

use crate::digest::{CHECKPOINT_CALLS, CallDigest};
use crate::{Epoch, SlotPlan, ToLeader, ToMember};
use rate::{Rate, aligned};
use std::sync::Arc;

/// Interval at which unanswered messages are repeated, microseconds. An open connection loses nothing; repeats replace messages lost with a
/// connection.
pub const REPEAT_US: u64 = 100_000;
/// Age at which a proposal without all acknowledgements is aborted if there is no lead, microseconds.
pub const GIVE_UP_US: u64 = 2_000_000;
/// Age at which a question without all answers is dropped, microseconds. A question binds no member.
pub const ASK_GIVE_UP_US: u64 = 10_000_000;
/// Interval at which ranks are asked for their digests while arms are in force, microseconds.
pub const CHECK_US: u64 = 10_000_000;
/// An epoch lapses after this many leads unless it is renewed: one minute of calls with a lead of 5 s.
pub const LEASE_LEADS: u64 = 12;
/// A renewal begins this many leads before the lapse.
pub const RENEW_LEADS: u64 = 4;
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Stage {
    Idle,
    /// Every member is asked whether it could run the epoch. The answer binds no member.
    Asked {
        epoch: Arc<Epoch>,
        since_us: u64,
    },
    /// Members that acknowledge are bound.
    Proposed {
        epoch: Arc<Epoch>,
        since_us: u64,
    },
    Decided {
        epoch: Arc<Epoch>,
        commit: bool,
    },
}

/// Ranks count different calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Difference {
    /// The number of calls after which their digests differ.
    pub calls: u64,
    /// Positions in the roster.
    pub members: [usize; 2],
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
/// The owner calls [`propose`](Leader::propose), passes every member's message to [`on_message`](Leader::on_message), tells its own count of calls to
/// [`note_begun`](Leader::note_begun) and calls [`tick`](Leader::tick) regularly. Times are microseconds of any one clock. They decide how far ahead a
/// proposal is, when messages are repeated and when a proposal is aborted; safety does not depend on them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leader {
    stage: Stage,
    /// By position in the roster: whether this member has answered the message of the current stage.
    answered: Vec<bool>,
    missing: usize,
    last_number: u64,
    /// The largest number of begun calls that any member has reported.
    farthest: u64,
    /// By position: the last reported number of begun calls.
    begun: Vec<u64>,
    rate: Rate,
    /// Least calls from the farthest rank to a proposal's first call. A refusal doubles it, a commit shrinks it by one eighth.
    ahead: u64,
    ahead_min: u64,
    /// Time from a proposal to its first call, by the measured rate of calls; 0: as near as `ahead` says.
    lead_us: u64,
    /// Epochs lapse unless renewed: after this many calls, or as the lead says.
    lapses: bool,
    lease_calls: Option<u64>,
    /// Ask before proposing.
    asks: bool,
    repeat_us: u64,
    give_up_us: u64,
    sent_us: u64,
    checked_us: u64,
    /// A call with which a training step begins, and the calls of a step: proposals begin with a step.
    align: Option<(u64, u64)>,
    ended: Option<EndedProposal>,
    /// The last committed epoch, while it neither has lapsed nor means AUTO.
    in_force: Option<Arc<Epoch>>,
    lapsed: bool,
    /// Epochs are no longer renewed.
    stopped: bool,
    /// A member has left: no epoch is proposed from then on.
    closed: bool,
    left: Vec<bool>,
    /// The number of calls at which digests are compared, and the first that arrived.
    check: (u64, Option<(CallDigest, usize)>),
    checkpoint_calls: u64,
    difference: Option<Difference>,
    differs: bool,
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
            begun: vec![0; members],
            rate: Rate::default(),
            ahead: 4 * AHEAD_MIN,
            ahead_min: AHEAD_MIN,
            lead_us: 0,
            lapses: true,
            lease_calls: None,
            asks: true,
            repeat_us,
            give_up_us,
            sent_us: 0,
            checked_us: 0,
            align: None,
            ended: None,
            in_force: None,
            lapsed: false,
            stopped: false,
            closed: false,
            left: vec![false; members],
            check: (0, None),
            checkpoint_calls: CHECKPOINT_CALLS,
            difference: None,
            differs: false,
        }
    }

    /// Sets the distance, in calls, from the farthest rank to the first proposal's first call.
    pub fn ahead(mut self, calls: u64) -> Self {
        self.ahead = calls.min(AHEAD_MAX);
        self.ahead_min = self.ahead_min.min(self.ahead);
        self
    }

    /// Proposals begin this much later, by the measured rate of calls, and lapse after [`LEASE_LEADS`] times as many calls unless renewed. Nothing is
    /// proposed before the rate is known. 0, the default: as near as possible, and they do not lapse.
    pub fn lead(mut self, lead_us: u64) -> Self {
        self.lead_us = lead_us;
        if lead_us > 0 {
            self.give_up_us = lead_us / 2;
        }
        self
    }

    /// Epochs lapse after this many calls, whatever the lead.
    pub fn lease_calls(mut self, calls: u64) -> Self {
        self.lease_calls = Some(calls);
        self
    }

    /// Digests are kept at multiples of this number of calls, for models with few calls.
    pub fn compare_every(mut self, calls: u64) -> Self {
        self.checkpoint_calls = calls.max(1);
        self
    }

    /// Epochs do not lapse, although there is a lead.
    pub fn without_lease(mut self) -> Self {
        self.lapses = false;
        self
    }

    /// Proposes without asking first, as earlier versions did: for tests that compare.
    pub fn without_question(mut self) -> Self {
        self.asks = false;
        self
    }

    /// Later proposals begin with a training step: one begins with this call, and every step has this many calls.
    pub fn align(&mut self, step: Option<(u64, u64)>) {
        self.align = step.filter(|s| s.1 > 0);
    }

    /// No proposal or verdict is in progress.
    pub fn is_idle(&self) -> bool {
        self.stage == Stage::Idle
    }

    /// A member has left, or ranks count different calls: no epoch is proposed from then on.
    pub fn is_closed(&self) -> bool {
        self.closed || self.differs
    }

    /// The largest number of begun calls that any member has reported.
    pub fn farthest(&self) -> u64 {
        self.farthest
    }

    /// The leader's own rank has begun so many calls.
    pub fn note_begun(&mut self, begun: u64) {
        self.farthest = self.farthest.max(begun);
    }

    /// Renews no epoch from now on: the epoch in force lapses, even if some members cannot be reached. A proposal of AUTO is still possible.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Calls per second, as the largest of recent windows; 0 if unknown.
    pub fn rate_per_s(&self) -> u64 {
        self.rate.per_s()
    }

    /// Proposes plans that will apply from a call which, by the leader's knowledge, no member has begun. `send` gets (position in the roster, message).
    /// Returns `None` while another proposal is in progress. The first call is fixed when all members are ready: see [`EndedProposal`].
    pub fn propose(
        &mut self,
        plans: Vec<SlotPlan>,
        begun_here: u64,
        now_us: u64,
        mut send: impl FnMut(usize, ToMember),
    ) -> Option<Arc<Epoch>> {
        if !self.is_idle() || self.closed || self.differs {
            return None;
        }
        self.note_begun(begun_here);
        self.last_number += 1;
        let epoch = Epoch::new(self.last_number, u64::MAX, plans);
        Some(self.ask(epoch, now_us, &mut send))
    }

    /// Asks all members, or proposes at once if that is the rule.
    fn ask(&mut self, mut epoch: Epoch, now_us: u64, send: &mut impl FnMut(usize, ToMember)) -> Arc<Epoch> {
        epoch.check_at = self.begin_check(now_us);
        let epoch = Arc::new(epoch);
        self.stage = Stage::Asked { epoch: epoch.clone(), since_us: now_us };
        if self.asks {
            self.begin_stage(now_us, send);
        } else {
            self.missing = 0;
            self.propose_if_ready(now_us, send);
        }
        epoch
    }

    /// All members are ready: fixes the first call and proposes, if that call can be far enough ahead.
    fn propose_if_ready(&mut self, now_us: u64, send: &mut impl FnMut(usize, ToMember)) {
        let Stage::Asked { epoch, .. } = &self.stage else { return };
        if self.missing > 0 || (self.lead_us > 0 && self.rate.per_s() == 0) {
            return;
        }
        let mut epoch = Epoch::clone(epoch);
        // All members have just said how many calls they have begun: the acknowledgements compare digests there.
        epoch.check_at = self.begin_check(now_us);
        let distance = self.rate.distance(self.lead_us, self.ahead);
        if !epoch.renews {
            epoch.from_call = aligned(self.farthest + distance, self.align);
        } else if epoch.from_call < self.farthest + distance {
            return self.drop_question(); // too late: it lapses
        }
        let by_lead = (self.lead_us > 0 && self.lapses).then(|| distance.saturating_mul(LEASE_LEADS));
        if let Some(calls) = self.lease_calls.or(by_lead).filter(|_| epoch.renews || !epoch.plans.is_empty()) {
            epoch.until_call = epoch.from_call.saturating_add(calls);
        }
        if self.differs {
            epoch.until_call = u64::MAX;
        }
        self.stage = Stage::Proposed { epoch: Arc::new(epoch), since_us: now_us };
        self.begin_stage(now_us, send);
    }

    /// Ends the question. It has bound no member, so no member is told.
    fn drop_question(&mut self) {
        if let Stage::Asked { epoch, .. } = std::mem::replace(&mut self.stage, Stage::Idle)
            && !epoch.renews
        {
            self.ended = Some(EndedProposal { epoch, committed: false });
        }
        self.answered.fill(true);
        self.missing = 0;
    }

    fn begin_stage(&mut self, now_us: u64, send: &mut impl FnMut(usize, ToMember)) {
        self.answered.clone_from(&self.left);
        self.missing = self.answered.iter().filter(|a| !**a).count();
        self.send_pending(now_us, send);
    }

    /// Sends the message of the current stage to every member that has not answered it.
    fn send_pending(&mut self, now_us: u64, send: &mut impl FnMut(usize, ToMember)) {
        let message = match &self.stage {
            Stage::Idle => return,
            Stage::Asked { epoch, .. } => ToMember::Ask(epoch.clone()),
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
        if matches!(self.stage, Stage::Asked { .. }) {
            return self.drop_question();
        }
        if let Stage::Proposed { epoch, .. } = &self.stage {
            let epoch = epoch.clone();
            self.ahead = match commit {
                true => (self.ahead - self.ahead / 8).max(self.ahead_min),
                false => (self.ahead * 2).min(AHEAD_MAX),
            };
            if commit {
                let lapses = epoch.until_call < u64::MAX;
                self.in_force = lapses.then(|| epoch.clone());
            }
            if !epoch.renews {
                self.ended = Some(EndedProposal { epoch: epoch.clone(), committed: commit });
            }
            self.stage = Stage::Decided { epoch, commit };
            self.begin_stage(now_us, send);
            self.end_if_confirmed();
        }
    }

    fn end_if_confirmed(&mut self) {
        if self.missing == 0 && matches!(self.stage, Stage::Decided { .. }) {
            self.stage = Stage::Idle;
        }
    }

    /// Handles a message of the member at position `from`. O(members) when it completes a stage, else O(1).
    pub fn on_message(&mut self, from: usize, message: &ToLeader, now_us: u64, mut send: impl FnMut(usize, ToMember)) {
        if from >= self.answered.len() {
            return;
        }
        let (epoch, begun) = match message {
            ToLeader::Ready { epoch, begun, .. }
            | ToLeader::Ack { epoch, begun, .. }
            | ToLeader::Refuse { epoch, begun }
            | ToLeader::Confirm { epoch, begun } => (*epoch, *begun),
            ToLeader::Status { begun, .. } => (0, *begun),
            ToLeader::Left => return self.on_left(from, now_us, &mut send),
            ToLeader::Readings(_) | ToLeader::Stop => return,
        };
        self.farthest = self.farthest.max(begun);
        if let Some(b) = self.begun.get_mut(from) {
            *b = begun.max(*b);
        }
        if let ToLeader::Ready { digest: Some(d), .. }
        | ToLeader::Ack { digest: Some(d), .. }
        | ToLeader::Status { digest: Some(d), .. } = message
        {
            self.compare(from, *d, now_us, &mut send);
        }
        match (&self.stage, message) {
            (Stage::Asked { epoch: e, .. }, ToLeader::Ready { .. }) if e.number == epoch => {
                self.answer(from);
                self.propose_if_ready(now_us, &mut send);
            }
            (Stage::Asked { epoch: e, .. }, ToLeader::Refuse { .. }) if e.number == epoch => {
                self.drop_question();
            }
            (Stage::Proposed { epoch: e, .. }, ToLeader::Ack { .. }) if e.number == epoch => {
                self.answer(from);
                if self.missing == 0 {
                    self.decide(true, now_us, &mut send);
                }
            }
            (Stage::Proposed { epoch: e, .. }, ToLeader::Refuse { .. }) if e.number == epoch => {
                let (is_late, ahead) = (begun > e.from_call, self.ahead); // calls 0 to begun - 1 have begun
                self.decide(false, now_us, &mut send);
                if !is_late {
                    self.ahead = ahead; // refused for another reason: a later call would not help
                }
            }
            (Stage::Decided { epoch: e, .. }, ToLeader::Confirm { .. }) if e.number == epoch => {
                self.answer(from);
                self.end_if_confirmed();
            }
            _ => {}
        }
    }

    /// A member makes no more calls, and neither will the others: an undecided epoch is void, and no other is proposed.
    fn on_left(&mut self, from: usize, now_us: u64, send: &mut impl FnMut(usize, ToMember)) {
        self.closed = true;
        if let Some(left) = self.left.get_mut(from) {
            *left = true;
        }
        self.decide(false, now_us, send);
        self.answer(from);
        self.end_if_confirmed();
    }

    /// Notes an answer. True if it is the member's first one in this stage.
    fn answer(&mut self, from: usize) -> bool {
        let first = self.answered.get_mut(from).filter(|a| !**a).map(|a| *a = true).is_some();
        self.missing -= usize::from(first);
        first
    }

    /// Chooses the number of calls at which digests are compared next: one that all members have reported.
    fn begin_check(&mut self, now_us: u64) -> u64 {
        self.checked_us = now_us;
        let begun = self.begun.iter().copied().min().unwrap_or(0);
        self.check = (begun - begun % self.checkpoint_calls, None);
        self.check.0
    }

    fn compare(&mut self, from: usize, d: CallDigest, now_us: u64, send: &mut impl FnMut(usize, ToMember)) {
        if d.calls != self.check.0 || self.differs {
            return;
        }
        let (first, member) = *self.check.1.get_or_insert((d, from));
        if !first.agrees(d) {
            self.differs = true;
            self.difference = Some(Difference { calls: d.calls, members: [member, from] });
            // No arms may change: ranks would change them at different calls. A renewal changes none.
            let changes = match &self.stage {
                Stage::Asked { epoch, .. } | Stage::Proposed { epoch, .. } => !epoch.renews,
                _ => false,
            };
            if changes {
                self.decide(false, now_us, send);
            }
        }
    }

    /// Call regularly. Repeats unanswered messages, aborts a proposal after its time limit, renews what would lapse and compares digests.
    pub fn tick(&mut self, now_us: u64, mut send: impl FnMut(usize, ToMember)) {
        if self.lead_us > 0 {
            self.rate.note(self.farthest, now_us, self.lead_us);
        }
        if let Some(e) = &self.in_force
            && self.farthest >= e.until_call
            && !matches!(&self.stage, Stage::Proposed { epoch, .. } if epoch.renews)
        {
            self.in_force = None;
            self.lapsed = true;
        }
        let age = |since_us: u64| now_us.saturating_sub(since_us);
        match &self.stage {
            Stage::Asked { since_us, .. } if self.missing > 0 && age(*since_us) >= ASK_GIVE_UP_US.max(self.lead_us) => {
                self.drop_question();
            }
            Stage::Asked { .. } if self.missing == 0 => self.propose_if_ready(now_us, &mut send),
            Stage::Proposed { since_us, .. } if age(*since_us) >= self.give_up_us => {
                self.decide(false, now_us, &mut send);
            }
            Stage::Idle => self.renew_or_check(now_us, &mut send),
            _ if age(self.sent_us) >= self.repeat_us => self.send_pending(now_us, &mut send),
            _ => {}
        }
    }

    fn renew_or_check(&mut self, now_us: u64, send: &mut impl FnMut(usize, ToMember)) {
        let Some(e) = self.in_force.clone() else { return };
        let distance = self.rate.distance(self.lead_us, self.ahead);
        // Ranks that count different calls must not reach the lapse: the epoch is renewed at once, without an end.
        let near = self.differs || self.farthest + distance.saturating_mul(RENEW_LEADS) >= e.until_call;
        if near && !self.stopped && !self.closed && self.farthest + distance <= e.until_call {
            self.last_number += 1;
            let renewal = Epoch { renews: true, ..Epoch::new(self.last_number, e.until_call, Vec::new()) };
            self.ask(renewal, now_us, send);
        } else if now_us.saturating_sub(self.checked_us) >= CHECK_US {
            let at = self.begin_check(now_us);
            (0..self.answered.len())
                .filter(|i| !self.left.get(*i).copied().unwrap_or(true))
                .for_each(|i| send(i, ToMember::Check { at }));
        }
    }

    /// Aborts a proposal that is not decided, so that no member waits for a leader that leaves.
    pub fn abort_undecided(&mut self, now_us: u64, mut send: impl FnMut(usize, ToMember)) {
        self.closed = true;
        self.decide(false, now_us, &mut send);
    }

    /// The outcome of the last proposal; each outcome is returned once. Renewals are not reported.
    pub fn take_ended(&mut self) -> Option<EndedProposal> {
        self.ended.take()
    }

    /// True, once, after the epoch in force has lapsed: all ranks are at AUTO, or will be at the same call.
    pub fn take_lapsed(&mut self) -> bool {
        std::mem::take(&mut self.lapsed)
    }

    /// The first difference between ranks' digests, once. From then on nothing is proposed, not even AUTO: ranks that count different calls would
    /// change at different calls. The arms in force stay, and their epoch is renewed without an end.
    pub fn take_difference(&mut self) -> Option<Difference> {
        self.difference.take()
    }

    /// Positions of the members that have not answered.
    pub fn unanswered(&self) -> impl Iterator<Item = usize> + '_ {
        self.answered.iter().enumerate().filter(|(_, a)| !**a).map(|(i, _)| i)
    }
}
