//! Readings, and the groups of parts that they touch with equal effects.

use super::classes::{Class, Expectation, precision};
use super::sampler::{Outliers, outliers};
use super::{SHARES, Thing, ln_share};
use crate::effect::{Component, Effects, SlowPart as Slow};
use crate::evidence::Evidence;
use std::collections::{BTreeMap, HashMap};
use topology::{Allocation, Bytes, Cluster, GpuMask};

/// Maximum number of pairs of a reading and a group of parts.
const PAIRS_MAX: usize = 1 << 17;
/// Shares at which the physics is evaluated, and between which effects are interpolated.
const KNOTS: [f64; 9] = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 0.9];
/// Maximum number of different effects over all readings: an even reading has one, an uneven one about one per NIC of a
/// host. One costs about 2 ms.
const ROWS_MAX: usize = 400;
/// Time for which a part is slow until it is repaired, seconds, and range of the prior probability that a part became
/// slow among the readings.
const SLOW_S: f64 = 86_400.0;
const SUDDEN: (f64, f64) = (0.01, 0.5);
/// Prior weight of a part relative to a NIC.
const NETWORK_WEIGHT: f64 = 0.5;
const HOST_WEIGHT: f64 = 0.5;
const RAIL_WEIGHT: f64 = 1.0;
const SWITCH_WEIGHT: f64 = 1.0;

/// By share: the effect of the groups that a reading touches with equal effects.
pub(super) type Row = [f64; SHARES];

pub(super) struct Reading {
    /// Its number among the given readings.
    pub given: usize,
    pub ln_ratio: f64,
    /// See [`Expectation::latency`].
    pub latency: f64,
    pub repetitions: u32,
    pub class: usize,
    pub at_unix_s: f64,
    /// Effect of defects that are known otherwise.
    pub known: f64,
    pub rows: Vec<Row>,
    /// Number of rows of all readings before this one.
    pub rows_before: u32,
}

/// Parts that the same readings touch with the same effects.
pub(super) struct Group {
    pub things: Vec<(Thing, f64)>,
    /// Share of the prior probability.
    pub prior: f64,
    /// Reading and row.
    pub touched: Vec<(u32, u32)>,
}

pub(super) struct Problem {
    pub readings: Vec<Reading>,
    pub groups: Vec<Group>,
    pub classes: Vec<Class>,
    /// By pair of classes: the inverse of the covariance of their offsets.
    pub precision: Vec<Vec<f64>>,
    pub outliers: Outliers,
    /// By share: prior probability.
    pub share_prior: [f64; SHARES],
    /// Indices of readings from which a part can be slow; 0 is "always".
    pub starts: Vec<u32>,
    /// By entry of `starts`: prior probability.
    pub start_prior: Vec<f64>,
}

/// The slow part of an allocation's host, and the index of the host that stands for all with equal effects.
pub(crate) type RowKey = (usize, Option<Slow>);

/// Kind of a row, host and NIC that stand for it, the types and GPUs of all hosts, and the size.
type Shape = (u8, usize, u8, Vec<(usize, u32)>, Bytes);

/// The readings that a part touches, each with its row.
type Column = Vec<(u32, u32)>;

/// Effects of a slow part by share. `None`: the whole job runs at the part's rate.
pub(crate) fn effects_by_share(effects: &Effects, a: &Allocation, size: Bytes, (at, slow): RowKey) -> [f64; SHARES] {
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

/// Prior probability that a slow part became slow among readings at these times, in order: readings of an hour rarely
/// see the moment, readings of months often.
fn sudden(times: impl Iterator<Item = f64>) -> f64 {
    let times: Vec<f64> = times.collect();
    let span = times.last().copied().unwrap_or(0.0) - times.first().copied().unwrap_or(0.0);
    // Unknown times are before all others.
    if span.is_finite() { (span / (span + SLOW_S)).clamp(SUDDEN.0, SUDDEN.1) } else { SUDDEN.1 }
}

/// Prior probability of every moment: "always", and the share `sudden` for all others. Half of that is for the newest
/// moment, because a recent defect appears there first, however short the time.
fn start_prior(starts: usize, sudden: f64) -> Vec<f64> {
    let Some(later) = starts.checked_sub(1).filter(|n| *n > 0) else { return vec![1.0] };
    let of = |k: usize| match k {
        0 => 1.0 - sudden,
        _ => sudden * (0.5 / later as f64 + if k == later { 0.5 } else { 0.0 }),
    };
    (0..starts).map(of).collect()
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

impl Problem {
    /// `readings`: evidence over several hosts with its expectation, and the effect of defects that are known otherwise.
    pub(super) fn new(effects: &Effects, readings: &[(&Evidence, Expectation, f64)]) -> Option<Problem> {
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
            let rows_before = rows_of_all as u32;
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
                rows.push(effects);
            }
            let ln_ratio = e.ln_busbw - expected;
            out.push(Reading {
                given,
                ln_ratio,
                latency,
                repetitions: e.repetitions,
                class,
                at_unix_s: e.at_unix_s,
                known,
                rows,
                rows_before,
            });
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
        // A share is as probable as any other; the steps are equal on the logarithm.
        let each: [f64; SHARES] = std::array::from_fn(|l| ln_share(l).exp());
        let sum: f64 = each.iter().sum();
        let at = |k: usize| out[k].at_unix_s;
        let starts = (1..out.len()).filter(|k| at(*k) > at(*k - 1)).map(|k| k as u32);
        let starts: Vec<u32> = std::iter::once(0).chain(starts).collect();
        let start_prior = start_prior(starts.len(), sudden(out.iter().map(|r| r.at_unix_s)));
        let share_prior = each.map(|e| e / sum);
        Some(Problem {
            readings: out,
            groups,
            precision: precision(&classes),
            classes,
            outliers: outliers(),
            share_prior,
            starts,
            start_prior,
        })
    }

    /// Number of groups, and of pairs of a group and a reading: the cost of drawing one part, in additions for each
    /// share.
    pub(super) fn pairs(&self) -> usize {
        self.groups.iter().map(|g| 3 + g.touched.len()).sum()
    }
}
