//! Measures the cost of the loop at the size of a site, with the store and the model in files: `observe` and `diagnose`, first and next requests.
//!
//! `cargo run -p engine --example site_scale -- HOSTS READINGS [FOLDER]`. Readings are simulated. All times are
//! processor time in seconds. With a FOLDER the files are kept there, for `linkwise observe --cluster HOSTSxhgx-h100
//! --store FOLDER/site.db --model FOLDER/model.json ...`.

#[path = "../../predict/tests/common/cost.rs"]
mod cost;
#[path = "../../predict/tests/common/fleet.rs"]
mod fleet;

use cost::{cpu_s, peak_mib};
use diagnose::Component;
use engine::{DiagnoseRequest, Engine, ModelKeeper, ObserveRequest, ReadingIn};
use fleet::Fleet;
use predict::{FitOptions, Kind, Model, fit};
use std::error::Error;
use std::path::{Path, PathBuf};
use store::{Record, Store};
use topology::{Cluster, HostId};

/// Readings for the fit of the model.
const FITTED: usize = 200;
/// Requests after the first one.
const MORE: usize = 20;
/// Readings of one write.
const BATCH: usize = 5_000;

/// Saves the model in a file, as the command does.
struct File(PathBuf);

impl ModelKeeper for File {
    fn keep(&mut self, model: &Model) -> Result<(), String> {
        std::fs::write(&self.0, model.save()?).map_err(|e| e.to_string())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| args.get(i).and_then(|a| a.parse::<usize>().ok()).ok_or("HOSTS READINGS [FOLDER]");
    let (hosts, readings) = (number(0)?, number(1)?);
    let temporary = tempfile::tempdir()?;
    let folder = args.get(2).map_or(temporary.path().to_owned(), PathBuf::from);
    let (store, model) = (folder.join("site.db"), folder.join("model.json"));

    let mut fleet = Fleet::new(hosts, false, 1);
    let cluster = fleet.cluster.clone();
    if !store.exists() {
        write_site(&mut fleet, readings, &store, &model)?;
        println!("{hosts} hosts, {readings} readings written; {} MiB so far", peak_mib());
    }
    println!("store {} MB, model {} MB", megabytes(&store)?, megabytes(&model)?);

    let t = cpu_s();
    let engine = open(&cluster, &store, &model)?;
    println!("open: {:.3} s", cpu_s() - t);
    let mut times = Vec::new();
    for i in 0..=MORE {
        let request = observation(&mut fleet, readings + i);
        let t = cpu_s();
        let answer = engine.observe(&request, fleet::START_UNIX_S + fleet::STEP_S * (readings + i) as f64)?;
        times.push(cpu_s() - t);
        if i == 0 {
            println!("observe, first request of a process: {:.3} s, {} MiB", times[0], peak_mib());
            println!("  learned {}, suspects {:?}", answer.learned, answer.suspected.unwrap_or_default().len());
        }
    }
    let mut more = times.split_off(1);
    more.sort_by(f64::total_cmp);
    println!("observe, next requests: median {:.4} s, worst {:.4} s", more[MORE / 2], more[MORE - 1]);
    let t = cpu_s();
    let answer = engine.diagnose(&DiagnoseRequest::default())?;
    println!("diagnose: {:.3} s, {} MiB", cpu_s() - t, peak_mib());
    for d in answer.defects.iter().take(4) {
        let c = &d.candidates[0];
        println!("  {} at {:.2}, probability {:.3}", c.component, c.factor, c.probability);
    }
    println!("  {} defects, {} readings of {} judged", answer.defects.len(), answer.judged, answer.readings);
    Ok(())
}

/// A store with readings of a site with a slow host and a slow NIC, and a model that was fitted before they became slow.
fn write_site(fleet: &mut Fleet, readings: usize, store: &Path, model: &Path) -> Result<(), Box<dyn Error>> {
    let healthy = fleet.readings(0..FITTED);
    let (hosts, start) = (fleet.cluster.hosts.len() as u32, readings - readings / 50);
    fleet.defects =
        vec![(Component::Host(HostId(hosts / 3)), 0.7, start), (Component::Nic(HostId(hosts / 2), 3), 0.5, start)];
    let rows = fleet.readings(FITTED..readings);
    let (fitted, _) = fit(&fleet.cluster, &healthy, &FitOptions::of(Kind::Gp))?;
    std::fs::write(model, fitted.save()?)?;
    let mut store = Store::create(store, &fleet.cluster)?;
    let records: Vec<Record> = healthy.into_iter().chain(rows).map(Record::from).collect();
    records.chunks(BATCH).try_for_each(|batch| store.insert_batch(batch).map(|_| ()))?;
    Ok(())
}

fn open(cluster: &Cluster, store: &Path, model: &Path) -> Result<Engine, Box<dyn Error>> {
    let kinds = predict::ModelKinds::shipped();
    let loaded = Model::load(&std::fs::read_to_string(model)?, &kinds)?;
    let store = Store::open(store, cluster)?;
    Ok(Engine::builder(cluster.clone()).store(store).model(loaded).keeper(File(model.into())).build()?)
}

/// The reading of the next job.
fn observation(fleet: &mut Fleet, number: usize) -> ObserveRequest {
    let job = fleet.job();
    let reading = fleet.measure(job, number);
    ObserveRequest {
        job: format!("job-{number}"),
        gpus: Some(fleet.cluster.gpu_names(&reading.allocation)),
        readings: vec![ReadingIn::new(reading.collective, Some(reading.size), reading.busbw.gb_per_s())],
        simulated: true,
        ..ObserveRequest::default()
    }
}

fn megabytes(path: &Path) -> Result<u64, std::io::Error> {
    Ok(std::fs::metadata(path)?.len() / 1_000_000)
}
