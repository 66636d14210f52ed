//! The boundaries between epochs: the only calls that lock, and that may wait.

use super::provisional::Undo;
use super::{ARM_FLAG, Aborted, Comm, RUNS_FLAG, Role, WAIT_BEFORE_LOG};
use agreement::epoch::arm_code;
use agreement::{CallAction, Epoch, Member, SlotView};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A call that waits looks for the verdict at least this often; a message wakes it at once.
const VERDICT_POLL: Duration = Duration::from_millis(50);

/// State used only at boundaries and by the worker, behind a lock.
#[derive(Debug, Default)]
pub(super) struct BoundaryState {
    pub(super) member: Member,
    /// What this rank has seen of each slot, ascending by slot, and in how many calls.
    pub(super) views: Vec<(SlotView, u64)>,
    /// The longest wait for a verdict, and the number of waits.
    pub(super) waited: Duration,
    pub(super) waits: u64,
    /// Calls that wait for a verdict now, also while they write to the log.
    pub(super) waiting: u32,
    /// When the wait of a call began.
    pub(super) waiting_since: Option<Instant>,
    /// The communicator has ended: calls no longer wait.
    pub(super) ended: bool,
    /// The epoch in force, installed or about to be.
    pub(super) in_force: Option<Arc<Epoch>>,
    /// Committed epochs that were installed in a group which turned out to be simulated: they apply again from their first call.
    pub(super) again: VecDeque<Arc<Epoch>>,
    /// The state before the open group, if that crossed a boundary.
    pub(super) undo: Option<Undo>,
}

impl BoundaryState {
    /// The next call at which the arms may change.
    pub(super) fn boundary(&self) -> u64 {
        self.again.front().map_or(u64::MAX, |e| e.from_call).min(self.member.boundary())
    }

    fn action_at(&mut self, call: u64) -> CallAction {
        match self.again.front() {
            Some(e) if call >= e.from_call => self.again.pop_front().map_or(CallAction::Proceed, CallAction::Switch),
            _ => self.member.action_at(call),
        }
    }
}

impl Comm {
    /// At a boundary: installs the epochs that apply from this call on; waits if this rank is bound and the verdict is unknown.
    #[cold]
    pub(super) fn cross_boundary(&self, number: u64, log: impl Fn(&str)) -> Result<(), Aborted> {
        let mut boundary_state = self.boundary_state();
        let mut since: Option<Instant> = None;
        let mut said = false;
        let mut aborted = false;
        loop {
            match boundary_state.action_at(number) {
                CallAction::Proceed => break,
                CallAction::Switch(epoch) => {
                    self.remember_before_switch(&mut boundary_state, &epoch);
                    self.install(Some(&epoch));
                    boundary_state.in_force = Some(epoch);
                }
                CallAction::Wait if boundary_state.ended => {
                    aborted = true;
                    break;
                }
                CallAction::Wait => {
                    if since.is_none() {
                        boundary_state.waiting += 1;
                    }
                    let begin = *since.get_or_insert_with(Instant::now);
                    boundary_state.waiting_since = Some(begin);
                    if begin.elapsed() >= WAIT_BEFORE_LOG && !said {
                        said = true;
                        let epoch = boundary_state.member.bound_to().map_or(0, |e| e.number);
                        // A log that nothing reads may hang: the worker, which needs the lock, must not wait for it.
                        drop(boundary_state);
                        log(&format!(
                            "communicator {:016x} rank {}: call {number} waits for the verdict on epoch {epoch}; \
                             if the leading rank has ended, the job cannot continue",
                            self.id, self.rank
                        ));
                        boundary_state = self.boundary_state();
                        continue;
                    }
                    boundary_state = match self.verdict.wait_timeout(boundary_state, VERDICT_POLL) {
                        Ok((guard, _)) => guard,
                        Err(e) => e.into_inner().0,
                    };
                }
            }
        }
        if let Some(begin) = since {
            boundary_state.waiting -= 1;
            boundary_state.waiting_since = None;
            boundary_state.waited = boundary_state.waited.max(begin.elapsed());
            boundary_state.waits += 1;
        }
        self.boundary.store(boundary_state.boundary(), Ordering::SeqCst);
        if boundary_state.ended {
            self.verdict.notify_all();
        }
        if aborted { Err(Aborted) } else { Ok(()) }
    }

    /// Puts an epoch in force; `None`: AUTO, as before the first one.
    pub(super) fn install(&self, epoch: Option<&Epoch>) {
        for s in &self.slots {
            s.store(0, Ordering::Relaxed);
        }
        let mut cells = self.cells.iter().enumerate();
        let agreed = epoch.map_or(&[][..], |e| &e.plans);
        let plans = if self.role == Role::Follow && !agreed.is_empty() { &self.table } else { agreed };
        for plan in plans {
            let value = match plan.runs.is_empty() {
                true if plan.settled.is_auto() => 0,
                true => ARM_FLAG | arm_code(plan.settled),
                false => match cells.next() {
                    Some((i, cell)) => {
                        cell.set(plan);
                        RUNS_FLAG | i as u32
                    }
                    None => 0, // over the limit; `Epoch::read` rejects such epochs
                },
            };
            if let Some(s) = self.slots.get(plan.slot.index()) {
                s.store(value, Ordering::Relaxed);
            }
        }
        self.epoch.store(epoch.map_or(0, |e| e.number), Ordering::Relaxed);
    }
}
