//! Default policy: best-arm races at start and after change points, low-rate exploration in between.
//!
//! 1. **Race.** All arms run interleaved. The first use of an arm is not counted, because it sets up connections. Slow
//!    arms drop out early. The policy leaves AUTO only for an arm that is significantly faster; all interim checks
//!    share a fixed probability of a false switch.
//! 2. **Use.** Two cumulative sums monitor the arm in use. When it becomes slower or faster, the arms that may now be
//!    the best enter a new race.
//! 3. **Explore.** Other arms run occasionally, cheap arms more often, for at most 0.6 % of the total time; a quarter
//!    of that share belongs to AUTO. An arm that is more than 1.5 times slower runs once in 2,000 calls. An unexpected
//!    time leads to more calls of the arm, and strong evidence starts a race.
//!
//! All evidence is on logarithms of interleaved times, so drift and skew that affect all arms equally cancel.

pub mod evidence;
pub mod monitor;
pub mod noise;
pub mod race;

use crate::arm::Arm;
use crate::ledger::{PENDING_MAX, TIME_US_MAX};
use crate::objective::Objective;
use crate::policy::{ArmDecision, Context, Phase, Policy, Reading};
use monitor::ArmMonitor;
use noise::Noise;
use race::{Race, RaceVerdict, WIDE};
use std::collections::VecDeque;

/// An arm that is slower than the arm in use by more than this factor is hopeless: it is tried once in [`HOPELESS_CALLS`].
const HOPELESS: f64 = 1.5;
/// An arm below this factor counts as worth exploring, even with few readings.
const HOPEFUL: f64 = 1.3;
/// Calls between two tries of a hopeless arm; see [`HOPELESS`].
const HOPELESS_CALLS: u64 = 2000;
/// Readings that decide whether an arm is hopeless if the first ones do not.
const HOPELESS_READINGS: f64 = 4.0;
/// AUTO's minimum share of exploration: every arm is compared with it.
const EXPLORATION_OF_AUTO: f64 = 0.25;
/// Largest distance above the arm in use, in log time, at which an arm may still enter a race.
const PERHAPS_BEST: f64 = 0.1;
/// Evidence that an explored arm has become faster; from this value on a race starts.
const SURPRISE: f64 = 4.0;

/// Error probabilities and exploration budget of the policy.
#[derive(Debug, Clone, Copy)]
pub struct AdaptiveConfig {
    /// Smallest improvement over AUTO that justifies a switch (0.02 is 2 %).
    pub gate: f64,
    /// Probability of leaving AUTO without a real improvement, in the first race.
    pub false_switch_prob_first: f64,
    /// The same probability in a race that starts because the arm in use has changed.
    pub false_switch_prob_change: f64,
    /// The same probability in a race that starts because an explored arm had an unexpected time.
    pub false_switch_prob_look: f64,
    /// Share of time that exploration of other arms may cost.
    pub exploration_budget: f64,
    /// Readings per arm after which an undecided first race ends.
    pub limit: u32,
}

impl Default for AdaptiveConfig {
    fn default() -> Self {
        AdaptiveConfig {
            gate: 0.02,
            false_switch_prob_first: 0.012,
            false_switch_prob_change: 0.003,
            false_switch_prob_look: 0.0004,
            exploration_budget: 0.006,
            limit: 18,
        }
    }
}

/// Why a call ran with its arm. Kept until the call's reading arrives.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Role {
    /// First use of the arm in this process: its reading does not count.
    FirstUse,
    /// A call of the race with this number.
    Race(u32),
    /// The arm in use.
    Use,
    /// Exploration of another arm.
    Look,
    /// The reading has arrived or is no longer needed.
    Done,
}

/// State of an arm that is not in use.
#[derive(Debug, Clone, Copy)]
struct Track {
    used: bool,
    /// ln(time over the time of the arm in use), and the number of readings behind it.
    ratio: f64,
    readings: f64,
    /// Number of readings if all were in one mode that is not known; 0 if both modes were seen, or if there is one
    /// mode.
    lone: usize,
    /// Number of its last call.
    seen: u64,
    /// Call from which it may be explored again.
    due: u64,
    /// Evidence that the arm has become faster than the arm in use.
    surprise: f64,
    /// Exploration calls that follow immediately.
    follow: u8,
    /// Whether the arm is worth exploring, as of the last check.
    hope: Hope,
}

/// Whether an arm is worth exploring.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Hope {
    /// Its readings show that it is above [`HOPELESS`].
    Hopeless,
    /// Its few readings are above [`HOPELESS`]; more readings may change that.
    Unsure,
    /// Worth exploring.
    Hopeful,
}

#[derive(Debug, Clone)]
enum State {
    Racing(Race),
    Settled(ArmMonitor),
}

/// The default policy; see the [module](self).
#[derive(Debug)]
pub struct Adaptive {
    arms: Vec<Arm>,
    auto: usize,
    in_use: usize,
    objective: Objective,
    config: AdaptiveConfig,
    state: State,
    tracks: Vec<Track>,
    call: u64,
    pending: VecDeque<(usize, Role)>,
    races: u32,
    because: String,
}

impl Adaptive {
    /// A policy for these arms. `auto` is the index of AUTO.
    pub fn new(arms: &[Arm], auto: usize, objective: Objective, config: AdaptiveConfig) -> Adaptive {
        let all: Vec<usize> = (0..arms.len()).collect();
        let track = Track {
            used: false,
            ratio: 0.0,
            readings: 0.0,
            lone: 0,
            seen: 0,
            due: 0,
            surprise: 0.0,
            follow: 0,
            hope: Hope::Hopeful,
        };
        let mut policy = Adaptive {
            arms: arms.to_vec(),
            auto,
            in_use: auto,
            objective,
            config,
            state: State::Settled(ArmMonitor::new(&[], Noise::one_mode(0.1))),
            tracks: vec![track; arms.len()],
            call: 0,
            pending: VecDeque::new(),
            races: 0,
            because: "no readings yet".into(),
        };
        if arms.len() > 1 {
            policy.state = State::Racing(Race::new(&all, auto, auto, config.false_switch_prob_first, config.limit));
        }
        policy
    }

    fn remember(&mut self, arm: usize, role: Role) {
        if self.pending.len() == PENDING_MAX {
            self.pending.pop_front();
        }
        self.pending.push_back((arm, role));
        self.call += 1;
    }

    /// The exploration that is due, if any: follow-ups first, then the arm that has waited longest.
    fn look_due(&mut self) -> Option<usize> {
        let others = (0..self.arms.len()).filter(|&a| a != self.in_use);
        if let Some(a) = others.clone().find(|&a| self.tracks[a].follow > 0) {
            self.tracks[a].follow -= 1;
            return Some(a);
        }
        // A hopeless arm runs once in `HOPELESS_CALLS` calls, even if it is due earlier.
        let may =
            |a: &usize| self.at_least(*a, 2.0) <= HOPELESS.ln() || self.call >= self.tracks[*a].seen + HOPELESS_CALLS;
        let a = others.filter(may).min_by_key(|&a| self.tracks[a].due)?;
        if self.tracks[a].due > self.call {
            return None;
        }
        self.tracks[a].hope = self.hope(a);
        self.tracks[a].due = self.call + self.interval(a);
        Some(a)
    }

    /// Calls between two explorations of an arm, computed from the cost of one.
    fn interval(&self, arm: usize) -> u64 {
        let others = (self.arms.len() - 1).max(1) as f64;
        let t = &self.tracks[arm];
        // A few readings may be far off. The lower bound of the cost keeps one slow reading from excluding an arm for
        // long.
        let factor = self.at_least(arm, 2.0).clamp(0.0, 10.0).exp();
        let likely = if t.readings < 3.0 || t.lone > 0 { factor } else { t.ratio.clamp(0.0, 10.0).exp() };
        let cost = (likely - 1.0).max(if t.lone > 0 { 0.1 } else { 0.02 });
        let calls = (cost / self.share(arm)).max(12.0 * others) as u64;
        match self.tracks[arm].hope {
            Hope::Hopeless => calls.max(HOPELESS_CALLS),
            Hope::Unsure => (4.0 * others) as u64,
            Hope::Hopeful => calls,
        }
    }

    /// The share of all time that exploration of this arm may cost.
    fn share(&self, arm: usize) -> f64 {
        let others = (self.arms.len() - 1).max(1) as f64;
        let even = 1.0 / others;
        if self.in_use == self.auto {
            return self.config.exploration_budget * even;
        }
        let of_auto = even.max(EXPLORATION_OF_AUTO);
        self.config.exploration_budget
            * if arm == self.auto { of_auto } else { (1.0 - of_auto) / (others - 1.0).max(1.0) }
    }

    /// Whether an arm is worth exploring, from its readings.
    fn hope(&self, arm: usize) -> Hope {
        let t = &self.tracks[arm];
        if t.readings < 1.0 || t.lone > 0 {
            return Hope::Hopeful;
        }
        let border = HOPELESS.ln();
        let noise = self.noise();
        // With two modes, or with very wide noise, the readings needed to classify an arm near the border would cost
        // too much.
        if noise.modes.is_some() || noise.sigma > WIDE {
            let is_above = t.readings >= 2.0 && t.ratio > border || self.at_least(arm, 2.0) > border;
            return if is_above { Hope::Hopeless } else { Hope::Hopeful };
        }
        let error = noise.sigma / t.readings.sqrt();
        let is_well_known = error <= 0.8 * (border - HOPEFUL.ln());
        let is_above = t.ratio - 2.0 * error > border;
        let is_near = (is_well_known || t.hope == Hope::Hopeless) && t.ratio > (border - 2.0 * error).max(HOPEFUL.ln());
        if is_above || is_near {
            Hope::Hopeless
        } else if t.ratio + 2.0 * error > border && t.readings < HOPELESS_READINGS {
            Hope::Unsure
        } else {
            Hope::Hopeful
        }
    }

    fn noise(&self) -> Noise {
        match &self.state {
            State::Settled(m) => m.noise,
            State::Racing(r) => r.noise,
        }
    }

    /// Lower bound of an arm's ratio: this many standard errors below its estimate.
    fn at_least(&self, arm: usize, errors: f64) -> f64 {
        let t = &self.tracks[arm];
        let noise = self.noise();
        t.ratio - errors * noise.sigma / t.readings.max(1.0).sqrt() - self.doubtful(arm, noise)
    }

    /// How much lower the arm's location may be because only one of two modes was seen.
    fn doubtful(&self, arm: usize, noise: Noise) -> f64 {
        if self.tracks[arm].lone > 0 { noise.doubtful_after(self.tracks[arm].lone) } else { 0.0 }
    }

    /// Starts a race between the arm in use, AUTO and `others`.
    fn race(&mut self, mut others: Vec<usize>, doubt: f64) {
        others.extend([self.auto, self.in_use]);
        others.sort_unstable();
        others.dedup();
        self.races += 1;
        let noise = self.noise();
        let race = Race::new(&others, self.auto, self.in_use, doubt, self.config.limit);
        self.state = State::Racing(race.with_noise(noise));
    }

    /// Ends a race. `in_use` is the arm in use from now on.
    fn settle(&mut self, race: Race, in_use: usize, because: String) {
        self.in_use = in_use;
        self.because = because;
        let of = |arm: usize| race.runners.iter().find(|r| r.arm == arm);
        let readings = of(in_use).map(|r| r.readings.clone()).unwrap_or_default();
        let base = race.noise.location(&readings);
        // Without a reading of the arm in use, the other arms cannot be compared with it.
        let ran = |r: &&race::Runner| !r.readings.is_empty() && !readings.is_empty();
        let ratio = |r: &race::Runner| race.noise.location(&r.readings) - base;
        // Arms that did not run keep their distance from AUTO, because AUTO always runs.
        let moved = of(self.auto).filter(ran).map_or(0.0, |r| ratio(r) - self.tracks[self.auto].ratio);
        self.tracks.iter_mut().for_each(|t| t.ratio += moved);
        for r in race.runners.iter().filter(ran) {
            let t = &mut self.tracks[r.arm];
            t.ratio = ratio(r);
            t.readings = r.readings.len() as f64;
            t.lone = if race.noise.doubtful_mode(&r.readings) > 0.0 { r.readings.len() } else { 0 };
        }
        self.state = State::Settled(ArmMonitor::new(&readings, race.noise));
        for a in 0..self.arms.len() {
            self.tracks[a].surprise = 0.0;
            self.tracks[a].follow = 0;
            self.tracks[a].hope = self.hope(a);
            let wait = self.interval(a);
            // The first explorations start at different calls, so that they do not come in a burst.
            let staggered = self.call + wait * (a as u64 + 1) / self.arms.len() as u64;
            let seen = self.tracks[a].seen;
            self.tracks[a].due = if self.tracks[a].hope == Hope::Hopeless { seen + wait } else { staggered };
        }
    }

    fn learn_in_race(&mut self, arm: usize, log_time: f64) {
        let gate = (1.0 + self.config.gate).ln();
        let State::Racing(race) = &mut self.state else { return };
        race.learn(arm, log_time);
        let verdict = race.verdict(gate);
        let (next, words) = match verdict {
            RaceVerdict::Open => return,
            RaceVerdict::BackAndOn => {
                self.in_use = self.auto;
                self.because = "AUTO is faster again".into();
                return;
            }
            RaceVerdict::Over => (self.in_use, None),
            RaceVerdict::Back => (self.auto, Some("AUTO is faster again")),
            RaceVerdict::Switch(a) => (a, Some("significantly faster than AUTO")),
        };
        let race = race.clone();
        let c = race.compare(next, self.auto);
        let because = match words {
            Some(w) if next != self.auto => {
                format!("{w}: {:.1} % less time, p {:.1e}", 100.0 * (1.0 - c.effect.exp()), c.p_faster)
            }
            Some(w) => w.to_string(),
            None if self.in_use == self.auto => "no arm is significantly faster than AUTO".to_string(),
            None => self.because.clone(),
        };
        self.settle(race, next, because);
    }

    fn learn_in_use(&mut self, log_time: f64) {
        let State::Settled(monitor) = &mut self.state else { return };
        let modes = monitor.noise.modes.is_some();
        let changed = monitor.changed(log_time);
        if modes != monitor.noise.modes.is_some() {
            // An arm that was hopeless under the old shape of the noise may not be hopeless under the new one.
            for a in 0..self.arms.len() {
                self.tracks[a].due = self.tracks[a].due.min(self.call + self.interval(a));
            }
        }
        let State::Settled(monitor) = &self.state else { return };
        if !changed {
            return;
        }
        // All arms that may now be the best.
        let moved = monitor.moved();
        let others = (0..self.arms.len())
            .filter(|&a| self.tracks[a].readings < 1.0 || self.at_least(a, 1.0) - moved < PERHAPS_BEST)
            .collect();
        self.because = format!("{}; its times have changed", self.because.split(';').next().unwrap_or_default());
        self.race(others, self.config.false_switch_prob_change);
    }

    fn learn_look(&mut self, arm: usize, log_time: f64) {
        let State::Settled(monitor) = &self.state else { return };
        let r = log_time - monitor.level;
        let shape = monitor.noise;
        let t = &mut self.tracks[arm];
        // Evidence that the arm has become 10 % faster than its old ratio, or than the arm in use if its old ratio was
        // lower.
        let was = t.ratio.max(0.0);
        let gap = shape.modes.map_or(0.0, |m| m.gap);
        let or_was = if t.lone > 0 { (t.ratio - gap).max(0.0) } else { was };
        let step = shape.log_ratio_faster(r, was, 0.12, 2.5).min(shape.log_ratio_faster(r, or_was, 0.12, 2.5));
        t.surprise = (t.surprise + step).max(0.0);
        if step > 0.5 && t.follow == 0 && t.surprise < SURPRISE {
            t.follow = 1;
        }
        // The reading is in the other mode: both modes are known now.
        if t.lone > 0 && (r - t.ratio).abs() > 0.5 * gap {
            t.lone = 0;
            t.ratio = t.ratio.min(r);
        } else {
            t.lone += usize::from(t.lone > 0);
            // The estimate is a moving average over eight readings.
            t.readings = (t.readings + 1.0).min(8.0);
            t.ratio += (r - shape.share_slow(r - t.ratio) * gap - t.ratio) / t.readings;
        }
        if t.lone > 0 && shape.doubtful_after(t.lone) == 0.0 {
            t.lone = 0;
        }
        if t.lone == 0 && t.ratio < -0.12 {
            t.surprise += step.max(1.0);
        }
        if t.surprise > SURPRISE {
            t.surprise = 0.0;
            self.race(vec![arm], self.config.false_switch_prob_look);
        }
    }
}

impl Policy for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn decide(&mut self, _: Context) -> ArmDecision {
        // A race must not wait for readings that never arrive.
        if let State::Racing(race) = &self.state
            && race.is_starved()
        {
            let race = race.clone();
            self.settle(race, self.auto, "too few readings arrived".into());
        }
        let (arm, role) = match &mut self.state {
            State::Racing(race) => {
                // The first use of an arm does not count; the next one does.
                let fresh = race.runners.iter().map(|r| r.arm).find(|&a| !self.tracks[a].used);
                match fresh {
                    Some(a) => (a, Role::FirstUse),
                    None => (race.next_arm(), Role::Race(self.races)),
                }
            }
            State::Settled(_) => match self.look_due() {
                Some(a) if self.tracks[a].used => (a, Role::Look),
                Some(a) => (a, Role::FirstUse),
                None => (self.in_use, Role::Use),
            },
        };
        self.tracks[arm].used = true;
        self.tracks[arm].seen = self.call;
        self.remember(arm, role);
        let phase = if role == Role::Use { Phase::Exploit } else { Phase::Explore };
        ArmDecision { arm, phase }
    }

    fn learn(&mut self, reading: Reading) {
        let oldest = self.call - self.pending.len() as u64;
        let Some(entry) = reading.call.checked_sub(oldest).and_then(|i| self.pending.get_mut(i as usize)) else {
            return;
        };
        let (arm, role) = *entry;
        if arm != reading.arm {
            return;
        }
        entry.1 = Role::Done;
        let Some(time_us) = reading.time_us.filter(|t| t.is_finite() && *t > 0.0 && *t <= TIME_US_MAX) else {
            if let (Role::Race(number), State::Racing(race)) = (role, &mut self.state)
                && number == self.races
            {
                race.lose(arm);
            }
            return;
        };
        let log_time = self.objective.of(time_us, &self.arms, &reading).ln();
        match role {
            Role::Race(number) if number == self.races => self.learn_in_race(arm, log_time),
            Role::Use if arm == self.in_use => self.learn_in_use(log_time),
            Role::Look if arm != self.in_use => self.learn_look(arm, log_time),
            Role::Race(_) | Role::Use | Role::Look | Role::FirstUse | Role::Done => {}
        }
    }

    fn in_use(&self) -> usize {
        self.in_use
    }

    fn because(&self) -> String {
        format!("{}: {}", self.arms[self.in_use], self.because)
    }
}
