//! `linkwise-lab demo`: the main job end to end: import, measure, fit, place, explain, report.
//!
//! The demo uses the published H100 measurements if they are found, else a simulated cluster; every output names the
//! source.

mod closed_loop;
mod explain;
mod folder;
mod page;
mod product;
mod replay;
mod source;
mod words;

use console::load_cluster;
use console::{Failure, print};
use folder::Folder;
use predict::{FitOptions, Kind, Model, fit};
use product::Linkwise;
use source::DemoTruth;
use std::path::PathBuf;
use std::time::Instant;
use store::{Measurement, Query, Store};
use topology::{Bytes, Cluster};

/// The one message size of the demo: the published tables are complete at it.
const SIZE: Bytes = Bytes(16 << 20);
/// Multi-host samples that the model learns from.
const SAMPLES: usize = 100;
/// Probes of the probing method.
const PROBES: usize = 3;
/// Maximum number of requests per number of GPUs: 31 numbers of GPUs make 31 000 requests, a few minutes.
const REQUESTS_PER_K_MAX: u64 = 1_000;
/// `nvidia-smi topo -m` of an 8x H100 host with one NIC per GPU, composed after NVIDIA's DGX H100 user guide.
const TOPO_MATRIX: &str = include_str!("../../../../examples/hgx-h100.topo.txt");

/// Arguments of `linkwise-lab demo`.
#[derive(clap::Args)]
#[command(after_help = "\
Files, all below --out: hgx-h100.topo.txt, cluster.yaml, demo.db, gbe-by-k.svg, report.html, those of the closed loop
(loop.db, loop.state, loop-model.json) and linkwise-demo.txt, which lists them. They are replaced by the next demo; files that a demo did not write are never touched.")]
pub struct Args {
    /// Folder for the files that the demo writes
    #[arg(long, default_value = "out")]
    out: PathBuf,
    /// Folder with the published tables (docs/data.md) [default: $LINKWISE_DATA, then ../shared/data]
    #[arg(long, conflicts_with = "simulated")]
    data: Option<PathBuf>,
    /// Use the simulated cluster even if published tables are available
    #[arg(long)]
    simulated: bool,
    /// Seed of samples, requests and the simulated hardware
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Random availabilities per number of GPUs (2 to 32)
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=REQUESTS_PER_K_MAX))]
    requests_per_k: u64,
}

/// The results of all steps, for the report.
struct Run<'a> {
    cluster: &'a Cluster,
    truth: &'a DemoTruth,
    seed: u64,
    per_k: usize,
    taken: Taken,
    fit: Fit,
    replay: replay::Replay,
    explained: Option<explain::Explained>,
    closed: closed_loop::ClosedLoop,
}

/// The content of the store after step 2.
struct Taken {
    intra: usize,
    multi: usize,
    /// Origin of the readings, one sentence.
    how: String,
}

/// The models and their errors on rows that they have not learned.
struct Fit {
    gp: Model,
    bound: Model,
    seconds: f64,
    distrusted: usize,
    held_out: replay::HeldOut,
}

/// Announces the steps on standard error, with their seconds.
struct Steps {
    done: usize,
    begun: Instant,
}

impl Steps {
    const COUNT: usize = 7;

    fn new() -> Self {
        Steps { done: 0, begun: Instant::now() }
    }
    fn step<T>(&mut self, what: &str, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        self.done += 1;
        let begun = Instant::now();
        eprintln!("step {} of {}: {what}", self.done, Self::COUNT);
        let value = work()?;
        eprintln!("step {} of {}: {:.1} s", self.done, Self::COUNT, begun.elapsed().as_secs_f64());
        Ok(value)
    }
}

pub fn run(args: Args) -> Result<(), Failure> {
    let found = source::find(args.data.as_deref(), args.simulated)?;
    let folder = Folder::open(&args.out)?;
    let mut steps = Steps::new();

    print(&words::opening(&found, args.seed));
    let cluster = steps.step("import the topology of a host", || import(&folder))?;
    print(&words::cluster(&cluster, &folder));

    let (truth, rows, taken) = steps.step("take measurements into a store", || {
        let truth = source::load(&found, &cluster, args.seed)?;
        let (rows, taken) = measure(&folder, &cluster, &truth, args.seed)?;
        Ok((truth, rows, taken))
    })?;
    print(&words::taken(&taken, &truth, &folder));

    let fit = steps.step("fit the model", || fit_models(&cluster, &rows, &truth, args.seed))?;
    print(&words::fit(&fit, &truth));

    let per_k = args.requests_per_k as usize;
    let replay = steps.step("place requests under random availability", || {
        replay::replay(&cluster, &fit, &truth, per_k, args.seed)
    })?;
    print(&words::comparison(&replay, &truth));

    let explained = steps.step("explain one decision", || {
        Ok(replay.most_gained().map(|d| explain::explain(&cluster, &fit.gp, &truth, d)))
    })?;
    print(&words::explained(explained.as_ref(), &truth));

    let closed = steps.step("close the loop", || closed_loop::play(&cluster, &fit, &truth, &folder, args.seed))?;
    print(&words::closed_loop(&closed, &truth));

    let run = Run { cluster: &cluster, truth: &truth, seed: args.seed, per_k, taken, fit, replay, explained, closed };
    let path = steps.step("write the report", || page::write(&run, &folder))?;
    eprintln!("all steps: {:.1} s", steps.begun.elapsed().as_secs_f64());
    print(&words::closing(&path, &truth, &folder));
    Ok(())
}

/// Step 1: a host's topology matrix through `linkwise topology import`, into a cluster file of four such hosts.
fn import(folder: &Folder) -> Result<Cluster, Failure> {
    let matrix = folder.write("hgx-h100.topo.txt", TOPO_MATRIX)?;
    let file = folder.claim("cluster.yaml")?;
    let (matrix, file) = (matrix.display().to_string(), file.display().to_string());
    let mut words = vec!["topology", "import", matrix.as_str()];
    words.extend(words::IMPORT_FLAGS);
    words.extend(["-o", file.as_str()]);
    let (said, notes) = Linkwise::find()?.run(&words)?;
    print(&said);
    eprint!("{notes}");
    let cluster = load_cluster(&file)?;
    // A reader that loses the NICs or the GPUs must fail here.
    if cluster.types.first().map(|t| (t.gpu_count(), t.nics.len())) != Some((8, 8)) {
        return Err(Failure::input(format!("{file} does not describe hosts of 8 GPUs and 8 NICs")));
    }
    Ok(cluster)
}

/// Step 2: a new store with the intra tables and the multi-host readings; returns the readings at [`SIZE`].
fn measure(
    folder: &Folder,
    cluster: &Cluster,
    truth: &DemoTruth,
    seed: u64,
) -> Result<(Vec<Measurement>, Taken), Failure> {
    // The store is built in a temporary folder and moved when complete: a killed demo leaves the old store or none.
    let building = folder.temporary_folder()?;
    let path = building.path().join("demo.db");
    let (rows, how) = {
        let mut store = Store::create(&path, cluster).map_err(Failure::input)?;
        let how = truth.take_into(&mut store, cluster, SAMPLES, seed)?;
        (store.measurements(&Query::usable().size(SIZE)).map_err(Failure::input)?, how)
    };
    folder.adopt(&path, "demo.db")?;
    let multi = rows.iter().filter(|m| m.allocation.host_count() > 1).count();
    Ok((rows.clone(), Taken { intra: rows.len() - multi, multi, how }))
}

/// Step 3. The physics uses no constant that was fitted on measurements, because the fitted constants used the tables
/// that judge the demo.
fn fit_models(cluster: &Cluster, rows: &[Measurement], truth: &DemoTruth, seed: u64) -> Result<Fit, Failure> {
    // The shipped constants were fitted on the published tables, among others. The demo must not depend on that.
    let constants = if truth.is_simulated() { fabric::Constants::default() } else { fabric::Constants::unfitted() };
    let options = |kind| FitOptions::of(kind).constants(constants.clone());
    let begun = Instant::now();
    let (gp, report) = fit(cluster, rows, &options(Kind::Gp)).map_err(Failure::impossible)?;
    let seconds = begun.elapsed().as_secs_f64();
    let bound = fit(cluster, rows, &options(Kind::Bound)).map_err(Failure::impossible)?.0;
    let held_out = replay::held_out(&gp, truth, cluster, rows, seed);
    Ok(Fit { gp, bound, seconds, distrusted: report.distrusted, held_out })
}
