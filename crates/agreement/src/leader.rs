//! The rank that proposes epochs and decides on them.

use crate::digest::{CHECKPOINT_CALLS, CallDigest};
use crate::{Epoch, SlotPlan, ToLeader, ToMember};
use std::sync::Arc;

/// Least distance, in calls, from the farthest rank to the first call of a proposal.
pub const AHEAD_MIN: u64 = 4;
/// Largest such distance, in calls.
pub const AHEAD_MAX: u64 = 1 << 20;

/// Interval at which unanswered messages are repeated, microseconds. An open connection loses nothing; repeats replace messages lost with a
/// connection.
pub const REPEAT_US: u64 = 100_000;
/// Age at which a proposal without all acknowledgements is aborted if there is no lead, microseconds.
pub const GIVE_UP_US: u64 = 2_000_000;
/// Age at which a question without all answers is dropped, microseconds. A question binds no member.
pub const ASK_GIVE_UP_US: u64 = 10_000_000;
/// Time from the end of a cut of the network until messages pass again: a new connection attempt, 1 s, and a repetition. Added to the lead.
pub const RECOVERY_US: u64 = 1_500_000;
/// Interval at which ranks are asked for their digests while arms are in force, microseconds.
pub const CHECK_US: u64 = 10_000_000;
/// An epoch lapses after this many leads unless it is renewed: one minute of calls with a lead of 5 s.
pub const LEASE_LEADS: u64 = 12;
/// A renewal begins this many leads before the lapse.
pub const RENEW_LEADS: u64 = 4;
/// Longest window over which the rate of calls is measured, microseconds; shorter with a short lead.
const WINDOW_US_MAX: u64 = 5_000_000;
/// The first window ends after this time, microseconds, if it has so many calls.
const FIRST_WINDOW_US: u64 = 1_000_000;
const FIRST_WINDOW_CALLS: u64 = 64;
/// Windows in a row whose rates are within a tenth of the largest recent one, after which the rate counts as steady.
const STEADY_WINDOWS: u32 = 2;
/// The distance of a proposal in percent of what the rate says, for a rate that may rise and for a steady one.
const MARGIN_PERCENT: u128 = 150;
const MARGIN_STEADY_PERCENT: u128 = 110;

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

/// The rate of calls of the farthest rank, calls per second, as the largest of recent windows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Rate {
    /// Begin of the window: time and calls.
    since: Option<(u64, u64)>,
    per_s: u64,
    /// Windows in a row like the largest recent one.
    steady: u32,
}

impl Rate {
    fn note(&mut self, calls: u64, now_us: u64, window_us: u64) {
        let (since_us, before) = *self.since.get_or_insert((now_us, calls));
        let us = now_us.saturating_sub(since_us);
        let is_first = self.per_s == 0 && calls - before >= FIRST_WINDOW_CALLS && us >= FIRST_WINDOW_US;
        if us >= window_us.max(1) || is_first {
            let now = u128::from(calls - before) * 1_000_000 / u128::from(us);
            let is_like = now * 10 >= u128::from(self.per_s) * 9 && now * 9 <= u128::from(self.per_s) * 10;
            self.steady = if is_like { self.steady.saturating_add(1) } else { 0 };
            // An eighth less per window: a job that became slow is believed after some windows, a pause between bursts is not.
            self.per_s = (self.per_s - self.per_s / 8).max(now.min(u128::from(AHEAD_MAX)) as u64);
            self.since = Some((now_us, calls));
        }
    }
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
    /// No epoch is renewed any more.
    stopped: bool,
    /// A member has left: nothing is proposed any more.
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

    /// A member has left, or ranks count different calls: no arms are proposed any more.
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

    /// Renews nothing any more: what is in force lapses, even if some members cannot be reached. A proposal of AUTO is still possible.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Calls per second, as the largest of recent windows; 0 if unknown.
    pub fn rate_per_s(&self) -> u64 {
        self.rate.per_s
    }

    /// Calls from the farthest rank to a proposal's first call.
    fn distance(&self) -> u64 {
        let us = u128::from(self.lead_us + if self.lead_us > 0 { RECOVERY_US.min(self.lead_us) } else { 0 });
        let percent = if self.rate.steady >= STEADY_WINDOWS { MARGIN_STEADY_PERCENT } else { MARGIN_PERCENT };
        let calls = u128::from(self.rate.per_s) * us * percent / 100_000_000;
        self.ahead.max(calls.min(u128::from(AHEAD_MAX)) as u64)
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
        if self.missing > 0 || (self.lead_us > 0 && self.rate.per_s == 0) {
            return;
        }
        let mut epoch = Epoch::clone(epoch);
        // All members have just said how many calls they have begun: the acknowledgements compare digests there.
        epoch.check_at = self.begin_check(now_us);
        let distance = self.distance();
        if !epoch.renews {
            epoch.from_call = self.aligned(self.farthest + distance);
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

    /// A member makes no more calls, so no other will either: what is undecided is void, and nothing more is proposed.
    fn on_left(&mut self, from: usize, now_us: u64, send: &mut impl FnMut(usize, ToMember)) {
        self.closed = true;
        if let Some(left) = self.left.get_mut(from) {
            *left = true;
        }
        self.decide(false, now_us, send);
        self.answer(from);
        self.end_if_confirmed();
    }

    /// True if it is the member's first answer in this stage.
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
            // No arms change any more, because ranks would change them at different calls. A renewal changes none.
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
            self.rate.note(self.farthest, now_us, self.lead_us.min(WINDOW_US_MAX));
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
        let distance = self.distance();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Member;
    use crate::Slot;
    use tune::{Algorithm, Arm, Collective, Protocol};

    const LEAD_US: u64 = 1_000_000;

    fn slot() -> Slot {
        Slot::of(Collective::AllReduce, 1 << 20)
    }

    fn plans() -> Vec<SlotPlan> {
        vec![SlotPlan { slot: slot(), runs: Vec::new(), settled: Arm::new(Algorithm::Tree, Protocol::Ll) }]
    }

    /// A leader and its members without a network; every member has begun the same number of calls.
    struct Job {
        leader: Leader,
        members: Vec<Member>,
        begun: u64,
        now_us: u64,
        /// Members that hear nothing.
        cut: Vec<usize>,
        /// Calls that this member has counted and NCCL has not launched. All calls are equal, so all hashes are.
        counted_too_much: Vec<u64>,
    }

    impl Job {
        fn new(leader: Leader, members: usize) -> Self {
            Job {
                leader,
                members: vec![Member::default(); members],
                begun: 0,
                now_us: 0,
                cut: Vec::new(),
                counted_too_much: vec![0; members],
            }
        }

        fn deliver(&mut self, mut out: Vec<(usize, ToMember)>) {
            while let Some((to, message)) = out.pop() {
                if self.cut.contains(&to) {
                    continue;
                }
                let Some(mut answer) = self.members[to].on_message(&message, self.begun, |_| true) else { continue };
                let at = match &message {
                    ToMember::Ask(e) | ToMember::Propose(e) => e.check_at,
                    ToMember::Check { at } => *at,
                    _ => 0,
                };
                if let ToLeader::Ready { digest, .. } | ToLeader::Ack { digest, .. } | ToLeader::Status { digest, .. } =
                    &mut answer
                {
                    *digest = Some(CallDigest {
                        calls: at,
                        hash: 7,
                        sequence: if at == 0 { 0 } else { at - self.counted_too_much[to] },
                    });
                }
                self.leader.on_message(to, &answer, self.now_us, |to, m| out.push((to, m)));
            }
        }

        /// Calls at 1,000 per second for a time, with ticks of 10 ms.
        fn run(&mut self, us: u64) {
            let until = self.now_us + us;
            while self.now_us < until {
                self.now_us += 10_000;
                self.begun += 10;
                for (i, member) in self.members.iter_mut().enumerate() {
                    while let crate::CallAction::Switch(_) = member.action_at(self.begun) {}
                    assert_ne!(member.action_at(self.begun), crate::CallAction::Wait, "member {i}");
                }
                let mut out = Vec::new();
                self.leader.note_begun(self.begun);
                self.leader.tick(self.now_us, |to, m| out.push((to, m)));
                self.deliver(out);
            }
        }

        fn propose(&mut self, plans: Vec<SlotPlan>) -> bool {
            let mut out = Vec::new();
            let proposed = self.leader.propose(plans, self.begun, self.now_us, |to, m| out.push((to, m))).is_some();
            self.deliver(out);
            proposed
        }
    }

    fn with_lead(members: usize) -> Job {
        Job::new(Leader::new(members, REPEAT_US, GIVE_UP_US).lead(LEAD_US), members)
    }

    #[test]
    fn a_proposal_begins_a_lead_ahead_by_the_measured_rate_and_not_before_it_is_known() {
        let mut job = with_lead(2);
        assert!(job.propose(plans()));
        job.run(LEAD_US / 2);
        assert!(
            job.leader.take_ended().is_none() && job.members[1].bound_to().is_none(),
            "no rate yet, so no member is bound"
        );
        job.run(LEAD_US);
        let ended = job.leader.take_ended().unwrap();
        assert!(ended.committed && job.leader.is_idle());
        let calls = ended.epoch.from_call - 1000; // about a second after the start
        assert!((1000..4000).contains(&calls), "{calls} calls at 1,000 a second");
        assert!(ended.epoch.until_call > ended.epoch.from_call + 10 * calls / 2, "{ended:?}");
    }

    #[test]
    fn what_is_in_force_is_renewed_while_all_can_be_reached_and_lapses_when_one_cannot() {
        let mut job = with_lead(3);
        job.propose(plans());
        job.run(60 * LEAD_US);
        assert!(job.leader.in_force.as_ref().is_some_and(|e| e.renews), "renewed several times");
        assert!(!job.leader.take_lapsed());
        job.cut = vec![2];
        job.run(60 * LEAD_US); // no call waits meanwhile: see `run`
        assert!(job.leader.take_lapsed());
        assert!(job.members.iter().all(|m| m.boundary() == u64::MAX), "all lapsed, the silent one too");
        job.cut.clear();
        assert!(job.leader.is_idle() || job.leader.in_force.is_none());
    }

    #[test]
    fn after_a_stop_arms_lapse_although_a_member_cannot_be_reached() {
        let mut job = with_lead(3);
        job.propose(plans());
        job.run(5 * LEAD_US);
        job.leader.take_ended().unwrap();
        job.cut = vec![1];
        job.leader.stop();
        job.propose(Vec::new());
        job.run(60 * LEAD_US);
        assert!(job.leader.take_lapsed());
        assert!(job.members.iter().all(|m| m.boundary() == u64::MAX && m.bound_to().is_none()));
    }

    #[test]
    fn a_member_that_has_left_voids_what_is_undecided_at_once_and_nothing_follows() {
        let mut job = Job::new(Leader::new(3, REPEAT_US, GIVE_UP_US).without_question(), 3);
        job.cut = vec![2];
        job.propose(plans());
        assert!(job.members[1].bound_to().is_some());
        let mut out = Vec::new();
        job.leader.on_message(2, &ToLeader::Left, 0, |to, m| out.push((to, m)));
        job.deliver(out);
        assert!(job.members[1].bound_to().is_none() && job.leader.is_idle() && job.leader.is_closed());
        assert!(!job.leader.take_ended().unwrap().committed);
        assert!(!job.propose(plans()));
    }

    #[test]
    fn members_that_leave_one_after_another_while_they_are_asked_leave_no_answer_open() {
        let mut leader = Leader::new(3, REPEAT_US, GIVE_UP_US);
        leader.propose(plans(), 0, 0, |_, _| {});
        for from in [1, 2, 1] {
            leader.on_message(from, &ToLeader::Left, 0, |_, _| {});
            assert_eq!((leader.missing, leader.unanswered().count()), (0, 0));
        }
        assert!(leader.is_idle() && leader.is_closed());
    }

    #[test]
    fn a_refusal_moves_later_proposals_further_ahead_only_if_the_first_call_has_begun() {
        let refused_with = |begun_beyond: u64| {
            let mut leader = Leader::new(2, REPEAT_US, GIVE_UP_US).without_question();
            let e = leader.propose(plans(), 0, 0, |_, _| {}).map(|e| e.number).unwrap();
            let Stage::Proposed { epoch, .. } = &leader.stage else { panic!("{leader:?}") };
            let begun = epoch.from_call + begun_beyond;
            let before = leader.ahead;
            leader.on_message(1, &ToLeader::Refuse { epoch: e, begun }, 0, |_, _| {});
            leader.ahead / before
        };
        assert_eq!(refused_with(0), 1, "call N has not begun: a member refuses for another reason");
        assert_eq!(refused_with(1), 2);
    }

    #[test]
    fn a_rank_that_counts_one_call_or_one_period_too_many_is_found_and_no_arms_change_any_more() {
        for too_many in [1, 8] {
            let mut job = with_lead(3);
            job.propose(plans());
            job.run(5 * LEAD_US);
            assert!(job.leader.take_ended().unwrap().committed && job.leader.take_difference().is_none());
            job.counted_too_much[2] = too_many;
            job.run(CHECK_US + LEAD_US);
            let d = job.leader.take_difference().unwrap();
            assert!(
                d.members.contains(&2) && d.calls > 0 && d.calls.is_multiple_of(crate::digest::CHECKPOINT_CALLS),
                "{d:?}"
            );
            assert_eq!(job.leader.take_difference(), None, "said once");
            job.run(60 * LEAD_US);
            assert!(!job.leader.take_lapsed() && !job.propose(Vec::new()), "neither a lapse nor AUTO");
            assert!(job.members.iter().all(|m| m.boundary() == u64::MAX), "no call remains at which arms change");
        }
    }

    #[test]
    fn a_rank_that_has_miscounted_since_the_last_message_gets_no_arms() {
        let mut job = with_lead(3);
        job.run(2 * LEAD_US); // 2,000 calls, of which the leader has heard nothing from the others
        job.counted_too_much[1] = 1;
        assert!(job.propose(plans()));
        job.run(10 * LEAD_US);
        assert!(job.leader.take_difference().is_some_and(|d| d.members.contains(&1) && d.calls > 0));
        assert!(!job.leader.take_ended().unwrap().committed);
        assert!(job.members.iter().all(|m| m.boundary() == u64::MAX && m.bound_to().is_none()));
    }
}
