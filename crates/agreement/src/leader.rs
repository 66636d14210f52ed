//! The rank that proposes and decides.

use crate::{Epoch, KeyPlan, ToLeader, ToMember};
use std::sync::Arc;

/// The least number of calls between the farthest rank and the first call of a proposal.
pub const AHEAD_MIN: u64 = 4;
/// The most.
pub const AHEAD_MAX: u64 = 1 << 20;

/// When a message that is not answered is repeated, microseconds. Connections lose nothing while they stand, so this is for those that broke.
pub const REPEAT_US: u64 = 100_000;
/// When a proposal that not everybody acknowledges is given up, microseconds.
pub const GIVE_UP_US: u64 = 2_000_000;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Stage {
    Idle,
    Proposed { epoch: Arc<Epoch>, since_us: u64 },
    Decided { epoch: Arc<Epoch>, commit: bool },
}

/// How a proposal ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ended {
    /// The epoch.
    pub epoch: Arc<Epoch>,
    /// In force, or void.
    pub committed: bool,
}

/// The leader's part of the agreement. See the crate's drawing. Times are microseconds of any one clock and decide only when messages are
/// repeated and when a proposal is given up: never what is safe.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leader {
    stage: Stage,
    /// Who has answered the message of the stage, by position in the roster.
    answered: Vec<bool>,
    missing: usize,
    last_number: u64,
    /// The most calls that any member has said to have begun.
    farthest: u64,
    /// Calls between the farthest rank and a proposal's first call: doubled by every refusal.
    ahead: u64,
    ahead_min: u64,
    repeat_us: u64,
    give_up_us: u64,
    sent_us: u64,
    ended: Option<Ended>,
}

impl Leader {
    /// Of so many members (one of them itself). Repeats unanswered messages after `repeat_us` and gives a proposal up after `give_up_us`.
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
            ended: None,
        }
    }

    /// The first proposal is so many calls ahead of the farthest rank.
    pub fn ahead(mut self, calls: u64) -> Self {
        self.ahead = calls.min(AHEAD_MAX);
        self.ahead_min = self.ahead_min.min(self.ahead);
        self
    }

    /// Nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.stage == Stage::Idle
    }

    /// The most calls that any member is known to have begun.
    pub fn farthest(&self) -> u64 {
        self.farthest
    }

    /// Proposes plans from a call that no member has begun as far as is known. Messages go to `send` (position in the roster, message).
    /// `None` while something else is under way.
    pub fn propose(
        &mut self,
        plans: Vec<KeyPlan>,
        begun_here: u64,
        now_us: u64,
        mut send: impl FnMut(usize, ToMember),
    ) -> Option<Arc<Epoch>> {
        if !self.is_idle() {
            return None;
        }
        self.farthest = self.farthest.max(begun_here);
        self.last_number += 1;
        let epoch = Arc::new(Epoch { number: self.last_number, from_call: self.farthest + self.ahead, plans });
        self.stage = Stage::Proposed { epoch: epoch.clone(), since_us: now_us };
        self.begin_stage(now_us, &mut send);
        Some(epoch)
    }

    fn begin_stage(&mut self, now_us: u64, send: &mut impl FnMut(usize, ToMember)) {
        self.answered.fill(false);
        self.missing = self.answered.len();
        self.say(now_us, send);
    }

    /// Says the message of the stage to everybody who has not answered it.
    fn say(&mut self, now_us: u64, send: &mut impl FnMut(usize, ToMember)) {
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
            self.ended = Some(Ended { epoch: epoch.clone(), committed: commit });
            self.stage = Stage::Decided { epoch, commit };
            self.begin_stage(now_us, send);
        }
    }

    /// Takes what a member said.
    pub fn on(&mut self, from: usize, message: &ToLeader, now_us: u64, mut send: impl FnMut(usize, ToMember)) {
        let (epoch, begun) = match message {
            ToLeader::Ack { epoch, begun } | ToLeader::Refuse { epoch, begun } | ToLeader::Confirm { epoch, begun } => {
                (*epoch, *begun)
            }
            ToLeader::Samples(_) | ToLeader::Stop => return,
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

    /// Time passes: repeats what was not answered, gives up a proposal that not everybody acknowledges.
    pub fn tick(&mut self, now_us: u64, mut send: impl FnMut(usize, ToMember)) {
        if let Stage::Proposed { since_us, .. } = self.stage
            && now_us.saturating_sub(since_us) >= self.give_up_us
        {
            self.decide(false, now_us, &mut send);
        } else if now_us.saturating_sub(self.sent_us) >= self.repeat_us {
            self.say(now_us, &mut send);
        }
    }

    /// Voids what is proposed and not decided: nobody must wait for a leader that leaves.
    pub fn leave(&mut self, now_us: u64, mut send: impl FnMut(usize, ToMember)) {
        self.decide(false, now_us, &mut send);
    }

    /// How the last proposal ended, said once.
    pub fn ended(&mut self) -> Option<Ended> {
        self.ended.take()
    }

    /// Positions of members that have not answered.
    pub fn silent(&self) -> impl Iterator<Item = usize> + '_ {
        self.answered.iter().enumerate().filter(|(_, a)| !**a).map(|(i, _)| i)
    }
}
