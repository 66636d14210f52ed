//! Imports CSV files into a store and exports a store as CSV.

use super::args::Args;
use crate::brief;
use crate::store_errors::OrFailure;
use console::Failure;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use store::{HostMap, Measurement, Quality, Query, Record, Source, Store};
use topology::Cluster;

/// An import file that was read and checked.
pub struct Import {
    path: PathBuf,
    records: Vec<Record>,
    far: usize,
    without_bandwidth: usize,
    above_links: Option<AboveLinks>,
}

/// The readings far above the bandwidth that the links of their GPUs allow.
#[derive(serde::Serialize)]
pub struct AboveLinks {
    /// Number of such readings.
    pub readings: usize,
    /// GPUs of the first such reading.
    pub first_gpus: String,
    /// Bandwidth of the first such reading.
    pub first_gb_per_s: f64,
    /// Bandwidth that the links of these GPUs allow.
    pub links_allow_gb_per_s: f64,
}

/// Result of one import.
#[derive(serde::Serialize)]
pub struct Imported {
    /// Path of the file.
    pub file: String,
    /// Rows in the file.
    pub rows: usize,
    /// Rows added to the store.
    pub added: usize,
    /// Rows that the store already held.
    pub already: usize,
    /// Rows far from comparable readings, stored as suspect.
    pub suspect: usize,
    /// Rows of 0 GB/s, stored as rejected.
    pub without_bandwidth: usize,
    /// Rows far above the bandwidth that the links allow.
    pub above_links: Option<AboveLinks>,
}

/// Reads every `--import` file. An error in any file ends the import before the store is changed.
pub fn read_all(args: &Args, cluster: &Cluster) -> Result<Vec<Import>, Failure> {
    let map = HostMap::parse(&args.host_map, cluster).map_err(|e| Failure::input(format!("--host-map: {e}")))?;
    args.import.iter().map(|path| read(path, cluster, &map, args.force)).collect()
}

fn read(path: &Path, cluster: &Cluster, map: &HostMap, force: bool) -> Result<Import, Failure> {
    let bytes = files::read_limited(path, store::csv_in::FILE_BYTES_MAX)?;
    let text = String::from_utf8(bytes).map_err(|e| {
        let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = before.iter().filter(|b| **b == b'\n').count() + 1;
        Failure::input(format!("{}:{line}:1: not UTF-8 text; save the file as UTF-8", path.display()))
    })?;
    let name = path.display().to_string();
    let mut records = store::parse_csv(&text, &name, cluster, map).map_err(Failure::input)?;
    let measurements: Vec<_> = records.iter().map(|r| r.measurement.clone()).collect();
    let now = console::now_unix_s();
    let late = measurements.iter().try_for_each(|m| engine::check_time(m, now));
    late.map_err(|e| Failure::input(format!("{name}: {e}")))?;
    if !force {
        engine::check_plausible(cluster, &measurements)
            .map_err(|e| Failure::input(format!("{name}: {}", e.with_remedy())))?;
    }
    let above_links = above_links(&measurements, cluster);
    let without_bandwidth = reject_zeros(&mut records);
    let far = mark_suspects(&mut records, cluster);
    Ok(Import { path: path.into(), records, far, without_bandwidth, above_links })
}

/// Marks readings of 0 GB/s as rejected, so that no model learns from them. Returns their number.
fn reject_zeros(records: &mut [Record]) -> usize {
    let zeros = records.iter_mut().filter(|r| r.measurement.busbw.gb_per_s() == 0.0);
    zeros.map(|r| r.measurement.quality = Quality::Rejected).count()
}

fn above_links(readings: &[Measurement], cluster: &Cluster) -> Option<AboveLinks> {
    let above = engine::above_links(cluster, readings);
    let mut found = readings.iter().zip(above).filter_map(|(m, most)| Some((m, most?)));
    let (m, links_allow_gb_per_s) = found.next()?;
    Some(AboveLinks {
        readings: 1 + found.count(),
        first_gpus: brief::gpus(cluster, &m.allocation),
        first_gb_per_s: m.busbw.gb_per_s(),
        links_allow_gb_per_s,
    })
}

/// Marks readings far from comparable ones as suspect and returns their number: each published value is a single
/// measurement. Bandwidths stay unchanged.
fn mark_suspects(records: &mut [Record], cluster: &Cluster) -> usize {
    let mut tables: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (i, Record { measurement: m, .. }) in records.iter().enumerate() {
        if let ([(host, mask)], Source::Published, Quality::Good) = (m.allocation.parts(), m.source, m.quality)
            && mask.count() >= 2
        {
            tables.entry((*host, m.collective, m.size)).or_default().push(i);
        }
    }
    let mut far = HashSet::new();
    for ((host, ..), members) in tables {
        let readings: Vec<_> = members
            .iter()
            .map(|&i| (records[i].measurement.allocation.mask(host), records[i].measurement.busbw.gb_per_s()))
            .collect();
        far.extend(measure::outlier::intra(cluster.type_of(host), &readings).into_iter().map(|k| members[k]));
    }
    for &i in &far {
        records[i].measurement.quality = Quality::Suspect;
    }
    far.len()
}

/// Stores all rows of one file, or none.
pub fn store_one(import: Import, store: &mut Store) -> Result<Imported, Failure> {
    let done = store.insert_batch(&import.records).or_failure()?;
    Ok(Imported {
        file: import.path.display().to_string(),
        rows: import.records.len(),
        added: done.added,
        already: done.already,
        suspect: import.far,
        without_bandwidth: import.without_bandwidth,
        above_links: import.above_links,
    })
}

/// Writes every measurement of the store to `path`, or to standard output for `-`. An existing file is replaced only by
/// a complete new one. Returns the number of rows.
pub fn export(path: &Path, store: &Store) -> Result<usize, Failure> {
    let records = store.records(&Query::all()).or_failure()?;
    let mut csv = Vec::new();
    store::write_csv(store.cluster(), &records, &mut csv).map_err(|e| Failure::file("write", path, e))?;
    if path == Path::new("-") {
        console::print(&String::from_utf8_lossy(&csv));
    } else {
        files::write_atomic(path, &csv)?;
    }
    Ok(records.len())
}
