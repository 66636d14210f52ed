//! The arms of one slot, compared in blocks of whole steps.
//!
//! A **block** is a number of consecutive steps with one arm. Blocks of other arms lie between steps of the base arm (AUTO
//! during the race), in random order. The host may run up to [`LAG_MAX`] steps ahead of the GPU: its steps then show an
//! arm's effect later. The **effect** of a block is therefore the excess of all steps from its begin until [`LAG_MAX`]
//! steps after its end, divided by its length. This sum is right for every lag up to [`LAG_MAX`], also where a step shows
//! parts of two.
//!
//! 1. **Probe.** Every arm runs twice for one step. An arm that is slow in both (one slow step may be chance) is left out.
//! 2. **Race.** The most promising arms run in longer blocks until one is better than AUTO beyond chance, or none can be.
//! 3. **Check.** The arm in use is compared with AUTO again, with steps that did not choose it. Only these count for
//!    the gain that is reported. If they do not confirm the gain, AUTO returns. Now and then another arm runs.

use stats::random::Random;

/// Steps that the host may run ahead of the GPU.
pub const LAG_MAX: usize = 3;
/// Most runs of a plan: blocks of the arms and of the base arm between them.
pub const BLOCKS_MAX: usize = 32;

/// Steps of the base arm before the first block.
const LEAD_IN: u32 = LAG_MAX as u32 + 4;
/// Steps of the base arm after a block of one step: until its effect has passed.
const PROBE_GAP: u32 = LAG_MAX as u32;
/// Steps of a block in the race.
const RACE_STEPS: u32 = 6;
/// Steps of the base arm between blocks of the race: until the effect has passed, then clean ones.
const RACE_GAP: u32 = LAG_MAX as u32 + 2;
/// Blocks of each arm in one plan of the race.
const RACE_BLOCKS: usize = 2;
/// Arms in one plan of the race.
const RACE_ARMS: usize = 3;
/// Blocks of an arm after which the race leaves it undecided.
const RACE_BLOCKS_MAX: usize = 12;
/// Steps of a block of a check, and the blocks of AUTO in it.
const CHECK_STEPS: u32 = 6;
const CHECK_BLOCKS: usize = 2;
/// Checks before an arm counts as confirmed.
const CHECKS_CONFIRM: usize = 4;
/// Fresh effects that are kept.
const FRESH_MAX: usize = 32;
/// Newest fresh effects that judge whether the gain still exists.
const FRESH_RECENT: usize = 6;
/// Shortening of the step that justifies leaving AUTO.
pub const GATE: f64 = 0.01;
/// Standard errors below zero at which an arm is better beyond chance. All tests of a race together are wrong in under
/// one run in a hundred (`linkwise-lab tune evaluate --loops`).
const BETTER: f64 = 4.5;
/// Standard errors at which a surprise in a later look starts a new race.
const SURPRISE: f64 = 5.0;
/// An arm is slow if both of its single steps took longer by this share of the step.
const SLOW: f64 = 0.15;
/// Single steps after which an arm that was slow in all of them is left out, however noisy steps are.
const PROBES_MAX: usize = 6;
/// Excess of one step over the middle of its block that counts at most, in standard deviations and as a share: other
/// things also delay steps.
const CLIP_DEVIATIONS: f64 = 4.0;
const CLIP_SHARE: f64 = 0.1;
/// Degrees of freedom that the variance between steps counts for, beside that between blocks.
const FREEDOM_OF_STEPS: f64 = 8.0;
/// Assumed excess of an arm that has not run.
const UNKNOWN: f64 = 0.15;
/// Clean steps that a plan must give.
const CLEAN_MIN: usize = 6;
/// Smallest standard deviation of steps, as a share: no clock is better.
const DEVIATION_MIN: f64 = 0.002;

/// Consecutive steps with one arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Index of the arm.
    pub arm: usize,
    /// Number of steps, at least 1.
    pub steps: u32,
}

/// One measured block: its effect as a share of the step, and its variance in units of the variance of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Effect {
    share: f64,
    variance: f64,
}

/// All effects of one arm in the race, pooled.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Estimate {
    share: f64,
    error: f64,
    blocks: usize,
}

#[derive(Debug, Clone, Default)]
struct Rival {
    /// Excess of its single steps.
    probes: Vec<f64>,
    effects: Vec<Effect>,
    slow: bool,
    /// The race cannot decide about it, or it is worse.
    out: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Probe,
    Race,
    Check,
}

/// Chooses the arm of one slot from the times of whole steps. See the module documentation.
#[derive(Debug, Clone)]
pub struct StepRace {
    auto: usize,
    in_use: usize,
    stage: Stage,
    rivals: Vec<Rival>,
    /// Variance of one step, as a share squared: the sum of squares and its weight.
    squares: (f64, f64),
    /// AUTO's excess over the arm in use, since the choice.
    fresh: Vec<Effect>,
    /// The arm that the next look tries, if AUTO is in use.
    next_look: usize,
    /// Excess time of all plans so far, in steps.
    spent: f64,
    random: Random,
    because: String,
}

impl StepRace {
    /// A race of `arms` arms; `auto` is the index of AUTO. `seed` fixes the order of blocks.
    pub fn new(arms: usize, auto: usize, seed: u64) -> Self {
        StepRace {
            auto,
            in_use: auto,
            stage: Stage::Probe,
            rivals: vec![Rival::default(); arms],
            squares: (0.0, 0.0),
            fresh: Vec::new(),
            next_look: 0,
            spent: 0.0,
            random: Random::new(seed),
            because: "no step measured yet".into(),
        }
    }

    /// The arm that runs outside of plans.
    pub fn in_use(&self) -> usize {
        self.in_use
    }

    /// Why that arm is in use, in one line.
    pub fn because(&self) -> &str {
        &self.because
    }

    /// No race is open and the arm in use is confirmed; a plan is only worth its steps now and then.
    pub fn is_settled(&self) -> bool {
        self.stage == Stage::Check && (self.in_use == self.auto || self.fresh.len() >= CHECKS_CONFIRM)
    }

    /// Its next plan compares the arm in use with AUTO again.
    pub fn is_fresh(&self) -> bool {
        self.stage == Stage::Check && self.in_use != self.auto
    }

    /// Excess of all plans so far, in steps.
    pub fn spent_steps(&self) -> f64 {
        self.spent
    }

    /// The gain of the arm in use over AUTO as a share of AUTO's step, and its standard error: from fresh steps only.
    pub fn fresh_gain(&self) -> Option<(f64, f64)> {
        let e = self.pooled(&self.fresh)?;
        Some((e.share / (1.0 + e.share), e.error))
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let auto = self.auto;
        (0..self.rivals.len()).filter(move |a| *a != auto)
    }

    /// Standard deviation of one step, as a share.
    fn deviation(&self) -> f64 {
        let (sum, weight) = self.squares;
        if weight > 0.0 { (sum / weight).sqrt().max(DEVIATION_MIN) } else { 0.05 }
    }

    fn pooled(&self, effects: &[Effect]) -> Option<Estimate> {
        let weight: f64 = effects.iter().map(|e| 1.0 / e.variance).sum();
        if effects.is_empty() {
            return None;
        }
        let share = effects.iter().map(|e| e.share / e.variance).sum::<f64>() / weight;
        Some(Estimate { share, error: (self.unit_variance() / weight).sqrt(), blocks: effects.len() })
    }

    /// The variance of one step that errors are computed from: the larger one of that between clean steps and that
    /// between blocks of the same arm. The second one also sees noise that lasts for many steps.
    fn unit_variance(&self) -> f64 {
        let (mut sum, mut freedom) = (0.0, 0.0);
        for effects in self.rivals.iter().map(|r| &r.effects).chain([&self.fresh]).filter(|e| e.len() > 1) {
            let weight: f64 = effects.iter().map(|e| 1.0 / e.variance).sum();
            let mean = effects.iter().map(|e| e.share / e.variance).sum::<f64>() / weight;
            sum += effects.iter().map(|e| (e.share - mean).powi(2) / e.variance).sum::<f64>();
            freedom += effects.len() as f64 - 1.0;
        }
        let of_steps = self.deviation().powi(2);
        of_steps.max((FREEDOM_OF_STEPS * of_steps + sum) / (FREEDOM_OF_STEPS + freedom))
    }

    /// What a plan is expected to cost, in steps.
    pub fn expected_cost(&self, blocks: &[Block]) -> f64 {
        let base = blocks.first().map_or(self.auto, |b| b.arm);
        let of = |b: &Block| -> f64 {
            let rival = &self.rivals[b.arm];
            let is_unknown = rival.probes.is_empty() && rival.effects.is_empty() && b.arm != self.auto;
            let share = match b.arm == base {
                true => 0.0,
                false if is_unknown => UNKNOWN,
                false if b.arm == self.auto => self.pooled(&self.fresh).map_or(GATE, |e| e.share),
                false => self.likely(b.arm),
            };
            share.max(0.0) * f64::from(b.steps)
        };
        blocks.iter().map(of).sum()
    }

    /// The next blocks, or `None` if there is nothing to compare. The caller adds the steps until the next plan with the
    /// arm in use.
    pub fn plan(&mut self) -> Option<Vec<Block>> {
        if self.rivals.len() < 2 {
            return None;
        }
        match self.stage {
            Stage::Probe => self.plan_probes(),
            Stage::Race => self.plan_race(),
            Stage::Check => self.plan_check(),
        }
    }

    fn around(&self, base: usize, blocks: &[(usize, u32)], gap: u32) -> Vec<Block> {
        let mut out = vec![Block { arm: base, steps: LEAD_IN }];
        for (arm, steps) in blocks {
            out.push(Block { arm: *arm, steps: *steps });
            out.push(Block { arm: base, steps: gap });
        }
        out
    }

    fn plan_probes(&mut self) -> Option<Vec<Block>> {
        let mut left: Vec<usize> = self.others().filter(|a| self.rivals[*a].probes.len() < 2).collect();
        left.truncate((BLOCKS_MAX - 1) / 4);
        let mut blocks = Vec::new();
        for _ in 0..2 {
            self.random.shuffle(&mut left);
            blocks.extend(left.iter().map(|a| (*a, 1)));
        }
        let mut out = self.around(self.auto, &blocks, PROBE_GAP);
        out.last_mut()?.steps += 2;
        Some(out)
    }

    fn plan_race(&mut self) -> Option<Vec<Block>> {
        let mut alive: Vec<(f64, usize)> =
            self.others().filter(|a| self.is_alive(*a)).map(|a| (self.likely(a), a)).collect();
        alive.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut arms: Vec<usize> = alive.iter().take(RACE_ARMS).map(|(_, a)| *a).collect();
        let mut blocks = Vec::new();
        for _ in 0..RACE_BLOCKS {
            self.random.shuffle(&mut arms);
            // An arm that seems slow costs too much for a long block, but a pause may have hit both of its steps.
            let steps = |a: usize| if self.seems_slow(a) { 1 } else { RACE_STEPS };
            blocks.extend(arms.iter().map(|a| (*a, steps(*a))));
        }
        Some(self.around(self.auto, &blocks, RACE_GAP))
    }

    fn plan_check(&mut self) -> Option<Vec<Block>> {
        let blocks = if self.in_use != self.auto {
            vec![(self.auto, CHECK_STEPS); CHECK_BLOCKS]
        } else {
            let others: Vec<usize> = self.others().collect();
            let arm = *others.get(self.next_look % others.len())?;
            self.next_look += 1;
            let steps = if self.rivals[arm].slow { 1 } else { CHECK_STEPS };
            vec![(arm, steps)]
        };
        Some(self.around(self.in_use, &blocks, RACE_GAP))
    }

    /// An arm's effect in its single steps.
    fn probed(&self, arm: usize) -> Option<Estimate> {
        let probes = &self.rivals[arm].probes;
        let error = self.deviation() * ((1.0 + LAG_MAX as f64) / probes.len() as f64).sqrt();
        let share = probes.iter().copied().fold(f64::INFINITY, f64::min);
        (!probes.is_empty()).then_some(Estimate { share, error, blocks: probes.len() })
    }

    /// The best guess of an arm's effect.
    fn likely(&self, arm: usize) -> f64 {
        let rival = &self.rivals[arm];
        // One slow step may be chance, so the faster one counts.
        let probed = || rival.probes.iter().copied().fold(f64::INFINITY, f64::min);
        self.pooled(&rival.effects).map_or_else(probed, |e| e.share)
    }

    /// It was slow in every single step, and has not raced.
    fn seems_slow(&self, arm: usize) -> bool {
        self.rivals[arm].effects.is_empty() && self.likely(arm) > SLOW
    }

    fn is_alive(&self, arm: usize) -> bool {
        let rival = &self.rivals[arm];
        !rival.slow && !rival.out && rival.effects.len() < RACE_BLOCKS_MAX
    }

    /// Takes the times of a plan's steps in order, the steps after its last block included, microseconds.
    pub fn learn(&mut self, blocks: &[Block], times_us: &[Option<f64>]) {
        let Some(measured) = Measured::of(blocks, times_us) else { return };
        if measured.freedom > 0.0 {
            self.squares.0 += measured.variance * measured.freedom;
            self.squares.1 += measured.freedom;
        }
        let deviation = self.deviation();
        let base = blocks.first().map_or(self.auto, |b| b.arm);
        let mut begin = 0;
        let mut surprise = None;
        for b in blocks {
            let from = begin;
            begin += b.steps as usize;
            if b.arm == base {
                continue;
            }
            let Some(effect) = measured.effect(from, b.steps as usize, deviation) else { continue };
            if self.stage != Stage::Probe {
                self.spent += effect.share.max(0.0) * f64::from(b.steps);
            }
            match self.stage {
                Stage::Probe => self.rivals[b.arm].probes.push(measured.excess_steps(from, b.steps as usize)),
                Stage::Race if b.steps == 1 => {
                    self.rivals[b.arm].probes.push(measured.excess_steps(from, 1));
                }
                Stage::Race => self.rivals[b.arm].effects.push(effect),
                Stage::Check if b.arm == self.auto => {
                    self.fresh.push(effect);
                    if self.fresh.len() > FRESH_MAX {
                        self.fresh.remove(0);
                    }
                }
                Stage::Check => {
                    let error = (self.unit_variance() * effect.variance).sqrt();
                    if effect.share < -SURPRISE * error {
                        surprise = Some(b.arm);
                    }
                }
            }
        }
        match self.stage {
            Stage::Probe => self.end_probe(),
            Stage::Race => self.end_race_plan(),
            Stage::Check => self.end_check(surprise),
        }
    }

    fn end_probe(&mut self) {
        let others: Vec<usize> = self.others().collect();
        let known = others.iter().filter(|a| self.rivals[**a].probes.len() >= 2).count();
        if known < others.len() {
            self.because = format!("AUTO: {known} of {} arms tried", others.len());
            return;
        }
        let error = self.deviation() * (1.0 + LAG_MAX as f64).sqrt();
        for a in others {
            let least = self.rivals[a].probes.iter().copied().fold(f64::INFINITY, f64::min);
            self.spent += 2.0 * least.max(0.0);
            self.rivals[a].slow = least > SLOW.max(1.5 * error);
        }
        self.stage = Stage::Race;
        self.because = "AUTO: comparing arms".into();
        self.end_if_none_is_left();
    }

    fn end_race_plan(&mut self) {
        let best = self
            .others()
            .filter_map(|a| Some((a, self.pooled(&self.rivals[a].effects)?)))
            .filter(|(_, e)| e.blocks >= RACE_BLOCKS && e.share < -GATE && e.share < -BETTER * e.error)
            .min_by(|a, b| a.1.share.total_cmp(&b.1.share));
        self.in_use = best.map_or(self.auto, |b| b.0);
        let to_beat = best.map_or(-GATE, |b| b.1.share);
        for a in self.others() {
            let Some(e) = self.pooled(&self.rivals[a].effects).or_else(|| self.probed(a)) else { continue };
            let hopeless = e.share - 2.0 * e.error > to_beat || e.share > 2.0 * e.error + GATE;
            self.rivals[a].out |= Some(a) == best.map(|b| b.0) || hopeless;
        }
        for a in self.others() {
            self.rivals[a].out |= self.seems_slow(a) && self.rivals[a].probes.len() >= PROBES_MAX;
        }
        self.because = match best {
            Some((_, e)) => format!("steps {:.1} % shorter than with AUTO in {} blocks", -100.0 * e.share, e.blocks),
            None => "AUTO: comparing arms".into(),
        };
        self.end_if_none_is_left();
    }

    fn end_if_none_is_left(&mut self) {
        if self.others().any(|a| self.is_alive(a)) {
            return;
        }
        self.stage = Stage::Check;
        self.fresh.clear();
        if self.in_use == self.auto {
            let errors = self.others().filter_map(|a| self.pooled(&self.rivals[a].effects)).map(|e| e.error);
            let error = errors.fold(f64::NAN, f64::max);
            self.because = if error.is_nan() {
                "AUTO: every other arm made steps clearly longer".into()
            } else {
                format!(
                    "AUTO: no arm makes steps shorter by {:.1} %, what the noise of steps ({:.1} %) lets see",
                    100.0 * (BETTER * error).max(GATE),
                    100.0 * self.deviation()
                )
            };
        }
    }

    fn end_check(&mut self, surprise: Option<usize>) {
        if self.in_use == self.auto {
            if let Some(arm) = surprise {
                self.rivals[arm] = Rival { probes: vec![0.0; 2], ..Rival::default() };
                self.stage = Stage::Race;
                self.because = "AUTO: an arm was faster than before, comparing again".into();
            }
            return;
        }
        let recent = &self.fresh[self.fresh.len().saturating_sub(FRESH_RECENT)..];
        let Some(e) = self.pooled(recent) else { return };
        let lost = e.blocks >= CHECKS_CONFIRM && e.share < 2.0 * e.error || e.share < -3.0 * e.error;
        if lost {
            let auto = self.auto;
            self.rivals.iter_mut().enumerate().filter(|(a, _)| *a != auto).for_each(|(_, r)| {
                *r = Rival { probes: r.probes.clone(), slow: r.slow, ..Rival::default() };
            });
            self.because = "AUTO: later steps did not confirm the gain, comparing again".into();
            (self.in_use, self.stage) = (auto, Stage::Race);
            self.fresh.clear();
            self.end_if_none_is_left();
            return;
        }
        if let Some((gain, error)) = self.fresh_gain() {
            self.because = format!(
                "steps {:.1} % shorter than with AUTO (+-{:.1}, {} blocks after the choice)",
                100.0 * gain,
                100.0 * error,
                self.fresh.len()
            );
        }
    }
}

/// The steps of a plan, relative to those of its base arm.
struct Measured {
    /// Time over the base arm's, minus 1.
    excess: Vec<Option<f64>>,
    clean: usize,
    variance: f64,
    freedom: f64,
}

impl Measured {
    /// Fits the base arm's times (a line in logarithms: steps get slower over time) to the steps that no other arm can
    /// have touched. `None` with too few of them.
    fn of(blocks: &[Block], times_us: &[Option<f64>]) -> Option<Measured> {
        let base = blocks.first()?.arm;
        let arms: Vec<usize> = blocks.iter().flat_map(|b| std::iter::repeat_n(b.arm, b.steps as usize)).collect();
        let logs: Vec<Option<f64>> =
            times_us.iter().map(|t| t.filter(|t| t.is_finite() && *t > 0.0).map(f64::ln)).collect();
        // After the last block, and before the first step, the arm in use may be another one.
        let is_clean = |i: usize| i >= LAG_MAX && i < arms.len() && arms[i - LAG_MAX..=i].iter().all(|a| *a == base);
        let clean: Vec<(f64, f64)> =
            (0..logs.len()).filter(|i| is_clean(*i)).filter_map(|i| Some((i as f64, logs[i]?))).collect();
        if clean.len() < CLEAN_MIN {
            return None;
        }
        let ys: Vec<f64> = clean.iter().map(|c| c.1).collect();
        let middle = stats::median(&ys);
        let limit = clip(stats::mad_sd_about(&ys, middle));
        let held: Vec<(f64, f64)> = clean.iter().map(|(x, y)| (*x, y.clamp(middle - limit, middle + limit))).collect();
        let n = held.len() as f64;
        let (mx, my) = (held.iter().map(|h| h.0).sum::<f64>() / n, held.iter().map(|h| h.1).sum::<f64>() / n);
        let (xx, xy) =
            held.iter().fold((0.0, 0.0), |(xx, xy), (x, y)| (xx + (x - mx).powi(2), xy + (x - mx) * (y - my)));
        let slope = if xx > 0.0 { xy / xx } else { 0.0 };
        let line = |x: f64| my + slope * (x - mx);
        let squares: f64 = held.iter().map(|(x, y)| (y - line(*x)).powi(2)).sum();
        let freedom = n - 2.0;
        let excess = logs.iter().enumerate().map(|(i, y)| y.map(|y| (y - line(i as f64)).exp() - 1.0)).collect();
        Some(Measured { excess, clean: held.len(), variance: squares / freedom, freedom })
    }

    /// The excess of a block, in steps.
    fn excess_steps(&self, from: usize, steps: usize) -> f64 {
        self.excess.get(from..from + steps + LAG_MAX).map_or(0.0, |w| w.iter().flatten().sum())
    }

    /// The effect of the block of `steps` steps from step `from` on; `None` if a time is missing.
    fn effect(&self, from: usize, steps: usize, deviation: f64) -> Option<Effect> {
        let window: Vec<f64> = self.excess.get(from..from + steps + LAG_MAX)?.iter().copied().collect::<Option<_>>()?;
        // Most steps of a window are the arm's: far above their middle something else delayed a step.
        let limit = stats::median(&window).max(0.0) + clip(deviation);
        let sum: f64 = window.iter().map(|e| e.min(limit)).sum();
        let n = steps as f64;
        let variance = (n + LAG_MAX as f64) / (n * n) + 1.0 / self.clean as f64;
        Some(Effect { share: sum / n, variance })
    }
}

/// The largest excess of one step that counts.
fn clip(deviation: f64) -> f64 {
    (CLIP_DEVIATIONS * deviation).max(CLIP_SHARE)
}
