//! The runs of one slot in the epoch in force. Only the thread that makes the communicator's calls writes them.

use agreement::SlotPlan;
use agreement::epoch::{RUNS_MAX, arm_code, arm_of_code};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tune::Arm;

/// The arms of a slot with runs.
#[derive(Debug, Default)]
pub(super) struct RunCell {
    /// Calls of the slot in the epoch so far.
    k: AtomicU64,
    /// `arm` applies to calls below this number.
    until: AtomicU64,
    arm: AtomicU32,
    settled: AtomicU32,
    run: AtomicU32,
    /// The last group with a call of the slot, and `k` before that group.
    group: AtomicU64,
    k_before: AtomicU64,
    runs: [(AtomicU32, AtomicU32); RUNS_MAX],
}

impl RunCell {
    pub(super) fn set(&self, plan: &SlotPlan) {
        let settled = arm_code(plan.settled);
        self.settled.store(settled, Ordering::Relaxed);
        for (i, (arm, calls)) in self.runs.iter().enumerate() {
            let run = plan.runs.get(i);
            arm.store(run.map_or(settled, |r| arm_code(r.arm)), Ordering::Relaxed);
            calls.store(run.map_or(0, |r| r.calls), Ordering::Relaxed);
        }
        self.k.store(0, Ordering::Relaxed);
        self.until.store(0, Ordering::Relaxed);
        self.run.store(0, Ordering::Relaxed);
        self.group.store(0, Ordering::Relaxed);
    }

    /// The arm of the next call, which is in this group, and the call's number in the epoch.
    #[inline]
    pub(super) fn next_call(&self, group: u64) -> (Arm, u64) {
        let k = self.k.load(Ordering::Relaxed);
        if self.group.load(Ordering::Relaxed) != group {
            self.group.store(group, Ordering::Relaxed);
            self.k_before.store(k, Ordering::Relaxed);
        }
        self.k.store(k + 1, Ordering::Relaxed);
        while k >= self.until.load(Ordering::Relaxed) {
            self.next_run();
        }
        (arm_of_code(self.arm.load(Ordering::Relaxed)).unwrap_or(Arm::AUTO), k)
    }

    /// The number of calls before this group.
    pub(super) fn calls_before(&self, group: u64) -> u64 {
        let of = if self.group.load(Ordering::Relaxed) == group { &self.k_before } else { &self.k };
        of.load(Ordering::Relaxed)
    }

    /// The next call is number `k` of the epoch; the next question finds its run.
    pub(super) fn go_back_to(&self, k: u64) {
        self.k.store(k, Ordering::Relaxed);
        self.until.store(0, Ordering::Relaxed);
        self.run.store(0, Ordering::Relaxed);
        self.group.store(0, Ordering::Relaxed);
    }

    /// The arm after the runs.
    pub(super) fn settled(&self) -> Arm {
        arm_of_code(self.settled.load(Ordering::Relaxed)).unwrap_or(Arm::AUTO)
    }

    /// Starts the next run, or the arm after the runs.
    #[cold]
    fn next_run(&self) {
        let run = self.run.fetch_add(1, Ordering::Relaxed) as usize;
        let (arm, calls) =
            self.runs.get(run).map_or((0, 0), |(a, c)| (a.load(Ordering::Relaxed), c.load(Ordering::Relaxed)));
        if calls == 0 {
            self.arm.store(self.settled.load(Ordering::Relaxed), Ordering::Relaxed);
            self.until.store(u64::MAX, Ordering::Relaxed);
        } else {
            self.arm.store(arm, Ordering::Relaxed);
            self.until.store(self.until.load(Ordering::Relaxed) + u64::from(calls), Ordering::Relaxed);
        }
    }
}
