//! The next reading, chosen by what it is expected to tell about sets of slow parts.
//!
//! A trial is a set of hosts and the GPUs of some rails, the same on every host, so that a rail-aligned network carries
//! it without crossing rails. Every draw of [`super::sets`] predicts the bandwidth of the trial; the information is the
//! entropy of these predictions with noise, less the entropy of the noise. Noise includes the unknown offset of the
//! trial's class: jobs of a size that was read before tell more. Trials are random parts of the hosts and of
//! the suspected rails; the best are improved by adding and removing single hosts and rails.

use super::effect::{Component, Effects, SlowPart as Slow};
use super::sets::{Class, Drawn, EFFECT_SD, INSIDE_MIN, Offsets, SHARES, Sets, Thing, effects_by_share};
use super::window::JOB_HOSTS_MAX;
use predict::{BandwidthModel, Model};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use topology::{Allocation, Bytes, Cluster, GpuMask, HostId, rails};

/// From this probability of a component on, no reading is proposed to confirm it.
pub(super) const SURE: f64 = 0.9;
/// Random trials, those that are improved, and the number of changes tried on each.
const TRIALS: usize = 400;
const IMPROVED: usize = 4;
const CHANGES: usize = 120;
/// Minimum information of a reading that is worth its time, nats; and where only doubts tell the readings apart.
const INFORMATION_MIN: f64 = 0.02;
const OF_DOUBTS_MIN: f64 = 0.1;
/// Minimum number of hosts of a trial, if so many are free: two hosts run another algorithm than more do, so their
/// offset is known less.
const HOSTS_MIN: usize = 3;
/// Bins of the logarithm of the bandwidth: width, and number below and above the expected bandwidth.
const BIN: f64 = 0.03;
const BELOW: usize = 100;
const ABOVE: usize = 16;
const BINS: usize = BELOW + ABOVE;
/// Step of the standard deviations of readings that are told apart.
const SD_STEP: f64 = 0.005;
/// Number of hosts from which the effects of a slow part hardly change.
const MANY_HOSTS: usize = 12;

/// A first sweep of a site: every rail over all free hosts of the most frequent type, one GPU on each, in jobs of at
/// most [`JOB_HOSTS_MAX`] hosts. Each reading shows the slowest NIC of its rail.
pub fn rail_sweep(cluster: &Cluster, free: &Allocation) -> Vec<Allocation> {
    rails::sweep(cluster, free, JOB_HOSTS_MAX)
}

/// A trial: by host whether it takes part, and the NICs.
#[derive(Clone)]
struct Trial {
    hosts: Vec<bool>,
    count: usize,
    nics: u32,
}

struct Trials<'a> {
    effects: Effects<'a>,
    size: Bytes,
    hosts: Vec<HostId>,
    rails: Vec<(u8, u8)>,
    /// Maximum number of rails of a trial: with more, the links inside hosts hide slow NICs.
    rails_max: usize,
    /// By draw: the parts that matter here, each with its host in `hosts` (none: all hosts of `hosts` in the mask), its
    /// NIC (none: all), and the number of its share.
    draws: Vec<Vec<Simple>>,
    /// By number of GPUs per host and number of hosts: effects by share of a slow NIC, of a slow network.
    tables: HashMap<(usize, usize), [[f64; SHARES]; 2]>,
    /// Standard deviation of ordinary readings, and what is known of the offset of each class of readings.
    sd: f64,
    offsets: &'a Offsets,
    /// By number of GPUs per host and number of hosts: the distribution of readings.
    kernels: HashMap<(usize, usize), Rc<Kernel>>,
}

/// By bin of the prediction: the bins of the reading with their probabilities, and the entropy.
type Kernel = Vec<(usize, Vec<f64>, f64)>;

#[derive(Clone)]
enum Where {
    Host(u32),
    Everywhere,
    Below(Vec<bool>),
}

#[derive(Clone)]
struct Simple {
    on: Where,
    nics: u32,
    /// 0 a NIC, 1 a network, 2 a host.
    kind: usize,
    share: usize,
}

/// The free GPUs whose reading tells most about which set of parts is slow.
pub(super) fn most_informative(
    sets: &Sets,
    model: &Model,
    free: &Allocation,
    size: Bytes,
    read: &HashSet<Allocation>,
) -> Option<Allocation> {
    let cluster = model.cluster();
    let (hosts, rails) = rails::alike(cluster, free);
    if hosts.len() < 2 || rails.is_empty() || sets.draws.is_empty() {
        return None;
    }
    let index: HashMap<HostId, u32> = hosts.iter().enumerate().map(|(i, h)| (*h, i as u32)).collect();
    let simple = |&(thing, share): &(Thing, usize)| -> Option<Simple> {
        let at = |h: HostId| index.get(&h).map(|i| Where::Host(*i));
        Some(match thing {
            Thing::One(Component::Host(h)) => Simple { on: at(h)?, nics: u32::MAX, kind: 2, share },
            Thing::One(Component::Nic(h, i)) => Simple { on: at(h)?, nics: 1 << i, kind: 0, share },
            Thing::One(c) => Simple { on: at(c.host())?, nics: u32::MAX, kind: 1, share },
            Thing::Rail(i) => Simple { on: Where::Everywhere, nics: 1 << i, kind: 0, share },
            Thing::Switch(t, s) => {
                let below = hosts.iter().map(|h| cluster.switch_of(t.into(), *h) == s as usize).collect();
                Simple { on: Where::Below(below), nics: u32::MAX, kind: 1, share }
            }
        })
    };
    let all =
        |draws: &[Drawn]| -> Vec<Vec<Simple>> { draws.iter().map(|d| d.iter().filter_map(simple).collect()).collect() };
    let (draws, doubts) = (all(&sets.draws), all(&sets.doubts));
    let effects = Effects::new(cluster, model);
    let rails_max = (1..=rails.len()).rev().find(|n| inside_is_fast(model, hosts[0], &rails[..*n], size)).unwrap_or(1);
    let (tables, kernels) = (HashMap::new(), HashMap::new());
    let (sd, offsets) = (sets.sd, &sets.offsets);
    let mut t = Trials { effects, rails_max, size, hosts, rails, draws, tables, sd, offsets, kernels };
    t.best(read, INFORMATION_MIN).or_else(|| {
        t.draws = doubts;
        t.best(read, OF_DOUBTS_MIN)
    })
}

/// True if the bandwidth inside a host is well above the rate of these rails.
fn inside_is_fast(model: &Model, h: HostId, rails: &[(u8, u8)], size: Bytes) -> bool {
    let mask = GpuMask::from_indices(rails.iter().map(|r| usize::from(r.1)));
    let rate: f64 = rails.iter().map(|r| model.cluster().nic_rate(h, r.0.into()).gb_per_s()).sum();
    rails.len() < 2 || model.share_table(size).part(h, mask).intra_gb_per_s >= INSIDE_MIN * rate
}

fn kernel(sd: f64) -> Kernel {
    (0..BINS)
        .map(|b| {
            let effect = (BELOW as f64 - b as f64).max(0.0) * BIN;
            let sd = sd.hypot(EFFECT_SD * effect) / BIN;
            let reach = (3.0 * sd).ceil() as usize;
            let first = b.saturating_sub(reach);
            let weights: Vec<f64> = (first..(b + reach + 1).min(BINS))
                .map(|x| (-0.5 * ((x as f64 - b as f64) / sd).powi(2)).exp())
                .collect();
            let sum: f64 = weights.iter().sum();
            let weights: Vec<f64> = weights.iter().map(|w| w / sum).collect();
            let entropy = -weights.iter().filter(|w| **w > 0.0).map(|w| w * w.ln()).sum::<f64>();
            (first, weights, entropy)
        })
        .collect()
}

impl Trials<'_> {
    fn allocation(&self, trial: &Trial) -> Allocation {
        let gpus = self.rails.iter().filter(|r| trial.nics >> r.0 & 1 == 1).map(|r| usize::from(r.1));
        let mask = GpuMask::from_indices(gpus);
        Allocation::new(self.hosts.iter().zip(&trial.hosts).filter(|x| *x.1).map(|x| (*x.0, mask)))
    }

    /// Effects by share of a slow NIC and of a slow network on a trial's size.
    fn table(&mut self, trial: &Trial) -> [[f64; SHARES]; 2] {
        let hosts = trial.count.min(MANY_HOSTS).min(self.hosts.len());
        let key = (trial.nics.count_ones() as usize, hosts);
        if let Some(t) = self.tables.get(&key) {
            return *t;
        }
        let alike = Trial { hosts: (0..self.hosts.len()).map(|i| i < hosts).collect(), ..trial.clone() };
        let a = self.allocation(&alike);
        let nic = trial.nics.trailing_zeros() as u8;
        let of = |slow| effects_by_share(&self.effects, &a, self.size, (0, Some(slow)));
        let table = [of(Slow::Nic(nic)), of(Slow::Network)];
        self.tables.insert(key, table);
        table
    }

    /// The distribution of readings of the trial's size: their scatter and what is not known of the offset of their class.
    fn kernel(&mut self, trial: &Trial) -> Rc<Kernel> {
        let key = (trial.nics.count_ones() as usize, trial.count);
        if let Some(k) = self.kernels.get(&key) {
            return Rc::clone(k);
        }
        let class = Class::of_allocation(self.effects.cluster(), &self.allocation(trial), self.size, true);
        let sd = self.sd.hypot(self.offsets.sd(&class));
        let k = Rc::new(kernel((sd / SD_STEP).round() * SD_STEP));
        self.kernels.insert(key, Rc::clone(&k));
        k
    }

    /// Information of a reading of the trial about the set, nats.
    fn information(&mut self, trial: &Trial) -> f64 {
        let [nic, network] = self.table(trial);
        let kernel = self.kernel(trial);
        let mut counts = [0u32; BINS];
        for draw in &self.draws {
            let mut least = 0f64;
            for x in draw.iter().filter(|x| x.nics & trial.nics != 0) {
                let on = match &x.on {
                    Where::Host(h) => trial.hosts[*h as usize],
                    Where::Everywhere => true,
                    Where::Below(below) => below.iter().zip(&trial.hosts).any(|(b, t)| *b && *t),
                };
                if on {
                    let e = match x.kind {
                        0 => nic[x.share],
                        1 => network[x.share],
                        _ => super::sets::ln_share(x.share),
                    };
                    least = least.min(e);
                }
            }
            counts[BELOW - ((-least / BIN).round() as usize).min(BELOW)] += 1;
        }
        let n = self.draws.len() as f64;
        let mut p = [0.0; BINS];
        let mut noise = 0.0;
        for (b, count) in counts.iter().enumerate().filter(|c| *c.1 > 0) {
            let w = f64::from(*count) / n;
            let (first, weights, entropy) = &kernel[b];
            noise += w * entropy;
            weights.iter().enumerate().for_each(|(i, x)| p[first + i] += w * x);
        }
        -p.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum::<f64>() - noise
    }

    fn best(&mut self, read: &HashSet<Allocation>, least: f64) -> Option<Allocation> {
        let mut rng = ChaCha8Rng::seed_from_u64(read.len() as u64);
        let hosts_min = HOSTS_MIN.min(self.hosts.len());
        // How often a draw has a slow NIC on each rail, and any part on each host.
        let mut of_rail: Vec<f64> = self.rails.iter().map(|_| 0.5).collect();
        let mut of_host = vec![0u32; self.hosts.len()];
        for x in self.draws.iter().flatten() {
            self.rails.iter().zip(&mut of_rail).filter(|(r, _)| x.nics >> r.0 & 1 == 1).for_each(|(_, w)| *w += 1.0);
            if let Where::Host(h) = x.on {
                of_host[h as usize] += 1;
            }
        }
        let open: Vec<usize> = (0..self.hosts.len()).filter(|h| of_host[*h] > 0).collect();
        let mut found: Vec<(f64, Trial)> = Vec::new();
        for i in 0..TRIALS {
            let keep: f64 = [1.0, 0.5, 0.35, 0.25, 0.15, 0.08][rng.random_range(0..6)];
            let nics = match i % 4 {
                0 => 1 << pick(&of_rail, &mut rng).map_or(self.rails[0].0, |k| self.rails[k].0),
                _ => {
                    let n = rng.random_range(1..=self.rails_max);
                    (0..n).filter_map(|_| pick(&of_rail, &mut rng)).fold(0, |m, k| m | 1 << self.rails[k].0)
                }
            };
            // Hosts that are not suspected at all may as well take part: they show parts that no draw has.
            let quiet = rng.random::<bool>();
            let mut hosts: Vec<bool> =
                of_host.iter().map(|n| if *n == 0 && quiet { true } else { rng.random::<f64>() < keep }).collect();
            let count = fill(&mut hosts, hosts_min, &mut rng);
            let trial = Trial { hosts, count, nics };
            found.push((self.information(&trial), trial));
        }
        // Before, not after: the best trials may all be repetitions of one reading.
        found.retain(|(_, t)| !read.contains(&self.allocation(t)));
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        found.truncate(IMPROVED);
        for (information, trial) in &mut found {
            for _ in 0..CHANGES {
                let mut next = trial.clone();
                if rng.random_range(0..5) == 0 || open.is_empty() {
                    next.nics ^= 1 << self.rails[rng.random_range(0..self.rails.len())].0;
                } else {
                    let h = open[rng.random_range(0..open.len())];
                    next.hosts[h] = !next.hosts[h];
                    next.count = next.hosts.iter().filter(|h| **h).count();
                }
                if !(1..=self.rails_max).contains(&(next.nics.count_ones() as usize))
                    || next.count < hosts_min
                    || next.count > JOB_HOSTS_MAX
                {
                    continue;
                }
                let v = self.information(&next);
                if v > *information && !read.contains(&self.allocation(&next)) {
                    (*information, *trial) = (v, next);
                }
            }
        }
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        found.first().filter(|(v, _)| *v >= least).map(|(_, t)| self.allocation(t))
    }
}

/// An index with probability proportional to its weight.
fn pick(weights: &[f64], rng: &mut ChaCha8Rng) -> Option<usize> {
    let at = rng.random::<f64>() * weights.iter().sum::<f64>();
    let mut sum = 0.0;
    weights.iter().position(|w| {
        sum += w;
        sum >= at
    })
}

/// Adds and removes random hosts until the trial has a possible number of hosts. Returns the number.
fn fill(hosts: &mut [bool], least: usize, rng: &mut ChaCha8Rng) -> usize {
    let mut count = hosts.iter().filter(|h| **h).count();
    while count < least || count > JOB_HOSTS_MAX {
        let h = rng.random_range(0..hosts.len());
        let wanted = count < least;
        if hosts[h] != wanted {
            hosts[h] = wanted;
            count = if wanted { count + 1 } else { count - 1 };
        }
    }
    count
}
