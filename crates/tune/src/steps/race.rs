//! The arms of one slot, compared by whole steps. [`Fit`] says what arms do to a step; a race decides what runs next.
//!
//! 1. **Screen.** Every arm runs in single steps. Arms that are clearly slower than AUTO are left out.
//! 2. **Race.** The most promising arms and AUTO run in short blocks in random order, until one is better than AUTO beyond
//!    chance, or none can be.
//! 3. **Check.** The arm in use is compared with AUTO again, with steps that did not choose it. Only these count for
//!    the gain that is reported. If they do not confirm the gain, AUTO returns. Now and then another arm runs.

use super::fit::Fit;
use super::learner::{Block, SlotLearner, Wish};

/// Steps of each arm in the screening.
const SCREEN_STEPS: usize = 2;
/// The same for an arm whose steps disagree.
const SCREEN_STEPS_MAX: usize = 8;
/// Steps of an arm before it can be chosen: a few single steps do not show how the noise of steps hangs together.
const CHOSEN_STEPS_MIN: usize = 8;
/// Steps of a block in the race and in checks.
const RACE_STEPS: u32 = 3;
/// Blocks of a plan of the race, all arms together.
const RACE_BLOCKS: usize = 16;
/// Arms in a plan of the race, AUTO and the arm in use not counted.
const RACE_ARMS: usize = 3;
/// Steps of an arm after which the race leaves it undecided.
const RACE_STEPS_MAX: usize = 160;
/// Blocks of a check, half of them AUTO.
const CHECK_BLOCKS: usize = 8;
/// Blocks of a look at another arm, every third one of it; single steps if the arm is slow, and only one.
const LOOK_BLOCKS: usize = 6;
/// Checks before an arm counts as confirmed.
const CHECKS_CONFIRM: u32 = 2;
/// Shortening of the step that justifies leaving AUTO.
pub const GATE: f64 = 0.01;
/// Standard errors below zero at which an arm is better beyond chance.
const BETTER: f64 = 4.6;
/// The same with few degrees of freedom: it grows by this many times its share of them.
const BETTER_FREEDOM: f64 = 3.0;
/// Standard errors at which a surprise in a later look starts a new race.
const SURPRISE: f64 = 5.0;
/// Standard errors at which an arm is left out.
const HOPELESS: f64 = 2.0;
/// Assumed excess of an arm that has not run, as a share of what the slot has of a step.
const UNKNOWN: f64 = 0.15;
/// An arm that makes a step longer by this share is slow: later looks at it are single steps.
const SLOW: f64 = 0.05;

impl Rival {
    /// Too few of its steps agree; after [`SCREEN_STEPS_MAX`] the noise is what it is.
    fn is_unscreened(&self) -> bool {
        self.agreeing < SCREEN_STEPS && self.steps < SCREEN_STEPS_MAX
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Screen,
    Race,
    Check,
}

/// An arm of the race.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Rival {
    /// Its effect over AUTO, once it has run.
    share: Option<f64>,
    /// Steps in the screening and the race, and those of them that agree with each other.
    steps: usize,
    agreeing: usize,
    /// The race cannot decide about it, or it is worse.
    out: bool,
}

/// Chooses the arm of one slot from what [`Fit`] says of its arms; AUTO is arm 0. See the module documentation.
#[derive(Debug, Clone)]
pub struct StepRace {
    in_use: usize,
    stage: Stage,
    rivals: Vec<Rival>,
    /// A race or the checks of a choice have just begun: earlier plans do not count for them.
    begins: bool,
    checks: u32,
    /// The arm that the next look tries, if AUTO is in use.
    next_look: usize,
    /// The gain over AUTO, and its standard error, from checks.
    gain: Option<(f64, f64)>,
    because: String,
}

impl StepRace {
    /// A race of `arms` arms, the first of them AUTO.
    pub fn new(arms: usize) -> Self {
        StepRace {
            in_use: 0,
            stage: Stage::Screen,
            rivals: vec![Rival::default(); arms],
            begins: true,
            checks: 0,
            next_look: 0,
            gain: None,
            because: "no step measured yet".into(),
        }
    }

    fn alive(&self) -> impl Iterator<Item = usize> + '_ {
        (1..self.rivals.len()).filter(|a| *a != self.in_use && !self.rivals[*a].out)
    }

    fn screen(&self) -> Wish {
        let mut cycle: Vec<usize> = (1..self.rivals.len()).filter(|a| self.rivals[*a].is_unscreened()).collect();
        cycle.resize(cycle.len() + cycle.len().div_ceil(3), 0);
        Wish { grain: 1, blocks: SCREEN_STEPS * cycle.len(), cycle }
    }

    fn race(&self) -> Wish {
        let mut alive: Vec<usize> = self.alive().collect();
        let share = |a: usize| self.rivals[a].share.unwrap_or(0.0);
        alive.sort_by(|a, b| share(*a).total_cmp(&share(*b)).then(a.cmp(b)));
        alive.truncate(RACE_ARMS);
        let mut cycle = vec![0];
        cycle.extend((self.in_use != 0).then_some(self.in_use));
        cycle.extend(alive);
        Wish { grain: RACE_STEPS, blocks: RACE_BLOCKS, cycle }
    }

    fn check(&mut self) -> Wish {
        if self.in_use != 0 {
            return Wish { grain: RACE_STEPS, blocks: CHECK_BLOCKS, cycle: vec![0, self.in_use] };
        }
        let arm = 1 + self.next_look % (self.rivals.len() - 1);
        self.next_look += 1;
        if self.rivals[arm].share.is_some_and(|s| s > SLOW) {
            let mut cycle = vec![0; LOOK_BLOCKS];
            cycle[0] = arm;
            return Wish { grain: 1, blocks: LOOK_BLOCKS, cycle };
        }
        Wish { grain: RACE_STEPS, blocks: LOOK_BLOCKS, cycle: vec![arm, 0, 0] }
    }

    /// Takes what the fit says of the arms, and chooses.
    fn review(&mut self, slot: u32, fit: &Fit, blocks: &[Block]) {
        for b in blocks {
            if let Some(rival) = self.rivals.get_mut(b.arm) {
                rival.steps = rival.steps.saturating_add(b.steps as usize);
            }
        }
        for (arm, rival) in self.rivals.iter_mut().enumerate().skip(1) {
            rival.agreeing = fit.steps(slot, arm);
            rival.out &= !rival.is_unscreened();
            let share = fit.over(slot, arm, 0).map(|e| e.share);
            rival.share = if rival.is_unscreened() { None } else { share.or(rival.share) };
        }
        if self.rivals.iter().skip(1).any(Rival::is_unscreened) {
            let tried = self.rivals.iter().skip(1).filter(|r| !r.is_unscreened()).count();
            self.because = format!("AUTO: {tried} of {} arms tried", self.rivals.len() - 1);
            self.stage = Stage::Screen;
            return;
        }
        self.stage = Stage::Race;
        let least = BETTER * (1.0 + BETTER_FREEDOM / fit.freedom);
        let better = |a: &usize| fit.over(slot, *a, 0).filter(|e| e.share < -GATE && e.share < -least * e.error);
        let best = (1..self.rivals.len())
            .filter(|a| fit.steps(slot, *a) >= CHOSEN_STEPS_MIN)
            .filter_map(|a| Some((a, better(&a)?)))
            .min_by(|a, b| a.1.share.total_cmp(&b.1.share));
        let before = self.in_use;
        self.in_use = best.map_or(0, |b| b.0);
        // Without a choice an arm must be able to pass the gate, otherwise to beat the choice.
        let margin = if self.in_use == 0 { -GATE } else { 0.0 };
        for arm in 1..self.rivals.len() {
            if let Some(e) = fit.over(slot, arm, self.in_use) {
                self.rivals[arm].out |= e.share - HOPELESS * e.error > margin;
            }
            self.rivals[arm].out |= self.rivals[arm].steps >= RACE_STEPS_MAX;
        }
        if before != 0 && before != self.in_use {
            self.rivals[before].out = false;
        }
        self.because = match best {
            Some((a, e)) => {
                format!("steps {:.1} % shorter than with AUTO in {} steps", -100.0 * e.share, fit.steps(slot, a))
            }
            None => "AUTO: comparing arms".into(),
        };
        if self.alive().next().is_none() {
            self.end_race(slot, fit);
        }
    }

    fn end_race(&mut self, slot: u32, fit: &Fit) {
        (self.stage, self.begins, self.checks) = (Stage::Check, true, 0);
        if self.in_use == 0 {
            let visible = |a: usize| fit.over(slot, a, 0).map(|e| BETTER * e.error);
            let least = (1..self.rivals.len()).filter_map(visible).fold(GATE, f64::max);
            self.because = format!(
                "AUTO: no arm makes steps shorter by {:.1} %, what the noise of steps ({:.1} %) lets see",
                100.0 * least,
                100.0 * fit.deviation
            );
        }
    }

    fn race_again(&mut self, because: &str) {
        self.rivals.iter_mut().for_each(|r| (r.out, r.steps) = (r.share.is_some_and(|s| s > SLOW), SCREEN_STEPS_MAX));
        (self.in_use, self.stage, self.begins, self.gain) = (0, Stage::Race, true, None);
        self.because = because.into();
        if self.alive().next().is_none() {
            self.stage = Stage::Check;
        }
    }

    fn end_check(&mut self, slot: u32, fit: &Fit) {
        if self.in_use == 0 {
            let surprise = |a: &usize| fit.over(slot, *a, 0).is_some_and(|e| e.share < -GATE - SURPRISE * e.error);
            if let Some(arm) = (1..self.rivals.len()).find(surprise) {
                self.rivals[arm].share = None;
                self.race_again("AUTO: an arm was faster than before, comparing again");
            }
            return;
        }
        let Some(e) = fit.over(slot, self.in_use, 0) else { return };
        self.checks = self.checks.saturating_add(1);
        let can_see = self.rivals.get(self.in_use).and_then(|r| r.share).is_some_and(|share| e.error < -share);
        if self.checks >= CHECKS_CONFIRM && can_see && e.share > -0.5 * e.error || e.share > 2.0 * e.error {
            self.race_again("AUTO: later steps did not confirm the gain, comparing again");
            return;
        }
        self.gain = Some((-e.share, e.error));
        self.because = format!(
            "steps {:.1} % shorter than with AUTO (+-{:.1}, {} checks after the choice)",
            -100.0 * e.share,
            100.0 * e.error,
            self.checks
        );
    }
}

impl SlotLearner for StepRace {
    fn wish(&mut self) -> Option<Wish> {
        if self.rivals.len() < 2 {
            return None;
        }
        Some(match self.stage {
            Stage::Screen => self.screen(),
            Stage::Race => self.race(),
            Stage::Check => self.check(),
        })
    }

    fn learn(&mut self, slot: u32, fit: &Fit, blocks: &[Block]) {
        match self.stage {
            Stage::Check => self.end_check(slot, fit),
            _ => self.review(slot, fit, blocks),
        }
    }

    fn begins(&mut self) -> bool {
        std::mem::take(&mut self.begins)
    }

    fn expected(&self, arm: usize, share: f64) -> f64 {
        let of = |a: usize| if a == 0 { 0.0 } else { self.rivals[a].share.unwrap_or(UNKNOWN * share) };
        (of(arm) - of(self.in_use)).max(0.0)
    }

    fn is_settled(&self) -> bool {
        self.rivals.len() < 2 || self.stage == Stage::Check && (self.in_use == 0 || self.checks >= CHECKS_CONFIRM)
    }

    fn in_use(&self) -> usize {
        self.in_use
    }

    fn because(&self) -> String {
        self.because.clone()
    }

    fn is_fresh(&self) -> bool {
        self.stage == Stage::Check && self.in_use != 0
    }

    fn fresh_gain(&self) -> Option<(f64, f64)> {
        self.gain
    }
}
