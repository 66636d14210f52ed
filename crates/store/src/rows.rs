//! Converts rows to measurements, and queries to SQL.

use crate::db::{Column, Row, Sql, Val};
use crate::measurement::{Measurement, Quality, Record};
use crate::query::{Place, Query};
use crate::store::Store;
use std::collections::{HashMap, HashSet};
use topology::allocation::GPUS_PER_HOST_MAX;
use topology::{Allocation, Bandwidth, Bytes, Cluster, GpuMask, HostId, Seconds};

/// The columns of a measurement, in the order in which [`record_of`] reads them.
pub(crate) const COLUMNS: &str = "run_id, allocation, collective, size_bytes, busbw_gb_per_s, time_s, algorithm, protocol, channels, \
     nccl_version, contention, job, taken_at_unix_s, source, provenance, quality";

/// The SQL condition of a query, and its values. Ends with ORDER BY and LIMIT: ascending by number, or newest first if the query asks
/// for the newest. `ids`: only readings with these numbers.
pub(crate) fn clause<'q>(
    sql: &Sql<'_>,
    cluster: &Cluster,
    q: &'q Query,
    ids: Option<&[i64]>,
) -> (String, Vec<Val<'q>>) {
    let mut clause = vec!["true".to_owned()];
    let mut values: Vec<Val<'q>> = Vec::new();
    let text = |t: &str| Val::from(t.to_owned());
    let unless_rejected = q.quality.is_none() && !q.with_rejected;
    let of_host = if let Place::Host(h) = q.place { Some(text(&cluster.host(h).name)) } else { None };
    let compared = [
        ("collective", "=", q.collective.map(|c| text(c.name()))),
        ("size_bytes", "=", q.size.map(|s| Val::from(s.0 as i64))),
        ("source", "=", q.source.map(|s| text(s.name()))),
        ("job", "=", q.job.as_deref().map(text)),
        ("id", "=", q.id.map(Val::from)),
        ("id", ">", q.after.map(Val::from)),
        ("id", "<=", q.until.map(Val::from)),
        ("quality", "=", q.quality.map(|quality| text(quality.name()))),
        ("quality", "<>", unless_rejected.then(|| text(Quality::Rejected.name()))),
        ("host", "=", of_host),
    ];
    for (column, op, value) in compared {
        if let Some(value) = value {
            values.push(value);
            clause.push(format!("{column} {op} ?{}", values.len()));
        }
    }
    if let Some(prefix) = &q.run_prefix {
        values.push(prefix.into());
        clause.push(format!("substr(run_id, 1, length(?{0})) = ?{0}", values.len()));
    }
    match q.place {
        Place::Any | Place::Host(_) => {}
        Place::OneHost => clause.push("host IS NOT NULL".into()),
        Place::SeveralHosts => clause.push("host IS NULL".into()),
    }
    if !q.with_withdrawn {
        clause.push("withdrawn = 0".into());
    }
    if !q.touching.is_empty() {
        let first = values.len() + 1;
        values.extend(q.touching.iter().map(|h| Val::from(cluster.host(*h).name.clone())));
        let list: Vec<String> = (first..=values.len()).map(|i| format!("?{i}")).collect();
        clause.push(format!("id IN (SELECT reading FROM reading_of_host WHERE host IN ({}))", list.join(", ")));
    }
    if let Some(ids) = ids {
        let ids: Vec<String> = ids.iter().map(i64::to_string).collect();
        values.push(format!("[{}]", ids.join(",")).into());
        let list = sql.dialect("SELECT value FROM json_each(", "SELECT value::bigint FROM json_array_elements_text((");
        let end = sql.dialect(")", ")::json)");
        clause.push(format!("id IN ({list}?{}{end})", values.len()));
    }
    let limit = match (q.newest, q.oldest) {
        (Some(n), _) => format!(" DESC LIMIT {}", n.min(i64::MAX as usize)),
        (None, Some(n)) => format!(" LIMIT {}", n.min(i64::MAX as usize)),
        (None, None) => String::new(),
    };
    (format!("{} ORDER BY id{limit}", clause.join(" AND ")), values)
}

/// The inverse of [`allocation_text`] for texts of the store; none if the cluster no longer has one of the hosts or
/// GPUs. These texts list the GPUs of a host consecutively, so each host is looked up once. O(length).
fn stored_allocation(
    cluster: &Cluster,
    index: &HashMap<&str, HostId>,
    text: &str,
) -> Result<Option<Allocation>, String> {
    let mut parts: Vec<(HostId, GpuMask)> = Vec::new();
    let mut last = "";
    let mut gone = false;
    for t in text.split(' ') {
        let (name, gpu) = t.rsplit_once(':').ok_or_else(|| format!("`{t}` is not a GPU"))?;
        let gpu: usize =
            gpu.parse().ok().filter(|g| *g < GPUS_PER_HOST_MAX).ok_or_else(|| format!("`{t}` is not a GPU"))?;
        if name != last {
            last = name;
            match index.get(name) {
                Some(host) => parts.push((*host, GpuMask::EMPTY)),
                None => gone = true,
            }
        }
        let Some((host, mask)) = parts.last_mut().filter(|_| index.contains_key(last)) else { continue };
        if mask.contains(gpu) {
            return Err(format!("`{t}` is named twice"));
        }
        gone |= gpu >= cluster.type_of(*host).gpu_count();
        *mask = mask.union(GpuMask(1 << gpu));
    }
    if gone {
        return Ok(None);
    }
    let gpus: usize = parts.iter().map(|p| p.1.count()).sum();
    let a = Allocation::new(parts);
    if a.gpu_count() == gpus { Ok(Some(a)) } else { Err("a GPU is named twice".into()) }
}

/// The canonical text of an allocation: `n0:0 n0:1`.
pub(crate) fn allocation_text(cluster: &Cluster, allocation: &Allocation) -> String {
    cluster.gpu_names(allocation).join(" ")
}

/// The inverse of [`allocation_text`]; also accepts commas. Duplicates and unknown GPUs are errors.
pub(crate) fn allocation_of(
    cluster: &Cluster,
    index: &HashMap<&str, HostId>,
    text: &str,
) -> Result<Allocation, String> {
    let mut gpus = Vec::new();
    let mut seen = HashSet::new();
    for t in text.split([' ', ',']).filter(|t| !t.is_empty()) {
        let g = cluster.parse_gpu_indexed(index, t)?;
        if !seen.insert(g) {
            return Err(format!("`{t}` is named twice"));
        }
        gpus.push(g);
    }
    if gpus.is_empty() {
        return Err("no GPU is named; write for example `n0:0 n0:1`".into());
    }
    Ok(Allocation::from_gpus(gpus))
}

/// The beginning of a text from a damaged file, for an error.
fn short(text: &str) -> String {
    match text.char_indices().nth(120) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// A row whose first columns are [`COLUMNS`]; none if its hardware is no longer in the cluster.
pub(crate) fn record_of(
    row: &Row<'_>,
    id: i64,
    store: &Store,
    index: &HashMap<&str, HostId>,
) -> Result<Option<Record>, String> {
    fn get<T: Column>(row: &Row<'_>, i: usize) -> Result<T, String> {
        row.get(i).map_err(|e| format!("a measurement cannot be read: {e}"))
    }
    let text: String = get(row, 1)?;
    let allocation = stored_allocation(&store.cluster, index, &text)
        .map_err(|e| format!("allocation `{}`: {}", short(&text), short(&e)))?;
    let was_other = |h: &HostId| {
        let then = store.former.get(h).and_then(|f| f.iter().find(|(until, _)| id <= *until));
        then.is_some_and(|(_, same)| !same)
    };
    let Some(allocation) = allocation.filter(|a| store.former.is_empty() || !a.parts().iter().any(|p| was_other(&p.0)))
    else {
        return Ok(None);
    };
    Ok(Some(Record {
        run_id: get(row, 0)?,
        measurement: Measurement {
            allocation,
            collective: get::<String>(row, 2)?.parse()?,
            size: Bytes(get::<i64>(row, 3)?.max(0) as u64),
            busbw: Bandwidth::from_gb_per_s(get(row, 4)?),
            time: get::<Option<f64>>(row, 5)?.map(Seconds),
            algorithm: get(row, 6)?,
            protocol: get(row, 7)?,
            channels: get(row, 8)?,
            nccl_version: get(row, 9)?,
            contention: get(row, 10)?,
            job: get(row, 11)?,
            taken_at_unix_s: get(row, 12)?,
            source: get::<String>(row, 13)?.parse()?,
            provenance: get(row, 14)?,
            quality: get::<String>(row, 15)?.parse()?,
        },
    }))
}
