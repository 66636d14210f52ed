//! Tables of true bandwidths, against which decisions are judged.

use console::Failure;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use store::{HostMap, Record};
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask};

/// The true bandwidth of allocations of one cluster at one size.
///
/// On several hosts of one type the truth is the row of the sorted counts (which GPUs and which hosts is not told by the
/// published table), on one host the row of the very subset.
#[derive(Clone, Debug)]
pub struct Truth {
    /// Message size.
    pub size: Bytes,
    /// Collective.
    pub collective: Collective,
    /// Rows of single hosts, by host; hosts without a table are empty.
    pub intra: Vec<HashMap<GpuMask, f64>>,
    /// Rows over several hosts, by counts in descending order.
    pub multi: HashMap<Vec<u8>, f64>,
}

impl Truth {
    /// The truth of an allocation.
    pub fn of(&self, a: &Allocation) -> Option<f64> {
        match a.parts() {
            [] => None,
            [(h, m)] => {
                if m.count() < 2 {
                    Some(0.0)
                } else {
                    self.intra[h.index()].get(m).copied()
                }
            }
            _ => {
                let mut k: Vec<u8> = a.counts().iter().map(|c| *c as u8).collect();
                k.sort_unstable_by(|a, b| b.cmp(a));
                self.multi.get(&k).copied()
            }
        }
    }

    /// The best truth among all ways to take `k` of the free GPUs, and whether a row of any of them is missing.
    /// Complete enumeration: every subset of single hosts, every count vector over several.
    pub fn optimum(&self, free: &Allocation, k: usize) -> (Option<f64>, bool) {
        let mut best: Option<f64> = None;
        let mut missing = false;
        let mut see = |v: Option<f64>| match v {
            Some(v) => best = Some(best.map_or(v, |b: f64| b.max(v))),
            None => missing = true,
        };
        if k == 1 {
            return (Some(0.0), false);
        }
        for &(h, m) in free.parts() {
            if m.count() >= k {
                m.subsets().filter(|s| s.count() == k).for_each(|s| see(self.intra[h.index()].get(&s).copied()));
            }
        }
        let have: Vec<usize> = free.parts().iter().map(|p| p.1.count()).collect();
        let mut seen: HashMap<Vec<u8>, ()> = HashMap::new();
        fn go(have: &[usize], left: usize, counts: &mut Vec<u8>, f: &mut dyn FnMut(&[u8])) {
            if left == 0 {
                return f(counts);
            }
            let Some((first, rest)) = have.split_first() else { return };
            if have.iter().sum::<usize>() < left {
                return;
            }
            go(rest, left, counts, f);
            for c in 1..=(*first).min(left) {
                counts.push(c as u8);
                go(rest, left - c, counts, f);
                counts.pop();
            }
        }
        go(&have, k, &mut Vec::new(), &mut |counts| {
            if counts.len() >= 2 {
                let mut key = counts.to_vec();
                key.sort_unstable_by(|a, b| b.cmp(a));
                if seen.insert(key.clone(), ()).is_none() {
                    see(self.multi.get(&key).copied());
                }
            }
        });
        (best, missing)
    }
}

/// The published tables of the four-host H100 cluster (`docs/data.md`): file prefix, and which table belongs to which host.
pub const H100_HOSTS: &str = "h100_26=n0,h100_27=n1,h100_28=n2,h100_29=n3";

/// Every truth (one per size) that a folder holds for a built-in cluster. Only `h100` has measured multi-host tables.
pub fn load(dir: &Path, cluster: &Cluster) -> Result<Vec<Truth>, Failure> {
    if cluster.name != "h100" {
        return Err(Failure::impossible(format!(
            "there is no measured multi-host table of cluster `{}`; --truth works with h100",
            cluster.name
        )));
    }
    let map = HostMap::parse(H100_HOSTS, cluster).map_err(Failure::input)?;
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .map_err(|e| Failure::file("read the folder", dir, e))?
        .filter_map(|f| Some(f.ok()?.path()))
        .filter(|p| {
            let name = p.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.ends_with(".csv") && (name.starts_with("intra_h100") || name.starts_with("multihost_h100"))
        })
        .collect();
    files.sort();
    if files.is_empty() {
        return Err(Failure::input(format!(
            "{} holds no intra_h100_*.csv and no multihost_h100_*.csv; docs/data.md tells where to get them",
            dir.display()
        )));
    }
    let mut truths: Vec<Truth> = Vec::new();
    for file in files {
        for r in read_table(&file, cluster, &map)? {
            let m = &r.measurement;
            let at = match truths.iter().position(|t| t.size == m.size && t.collective == m.collective) {
                Some(i) => i,
                None => {
                    truths.push(Truth {
                        size: m.size,
                        collective: m.collective,
                        intra: vec![HashMap::new(); cluster.hosts.len()],
                        multi: HashMap::new(),
                    });
                    truths.len() - 1
                }
            };
            let v = m.busbw.gb_per_s();
            if let [(h, mask)] = m.allocation.parts() {
                // Only the tables of single hosts tell which host it was; rows of the count table are of any host.
                if file.file_name().is_some_and(|n| n.to_string_lossy().starts_with("intra")) {
                    truths[at].intra[h.index()].insert(*mask, v);
                }
            } else {
                let mut k: Vec<u8> = m.allocation.counts().iter().map(|c| *c as u8).collect();
                k.sort_unstable_by(|a, b| b.cmp(a));
                truths[at].multi.insert(k, v);
            }
        }
    }
    truths.sort_by_key(|t| t.size);
    Ok(truths)
}

/// One published CSV table.
pub fn read_table(file: &Path, cluster: &Cluster, map: &HostMap) -> Result<Vec<Record>, Failure> {
    let text = files::read_text(file, store::CSV_FILE_BYTES_MAX)?;
    store::parse_csv(&text, &file.display().to_string(), cluster, map).map_err(Failure::input)
}

/// Where the published data lie if nobody says: `LINKWISE_DATA`, else `../shared/data` beside the current folder.
#[allow(dead_code)] // the demo asks
pub fn data_folder() -> Option<PathBuf> {
    if let Some(d) = std::env::var_os("LINKWISE_DATA") {
        return Some(PathBuf::from(d)).filter(|d| d.is_dir());
    }
    // Unit tests run in their crate's folder.
    let beside = if cfg!(test) { concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data") } else { "../shared/data" };
    Some(PathBuf::from(beside)).filter(|d| d.is_dir())
}

/// The folder of the published placement tables for a test, or none with a visible line.
#[cfg(test)]
pub fn published_tables(test: &str) -> Option<PathBuf> {
    let dir = data_folder().map(|d| d.join("bandpilot")).filter(|d| d.is_dir());
    if dir.is_none() {
        eprintln!("SKIP {test}: no data folder (set LINKWISE_DATA)");
    }
    dir
}
