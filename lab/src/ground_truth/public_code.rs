//! The truth with which BandPilot's public code is judged (`facts/bandpilot.md`, last section).
//!
//! Without other jobs, the bandwidth of an allocation is the 2 GiB table's row of its sorted counts, truncated to an
//! integer; on the mixed cluster it is the smaller of that row and the 16 MiB reading of the exact GPUs on every host
//! with two or more. [`crate::scenarios`] has the rule by which jobs share.

use super::tables::{CountKey, CountRows, IntraRows, files, h100_hosts, read_all_counts, read_intra, read_table};
use console::Failure;
use std::collections::HashMap;
use std::path::Path;
use topology::{Allocation, Bytes, Cluster, GpuMask, HostId, HostType, catalog};
use truths::{About, Irregularity, Parts, Truth};

/// Message size of the table over several hosts.
pub const SIZE: Bytes = Bytes::gib(2);
/// The names of the multi-host files begin with this.
const TABLE_PREFIX: &str = "multihost_h100_2gib";
/// Host types of the mixed cluster, n0 to n3, as their intra files are named. The order is the paper's; no other reproduces the truths.
const MIXED_TYPES: [&str; 4] = ["4090", "v100", "a6000", "a800"];
/// Subsets of two or more of eight GPUs.
const SUBSETS: usize = (1 << 8) - 1 - 8;

/// The truth of BandPilot's public code on one cluster.
#[derive(Clone, Debug)]
pub struct PublicCode {
    about: About,
    /// The table, including single hosts.
    pub counts: CountRows,
    /// Rows that follow from the files of requests, truncated to integers. They judge only; no model learns from them.
    recovered: HashMap<CountKey, f64>,
    /// On the mixed cluster: by host, the readings of its subsets.
    intra: Option<Vec<IntraRows>>,
    /// The smallest row of the table. Missing rows are assumed not to be smaller.
    smallest: f64,
}

/// The cluster with a name in the files.
///
/// The mixed cluster is composed: four host types behind the network of the H100 cluster. By its links each type is an
/// H100 host; its own bandwidth comes from its measured table.
pub fn cluster(name: &str) -> Option<Cluster> {
    let mut c = catalog::cluster("h100")?;
    match name {
        "h100" => {}
        "het4mix" | "het-4mix" => {
            c.name = "het-4mix".into();
            let base = c.types[0].clone();
            c.types = MIXED_TYPES.iter().map(|t| HostType { name: (*t).into(), ..base.clone() }).collect();
            for (t, h) in c.hosts.iter_mut().enumerate() {
                h.host_type = t;
            }
        }
        _ => return None,
    }
    Some(c)
}

impl PublicCode {
    /// Reads the tables of a folder for a cluster of [`cluster`].
    pub fn load(dir: &Path, cluster: Cluster) -> Result<PublicCode, Failure> {
        let h100 = catalog::cluster("h100").ok_or_else(|| Failure::impossible("no built-in cluster `h100`"))?;
        let mut counts: Option<CountRows> = None;
        for file in files(dir, TABLE_PREFIX)? {
            for t in read_all_counts(&file, &h100)? {
                counts
                    .get_or_insert_with(|| CountRows { by_counts: HashMap::new(), ..t.clone() })
                    .by_counts
                    .extend(t.by_counts);
            }
        }
        let counts = counts.ok_or_else(|| {
            Failure::input(format!(
                "{} holds no rows of {TABLE_PREFIX}*.csv; docs/data.md names the source",
                dir.display()
            ))
        })?;
        let intra = (cluster.types.len() > 1).then(|| mixed_intra(dir, &cluster)).transpose()?;
        let smallest = counts.by_counts.values().copied().fold(f64::INFINITY, f64::min);
        let about = About {
            name: "BandPilot's public code".to_owned(),
            description:
                "the 2 GiB table in whole numbers; on the mixed cluster at most the hosts' own 16 MiB readings"
                    .to_owned(),
            cluster,
            size: counts.size,
            collective: counts.collective,
            simulated: intra.is_some(),
        };
        Ok(PublicCode { about, counts, recovered: HashMap::new(), intra, smallest })
    }

    /// The tables inside the hosts, by host; empty if the table's row of one host is the truth.
    pub fn intra(&self) -> &[IntraRows] {
        self.intra.as_deref().unwrap_or(&[])
    }

    /// The splits over several hosts that have a row of the table, ascending.
    pub fn splits(&self) -> Vec<&CountKey> {
        let mut keys: Vec<&CountKey> = self.counts.by_counts.keys().filter(|k| k.counts().count() > 1).collect();
        keys.sort(); // the order of a hash map is not repeatable
        keys
    }

    /// The smallest reading inside the hosts that give two GPUs or more; infinite if no host's table counts. `None`: no
    /// row.
    fn inside(&self, parts: Parts) -> Option<f64> {
        let mut low = f64::INFINITY;
        for (rows, m) in self.intra.iter().flat_map(|all| parts.iter().map(|&(h, m)| (&all[h.index()], m))) {
            if m.count() >= 2 {
                low = low.min(rows.get(m)?);
            }
        }
        Some(low)
    }

    /// Bandwidth of an allocation without other jobs, GB/s in whole numbers; `None` if a missing row could matter.
    pub fn alone(&self, a: &Allocation) -> Option<f64> {
        self.of_parts(a.parts(), Irregularity::With)
    }

    /// The untruncated reading of a multi-host allocation, as from a benchmark; `None` if the table has no row.
    pub fn reading(&self, a: &Allocation) -> Option<f64> {
        let row = *self.counts.by_counts.get(&key(a.parts())?)?;
        Some(row.min(self.inside(a.parts())?))
    }

    /// Adds a row that follows from a file of requests; the first value of a row is kept.
    pub fn recover_row(&mut self, a: &Allocation, gb_per_s: f64) {
        if let Some(key) = key(a.parts())
            && a.gpu_count() >= 2
            && !self.counts.by_counts.contains_key(&key)
        {
            self.recovered.entry(key).or_insert(gb_per_s.floor());
        }
    }

    /// Number of rows that follow from files of requests.
    pub fn recovered(&self) -> usize {
        self.recovered.len()
    }

    /// Readings inside single hosts that exist in addition to [`PublicCode::intra`]: the 2 GiB tables of H100 hosts.
    pub fn measured_inside(&self, dir: &Path) -> Result<Vec<store::Measurement>, Failure> {
        if self.intra.is_some() {
            return Ok(Vec::new());
        }
        let map = h100_hosts(self.cluster())?;
        let mut out = Vec::new();
        for file in files(dir, "intra_h100_")? {
            let rows = read_table(&file, self.cluster(), &map)?;
            out.extend(rows.into_iter().map(|r| r.measurement).filter(|m| m.size == SIZE));
        }
        Ok(out)
    }
}

fn key(parts: Parts) -> Option<CountKey> {
    CountKey::of(parts.iter().map(|p| p.1.count()))
}

impl Truth for PublicCode {
    fn about(&self) -> &About {
        &self.about
    }
    fn of_parts(&self, parts: Parts, _: Irregularity) -> Option<f64> {
        if parts.iter().map(|p| p.1.count()).sum::<usize>() < 2 {
            return Some(0.0);
        }
        let inside = self.inside(parts)?;
        if self.intra.is_some() && parts.len() < 2 {
            return Some(inside.floor());
        }
        let key = key(parts)?;
        match self.counts.by_counts.get(&key).or_else(|| self.recovered.get(&key)) {
            Some(row) => Some(inside.min(*row).floor()),
            None if inside < self.smallest => Some(inside.floor()),
            None => None,
        }
    }
    /// A row is one reading, so its scatter is unknown.
    fn noise(&self, _hosts: usize) -> f64 {
        0.0
    }
    fn merits(&self, host: HostId, mask: GpuMask) -> Option<Vec<f64>> {
        Some(self.intra.iter().map(|all| all[host.index()].get(mask).unwrap_or(f64::NAN)).collect())
    }
}

/// The measured subsets of the mixed cluster's hosts.
fn mixed_intra(dir: &Path, cluster: &Cluster) -> Result<Vec<IntraRows>, Failure> {
    let of_host = |(i, t): (usize, &&str)| {
        let mut table: Option<IntraRows> = None;
        for file in files(dir, &format!("intra_{t}_16mib"))? {
            let read = read_intra(&file, t, cluster.type_of(HostId(i as u32)))?;
            match &mut table {
                Some(all) => read.rows().for_each(|(m, v)| all.set(m, Some(v))),
                None => table = Some(read),
            }
        }
        let rows = table.as_ref().map_or(0, |t| t.rows().count());
        table.filter(|_| rows == SUBSETS).ok_or_else(|| {
            Failure::input(format!(
                "{} has {rows} of the {SUBSETS} rows of intra_{t}_16mib.csv, which the mixed cluster needs (docs/data.md)",
                dir.display()
            ))
        })
    };
    MIXED_TYPES.iter().enumerate().map(of_host).collect()
}
