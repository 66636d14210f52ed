//! What a decision, a fit and an update cost on the four-host H100 cluster.

use predict::{FitOptions, Kind, Model, fit};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use store::{Measurement, Source};
use topology::{Allocation, Bandwidth, Bytes, Collective, catalog};

const SIZE: Bytes = Bytes::gib(2);

fn main() {
    divan::main();
}

fn rows(n: usize) -> Vec<Measurement> {
    let cluster = catalog::cluster("h100").expect("built in");
    let physics = fabric::Fabric::new(&cluster);
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let usable = cluster.usable();
    let mut out = Vec::new();
    while out.len() < n {
        let k = 2 + place::baselines::below(&mut rng, 31);
        let Some(a) = place::baselines::random(&usable, k, &mut rng).filter(|a| a.host_count() > 1) else { continue };
        // Simulated readings: the physics, bent by something that it does not know.
        let bent = 1.0 + 0.1 * ((a.counts()[0] % 3) as f64 - 1.0) + 0.02 * (out.len() % 5) as f64;
        let v = physics.estimate(&a, Collective::AllReduce, SIZE).busbw.gb_per_s() * bent;
        out.push(Measurement::new(a, Collective::AllReduce, SIZE, Bandwidth::from_gb_per_s(v), Source::Simulated));
    }
    out
}

fn model(kind: Kind, n: usize) -> Model {
    let cluster = catalog::cluster("h100").expect("built in");
    fit(&cluster, &rows(n), &FitOptions::of(kind)).expect("fits").0
}

/// The requests of one pass: every k from 2 to 32 with ten random availabilities.
fn requests() -> Vec<place::Request> {
    let cluster = catalog::cluster("h100").expect("built in");
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let all = cluster.usable();
    let mut out = Vec::new();
    for k in 2..=32 {
        for _ in 0..10 {
            let free = k + place::baselines::below(&mut rng, 33 - k);
            let free: Allocation = place::baselines::random(&all, free, &mut rng).expect("enough");
            out.push(place::Request::new(k, free, SIZE));
        }
    }
    out
}

/// One decision with its reasons, averaged over 310 requests.
#[divan::bench(args = ["bound", "gp"])]
fn answer_32_gpus(bencher: divan::Bencher, kind: &str) {
    let cluster = catalog::cluster("h100").expect("built in");
    let model = model(if kind == "gp" { Kind::Gp } else { Kind::Bound }, 100);
    let requests = requests();
    let mut next = 0;
    bencher.bench_local(|| {
        next = (next + 1) % requests.len();
        place::answer(&cluster, &model, &requests[next])
    });
}

#[divan::bench(args = [100, 250], sample_count = 10)]
fn fit_gp(bencher: divan::Bencher, n: usize) {
    let cluster = catalog::cluster("h100").expect("built in");
    let rows = rows(n);
    bencher.bench_local(|| fit(&cluster, &rows, &FitOptions::of(Kind::Gp)));
}

#[divan::bench(args = [100, 250], sample_count = 20)]
fn update_gp(bencher: divan::Bencher, n: usize) {
    let model = model(Kind::Gp, n);
    let one = rows(n + 1).pop().expect("a row");
    bencher.with_inputs(|| model.clone()).bench_local_values(|mut m| {
        m.update(&one.allocation, SIZE, one.busbw.gb_per_s());
        m
    });
}
