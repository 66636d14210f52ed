//! The truth that BandPilot's public code is judged by (`facts/bandpilot.md`, last section).
//!
//! Alone, an allocation has the 2 GiB table's row of its sorted counts, cut to an integer; on the mixed cluster the smaller of that row
//! and the 16 MiB reading of the exact GPUs on every host with two or more. Where a running job meets it, both are merged: each side's
//! hosts with the GPUs of both, **by counts** (BandPilot's code then takes GPUs 0 to n - 1 of a host to stand for n), and everybody has a
//! share of the smaller one in proportion to the demands. Every truth that the published files hold follows from this rule: a test checks.

use super::reader::{Load, Scenario};
use console::Failure;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use store::HostMap;
use topology::{Allocation, Cluster, GpuMask, HostId, catalog};

/// The files of the table over several hosts begin so.
const TABLE_PREFIX: &str = "multihost_h100_2gib";
/// Host types of the mixed cluster, n0 to n3, as their intra files are named. The order is the paper's; no other reproduces the truths.
const MIXED_TYPES: [&str; 4] = ["4090", "v100", "a6000", "a800"];
/// Truths that were derived from shares are integers up to rounding in the file (demands have four decimals).
const INTEGER_TOLERANCE: f64 = 2e-3;

/// Rows by sorted counts (descending), and inside tables.
#[derive(Clone, Debug)]
pub struct Ground {
    /// The cluster as the requests see it.
    pub cluster: Cluster,
    /// The table: GB/s by sorted counts, single hosts too.
    pub table: HashMap<Vec<u8>, f64>,
    /// Rows that the files of requests give away, cut to integers. For judging only: no model learns from them.
    recovered: HashMap<Vec<u8>, f64>,
    /// On the mixed cluster: by host, readings of its subsets.
    intra: Option<Vec<HashMap<GpuMask, f64>>>,
    /// No row is smaller; what is not in the table is taken to keep to that.
    smallest: f64,
}

/// The cluster of a name in the files.
///
/// The mixed cluster is composed: the insides of four host types behind the network of the H100 cluster, so each type here is an H100
/// host by its links, and what it is inside its measured table tells.
pub fn cluster(name: &str) -> Option<Cluster> {
    let mut c = catalog::cluster("h100")?;
    match name {
        "h100" => {}
        "het4mix" | "het-4mix" => {
            c.name = "het-4mix".into();
            let base = c.types[0].clone();
            c.types = MIXED_TYPES.iter().map(|t| topology::HostType { name: (*t).into(), ..base.clone() }).collect();
            for (t, h) in c.hosts.iter_mut().enumerate() {
                h.host_type = t;
            }
        }
        _ => return None,
    }
    Some(c)
}

fn sorted(counts: impl IntoIterator<Item = usize>) -> Vec<u8> {
    let mut k: Vec<u8> = counts.into_iter().filter(|c| *c > 0).map(|c| c as u8).collect();
    k.sort_unstable_by(|a, b| b.cmp(a));
    k
}

fn files(dir: &Path, prefix: &str) -> Result<Vec<PathBuf>, Failure> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .map_err(|e| Failure::file("read the folder", dir, e))?
        .filter_map(|f| Some(f.ok()?.path()))
        .filter(|p| {
            let name = p.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with(prefix) && name.ends_with(".csv")
        })
        .collect();
    files.sort();
    Ok(files)
}

impl Ground {
    /// Reads the tables of a folder for a cluster of [`cluster`].
    pub fn load(dir: &Path, cluster: Cluster) -> Result<Ground, Failure> {
        let h100 = catalog::cluster("h100").ok_or_else(|| Failure::impossible("no built-in cluster `h100`"))?;
        let map = HostMap::parse(crate::published::H100_HOSTS, &h100).map_err(Failure::input)?;
        let mut table = HashMap::new();
        for f in files(dir, TABLE_PREFIX)? {
            for r in crate::published::read_table(&f, &h100, &map)? {
                let v = r.measurement.busbw.gb_per_s();
                table.insert(sorted(r.measurement.allocation.counts()), v);
            }
        }
        if table.is_empty() {
            let dir = dir.display();
            return Err(Failure::input(format!(
                "{dir} holds no rows of {TABLE_PREFIX}*.csv; docs/data.md tells where to get them"
            )));
        }
        let intra = (cluster.types.len() > 1).then(|| mixed_intra(dir, &cluster)).transpose()?;
        let smallest = table.values().copied().fold(f64::INFINITY, f64::min);
        Ok(Ground { cluster, table, recovered: HashMap::new(), intra, smallest })
    }

    /// The inside tables, by host; empty for hosts whose truth inside is the table's row of one host.
    pub fn intra(&self) -> &[HashMap<GpuMask, f64>] {
        self.intra.as_deref().unwrap_or(&[])
    }

    fn row(&self, key: &[u8]) -> Option<f64> {
        self.table.get(key).or_else(|| self.recovered.get(key)).copied()
    }

    /// What an allocation has alone, GB/s in whole numbers; None where the row is missing and could matter.
    pub fn alone(&self, a: &Allocation) -> Option<f64> {
        if a.gpu_count() < 2 {
            return Some(0.0);
        }
        let Some(intra) = &self.intra else { return self.row(&sorted(a.counts())).map(f64::floor) };
        let mut inside = f64::INFINITY;
        for &(h, m) in a.parts().iter().filter(|p| p.1.count() >= 2) {
            inside = inside.min(*intra[h.index()].get(&m)?);
        }
        if a.host_count() < 2 {
            return Some(inside.floor());
        }
        match self.row(&sorted(a.counts())) {
            Some(r) => Some(inside.min(r).floor()),
            None if inside < self.smallest => Some(inside.floor()),
            None => None,
        }
    }

    /// `a` with what `b` has on its hosts, by counts; None if a host has fewer GPUs than that.
    fn merged(&self, a: &Allocation, b: &Allocation) -> Option<Allocation> {
        let parts = a.parts().iter().map(|&(h, m)| {
            let n = m.count() + b.mask(h).count();
            (n <= self.cluster.type_of(h).gpu_count()).then_some((h, GpuMask::first(n)))
        });
        parts.collect::<Option<Vec<_>>>().map(Allocation::new)
    }

    /// The merged sets of a choice and the jobs that it meets, and what those jobs use together.
    fn meetings(&self, s: &Scenario, a: &Allocation) -> (Vec<Allocation>, f64) {
        let mut sets = Vec::new();
        let mut demand = 0.0;
        if s.load == Load::Idle || a.host_count() < 2 {
            return (sets, demand);
        }
        for b in &s.background {
            if b.gpus.host_count() < 2 || !a.parts().iter().any(|p| !b.gpus.mask(p.0).is_empty()) {
                continue;
            }
            sets.extend([self.merged(a, &b.gpus), self.merged(&b.gpus, a)].into_iter().flatten());
            demand += b.demand_gb_per_s;
        }
        (sets, demand)
    }

    /// What a choice has among the running jobs, GB/s; None where a row that could matter is missing.
    pub fn shared(&self, s: &Scenario, a: &Allocation) -> Option<f64> {
        let alone = self.alone(a)?;
        let (sets, others) = self.meetings(s, a);
        let demand = alone + others;
        let mut capacity = f64::INFINITY;
        for set in &sets {
            capacity = capacity.min(self.alone(set)?);
        }
        Some(if demand > capacity { alone * capacity / demand } else { alone })
    }

    /// Takes in what a file of requests tells of rows that the table lacks: what choices had alone, and what follows for merged sets from
    /// the shares that choices had. Returns how many rows came in.
    pub fn recover(&mut self, scenarios: &[Scenario]) -> usize {
        if self.intra.is_some() {
            return 0; // a truth there hardly ever tells a row
        }
        let before = self.recovered.len();
        let tell = |g: &mut Ground, a: &Allocation, v: f64| {
            let key = sorted(a.counts());
            if a.gpu_count() >= 2 && !g.table.contains_key(&key) {
                g.recovered.entry(key).or_insert(v.floor());
            }
        };
        for s in scenarios {
            for b in &s.background {
                tell(self, &b.gpus, b.standalone_gb_per_s);
            }
            for p in &s.peers {
                if let Some(v) = p.standalone_gb_per_s {
                    tell(self, &p.gpus, v);
                }
            }
        }
        loop {
            let known = self.recovered.len();
            for s in scenarios {
                let best = s.optimum_counts.iter().map(|c| {
                    let first = c.iter().enumerate().map(|(h, n)| (HostId(h as u32), GpuMask::first(usize::from(*n))));
                    (Allocation::new(first), s.optimum_gb_per_s)
                });
                let seen: Vec<_> = s.peers.iter().map(|p| (p.gpus.clone(), p.truth_gb_per_s)).chain(best).collect();
                for (a, truth) in seen {
                    let (sets, others) = self.meetings(s, &a);
                    if sets.is_empty() {
                        tell(self, &a, truth);
                        continue;
                    }
                    let Some(alone) = self.alone(&a).filter(|v| *v > 0.0) else { continue };
                    if truth >= alone - INTEGER_TOLERANCE {
                        continue; // nothing was shared out: the capacity is only known to suffice
                    }
                    let capacity = truth * (alone + others) / alone;
                    let whole = capacity.round();
                    if (capacity - whole).abs() > INTEGER_TOLERANCE * whole.max(1.0) {
                        continue;
                    }
                    // The capacity is the smallest of the sets: a known larger one leaves it to the only unknown.
                    let unknown: Vec<_> = sets.iter().filter(|m| self.alone(m).is_none()).collect();
                    let met = sets.iter().any(|m| self.alone(m) == Some(whole));
                    let all_alike = unknown.windows(2).all(|w| sorted(w[0].counts()) == sorted(w[1].counts()));
                    if !met
                        && all_alike
                        && let Some(m) = unknown.first()
                    {
                        tell(self, m, whole);
                    }
                }
            }
            if self.recovered.len() == known {
                return known - before;
            }
        }
    }
}

/// The measured subsets of the mixed cluster's hosts.
fn mixed_intra(dir: &Path, cluster: &Cluster) -> Result<Vec<HashMap<GpuMask, f64>>, Failure> {
    let mut out = Vec::new();
    for (i, t) in MIXED_TYPES.iter().enumerate() {
        let host = &cluster.hosts[i].name;
        let map = HostMap::parse(&format!("{t}={host}"), cluster).map_err(Failure::input)?;
        let mut table = HashMap::new();
        for f in files(dir, &format!("intra_{t}_16mib"))? {
            for r in crate::published::read_table(&f, cluster, &map)? {
                if let [(_, m)] = r.measurement.allocation.parts() {
                    table.insert(*m, r.measurement.busbw.gb_per_s());
                }
            }
        }
        let subsets = (1 << 8) - 1 - 8;
        if table.len() != subsets {
            return Err(Failure::input(format!(
                "{} has {} of the {subsets} rows of intra_{t}_16mib.csv, which the mixed cluster needs (docs/data.md)",
                dir.display(),
                table.len()
            )));
        }
        out.push(table);
    }
    Ok(out)
}

impl Ground {
    /// What a choice has among the running jobs: by the rule, or as told of a choice that the rule cannot tell apart from it.
    pub fn judge(&self, s: &Scenario, a: &Allocation) -> Option<f64> {
        let alike = |b: &Allocation| match &self.intra {
            Some(_) => a == b,
            None => self.cluster.host_ids().all(|h| a.mask(h).count() == b.mask(h).count()),
        };
        self.shared(s, a).or_else(|| s.peers.iter().find(|p| alike(&p.gpus)).map(|p| p.truth_gb_per_s)).or_else(|| {
            let best = s.optimum_counts.as_ref().filter(|_| self.intra.is_none())?;
            let same = self.cluster.host_ids().all(|h| a.mask(h).count() == usize::from(best[h.index()]));
            same.then_some(s.optimum_gb_per_s)
        })
    }

    /// One reading of an allocation over several hosts as a benchmark would have given it: uncut. None without a row of the table.
    pub fn reading(&self, a: &Allocation) -> Option<f64> {
        let row = *self.table.get(&sorted(a.counts()))?;
        let Some(intra) = &self.intra else { return Some(row) };
        let mut v = row;
        for &(h, m) in a.parts().iter().filter(|p| p.1.count() >= 2) {
            v = v.min(*intra[h.index()].get(&m)?);
        }
        Some(v)
    }
}

impl Ground {
    /// Readings inside single hosts that exist besides [`Ground::intra`]: the 2 GiB tables of H100 hosts.
    pub fn measured_inside(&self, dir: &Path) -> Result<Vec<store::Measurement>, Failure> {
        if self.intra.is_some() {
            return Ok(Vec::new());
        }
        let map = HostMap::parse(crate::published::H100_HOSTS, &self.cluster).map_err(Failure::input)?;
        let mut out = Vec::new();
        for f in files(dir, "intra_h100_")? {
            let rows = crate::published::read_table(&f, &self.cluster, &map)?;
            out.extend(rows.into_iter().map(|r| r.measurement).filter(|m| m.size == super::replay::SIZE));
        }
        Ok(out)
    }
}
