//! A rank's side of the agreement between calls: messages of the leader and, for the job, its followers.

use super::{ABORT_GRACE, BoundaryState, Comm, Role, lock};
use crate::views::{CALLS_BEFORE_VIEW, can_use, leaves_auto};
use agreement::{Epoch, Member, Slot, SlotView, ToLeader, ToMember};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

impl Comm {
    /// Handles a message of the leader and returns the answer; for the job, on behalf of all its communicators in this process.
    pub fn on_message(&self, message: &ToMember) -> Option<ToLeader> {
        let followers = lock(&self.followers); // no communicator can join meanwhile
        let all: Vec<&Comm> = std::iter::once(self).chain(followers.iter().map(Arc::as_ref)).collect();
        // All locks are held from before the boundary is visible until the answer is known: a call that sees the boundary waits in `cross_boundary`,
        // and a call at an earlier boundary cannot overwrite this one.
        let mut held: Vec<MutexGuard<'_, BoundaryState>> = all.iter().map(|c| c.boundary_state()).collect();
        if let ToMember::Propose(e) = message {
            // Visible before `begun` is read: see `next_arm`.
            all.iter().for_each(|c| _ = c.boundary.fetch_min(e.from_call, Ordering::SeqCst));
        }
        let begun = all.iter().map(|c| c.begun.load(Ordering::SeqCst)).max().unwrap_or(0);
        let mut answers = all.iter().zip(&mut held).map(|(c, boundary_state)| {
            let BoundaryState { member, views, again, .. } = &mut **boundary_state;
            let can_run = |epoch: &Epoch| match message {
                ToMember::Ask(_) => true, // the views say what is possible
                _ => again.back().is_none_or(|a| a.from_call < epoch.from_call) && possible(epoch, views),
            };
            let mut answer = member.on_message(message, begun, can_run);
            c.complete(&mut answer, message, views);
            c.boundary.store(boundary_state.boundary(), Ordering::SeqCst);
            answer
        });
        // The job's own answer is the strictest: the job gets the same message with the same count, and knows every
        // epoch that was ever committed.
        let answer = answers.next().flatten();
        answers.for_each(drop);
        drop(held);
        all.iter().for_each(|c| c.verdict.notify_all());
        answer
    }

    /// Adds this rank's digest and views to an answer of its member.
    fn complete(&self, answer: &mut Option<ToLeader>, to: &ToMember, views: &[(SlotView, u64)]) {
        let digest_at = |calls| self.digest.at(calls).filter(|_| self.role != Role::Job);
        match (answer, to) {
            (Some(ToLeader::Ready { digest, slots, .. }), ToMember::Ask(e)) => {
                *digest = digest_at(e.check_at);
                *slots = e.plans.iter().filter_map(|p| view_of(views, p.slot)).collect();
            }
            (Some(ToLeader::Ack { digest, .. }), ToMember::Propose(e)) => *digest = digest_at(e.check_at),
            (Some(ToLeader::Status { digest, .. }), ToMember::Check { at }) => *digest = digest_at(*at),
            _ => {}
        }
    }

    /// The communicator ends, perhaps while one of its calls waits for a verdict (`ncclCommAbort` from another thread). That call fails at once
    /// ([`Aborted`](super::Aborted)) and has left NCCL, or had [`ABORT_GRACE`] to do so, when this returns: NCCL then frees what the call uses. Returns
    /// whether there was such a call.
    pub fn end(&self) -> bool {
        let mut boundary_state = self.boundary_state();
        boundary_state.ended = true;
        self.verdict.notify_all();
        let waited = boundary_state.waiting > 0;
        if !waited && !self.launched.load(Ordering::Relaxed) {
            self.begun.store(self.begun_before.load(Ordering::Relaxed), Ordering::SeqCst);
        }
        let left = self.verdict.wait_timeout_while(boundary_state, Duration::from_secs(1), |s| s.waiting > 0);
        drop(left);
        if waited {
            std::thread::sleep(ABORT_GRACE);
        }
        waited
    }

    /// From now on the communicator, which has made no call, changes when this job does.
    pub fn add_follower(&self, follower: &Arc<Comm>) {
        let mut followers = lock(&self.followers);
        let member = self.boundary_state().member.clone();
        follower.boundary.store(member.boundary(), Ordering::SeqCst);
        follower.boundary_state().member = member;
        followers.push(follower.clone());
    }

    /// The follower makes no more calls. Its calls still count: another rank may not have made them yet.
    pub fn remove_follower(&self, follower: &Arc<Comm>) {
        let mut followers = lock(&self.followers);
        followers.retain(|f| !Arc::ptr_eq(f, follower));
        self.begun.fetch_max(follower.begun(), Ordering::SeqCst);
    }

    /// The rank has acknowledged a proposal and does not know the verdict.
    pub fn is_bound(&self) -> bool {
        self.boundary_state().member.bound_to().is_some()
    }

    /// The next call would wait for a verdict.
    pub fn would_wait(&self) -> bool {
        let boundary_state = self.boundary_state();
        boundary_state.member.bound_to().is_some_and(|e| self.begun.load(Ordering::SeqCst) >= e.from_call)
    }

    /// No proposal has ever reached the rank.
    pub fn is_fresh(&self) -> bool {
        self.boundary_state().member == Member::default()
    }
}

fn view_of(views: &[(SlotView, u64)], slot: Slot) -> Option<SlotView> {
    let (view, calls) = views.get(views.binary_search_by_key(&slot, |(v, _)| v.slot).ok()?)?;
    (*calls >= CALLS_BEFORE_VIEW).then_some(*view)
}

/// True if this rank has seen every slot that leaves AUTO and has all its arms.
fn possible(epoch: &Epoch, views: &[(SlotView, u64)]) -> bool {
    epoch.plans.iter().filter(|p| leaves_auto(p)).all(|p| view_of(views, p.slot).is_some_and(|view| can_use(p, &view)))
}
