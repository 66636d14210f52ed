//! Converts tables to cases that can be scored: rows with a prediction target, families, and rows left out with their
//! reasons.

use super::system::{self, Words};
use super::table::{Kind, Table, TableRow, shortened};
use console::Failure;
use fabric::{Constants, Fabric, RunOptions};
use std::collections::{BTreeMap, HashMap};
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask, HostId, catalog};

/// Sizes from this one on, and peaks, count as plateau.
pub const PLATEAU_BYTES: u64 = 64 << 20;
/// The size at which peaks without a size are judged.
const PEAK_SIZE: Bytes = Bytes::gib(8);

/// Source x system x collective.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FamilyName {
    /// Repository, paper or thread: the first words of the source column; for a BandPilot table its repository.
    pub source: String,
    /// The system column; for a BandPilot table the host or `4 hosts`.
    pub system: String,
    /// The collective.
    pub collective: String,
}

/// A row that counts.
#[derive(Clone, Debug)]
pub struct Case {
    /// Index into [`Cases::families`].
    pub family: usize,
    /// Index into [`Cases::clusters`].
    pub cluster: usize,
    pub allocation: Allocation,
    /// The collective.
    pub collective: Collective,
    /// The size; peaks without a size are judged at 8 GiB.
    pub size: Bytes,
    /// Settings of the run.
    pub run: RunOptions,
    /// Measured quantity.
    pub measured_gb_per_s: f64,
    /// True for the plateau, false for a part of a sweep.
    pub plateau: bool,
    /// `file:line`.
    pub place: String,
    /// The allocation as the row has it.
    pub words: String,
}

/// All cases of some files.
#[derive(Clone, Debug, Default)]
pub struct Cases {
    /// Families in order of appearance.
    pub families: Vec<FamilyName>,
    /// Rows left out: family, reason, count.
    pub left_out: BTreeMap<usize, BTreeMap<String, usize>>,
    pub clusters: Vec<Cluster>,
    /// Number of scored rows.
    pub cases: Vec<Case>,
    systems: HashMap<String, usize>,
}

impl Cases {
    fn family(&mut self, name: FamilyName) -> usize {
        match self.families.iter().position(|f| *f == name) {
            Some(i) => i,
            None => {
                self.families.push(name);
                self.families.len() - 1
            }
        }
    }
    fn leave(&mut self, family: usize, reason: String) {
        *self.left_out.entry(family).or_default().entry(reason).or_default() += 1;
    }
    fn cluster(&mut self, key: String, make: impl FnOnce() -> Cluster) -> usize {
        if let Some(&i) = self.systems.get(&key) {
            return i;
        }
        self.clusters.push(make());
        self.systems.insert(key, self.clusters.len() - 1);
        self.clusters.len() - 1
    }

    /// Adds the rows of a table. Fields that cannot be read are errors; rows that cannot be predicted are left out with a reason.
    pub fn add(&mut self, table: &Table) -> Result<(), Failure> {
        for row in &table.rows {
            match table.kind {
                Kind::Measurements => self.add_measurement(table, row)?,
                Kind::IntraTable => self.add_intra(table, row)?,
                Kind::MultiHostTable => self.add_multi_host(table, row)?,
                Kind::P2pMatrix => {
                    let family = self.family(FamilyName {
                        source: source_of(table.field(row, "source")),
                        system: shortened(table.field(row, "system")),
                        collective: "p2p".into(),
                    });
                    self.leave(
                        family,
                        "a peer-to-peer matrix, not a collective (see `linkwise topology import`)".into(),
                    );
                }
            }
        }
        Ok(())
    }

    fn add_measurement(&mut self, table: &Table, row: &TableRow) -> Result<(), Failure> {
        let f = |c| table.field(row, c);
        let collective: Collective = f("collective").parse().map_err(|e| table.at(row, "collective", e))?;
        let size = table.size(row, "size_bytes")?;
        let time = table.number(row, "time_us", 0.0, 1e12)?;
        table.number(row, "algbw_GBps", 0.0, 1e6)?;
        let busbw = table.number(row, "busbw_GBps", 0.0, 1e6)?;
        let family = self.family(FamilyName {
            source: source_of(f("source")),
            system: f("system").into(),
            collective: collective.name().into(),
        });
        let words = Words::of(|c| table.field(row, c));
        let case = match system::interpret(&words) {
            Ok(case) => case,
            Err(reason) => {
                self.leave(family, reason);
                return Ok(());
            }
        };
        // busbw is printed with two decimals; for small messages the time is more precise.
        let ranks = case.allocation.gpu_count();
        let from_time = match (time, size) {
            (Some(us), Some(s)) if us > 0.0 => Some(collective.busbw_gb_per_s(ranks, s.as_f64(), us * 1e-6)),
            _ => None,
        };
        let Some(measured) = from_time.or(busbw).filter(|b| *b > 0.0) else {
            self.leave(family, "neither a time nor a bandwidth above zero".into());
            return Ok(());
        };
        let key = words.cluster_key(case.cluster.hosts.len());
        let made = case.cluster;
        let cluster = self.cluster(key, || made);
        self.cases.push(Case {
            family,
            cluster,
            allocation: case.allocation,
            collective,
            size: size.unwrap_or(PEAK_SIZE),
            run: case.run,
            measured_gb_per_s: measured,
            plateau: size.is_none_or(|s| s.0 >= PLATEAU_BYTES),
            place: format!("{}:{}", file_name(&table.name), row.line),
            words: f("allocation").into(),
        });
        Ok(())
    }

    fn add_intra(&mut self, table: &Table, row: &TableRow) -> Result<(), Failure> {
        let host = table.field(row, "host");
        let type_name = match host.to_ascii_lowercase() {
            h if h.starts_with("h100") => "hgx-h100",
            h if h.starts_with("a800") => "a800",
            h if h.starts_with("v100") => "dgx1-v100",
            h if h.starts_with("a6000") => "a6000",
            h if h.contains("4090") => "rtx4090",
            h => {
                let family = self.table_family(table, row, host)?;
                self.leave(family, format!("host `{}` is not in the catalog", shortened(&h)));
                return Ok(());
            }
        };
        let family = self.table_family(table, row, host)?;
        let cluster = self.cluster(format!("host {type_name}"), || one_host(type_name));
        let n = self.clusters[cluster].types[0].gpu_count();
        let mut mask = GpuMask::EMPTY;
        for word in table.field(row, "gpus").split_whitespace() {
            match word.parse::<usize>() {
                Ok(g) if g < n && !mask.contains(g) => mask = mask.union(GpuMask(1 << g)),
                _ => {
                    return Err(table.at(
                        row,
                        "gpus",
                        format!("`{}` is not a GPU from 0 to {}, or is named twice", shortened(word), n - 1),
                    ));
                }
            }
        }
        let allocation = Allocation::new([(HostId(0), mask)]);
        self.add_table_row(table, row, family, cluster, allocation, table.field(row, "gpus").into())
    }

    fn add_multi_host(&mut self, table: &Table, row: &TableRow) -> Result<(), Failure> {
        let family = self.table_family(table, row, "4 hosts")?;
        let cluster = self.cluster("cluster h100".into(), || catalog::cluster("h100").unwrap_or_default());
        let allocation =
            self.clusters[cluster].parse_gpus([table.field(row, "gpus")]).map_err(|e| table.at(row, "gpus", e))?;
        if allocation.is_empty() {
            return Err(table.at(row, "gpus", "no GPU"));
        }
        self.add_table_row(table, row, family, cluster, allocation, table.field(row, "counts").into())
    }

    fn table_family(&mut self, table: &Table, row: &TableRow, system: &str) -> Result<usize, Failure> {
        let collective: Collective =
            table.field(row, "collective").parse().map_err(|e| table.at(row, "collective", e))?;
        Ok(self.family(FamilyName {
            source: "github SusCom-Lab/BandPilot".into(),
            system: system.into(),
            collective: collective.name().into(),
        }))
    }

    fn add_table_row(
        &mut self,
        table: &Table,
        row: &TableRow,
        family: usize,
        cluster: usize,
        allocation: Allocation,
        words: String,
    ) -> Result<(), Failure> {
        let collective: Collective =
            table.field(row, "collective").parse().map_err(|e| table.at(row, "collective", e))?;
        let size = table.size(row, "size_bytes")?.ok_or_else(|| table.at(row, "size_bytes", "empty"))?;
        let busbw = table.number(row, "busbw_gb_per_s", 0.0, 1e6)?;
        let busbw = busbw.ok_or_else(|| table.at(row, "busbw_gb_per_s", "empty"))?;
        if allocation.gpu_count() < 2 {
            self.leave(family, "a single GPU".into());
        } else if busbw <= 0.0 {
            self.leave(family, "neither a time nor a bandwidth above zero".into());
        } else {
            self.cases.push(Case {
                family,
                cluster,
                allocation,
                collective,
                size,
                run: RunOptions::default(),
                measured_gb_per_s: busbw,
                plateau: size.0 >= PLATEAU_BYTES,
                place: format!("{}:{}", file_name(&table.name), row.line),
                words,
            });
        }
        Ok(())
    }

    /// The fabrics of all systems.
    pub fn fabrics(&self) -> Vec<Fabric<'_>> {
        self.clusters.iter().map(|c| Fabric::with_constants(c, Constants::default())).collect()
    }
}

fn one_host(type_name: &str) -> Cluster {
    Cluster {
        name: type_name.into(),
        types: catalog::host_type(type_name).into_iter().collect(),
        hosts: vec![topology::Host { name: "n0".into(), ..topology::Host::default() }],
        ..Cluster::default()
    }
}

/// The repository or thread: the first two words of texts such as `github NVIDIA/nccl issue 1368 ...` and `github
/// NVIDIA/nccl-tests README.md`.
fn source_of(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().take(2).collect();
    shortened(&words.join(" "))
}

fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}
