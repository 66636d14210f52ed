//! The reader of the published tables, and their rows in the form of the truths.

use console::Failure;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use store::{HostMap, Record};
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask, Host, HostId, HostType};

/// Maximum number of hosts of a count vector.
const HOSTS_OF_A_ROW: usize = 12;

/// The measured hosts of the H100 cluster: the name in the files, and the host of the built-in cluster (`docs/data.md`).
pub const H100_HOSTS: [(&str, &str); 4] = [("h100_26", "n0"), ("h100_27", "n1"), ("h100_28", "n2"), ("h100_29", "n3")];

/// [`H100_HOSTS`] as the host map of the table reader.
///
/// # Errors
/// The cluster does not have these hosts.
pub fn h100_hosts(cluster: &Cluster) -> Result<HostMap, Failure> {
    let list: Vec<String> = H100_HOSTS.iter().map(|(file, host)| format!("{file}={host}")).collect();
    HostMap::parse(&list.join(","), cluster).map_err(Failure::input)
}

/// Reads one published CSV table.
pub fn read_table(file: &Path, cluster: &Cluster, map: &HostMap) -> Result<Vec<Record>, Failure> {
    let text = files::read_text(file, store::CSV_FILE_BYTES_MAX)?;
    store::parse_csv(&text, &file.display().to_string(), cluster, map).map_err(Failure::input)
}

/// Every measured subset of one host at one size.
#[derive(Clone, Debug, PartialEq)]
pub struct IntraRows {
    pub size: Bytes,
    pub collective: Collective,
    /// GB/s by mask; NaN: no row.
    by_mask: Vec<f64>,
}

impl IntraRows {
    /// An empty table for a host of `gpus` GPUs.
    pub fn empty(size: Bytes, collective: Collective, gpus: usize) -> Self {
        IntraRows { size, collective, by_mask: vec![f64::NAN; 1 << gpus] }
    }
    /// GB/s; `None` without a row, 0 for one GPU.
    pub fn get(&self, mask: GpuMask) -> Option<f64> {
        if mask.count() < 2 {
            return Some(0.0);
        }
        self.by_mask.get(mask.0 as usize).copied().filter(|v| !v.is_nan())
    }
    /// Sets a row; `None` removes it.
    pub fn set(&mut self, mask: GpuMask, gb_per_s: Option<f64>) {
        self.by_mask[mask.0 as usize] = gb_per_s.unwrap_or(f64::NAN);
    }
    /// All rows, ascending by mask.
    pub fn rows(&self) -> impl Iterator<Item = (GpuMask, f64)> + '_ {
        let all = self.by_mask.iter().enumerate().filter(|(_, v)| !v.is_nan());
        all.map(|(m, v)| (GpuMask(m as u32), *v))
    }
}

/// GPUs per host in any order: the key of a published row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CountKey([u8; HOSTS_OF_A_ROW]);

impl CountKey {
    /// The key of a split; `None` for more than twelve hosts.
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
    /// GPUs per host, descending.
    pub fn counts(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().map(|c| usize::from(*c)).filter(|c| *c > 0)
    }
    /// The same split on the first hosts, with their first GPUs.
    pub fn allocation(&self) -> Allocation {
        Allocation::new(self.counts().enumerate().map(|(h, c)| (HostId(h as u32), GpuMask::first(c))))
    }
}

/// Rows by sorted counts at one size: the published table names neither hosts nor GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct CountRows {
    pub size: Bytes,
    pub collective: Collective,
    /// GB/s.
    pub by_counts: HashMap<CountKey, f64>,
}

/// A cluster of one host, for reading a table of its type.
fn alone(t: HostType, name: &str) -> Cluster {
    let host = Host { name: name.into(), ..Host::default() };
    Cluster { name: name.into(), types: vec![t], hosts: vec![host], ..Cluster::default() }
}

/// The intra table of a host type from a file that calls the host `name_in_file`. The file must hold one size.
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

/// The count vectors over several hosts in one file, by size. Rows of single hosts are omitted, because the file does
/// not name the host.
pub fn read_counts(file: &Path, cluster: &Cluster) -> Result<Vec<CountRows>, Failure> {
    let mut tables = read_all_counts(file, cluster)?;
    for t in &mut tables {
        t.by_counts.retain(|key, _| key.counts().count() > 1);
    }
    tables.retain(|t| !t.by_counts.is_empty());
    Ok(tables)
}

/// All count vectors in one file, by size, including single hosts.
pub fn read_all_counts(file: &Path, cluster: &Cluster) -> Result<Vec<CountRows>, Failure> {
    let mut tables: Vec<CountRows> = Vec::new();
    for r in read_table(file, cluster, &HostMap::default())? {
        let m = &r.measurement;
        let Some(key) = CountKey::of(m.allocation.counts().into_iter()) else { continue };
        let at = tables.iter().position(|t| (t.size, t.collective) == (m.size, m.collective)).unwrap_or_else(|| {
            tables.push(CountRows { size: m.size, collective: m.collective, by_counts: HashMap::new() });
            tables.len() - 1
        });
        tables[at].by_counts.insert(key, m.busbw.gb_per_s());
    }
    Ok(tables)
}

/// The CSV files of a folder whose names start with `prefix`, by name.
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
