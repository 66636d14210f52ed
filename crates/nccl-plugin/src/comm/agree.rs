//! A rank's side of the agreement, between calls: what the leader says, and, of a job, who follows it.

use super::{Comm, Slow, lock};
use agreement::{Epoch, Member, Slot, ToLeader, ToMember};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

impl Comm {
    /// Takes a message of the leader; gives the answer: of a job, that of all its communicators here.
    pub fn hear(&self, message: &ToMember) -> Option<ToLeader> {
        let followers = lock(&self.followers); // nobody joins in between
        let all: Vec<&Comm> = std::iter::once(self).chain(followers.iter().map(Arc::as_ref)).collect();
        // All of them, from before the border is visible until the answer is known: a call that sees the border waits in `cross` for what the
        // member says, and a call that is at an earlier border does not put this one out of sight.
        let mut held: Vec<MutexGuard<'_, Slow>> = all.iter().map(|c| c.slow()).collect();
        if let ToMember::Propose(e) = message {
            // Visible before `begun` is read: see `next`.
            all.iter().for_each(|c| _ = c.border.fetch_min(e.from_call, Ordering::SeqCst));
        }
        let begun = all.iter().map(|c| c.begun.load(Ordering::SeqCst)).max().unwrap_or(0);
        let mut answers = all.iter().zip(&mut held).map(|(c, slow)| {
            let Slow { member, masks, .. } = &mut **slow;
            let answer = member.on(message, begun, |epoch| possible(epoch, masks));
            c.border.store(member.border(), Ordering::SeqCst);
            answer
        });
        // The strictest of them: it hears the same with the same count, and holds all that was ever committed.
        let answer = answers.next().flatten();
        answers.for_each(drop);
        drop(held);
        all.iter().for_each(|c| c.verdict.notify_all());
        answer
    }

    /// The communicator ends, perhaps while a call of it waits for a verdict (`ncclCommAbort` from another thread). That call goes on at once
    /// with the arms in force, whatever becomes of it, and has left when this returns (or a second has passed). Says whether there was one.
    pub fn end(&self) -> bool {
        let mut slow = self.slow();
        slow.ended = true;
        self.verdict.notify_all();
        let waited = slow.waiting > 0;
        let left = self.verdict.wait_timeout_while(slow, Duration::from_secs(1), |s| s.waiting > 0);
        drop(left);
        waited
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
