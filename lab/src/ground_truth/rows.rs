//! Rows of the published tables, as truths need them.

use crate::published::read_table;
use console::Failure;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use store::HostMap;
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask, Host, HostId, HostType};

/// Most hosts of a count vector.
const HOSTS_OF_A_ROW: usize = 12;

/// Every measured subset of one host at one size.
#[derive(Clone, Debug, PartialEq)]
pub struct IntraRows {
    /// Message size.
    pub size: Bytes,
    /// Collective.
    pub collective: Collective,
    /// GB/s by mask; NaN: no row.
    by_mask: Vec<f64>,
}

impl IntraRows {
    /// No row yet, for a host of so many GPUs.
    pub fn empty(size: Bytes, collective: Collective, gpus: usize) -> Self {
        IntraRows { size, collective, by_mask: vec![f64::NAN; 1 << gpus] }
    }
    /// GB/s, if there is a row; 0 for one GPU.
    pub fn get(&self, mask: GpuMask) -> Option<f64> {
        if mask.count() < 2 {
            return Some(0.0);
        }
        self.by_mask.get(mask.0 as usize).copied().filter(|v| !v.is_nan())
    }
    /// Sets a row; none removes it.
    pub fn set(&mut self, mask: GpuMask, gb_per_s: Option<f64>) {
        self.by_mask[mask.0 as usize] = gb_per_s.unwrap_or(f64::NAN);
    }
    /// All rows, ascending by mask.
    pub fn rows(&self) -> impl Iterator<Item = (GpuMask, f64)> + '_ {
        let all = self.by_mask.iter().enumerate().filter(|(_, v)| !v.is_nan());
        all.map(|(m, v)| (GpuMask(m as u32), *v))
    }
}

/// Counts over hosts whatever their order: the key of a published row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CountKey([u8; HOSTS_OF_A_ROW]);

impl CountKey {
    /// Of the GPUs per host; none beyond twelve hosts.
    pub fn of(counts: impl Iterator<Item = usize>) -> Option<Self> {
        let mut k = [0u8; HOSTS_OF_A_ROW];
        let mut n = 0;
        for c in counts {
            *k.get_mut(n)? = c as u8;
            n += 1;
        }
        k[..n].sort_unstable_by(|a, b| b.cmp(a));
        Some(CountKey(k))
    }
    /// The same split on the first hosts, with their first GPUs.
    pub fn allocation(&self) -> Allocation {
        let parts = self.0.iter().enumerate().filter(|c| *c.1 > 0);
        Allocation::new(parts.map(|(h, c)| (HostId(h as u32), GpuMask::first(*c as usize))))
    }
}

/// Rows over several hosts at one size: by sorted counts, since the published table tells neither hosts nor GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct CountRows {
    /// Message size.
    pub size: Bytes,
    /// Collective.
    pub collective: Collective,
    /// GB/s.
    pub by_counts: HashMap<CountKey, f64>,
}

/// A cluster of one host, to read a table of its type.
fn alone(t: HostType, name: &str) -> Cluster {
    let host = Host { name: name.into(), ..Host::default() };
    Cluster { name: name.into(), types: vec![t], hosts: vec![host], ..Cluster::default() }
}

/// The intra table of a host type in one file whose host is called `name_in_file`. The file must hold one size.
pub fn read_intra(file: &Path, name_in_file: &str, t: &HostType) -> Result<IntraRows, Failure> {
    let cluster = alone(t.clone(), "n0");
    let map = HostMap::parse(&format!("{name_in_file}=n0"), &cluster).map_err(Failure::input)?;
    let mut table: Option<IntraRows> = None;
    for r in read_table(file, &cluster, &map)? {
        let m = &r.measurement;
        let rows = table.get_or_insert_with(|| IntraRows::empty(m.size, m.collective, t.gpu_count()));
        if (rows.size, rows.collective) != (m.size, m.collective) {
            return Err(Failure::input(format!("{}: rows of several sizes or collectives", file.display())));
        }
        rows.set(m.allocation.mask(HostId(0)), Some(m.busbw.gb_per_s()));
    }
    table.ok_or_else(|| Failure::input(format!("{}: no rows", file.display())))
}

/// The count vectors over several hosts in one file, by size. Rows of single hosts are passed over: the file does not tell which host.
pub fn read_counts(file: &Path, cluster: &Cluster) -> Result<Vec<CountRows>, Failure> {
    let mut tables: Vec<CountRows> = Vec::new();
    for r in read_table(file, cluster, &HostMap::default())? {
        let m = &r.measurement;
        let Some(key) = CountKey::of(m.allocation.counts().into_iter()).filter(|_| m.allocation.host_count() > 1)
        else {
            continue;
        };
        let at = tables.iter().position(|t| (t.size, t.collective) == (m.size, m.collective)).unwrap_or_else(|| {
            tables.push(CountRows { size: m.size, collective: m.collective, by_counts: HashMap::new() });
            tables.len() - 1
        });
        tables[at].by_counts.insert(key, m.busbw.gb_per_s());
    }
    Ok(tables)
}

/// The CSV files of a folder whose names start so, by name.
pub fn files(dir: &Path, prefix: &str) -> Result<Vec<PathBuf>, Failure> {
    let listed = std::fs::read_dir(dir).map_err(|e| Failure::file("read the folder", dir, e))?;
    let mut files: Vec<PathBuf> = listed
        .filter_map(|f| Some(f.ok()?.path()))
        .filter(|p| {
            let name = p.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with(prefix) && name.ends_with(".csv")
        })
        .collect();
    files.sort();
    Ok(files)
}
