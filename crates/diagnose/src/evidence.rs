//! Residuals: each reading against the expectation of its class.

use predict::FEATURES_MAX;
use predict::HostShare;
use predict::equivalent;
use predict::{BandwidthModel, BatchEvaluator, Correction, Model, host_weights};
use std::collections::{BTreeMap, HashMap};
use topology::{Allocation, Bytes, Cluster, GpuMask, HostId};

/// Minimum number of multi-host readings for fitting a Gaussian process.
pub const FIT_MIN: usize = 12;
/// Minimum number of comparable readings in a class.
const CLASS_MIN: usize = 3;
/// Up to this many hosts, a majority may be slow: a campaign on a large site takes full tables of the first host and of
/// two hosts because they deviate. The fastest hosts are then the expectation, as a defect only slows.
const FEW_HOSTS_MAX: usize = 3;
/// Values that differ by at most this, or by at most [`LEVEL_SDS`] standard deviations of the readings, belong to one
/// level (of the logarithm).
const LEVEL_WIDTH: f64 = 0.1;
/// See [`LEVEL_WIDTH`].
const LEVEL_SDS: f64 = 4.0;
/// Minimum number of subsets of one size from which their scatter is estimated.
const SCATTER_MIN: usize = 4;
/// Minimum standard deviation of a reading.
const SD_MIN: f64 = 0.01;
/// A single-host reading is low if it is this many standard deviations below its class, and at least [`LOW_MIN`] (of
/// the logarithm).
const LOW_SDS: f64 = 3.0;
/// See [`LOW_SDS`].
const LOW_MIN: f64 = 0.05;
/// Minimum number of subsets of a host for its own level.
const LEVEL_READINGS_MIN: usize = 8;
/// Range of the standard deviation of healthy hosts' levels, and the number of deviations that is ordinary.
const LEVEL_SD: (f64, f64) = (0.01, 0.025);
const ORDINARY_SDS: f64 = 3.0;
/// Range of the standard deviation between healthy hosts of one type.
const HOST_SD: (f64, f64) = (0.01, 0.04);

/// The bandwidth of one allocation, measured once or several times in a row at one level.
#[derive(Clone, Debug)]
pub struct Evidence {
    pub allocation: Allocation,
    pub size: Bytes,
    /// Mean logarithm of the bus bandwidth, GB/s.
    pub ln_busbw: f64,
    /// Time of the first of the readings, seconds since 1970; minus infinity if unknown.
    pub at_unix_s: f64,
    /// Number of the readings: several that agree are hardly an outlier.
    pub repetitions: u32,
}

/// Difference between a reading and its expectation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residual {
    /// `ln(got / expected)`.
    pub ln_ratio: f64,
    /// Standard deviation of ordinary readings.
    pub sd: f64,
    /// The class whose median is the expectation; `None` if a model or other hosts give the expectation.
    pub class: Option<usize>,
}

/// Source of the expectation of multi-host readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// The physics times the median factor of allocations of the same kind.
    Classes,
    /// The model's prediction, with the effects of single hosts limited to the ordinary range.
    Model,
}

/// Deviation of a host from its class.
#[derive(Clone, Debug, PartialEq)]
pub struct HostDeviation {
    /// The host.
    pub host: HostId,
    /// Number of distinct readings that touch the host.
    pub readings: usize,
    /// Median of measured over expected bandwidth.
    pub ratio: f64,
    /// Distance from the median host in robust standard deviations between hosts, combined with the standard error of
    /// the host's own median.
    pub z: f64,
}

/// The part of an allocation's expectation that depends on the model alone; computed once per allocation and size.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    /// A job on one host: other hosts give the expectation.
    OneHost,
    /// Logarithm of the expected bandwidth, GB/s.
    Model(f64),
    /// Logarithm of the bound, GB/s, and the key of the class (host types, number of hosts up to 3, size). The class's
    /// median ratio to the bound completes the expectation.
    Class(f64, ClassKey),
}

/// Key of multi-host allocations that are compared with each other under [`Baseline::Classes`].
pub type ClassKey = (Vec<u16>, usize, Bytes);

/// Expectations of one model, with repeated parts cached. O(hosts) each, plus one evaluation of the Gaussian process
/// per new split.
pub struct Expectations<'m> {
    model: &'m Model,
    baseline: Baseline,
    evaluators: HashMap<Bytes, BatchEvaluator<'m>>,
    /// By split: the part of the mean that is the split's irregularity.
    irregular: HashMap<Row, f64>,
    /// The effect of each host, and the ordinary deviation between hosts.
    host_effects: Vec<f64>,
    ordinary: f64,
    /// Number of expectations computed.
    pub predictions: u64,
}

/// Bit patterns of a feature vector.
type Row = [u64; FEATURES_MAX];
/// Maximum number of splits with a cached irregularity.
const SPLITS_MAX: usize = 1 << 14;

impl<'m> Expectations<'m> {
    /// O(hosts).
    pub fn new(model: &'m Model, baseline: Baseline) -> Self {
        let host_effects: Vec<f64> = model.cluster().host_ids().map(|h| model.host_effect(h)).collect();
        let ordinary = spread(&host_effects).clamp(HOST_SD.0, HOST_SD.1);
        Expectations {
            model,
            baseline,
            evaluators: HashMap::new(),
            irregular: HashMap::new(),
            host_effects,
            ordinary,
            predictions: 0,
        }
    }

    /// The expectation of an allocation.
    pub fn of(&mut self, allocation: &Allocation, size: Bytes) -> Expected {
        if allocation.host_count() < 2 {
            return Expected::OneHost;
        }
        self.predictions += 1;
        let model = self.model;
        let table = model.share_table(size);
        let parts: Vec<HostShare> = allocation.parts().iter().map(|&(h, m)| table.part(h, m)).collect();
        let evaluator = self.evaluators.entry(size).or_insert_with(|| BatchEvaluator::new(model, size));
        let analytic = evaluator.analytic(&parts);
        if self.baseline == Baseline::Classes || matches!(model.correction(), Correction::Offset { .. }) {
            let mut types: Vec<u16> = parts.iter().map(|p| p.host_type).collect();
            types.sort_unstable();
            types.dedup();
            return Expected::Class(analytic.bound_gb_per_s.ln(), (types, parts.len().min(3), size));
        }
        // A host's own deviation counts as expected only up to the ordinary difference between hosts.
        let most = 2.0 * self.ordinary;
        let beyond: f64 = host_weights(&parts)
            .map(|(h, w)| {
                let b = self.host_effects[h.index()];
                w * (b - b.clamp(-most, most))
            })
            .sum();
        // The irregularity that the model learned for this split is removed, too: it may be the defect.
        let own = match model.correction() {
            Correction::Gp(gp) => {
                let row = model.row(&parts, size, analytic);
                let key = row.map(f64::to_bits);
                match self.irregular.get(&key) {
                    Some(v) => *v,
                    None => {
                        let v = gp.irregularity(&row, model.width());
                        if self.irregular.len() < SPLITS_MAX {
                            self.irregular.insert(key, v);
                        }
                        v
                    }
                }
            }
            _ => 0.0,
        };
        Expected::Model(evaluator.mean_above(&parts, analytic).max(1e-9).ln() - beyond - own)
    }
}

/// The residuals of all readings, given their expectations; `None` if a reading has no class. O(n log n) additions, no
/// prediction.
pub fn settle(cluster: &Cluster, all: &[(&Evidence, &Expected)]) -> Vec<Option<Residual>> {
    let mut out = vec![None; all.len()];
    let one_host: Vec<(usize, &Evidence)> =
        all.iter().enumerate().filter(|(_, (_, c))| **c == Expected::OneHost).map(|(i, (e, _))| (i, *e)).collect();
    single_host(cluster, &one_host, &mut out);
    let mut classes: BTreeMap<&ClassKey, Vec<f64>> = BTreeMap::new();
    for (e, x) in all {
        if let Expected::Class(bound, key) = x {
            classes.entry(key).or_default().push(e.ln_busbw - bound);
        }
    }
    let middle: HashMap<&ClassKey, (usize, f64)> =
        classes.into_iter().enumerate().map(|(i, (k, mut v))| (k, (i, median(&mut v)))).collect();
    let of = |e: &Evidence, x: &Expected| match x {
        Expected::OneHost => None,
        Expected::Model(v) => Some((e.ln_busbw - v, None)),
        Expected::Class(bound, key) => middle.get(key).map(|m| (e.ln_busbw - bound - m.1, Some(m.0))),
    };
    let several: Vec<(usize, f64, Option<usize>)> =
        all.iter().enumerate().filter_map(|(i, (e, x))| of(e, x).map(|(v, class)| (i, v, class))).collect();
    let sd = spread(&several.iter().map(|r| r.1).collect::<Vec<_>>()).max(SD_MIN);
    for (i, ln_ratio, class) in several {
        out[i] = Some(Residual { ln_ratio, sd, class });
    }
    out
}

/// Residuals of single-host subsets: against the same subset of other hosts of the type; without such hosts, against
/// subsets of all hosts that the topology makes equivalent; without other hosts, against such subsets of the same host.
/// O(n log n + n x classes).
fn single_host(cluster: &Cluster, evidence: &[(usize, &Evidence)], out: &mut [Option<Residual>]) {
    let mut by_mask: HashMap<(usize, Bytes, GpuMask), Vec<(f64, HostId)>> = HashMap::new();
    let part = |e: &Evidence| e.allocation.parts()[0];
    for (_, e) in evidence {
        let (h, m) = part(e);
        by_mask.entry((cluster.host(h).host_type, e.size, m)).or_default().push((e.ln_busbw, h));
    }
    by_mask.values_mut().for_each(|v| v.sort_by(|a, b| a.0.total_cmp(&b.0)));
    // By class: the indices of every host's readings, so that a host's own readings can be left out of the median.
    let mut own: HashMap<(HostId, Bytes, GpuMask), Vec<usize>> = HashMap::new();
    for ((_, size, m), class) in &by_mask {
        for (at, (_, h)) in class.iter().enumerate() {
            own.entry((*h, *size, *m)).or_default().push(at);
        }
    }
    let width = level_width(evidence);
    let mut alike = AlikeSubsets { width, ..AlikeSubsets::default() };
    // Index, residual, and the host if other hosts give the expectation.
    let mut found: Vec<(usize, f64, Option<HostId>)> = Vec::new();
    for &(i, e) in evidence {
        let (h, m) = part(e);
        let host_type = cluster.host(h).host_type;
        let same = &by_mask[&(host_type, e.size, m)];
        let own = &own[&(h, e.size, m)];
        let others = same.len() - own.len();
        let (middle, of_others) = if others >= FEW_HOSTS_MAX {
            (median_with(same, own, e.ln_busbw), true)
        } else if others + 1 >= CLASS_MIN {
            let of_others = same.iter().enumerate().filter(|(at, _)| !own.contains(at)).map(|(_, v)| v.0);
            (fastest_level(&mut of_others.chain([e.ln_busbw]).collect::<Vec<_>>(), 1.0, width), true)
        } else {
            let hosts = alike.of(cluster, evidence, host_type, e.size, m);
            let mut levels: Vec<f64> = hosts.values().map(|o| o.0).collect();
            let few = (2..=FEW_HOSTS_MAX).contains(&levels.len());
            let fast = if few { fastest_level(&mut levels, 1.0, width) } else { f64::NEG_INFINITY };
            match hosts.get(&h) {
                Some(own) if fast - own.0 > width => (fast, true),
                Some(_) if levels.len() >= CLASS_MIN => (median(&mut levels), true),
                Some(own) if own.1 >= CLASS_MIN => (own.0, false),
                _ => continue,
            }
        };
        found.push((i, e.ln_busbw - middle, of_others.then_some(h)));
    }
    let levels = own_levels(cluster, found.iter().filter_map(|(_, r, h)| Some(((*h)?, *r))));
    for (_, r, h) in &mut found {
        *r -= h.map_or(0.0, |h| levels[h.index()]);
    }
    let sd = spread(&found.iter().map(|f| f.1).collect::<Vec<_>>()).max(SD_MIN);
    for (i, r, _) in found {
        out[i] = Some(Residual { ln_ratio: r, sd, class: None });
    }
}

/// The subsets of a host type that the topology makes equivalent, such as all subsets of one size behind a switch.
#[derive(Default)]
struct AlikeSubsets {
    /// See [`level_width`].
    width: f64,
    /// By type and size: one subset of each class, and the class.
    classes: HashMap<(usize, Bytes), Vec<(GpuMask, ByHost)>>,
}

/// By host: the ordinary level of the readings, and their number.
type ByHost = BTreeMap<HostId, (f64, usize)>;

impl AlikeSubsets {
    /// The readings of subsets like `mask`, by host. O(1) after the first question about a type and size, which costs
    /// O(n x classes).
    fn of(
        &mut self,
        cluster: &Cluster,
        evidence: &[(usize, &Evidence)],
        host_type: usize,
        size: Bytes,
        mask: GpuMask,
    ) -> &ByHost {
        let (ty, width) = (&cluster.types[host_type], self.width);
        let classes = self.classes.entry((host_type, size)).or_insert_with(|| {
            let mut values: Vec<(GpuMask, BTreeMap<HostId, Vec<f64>>)> = Vec::new();
            for (_, e) in evidence {
                let (h, m) = e.allocation.parts()[0];
                if cluster.host(h).host_type != host_type || e.size != size {
                    continue;
                }
                let at = values.iter().position(|c| equivalent(ty, c.0, m)).unwrap_or_else(|| {
                    values.push((m, BTreeMap::new()));
                    values.len() - 1
                });
                values[at].1.entry(h).or_default().push(e.ln_busbw);
            }
            // One slow GPU leaves the subsets without it at their level.
            let summed = |m: GpuMask, v: BTreeMap<HostId, Vec<f64>>| {
                let slow_max = m.count() as f64 / ty.gpu_count() as f64;
                v.into_iter().map(|(h, mut v)| (h, (fastest_level(&mut v, slow_max, width), v.len()))).collect()
            };
            values.into_iter().map(|(m, v)| (m, summed(m, v))).collect()
        });
        let at = classes.iter().position(|c| equivalent(ty, c.0, mask)).expect("the reading is in a class itself");
        &classes[at].1
    }
}

/// By host: the common offset of its subsets from other hosts, limited to the ordinary difference between hosts.
/// Without this correction, a host that is 5 % slower throughout would appear to have a slow link wherever noise adds
/// to the offset. The upper quartile is used, since a slow GPU lowers more than half of the subsets.
fn own_levels(cluster: &Cluster, residuals: impl Iterator<Item = (HostId, f64)>) -> Vec<f64> {
    let mut of_host: Vec<Vec<f64>> = vec![Vec::new(); cluster.hosts.len()];
    residuals.for_each(|(h, r)| of_host[h.index()].push(r));
    let all: Vec<f64> = of_host.iter().flatten().copied().collect();
    let quartile = |v: &[f64]| {
        let mut v = v.to_vec();
        v.sort_by(f64::total_cmp);
        v[(v.len() - 1) * 3 / 4]
    };
    let enough = |v: &&Vec<f64>| v.len() >= LEVEL_READINGS_MIN;
    let known: Vec<f64> = of_host.iter().filter(enough).map(|v| quartile(v)).collect();
    if known.is_empty() {
        return vec![0.0; of_host.len()];
    }
    // With few hosts, the scatter of all readings gives the scatter of the quartiles.
    let middle = if known.len() >= CLASS_MIN { stats::median(&known) } else { quartile(&all) };
    let ordinary = spread(&known).clamp(LEVEL_SD.0, LEVEL_SD.1);
    let level = |v: &Vec<f64>| {
        let level = if v.len() >= LEVEL_READINGS_MIN { quartile(v) - middle } else { 0.0 };
        if level.abs() <= ORDINARY_SDS * ordinary { level } else { 0.0 }
    };
    of_host.iter().map(level).collect()
}

/// The median of a sorted class without the readings at the indices `without`, and with `value`. O(indices + log n).
fn median_with(class: &[(f64, HostId)], without: &[usize], value: f64) -> f64 {
    let others = class.len() - without.len();
    // The k-th remaining value.
    let other = |k: usize| without.iter().fold(k, |at, w| if *w <= at { at + 1 } else { at });
    let below = class.partition_point(|v| v.0 < value);
    let rank = below - without.iter().take_while(|w| **w < below).count();
    let of = |k: usize| match k.cmp(&rank) {
        std::cmp::Ordering::Less => class[other(k)].0,
        std::cmp::Ordering::Equal => value,
        std::cmp::Ordering::Greater => class[other(k - 1)].0,
    };
    let n = others + 1;
    if n % 2 == 1 { of(n / 2) } else { 0.5 * (of(n / 2 - 1) + of(n / 2)) }
}

/// Single-host readings far below their class, lower than any healthy host.
pub fn low_on_one_host(cluster: &Cluster, evidence: &[Evidence]) -> std::collections::HashSet<(Bytes, Allocation)> {
    let mut out = vec![None; evidence.len()];
    let one_host: Vec<(usize, &Evidence)> =
        evidence.iter().enumerate().filter(|(_, e)| e.allocation.host_count() == 1).collect();
    single_host(cluster, &one_host, &mut out);
    let low = |r: &Residual| r.ln_ratio < -(LOW_SDS * r.sd).max(LOW_MIN);
    let of = |(e, r): (&Evidence, &Option<Residual>)| r.filter(low).map(|_| (e.size, e.allocation.clone()));
    evidence.iter().zip(&out).filter_map(of).collect()
}

/// Compares hosts with each other.
pub fn hosts<'e>(
    cluster: &Cluster,
    readings: impl Iterator<Item = (&'e Evidence, Option<Residual>)>,
) -> Vec<HostDeviation> {
    let mut of_host: Vec<Vec<f64>> = vec![Vec::new(); cluster.hosts.len()];
    let mut sd_of_host = vec![0.0f64; cluster.hosts.len()];
    for (e, r) in readings {
        let Some(r) = r else { continue };
        for (h, _) in e.allocation.parts() {
            of_host[h.index()].push(r.ln_ratio);
            sd_of_host[h.index()] = sd_of_host[h.index()].max(r.sd);
        }
    }
    let medians: Vec<Option<f64>> =
        of_host.iter_mut().map(|v| if v.is_empty() { None } else { Some(median(v)) }).collect();
    let mut known: Vec<f64> = medians.iter().flatten().copied().collect();
    let middle = median(&mut known);
    let ordinary = spread(&known).clamp(HOST_SD.0, f64::INFINITY);
    let mut out: Vec<HostDeviation> = cluster
        .host_ids()
        .filter_map(|host| {
            let m = medians[host.index()]?;
            let n = of_host[host.index()].len();
            let own = 1.25 * sd_of_host[host.index()] / (n as f64).sqrt();
            Some(HostDeviation { host, readings: n, ratio: m.exp(), z: (m - middle) / ordinary.hypot(own) })
        })
        .collect();
    out.sort_by(|a, b| a.z.total_cmp(&b.z).then(a.host.cmp(&b.host)));
    out
}

/// Median; 0 for an empty slice. O(n); reorders the values.
pub fn median(v: &mut [f64]) -> f64 {
    stats::median_or(v, 0.0)
}

/// The width of a level by the scatter of each host's subsets of one size. Few hosts are slow, so the lower quartile of
/// the scatters is that of healthy ones. O(n log n).
fn level_width(evidence: &[(usize, &Evidence)]) -> f64 {
    let mut of_size: BTreeMap<(HostId, Bytes, usize), Vec<f64>> = BTreeMap::new();
    for (_, e) in evidence {
        let (h, m) = e.allocation.parts()[0];
        of_size.entry((h, e.size, m.count())).or_default().push(e.ln_busbw);
    }
    let scatters: Vec<f64> = of_size.values().filter(|v| v.len() >= SCATTER_MIN).map(|v| spread(v)).collect();
    if scatters.is_empty() { LEVEL_WIDTH } else { LEVEL_WIDTH.max(LEVEL_SDS * stats::quantile(&scatters, 0.25)) }
}

/// The median, if the fast values are near it; else the mean of the values near the fast ones. At most the share
/// `slow_max` of the values is slow; the middle of the others represents the fast ones. O(n log n).
fn fastest_level(v: &mut [f64], slow_max: f64, width: f64) -> f64 {
    v.sort_by(f64::total_cmp);
    let last = v.len().saturating_sub(1);
    let top = (last as f64 * (0.5 + 0.5 * slow_max)).round() as usize;
    match (v.get(top), v.get(last / 2)) {
        (Some(&top), Some(&middle)) if top - middle > width => {
            stats::mean(&v.iter().copied().filter(|x| (x - top).abs() <= width).collect::<Vec<_>>())
        }
        _ => median(v),
    }
}

/// Robust standard deviation around the median; 0 for an empty slice.
fn spread(v: &[f64]) -> f64 {
    if v.is_empty() { 0.0 } else { stats::mad_sd(v) }
}
