//! CSV into a store and out of it.

use super::args::Args;
use crate::brief;
use crate::store_errors::OrFailure;
use console::Failure;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use store::{HostMap, Measurement, Quality, Query, Record, Source, Store};
use topology::Cluster;

/// A file that was read and found good.
pub struct Import {
    path: PathBuf,
    records: Vec<Record>,
    far: usize,
    without_bandwidth: usize,
    above_links: Option<AboveLinks>,
}

/// Readings far above what the links of their GPUs allow.
#[derive(serde::Serialize)]
pub struct AboveLinks {
    /// How many.
    pub readings: usize,
    /// The GPUs of the first one.
    pub first_gpus: String,
    /// Its bandwidth.
    pub first_gb_per_s: f64,
    /// What the links of its GPUs allow.
    pub links_allow_gb_per_s: f64,
}

/// What an import did.
#[derive(serde::Serialize)]
pub struct Imported {
    /// The file.
    pub file: String,
    /// Rows of it.
    pub rows: usize,
    /// Rows stored now.
    pub added: usize,
    /// Rows known already.
    pub already: usize,
    /// Rows far from comparable ones, stored as suspect.
    pub suspect: usize,
    /// Rows of 0 GB/s, stored as rejected.
    pub without_bandwidth: usize,
    /// Rows far above what the links allow.
    pub above_links: Option<AboveLinks>,
}

/// Reads every `--import` file, or none: the first error ends it before anything is stored.
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

/// A reading of 0 GB/s is no bandwidth: nothing may learn it as a good one.
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

/// Published tables are single shots: readings far from comparable ones are marked, never changed.
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

/// Stores one file, whole or not at all.
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

/// Writes everything in the store; `-` is standard output. A file is replaced only when the new one is complete.
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
