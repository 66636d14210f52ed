//! The brain of the rank that leads a communicator: one policy per slot, plans for the next epoch, and what the ranks measured.

use crate::rewards::{Heard, Reduction};
use agreement::epoch::{RUN_KEYS_MAX, RUNS_MAX};
use agreement::leader::{GIVE_UP_US, REPEAT_US};
use agreement::{KeyPlan, Leader, RankSample, Run, Slot, Source, ToLeader, ToMember};
use std::collections::BTreeMap;
use tune::{Algorithm, Arm, Context, Policy, Protocol, Sample};

/// An epoch ends this long after its first slot has used up its runs, though others have not.
const STRAGGLERS_US: u64 = 200_000;
/// Samples are waited for this long after the last call that they are about.
const SAMPLES_US: u64 = 300_000;
/// A call of a slot must have been seen so often before arms are tried for it.
const SEEN_MIN: u64 = 2;

/// Makes a policy for some arms.
pub type Build = Box<dyn Fn(&[Arm], Slot) -> Option<Box<dyn Policy>> + Send>;

/// What one slot is at.
struct Key {
    policy: Box<dyn Policy>,
    arms: Vec<Arm>,
    /// How often the policy has decided.
    decided: u64,
    /// The arms of the calls 0, 1, ... of the epoch in force; the policy's calls from `first` on.
    planned: Vec<usize>,
    first: u64,
    /// Calls of the epoch that have been seen.
    used: u64,
    /// Times that decide and that not all ranks have given yet.
    times: Reduction,
    /// GPU times, which stand beside them.
    kernels: Reduction,
    /// What ran in the epoch before the one in force: its GPU times may still come.
    before: (u64, Vec<usize>),
    /// Which calls of the epoch the policy has learnt about.
    heard: Vec<bool>,
}

/// Slots before they have a policy.
#[derive(Debug, Clone, Copy)]
struct Seen {
    calls: u64,
    mask: u32,
    autos: u32,
}

/// What a conductor does at AUTO, in a fixed table, or with policies.
pub enum Plan {
    /// This table, once.
    Fixed(Vec<KeyPlan>),
    /// Policies.
    Learn {
        /// Makes them.
        build: Build,
        /// Calls per slot and epoch.
        calls: u32,
        /// Also algorithms that the communicator does not use at AUTO.
        explore_all: bool,
        /// GPU times decide, instead of standing beside what does.
        by_kernel: bool,
    },
}

/// See the module.
pub struct Conductor {
    leader: Leader,
    members: usize,
    plan: Plan,
    seen: BTreeMap<Slot, Seen>,
    keys: BTreeMap<Slot, Key>,
    /// Algorithms that AUTO has used: connected already.
    connected: u8,
    in_force: u64,
    proposed: Option<Proposed>,
    stopped: bool,
    /// The epoch that brings AUTO back, proposed or in force.
    stop_epoch: Option<u64>,
    left: bool,
    first_used_up_us: Option<u64>,
    /// The last call that the epoch in force has planned, as far as it was made.
    last_planned_us: u64,
    learnt: Vec<Learnt>,
    /// The program says its steps; it may begin late, after intervals were learnt.
    steps: Steps,
}

/// Whether the program says its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Steps {
    /// Nothing has been learnt yet.
    Unknown,
    /// Not so far: policies have learnt intervals.
    Unsaid,
    /// It does now: policies begin again.
    News,
    /// It does.
    Said,
}

/// A time that all ranks have given.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Learnt {
    /// What was called.
    pub slot: Slot,
    /// With which arm.
    pub arm: Arm,
    /// Where the time comes from.
    pub source: Source,
    /// Microseconds.
    pub time_us: f64,
}

/// What will be in force if the proposal is committed.
struct Proposed {
    planned: BTreeMap<Slot, Vec<usize>>,
}

/// A message to a member, by its position in the roster.
pub type Out = (usize, ToMember);

impl Conductor {
    /// Of a communicator with so many members.
    pub fn new(members: usize, plan: Plan) -> Self {
        Conductor {
            leader: Leader::new(members, REPEAT_US, GIVE_UP_US),
            members,
            plan,
            seen: BTreeMap::new(),
            keys: BTreeMap::new(),
            connected: 0,
            in_force: 0,
            proposed: None,
            stopped: false,
            stop_epoch: None,
            left: false,
            first_used_up_us: None,
            last_planned_us: 0,
            learnt: Vec::new(),
            steps: Steps::Unknown,
        }
    }

    /// The leader's own rank made a call.
    pub fn saw(&mut self, d: &crate::comm::Decision, now_us: u64) {
        let slot = d.slot();
        if let Some((a, _)) = crate::costs::entry(d.auto) {
            self.connected |= 1 << a as u8;
        }
        let seen = self.seen.entry(slot).or_insert(Seen { calls: 0, mask: d.mask, autos: 0 });
        seen.calls += 1;
        seen.mask &= d.mask;
        seen.autos |= 1u32.checked_shl(d.auto.into()).unwrap_or(0);
        if let Some(key) = self.keys.get_mut(&slot).filter(|_| d.counted && d.epoch == self.in_force) {
            key.used = key.used.max(d.k + 1);
            if d.k < key.planned.len() as u64 {
                self.last_planned_us = now_us;
            }
            if key.used >= key.planned.len() as u64 {
                self.first_used_up_us.get_or_insert(now_us);
            }
        }
    }

    /// A member said something. `from`: its position in the roster.
    pub fn hear(&mut self, from: usize, message: &ToLeader, now_us: u64, out: &mut Vec<Out>) {
        match message {
            ToLeader::Samples(all) => all.iter().for_each(|s| self.sample(from, s)),
            ToLeader::Stop => self.stopped = true,
            m => self.leader.on(from, m, now_us, |to, m| out.push((to, m))),
        }
        self.settle();
    }

    fn settle(&mut self) {
        let Some(ended) = self.leader.ended() else { return };
        let Some(p) = self.proposed.take() else { return };
        if !ended.committed {
            // What the policies decided will not be run.
            for (slot, planned) in p.planned {
                if let Some(key) = self.keys.get_mut(&slot) {
                    key.lose(key.decided - planned.len() as u64, &planned);
                }
            }
            return;
        }
        let before = std::mem::replace(&mut self.in_force, ended.epoch.number);
        self.first_used_up_us = None;
        for (slot, planned) in p.planned {
            if let Some(key) = self.keys.get_mut(&slot) {
                key.finish_epoch(before);
                key.first = key.decided - planned.len() as u64;
                key.heard = vec![false; planned.len()];
                key.planned = planned;
            }
        }
    }

    /// A rank's time of a call. What decides goes to the policy, GPU times stand beside it.
    fn sample(&mut self, from: usize, s: &RankSample) {
        let (members, in_force) = (self.members, self.in_force);
        let by_kernel = matches!(self.plan, Plan::Learn { by_kernel: true, .. });
        let Some(key) = self.keys.get_mut(&s.slot) else { return };
        if s.source == Source::Kernel && !by_kernel {
            let ran = if s.epoch == key.before.0 { &key.before.1 } else { &key.planned };
            let arm = ran.get(s.k as usize).filter(|_| s.epoch == in_force || s.epoch == key.before.0);
            let Some(arm) = arm.and_then(|a| key.arms.get(*a)).copied() else { return };
            if let Heard::Time(time_us) = key.kernels.add(from, members, s) {
                self.learnt.push(Learnt { slot: s.slot, arm, source: s.source, time_us });
            }
            return;
        }
        if s.epoch != in_force || s.k >= key.planned.len() as u64 {
            return;
        }
        match key.times.add(from, members, s) {
            Heard::Waiting => {}
            Heard::Never => _ = key.learn(s.k, None),
            Heard::Time(time_us) => {
                if let Some(arm) = key.learn(s.k, Some(time_us)) {
                    self.learnt.push(Learnt { slot: s.slot, arm, source: s.source, time_us });
                }
                self.steps = match (s.source, self.steps) {
                    (Source::Interval | Source::Calls, Steps::Unknown) => Steps::Unsaid,
                    (Source::Step, Steps::Unknown) => Steps::Said,
                    (Source::Step, Steps::Unsaid) => Steps::News,
                    (_, as_before) => as_before,
                };
            }
        }
    }

    /// Policies that have learnt intervals know nothing of steps: they begin again.
    fn begin_again(&mut self) {
        let Plan::Learn { build, .. } = &self.plan else { return };
        for (slot, key) in &mut self.keys {
            if let Some(policy) = build(&key.arms, *slot) {
                (key.policy, key.decided, key.used) = (policy, 0, 0);
                key.before = (self.in_force, std::mem::take(&mut key.planned));
                key.heard.clear();
                key.times = Reduction::default();
            }
        }
    }

    /// Time passes: repeats messages, and proposes when there is something to propose.
    pub fn tick(&mut self, begun_here: u64, now_us: u64, out: &mut Vec<Out>) {
        self.leader.tick(now_us, |to, m| out.push((to, m)));
        self.settle();
        if !self.leader.is_idle() || self.left {
            return;
        }
        let (plans, planned) = if self.stopped {
            if self.stop_epoch == Some(self.in_force) {
                return; // AUTO everywhere, for good
            }
            Default::default()
        } else if let Plan::Fixed(plans) = &self.plan {
            if self.in_force > 0 {
                return;
            }
            (plans.clone(), BTreeMap::new())
        } else {
            if self.steps == Steps::News {
                self.steps = Steps::Said;
                self.begin_again();
            }
            self.admit();
            if self.keys.is_empty() || !self.is_due(now_us) {
                return;
            }
            self.plans()
        };
        self.proposed = Some(Proposed { planned });
        let epoch = self.leader.propose(plans, begun_here, now_us, |to, m| out.push((to, m)));
        if self.stopped {
            self.stop_epoch = epoch.map(|e| e.number);
        }
    }

    /// Gives slots that have been seen a policy.
    fn admit(&mut self) {
        let Plan::Learn { build, explore_all, .. } = &self.plan else { return };
        for (slot, seen) in &self.seen {
            if seen.calls < SEEN_MIN || self.keys.contains_key(slot) || self.keys.len() >= RUN_KEYS_MAX {
                continue;
            }
            let mut arms = vec![Arm::AUTO];
            for i in 0..crate::costs::ENTRIES as u8 {
                let Some((a, p)) = crate::costs::entry(i).filter(|_| seen.mask >> i & 1 == 1) else { continue };
                let usable = *explore_all || self.connected >> a as u8 & 1 == 1;
                // What AUTO always takes is AUTO.
                if usable && seen.autos != 1 << i {
                    arms.push(Arm::new(a, p));
                }
            }
            if arms.len() > 1
                && let Some(policy) = build(&arms, *slot)
            {
                let key = Key {
                    policy,
                    arms,
                    decided: 0,
                    planned: Vec::new(),
                    first: 0,
                    used: 0,
                    times: Reduction::default(),
                    kernels: Reduction::default(),
                    before: (0, Vec::new()),
                    heard: Vec::new(),
                };
                self.keys.insert(*slot, key);
            }
        }
    }

    /// Is it time for the next epoch?
    fn is_due(&self, now_us: u64) -> bool {
        if self.keys.values().any(|k| k.planned.is_empty()) {
            return true; // a new slot
        }
        let Some(first) = self.first_used_up_us else { return false };
        let used_up = self.keys.values().all(|k| k.used >= k.planned.len() as u64);
        let heard = self.keys.values().all(|k| k.heard.iter().take(k.used as usize).all(|h| *h));
        (used_up || now_us >= first + STRAGGLERS_US)
            && (heard || now_us >= self.last_planned_us.max(first) + SAMPLES_US)
    }

    fn plans(&mut self) -> (Vec<KeyPlan>, BTreeMap<Slot, Vec<usize>>) {
        let Plan::Learn { calls, .. } = self.plan else { return Default::default() };
        let (mut plans, mut planned) = (Vec::new(), BTreeMap::new());
        for (slot, key) in &mut self.keys {
            let mut runs: Vec<Run> = Vec::new();
            let mut arms = Vec::new();
            while arms.len() < calls as usize {
                let decision = key.policy.decide(Context::default());
                key.decided += 1;
                arms.push(decision.arm);
                let arm = key.arms.get(decision.arm).copied().unwrap_or(Arm::AUTO);
                match runs.last_mut() {
                    Some(r) if r.arm == arm => r.calls += 1,
                    _ => runs.push(Run { arm, calls: 1 }),
                }
                if runs.len() == RUNS_MAX {
                    break;
                }
            }
            let settled = key.arms.get(key.policy.in_use()).copied().unwrap_or(Arm::AUTO);
            plans.push(KeyPlan { slot: *slot, runs, settled });
            planned.insert(*slot, arms);
        }
        (plans, planned)
    }

    /// The communicator ends here: nobody must wait for a verdict.
    pub fn leave(&mut self, now_us: u64, out: &mut Vec<Out>) {
        self.left = true;
        self.leader.leave(now_us, |to, m| out.push((to, m)));
        self.settle();
    }

    /// Nobody waits for an answer.
    pub fn is_idle(&self) -> bool {
        self.leader.is_idle()
    }

    /// Times that were learnt since the last look.
    pub fn take_learnt(&mut self) -> Vec<Learnt> {
        std::mem::take(&mut self.learnt)
    }

    /// The epoch in force.
    pub fn in_force(&self) -> u64 {
        self.in_force
    }

    /// What every slot has come to: slot, arm in use, and why.
    pub fn findings(&self) -> impl Iterator<Item = (Slot, Arm, String)> + '_ {
        self.keys
            .iter()
            .map(|(slot, k)| (*slot, k.arms.get(k.policy.in_use()).copied().unwrap_or(Arm::AUTO), k.policy.because()))
    }
}

impl Key {
    /// The arm, where it was news.
    fn learn(&mut self, k: u64, time_us: Option<f64>) -> Option<Arm> {
        let (heard, arm) = (self.heard.get_mut(k as usize)?, *self.planned.get(k as usize)?);
        if std::mem::replace(heard, true) {
            return None;
        }
        self.policy.learn(Sample { call: self.first + k, arm, time_us, channels: None });
        self.arms.get(arm).copied()
    }

    fn lose(&mut self, first: u64, planned: &[usize]) {
        for (i, arm) in planned.iter().enumerate() {
            self.policy.learn(Sample { call: first + i as u64, arm: *arm, time_us: None, channels: None });
        }
    }

    /// What has not been heard by now, or was not called, is lost.
    fn finish_epoch(&mut self, epoch: u64) {
        for k in 0..self.planned.len() as u64 {
            self.learn(k, None);
        }
        self.times = Reduction::default();
        self.kernels.forget_before(epoch);
        self.before = (epoch, std::mem::take(&mut self.planned));
        self.used = 0;
    }
}

/// The arm that an AUTO entry stands for.
pub fn auto_arm(entry: u8) -> Arm {
    crate::costs::entry(entry).map_or(Arm::AUTO, |(a, p): (Algorithm, Protocol)| Arm::new(a, p))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::Decision;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tune::Collective;

    fn call(k: u64, epoch: u64) -> Decision {
        Decision { counted: epoch > 0, mask: 0b11_1111, auto: 3, epoch, ..Decision::of_test(k, 1 << 20, Arm::AUTO) }
    }

    /// All messages to the one member, answered as a member does that agrees; the epochs that were committed.
    fn agree(c: &mut Conductor, now_us: u64) -> usize {
        let (mut out, mut committed) = (Vec::new(), 0);
        c.tick(0, now_us, &mut out);
        while let Some((_, message)) = out.pop() {
            let answer = match message {
                ToMember::Propose(e) => ToLeader::Ack { epoch: e.number, begun: 0 },
                ToMember::Commit(n) | ToMember::Abort(n) => {
                    committed += 1;
                    ToLeader::Confirm { epoch: n, begun: 0 }
                }
            };
            c.hear(0, &answer, now_us, &mut out);
        }
        committed
    }

    #[test]
    fn a_program_that_says_its_first_step_late_is_learnt_afresh() {
        let built = Arc::new(AtomicU32::new(0));
        let count = built.clone();
        let build: Build = Box::new(move |arms, _| {
            count.fetch_add(1, Ordering::Relaxed);
            crate::policies::build("round-robin", arms, 1 << 20)
        });
        let plan = Plan::Learn { build, calls: 4, explore_all: true, by_kernel: false };
        let mut c = Conductor::new(1, plan);
        (0..2).for_each(|k| c.saw(&call(k, 0), 0));
        assert_eq!((agree(&mut c, 10), c.in_force()), (1, 1));
        let sample = |epoch, k, source| {
            let slot = Slot::of(Collective::AllReduce, 1 << 20);
            ToLeader::Samples(vec![RankSample { epoch, slot, k, source, time_us: 100.0 }])
        };
        for (k, source) in [(0, Source::Interval), (1, Source::Interval), (2, Source::Step)] {
            assert_eq!(built.load(Ordering::Relaxed), 1);
            c.saw(&call(k, 1), 20);
            c.hear(0, &sample(1, k, source), 20, &mut Vec::new());
        }
        assert_eq!(
            (agree(&mut c, 30), c.in_force(), built.load(Ordering::Relaxed)),
            (1, 2, 2),
            "at once, and from nothing"
        );
        // Once is enough; what comes late from before is passed over.
        c.hear(0, &sample(1, 3, Source::Interval), 40, &mut Vec::new());
        for k in 0..4 {
            c.saw(&call(k, 2), 50);
            c.hear(0, &sample(2, k, Source::Step), 50, &mut Vec::new());
        }
        assert_eq!((agree(&mut c, 60), c.in_force(), built.load(Ordering::Relaxed)), (1, 3, 2));
        assert_eq!(c.take_learnt().len(), 2 + 1 + 4);
    }
}
