//! Questions that are no calls: `ncclGroupSimulateEnd` asks the tuner, too, and launches nothing. It needs no other rank, so a planner on one rank
//! may call it at any time. If its questions counted, that rank would change arms at other calls than the rest: NCCL hangs.
//!
//! From 2.28 on NCCL tells its profiler about every outermost group and, before `ncclGroupEnd` returns, about every kernel that it launches for a
//! group, also into a CUDA graph. No launch follows a simulated group. So the numbers of a group's questions are provisional until its launch: if
//! the next question comes from another group, the numbers, the runs and the boundaries of the earlier group are taken back, and the worker never sees its decisions.
//!
//! With non-blocking communicators NCCL does launch the groups that `ncclGroupSimulateEnd` ends (2.28.9 and 2.32.3 on the bench): they are calls.
//! Ranks that simulate different groups there would differ.
//!
//! A communicator's questions and launches come one after the other, also from the threads of non-blocking communicators. A proposal may arrive in
//! between: the number of begun calls that answers it is then too high at most, which refuses a proposal that was possible and never the reverse.

use super::{BoundaryState, Comm};
use agreement::Epoch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The state before the open group crossed its first boundary.
#[derive(Debug)]
pub(super) struct Undo {
    group: u64,
    in_force: Option<Arc<Epoch>>,
    /// Calls of the epoch in force before the group, by cell.
    calls: Vec<u64>,
    /// The epochs that began in the group.
    begun: Vec<Arc<Epoch>>,
}

impl Comm {
    /// From now on NCCL reports groups ([`set_group`](Comm::set_group)) and their launches ([`on_launch`](Comm::on_launch)).
    pub fn set_tells_launches(&self) {
        self.tells_launches.store(true, Ordering::Relaxed);
    }

    /// NCCL reports that the next calls belong to this outermost group of the process. A new number, not 0, begins a group.
    pub fn set_group(&self, number: u64) {
        if self.group.swap(number, Ordering::Relaxed) != number && self.timed.load(Ordering::Relaxed) {
            self.group_ns.store(self.now_ns(), Ordering::Relaxed);
        }
    }

    /// NCCL launches a kernel of this group: its questions were calls.
    pub fn on_launch(&self, group: u64) {
        if self.asked_group.load(Ordering::Relaxed) == group {
            self.launched.store(true, Ordering::Relaxed);
            self.digest.confirm(self.begun.load(Ordering::Relaxed));
            self.ring.publish();
        }
    }

    /// NCCL reports a call or a launch whose group is not known: the handle of its group was lost, for example in the site profiler's pool. The next
    /// questions count as calls of a group of their own, `Some(number)`, and a launch, `None`, as that of the last questions, because a rank that took
    /// back what it launched would count other calls than the rest. A simulated group can no longer be told from a launched one, so the
    /// communicator's arms must not change any more: see [`has_lost_a_group`](Comm::has_lost_a_group).
    pub fn on_lost_group(&self, next: Option<u64>) {
        self.lost_group.store(true, Ordering::Relaxed);
        match next {
            Some(number) => self.set_group(number),
            None => self.on_launch(self.asked_group.load(Ordering::Relaxed)),
        }
    }

    /// Once true, it stays true.
    pub fn has_lost_a_group(&self) -> bool {
        self.lost_group.load(Ordering::Relaxed)
    }

    /// NCCL reports that the group of the last calls has been launched and the next calls belong to another one: releases that do not report groups.
    pub fn end_group(&self) {
        self.group.fetch_add(1, Ordering::Relaxed);
    }

    /// The next questions count only once their group is launched.
    #[inline]
    pub(super) fn is_provisional(&self) -> bool {
        self.tells_launches.load(Ordering::Relaxed) && self.group.load(Ordering::Relaxed) != 0
    }

    /// A question: the first of its group settles the group before.
    #[inline]
    pub(super) fn enter_group(&self) {
        let group = self.group.load(Ordering::Relaxed);
        if group == self.asked_group.load(Ordering::Relaxed) {
            return;
        }
        if !self.launched.load(Ordering::Relaxed) {
            self.take_group_back();
        }
        self.asked_group.store(group, Ordering::Relaxed);
        self.launched.store(false, Ordering::Relaxed);
        self.begun_before.store(self.begun.load(Ordering::Relaxed), Ordering::Relaxed);
        self.digest.begin_group();
    }

    /// The group of the last questions was simulated.
    #[cold]
    fn take_group_back(&self) {
        let group = self.asked_group.load(Ordering::Relaxed);
        let mut state = self.boundary_state();
        match state.undo.take().filter(|u| u.group == group) {
            Some(undo) => {
                self.install(undo.in_force.as_deref());
                for (cell, calls) in self.cells.iter().zip(undo.calls) {
                    cell.go_back_to(calls);
                }
                state.in_force = undo.in_force;
                for epoch in undo.begun.into_iter().rev() {
                    state.again.push_front(epoch);
                }
            }
            None => {
                for cell in &self.cells {
                    cell.go_back_to(cell.calls_before(group));
                }
            }
        }
        self.ring.discard();
        self.digest.take_group_back(self.begun_before.load(Ordering::Relaxed));
        // The boundary first: a proposal that sees the lower number must not find the boundary of an epoch that no longer began.
        self.boundary.store(state.boundary(), Ordering::SeqCst);
        self.begun.store(self.begun_before.load(Ordering::Relaxed), Ordering::SeqCst);
    }

    /// An epoch is about to begin at a question whose group may be simulated.
    pub(super) fn remember_before_switch(&self, state: &mut BoundaryState, next: &Arc<Epoch>) {
        if !self.is_provisional() {
            return;
        }
        let group = self.asked_group.load(Ordering::Relaxed);
        if state.undo.as_ref().is_none_or(|u| u.group != group) {
            let calls = self.cells.iter().map(|c| c.calls_before(group)).collect();
            state.undo = Some(Undo { group, in_force: state.in_force.clone(), calls, begun: Vec::new() });
        }
        if let Some(undo) = &mut state.undo {
            undo.begun.push(next.clone());
        }
    }
}
