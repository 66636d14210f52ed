//! Designs: which multi-host allocations are worth measuring.
//!
//! A design is a function of cluster, idle GPUs, number and seed. It never repeats an allocation, uses idle GPUs only, and
//! prefers splits (host type and count, sorted) that it has not taken yet, since GPUs of a type are alike until measured otherwise.

use crate::features::{distance, features};
use crate::intra::random_mask;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashSet;
use topology::{Allocation, Cluster, GpuMask, HostId};

/// Most samples of one design.
pub const SAMPLES_MAX: usize = 10_000;
/// Draws without anything new before a design is taken as exhausted.
const FRUITLESS_DRAWS_MAX: usize = 2_000;
/// Draws that must bring a new split before a known split is taken.
const DRAWS_FOR_NEW_SPLIT: usize = 40;
/// Most candidates of `worst-case` and of farthest-point.
const CANDIDATES_MAX: usize = 20_000;
/// One sample in so many of `stratified` is drawn evenly.
const EVEN_ONE_IN: usize = 3;
/// How often a host's GPUs are drawn without looking at their links.
const RANDOM_MASK: f64 = 0.25;
/// Of so many GPUs all subsets are looked at, of more only [`MASKS_TRIED`].
const SUBSETS_OF_MAX: usize = 8;
/// Subsets tried for the best-linked mask.
const MASKS_TRIED: usize = 100;

/// How to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DesignKind {
    /// A random number of random GPUs.
    Random,
    /// Spread over host counts and splits, with weight on the near-balanced ones that decisions compare.
    #[default]
    Stratified,
    /// The most unbalanced splits of every host count.
    WorstCase,
    /// Where the model is uncertain; without a model, farthest-point over [`features`].
    Adaptive,
}

impl DesignKind {
    /// The word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            DesignKind::Random => "random",
            DesignKind::Stratified => "stratified",
            DesignKind::WorstCase => "worst-case",
            DesignKind::Adaptive => "adaptive",
        }
    }
}

/// A model that knows how sure it is; the adaptive design asks it.
pub trait Uncertainty {
    /// Learns from all readings of the campaign so far.
    fn refit(&mut self, measured: &[store::Measurement]) -> Result<(), String>;
    /// Standard deviation of the predicted log bandwidth of every allocation, in order.
    fn std(&self, allocations: &[Allocation]) -> Vec<f64>;
}

/// Up to `n` allocations over two hosts or more, fewer if there are no more. `adaptive` without a model is farthest-point. O(n x hosts), and
/// O(n x candidates) for farthest-point.
pub fn design(cluster: &Cluster, idle: &Allocation, n: usize, kind: DesignKind, seed: u64) -> Vec<Allocation> {
    let n = n.min(SAMPLES_MAX);
    match kind {
        DesignKind::Random => Sampler::new(cluster, idle, seed).take(n, |s, _| s.any()),
        DesignKind::Stratified => stratified(cluster, idle, n, seed),
        DesignKind::WorstCase => worst_case(cluster, idle, n, seed),
        DesignKind::Adaptive => farthest_point(cluster, idle, n, seed),
    }
}

/// The next `n` of an adaptive design: the candidates that the model knows least about, no two of one split. `taken` are
/// left out.
pub fn adaptive_round(
    cluster: &Cluster,
    idle: &Allocation,
    n: usize,
    seed: u64,
    taken: &[Allocation],
    model: &dyn Uncertainty,
) -> Vec<Allocation> {
    let mut pool = stratified(cluster, idle, candidates(n + taken.len()), seed);
    let known: HashSet<&Allocation> = taken.iter().collect();
    pool.retain(|a| !known.contains(a));
    let std = model.std(&pool);
    let mut order: Vec<usize> = (0..pool.len().min(std.len())).collect();
    order.sort_by(|&a, &b| std[b].total_cmp(&std[a]).then(a.cmp(&b)));
    let mut splits = HashSet::new();
    let (fresh, again): (Vec<usize>, Vec<usize>) =
        order.into_iter().partition(|&i| splits.insert(split(cluster, &pool[i])));
    fresh.into_iter().chain(again).take(n).map(|i| pool[i].clone()).collect()
}

/// Host type and count of every part, sorted: what two allocations must share to be alike before measuring.
fn split(cluster: &Cluster, a: &Allocation) -> Vec<(usize, usize)> {
    let mut s: Vec<_> = a.parts().iter().map(|(h, m)| (cluster.host(*h).host_type, m.count())).collect();
    s.sort_unstable();
    s
}

fn candidates(n: usize) -> usize {
    (n * 8).clamp(200, CANDIDATES_MAX).max(n)
}

/// Numbers of hosts worth telling apart: every one up to 6, then in growing steps up to `hosts`.
fn host_counts(hosts: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (2..=hosts.min(6)).collect();
    while let Some(&last) = all.last().filter(|&&l| l < hosts) {
        all.push((last + last / 3 + 1).min(hosts));
    }
    all
}

struct Sampler<'a> {
    cluster: &'a Cluster,
    idle: &'a Allocation,
    fabric: fabric::Fabric<'a>,
    rng: ChaCha8Rng,
}

impl<'a> Sampler<'a> {
    fn new(cluster: &'a Cluster, idle: &'a Allocation, seed: u64) -> Self {
        Sampler { cluster, idle, fabric: fabric::Fabric::new(cluster), rng: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// Draws until there are `n` different allocations over several hosts; `draw` gets the number already taken.
    fn take(mut self, n: usize, mut draw: impl FnMut(&mut Self, usize) -> Allocation) -> Vec<Allocation> {
        let (mut out, mut known, mut splits) = (Vec::new(), HashSet::new(), HashSet::new());
        let mut fruitless = 0;
        let mut patience = DRAWS_FOR_NEW_SPLIT;
        while self.idle.host_count() >= 2 && out.len() < n && fruitless < FRUITLESS_DRAWS_MAX {
            let a = draw(&mut self, out.len());
            let new_split = splits.insert(split(self.cluster, &a));
            let enough = new_split || fruitless >= patience;
            if a.host_count() >= 2 && enough && known.insert(a.clone()) {
                out.push(a);
                fruitless = 0;
                if !new_split {
                    patience /= 2; // splits run out: waiting for the last ones is not worth it
                }
            } else {
                fruitless += 1;
            }
        }
        out
    }

    /// Random GPUs.
    fn any(&mut self) -> Allocation {
        let mut gpus: Vec<_> = self.idle.gpus().collect();
        let k = self.rng.random_range(2..=gpus.len());
        for i in 0..k {
            let j = self.rng.random_range(i..gpus.len());
            gpus.swap(i, j);
        }
        Allocation::from_gpus(gpus.into_iter().take(k))
    }

    /// `count` different idle hosts.
    fn hosts(&mut self, count: usize) -> Vec<(HostId, GpuMask)> {
        let mut hosts = self.idle.parts().to_vec();
        let count = count.min(hosts.len());
        for i in 0..count {
            let j = self.rng.random_range(i..hosts.len());
            hosts.swap(i, j);
        }
        hosts.truncate(count);
        hosts
    }

    /// Counts of `base` or one more on every host, as far as it has them.
    fn balanced(&mut self, hosts: usize, base: usize) -> Allocation {
        let chosen = self.hosts(hosts);
        let one_more = self.rng.random_bool(0.5);
        let parts = chosen.into_iter().map(|(h, idle)| {
            let count = base + usize::from(one_more && self.rng.random_bool(0.5));
            (h, self.mask(h, idle, count))
        });
        Allocation::new(parts.collect::<Vec<_>>())
    }

    /// Any counts; the first host has at most `base`.
    fn arbitrary(&mut self, hosts: usize, base: usize) -> Allocation {
        let chosen = self.hosts(hosts);
        let parts = chosen.into_iter().enumerate().map(|(i, (h, idle))| {
            let count = if i == 0 { base } else { self.rng.random_range(1..=idle.count()) };
            (h, self.mask(h, idle, count))
        });
        Allocation::new(parts.collect::<Vec<_>>())
    }

    /// Mostly the GPUs that a dispatcher would take of those that happen to be free, since these are what decisions compare: of a random
    /// part of the idle ones the best subset by the physics of the host's links. Else random ones.
    fn mask(&mut self, host: HostId, idle: GpuMask, count: usize) -> GpuMask {
        let count = count.clamp(1, idle.count());
        if count == 1 || count == idle.count() || self.rng.random_bool(RANDOM_MASK) {
            return random_mask(idle, count, &mut self.rng);
        }
        let free = self.rng.random_range(count.max(idle.count() * 3 / 4)..=idle.count());
        let free = random_mask(idle, free, &mut self.rng);
        let physics = |m: GpuMask| self.fabric.intra(host, m).ring_gb_per_s;
        let tried: Vec<GpuMask> = match free.count() <= SUBSETS_OF_MAX {
            true => free.subsets().filter(|m| m.count() == count).collect(),
            false => (0..MASKS_TRIED).map(|_| random_mask(free, count, &mut self.rng)).collect(),
        };
        let best = tried.iter().map(|m| physics(*m)).fold(0.0, f64::max);
        // GPUs that the physics cannot tell apart are alike until measured: any of the best.
        let best: Vec<GpuMask> = tried.into_iter().filter(|m| physics(*m) >= 0.999 * best).collect();
        best[self.rng.random_range(0..best.len())]
    }
}

/// Spread over host counts and smallest counts, with weight on what decisions compare.
///
/// A dispatcher weighs near-balanced splits of many GPUs against each other; thin or lopsided ones seldom win, and a few of them
/// tell the model how bad they are. So from a pool that is even over splits, each is drawn (without replacement) with weight
/// `smallest x (smallest / largest)²`, counted in NIC rate where hosts differ; every third is drawn evenly, so that the model
/// knows the rest of the space as well.
fn stratified(cluster: &Cluster, idle: &Allocation, n: usize, seed: u64) -> Vec<Allocation> {
    let strata = host_counts(idle.host_count());
    let most = idle.parts().iter().map(|p| p.1.count()).max().unwrap_or(1);
    let mut draws = 0;
    let pool = Sampler::new(cluster, idle, seed).take(candidates(n), move |s, taken| {
        let hosts = strata[taken % strata.len()];
        let base = 1 + (taken / strata.len() + draws) % most;
        draws += 1; // another base when this one brought nothing new
        if draws.is_multiple_of(3) { s.balanced(hosts, base) } else { s.arbitrary(hosts, most) }
    });
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x57a7_1f1e);
    let mut splits = HashSet::new();
    // Weighted order without replacement: the largest of ln(u) / weight first (Efraimidis and Spirakis). Splits that came up
    // before go behind all new ones.
    let mut keyed: Vec<(bool, f64, Allocation)> = pool
        .into_iter()
        .map(|a| {
            let (least, largest) = extremes(cluster, &a);
            let weight = (least * (least / largest).powi(2)).max(1e-6);
            let u: f64 = rng.random_range(f64::MIN_POSITIVE..1.0);
            (splits.insert(split(cluster, &a)), u.ln() / weight, a)
        })
        .collect();
    keyed.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.total_cmp(&a.1)).then_with(|| a.2.cmp(&b.2)));
    let mut weighted: std::collections::VecDeque<Allocation> = keyed.into_iter().map(|k| k.2).collect();
    let mut out = Vec::new();
    while out.len() < n && !weighted.is_empty() {
        let evenly = out.len() % EVEN_ONE_IN == EVEN_ONE_IN - 1;
        let i = if evenly { rng.random_range(0..weighted.len()) } else { 0 };
        out.extend(weighted.remove(i));
    }
    out
}

/// The thinnest and the fattest network side of an allocation's hosts, in NICs of 10 GB/s; GPU counts where no NIC is known.
fn extremes(cluster: &Cluster, a: &Allocation) -> (f64, f64) {
    let sides = a.parts().iter().map(|&(h, m)| {
        let touched = cluster.type_of(h).nics_touched(m);
        let rate: f64 = (0..32).filter(|i| touched >> i & 1 == 1).map(|i| cluster.nic_rate(h, i).gb_per_s()).sum();
        if touched == 0 { m.count() as f64 } else { rate / 10.0 }
    });
    sides.fold((f64::INFINITY, 0.0), |e, s| (e.0.min(s), e.1.max(s)))
}

fn worst_case(cluster: &Cluster, idle: &Allocation, n: usize, seed: u64) -> Vec<Allocation> {
    let strata = host_counts(idle.host_count());
    let most = idle.parts().iter().map(|p| p.1.count()).max().unwrap_or(1);
    let pool = Sampler::new(cluster, idle, seed).take(candidates(n), |s, taken| {
        s.arbitrary(strata[taken % strata.len()], 1 + taken / strata.len() % most.div_ceil(2))
    });
    // Most unbalanced first within every host count, then the host counts in turn.
    let imbalance = |a: &Allocation| {
        let counts = a.counts();
        let (min, max) = (counts.iter().min().copied().unwrap_or(1), counts.iter().max().copied().unwrap_or(1));
        (max * 1000 / min.max(1), std::cmp::Reverse(min))
    };
    let mut groups: Vec<Vec<Allocation>> = strata
        .iter()
        .map(|h| {
            let mut g: Vec<Allocation> = pool.iter().filter(|a| a.host_count() == *h).cloned().collect();
            g.sort_by_key(imbalance); // the most unbalanced last: taken from the end
            g
        })
        .collect();
    let mut out = Vec::new();
    while out.len() < n && groups.iter().any(|g| !g.is_empty()) {
        for g in &mut groups {
            out.extend(g.pop().filter(|_| out.len() < n));
        }
    }
    out
}

fn farthest_point(cluster: &Cluster, idle: &Allocation, n: usize, seed: u64) -> Vec<Allocation> {
    let pool = stratified(cluster, idle, candidates(n), seed);
    let points: Vec<Vec<f64>> = pool.iter().map(|a| features(cluster, a)).collect();
    let mut nearest = vec![f64::INFINITY; pool.len()];
    let mut out = Vec::new();
    let mut next = 0;
    while out.len() < n.min(pool.len()) {
        out.push(pool[next].clone());
        nearest[next] = f64::NEG_INFINITY;
        for i in 0..pool.len() {
            nearest[i] = nearest[i].min(distance(&points[i], &points[next]));
        }
        next = (0..pool.len()).max_by(|&a, &b| nearest[a].total_cmp(&nearest[b]).then(b.cmp(&a))).unwrap_or(0);
    }
    out
}
