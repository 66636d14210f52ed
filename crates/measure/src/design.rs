//! Designs: samples of multi-host allocations to measure.
//!
//! A design is a function of cluster, idle GPUs, number and seed. It uses only idle GPUs, never repeats an allocation,
//! and prefers splits (host type and count, sorted) that are not in the sample yet, because GPUs of a type count as
//! equal until readings show a difference.
//!
//! On a network with rails, most allocations are aligned: the GPUs of every host are next to the same rails, as jobs
//! get them ([`crate::rails`]). Where rails have no path between them, a sample has only allocations that can
//! communicate.

use crate::features::{distance, features};
use crate::intra::random_mask;
use crate::rails;
use crate::scale::Scale;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashSet;
use topology::{Allocation, Cluster, GpuMask, HostId, Rails};

/// Limit on allocations of one design.
pub const SAMPLE_SIZE_MAX: usize = 10_000;
/// Number of draws without a new allocation after which a design counts as exhausted.
const FRUITLESS_DRAWS_MAX: usize = 2_000;
/// Number of draws for a new split before a known split is accepted.
const DRAWS_FOR_NEW_SPLIT: usize = 40;
/// Limit on candidates of `worst-case` and of farthest-point.
const CANDIDATES_MAX: usize = 20_000;
/// One in this many allocations of `stratified` is drawn uniformly.
const EVEN_ONE_IN: usize = 3;
/// Maximum ratio of draws of the smallest host count to draws of the largest, if runs are drawn by job size.
const MOST_TIMES: usize = 64;
/// A site of more hosts has several switches, whether its file names them or not.
const HOSTS_OF_ONE_SWITCH_MAX: usize = 32;
/// Probability that the hosts of an allocation are neighbours in the file, where the file lacks the switches: neighbours
/// are often below one switch, and random hosts of a large site almost never.
const NEIGHBOURS: f64 = 0.4;
/// Probability that a host's GPUs are drawn without regard to their links.
const RANDOM_MASK: f64 = 0.25;
/// Probability that the GPUs of an allocation are moved to the same rails on every host, on a network with rails.
const ALIGNED: f64 = 0.75;
/// Up to this many GPUs all subsets are compared; for more GPUs [`MASKS_TRIED`] random ones.
const SUBSETS_OF_MAX: usize = 8;
/// Random subsets compared to find a well-linked one.
const MASKS_TRIED: usize = 100;

/// The method of choosing a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DesignKind {
    /// A random number of random GPUs.
    Random,
    /// Spread over host counts and splits, weighted toward the near-balanced ones that placement decisions compare.
    #[default]
    Stratified,
    /// The most unbalanced splits of every host count.
    WorstCase,
    /// Allocations with the most uncertain prediction; without a model, farthest-point over [`features`].
    Adaptive,
    /// Every rail over all hosts, one GPU on each: a few readings that tell `linkwise doctor` where to look.
    RailSweep,
}

impl DesignKind {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            DesignKind::Random => "random",
            DesignKind::Stratified => "stratified",
            DesignKind::WorstCase => "worst-case",
            DesignKind::Adaptive => "adaptive",
            DesignKind::RailSweep => "rail-sweep",
        }
    }
}

/// A model that reports its uncertainty, for the adaptive design.
pub trait Uncertainty {
    /// Learns from all readings of the campaign so far.
    fn refit(&mut self, measured: &[store::Measurement]) -> Result<(), String>;
    /// Standard deviation of the predicted log bandwidth of each allocation, in order.
    fn std(&self, allocations: &[Allocation]) -> Vec<f64>;
}

/// A sample of up to `n` allocations over two hosts or more; fewer if there are no more. `Adaptive` here means farthest-point. O(n x hosts);
/// farthest-point O(n x candidates).
pub fn design(cluster: &Cluster, idle: &Allocation, n: usize, kind: DesignKind, seed: u64) -> Vec<Allocation> {
    design_at(cluster, idle, n, kind, seed, Scale::SMALL)
}

/// [`design`] within the limits of a scale.
pub fn design_at(
    cluster: &Cluster,
    idle: &Allocation,
    n: usize,
    kind: DesignKind,
    seed: u64,
    scale: Scale,
) -> Vec<Allocation> {
    let n = n.min(SAMPLE_SIZE_MAX);
    let mut sampler = Sampler::new(cluster, idle, seed, scale);
    // Random GPUs stay where they were drawn if any GPUs can communicate.
    sampler.align &= kind != DesignKind::Random || cluster.network.rails == Some(Rails::Separate);
    match kind {
        DesignKind::Random => sampler.take(n, |s, _| s.any()),
        DesignKind::Stratified => stratified(sampler, n),
        DesignKind::WorstCase => worst_case(sampler, n),
        DesignKind::Adaptive => farthest_point(sampler, n),
        DesignKind::RailSweep if scale.hosts_per_sweep < 2 => Vec::new(),
        DesignKind::RailSweep => {
            let mut sweep = topology::rails::sweep(cluster, idle, scale.hosts_per_sweep);
            sweep.truncate(n);
            sweep
        }
    }
}

/// The allocations among which an adaptive design chooses: a stratified sample of the idle GPUs.
#[derive(Clone, Copy)]
pub struct Candidates<'a> {
    pub cluster: &'a Cluster,
    pub idle: &'a Allocation,
    pub seed: u64,
    pub scale: Scale,
}

impl Candidates<'_> {
    /// The next `n` allocations of an adaptive design: the candidates with the most uncertain prediction, at most one per split while there are
    /// enough splits. Skips those in `taken`.
    pub fn most_uncertain(self, n: usize, taken: &[Allocation], model: &dyn Uncertainty) -> Vec<Allocation> {
        self.most_uncertain_within(n, taken, model, f64::INFINITY, &|_| 0.0)
    }

    /// [`Candidates::most_uncertain`] whose costs add up to at most `all`. If even the cheapest ones cost more, these.
    pub fn most_uncertain_within(
        self,
        n: usize,
        taken: &[Allocation],
        model: &dyn Uncertainty,
        all: f64,
        cost: &dyn Fn(&Allocation) -> f64,
    ) -> Vec<Allocation> {
        let sampler = Sampler::new(self.cluster, self.idle, self.seed, self.scale);
        let mut pool = stratified(sampler, candidates(n + taken.len()));
        let known: HashSet<&Allocation> = taken.iter().collect();
        pool.retain(|a| !known.contains(a));
        let std = model.std(&pool);
        let mut order: Vec<usize> = (0..pool.len().min(std.len())).collect();
        order.sort_by(|&a, &b| std[b].total_cmp(&std[a]).then(a.cmp(&b)));
        let mut splits = HashSet::new();
        let (fresh, again): (Vec<usize>, Vec<usize>) =
            order.into_iter().partition(|&i| splits.insert(split(self.cluster, &pool[i])));
        let order: Vec<usize> = fresh.into_iter().chain(again).collect();
        affordable(&order.iter().map(|&i| cost(&pool[i])).collect::<Vec<_>>(), n, all)
            .into_iter()
            .map(|i| pool[order[i]].clone())
            .collect()
    }
}

/// The first `n` of a list of costs, without those after which the cheapest ones would no longer fit into `all`; then the
/// cheapest ones, if fewer fit. O(n log n) for n costs.
fn affordable(costs: &[f64], n: usize, all: f64) -> Vec<usize> {
    let n = n.min(costs.len());
    let cheapest = stats::sorted(costs);
    let mut least: f64 = cheapest[..n].iter().sum();
    let (mut spent, mut chosen) = (0.0, Vec::new());
    for (i, cost) in costs.iter().enumerate() {
        if chosen.len() == n {
            break;
        }
        // The largest of the cheapest ones gives its place to this one.
        let rest = least - cheapest[n - chosen.len() - 1];
        if spent + cost + rest <= all {
            (spent, least) = (spent + cost, rest);
            chosen.push(i);
        }
    }
    let mut left: Vec<usize> = (0..costs.len()).filter(|i| chosen.binary_search(i).is_err()).collect();
    left.sort_by(|&a, &b| costs[a].total_cmp(&costs[b]).then(a.cmp(&b)));
    chosen.extend(left.into_iter().take(n - chosen.len()));
    chosen
}

/// Host type and count of every part, sorted, and whether the hosts use other rails than each other. Allocations with
/// the same split count as equal before measuring.
fn split(cluster: &Cluster, a: &Allocation) -> (Vec<(usize, usize)>, bool) {
    let mut s: Vec<_> = a.parts().iter().map(|(h, m)| (cluster.host(*h).host_type, m.count())).collect();
    s.sort_unstable();
    (s, cluster.network.rails.is_some() && !rails::is_aligned(cluster, a))
}

fn candidates(n: usize) -> usize {
    (n * 8).clamp(200, CANDIDATES_MAX).max(n)
}

/// Host counts to sample: every one up to 6, then in growing steps up to `hosts`.
fn host_counts(hosts: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (2..=hosts.min(6)).collect();
    while let Some(&last) = all.last().filter(|&&l| l < hosts) {
        all.push((last + last / 3 + 1).min(hosts));
    }
    all
}

/// The host counts of a sample in the order in which they are drawn, again and again. By job size, `h` hosts come as `1 / h²` of two hosts.
fn strata(hosts: usize, scale: Scale) -> Vec<usize> {
    let counts = host_counts(hosts.min(scale.hosts_per_run));
    if !scale.by_job_size {
        return counts;
    }
    let largest = counts.last().copied().unwrap_or(2);
    let times = |h: usize| (largest * largest / (h * h)).clamp(1, MOST_TIMES);
    let rounds = counts.iter().map(|&h| times(h)).max().unwrap_or(1);
    // Small counts first in each round, so that a short sample has all of them.
    (0..rounds).flat_map(|r| counts.iter().copied().filter(move |&h| r < times(h))).collect()
}

struct Sampler<'a> {
    cluster: &'a Cluster,
    /// The idle GPUs of hosts that can communicate.
    idle: Allocation,
    fabric: fabric::Fabric<'a>,
    rng: ChaCha8Rng,
    seed: u64,
    scale: Scale,
    /// Move the GPUs of most allocations to the same rails on every host.
    align: bool,
    /// By tier with several switches: the idle hosts of each of its switches that has two or more.
    below_switches: Vec<Vec<Vec<(HostId, GpuMask)>>>,
    /// The site has more hosts than one switch has ports, and its file names no switch.
    untold: bool,
}

impl<'a> Sampler<'a> {
    fn new(cluster: &'a Cluster, idle: &Allocation, seed: u64, scale: Scale) -> Self {
        let idle = rails::networked(cluster, idle);
        let below = |tier: usize| {
            let mut below = vec![Vec::new(); cluster.switch_count(tier)];
            for &(h, m) in idle.parts() {
                if let Some(below) = below.get_mut(cluster.switch_of(tier, h)) {
                    below.push((h, m));
                }
            }
            below.retain(|b| b.len() >= 2);
            below
        };
        let tiers = if scale.by_job_size { cluster.tiers().len() } else { 0 };
        let below_switches: Vec<_> = (0..tiers).map(below).filter(|switches| switches.len() >= 2).collect();
        let (fabric, rng) = (fabric::Fabric::new(cluster), ChaCha8Rng::seed_from_u64(seed));
        let align = cluster.network.rails.is_some();
        let untold = scale.by_job_size
            && cluster.tiers().is_empty()
            && cluster.network.rails.is_none()
            && cluster.hosts.len() > HOSTS_OF_ONE_SWITCH_MAX;
        Sampler { cluster, idle, fabric, rng, seed, scale, align, below_switches, untold }
    }

    /// The largest number of idle GPUs of a host.
    fn most_idle(&self) -> usize {
        self.idle.parts().iter().map(|p| p.1.count()).max().unwrap_or(1)
    }

    fn strata(&self) -> Vec<usize> {
        strata(self.idle.host_count(), self.scale)
    }

    /// Draws until there are `n` different multi-host allocations; `draw` gets the number already taken.
    fn take(mut self, n: usize, mut draw: impl FnMut(&mut Self, usize) -> Allocation) -> Vec<Allocation> {
        let (mut out, mut known, mut splits) = (Vec::new(), HashSet::new(), HashSet::new());
        let mut fruitless = 0;
        let mut patience = DRAWS_FOR_NEW_SPLIT;
        // Runs of one host have no sample of several hosts: there is nothing to draw.
        let several = self.idle.host_count().min(self.scale.hosts_per_run) >= 2;
        while several && out.len() < n && fruitless < FRUITLESS_DRAWS_MAX {
            let a = draw(&mut self, out.len());
            let a = if self.align && self.rng.random_bool(ALIGNED) { self.aligned(a) } else { a };
            if !rails::communicates(self.cluster, &a) {
                fruitless += 1;
                continue;
            }
            let new_split = splits.insert(split(self.cluster, &a));
            let enough = new_split || fruitless >= patience;
            if a.host_count() >= 2 && enough && known.insert(a.clone()) {
                out.push(a);
                fruitless = 0;
                if !new_split {
                    patience /= 2; // few splits are left, so the search for the last ones is short
                }
            } else {
                fruitless += 1;
            }
        }
        out
    }

    /// Random GPUs.
    fn any(&mut self) -> Allocation {
        let mut gpus: Vec<_> = match self.scale.hosts_per_run < self.idle.host_count() {
            true => {
                let hosts = self.scale.hosts_per_run;
                Allocation::new(self.hosts(hosts)).gpus().collect()
            }
            false => self.idle.gpus().collect(),
        };
        let k = self.rng.random_range(2..=gpus.len());
        for i in 0..k {
            let j = self.rng.random_range(i..gpus.len());
            gpus.swap(i, j);
        }
        Allocation::from_gpus(gpus.into_iter().take(k))
    }

    /// `count` different idle hosts: of the whole site or below one switch of a tier, each tier as often as the whole site, where a switch
    /// has so many.
    fn hosts(&mut self, count: usize) -> Vec<(HostId, GpuMask)> {
        let mut hosts = self.idle.parts().to_vec();
        let level =
            if self.below_switches.is_empty() { 0 } else { self.rng.random_range(0..=self.below_switches.len()) };
        if let Some(switches) = level.checked_sub(1).map(|tier| &self.below_switches[tier]) {
            let enough: Vec<usize> = (0..switches.len()).filter(|&s| switches[s].len() >= count).collect();
            if !enough.is_empty() {
                hosts.clone_from(&switches[enough[self.rng.random_range(0..enough.len())]]);
            }
        }
        if self.untold && count < hosts.len() && self.rng.random_bool(NEIGHBOURS) {
            let first = self.rng.random_range(0..=hosts.len() - count);
            return hosts.split_off(first).into_iter().take(count).collect();
        }
        let count = count.min(hosts.len());
        for i in 0..count {
            let j = self.rng.random_range(i..hosts.len());
            hosts.swap(i, j);
        }
        hosts.truncate(count);
        hosts
    }

    /// `base` or `base + 1` GPUs on every host, limited to its idle GPUs.
    fn balanced(&mut self, hosts: usize, base: usize) -> Allocation {
        let chosen = self.hosts(hosts);
        let one_more = self.rng.random_bool(0.5);
        let parts = chosen.into_iter().map(|(h, idle)| {
            let count = base + usize::from(one_more && self.rng.random_bool(0.5));
            (h, self.mask(h, idle, count))
        });
        Allocation::new(parts.collect::<Vec<_>>())
    }

    /// Any counts; the first host has at most `base` GPUs.
    fn arbitrary(&mut self, hosts: usize, base: usize) -> Allocation {
        let chosen = self.hosts(hosts);
        let parts = chosen.into_iter().enumerate().map(|(i, (h, idle))| {
            let count = if i == 0 { base } else { self.rng.random_range(1..=idle.count()) };
            (h, self.mask(h, idle, count))
        });
        Allocation::new(parts.collect::<Vec<_>>())
    }

    /// The counts of an allocation on the same rails of every host.
    fn aligned(&mut self, a: Allocation) -> Allocation {
        rails::aligned(self.cluster, &self.idle, &a, &mut self.rng).unwrap_or(a)
    }

    /// Usually the GPUs that a scheduler would take: the best subset, by the physics of the host's links, of a random part of the idle GPUs.
    /// Otherwise random ones.
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
        // Subsets that the physics cannot distinguish count as equal: one of the best is taken at random.
        let best: Vec<GpuMask> = tried.into_iter().filter(|m| physics(*m) >= 0.999 * best).collect();
        best[self.rng.random_range(0..best.len())]
    }
}

/// A sample spread over host counts and smallest counts, weighted toward the allocations that placement compares.
///
/// A scheduler compares near-balanced splits of many GPUs. Splits with few GPUs on one host are rarely chosen, and a
/// few of them suffice to teach the model how slow they are. From a pool that is uniform over splits, allocations are
/// drawn without replacement with weight `smallest x (smallest / largest)²`, counted in NIC rate if hosts differ. Every
/// third one is drawn uniformly, so that the model also learns the rest of the space.
fn stratified(sampler: Sampler<'_>, n: usize) -> Vec<Allocation> {
    let (cluster, seed, strata, most) = (sampler.cluster, sampler.seed, sampler.strata(), sampler.most_idle());
    let by_job_size = sampler.scale.by_job_size;
    let mut draws = 0;
    let pool = sampler.take(candidates(n), move |s, taken| {
        let hosts = strata[taken % strata.len()];
        let base = 1 + (taken / strata.len() + draws) % most;
        draws += 1; // try another base if this one gives no new allocation
        if draws.is_multiple_of(3) { s.balanced(hosts, base) } else { s.arbitrary(hosts, most) }
    });
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x57a7_1f1e);
    let mut splits = HashSet::new();
    // Weighted order without replacement: largest ln(u) / weight first (Efraimidis and Spirakis). Splits that occurred
    // before come after all new ones.
    let mut keyed: Vec<(bool, f64, Allocation)> = pool
        .into_iter()
        .map(|a| {
            let (least, largest) = extremes(cluster, &a);
            let jobs = if by_job_size { (a.host_count() as f64).powi(2) } else { 1.0 };
            let weight = (least * (least / largest).powi(2) / jobs).max(1e-6);
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

/// The smallest and largest NIC rate of the allocation's hosts, in units of 10 GB/s; GPU counts if no NIC is known.
fn extremes(cluster: &Cluster, a: &Allocation) -> (f64, f64) {
    let sides = a.parts().iter().map(|&(h, m)| {
        let touched = cluster.type_of(h).nics_touched(m);
        let rate: f64 = (0..32).filter(|i| touched >> i & 1 == 1).map(|i| cluster.nic_rate(h, i).gb_per_s()).sum();
        if touched == 0 { m.count() as f64 } else { rate / 10.0 }
    });
    sides.fold((f64::INFINITY, 0.0), |e, s| (e.0.min(s), e.1.max(s)))
}

fn worst_case(sampler: Sampler<'_>, n: usize) -> Vec<Allocation> {
    let strata = host_counts(sampler.idle.host_count().min(sampler.scale.hosts_per_run));
    let most = sampler.most_idle();
    let pool = sampler.take(candidates(n), |s, taken| {
        s.arbitrary(strata[taken % strata.len()], 1 + taken / strata.len() % most.div_ceil(2))
    });
    // Most unbalanced first within each host count, then the host counts in turn.
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

fn farthest_point(sampler: Sampler<'_>, n: usize) -> Vec<Allocation> {
    let cluster = sampler.cluster;
    let pool = stratified(sampler, candidates(n));
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
