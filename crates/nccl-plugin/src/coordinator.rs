//! Coordinates the epochs of a communicator on the rank that leads it: one policy per slot, the plans of the next epoch, and the readings of all
//! ranks.
//!
//! The worker calls [`on_call`](EpochCoordinator::on_call) for each call of the leader's rank, [`on_message`](EpochCoordinator::on_message) for each
//! message of a member and [`tick`](EpochCoordinator::tick) at every poll. A proposal must be committed before its plans count; a plan that is void
//! is reported to its policies as calls without a time.

use crate::rewards::{Reduced, Reduction};
use crate::views::{Asking, can_use};
use agreement::epoch::{RUN_SLOTS_MAX, RUNS_MAX};
use agreement::leader::Difference;
use agreement::leader::{GIVE_UP_US, REPEAT_US};
use agreement::{ArmRun, Leader, RankReading, Slot, SlotPlan, TimeSource, ToLeader, ToMember};
use std::collections::BTreeMap;
use tune::{Algorithm, Arm, Context, Policy, Protocol, Reading};

/// A new epoch may begin this long after the first slot has used up its runs, microseconds.
const STRAGGLER_WAIT_US: u64 = 200_000;
/// The coordinator waits this long after the last planned call for its readings, microseconds.
const READING_WAIT_US: u64 = 300_000;
/// Calls of a slot before it gets a policy.
const CALLS_BEFORE_POLICY: u64 = 2;

/// Builds a policy for the arms of a slot.
pub type PolicyBuilder = Box<dyn Fn(&[Arm], Slot) -> Option<Box<dyn Policy>> + Send>;

/// A slot with a policy.
struct SlotState {
    policy: Box<dyn Policy>,
    arms: Vec<Arm>,
    /// Decisions of the policy so far.
    decided: u64,
    /// Indices of the arms of calls 0, 1, ... of the epoch in force. They are the policy's decisions from number `first` on.
    planned: Vec<usize>,
    first: u64,
    /// Calls of the epoch seen so far.
    used: u64,
    /// Times that judge arms, of calls that not all ranks have reported.
    times: Reduction,
    /// GPU times, for the trace only.
    kernels: Reduction,
    /// The previous epoch and its arms: its GPU times may still arrive.
    previous: (u64, Vec<usize>),
    /// By call of the epoch: the policy knows the time, or that there is none.
    received: Vec<bool>,
}

/// A slot that has no policy yet.
#[derive(Debug, Clone, Copy)]
struct SlotObservation {
    calls: u64,
    mask: u32,
    autos: u32,
}

/// The source of the arms of an epoch.
pub enum CoordinatorMode {
    /// A fixed table, proposed once.
    Fixed(Vec<SlotPlan>),
    /// One policy per slot.
    Learn {
        build: PolicyBuilder,
        /// Calls per slot and epoch.
        calls: u32,
        /// Also try algorithms that the communicator does not use at AUTO.
        explore_all: bool,
        /// GPU times judge the arms.
        by_kernel: bool,
    },
}

/// When exploring ends for good: `freeze_after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreezeAfter {
    /// After so many calls of the communicator.
    Calls(u64),
    /// After so many microseconds of the worker.
    Us(u64),
}

impl FreezeAfter {
    fn is_over(self, calls: u64, now_us: u64) -> bool {
        match self {
            FreezeAfter::Calls(n) => calls >= n,
            FreezeAfter::Us(us) => now_us >= us,
        }
    }
}

impl std::str::FromStr for FreezeAfter {
    type Err = String;

    /// `5000` calls, or `90s`, `10min`, `2h`.
    fn from_str(text: &str) -> Result<Self, String> {
        let units = [("min", 60), ("s", 1), ("h", 3600)];
        let (number, seconds) =
            units.iter().find_map(|(unit, s)| Some((text.strip_suffix(unit)?, *s))).unwrap_or((text, 0));
        let number: Option<u64> = number.trim().parse().ok().filter(|n| (1..=1 << 40).contains(n));
        match number {
            Some(n) if seconds == 0 => Ok(FreezeAfter::Calls(n)),
            Some(n) => Ok(FreezeAfter::Us(n.saturating_mul(seconds * 1_000_000))),
            None => Err(format!("`{text}` is not a number of calls (5000) or a time (90s, 10min, 2h)")),
        }
    }
}

/// See the module documentation.
pub struct EpochCoordinator {
    leader: Leader,
    members: usize,
    mode: CoordinatorMode,
    observed: BTreeMap<Slot, SlotObservation>,
    slots: BTreeMap<Slot, SlotState>,
    /// Bit set of algorithms that AUTO has used: their connections exist.
    connected: u8,
    in_force: u64,
    pending: Option<PendingPlans>,
    stopped: bool,
    /// The epoch that returns to AUTO after a stop, proposed or in force.
    stop_epoch: Option<u64>,
    freeze_after: Option<FreezeAfter>,
    /// The epoch without runs, proposed or in force.
    freeze_epoch: Option<u64>,
    left: bool,
    first_exhausted_us: Option<u64>,
    /// Time of the last call of the epoch in force that its plan covers.
    last_planned_us: u64,
    learned: Vec<LearnedTime>,
    step_reports: StepReports,
    asking: Asking,
    /// In [`CoordinatorMode::Fixed`]: the part of the table in force.
    fixed: Vec<SlotPlan>,
}

/// Whether the program reports its steps.
///
/// `Unknown` until the first reading. From `Absent` a step leads to `JustBegun`, in which the next tick rebuilds the policies; then `Present`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepReports {
    /// No reading yet.
    Unknown,
    /// Policies have learned from intervals.
    Absent,
    /// Steps have begun to arrive: the policies must start afresh.
    JustBegun,
    /// Policies learn from steps.
    Present,
}

/// The time of a call, reduced over all ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearnedTime {
    pub slot: Slot,
    pub arm: Arm,
    pub source: TimeSource,
    pub time_us: f64,
}

/// The arms by slot that apply if the proposal is committed.
struct PendingPlans {
    /// The plans of a fixed table.
    fixed: Vec<SlotPlan>,
    planned: BTreeMap<Slot, Vec<usize>>,
}

/// A message to the member at a position in the roster.
pub type Outgoing = (usize, ToMember);

impl EpochCoordinator {
    /// A coordinator for a communicator of `members` ranks.
    pub fn new(members: usize, mode: CoordinatorMode) -> Self {
        EpochCoordinator {
            leader: Leader::new(members, REPEAT_US, GIVE_UP_US),
            members,
            mode,
            observed: BTreeMap::new(),
            slots: BTreeMap::new(),
            connected: 0,
            in_force: 0,
            pending: None,
            stopped: false,
            stop_epoch: None,
            freeze_after: None,
            freeze_epoch: None,
            left: false,
            first_exhausted_us: None,
            last_planned_us: 0,
            learned: Vec::new(),
            step_reports: StepReports::Unknown,
            asking: Asking::new(members),
            fixed: Vec::new(),
        }
    }

    /// The leader's own rank has made a call.
    pub fn on_call(&mut self, d: &crate::comm::CallDecision, now_us: u64) {
        let slot = d.slot();
        let concerns = match &self.mode {
            CoordinatorMode::Fixed(table) => table.iter().any(|p| p.slot == slot),
            CoordinatorMode::Learn { .. } => true,
        };
        if concerns {
            self.asking.on_call(slot, d.mask, d.auto);
        }
        if let Some((a, _)) = crate::cost_table::entry(d.auto) {
            self.connected |= 1 << a as u8;
        }
        let observed = self.observed.entry(slot).or_insert(SlotObservation { calls: 0, mask: d.mask, autos: 0 });
        observed.calls += 1;
        observed.mask &= d.mask;
        observed.autos |= 1u32.checked_shl(d.auto.into()).unwrap_or(0);
        if let Some(slot_state) = self.slots.get_mut(&slot).filter(|_| d.counted && d.epoch == self.in_force) {
            slot_state.used = slot_state.used.max(d.k + 1);
            if d.k < slot_state.planned.len() as u64 {
                self.last_planned_us = now_us;
            }
            if slot_state.used >= slot_state.planned.len() as u64 {
                self.first_exhausted_us.get_or_insert(now_us);
            }
        }
    }

    /// Handles a message of the member at position `from`.
    pub fn on_message(&mut self, from: usize, message: &ToLeader, now_us: u64, out: &mut Vec<Outgoing>) {
        match message {
            ToLeader::Readings(all) => all.iter().for_each(|s| self.on_reading(from, s)),
            ToLeader::Stop => self.stop(),
            ToLeader::Ready { slots, .. } => {
                for view in slots {
                    if self.asking.views.add(from, view) {
                        self.drop_impossible(view.slot);
                    }
                }
                self.leader.on_message(from, message, now_us, |to, m| out.push((to, m)));
            }
            m => self.leader.on_message(from, m, now_us, |to, m| out.push((to, m))),
        }
        self.apply_outcome();
    }

    /// Proposals begin this much later, and lapse unless renewed: see [`Leader::lead`].
    pub fn with_lead(mut self, lead_us: u64, lapses: bool) -> Self {
        self.leader = self.leader.lead(lead_us);
        if !lapses {
            self.leader = self.leader.without_lease();
        }
        self
    }

    /// AUTO for the rest of the job: at the next call that all ranks agree on, and where some cannot be reached, when the epoch in force lapses.
    pub fn stop(&mut self) {
        self.stopped = true;
        self.leader.stop();
    }

    /// The first difference between the calls that two ranks count, once. The communicator returns to AUTO for good.
    pub fn take_difference(&mut self) -> Option<Difference> {
        let difference = self.leader.take_difference()?;
        self.stop();
        Some(difference)
    }

    /// The epoch in force has lapsed, or will at a call that all ranks know: another one may follow.
    fn apply_lapse(&mut self) {
        if self.leader.take_lapsed() {
            let lapsed = std::mem::take(&mut self.in_force);
            self.fixed.clear();
            self.slots.values_mut().for_each(|slot_state| slot_state.finish_epoch(lapsed));
        }
    }

    fn apply_outcome(&mut self) {
        let Some(ended) = self.leader.take_ended() else { return };
        let Some(p) = self.pending.take() else { return };
        if !ended.committed {
            self.asking.ask_again(ended.epoch.plans.iter().map(|plan| plan.slot));
            // The planned calls will not run with these arms.
            for (slot, planned) in p.planned {
                if let Some(slot_state) = self.slots.get_mut(&slot) {
                    slot_state.discard(slot_state.decided - planned.len() as u64, &planned);
                }
            }
            return;
        }
        let previous = std::mem::replace(&mut self.in_force, ended.epoch.number);
        self.fixed = p.fixed;
        self.first_exhausted_us = None;
        for (slot, planned) in p.planned {
            if let Some(slot_state) = self.slots.get_mut(&slot) {
                slot_state.finish_epoch(previous);
                slot_state.first = slot_state.decided - planned.len() as u64;
                slot_state.received = vec![false; planned.len()];
                slot_state.planned = planned;
            }
        }
    }

    /// Handles one rank's time of a call. A time that judges arms goes to the policy; other GPU times go to the trace.
    fn on_reading(&mut self, from: usize, s: &RankReading) {
        let (members, in_force) = (self.members, self.in_force);
        let by_kernel = matches!(self.mode, CoordinatorMode::Learn { by_kernel: true, .. });
        let Some(slot_state) = self.slots.get_mut(&s.slot) else { return };
        if s.source == TimeSource::Kernel && !by_kernel {
            let ran = if s.epoch == slot_state.previous.0 { &slot_state.previous.1 } else { &slot_state.planned };
            let arm = ran.get(s.k as usize).filter(|_| s.epoch == in_force || s.epoch == slot_state.previous.0);
            let Some(arm) = arm.and_then(|a| slot_state.arms.get(*a)).copied() else { return };
            if let Reduced::Time(time_us) = slot_state.kernels.add(from, members, s) {
                self.learned.push(LearnedTime { slot: s.slot, arm, source: s.source, time_us });
            }
            return;
        }
        if s.epoch != in_force || s.k >= slot_state.planned.len() as u64 {
            return;
        }
        match slot_state.times.add(from, members, s) {
            Reduced::Waiting => {}
            Reduced::NoTime => _ = slot_state.learn(s.k, None),
            Reduced::Time(time_us) => {
                if let Some(arm) = slot_state.learn(s.k, Some(time_us)) {
                    self.learned.push(LearnedTime { slot: s.slot, arm, source: s.source, time_us });
                }
                self.step_reports = match (s.source, self.step_reports) {
                    (TimeSource::Interval | TimeSource::Calls, StepReports::Unknown) => StepReports::Absent,
                    (TimeSource::Step, StepReports::Unknown) => StepReports::Present,
                    (TimeSource::Step, StepReports::Absent) => StepReports::JustBegun,
                    (_, as_before) => as_before,
                };
            }
        }
    }

    /// Policies that have learned from intervals cannot use steps, so they start afresh.
    fn restart_policies(&mut self) {
        let CoordinatorMode::Learn { build, .. } = &self.mode else { return };
        for (slot, slot_state) in &mut self.slots {
            if let Some(policy) = build(&slot_state.arms, *slot) {
                (slot_state.policy, slot_state.decided, slot_state.used) = (policy, 0, 0);
                slot_state.previous = (self.in_force, std::mem::take(&mut slot_state.planned));
                slot_state.received.clear();
                slot_state.times = Reduction::default();
            }
        }
    }

    /// Repeats messages, and proposes an epoch when one is due. Must be called regularly.
    pub fn tick(&mut self, begun_here: u64, now_us: u64, out: &mut Vec<Outgoing>) {
        self.leader.note_begun(begun_here);
        self.leader.tick(now_us, |to, m| out.push((to, m)));
        self.apply_outcome();
        self.apply_lapse();
        if !self.leader.is_idle() || self.leader.is_closed() || self.left {
            return;
        }
        if let Some(question) = self.asking.due(now_us).filter(|_| !self.stopped) {
            out.extend((0..self.members).map(|to| (to, question.clone())));
        }
        let mut fixed = Vec::new();
        let mut freezes = false;
        let (plans, planned) = if self.stopped {
            if self.stop_epoch == Some(self.in_force) {
                return; // AUTO is in force for the rest of the job
            }
            Default::default()
        } else if let CoordinatorMode::Fixed(table) = &self.mode {
            fixed = self.asking.views.usable(table);
            if fixed == self.fixed {
                return;
            }
            (fixed.clone(), BTreeMap::new())
        } else if self.freeze_after.is_some_and(|f| f.is_over(begun_here, now_us)) {
            if self.is_frozen() {
                return; // the arms found stay
            }
            freezes = true;
            (self.settled_plans(), BTreeMap::new())
        } else {
            if self.step_reports == StepReports::JustBegun {
                self.step_reports = StepReports::Present;
                self.restart_policies();
            }
            self.create_policies();
            if self.slots.is_empty() || !self.is_due(now_us) {
                return;
            }
            self.plan_epoch()
        };
        self.pending = Some(PendingPlans { fixed, planned });
        let epoch = self.leader.propose(plans, begun_here, now_us, |to, m| out.push((to, m)));
        if self.stopped {
            self.stop_epoch = epoch.map(|e| e.number);
        } else if freezes {
            self.freeze_epoch = epoch.map(|e| e.number);
        }
    }

    /// A rank has an arm no longer: the slot's policy begins again with those that are left.
    fn drop_impossible(&mut self, slot: Slot) {
        let Some(view) = self.asking.views.of_all(slot) else { return };
        let plan = |arm: &Arm| SlotPlan { slot, runs: Vec::new(), settled: *arm };
        if self.slots.get(&slot).is_some_and(|s| !s.arms.iter().all(|arm| can_use(&plan(arm), &view))) {
            self.slots.remove(&slot);
        }
    }

    /// The arm in use of every slot, without runs.
    fn settled_plans(&self) -> Vec<SlotPlan> {
        let arm = |k: &SlotState| k.arms.get(k.policy.in_use()).copied().unwrap_or(Arm::AUTO);
        let possible = self.slots.iter().filter(|(slot, _)| !self.impossible.contains(slot));
        possible.map(|(slot, k)| SlotPlan { slot: *slot, runs: Vec::new(), settled: arm(k) }).collect()
    }

    /// Exploring ends after this.
    pub fn freezing(mut self, after: Option<FreezeAfter>) -> Self {
        self.freeze_after = after;
        self
    }

    /// Exploring has ended, and the arms found are in force.
    pub fn is_frozen(&self) -> bool {
        self.in_force > 0 && self.freeze_epoch == Some(self.in_force)
    }

    /// The slots of a fixed table that is in force.
    pub fn table(&self) -> impl Iterator<Item = (Slot, Arm)> + '_ {
        let plans = match &self.mode {
            CoordinatorMode::Fixed(plans) if self.in_force > 0 && !self.stopped => plans.as_slice(),
            _ => &[],
        };
        plans.iter().map(|p| (p.slot, p.settled))
    }

    /// Builds policies for slots with enough calls, of arms that all ranks have.
    fn create_policies(&mut self) {
        let CoordinatorMode::Learn { build, explore_all, .. } = &self.mode else { return };
        for (slot, observed) in &self.observed {
            if observed.calls < CALLS_BEFORE_POLICY
                || self.slots.contains_key(slot)
                || self.slots.len() >= RUN_SLOTS_MAX
            {
                continue;
            }
            let Some(view) = self.asking.views.of_all(*slot) else { continue };
            let mask = observed.mask & view.mask;
            let mut arms = vec![Arm::AUTO];
            for i in 0..crate::cost_table::ENTRIES as u8 {
                let Some((a, p)) = crate::cost_table::entry(i).filter(|_| mask >> i & 1 == 1) else {
                    continue;
                };
                let usable = *explore_all || self.connected >> a as u8 & 1 == 1;
                // The entry that AUTO always takes is the arm AUTO.
                if usable && observed.autos != 1 << i {
                    arms.push(Arm::new(a, p));
                }
            }
            if arms.len() > 1
                && let Some(policy) = build(&arms, *slot)
            {
                let slot_state = SlotState {
                    policy,
                    arms,
                    decided: 0,
                    planned: Vec::new(),
                    first: 0,
                    used: 0,
                    times: Reduction::default(),
                    kernels: Reduction::default(),
                    previous: (0, Vec::new()),
                    received: Vec::new(),
                };
                self.slots.insert(*slot, slot_state);
            }
        }
    }

    /// Whether to propose the next epoch now.
    fn is_due(&self, now_us: u64) -> bool {
        if self.slots.values().any(|k| k.planned.is_empty()) {
            return true; // a new slot
        }
        let Some(first) = self.first_exhausted_us else { return false };
        let exhausted = self.slots.values().all(|k| k.used >= k.planned.len() as u64);
        let received = self.slots.values().all(|k| k.received.iter().take(k.used as usize).all(|h| *h));
        (exhausted || now_us >= first + STRAGGLER_WAIT_US)
            && (received || now_us >= self.last_planned_us.max(first) + READING_WAIT_US)
    }

    fn plan_epoch(&mut self) -> (Vec<SlotPlan>, BTreeMap<Slot, Vec<usize>>) {
        let CoordinatorMode::Learn { calls, .. } = self.mode else { return Default::default() };
        let (mut plans, mut planned) = (Vec::new(), BTreeMap::new());
        for (slot, slot_state) in &mut self.slots {
            let mut runs: Vec<ArmRun> = Vec::new();
            let mut arms = Vec::new();
            while arms.len() < calls as usize {
                let decision = slot_state.policy.decide(Context::default());
                slot_state.decided += 1;
                arms.push(decision.arm);
                let arm = slot_state.arms.get(decision.arm).copied().unwrap_or(Arm::AUTO);
                match runs.last_mut() {
                    Some(r) if r.arm == arm => r.calls += 1,
                    _ => runs.push(ArmRun { arm, calls: 1 }),
                }
                if runs.len() == RUNS_MAX {
                    break;
                }
            }
            let settled = slot_state.arms.get(slot_state.policy.in_use()).copied().unwrap_or(Arm::AUTO);
            plans.push(SlotPlan { slot: *slot, runs, settled });
            planned.insert(*slot, arms);
        }
        (plans, planned)
    }

    /// The communicator ends on this rank: aborts an undecided proposal, so that no rank waits for its verdict.
    pub fn leave(&mut self, now_us: u64, out: &mut Vec<Outgoing>) {
        self.left = true;
        self.leader.abort_undecided(now_us, |to, m| out.push((to, m)));
        self.apply_outcome();
    }

    /// Positions of the members whose answer is outstanding.
    pub fn unanswered(&self) -> impl Iterator<Item = usize> + '_ {
        self.leader.unanswered()
    }

    /// No member's answer is outstanding.
    pub fn is_idle(&self) -> bool {
        self.leader.is_idle()
    }

    /// Removes and returns the times learned since the last call.
    pub fn drain_learned(&mut self) -> Vec<LearnedTime> {
        std::mem::take(&mut self.learned)
    }

    /// Number of the epoch in force.
    pub fn in_force(&self) -> u64 {
        self.in_force
    }

    /// By slot: the arm in use, and the policy's reason.
    pub fn findings(&self) -> impl Iterator<Item = (Slot, Arm, String)> + '_ {
        self.slots
            .iter()
            .map(|(slot, k)| (*slot, k.arms.get(k.policy.in_use()).copied().unwrap_or(Arm::AUTO), k.policy.because()))
    }
}

impl SlotState {
    /// Passes a time, or its absence, to the policy once per call. Returns the arm unless the call was known.
    fn learn(&mut self, k: u64, time_us: Option<f64>) -> Option<Arm> {
        let (received, arm) = (self.received.get_mut(k as usize)?, *self.planned.get(k as usize)?);
        if std::mem::replace(received, true) {
            return None;
        }
        self.policy.learn(Reading { call: self.first + k, arm, time_us, channels: None });
        self.arms.get(arm).copied()
    }

    fn discard(&mut self, first: u64, planned: &[usize]) {
        for (i, arm) in planned.iter().enumerate() {
            self.policy.learn(Reading { call: first + i as u64, arm: *arm, time_us: None, channels: None });
        }
    }

    /// Calls without a time, or that were not made, count as lost.
    fn finish_epoch(&mut self, epoch: u64) {
        for k in 0..self.planned.len() as u64 {
            self.learn(k, None);
        }
        self.times = Reduction::default();
        self.kernels.forget_before(epoch);
        self.previous = (epoch, std::mem::take(&mut self.planned));
        self.used = 0;
    }
}

/// The arm of a cost-table entry that AUTO chose.
pub fn auto_arm(entry: u8) -> Arm {
    crate::cost_table::entry(entry).map_or(Arm::AUTO, |(a, p): (Algorithm, Protocol)| Arm::new(a, p))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::CallDecision;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tune::Collective;

    fn call(k: u64, epoch: u64) -> CallDecision {
        CallDecision {
            counted: epoch > 0,
            mask: 0b11_1111,
            auto: 3,
            epoch,
            ..CallDecision::for_test(k, 1 << 20, Arm::AUTO)
        }
    }

    /// Delivers all messages to the only member, which always agrees. Returns the number of verdicts.
    fn agree(c: &mut EpochCoordinator, now_us: u64) -> usize {
        agreed_plans(c, now_us).0
    }

    /// Number of commits, and the plans of the last proposal.
    fn agreed_plans(c: &mut EpochCoordinator, now_us: u64) -> (usize, Vec<SlotPlan>) {
        let (mut out, mut committed, mut plans) = (Vec::new(), 0, Vec::new());
        c.tick(0, now_us, &mut out);
        if matches!(out.as_slice(), [(_, ToMember::Ask(_))]) {
            agree_to(c, &mut out, now_us, &mut committed, &mut plans);
            c.tick(0, now_us, &mut out);
        }
        agree_to(c, &mut out, now_us, &mut committed, &mut plans);
        (committed, plans)
    }

    fn agree_to(
        c: &mut EpochCoordinator,
        out: &mut Vec<Outgoing>,
        now_us: u64,
        committed: &mut usize,
        plans: &mut Vec<SlotPlan>,
    ) {
        while let Some((_, message)) = out.pop() {
            let answer = match message {
                ToMember::Ask(e) => {
                    let view = |p: &SlotPlan| agreement::SlotView { slot: p.slot, mask: 0b11_1111, auto: 3 };
                    let slots = e.plans.iter().map(view).collect();
                    ToLeader::Ready { epoch: e.number, begun: 0, digest: None, slots }
                }
                ToMember::Check { .. } => ToLeader::Status { begun: 0, digest: None },
                ToMember::Propose(e) => {
                    plans.clone_from(&e.plans);
                    ToLeader::Ack { epoch: e.number, begun: 0 }
                }
                ToMember::Commit(n) | ToMember::Abort(n) => {
                    *committed += 1;
                    ToLeader::Confirm { epoch: n, begun: 0 }
                }
            };
            c.on_message(0, &answer, now_us, out);
        }
    }

    #[test]
    fn after_the_freeze_the_arms_found_stay_and_no_epoch_follows() {
        let build: PolicyBuilder = Box::new(|arms, _| crate::policies::build("round-robin", arms, 1 << 20));
        let mode = CoordinatorMode::Learn { build, calls: 4, explore_all: true, by_kernel: false };
        let mut c = EpochCoordinator::new(1, mode).freezing(Some("1s".parse().unwrap()));
        (0..2).for_each(|k| c.on_call(&call(k, 0), 0));
        let (_, plans) = agreed_plans(&mut c, 10);
        assert_eq!((c.in_force(), c.is_frozen(), plans[0].runs.is_empty()), (1, false, false), "it explores");
        let (_, plans) = agreed_plans(&mut c, 1_000_000);
        assert_eq!((c.in_force(), c.is_frozen(), plans[0].runs.is_empty()), (2, true, true), "no runs");
        let settled = plans[0].settled;
        for now in [1_000_001, 10_000_000, 100_000_000] {
            let mut out = Vec::new();
            c.tick(5000, now, &mut out);
            assert!(out.is_empty(), "no more epochs");
        }
        assert_eq!(c.findings().next().unwrap().1, settled);
    }

    #[test]
    fn a_freeze_is_a_number_of_calls_or_a_time() {
        for (text, freeze) in [
            ("5000", FreezeAfter::Calls(5000)),
            ("90s", FreezeAfter::Us(90_000_000)),
            ("10min", FreezeAfter::Us(600_000_000)),
            ("2h", FreezeAfter::Us(7_200_000_000)),
        ] {
            assert_eq!(text.parse(), Ok(freeze), "{text}");
        }
        for text in ["", "0", "-1", "soon", "1d", "99999999999999999999", "s"] {
            assert!(text.parse::<FreezeAfter>().is_err(), "{text}");
        }
    }

    #[test]
    fn policies_start_afresh_when_the_first_step_arrives_late() {
        let built = Arc::new(AtomicU32::new(0));
        let count = built.clone();
        let build: PolicyBuilder = Box::new(move |arms, _| {
            count.fetch_add(1, Ordering::Relaxed);
            crate::policies::build("round-robin", arms, 1 << 20)
        });
        let mode = CoordinatorMode::Learn { build, calls: 4, explore_all: true, by_kernel: false };
        let mut c = EpochCoordinator::new(1, mode);
        (0..2).for_each(|k| c.on_call(&call(k, 0), 0));
        assert_eq!((agree(&mut c, 10), c.in_force()), (1, 1));
        let reading = |epoch, k, source| {
            let slot = Slot::of(Collective::AllReduce, 1 << 20);
            ToLeader::Readings(vec![RankReading { epoch, slot, k, source, time_us: 100.0 }])
        };
        for (k, source) in [(0, TimeSource::Interval), (1, TimeSource::Interval), (2, TimeSource::Step)] {
            assert_eq!(built.load(Ordering::Relaxed), 1);
            c.on_call(&call(k, 1), 20);
            c.on_message(0, &reading(1, k, source), 20, &mut Vec::new());
        }
        assert_eq!(
            (agree(&mut c, 30), c.in_force(), built.load(Ordering::Relaxed)),
            (1, 2, 2),
            "at once, with fresh policies"
        );
        // The policies restart once; late readings of the earlier epoch are ignored.
        c.on_message(0, &reading(1, 3, TimeSource::Interval), 40, &mut Vec::new());
        for k in 0..4 {
            c.on_call(&call(k, 2), 50);
            c.on_message(0, &reading(2, k, TimeSource::Step), 50, &mut Vec::new());
        }
        assert_eq!((agree(&mut c, 60), c.in_force(), built.load(Ordering::Relaxed)), (1, 3, 2));
        assert_eq!(c.drain_learned().len(), 2 + 1 + 4);
    }
}
