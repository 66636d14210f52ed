//! A race: arms run interleaved until one arm is clearly the best, or no improvement is left to find.

use super::evidence::{Comparison, compare};
use super::noise::Noise;

/// When the evidence is checked, and the share of the error probability that each check may spend. Repeated checks of
/// growing data find "significance" by chance, so every check has its own share.
#[derive(Debug, Clone, Copy)]
pub struct InterimCheck {
    /// Number of readings of the arm and of AUTO, each; for uneven numbers the harmonic mean of the two.
    pub pairs: f64,
    /// Share of the race's error probability that this check may spend.
    pub share: f64,
}

/// The interim checks of a race; shares sum to 1. A check that is skipped, because readings come in epochs, is not repeated.
pub const INTERIM_CHECKS: &[InterimCheck] = &[
    InterimCheck { pairs: 4.0, share: 0.01 },
    InterimCheck { pairs: 5.0, share: 0.03 },
    InterimCheck { pairs: 6.0, share: 0.06 },
    InterimCheck { pairs: 6.4, share: 0.12 },
    InterimCheck { pairs: 7.0, share: 0.42 },
    InterimCheck { pairs: 9.0, share: 0.06 },
    InterimCheck { pairs: 12.0, share: 0.10 },
    InterimCheck { pairs: 16.0, share: 0.14 },
    InterimCheck { pairs: 22.0, share: 0.02 },
    InterimCheck { pairs: 30.0, share: 0.02 },
    InterimCheck { pairs: 40.0, share: 0.01 },
    InterimCheck { pairs: 70.0, share: 0.01 },
];

/// Calls without any reading after which a race is given up. An epoch holds far fewer calls.
const STARVED_CALLS: usize = 512;

/// Number of lost readings of an arm that are repeated. An arm that loses every reading must not delay the others.
const LOST_MAX: u32 = 8;

/// From this standard deviation in log time on, checks spend less of the error probability: a few readings that agree
/// by chance look like little noise and a large gap.
const BROAD: f64 = 0.1;
/// The factor from [`BROAD`] on.
const SHARE_BROAD: f64 = 0.5;
/// The factor applies to races with up to this number of rivals. Larger races need more calls anyway and have fewer
/// false switches: see `rivals_tested`.
const RIVALS_FEW: f64 = 5.0;

/// Share of the error probability that a race with two modes may spend, over all checks.
const SHARE_TWO_MODES: f64 = 0.6;

/// Noise from this standard deviation on needs more readings, or hides two modes that are not recognised yet.
pub const WIDE: f64 = 0.3;

/// Number of readings from which a race fits the noise shape itself if the shape was known before.
const OWN_SHAPE_READINGS: usize = 40;

/// Error probability of a switch from an arm that beat AUTO to another arm.
const DOUBT_NEXT: f64 = 0.02;

/// Smallest number of readings of every arm under noise of [`WIDE`] or more.
const WIDE_READINGS_MIN: u32 = 5;

/// An improvement (40 %, in log time) that needs more readings as proof.
const WONDER: f64 = 0.5;
/// Readings that prove an improvement of [`WONDER`].
const WONDER_READINGS_MIN: u32 = 7;

/// An arm in a race.
#[derive(Debug, Clone)]
pub struct Runner {
    /// The arm.
    pub arm: usize,
    /// Calls of the arm in this race whose reading arrived or may still arrive (first uses do not count).
    pub decided: u32,
    /// Calls whose reading was lost.
    lost: u32,
    /// Logarithms of the times that arrived.
    pub readings: Vec<f64>,
    /// Number of [`INTERIM_CHECKS`] done.
    looked: usize,
}

/// Number of arms that count as tested out of `rivals`: most drop out before the first check, and more do in larger
/// races. With this correction, twelve equal arms leave AUTO no more often than four (`cargo test -p tune --test
/// adaptive`).
fn rivals_tested(rivals: f64) -> f64 {
    const ALL: f64 = 3.0;
    if rivals <= ALL { rivals } else { ALL * (rivals / ALL).powf(0.7) }
}

/// Result of a race so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RaceVerdict {
    /// No result yet.
    Open,
    /// This arm beats AUTO, and no other arm is as likely the best.
    Switch(usize),
    /// The race is over: no arm beats the arm in use, or more evidence would cost too much.
    Over,
    /// The arm in use is slower than AUTO: back to AUTO.
    Back,
    /// The same, but the race continues: another arm may be faster than AUTO.
    BackAndOn,
}

/// A race between some arms. AUTO always runs.
#[derive(Debug, Clone)]
pub struct Race {
    /// The arms in the race; AUTO and the arm in use are among them.
    pub runners: Vec<Runner>,
    /// Probability of a false switch from AUTO that this race may spend.
    doubt: f64,
    /// Readings per arm after which a race with one mode is over; four times as many with two modes or very wide noise.
    limit: u32,
    auto: usize,
    in_use: usize,
    turn: usize,
    /// Whether the arm in use at the start was not AUTO: that arm had passed the gate.
    had_left: bool,
    /// The shape of the noise, fitted again as readings arrive.
    pub noise: Noise,
    fitted_at: usize,
}

impl Race {
    /// A race between `arms`, which include `auto` and `in_use`.
    pub fn new(arms: &[usize], auto: usize, in_use: usize, doubt: f64, limit: u32) -> Race {
        let runners =
            arms.iter().map(|&arm| Runner { arm, decided: 0, lost: 0, readings: Vec::new(), looked: 0 }).collect();
        Race {
            had_left: in_use != auto,
            runners,
            doubt,
            limit,
            auto,
            in_use,
            turn: 0,
            noise: Noise::one_mode(0.1),
            fitted_at: 0,
        }
    }

    /// Starts with a known noise shape. It is used until this race has enough readings to fit its own.
    pub fn with_noise(mut self, noise: Noise) -> Race {
        if noise.modes.is_some() {
            self.noise = noise;
            self.fitted_at = OWN_SHAPE_READINGS;
        }
        self
    }

    fn runner(&self, arm: usize) -> &Runner {
        // `new` creates a runner for every arm. The fallback only avoids a panic.
        self.runners.iter().find(|r| r.arm == arm).unwrap_or(&self.runners[0])
    }

    /// Whether far more calls were decided than readings arrived.
    pub fn is_starved(&self) -> bool {
        let came: usize = self.runners.iter().map(|r| r.readings.len()).sum();
        self.turn > 8 * came + STARVED_CALLS
    }

    /// The arm of the next call.
    pub fn next_arm(&mut self) -> usize {
        let useful = |k: u32| self.runners.iter().all(|r| r.decided >= k);
        let chosen = if !useful(1) {
            self.behind(&self.runners.iter().map(|r| r.arm).collect::<Vec<_>>(), 1)
        } else {
            let finalists = self.finalists();
            self.behind(&finalists, u32::MAX)
        };
        if let Some(r) = self.runners.iter_mut().find(|r| r.arm == chosen) {
            r.decided += 1;
        }
        self.turn += 1;
        chosen
    }

    /// The arm with the fewest calls (below `limit`) among `arms`. The order alternates, so that a periodic effect in
    /// the job does not always hit the same arm.
    fn behind(&self, arms: &[usize], limit: u32) -> usize {
        let n = arms.len().max(1);
        let mut order: Vec<usize> = (0..n).collect();
        if (self.turn / n) % 2 == 1 {
            order.reverse();
        }
        let fewest = order
            .iter()
            .map(|&i| arms[i])
            .filter(|&a| self.runner(a).decided < limit)
            .min_by_key(|&a| self.runner(a).decided);
        fewest.unwrap_or(self.auto)
    }

    /// AUTO, and the arms that may still be the best: those with the lowest lower bound.
    fn finalists(&self) -> Vec<usize> {
        // The bound widens with the length of the race, so that an arm with a slow start runs again.
        let width = (0.1 + self.turn as f64 / 25.0).sqrt();
        // Under wide noise a few readings do not determine an arm's location.
        let unknown = self.noise.modes.is_some() || self.noise.sigma > WIDE;
        let fewest = if unknown { WIDE_READINGS_MIN } else { 1 };
        let bound = |r: &Runner| {
            let margin = width * self.noise.sigma / f64::from(r.decided.max(1)).sqrt();
            self.place(r) - margin - self.noise.doubtful_mode(&r.readings)
        };
        let mut ranked: Vec<(bool, f64, usize)> = self
            .runners
            .iter()
            .filter(|r| r.arm != self.auto && !r.readings.is_empty())
            .map(|r| (r.decided >= fewest, bound(r), r.arm))
            .collect();
        ranked.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
        // There is no reading yet, for example in an epoch that is decided before its first call runs: all arms take
        // turns.
        let Some(&(_, _, first)) = ranked.first() else {
            return self.runners.iter().map(|r| r.arm).collect();
        };
        let mut arms = vec![first, self.auto];
        if !arms.contains(&self.in_use) {
            arms.push(self.in_use);
        }
        arms
    }

    /// The location of an arm's readings.
    fn place(&self, r: &Runner) -> f64 {
        self.noise.location(&r.readings)
    }

    fn dof(&self) -> f64 {
        self.runners.iter().map(|r| r.readings.len().saturating_sub(1)).sum::<usize>() as f64
    }

    /// Adds a reading of a call that this race decided.
    pub fn learn(&mut self, arm: usize, log_time: f64) {
        if let Some(r) = self.runners.iter_mut().find(|r| r.arm == arm) {
            r.readings.push(log_time);
        }
        let n: usize = self.runners.iter().map(|r| r.readings.len()).sum();
        let known = self.fitted_at >= OWN_SHAPE_READINGS;
        if n < 24 && !known || n >= self.fitted_at + n / 8 {
            let all: Vec<&[f64]> = self.runners.iter().map(|r| r.readings.as_slice()).collect();
            self.noise = Noise::fit(&all);
            self.fitted_at = n;
        }
    }

    /// The reading of a call of this race is lost: the arm repeats the call, at most [`LOST_MAX`] times.
    pub fn lose(&mut self, arm: usize) {
        if let Some(r) = self.runners.iter_mut().find(|r| r.arm == arm && r.lost < LOST_MAX) {
            r.lost += 1;
            r.decided = r.decided.saturating_sub(1);
        }
    }

    /// Compares an arm with another by the readings so far.
    pub fn compare(&self, arm: usize, other: usize) -> Comparison {
        compare(&self.runner(arm).readings, &self.runner(other).readings, &self.noise, self.dof())
    }

    /// The verdict after the readings so far. `gate` is the smallest improvement that justifies a switch, in log time.
    pub fn verdict(&mut self, gate: f64) -> RaceVerdict {
        // With two modes the evidence is expensive to compute: it is checked at every fourth reading.
        let two_modes = self.noise.modes.is_some();
        let came: usize = self.runners.iter().map(|r| r.readings.len()).sum();
        if two_modes && !came.is_multiple_of(4) {
            return RaceVerdict::Open;
        }
        let best = self.best_challenger().filter(|&b| b != self.in_use);
        if let Some(best) = best.filter(|&b| self.passes(b, gate, two_modes)) {
            return RaceVerdict::Switch(best);
        }
        let promising = best.is_some_and(|b| {
            let c = self.compare(b, self.auto);
            c.p_faster < 0.1 && c.effect <= -gate
        });
        // A return to AUTO needs little evidence.
        let auto_readings = self.runner(self.auto).readings.len();
        let enough = auto_readings >= 4 && self.runner(self.in_use).readings.len() >= 4;
        if self.in_use != self.auto && enough && self.compare(self.auto, self.in_use).p_faster < 0.05 {
            self.in_use = self.auto;
            return if promising { RaceVerdict::BackAndOn } else { RaceVerdict::Back };
        }
        // Stop if no improvement is left. More calls of an arm that seems faster cost nothing.
        let wide = two_modes || self.noise.sigma > WIDE;
        let limit = self.limit * if wide { 4 } else { 1 } * if promising { 4 } else { 1 };
        // Count readings, not calls: an epoch is decided long before its readings arrive.
        let tried = self.runners.iter().map(|r| r.readings.len()).max().unwrap_or(0) as u32;
        let asked = came.is_multiple_of(if two_modes { 8 } else { 4 }) && auto_readings >= 6 && self.dof() >= 8.0;
        let hopeless = asked
            && self.runners.iter().filter(|r| r.arm != self.in_use).all(|r| {
                let c = self.compare(r.arm, self.in_use);
                c.effect - 2.0 * c.error - self.noise.doubtful_mode(&r.readings) > -gate
            });
        if !(tried >= limit || hopeless) {
            return RaceVerdict::Open;
        }
        // The race started because the arm in use changed, so the earlier evidence for that arm no longer counts.
        if self.in_use != self.auto && self.compare(self.in_use, self.auto).p_faster > 0.05 {
            return RaceVerdict::Back;
        }
        RaceVerdict::Over
    }

    /// Whether `best` beats AUTO and the arm in use significantly. Checked only after enough new readings.
    fn passes(&mut self, best: usize, gate: f64, two_modes: bool) -> bool {
        let rivals = (self.runners.len() - 1).max(1) as f64;
        let count = |arm: usize| self.runner(arm).readings.len();
        let have = count(best).min(count(self.auto)) as u32;
        let pairs = 2.0 / (1.0 / count(best) as f64 + 1.0 / count(self.auto) as f64);
        let looked = self.runner(best).looked;
        let due = INTERIM_CHECKS.iter().take_while(|l| l.pairs <= pairs + 1e-9).count();
        if due <= looked && !two_modes {
            return false;
        }
        if let Some(r) = self.runners.iter_mut().find(|r| r.arm == best) {
            r.looked = due.max(looked);
        }
        let doubt = if self.had_left {
            // A switch between two arms that beat AUTO needs less evidence than leaving AUTO.
            DOUBT_NEXT
        } else if two_modes {
            // A Bayes factor stays valid under repeated checks: it needs no shares.
            self.doubt / rivals * SHARE_TWO_MODES
        } else {
            let share = INTERIM_CHECKS[looked..due].iter().map(|l| l.share).fold(0.0, f64::max);
            let care = if self.noise.sigma > BROAD && rivals <= RIVALS_FEW { SHARE_BROAD } else { 1.0 };
            self.doubt * care / rivals_tested(rivals) * share
        };
        // With two modes, few readings do not determine an arm's location: all arms that may be the best run before a
        // choice.
        if two_modes {
            let place = self.place(self.runner(best));
            let unsure = |r: &&Runner| self.place(r) - self.noise.doubtful_mode(&r.readings) < place;
            if self.runners.iter().filter(|r| r.arm != best && r.arm != self.auto).any(|r| unsure(&r)) {
                return false;
            }
        }
        let against_auto = self.compare(best, self.auto);
        // If one arm ran only in the fast mode and the other only in the slow mode, a few readings look like a large
        // improvement.
        let wonder = !two_modes && against_auto.effect < -WONDER && have < WONDER_READINGS_MIN;
        let passes = f64::from(have) >= INTERIM_CHECKS[0].pairs
            && against_auto.p_faster < doubt
            && against_auto.effect <= -gate
            && !wonder;
        passes && (self.in_use == self.auto || self.compare(best, self.in_use).p_faster < 0.05)
    }

    /// The arm other than AUTO with the lowest location.
    fn best_challenger(&self) -> Option<usize> {
        let challengers = self.runners.iter().filter(|r| r.arm != self.auto && r.readings.len() >= 2);
        challengers.min_by(|a, b| self.place(a).total_cmp(&self.place(b)).then(a.arm.cmp(&b.arm))).map(|r| r.arm)
    }
}
