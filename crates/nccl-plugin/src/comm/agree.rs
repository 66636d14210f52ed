//! A rank's side of the agreement, between calls: what the leader says, and, of a job, who follows it.

use super::{Comm, Slow, lock};
use agreement::{Epoch, Member, Slot, ToLeader, ToMember};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Comm {
    /// Takes a message of the leader; gives the answer: of a job, that of all its communicators here.
    pub fn hear(&self, message: &ToMember) -> Option<ToLeader> {
        let followers = lock(&self.followers); // nobody joins in between
        let all = || std::iter::once(self).chain(followers.iter().map(Arc::as_ref));
        if let ToMember::Propose(e) = message {
            // Visible before `begun` is read: see `next`.
            all().for_each(|c| _ = c.border.fetch_min(e.from_call, Ordering::SeqCst));
        }
        let begun = all().map(|c| c.begun.load(Ordering::SeqCst)).max().unwrap_or(0);
        for follower in followers.iter() {
            follower.answer(message, begun);
        }
        // The strictest of them: it hears the same with the same count, and holds all that was ever committed.
        self.answer(message, begun)
    }

    fn answer(&self, message: &ToMember, begun: u64) -> Option<ToLeader> {
        let mut slow = self.slow();
        let Slow { member, masks, .. } = &mut *slow;
        let answer = member.on(message, begun, |epoch| possible(epoch, masks));
        self.border.store(slow.member.border(), Ordering::SeqCst);
        drop(slow);
        self.verdict.notify_all();
        answer
    }

    /// From now on a communicator changes when this job does. It has not made a call.
    pub fn lead(&self, follower: &Arc<Comm>) {
        let mut followers = lock(&self.followers);
        let member = self.slow().member.clone();
        follower.border.store(member.border(), Ordering::SeqCst);
        follower.slow().member = member;
        followers.push(follower.clone());
    }

    /// A follower makes no calls any more. Those that it made still count: another rank may not have made them yet.
    pub fn release(&self, follower: &Arc<Comm>) {
        let mut followers = lock(&self.followers);
        followers.retain(|f| !Arc::ptr_eq(f, follower));
        self.begun.fetch_max(follower.begun(), Ordering::SeqCst);
    }

    /// It has acknowledged a proposal and does not know the verdict.
    pub fn is_bound(&self) -> bool {
        self.slow().member.bound_to().is_some()
    }

    /// The next call is one that waits for a verdict.
    pub fn would_wait(&self) -> bool {
        let slow = self.slow();
        slow.member.bound_to().is_some_and(|e| self.begun.load(Ordering::SeqCst) >= e.from_call)
    }

    /// No proposal ever reached it.
    pub fn is_fresh(&self) -> bool {
        self.slow().member == Member::default()
    }
}

/// Every arm that is to be tried was among the possible entries of its slot, as far as this rank has seen the slot. An arm without runs
/// comes from a table: where a call cannot have it that call stays as it is ([`Costs::prefer`]), on all ranks, for their cost tables are alike.
fn possible(epoch: &Epoch, masks: &[(Slot, u32)]) -> bool {
    epoch.plans.iter().filter(|plan| !plan.runs.is_empty()).all(|plan| {
        let mask = masks.iter().find(|(s, _)| *s == plan.slot).map_or(u32::MAX, |(_, m)| *m);
        let arms = plan.runs.iter().map(|r| r.arm).chain([plan.settled]);
        arms.filter_map(crate::costs::entry_of).all(|i| mask >> i & 1 == 1)
    })
}
