//! Readings made comparable: repetitions merged, each with what its class would get.

use crate::bound::Memo;
use crate::intra::equivalent;
use crate::model::{BandwidthModel, Correction, Model, weights_of};
use crate::parts::Part;
use std::collections::{BTreeMap, HashMap};
use store::{Measurement, Quality};
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask, HostId};

/// Fewest readings over several hosts that a process is fitted on.
pub const FIT_MIN: usize = 12;
/// Fewest like readings that make a class.
const CLASS_MIN: usize = 3;
/// Readings of one allocation within this of each other (of the logarithm) say the same thing twice.
const SAME_LEVEL: f64 = 0.1;
/// Least deviation that a reading is believed to have.
const SD_MIN: f64 = 0.01;
/// A reading of one host is low if it is so many deviations, and at least so much (of the logarithm), below its class.
const LOW_SDS: f64 = 3.0;
/// See [`LOW_SDS`].
const LOW_MIN: f64 = 0.05;
/// Range of what hosts of one type differ by without anything being wrong.
const HOST_SD: (f64, f64) = (0.01, 0.04);

/// What one allocation got, once or several times in a row.
#[derive(Clone, Debug)]
pub struct Evidence {
    pub allocation: Allocation,
    pub size: Bytes,
    /// Mean logarithm of the bus bandwidth, GB/s.
    pub ln_busbw: f64,
    /// When the first of the readings was taken, seconds since 1970; minus infinity where unknown.
    pub at_unix_s: f64,
}

/// How a reading compares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residual {
    /// `ln(got / expected)`.
    pub ln_ratio: f64,
    /// What ordinary readings deviate by.
    pub sd: f64,
    /// The class whose median is all that is expected of it; none where a model or other hosts expect something.
    pub class: Option<usize>,
}

/// What readings over several hosts are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// The physics, times the median factor of allocations of the same kind.
    Classes,
    /// The model's expectation, without what it says of single hosts beyond the ordinary.
    Model,
}

/// A host against its class.
#[derive(Clone, Debug, PartialEq)]
pub struct HostDeviation {
    /// The host.
    pub host: HostId,
    /// Distinct readings that touch it.
    pub readings: usize,
    /// Median of got over expected.
    pub ratio: f64,
    /// Distance from the median host in robust standard deviations of hosts, each with the deviation of its own median.
    pub z: f64,
}

/// Merges repetitions: readings of one allocation that follow each other in time on the same level count once, since they share
/// whatever is peculiar to the allocation. O(n log n).
pub fn gather(cluster: &Cluster, measurements: &[Measurement], collective: Collective) -> Vec<Evidence> {
    let mut by_allocation: BTreeMap<(Bytes, &Allocation), Vec<(f64, f64)>> = BTreeMap::new();
    for m in measurements {
        let v = m.busbw.gb_per_s();
        let fits = m.quality != Quality::Rejected && m.collective == collective && m.contention.is_none();
        let known = m.allocation.parts().last().is_some_and(|p| p.0.index() < cluster.hosts.len());
        if fits && known && v > 0.0 && v.is_finite() && m.allocation.gpu_count() > 1 {
            let at = m.taken_at_unix_s.unwrap_or(f64::NEG_INFINITY);
            by_allocation.entry((m.size, &m.allocation)).or_default().push((at, v.ln()));
        }
    }
    let mut out = Vec::new();
    for ((size, allocation), mut readings) in by_allocation {
        readings.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut run: Vec<(f64, f64)> = Vec::new();
        let mut close = |run: &mut Vec<(f64, f64)>| {
            if let Some(first) = run.first() {
                out.push(Evidence {
                    allocation: allocation.clone(),
                    size,
                    ln_busbw: run.iter().map(|r| r.1).sum::<f64>() / run.len() as f64,
                    at_unix_s: first.0,
                });
            }
            run.clear();
        };
        for r in readings {
            let mean = run.iter().map(|x| x.1).sum::<f64>() / run.len().max(1) as f64;
            if !run.is_empty() && (r.1 - mean).abs() > SAME_LEVEL {
                close(&mut run);
            }
            run.push(r);
        }
        close(&mut run);
    }
    out
}

/// Each reading against its class; none where it has no class.
pub fn residuals(model: &Model, evidence: &[Evidence], baseline: Baseline) -> Vec<Option<Residual>> {
    let mut out = vec![None; evidence.len()];
    single_host(model.cluster(), evidence, &mut out);
    let several: Vec<usize> = (0..evidence.len()).filter(|i| evidence[*i].allocation.host_count() > 1).collect();
    let of: Vec<(f64, Option<usize>)> = match (baseline, model.correction()) {
        (Baseline::Model, Correction::Gp(_) | Correction::Learned(_)) => {
            over_model(model, evidence, &several).into_iter().map(|r| (r, None)).collect()
        }
        _ => over_classes(model, evidence, &several).into_iter().map(|(r, class)| (r, Some(class))).collect(),
    };
    let sd = spread(&of.iter().map(|r| r.0).collect::<Vec<_>>()).max(SD_MIN);
    for (i, (ln_ratio, class)) in several.into_iter().zip(of) {
        out[i] = Some(Residual { ln_ratio, sd, class });
    }
    out
}

fn parts(model: &Model, e: &Evidence) -> Vec<Part> {
    let table = model.part_table(e.size);
    e.allocation.parts().iter().map(|&(h, m)| table.part(h, m)).collect()
}

/// Residual and class of each.
fn over_classes(model: &Model, evidence: &[Evidence], several: &[usize]) -> Vec<(f64, usize)> {
    let mut memos: HashMap<Bytes, Memo> = HashMap::new();
    let mut classes: BTreeMap<(Vec<u16>, usize, Bytes), Vec<f64>> = BTreeMap::new();
    let mut raw = Vec::new();
    for &i in several {
        let e = &evidence[i];
        let parts = parts(model, e);
        let bound = model.bounds(e.size).of(&parts, memos.entry(e.size).or_default()).bound_gb_per_s;
        let mut types: Vec<u16> = parts.iter().map(|p| p.host_type).collect();
        types.sort_unstable();
        types.dedup();
        let key = (types, parts.len().min(3), e.size);
        let v = e.ln_busbw - bound.ln();
        classes.entry(key.clone()).or_default().push(v);
        raw.push((key, v));
    }
    let middle: BTreeMap<_, (usize, f64)> =
        classes.into_iter().enumerate().map(|(i, (k, mut v))| (k, (i, median(&mut v)))).collect();
    raw.into_iter().map(|(k, v)| (v - middle[&k].1, middle[&k].0)).collect()
}

fn over_model(model: &Model, evidence: &[Evidence], several: &[usize]) -> Vec<f64> {
    let effect = |h: HostId| match model.correction() {
        Correction::Gp(gp) => gp.host_effect(h.0),
        _ => 0.0,
    };
    let effects: Vec<f64> = model.cluster().host_ids().map(effect).collect();
    let ordinary = spread(&effects).clamp(HOST_SD.0, HOST_SD.1);
    several
        .iter()
        .map(|&i| {
            let e = &evidence[i];
            let parts = parts(model, e);
            // What a host has of its own counts as expected only as far as hosts ordinarily differ.
            let beyond: f64 = weights_of(&parts)
                .iter()
                .map(|&(h, w)| {
                    let b = effects[h as usize];
                    w * (b - b.clamp(-2.0 * ordinary, 2.0 * ordinary))
                })
                .sum();
            // Nor does what the model took for the irregularity of this split: it may be the very thing that is looked for.
            let own = match model.correction() {
                Correction::Gp(gp) => {
                    let analytic = model.bounds(e.size).of(&parts, &mut Memo::default());
                    gp.irregularity(&model.row(&parts, e.size, analytic), model.width())
                }
                _ => 0.0,
            };
            e.ln_busbw - (model.mean(e.size, &parts).max(1e-9).ln() - beyond - own)
        })
        .collect()
}

/// Subsets of one host: against the same subset of other hosts of the type, else against subsets that look alike to the topology.
fn single_host(cluster: &Cluster, evidence: &[Evidence], out: &mut [Option<Residual>]) {
    let mut by_mask: HashMap<(usize, Bytes, GpuMask), Vec<(HostId, f64)>> = HashMap::new();
    let mut by_host: HashMap<(HostId, Bytes), Vec<(GpuMask, f64)>> = HashMap::new();
    for e in evidence {
        if let [(h, m)] = *e.allocation.parts() {
            by_mask.entry((cluster.host(h).host_type, e.size, m)).or_default().push((h, e.ln_busbw));
            by_host.entry((h, e.size)).or_default().push((m, e.ln_busbw));
        }
    }
    let mut found: Vec<(usize, f64)> = Vec::new();
    for (i, e) in evidence.iter().enumerate() {
        let [(h, m)] = *e.allocation.parts() else { continue };
        let same = &by_mask[&(cluster.host(h).host_type, e.size, m)];
        let mut class: Vec<f64> = same.iter().filter(|s| s.0 != h).map(|s| s.1).collect();
        if class.len() < CLASS_MIN - 1 {
            let ty = cluster.type_of(h);
            class = by_host[&(h, e.size)].iter().filter(|s| equivalent(ty, s.0, m)).map(|s| s.1).collect();
            if class.len() < CLASS_MIN {
                continue;
            }
        } else {
            class.push(e.ln_busbw);
        }
        found.push((i, e.ln_busbw - median(&mut class)));
    }
    let sd = spread(&found.iter().map(|f| f.1).collect::<Vec<_>>()).max(SD_MIN);
    for (i, r) in found {
        out[i] = Some(Residual { ln_ratio: r, sd, class: None });
    }
}

/// Readings of one host that lie far below their class: not what a healthy host would get.
pub fn low_on_one_host(cluster: &Cluster, evidence: &[Evidence]) -> std::collections::HashSet<(Bytes, Allocation)> {
    let mut out = vec![None; evidence.len()];
    single_host(cluster, evidence, &mut out);
    let low = |r: &Residual| r.ln_ratio < -(LOW_SDS * r.sd).max(LOW_MIN);
    let of = |(e, r): (&Evidence, &Option<Residual>)| r.filter(low).map(|_| (e.size, e.allocation.clone()));
    evidence.iter().zip(&out).filter_map(of).collect()
}

/// Hosts against each other.
pub fn hosts(cluster: &Cluster, evidence: &[Evidence], residuals: &[Option<Residual>]) -> Vec<HostDeviation> {
    let mut of_host: Vec<Vec<f64>> = vec![Vec::new(); cluster.hosts.len()];
    let mut sd_of_host = vec![0.0f64; cluster.hosts.len()];
    for (e, r) in evidence.iter().zip(residuals) {
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

/// Median; 0 of nothing.
pub fn median(v: &mut [f64]) -> f64 {
    stats::median_or(v, 0.0)
}

/// Robust standard deviation around the median; 0 of nothing.
fn spread(v: &[f64]) -> f64 {
    if v.is_empty() { 0.0 } else { stats::mad_sd(v) }
}
