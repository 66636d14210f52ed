//! Where the demo's bandwidths come from: published tables, or simulated hardware.

use super::{SIZE, replay};
use crate::evaluation::sampling::Readings;
use crate::published::{self, Truth};
use crate::store_errors::OrFailure;
use console::Failure;
use measure::design::DesignKind;
use measure::simulated::{Irregularity, on_fabric};
use measure::{Campaign, CampaignPlan};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use store::{HostMap, Record, Store};
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask, HostId};

/// The table without which there is no truth for several hosts.
const MULTI_TABLE: &str = "multihost_h100_16mib.csv";

/// What was found before anything is read.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// A folder with the published tables.
    Published(PathBuf),
    /// No tables, with the reason.
    Simulated(String),
}

/// Looks for the published tables: where the user says, else where they usually lie.
///
/// # Errors
/// The user named a folder and it does not hold them.
pub fn find(data: Option<&Path>, simulated: bool) -> Result<Found, Failure> {
    if simulated {
        return Ok(Found::Simulated("asked for with --simulated".into()));
    }
    let in_folder =
        |dir: &Path| [dir.join("bandpilot"), dir.to_path_buf()].into_iter().find(|d| d.join(MULTI_TABLE).is_file());
    match (data, published::data_folder()) {
        (Some(dir), _) => in_folder(dir).map(Found::Published).ok_or_else(|| {
            Failure::input(format!(
                "--data: {} holds no {MULTI_TABLE}, neither does its folder bandpilot; docs/data.md tells where to get it",
                dir.display()
            ))
        }),
        (None, Some(dir)) => Ok(in_folder(&dir).map_or_else(
            || Found::Simulated(format!("{} holds no {MULTI_TABLE}", dir.display())),
            Found::Published,
        )),
        (None, None) => Ok(Found::Simulated("no published tables were found; docs/data.md tells where to get them".into())),
    }
}

/// The true bandwidth of every allocation of the demo's cluster.
pub enum Bandwidths {
    /// From published tables: on several hosts the row of the sorted counts.
    Published {
        /// The tables.
        truth: Truth,
        /// Their folder.
        folder: PathBuf,
    },
    /// From simulated hardware.
    Simulated(Simulation),
}

/// What the simulated hardware gives, without the noise of a reading.
pub struct Simulation {
    options: Irregularity,
    intra: Vec<HashMap<GpuMask, f64>>,
    /// By counts per host, in host order: GPUs of an H100 host are alike to the network.
    multi: HashMap<Vec<u8>, f64>,
}

/// Reads the tables, or builds the simulated hardware.
pub fn load(found: &Found, cluster: &Cluster, seed: u64) -> Result<Bandwidths, Failure> {
    match found {
        Found::Simulated(_) => Ok(Bandwidths::Simulated(Simulation::new(cluster, seed))),
        Found::Published(folder) => {
            let truth = published::load(folder, cluster)?.into_iter().find(|t| t.size == SIZE).filter(|t| {
                t.collective == Collective::AllReduce && !t.multi.is_empty() && t.intra.iter().all(|i| !i.is_empty())
            });
            let truth = truth.ok_or_else(|| {
                Failure::input(format!(
                    "{} lacks the table of a host at {SIZE} (intra_h100_26 to 29); `linkwise-lab data check` tells more",
                    folder.display()
                ))
            })?;
            Ok(Bandwidths::Published { truth, folder: folder.clone() })
        }
    }
}

impl Simulation {
    fn new(cluster: &Cluster, seed: u64) -> Self {
        let options = Irregularity { seed, ..Irregularity::default() };
        let hardware = on_fabric(cluster, options);
        let of = |a: &Allocation| hardware.truth(a, Collective::AllReduce, SIZE).gb_per_s();
        let intra = cluster
            .host_ids()
            .map(|h| {
                let masks = cluster.type_of(h).all_gpus().subsets().filter(|m| m.count() >= 2);
                masks.map(|m| (m, of(&Allocation::new([(h, m)])))).collect()
            })
            .collect();
        let mut multi = HashMap::new();
        let sizes: Vec<usize> = cluster.host_ids().map(|h| cluster.type_of(h).gpu_count()).collect();
        each_count_vector(&sizes, None, &mut |counts| {
            if counts.iter().filter(|c| **c > 0).count() >= 2 {
                multi.insert(counts.to_vec(), of(&first_gpus(counts)));
            }
        });
        Simulation { options, intra, multi }
    }

    fn of(&self, a: &Allocation) -> Option<f64> {
        match a.parts() {
            [] => None,
            [(h, m)] => self.intra[h.index()].get(m).copied(),
            parts => {
                let mut counts = vec![0u8; self.intra.len()];
                parts.iter().for_each(|(h, m)| counts[h.index()] = m.count() as u8);
                self.multi.get(&counts).copied()
            }
        }
    }

    /// Complete enumeration, as [`Truth::optimum`].
    fn optimum(&self, free: &Allocation, k: usize) -> Option<f64> {
        let mut best: Option<f64> = None;
        let mut see = |v: Option<&f64>| best = best.into_iter().chain(v.copied()).reduce(f64::max);
        for (h, m) in free.parts() {
            m.subsets().filter(|s| s.count() == k).for_each(|s| see(self.intra[h.index()].get(&s)));
        }
        let have: Vec<usize> = (0..self.intra.len()).map(|h| free.mask(HostId(h as u32)).count()).collect();
        each_count_vector(&have, Some(k), &mut |counts| see(self.multi.get(counts)));
        best
    }
}

/// The first GPUs of every host, as many as the counts say.
fn first_gpus(counts: &[u8]) -> Allocation {
    let taken = counts.iter().enumerate().filter(|c| *c.1 > 0);
    Allocation::new(taken.map(|(h, c)| (HostId(h as u32), GpuMask::first(usize::from(*c)))))
}

/// Every vector of counts of at most `have`, with the given sum if there is one.
fn each_count_vector(have: &[usize], sum: Option<usize>, see: &mut dyn FnMut(&[u8])) {
    fn go(have: &[usize], left: Option<usize>, counts: &mut Vec<u8>, see: &mut dyn FnMut(&[u8])) {
        let Some((first, rest)) = have.split_first() else {
            if left.unwrap_or(0) == 0 {
                see(counts);
            }
            return;
        };
        if left.is_some_and(|l| l > have.iter().sum()) {
            return;
        }
        for c in 0..=(*first).min(left.unwrap_or(usize::MAX)) {
            counts.push(c as u8);
            go(rest, left.map(|l| l - c), counts, see);
            counts.pop();
        }
    }
    go(have, sum, &mut Vec::new(), see);
}

impl Bandwidths {
    /// The message size.
    pub fn size(&self) -> Bytes {
        SIZE
    }
    /// Is nothing of it measured?
    pub fn is_simulated(&self) -> bool {
        matches!(self, Bandwidths::Simulated(_))
    }
    /// GB/s busbw, or none where the tables have no row.
    pub fn of(&self, a: &Allocation) -> Option<f64> {
        match self {
            Bandwidths::Published { truth, .. } => truth.of(a),
            Bandwidths::Simulated(s) => s.of(a),
        }
    }
    /// The best of all ways to take `k` of the free GPUs; none if a row is missing among them.
    pub fn optimum(&self, free: &Allocation, k: usize) -> Option<f64> {
        match self {
            Bandwidths::Published { truth, .. } => match truth.optimum(free, k) {
                (best, false) => best,
                (_, true) => None,
            },
            Bandwidths::Simulated(s) => s.optimum(free, k),
        }
    }
    /// Multi-host allocations with their truth, for judging predictions, in a fixed order.
    pub fn multi_host_rows(&self, cluster: &Cluster, seed: u64) -> Vec<(Allocation, f64)> {
        let allocations: Vec<Allocation> = match self {
            Bandwidths::Published { truth, .. } => {
                let mut keys: Vec<&Vec<u8>> = truth.multi.keys().collect();
                keys.sort();
                keys.into_iter().map(|k| first_gpus(k)).collect()
            }
            Bandwidths::Simulated(_) => {
                let idle = cluster.usable();
                measure::design(cluster, &idle, replay::HELD_OUT_SIMULATED, DesignKind::Stratified, !seed)
            }
        };
        allocations.into_iter().filter_map(|a| self.of(&a).map(|v| (a, v))).collect()
    }

    /// Takes intra tables and `samples` multi-host samples (stratified) into a store, and says in a sentence how.
    pub fn take_into(&self, store: &mut Store, cluster: &Cluster, n: usize, seed: u64) -> Result<String, Failure> {
        match self {
            Bandwidths::Published { truth, folder } => import(truth, folder, store, cluster, n, seed),
            Bandwidths::Simulated(s) => campaign(s, store, cluster, n, seed),
        }
    }
}

fn import(
    truth: &Truth,
    folder: &Path,
    store: &mut Store,
    cluster: &Cluster,
    n: usize,
    seed: u64,
) -> Result<String, Failure> {
    let map = HostMap::parse(published::H100_HOSTS, cluster).map_err(Failure::input)?;
    let mut tables = 0;
    for host in ["26", "27", "28", "29"] {
        let file = folder.join(format!("intra_h100_{host}_16mib.csv"));
        store.insert_batch(&published::read_table(&file, cluster, &map)?).or_failure()?;
        tables += 1;
    }
    let read = |a: &Allocation| truth.of(a);
    let readings = Readings { cluster, size: truth.size, collective: truth.collective, by_counts: true, read: &read };
    let multi: Vec<Record> = readings
        .multi_host(n, DesignKind::Stratified, seed, &[], &fabric::Constants::unfitted())
        .into_iter()
        .map(|mut m| {
            m.provenance = MULTI_TABLE.into();
            Record { run_id: None, measurement: m }
        })
        .collect();
    store.insert_batch(&multi).or_failure()?;
    let rows = truth.multi.len();
    Ok(format!(
        "{tables} published intra tables imported, and {} of the {rows} published multi-host rows read as samples \
         (design: stratified); the other rows stay hidden from the model",
        multi.len()
    ))
}

fn campaign(s: &Simulation, store: &mut Store, cluster: &Cluster, n: usize, seed: u64) -> Result<String, Failure> {
    let plan = CampaignPlan {
        idle: cluster.usable(),
        collective: Collective::AllReduce,
        sizes: vec![SIZE],
        intra: true,
        sample_size: n,
        design: DesignKind::Stratified,
        seed,
        budget_gpu_minutes: None,
    };
    let fabric = fabric::Fabric::new(cluster);
    let expected = |a: &Allocation, c: Collective, s: Bytes| fabric.estimate(a, c, s).busbw.gb_per_s();
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
    let mut backend = on_fabric(cluster, s.options);
    let mut on_event = |_| {};
    let summary = Campaign::new(&plan, store, &mut backend, &expected, &now, &mut on_event)
        .or_failure()?
        .run()
        .map_err(Failure::impossible)?;
    Ok(format!(
        "a SIMULATED campaign: {} readings with {:.0} % noise, {:.0} simulated GPU-minutes (design: stratified)",
        summary.readings_taken(),
        100.0 * s.options.noise,
        summary.gpu_minutes()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use place::baselines::{below, random};
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::SeedableRng;

    #[test]
    fn the_simulated_table_is_what_the_simulated_hardware_gives_whichever_gpus_of_a_host_are_taken() {
        let cluster = topology::catalog::cluster("h100").unwrap();
        let simulation = Simulation::new(&cluster, 3);
        let hardware = on_fabric(&cluster, simulation.options);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for _ in 0..300 {
            let k = 2 + below(&mut rng, 31);
            let a = random(&cluster.usable(), k, &mut rng).unwrap();
            let given = hardware.truth(&a, Collective::AllReduce, SIZE).gb_per_s();
            let table = simulation.of(&a).unwrap();
            assert!((given / table - 1.0).abs() < 1e-9, "{}: {given} and {table}", a.split());
        }
    }

    #[test]
    fn no_choice_beats_the_simulated_optimum_and_some_choice_reaches_it() {
        let cluster = topology::catalog::cluster("h100").unwrap();
        let simulation = Simulation::new(&cluster, 5);
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let free = random(&cluster.usable(), 9, &mut rng).unwrap();
        let gpus: Vec<_> = free.gpus().collect();
        for k in 2..=9usize {
            let brute = (0u32..1 << 9)
                .filter(|m| m.count_ones() as usize == k)
                .filter_map(|m| {
                    let chosen = (0..9).filter(|i| m >> i & 1 == 1).map(|i| gpus[i]);
                    simulation.of(&Allocation::from_gpus(chosen))
                })
                .fold(0.0, f64::max);
            assert_eq!(simulation.optimum(&free, k), Some(brute), "k = {k}");
        }
    }
}
