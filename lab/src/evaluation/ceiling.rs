//! The best result that a model of linkwise's kind can have on a table: every row is predicted from all others.

use super::replay::{Missing, Settings};
use super::requests::scenarios;
use super::sampling::{by_counts, readings};
use place::{Request, exact};
use predict::{BandwidthModel, Correction, FitOptions, HostShare, Kind, Oracle, fit};
use std::collections::HashMap;
use store::Measurement;
use topology::{Allocation, GpuMask};
use truths::{Irregularity, Truth};

/// Number of candidates that are tried if rows are missing.
const KEEP: usize = 400;

fn key(parts: &[HostShare]) -> Vec<u8> {
    let mut k: Vec<u8> = parts.iter().map(|p| p.count).collect();
    k.sort_unstable();
    k
}

/// GBE in percent by k if every row is predicted by a fit on all other rows. `None` for truths whose rows are not
/// counts.
pub fn leave_one_out(
    truth: &dyn Truth,
    settings: &Settings,
    seeds: &[u64],
) -> Result<Option<Vec<(usize, f64)>>, String> {
    if !by_counts(truth) {
        return Ok(None);
    }
    let cluster = truth.cluster();
    let mut rows: Vec<Measurement> = readings(truth, 0, |r| r.intra());
    let mut multi = Vec::new();
    count_vectors(cluster.hosts.len(), cluster.types[0].gpu_count(), &mut Vec::new(), &mut |counts| {
        let hosts = cluster.host_ids().zip(counts).map(|(h, c)| (h, GpuMask::first(*c)));
        multi.push(Allocation::new(hosts));
    });
    multi.retain(|a| a.host_count() > 1 && truth.busbw_gb_per_s(a).is_some());
    multi.sort(); // the order in which `fit` gets the rows
    rows.extend(readings(truth, 0, |r| r.rows(&multi)));
    let options = FitOptions::of(Kind::Gp).collective(truth.collective()).constants(settings.constants());
    let fitted = fit(cluster, &rows, &options);
    let model = fitted.map_err(|e| e.to_string())?.0;
    let Correction::Gp(gp) = model.correction() else { return Err("no process was fitted".into()) };
    let without: HashMap<Vec<u8>, f64> = multi
        .iter()
        .zip(gp.leave_one_out())
        .map(|(a, y)| {
            let mut k: Vec<u8> = a.counts().iter().map(|c| *c as u8).collect();
            k.sort_unstable();
            (k, y)
        })
        .collect();
    let oracle = Oracle {
        table: model.share_table(truth.size()).clone(),
        truth: |parts: &[HostShare]| {
            let b = model.bounds(truth.size()).of(parts, &mut Default::default()).bound_gb_per_s;
            if parts.len() < 2 { b } else { without.get(&key(parts)).map_or(0.0, |y| b * y.exp()) }
        },
    };
    let mut out = Vec::new();
    for seed in seeds {
        for s in scenarios(cluster, settings.per_k, *seed) {
            let optimum = truth.optimum(&s.free, s.k, Irregularity::With);
            let Some(best) = optimum.best.filter(|b| *b > 0.0) else { continue };
            if optimum.missing && settings.missing == Missing::LeaveOut {
                continue;
            }
            let request = Request::new(s.k, s.free, truth.size());
            let found = exact(cluster, &oracle, &request, KEEP).map_err(|e| e.to_string())?;
            if let Some(v) = found.best.iter().find_map(|c| truth.busbw_gb_per_s(&c.allocation)) {
                out.push((s.k, 100.0 * v / best));
            }
        }
    }
    Ok(Some(out))
}

/// Every descending count vector over `hosts` hosts.
fn count_vectors(hosts: usize, most: usize, counts: &mut Vec<usize>, f: &mut dyn FnMut(&[usize])) {
    if !counts.is_empty() {
        f(counts);
    }
    if counts.len() == hosts {
        return;
    }
    for c in 1..=counts.last().copied().unwrap_or(most) {
        counts.push(c);
        count_vectors(hosts, most, counts, f);
        counts.pop();
    }
}
