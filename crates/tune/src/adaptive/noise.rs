//! The shape of the noise: the scatter of one arm's times, on the logarithm.
//!
//! Real rewards have one mode or two: the published log's arms jump between about 110 and 295 ms, half of the calls each. Where two modes
//! are recognised, arms are compared mode by mode, which needs far fewer calls than comparing their means.

/// Two modes of one arm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Modes {
    /// Distance from the fast mode to the slow one, on the logarithm.
    pub gap: f64,
    /// Share of calls in the slow mode.
    pub slow: f64,
}

/// How the logarithm of a time scatters about its arm's location (the mean, or the fast mode where there are two).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Noise {
    /// Standard deviation inside a mode.
    pub sigma: f64,
    /// The second mode, if there is one.
    pub modes: Option<Modes>,
    /// Distance from an arm's median beyond which a reading is a spike.
    pub reach: f64,
}

/// Least standard deviation, so that identical readings (a clock with coarse ticks) do not count as certain.
pub const SIGMA_MIN: f64 = 0.004;
const SIGMA_MAX: f64 = 2.0;

/// Share of calls that belong to neither of two modes.
const STRAY: f64 = 0.05;

/// Readings from which two modes can be recognised.
const TWO_MODES_READINGS_MIN: usize = 32;
/// Least common standard deviation of two modes that are treated separately.
const TWO_MODES_SPREAD_MIN: f64 = 0.12;

impl Noise {
    /// One mode with the standard deviation `sigma`.
    pub fn one_mode(sigma: f64) -> Self {
        Noise { sigma: sigma.clamp(SIGMA_MIN, SIGMA_MAX), modes: None, reach: f64::INFINITY }
    }

    /// Density of a reading `r` away from its arm's location, without the factor 1/√(2π).
    pub fn density(&self, r: f64) -> f64 {
        let normal = |r: f64| (-0.5 * (r / self.sigma).powi(2)).exp() / self.sigma;
        match self.modes {
            None => normal(r),
            // Real modes have longer tails than a normal law, and calls between them: a wide floor keeps one such call from deciding.
            Some(m) => {
                let wide = 1.5 * m.gap;
                let floor = (-0.5 * ((r - 0.5 * m.gap) / wide).powi(2)).exp() / wide;
                (1.0 - STRAY) * ((1.0 - m.slow) * normal(r) + m.slow * normal(r - m.gap)) + STRAY * floor
            }
        }
    }

    /// ln of the density of `r` under a location that is `shift` higher, over the unshifted density. Never beyond ±`limit`, so that one
    /// outlier decides nothing.
    pub fn log_ratio(&self, r: f64, shift: f64, limit: f64) -> f64 {
        const FLOOR: f64 = 1e-200;
        ((self.density(r - shift) + FLOOR).ln() - (self.density(r) + FLOOR).ln()).clamp(-limit, limit)
    }

    /// ln of the density of a reading `r` (away from the arm in use) if its arm is faster by at least `least`, over the density if its
    /// place is `was`. "Faster" may be by anything: the likeliest of some shifts, and of the one that fits this reading best, which pays for
    /// having been chosen after the fact. Never beyond ±`limit`.
    pub fn log_ratio_faster(&self, r: f64, was: f64, least: f64, limit: f64) -> f64 {
        const FITTED: f64 = 0.22; // e^-1.5
        let fitted = match self.modes {
            None => self.density(r - r.min(-least)),
            Some(m) => self.density(r - r.min(-least)).max(self.density(r - (r - m.gap).min(-least))),
        };
        let better = (FITTED * fitted).max(self.density(r + least)).max(self.density(r + 2.5 * least));
        ((better + 1e-200).ln() - (self.density(r - was) + 1e-200).ln()).clamp(-limit, limit)
    }

    /// The shape common to several arms, each with a location of its own. `arms[i]` holds logarithms of times.
    ///
    /// Two modes are accepted where they explain the readings clearly better than one (twice the Bayesian information
    /// criterion's price), are well apart and both seen. Cost: some 10,000 exponentials for 100 readings.
    pub fn fit(arms: &[&[f64]]) -> Noise {
        let one = one_mode(arms);
        let n: usize = arms.iter().map(|a| a.len()).sum();
        if n < TWO_MODES_READINGS_MIN || one.sigma < TWO_MODES_SPREAD_MIN {
            return one;
        }
        // The likelihood of one mode at its own maximum, not at the winsorised spread: one outlier is no second mode.
        let plain = arms.iter().flat_map(|a| {
            let m = mean(a);
            a.iter().map(move |x| (x - m).powi(2))
        });
        let sigma = (plain.sum::<f64>() / n as f64).sqrt().max(SIGMA_MIN);
        let alone = -(n as f64) * (sigma.ln() + 0.5);
        // From one spread to the next, where two modes of equal share would lie; and somewhat closer and wider.
        let best = [1.4, 2.0, 2.8]
            .map(|f| f * sigma)
            .into_iter()
            .filter_map(|gap| Mixture::fit(arms, gap))
            .max_by(|a, b| a.log_likelihood.total_cmp(&b.log_likelihood));
        match best {
            Some(m) if m.is_plain(n) && m.log_likelihood - alone > 2.0 * (n as f64).ln() => {
                // As many parameters as arms and three more were fitted: the spread is that much underestimated.
                let spent = (arms.iter().filter(|a| !a.is_empty()).count() + 2) as f64;
                let sigma = m.sigma * (n as f64 / (n as f64 - spent).max(2.0)).sqrt();
                Noise {
                    sigma: sigma.clamp(SIGMA_MIN, SIGMA_MAX),
                    modes: Some(Modes { gap: m.gap, slow: m.slow }),
                    reach: f64::INFINITY,
                }
            }
            _ => one,
        }
    }

    /// The same for one arm whose shape is known from before: refined, or fitted anew where it no longer fits. Cheaper than [`fit`](Self::fit).
    pub fn refit(&self, readings: &[f64]) -> Noise {
        let n = readings.len();
        if self.modes.is_none() {
            return Noise::fit(&[readings]);
        }
        match Mixture::fit_from(&[readings], *self).filter(|m| n >= TWO_MODES_READINGS_MIN && m.is_plain(n)) {
            Some(m) => Noise {
                sigma: m.sigma.clamp(SIGMA_MIN, SIGMA_MAX),
                modes: Some(Modes { gap: m.gap, slow: m.slow }),
                reach: f64::INFINITY,
            },
            None => Noise::fit(&[readings]),
        }
    }

    /// The location of the readings `x` under this shape: the mean, or the fast mode's place by expectation maximisation.
    pub fn location(&self, x: &[f64]) -> f64 {
        let Some(modes) = self.modes else { return mean(x) };
        if x.is_empty() {
            return 0.0;
        }
        // The likelihood may have two hills: begin at both ends and keep the higher.
        let start = mean(x) - modes.slow * modes.gap;
        let score = |m: f64| x.iter().map(|v| (self.density(v - m) + 1e-200).ln()).sum::<f64>();
        [start, start - 0.5 * modes.gap, start + 0.5 * modes.gap]
            .into_iter()
            .map(|mut m| {
                for _ in 0..6 {
                    let moved: f64 = x.iter().map(|v| v - self.share_slow(v - m) * modes.gap).sum();
                    m = moved / x.len() as f64;
                }
                m
            })
            .max_by(|a, b| score(*a).total_cmp(&score(*b)))
            .unwrap_or(start)
    }

    /// How far below its readings an arm may lie, since every reading may have been of the slow mode: the gap between the modes, unless
    /// both modes were seen or that many slow readings in a row are unlikely (1 in 250).
    pub fn doubtful_mode(&self, readings: &[f64]) -> f64 {
        let Some(m) = self.modes else { return 0.0 };
        let low = readings.iter().copied().fold(f64::INFINITY, f64::min);
        let high = readings.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if high - low > 0.5 * m.gap { 0.0 } else { self.doubtful_after(readings.len()) }
    }

    /// The same after `n` readings that all were of one mode.
    pub fn doubtful_after(&self, n: usize) -> f64 {
        match self.modes {
            Some(m) if m.slow.powi(n.min(64) as i32) > 0.004 => m.gap,
            _ => 0.0,
        }
    }

    /// Probability that a reading `r` away from the location is in the slow mode.
    pub fn share_slow(&self, r: f64) -> f64 {
        let Some(m) = self.modes else { return 0.0 };
        let normal = |r: f64| (-0.5 * (r / self.sigma).powi(2)).exp();
        let (fast, slow) = ((1.0 - m.slow) * normal(r), m.slow * normal(r - m.gap));
        if fast + slow > 0.0 { slow / (fast + slow) } else { f64::from(u8::from(r > 0.5 * m.gap)) }
    }
}

fn mean(x: &[f64]) -> f64 {
    if x.is_empty() { 0.0 } else { x.iter().sum::<f64>() / x.len() as f64 }
}

/// Pooled spread about the arms' means, spikes pulled in.
fn one_mode(arms: &[&[f64]]) -> Noise {
    let dof = arms.iter().map(|a| a.len().saturating_sub(1)).sum::<usize>();
    if dof == 0 {
        return Noise::one_mode(0.1);
    }
    let reach = spike(arms);
    let square = |a: &&[f64]| {
        let pulled = pull_in(a, reach);
        let m = mean(&pulled);
        pulled.iter().map(|v| (v - m).powi(2)).sum::<f64>()
    };
    let sum: f64 = arms.iter().map(square).sum();
    Noise { reach, ..Noise::one_mode((sum / dof as f64).sqrt()) }
}

/// How far from its arm's median a reading is a spike: four robust deviations, if hardly any are that far. Where many are, they are a
/// second mode or a long tail, and must count.
fn spike(arms: &[&[f64]]) -> f64 {
    const READINGS_MIN: usize = 20;
    const SHARE_MAX: f64 = 0.1;
    let away: Vec<f64> = arms
        .iter()
        .flat_map(|a| {
            let middle = median(a);
            a.iter().map(move |v| (v - middle).abs())
        })
        .collect();
    let reach = 4.0 * (stats::MAD_TO_SD * median(&away)).max(SIGMA_MIN);
    let beyond = away.iter().filter(|d| **d > reach).count();
    if away.len() >= READINGS_MIN && beyond as f64 <= SHARE_MAX * away.len() as f64 { reach } else { f64::INFINITY }
}

/// The readings with spikes pulled in to `reach` from their median.
pub fn pull_in(x: &[f64], reach: f64) -> Vec<f64> {
    if !reach.is_finite() {
        return x.to_vec();
    }
    let middle = median(x);
    x.iter().map(|v| v.clamp(middle - reach, middle + reach)).collect()
}

/// The median; 0 without values.
pub fn median(x: &[f64]) -> f64 {
    stats::median_or(x, 0.0)
}

/// Rounds of expectation maximisation: the shape need not be exact to be useful.
const ROUNDS: usize = 12;

struct Mixture {
    gap: f64,
    slow: f64,
    sigma: f64,
    log_likelihood: f64,
}

impl Mixture {
    /// Expectation maximisation from a guess of the gap, each arm with its own location. `None` where it collapses.
    fn fit(arms: &[&[f64]], gap: f64) -> Option<Mixture> {
        let modes = Modes { gap, slow: 0.5 };
        Mixture::fit_from(arms, Noise { sigma: 0.2 * gap, modes: Some(modes), reach: f64::INFINITY })
    }

    fn fit_from(arms: &[&[f64]], mut shape: Noise) -> Option<Mixture> {
        let n: usize = arms.iter().map(|a| a.len()).sum();
        let mut places: Vec<f64> = arms.iter().map(|a| shape.location(a)).collect();
        for round in 0..ROUNDS {
            // Where an arm lies is the hard part: look again at both hills while the shape still moves.
            if round % 4 == 3 {
                places = arms.iter().map(|a| shape.location(a)).collect();
            }
            let modes = shape.modes?;
            let (mut slow, mut reach, mut square) = (0.0, 0.0, 0.0);
            let mut next = places.clone();
            for (g, a) in arms.iter().enumerate().filter(|(_, a)| !a.is_empty()) {
                let mut sum = 0.0;
                for x in *a {
                    let r = x - places[g];
                    let p = shape.share_slow(r);
                    slow += p;
                    reach += p * r;
                    sum += x - p * modes.gap;
                    square += (1.0 - p) * r * r + p * (r - modes.gap).powi(2);
                }
                next[g] = sum / a.len() as f64;
            }
            if slow < 1.0 || slow > n as f64 - 1.0 {
                return None;
            }
            places = next;
            shape = Noise {
                sigma: (square / n as f64).sqrt().clamp(SIGMA_MIN, SIGMA_MAX),
                modes: Some(Modes { gap: reach / slow, slow: slow / n as f64 }),
                reach: f64::INFINITY,
            };
        }
        let modes = shape.modes?;
        let all = arms.iter().zip(&places).flat_map(|(a, m)| a.iter().map(move |x| x - m));
        let log_likelihood = all.map(|r| (shape.density(r) + 1e-200).ln()).sum();
        Some(Mixture { gap: modes.gap, slow: modes.slow, sigma: shape.sigma, log_likelihood })
    }

    /// True for two distinct modes: further apart than they are wide, each seen at least three times and in a tenth of calls.
    fn is_plain(&self, n: usize) -> bool {
        let rarer = self.slow.min(1.0 - self.slow);
        self.gap > 3.0 * self.sigma && self.gap > 0.15 && rarer > 0.1 && rarer * n as f64 >= 3.0
    }
}
