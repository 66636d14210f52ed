//! The monitor of the arm in use: the level of its times, and whether it has changed.

use super::noise::Noise;

/// Readings of the arm in use that are kept for the shape of its noise.
const KEPT: usize = 128;
/// Smallest change of the arm in use that counts: 25 %, in log time.
const CHANGE: f64 = 0.22;
/// Evidence for a change (a sum of log likelihood ratios) that starts a race.
const ALARM: f64 = 8.0;
/// The same threshold if a change is hardly wider than the noise: random walks reach higher values there.
const ALARM_WIDE: f64 = 9.5;
/// Standard deviation from which [`ALARM_WIDE`] applies.
const WIDE: f64 = 0.15;
/// Largest evidence that one reading may add: a single spike is not a change.
const STEP_MAX: f64 = 2.0;
/// Calls over which the level follows slow drift.
const MEMORY: f64 = 64.0;

/// Level and shape of the arm in use, and two cumulative sums that detect when it becomes slower or faster.
#[derive(Debug, Clone)]
pub struct ArmMonitor {
    /// Location of the arm's log times.
    pub level: f64,
    /// Shape of the arm's noise.
    pub noise: Noise,
    /// Number of readings behind the level.
    weight: f64,
    recent: Vec<f64>,
    cursor: usize,
    since_fit: usize,
    slower: f64,
    faster: f64,
    /// Distances from the level since the larger of the two sums began to grow: their sum and number.
    away: (f64, f64),
}

impl ArmMonitor {
    /// A monitor that starts from the readings of the race that put the arm in use.
    pub fn new(readings: &[f64], noise: Noise) -> ArmMonitor {
        ArmMonitor {
            level: noise.location(readings),
            noise,
            weight: readings.len() as f64,
            recent: readings[readings.len().saturating_sub(KEPT)..].to_vec(),
            cursor: 0,
            since_fit: 0,
            slower: 0.0,
            faster: 0.0,
            away: (0.0, 0.0),
        }
    }

    /// Change of the arm's level in log time, estimated from the readings behind an alarm.
    pub fn moved(&self) -> f64 {
        self.away.0 / self.away.1.max(1.0)
    }

    /// Adds a reading of the arm in use. Returns true if the arm has changed.
    pub fn changed(&mut self, log_time: f64) -> bool {
        if self.weight < 1.0 {
            self.level = log_time;
        }
        let r = log_time - self.level;
        // The uncertainty of the level adds to the uncertainty of every distance from it.
        let mut shape = self.noise;
        shape.sigma *= (1.0 + 1.0 / self.weight.max(1.0)).sqrt();
        if self.weight >= 4.0 {
            self.slower = (self.slower + shape.log_ratio(r, CHANGE, STEP_MAX)).max(0.0);
            self.faster = (self.faster + shape.log_ratio(r, -CHANGE, STEP_MAX)).max(0.0);
        }
        let slow = self.noise.share_slow(r);
        let gap = self.noise.modes.map_or(0.0, |m| m.gap);
        self.away = match self.slower.max(self.faster) > 0.0 {
            true => (self.away.0 + r - slow * gap, self.away.1 + 1.0),
            false => (0.0, 0.0),
        };
        let inside = (r - slow * gap).clamp(-3.0 * self.noise.sigma, 3.0 * self.noise.sigma);
        self.weight += 1.0;
        self.level += inside / self.weight.min(MEMORY);
        if self.recent.len() < KEPT {
            self.recent.push(log_time);
        } else {
            self.recent[self.cursor] = log_time;
            self.cursor = (self.cursor + 1) % KEPT;
        }
        self.since_fit += 1;
        if self.since_fit >= 64 && self.slower.max(self.faster) < 1.0 && self.recent.len() >= 16 {
            self.since_fit = 0;
            let before = self.noise;
            self.noise = before.refit(&self.recent);
            if before.modes.is_some() != self.noise.modes.is_some() {
                self.level = self.noise.location(&self.recent);
            }
        }
        let wide = self.noise.modes.is_none() && self.noise.sigma > WIDE;
        let alarm = if wide { ALARM_WIDE } else { ALARM };
        self.slower > alarm || self.faster > alarm
    }
}
