//! The measured four-host H100 cluster: on several hosts the row of the sorted counts, on one host the row of the exact subset.

use super::outliers::{self, Outliers};
use super::tables::{CountKey, CountRows, H100_HOSTS, IntraRows, files, read_counts, read_intra};
use console::Failure;
use std::path::Path;
use topology::{Allocation, Cluster, GpuMask, HostId};
use truths::{About, Irregularity, Parts, Truth};

/// True if this cluster was measured as a whole: four HGX H100 or fewer.
pub fn measured_as_a_whole(cluster: &Cluster) -> bool {
    let h100 = |h: HostId| cluster.type_of(h).name.starts_with("hgx-h100");
    cluster.hosts.len() <= H100_HOSTS.len() && cluster.host_ids().all(h100)
}

/// One size of the measured cluster.
#[derive(Clone, Debug)]
pub struct MeasuredCluster {
    about: About,
    /// By host; hosts without a table have no rows.
    intra: Vec<IntraRows>,
    counts: CountRows,
}

/// All sizes in a folder. `docs/data.md` lists the files.
pub fn load(dir: &Path, cluster: &Cluster, outliers: Outliers) -> Result<Vec<MeasuredCluster>, Failure> {
    // The multi-host table comes from four hosts, also for clusters with fewer.
    let four = topology::catalog::cluster("h100").expect("built in");
    let counts = counts_by_size(dir, &four)?;
    let mut intra: Vec<(usize, IntraRows)> = Vec::new();
    for (i, (name, _)) in H100_HOSTS.iter().enumerate().take(cluster.hosts.len()) {
        for file in files(dir, &format!("intra_{name}_"))? {
            intra.push((i, read_intra(&file, name, cluster.type_of(HostId(i as u32)))?));
        }
    }
    let of_size = |counts: CountRows| {
        let mut measured = MeasuredCluster::of_size(cluster, counts, &intra);
        if outliers != Outliers::Keep {
            let mut changed = outliers::counts(&four, &mut measured.counts, outliers);
            for (h, rows) in cluster.host_ids().zip(&mut measured.intra) {
                changed += outliers::intra(cluster.type_of(h), rows, outliers);
            }
            measured.about.description += &format!("; {changed} flagged rows {}", outliers.word());
        }
        measured
    };
    Ok(counts.into_iter().map(of_size).collect())
}

/// The multi-host rows of a folder, one table per size and collective, rising sizes.
fn counts_by_size(dir: &Path, four: &Cluster) -> Result<Vec<CountRows>, Failure> {
    let mut counts: Vec<CountRows> = Vec::new();
    for file in files(dir, "multihost_h100")? {
        for t in read_counts(&file, four)? {
            match counts.iter_mut().find(|c| (c.size, c.collective) == (t.size, t.collective)) {
                Some(c) => c.by_counts.extend(t.by_counts),
                None => counts.push(t),
            }
        }
    }
    if counts.is_empty() {
        return Err(Failure::input(format!(
            "{} holds no multihost_h100_*.csv; docs/data.md names the source",
            dir.display()
        )));
    }
    counts.sort_by_key(|c| c.size);
    Ok(counts)
}

impl MeasuredCluster {
    /// The rows of one size; `intra` are the hosts' tables of all sizes.
    fn of_size(cluster: &Cluster, counts: CountRows, intra: &[(usize, IntraRows)]) -> MeasuredCluster {
        let (size, collective) = (counts.size, counts.collective);
        let own = |h: HostId| {
            let rows = intra.iter().find(|(i, t)| *i == h.index() && (t.size, t.collective) == (size, collective));
            rows.map_or_else(|| IntraRows::empty(size, collective, cluster.type_of(h).gpu_count()), |(_, t)| t.clone())
        };
        MeasuredCluster {
            about: About {
                name: format!("measured h100 {size}"),
                description: format!(
                    "measured: sorted counts over hosts ({} rows), subsets inside a host; {collective} {size}",
                    counts.by_counts.len()
                ),
                cluster: cluster.clone(),
                size,
                collective,
                simulated: false,
            },
            intra: cluster.host_ids().map(own).collect(),
            counts,
        }
    }

    /// Whether every host has its own table.
    pub fn has_every_host(&self) -> bool {
        self.intra.iter().all(|rows| rows.rows().next().is_some())
    }

    /// The splits over several hosts that have a row, each on the first hosts with their first GPUs; descending counts, ascending order.
    pub fn splits(&self) -> Vec<Allocation> {
        let mut keys: Vec<&CountKey> = self.counts.by_counts.keys().collect();
        keys.sort();
        keys.into_iter().map(CountKey::allocation).collect()
    }
}

impl Truth for MeasuredCluster {
    fn about(&self) -> &About {
        &self.about
    }
    fn of_parts(&self, parts: Parts, _: Irregularity) -> Option<f64> {
        match parts {
            [] => None,
            [(h, m)] => self.intra[h.index()].get(*m),
            _ => self.counts.by_counts.get(&CountKey::of(parts.iter().map(|p| p.1.count()))?).copied(),
        }
    }
    /// A row is one reading, so its scatter is unknown.
    fn noise(&self, _hosts: usize) -> f64 {
        0.0
    }
    fn masks_that_matter(&self, _: HostId, free: GpuMask, count: usize, alone: bool, _: Irregularity) -> Vec<GpuMask> {
        let masks = free.subsets().filter(|m| m.count() == count);
        // Across hosts only the counts matter.
        if alone { masks.collect() } else { masks.take(1).collect() }
    }
    fn merits(&self, _: HostId, _: GpuMask) -> Option<Vec<f64>> {
        Some(Vec::new())
    }
}
