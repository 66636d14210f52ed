//! A searcher for slow NICs that knows what no doctor knows: the form of the truth, the healthy bandwidths, the noise,
//! the range of shares, and the expected number of slow NICs. The best that choosing one reading after the other by its
//! information reaches.
//!
//! States are sets of slow NICs with their shares. After every reading they are drawn again by their weights, and every
//! part of every set is drawn again given the others (sequential Monte Carlo with Gibbs steps). The next reading is the
//! set of hosts and rails whose slowest NIC the states disagree about most.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use topology::{Allocation, GpuMask, HostId};
use truths::Truth;
use truths::site::{Site, SlowNic};

/// States, slow NICs of a state at most, shares, and sweeps with rising weight at the start.
const STATES: usize = 200;
const PARTS_MAX: usize = 8;
const SHARES: usize = 20;
const SWEEPS_WARM: usize = 30;
/// Trials of a reading, and changes of the best.
const TRIALS: usize = 400;
const CHANGES: usize = 300;
/// Rails and hosts of a reading: with more rails the links inside hosts limit.
const RAILS_MAX: usize = 4;
const HOSTS_MIN: usize = 3;
/// Bins of the logarithm of a reading.
const BIN: f64 = 0.025;
const BINS: usize = 64;
/// A reading farther off than this many deviations counts as this far.
const FAR_SDS: f64 = 5.0;

/// A reading: by NIC whether it takes part, and `ln` of the measured over the healthy bandwidth.
struct Taken {
    on: Vec<bool>,
    ln_ratio: f64,
}

/// A slow NIC: its number and that of its share.
type Part = (usize, usize);

/// The search on one site.
pub struct Oracle<'s> {
    site: &'s Site,
    healthy: Site,
    rails: usize,
    nics: usize,
    sd: f64,
    expected: f64,
    /// `ln` of every share.
    shares: Vec<f64>,
    taken: Vec<Taken>,
    states: Vec<[Option<Part>; PARTS_MAX]>,
    rng: ChaCha8Rng,
}

impl<'s> Oracle<'s> {
    /// `left`: range of the shares; `slow`: expected number of slow NICs; `irregularity`: deviation of a reading's
    /// expectation.
    pub fn new(site: &'s Site, left: (f64, f64), slow: usize, irregularity: f64, seed: u64) -> Self {
        let hosts = site.cluster().hosts.len();
        let rails = site.cluster().types[0].nics.len();
        let share = |l: usize| (left.0 + (left.1 - left.0) * (l as f64 + 0.5) / SHARES as f64).ln();
        Oracle {
            site,
            healthy: site.supposed(&vec![0.0; site.unknowns()]),
            rails,
            nics: hosts * rails,
            sd: irregularity.hypot(site.noise(2)),
            expected: slow as f64,
            shares: (0..SHARES).map(share).collect(),
            taken: Vec::new(),
            states: vec![[None; PARTS_MAX]; STATES],
            rng: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// The slow NICs that most states have, after this many readings, the first of which sweep the rails.
    pub fn named(mut self, readings: usize) -> Vec<SlowNic> {
        for i in 0..readings {
            let on = match i < self.rails {
                true => (0..self.nics).map(|n| n % self.rails == i).collect(),
                false => self.next(),
            };
            self.read(on, i as u64);
            match i + 1 {
                n if n < self.rails => {}
                n if n == self.rails => {
                    for k in 1..=SWEEPS_WARM {
                        self.sweep(k as f64 / SWEEPS_WARM as f64);
                    }
                }
                _ => {
                    self.resample();
                    self.sweep(1.0);
                }
            }
        }
        let mut found = Vec::new();
        for n in 0..self.nics {
            let shares: Vec<f64> = self
                .states
                .iter()
                .flat_map(|s| s.iter().flatten().find(|p| p.0 == n))
                .map(|p| self.shares[p.1])
                .collect();
            if 2 * shares.len() > STATES {
                let (host, nic) = (HostId((n / self.rails) as u32), (n % self.rails) as u8);
                found.push(SlowNic { host, nic, left: stats::mean(&shares).exp() });
            }
        }
        found
    }

    fn read(&mut self, on: Vec<bool>, number: u64) {
        let mask = |h: usize| GpuMask::from_indices((0..self.rails).filter(|r| on[h * self.rails + r]));
        let parts = (0..self.nics / self.rails).map(|h| (HostId(h as u32), mask(h)));
        let a = Allocation::new(parts.filter(|p| !p.1.is_empty()));
        let read = self.site.reading(&a, number).unwrap_or(f64::NAN);
        let ln_ratio = (read / self.healthy.smooth_gb_per_s(&a).unwrap_or(f64::NAN)).ln();
        self.taken.push(Taken { on, ln_ratio });
    }

    fn ln_density(&self, off: f64) -> f64 {
        let z = (off / self.sd).abs().min(FAR_SDS);
        -0.5 * z * z
    }

    /// What the slowest of these NICs leaves, as a logarithm.
    fn slowest<'p>(&self, parts: impl Iterator<Item = &'p Part>, on: &[bool]) -> f64 {
        parts.filter(|p| on[p.0]).map(|p| self.shares[p.1]).fold(0.0, f64::min)
    }

    fn sweep(&mut self, weight: f64) {
        let mut scores = vec![0f32; self.nics * SHARES];
        let odds = self.expected / PARTS_MAX as f64 / (self.nics * SHARES) as f64;
        for i in 0..STATES {
            let mut empty_drawn = 0;
            for k in 0..PARTS_MAX {
                if self.states[i][k].is_none() {
                    empty_drawn += 1;
                    if empty_drawn > 2 {
                        continue;
                    }
                }
                self.states[i][k] = None;
                scores.fill(0.0);
                for t in &self.taken {
                    let others = self.slowest(self.states[i].iter().flatten(), &t.on);
                    let base = self.ln_density(t.ln_ratio - others);
                    for (l, share) in self.shares.iter().enumerate().filter(|s| *s.1 < others) {
                        let gain = (weight * (self.ln_density(t.ln_ratio - share) - base)) as f32;
                        let row = &mut scores[l * self.nics..(l + 1) * self.nics];
                        row.iter_mut().zip(&t.on).for_each(|(s, on)| *s += if *on { gain } else { 0.0 });
                    }
                }
                let most = scores.iter().copied().fold(0f32, f32::max);
                scores.iter_mut().for_each(|s| *s = (*s - most).exp());
                let empty = f64::from(-most).exp();
                let sum: f64 = scores.iter().map(|s| odds * f64::from(*s)).sum();
                let mut at = self.rng.random::<f64>() * (empty + sum) - empty;
                if at > 0.0 {
                    let found = scores.iter().position(|s| {
                        at -= odds * f64::from(*s);
                        at <= 0.0
                    });
                    self.states[i][k] = found.map(|x| (x % self.nics, x / self.nics));
                }
            }
        }
    }

    /// Draws the states again by the weight of the last reading.
    fn resample(&mut self) {
        let Some(t) = self.taken.last() else { return };
        let ln_weight =
            |s: &[Option<Part>; PARTS_MAX]| self.ln_density(t.ln_ratio - self.slowest(s.iter().flatten(), &t.on));
        let ln_weights: Vec<f64> = self.states.iter().map(ln_weight).collect();
        self.states = stats::resampled(&self.states, &ln_weights, self.rng.random());
    }

    /// The information of a reading, nats: entropy of the predictions with noise, without that of the noise.
    fn information(&self, on: &[bool]) -> f64 {
        let mut counts = [0f64; BINS];
        for s in &self.states {
            let slowest = self.slowest(s.iter().flatten(), on);
            counts[((-slowest / BIN).round() as usize).min(BINS - 1)] += 1.0 / STATES as f64;
        }
        let sd = self.sd / BIN;
        let reach = (3.0 * sd).ceil() as usize;
        let kernel: Vec<f64> =
            (0..=2 * reach).map(|k| (-0.5 * ((k as f64 - reach as f64) / sd).powi(2)).exp()).collect();
        let all: f64 = kernel.iter().sum();
        let mut p = vec![0.0; BINS + 2 * reach];
        for (b, count) in counts.iter().enumerate().filter(|c| *c.1 > 0.0) {
            kernel.iter().enumerate().for_each(|(k, w)| p[b + k] += count * w / all);
        }
        let entropy = |p: &[f64]| -p.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum::<f64>();
        entropy(&p) - entropy(&kernel.iter().map(|k| k / all).collect::<Vec<_>>())
    }

    fn next(&mut self) -> Vec<bool> {
        let (hosts, rails) = (self.nics / self.rails, self.rails);
        let mut of_rail = vec![0.5; rails];
        self.states.iter().flat_map(|s| s.iter().flatten()).for_each(|p| of_rail[p.0 % rails] += 1.0);
        let all: f64 = of_rail.iter().sum();
        let on = |h: &[bool], r: &[bool]| -> Vec<bool> {
            (0..hosts * rails).map(|n| h[n / rails] && r[n % rails]).collect()
        };
        let many = |of: &[bool]| of.iter().filter(|x| **x).count();
        let (mut best, mut chosen) = (f64::NEG_INFINITY, (vec![true; hosts], vec![true; rails]));
        for i in 0..TRIALS + CHANGES {
            let (mut h, mut r) = chosen.clone();
            if i < TRIALS {
                let keep = [1.0, 0.6, 0.5, 0.35, 0.25, 0.15][self.rng.random_range(0..6)];
                h.iter_mut().for_each(|h| *h = self.rng.random::<f64>() < keep);
                r.fill(false);
                for _ in 0..self.rng.random_range(1..=RAILS_MAX) {
                    let mut at = self.rng.random::<f64>() * all;
                    let found = of_rail.iter().position(|w| {
                        at -= w;
                        at <= 0.0
                    });
                    r[found.unwrap_or(0)] = true;
                }
            } else if self.rng.random_range(0..5) == 0 {
                let k = self.rng.random_range(0..rails);
                r[k] = !r[k];
            } else {
                let k = self.rng.random_range(0..hosts);
                h[k] = !h[k];
            }
            if many(&h) < HOSTS_MIN || !(1..=RAILS_MAX).contains(&many(&r)) {
                continue;
            }
            let v = self.information(&on(&h, &r));
            if v > best {
                (best, chosen) = (v, (h, r));
            }
        }
        on(&chosen.0, &chosen.1)
    }
}
