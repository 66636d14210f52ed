//! Learning from whole steps of a training loop: an arm holds for whole steps.
//!
//! A step contains many calls, and its time is the sum of all of them. So an arm holds for all calls of a slot in a step,
//! and changes where a step begins ([`Cadence`]). Several slots change their arms in the same steps, in random orders
//! that do not depend on each other; [`Fit`] separates their effects. What all slots together may cost is bounded per step
//! of the job ([`Turns`]). [`StepRace`] compares the arms of one slot. [`LoopTuner`] joins them.

mod cadence;
mod fit;
mod learner;
mod race;
mod turns;
mod veto;

pub use cadence::{Cadence, CadenceFinder, Rhythm, SeenCall, SlotCadence};
pub use fit::{Effect, Fit, LAG_MAX, Record};
pub use learner::{Block, ByPolicy, SlotLearner, Wish};
pub use race::{GATE, StepRace};
pub use turns::{BLOCKS_MAX, Plan, Turns};
pub use veto::StepVeto;

use std::collections::BTreeMap;

/// What the times are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepSource {
    /// One time per reported step, at the slot's first call in it.
    Steps,
    /// One time per group with the slot, from its begin to the begin of the next one.
    Groups,
    /// One time per call.
    Calls,
}

/// A plan in numbers of calls, to be agreed on by the ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallPlan {
    /// By slot whose arms are compared: its arms with their numbers of calls, in order.
    pub runs: BTreeMap<u32, Vec<(usize, u32)>>,
    /// The arms in use by slot, AUTO left out.
    pub in_use: BTreeMap<u32, usize>,
    /// A call with which a step begins, and the calls of a step: the plan must begin with a step.
    pub align: Option<(u64, u64)>,
}

/// The time of a whole step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WholeStep {
    /// The slot whose arms are compared.
    pub slot: u32,
    /// Its arm in the step.
    pub arm: usize,
    /// Microseconds.
    pub time_us: f64,
    /// Calls of the slot in it.
    pub calls: u64,
    /// The arm was the same in the steps before, as far as the host may run ahead, and no other slot tried an arm in
    /// them: the time is the arm's.
    pub is_steady: bool,
    /// The plan confirms a choice that was made before.
    pub is_fresh: bool,
}

/// The plan that the ranks agreed on.
#[derive(Debug, Clone)]
struct Running {
    plan: Plan,
    /// The slot whose times judge all slots: the one that is called most often in a step.
    clock: u32,
    steps: usize,
    times: BTreeMap<u32, SlotTimes>,
    /// When the last call of the plan's steps was.
    finished_us: Option<u64>,
    spoilt: bool,
}

/// The times of a slot in the plan.
#[derive(Debug, Clone)]
struct SlotTimes {
    calls_per_step: u64,
    times_per_step: u64,
    /// By step: the sum of its times so far, and their number. A time that will not come counts as infinite.
    sums: Vec<(f64, u64)>,
    /// Calls of the slot that this rank has made in the plan.
    made: u64,
    is_fresh: bool,
}

impl Running {
    /// The arm of a slot in a step; true if it was the same `lag` steps before and no other slot tried an arm since.
    fn arm_of(&self, slot: u32, step: usize, lag: usize) -> Option<(usize, bool)> {
        let arm_at = |blocks: &[Block], step: usize| {
            let mut end = 0;
            let within = |b: &&Block| {
                end += b.steps as usize;
                step < end
            };
            blocks.iter().find(within).map(|b| b.arm)
        };
        let arm = arm_at(self.plan.get(&slot)?, step)?;
        let from = step.checked_sub(lag);
        let is_alone = |(other, blocks): (&u32, &Vec<Block>)| {
            let own = if *other == slot { Some(arm) } else { blocks.first().map(|b| b.arm) };
            from.is_some_and(|from| (from..=step).all(|t| arm_at(blocks, t) == own))
        };
        Some((arm, self.plan.iter().all(is_alone)))
    }
}

/// Time to wait for the other ranks' times after the last call of a plan, microseconds.
const TIMES_WAIT_US: u64 = 300_000;
/// Where the times are those of calls, the budget is this many times as large: a call is only a part of a step.
const BUDGET_OF_CALLS: f64 = 4.0;
/// Plans in a row of which too few steps were whole, after which learning ends.
const SPOILT_MAX: u32 = 3;

/// See the module documentation. Functions of their arguments: times are passed in.
#[derive(Default)]
pub struct LoopTuner {
    finder: CadenceFinder,
    /// Judge every call by itself, by its own time.
    by_call: bool,
    turns: Turns,
    calls: u64,
    running: Option<Running>,
    proposed: Option<Running>,
    /// The arms in use that the ranks agreed on last.
    agreed: BTreeMap<u32, usize>,
    asked: BTreeMap<u32, usize>,
    spoilt: u32,
    cadence: Option<Cadence>,
    never: Option<String>,
}

impl LoopTuner {
    /// `by_call`: times belong to single calls, such as GPU times. Then a step is a call.
    pub fn new(by_call: bool) -> Self {
        let turns = Turns::new(if by_call { BUDGET_OF_CALLS } else { 1.0 }, by_call);
        LoopTuner { by_call, turns, ..LoopTuner::default() }
    }

    /// A call of the leading rank. `k` is its number among the slot's calls of the plan in force, if it has one.
    pub fn on_call(&mut self, call: SeenCall, bytes: u64, k: Option<u64>, now_us: u64) {
        self.calls = self.calls.max(call.number + 1);
        self.turns.on_call(call.slot, bytes);
        if !self.by_call {
            self.finder.call(call);
        }
        let Some(running) = self.running.as_mut() else { return };
        let (Some(times), Some(k)) = (running.times.get_mut(&call.slot), k) else { return };
        times.made = times.made.max(k + 1);
        if call.slot == running.clock && times.made > running.steps as u64 * times.calls_per_step {
            running.finished_us.get_or_insert(now_us);
        }
    }

    /// The program reported a step whose first call has this number.
    pub fn on_step(&mut self, first: u64) {
        if !self.by_call {
            self.finder.step(first);
        }
    }

    /// Adds a slot. Its learner's arms are indices of the caller's.
    pub fn add_slot(&mut self, slot: u32, learner: Box<dyn SlotLearner>) {
        self.turns.add(slot, learner);
    }

    /// Removes a slot: its arms are no longer what they were.
    pub fn remove_slot(&mut self, slot: u32) {
        self.turns.remove(slot);
        for plan in [&mut self.running, &mut self.proposed] {
            plan.take_if(|r| r.plan.contains_key(&slot));
        }
    }

    /// Whether the slot has a learner. After a change of rhythm none has.
    pub fn has_slot(&self, slot: u32) -> bool {
        self.turns.has(slot)
    }

    /// The rhythm of the loop.
    pub fn cadence(&self) -> Option<&Cadence> {
        self.cadence.as_ref()
    }

    /// Why nothing can be learned, if so.
    pub fn never(&self) -> Option<&str> {
        self.never.as_deref()
    }

    /// A time of all ranks, or none, of the slot's call `k` in the plan in force. Returns the step that it completes.
    pub fn on_time(&mut self, slot: u32, k: u64, source: StepSource, time_us: Option<f64>) -> Option<WholeStep> {
        let lag = self.turns.lag();
        let r = self.running.as_mut()?;
        let times = r.times.get_mut(&slot)?;
        let calls = times.calls_per_step;
        let step = (k / calls) as usize;
        let (sum, count) = times.sums.get_mut(step)?;
        let expected = match source {
            StepSource::Steps if !k.is_multiple_of(calls) => {
                r.spoilt = true; // the steps have moved against the plan
                return None;
            }
            StepSource::Steps => 1,
            StepSource::Groups | StepSource::Calls => times.times_per_step,
        };
        times.times_per_step = expected;
        *sum += time_us.unwrap_or(f64::INFINITY);
        *count += 1;
        let (time_us, is_whole, is_fresh) = (*sum, *count == expected && sum.is_finite(), times.is_fresh);
        let (arm, is_steady) = r.arm_of(slot, step, lag).filter(|_| is_whole)?;
        Some(WholeStep { slot, arm, time_us, calls, is_steady, is_fresh })
    }

    /// The next plan, if one is due.
    pub fn propose(&mut self, now_us: u64) -> Option<CallPlan> {
        self.follow_rhythm();
        self.finish(now_us);
        if self.running.is_some() || self.proposed.is_some() {
            return None;
        }
        let steps = self.calls / self.cadence.as_ref().map_or(1, |c| c.calls.max(1));
        let by_call = self.by_call;
        let unit = |slot| match &self.cadence {
            _ if by_call => SlotCadence { calls: 1, groups: 1 },
            Some(c) => c.slots.get(&slot).copied().unwrap_or_default(),
            None => SlotCadence::default(),
        };
        let plan = if self.never.is_some() { None } else { self.turns.plan(steps, |slot| unit(slot).calls > 0) };
        let in_use = self.turns.in_use();
        if plan.is_none() && in_use == self.agreed {
            return None;
        }
        let of_slot = |(slot, blocks): (&u32, &Vec<Block>)| {
            let calls = unit(*slot).calls as u32;
            (*slot, blocks.iter().map(|b| (b.arm, b.steps * calls)).collect())
        };
        let runs = plan.iter().flatten().map(of_slot).collect();
        self.proposed = plan.and_then(|plan| {
            let clock = plan.keys().copied().max_by_key(|s| (unit(*s).groups, std::cmp::Reverse(*s)))?;
            let steps = plan.get(&clock)?.iter().map(|b| b.steps as usize).sum();
            let times = plan.keys().map(|slot| {
                let SlotCadence { calls, groups } = unit(*slot);
                let (sums, is_fresh) = (vec![(0.0, 0); steps], self.turns.is_fresh(*slot));
                (*slot, SlotTimes { calls_per_step: calls, times_per_step: groups, sums, made: 0, is_fresh })
            });
            let times = times.collect();
            Some(Running { plan, clock, steps, times, finished_us: None, spoilt: false })
        });
        self.asked.clone_from(&in_use);
        let align = self.cadence.as_ref().map(|c| (c.begin, c.calls));
        Some(CallPlan { runs, in_use, align })
    }

    /// The ranks agreed on the proposal.
    pub fn committed(&mut self) {
        self.running = self.proposed.take();
        self.agreed.clone_from(&self.asked);
    }

    /// They did not.
    pub fn voided(&mut self) {
        if let Some(p) = self.proposed.take() {
            self.turns.discard(&p.plan);
        }
    }

    /// The plan in force has lapsed: all calls use AUTO until another one is agreed on.
    pub fn lapsed(&mut self) {
        if let Some(r) = self.running.take() {
            self.turns.discard(&r.plan);
        }
        self.agreed.clear();
    }

    /// Takes over a rhythm that was found or lost.
    fn follow_rhythm(&mut self) {
        if self.by_call {
            return;
        }
        match self.finder.rhythm() {
            Rhythm::Unknown => {}
            Rhythm::None(why) => {
                // A loop whose rhythm was found once goes on with it until its plans fail.
                if self.cadence.is_none() && self.never.is_none() {
                    self.never = Some(format!("cannot learn: {why}"));
                }
            }
            Rhythm::Steady(found) => {
                let same = self
                    .cadence
                    .as_ref()
                    .is_some_and(|c| (c.calls, c.told) == (found.calls, found.told) && c.slots == found.slots);
                if self.cadence.is_some() && !same {
                    // Times of other steps cannot be compared with the new ones.
                    if let Some(r) = self.running.take() {
                        self.turns.discard(&r.plan);
                    }
                    self.turns.restart();
                }
                if self.spoilt < SPOILT_MAX {
                    self.never = None;
                }
                self.cadence = Some(found.clone());
            }
        }
    }

    /// Ends the plan in force once its times are here.
    fn finish(&mut self, now_us: u64) {
        let Some(r) = &self.running else { return };
        let Some(at) = r.finished_us else { return };
        let Some(clock) = r.times.get(&r.clock) else { return };
        let is_complete = clock.sums.iter().all(|s| s.1 >= clock.times_per_step);
        if !is_complete && now_us < at + TIMES_WAIT_US {
            return;
        }
        let whole = |s: &(f64, u64)| (s.1 == clock.times_per_step && s.0.is_finite() && s.0 > 0.0).then_some(s.0);
        let times: Vec<Option<f64>> = clock.sums.iter().map(whole).collect();
        let calls = clock.calls_per_step;
        let missing = times.iter().filter(|t| t.is_none()).count();
        let Some(r) = self.running.take() else { return };
        if r.spoilt || 2 * missing > times.len() {
            self.turns.discard(&r.plan);
            self.spoilt += 1;
            if self.spoilt >= SPOILT_MAX {
                let why =
                    if r.spoilt { "the number of calls per step varies" } else { "too few times of whole steps came" };
                self.never = Some(format!("cannot learn: {calls} calls per step, but {why}"));
            }
            return;
        }
        self.spoilt = 0;
        self.turns.learn(&r.plan, &times, self.calls / self.cadence.as_ref().map_or(1, |c| c.calls.max(1)));
    }

    /// By slot: the arm in use and the reason.
    pub fn findings(&self) -> Vec<(u32, usize, String)> {
        self.turns.findings()
    }

    /// What comparing arms of a slot has cost so far, in steps.
    pub fn spent_steps(&self, slot: u32) -> f64 {
        self.turns.spent_steps(slot)
    }

    /// The gain of a slot's arm over AUTO, from steps after the choice.
    pub fn fresh_gain(&self, slot: u32) -> Option<(f64, f64)> {
        self.turns.fresh_gain(slot)
    }
}
