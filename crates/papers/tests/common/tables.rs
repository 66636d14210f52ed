//! The published H100 tables, as tests and examples read them.
#![allow(dead_code)] // each of them uses a part

use std::collections::HashMap;
use std::path::PathBuf;
use store::{Measurement, Source};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId};

/// Bandwidths of one size, GB/s.
pub struct Tables {
    pub size: Bytes,
    pub intra: Vec<(Allocation, f64)>,
    /// By counts in descending order.
    pub multi: HashMap<Vec<usize>, f64>,
}

impl Tables {
    pub fn of(&self, a: &Allocation) -> Option<f64> {
        let mut counts = a.counts();
        counts.sort_by(|x, y| y.cmp(x));
        self.multi.get(&counts).copied()
    }
    pub fn row(&self, a: &Allocation, v: f64) -> Measurement {
        let v = Bandwidth::from_gb_per_s(v);
        Measurement::new(a.clone(), Collective::AllReduce, self.size, v, Source::Published)
    }
    pub fn intra_rows(&self) -> Vec<Measurement> {
        self.intra.iter().map(|(a, v)| self.row(a, *v)).collect()
    }
    /// Those of some allocations that the table has a row for.
    pub fn truths(&self, of: Vec<Allocation>) -> Vec<(Allocation, f64)> {
        of.into_iter().filter_map(|a| self.of(&a).map(|v| (a, v))).collect()
    }
    pub fn rows(&self, of: &[(Allocation, f64)]) -> Vec<Measurement> {
        of.iter().map(|(a, v)| self.row(a, *v)).collect()
    }
}

fn folder() -> Option<PathBuf> {
    let d = match std::env::var_os("LINKWISE_DATA") {
        Some(d) => PathBuf::from(d),
        None => PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data")),
    };
    Some(d.join("bandpilot")).filter(|d| d.is_dir())
}

/// The tables of all-reduce at `16mib` or `2gib`; None, with a visible line, without the data.
pub fn h100(test: &str, size: &str, cluster: &Cluster) -> Option<Tables> {
    let Some(folder) = folder() else {
        eprintln!("SKIP {test}: no data folder (set LINKWISE_DATA)");
        return None;
    };
    let bytes = if size == "16mib" { Bytes::mib(16) } else { Bytes::gib(2) };
    let mut t = Tables { size: bytes, intra: Vec::new(), multi: HashMap::new() };
    let read = |name: String| std::fs::read_to_string(folder.join(name)).ok();
    for host in 0..4u32 {
        let Some(text) = read(format!("intra_h100_{}_{size}.csv", 26 + host)) else { continue };
        for line in text.lines().skip(1) {
            let f: Vec<&str> = line.split(',').collect();
            let mask = f[1].split(' ').fold(0, |m, g| m | 1u32 << g.parse::<u32>().unwrap());
            t.intra.push((Allocation::new([(HostId(host), GpuMask(mask))]), f[4].parse().unwrap()));
        }
    }
    let multi = if size == "16mib" { "multihost_h100_16mib.csv" } else { "multihost_h100_2gib_half.csv" };
    for line in read(multi.into())?.lines().skip(1) {
        let f: Vec<&str> = line.split(',').collect();
        let counts: Vec<usize> = f[0].split('+').map(|c| c.parse().unwrap()).filter(|c| *c > 0).collect();
        if counts.len() > 1 {
            t.multi.insert(counts, f[4].parse().unwrap());
        }
    }
    assert_eq!(cluster.hosts.len(), 4);
    Some(t)
}
