//! The shape of the noise: the scatter of one arm's times in log time.
//!
//! Real rewards have one mode or two: in the published log the times of an arm switch between about 110 and 295 ms,
//! with half of the calls in each mode. If two modes are recognised, arms are compared mode by mode, which needs far
//! fewer calls than a comparison of means.

/// Two modes of one arm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Modes {
    /// Distance from the fast mode to the slow mode, in log time.
    pub gap: f64,
    /// Share of calls in the slow mode.
    pub slow: f64,
}

/// Scatter of a log time about its arm's location: the mean, or the fast mode if there are two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Noise {
    /// Standard deviation inside a mode.
    pub sigma: f64,
    /// The second mode, if there is one.
    pub modes: Option<Modes>,
    /// Distance from an arm's median beyond which a reading is a spike.
    pub reach: f64,
}

/// Smallest standard deviation: identical readings (from a clock with coarse ticks) must not count as certain.
pub const SIGMA_MIN: f64 = 0.004;
const SIGMA_MAX: f64 = 2.0;

/// Share of calls that belong to neither of two modes.
const STRAY: f64 = 0.05;

/// Number of readings from which two modes are looked for.
const TWO_MODES_READINGS_MIN: usize = 32;
/// Smallest common standard deviation of two modes that are treated separately.
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
            // Real modes have longer tails than a normal distribution, and some calls fall between the modes. A wide
            // floor keeps one such call from deciding.
            Some(m) => {
                let wide = 1.5 * m.gap;
                let floor = (-0.5 * ((r - 0.5 * m.gap) / wide).powi(2)).exp() / wide;
                (1.0 - STRAY) * ((1.0 - m.slow) * normal(r) + m.slow * normal(r - m.gap)) + STRAY * floor
            }
        }
    }

    /// ln of the density of `r` under a location that is `shift` higher, over the unshifted density. Limited to
    /// ±`limit`, so that a single outlier does not decide.
    pub fn log_ratio(&self, r: f64, shift: f64, limit: f64) -> f64 {
        const FLOOR: f64 = 1e-200;
        ((self.density(r - shift) + FLOOR).ln() - (self.density(r) + FLOOR).ln()).clamp(-limit, limit)
    }

    /// ln of the density of a reading `r` (relative to the arm in use) if its arm is faster by at least `least`, over
    /// the density if its location is `was`. The size of the improvement is unknown: the function takes the most likely
    /// of several shifts. One of them is fitted to this reading and is discounted by `FITTED`, because it was chosen
    /// after the fact. Limited to ±`limit`.
    pub fn log_ratio_faster(&self, r: f64, was: f64, least: f64, limit: f64) -> f64 {
        const FITTED: f64 = 0.22; // e^-1.5
        let fitted = match self.modes {
            None => self.density(r - r.min(-least)),
            Some(m) => self.density(r - r.min(-least)).max(self.density(r - (r - m.gap).min(-least))),
        };
        let better = (FITTED * fitted).max(self.density(r + least)).max(self.density(r + 2.5 * least));
        ((better + 1e-200).ln() - (self.density(r - was) + 1e-200).ln()).clamp(-limit, limit)
    }

    /// The noise shape that several arms share; each arm has its own location. `arms[i]` holds logarithms of times.
    ///
    /// Two modes are accepted if they explain the readings clearly better than one mode (twice the penalty of the
    /// Bayesian information criterion), are well separated, and were both seen. Cost: about 10,000 exponentials for 100
    /// readings.
    pub fn fit(arms: &[&[f64]]) -> Noise {
        let one = one_mode(arms);
        let n: usize = arms.iter().map(|a| a.len()).sum();
        if n < TWO_MODES_READINGS_MIN || one.sigma < TWO_MODES_SPREAD_MIN {
            return one;
        }
        // The likelihood of one mode is taken at its own maximum, not at the winsorised spread: one outlier is not a
        // second mode.
        let plain = arms.iter().flat_map(|a| {
            let m = mean(a);
            a.iter().map(move |x| (x - m).powi(2))
        });
        let sigma = (plain.sum::<f64>() / n as f64).sqrt().max(SIGMA_MIN);
        let alone = -(n as f64) * (sigma.ln() + 0.5);
        // Initial gaps: from one spread, the distance of two modes with equal shares, and some values below and above.
        let best = [1.4, 2.0, 2.8]
            .map(|f| f * sigma)
            .into_iter()
            .filter_map(|gap| Mixture::fit(arms, gap))
            .max_by(|a, b| a.log_likelihood.total_cmp(&b.log_likelihood));
        match best {
            Some(m) if m.is_plain(n) && m.log_likelihood - alone > 2.0 * (n as f64).ln() => {
                // The fit has three more parameters than arms. This corrects the spread, which is underestimated
                // accordingly.
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

    /// The shape for one arm whose earlier shape is known: refines it, or fits it again if it no longer matches.
    /// Cheaper than [`fit`](Self::fit).
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

    /// The location of the readings `x` under this shape: the mean, or the fast mode by expectation maximisation.
    pub fn location(&self, x: &[f64]) -> f64 {
        let Some(modes) = self.modes else { return mean(x) };
        if x.is_empty() {
            return 0.0;
        }
        // The likelihood may have two maxima: start at both ends and keep the higher result.
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

    /// Largest distance of an arm's location below its readings if all of them may be in the slow mode: the gap between
    /// the modes. 0 if both modes were seen, or if that many slow readings in a row are unlikely (1 in 250).
    pub fn doubtful_mode(&self, readings: &[f64]) -> f64 {
        let Some(m) = self.modes else { return 0.0 };
        let low = readings.iter().copied().fold(f64::INFINITY, f64::min);
        let high = readings.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if high - low > 0.5 * m.gap { 0.0 } else { self.doubtful_after(readings.len()) }
    }

    /// The same distance after `n` readings that were all in one mode.
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

/// Pooled spread around the arms' means, with spikes pulled in.
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

/// Distance from its arm's median beyond which a reading is a spike: four robust deviations, if few readings are that
/// far away. If many are, they form a second mode or a long tail and must count.
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

/// Rounds of expectation maximisation. The shape need not be exact.
const ROUNDS: usize = 12;

struct Mixture {
    gap: f64,
    slow: f64,
    sigma: f64,
    log_likelihood: f64,
}

impl Mixture {
    /// Expectation maximisation from an initial gap; each arm has its own location. `None` if it collapses.
    fn fit(arms: &[&[f64]], gap: f64) -> Option<Mixture> {
        let modes = Modes { gap, slow: 0.5 };
        Mixture::fit_from(arms, Noise { sigma: 0.2 * gap, modes: Some(modes), reach: f64::INFINITY })
    }

    fn fit_from(arms: &[&[f64]], mut shape: Noise) -> Option<Mixture> {
        let n: usize = arms.iter().map(|a| a.len()).sum();
        let mut places: Vec<f64> = arms.iter().map(|a| shape.location(a)).collect();
        for round in 0..ROUNDS {
            // The locations of arms are the difficult part: try both maxima again while the shape still changes.
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

    /// True for two distinct modes: their distance exceeds their width, and each was seen at least three times and in a
    /// tenth of the calls.
    fn is_plain(&self, n: usize) -> bool {
        let rarer = self.slow.min(1.0 - self.slow);
        self.gap > 3.0 * self.sigma && self.gap > 0.15 && rarer > 0.1 && rarer * n as f64 >= 3.0
    }
}
