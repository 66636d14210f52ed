//! A cluster, a model and readings for the tests of the engine. All bandwidths are invented.
#![allow(dead_code)] // each test binary uses only some of these

use engine::{Engine, PlaceQuery};
use predict::{FitOptions, Kind, Model, fit};
use std::path::Path;
use store::{Measurement, Source, State, Store};
use topology::cluster::Host;
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId};

/// The size of every test's messages.
pub const SIZE: Bytes = Bytes::mib(16);

/// `hosts` hosts of eight H100 each.
pub fn cluster(hosts: usize) -> Cluster {
    let mut c = topology::catalog::cluster("h100").unwrap();
    let one = c.hosts[0].clone();
    c.hosts = (0..hosts).map(|i| Host { name: format!("n{i}"), ..one.clone() }).collect();
    c
}

/// A reading.
pub fn row(allocation: Allocation, gb_per_s: f64) -> Measurement {
    let busbw = Bandwidth::from_gb_per_s(gb_per_s);
    Measurement::new(allocation, Collective::AllReduce, SIZE, busbw, Source::Simulated)
}

/// Readings of every subset of the first two hosts, and of some allocations across two hosts with the bandwidth of the physics.
pub fn rows(cluster: &Cluster) -> Vec<Measurement> {
    let intra = |m: GpuMask| 20.0 + 8.0 * m.count() as f64 + f64::from(m.0 % 7) / 10.0;
    let inside = (0..2).flat_map(|h| GpuMask::first(8).subsets().map(move |m| (HostId(h), m)));
    let mut out: Vec<Measurement> = inside.map(|(h, m)| row(Allocation::new([(h, m)]), intra(m))).collect();
    let fabric = fabric::Fabric::new(cluster);
    let hosts = cluster.hosts.len() as u32;
    for i in 0..24u32 {
        let (a, b) = (HostId(i % hosts), HostId((i + 1 + i / hosts) % hosts));
        let n = 1 + (i as usize % 4);
        if a != b {
            let both = Allocation::new([(a, GpuMask::first(n)), (b, GpuMask::first(n))]);
            let v = fabric.estimate(&both, Collective::AllReduce, SIZE).busbw.gb_per_s();
            out.push(row(both, v * (1.0 + f64::from(i % 3) / 100.0)));
        }
    }
    out
}

/// Physics with the intra tables of [`rows`], quick to fit and to search.
pub fn model(cluster: &Cluster) -> Model {
    fit(cluster, &rows(cluster), &FitOptions::of(Kind::Bound)).unwrap().0
}

/// A Gaussian process, which learns from single readings.
pub fn learning_model(cluster: &Cluster) -> Model {
    fit(cluster, &rows(cluster), &FitOptions::of(Kind::Gp)).unwrap().0
}

/// An engine with a new state and a new store in a folder.
pub fn engine(folder: &Path, cluster: &Cluster, model: Model) -> Engine {
    let path = folder.join("s.state");
    let state = if path.exists() { State::open(&path) } else { State::init(&path, cluster, 0.0) };
    let store = Store::create(&folder.join("s.db"), cluster).unwrap();
    Engine::builder(cluster.clone()).state(state.unwrap()).store(store).model(model).build().unwrap()
}

/// A request for `gpus` of all usable GPUs, committed for `job`.
pub fn take(cluster: &Cluster, gpus: usize, job: &str) -> PlaceQuery {
    let request = place::Request::new(gpus, cluster.usable(), SIZE);
    PlaceQuery { commit: Some(job.into()), ..PlaceQuery::new(request) }
}
