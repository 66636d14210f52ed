//! Intra tables: bandwidth of every GPU subset of one host.

use stats::median;
use std::collections::HashMap;
use std::sync::Arc;
use topology::{Cluster, GpuMask, HostId, HostType};

/// The intra tables of a cluster for one collective and one size.
///
/// A host's own reading is used for that host. A subset that a host did not measure takes the median of the readings of
/// the same subset on hosts of its type. A subset that no host of the type measured takes the analytic value from the
/// caller.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[serde(from = "Saved", into = "Saved")]
pub struct IntraTables {
    /// By host: GB/s busbw by mask; 0 for fewer than two GPUs.
    by_host: Vec<Arc<[f64]>>,
    /// By host: masks whose own reading is far from its class (outliers, or real defects).
    suspects: Vec<Vec<GpuMask>>,
    /// Share of multi-GPU subsets that were measured on the host or on another host of the type.
    measured: f64,
}

/// Readings of one host by mask. The median is used when a mask has several readings.
pub type HostReadings = HashMap<GpuMask, Vec<f64>>;

/// Ratio to the median of its class from which a reading is an outlier, if most of the class agrees.
pub const OUTLIER_RATIO: f64 = 1.15;

/// Minimum number of subsets of a class, and of repeated readings, for values to be shrunk towards their class.
const SHRUNK_MIN: usize = 6;

/// Maximum number of different tables of one type in a median.
const TYPICAL_MAX: usize = 64;

/// The median of sorted values after one value equal to `own` is removed. O(log n).
fn median_without(sorted: &[f64], own: f64) -> f64 {
    let at = sorted.partition_point(|v| *v < own);
    let other = |i: usize| sorted[if i < at { i } else { i + 1 }];
    let n = sorted.len() - 1;
    if n % 2 == 1 { other(n / 2) } else { 0.5 * (other(n / 2 - 1) + other(n / 2)) }
}

/// The values for a host without readings, by host type and subset, from the readings of other hosts.
///
/// The median of a few readings is noisy, and the maximum of hundreds of noisy values is biased upward. Therefore each
/// value is shrunk towards the values of the subsets that the topology makes equivalent. The shrinkage compares two
/// variances: the variance between hosts on one subset divided by the number of hosts, and the variance between
/// subsets.
fn typical_values(cluster: &Cluster, of_type: &HashMap<(usize, GpuMask), Vec<f64>>) -> HashMap<(usize, GpuMask), f64> {
    let mut typical: HashMap<(usize, GpuMask), f64> = of_type.iter().map(|(k, v)| (*k, median(v))).collect();
    for t in 0..cluster.types.len() {
        // Classes of equivalent subsets, in ascending order of their masks.
        let mut masks: Vec<GpuMask> = of_type.keys().filter(|k| k.0 == t).map(|k| k.1).collect();
        masks.sort();
        let mut classes: Vec<Vec<GpuMask>> = Vec::new();
        for m in masks {
            match classes.iter_mut().find(|c| equivalent(&cluster.types[t], c[0], m)) {
                Some(class) => class.push(m),
                None => classes.push(vec![m]),
            }
        }
        let squares = |v: &Vec<f64>| {
            let middle = median(v).ln();
            v.iter().map(|x| (x.ln() - middle).powi(2)).collect::<Vec<f64>>()
        };
        let repeated = of_type.iter().filter(|(k, v)| k.0 == t && v.len() > 1).map(|(_, v)| v);
        let between: Vec<f64> = repeated.flat_map(squares).filter(|s| *s > 0.0).collect();
        if between.len() < SHRUNK_MIN {
            continue;
        }
        // Robust: the median of squared deviations of a normal variable is 0.455 of its variance.
        let between_hosts = median(&between) / 0.455;
        for class in classes.iter().filter(|c| c.len() >= SHRUNK_MIN) {
            let ln: Vec<f64> = class.iter().map(|m| typical[&(t, *m)].ln()).collect();
            let chance: Vec<f64> = class.iter().map(|m| between_hosts / of_type[&(t, *m)].len() as f64).collect();
            let middle = median(&ln);
            let spread = stats::mad_sd(&ln).powi(2);
            let real = (spread - chance.iter().sum::<f64>() / chance.len() as f64).max(0.0);
            for ((m, ln), chance) in class.iter().zip(&ln).zip(&chance) {
                let kept = real / (real + chance).max(f64::MIN_POSITIVE);
                typical.insert((t, *m), (middle + kept * (ln - middle)).exp());
            }
        }
    }
    typical
}

impl IntraTables {
    /// Builds the tables from readings by host; `analytic(host type, mask)` gives GB/s for unmeasured subsets.
    /// A host's single reading is a suspect if it differs by more than [`OUTLIER_RATIO`] from the median of the same
    /// A host's single reading is a suspect if it differs by more than [`OUTLIER_RATIO`] from the median of the same
    /// subset on the other hosts of its type, or of the subsets that its topology makes equivalent. A suspect may be a
    /// real defect: its value is used, ties avoid the host, and campaigns repeat the measurement.
    pub fn new(cluster: &Cluster, readings: &[HostReadings], analytic: &dyn Fn(usize, GpuMask) -> f64) -> Self {
        let mut analytic_cache: HashMap<usize, Vec<f64>> = HashMap::new();
        let mut of_type: HashMap<(usize, GpuMask), Vec<f64>> = HashMap::new();
        for (h, r) in readings.iter().enumerate() {
            let t = cluster.hosts[h].host_type;
            for (&m, v) in r {
                of_type.entry((t, m)).or_default().push(median(v));
            }
        }
        let typical = typical_values(cluster, &of_type);
        let mut by_host: Vec<Arc<[f64]>> = Vec::with_capacity(cluster.hosts.len());
        let mut shared: HashMap<usize, Arc<[f64]>> = HashMap::new();
        let mut suspects = Vec::with_capacity(cluster.hosts.len());
        let (mut known, mut all) = (0usize, 0usize);
        for h in cluster.host_ids() {
            let t = cluster.host(h).host_type;
            let ty = cluster.type_of(h);
            let own = readings.get(h.index()).filter(|r| !r.is_empty());
            let mut bad = Vec::new();
            // Degraded GPUs and links of the cluster file. Readings of the host itself take precedence. The slowest
            // pair decides, as on a ring that cannot avoid it.
            let degraded = !cluster.host(h).gpu_health.is_empty() || !cluster.host(h).link_health.is_empty();
            let health = |m: GpuMask| -> f64 {
                if !degraded {
                    return 1.0;
                }
                let pairs = m.iter().flat_map(|a| m.iter().filter(move |b| a < *b).map(move |b| (a, b)));
                pairs.map(|(a, b)| cluster.link_health(h, a, b)).fold(1.0, f64::min)
            };
            let build = |analytic_cache: &mut HashMap<usize, Vec<f64>>, own: Option<&HostReadings>| -> Arc<[f64]> {
                let n = 1usize << ty.gpu_count();
                let fallback = analytic_cache.entry(t).or_insert_with(|| {
                    (0..n as u32).map(|m| if GpuMask(m).count() < 2 { 0.0 } else { analytic(t, GpuMask(m)) }).collect()
                });
                (0..n as u32)
                    .map(|m| {
                        let m = GpuMask(m);
                        if m.count() < 2 {
                            return 0.0;
                        }
                        own.and_then(|o| o.get(&m)).map(|v| median(v)).unwrap_or_else(|| {
                            health(m) * typical.get(&(t, m)).copied().unwrap_or(fallback[m.0 as usize])
                        })
                    })
                    .collect()
            };
            let table = match own {
                Some(o) => build(&mut analytic_cache, Some(o)),
                None if degraded => build(&mut analytic_cache, None),
                None => shared.entry(t).or_insert_with(|| build(&mut analytic_cache, None)).clone(),
            };
            let subsets = (1usize << ty.gpu_count()) - 1 - ty.gpu_count();
            all += subsets;
            known += typical.keys().filter(|k| k.0 == t).count().min(subsets);
            if let Some(o) = own {
                for (&m, v) in o {
                    let own = median(v);
                    let all = &of_type[&(t, m)];
                    let typical = match all.len() - 1 {
                        0 | 1 => {
                            let alike = o.iter().filter(|(k, _)| equivalent(ty, **k, m));
                            let class: Vec<f64> = alike.map(|(_, v)| median(v)).collect();
                            if class.len() < 3 {
                                continue;
                            }
                            median(&class)
                        }
                        2 => continue,
                        _ => median_without(all, own),
                    };
                    let ratio = own / typical;
                    if !(1.0 / OUTLIER_RATIO..=OUTLIER_RATIO).contains(&ratio) {
                        bad.push(m);
                    }
                }
                bad.sort();
            }
            by_host.push(table);
            suspects.push(bad);
        }
        IntraTables { by_host, suspects, measured: if all == 0 { 0.0 } else { known as f64 / all as f64 } }
    }

    /// The tables at another size: the physics at that size times the ratio of the given tables to the physics at their
    /// sizes. `near` holds tables with their sizes and weights; the weights add up to 1. `physics(host, mask, size)` is
    /// in GB/s. O(hosts), plus a few estimates per subset of each type.
    pub(crate) fn at_size<S: Copy>(
        cluster: &Cluster,
        near: &[(&IntraTables, f64, S)],
        size: S,
        physics: &dyn Fn(HostId, GpuMask, S) -> f64,
    ) -> IntraTables {
        let mut of_type: HashMap<usize, Vec<f64>> = HashMap::new();
        let mut seen: HashMap<(usize, Vec<*const f64>), Arc<[f64]>> = HashMap::new();
        let by_host = cluster.host_ids().map(|h| {
            let t = cluster.host(h).host_type;
            let scale = of_type.entry(t).or_insert_with(|| {
                let of = |m: u32| {
                    if m.count_ones() < 2 {
                        return 0.0;
                    }
                    let of_size = |s: S| physics(h, GpuMask(m), s).max(1e-9);
                    of_size(size) / near.iter().map(|n| of_size(n.2).powf(n.1)).product::<f64>()
                };
                (0..1u32 << cluster.type_of(h).gpu_count()).map(of).collect()
            });
            let key = (t, near.iter().map(|n| n.0.by_host[h.index()].as_ptr()).collect());
            let scaled = seen.entry(key).or_insert_with(|| {
                let value = |m: usize| near.iter().map(|n| n.0.by_host[h.index()][m].powf(n.1)).product::<f64>();
                (0..scale.len()).map(|m| scale[m] * value(m)).collect()
            });
            Arc::clone(scaled)
        });
        let by_host = by_host.collect();
        let nearest = near.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|n| n.0);
        let suspects = nearest.map_or_else(|| vec![Vec::new(); cluster.hosts.len()], |n| n.suspects.clone());
        IntraTables { by_host, suspects, measured: nearest.map_or(0.0, |n| n.measured) }
    }

    /// The tables for another cluster, whose hosts are matched by name. A host of a new name or type gets the median
    /// over the hosts of its type; without such hosts it gets the analytic values. O(hosts), plus the medians of the
    /// types with new hosts.
    pub(crate) fn on(&self, old: &Cluster, new: &Cluster, analytic: &dyn Fn(HostId, GpuMask) -> f64) -> IntraTables {
        let known = old.host_index();
        let mut of_type: HashMap<usize, Arc<[f64]>> = HashMap::new();
        let (mut by_host, mut suspects) = (Vec::new(), Vec::new());
        for h in new.host_ids() {
            let ty = new.type_of(h);
            let same = |o: &&HostId| self.is_of(old, **o, ty);
            match known.get(new.host(h).name.as_str()).filter(same) {
                Some(o) => {
                    by_host.push(Arc::clone(&self.by_host[o.index()]));
                    suspects.push(self.suspects[o.index()].clone());
                }
                None => {
                    let table = of_type.entry(new.host(h).host_type).or_insert_with(|| {
                        self.typical(old, ty).unwrap_or_else(|| {
                            let of = |m: u32| if m.count_ones() < 2 { 0.0 } else { analytic(h, GpuMask(m)) };
                            (0..1u32 << ty.gpu_count()).map(of).collect()
                        })
                    });
                    by_host.push(Arc::clone(table));
                    suspects.push(Vec::new());
                }
            }
        }
        IntraTables { by_host, suspects, measured: self.measured }
    }

    /// True if host `h` of the tables' cluster is of type `ty`.
    fn is_of(&self, old: &Cluster, h: HostId, ty: &HostType) -> bool {
        old.type_of(h).name == ty.name && self.by_host[h.index()].len() == 1 << ty.gpu_count()
    }

    /// The median table over the hosts of a type, from the first [`TYPICAL_MAX`] different tables.
    fn typical(&self, old: &Cluster, ty: &HostType) -> Option<Arc<[f64]>> {
        let mut tables: Vec<&Arc<[f64]>> = Vec::new();
        for h in old.host_ids().filter(|h| self.is_of(old, *h, ty)) {
            let table = &self.by_host[h.index()];
            if tables.len() < TYPICAL_MAX && !tables.iter().any(|t| Arc::ptr_eq(t, table)) {
                tables.push(table);
            }
        }
        let first = tables.first()?;
        let of_mask = |m: usize| median(&tables.iter().map(|t| t[m]).collect::<Vec<_>>());
        Some(if tables.len() == 1 { Arc::clone(first) } else { (0..first.len()).map(of_mask).collect() })
    }

    /// Checks the tables against the cluster: one table per host, one value per subset, all values finite and not
    /// negative.
    pub fn check(&self, cluster: &Cluster) -> Result<(), String> {
        if self.by_host.len() != cluster.hosts.len() || self.suspects.len() != cluster.hosts.len() {
            return Err(format!(
                "intra tables of {} hosts for a cluster of {}",
                self.by_host.len(),
                cluster.hosts.len()
            ));
        }
        for h in cluster.host_ids() {
            let t = &self.by_host[h.index()];
            let n = 1usize << cluster.type_of(h).gpu_count();
            if t.len() != n {
                let name = &cluster.host(h).name;
                return Err(format!("the intra table of host `{name}` has {} entries, not {n}", t.len()));
            }
            if t.iter().any(|v| !v.is_finite() || *v < 0.0 || *v > 1e6) {
                return Err(format!(
                    "the intra table of host `{}` holds an impossible bandwidth",
                    cluster.host(h).name
                ));
            }
        }
        Ok(())
    }

    /// GB/s busbw by mask of one host.
    pub fn of_host(&self, host: HostId) -> Arc<[f64]> {
        self.by_host[host.index()].clone()
    }
    /// Masks of a host whose readings are suspect.
    pub fn suspects(&self, host: HostId) -> &[GpuMask] {
        &self.suspects[host.index()]
    }
    /// Share of subsets that were measured on the host or on another host of its type, 0 to 1.
    pub fn measured_share(&self) -> f64 {
        self.measured
    }

    /// By GPU count: best bandwidth of any subset of that size on hosts of a type; infinite for 0 and 1.
    ///
    /// The median over the type's hosts, so that one faulty host does not define the type.
    pub fn best_by_count(&self, cluster: &Cluster, host_type: usize) -> Vec<f64> {
        let n = cluster.types[host_type].gpu_count();
        let mut seen: Vec<*const f64> = Vec::new();
        let mut per_host: Vec<Vec<f64>> = Vec::new();
        for h in cluster.host_ids().filter(|h| cluster.host(*h).host_type == host_type) {
            let table = &self.by_host[h.index()];
            if seen.contains(&table.as_ptr()) || seen.len() >= TYPICAL_MAX {
                continue;
            }
            seen.push(table.as_ptr());
            let mut best = vec![0.0f64; n + 1];
            for (m, v) in table.iter().enumerate() {
                let c = (m as u32).count_ones() as usize;
                best[c] = best[c].max(*v);
            }
            per_host.push(best);
        }
        (0..=n)
            .map(|c| {
                if c < 2 {
                    return f64::INFINITY;
                }
                median(&per_host.iter().map(|b| b[c]).collect::<Vec<_>>())
            })
            .collect()
    }
}

/// True if the topology cannot distinguish two subsets of a host: equal counts and equal multisets of path labels.
pub fn equivalent(ty: &topology::HostType, a: GpuMask, b: GpuMask) -> bool {
    if a.count() != b.count() {
        return false;
    }
    let labels = |m: GpuMask| {
        let mut v: Vec<_> =
            m.iter().flat_map(|i| m.iter().filter(move |j| *j > i).map(move |j| ty.gpu_paths[i][j])).collect();
        v.sort();
        v
    };
    labels(a) == labels(b)
}

/// The form in a file, with equal tables stored once.
#[derive(serde::Serialize, serde::Deserialize)]
struct Saved {
    tables: Vec<Vec<f64>>,
    table_of_host: Vec<usize>,
    suspects: Vec<Vec<GpuMask>>,
    measured: f64,
}

impl From<IntraTables> for Saved {
    fn from(t: IntraTables) -> Self {
        let mut index: HashMap<*const f64, usize> = HashMap::new();
        let mut tables = Vec::new();
        let table_of_host = t
            .by_host
            .iter()
            .map(|a| {
                *index.entry(a.as_ptr()).or_insert_with(|| {
                    tables.push(a.to_vec());
                    tables.len() - 1
                })
            })
            .collect();
        Saved { tables, table_of_host, suspects: t.suspects, measured: t.measured }
    }
}

impl From<Saved> for IntraTables {
    /// A host whose table is missing gets an empty one, which [`IntraTables::check`] refuses.
    fn from(s: Saved) -> Self {
        let tables: Vec<Arc<[f64]>> = s.tables.into_iter().map(Into::into).collect();
        let by_host =
            s.table_of_host.iter().map(|i| tables.get(*i).cloned().unwrap_or_else(|| Arc::from([]))).collect();
        IntraTables { by_host, suspects: s.suspects, measured: s.measured }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_median_without_one_is_that_of_the_others(values in proptest::collection::vec(1u8..20, 3..30), at in 0usize..30) {
            let values: Vec<f64> = values.into_iter().map(f64::from).collect();
            let at = at % values.len();
            let mut others = values.clone();
            let own = others.remove(at);
            let mut sorted = values;
            sorted.sort_by(f64::total_cmp);
            prop_assert_eq!(median_without(&sorted, own), median(&others));
        }
    }
}
