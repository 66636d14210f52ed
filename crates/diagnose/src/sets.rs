//! Sets of slow parts that explain few readings over many hosts.
//!
//! With fewer readings than parts, no part has its own evidence: a reading of one rail over 32 hosts shows the slowest
//! of 32 NICs, and only several readings together single it out. Here whole sets of slow parts are compared. Hypothesis:
//! a set of parts, the share of its rate of each, the moment since when, the offset of every class of readings from the
//! physics, the scatter, and the expected number of slow parts. A reading shows the slowest part that it touches, so
//! that effects combine by their minimum. Residuals are normal except for outliers, as in [`super::infer`].
//!
//! A Gibbs sampler draws hypotheses from the posterior. One step removes a part of the set and draws a part and a share
//! again, from all parts and shares, given the rest. Parts that the same readings touch with the same effects form a
//! group; a step costs (readings of all groups) x [`SHARES`] additions, whatever the size of the cluster. The draws have
//! fixed seeds, so equal readings give equal results.
//!
//! A slow GPU in a reading over hosts looks as a slow NIC. It would also slow readings of its own host, and these are
//! judged separately ([`super::search`]); therefore the parts here are NICs, networks, hosts, rails and switches.

use super::effect::{Component, Effects, SlowPart as Slow};
use super::evidence::Evidence;
use super::infer::{Candidate, Defect, LISTED_MIN, OUTLIER_SHARES, SLOWED, ln_density};
use super::{DEFECTS_MAX, PROBABILITY_MIN};
use predict::{Part, SlowPart};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::collections::{BTreeMap, HashMap};
use topology::{Allocation, Bytes, Cluster, GpuMask};

/// Maximum number of multi-host readings that are explained by sets.
pub(super) const READINGS_MAX: usize = 128;
/// Sets explain the readings as long as there are at most this many per host: beyond, hosts have evidence of their own.
pub(super) const READINGS_PER_HOST_MAX: usize = 3;
/// Minimum number of hosts: on fewer, hosts soon have evidence of their own.
pub(super) const HOSTS_MIN: usize = 8;
/// Maximum number of pairs of a reading and a group of parts.
const PAIRS_MAX: usize = 1 << 17;
/// Number of candidate shares of a part's rate, the highest share, and the step of the logarithm between two.
pub(super) const SHARES: usize = 40;
const SHARE_MAX: f64 = 0.9;
const SHARE_STEP: f64 = 0.07;
/// Shares at which the physics is evaluated, and between which effects are interpolated.
const KNOTS: [f64; 9] = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 0.9];
/// Log density of a reading far above its expectation.
const FAST_LN_DENSITY: f64 = -16.0;
/// Maximum number of different effects over all readings: an even reading has one, an uneven one about one per NIC of a
/// host. One costs about 2 ms.
const ROWS_MAX: usize = 400;
/// Maximum number of slow parts of a set.
const PARTS_MAX: usize = 24;
/// Candidate numbers of slow parts that are expected before any reading, and their prior probabilities.
const EXPECTED: [(f64, f64); 4] = [(0.1, 0.5), (0.5, 0.3), (2.0, 0.12), (6.0, 0.08)];
/// Prior weight of a part relative to a NIC.
const NETWORK_WEIGHT: f64 = 0.5;
const HOST_WEIGHT: f64 = 0.5;
const RAIL_WEIGHT: f64 = 1.0;
const SWITCH_WEIGHT: f64 = 1.0;
/// Prior of the offset of a class from its expectation: the mean, and the standard deviations of the part that all
/// classes share, of the part that similar classes share, and of the rest. Similar classes differ in the numbers of
/// hosts and of GPUs per host; the correlation of the second part falls with the logarithms of both.
const OFFSET_MEAN: f64 = -0.08;
const OFFSET_SD: f64 = 0.12;
const ALIKE_SD: f64 = 0.07;
const ALIKE_LN: f64 = 2.0;
const CLASS_SD: f64 = 0.01;
/// Candidate shares of the latency in the physics that even readings show, and their prior probabilities: the physics of
/// latency is rough, and large messages have none.
const LATENCY: [(f64, f64); 2] = [(0.0, 0.97), (1.0, 0.03)];
/// Candidate shares of the offset between classes that a slow part hides: 0 if a slow part lowers every class by the
/// same factor, 1 if the slow part alone decides the bandwidth.
const HIDDEN: [f64; 3] = [0.0, 0.5, 1.0];
/// Standard deviation of an effect's logarithm around the physics, as a share of the effect. The share that a slow part
/// hides ([`HIDDEN`]) is known otherwise, so this is less than in [`super::infer`].
pub(super) const EFFECT_SD: f64 = 0.035;
/// Candidate standard deviations of ordinary readings, and their prior probabilities.
const SDS: [f64; 7] = [0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.14];
const SD_PRIOR: [f64; 7] = [0.2, 0.4, 0.28, 0.1, 0.017, 0.002, 0.001];
/// Prior probabilities of [`OUTLIER_SHARES`].
const OUTLIERS_PRIOR: [f64; 4] = [0.97, 0.02, 0.008, 0.002];
/// Index in [`SDS`] at the start.
const SD_START: usize = 3;
/// Chains, and sweeps of each: first those with rising weight of the readings, then others until the draws are kept.
const CHAINS: u64 = 4;
const SWEEPS_WARM: usize = 40;
const SWEEPS_SETTLE: usize = 10;
const SWEEPS_KEPT: usize = 60;
/// A chain whose mean log probability is this much below that of the best chain is left out.
const CAUGHT: f64 = 5.0;
/// Weights below the largest by this factor (of the logarithm) count as 0.
const NEGLIGIBLE: f32 = 18.0;
/// Parts of two draws are the same defect if their shares differ by at most this (of the logarithm).
const SAME_SHARE: f64 = 0.2;

/// A part that may be slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Thing {
    /// A part of one host.
    One(Component),
    /// The NICs of one index on all hosts.
    Rail(u8),
    /// The NICs of all hosts below a switch: tier and switch.
    Switch(u8, u32),
}

/// One draw of slow parts, each with the number of the share of its rate.
pub(super) type Drawn = Vec<(Thing, usize)>;

/// The posterior over sets.
#[derive(Clone, Debug, Default)]
pub(super) struct Sets {
    /// Equally probable draws.
    pub draws: Vec<Drawn>,
    /// Standard deviation of ordinary readings.
    pub sd: f64,
    /// By reading: its residual with the offset of its class removed.
    pub residuals: Vec<f64>,
    pub defects: Vec<Defect>,
    pub shared: Vec<SlowPart>,
}

/// Members of a reading's row: the groups that the reading touches with equal effects.
struct Row {
    /// By share: the effect.
    effects: [f64; SHARES],
    groups: Vec<u32>,
}

struct Reading {
    /// Its number among the given readings.
    given: usize,
    ln_ratio: f64,
    /// See [`Expectation::latency`].
    latency: f64,
    class: usize,
    at_unix_s: f64,
    /// Effect of defects that are known otherwise.
    known: f64,
    rows: Vec<Row>,
}

/// Parts that the same readings touch with the same effects.
struct Group {
    things: Vec<(Thing, f64)>,
    /// Share of the prior probability.
    prior: f64,
    /// Reading and row.
    touched: Vec<(u32, u32)>,
}

struct Problem {
    readings: Vec<Reading>,
    groups: Vec<Group>,
    /// By pair of classes: the inverse of the covariance of their offsets.
    precision: Vec<Vec<f64>>,
    /// By share: prior probability.
    share_prior: [f64; SHARES],
    /// Indices of readings from which a part can be slow; 0 is "always".
    starts: Vec<u32>,
}

/// A slow part of a set: group, index of its share, and the first reading that it slows.
type Element = (u32, u32);

#[derive(Clone)]
struct State {
    /// By slot: the part, if there is one, and the moment.
    slots: Vec<(Option<Element>, u32)>,
    offsets: Vec<f64>,
    /// The highest offset, and the share of the distance from it that a slow part hides, see [`HIDDEN`].
    top: f64,
    hidden: f64,
    /// The share of the predicted latency that readings show, one of [`LATENCY`].
    latency: f64,
    sd: usize,
    /// Index in [`OUTLIER_SHARES`].
    outliers: usize,
    expected: f64,
}

/// The logarithm of share number `l`.
pub(super) fn ln_share(l: usize) -> f64 {
    SHARE_MAX.ln() - SHARE_STEP * l as f64
}

/// The slow part of an allocation's host, and the index of the host that stands for all with equal effects.
type RowKey = (usize, Option<Slow>);

/// Kind of a row, host and NIC that stand for it, the types and GPUs of all hosts, and the size.
type Shape = (u8, usize, u8, Vec<(usize, u32)>, Bytes);

/// The readings that a part touches, each with its row.
type Column = Vec<(u32, u32)>;

/// Effects of a slow part by share. `None`: the whole job runs at the part's rate.
pub(super) fn effects_by_share(effects: &Effects, a: &Allocation, size: Bytes, (at, slow): RowKey) -> [f64; SHARES] {
    let Some(slow) = slow else { return std::array::from_fn(ln_share) };
    let prepared = effects.prepare(a, size);
    let knots = KNOTS.map(|f| (f.ln(), effects.across(&prepared, slow, f, a, at, size)));
    std::array::from_fn(|l| {
        let x = ln_share(l);
        let above = knots.iter().position(|k| k.0 >= x).unwrap_or(KNOTS.len() - 1).max(1);
        let ((x0, y0), (x1, y1)) = (knots[above - 1], knots[above]);
        (y0 + (y1 - y0) * (x - x0) / (x1 - x0)).min(0.0)
    })
}

/// All parts that a reading touches, by equal effect.
fn touched(cluster: &Cluster, a: &Allocation) -> BTreeMap<(u8, usize, u8), (RowKey, Vec<Thing>)> {
    // Key: kind (0 whole, 1 network, 2 NIC), the first host that is like this one, and the NIC there.
    let mut out: BTreeMap<(u8, usize, u8), (RowKey, Vec<Thing>)> = BTreeMap::new();
    let mut like: HashMap<(usize, GpuMask, Vec<u64>), usize> = HashMap::new();
    for (at, &(h, mask)) in a.parts().iter().enumerate() {
        let health = cluster.host(h).nic_health.iter().map(|f| f.to_bits()).collect();
        let first = *like.entry((cluster.host(h).host_type, mask, health)).or_insert(at);
        let mut add = |kind, nic: u8, slow, thing| {
            out.entry((kind, first, nic)).or_insert_with(|| ((first, slow), Vec::new())).1.push(thing);
        };
        add(0, 0, None, Thing::One(Component::Host(h)));
        let ty = cluster.type_of(h);
        let nics = ty.nics_touched(mask);
        if nics == 0 {
            continue;
        }
        add(1, 0, Some(Slow::Network), Thing::One(Component::HostNetwork(h)));
        for tier in 0..cluster.tiers().len() {
            let switch = cluster.switch_of(tier, h);
            if cluster.hosts_below(tier, switch).len() > 1 {
                add(1, 0, Some(Slow::Network), Thing::Switch(tier as u8, switch as u32));
            }
        }
        let mut representative: Vec<(f64, u8)> = Vec::new();
        for i in (0..ty.nics.len().min(32) as u8).filter(|i| nics >> i & 1 == 1) {
            let rate = cluster.nic_rate(h, i.into()).gb_per_s();
            let nic = match representative.iter().find(|r| r.0 == rate) {
                Some(r) => r.1,
                None => {
                    representative.push((rate, i));
                    i
                }
            };
            add(2, nic, Some(Slow::Nic(nic)), Thing::One(Component::Nic(h, i)));
            add(2, nic, Some(Slow::Nic(nic)), Thing::Rail(i));
        }
    }
    out
}

fn weight(cluster: &Cluster, thing: Thing) -> f64 {
    match thing {
        Thing::One(Component::HostNetwork(_)) => NETWORK_WEIGHT,
        Thing::One(Component::Host(_)) => HOST_WEIGHT,
        Thing::One(_) => 1.0,
        Thing::Rail(_) => RAIL_WEIGHT,
        Thing::Switch(..) if cluster.tiers().is_empty() => 0.0,
        Thing::Switch(..) => SWITCH_WEIGHT,
    }
}

/// All parts of a cluster.
fn things(cluster: &Cluster) -> Vec<Thing> {
    let mut out = Vec::new();
    let mut rails = 0;
    for h in cluster.host_ids() {
        let nics = cluster.type_of(h).nics.len().min(32) as u8;
        rails = rails.max(nics);
        out.extend([Component::Host(h), Component::HostNetwork(h)].map(Thing::One));
        out.extend((0..nics).map(|i| Thing::One(Component::Nic(h, i))));
    }
    out.extend((0..rails).map(Thing::Rail));
    for tier in 0..cluster.tiers().len() {
        let several = |s: &usize| cluster.hosts_below(tier, *s).len() > 1;
        out.extend((0..cluster.switch_count(tier)).filter(several).map(|s| Thing::Switch(tier as u8, s as u32)));
    }
    out
}

/// The expected bandwidth of a healthy allocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expectation {
    /// Logarithm of the bandwidth, GB/s.
    pub ln_gb_per_s: f64,
    /// What the physics predicts less than the rate, 0 or below (of the logarithm): mostly latency.
    pub latency: f64,
    /// True for the rate of the NICs of one host, where all hosts have equally many GPUs with a NIC each and the links
    /// inside hosts are much faster. Its shortfall changes little with the numbers of hosts and GPUs. Else the physics.
    pub even: bool,
}

/// Minimum ratio of the bandwidth inside hosts to the rate of the NICs for an even expectation.
pub(super) const INSIDE_MIN: f64 = 1.4;

impl Expectation {
    /// The expectation of an allocation over hosts, given that of the physics and the bandwidth inside its hosts.
    pub(super) fn of(cluster: &Cluster, a: &Allocation, ln_physics: f64, inside_gb_per_s: f64) -> Expectation {
        let rate = |&(h, mask): &(topology::HostId, GpuMask)| -> f64 {
            let nics = cluster.type_of(h).nics_touched(mask);
            (0..32).filter(|i| nics >> i & 1 == 1).map(|i| cluster.nic_rate(h, i).gb_per_s()).sum()
        };
        let gpus = a.parts()[0].1.count();
        let even = a.host_count() > 2
            && a.parts()
                .iter()
                .all(|p| p.1.count() == gpus && cluster.type_of(p.0).nics_touched(p.1).count_ones() as usize == gpus);
        let rate = a.parts().iter().map(rate).fold(f64::INFINITY, f64::min);
        if even && rate > 0.0 && (gpus == 1 || inside_gb_per_s >= INSIDE_MIN * rate) {
            Expectation { ln_gb_per_s: rate.ln(), latency: (ln_physics - rate.ln()).min(0.0), even }
        } else {
            Expectation { ln_gb_per_s: ln_physics, latency: 0.0, even: false }
        }
    }
}

/// Readings whose expectations are off by the same factor.
#[derive(Clone, Debug, PartialEq)]
struct Class {
    even: bool,
    types: Vec<usize>,
    size: Bytes,
    /// Twice the binary logarithm of the number of hosts, rounded; up to 3 hosts if the class is not even.
    hosts: u32,
    /// GPUs per host.
    gpus: usize,
}

impl Class {
    fn of(cluster: &Cluster, e: &Evidence, even: bool) -> Class {
        let parts = e.allocation.parts();
        let mut types: Vec<usize> = parts.iter().map(|p| cluster.host(p.0).host_type).collect();
        types.sort_unstable();
        types.dedup();
        let n = if even { parts.len() } else { parts.len().min(3) };
        let hosts = (2.0 * (n as f64).log2()).round() as u32;
        let gpus = e.allocation.gpu_count() / parts.len();
        Class { even, types, size: e.size, hosts, gpus: if even { gpus } else { gpus.min(4) } }
    }

    fn covariance(&self, other: &Class) -> f64 {
        let own = if self == other { CLASS_SD.powi(2) } else { 0.0 };
        let alike = if self == other {
            1.0
        } else if self.even && other.even && self.types == other.types && self.size == other.size {
            let hosts = 0.5 * std::f64::consts::LN_2 * f64::from(self.hosts.abs_diff(other.hosts));
            let gpus = (self.gpus as f64 / other.gpus as f64).ln().abs();
            (-(hosts + gpus) / ALIKE_LN).exp()
        } else {
            0.0
        };
        OFFSET_SD.powi(2) + ALIKE_SD.powi(2) * alike + own
    }
}

/// The inverse of the covariance of all classes' offsets. O(classes³).
fn precision(classes: &[Class]) -> Vec<Vec<f64>> {
    let n = classes.len();
    // Gauss-Jordan elimination; the matrix is positive definite, so no pivot vanishes.
    let mut m: Vec<Vec<f64>> = (0..n)
        .map(|i| {
            let unit = (0..n).map(|j| f64::from(u8::from(i == j)));
            classes.iter().map(|c| classes[i].covariance(c)).chain(unit).collect()
        })
        .collect();
    for i in 0..n {
        let pivot = m[i][i];
        m[i].iter_mut().for_each(|v| *v /= pivot);
        let row = m[i].clone();
        for (j, other) in m.iter_mut().enumerate().filter(|o| o.0 != i) {
            debug_assert_ne!(i, j);
            let f = other[i];
            other.iter_mut().zip(&row).for_each(|(v, r)| *v -= f * r);
        }
    }
    m.into_iter().map(|row| row[n..].to_vec()).collect()
}

impl Problem {
    /// `readings`: evidence over several hosts with its expectation, and the effect of defects that are known otherwise.
    fn new(effects: &Effects, readings: &[(&Evidence, Expectation, f64)]) -> Option<Problem> {
        let cluster = effects.cluster();
        let mut order: Vec<usize> = (0..readings.len()).collect();
        order.sort_by(|a, b| {
            let (a, b) = (&readings[*a], &readings[*b]);
            (a.0.at_unix_s.total_cmp(&b.0.at_unix_s))
                .then_with(|| (a.0.size, &a.0.allocation).cmp(&(b.0.size, &b.0.allocation)))
                .then(a.0.ln_busbw.total_cmp(&b.0.ln_busbw))
        });
        let mut classes: Vec<Class> = Vec::new();
        let mut columns: HashMap<Thing, Column> = HashMap::new();
        let mut cache: HashMap<Shape, [f64; SHARES]> = HashMap::new();
        let mut rows_of_all = 0;
        let mut out = Vec::with_capacity(order.len());
        for (i, given) in order.into_iter().enumerate() {
            let (e, Expectation { ln_gb_per_s: expected, latency, even }, known) = readings[given];
            let parts = e.allocation.parts();
            let class = Class::of(cluster, e, even);
            let found = classes.iter().position(|c| *c == class);
            let class = found.unwrap_or_else(|| {
                classes.push(class);
                classes.len() - 1
            });
            let shape: Vec<(usize, u32)> = parts.iter().map(|p| (cluster.host(p.0).host_type, p.1.0)).collect();
            let healthy = parts.iter().all(|p| cluster.host(p.0).nic_health.iter().all(|f| *f == 1.0));
            let mut rows = Vec::new();
            let mut by_effect = touched(cluster, &e.allocation);
            if even {
                // Whatever part is slow, its share of the rate is the share of the bandwidth.
                let members = by_effect.into_values().flat_map(|x| x.1).collect();
                by_effect = BTreeMap::from([((0, 0, 0), ((0, None), members))]);
            }
            rows_of_all += by_effect.len();
            if rows_of_all > ROWS_MAX {
                return None;
            }
            for ((kind, at, nic), (key, members)) in by_effect {
                let of = || match even {
                    true => std::array::from_fn(ln_share),
                    false => effects_by_share(effects, &e.allocation, e.size, key),
                };
                let effects = match healthy {
                    true => *cache.entry((kind, at, nic, shape.clone(), e.size)).or_insert_with(of),
                    false => of(),
                };
                for thing in members {
                    let column = columns.entry(thing).or_default();
                    // A rail is touched on many hosts; the strongest effect counts, and all are nearly equal.
                    if column.last().is_none_or(|c| c.0 != i as u32) {
                        column.push((i as u32, rows.len() as u32));
                    }
                }
                rows.push(Row { effects, groups: Vec::new() });
            }
            let ln_ratio = e.ln_busbw - expected;
            out.push(Reading { given, ln_ratio, latency, class, at_unix_s: e.at_unix_s, known, rows });
        }
        let mut by_column: BTreeMap<Column, Vec<(Thing, f64)>> = BTreeMap::new();
        let mut total = 0.0;
        for thing in things(cluster) {
            let w = weight(cluster, thing);
            total += w;
            by_column.entry(columns.remove(&thing).unwrap_or_default()).or_default().push((thing, w));
        }
        let groups: Vec<Group> = by_column
            .into_iter()
            .map(|(touched, things)| Group { prior: things.iter().map(|t| t.1).sum::<f64>() / total, things, touched })
            .collect();
        if groups.iter().map(|g| g.touched.len()).sum::<usize>() > PAIRS_MAX {
            return None;
        }
        for (g, group) in groups.iter().enumerate() {
            group.touched.iter().for_each(|t| out[t.0 as usize].rows[t.1 as usize].groups.push(g as u32));
        }
        // A share is as probable as any other; the steps are equal on the logarithm.
        let each: [f64; SHARES] = std::array::from_fn(|l| ln_share(l).exp());
        let sum: f64 = each.iter().sum();
        let at = |k: usize| out[k].at_unix_s;
        let starts = (1..out.len()).filter(|k| at(*k) > at(*k - 1)).map(|k| k as u32);
        let starts = std::iter::once(0).chain(starts).collect();
        let share_prior = each.map(|e| e / sum);
        Some(Problem { readings: out, groups, precision: precision(&classes), share_prior, starts })
    }

    fn ln_density(&self, s: &State, i: usize, explained: f64) -> f64 {
        let r = &self.readings[i];
        let offset = s.offsets[r.class] + s.latency * r.latency;
        let effect = if explained < 0.0 { (explained + s.hidden * (s.top - offset)).min(0.0) } else { 0.0 };
        ln_density_below(r.ln_ratio - offset - effect, SDS[s.sd].hypot(EFFECT_SD * effect), OUTLIER_SHARES[s.outliers])
    }

    fn explain_by(&self, explained: &mut [f64], (g, l): Element, start: u32) {
        for &(i, row) in &self.groups[g as usize].touched {
            if i >= start {
                let e = &mut explained[i as usize];
                *e = e.min(self.readings[i as usize].rows[row as usize].effects[l as usize]);
            }
        }
    }

    /// Logarithm of the probability of the readings and the set, but for a constant.
    fn ln_joint(&self, s: &State) -> f64 {
        let explained = self.explained(s, None);
        let readings: f64 = (0..self.readings.len()).map(|i| self.ln_density(s, i, explained[i])).sum();
        let odds = s.expected / PARTS_MAX as f64;
        let part = |(g, l): Element| {
            (odds * self.groups[g as usize].prior * self.share_prior[l as usize]).max(f64::MIN_POSITIVE).ln()
        };
        let parts: f64 = s.slots.iter().filter_map(|x| x.0).map(part).sum();
        readings + parts + SD_PRIOR[s.sd].ln() + OUTLIERS_PRIOR[s.outliers].ln()
    }

    /// What the parts of a state explain of every reading, without the part of one slot.
    fn explained(&self, s: &State, without: Option<usize>) -> Vec<f64> {
        let mut explained: Vec<f64> = self.readings.iter().map(|r| r.known).collect();
        for (k, (element, start)) in s.slots.iter().enumerate() {
            if let Some(element) = element
                && Some(k) != without
            {
                self.explain_by(&mut explained, *element, *start);
            }
        }
        explained
    }

    fn start(&self) -> State {
        // Most readings may be slow; the fast ones show the offset.
        let fast = |latency: f64| {
            let ratios: Vec<f64> = self.readings.iter().map(|r| r.ln_ratio - latency * r.latency).collect();
            stats::sorted(&ratios)[(ratios.len() - 1) * 9 / 10]
        };
        let off = |l: &f64| (fast(*l) - OFFSET_MEAN).abs();
        let latency =
            LATENCY.map(|l| l.0).into_iter().reduce(|a, b| if off(&b) < off(&a) { b } else { a }).unwrap_or(0.0);
        let offset = fast(latency).clamp(OFFSET_MEAN - 3.0 * OFFSET_SD, OFFSET_MEAN + 3.0 * OFFSET_SD);
        State {
            slots: vec![(None, 0); PARTS_MAX],
            offsets: vec![offset; self.precision.len()],
            top: offset,
            hidden: HIDDEN[1],
            latency,
            sd: SD_START,
            outliers: 0,
            expected: 1.0,
        }
    }

    /// Draws the moment of an empty slot from its prior: as often "always" as one of the readings.
    fn any_start(&self, rng: &mut ChaCha8Rng) -> u32 {
        if self.starts.len() < 2 || rng.random::<bool>() {
            return 0;
        }
        self.starts[rng.random_range(1..self.starts.len())]
    }

    /// Draws the part of one slot given all others. `weight` is that of the readings against the prior, 0 to 1. Returns
    /// the probability of the slot being empty.
    fn draw_slot(&self, s: &mut State, k: usize, weight: f64, work: &mut Work, rng: &mut ChaCha8Rng) -> f64 {
        let start = s.slots[k].1;
        let explained = self.explained(s, Some(k));
        let n = self.readings.len();
        work.base.clear();
        work.base.extend((0..n).map(|i| self.ln_density(s, i, explained[i])));
        work.scores.resize(self.groups.len() * SHARES, 0.0);
        // Expected number of parts in this slot, if there is no reading.
        let odds = s.expected / PARTS_MAX as f64;
        let mut most = 0f32;
        work.live.clear();
        let mut unseen = 0.0;
        for l in 0..SHARES {
            let scores = &mut work.scores[l * self.groups.len()..(l + 1) * self.groups.len()];
            scores.fill(0.0);
            let mut any = false;
            for (i, r) in self.readings.iter().enumerate().skip(start as usize) {
                for row in &r.rows {
                    let e = row.effects[l];
                    if e >= explained[i] {
                        continue;
                    }
                    any = true;
                    let gain = (weight * (self.ln_density(s, i, e) - work.base[i])) as f32;
                    row.groups.iter().for_each(|g| scores[*g as usize] += gain);
                }
            }
            if any {
                work.live.push(l);
                most = scores.iter().copied().fold(most, f32::max);
            } else {
                unseen += self.share_prior[l];
            }
        }
        // Weights relative to the largest.
        let scale = f64::from(-most).exp();
        let (empty, hidden) = (scale, scale * odds * unseen);
        let mut sum = 0.0;
        work.weights.clear();
        for &l in &work.live {
            let p = odds * self.share_prior[l];
            let scores = &work.scores[l * self.groups.len()..(l + 1) * self.groups.len()];
            for (g, score) in scores.iter().enumerate() {
                let below = score - most;
                if below > -NEGLIGIBLE {
                    let w = p * self.groups[g].prior * f64::from(below).exp();
                    sum += w;
                    work.weights.push((sum, (g as u32, l as u32)));
                }
            }
        }
        let all = empty + hidden + sum;
        let at = rng.random::<f64>() * all;
        s.slots[k].0 = if at < empty {
            None
        } else if at < empty + hidden {
            Some(self.hidden(&work.live, rng))
        } else {
            let at = at - empty - hidden;
            let found = work.weights.partition_point(|w| w.0 < at).min(work.weights.len().saturating_sub(1));
            work.weights.get(found).map(|w| w.1)
        };
        empty / all
    }

    /// A part whose share is too high to show, drawn from the prior.
    fn hidden(&self, live: &[usize], rng: &mut ChaCha8Rng) -> Element {
        let of = |l: usize| if live.contains(&l) { 0.0 } else { self.share_prior[l] };
        let at = rng.random::<f64>() * (0..SHARES).map(of).sum::<f64>();
        let l = reached((0..SHARES).map(of), at).unwrap_or(0);
        let g = reached(self.groups.iter().map(|g| g.prior), rng.random()).unwrap_or(0);
        (g as u32, l as u32)
    }

    /// Draws everything but the parts.
    fn draw_rest(&self, s: &mut State, weight: f64, rng: &mut ChaCha8Rng) {
        let explained = self.explained(s, None);
        let pick = |ln: &[f64], rng: &mut ChaCha8Rng| {
            let most = ln.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let at = rng.random::<f64>() * ln.iter().map(|l| (l - most).exp()).sum::<f64>();
            let mut sum = 0.0;
            ln.iter().position(|l| {
                sum += (l - most).exp();
                sum >= at
            })
        };
        // Moments of the parts.
        if self.starts.len() > 1 {
            for k in 0..s.slots.len() {
                let Some(element) = s.slots[k].0 else {
                    s.slots[k].1 = self.any_start(rng);
                    continue;
                };
                let others = self.explained(s, Some(k));
                let mut gains = vec![0.0; self.readings.len() + 1];
                for &(i, row) in &self.groups[element.0 as usize].touched {
                    let at = i as usize;
                    let e = self.readings[at].rows[row as usize].effects[element.1 as usize].min(others[at]);
                    gains[at] = weight * (self.ln_density(s, at, e) - self.ln_density(s, at, others[at]));
                }
                for i in (0..self.readings.len()).rev() {
                    gains[i] += gains[i + 1];
                }
                let each = (1.0 / (self.starts.len() - 1) as f64).ln();
                let ln: Vec<f64> =
                    self.starts.iter().map(|i| gains[*i as usize] + if *i == 0 { 0.0 } else { each }).collect();
                s.slots[k].1 = pick(&ln, rng).map_or(0, |i| self.starts[i]);
            }
        }
        // Offsets: a grid around their mean given the other classes.
        let all: Vec<usize> = (0..self.readings.len()).collect();
        let likelihood = |s: &State, which: &[usize]| -> f64 {
            weight * which.iter().map(|i| self.ln_density(s, *i, explained[*i])).sum::<f64>()
        };
        for c in 0..s.offsets.len() {
            let q = &self.precision[c];
            let others = (0..q.len()).filter(|d| *d != c).map(|d| q[d] * (s.offsets[d] - OFFSET_MEAN)).sum::<f64>();
            let (mean, sd) = (OFFSET_MEAN - others / q[c], q[c].sqrt().recip());
            let own: Vec<usize> = all.iter().copied().filter(|i| self.readings[*i].class == c).collect();
            let ln: Vec<f64> = grid()
                .map(|z| {
                    s.offsets[c] = mean + z * sd;
                    likelihood(s, &own) - 0.5 * z * z
                })
                .collect();
            s.offsets[c] = pick(&ln, rng).and_then(|i| grid().nth(i)).map_or(mean, |z| mean + z * sd);
        }
        // All offsets together.
        let before = s.offsets.clone();
        let sums: Vec<f64> = self.precision.iter().map(|q| q.iter().sum()).collect();
        let (square, cross): (f64, f64) =
            sums.iter().zip(&before).fold((0.0, 0.0), |(a, b), (q, o)| (a + q, b + q * (o - OFFSET_MEAN)));
        let moved = |s: &mut State, d: f64| {
            s.offsets.iter_mut().zip(&before).for_each(|(o, b)| *o = b + d);
            s.top = s.offsets.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        };
        let step = |z: f64| 0.04 * z;
        let ln: Vec<f64> = grid()
            .map(|z| {
                let d = step(z);
                moved(s, d);
                likelihood(s, &all) - 0.5 * d * d * square - d * cross
            })
            .collect();
        let d = pick(&ln, rng).and_then(|i| grid().nth(i)).map_or(0.0, step);
        moved(s, d);
        let ln: Vec<f64> = HIDDEN
            .into_iter()
            .map(|h| {
                s.hidden = h;
                likelihood(s, &all)
            })
            .collect();
        s.hidden = pick(&ln, rng).map_or(HIDDEN[1], |i| HIDDEN[i]);
        let ln: Vec<f64> = LATENCY
            .into_iter()
            .map(|(latency, prior)| {
                s.latency = latency;
                prior.ln() + likelihood(s, &all)
            })
            .collect();
        s.latency = pick(&ln, rng).map_or(0.0, |i| LATENCY[i].0);
        // The scatter.
        let ln: Vec<f64> = (0..SDS.len())
            .map(|k| {
                s.sd = k;
                SD_PRIOR[k].ln()
                    + weight * (0..self.readings.len()).map(|i| self.ln_density(s, i, explained[i])).sum::<f64>()
            })
            .collect();
        s.sd = pick(&ln, rng).unwrap_or(SD_START);
        let ln: Vec<f64> = OUTLIERS_PRIOR
            .iter()
            .enumerate()
            .map(|(k, prior)| {
                s.outliers = k;
                prior.ln() + likelihood(s, &all)
            })
            .collect();
        s.outliers = pick(&ln, rng).unwrap_or(0);
        // The expected number of slow parts: each slot has one with probability odds / (1 + odds).
        let have = s.slots.iter().filter(|x| x.0.is_some()).count() as f64;
        let ln: Vec<f64> = EXPECTED
            .iter()
            .map(|(m, p)| {
                let odds = m / PARTS_MAX as f64;
                p.ln() + have * odds.ln() - PARTS_MAX as f64 * odds.ln_1p()
            })
            .collect();
        s.expected = pick(&ln, rng).map_or(1.0, |i| EXPECTED[i].0);
    }

    /// One sweep: all parts of the set, and empty slots until one of them gets a part.
    fn sweep(&self, s: &mut State, weight: f64, work: &mut Work, rng: &mut ChaCha8Rng) {
        for k in 0..s.slots.len() {
            if s.slots[k].0.is_some() {
                self.draw_slot(s, k, weight, work, rng);
            }
        }
        // Empty slots without a moment have the same probability of staying empty, so one evaluation serves all.
        let mut empty: Vec<usize> = (0..s.slots.len()).filter(|k| s.slots[*k].0.is_none()).collect();
        for _ in 0..2 {
            let Some(k) = empty.pop() else { break };
            self.draw_slot(s, k, weight, work, rng);
        }
        self.draw_rest(s, weight, rng);
    }
}

/// Log density of a residual. An interruption makes a reading slow, never fast: otherwise the healthy readings of a site
/// whose readings are mostly slow would count as outliers.
fn ln_density_below(r: f64, sd: f64, outliers: f64) -> f64 {
    if r <= 0.0 {
        return ln_density(r, sd, outliers);
    }
    let z = r / sd;
    (-0.5 * z * z - sd.ln() - 0.5 * std::f64::consts::TAU.ln()).max(FAST_LN_DENSITY)
}

/// Points of a grid, in standard deviations.
fn grid() -> impl Iterator<Item = f64> {
    (-8..=8).map(|k| 0.35 * f64::from(k))
}

/// The first index at which the running sum reaches `at`.
fn reached(mut weights: impl Iterator<Item = f64>, at: f64) -> Option<usize> {
    let mut sum = 0.0;
    weights.position(|w| {
        sum += w;
        sum >= at
    })
}

/// Buffers of a step.
#[derive(Default)]
struct Work {
    base: Vec<f64>,
    scores: Vec<f32>,
    live: Vec<usize>,
    weights: Vec<(f64, Element)>,
}

/// The sets of slow parts that explain readings over several hosts. `None` if there are too many.
pub(super) fn explain(effects: &Effects, readings: &[(&Evidence, Expectation, f64)]) -> Option<Sets> {
    if readings.is_empty() || readings.len() > READINGS_MAX {
        return None;
    }
    let p = Problem::new(effects, readings)?;
    let mut chains: Vec<(f64, Vec<State>)> = Vec::new();
    let mut work = Work::default();
    for chain in 0..CHAINS {
        let mut rng = ChaCha8Rng::seed_from_u64(chain);
        let mut s = p.start();
        let mut draws = Vec::with_capacity(SWEEPS_KEPT);
        let mut sum = 0.0;
        for i in 0..SWEEPS_WARM {
            let weight = 0.2 + 0.8 * i as f64 / SWEEPS_WARM as f64;
            p.sweep(&mut s, weight, &mut work, &mut rng);
        }
        for i in 0..SWEEPS_SETTLE + SWEEPS_KEPT {
            p.sweep(&mut s, 1.0, &mut work, &mut rng);
            if i >= SWEEPS_SETTLE {
                sum += p.ln_joint(&s);
                draws.push(s.clone());
            }
        }
        chains.push((sum / SWEEPS_KEPT as f64, draws));
    }
    // A chain far below the best one is caught in an improbable set.
    let best = chains.iter().map(|c| c.0).fold(f64::NEG_INFINITY, f64::max);
    let draws: Vec<State> = chains.into_iter().filter(|c| c.0 > best - CAUGHT).flat_map(|c| c.1).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(CHAINS);
    Some(p.sets(effects.cluster(), &draws, &mut rng))
}

/// The parts of one defect over all draws.
#[derive(Default)]
struct Slot {
    /// By group: number of draws, sum of the shares' logarithms, and starts.
    groups: BTreeMap<u32, (usize, f64, Vec<u32>)>,
    draws: usize,
}

impl Problem {
    fn sets(&self, cluster: &Cluster, draws: &[State], rng: &mut ChaCha8Rng) -> Sets {
        let n = draws.len() as f64;
        let mut left: Vec<Vec<(Element, u32)>> =
            draws.iter().map(|s| s.slots.iter().filter_map(|x| Some((x.0?, x.1))).collect()).collect();
        let mut set = |left: &Vec<(Element, u32)>| -> Drawn {
            left.iter()
                .map(|((g, l), _)| {
                    let things = &self.groups[*g as usize].things;
                    let at = rng.random::<f64>() * things.iter().map(|t| t.1).sum::<f64>();
                    let mut sum = 0.0;
                    let found = things.iter().find(|t| {
                        sum += t.1;
                        sum >= at
                    });
                    (found.unwrap_or(&things[0]).0, *l as usize)
                })
                .collect()
        };
        let drawn: Vec<Drawn> = left.iter().map(&mut set).collect();
        let sd = draws.iter().map(|s| SDS[s.sd]).sum::<f64>() / n;
        let mean: Vec<f64> =
            (0..self.precision.len()).map(|c| draws.iter().map(|s| s.offsets[c]).sum::<f64>() / n).collect();
        let mut out = Sets { draws: drawn, sd, ..Sets::default() };
        out.residuals = vec![0.0; self.readings.len()];
        let latency = draws.iter().map(|s| s.latency).sum::<f64>() / n;
        for r in &self.readings {
            out.residuals[r.given] = r.ln_ratio - mean[r.class] - latency * r.latency;
        }
        // The most frequent part of all draws, with the parts that replace it in the others.
        while out.defects.len() < DEFECTS_MAX {
            let mut counts: BTreeMap<u32, (usize, f64)> = BTreeMap::new();
            for ((g, l), _) in left.iter().flatten() {
                let c = counts.entry(*g).or_default();
                (c.0, c.1) = (c.0 + 1, c.1 + ln_share(*l as usize));
            }
            let Some((&best, &(many, sum))) = counts.iter().max_by_key(|c| (c.1.0, std::cmp::Reverse(*c.0))) else {
                break;
            };
            let share = sum / many as f64;
            let mut slot = Slot::default();
            for elements in &mut left {
                let distance = |((g, l), _): &(Element, u32)| {
                    let off = (ln_share(*l as usize) - share).abs();
                    if *g == best { off.min(SAME_SHARE) * 0.5 } else { off }
                };
                let near = (0..elements.len()).filter(|k| distance(&elements[*k]) <= SAME_SHARE);
                let near = near.min_by(|a, b| distance(&elements[*a]).total_cmp(&distance(&elements[*b])));
                if let Some(k) = near {
                    let ((g, l), start) = elements.swap_remove(k);
                    let e = slot.groups.entry(g).or_default();
                    (e.0, e.1) = (e.0 + 1, e.1 + ln_share(l as usize));
                    e.2.push(start);
                    slot.draws += 1;
                }
            }
            let probability = slot.draws as f64 / n;
            if slot.draws == 0 || probability < PROBABILITY_MIN {
                break;
            }
            self.defect(cluster, slot, n, &mut out);
        }
        out
    }

    /// Adds the defect of a slot.
    fn defect(&self, cluster: &Cluster, slot: Slot, n: f64, out: &mut Sets) {
        let mut candidates: Vec<Candidate> = Vec::new();
        let mut shared: Vec<(f64, SlowPart)> = Vec::new();
        for (g, (count, sum, mut starts)) in slot.groups {
            let group = &self.groups[g as usize];
            let factor = (sum / count as f64).exp();
            starts.sort_unstable();
            let start = starts[starts.len() / 2];
            let since = (start > 0).then(|| self.readings[start as usize].at_unix_s);
            let l = ((SHARE_MAX.ln() - factor.ln()) / SHARE_STEP).round().clamp(0.0, (SHARES - 1) as f64) as usize;
            let slowed =
                |t: &&(u32, u32)| t.0 >= start && self.readings[t.0 as usize].rows[t.1 as usize].effects[l] < SLOWED;
            let readings = group.touched.iter().filter(slowed).count();
            let total: f64 = group.things.iter().map(|t| t.1).sum();
            for (thing, w) in &group.things {
                let probability = count as f64 / n * w / total;
                let part = match *thing {
                    Thing::One(component) => {
                        if probability >= LISTED_MIN {
                            let ln_likelihood_ratio = (probability / (1.0 - probability).max(1e-3)).ln();
                            let c = Candidate { component, factor, since, probability, readings, ln_likelihood_ratio };
                            candidates.push(c);
                        }
                        continue;
                    }
                    Thing::Rail(nic) => Part::Rail { nic },
                    Thing::Switch(tier, switch) => Part::Switch {
                        tier: cluster.tiers()[usize::from(tier)].name.clone(),
                        switch: cluster.switch_name(tier.into(), switch as usize).into_owned(),
                    },
                };
                shared.push((probability, SlowPart { part, factor, readings: readings as u32 }));
            }
        }
        candidates.sort_by(|a, b| b.probability.total_cmp(&a.probability).then(a.component.cmp(&b.component)));
        if let Some((_, part)) = shared.into_iter().find(|s| s.0 >= SHARED_MIN) {
            out.shared.push(part);
            return;
        }
        let probability = candidates.iter().map(|c| c.probability).sum::<f64>().min(1.0);
        if !candidates.is_empty() && probability >= PROBABILITY_MIN {
            out.defects.push(Defect { probability, candidates });
        }
    }
}

/// Minimum probability of a slow rail or switch.
const SHARED_MIN: f64 = 0.5;
