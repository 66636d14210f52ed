//! The source of the demo's bandwidths: published tables, or simulated hardware.

use super::{SIZE, replay};
use crate::evaluation::sampling::Readings;
use crate::ground_truth::tables::{H100_HOSTS, h100_hosts, read_table};
use crate::ground_truth::{MeasuredCluster, Outliers, SimulatedHardware, measured};
use console::Failure;
use lab_kit::published;
use measure::design::DesignKind;
use measure::simulated::on_fabric;
use measure::{Campaign, CampaignHooks, CampaignPlan};
use std::path::{Path, PathBuf};
use store::{Record, Store};
use topology::{Allocation, Bytes, Cluster, Collective};
use truths::{Irregularity, Truth};

/// The table that holds the truth for several hosts.
const MULTI_TABLE: &str = "multihost_h100_16mib.csv";

/// The source of the bandwidths, before anything is read.
#[derive(Clone, Debug, PartialEq)]
pub enum DataSource {
    /// A folder with the published tables.
    Published(PathBuf),
    /// No tables, with the reason.
    Simulated(String),
}

/// Looks for the published tables in the user's folder, else in the default one.
///
/// # Errors
/// The user's folder does not contain the tables.
pub fn find(data: Option<&Path>, simulated: bool) -> Result<DataSource, Failure> {
    if simulated {
        return Ok(DataSource::Simulated("requested by --simulated".into()));
    }
    let in_folder =
        |dir: &Path| [dir.join("bandpilot"), dir.to_path_buf()].into_iter().find(|d| d.join(MULTI_TABLE).is_file());
    match (data, published::data_folder()) {
        (Some(dir), _) => in_folder(dir).map(DataSource::Published).ok_or_else(|| {
            Failure::input(format!(
                "--data: {} holds no {MULTI_TABLE}, neither does its folder bandpilot; docs/data.md names the source",
                dir.display()
            ))
        }),
        (None, Some(dir)) => Ok(in_folder(&dir).map_or_else(
            || DataSource::Simulated(format!("{} holds no {MULTI_TABLE}", dir.display())),
            DataSource::Published,
        )),
        (None, None) => {
            Ok(DataSource::Simulated("no published tables were found; docs/data.md names the sources".into()))
        }
    }
}

/// The true bandwidth of every allocation of the demo's cluster.
pub enum DemoTruth {
    /// Published tables; for several hosts the row of the sorted counts.
    Published {
        truth: MeasuredCluster,
        folder: PathBuf,
    },
    Simulated(SimulatedHardware),
}

/// Reads the tables, or builds the simulated hardware.
pub fn load(found: &DataSource, cluster: &Cluster, seed: u64) -> Result<DemoTruth, Failure> {
    match found {
        DataSource::Simulated(_) => Ok(DemoTruth::Simulated(SimulatedHardware::new(cluster, SIZE, seed))),
        DataSource::Published(folder) => {
            let all = measured::load(folder, cluster, Outliers::Keep)?;
            let wanted = |t: &MeasuredCluster| t.size() == SIZE && t.collective() == Collective::AllReduce;
            let truth = all.into_iter().find(|t| wanted(t) && t.has_every_host());
            let truth = truth.ok_or_else(|| {
                Failure::input(format!(
                    "{} lacks the table of a host at {SIZE} (intra_h100_26 to 29); `linkwise-lab data check` prints details",
                    folder.display()
                ))
            })?;
            Ok(DemoTruth::Published { truth, folder: folder.clone() })
        }
    }
}

impl DemoTruth {
    pub fn size(&self) -> Bytes {
        SIZE
    }
    /// True if no bandwidth is measured.
    pub fn is_simulated(&self) -> bool {
        matches!(self, DemoTruth::Simulated(_))
    }
    pub fn truth(&self) -> &dyn Truth {
        match self {
            DemoTruth::Published { truth, .. } => truth,
            DemoTruth::Simulated(hardware) => hardware,
        }
    }
    /// Bus bandwidth, GB/s; `None` if the tables have no row.
    pub fn of(&self, a: &Allocation) -> Option<f64> {
        self.truth().busbw_gb_per_s(a)
    }
    /// The best bandwidth of `k` of the free GPUs, GB/s; `None` if one of the allocations has no row.
    pub fn optimum(&self, free: &Allocation, k: usize) -> Option<f64> {
        let optimum = self.truth().optimum(free, k, Irregularity::With);
        optimum.best.filter(|_| !optimum.missing)
    }
    /// Multi-host allocations and their true bandwidths that judge predictions, in a fixed order.
    pub fn multi_host_rows(&self, cluster: &Cluster, seed: u64) -> Vec<(Allocation, f64)> {
        let allocations: Vec<Allocation> = match self {
            DemoTruth::Published { truth, .. } => truth.splits(),
            DemoTruth::Simulated(_) => {
                let idle = cluster.usable();
                measure::design(cluster, &idle, replay::HELD_OUT_SIMULATED, DesignKind::Stratified, !seed)
            }
        };
        allocations.into_iter().filter_map(|a| self.of(&a).map(|v| (a, v))).collect()
    }

    /// Stores the intra tables and a stratified sample of `samples` multi-host readings; returns a sentence about their origin.
    pub fn take_into(&self, store: &mut Store, cluster: &Cluster, n: usize, seed: u64) -> Result<String, Failure> {
        match self {
            DemoTruth::Published { truth, folder } => import(truth, folder, store, cluster, n, seed),
            DemoTruth::Simulated(s) => campaign(s, store, cluster, n, seed),
        }
    }
}

fn import(
    truth: &MeasuredCluster,
    folder: &Path,
    store: &mut Store,
    cluster: &Cluster,
    n: usize,
    seed: u64,
) -> Result<String, Failure> {
    let map = h100_hosts(cluster)?;
    let mut tables = 0;
    for (host, _) in H100_HOSTS {
        let file = folder.join(format!("intra_{host}_16mib.csv"));
        store.insert_batch(&read_table(&file, cluster, &map)?).map_err(Failure::input)?;
        tables += 1;
    }
    let read = |a: &Allocation| truth.busbw_gb_per_s(a);
    let readings =
        Readings { cluster, size: truth.size(), collective: truth.collective(), by_counts: true, read: &read };
    let multi: Vec<Record> = readings
        .multi_host(n, DesignKind::Stratified, seed, &[], &fabric::Constants::unfitted())
        .into_iter()
        .map(|mut m| {
            m.provenance = MULTI_TABLE.into();
            Record { run_id: None, measurement: m }
        })
        .collect();
    store.insert_batch(&multi).map_err(Failure::input)?;
    let rows = truth.splits().len();
    Ok(format!(
        "{tables} published intra tables imported, and {} of the {rows} published multi-host rows read as samples \
         (design: stratified); the other rows stay hidden from the model",
        multi.len()
    ))
}

fn campaign(
    simulated: &SimulatedHardware,
    store: &mut Store,
    cluster: &Cluster,
    n: usize,
    seed: u64,
) -> Result<String, Failure> {
    let plan = CampaignPlan {
        idle: cluster.usable(),
        collective: Collective::AllReduce,
        sizes: vec![SIZE],
        intra: true,
        sample_size: n,
        design: DesignKind::Stratified,
        seed,
        scale: measure::Scale::SMALL,
        budget_gpu_minutes: None,
    };
    let fabric = fabric::Fabric::new(cluster);
    let expected = |a: &Allocation, c: Collective, s: Bytes| fabric.estimate(a, c, s).busbw.gb_per_s();
    let mut backend = on_fabric(cluster, simulated.hardware());
    let mut on_event = |_| {};
    let summary = Campaign::new(
        &plan,
        store,
        &mut backend,
        CampaignHooks { expected: &expected, now_unix_s: &console::now_unix_s, on_event: &mut on_event },
    )
    .map_err(Failure::input)?
    .run()
    .map_err(Failure::impossible)?;
    Ok(format!(
        "a SIMULATED campaign: {} readings with {:.0} % noise, {:.0} simulated GPU-minutes (design: stratified)",
        summary.readings_taken(),
        100.0 * simulated.hardware().noise,
        summary.gpu_minutes()
    ))
}
