//! Reads measurements from CSV: linkwise's own header ([`crate::CSV_HEADER`]) and the two shapes of published tables.
//!
//! | first column | shape | one row is |
//! |---|---|---|
//! | `allocation` | linkwise | a measurement with all its fields |
//! | `host` | `host,gpus,size_bytes,collective,busbw_gb_per_s` | a GPU subset of one host, `0 1 5` |
//! | `counts` | `counts,gpus,size_bytes,collective,busbw_gb_per_s` | an allocation over hosts, `n0:0 n1:0` |
//!
//! Columns are found by name, in any order. A file is accepted or refused as a whole: the error has the position of the first bad field.

use crate::digest::fnv64;
use crate::measurement::{Measurement, Quality, Record, Source};
use crate::rows::allocation_of;
use std::borrow::Cow;
use std::collections::HashMap;
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId, Seconds};

/// Largest file, bytes.
pub const FILE_BYTES_MAX: usize = 256 << 20;
/// Maximum number of rows.
pub const ROWS_MAX: usize = 2_000_000;
/// Maximum number of pairs of a table's name and a host of the cluster.
pub const HOSTS_PER_NAME_MAX: usize = 4096;

/// The error in a file, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {message}")]
pub struct CsvError {
    /// The file's name, as the caller gave it.
    pub file: String,
    /// Line, from 1.
    pub line: u64,
    /// Field of the line, from 1.
    pub column: usize,
    /// The found value, the expected value and the remedy.
    pub message: String,
}

/// Maps host names of a table to hosts of the cluster.
///
/// Text form: `26=n0,27=n1`. A repeated name (`4090=n0,4090=n1`) stands for several hosts: the table is that of a host type. A name
/// matches a table's whole host name (`h100_26`) or its last part after `_` (`26`). `n*=gpu-*` stands for every host of the cluster whose
/// name begins with `gpu-`. In columns of GPUs (`n0:0 n0:1`) a name stands for its first host: so readings follow hosts that were renamed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostMap(Vec<(String, HostId)>, HashMap<String, HostId>);

impl HostMap {
    /// Reads the text form. Errors name the piece and the expected form.
    pub fn parse(text: &str, cluster: &Cluster) -> Result<Self, String> {
        let index = cluster.host_index();
        let mut pairs = Vec::new();
        for piece in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (name, host) = piece
                .split_once('=')
                .ok_or_else(|| format!("`{piece}`: write NAME_IN_FILE=HOST, for example 26=n0"))?;
            if let (Some(old), Some(new)) = (name.trim().strip_suffix('*'), host.trim().strip_suffix('*')) {
                let of = cluster.host_ids().filter_map(|h| Some((cluster.host(h).name.strip_prefix(new)?, h)));
                let before = pairs.len();
                pairs.extend(of.map(|(rest, h)| (format!("{old}{rest}"), h)));
                if pairs.len() == before {
                    return Err(format!("`{piece}`: no host of cluster `{}` begins with `{new}`", cluster.name));
                }
                continue;
            }
            let host = *index
                .get(host.trim())
                .ok_or_else(|| format!("`{piece}`: cluster `{}` has no host `{}`", cluster.name, host.trim()))?;
            let pair = (name.trim().to_owned(), host);
            if pairs.contains(&pair) {
                return Err(format!("`{piece}` is given twice"));
            }
            if pairs.len() >= HOSTS_PER_NAME_MAX {
                return Err(format!("more than {HOSTS_PER_NAME_MAX} pairs"));
            }
            pairs.push(pair);
        }
        let first = pairs.iter().rev().cloned().collect();
        Ok(HostMap(pairs, first))
    }

    /// GPUs as HOST:INDEX with the hosts' names of today: those that the map names once are replaced.
    fn renamed<'a>(&self, cluster: &Cluster, gpus: &'a str) -> Cow<'a, str> {
        if self.0.is_empty() {
            return Cow::Borrowed(gpus);
        }
        let renamed = gpus.split_whitespace().map(|gpu| {
            let (host, rest) = gpu.rsplit_once(':').unwrap_or((gpu, ""));
            match self.1.get(host) {
                Some(new) => format!("{}:{rest}", cluster.host(*new).name),
                None => gpu.to_owned(),
            }
        });
        Cow::Owned(renamed.collect::<Vec<_>>().join(" "))
    }

    /// The hosts for `name`: the mapped ones, else the cluster's host of that name.
    fn hosts(&self, name: &str, index: &HashMap<&str, HostId>) -> Vec<HostId> {
        let exact: Vec<HostId> = self.0.iter().filter(|p| p.0 == name).map(|p| p.1).collect();
        if !exact.is_empty() {
            return exact;
        }
        let last = name.rsplit('_').next().unwrap_or(name);
        let by_last: Vec<HostId> = self.0.iter().filter(|p| p.0 == last).map(|p| p.1).collect();
        if !by_last.is_empty() { by_last } else { index.get(name).copied().into_iter().collect() }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Shape {
    Linkwise,
    Intra,
    MultiHost,
}

/// The columns of one file, by name, and the reader's position.
struct Table<'a> {
    file: &'a str,
    columns: HashMap<String, usize>,
    line: u64,
}

impl Table<'_> {
    fn error(&self, column: usize, message: impl Into<String>) -> CsvError {
        CsvError { file: self.file.into(), line: self.line, column: column + 1, message: message.into() }
    }
    fn at(&self, name: &str) -> usize {
        self.columns.get(name).copied().unwrap_or(0)
    }
    fn optional<'r>(&self, row: &'r csv::StringRecord, name: &str) -> Option<&'r str> {
        self.columns.get(name).and_then(|&i| row.get(i)).map(str::trim).filter(|f| !f.is_empty())
    }
    fn required<'r>(&self, row: &'r csv::StringRecord, name: &str) -> Result<&'r str, CsvError> {
        self.optional(row, name).ok_or_else(|| self.error(self.at(name), format!("`{name}` is empty")))
    }
    fn parsed<T: std::str::FromStr>(
        &self,
        row: &csv::StringRecord,
        name: &str,
        expected: &str,
    ) -> Result<Option<T>, CsvError> {
        self.optional(row, name)
            .map(|f| {
                f.parse()
                    .map_err(|_| self.error(self.at(name), format!("`{name}` is `{}`, not {expected}", shorten(f))))
            })
            .transpose()
    }
    fn word<T: std::str::FromStr<Err = String>>(
        &self,
        row: &csv::StringRecord,
        name: &str,
    ) -> Result<Option<T>, CsvError> {
        self.optional(row, name).map(|f| f.parse().map_err(|e| self.error(self.at(name), e))).transpose()
    }
}

fn shorten(text: &str) -> String {
    if text.chars().count() > 40 { text.chars().take(40).chain(std::iter::once('…')).collect() } else { text.into() }
}

/// Reads a whole file. `file` is its name for errors and provenance; tables with a `host` column use `map`. Pure; O(bytes).
///
/// Rows of published tables get [`Source::Published`] and a run id made of the file's base name and the row's content, so that
/// importing a file twice stores it once.
pub fn parse_csv(text: &str, file: &str, cluster: &Cluster, map: &HostMap) -> Result<Vec<Record>, CsvError> {
    let mut table = Table { file, columns: HashMap::new(), line: 1 };
    if text.len() > FILE_BYTES_MAX {
        return Err(table.error(0, format!("the file is larger than {} MiB", FILE_BYTES_MAX >> 20)));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = csv::ReaderBuilder::new().flexible(true).has_headers(false).from_reader(text.as_bytes());
    let mut row = csv::StringRecord::new();
    let mut next = |table: &mut Table, row: &mut csv::StringRecord| -> Result<bool, CsvError> {
        let more = reader.read_record(row).map_err(|e| table.error(0, e.to_string()))?;
        table.line = row.position().map_or(table.line, csv::Position::line);
        Ok(more)
    };
    if !next(&mut table, &mut row)? {
        return Err(table.error(
            0,
            "the file is empty; a header was expected, for example `host,gpus,size_bytes,collective,busbw_gb_per_s`",
        ));
    }
    for (i, name) in row.iter().map(str::trim).enumerate() {
        if table.columns.insert(name.to_owned(), i).is_some() {
            return Err(table.error(i, format!("column `{}` appears twice", shorten(name))));
        }
    }
    let width = row.len();
    let shape = shape_of(&table)?;
    let index = cluster.host_index();
    let mut records = Vec::new();
    let mut seen: HashMap<u64, u32> = HashMap::new();
    while next(&mut table, &mut row)? {
        if row.len() != width {
            let message = format!("{} fields, the header has {width}", row.len());
            return Err(table.error(row.len().min(width), message));
        }
        if records.len() >= ROWS_MAX {
            return Err(table.error(0, format!("more than {ROWS_MAX} rows; split the file")));
        }
        for allocation in allocations(&table, &row, shape, cluster, &index, map)? {
            let measurement = measurement(&table, &row, shape, allocation)?;
            let run_id = match shape {
                Shape::Linkwise => table.optional(&row, "run_id").map(str::to_owned),
                _ => Some(import_id(file, cluster, &measurement, &mut seen)),
            };
            records.push(Record { run_id, measurement });
        }
    }
    Ok(records)
}

/// The run id of an imported row: file, content and the number of earlier rows with the same content.
fn import_id(file: &str, cluster: &Cluster, m: &Measurement, seen: &mut HashMap<u64, u32>) -> String {
    let base = base_name(file);
    let text = crate::rows::allocation_text(cluster, &m.allocation);
    let digest = fnv64([base, &text, m.collective.name(), &m.size.0.to_string(), &m.busbw.gb_per_s().to_string()]);
    let nth = seen.entry(digest).or_insert(0);
    *nth += 1;
    format!("import/{base}/{digest:016x}#{}", *nth - 1)
}

fn base_name(file: &str) -> &str {
    file.rsplit(['/', '\\']).next().unwrap_or(file)
}

fn shape_of(table: &Table) -> Result<Shape, CsvError> {
    let has = |name: &str| table.columns.contains_key(name);
    let (shape, key) = if has("allocation") {
        (Shape::Linkwise, "allocation")
    } else if has("host") {
        (Shape::Intra, "gpus")
    } else if has("counts") {
        (Shape::MultiHost, "gpus")
    } else {
        return Err(table.error(
            0,
            "the header has none of the columns `allocation` (linkwise), `host` (table of one host), `counts` (table over hosts)",
        ));
    };
    for name in [key, "size_bytes", "collective", "busbw_gb_per_s"] {
        if !has(name) {
            return Err(table.error(0, format!("the header lacks column `{name}`")));
        }
    }
    Ok(shape)
}

fn allocations(
    table: &Table,
    row: &csv::StringRecord,
    shape: Shape,
    cluster: &Cluster,
    index: &HashMap<&str, HostId>,
    map: &HostMap,
) -> Result<Vec<Allocation>, CsvError> {
    let field = if shape == Shape::Linkwise { "allocation" } else { "gpus" };
    let column = table.at(field);
    let text = table.required(row, field)?;
    if shape != Shape::Intra {
        let text = map.renamed(cluster, text);
        let allocation = allocation_of(cluster, index, &text).map_err(|e| table.error(column, e))?;
        if shape == Shape::MultiHost {
            check_counts(table, row, &allocation)?;
        }
        return Ok(vec![allocation]);
    }
    let name = table.required(row, "host")?;
    let hosts = map.hosts(name, index);
    if hosts.is_empty() {
        let message = format!(
            "host `{}` is not in cluster `{}`; say which it is with --host-map {}=HOST",
            shorten(name),
            cluster.name,
            shorten(name)
        );
        return Err(table.error(table.at("host"), message));
    }
    let mut mask = GpuMask::EMPTY;
    for t in text.split_whitespace() {
        let gpu: usize = t.parse().ok().filter(|g| *g < 32).ok_or_else(|| {
            table.error(column, format!("`{}` is not a GPU index; write for example `0 1 5`", shorten(t)))
        })?;
        if mask.contains(gpu) {
            return Err(table.error(column, format!("GPU {gpu} is named twice")));
        }
        mask = mask.union(GpuMask(1 << gpu));
    }
    hosts
        .into_iter()
        .map(|h| {
            let all = cluster.type_of(h).all_gpus();
            if all.contains_all(mask) {
                return Ok(Allocation::new([(h, mask)]));
            }
            let message = format!("host `{}` has GPUs 0 to {}, not {mask}", cluster.host(h).name, all.count() - 1);
            Err(table.error(column, message))
        })
        .collect()
}

/// Checks that the `counts` (`2+1+0+0`) agree with the list of GPUs.
fn check_counts(table: &Table, row: &csv::StringRecord, allocation: &Allocation) -> Result<(), CsvError> {
    let text = table.required(row, "counts")?;
    let mut counts: Vec<usize> = text
        .split('+')
        .map(|c| c.trim().parse().map_err(|_| ()))
        .collect::<Result<_, _>>()
        .map_err(|()| table.error(table.at("counts"), format!("`{}` is not like `2+1+0+0`", shorten(text))))?;
    counts.retain(|c| *c > 0);
    let mut found = allocation.counts();
    counts.sort_unstable();
    found.sort_unstable();
    if counts == found {
        return Ok(());
    }
    let message = format!("counts `{}` contradict the GPUs, which are {}", shorten(text), allocation.split());
    Err(table.error(table.at("counts"), message))
}

fn measurement(
    table: &Table,
    row: &csv::StringRecord,
    shape: Shape,
    allocation: Allocation,
) -> Result<Measurement, CsvError> {
    let size: u64 = table.parsed(row, "size_bytes", "a whole number of bytes")?.unwrap_or(0);
    let busbw: f64 = table
        .parsed(row, "busbw_gb_per_s", "a number of GB/s")?
        .ok_or_else(|| table.error(table.at("busbw_gb_per_s"), "`busbw_gb_per_s` is empty"))?;
    table.required(row, "collective")?;
    let collective: Collective = table.word(row, "collective")?.expect("required above");
    let published = shape != Shape::Linkwise;
    let mut m = Measurement::new(
        allocation,
        collective,
        Bytes(size),
        Bandwidth::from_gb_per_s(busbw),
        table.word::<Source>(row, "source")?.unwrap_or(Source::Published),
    );
    // Not trimmed, so that exported texts are read back unchanged.
    let text =
        |name: &str| table.columns.get(name).and_then(|&i| row.get(i)).filter(|f| !f.is_empty()).map(str::to_owned);
    m.time = table.parsed(row, "time_s", "a number of seconds")?.map(Seconds);
    m.algorithm = text("algorithm");
    m.protocol = text("protocol");
    m.channels = table.parsed(row, "channels", "a whole number")?;
    m.nccl_version = text("nccl_version");
    m.contention = text("contention");
    m.job = text("job");
    m.taken_at_unix_s = table.parsed(row, "taken_at_unix_s", "seconds since 1970")?;
    m.provenance = if published { base_name(table.file).to_owned() } else { text("provenance").unwrap_or_default() };
    m.quality = table.word::<Quality>(row, "quality")?.unwrap_or_default();
    m.check().map_err(|why| {
        let column = why.split_once(':').map_or(0, |(field, _)| table.at(field));
        table.error(column, why.clone())
    })?;
    Ok(m)
}
