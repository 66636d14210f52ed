//! CSV into a store and out of it.

use super::args::Args;
use crate::store_errors::OrFailure;
use console::Failure;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use store::{HostMap, Quality, Query, Record, Source, Store};
use topology::Cluster;

/// A file that was read and found good.
pub struct Import {
    path: PathBuf,
    records: Vec<Record>,
    far: usize,
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
    if !force {
        let measurements: Vec<_> = records.iter().map(|r| r.measurement.clone()).collect();
        engine::check_plausible(cluster, &measurements)
            .map_err(|e| Failure::input(format!("{name}: {}", e.with_remedy())))?;
    }
    let far = mark_suspects(&mut records, cluster);
    Ok(Import { path: path.into(), records, far })
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
