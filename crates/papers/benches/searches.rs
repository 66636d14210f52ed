//! One decision by every search on four H100 hosts, averaged over 62 requests.

use divan::{Bencher, main as run_all};
use place::{Objective, Registry, Request, baselines};
use predict::{FitOptions, Kind, Model, fit};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use store::{Measurement, Source};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId, catalog};

const SIZE: Bytes = Bytes::gib(2);

fn main() {
    run_all();
}

fn bound(cluster: &Cluster) -> Model {
    let two = Allocation::new([(HostId(0), GpuMask::first(4)), (HostId(1), GpuMask::first(4))]);
    let row = Measurement::new(two, Collective::AllReduce, SIZE, Bandwidth::from_gb_per_s(337.0), Source::Published);
    fit(cluster, &[row], &FitOptions::of(Kind::Bound)).expect("fits").0
}

/// Every k from 2 to 32 with two random availabilities.
fn requests(cluster: &Cluster) -> Vec<Request> {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let all = cluster.usable();
    let ks = (2..=32).flat_map(|k| [k, k]);
    let mut free = |k| baselines::random(&all, k + baselines::below(&mut rng, 33 - k), &mut rng).expect("enough");
    ks.map(|k| Request::new(k, free(k), SIZE)).collect()
}

fn registry() -> Registry {
    let mut registry = Registry::shipped();
    papers::register_searches(&mut registry).expect("names are free");
    registry
}

#[divan::bench(args = registry().search_names().collect::<Vec<_>>())]
fn decision_32_gpus(bencher: Bencher, name: &str) {
    let cluster = catalog::cluster("h100").expect("built in");
    let (model, requests) = (bound(&cluster), requests(&cluster));
    let search = registry().search(name, 1).expect("known");
    let mut next = 0;
    bencher.bench_local(|| {
        next = (next + 1) % requests.len();
        search.search(&Objective::new(&cluster, &model, &requests[next]), 1)
    });
}
