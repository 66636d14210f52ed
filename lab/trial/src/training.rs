//! A training loop as the plugin sees it: many calls per step, steps or groups with times of the host's clock, a host that
//! runs ahead of the GPU, and plans that the ranks agree on some steps in advance. Simulated.
//!
//! The loop is a timeline of two processors. The host enqueues a step's work call by call and waits at its end until the
//! GPU has finished the step `lag` steps before. The GPU executes one piece after the other: computation, then the
//! collective that follows it, with the level of the arm that its call was given. Nothing in here is fitted or estimated:
//! the learner sees the times that these two clocks show, and nothing else.

use stats::random::Random;
use std::collections::BTreeMap;
use tune::policy::{Context, Policy, Reading};
use tune::steps::{CallPlan, LoopTuner, SeenCall, SlotLearner, StepRace, StepSource};

/// The scatter of whole steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepNoise {
    /// Coefficient of variation of a step, log-normal.
    pub cv: f64,
    /// Share of steps that something else delays (data, checkpoints), by 30 to 200 %.
    pub outliers: f64,
    /// All times grow by this share in every 1,000 steps.
    pub drift_per_1000: f64,
    /// With this probability a step is in the slow mode, which takes `mode_factor` times as long.
    pub mode_share: f64,
    /// See `mode_share`.
    pub mode_factor: f64,
    /// Share of a step's deviation that the next step inherits.
    pub memory: f64,
    /// The deviation has long tails: Student's with three degrees of freedom instead of the normal distribution.
    pub is_long_tailed: bool,
    /// Every so many steps a checkpoint makes a step three times as long; twice as often, five steps of evaluation take
    /// 1.4 times as long. 0: never.
    pub checkpoint_steps: u64,
    /// Now and then one rank computes this share slower for 30 steps, and all others wait for it.
    pub straggler: f64,
}

impl StepNoise {
    /// 2.5 %, 1 % of steps delayed, 1 % slower per 1,000 steps: the noise of the tables.
    pub const PLAIN: StepNoise = StepNoise {
        cv: 0.025,
        outliers: 0.01,
        drift_per_1000: 0.01,
        mode_share: 0.0,
        mode_factor: 1.0,
        memory: 0.0,
        is_long_tailed: false,
        checkpoint_steps: 0,
        straggler: 0.0,
    };
}

/// The calls of one slot in every step.
#[derive(Debug, Clone, PartialEq)]
pub struct LoopSlot {
    /// Calls per step.
    pub calls: u32,
    /// Share of these calls in the step's time at AUTO.
    pub share: f64,
    /// Time of each arm over AUTO's, AUTO (1) left out; shuffled for every seed.
    pub levels: Vec<f64>,
}

/// The description of a loop.
#[derive(Debug, Clone, PartialEq)]
pub struct LoopSpec {
    /// Its name on the command line.
    pub name: String,
    /// The slots, called in turn within a step.
    pub slots: Vec<LoopSlot>,
    /// Time of a step at AUTO, microseconds.
    pub step_us: f64,
    /// Steps that the host runs ahead of the GPU; 0: it waits at the end of each step.
    pub lag: usize,
    /// The program reports its steps.
    pub is_told: bool,
    /// Scatter of times.
    pub noise: StepNoise,
    /// Time between a proposal and its first step, microseconds: of the first proposal, and of later ones.
    pub lead_us: [f64; 2],
    /// Steps of one run.
    pub steps: u64,
    /// Share of each call that runs beside computation, and shows only if it takes longer.
    pub hidden: f64,
    /// A step leaves out up to this many of its last calls, at random.
    pub varies: usize,
}

/// Who decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Whole steps, as the plugin does.
    WholeSteps,
    /// A policy that changes arms call by call, in epochs of 16 calls; a step counts for a slot whose arm did not change
    /// in it. For comparison.
    CallByCall,
}

/// Calls of a slot in an epoch of [`Scheme::CallByCall`].
const EPOCH_CALLS: usize = 16;
/// Time that the host needs to enqueue a call, microseconds.
const ENQUEUE_US: f64 = 10.0;

/// The outcome of one run. "Expected" means computed from the true levels, free of noise.
#[derive(Debug, Clone, PartialEq)]
pub struct LoopOutcome {
    /// The step from which the best arm of the first slot was in use until the end.
    pub found_after: Option<u64>,
    /// An arm that is no better than AUTO was in use by choice.
    pub is_fooled: bool,
    /// Expected time of all steps over that with AUTO, minus 1.
    pub longer: f64,
    /// The gain that the tuner states for the first slot's arm, and the true one, as shares of AUTO's step.
    pub gain: Option<(f64, f64)>,
    /// Why nothing was learned, if the tuner says so.
    pub never: Option<String>,
    /// Calls per step, as the tuner found them.
    pub calls_found: Option<u64>,
    /// Share of the possible gain of all slots together that the arms in use have at step [`FOUND_STEPS`].
    pub gained: Option<f64>,
}

/// Steps within which the best arms should be found.
pub const FOUND_STEPS: u64 = 200;

struct Timeline<'a> {
    spec: &'a LoopSpec,
    /// By slot: levels by arm, AUTO first.
    levels: Vec<Vec<f64>>,
    random: Random,
    host_us: f64,
    gpu_us: f64,
    done_us: Vec<f64>,
    deviation: f64,
    /// Steps that the straggler stays slow.
    straggles: u32,
}

impl<'a> Timeline<'a> {
    fn new(spec: &'a LoopSpec, seed: u64) -> Self {
        let mut random = Random::of(seed, 1);
        let levels = spec.slots.iter().map(|s| {
            let mut others = s.levels.clone();
            random.shuffle(&mut others);
            [1.0].into_iter().chain(others).collect()
        });
        let levels = levels.collect();
        Timeline { spec, levels, random, host_us: 0.0, gpu_us: 0.0, done_us: Vec::new(), deviation: 0.0, straggles: 0 }
    }

    /// The slots of a step's calls, in order.
    fn sequence(&self) -> Vec<usize> {
        let most = self.spec.slots.iter().map(|s| s.calls).max().unwrap_or(0);
        let of = |round: u32| {
            let has = move |s: &LoopSlot| {
                u64::from(round) * u64::from(s.calls) / u64::from(most)
                    != u64::from(round + 1) * u64::from(s.calls) / u64::from(most)
            };
            (0..self.spec.slots.len()).filter(move |i| has(&self.spec.slots[*i]))
        };
        (0..most).flat_map(of).collect()
    }

    /// Share of a step that is computation. A step at AUTO takes 1.
    fn compute(&self) -> f64 {
        1.0 - (1.0 - self.spec.hidden) * self.spec.slots.iter().map(|s| s.share).sum::<f64>()
    }

    /// Time of a call and of the computation before it, as a share of the step; `slower`: factor of the computation.
    fn piece(&self, slot: usize, arm: usize, calls: usize, slower: f64) -> f64 {
        let s = &self.spec.slots[slot];
        let call = s.share / f64::from(s.calls) * self.levels[slot][arm];
        let beside = self.spec.hidden * call;
        (slower * self.compute() / calls as f64).max(beside) + call - beside
    }

    /// Expected time of a step with these calls, relative to AUTO.
    fn expected(&self, arms: &[(usize, usize)]) -> f64 {
        let calls = arms.len();
        let all = self.spec.slots.iter().map(|s| s.calls as usize).sum::<usize>();
        let missing = (all - calls.min(all)) as f64 / all as f64;
        let at_auto: f64 = arms.iter().map(|(slot, _)| self.piece(*slot, 0, calls, 1.0)).sum();
        let time: f64 = arms.iter().map(|(slot, arm)| self.piece(*slot, *arm, calls, 1.0)).sum();
        if missing > 0.0 { time / at_auto } else { time }
    }

    /// The same for steps with all calls, where each slot has one arm.
    fn expected_of(&self, arm: impl Fn(usize) -> usize) -> f64 {
        let all: Vec<(usize, usize)> = self.sequence().into_iter().map(|slot| (slot, arm(slot))).collect();
        self.expected(&all)
    }

    /// The factor of this step's times.
    fn factor(&mut self, step: u64) -> f64 {
        let n = self.spec.noise;
        let mut own = self.random.normal();
        if n.is_long_tailed {
            let squares: f64 = (0..3).map(|_| self.random.normal().powi(2)).sum();
            own /= (squares / 3.0).sqrt().max(0.05);
        }
        let fresh = (1.0 - n.memory * n.memory).sqrt() * own * n.cv;
        self.deviation = n.memory * self.deviation + fresh;
        let outlier = if self.random.unit() < n.outliers { 1.3 + 1.7 * self.random.unit() } else { 1.0 };
        let mode = if self.random.unit() < n.mode_share { n.mode_factor } else { 1.0 };
        let planned = match n.checkpoint_steps {
            0 => 1.0,
            every if step % every == every - 1 => 3.0,
            every if step % (2 * every) < 5 && step >= every => 1.4,
            _ => 1.0,
        };
        if n.straggler > 0.0 {
            self.straggles = match self.straggles {
                0 if self.random.below(120) == 0 => 30,
                left => left.saturating_sub(1),
            };
        }
        self.deviation.exp() * outlier * mode * planned * (1.0 + n.drift_per_1000 * step as f64 / 1000.0)
    }

    /// Plays one call of a step: returns when its group began on the host.
    fn call(&mut self, slot: usize, arm: usize, calls: usize, factor: f64) -> f64 {
        let slower = if self.straggles > 0 { 1.0 + self.spec.noise.straggler } else { 1.0 };
        let piece = self.piece(slot, arm, calls, slower);
        let at = self.host_us;
        self.host_us += ENQUEUE_US * self.random.log_normal(0.3);
        self.gpu_us = self.gpu_us.max(at) + piece * self.spec.step_us * factor;
        at
    }

    /// Ends a step: the host waits for the GPU.
    fn end(&mut self) {
        self.done_us.push(self.gpu_us);
        if let Some(i) = self.done_us.len().checked_sub(1 + self.spec.lag) {
            self.host_us = self.host_us.max(self.done_us[i]);
        }
    }
}

/// What a scheme does in a step.
trait Decider {
    /// The arm of a slot's next call.
    fn arm(&mut self, call: SeenCall) -> usize;
    /// A step has ended: its calls with their arms, its first call and its time.
    fn end_step(&mut self, calls: &[(SeenCall, usize)], begin_us: f64, end_us: f64);
    /// The arms in use by slot.
    fn in_use(&self, slot: u32) -> usize;
}

/// The plugin's tuner with the ranks' agreement, which takes the lead and never fails.
struct Whole<'a> {
    spec: &'a LoopSpec,
    tuner: LoopTuner,
    epoch: Epoch,
    next: Option<(u64, Epoch)>,
    begun: BTreeMap<u32, u64>,
    last: BTreeMap<u32, (u64, f64)>,
    number: u64,
    /// Proposals made.
    plans: u64,
    now_us: f64,
}

#[derive(Default)]
struct Epoch {
    runs: BTreeMap<u32, Vec<(usize, u32)>>,
    in_use: BTreeMap<u32, usize>,
}

impl Whole<'_> {
    /// The slot's bytes in a call: the tuner orders slots by them.
    fn bytes(&self, slot: u32) -> u64 {
        let s = &self.spec.slots[slot as usize];
        (1e12 * s.share / f64::from(s.calls)) as u64
    }

    fn add_slots(&mut self) {
        for (i, slot) in self.spec.slots.iter().enumerate() {
            if !self.tuner.has_slot(i as u32) {
                let race = StepRace::new(slot.levels.len() + 1);
                self.tuner.add_slot(i as u32, Box::new(race) as Box<dyn SlotLearner>);
            }
        }
    }
}

impl Decider for Whole<'_> {
    fn arm(&mut self, call: SeenCall) -> usize {
        self.number = call.number + 1;
        if self.next.as_ref().is_some_and(|n| n.0 <= call.number) {
            self.epoch = self.next.take().map(|n| n.1).unwrap_or_default();
            self.begun.clear();
            self.last.clear();
        }
        let settled = self.epoch.in_use.get(&call.slot).copied().unwrap_or(0);
        let Some(runs) = self.epoch.runs.get(&call.slot) else {
            self.tuner.on_call(call, self.bytes(call.slot), None, self.now_us as u64);
            return settled;
        };
        let bytes = self.bytes(call.slot);
        let k = self.begun.entry(call.slot).or_insert(0);
        let (mine, mut end) = (*k, 0);
        *k += 1;
        // A tuner that waits for its next plan counts no calls of the last one.
        let in_force = self.next.is_none();
        self.tuner.on_call(call, bytes, in_force.then_some(mine), self.now_us as u64);
        if !self.spec.is_told
            && let Some((before, at)) = self.last.insert(call.slot, (mine, call.at_ns as f64 / 1e3))
            && in_force
        {
            let time = call.at_ns as f64 / 1e3 - at;
            let _ = self.tuner.on_time(call.slot, before, StepSource::Groups, Some(time));
        }
        let of = |run: &&(usize, u32)| {
            end += u64::from(run.1);
            mine < end
        };
        runs.iter().find(of).map_or(settled, |run| run.0)
    }

    fn end_step(&mut self, calls: &[(SeenCall, usize)], begin_us: f64, end_us: f64) {
        self.now_us = end_us;
        if self.spec.is_told {
            self.tuner.on_step(calls[0].0.number);
            for slot in self.epoch.runs.keys().filter(|_| self.next.is_none()) {
                let of_slot: Vec<_> = calls.iter().filter(|c| c.0.slot == *slot).collect();
                let constant = of_slot.iter().all(|c| c.1 == of_slot[0].1);
                let last = self.begun.get(slot).copied().unwrap_or(0);
                if let Some(first) = last.checked_sub(of_slot.len() as u64) {
                    let time = constant.then_some(end_us - begin_us);
                    let _ = self.tuner.on_time(*slot, first, StepSource::Steps, time);
                }
            }
        }
        self.add_slots();
        if let Some(CallPlan { runs, in_use, align }) = self.tuner.propose(end_us as u64) {
            let per_step = calls.len() as u64;
            let mut from = self.number + self.spec.lead_steps(self.plans) * per_step;
            self.plans += 1;
            if let Some((begin, step)) = align {
                from = begin + (from - begin).next_multiple_of(step);
            }
            self.next = Some((from, Epoch { runs, in_use }));
            self.tuner.committed();
        }
    }

    fn in_use(&self, slot: u32) -> usize {
        self.epoch.in_use.get(&slot).copied().unwrap_or(0)
    }
}

/// One policy per slot, call by call.
struct ByCall {
    policies: Vec<Box<dyn Policy>>,
    planned: Vec<Vec<usize>>,
    used: Vec<usize>,
    first: Vec<u64>,
    readings: Vec<Vec<Option<f64>>>,
}

impl ByCall {
    fn new(spec: &LoopSpec) -> Self {
        let arms = |n: usize| {
            let spec = crate::Spec::new("", 1.0, &vec![1.0; n], crate::Noise::LogNormal { cv: 0.1 });
            let mut arms = spec.arms;
            arms.rotate_right(1); // AUTO first
            arms
        };
        let make = |n: usize| tune::build("adaptive", &arms(n), &tune::PolicyOptions::default());
        let policies: Vec<_> = spec.slots.iter().filter_map(|s| make(s.levels.len()).ok()).collect();
        let n = policies.len();
        ByCall {
            policies,
            planned: vec![Vec::new(); n],
            used: vec![0; n],
            first: vec![0; n],
            readings: vec![Vec::new(); n],
        }
    }
}

impl Decider for ByCall {
    fn arm(&mut self, call: SeenCall) -> usize {
        let i = call.slot as usize;
        if self.used[i] == self.planned[i].len() {
            for (k, arm) in self.planned[i].iter().enumerate() {
                let time_us = self.readings[i].get(k).copied().flatten();
                self.policies[i].learn(Reading { call: self.first[i] + k as u64, arm: *arm, time_us, channels: None });
            }
            self.first[i] += self.planned[i].len() as u64;
            let policy = &mut self.policies[i];
            self.planned[i] = (0..EPOCH_CALLS).map(|_| policy.decide(Context::default()).arm).collect();
            self.readings[i].clear();
            self.used[i] = 0;
        }
        self.used[i] += 1;
        self.planned[i][self.used[i] - 1]
    }

    fn end_step(&mut self, calls: &[(SeenCall, usize)], begin_us: f64, end_us: f64) {
        for i in 0..self.policies.len() {
            let arms: Vec<usize> = calls.iter().filter(|c| c.0.slot as usize == i).map(|c| c.1).collect();
            let whole = arms.len() <= self.used[i] && arms.iter().all(|a| *a == arms[0]);
            if whole && !arms.is_empty() {
                let k = self.used[i] - arms.len();
                self.readings[i].resize(self.used[i], None);
                self.readings[i][k] = Some(end_us - begin_us);
            }
        }
    }

    fn in_use(&self, slot: u32) -> usize {
        self.policies[slot as usize].in_use()
    }
}

/// Plays one run.
pub fn train(spec: &LoopSpec, scheme: Scheme, seed: u64) -> LoopOutcome {
    match scheme {
        Scheme::CallByCall => play(spec, seed, &mut ByCall::new(spec)),
        Scheme::WholeSteps => {
            let mut whole = Whole {
                spec,
                tuner: LoopTuner::new(false),
                epoch: Epoch::default(),
                next: None,
                begun: BTreeMap::new(),
                last: BTreeMap::new(),
                number: 0,
                plans: 0,
                now_us: 0.0,
            };
            let mut outcome = play(spec, seed, &mut whole);
            let stated = whole.tuner.fresh_gain(0).map(|g| g.0);
            let level = Timeline::new(spec, seed).levels[0][whole.in_use(0)];
            outcome.gain = stated.map(|s| (s, (1.0 - spec.hidden) * spec.slots[0].share * (1.0 - level)));
            outcome.never = whole.tuner.never().map(ToOwned::to_owned);
            outcome.calls_found = whole.tuner.cadence().map(|c| c.calls);
            outcome
        }
    }
}

fn play(spec: &LoopSpec, seed: u64, decider: &mut dyn Decider) -> LoopOutcome {
    let mut line = Timeline::new(spec, seed);
    let sequence = line.sequence();
    let (mut number, mut expected, mut found_after, mut is_fooled, mut gained) = (0, 0.0, None, false, None);
    let best = |levels: &[f64]| levels.iter().copied().fold(f64::INFINITY, f64::min);
    for step in 0..spec.steps {
        let factor = line.factor(step);
        let begin = line.host_us;
        let mut calls = Vec::with_capacity(sequence.len());
        let left_out = line.random.below(spec.varies + 1);
        for slot in sequence.iter().rev().skip(left_out).rev() {
            let group = (number % 0xff_ffff) as u32 + 1;
            let call = SeenCall { number, slot: *slot as u32, group, at_ns: (line.host_us * 1e3) as u64 };
            let arm = decider.arm(call);
            line.call(*slot, arm, sequence.len(), factor);
            calls.push((call, arm));
            number += 1;
        }
        line.end();
        decider.end_step(&calls, begin, line.host_us);
        let arms: Vec<(usize, usize)> = calls.iter().map(|c| (c.0.slot as usize, c.1)).collect();
        expected += line.expected(&arms);
        let level = line.levels[0][decider.in_use(0)];
        if level <= best(&line.levels[0]) && level < 1.0 {
            found_after.get_or_insert(step);
        } else {
            found_after = None;
        }
        if step + 1 == FOUND_STEPS {
            let least = line.expected_of(|slot| {
                let levels = &line.levels[slot];
                (0..levels.len()).min_by(|a, b| levels[*a].total_cmp(&levels[*b])).unwrap_or(0)
            });
            let now = line.expected_of(|slot| decider.in_use(slot as u32));
            gained = (least < 1.0 - 1e-9).then(|| (1.0 - now) / (1.0 - least));
        }
        is_fooled |= (0..spec.slots.len()).any(|s| {
            let arm = decider.in_use(s as u32);
            arm != 0 && line.levels[s][arm] >= 1.0
        });
    }
    let longer = expected / spec.steps as f64 - 1.0;
    LoopOutcome { found_after, is_fooled, longer, gain: None, never: None, calls_found: None, gained }
}

/// What the best possible test of the same length gains: the share of the possible gain of all slots in percent.
///
/// It knows the best arm of each slot and only asks whether it beats AUTO, wrong in one case of a hundred where it does
/// not. It knows the delay and the noise, has no delayed steps, uses all steps but those before the rhythm shows (5) and
/// those before two plans begin, half of them per arm, and learns about all slots in the same steps. `None` without a
/// better arm.
pub fn oracle(spec: &LoopSpec) -> Option<f64> {
    const WRONG: f64 = 2.326;
    let noise = spec.noise;
    let modes = noise.mode_share * (1.0 - noise.mode_share) * (noise.mode_factor - 1.0).powi(2)
        / (1.0 + noise.mode_share * (noise.mode_factor - 1.0)).powi(2);
    let steps = FOUND_STEPS.saturating_sub(5 + spec.lead_steps(0) + spec.lead_steps(1)) as f64;
    let error = (noise.cv * noise.cv + modes).sqrt() * (4.0 / steps).sqrt();
    let gain = |s: &LoopSlot| (1.0 - spec.hidden) * s.share * (1.0 - s.levels.iter().copied().fold(1.0, f64::min));
    let possible: f64 = spec.slots.iter().map(gain).sum();
    let seen: f64 = spec.slots.iter().map(|s| gain(s) * stats::normal_cdf(gain(s) / error - WRONG)).sum();
    (possible > 0.0).then(|| 100.0 * seen / possible)
}

/// What the plugin does at its defaults: the setting `lead` of 5 s and 1.5 s of recovery, half as much again while the rate of calls may
/// rise and a tenth more once it is steady (`agreement::leader`).
pub const LEAD_US: [f64; 2] = [9_750_000.0, 7_150_000.0];

impl LoopSpec {
    /// Steps between a proposal, by its number, and its first step.
    fn lead_steps(&self, proposal: u64) -> u64 {
        (self.lead_us[usize::from(proposal > 0)] / self.step_us).ceil() as u64
    }
}

/// A loop with one slot of `calls` calls per step that take 40 % of the step.
pub fn one_slot(name: &str, calls: u32, lag: usize, levels: &[f64]) -> LoopSpec {
    LoopSpec {
        name: name.into(),
        slots: vec![LoopSlot { calls, share: 0.4, levels: levels.to_vec() }],
        step_us: 800_000.0,
        lag,
        is_told: true,
        noise: StepNoise::PLAIN,
        lead_us: LEAD_US,
        steps: 2_000,
        hidden: 0.0,
        varies: 0,
    }
}

/// One arm 20 % faster, others slower.
pub const BETTER: [f64; 5] = [0.8, 1.1, 1.3, 1.6, 2.5];
/// No better arm.
pub const NONE_BETTER: [f64; 5] = [1.0, 1.05, 1.3, 1.6, 2.5];

/// All loops of `linkwise-lab tune evaluate --loops`, with a description.
pub fn loops() -> Vec<(LoopSpec, String)> {
    let mut out = Vec::new();
    for calls in [1, 4, 8, 64] {
        for lag in 0..=3 {
            let (better, none) = (format!("k{calls}-lag{lag}"), format!("k{calls}-lag{lag}-none"));
            out.push((one_slot(&better, calls, lag, &BETTER), "steps told, one arm 20 % faster".to_owned()));
            out.push((one_slot(&none, calls, lag, &NONE_BETTER), "steps told, no better arm".to_owned()));
        }
    }
    for calls in [1, 4, 8, 64] {
        let (better, none) = (format!("untold-k{calls}"), format!("untold-k{calls}-none"));
        let of = |name: &str, levels: &[f64]| LoopSpec { is_told: false, ..one_slot(name, calls, 1, levels) };
        out.push((of(&better, &BETTER), "steps not told, lag 1, one arm 20 % faster".to_owned()));
        out.push((of(&none, &NONE_BETTER), "steps not told, lag 1, no better arm".to_owned()));
    }
    let slot = |calls, share, levels: &[f64]| LoopSlot { calls, share, levels: levels.to_vec() };
    for (name, levels) in [("mixed", BETTER), ("mixed-none", NONE_BETTER)] {
        let base = one_slot(name, 1, 1, &[]);
        let slots = vec![slot(16, 0.25, &levels), slot(4, 0.1, &levels), slot(1, 0.05, &levels)];
        let about = "three sizes, 16, 4 and 1 calls (25, 10 and 5 % of the step), lag 1";
        out.push((LoopSpec { slots, ..base }, about.to_owned()));
    }
    for (name, levels) in [("fsdp", BETTER), ("fsdp-none", NONE_BETTER)] {
        let base = one_slot(name, 1, 1, &[]);
        let slots = vec![slot(128, 0.25, &levels), slot(64, 0.15, &levels)];
        out.push((LoopSpec { slots, ..base }, "128 and 64 calls of two collectives (25 and 15 %), lag 1".to_owned()));
    }
    let many = vec![slot(4, 0.01, &NONE_BETTER); 40];
    let about = "40 sizes of 4 calls, 1 % of the step each, no better arm";
    out.push((LoopSpec { slots: many, ..one_slot("many-none", 1, 1, &[]) }, about.to_owned()));
    let noises = [
        ("modes", "two modes (1 and 2.7 times, half of the steps each), CV 15 %", {
            StepNoise { mode_share: 0.5, mode_factor: 2.7, cv: 0.15, ..StepNoise::PLAIN }
        }),
        ("rare-mode", "one step in seven takes twice as long", {
            StepNoise { mode_share: 1.0 / 7.0, mode_factor: 2.0, ..StepNoise::PLAIN }
        }),
        ("memory", "a step inherits 70 % of the deviation of the step before", {
            StepNoise { memory: 0.7, ..StepNoise::PLAIN }
        }),
        ("cv10", "CV 10 %", StepNoise { cv: 0.1, ..StepNoise::PLAIN }),
        ("drift", "steps get 20 % longer in 1,000 steps", StepNoise { drift_per_1000: 0.2, ..StepNoise::PLAIN }),
        ("memory90", "a step inherits 90 % of the deviation of the step before", {
            StepNoise { memory: 0.9, ..StepNoise::PLAIN }
        }),
        ("tails", "Student's deviation with three degrees of freedom", {
            StepNoise { is_long_tailed: true, ..StepNoise::PLAIN }
        }),
        ("checkpoints", "every 50th step takes three times as long, every 100 steps five take 1.4 times", {
            StepNoise { checkpoint_steps: 50, ..StepNoise::PLAIN }
        }),
        ("straggler", "a rank computes 15 % slower for 30 steps, every 150 steps on average", {
            StepNoise { straggler: 0.15, ..StepNoise::PLAIN }
        }),
    ];
    for (name, about, noise) in noises {
        let of = |name: String, levels: &[f64]| LoopSpec { noise, ..one_slot(&name, 4, 1, levels) };
        out.push((of(name.to_owned(), &BETTER), format!("4 calls, lag 1, one arm 20 % faster; {about}")));
        out.push((of(format!("{name}-none"), &[1.0; 5]), format!("4 calls, lag 1, all arms equal; {about}")));
    }
    for (name, levels) in [("hidden", BETTER), ("hidden-none", NONE_BETTER)] {
        let about = "4 calls, lag 1, half of each call runs beside computation and does not show";
        out.push((LoopSpec { hidden: 0.5, ..one_slot(name, 4, 1, &levels) }, about.to_owned()));
    }
    for (name, levels) in [("layers", BETTER), ("layers-none", NONE_BETTER)] {
        let shares = [0.1, 0.08, 0.06, 0.05, 0.04, 0.03, 0.02, 0.02];
        let slots = shares.map(|share| slot(40, share, &levels)).to_vec();
        let about = "320 calls of eight sizes (10 to 2 % of the step), lag 1";
        out.push((LoopSpec { slots, ..one_slot(name, 1, 1, &[]) }, about.to_owned()));
    }
    for (name, levels) in [("short", BETTER), ("short-none", NONE_BETTER)] {
        let about = "8 calls, lag 1, steps of 200 ms: a proposal begins 36 to 49 steps later";
        out.push((LoopSpec { step_us: 200_000.0, ..one_slot(name, 8, 1, &levels) }, about.to_owned()));
    }
    let varies = LoopSpec { varies: 3, ..one_slot("varies", 8, 1, &BETTER) };
    out.push((varies, "5 to 8 calls per step, at random: nothing can be learned".to_owned()));
    out
}
